"""Window plans: which tokens are read, which are scored, with how much context."""

import itertools

import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from perplexity_sliding.plan.windows import Window, guide_weights, plan_windows
from perplexity_sliding.protocols import PROTOCOLS

LENGTHS = range(2, 13)
TOKENS = range(0, 41)


def contexts(windows) -> dict[int, list]:
    """What each target of a plan sees; fails where a token is scored twice."""
    seen = {}
    for window in windows:
        fed = [reference.START] * window.start_token + list(range(window.begin, window.end - 1))
        assert len(fed) == window.num_inputs
        for target in range(window.first, window.end):
            context = fed[: window.start_token + target - window.begin]
            assert context, "a target needs something before it"
            assert len(context) == window.context_length(target)
            assert target not in seen
            seen[target] = context
    return seen


def strides(length: int, start: str) -> range:
    return range(1, length if start == "every" else length + 1)


@pytest.mark.parametrize("start", ["none", "once", "every"])
@pytest.mark.parametrize("length", LENGTHS)
def test_sliding_scores_each_token_once_in_the_first_window_that_reaches_it(length, start):
    for stride in strides(length, start):
        for num_tokens in TOKENS:
            windows = list(plan_windows(num_tokens, length, stride, start))
            seen = contexts(windows)
            first = 1 if start == "none" else 0
            assert sorted(seen) == list(range(first, num_tokens))
            assert seen == reference.sliding(num_tokens, length, stride, start)
            assert all(window.num_inputs <= length for window in windows)
            assert all(window.num_targets > 0 for window in windows)


@pytest.mark.parametrize(
    ("num_tokens", "length", "stride", "start", "expected"),
    [
        # overlapping: later windows score their last `stride` tokens
        (10, 4, 2, "none", [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]),
        # the last window is as short as the text leaves it
        (9, 4, 2, "none", [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 9)]),
        # side by side: the first token of the next window is scored from the last row
        (10, 4, 4, "none", [(0, 1, 5), (4, 5, 9), (8, 9, 10)]),
        # a text that ends with a window leaves nothing for another
        (9, 4, 4, "none", [(0, 1, 5), (4, 5, 9)]),
        # the start token takes a place of the first window only
        (7, 4, 2, "once", [(0, 0, 3, True), (1, 3, 5), (3, 5, 7)]),
        (9, 4, 4, "once", [(0, 0, 4, True), (3, 4, 8), (7, 8, 9)]),
        # or of each
        (7, 4, 2, "every", [(0, 0, 3, True), (2, 3, 5, True), (4, 5, 7, True)]),
        (7, 4, 3, "every", [(0, 0, 3, True), (3, 3, 6, True), (6, 6, 7, True)]),
        # a text of one window
        (3, 4, 2, "none", [(0, 1, 3)]),
        (1, 4, 2, "once", [(0, 0, 1, True)]),
        # nothing to score
        (1, 4, 2, "none", []),
        (0, 4, 2, "once", []),
        (0, 4, 2, "every", []),
    ],
)
def test_sliding_plans(num_tokens, length, stride, start, expected):
    assert list(plan_windows(num_tokens, length, stride, start)) == [Window(*w) for w in expected]


