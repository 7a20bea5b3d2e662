"""Faster parts give what the parts they stand in for give, and stay away where they would not."""

import contextlib
import copy

import pytest
import reference
import torch
from models import BOS, CONTEXT, VOCABULARY, make_model, make_tokenizer, random_text
from transformers.activations import NewGELUActivation

from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.models.logits import (
    AlignedProduct,
    BodyThenHead,
    ScoredRows,
    body_shortcuts,
    fused_gelu,
    head_shortcuts,
    last_feed_forward,
)
from perplexity_sliding.models.module import modules_of

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
    shortcut.begin(torch.tensor([1, 5]))
    output = shortcut(hidden)
    assert shapes == [(1, 2, 4)]
    expected = torch.zeros(6, 4)
    expected[[1, 5]] = layer(hidden.flatten(0, 1)[[1, 5]])
    torch.testing.assert_close(output, expected.view(2, 3, 4))


@pytest.mark.parametrize("name", FED)
def test_ordinary_architectures_take_them_all(name):
    model = make_model(name)
    head = head_of(model)
    assert last_feed_forward(modules_of(head.body)) in head.in_body
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


@pytest.mark.parametrize("part", ["block", "mlp"])
def test_a_layer_that_runs_twice_runs_whole(metric, part):
    """Rows that are not scored were zeros for the attention after its first run: 2 nats a token."""
    model = make_model("llama", num_hidden_layers=4, use_cache=False)
    layers = model.model.layers
    if part == "block":
        model.model.layers = torch.nn.ModuleList([*layers[:2], *layers[:2]])
    else:
        layers[1].mlp = layers[3].mlp
    agrees_with_naive(metric, model)


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
    return result["total_nll"]


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


# ---- code that somebody put behind a model


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("changed", ["linear", "mode"])
def test_what_is_put_behind_a_model_that_was_scored_before_is_seen(
    metric, monkeypatch, name, changed
):
    """The product with the vocabulary is that of the layer, not of its weight."""
    model = make_model(name)
    before = agrees_with_naive(metric, model)
    with contextlib.ExitStack() as stack:
        if changed == "linear":
            plain = torch.nn.functional.linear
            monkeypatch.setattr(torch.nn.functional, "linear", lambda *args: 1.01 * plain(*args))
        else:
            stack.enter_context(Stretched())
        assert agrees_with_naive(metric, model) != pytest.approx(before, rel=1e-3)
    monkeypatch.undo()
    assert agrees_with_naive(metric, model) == before


class Stretched(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        return 1.01 * output if func is torch.nn.functional.linear else output


@pytest.mark.parametrize("function", ["tanh", "pow"])
def test_a_function_in_the_activation_is_seen(metric, lively, monkeypatch, function):
    before = agrees_with_naive(metric, lively)
    plain = getattr(torch, function)
    monkeypatch.setattr(torch, function, lambda *args: 0.5 * plain(*args))
    assert agrees_with_naive(metric, lively) != pytest.approx(before, rel=1e-4)


def test_the_repetition_of_a_finished_pass_sees_it_too(metric, lively, monkeypatch, tmp_path):
    """It acts on passes of 7 rows, as none over a made-up text has."""
    arguments = {"model": lively, "tokenizer": make_tokenizer(), "predictions": [random_text(7)]}
    arguments["checkpoint"] = str(tmp_path / "run.sqlite")
    metric.compute(**arguments)
    plain = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional,
        "linear",
        lambda hidden, *args: plain(hidden, *args) * (1.1 if hidden.shape[-2] == 7 else 1.0),
    )
    with pytest.raises(ValueError, match="must have scores of this model"):
        metric.compute(**arguments)


def shifting(module, args, kwargs):
    """A hook as transformers' own callers would meet it: it looks for the ids by their name."""
    if "input_ids" in kwargs:
        kwargs = kwargs | {"input_ids": (kwargs["input_ids"] + 1) % VOCABULARY}
    return args, kwargs


@pytest.mark.parametrize("at_body", [False, True])
@pytest.mark.parametrize("hooked_before", [False, True])
def test_token_ids_go_by_keyword(metric, at_body, hooked_before):
    model = make_model("llama")
    before = None if hooked_before else agrees_with_naive(metric, model)
    watched = model.model if at_body else model
    watched.register_forward_pre_hook(shifting, with_kwargs=True)
    assert agrees_with_naive(metric, model) != before


def test_token_ids_go_by_keyword_where_a_state_is_carried(metric):
    model = make_model("llama")
    model.register_forward_pre_hook(shifting, with_kwargs=True)
    text = random_text(40)
    result = metric.compute(
        predictions=[text],
        model=model,
        tokenizer=make_tokenizer(),
        carry=True,
        max_length=CONTEXT,
        stride=8,
    )
    ids = [BOS, *(int(word[1:]) for word in text.split())]
    expected = sum(reference.carried_nlls(model, ids, 8, CONTEXT - 8))
    assert result["total_nll"] == pytest.approx(expected, rel=1e-5)


class Named(torch.nn.Module):
    """A forward of somebody's own, which calls the ids otherwise, or passes on what it gets."""

    def __init__(self, model, passes_on):
        super().__init__()
        self.model, self.config = model, model.config
        self.forward = self.pass_on if passes_on else self.take

    def take(self, tokens, **kwargs):
        return self.model(input_ids=tokens, **kwargs)

    def pass_on(self, *args, **kwargs):
        return self.model(*args, **kwargs)


@pytest.mark.parametrize("passes_on", [False, True])
def test_a_forward_may_call_the_ids_otherwise(metric, passes_on):
    model = make_model("llama")
    model.register_forward_pre_hook(shifting, with_kwargs=True)
    arguments = {"predictions": [random_text(45, seed=1)], "tokenizer": make_tokenizer()}
    inside = metric.compute(model=model, **arguments)["total_nll"]
    wrapped = metric.compute(model=Named(model, passes_on), **arguments)["total_nll"]
    assert wrapped == pytest.approx(inside, rel=1e-6)
