"""What somebody's own code and values are described by: equal ones alike, any other one otherwise."""

from contextlib import contextmanager
from functools import partial, wraps
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from perplexity_sliding.models.digest import (
    describe,
    describe_class,
    differs_from_class,
    plain_tensors,
)
from perplexity_sliding.models.module import defining_module, is_known, precision
from perplexity_sliding.models.probes import state_kept


class Cutter:
    """Holds a number and does something with it."""

    def __init__(self, width):
        self.width = width

    def cut(self, text):
        return text[: self.width]


class Other(Cutter):
    def cut(self, text):
        return text[self.width :]


def holding(value):
    return lambda text: text[:value]


def by_default(value):
    def cut(text, width=value, *, begin=0):
        return text[begin:width]

    return cut


def by_keyword(value):
    def cut(text, *, width=value):
        return text[:width]

    return cut


def nested(value):
    for _ in range(3):
        value = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        lambda n: [n],
        lambda n: {"a": n},
        lambda n: {n, "b"},
        lambda n: frozenset({n}),
        lambda n: partial(max, n),
        lambda n: partial(max, default=n),
        lambda n: partial(holding(n)),
        lambda n: Cutter(n),
        lambda n: Cutter(n).cut,
        lambda n: [Cutter(1), Other(1)][n].cut,
        lambda n: [Cutter.cut, Other.cut][n],
        lambda n: staticmethod(holding(n)),
        lambda n: classmethod(holding(n)),
        lambda n: property(holding(n)),
        lambda n: holding(n),
        lambda n: by_default(n),
        lambda n: by_keyword(n),
        lambda n: [lambda text: text in ("a", "b"), lambda text: text in ("a", "c")][n],
        lambda n: [lambda text: text in {"a", "b"}, lambda text: text in {"a", "c"}][n],
        lambda n: [lambda text: text.upper(), lambda text: text.lower()][n],
        lambda n: [lambda x: lambda y: y + 1, lambda x: lambda y: y + 2][n],
        lambda n: bytes([n]),
        lambda n: complex(n),
        lambda n: np.array([n]),
        lambda n: np.float64(n),
        lambda n: [np.int32(1), np.int64(1)][n],
        lambda n: [len, max][n],
        lambda n: [int, str][n],
        nested,
    ],
)
def test_what_is_held_and_done(make):
    assert describe(make(0)) == describe(make(0))
    assert describe(make(0)) != describe(make(1))


def test_code_of_the_libraries_goes_by_its_name():
    """Their versions stand in the signature, and tensors are digested elsewhere."""
    assert describe(torch.nn.functional.relu) == "relu"
    assert describe(PreTrainedTokenizerFast.encode) == "PreTrainedTokenizerBase.encode"
    assert describe(torch.ones(1)) == describe(torch.zeros(1)) == "Tensor"
    name = f"{PreTrainedTokenizerFast.__module__}.{PreTrainedTokenizerFast.__qualname__}"
    assert describe_class(PreTrainedTokenizerFast) == [name]


def test_a_class_is_described_by_what_is_its_own():
    def make(value, base=PreTrainedTokenizerFast):
        members = {"cut": holding(value), "width": 3, "__call__": holding(3), "__doc__": str(value)}
        return type("Own", (base,), members)

    assert describe_class(make(1)) == describe_class(make(1))
    assert describe_class(make(1)) != describe_class(make(2))
    assert describe_class(make(1)) != describe_class(make(1, base=PreTrainedTokenizer))
    assert [name for name, _ in describe_class(make(1))[1]] == ["__call__", "cut", "width"]


def test_a_wrapper_of_somebody_s_own_is_not_looked_through():
    forward = torch.nn.Linear.forward
    wrappers = [forward, torch.no_grad()(forward), partial(forward), contextmanager(forward)]
    for function in (*wrappers, torch.nn.ReLU()):
        assert defining_module(function).startswith("torch"), function
        assert is_known(function)
    own = wraps(forward)(holding(1))
    assert defining_module(own) == defining_module(partial(own)) == __name__
    assert defining_module(len) == "builtins"
    assert not is_known(own) and not is_known(len)


class Module(torch.nn.Module):
    scale = 2.0
    gate = None

    def cut(self):
        pass


@pytest.mark.parametrize(
    "name, value, differs",
    [
        ("scale", 2.0, False),
        ("scale", 3.0, True),
        ("gate", 1, True),
        ("other", 1, True),
        ("cut", holding(1), False),  # a method that is replaced is told elsewhere
    ],
)
def test_an_attribute_that_differs_from_its_class_s(name, value, differs):
    module = Module()
    vars(module)[name] = value
    assert differs_from_class(module, name) == differs


@pytest.mark.parametrize(
    "dtypes, coarsest",
    [
        ([torch.float32], torch.float32),
        ([torch.float64], torch.float32),  # logits are no finer
        ([torch.float32, torch.float16], torch.float16),
        ([torch.float16, torch.bfloat16], torch.bfloat16),
    ],
)
def test_the_coarsest_dtype_decides_what_may_be_rounding(dtypes, coarsest):
    assert precision(torch.nn.ModuleList(torch.nn.Linear(1, 1).to(d) for d in dtypes)) == coarsest


class Quantised:
    """Codes and a scale, as in a tensor subclass; the codes are such a tensor themselves."""

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None


def test_the_tensors_that_make_up_a_quantised_one():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    assert list(plain_tensors(Quantised(Quantised(one, two), three))) == [one, two, three]
    # as bitsandbytes has it in four bits, and in eight
    packed_state = {"absmax": two, "shape": (1,)}
    state = SimpleNamespace(as_dict=lambda packed: {True: packed_state, False: {}}[packed])
    coded = torch.ones(1)
    coded.quant_state = state
    assert [len(tensor) for tensor in plain_tensors(coded)] == [1, 2]
    coded = torch.ones(1)
    coded.SCB = three
    assert [len(tensor) for tensor in plain_tensors(coded)] == [1, 3]


@pytest.mark.parametrize("value, other", [(1, 2), (1.0, 2.0), ("a", "b"), (1, True)])
def test_a_setting_that_changes_while_a_model_is_looked_at_is_given_back(value, other):
    model = torch.nn.Linear(2, 2)
    model.setting = value
    with state_kept(model):
        model.setting = other
    assert model.setting is value
