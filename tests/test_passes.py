"""Windows of several plans share passes: the fewest tokens read, the same scores."""

import math
import re

import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from models import (
    ARCHITECTURES,
    BOS,
    CONTEXT,
    make_model,
    make_tokenizer,
    random_text,
)
from transformers import modeling_rope_utils

from perplexity_sliding.plan.windows import (
    Pass,
    PlannedWindow,
    count_inputs,
    merge_windows,
    plan_windows,
)
from perplexity_sliding.protocols import PROTOCOLS

TEXTS = [random_text(45, seed=1), random_text(9, seed=2), random_text(30, seed=3)]
COUNTS = ("num_tokens", "num_windows", "num_forward_tokens", "num_tokens_per_text")


def planned(num_tokens: int, length: int, stride: int, start: str, stream: int = 0) -> list:
    return [
        PlannedWindow(stream, window, BOS if window.start_token else None)
        for window in plan_windows(num_tokens, length, stride, start)
    ]


def targets_of(one: Pass) -> list[int]:
    return [target for first, end in one.targets for target in range(first, end)]


@given(
    plans=st.lists(
        st.tuples(st.integers(2, 9), st.integers(1, 9), st.sampled_from(["none", "once", "every"])),
        min_size=1,
        max_size=4,
    ),
    num_tokens=st.integers(2, 40),
    prefixes_agree=st.booleans(),
)
def test_every_window_finds_its_targets_in_its_pass(plans, num_tokens, prefixes_agree):
    windows = [
        window
        for length, stride, start in plans
        for window in planned(num_tokens, length, min(stride, length - (start == "every")), start)
    ]
    passes, places = merge_windows(windows, prefixes_agree)
    for window, place in zip(windows, places):
        one = passes[place.number]
        targets = targets_of(one)
        assert targets == sorted(set(targets))
        wanted = list(range(window.window.first, window.window.end))
        assert targets[place.offset : place.offset + len(wanted)] == wanted
        assert (one.begin, one.start_token) == (window.window.begin, window.start_id)
        assert one.end >= window.window.end
        assert prefixes_agree or one.end == window.window.end
    wanted = {
        (w.stream, w.window.begin, w.start_id, None if prefixes_agree else w.window.end)
        for w in windows
    }
    assert len(passes) == len(wanted), "no pass is run twice"


def test_a_pass_is_as_long_as_its_longest_window_and_scores_what_any_of_them_does():
    windows = planned(20, 8, 4, "none") + planned(20, 6, 4, "none")
    passes, _ = merge_windows(windows)
    assert passes[1] == Pass(0, 4, 12, None, ((6, 12),))
    assert passes[1].num_inputs == 7
    assert passes[1].num_targets == 6


def test_strides_that_divide_each_other_read_little_more_than_the_finest():
    """Text of 20,000 tokens, L = 1,024, S = L, L/2, L/4, L/8; closed form.

    Windows of the coarser plans begin where some of the finest do.  Only at S = L, where a window
    scores one token more, from its last row, do passes grow: by one token each.
    """
    length, num_tokens = 1024, 20_000
    strides = [1024, 512, 256, 128]
    alone = [planned(num_tokens, length, stride, "once") for stride in strides]
    merged, _ = merge_windows([window for windows in alone for window in windows])
    finest, _ = merge_windows(alone[-1])
    assert sum(count_inputs(merge_windows(windows)[0]) for windows in alone) == 290_298
    assert count_inputs(finest) == 153_355
    # At S = L windows read one token more, all 19 that are full; and the last windows of S = L,
    # L/2 and L/4 begin where no window of the finest plan does, past its end.
    last = [windows[-1] for windows in alone[:-1]]
    begins = {one.begin for one in finest}
    more = {w.window.begin: w.window.num_inputs for w in last if w.window.begin not in begins}
    assert count_inputs(merged) == 153_355 + 19 + sum(more.values()) == 154_718


# ---- through the metric


