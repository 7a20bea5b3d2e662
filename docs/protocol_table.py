"""Write the table of docs/protocols.md from the rows of protocols.py.

    python docs/protocol_table.py

A test holds the two equal.  An attribute that has no words here is shown as it is.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- protocols: begin -->\n", "<!-- protocols: end -->\n"
TITLES = ("`protocol`", "whose number", "window", "stride", "start token", "documents", "average")
STRIDES = {None: "the window", "half": "half the window"}
WINDOWS = {None: "the model's", "tokenizer or 1024": "the tokenizer's, or 1024"}
STARTS = {
    "chosen": "yours to choose",
    "replace": "in place of each window's first token",
    "every if any": "in every window, if there is one",
}
ENCODINGS = {
    "plain": "none",
    "default": "as the tokenizer adds",
    "default ended": "as the tokenizer adds; EOS after each text",
}
TOKENS = {"bos": "BOS", "eos": "EOS", "bos or eos": "BOS or EOS"}
JOINS = {None: "each alone", "\n\n": "one, blank lines between", "tokens": "one, tokens in a row"}
AVERAGES = {
    "tokens": "all tokens",
    "window means": "mean of window means",
    "guide weights": "window means, weighted",
    "texts": "mean over texts",
    "capped": "all tokens, capped at 20 nats",
}
LASTS = {
    "full": "last window moved to be full",
    "dropped": "incomplete window dropped",
    "popped": "last windows dropped",
    "cut": "text cut after a window",
}
SCORES = {"second half": "second half of each window", "all": "all tokens of every window"}


def protocol_table(protocols: Iterable) -> str:
    """Return the table in Markdown, one row per protocol of the metric's `PROTOCOLS`."""
    lines = [TITLES, ["---"] * len(TITLES), *map(cells, protocols)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cells(protocol) -> list[str]:
    """Write the row of a protocol."""
    cut = protocol.last == "cut"
    stride = STRIDES.get(protocol.stride, f"≤ {protocol.stride}")
    average = AVERAGES.get(protocol.aggregate, protocol.aggregate)
    notes = [LASTS[protocol.last]] if protocol.last in LASTS else []
    notes += [SCORES[protocol.scores]] if protocol.scores in SCORES else []
    return [
        f"`{protocol.name}`",
        protocol.source,
        WINDOWS.get(protocol.max_length, f"≤ {protocol.max_length}"),
        "" if cut else stride,
        start(protocol),
        JOINS.get(protocol.join, repr(protocol.join)) + thousands(protocol.texts_joined),
        "; ".join([average, *notes]),
    ]


def thousands(number: int | None) -> str:
    return "" if number is None else f", of every {number:,} texts"


def start(protocol) -> str:
    if protocol.start == "once":
        return f"{TOKENS.get(protocol.start_is, protocol.start_is)} before the text"
    if protocol.start == "none":
        return ENCODINGS.get(protocol.encoding, protocol.encoding)
    return STARTS.get(protocol.start, protocol.start)


def replace_table(markdown: str, table: str) -> str:
    """Return the page with the table between its markers."""
    before, after = markdown.split(BEGIN)
    return before + BEGIN + table + END + after.split(END)[1]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from perplexity_sliding.protocols import PROTOCOLS

    page = ROOT / "docs" / "protocols.md"
    table = protocol_table(PROTOCOLS.values())
    page.write_text(replace_table(page.read_text("utf-8"), table), "utf-8")


if __name__ == "__main__":
    main()
