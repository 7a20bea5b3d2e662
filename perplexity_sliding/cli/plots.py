"""The plots of the command line: perplexity by protocol, paired changes, models and their reference.

Intervals of two settings overlap even where the change is certain, so it is the change that is drawn.
What does not apply, such as a change between models that read other tokens, is not drawn.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from ..views import replaced
from .comparing import AXES, SETTINGS, bits_per_byte, have_other_tokenizers, label, paired_with

INK, GREY, GRID = "#1f4e79", "#9db4c8", "#e6e6e6"
DOTS = {"fmt": "o", "color": INK, "ecolor": GREY, "elinewidth": 1.5, "capsize": 3, "markersize": 5}
# Positions of a point's label.
ABOVE = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}
BESIDE = {"xytext": (8, 4), "textcoords": "offset points", "fontsize": 8}
SMALLEST_KL = 1e-9  # start of the axis of divergences
MARKED_PERCENTILES = ("50", "95", "99", "100")

# A value and its interval.
Estimate = tuple[float, Sequence[float] | None]


def check_path(path: str) -> None:
    """Refuse a file whose ending matplotlib does not know."""
    known = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in known:
        raise ValueError(f"--plot must end in one of .{', .'.join(sorted(known))}, got {path!r}.")


def draw(report, path: str) -> None:
    """Draw a `measuring.Report`, leaving out what has no finite perplexity.

    Raises:
        ValueError: there is nothing finite to draw.
    """
    curve = [] if report.corpus is None else report.corpus["by_context_length"]
    rows = curve or report.results
    rows = [row for row in rows if math.isfinite(row["perplexity"])]
    if not rows:
        raise ValueError("--plot has nothing to draw: no perplexity is finite.")
    if curve:
        figure = draw_contexts(rows)
    elif report.compared != "settings":
        figure = draw_models(rows, report.axes)
    elif "protocol" in report.axes:
        figure = draw_protocols(rows)
    else:
        figure = draw_costs(rows)
    with replaced(path) as place:
        figure.savefig(place, dpi=160)


def tidied(axes: Axes, grid: str) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    return axes


def bar_lengths(values: Sequence[Estimate]) -> list[list[float]]:
    """Compute the lengths of error bars below and above values; 0 without an interval."""
    spans = [
        (value, *(interval if interval and all(map(math.isfinite, interval)) else (value, value)))
        for value, interval in values
    ]
    # A perplexity that a protocol averages in its own way may lie outside of its interval.
    return [
        [max(0.0, value - low) for value, low, _ in spans],
        [max(0.0, high - value) for value, _, high in spans],
    ]


def paired_changes(
    rows: Sequence[dict], key: str = "ratio_to_first", group: Sequence[str] = ()
) -> list[Estimate]:
    """List the paired change of each row in per cent, with its interval.

    Args:
        group: keys of the rows that are compared with each other: the first of a group has no change,
            another one without a ratio has NaN.

    Returns:
        nothing where no row has a ratio.
    """
    changes: list[Estimate] = []
    seen = set()
    for row in rows:
        ratio, place = row.get(key), tuple(row.get(name) for name in group)
        if ratio is not None and ratio["ratio"] is not None:
            bounds = ratio["interval"]
            changed = bounds and [100 * (bound - 1) for bound in bounds]
            changes.append((100 * (ratio["ratio"] - 1), changed))
        else:
            changes.append((math.nan if place in seen else 0.0, None))
        seen.add(place)
    return changes if any(row.get(key) for row in rows) else []


def draw_protocols(rows: list[dict]) -> Figure:
    """Draw a dot for each protocol, with its value and its 95 % interval."""
    figure = Figure(figsize=(7.5, 1.2 + 0.36 * len(rows)), layout="constrained")
    axes = tidied(figure.add_subplot(), "x")
    values = [(row["perplexity"], row["perplexity_interval"]) for row in rows]
    perplexities = [value for value, _ in values]
    axes.errorbar(perplexities, range(len(rows)), xerr=bar_lengths(values), **DOTS)
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
    key = "stride" if len({row["stride"] for row in rows}) > 1 else "max_length"
    changes = paired_changes(rows)
    drawn = changes or [(row["perplexity"], row["perplexity_interval"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda place: rows[place]["num_forward_tokens"])
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = tidied(figure.add_subplot(), "y")
    costs = [rows[place]["num_forward_tokens"] for place in order]
    values = [drawn[place][0] for place in order]
    axes.plot(costs, values, color=INK, linewidth=1)
    axes.errorbar(costs, values, yerr=bar_lengths([drawn[place] for place in order]), **DOTS)
    for place, cost, value in zip(order, costs, values):
        row = rows[place]
        shown = f"{SETTINGS[key]} {row[key]}\n{row['perplexity']:.2f}"
        if changes and row is not first:
            low, high = changes[place][1] or (math.nan, math.nan)
            within = "" if math.isnan(low) else f"\n({low:+.2f} to {high:+.2f})"
            shown += f", {value:+.2f} %{within}".replace("-", "−")
        axes.annotate(shown, (cost, value), **BESIDE)
    if changes:
        axes.axhline(0.0, color=GREY, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(costs)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(places=1, sep=""))
    axes.margins(x=0.2, y=0.15)
    axes.set_xlabel("cost: tokens through the model")
    against = f"perplexity against {SETTINGS[key]} {first[key]:,}, %\n(bars: 95 % interval, paired)"
    axes.set_ylabel(against if changes else "perplexity per token (bars: 95 % interval)")
    return figure


def draw_band(axes: Axes, lengths: Sequence[float], values: Sequence[Estimate]) -> str:
    """Draw values, without an interval hollow, and a band of the intervals; return the label of both."""
    known = [(length, value, *bounds) for length, (value, bounds) in zip(lengths, values) if bounds]
    line = {"color": INK, "marker": "o", "markersize": 5, "linewidth": 1}
    axes.plot(lengths, [value for value, _ in values], markerfacecolor="white", **line)
    axes.set_xscale("log", base=2)
    if not known:
        return "\n(too little text for intervals)"
    inside, middle, low, high = zip(*known)
    axes.plot(inside, middle, **line | {"linewidth": 0})
    axes.fill_between(inside, low, high, color=GREY, alpha=0.4, linewidth=0)
    return "\n(band: 95 % interval; hollow: without)"


def draw_contexts(rows: list[dict]) -> Figure:
    """Draw how the perplexity of the same tokens changes with the length of context, with its band."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = tidied(figure.add_subplot(), "y")
    lengths = [row["context_length"] for row in rows]
    changes = paired_changes(rows[::-1], "ratio_to_longest")[::-1]
    drawn = changes or [(row["perplexity"], row["interval"]) for row in rows]
    band = draw_band(axes, lengths, drawn)
    axes.xaxis.set_minor_locator(NullLocator())
    if changes:
        axes.axhline(0.0, color=GREY, linewidth=1)
        against = f"a context of {lengths[-1]:,}"
        axes.set_ylabel(f"perplexity against {against}, %{band}")
    else:
        axes.set_ylabel(f"perplexity per token{band}")
    for row, (value, _) in zip(rows, drawn):
        axes.annotate(f"{row['perplexity']:.2f}", (row["context_length"], value), **ABOVE)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.margins(y=0.15)
    num_tokens = rows[-1]["num_tokens"]
    axes.set_xlabel(f"length of context in tokens (at each the same {num_tokens:,} tokens)")
    return figure


