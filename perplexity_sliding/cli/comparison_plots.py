"""Plots of a model against its reference, and of several models."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .axes import DOTS, GREY, INK, reach, tidied
from .tables import bits_per_byte, signature_fields

SMALLEST_KL = 1e-9  # start of the axis of divergences
FIRST = ("ratio_to_first_model", "ratio_to_first")
MARKED_PERCENTILES = ("50", "95", "99", "100")


def draw_models(rows: Sequence[dict], against: str | None = None) -> Figure:
    """Draw one model in detail against its reference, or several models next to each other.

    Args:
        against: baseline of the changes; by default the first model.

    Raises:
        ValueError: none has a finite number.
    """
    rows = [row for row in rows if math.isfinite(row.get("perplexity", math.inf))]
    if not rows:
        raise ValueError("--plot has nothing to draw: no perplexity is finite.")
    if "comparison" not in rows[0]:
        key = next((key for key in FIRST if any(key in row for row in rows)), FIRST[0])
        changed = paired_changes(rows, key, several=True)
        if not changed:
            return draw_candidates(rows, [absolute(rows)])
        title = f"perplexity {against or 'against ' + rows[0]['name']}, %"
        return draw_candidates(rows, [Measured(title, changed, same=0.0)])
    if len(rows) == 1 and rows[0]["comparison"]["compared"] == "tokens":
        return draw_comparison(rows[0])
    return draw_candidates(rows, changes([row["comparison"] for row in rows]))


def paired_changes(
    rows: Sequence[dict], key: str = "ratio_to_first", several: bool = False
) -> list[tuple[float, list[float] | None]]:
    """List the paired change of each row against the first in per cent, with its interval.

    Args:
        several: whether other rows may be those that the others are compared with, too.

    Returns:
        nothing where there is nothing paired: the first is no base, or another has no ratio.
    """
    ratios = [row.get(key) for row in rows]
    bases = [ratio is None for ratio in ratios]
    if not bases[0] or all(bases) or (any(bases[1:]) and not several):
        return []
    if any(ratio is not None and ratio["ratio"] is None for ratio in ratios):
        return []
    return [
        (0.0, None)
        if ratio is None
        else (
            100 * (ratio["ratio"] - 1),
            ratio["interval"] and [100 * (bound - 1) for bound in ratio["interval"]],
        )
        for ratio in ratios
    ]


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
    nll, reference_nll, *divergence = scored_columns(report, names)
    groups = comparison["by_tokens_seen"]
    draw_groups(places[-1, 0], groups, "log_ratio", "change of nll, nats per token")
    draw_pairs(places[0, 1], nll, reference_nll)
    if has_divergence:
        draw_groups(places[0, 0], groups, "kl", "KL divergence, nats")
        draw_distribution(places[1, 1], *divergence, comparison["kl_percentiles"])
    return figure


def scored_columns(report: dict, names: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Return columns of the scored tokens, such as "nll", each (N,), in nats, restricted to finite rows."""
    columns = [
        np.array([v for scores in report["token_scores"] for v in scores[name] if v is not None])
        for name in names
    ]
    finite = np.isfinite(columns).all(axis=0)
    return tuple(column[finite] for column in columns)


def draw_groups(axes: Axes, groups: Sequence[dict], name: str, label: str) -> None:
    """Draw a number by the length of the context, with its interval as a band."""
    centres = [math.sqrt(group["low"] * group["high"]) for group in groups]
    axes.plot(centres, [group[name] for group in groups], color=INK, marker="o", markersize=4)
    known = [n for n, group in enumerate(groups) if group[f"{name}_interval"] is not None]
    bands = np.array([groups[n][f"{name}_interval"] for n in known]).reshape(-1, 2)
    axes.fill_between([centres[n] for n in known], *bands.T, color=GREY, alpha=0.4, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens of context (band: 95 % interval)")
    axes.set_ylabel(label)


def draw_pairs(axes: Axes, nll: np.ndarray, reference_nll: np.ndarray) -> None:
    """Draw each token's nll under both, as hexagons; above the diagonal the model is worse."""
    axes.hexbin(reference_nll, nll, gridsize=40, bins="log", cmap="Blues", mincnt=1)
    end = float(max(nll.max(initial=1), reference_nll.max(initial=1)))
    axes.plot([0, end], [0, end], color=GREY, linewidth=1)
    axes.set_xlabel("reference, nats")
    axes.set_ylabel("model, nats (above the line: worse)")


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
            label = "max" if name == "100" else f"{name} %"
            axes.annotate(
                label, (value, 1), xycoords=("data", "axes fraction"), rotation=90, fontsize=8
            )
    axes.set_xlabel("KL divergence of a token, nats")
    axes.set_ylabel("tokens")


class Measured(NamedTuple):
    """A number of several models.

    Attributes:
        values: (value, its interval or None) of each model.
        same: the value of an unchanged model; None if there is none.
    """

    label: str
    values: list[tuple[float, list[float] | None]]
    same: float | None = None


def absolute(rows: Sequence[dict]) -> Measured:
    """Choose perplexity, or bits per byte if the tokenizers differ."""
    if len({signature_fields(row)["tokenizer"] for row in rows}) > 1:
        return Measured("bits per byte", [(bits_per_byte(row), None) for row in rows])
    values = [(row["perplexity"], row["perplexity_interval"]) for row in rows]
    return Measured("perplexity per token", values)


def changes(comparisons: Sequence[dict]) -> list[Measured]:
    """Choose the ratio of perplexities and the divergence, or the change per byte if tokenizers differ."""
    if any(comparison["compared"] == "bytes" for comparison in comparisons):
        values = [
            (c.get("bits_per_byte_change", math.nan), c.get("bits_per_byte_change_interval"))
            for c in comparisons
        ]
        return [Measured("change of bits per byte", values, same=0.0)]
    ratios = [comparison["perplexity_ratio"] for comparison in comparisons]
    values = [(ratio["ratio"], ratio["interval"]) for ratio in ratios]
    measures = [Measured("perplexity, × reference", values, same=1.0)]
    if all("kl" in comparison for comparison in comparisons):
        values = [(comparison["kl"], comparison["kl_interval"]) for comparison in comparisons]
        measures.append(Measured("KL divergence, nats", values))
    return measures


def draw_candidates(rows: Sequence[dict], measures: Sequence[Measured]) -> Figure:
    """Draw several models, with intervals."""
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(rows)), layout="constrained")
    for number, measured in enumerate(measures):
        axes = tidied(figure.add_subplot(1, len(measures), number + 1), "x")
        values = [value for value, _ in measured.values]
        axes.errorbar(values, range(len(rows)), xerr=reach(measured.values), **DOTS)
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows] if number == 0 else [])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        has_bars = any(interval for _, interval in measured.values)
        axes.set_xlabel(measured.label + "\n(bars: 95 % interval)" * has_bars)
        if measured.same is not None:
            axes.axvline(measured.same, color=GREY, linewidth=1)
        elif "KL" in measured.label and min(values) > 0:
            axes.set_xscale("log")
    return figure
