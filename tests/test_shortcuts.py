"""Faster parts give what the parts they stand in for give, and stay away where they would not."""

import copy

import pytest
import reference
import torch
from models import BOS, CONTEXT, make_model, make_tokenizer, random_text
from perplexity_sliding.model import LanguageModel
from perplexity_sliding.model_logits import (
    AlignedProduct,
    BodyThenHead,
    ScoredRows,
    body_shortcuts,
    fused_gelu,
    head_shortcuts,
    last_feed_forward,
)
from transformers.activations import NewGELUActivation

FED = {"gpt2": "mlp", "llama": "mlp", "gemma2": "mlp", "bloom": "mlp", "gptj": "mlp"}


def head_of(model):
    language_model = LanguageModel.adopt(model, make_tokenizer())
    with language_model.in_use():
        language_model.prepare(CONTEXT)
    return language_model.head


@pytest.fixture
def lively():
    """A model of its own, to be changed."""
    return make_model("gpt2", seed=5)


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_aligned_product_is_the_linear_layer(bias):
    linear = torch.nn.Linear(7, 37, bias=bias)
    product = AlignedProduct(linear)
    for shape in [(3, 7), (2, 5, 7), (1, 4, 7)]:  # growing, then fewer rows than the buffer has
        hidden = torch.randn(shape)
        torch.testing.assert_close(product(hidden), linear(hidden))
    assert product(torch.randn(3, 7)).stride(0) == 48, "rows begin at multiples of 64 bytes"


def test_fused_gelu_is_the_activation():
    hidden = torch.linspace(-12, 12, 10_001, dtype=torch.float64)
    expected = NewGELUActivation()(hidden)
    torch.testing.assert_close(fused_gelu(hidden), expected, rtol=1e-12, atol=1e-15)


@torch.inference_mode()
def test_scored_rows_alone_run_through_the_layer():
    shapes = []
    layer = torch.nn.Linear(4, 4)
    shortcut = ScoredRows(layer)
    layer.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    shortcut.plain_forward = layer
    hidden = torch.randn(2, 3, 4)
    shortcut.scored = torch.tensor([1, 5])
    output = shortcut(hidden)
    assert shapes == [(1, 2, 4)]
    expected = torch.zeros(6, 4)
    expected[[1, 5]] = layer(hidden.flatten(0, 1)[[1, 5]])
    torch.testing.assert_close(output, expected.view(2, 3, 4))


@pytest.mark.parametrize("name", FED)
def test_ordinary_architectures_take_them_all(name):
    model = make_model(name)
    head = head_of(model)
    assert last_feed_forward(head.body) in head.in_body
    assert list(head.in_head) == [model.get_output_embeddings()]


@pytest.mark.parametrize("name", ["gpt2", "gptj", "codegen"])
def test_gelu_is_fused_in_every_block(name):
    model = make_model(name)
    assert list(head_of(model).in_body.values()).count(fused_gelu) == model.config.n_layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_as_it_does_by_itself(lively, dtype):
    body = lively.to(dtype).base_model
    assert [type(shortcut) for shortcut in body_shortcuts(body).values()] == [ScoredRows]
    assert head_shortcuts(lively) == {}


def test_autocast_rounds_as_it_does_by_itself(lively):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fused_gelu not in body_shortcuts(lively.base_model).values()
        assert head_shortcuts(lively) == {}


def test_what_is_watched_or_replaced_is_left_alone(lively):
    mlp = lively.base_model.h[-1].mlp
    watched = mlp.c_fc.register_forward_hook(lambda *_: None)
    assert mlp not in body_shortcuts(lively.base_model)
    watched.remove()
    assert mlp in body_shortcuts(lively.base_model)
    lively.lm_head.forward = lively.lm_head.forward
    assert head_shortcuts(lively) == {}


class ReadsOtherRows(torch.nn.Module):
    """A feed-forward layer that also reads the row before, as RWKV's does."""

    def __init__(self, own):
        super().__init__()
        self.own = own

    def forward(self, hidden):
        return self.own(hidden + torch.nn.functional.pad(hidden[:, :-1], (0, 0, 1, 0)))


def test_a_layer_that_reads_other_rows_runs_whole(metric, lively):
    lively.base_model.h[-1].mlp = ReadsOtherRows(lively.base_model.h[-1].mlp)
    head = head_of(lively)
    assert isinstance(head, BodyThenHead)
    assert not any(isinstance(shortcut, ScoredRows) for shortcut in head.in_body.values())
    agrees_with_naive(metric, lively)


def test_a_layer_that_later_ones_read_runs_whole(metric, lively):
    """The first list of layers is not always the last one that runs."""
    body = lively.base_model
    blocks = list(body.h)
    body.h = torch.nn.ModuleList(blocks[:1])
    body.ln_f = torch.nn.Sequential(OnlyHidden(blocks[1]), body.ln_f)
    assert head_of(lively).in_body == {}
    agrees_with_naive(metric, lively)


class OnlyHidden(torch.nn.Module):
    """A block as a layer with one output, which attends over rows."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden):
        output = self.block(hidden)
        return output[0] if isinstance(output, tuple) else output


def agrees_with_naive(metric, model):
    text = random_text(45, seed=1)
    result = metric.compute(
        predictions=[text], model=model, tokenizer=make_tokenizer(), stride=4, max_length=CONTEXT
    )
    ids = [int(word[1:]) for word in text.split()]
    plan = reference.sliding(len(ids), CONTEXT, 4, "once")
    naive = sum(reference.window_nlls(model, ids, plan, BOS).values())
    assert result["total_nll"] == pytest.approx(naive, rel=1e-5)


# ---- what probing found


def count_forwards(model) -> list:
    calls = []
    own = model.forward
    type_forward = type(model).forward

    def counting(*args, **kwargs):
        calls.append(1)
        return type_forward(model, *args, **kwargs)

    assert own.__func__ is type_forward
    model.forward = counting
    return calls


def test_a_model_is_probed_once(metric, lively):
    """But for its probe, where code of somebody's own runs, here a forward that counts."""
    calls = count_forwards(lively)
    arguments = {"predictions": [random_text(9)], "tokenizer": make_tokenizer()}
    first = metric.compute(model=lively, **arguments)
    probed = len(calls)
    assert metric.compute(model=lively, **arguments) == first
    assert len(calls) - probed == 2 < probed, "one block of logits, and the probe"


def test_a_model_that_was_changed_is_probed_again(metric, lively):
    """Its weights stay; its attention begins to look ahead."""
    arguments = {"predictions": [random_text(9)], "tokenizer": make_tokenizer()}
    metric.compute(model=lively, **arguments)
    block = lively.base_model.h[0]
    own = block.forward

    def looking_ahead(hidden, *args, **kwargs):
        return own(hidden + hidden.mean(1, keepdim=True), *args, **kwargs)

    block.forward = looking_ahead
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(model=lively, **arguments)


def test_findings_do_not_keep_a_model_alive(metric):
    import gc
    import weakref

    model = make_model("gpt2", seed=6)
    metric.compute(predictions=[random_text(9)], model=model, tokenizer=make_tokenizer())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_copy_of_a_model_is_a_model_of_its_own(metric, lively):
    arguments = {"predictions": [random_text(9)], "tokenizer": make_tokenizer()}
    first = metric.compute(model=lively, **arguments)
    assert metric.compute(model=copy.deepcopy(lively), **arguments) == first
