"""Changes of a live model between two calls: another number has another signature or probe."""

import functools
import importlib
import types
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from models import ARCHITECTURES, make_model, random_text
from torch.overrides import TorchFunctionMode

from perplexity_sliding.digests import same_probe
from perplexity_sliding.models.digest import examine, runs_own_code
from perplexity_sliding.models.interface import ProbeText
from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.models.module import evaluating, is_known, library_code

TEXTS = [random_text(60), random_text(33, seed=1)]


@pytest.fixture
def measure(metric, tokenizer):
    return lambda model: metric.compute(
        predictions=TEXTS, model=model, tokenizer=tokenizer, stride=4
    )


def check_seen(before, after):
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"] or not same_probe(
        after["probe"], before["probe"], before["signature"]
    )


def adapted(name, **settings):
    """Return a maker of a Llama with these adapters, whose weights are lively."""

    def make():
        peft = pytest.importorskip("peft")
        kind = getattr(peft, name, None) or pytest.skip(f"this peft has no {name}")
        config = kind(target_modules=["q_proj", "v_proj"], **settings)
        model = peft.get_peft_model(make_model("llama"), config).eval()
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.3)
        return model

    return make


def on_parameters():
    """Return a Llama with LoRA on parameters instead of layers."""
    peft = pytest.importorskip("peft")
    if "target_parameters" not in peft.LoraConfig.__dataclass_fields__:
        pytest.skip("this peft has no such adapters")
    config = peft.LoraConfig(
        r=2,
        target_modules=[],
        target_parameters=["self_attn.q_proj.weight"],
        init_lora_weights=False,
    )
    return peft.get_peft_model(make_model("llama"), config).eval()


def parts_with(model, name):
    parts = [module for module in model.modules() if name in vars(module)]
    assert parts
    return parts


def in_dict(name, change):
    """Return a change of every value of a dict of all layers, in place."""

    def apply(model):
        for layer in parts_with(model, name):
            kept = getattr(layer, name)
            kept.update({key: change(value) for key, value in kept.items()})

    return apply


def emptied(name):
    return lambda model: [getattr(layer, name).clear() for layer in parts_with(model, name)]


def reversed_in_place(name):
    """Return a change of the tensors in a dict, whose object stays."""

    def apply(model):
        for layer in parts_with(model, name):
            for tensor in getattr(layer, name).values():
                tensor.copy_(tensor.flip(0))

    return apply


def twice(value):
    return 2 * value


ADAPTERS = {
    "variants": (adapted("LoraConfig", r=2, use_dora=True), emptied("lora_variant")),
    "orthogonal": (adapted("HRAConfig", r=4), in_dict("hra_apply_GS", lambda value: not value)),
    "wavelets": (adapted("WaveFTConfig", n_frequency=50), in_dict("waveft_scaling", twice)),
    "their transform": (
        adapted("WaveFTConfig", n_frequency=50),
        in_dict("waveft_use_idwt", lambda value: not value),
    ),
    "their places": (
        adapted("WaveFTConfig", n_frequency=50),
        in_dict("waveft_indices", lambda value: value.flip(1)),
    ),
    "their places in place": (
        adapted("WaveFTConfig", n_frequency=50),
        reversed_in_place("waveft_indices"),
    ),
    "frequencies": (
        adapted("FourierFTConfig", n_frequency=50),
        in_dict("fourierft_scaling", twice),
    ),
    "vectors of a bank": (
        adapted("VBLoRAConfig", r=2, topk=2, num_vectors=8, vector_length=4),
        in_dict("topk", lambda value: 1),
    ),
}


def trained_tokens(first):
    """Return a large Llama with trained rows for two of its tokens, of which all rows are equal."""
    peft = pytest.importorskip("peft")
    kind = getattr(peft, "TrainableTokensConfig", None) or pytest.skip("this peft has none")
    model = make_model("llama", vocab_size=4000)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(0.1)
    model = peft.get_peft_model(model, kind(token_indices=[first, first + 1])).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    return model


def test_which_tokens_have_trained_rows(measure):
    """The probe text has none of these tokens."""
    assert not {11, 12, 22, 23} & set(ProbeText.of(4000, None).ids)
    one, other = measure(trained_tokens(11)), measure(trained_tokens(22))
    check_seen(one, other)