def arguments(architecture: str, **others) -> dict:
    return {
        "predictions": TEXTS,
        "model": make_model(architecture),
        "tokenizer": make_tokenizer(),
        "max_length": CONTEXT,
        "return_token_scores": True,
    } | others


def assert_same_measurement(entry: dict, single: dict) -> None:
    """An entry of `measurements` is what the single call gives, equal to rounding."""
    assert entry.keys() - {"ratio_to_first"} == single.keys()
    for name in (*COUNTS, "signature", "signature_short"):
        assert entry[name] == single[name], name
    for name in ("perplexity", "total_nll", "bits_per_byte", "mean_perplexity", "perplexities"):
        assert entry[name] == pytest.approx(single[name], rel=1e-5), name
    for scores, expected in zip(entry["token_scores"], single["token_scores"]):
        assert scores["windows"] == expected["windows"]
        for nll, other in zip(scores["nll"], expected["nll"]):
            assert (nll is None) == (other is None)
            assert nll is None or nll == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_list_of_strides_gives_the_single_results(metric, architecture):
    given = arguments(architecture)
    strides = [CONTEXT, 8, 4, 3]
    together = metric.compute(stride=strides, **given)
    singles = [metric.compute(stride=stride, **given) for stride in strides]
    assert [entry["stride"] for entry in together["measurements"]] == strides
    for entry, single in zip(together["measurements"], singles):
        assert_same_measurement(entry, single)
    windows = [
        window
        for stride in strides
        for stream, text in enumerate(TEXTS)
        for window in planned(len(text.split()), CONTEXT, stride, "once", stream)
    ]
    merged, _ = merge_windows(windows)
    assert together["num_forward_tokens"] == count_inputs(merged)
    assert together["num_forward_tokens"] < sum(single["num_forward_tokens"] for single in singles)


def test_each_of_two_strides_costs_what_it_costs_alone(metric):
    given = arguments("gpt2")
    entries = metric.compute(stride=[8, 4], **given)["measurements"]
    alone = [metric.compute(stride=stride, **given) for stride in (8, 4)]
    name = "num_forward_tokens"
    assert [entry[name] for entry in entries] == [single[name] for single in alone]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mamba"])
def test_all_protocols_give_their_single_results(metric, architecture):
    given = arguments(architecture) | {"predictions": [TEXTS[0]]}
    together = metric.compute(protocol="all", **given)
    entries = together["measurements"]
    assert [entry["protocol"] for entry in entries] == list(PROTOCOLS)
    read_alone = 0
    for entry in entries:
        single = metric.compute(protocol=entry["protocol"], **given)
        assert_same_measurement(entry, single)
        read_alone += single["num_forward_tokens"]
    assert together["num_forward_tokens"] < 0.6 * read_alone


def test_lists_combine_in_the_order_asked(metric):
    given = arguments("gpt2", max_length=[16, 8], stride=[4, 2])
    entries = metric.compute(**given)["measurements"]
    assert [(entry["max_length"], entry["stride"]) for entry in entries] == [
        (16, 4),
        (16, 2),
        (8, 4),
        (8, 2),
    ]


def test_a_list_of_one_is_a_list(metric):
    result = metric.compute(**arguments("gpt2", stride=[4]))
    assert [entry["stride"] for entry in result["measurements"]] == [4]
    assert "ratio_to_first" not in result["measurements"][0]


def test_the_keys_of_the_first_measurement_stand_beside_the_list(metric):
    result = metric.compute(**arguments("gpt2", protocol=["lm-eval", "sliding"], stride=4))
    (entry,) = (row for row in result["measurements"] if "error" not in row)
    together = {"measurements", "num_forward_tokens"}
    assert {key: result[key] for key in result.keys() - together} == {
        key: entry[key] for key in entry.keys() - together
    }


