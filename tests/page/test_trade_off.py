"""Strides and contexts, what each gains and costs, and why context helps."""

import math
from dataclasses import replace

import pytest
import regex
from pages import STORY

from perplexity_sliding.views.markup import number
from perplexity_sliding.views.tokens import text_segments
from space.gain_view import gain_view, headline, measure_gains, repeated_before
from space.jobs import Job
from space.metric import new_metric
from space.models import BUNDLED
from space.service import TradeOff, gain_share
from space.settings import Settings
from space.sweep_view import trade_off_view


def fake_trade_off(scored, *perplexities, interval=(0.8, 0.9), contexts=()):
    """Results at strides 64, 32, … with given perplexities; the last differs from the first."""
    made = []
    for place, perplexity in enumerate(perplexities):
        result = scored.result | {"perplexity": perplexity}
        if place:
            ratio = {"ratio": perplexity / perplexities[0], "interval": interval}
            result["ratio_to_first"] = ratio
        stride = replace(scored.settings, stride=64 >> place)
        result["stride"] = stride.stride
        made.append(replace(scored, settings=stride, result=result))
    return TradeOff(made, contexts)


def test_the_knee_is_the_cheapest_stride_with_most_of_the_gain(scored):
    trade_off = fake_trade_off(scored, 100.0, 85.0, 80.6, 80.0, 80.1)
    assert trade_off.best is trade_off.strides[3]
    assert trade_off.knee is trade_off.strides[2]
    share = math.log(100 / 80.6) / math.log(100 / 80)
    assert gain_share(80.6, [100.0, 85.0, 80.0, 80.1]) == pytest.approx(share)
    told = headline(trade_off)
    assert "Stride 8 instead of 64" in told
    assert f"<b>Stride 16</b> gets {100 * share:.0f} % of this gain" in told
    page = trade_off_view(trade_off)
    assert page.count("16 (knee)") == 1 and "−19.4 %" in page


@pytest.mark.parametrize(
    "perplexities, interval, said",
    [
        ((100.0, 95.0), None, "too short to tell whether that is chance"),
        ((100.0, 95.0), (0.7, 1.1), "That may be chance"),
        ((95.0, 100.0), (1.01, 1.1), "No smaller stride lowers the perplexity"),
    ],
)
def test_a_gain_that_may_be_chance_has_no_knee(scored, perplexities, interval, said):
    trade_off = fake_trade_off(scored, *perplexities, interval=interval)
    assert trade_off.knee is None
    told = headline(trade_off)
    assert said in told and "gets" not in told
    page = trade_off_view(trade_off)
    assert "knee" not in page
    # What all are compared with has no interval: a band used to shrink to nothing there.
    assert page.count('class="ps-error"') == page.count("Bars:") == (interval is not None)


def test_the_headline_and_the_chart_are_of_one_computation(scored):
    """One tested the smallest stride and the other the best: "may be chance" stood over a clear gain."""
    trade_off = fake_trade_off(scored, 46.6, 44.75, 44.78, 44.77, 44.95, interval=(0.93, 0.995))
    unsure = trade_off.strides[-1].result["ratio_to_first"] | {"interval": (0.926, 1.005)}
    trade_off.strides[-1].result["ratio_to_first"] = unsure
    assert trade_off.best is trade_off.knee is trade_off.strides[1]
    told = headline(trade_off)
    assert "Stride 32 instead of 64: perplexity <b>46.60 → 44.75</b>, −4.0 %" in told
    assert "chance" not in told and "Smaller strides don't help further." in told
    page = trade_off_view(trade_off)
    assert page.count("32 (knee)") == 1 and page.count('class="ps-error"') == 4
    [line] = regex.findall(r'class="ps-base" d="M0 ([\d.]+)h', page)
    *_, widest = regex.findall(r'class="ps-mark"[^>]*?top:([\d.]+)%', page)
    assert float(line) == pytest.approx(float(widest), abs=0.01)
    assert "−4.0 % (95 % interval −7.0 to −0.5 %)" in told and (
        "−4.0 % (95 % interval −7.0 to −0.5 %)" in page
    )
    segments, _ = text_segments(scored)
    assert measure_gains(trade_off.wide, trade_off.best, segments)


