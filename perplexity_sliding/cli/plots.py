"""The pictures that score.py draws: perplexity by protocol, and by the cost of a stride."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from .axes import DOTS, GREY, INK, new_axes, tidied
from .comparison_plots import draw_models
from .replacing import replaced
from .tables import AXES, label

TITLES = {"stride": "stride", "max_length": "window"}


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
        axes: what the rows of a grid differ in.

    Raises:
        ValueError: none has one.
    """
    if compared == "grid":
        keys = [AXES[axis] for axis in axes]
        rows = [row | {"name": label(row, keys)} for row in rows]
    if compared in ("models", "grid"):
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
    """Draw the perplexity of the same tokens against the length of context, with its 95 % band."""
    lengths = [row["context_length"] for row in rows]
    perplexities = [row["perplexity"] for row in rows]
    draw_band(axes, lengths, perplexities, [row["interval"] for row in rows])
    for length, perplexity in zip(lengths, perplexities):
        axes.annotate(f"{perplexity:.2f}", (length, perplexity), **above(6))
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel("length of context in tokens")
    axes.set_ylabel("perplexity per token (band: 95 % interval)")


def draw_positions(axes: Axes, rows: list[dict]) -> None:
    """Draw the loss against the place in the text, with its 95 % band."""
    places = [(row["first"] + row["last"]) / 2 + 1 for row in rows]
    draw_band(axes, places, [row["nll"] for row in rows], [row["interval"] for row in rows])
    axes.plot(places, [row["cumulative_nll"] for row in rows], color=INK, linestyle=":")
    axes.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
    axes.set_xlabel("place in the text in tokens")
    axes.set_ylabel("nats per token (dotted: up to there)")


def draw_band(axes: Axes, places: list, values: list[float], intervals: list) -> None:
    """Draw a line with dots over a doubling scale, and a band where there are intervals."""
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
    axes.errorbar(perplexities, range(len(rows)), xerr=reach(rows), **DOTS)
    for height, perplexity in enumerate(perplexities):
        axes.annotate(f"{perplexity:.2f}", (perplexity, height), **above(6))
    names = [row["protocol"] for row in rows]
    if len(set(names)) < len(names):
        names = [f"{row['protocol']} {row['max_length']}/{row['stride']}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlabel("perplexity per token (bars: 95 % interval)")
    return figure


def draw_costs(rows: list[dict]) -> Figure:
    """Draw the perplexity of strides or windows against the tokens read, on a doubling scale."""
    first = rows[0]
    name = "stride" if len({row["stride"] for row in rows}) > 1 else "max_length"
    rows = sorted(rows, key=lambda row: row["num_forward_tokens"])
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = new_axes(figure, grid="y")
    costs = [row["num_forward_tokens"] for row in rows]
    perplexities = [row["perplexity"] for row in rows]
    axes.plot(costs, perplexities, color=INK, linewidth=1)
    axes.errorbar(costs, perplexities, yerr=reach(rows), **DOTS)
    for row, cost, perplexity in zip(rows, costs, perplexities):
        change = perplexity / first["perplexity"] - 1
        label = f"{TITLES[name]} {row[name]}\n{perplexity:.2f}" + (
            f" ({change:+.1%})" if change else ""
        )
        axes.annotate(label, (cost, perplexity), **beside(8))
    axes.set_xscale("log", base=2)
    axes.set_xticks(costs)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(places=1, sep=""))
    axes.margins(x=0.12)
    axes.set_xlabel("cost: tokens through the model")
    axes.set_ylabel("perplexity per token (bars: 95 % interval)")
    return figure


def reach(rows: list[dict]) -> list[list[float]]:
    """Compute how far the intervals reach below and above the perplexities; nowhere without an interval."""
    spans = [(row["perplexity"], *finite_interval(row)) for row in rows]
    # A perplexity that a protocol averages in its own way may lie outside of its interval.
    return [
        [max(0.0, perplexity - low) for perplexity, low, _ in spans],
        [max(0.0, high - perplexity) for perplexity, _, high in spans],
    ]


def finite_interval(row: dict) -> list[float]:
    interval = row["perplexity_interval"]
    if interval is None or not all(map(math.isfinite, interval)):
        return [row["perplexity"]] * 2
    return interval


def above(points: float) -> dict:
    return {"xytext": (0, points), "textcoords": "offset points", "ha": "center", "fontsize": 8}


def beside(points: float) -> dict:
    return {"xytext": (points, points / 2), "textcoords": "offset points", "fontsize": 8}