def test_what_a_protocol_refuses_stands_in_its_place(metric):
    given = arguments("gpt2", protocol=["sliding", "lm-eval", "gptq"], stride=4)
    first, *others = metric.compute(**given)["measurements"]
    assert first["perplexity"] > 1
    for entry in others:
        assert entry["error"].startswith("`stride` must be left out with protocol=")
        assert "perplexity" not in entry


def test_where_all_are_refused_the_first_error_is_raised(metric):
    with pytest.raises(ValueError, match="`stride` must be left out with protocol='gptq'"):
        metric.compute(**arguments("gpt2", protocol=["gptq", "lm-eval"], stride=4))


def test_equal_texts_are_read_once(metric):
    given = arguments("gpt2")
    once = metric.compute(**given | {"predictions": TEXTS[:1]})
    twice = metric.compute(**given | {"predictions": TEXTS[:1] * 2})
    assert twice["num_forward_tokens"] == once["num_forward_tokens"]
    assert twice["num_tokens"] == 2 * once["num_tokens"]
    assert twice["perplexities"] == once["perplexities"] * 2


def test_the_progress_of_a_list_counts_the_merged_work(metric):
    progress = []
    result = metric.compute(
        stride=[8, 4, 2], callback=progress.append, batch_size=2, **arguments("gpt2")
    )
    assert progress[-1].done == progress[-1].total == result["num_forward_tokens"]


# ---- models for which the length of a pass matters


@pytest.mark.skipif(
    not hasattr(modeling_rope_utils, "dynamic_rope_update"),
    reason="these transformers keep longrope's frequencies the same at every length",
)
@pytest.mark.parametrize("limit", [3, 5])
@pytest.mark.filterwarnings("ignore:.*stated limit of")
def test_frequencies_that_change_within_a_short_pass(metric, limit):
    """A text shorter than half of the longest pass is not padded, which would make it longer."""
    texts = [random_text(count, seed=count) for count in (limit, 16)]
    result = metric.compute(
        predictions=texts,
        model=rotary_model("longrope", limit),
        tokenizer=make_tokenizer(),
        add_start_token=False,
        max_length=16,
    )
    expected = [naive_perplexity(rotary_model("longrope", limit), text) for text in texts]
    assert result["perplexities"] == pytest.approx(expected, rel=1e-5)


def test_length_dependent_positions_are_measured_by_the_windows_length(metric):
    model = rotary_model("dynamic")
    given = {"predictions": TEXTS, "model": model, "tokenizer": make_tokenizer()}
    entries = metric.compute(max_length=[16, 12, 6], stride=3, **given)["measurements"]
    for entry in entries:
        single = metric.compute(max_length=entry["max_length"], stride=3, **given)
        assert entry["total_nll"] == pytest.approx(single["total_nll"], rel=1e-6)


def fed_by_tools(ids: list[int], length: int) -> dict[str, list[tuple[list[int], range]]]:
    """What each tool feeds in a pass, and the rows from which it scores the token after."""
    count = len(ids)
    chunks = [ids[begin : begin + length] for begin in range(0, count - length + 1, length)]
    half = length // 2
    starts = range(0, max(1, count - length + half), half)
    guide = [(min(n - half + length, count) if n else 0, n, min(n + length, count)) for n in starts]
    ends = [min(end, count) for end in range(length, count + length, length)]
    first, *later = ends
    return {
        "gptq": [(chunk, range(length - 1)) for chunk in chunks],
        "run-clm": [(chunk, range(length - 1)) for chunk in chunks],
        "llama.cpp": [(chunk, range(half, length - 1)) for chunk in chunks],
        "mlx-lm": [(chunk[:-1], range(length - 1)) for chunk in chunks],
        "stock": [([BOS, *ids[: length - 1]], range(length - 1))],
        "transformers-docs": [
            (ids[begin:end], range(max(before - 1, begin) - begin, end - begin - 1))
            for before, begin, end in guide
        ],
        "lm-eval": [([BOS, *ids[: first - 1]], range(first))]
        + [
            (ids[end - 1 - length : end - 1], range(length - (end - before), length))
            for before, end in zip(ends, later)
        ],
    }