# --- models ---------------------------------------------------------------------------------------


def draw_models(rows: Sequence[dict], axes: Sequence[str]) -> Figure:
    """Draw one model in detail against its reference, or several measurements next to each other.

    Args:
        axes: settings in which the rows differ.
    """
    comparisons = [row["comparison"] for row in rows if "comparison" in row]
    by_tokens = all(comparison["compared"] == "tokens" for comparison in comparisons)
    if len(comparisons) == 1 and by_tokens:
        return draw_comparison(rows[0])
    names = [label(row, ["name"] if comparisons else [AXES[axis] for axis in axes]) for row in rows]
    # a number with the values of all, and its value for an unchanged model
    measures: list[tuple[str, list[Estimate], float | None]] = []
    if comparisons and not by_tokens:
        key = "bits_per_byte_change"
        values = [(c.get(key, math.nan), c.get(f"{key}_interval")) for c in comparisons]
        measures.append(("change of bits per byte", values, 0.0))
    elif comparisons:
        ratios = [comparison["perplexity_ratio"] for comparison in comparisons]
        values = [(math.nan if r["ratio"] is None else r["ratio"], r["interval"]) for r in ratios]
        measures.append(("perplexity, × reference", values, 1.0))
        if all("kl" in comparison for comparison in comparisons):
            values = [(comparison["kl"], comparison["kl_interval"]) for comparison in comparisons]
            measures.append(("KL divergence, nats", values, None))
    elif have_other_tokenizers(rows):
        key, original = "bits_per_byte_interval", "bits_per_original_byte_interval"
        values = [(bits_per_byte(row), row.get(original, row.get(key))) for row in rows]
        measures.append(("bits per byte", values, None))
    else:
        key, against = paired_with(rows, axes)
        kept = ["text"] if key == "ratio_to_first" else [k for k in AXES.values() if k != "name"]
        if changes := paired_changes(rows, key, kept):
            measures.append((f"perplexity against {against}, %", changes, 0.0))
        else:
            values = [(row["perplexity"], row["perplexity_interval"]) for row in rows]
            measures.append(("perplexity per token", values, None))
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(names)), layout="constrained")
    for number, (title, values, same) in enumerate(measures):
        place = tidied(figure.add_subplot(1, len(measures), number + 1), "x")
        numbers = [value for value, _ in values]
        place.errorbar(numbers, range(len(names)), xerr=bar_lengths(values), **DOTS)
        place.set_yticks(range(len(names)), names if number == 0 else [])
        place.set_ylim(len(names) - 0.5, -0.5)
        has_bars = any(interval for _, interval in values)
        place.set_xlabel(title + "\n(bars: 95 % interval)" * has_bars)
        if same is not None:
            place.axvline(same, color=GREY, linewidth=1)
        elif "KL" in title and min(numbers) > 0:
            place.set_xscale("log")
            place.set_xticks(np.geomspace(min(numbers), max(numbers), 3))
            place.xaxis.set_minor_locator(NullLocator())
            place.xaxis.set_major_formatter("{x:.2g}")
    return figure