@pytest.mark.parametrize(
    ("module", "owner", "method"),
    [
        ("variants", "DoraLinearVariant", "forward"),
        ("layer", "Linear", "forward"),
        ("layer", "LoraLayer", "_cast_input_dtype"),
    ],
)
def test_code_of_adapters_that_is_replaced(measure, monkeypatch, module, owner, method):
    lora = pytest.importorskip(f"peft.tuners.lora.{module}")
    owner = getattr(lora, owner, None) or pytest.skip("this peft has no such class")
    model = adapted("LoraConfig", r=2, use_dora=True)()
    before = measure(model)
    plain = getattr(owner, method)

    def other(*args, **kwargs):
        return 1.2 * plain(*args, **kwargs)

    is_static = isinstance(vars(owner).get(method), staticmethod)
    monkeypatch.setattr(owner, method, staticmethod(other) if is_static else other)
    check_seen(before, measure(model))


class Activation:
    """A callable object of nobody's library."""

    factor = 1.0

    def __call__(self, hidden):
        return self.factor * torch.nn.functional.silu(hidden)


def with_attribute(name, value):
    """Return a maker of a Llama whose layers have their own value in place of an attribute."""

    def make():
        model = make_model("llama")
        for layer in [module for module in model.modules() if hasattr(module, name)]:
            if name in layer._modules:
                del layer._modules[name]
            object.__setattr__(layer, name, value())
        return model

    return make


def each(name, change):
    return lambda model: [change(layer) for layer in parts_with(model, name)]


def fill(array, value):
    array[...] = value


class CallableConfig(transformers.PretrainedConfig):
    """An object with a private setting, which a configuration does not save."""

    _factor = 1.0

    def __call__(self, hidden):
        return self._factor * torch.nn.functional.silu(hidden)


OBJECTS = {
    "a configuration that is called": (
        with_attribute("act_fn", CallableConfig),
        each("act_fn", lambda layer: setattr(layer.act_fn, "_factor", 2.0)),
    ),
    "a callable object": (
        with_attribute("act_fn", Activation),
        each("act_fn", lambda layer: setattr(layer.act_fn, "factor", 2.0)),
    ),
    "arguments of a partial": (
        with_attribute("act_fn", lambda: functools.partial(torch.nn.functional.celu, alpha=1.0)),
        each("act_fn", lambda layer: layer.act_fn.keywords.update(alpha=2.0)),
    ),
    "a number of NumPy's": (
        with_attribute("variance_epsilon", lambda: np.float32(1e-6)),
        each("variance_epsilon", lambda layer: setattr(layer, "variance_epsilon", np.float32(0.5))),
    ),
    "an array": (
        with_attribute("variance_epsilon", lambda: np.array(1e-6)),
        each("variance_epsilon", lambda layer: fill(layer.variance_epsilon, 0.5)),
    ),
}


INSIDE = ADAPTERS | OBJECTS


@pytest.mark.parametrize(("make", "change"), INSIDE.values(), ids=INSIDE)
def test_settings_inside_of_attributes_of_layers(measure, make, change):
    model = make()
    before = measure(model)
    change(model)
    check_seen(before, measure(model))


class Replacement:
    """A callable object in the place of a function."""

    def __init__(self, plain):
        self.plain, self.factor = plain, 1.0

    def __call__(self, *args, **kwargs):
        return self.factor * self.plain(*args, **kwargs)


def scaled(settings, *args):
    return settings["factor"] * torch.sigmoid(*args)


@pytest.mark.parametrize("kind", ["object", "method", "partial", "mock"])
def test_an_object_in_the_place_of_a_function_may_change(measure, monkeypatch, kind):
    plain, settings = torch.rsqrt, {"factor": 1.0}
    own = Replacement(plain)
    put, change = {
        "object": (own, lambda: setattr(own, "factor", 1.5)),
        "method": (own.__call__, lambda: setattr(own, "factor", 1.5)),
        "partial": (functools.partial(scaled, settings), lambda: settings.update(factor=1.5)),
        "mock": (
            replaced := mock.Mock(side_effect=plain),
            lambda: setattr(replaced, "side_effect", torch.sigmoid),
        ),
    }[kind]
    monkeypatch.setattr(torch, "rsqrt", put)
    model = make_model("llama")
    before = measure(model)
    change()
    check_seen(before, measure(model))


def test_an_object_is_not_the_function_that_it_holds():
    own = Replacement(torch.relu)
    own.func = torch.relu
    assert not is_known(own)
    assert is_known(functools.partial(torch.relu))


def other_module(module, **functions):
    """Return a copy of a Python module with other functions."""
    copied = types.ModuleType(module.__name__)
    vars(copied).update(vars(module) | functions)
    return copied


