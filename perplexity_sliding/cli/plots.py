"""The plots of the command line: perplexity by protocol; paired changes by stride, window and context.

Intervals of two settings overlap even where the change is certain, so it is the change that is drawn.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from ..views.replacing import replaced
from .axes import DOTS, GREY, INK, new_axes, reach, tidied
from .comparison_plots import draw_models, paired_changes
from .grids import paired_with
from .tables import AXES, label

TITLES = {"stride": "stride", "max_length": "window"}
# Positions of a point's label.
ABOVE = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}


def check_path(path: str) -> None:
    """Refuse a file that could not be written.

    Raises:
        ValueError: a suffix that matplotlib doesn't know.
    """
    known = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in known:
        raise ValueError(f"--plot must end in one of .{', .'.join(sorted(known))}, got {path!r}.")


def draw(compared: str, rows: list[dict], path: str, axes: Sequence[str] = ()) -> None:
    """Draw "settings", "models" or a "grid", leaving out the rows without a finite perplexity.

    Args:
        axes: settings in which the rows of a grid differ.

    Raises:
        ValueError: none has one.
    """
    if compared == "grid":
        against, _ = paired_with(rows, axes)
        keys = [AXES[axis] for axis in axes]
        save(draw_models([row | {"name": label(row, keys)} for row in rows], against), path)
        return
    if compared == "models":
        save(draw_models(rows), path)
        return
    rows = [row for row in rows if math.isfinite(row.get("perplexity", math.inf))]
    if not rows:
        raise ValueError("--plot has nothing to draw: no perplexity is finite.")
    of_tools = len({row["protocol"] for row in rows}) > 1
    save(draw_protocols(rows) if of_tools else draw_costs(rows), path)


def save(figure: Figure, path: str) -> None:
    with replaced(path) as place:
        figure.savefig(place, dpi=160)


def draw_curves(result: dict, path: str) -> None:
    """Draw perplexity by length of context, or the loss by place in the text, or both.

    Raises:
        ValueError: there is nothing finite to draw.
    """
    kinds = {"by_context_length": draw_contexts, "by_position": draw_positions}
    drawn = [kind for kind in kinds if kind in result]
    figure = Figure(figsize=(7.5, 4.2 * len(drawn)), layout="constrained")
    for number, kind in enumerate(drawn, 1):
        rows = [row for row in result[kind] if math.isfinite(row["nll"])]
        if not rows:
            raise ValueError("--plot has nothing to draw: no perplexity is finite.")
        axes = figure.add_subplot(len(drawn), 1, number)
        kinds[kind](tidied(axes, grid="y"), rows)
    save(figure, path)


def draw_contexts(axes: Axes, rows: list[dict]) -> None:
    """Draw how the perplexity of the same tokens changes with the length of context, with its band."""
    lengths = [row["context_length"] for row in rows]
    changes = paired_changes(rows[::-1], "ratio_to_longest")[::-1]
    if changes:
        draw_band(axes, lengths, *zip(*changes))
        axes.axhline(0.0, color=GREY, linewidth=1)
        against = f"a context of {lengths[-1]:,}"
        axes.set_ylabel(f"perplexity against {against}, %\n(band: 95 % interval, paired)")
    else:
        draw_band(axes, lengths, [row["perplexity"] for row in rows], [r["interval"] for r in rows])
        axes.set_ylabel("perplexity per token (band: 95 % interval)")
    for length, row, place in zip(lengths, rows, axes.lines[0].get_ydata()):
        axes.annotate(f"{row['perplexity']:.2f}", (length, place), **ABOVE)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.margins(y=0.15)
    axes.set_xlabel(
        f"length of context in tokens (at each the same {rows[-1]['num_tokens']:,} tokens)"
    )


def draw_positions(axes: Axes, rows: list[dict]) -> None:
    """Draw the loss against the place in the text, with its 95 % band."""
    places = [(row["first"] + row["last"]) / 2 + 1 for row in rows]
    draw_band(axes, places, [row["nll"] for row in rows], [row["interval"] for row in rows])
    axes.plot(places, [row["cumulative_nll"] for row in rows], color=INK, linestyle=":")
    axes.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
    axes.set_xlabel("place in the text in tokens")
    axes.set_ylabel("nats per token (dotted: up to there)")


def draw_band(axes: Axes, places: list, values: list[float], intervals: list) -> None:
    """Draw a line with dots over a doubling scale, with a band for intervals, if any."""
    bounds = [interval or [math.nan, math.nan] for interval in intervals]
    axes.fill_between(places, *zip(*bounds), color=GREY, alpha=0.4, linewidth=0)
    axes.plot(places, values, color=INK, marker="o", markersize=5, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())


def draw_protocols(rows: list[dict]) -> Figure:
    """Draw a dot for each protocol, with its value and its 95 % interval."""
    figure = Figure(figsize=(7.5, 1.2 + 0.36 * len(rows)), layout="constrained")
    axes = new_axes(figure, grid="x")
    perplexities = [row["perplexity"] for row in rows]
    spans = reach([(row["perplexity"], row["perplexity_interval"]) for row in rows])
    axes.errorbar(perplexities, range(len(rows)), xerr=spans, **DOTS)
    for height, perplexity in enumerate(perplexities):
        axes.annotate(f"{perplexity:.2f}", (perplexity, height), **ABOVE)
    names = [row["protocol"] for row in rows]
    if len(set(names)) < len(names):
        names = [f"{row['protocol']} {row['max_length']}/{row['stride']}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlabel("perplexity per token (bars: 95 % interval)")
    return figure


def draw_costs(rows: list[dict]) -> Figure:
    """Draw the change of strides or windows against the tokens read, on a doubling scale."""
    first = rows[0]
    name = "stride" if len({row["stride"] for row in rows}) > 1 else "max_length"
    changes = paired_changes(rows)
    drawn = changes or [(row["perplexity"], row["perplexity_interval"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda place: rows[place]["num_forward_tokens"])
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = new_axes(figure, grid="y")
    costs = [rows[place]["num_forward_tokens"] for place in order]
    values = [drawn[place][0] for place in order]
    axes.plot(costs, values, color=INK, linewidth=1)
    axes.errorbar(costs, values, yerr=reach([drawn[place] for place in order]), **DOTS)
    for place, cost, value in zip(order, costs, values):
        row = rows[place]
        shown = f"{TITLES[name]} {row[name]}\n{row['perplexity']:.2f}"
        if changes and row is not first:
            low, high = changes[place][1] or (math.nan, math.nan)
            within = "" if math.isnan(low) else f"\n({low:+.2f} to {high:+.2f})"
            shown += f", {value:+.2f} %{within}".replace("-", "−")
        axes.annotate(shown, (cost, value), **beside(8))
    if changes:
        axes.axhline(0.0, color=GREY, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(costs)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(places=1, sep=""))
    axes.margins(x=0.2, y=0.15)
    axes.set_xlabel("cost: tokens through the model")
    against = f"perplexity against {TITLES[name]} {first[name]:,}, %\n(bars: 95 % interval, paired)"
    axes.set_ylabel(against if changes else "perplexity per token (bars: 95 % interval)")
    return figure


def beside(points: float) -> dict:
    return {"xytext": (points, points / 2), "textcoords": "offset points", "fontsize": 8}
