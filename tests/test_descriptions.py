"""What somebody's own code and values are described by: equal ones alike, any other one otherwise."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import make_model

from perplexity_sliding.models.digest import differs_from_class, model_revision
from perplexity_sliding.models.module import precision
from perplexity_sliding.models.probes import state_kept
from perplexity_sliding.models.weights import plain_tensors


def holding(value):
    return lambda text: text[:value]


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


class ReadsPadding(torch.nn.Module):
    """Looks for a padding token in the text, as Gemma 4 does in the place of images."""

    def forward(self, ids):
        return ids == self.config.pad_token_id


@pytest.mark.parametrize("module, has_effect", [(ReadsPadding, True), (torch.nn.Identity, False)])
def test_a_padding_token_counts_where_code_reads_it(module, has_effect):
    model = make_model("gpt2")
    model.reader = module()
    before = model_revision(model, None)
    model.config.pad_token_id = 5
    assert (model_revision(model, None) != before) == has_effect


class ReadsTemperature(torch.nn.Module):
    """Has a setting of its own, a private one, and one that no class of its kind leaves open."""

    scale = 2.0

    def __init__(self):
        super().__init__()
        self.temperature, self._shift, self._unread = 1.0, 1.0, 1.0
        self.scale = None

    @property
    def shift(self):
        return [self._shift for _ in range(1)]

    def forward(self, logits):
        return logits / (self.temperature * self.config.top_p) + self.shift[0]


@pytest.mark.parametrize(
    "owner, name, value, has_effect",
    [
        ("reader", "temperature", 2.0, True),
        ("reader", "_shift", 2.0, True),
        ("reader", "_unread", 2.0, False),
        ("reader", "scale", 2.0, True),
        ("reader", "hidden_dropout", 0.5, False),
        ("reader", "token_dropout", True, True),
        ("config", "temperature", 0.5, True),
        ("config", "top_p", 0.5, True),
        ("config", "top_k", 5, True),
        ("config", "max_length", 5, False),
        ("config", "hidden_dropout", 0.5, False),
        ("config", "token_dropout", True, True),
        ("config", "tables", {"dtype": 1, "max_length": 2}, True),
    ],
)
def test_which_settings_are_digested(owner, name, value, has_effect):
    """Settings of routers were left out for their names, as those of generation are."""
    model = make_model("gpt2")
    model.reader = ReadsTemperature()
    revisions = []
    for each in ({"dtype": 0, "max_length": 2} if name == "tables" else None, value):
        if each is not None:
            setattr(getattr(model, owner), name, each)
        revisions.append(model_revision(model, None))
    assert (revisions[0] != revisions[1]) == has_effect


@pytest.mark.parametrize(
    "values",
    [
        (torch.float32, torch.bfloat16),
        ({1: 2}, {1: 3}),
        ({"a": torch.nn.functional.relu}, {"a": torch.nn.functional.gelu}),
        (
            functools.partial(torch.nn.functional.gelu, approximate="none"),
            functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        ),
        (np.float32(0.5), np.float32(0.25)),
        (
            torch.nn.utils.parametrizations._OrthMaps.cayley,
            torch.nn.utils.parametrizations._OrthMaps.householder,
        ),
    ],
)
def test_settings_that_are_no_plain_numbers(values):
    """Those of numpy and members of enumerations were left out."""
    revisions = []
    for value in (*values, values[0]):
        model = make_model("gpt2")
        model.transformer.h[0].attn.extra = value
        revisions.append(model_revision(model, None))
    assert revisions[0] == revisions[2] != revisions[1]
