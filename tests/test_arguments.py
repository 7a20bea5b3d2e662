"""The table of arguments: what is made from it is what it says."""

import inspect
import math
import re

import pytest
from models import make_tokenizer, random_text

from perplexity_sliding import compute
from perplexity_sliding.arguments import (
    ARGUMENTS,
    REQUIRED,
    Choice,
    Number,
    WholeNumber,
    WholeNumbers,
    describe_arguments,
)
from perplexity_sliding.cli import options
from perplexity_sliding.errors import ArgumentError, ArgumentTypeError


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


def wrong_values(kind) -> list:
    """Values of another type, and those just outside the range."""
    match kind:
        case WholeNumber(low):
            return [low - 1, -(10**30), low + 0.5, True, str(low), math.nan, math.inf, object()]
        case WholeNumbers(low):
            return [low, [], [low - 1], [low + 0.5], "half", b"ab", object()]
        case Choice():
            return ["no such", 3, 1, b"a", object()]
        case Number(low, below):
            return [low - 0.01, below, math.nan, str(low), True, object()]
    return [3, "", object()]


@pytest.mark.parametrize("name", [name for name, row in ARGUMENTS.items() if row.kind is not None])
def test_what_is_of_another_kind_is_refused_by_compute_with_its_name(metric, gpt2, tokenizer, name):
    """Before anything is computed, with the value that was given; added texts stay."""
    metric.add(prediction=random_text(9))
    arguments, kind = {"model": gpt2, "tokenizer": tokenizer}, ARGUMENTS[name].kind
    several = getattr(kind, "several", False)
    for value in [*wrong_values(kind), *([[], ["16"]] if several else [])]:
        with pytest.raises((ArgumentError, ArgumentTypeError)) as refused:
            metric.compute(**(arguments | {name: value}))
        wording = refused.value.wording
        assert wording.argument == name and str(wording).startswith(f"`{name}` must ")
        assert wording.got in (
            repr(value),
            str(value),
            "'16'",
            repr(value).strip("[]"),
            "an empty list",
        )
    assert len(metric) == 1


CHAT = [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6 w7"}]
# A value of each argument that is excluded, excludes or needs another, and of each form.
VALUES = {
    "reference": "a name", "margin": 0.01, "context_lengths": [4, 8], "carry": True, "contexts": "w5 ",
    "score_spans": [[(0, 2)]], "boundary": "separate", "words": True, "word_correction": "oh",
    "detokenizer": "wikitext", "max_length": 8,
}  # fmt: skip
FORMS = {
    "chats": {"predictions": [CHAT]},
    "a list of `protocol`, `max_length` or `stride`": {"stride": [4, 8]},
    "a list of `words`": {"words": [["w1"]]},
    "a list of `context_lengths`": {"context_lengths": [4, 8]},
}
PAIRS = [(name, other) for name, argument in ARGUMENTS.items() for other in argument.excludes]


@pytest.mark.parametrize("name, other", PAIRS)
def test_an_argument_is_refused_with_what_it_excludes(metric, gpt2, tokenizer, name, other):
    given = {"predictions": ["w1"], "model": gpt2, "tokenizer": tokenizer, name: VALUES[name]}
    plain = other.strip("`")
    given |= FORMS[other] if other in FORMS else {plain: VALUES[plain]}
    with pytest.raises(ArgumentError, match=re.escape(f"`{name}` must be left out with {other}.")):
        metric.compute(**given)


@pytest.mark.parametrize("name", [name for name, row in ARGUMENTS.items() if row.needs])
def test_an_argument_is_refused_without_what_it_needs(metric, gpt2, tokenizer, name):
    given = {"predictions": ["w1"], "model": gpt2, "tokenizer": tokenizer, name: VALUES[name]}
    needed = f"`{name}` must be left out without `{ARGUMENTS[name].needs}`."
    with pytest.raises(ArgumentError, match=re.escape(needed)):
        metric.compute(**given)


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


@pytest.mark.parametrize(
    "name, values",
    [("context_lengths", [4, 8]), ("contexts", ["w5 "] * 2)],
)
def test_what_can_be_read_only_once_is_read_once(metric, gpt2, tokenizer, name, values):
    texts = [random_text(30, seed) for seed in (1, 2)]
    one, other = (
        metric.compute(predictions=texts, model=gpt2, tokenizer=tokenizer, **{name: given})
        for given in (values, iter(values))
    )
    assert one == other


def test_an_iterator_of_chats(metric, gpt2):
    template = "{% for m in messages %}{{ m.content + ' ' }}{% endfor %}"
    given = {"model": gpt2, "tokenizer": make_tokenizer(chat_template=template)}
    one = metric.compute(predictions=iter([CHAT]), **given)
    assert one == metric.compute(predictions=[CHAT], **given)


@pytest.mark.parametrize("protocol", ["fairseq", "lm-eval"])
@pytest.mark.parametrize("texts", [[""], ["w5 w6", ""]])
def test_an_empty_text_is_refused_where_its_start_token_could_be_scored(
    metric, gpt2, protocol, texts
):
    """A division by zero."""
    given = {"model": gpt2, "tokenizer": make_tokenizer(adds_bos=True), "protocol": protocol}
    if protocol == "fairseq" and len(texts) > 1:  # an empty line
        assert metric.compute(predictions=texts, **given)["num_tokens"] > 3
        return
    with pytest.raises(ValueError, match="at least 1 token each, got shorter texts at position"):
        metric.compute(predictions=texts, **given)
