"""Plot a benchmark's results: time for the same work, relative to plain passes."""

from pathlib import Path
from statistics import median

import matplotlib
from cases import OURS, PLAIN

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {PLAIN: "#b8bec6", OURS: "#1f77b4"}
OTHER = "#e0a458"


def draw(results: dict, path: Path) -> None:
    """Draw one group of bars for each case: the median time over the median of the plain passes."""
    cases = results["cases"]
    figure, panels = pyplot.subplots(
        len(cases),
        figsize=(8, 0.6 + sum(0.5 + 0.28 * len(case["seconds"]) for case in cases)),
        gridspec_kw={"height_ratios": [1 + len(case["seconds"]) for case in cases]},
        squeeze=False,
        layout="constrained",
    )
    for panel, case in zip(panels[:, 0], cases):
        draw_case(panel, case)
    figure.suptitle("Time for the same windows, in multiples of bare forward passes", fontsize=11)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_case(panel, case: dict) -> None:
    plain = median(case["seconds"][PLAIN])
    names = list(case["seconds"])
    times = [median(case["seconds"][name]) / plain for name in names]
    bars = panel.barh(names, times, color=[COLOURS.get(name, OTHER) for name in names])
    panel.bar_label(bars, [f"{time:.2f}" for time in times], padding=3, fontsize=8)
    panel.axvline(1, color="#555555", linewidth=0.8)
    panel.set_title(f"{case['name']}  ({case['description']})", fontsize=9, loc="left")
    panel.set_xlim(0, max(times) * 1.12)
    panel.invert_yaxis()
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
