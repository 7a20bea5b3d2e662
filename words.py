"""From scores of tokens to scores of words: which tokens make a word, and whose is the space.

Tokens that carry the space before them make the sum over a word's tokens pay for the wrong space:
the one that opens the word instead of the one that closes it, and such "probabilities" of all
words add up to more than 1.  The repair moves each space to the word that it closes (Pimentel and
Meister, 2024, arXiv 2406.14561; Oh and Schuler, 2024, arXiv 2406.10851)::

    surprisal(w) = Σ nll(x[a..b-1]) + E(b) - Z(a)          word w = tokens a to b - 1

    E(i) = -log P(x[i] begins with white space, or ends the text | row i)
    Z(a) = E(a) where x[a] begins with white space, else
           -log P(x[a] does not begin with white space | row a)

Both terms at a border come from the row that predicts its first token, so they cancel in the sum
over words.  White space is told by the text that a token stands for, so that newlines, tabs and
tokens that end in a newline count as what they are.  Numbers are nats.
"""

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CORRECTIONS = ("pimentel", "oh", None)
SPACE = re.compile(r"\s*")
Span = tuple[int, int]  # first, one past the last: of characters, or of tokens


# --- the vocabulary -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """What each token says about the borders of words, by the text that it stands for.

    Attributes:
        begins: whether the text of the token begins with white space (V,).
        ends: whether it ends in white space (V,); so do tokens that mark the end of a word.
        closes: whether it is the end-of-text token (V,).
        special: whether it is a special token of any kind (V,).
    """

    begins: np.ndarray
    ends: np.ndarray
    closes: np.ndarray
    special: np.ndarray

    def boundary_ids(self, correction: str) -> np.ndarray:
        """Ids of the tokens that close the word before them.

        "oh" counts tokens with white space alone, "pimentel" the end of the text as well.
        """
        closing = self.begins | self.closes if correction == "pimentel" else self.begins
        return np.flatnonzero(closing)

    def interior_ids(self) -> np.ndarray:
        """Ids of the tokens that may begin a text that does not begin with white space."""
        return np.flatnonzero(~self.begins)


def classify_vocabulary(tokenizer, size: int) -> Vocabulary:
    """Classify the tokens of a vocabulary.

    Args:
        size: V, the logits that the model gives; more than the tokenizer has tokens where a model
            pads its vocabulary, and these stand for no text.
    """
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    texts = (token_texts(tokenizer, tokens) + [""] * size)[:size]
    numbers = np.arange(size)
    return Vocabulary(
        begins=np.array([text[:1].isspace() for text in texts], dtype=bool),
        ends=np.array([text[-1:].isspace() for text in texts], dtype=bool),
        closes=numbers == tokenizer.eos_token_id,
        special=np.isin(numbers, tokenizer.all_special_ids),
    )


def token_texts(tokenizer, tokens: Sequence[str]) -> list[str]:
    """The text that each token stands for in the middle of a text, its white space included.

    A token is decoded between two others, since decoders strip what is at the ends.  Offsets would
    not do: some tokenizers trim them, others count a space that is not in the text.
    """
    join = tokenizer.convert_tokens_to_string
    anchor = _anchor(tokenizer)
    if join([anchor, anchor]) == anchor + anchor:
        return [_cut(join([anchor, token, anchor]), anchor, anchor) for token in tokens]
    # The decoder puts a space before every word: tokens that it puts none before go on with one.
    texts = [_cut(join([anchor, token]), anchor, "") for token in tokens]
    if all(text[:1].isspace() for text in texts):
        return [text.lstrip() + " " for text in texts]  # every token is a whole word
    return texts


def _anchor(tokenizer) -> str:
    """A token of plain letters, which decodes to itself beside any other."""
    vocabulary = tokenizer.get_vocab()
    letters = "abcdefghijklmnopqrstuvwxyz"
    return next((letter for letter in letters if letter in vocabulary), "a")


def _cut(text: str, head: str, tail: str) -> str:
    return text[len(head) : len(text) - len(tail)]


# --- words in a text ------------------------------------------------------------------------------


def split_words(text: str) -> list[Span]:
    """Split a text at white space, into (first, one past the last) characters."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def find_words(text: str, words: Iterable[str]) -> list[Span]:
    """Find given words in a text that they make up, with nothing but white space between them.

    Raises:
        ValueError: they do not.
    """
    spans, place = [], 0
    for word in words:
        first = SPACE.match(text, place).end()
        if not word.strip() or not text.startswith(word, first):
            raise ValueError(
                f"`words` must be the words of the text in their order, but {word!r} does not "
                f"follow at character {first}, where {text[first : first + 20]!r} stands. Give "
                "spans of characters to leave parts of a text out."
            )
        place = first + len(word)
        spans.append((first, place))
    if text[place:].strip():
        raise ValueError(
            f"`words` must be all words of the text, but {text[place : place + 20]!r} comes after "
            "the last one. Give spans of characters to leave parts of a text out."
        )
    return spans


