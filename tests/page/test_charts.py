"""Charts draw every value where it belongs."""

import itertools

import pytest
import regex

from perplexity_sliding.views.charts import Point, line_chart, round_levels


@pytest.mark.parametrize("low, high", [(338.3, 348.9), (0.1, 0.2), (5, 5), (1, 1000)])
def test_grid_levels_are_round_and_inside(low, high):
    levels = round_levels(low, high)
    assert all(low <= level <= high for level in levels)
    assert len(levels) <= 8
    assert low == high or len(levels) >= 2


def places_of(chart, name):
    return [float(left) for left in regex.findall(rf'class="{name}" [^>]*?left:([\d.]+)%', chart)]


def test_a_line_has_error_bars_only_where_it_has_intervals():
    points = [
        Point(2.0**n, 1.0 + n, str(2**n), f"point {n}", None if n == 2 else (0.5 + n, 1.5 + n))
        for n in range(5)
    ]
    chart = line_chart(points, "x", "y")
    lefts = places_of(chart, "ps-mark")
    tops = [float(top) for top in regex.findall(r'class="ps-mark"[^>]*?top:([\d.]+)%', chart)]
    bars = [
        [float(end) for end in bar]
        for bar in regex.findall(r'class="ps-error" d="[^"]*M([\d.]+) ([\d.]+)V([\d.]+)"', chart)
    ]
    assert [bar[0] for bar in bars] == pytest.approx([lefts[n] for n in (0, 1, 3, 4)], abs=0.01)
    half = (tops[0] - tops[4]) / 8  # a point is 1 above the one before
    for (_, low, high), n in zip(bars, (0, 1, 3, 4)):
        assert [low - tops[n], tops[n] - high] == pytest.approx([half, half], abs=0.02)
    steps = [after - before for before, after in itertools.pairwise(lefts)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.1)  # logarithmic


def test_a_line_chart_shows_the_base_of_its_intervals():
    points = [Point(1, 5.0, "1", "a", None), Point(2, 6.0, "2", "b", [5.5, 6.5])]
    chart = line_chart(points, "x", "y", base=0)
    [level] = regex.findall(r'<path class="ps-base" d="M0 ([\d.]+)h', chart)
    lowest = max(float(top) for top in regex.findall(r'ps-mark"[^>]*top:([\d.]+)%', chart))
    assert float(level) > lowest and "<b>0</b>" in chart


@pytest.mark.parametrize("middle", [35.03, 34.92, 348.9])
def test_names_of_levels_do_not_collide(middle):
    """35.8 stood on 35.6 on 35.4: levels of what was measured, on an axis that was ten times as long."""
    points = [Point(2**n, middle * (1 + 0.005 * n), "", "", None) for n in range(5)]
    chart = line_chart(points, "x", "y", base=middle)
    tops = sorted(map(float, regex.findall(r'class="ps-level" style="top:([\d.]+)%"', chart)))
    assert len(tops) >= 2
    assert min(b - a for a, b in itertools.pairwise(tops)) > 8  # per cent of 190 pixels and more


def test_names_on_the_axis_do_not_overlap():
    """The knee, whose name is the longest, keeps its own."""
    names = [f"{2**n:,}" for n in range(11)]
    names[4] = "16 (knee)"
    chart = line_chart([Point(2**n, 1.0, names[n], "", None) for n in range(11)], "x", "y")
    shown = regex.findall(r'class="ps-tick" style="left:([\d.]+)%">([^<]*)<', chart)
    assert {"16 (knee)", "1,024", "1"} <= {name for _, name in shown} < set(names)
    few = line_chart([Point(2**n, 1.0, names[n], "", None) for n in range(3)], "x", "y")
    assert len(places_of(few, "ps-tick")) == 3