@given(data=st.data())
def test_sliding_plans_of_any_size(data):
    start = data.draw(st.sampled_from(["none", "once", "every"]))
    length = data.draw(st.integers(2, 10**6))
    stride = data.draw(st.integers(max(1, length // 1000), length - (start == "every")))
    num_tokens = data.draw(st.integers(2, 300 * stride))
    windows = list(plan_windows(num_tokens, length, stride, start))
    lead = start != "none"
    assert windows[0].first == 1 - lead
    assert windows[-1].end == num_tokens
    for before, after in itertools.pairwise(windows):
        assert after.first == before.end
        assert after.begin - before.begin == stride - (start == "once" and before.start_token)
    for place, window in enumerate(windows):
        assert window.num_inputs <= length
        assert window.start_token == (start == "every" or (start == "once" and place == 0))
    # What the stride promises: so much context for every token that has as much before it.
    promised = length - stride + (stride == length)
    assert all(window.context_length(window.first) == promised for window in windows[1:])


@pytest.mark.parametrize("length", LENGTHS)
def test_the_guides_windows(length):
    for protocol in ("transformers-docs", "transformers-docs-weighted"):
        for stride in range(1, length + 1):
            for num_tokens in TOKENS:
                expected = [
                    window
                    for window in reference.guide_windows(num_tokens, length, stride)
                    if window
                ]
                windows = list(
                    plan_windows(num_tokens, length, stride, "none", PROTOCOLS[protocol])
                )
                assert [contexts([window]) for window in windows] == expected


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("protocol", ["lm-eval", "paloma"])
def test_rolling_windows_of_lm_eval(protocol, length):
    for num_tokens in TOKENS:
        windows = list(plan_windows(num_tokens, length, length, "once", PROTOCOLS[protocol]))
        assert contexts(windows) == reference.lm_eval(num_tokens, length)
        # all inputs are full as soon as the text fills one
        assert {w.num_inputs for w in windows} <= {min(length, num_tokens)}


@pytest.mark.parametrize("length", LENGTHS)
def test_stock_reads_one_window(length):
    for num_tokens in TOKENS:
        for start in (False, True):
            windows = list(
                plan_windows(
                    num_tokens, length, length, "once" if start else "none", PROTOCOLS["stock"]
                )
            )
            assert contexts(windows) == reference.stock(num_tokens, length, start)
            assert len(windows) <= 1


@pytest.mark.parametrize("length", LENGTHS)
def test_llama_cpp_scores_the_second_half_of_full_chunks(length):
    for num_tokens in TOKENS:
        for start in ("none", "replace"):
            windows = list(plan_windows(num_tokens, length, length, start, PROTOCOLS["llama.cpp"]))
            assert contexts(windows) == reference.llama_cpp(num_tokens, length, start != "none")
            assert all(w.num_targets == length - 1 - length // 2 for w in windows)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("protocol", ["gptq", "mlx-lm"])
def test_full_chunks_side_by_side(protocol, length):
    for num_tokens in TOKENS:
        windows = plan_windows(num_tokens, length, length, "none", PROTOCOLS[protocol])
        assert contexts(windows) == reference.chunks(num_tokens, length)


@pytest.mark.parametrize("length", LENGTHS)
def test_exllamav2_drops_what_does_not_fill_a_window(length):
    for stride in range(1, length + 1):
        for num_tokens in TOKENS:
            windows = plan_windows(num_tokens, length, stride, "none", PROTOCOLS["exllamav2"])
            assert contexts(windows) == reference.exllamav2(num_tokens, length, stride)


@pytest.mark.parametrize("length", LENGTHS)
def test_megatron_overlaps(length):
    for overlap in range(1, length + 1):
        for num_tokens in range(2, 41):
            windows = list(plan_windows(num_tokens, length, overlap, "none", PROTOCOLS["megatron"]))
            assert contexts(windows) == reference.megatron(num_tokens, length, overlap)
            assert all(window.num_inputs <= length for window in windows)


def test_a_window_as_drawn_in_its_documentation():
    window = Window(begin=2, first=4, end=7)
    assert (window.num_inputs, window.num_targets) == (4, 3)
    assert [window.context_length(target) for target in (4, 5, 6)] == [2, 3, 4]
    assert Window(2, 4, 7, start_token=True).num_inputs == 5
    assert Window(2, 4, 7, start_token=True).context_length(4) == 3


@pytest.mark.parametrize(
    ("stride", "expected"),
    [
        # windows of 8 over 20 tokens: the unmasked labels of each, less one
        (8, [7, 7, 3]),
        (4, [7, 3, 3, 3]),
        (5, [7, 4, 4, 1]),
        # the published form's blind spot: nothing but the first window weighs anything
        (1, [7] + [0] * 12),
    ],
)
def test_the_weights_of_the_guide(stride, expected):
    windows = list(plan_windows(20, 8, stride, "none", PROTOCOLS["transformers-docs-weighted"]))
    assert guide_weights(windows) == expected


@pytest.mark.parametrize(
    ("protocol", "length", "starts_every_window", "expected"),
    [
        ("sliding", 1024, False, 512),
        ("sliding", 5, False, 2),
        ("sliding", 2, True, 1),
        ("transformers-docs", 1024, False, 512),
        ("lm-eval", 1024, False, 1024),
        ("gptq", 2048, False, 2048),
        ("exllamav2", 2048, False, 512),
        ("exllamav2", 128, False, 128),
        ("megatron", 1024, False, 32),
        ("megatron", 16, False, 16),
        ("yarn", 2048, True, 256),
        ("yarn", 256, True, 255),  # no token is skipped
    ],
)
def test_the_stride_where_none_is_given(protocol, length, starts_every_window, expected):
    assert PROTOCOLS[protocol].usual_stride(length, starts_every_window) == expected
