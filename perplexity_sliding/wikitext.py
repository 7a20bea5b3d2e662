"""Conversion of WikiText's tokenised form to ordinary prose and back, and layouts of its texts and lines.

WikiText (Merity et al. 2016) separates words and punctuation marks by single spaces, has a space at
both ends of each line, and writes `@-@`, `@,@`, `@.@` for a hyphen, comma or point between two
characters::

     " The co @-@ star of 1 @,@ 000 films ( and Robert 's friend ) , " he said .
    "The co-star of 1,000 films (and Robert's friend)," he said.

Models trained on ordinary text are surprised by the first form, so the second is scored and
normalised by the number of words of the first.  The form does not record which marks were next to a
word, so `detokenize` removes the spaces that English usually does not have, but only where
`tokenize` restores them.  A line with a token that `tokenize` would split is unchanged, and
recognised by its leading space.  Thus every line of that form is restored exactly:
tokenize(detokenize(text)) == text.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from .protocols import detokenize_wikitext

# Abbreviations that include their point.
ABBREVIATIONS = (
    "Adm|Bros|Brig|Capt|Cmdr|Co|Col|Corp|Cpl|Dr|Drs|Gen|Gov|Hon|Inc|Jr|Lt|Ltd|Maj|Messrs|Mr|Mrs|Ms|"
    "No|Nos|Prof|Rep|Rev|Sen|Sgt|Sr|St|al|pp|v|var|vs"
)

TOKEN = re.compile(
    rf"""
      <\w+>                            # <unk>, <formula>
    | @[-,.]@                          # still separated by spaces
    | (?:{ABBREVIATIONS})\.
    | (?:[^\W\d_]\.)+                  # U.S., e.g., the initial A.
    | [^\W\d_]{{2,}}\.[a-z]{{2,}}      # Amazon.com
    | \d{{1,3}},\d{{3}}(?:st|nd|rd|th) # 1,000th
    | \w+-(?![\w<])                    # the hyphen that hangs in "18- to 49-year-olds"
    | (?<=[\w>.])'[^\W\d_]+            # 's, 't, 'awiil
    | (?P<inner>(?<=[\w>.])[-,.](?=[\w<]))  # the mark of @-@, @,@, @.@
    | \w+
    | \.{{2,}} | -{{2,}}
    | \S
    """,
    re.VERBOSE,
)

MARKED = re.compile(r" @[-,.]@ | <unk> [,.] ")
# Written without a space after, before, and on both sides.
OPENING = frozenset("([{“‘#")
CLOSING = frozenset(",.;:!?)]}%”’°′″")
JOINING = frozenset(["@-@", "@,@", "@.@", "/", "⁄", "‑"])
# Written without spaces between numbers (7:30, 2000–2005) or words.
JOINING_ALIKE = {":": str.isdigit, "–": str.isdigit, "—": str.isalnum}
# Clitics after an apostrophe that is a separate token.
CLITICS = frozenset(["d", "ll", "m", "re", "s", "t", "ve"])


def detokenize(text: str) -> str:
    """Convert lines in WikiText's form to ordinary prose; other lines are unchanged."""
    *lines, last = text.split("\n")
    prose = ["" if line == " " else _detokenize_line(line) for line in lines]
    return "\n".join([*prose, _detokenize_line(last)])


def find_lost_spaces(text: str) -> str | None:
    """Return the first line of that form that lacks its space at an end, so that it is unchanged."""
    lines = (line for line in text.split("\n") if MARKED.search(line))
    return next((line for line in lines if not line[0] == line[-1] == " "), None)


def tokenize(text: str) -> str:
    """Invert `detokenize`."""
    *lines, last = text.split("\n")
    tokenized = [_tokenize_line(line) if line else " " for line in lines]
    return "\n".join([*tokenized, _tokenize_line(last)])


def split_chunk(chunk: str) -> list[str]:
    """Split a chunk of prose without spaces into WikiText's tokens."""
    if chunk.isalnum():
        return [chunk]
    if set(chunk) == {"="}:
        return list(chunk)  # == Heading ==
    return [f"@{match[0]}@" if match["inner"] else match[0] for match in TOKEN.finditer(chunk)]


def _tokenize_line(line: str) -> str:
    if not line or line.startswith(" "):
        return line
    tokens = [token for chunk in line.split(" ") for token in split_chunk(chunk)]
    return f" {' '.join(tokens)} "


def _detokenize_line(line: str) -> str:
    if not line.startswith(" "):
        return line
    chunks = _chunks(line.split())
    prose = " ".join(_write(part) for chunk in chunks for part in _invertible_parts(chunk))
    return prose if _tokenize_line(prose) == line else line


def _chunks(tokens: list[str]) -> list[list[str]]:
    """Group the tokens that prose writes without spaces."""
    neighbours = zip(["", *tokens], tokens, [*tokens[1:], ""])
    chunks: list[list[str]] = []
    open_quotes: set[str] = set()
    joined = False
    for before, token, after in neighbours:
        closes_gap, closes_next = _closed_gaps(before, token, after, open_quotes)
        if chunks and (closes_gap or joined):
            chunks[-1].append(token)
        else:
            chunks.append([token])
        joined = closes_next
    return chunks