def test_a_text_of_one_window_has_no_trade_off(service):
    trade_off = service.trade_off("Hi", Settings(BUNDLED, 64), Job(60))
    assert trade_off_view(trade_off) == ""


def test_the_curve_of_contexts_is_the_metrics(service):
    trade_off = service.trade_off(STORY, Settings(BUNDLED, 64), Job(60))
    model = trade_off.wide.loaded
    expected = new_metric().compute(
        predictions=[STORY],
        model=model.model,
        tokenizer=model.tokenizer,
        context_lengths="doubling",
    )["by_context_length"]
    assert [row["context_length"] for row in trade_off.by_context] == [8, 16, 32, 64]
    for row, other in zip(trade_off.by_context, expected):
        assert row["perplexity"] == pytest.approx(other["perplexity"], rel=1e-6)
    page = trade_off_view(trade_off)
    for row in expected:
        assert (
            f"a window of {row['context_length']}: perplexity {number(row['perplexity'])}" in page
        )
    assert f"The same {expected[0]['num_tokens']:,} tokens" in page


def context_rows(*perplexities, interval):
    """The metric's rows at 8, 16, … tokens; the first differs from the longest by an interval."""
    rows = [
        {"context_length": 8 << place, "perplexity": perplexity, "num_tokens": 500}
        for place, perplexity in enumerate(perplexities)
    ]
    for row in rows[:-1]:
        ratio = row["perplexity"] / perplexities[-1]
        row["ratio_to_longest"] = {"ratio": ratio, "interval": interval}
    return rows


@pytest.mark.parametrize(
    "perplexities, interval, said, knee",
    [
        ((120.0, 101.0, 100.2, 100.0), (1.1, 1.3), "A 16-token window gets 95 % of what", 16),
        ((120.0, 110.0, 100.0, 101.0), (1.1, 1.3), "A 32-token window is enough", 32),
        ((120.0, 110.0, 105.0, 100.0), (1.1, 1.3), "The model uses all 64 tokens", 64),
        ((120.0, 110.0, 105.0, 100.0), (0.9, 1.3), "makes no difference that is clear", None),
        ((120.0, 110.0, 105.0, 100.0), None, "too short to tell what more context gains", None),
    ],
)
def test_the_knee_of_the_contexts_is_the_shortest_that_brings_most(
    scored, perplexities, interval, said, knee
):
    rows = context_rows(*perplexities, interval=interval)
    trade_off = fake_trade_off(scored, 100.0, 80.0, contexts=rows)
    page = trade_off_view(trade_off).split("<h3>")[-1]
    assert said in page
    assert regex.findall(r">(\d+) \(knee\)<", page) == ([] if knee is None else [str(knee)])


def test_gains_are_the_differences_of_the_metrics_own_scores(service):
    trade_off = service.trade_off(STORY, Settings(BUNDLED, 64, 32), Job(60))
    wide, narrow = trade_off.wide, trade_off.strides[-1]
    segments, _ = text_segments(wide)
    gains = measure_gains(wide, narrow, segments)
    assert len(gains) == len(wide.tokens["nll"])  # a byte is a piece
    total = sum(gain.saved for gain in gains) * math.log(2)
    expected = wide.result["total_nll"] - narrow.result["total_nll"]
    assert total == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "names, token, context, far",
    [
        ([" lamp", "a", "b", " lamp"], 3, (2, 3), 3),  # only the narrow stride shows it
        ([" lamp", "a", "b", " lamp"], 3, (3, 3), None),  # seen before, too
        (["Lamp", " lamp", "b", " lamp"], 3, (1, 3), 2),  # the nearest
        ([".", "a", "b", "."], 3, (1, 3), None),  # a full stop is no word
    ],
)
def test_a_word_that_came_in_sight(names, token, context, far):
    assert repeated_before(names, token, context) == far


def test_a_text_in_one_window_has_no_gain(service):
    trade_off = service.trade_off("Short.", Settings(BUNDLED, 64, 32), Job(60))
    assert "fits in one window" in gain_view(trade_off)
