"""Modules and parameters of a model are those that torch lists, in its order."""

import pytest
import torch
from models import make_model

from perplexity_sliding.models.module import modules_of, named_modules, parameters_of


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
