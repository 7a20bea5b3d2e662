"""Texts read once, the state carried on: against one forward pass with the mask that it amounts to."""

import types
from functools import partial

import numpy as np
import pytest
import reference
import torch
import transformers
from models import (
    ARCHITECTURES,
    CONTEXT,
    NEWEST,
    VOCABULARY,
    enliven,
    make_model,
    make_tokenizer,
    random_text,
)

from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.plan.windows import Plan
from perplexity_sliding.protocols import PROTOCOLS
from perplexity_sliding.scoring.carried import (
    attention_layers,
    find_reader,
    open_carrier,
    plan_segments,
    side_by_side,
)

pytestmark = pytest.mark.skipif(not NEWEST, reason="caches of another kind")

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
    assert f"|carry:keys({max_length - stride})|" in result["signature"]


def make_xlstm():
    if not hasattr(transformers, "xLSTMConfig"):
        pytest.skip("this transformers has no xLSTM")
    config = transformers.xLSTMConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
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
    model = make_xlstm() if name == "xlstm" else make_model(name)
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


RUNS = [(True, 16, 4), (True, 12, 4), (False, 16, 4), (False, 12, 4)]
# Keys depend on where segments were cut: scores of another stride were taken, under one signature.
OF_ONE_MEMORY = [(True, 12, 8), (True, 5, 1), (True, 8, 4)]


@pytest.mark.parametrize("runs", [RUNS, OF_ONE_MEMORY])
def test_a_checkpoint_tells_scores_apart(metric, llama, tokenizer, tmp_path, runs):
    kwargs = {"predictions": TEXTS, "model": llama, "tokenizer": tokenizer}
    fresh, kept = (
        [
            metric.compute(carry=carry, max_length=n, stride=m, checkpoint=file, **kwargs)[
                "total_nll"
            ]
            for carry, n, m in runs
        ]
        for file in (None, tmp_path / "scores.sqlite")
    )
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


def test_side_by_side():
    """No text reads more than a quarter of padding."""
    assert side_by_side([9, 12, 12, 9], 4) == [[1, 2, 0, 3]]
    assert side_by_side([8, 12, 12, 9], 4) == [[1, 2, 3], [0]]
    assert side_by_side([8, 9, 10], 2) == [[2, 1], [0]]


REFUSALS = [
    ({"carry": 1}, "`carry` must be one of True, False, got 1"),
    ({"carry": True, "protocol": "stock"}, "`carry` must be left out with protocol='stock'"),
    ({"carry": True, "stride": [4, 8]}, "`carry` must be left out with a list of"),
    ({"carry": True, "context_lengths": [8]}, "`carry` must be left out with `context_lengths`"),
]


@pytest.mark.parametrize("arguments, message", REFUSALS)
def test_refusals(metric, llama, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=["w3 w4"], model=llama, tokenizer=tokenizer, **arguments)


def test_a_tokenizer_that_prepends_gets_one_start_token(metric, llama):
    """Elsewhere "every" window would have one; here there is one text and one start."""
    tokenizer = make_tokenizer(adds_bos=True)
    result = metric.compute(predictions=TEXTS, model=llama, tokenizer=tokenizer, carry=True)
    expected = carried_reference(llama, tokenizer, TEXTS, 8, 8)
    assert result["total_nll"] == pytest.approx(sum(map(sum, expected)), rel=1e-5)
    assert "|start:once(0)|" in result["signature"]


# ---- the reader of a state

RELATIVE = ("llama", "gemma2", "bloom", "granite", "cohere", "mixtral", "falcon")
RECURRENT = ("mamba", "rwkv")
TABLES = ("gpt2", "opt", "gptj", "codegen")


def random_ids(num_tokens, num_texts=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 80, (num_texts, num_tokens), generator=generator)


def read_on(reader, ids, segment, memory, size):
    """Yield the logits (B, T, V) of the chunks of texts (B, N) read segment by segment."""
    for begin in range(0, ids.shape[1], segment):
        part = ids[:, begin : begin + segment]
        for first, end in reader.chunks(part.shape[1], size):
            yield reader.logits(part[:, first:end])
        reader.keep(memory)


def carrier_of(model):
    return open_carrier(LanguageModel.adopt(model, make_tokenizer()))


