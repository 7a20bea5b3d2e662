"""A model is checked once: it must be causal, and is then read in the cheapest way that is right."""

import copy
import gc
import weakref

import pytest
import reference
import torch
import transformers
from models import (
    BOS,
    CONTEXT,
    NEWEST,
    VOCABULARY,
    enliven,
    make_model,
    make_tokenizer,
    random_text,
)
from transformers.activations import NewGELUActivation

from perplexity_sliding import compute
from perplexity_sliding.models import language_model
from perplexity_sliding.models.logits import (
    AlignedProduct,
    check_model,
    faster_forwards,
    fused_gelu,
    list_heads,
)
from perplexity_sliding.models.module import evaluating, modules_of, position_table

TEXTS = [random_text(150, seed=1), random_text(9, seed=2), random_text(40, seed=3)]


def ids_of(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def naive(model, text, length=CONTEXT, stride=CONTEXT // 2) -> float:
    """One plain forward pass a window, in float64 from the logits on."""
    return reference.sliding_perplexity(model, [ids_of(text)], length, stride, start_id=BOS)


def measure(model, texts=TEXTS, **arguments) -> dict:
    return compute(texts, model=model, tokenizer=make_tokenizer(), **arguments)


# ---- what is refused


def bert(**config):
    sizes = {"vocab_size": 80, "hidden_size": 32, "intermediate_size": 32}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    model = transformers.BertLMHeadModel(transformers.BertConfig(**sizes, **layers, **config))
    enliven(model)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_bidirectional_model_is_refused(dtype):
    with pytest.raises(ValueError, match=r"`model` must be a causal.*with the tokens after it"):
        measure(bert().to(dtype))


def test_the_same_model_as_a_decoder_is_scored():
    model = bert(is_decoder=True)
    assert measure(model, TEXTS[:1], max_length=16)["perplexity"] == pytest.approx(
        naive(model, TEXTS[0]), rel=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral", "bloom"])
def test_causal_models_in_half_precision_are_not_refused(name, dtype):
    measure(make_model(name).to(dtype), TEXTS[1:2])


class Noise(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        return torch.nn.functional.dropout(self.inner(hidden), 0.1, training=True)


def test_a_model_that_is_random_is_refused():
    model = make_model("llama")
    model.model.layers[0].mlp = Noise(model.model.layers[0].mlp)
    with pytest.raises(ValueError, match="a part of it is random"):
        measure(model)


def test_an_encoder_decoder_is_refused():
    config = transformers.BartConfig(
        vocab_size=80, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="got the encoder-decoder architecture 'bart'"):
        measure(transformers.BartForConditionalGeneration(config))


def test_prompts_before_the_text_are_refused():
    peft = pytest.importorskip("peft")
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(make_model("gpt2", n_positions=32), settings)
    with pytest.raises(ValueError, match="put tokens before the text"):
        measure(model)


def test_nan_names_the_text():
    model = make_model("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    with pytest.raises(ValueError, match="gave NaN for the text at position 1"):
        measure(model, ["w5 w6 w8", "w5 w7 w8"])


# ---- what a pass may depend on


def rotary(kind, **config):
    factors = {"long_factor": [1.0 + n for n in range(8)], "short_factor": [1.0] * 8}
    scaling = {"rope_type": kind, "factor": 2.0, **(factors if kind == "longrope" else {})}
    if kind == "longrope":
        scaling["original_max_position_embeddings"] = 16
        config["max_position_embeddings"] = 64
    return make_model("llama", rope_scaling=scaling, **config)


class Fresh:
    """A model without a memory: every forward pass is the first."""

    def __init__(self, model):
        self.model = model

    def __call__(self, **kwargs):
        return copy.deepcopy(self.model)(**kwargs)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", *(["olmo3"] if NEWEST else [])])
@pytest.mark.filterwarnings("ignore:.*exceeds the model's stated limit|.*past the 16 tokens")
def test_growing_frequencies_do_not_mix_texts(kind):
    """The same score in any company, order and history, and the frequencies are left as a new model's."""
    model = make_model("olmo3") if kind == "olmo3" else rotary(kind)
    expected = [naive(Fresh(model), text, 40, 20) for text in TEXTS]
    with torch.inference_mode():
        model(torch.arange(60)[None])  # somebody has read a longer text with it
    for texts, wanted in (
        (TEXTS, expected),
        (TEXTS[::-1], expected[::-1]),
        (TEXTS[2:], expected[2:]),
    ):
        result = measure(model, texts, max_length=40, stride=20, batch_size=4)
        assert result["perplexities"] == pytest.approx(wanted, rel=1e-5)
    assert naive(model, TEXTS[1]) == pytest.approx(naive(Fresh(model), TEXTS[1]), rel=1e-6)


class OfLength(torch.nn.Module):
    """Scales by the length of the pass, or by what is in the rest of the batch."""

    def __init__(self, inner, scale):
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, hidden):
        return self.inner(hidden) * self.scale(hidden)


def by_length(hidden):
    return 1 + hidden.shape[1] / 50


def by_rows(hidden):
    return 1 + len(hidden) / 10


def check(model):
    return check_model(model, list_heads(model, modules_of(model)), "`model`", 16)


@pytest.mark.parametrize("scale, agree, alone", [(by_length, False, False), (by_rows, True, True)])
def test_what_changes_with_the_pass_is_read_apart(scale, agree, alone):
    model = make_model("llama")
    model.model.layers[1].mlp = OfLength(model.model.layers[1].mlp, scale)
    found = check(model)
    assert (found.prefixes_agree, found.alone) == (agree, alone)
    result = measure(model, batch_size=8)
    assert result["perplexities"] == pytest.approx([naive(model, text) for text in TEXTS], rel=1e-5)


def test_an_unchanged_model_is_read_in_batches():
    for name in ("llama", "gpt2", "mamba", "mixtral", "gemma2", "bloom", "opt"):
        found = check(make_model(name))
        assert found[:1] + found[2:] == ({"opt": 2}.get(name, 0), True, False), name


# ---- the cheapest head


def scaled(model):
    forward = model.forward

    def doubled(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits * (1 + output.logits.shape[1] / 100)
        return output

    model.forward = doubled
    return model


def steered(model):
    model.model.register_forward_hook(
        lambda module, args, output: setattr(
            output, "last_hidden_state", output.last_hidden_state + 0.3
        )
    )
    return model


class Lookback(torch.nn.Module):
    """A head that adds the logits of the row before."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        logits = self.inner(hidden)
        return logits + torch.nn.functional.pad(logits, (0, 0, 1, 0))[:, :-1]


def looking_back(model):
    model.lm_head = Lookback(model.lm_head)
    return model


@pytest.mark.parametrize("change", [scaled, steered, looking_back])
def test_a_head_with_other_logits_than_the_plain_forward_is_not_taken(change):
    model = change(make_model("llama"))
    result = measure(model)
    assert result["perplexities"] == pytest.approx([naive(model, text) for text in TEXTS], rel=1e-5)


# ---- once a model object


def test_a_model_is_checked_once(monkeypatch):
    model, passes = make_model("llama"), []
    model.model.layers[0].register_forward_pre_hook(lambda _, args: passes.append(args[0].shape))
    measure(model, ["w5 w6"])
    first = len(passes)
    measure(model, ["w5 w6"])
    assert len(passes) - first == 1 < first <= 3
    monkeypatch.setattr(language_model, "check_model", lambda *args: pytest.fail("checked again"))
    measure(model, ["w5 w6"])
    with pytest.raises(pytest.fail.Exception):
        measure(model.to(torch.bfloat16), ["w5 w6"])


def test_a_model_is_given_back_in_the_modes_of_its_parts():
    model = make_model("llama").train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    measure(model)
    assert [module.training for module in model.modules()] == modes
    with evaluating(modules_of(model)):
        assert not any(module.training for module in model.modules())


TABLES = dict.fromkeys(("gpt2", "opt", "gptj", "codegen", "roberta"), CONTEXT)


@pytest.mark.parametrize("name", [*TABLES, "llama", "bloom", "mamba"])
def test_tables_of_positions_are_found_by_their_names(name):
    assert position_table(make_model(name)) == TABLES.get(name)


# ---- faster parts give what the parts they stand in for give


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_as_it_does_by_itself(dtype):
    model = make_model("gpt2")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert faster_forwards(model, modules_of(model)) == {}
    assert faster_forwards(model.to(dtype), modules_of(model)) == {}


def agrees_with_naive(model):
    result = measure(model, TEXTS[2:])
    assert result["perplexity"] == pytest.approx(naive(model, TEXTS[2]), rel=1e-5)
    return result["total_nll"]


def test_findings_do_not_keep_a_model_alive():
    model = make_model("gpt2", seed=6)
    measure(model, TEXTS[1:2])
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def shifting(module, args, kwargs):
    """A hook as transformers' own callers would meet it: it looks for the ids by their name."""
    if "input_ids" in kwargs:
        kwargs = kwargs | {"input_ids": (kwargs["input_ids"] + 1) % VOCABULARY}
    return args, kwargs


@pytest.mark.parametrize("at_body", [False, True])
@pytest.mark.parametrize("hooked_before", [False, True])
def test_token_ids_go_by_keyword(at_body, hooked_before):
    model = make_model("llama")
    before = None if hooked_before else agrees_with_naive(model)
    watched = model.model if at_body else model
    watched.register_forward_pre_hook(shifting, with_kwargs=True)
    assert agrees_with_naive(model) != before


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
def test_a_forward_may_call_the_ids_otherwise(passes_on):
    model = make_model("llama")
    model.register_forward_pre_hook(shifting, with_kwargs=True)
    wrapped = measure(Named(model, passes_on), TEXTS[2:])["total_nll"]
    assert wrapped == pytest.approx(measure(model, TEXTS[2:])["total_nll"], rel=1e-6)
