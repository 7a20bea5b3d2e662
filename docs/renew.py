"""Update all outputs that depend on the bundled model's weights.

    python docs/renew.py
    python docs/renew.py --books BOOKS             # with the tables of the held-out book
    python docs/renew.py --llama-perplexity FILE   # with what llama.cpp prints (tests/llama_cpp/README.md)

The pages' outputs come from the commands above them, their tables from the command in the comment
before them, `<!-- table of: COMMAND -->`.  What it cannot renew is listed at the end, with what does it.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from snippets import PAGES, ROOT, Block, parse, printed_by, run_in_shell, same

CARD = ROOT / "demo_model" / "README.md"
TABLE = re.compile(r"^<!-- table of: (?P<command>.+?) -->\n(?P<table>(?:\|.*\n)+)", re.MULTILINE)
BOOK = "dorian-gray.txt"
FIGURE = re.compile(
    r"[-−+]?\d[\d,]*(?:\.\d+)?|\s+"
)  # how wide columns are changes with the figures
LEFT_OUT = "..."
BY_HAND = {
    "docs/screenshot.png, docs/window.gif": "python docs/screenshot.py",
    "docs/served-models.md": "benchmarks/served.py",
    "docs/speed.md": "benchmarks/run.py, benchmarks/short_text.py, benchmarks/memory.py",
    "docs/find.md": "benchmarks/find.py",
    "sentences that draw a conclusion from a number": "read them",
}


class NotRenewed(Exception):
    """The shown and the printed output differ too much."""


def renewed(shown: str, printed: str) -> str:
    """Return the printed output, shortened by "..." where the shown one is."""
    lines, new = shown.splitlines(), printed.splitlines()
    if LEFT_OUT not in shown:
        return "".join(f"{line.rstrip()}\n" for line in new)
    if LEFT_OUT not in lines:
        return "".join(f"{line_renewed(a, b)}\n" for a, b in zip(lines, new, strict=False))
    gap = lines.index(LEFT_OUT)
    before, after = lines[:gap], lines[gap + 1 :]
    ends = list(zip(before, new)), list(zip(after, new[len(new) - len(after) :]))
    head, tail = ("".join(f"{line_renewed(a, b)}\n" for a, b in pairs) for pairs in ends)
    return f"{head}{LEFT_OUT}\n{tail}"


def line_renewed(shown: str, printed: str) -> str:
    """Return a printed line, truncated where the shown one is.

    Raises:
        NotRenewed: the shown line is cut, and the printed one differs in more than figures.
    """
    if LEFT_OUT not in shown:
        return printed
    pieces = [piece for piece in re.split(rf"({FIGURE.pattern}|\.\.\.)", shown) if piece]
    signs = {LEFT_OUT: "(.*?)"}
    pattern = "".join(
        rf"({FIGURE.pattern})" if FIGURE.fullmatch(p) else signs.get(p, f"({re.escape(p)})")
        for p in pieces
    )
    if not (match := re.fullmatch(pattern, printed)):
        raise NotRenewed(f"shown {shown!r}, printed {printed!r}")
    return "".join(
        LEFT_OUT if piece == LEFT_OUT else cut(piece, found, following == LEFT_OUT)
        for piece, found, following in zip(pieces, match.groups(), [*pieces[1:], ""])
    )


def cut(shown: str, found: str, goes_on: bool) -> str:
    """Truncate a longer number to the number of digits shown."""
    if not goes_on or "." not in shown:
        return found
    places = len(shown.partition(".")[2])
    whole, _, fraction = found.partition(".")
    return f"{whole}.{fraction[:places]}"


def renew_page(page: Path, reasons: frozenset[str] = frozenset()) -> list[str]:
    """Update the outputs of a page's blocks; return the positions of the updated ones.

    Args:
        reasons: not to run a block that hold no longer.
    """
    written = []
    for block in parse(page.read_text("utf-8"), page.name):
        if block.output is None or (block.reason and block.reason not in reasons):
            continue
        place = f"{block.page} line {block.line}"
        try:
            printed = printed_by(block)
            if printed is None or same(block.output, printed):
                continue
            new = renewed(block.output, printed)
        except Exception as error:  # the others are still to be renewed
            print(f"NOT renewed: {place}: {error!r}", flush=True)
            continue
        page.write_text(with_output(page.read_text("utf-8"), block, new), "utf-8")
        written.append(place)
    return written


def with_output(text: str, block: Block, new: str) -> str:
    """Return a page with a new output after one of its blocks."""
    behind = re.escape(block.body) + r"`{3,}\n+`{3,}text\n"
    (match,) = re.finditer(f"(?P<block>{behind}){re.escape(block.output)}", text)
    return text[: match.end("block")] + new + text[match.end() :]


def renew_tables(page: Path) -> list[str]:
    """Update the tables of a page that a command prints; return the updated ones."""
    text, written = page.read_text("utf-8"), []
    for match in TABLE.finditer(text):
        printed = run_in_shell(match["command"])
        table = "".join(line for line in printed.splitlines(True) if line.startswith("|"))
        if table != match["table"]:
            text = text.replace(match[0], match[0].replace(match["table"], table))
            written.append(f"{page.name}: {match['command']}")
    page.write_text(text, "utf-8")
    return written


def renew_card(books: Path) -> list[str]:
    """Update the numbers of the held-out book on the model's page."""
    link = ROOT / BOOK
    link.symlink_to(books.resolve() / BOOK)
    try:
        return renew_page(CARD, frozenset({"it needs the book"}))
    finally:
        link.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, help=f"folder with {BOOK}")
    parser.add_argument("--llama-perplexity", type=Path, help="the program of llama.cpp")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a recipe forks, which threads do not survive
    by_hand = dict(BY_HAND)
    if arguments.llama_perplexity:
        command = [
            sys.executable,
            "tests/llama_cpp/record.py",
            arguments.llama_perplexity.resolve(),
        ]
        subprocess.run(command, check=True)
    else:
        by_hand["tests/llama_cpp"] = "--llama-perplexity FILE"
    for page in PAGES:
        for place in [*renew_page(page), *renew_tables(page)]:
            print(f"renewed: {place}", flush=True)
    if arguments.books:
        for place in renew_card(arguments.books):
            print(f"renewed: {place}")
    else:
        by_hand["demo_model/README.md"] = "--books BOOKS"
    for what, how in by_hand.items():
        print(f"not renewed: {what} ({how})")


if __name__ == "__main__":
    main()
