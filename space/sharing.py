"""Export of a result: the text, its tokens as tables, and a citation."""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from perplexity_sliding.about import VERSION
from perplexity_sliding.views.markup import interval_words, number

from .calls import CONTEXT_FILE, TABLE_FILE, TEXT_FILE, space
from .card import card
from .score_view import recipe
from .service import Scored

TITLE = "Perplexity Sliding: perplexity of texts of any length, under every published protocol"
AUTHORS = "Contributors to Perplexity Sliding"
COLUMNS = ("index", "token", "start", "end", "nll_nats", "nll_bits", "rank", "context_length")
WORD_COLUMNS = (
    *("index", "word", "start", "end", "surprisal_bits", "nll_bits", "entropy_bits"),
    *("num_tokens", "context_length"),
)
SHORT_COMMIT = 8


def digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, as `sha256sum text.txt` prints it."""
    return hashlib.sha256(text.encode()).hexdigest()


def sentence(scored: Scored) -> str:
    """State a number in a sentence with everything needed to compare and reproduce it."""
    result, loaded = scored.result, scored.loaded
    within = "" if scored.interval is None else f" ({interval_words(scored.interval)})"
    model = loaded.name + (f" at {loaded.commit[:SHORT_COMMIT]}" if loaded.commit else "")
    context = scored.settings.context
    after = f", context with SHA-256 {digest(context)}" if context else ""
    return (
        f"Perplexity {number(result['perplexity'])}{within} over {result['num_tokens']:,} tokens under "
        f"{model}; {', '.join(recipe(scored))}; {result['signature_short']}; "
        f"text with SHA-256 {digest(scored.text)}{after}."
    )


def bibtex(signatures: Sequence[str]) -> str:
    """Write a BibTeX entry for the metric, with the signatures of the numbers as its note."""
    named = ", ".join(rf"\texttt{{{escape_tex(signature)}}}" for signature in signatures)
    # As the citation has it: the Space's owner, and its address.
    author = space().split("/")[0] if space() else AUTHORS
    page = f"  url = {{https://huggingface.co/spaces/{space()}}},\n" if space() else ""
    return (
        "@software{perplexity_sliding,\n"
        f"  author = {{{{{author}}}}},\n  title = {{{TITLE}}},\n  year = {{2026}},\n"
        f"  version = {{{VERSION}}},\n{page}"
        f"  note = {{Signature{'s' * (len(signatures) > 1)} {named}}}\n}}"
    )


def escape_tex(words: str) -> str:
    """Escape text for LaTeX."""
    return re.sub(r"([_#%&$])", r"\\\1", words)


def token_table(scored: Scored) -> list[dict]:
    """Return one row for each token: `COLUMNS`; nll and rank are None where it was not scored.

    Start and end are characters of the text (those of a context before it are
    negative), an impossible token has the nll_nats "inf", because JSON has no infinity.
    """
    tokens, before = scored.tokens, len(scored.settings.context)
    return [
        {
            "index": index,
            "token": token,
            "start": offset and offset[0] - before,
            "end": offset and offset[1] - before,
            "nll_nats": _finite(nll),
            "nll_bits": _finite(nll and nll / math.log(2)),
            "rank": rank,
            "context_length": context,
        }
        for index, (token, offset, nll, rank, context) in enumerate(
            zip(
                tokens["tokens"],
                tokens["offsets"],
                tokens["nll"],
                tokens["rank"],
                tokens["context_length"],
            )
        )
    ]


def word_table(scored: Scored) -> list[dict]:
    """Return one row for each word: `WORD_COLUMNS`, in bits; None where it was not scored.

    The surprisal has the space booked on the word that it ends, `nll_bits` is the plain sum over the
    tokens. start and end are characters of the text, which begins after the context.
    """
    [words] = scored.result["word_scores"]
    names = ("words", "offsets", "surprisal", "nll", "entropy", "num_tokens", "context_length")
    return [
        {
            "index": index,
            "word": word,
            "start": first - len(scored.settings.context),
            "end": end - len(scored.settings.context),
            "surprisal_bits": _finite(surprisal and surprisal / math.log(2)),
            "nll_bits": _finite(nll and nll / math.log(2)),
            "entropy_bits": _finite(entropy and entropy / math.log(2)),
            "num_tokens": num_tokens,
            "context_length": context,
        }
        for index, (word, (first, end), surprisal, nll, entropy, num_tokens, context) in enumerate(
            zip(*(words[name] for name in names))
        )
    ]


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def as_csv(columns: Sequence[str], table: Sequence[dict]) -> str:
    lines = io.StringIO()
    writer = csv.DictWriter(lines, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return lines.getvalue()


def as_json(scored: Scored, name: str, table: Sequence[dict]) -> str:
    """Write the whole result as JSON: numbers, signature, text digest, windows and a table."""
    tables = ("token_scores", "word_scores")
    result = {key: value for key, value in scored.result.items() if key not in tables}
    whole = {
        **{key: _finite(v) if isinstance(v, float) else v for key, v in result.items()},
        "text_sha256": digest(scored.text),
        name: table,
        "windows": scored.tokens["windows"],
    }
    return json.dumps(whole, ensure_ascii=False, indent=1)


def text_files(scored: Scored) -> dict[str, str]:
    """Return the files that the calls read, by name."""
    context = scored.settings.context
    made = {TEXT_FILE: scored.text}
    if context:
        row = json.dumps({"text": scored.text, "context": context}, ensure_ascii=False)
        made |= {CONTEXT_FILE: context, TABLE_FILE: row + "\n"}
    return made


def files(scored: Scored) -> dict[str, str]:
    """Return all files about a result, by name."""
    made = text_files(scored)
    tables = {"tokens": (COLUMNS, token_table(scored))}
    if "word_scores" in scored.result:
        tables["words"] = (WORD_COLUMNS, word_table(scored))
    for name, (columns, table) in tables.items():
        made[f"{name}.csv"] = as_csv(columns, table)
        made[f"{name}.json"] = as_json(scored, name, table)
    return made | {"card.svg": card(scored)}


def write_files(made: Mapping[str, str], folder: Path) -> list[str]:
    """Write files, given by name; return their paths."""
    paths = []
    for name, content in made.items():
        path = Path(folder) / name
        path.write_text(content, encoding="utf-8", newline="")
        paths.append(str(path))
    return paths
