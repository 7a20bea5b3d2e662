"""Texts coloured by surprisal: in the terminal (--show) and as a report (--html)."""

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.style import Style
from rich.text import Text

from ..views import SHOWN, Reading
from ..views.comparison import pair_of
from ..views.report import report
from ..views.text import LABELS, Surprise, most_surprising, odds, piece_colour, text_segments
from . import citing
from .measuring import Report
from .messages import harmless, to_stdout
from .output import notes_on, write_pieces
from .tables import printable, terminal_width

MOST_SURPRISING = 5
# Styles by level of surprisal.  All colours have a contrast of at least 4.5 to black and to white.
STYLES = {
    "b0": Style(),
    "b1": Style(color="#8f7120"),
    "b2": Style(color="#ae630e", bold=True),
    "b3": Style(color="#ffffff", bgcolor="#9c6210"),
    "b4": Style(color="#ffffff", bgcolor="#b5480b", bold=True),
    "b5": Style(color="#ffffff", bgcolor="#c0203a", bold=True),
    "out": Style(dim=True),
}
# Marks for output without colours.
MARKS = {"b4": ("[", "]"), "b5": ("[[", "]]")}
MARKED = "[10 to 15 bits of surprise], [[15 bits or more]]"


def print_texts(readings: Sequence[Reading]) -> None:
    """Print the texts, the legend, and the most surprising words."""
    console = Console(file=sys.stdout, width=terminal_width(), highlight=False)
    with console.capture() as written:  # rich would exit on a closed pipe
        _draw_texts(console, readings)
    to_stdout([written.get()])


def _draw_texts(console: Console, readings: Sequence[Reading]) -> None:
    in_colour = console.color_system is not None and not console.no_color
    for reading in readings:
        if len(readings) > 1:
            console.print(Text(printable(reading.name), "bold"))
        for line in _lines(reading, in_colour):
            console.print(line, soft_wrap=not console.is_terminal)
        console.print()
    legend = (Text(f" {label} ", STYLES[f"b{level}"]) for level, label in enumerate(LABELS))
    console.print(Text(" ").join(legend) if in_colour else Text(MARKED))
    console.print()
    words = most_surprising(readings, MOST_SURPRISING)
    if words:
        console.print(Text("Most surprising words", "bold"))
    for word in words:
        console.print(Text(harmless(_sentence(word))))
    console.print()


def _lines(reading: Reading, in_colour: bool) -> Iterator[Text]:
    """Yield the lines of a text; a space before a word has no colour."""
    segments, text = text_segments(reading)
    line = Text()
    for segment in segments:
        piece = text[segment.start : segment.end]
        level = piece_colour(reading.tokens["nll"], segment, piece) or "b0"
        word = piece.lstrip(" ") or piece
        line.append(piece[: len(piece) - len(word)])
        before, after = ("", "") if in_colour or not word.strip() else MARKS.get(level, ("", ""))
        for number, part in enumerate(word.split("\n")):
            if number:
                yield line
                line = Text()
            if part:
                marked = f"{before}{part}{after}" if part.strip() else part
                line.append(harmless(marked), STYLES[level] if in_colour else "")
    yield line


def _sentence(word: Surprise) -> str:
    """Describe a surprising word: `raised: 15.7 bits, 1 in 53,300. The model expected …`"""
    bits = "infinite" if math.isinf(word.nll) else f"{word.nll / math.log(2):.1f} bits"
    said = f"  {word.word}: {bits}, {odds(word.nll)}."
    if word.expected is None:
        return said
    expected, nll = word.expected
    return f"{said} The model expected “{expected}” ({100 * math.exp(-nll):.0f} %)."


def write_report(report_: Report, args: argparse.Namespace) -> str:
    """Write the report atomically; return a message about it.

    Raises:
        OSError: writing fails; an existing file is unchanged.
    """
    result, pairs = report_.results[0], []
    readings = [replace(reading, result=result) for reading in report_.shown]
    notes = notes_on(report_)
    if report_.has_more_texts:
        notes.append(f"The numbers cover all texts; the first {SHOWN:,} characters are shown.")
    if args.reference:
        names = [(reading.model, report_.reference) for reading in readings]
        pairs = [pair_of(*of_text) for of_text in zip(readings, itertools.count(), names)]
    if report_.compared == "settings":
        result = result | {"measurements": report_.measurements}
    written = report(
        result=result,
        readings=[] if pairs else readings,
        pairs=pairs,
        citation=citing.of_results(report_.results, args, report_.axes),
        command=citing.command(args.argv),
        notes=notes,
    )
    write_pieces([written], args.html)
    return f"wrote {args.html}"
