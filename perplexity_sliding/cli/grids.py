"""Tables of several models, texts and settings: a row for each, or one axis as columns."""

import itertools
from collections.abc import Sequence

from .options import AXES as AXIS_NAMES
from .tables import (
    AXES,
    SETTINGS,
    Cell,
    P,
    Table,
    bits,
    change,
    count,
    different_windows,
    explained_change,
    interval,
    label,
    number,
    pvalue_of,
    scope_of_intervals,
    scored_share,
    signature_fields,
    table,
)

NO_RESULT = "–"
OTHER_TOKENIZERS = "The tokenizers differ: perplexities per token cannot be compared."


def of_grid(rows: Sequence[dict], axes: Sequence[str], columns: Sequence[str] = ()) -> Table:
    """Tabulate measurements that differ in several ways.

    Args:
        rows: results, or an `error`, with the keys of `tables.AXES`.
        axes: settings in which they differ.
        columns: at most one axis, whose values become columns; and the numbers to show.
    """
    across = next((name for name in columns if name in AXIS_NAMES), None)
    numbers = [name for name in columns if name not in AXIS_NAMES]
    if across is None:
        return listed(rows, axes, numbers)
    return crossed(rows, [axis for axis in axes if axis != across], across, numbers, axes)


def listed(rows: Sequence[dict], axes: Sequence[str], numbers: Sequence[str]) -> Table:
    """Tabulate a row for each measurement."""
    against, key = paired_with(rows, axes)
    shown = {
        "tokens": count("num_tokens"),
        "scored": scored_share,
        "perplexity": number("perplexity", 4),
        "95 % interval": interval,
        against: lambda row: change(row, key),
        P: lambda row: pvalue_of(row, key),
        **bits(4),
        "word perplexity": number("word_perplexity", 4),
    }
    if numbers:
        chosen = {title for name in numbers for title in titles_of(name, against)}
        shown = {title: cell for title, cell in shown.items() if title in chosen}
    first = axes[0] if axes else "protocol"
    keys = [AXES[axis] for axis in axes] or ["protocol"]
    named = {
        first: lambda row: label(row, keys if "error" in row else keys[:1]),
        **{axis: of_axis(AXES[axis]) for axis in axes[1:]},
    }
    explained = against if against in shown else None
    notes = notes_on(rows, axes, explained, "95 % interval" in shown)
    return table(rows, named | shown, left=tuple(named), notes=tuple(notes))


def titles_of(name: str, against: str) -> tuple[str, ...]:
    """Return the column titles of a number of `options.NUMBERS`."""
    return {
        "interval": ("95 % interval",),
        "change": (against,),
        "pvalue": (P,),
        "bits_per_byte": ("bits/byte", "bits/original byte"),
        "word_perplexity": ("word perplexity",),
    }.get(name, (name,))


def crossed(
    rows: Sequence[dict],
    down: Sequence[str],
    across: str,
    numbers: Sequence[str],
    axes: Sequence[str],
) -> Table:
    """Tabulate one axis as columns, the others as rows; notes give the reasons for empty cells."""
    against, key = paired_with(rows, axes)
    cells = cells_of(key)
    numbers = numbers or ["bits_per_byte" if have_other_tokenizers(rows) else "perplexity"]
    keys = [AXES[axis] for axis in down]
    heads = list(dict.fromkeys(row[AXES[across]] for row in rows if AXES[across] in row))
    lines = list(
        dict.fromkeys(tuple(row.get(k) for k in keys) for row in rows if has_all(row, keys))
    )
    placed = {
        (tuple(row.get(k) for k in keys), row.get(AXES[across])): row
        for row in rows
        if "error" not in row
    }
    columns: dict[str, Cell] = {
        axis: (lambda line, place=place: str(line["keys"][place]))
        for place, axis in enumerate(down)
    } or {"": lambda line: ""}
    for head, name in itertools.product(heads, numbers):
        title = str(head) if len(numbers) == 1 else f"{head}: {name.replace('_', ' ')}"
        columns[title] = lambda line, head=head, name=name: (
            cells[name](placed[line["keys"], head]) if (line["keys"], head) in placed else NO_RESULT
        )
    what = f"Cells: {' and '.join(name.replace('_', ' ') for name in numbers)}."
    explained = against if "change" in numbers else None
    has_intervals = "interval" in numbers
    return table(
        [{"keys": line} for line in lines],
        columns,
        left=tuple(down) or ("",),
        notes=(what, *notes_on(rows, axes, explained, has_intervals), *reasons(rows, axes)),
    )


def has_all(row: dict, keys: Sequence[str]) -> bool:
    return all(key in row for key in keys)


def cells_of(key: str) -> dict[str, Cell]:
    """Return the cell of each number of `options.NUMBERS`, with the given key of the ratio."""
    per_byte = bits(3)
    return {
        "perplexity": number("perplexity"),
        "interval": interval,
        "change": lambda row: change(row, key) or NO_RESULT,
        "pvalue": lambda row: pvalue_of(row, key) or NO_RESULT,
        "bits_per_byte": lambda row: "".join(cell(row) for cell in per_byte.values()),
        "word_perplexity": number("word_perplexity"),
        "tokens": count("num_tokens"),
    }


def of_axis(key: str) -> Cell:
    return lambda row: str(row.get(key, ""))


def paired_with(rows: Sequence[dict], axes: Sequence[str]) -> tuple[str, str]:
    """Return the title of the change, from the first model or setting, and the key of its ratio."""
    first = next((row for row in rows if "error" not in row), {})
    if "model" in axes:
        return f"against {first.get('name')}", "ratio_to_first_model"
    varying = [AXES[axis] for axis in axes if AXES[axis] in SETTINGS]
    return f"against {label(first, varying or ['protocol'])}", "ratio_to_first"


def have_other_tokenizers(rows: Sequence[dict]) -> bool:
    return len({signature_fields(row)["tokenizer"] for row in rows if "error" not in row}) > 1


def notes_on(
    rows: Sequence[dict], axes: Sequence[str], against: str | None, has_intervals: bool
) -> list[str]:
    """Return notes on the paired change, the scope of intervals, other windows and tokenizers.

    Args:
        against: the title of the change, if it is shown.
    """
    results = [row for row in rows if "error" not in row]
    notes = []
    key = paired_with(rows, axes)[1]
    if against is not None and any(key in row for row in results):
        notes.append(explained_change(against))
    if has_intervals:
        notes += scope_of_intervals(results)
    if "model" in axes and "window" not in axes:
        notes += different_windows(results)
    if have_other_tokenizers(rows):
        notes.append(OTHER_TOKENIZERS)
    return notes


def reasons(rows: Sequence[dict], axes: Sequence[str]) -> list[str]:
    """Return the reasons for empty cells, each with all rows that it applies to."""
    keys = [AXES[axis] for axis in axes]
    of_error: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            of_error.setdefault(row["error"], []).append(label(row, keys))
    return [f"{NO_RESULT} {'; '.join(names)}: {error}" for error, names in of_error.items()]