def draw_comparison(report: dict) -> Figure:
    """Draw one model: change by context and both nlls; above them divergences, if any.

    Args:
        report: the metric's result, with `comparison` of tokens and `token_scores`.
    """
    comparison = report["comparison"]
    has_divergence = "kl" in comparison  # not under a server, which gives no logits
    figure = Figure(figsize=(11, 7 if has_divergence else 4), layout="constrained")
    figure.suptitle(comparison["summary"], fontsize=10)
    places = figure.subplots(1 + has_divergence, 2, squeeze=False)
    for axes in places.flat:
        axes.spines[["top", "right"]].set_visible(False)
    names = ("nll", "reference_nll", *(["kl"] if has_divergence else []))
    columns = np.array(
        [
            [v for scores in report["token_scores"] for v in scores[name] if v is not None]
            for name in names
        ]
    )  # (2 or 3, N)
    nll, reference_nll, *kl = columns[:, np.isfinite(columns).all(axis=0)]
    groups = comparison["by_tokens_seen"]
    draw_groups(places[-1, 0], groups, "log_ratio", "change of nll, nats per token")
    places[0, 1].hexbin(reference_nll, nll, gridsize=40, bins="log", cmap="Blues", mincnt=1)
    end = float(max(nll.max(initial=1), reference_nll.max(initial=1)))
    places[0, 1].plot([0, end], [0, end], color=GREY, linewidth=1)
    places[0, 1].set_xlabel("reference, nats")
    places[0, 1].set_ylabel("model, nats (above the line: worse)")
    if has_divergence:
        draw_groups(places[0, 0], groups, "kl", "KL divergence, nats")
        draw_distribution(places[1, 1], *kl, comparison["kl_percentiles"])
    return figure


def draw_groups(axes: Axes, groups: Sequence[dict], name: str, label: str) -> None:
    """Draw a number by the length of the context, with its interval as a band."""
    centres = [math.sqrt(group["low"] * group["high"]) for group in groups]
    estimates = [(group[name], group[f"{name}_interval"]) for group in groups]
    axes.set_xlabel(f"tokens of context{draw_band(axes, centres, estimates)}")
    axes.set_ylabel(label)


def draw_distribution(axes: Axes, kl: np.ndarray, percentiles: dict[str, float]) -> None:
    """Draw the distribution of the tokens' divergences, on a logarithmic axis."""
    shown = np.maximum(kl, SMALLEST_KL)
    bins = np.geomspace(shown.min(), max(shown.max(), shown.min() * 10), 50)
    axes.hist(shown, bins=bins, color=GREY)
    axes.set_xscale("log")
    for name in MARKED_PERCENTILES:
        value = percentiles[name]
        if SMALLEST_KL < value < math.inf:
            axes.axvline(value, color=INK, linewidth=1)
            at = {"xycoords": ("data", "axes fraction"), "rotation": 90, "fontsize": 8}
            axes.annotate("max" if name == "100" else f"{name} %", (value, 1), **at)
    axes.set_xlabel("KL divergence of a token, nats")
    axes.set_ylabel("tokens")
