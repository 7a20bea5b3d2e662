"""What a researcher takes along: a citation, the calls that repeat the number, and tables."""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Sequence

from perplexity_sliding import __version__
from perplexity_sliding.views.text import number

from .answers import recipe
from .calls import python_call, shell_call, space, text_files
from .service import Scored

TITLE = "Perplexity Sliding: perplexity of texts of any length, under every published protocol"
AUTHORS = "Contributors to Perplexity Sliding"
COLUMNS = ("index", "token", "start", "end", "nll_nats", "nll_bits", "rank", "context_length")
SHORT_COMMIT = 8


def citation(scored: Scored) -> dict:
    """Return everything that quotes and repeats a number, and files by name."""
    texts = {"text": scored.text, "context": scored.settings.context}
    table = token_table(scored)
    whole = {name: value for name, value in scored.result.items() if name != "token_scores"}
    windows = scored.tokens["windows"]
    return {
        "sentence": sentence(scored),
        "signature": scored.result["signature"],
        "digests": {name: digest(text) for name, text in texts.items() if text},
        "bibtex": bibtex(scored.result["signature"]),
        "python": python_call(scored),
        "shell": shell_call(scored),
        "files": text_files(scored)
        | {
            "tokens.csv": as_csv(table),
            "tokens.json": as_json(whole | {"tokens": table, "windows": windows}),
        },
    }


def digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, as `sha256sum text.txt` prints it."""
    return hashlib.sha256(text.encode()).hexdigest()


def sentence(scored: Scored) -> str:
    """State a number in a sentence with everything needed to compare and reproduce it."""
    result, loaded = scored.result, scored.loaded
    interval = result["perplexity_interval"]
    within = ""
    if interval is not None:
        low, high = map(number, interval)
        within = f" (95 % interval within this text {low} to {high})"
    model = loaded.name + (f" at {loaded.commit[:SHORT_COMMIT]}" if loaded.commit else "")
    context = scored.settings.context
    after = f", context with SHA-256 {digest(context)}" if context else ""
    return (
        f"Perplexity {number(result['perplexity'])}{within} over {result['num_tokens']:,} tokens under "
        f"{model}; {', '.join(recipe(scored))}; {result['signature_short']}; "
        f"text with SHA-256 {digest(scored.text)}{after}."
    )


def bibtex(signature: str) -> str:
    """Write a BibTeX entry for the metric, with the signature of the number as its note."""
    # As the citation has it: the Space's owner, and its address.
    author = space().split("/")[0] if space() else AUTHORS
    page = f"  url = {{https://huggingface.co/spaces/{space()}}},\n" if space() else ""
    return (
        "@software{perplexity_sliding,\n"
        f"  author = {{{{{author}}}}},\n  title = {{{TITLE}}},\n  year = {{2026}},\n"
        f"  version = {{{__version__}}},\n{page}"
        rf"  note = {{Signature \texttt{{{escape_tex(signature)}}}}}" + "\n}"
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
    names = ("tokens", "offsets", "nll", "rank", "context_length")
    return [
        {
            "index": index,
            "token": token,
            "start": offset and offset[0] - before,
            "end": offset and offset[1] - before,
            "nll_nats": plain(nll),
            "nll_bits": plain(nll and nll / math.log(2)),
            "rank": rank,
            "context_length": context,
        }
        for index, (token, offset, nll, rank, context) in enumerate(
            zip(*(tokens[name] for name in names))
        )
    ]


def word_table(scored: Scored) -> list[dict]:
    """Return one row for each word, in bits; None where it was not scored.

    The surprisal has the space booked on the word that it ends, `nll_bits` is the plain sum over the
    tokens. start and end are characters of the text, which begins after the context.
    """
    [words] = scored.result["word_scores"]
    before = len(scored.settings.context)
    names = ("words", "offsets", "surprisal", "nll", "entropy", "num_tokens", "context_length")
    return [
        {
            "index": index,
            "word": word,
            "start": first - before,
            "end": end - before,
            "surprisal_bits": plain(surprisal and surprisal / math.log(2)),
            "nll_bits": plain(nll and nll / math.log(2)),
            "entropy_bits": plain(entropy and entropy / math.log(2)),
            "num_tokens": num_tokens,
            "context_length": context,
        }
        for index, (word, (first, end), surprisal, nll, entropy, num_tokens, context) in enumerate(
            zip(*(words[name] for name in names))
        )
    ]


def as_csv(table: Sequence[dict]) -> str:
    lines = io.StringIO()
    writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return lines.getvalue()


def as_json(value: object) -> str:
    return json.dumps(plain(value), ensure_ascii=False, indent=1)


def plain(value: object) -> object:
    """Convert a value to JSON types; infinity and NaN become "inf" and "nan"."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
