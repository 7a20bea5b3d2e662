"""The table of arguments: what is made from it is what it says."""

import inspect
import re

import pytest
from models import random_text

from perplexity_sliding import compute
from perplexity_sliding.argument_table import (
    ARGUMENTS,
    REQUIRED,
    TOKEN_COLUMNS,
    Anything,
    describe_arguments,
)
from perplexity_sliding.cli import options
from perplexity_sliding.errors import ArgumentError, ArgumentTypeError
from perplexity_sliding.scoring.measures import TOKEN_MEASURES


def test_the_signature_has_the_arguments_and_the_defaults_of_the_table():
    parameters = inspect.signature(compute).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        name: inspect.Parameter.empty if argument.default is REQUIRED else argument.default
        for name, argument in ARGUMENTS.items()
    }
    assert list(parameters) == list(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_default_is_of_its_kind(name):
    ARGUMENTS[name].check(name, ARGUMENTS[name].default)


@pytest.mark.parametrize(
    "name", [name for name, row in ARGUMENTS.items() if not isinstance(row.kind, Anything)]
)
def test_what_is_of_another_kind_is_refused_by_compute_with_its_name(metric, gpt2, tokenizer, name):
    arguments = {"predictions": [random_text(9)], "model": gpt2, "tokenizer": tokenizer}
    with pytest.raises((ArgumentError, ArgumentTypeError)) as refused:
        metric.compute(**(arguments | {name: object()}))
    assert refused.value.wording.argument == name


def test_columns_of_token_scores_are_those_that_can_be_measured():
    assert tuple(TOKEN_MEASURES) == TOKEN_COLUMNS


def test_help_lists_the_arguments():
    for document in (compute.__doc__, describe_arguments()):
        listed = re.findall(r"^ +(\w+) \(.*\):", document, re.M)
        assert listed == list(ARGUMENTS)
    assert "{" not in compute.__doc__.split("Args:")[1].split("Returns:")[0].replace("{}", "")
    assert max(map(len, compute.__doc__.splitlines())) <= 100


def test_options_of_arguments_have_a_line_of_help(metric):
    described = {name for name, argument in ARGUMENTS.items() if argument.option is not None}
    assert described - {"tokenizer"} <= set(options.METRIC_ARGUMENTS)
    assert "tokenizer" in options.MODEL