def carried(model, ids, segment, memory, size):
    """Nlls (B, N - 1) of all tokens of texts (B, N) after their first."""
    reader = carrier_of(model)
    assert not reader.alone or len(ids) == 1 or ids.shape[1] % size != 1
    logits = torch.cat(list(read_on(reader, ids, segment, memory, size)), 1)
    scores = logits[:, :-1].double().log_softmax(-1)
    return -scores.gather(2, ids[:, 1:, None])[..., 0]


@torch.inference_mode()
@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize(
    "segment, memory, size",
    [
        (8, 8, 8),
        (8, 5, 3),  # chunks within a segment see the keys of the chunks before
        (3, 12, 16),  # the memory fills over several segments
        (6, 0, 4),  # nothing is carried: disjoint windows
    ],
)
def test_attention_sees_its_segment_and_the_memory_before_it(
    name, segment, memory, size, monkeypatch
):
    model, ids = make_model(name), random_ids(41)
    result = carried(model, ids, segment, memory, size)[0]
    if name == "bloom":  # it takes no mask of two dimensions, so its own is replaced
        pass_on_masks(monkeypatch)
    expected = reference.carried_nlls(model, ids[0].tolist(), segment, memory)
    assert result.tolist() == pytest.approx(expected, abs=1e-4)
    if memory:
        without = carried(model, ids, segment, memory - 1, size)[0]
        assert (result - without).abs().max() > 1e-2


def pass_on_masks(monkeypatch):
    """Let Bloom take a mask (1, 1, T, T); its ALiBi takes ones in two dimensions from it."""
    module = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    build = module.BloomModel.build_alibi_tensor
    ones = lambda mask: torch.ones(len(mask), mask.shape[-1], dtype=torch.long)  # noqa: E731
    monkeypatch.setattr(
        module.BloomModel,
        "build_alibi_tensor",
        lambda self, mask, *args, **kwargs: build(
            self, ones(mask) if mask.ndim == 4 else mask, *args, **kwargs
        ),
    )


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "rwkv", "falcon"])
def test_the_state_stays_as_large_as_it_is(name):
    """Memory is flat: what is kept after a thousand tokens is what was kept after thirty."""
    reader = carrier_of(make_model(name))
    kept = []
    for _ in read_on(reader, random_ids(1000), 16, 8, 16):
        kept.append(state_bytes(reader.state))
    assert max(kept) == max(kept[:4])


def state_bytes(state):
    if isinstance(state, torch.Tensor):
        return state.untyped_storage().nbytes()
    if isinstance(state, list | tuple):
        return sum(map(state_bytes, state))
    return sum(state_bytes([layer.keys, layer.values]) for layer in attention_layers(state))


def starting_anew():
    """The state is returned, but the next chunk begins anew."""
    model = make_model("rwkv")
    forward = model.forward
    model.forward = types.MethodType(
        lambda self, input_ids, state=None, use_cache=None: forward(input_ids, use_cache=True),
        model,
    )
    return model


DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}
NOT_CARRIED = [
    *((partial(make_model, name), "a table of 16 entries") for name in TABLES),
    (partial(make_model, "llama", **DYNAMIC), "rotary frequencies depend on the length"),
    # of one kind of layers
    (partial(make_model, "olmo3"), "rotary frequencies depend on the length"),
    # Without the keys before them, those that were kept are taken for the start of the text.
    (
        partial(make_model, "llama4", attn_temperature_tuning=False),
        "attention depends on positions",
    ),
    (partial(make_model, "llama4", layer_types=["full_attention"] * 2), "depends on positions"),
    (starting_anew, "its logits differ when it continues from the state"),
]


@pytest.mark.parametrize("make, reason", NOT_CARRIED)
def test_a_model_that_cannot_go_on_is_refused(make, reason):
    with pytest.raises(
        ValueError,
        match=rf"`carry` must be left out with `model`: .*{reason}.* Use a sliding window",
    ):
        carrier_of(make())


@torch.inference_mode()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_give_what_one_pass_gives(name):
    """Every architecture's long pass can be read in parts, also with positions from a table."""
    model, ids = make_model(name), random_ids(CONTEXT)
    reader = find_reader(model)
    reader.begin()
    parts = [reader.logits(ids[:, a:b]) for a, b in reader.chunks(CONTEXT, 6)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, atol=1e-4, rtol=1e-4)
