"""A result to take along: the text itself, its tokens as tables, and words to quote the number."""

import csv
import hashlib
import io
import json
import math
import re
from pathlib import Path

from .calls import TEXT_FILE
from .card import card
from .markup import number
from .score_view import recipe
from .service import Scored

TITLE = "Perplexity Sliding: perplexity of texts of any length, under every published protocol"
COLUMNS = ("index", "token", "start", "end", "nll", "bits", "rank", "context_length")
SHORT_COMMIT = 8


def digest(text: str) -> str:
    """SHA-256 of a text in UTF-8, as `sha256sum text.txt` prints it."""
    return hashlib.sha256(text.encode()).hexdigest()


def sentence(scored: Scored) -> str:
    """A number in a sentence that says all it takes to compare and to repeat it."""
    result, loaded = scored.result, scored.loaded
    interval = result["perplexity_interval"]
    within = (
        ""
        if interval is None
        else f" (95 % interval {number(interval[0])} to {number(interval[1])})"
    )
    model = loaded.name + (f" at {loaded.commit[:SHORT_COMMIT]}" if loaded.commit else "")
    return (
        f"Perplexity {number(result['perplexity'])}{within} over {result['num_tokens']:,} tokens under "
        f"{model}; {', '.join(recipe(scored))}; {result['signature_short']}; "
        f"text with SHA-256 {digest(scored.text)}."
    )


def bibtex(scored: Scored) -> str:
    """An entry for the metric, with the signature of this number as its note."""
    signature = scored.result["signature"]
    version = re.search(r"\|version:([^|]+)", signature)[1]
    note = re.sub(r"([_#%&$])", r"\\\1", signature)
    return (
        "@software{perplexity_sliding,\n"
        f"  title = {{{TITLE}}},\n  year = {{2026}},\n  version = {{{version}}},\n"
        f"  note = {{Signature \\texttt{{{note}}}}}\n}}"
    )


def token_table(scored: Scored) -> list[dict]:
    """One row for each token: `COLUMNS`; what was not scored has no nll and no rank.

    The nll is in nats, start and end are characters of the text, an impossible token has the nll
    "inf", because JSON has no infinity.
    """
    tokens = scored.tokens
    return [
        {
            "index": index,
            "token": token,
            "start": offset and offset[0],
            "end": offset and offset[1],
            "nll": _finite(nll),
            "bits": _finite(nll and nll / math.log(2)),
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


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def tokens_csv(scored: Scored) -> str:
    lines = io.StringIO()
    table = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(token_table(scored))
    return lines.getvalue()


def tokens_json(scored: Scored) -> str:
    """The whole result: numbers, signature, digest of the text, tokens and windows."""
    result = {key: value for key, value in scored.result.items() if key != "token_scores"}
    whole = {
        **{key: _finite(v) if isinstance(v, float) else v for key, v in result.items()},
        "text_sha256": digest(scored.text),
        "tokens": token_table(scored),
        "windows": scored.tokens["windows"],
    }
    return json.dumps(whole, ensure_ascii=False, indent=1)


FILES = {
    TEXT_FILE: lambda scored: scored.text,
    "tokens.csv": tokens_csv,
    "tokens.json": tokens_json,
    "card.svg": card,
}


def write_files(scored: Scored, folder: Path) -> list[str]:
    """Write all files about a result; return their paths."""
    paths = []
    for name, content in FILES.items():
        path = Path(folder) / name
        path.write_text(content(scored), encoding="utf-8", newline="")
        paths.append(str(path))
    return paths
