"""Modules and parameters of a model are those that torch lists, and a change in one is seen."""

import enum
import functools
import gc
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
import transformers
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


def changed_in_a_list(model):
    model.transformer.seen.append(2)


def changed_in_a_partial(model):
    model.transformer.function.keywords["approximate"] = "tanh"


def changed_in_a_tensor(model):
    model.transformer.deep["more"][0].add_(1)


def other_object_that_equals(model):
    model.transformer.settings = transformers.GenerationConfig()


def setting_of_an_object(model):
    model.transformer.settings.top_k = 7


def list_that_contains_itself(model):
    model.transformer.seen.append(model.transformer.seen)


def known_hook(model):
    model.transformer.register_forward_pre_hook(torch.nn.utils.prune.RandomUnstructured)


WITHIN = [
    changed_in_a_list, changed_in_a_partial, changed_in_a_tensor, other_object_that_equals,
    setting_of_an_object, list_that_contains_itself, known_hook,
]  # fmt: skip


@pytest.mark.parametrize("change", WITHIN)
def test_a_change_within_an_attribute(change):
    """The line of the structure does not show it: the record does."""
    model = make_model("gpt2")
    model.transformer.seen = [1]
    model.transformer.function = functools.partial(torch.nn.functional.gelu, approximate="none")
    model.transformer.deep = {"more": [torch.ones(3), len, np.float32(1), np.ones(2)]}
    model.transformer.settings = transformers.GenerationConfig()
    model.transformer.owners = [model]
    first = examine(model).structure
    assert first.is_comparable and examine(model).structure is first
    change(model)
    assert examine(model).structure != first


def test_a_change_that_is_undone():
    model = make_model("gpt2")
    first = examine(model).structure
    model.transformer.seen = [1]
    assert examine(model).structure != first
    del model.transformer.seen
    assert examine(model).structure == first


def hidden_layer(model):
    model.transformer.hidden = [torch.nn.Linear(2, 2)]


def tensor_without_data(model):
    model.transformer.hidden = {"weight": torch.empty(3, device="meta")}


def own_object(model):
    model.transformer.hidden = Owner(None)


def own_function(model):
    model.transformer.hidden = [lambda: None]


def bound_to_a_list(model):
    model.transformer.hidden = [].append


class Kinds(enum.Enum):
    PLAIN = "plain"


def member_of_own_enumeration(model):
    model.transformer.hidden = Kinds.PLAIN


def own_type_of_tensor(model):
    model.transformer.hidden = [torch.ones(2).as_subclass(OwnTensor)]


class OwnTensor(torch.Tensor):
    pass


def array_of_objects(model):
    model.transformer.hidden = np.array([None, 1], dtype=object)


def proxy(model):
    model.transformer.hidden = [weakref.proxy(model)]


UNCLEAR = [
    hidden_layer, tensor_without_data, own_object, own_function, bound_to_a_list,
    member_of_own_enumeration, own_type_of_tensor, array_of_objects, proxy,
]  # fmt: skip


@pytest.mark.parametrize("change", UNCLEAR)
def test_what_cannot_be_compared(change):
    """It is examined, and the model probed, in every call."""
    model = make_model("gpt2")
    change(model)
    built = examine(model)
    assert not built.structure.is_comparable and runs_own_code(built, CODE)
    assert examine(model).structure != built.structure


ARRAYS = {
    "words": lambda: np.array(["a", "b"]),
    "backwards": lambda: np.arange(2)[::-1],
    "dates": lambda: np.array(["2000-01-01", "2000-01-02"], dtype="datetime64[D]"),
    "fields": lambda: np.array([(1,), (2,)], dtype=[("x", int)]),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_torch_has_no_tensors_for(make):
    model = make_model("gpt2")
    model.transformer.kept = make()
    first = examine(model).structure
    assert first.is_comparable and examine(model).structure is first
    model.transformer.kept[0] = model.transformer.kept[1]
    assert examine(model).structure != first


class Incomparable:
    def __eq__(self, other):
        raise TypeError("not to be compared")


@pytest.mark.parametrize("value", [torch.ones(2), np.ones(2), Incomparable()], ids=type)
def test_what_cannot_be_compared_in_the_place_of_a_number(value):
    model = make_model("gpt2")
    model.transformer.numbers = [1, 2]
    first = examine(model).structure
    model.transformer.numbers[0] = value
    assert examine(model).structure != first


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
    assert not structure.is_comparable  # with an object of one's own, which may change in place
    alive = weakref.ref(model)
    del model, structure
    gc.collect()
    assert alive() is None
