"""Texts read once, the state carried on, through the metric: against one pass with a banded mask."""

import numpy as np
import pytest
import reference
import transformers
from models import CONTEXT, VOCABULARY, enliven, make_model, make_tokenizer, random_text

from perplexity_sliding.plan.windows import Plan
from perplexity_sliding.protocols import PROTOCOLS
from perplexity_sliding.scoring.carried import plan_segments, side_by_side
from perplexity_sliding.scoring.distributed import share_out

TEXTS = [random_text(70), random_text(9, seed=1), random_text(33, seed=2), random_text(35, seed=3)]


@pytest.fixture(scope="module")
def llama():
    return make_model("llama")


def carried_reference(model, tokenizer, texts, stride, memory, start=True):
    """Nlls of all tokens of each text, the start token before it."""
    head = [tokenizer.bos_token_id] * start
    ids = [head + tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [reference.carried_nlls(model, one, stride, memory) for one in ids]


def scored(result):
    return [[nll for nll in text["nll"] if nll is not None] for text in result["token_scores"]]


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("max_length, stride", [(None, None), (16, 16), (12, 5), (9, 1)])
def test_attention_keeps_the_window_less_a_stride(
    metric, llama, tokenizer, max_length, stride, start
):
    """Transformer-XL's evaluation: half of the model's limit is kept unless told otherwise."""
    result = metric.compute(
        predictions=TEXTS,
        model=llama,
        tokenizer=tokenizer,
        carry=True,
        max_length=max_length,
        stride=stride,
        add_start_token=start,
        return_token_scores=True,
        return_totals="texts",
    )
    length, stride = max_length or CONTEXT, stride or CONTEXT // 2
    expected = carried_reference(llama, tokenizer, TEXTS, stride, length - stride, start)
    for ours, theirs in zip(scored(result), expected):
        assert ours == pytest.approx(theirs, abs=1e-4)
    count = sum(map(len, expected))
    assert result["num_tokens"] == result["num_forward_tokens"] == count
    costs = [totals.result()["num_forward_tokens"] for totals in result["text_totals"]]
    assert costs == list(map(len, expected))
    assert result["perplexity"] == pytest.approx(np.exp(sum(map(sum, expected)) / count), rel=1e-5)
    carried = f"carry:keys({length - stride})"
    assert f"|window:{length}|stride:{stride}|{carried}|" in result["signature"]


@pytest.mark.skipif(transformers.__version__.startswith("4."), reason="caches of another kind")
@pytest.mark.parametrize("max_length, stride", [(9, 8), (16, 8), (12, 3)])
def test_layers_with_a_window_of_their_own_keep_no_more_than_others(
    metric, tokenizer, max_length, stride
):
    model = make_model("gemma2", sliding_window=8)
    result = metric.compute(
        predictions=TEXTS, model=model, tokenizer=tokenizer, carry=True,
        max_length=max_length, stride=stride,
    )  # fmt: skip
    expected = carried_reference(model, tokenizer, TEXTS, stride, max_length - stride)
    assert result["total_nll"] == pytest.approx(sum(map(sum, expected)), rel=1e-5)
    assert f"|carry:keys({max_length - stride},window 8)|" in result["signature"]


def make_xlstm(width):
    if not hasattr(transformers, "xLSTMConfig"):
        pytest.skip("this transformers has no xLSTM")
    config = transformers.xLSTMConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=2,
        num_heads=4,
        chunk_size=16,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    enliven(model, spread=0.15)
    return model.eval()


@pytest.mark.parametrize("name", ["rwkv", "mamba", "xlstm"])
def test_a_recurrent_model_is_scored_with_all_context(metric, tokenizer, name):
    """Whatever the window: one pass over the whole text, at one reading a token."""
    if name == "mamba" and transformers.__version__.startswith("4."):
        pytest.skip("its state in this transformers cannot be gone on from")
    model = make_xlstm(128) if name == "xlstm" else make_model(name)
    expected = [
        reference.nll(model, [tokenizer.bos_token_id], tokenizer(text)["input_ids"])
        for text in TEXTS
    ]
    for settings in ({}, {"max_length": 10, "stride": 3}):
        result = metric.compute(
            predictions=TEXTS,
            model=model,
            tokenizer=tokenizer,
            carry=True,
            return_token_scores=True,
            **settings,
        )
        for ours, theirs in zip(scored(result), expected):
            assert ours == pytest.approx(theirs, abs=1e-4)
        assert result["num_forward_tokens"] == sum(map(len, expected))
    assert "|carry:state|" in result["signature"]
    seen = result["token_scores"][0]["context_length"]
    assert seen == list(range(1, len(seen) + 1))


def test_a_state_of_other_sizes_than_the_layers_is_refused(metric, tokenizer):
    """transformers sizes xLSTM's state by multiples of 64, its layers by the configuration."""
    model = make_xlstm(32)
    kwargs = {"predictions": TEXTS, "model": model, "tokenizer": tokenizer, "max_length": 16}
    assert metric.compute(**kwargs)["num_tokens"] == sum(len(text.split()) for text in TEXTS)
    with pytest.raises(ValueError, match="its logits differ when it continues from the state"):
        metric.compute(carry=True, **kwargs)


def test_no_stated_limit_is_needed(metric, tokenizer):
    """A sliding window over such a text would have to be given."""
    text = random_text(2100)
    kwargs = {"predictions": [text], "model": make_model("bloom"), "tokenizer": tokenizer}
    with pytest.raises(ValueError, match="`max_length` must be given: the model states no limit"):
        metric.compute(**kwargs)
    assert metric.compute(carry=True, **kwargs)["num_tokens"] == 2100


@pytest.mark.parametrize("batch_size", [1, 2])
def test_company_changes_nothing(metric, llama, tokenizer, batch_size):
    kwargs = {"predictions": TEXTS, "model": llama, "tokenizer": tokenizer, "carry": True}
    together = metric.compute(return_token_scores=True, **kwargs)
    apart = metric.compute(return_token_scores=True, batch_size=batch_size, **kwargs)
    assert len(scored(together)) == len(TEXTS)
    for ours, theirs in zip(scored(together), scored(apart), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_alternatives_come_from_the_carried_model(metric, llama, tokenizer):
    result = metric.compute(
        predictions=TEXTS,
        model=llama,
        tokenizer=tokenizer,
        carry=True,
        return_token_scores=["top80"],
    )
    for text in result["token_scores"]:
        for token, nll, rank, alternatives in zip(
            text["tokens"], text["nll"], text["rank"], text["alternatives"]
        ):
            assert alternatives[rank - 1] == [token, pytest.approx(nll, abs=1e-4)]


class Stop(Exception):
    pass


def test_a_killed_run_goes_on_and_ends_with_the_same_result(metric, llama, tokenizer, tmp_path):
    """Texts side by side are read again unless all are finished; nothing is scored twice."""
    kwargs = {
        "predictions": TEXTS, "model": llama, "tokenizer": tokenizer, "carry": True,
        "stride": 4, "batch_size": 2, "identify": True,
    }  # fmt: skip
    whole = metric.compute(**kwargs)
    steps = []

    def stop_late(progress):
        steps.append(progress.done)
        if len(steps) == 20:  # the longest text and its company are done by now
            raise Stop

    path = tmp_path / "scores.sqlite"
    with pytest.raises(Stop):
        metric.compute(checkpoint=path, callback=stop_late, **kwargs)
    resumed = []
    result = metric.compute(checkpoint=path, callback=resumed.append, **kwargs)
    assert result == whole
    assert resumed[0].done > steps[-1]
    assert resumed[-1].done == resumed[-1].total == whole["num_forward_tokens"]
    assert metric.compute(checkpoint=path, callback=resumed.append, **kwargs) == whole


def test_a_checkpoint_tells_carried_scores_from_others(metric, llama, tokenizer, tmp_path):
    kwargs = {"predictions": TEXTS, "model": llama, "tokenizer": tokenizer, "stride": 4}
    path = tmp_path / "scores.sqlite"
    fresh, kept = (
        [
            metric.compute(carry=carry, max_length=n, checkpoint=file, **kwargs)["total_nll"]
            for carry, n in RUNS
        ]
        for file in (None, path)
    )
    assert kept == pytest.approx(fresh, rel=1e-6)
    assert np.diff(sorted(fresh)).min() > 1e-2


RUNS = [(True, 16), (True, 12), (False, 16), (False, 12)]


def test_a_checkpoint_tells_segments_of_one_memory_apart(metric, llama, tokenizer, tmp_path):
    """Keys depend on where segments were cut: scores of another stride were taken, under one signature."""
    sizes = [(12, 8), (5, 1), (8, 4)]
    fresh, kept = (
        [
            metric.compute(
                predictions=TEXTS, model=llama, tokenizer=tokenizer, carry=True,
                max_length=max_length, stride=stride, checkpoint=file,
            )["total_nll"]
            for max_length, stride in sizes
        ]
        for file in (None, tmp_path / "scores.sqlite")
    )  # fmt: skip
    assert kept == pytest.approx(fresh, rel=1e-6)
    assert np.diff(sorted(fresh)).min() > 1e-2


@pytest.mark.parametrize("start", ["once", "none"])
@pytest.mark.parametrize("num_tokens", [2, 8, 9, 40])
@pytest.mark.parametrize("stride, memory", [(8, 8), (3, 5), (1, 0), (8, None)])
def test_segments_show_which_tokens_are_seen(num_tokens, stride, memory, start):
    plan = Plan(PROTOCOLS["sliding"], 16, stride, start, None if start == "none" else 0)
    rows = [reference.START] * (start == "once") + list(range(num_tokens))
    seen = {}
    for window in plan_segments(num_tokens, plan, memory):
        for target in range(window.first, window.end):
            assert target not in seen
            head = [reference.START] * window.start_token
            seen[target] = head + list(range(window.begin, target))
    expected = {}
    for row, target in enumerate(rows[1:]):
        first = 0 if memory is None else max(0, row // stride * stride - memory)
        expected[target] = rows[first : row + 1]
    assert seen == expected


def test_whole_texts_are_shared_out():
    """A segment needs the state that the one before it has left."""
    assert share_out([10, 2, 7, 2], 2) == [[0], [2, 1, 3]]


def test_side_by_side():
    assert side_by_side([5, 9, 9, 5], 4) == [[1, 2, 0, 3]]  # 36 tokens are read for 28
    assert side_by_side([3, 9, 9, 3], 4) == [[1, 2, 0], [3]]  # 36 for 24 would be too many
    assert side_by_side([8, 9, 10], 4) == [[2, 1, 0]]
    assert side_by_side([8, 9, 10], 2) == [[2, 1], [0]]
    assert side_by_side([7], 4) == [[0]]


REFUSALS = [
    ({"carry": 1}, "`carry` must be one of True, False, got 1"),
    ({"carry": True, "protocol": "stock"}, "`carry` must be left out with protocol='stock'"),
    ({"carry": True, "stride": [4, 8]}, "`carry` must be left out if .* is a list"),
    ({"carry": True, "context_lengths": [8]}, "`carry` must be left out with `context_lengths`"),
    ({"carry": True, "add_start_token": "every"}, "must not be 'every' with `carry`.* Pass 'once'"),
]


@pytest.mark.parametrize("arguments, message", REFUSALS)
def test_refusals(metric, llama, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=["w3 w4"], model=llama, tokenizer=tokenizer, **arguments)


def test_learned_positions_are_refused_with_the_reason(metric, gpt2, tokenizer):
    with pytest.raises(
        ValueError, match=r"positions are a table of 16 entries.* Use a sliding window"
    ):
        metric.compute(predictions=["w3 w4"], model=gpt2, tokenizer=tokenizer, carry=True)


def test_a_tokenizer_that_prepends_gets_one_start_token(metric, llama):
    """Elsewhere "every" window would have one; here there is one text and one start."""
    tokenizer = make_tokenizer(adds_bos=True)
    result = metric.compute(predictions=TEXTS, model=llama, tokenizer=tokenizer, carry=True)
    expected = carried_reference(llama, tokenizer, TEXTS, 8, 8)
    assert result["total_nll"] == pytest.approx(sum(map(sum, expected)), rel=1e-5)
    assert "|start:once(0)|" in result["signature"]
