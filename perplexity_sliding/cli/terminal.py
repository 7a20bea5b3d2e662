"""Output for terminals: tables, colours and a bar by rich; pipes and files get plain text.

Text from files is escaped here, cell by cell, so that rich's own control sequences are kept.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable
from rich.text import Text

from .messages import harmless
from .tables import Table, fitted, terminal_width

TITLES, NUMBER, WRONG, NAME = "bold", "bold cyan", "red", "green"
# Titles of highlighted columns.
NUMBERS = ("perplexity",)
VERDICTS = {"better": "green", "worse": "red"}


class Terminal:
    """Formats the pieces of a report for a terminal."""

    explains = True

    def __init__(self):
        self.console = Console(file=sys.stdout, width=terminal_width(), highlight=False)

    def table(self, what: Table | str, title: str = "") -> str:
        """Format a table with its title above and its notes below, or a paragraph."""
        return self._written(*self._pieces(what, title))

    def note(self, text: str) -> str:
        return self._written(Text(harmless(text)))

    def signature(self, text: str) -> str:
        """Format a signature without line breaks, so that it can be copied."""
        return self._written(Text(harmless(text), NAME), soft_wrap=True)

    def _pieces(self, what: Table | str, title: str) -> Iterator[Text | RichTable]:
        if title:
            yield Text(harmless(title), TITLES)
        if isinstance(what, str):
            yield Text(harmless(what))
            return
        fits = fitted(what, self.console.width)
        yield with_colours(fits)
        for _, name, error in fits.errors:
            yield Text(harmless(f"{name}: {error}"), WRONG)
        for note in fits.notes:
            yield Text(harmless(note))

    def _written(self, *pieces: RichTable | Text, soft_wrap: bool = False) -> str:
        """Render pieces to a string with the terminal's capabilities."""
        with self.console.capture() as written:
            for piece in pieces:
                self.console.print(piece, soft_wrap=soft_wrap)
        return written.get().removesuffix("\n")


def with_colours(what: Table) -> RichTable:
    """Convert a table to rich, without the rows with errors."""
    made = RichTable(box=None, pad_edge=False, header_style=TITLES)
    for title in what.titles:
        side = "left" if title in what.left else "right"
        is_text = title in what.left and title == what.titles[-1]
        style = NUMBER if title in NUMBERS else ""
        made.add_column(Text(harmless(title)), justify=side, style=style, no_wrap=not is_text)
    for line in what.lines:
        if len(line) > 1:
            made.add_row(*(Text(harmless(cell), VERDICTS.get(cell, "")) for cell in line))
    return made


class Bar:
    """Progress bar on stderr; warnings appear above it.

    Args:
        title: title of the bar.
        share: initial progress, 0 to 1.
    """

    def __init__(self, title: str, share: float):
        self.bars = Bars(
            TextColumn("{task.description}: {task.percentage:3.0f} %", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("<"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[perplexity]}", markup=False),
            console=Console(file=sys.stderr, width=terminal_width()),
            redirect_stdout=False,
        )
        self.task = self.bars.add_task(title, total=1.0, completed=share, perplexity="")
        with suppress(OSError):  # the terminal may be closed
            self.bars.start()

    def update(self, share: float, perplexity: str) -> None:
        self.bars.update(self.task, completed=share, perplexity=perplexity)

    def close(self) -> None:
        with suppress(OSError):
            self.bars.stop()
