"""Modules and parameters of a model are those that torch lists, and a change in one is seen."""

import functools
import gc
import types
import weakref

import pytest
import torch
from models import make_model

from perplexity_sliding.models.digest import Built, Structure, examine, modifications, runs_own_code
from perplexity_sliding.models.module import library_code, modules_of, named_modules, parameters_of


class Shared(torch.nn.Module):
    """Parts under two names, one in another, a place without a module, and tied weights."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.deep = torch.nn.Sequential(torch.nn.GELU(), torch.nn.ModuleList([self.first]))
        self.again = self.deep[0]
        self.empty = None
        self.register_module("nothing", None)
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight = self.first.weight


@pytest.mark.parametrize("make", [Shared, lambda: make_model("gpt2"), lambda: make_model("llama")])
def test_modules_are_torchs(make):
    model = make()
    assert named_modules(model) == list(model.named_modules())
    assert modules_of(model) == list(model.modules())
    assert list(map(id, parameters_of(model))) == list(map(id, model.parameters()))


def test_parts_that_are_left_out():
    model = Shared()
    assert modules_of(model, without=[model.deep]) == [model, model.first, model.again, model.head]
    assert modules_of(model, without=[model]) == []


# ---- what is remembered of them


def whole(model):
    """The structure as it is read from a model that was not seen before."""
    modules = named_modules(model)
    built = Built(model, Structure(modules), modules)
    return built.line(), sorted(modifications(built)), runs_own_code(built, CODE)


def remembered(model):
    built = examine(model)
    return built.line(), sorted(modifications(built)), runs_own_code(built, CODE)


CODE = library_code(frozenset([torch.nn.Linear]))


def other_forward(model):
    layer = model.transformer.h[0].mlp
    layer.forward = lambda hidden: type(layer).forward(layer, hidden) + 1


def other_function(model):
    model.transformer.h[0].mlp.helper = torch.nn.functional.relu


def other_hook(model):
    model.transformer.h[1].register_forward_hook(lambda module, args, output: output)


def other_part(model):
    model.transformer.h[0].mlp.act = torch.nn.ReLU()


def part_that_is_gone(model):
    del model.transformer.h[-1]


def two_for_one(model):
    layer = model.transformer.h[0].attn
    del layer.scale_attn_weights
    layer.another = 1.0


CHANGES = {
    "number": lambda model: setattr(model.transformer.h[0].attn, "scaling", 0.5),
    "number for a number": lambda model: setattr(model.transformer.ln_f, "eps", 0.1),
    "name": lambda model: setattr(model.transformer.h[0].attn, "kind", "other"),
    "flag": lambda model: setattr(model.transformer.h[1].attn, "scale_attn_weights", False),
    "number for a list": lambda model: setattr(model.transformer, "seen", 3),
    "tuple": lambda model: setattr(model.transformer.ln_f, "normalized_shape", (8, 4)),
    "number that is gone": lambda model: delattr(model.transformer.h[0].attn, "scale_attn_weights"),
    "one for another": two_for_one,
    "forward": other_forward,
    "function": other_function,
    "hook": other_hook,
    "part": other_part,
    "part that is gone": part_that_is_gone,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_structure_that_is_remembered(change):
    model = make_model("gpt2")
    model.transformer.seen = [1]
    before, structure = remembered(model), examine(model).structure
    assert examine(model).structure is structure
    assert before == whole(model)
    change(model)
    assert remembered(model) == whole(model) != before


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "opt"])
def test_a_structure_is_remembered(architecture):
    model = make_model(architecture)
    structure = examine(model).structure
    model.train().eval()
    assert examine(model).structure is structure


def test_a_function_that_ends_and_another_one_that_takes_its_place():
    """Whatever address that comes to lie at."""
    model = make_model("gpt2")
    layer = model.transformer.h[0]
    layer.helper = functools.partial(torch.nn.functional.relu)
    for function in (torch.nn.functional.gelu, len, torch.nn.functional.relu) * 5:
        remembered(model)
        del layer.helper
        layer.helper = functools.partial(function)
        assert remembered(model) == whole(model)


class Owner:
    def __init__(self, model):
        self.model = model


def test_a_model_that_is_remembered_is_not_kept_alive():
    model = make_model("gpt2")
    model.transformer.h[0].mlp.owner = Owner(model)
    model.transformer.h[0].again = types.MethodType(torch.nn.Module.extra_repr, model)
    structure = examine(model).structure
    assert examine(model).structure is structure
    alive = weakref.ref(model)
    del model, structure
    gc.collect()
    assert alive() is None