@pytest.mark.parametrize("length", [13, 16])
@pytest.mark.parametrize("protocol", fed_by_tools([1, 2, 3, 4], 2))
@pytest.mark.filterwarnings("ignore:.*exceeds the model's stated limit|.*past the 8 tokens")
def test_passes_are_as_long_as_the_tool_s_where_their_length_matters(metric, protocol, length):
    text = random_text(40, seed=4)
    ids = [int(word[1:]) for word in text.split()]
    result = metric.compute(
        predictions=[text],
        model=rotary_model("dynamic"),
        tokenizer=make_tokenizer(eos=False) if protocol == "lm-eval" else make_tokenizer(),
        protocol=protocol,
        max_length=length,
    )
    expected = 0.0
    count = 0
    for fed, rows in fed_by_tools(ids, length)[protocol]:
        logs = reference.log_probs(rotary_model("dynamic"), fed)
        for row in rows:
            following = fed[row + 1] if row + 1 < len(fed) else after(ids, fed)
            expected -= logs[row][following].item()
            count += 1
    assert result["num_tokens"] == count
    assert result["total_nll"] == pytest.approx(expected, rel=1e-6)


def after(ids: list[int], fed: list[int]) -> int:
    """The token that follows what is fed."""
    fed = [token for token in fed if token != BOS]
    places = [n for n in range(len(ids)) if ids[n : n + len(fed)] == fed]
    return ids[places[0] + len(fed)]


@pytest.mark.parametrize(
    "spans, num_windows, length",
    [
        ([(2, 4), (5, 6), (20, 22)], 2, 16),
        ([(2, 4)], 1, 16),  # passes as short as this are read alike in any model
        ([(2, 4)], 1, 11),  # and no longer one has been tried before
    ],
)
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.filterwarnings("ignore:.*past the 8 tokens")
def test_parts_are_scored_in_whole_windows(metric, kind, spans, num_windows, length):
    """A window that ended with the span would be read at other frequencies."""
    if kind == "longrope" and not hasattr(modeling_rope_utils, "dynamic_rope_update"):
        pytest.skip("these transformers keep longrope's frequencies the same at every length")
    text = random_text(30)
    ids = [int(word[1:]) for word in text.split()]
    places = [match.span() for match in re.finditer(r"\S+", text)]
    plan = reference.sliding(len(ids), length, 8)
    expected = {}
    for target in (t for first, end in spans for t in range(first, end)):
        begin = plan[target][0]
        window_end = max(t for t in plan if plan[t][0] == begin)
        rows = reference.log_probs(rotary_model(kind), ids[begin:window_end])
        expected[target] = -rows[target - 1 - begin, ids[target]].item()
    result = metric.compute(
        predictions=[text],
        score_spans=[[(places[first][0], places[end - 1][1]) for first, end in spans]],
        model=rotary_model(kind),
        tokenizer=make_tokenizer(),
        add_start_token=False,
        max_length=length,
        stride=8,
        return_token_scores=True,
    )
    [tokens] = result["token_scores"]
    found = {place: nll for place, nll in enumerate(tokens["nll"]) if nll is not None}
    assert found == pytest.approx(expected, rel=1e-5)
    assert result["num_forward_tokens"] == num_windows * (length - 1), (
        "one pass for a window with spans"
    )


def rotary_model(kind: str, limit: int = 8):
    scaling = {"rope_type": kind, "factor": 4.0}
    if kind == "longrope":
        half = 8  # pairs of dimensions of a head
        scaling |= {"short_factor": [1.0] * half, "long_factor": [9.0] * half}
        scaling["original_max_position_embeddings"] = limit
    return make_model("llama", max_position_embeddings=limit, rope_scaling=scaling)


def naive_perplexity(model, text: str) -> float:
    nlls = reference.row_nlls(model, [int(word[1:]) for word in text.split()])
    return math.exp(reference.mean(nlls))