def sigmoid(values):
    return torch.sigmoid(values)


NAMES = {
    "a module": (
        lambda: make_model("llama"),
        "transformers.models.llama.modeling_llama",
        lambda owner: (owner, "torch", other_module(torch, rsqrt=sigmoid)),
    ),
    "a property": (
        adapted("LoraConfig", r=2),
        "peft.tuners.tuners_utils",
        lambda owner: (owner.BaseTunerLayer, "merged", property(lambda self: True)),
    ),
    "a layer that is made on the way": (
        on_parameters,
        "peft.tuners.lora.layer",
        lambda owner: (
            getattr(owner, "_LoraParameterProxy", owner.LoraLayer),
            "forward",
            lambda self, weight: 2 * weight,
        ),
    ),
    "a norm": (
        adapted("LoraConfig", r=2, use_dora=True),
        "torch",
        lambda owner: (owner.linalg, "norm", lambda values, dim: 2 * values.norm(dim=dim)),
    ),
    "a transform": (
        adapted("FourierFTConfig", n_frequency=50),
        "torch",
        lambda owner: (owner.fft, "ifft2", lambda values: 2 * values),
    ),
}


@pytest.mark.parametrize(("make", "owner", "replacement"), NAMES.values(), ids=NAMES)
def test_names_that_refer_to_something_else(measure, monkeypatch, make, owner, replacement):
    model = make()
    before = measure(model)
    monkeypatch.setattr(*replacement(importlib.import_module(owner)))
    check_seen(before, measure(model))


class ScaledTensor(torch.Tensor):
    """A tensor whose products have a factor."""

    factor = 1.0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        is_product = function is torch.nn.functional.linear
        return cls.factor * result.as_subclass(torch.Tensor) if is_product else result


def test_weights_of_a_type_of_ones_own(measure, monkeypatch):
    model = make_model("llama")
    layer = model.model.layers[0].self_attn.o_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().as_subclass(ScaledTensor))
    before = measure(model)
    monkeypatch.setattr(ScaledTensor, "factor", 2.0)
    check_seen(before, measure(model))


class Louder(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return 1.5 * result if function is torch.nn.functional.silu else result


def test_a_call_under_a_mode_keeps_its_probe_for_itself(measure):
    model = make_model("llama")
    with Louder():
        under = measure(model)
    without = measure(model)
    check_seen(under, without)
    assert without["probe"] == measure(make_model("llama"))["probe"]


def test_another_attention_is_probed_again(measure):
    """Its rounding is its own: the probe is the one of a new model with it."""
    model = make_model("llama", hidden_size=64)
    measure(model)
    model.config._attn_implementation = "eager"
    other = make_model("llama", hidden_size=64)
    other.config._attn_implementation = "eager"
    assert measure(model)["probe"] == measure(other)["probe"]


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_a_model_that_does_not_change_is_not_probed_again(measure, monkeypatch, architecture):
    model = make_model(architecture)
    before = measure(model)
    looks = []
    monkeypatch.setattr(LanguageModel, "_look", lambda self, state: looks.append(state))
    after = measure(model)
    assert not looks
    assert (after["signature"], after["probe"]) == (before["signature"], before["probe"])
    built = examine(model)
    assert not runs_own_code(built, library_code(built.structure.of_libraries))


@pytest.mark.parametrize(
    "wrap", [torch.no_grad(), functools.lru_cache, functools.singledispatch, torch.compiler.disable]
)
def test_a_function_of_ones_own_within_a_wrapper_of_a_library(measure, monkeypatch, wrap):
    """The wrapper is the library's; what it calls is not, and reads a setting that changes."""
    modeling = importlib.import_module("transformers.models.llama.modeling_llama")
    plain, settings = modeling.rotate_half, {"factor": 1.0}
    monkeypatch.setattr(modeling, "rotate_half", wrap(lambda x: settings["factor"] * plain(x)))
    model = make_model("llama")
    before = measure(model)
    settings["factor"] = 2.0
    check_seen(before, measure(model))


def test_a_call_that_is_interrupted_at_its_start_restores_the_mode(monkeypatch):
    """Between the change of the mode and the rest, a model stayed in evaluation mode."""
    model = make_model("gpt2").train()

    def interrupted():
        torch.nn.Module.eval(model)
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "eval", interrupted)
    with pytest.raises(KeyboardInterrupt), evaluating(model):
        pass
    assert all(module.training for module in model.modules())
