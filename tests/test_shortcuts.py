"""Faster parts give what the parts they stand in for give, and stay away where they would not."""

import copy

import pytest
import reference
import torch
from models import BOS, CONTEXT, VOCABULARY, make_model, make_tokenizer, random_text
from transformers.activations import NewGELUActivation

from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.models.logits import AlignedProduct, faster_forwards, fused_gelu
from perplexity_sliding.models.module import modules_of


def head_of(model):
    language_model = LanguageModel.adopt(model, make_tokenizer())
    with language_model.in_use():
        language_model.check()
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


@pytest.mark.parametrize("name", ["gpt2", "gptj", "codegen"])
def test_gelu_is_fused_in_every_block(name):
    model = make_model(name)
    assert list(head_of(model).faster.values()).count(fused_gelu) == model.config.n_layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_as_it_does_by_itself(lively, dtype):
    model = lively.to(dtype)
    assert faster_forwards(model, modules_of(model)) == {}


def test_autocast_rounds_as_it_does_by_itself(lively):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert faster_forwards(lively, modules_of(lively)) == {}


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