def _closed_gaps(before: str, token: str, after: str, open_quotes: set[str]) -> tuple[bool, bool]:
    """Return whether prose has no space before and after a token; update the open quotes."""
    if token in ('"', "'"):
        return _closed_gaps_of_quote(before, token, open_quotes)
    if token == "=":
        return before == "=", False
    if token in JOINING_ALIKE:
        alike = JOINING_ALIKE[token]
        joins = alike(before[-1:]) and alike(after[:1])
        return joins or token in CLOSING, joins
    joins = token in JOINING
    closing = token in CLOSING or (token[0] == "'" and token[1:].isalpha())
    opening = token in OPENING or unicodedata.category(token[0]) == "Sc"
    return closing or joins, opening or joins or (token == "’" and after in CLITICS)


def _closed_gaps_of_quote(before: str, quote: str, open_quotes: set[str]) -> tuple[bool, bool]:
    if quote in open_quotes:
        open_quotes.remove(quote)
        return True, False
    if quote == "'" and (before[-1:].isalnum() or before.endswith(">")):
        return True, False  # the possessive of a plural
    open_quotes.add(quote)
    return False, True


def _invertible_parts(chunk: list[str]) -> list[list[str]]:
    """Divide a chunk into the longest parts that `split_chunk` splits correctly."""
    parts = []
    while chunk:
        lengths = range(len(chunk), 1, -1)
        length = next((n for n in lengths if split_chunk(_write(chunk[:n])) == chunk[:n]), 1)
        parts.append(chunk[:length])
        chunk = chunk[length:]
    return parts


def _write(tokens: list[str]) -> str:
    """Join tokens without spaces; a mark without words on both sides keeps its @ signs."""
    if len(tokens) == 1:
        return tokens[0]
    return "".join(token[1] if re.fullmatch("@[-,.]@", token) else token for token in tokens)


# --- layouts ------------------------------------------------------------------------------------

TITLE = re.compile(r"^ = [^=\n]+ = $", re.MULTILINE)


class Layout(NamedTuple):
    """A way to arrange the texts of a corpus.

    Attributes:
        usual, usual_for_wikitext: weights of other texts and of WikiText relative to "as-is", 0 for
            never; judgements, not measurements.
    """

    arrange: Callable[[list[str]], list[str]]
    usual: float
    usual_for_wikitext: float


def is_wikitext(texts: list[str]) -> bool:
    """Return whether texts are in WikiText's form: with its titles, or @ around joining marks."""
    return any(TITLE.search(text) or MARKED.search(text) for text in texts)


def hub_rows(text: str) -> list[str]:
    """Return the rows of a text in the Hub's wikitext: lines with their ends, blank ones empty."""
    return [line if line.strip() else "" for line in text.splitlines(keepends=True)] or [""]


def filled_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def articles(texts: list[str]) -> list[str]:
    """Split WikiText, whose texts may be its rows, at the titles of its articles."""
    text = "".join(texts)
    begins = [title.start() for title in TITLE.finditer(text)]
    if not begins or text[: begins[0]].strip():
        begins = [0, *begins]
    return [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)])]


def each(change: Callable[[str], str]) -> Callable[[list[str]], list[str]]:
    return lambda texts: [change(text) for text in texts]


def parts(split: Callable[[str], list[str]]) -> Callable[[list[str]], list[str]]:
    return lambda texts: [part for text in texts for part in split(text)]


LAYOUTS = {
    "as-is": Layout(lambda texts: texts, 1.0, 1.0),
    "joined": Layout(lambda texts: ["".join(texts)], 0.4, 0.8),
    "joined-by-line-end": Layout(lambda texts: ["\n".join(texts)], 0.4, 0.4),
    "joined-by-blank-line": Layout(lambda texts: ["\n\n".join(texts)], 0.3, 0.6),
    "without-blank-texts": Layout(lambda texts: [t for t in texts if t.strip()], 0.6, 0.6),
    "each-line": Layout(parts(filled_lines), 0.4, 0.3),
    "each-article": Layout(articles, 0.0, 0.5),
    "hub-rows-by-blank-line": Layout(each(lambda text: "\n\n".join(hub_rows(text))), 0.0, 0.9),
    "hub-rows": Layout(parts(hub_rows), 0.0, 0.6),
    "hub-rows-without-blank": Layout(
        parts(lambda text: [row for row in hub_rows(text) if row]), 0.0, 0.5
    ),
    "lines-by-blank-line": Layout(each(lambda text: "\n\n".join(text.splitlines())), 0.3, 0.2),
    "without-last-line-end": Layout(each(lambda text: text.removesuffix("\n")), 0.3, 0.1),
    "stripped": Layout(each(str.strip), 0.3, 0.2),
    "without-blank-lines": Layout(each(lambda text: "\n".join(filled_lines(text))), 0.2, 0.2),
    "detokenized": Layout(each(detokenize_wikitext), 0.0, 0.2),
    "lines-by-line-end": Layout(each(lambda text: "\n".join(text.splitlines())), 0.1, 0.1),
    "lines-by-space": Layout(each(lambda text: " ".join(text.splitlines())), 0.1, 0.1),
    "lines-by-nothing": Layout(each(lambda text: "".join(text.splitlines())), 0.05, 0.05),
}


def arrange(texts: list[str], layout: str) -> list[str]:
    return LAYOUTS[layout].arrange(texts)


# Conversions of texts to prose, by the name that `detokenizer` takes.
DETOKENIZERS = {"wikitext": detokenize}