def assign_tokens(text: str, offsets: np.ndarray, spans: Sequence[Span]) -> list[Span | None]:
    """Find the tokens of each word, as (first, one past the last).

    White space that is a token of its own belongs to the word after it.

    Args:
        offsets: characters of each token (N, 2); a token that stands for none of the text, such as
            a start token, has (-1, -1).
        spans: characters of each word.

    Returns:
        for each word its tokens, or None where a token reaches across the edge of the word.
    """
    starts = [first for first, _ in spans]
    tokens: list[list[int]] = [[] for _ in spans]
    torn = [False] * len(spans)
    solid = [_without_space(text, *pair) for pair in offsets.tolist()]
    for number, (first, end) in enumerate(solid):
        if first == end:
            continue
        word = bisect_right(starts, first) - 1
        if word >= 0 and first < spans[word][1]:
            tokens[word].append(number)
            torn[word] |= end > spans[word][1]
        for later in range(word + 1, bisect_right(starts, end - 1)):
            torn[later] = True
    return [
        None
        if tear or not members
        else (_with_space_before(offsets, solid, members[0]), members[-1] + 1)
        for tear, members in zip(torn, tokens)
    ]


def _without_space(text: str, first: int, end: int) -> Span:
    """The characters of a token without the white space at its ends; empty where none remain."""
    stripped = text[max(first, 0) : max(end, 0)].strip()
    if not stripped:
        return first, first
    first += text[first:end].index(stripped[0])
    return first, first + len(stripped)


def _with_space_before(offsets: np.ndarray, solid: list[Span], first: int) -> int:
    """The first of the tokens of nothing but white space that lead up to a token."""
    while first > 0 and solid[first - 1][0] == solid[first - 1][1] and offsets[first - 1][0] >= 0:
        first -= 1
    return first


# --- scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenBorders:
    """What happens at the border before each token of a text, and at its end (N + 1,).

    Attributes:
        opens: the token begins with white space, is a special one, or ends the text.
        passed: the token before it ends in white space already.
        at_start: nothing of the text stands before it.
    """

    opens: np.ndarray
    passed: np.ndarray
    at_start: np.ndarray

    @classmethod
    def of(
        cls, text: str, ids: np.ndarray, offsets: np.ndarray, vocabulary: Vocabulary
    ) -> "TokenBorders":
        """Tell the borders of a text's tokens.

        Args:
            ids: token ids (N,).
            offsets: as in `assign_tokens` (N, 2).
        """
        ends = np.append(0, np.maximum.accumulate(offsets[:, 1].clip(0)))
        # Decoders that put a space between any two words do so where the text has none.
        spaced = [any(map(str.isspace, text[a:b])) for a, b in itertools.pairwise(ends.tolist())]
        at_start = np.append(True, np.cumsum(offsets[:, 0] >= 0) == 0)
        opens = vocabulary.begins[ids] & (np.array(spaced, dtype=bool) | at_start[:-1])
        return cls(
            opens=np.append(opens | vocabulary.special[ids], True),
            passed=np.append(False, vocabulary.ends[ids]),
            at_start=at_start,
        )


def closing_terms(borders: TokenBorders, boundary: np.ndarray) -> np.ndarray:
    """What a word pays for its end, by the border where it ends (N + 1,).

    Nothing where its last token holds the white space, and where no white space follows: such
    borders, between given words, are no event in the text.

    Args:
        boundary: E (N + 1,).
    """
    return np.where(borders.opens & ~borders.passed, boundary, 0.0)


def opening_terms(
    borders: TokenBorders, boundary: np.ndarray, interior: np.ndarray, correction: str
) -> np.ndarray:
    """What a word is given back for its beginning, by the border where it begins (N + 1,).

    Args:
        boundary: E (N + 1,).
        interior: -log P(no white space first) of the row that predicts each token (N + 1,).
        correction: "oh" gives nothing back where no word before has paid.
    """
    unpaid = borders.at_start | borders.passed
    first = np.where(borders.opens, boundary, interior) if correction == "pimentel" else 0.0
    return np.where(unpaid, first, np.where(borders.opens, boundary, 0.0))


def sum_words(
    tokens: Sequence[Span | None],
    nll: np.ndarray,
    closing: np.ndarray,
    opening: np.ndarray,
) -> tuple[list[float | None], list[float | None]]:
    """The plain sum and the surprisal of each word; None where a part of it has no score.

    Args:
        tokens: of each word, as `assign_tokens` gives them.
        nll: of each token (N,); NaN where it has no score.
        closing, opening: the terms at each border (N + 1,); NaN where that row was not read.
    """
    sums, surprisals = [], []
    for span in tokens:
        total = surprisal = np.nan
        if span is not None:
            first, end = span
            total = nll[first:end].sum(dtype=np.float64)
            surprisal = total + closing[end] - opening[first]
        sums.append(number_or_none(total))
        surprisals.append(number_or_none(surprisal))
    return sums, surprisals


def number_or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
