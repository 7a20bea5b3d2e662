"""Curves by length of context, against runs of their own."""

import math

import numpy as np
import pytest
from models import make_model, random_text

TEXTS = [random_text(60), random_text(41, seed=1), random_text(12, seed=2)]


def by_token(result):
    return [
        np.array([math.nan if nll is None else nll for nll in text["nll"]])
        for text in result["token_scores"]
    ]


@pytest.fixture(params=["once", "every", False])
def asked(request, gpt2, tokenizer):
    return {
        "predictions": TEXTS,
        "model": gpt2,
        "tokenizer": tokenizer,
        "add_start_token": request.param,
    }


@pytest.mark.parametrize(
    "lengths, stride", [([8, 12, 16], 4), ([5, 16], 3), (np.array([16, 4, 4]), None)]
)
def test_by_context_is_what_separate_runs_give(metric, asked, lengths, stride):
    """Each length by itself, restricted by hand to the tokens that the longest serves."""
    result = metric.compute(context_lengths=lengths, stride=stride, **asked)
    stride = stride or min(lengths) // 2
    lengths = sorted(set(lengths))
    runs = [
        metric.compute(max_length=n, stride=stride, return_token_scores=True, **asked)
        for n in lengths
    ]
    longest = runs[-1]
    served = [
        np.array(text["context_length"]) >= lengths[-1] - stride for text in longest["token_scores"]
    ]
    nlls = [np.concatenate([nll[at] for nll, at in zip(by_token(run), served)]) for run in runs]
    assert [entry["context_length"] for entry in result["by_context_length"]] == lengths
    for entry, nll in zip(result["by_context_length"], nlls):
        assert entry["num_tokens"] == len(nll)
        assert entry["nll"] == pytest.approx(nll.mean(), rel=1e-6)
        assert entry["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-5)
        if len(nll) and entry is not result["by_context_length"][-1]:
            ratio = entry["ratio_to_longest"]["ratio"]
            assert ratio == pytest.approx(math.exp((nll - nlls[-1]).mean()), rel=1e-5)
    assert result["perplexity"] == pytest.approx(longest["perplexity"], rel=1e-6)
    assert result["signature"] == longest["signature"]


@pytest.mark.parametrize("start", ["once", False])
def test_disjoint_windows_serve_each_scored_token(metric, gpt2, tokenizer, start):
    """The first token of each text has no context, as the longest requires, but may have no score."""
    result = metric.compute(
        predictions=TEXTS, model=gpt2, tokenizer=tokenizer, context_lengths=[8], stride=8,
        add_start_token=start, return_token_scores=True,
    )  # fmt: skip
    nlls = np.concatenate(by_token(result))
    (entry,) = result["by_context_length"]
    assert entry["num_tokens"] == result["num_tokens"] == np.count_nonzero(~np.isnan(nlls))
    assert entry["nll"] == pytest.approx(np.nanmean(nlls))


def test_all_lengths_cost_hardly_more_than_the_longest(metric, gpt2, tokenizer):
    kwargs = {"predictions": [random_text(400)], "model": gpt2, "tokenizer": tokenizer}
    lengths = [4, 8, 12, 16]
    apart = [
        metric.compute(max_length=n, stride=2, **kwargs)["num_forward_tokens"] for n in lengths
    ]
    together = metric.compute(context_lengths=lengths, stride=2, **kwargs)
    # Where the longest ends with the text, shorter windows go on from the beginnings after it.
    assert apart[-1] <= together["num_forward_tokens"] <= apart[-1] + 16 * 16 / 2
    assert sum(apart) > 2.3 * together["num_forward_tokens"]


def test_doubling_takes_the_window_and_its_halves(metric, gpt2, tokenizer):
    kwargs = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer}
    for settings, expected, stride in (
        ({}, [2, 4, 8, 16], 1),
        ({"max_length": 12}, [3, 6, 12], 1),
        ({"stride": 4}, [8, 16], 4),
    ):
        result = metric.compute(context_lengths="doubling", **settings, **kwargs)
        assert [entry["context_length"] for entry in result["by_context_length"]] == expected
        assert f"|window:{expected[-1]}|stride:{stride}|" in result["signature"]


def test_doubling_goes_no_further_than_the_texts(metric, tokenizer):
    model = make_model("llama", max_position_embeddings=1000)
    result = metric.compute(
        predictions=TEXTS, model=model, tokenizer=tokenizer, context_lengths="doubling"
    )
    assert [entry["context_length"] for entry in result["by_context_length"]] == [7, 15, 30, 60]


def test_progress_and_checkpoint(metric, gpt2, tokenizer, tmp_path):
    """A curve is kept like any run."""
    steps = []
    kwargs = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer, "stride": 4}
    kwargs |= {"checkpoint": tmp_path / "scores.sqlite", "callback": steps.append}
    first = metric.compute(context_lengths=[8, 16], **kwargs)
    assert steps[-1].done == steps[-1].total == first["num_forward_tokens"]
    assert metric.compute(context_lengths=[8, 16], **kwargs) == first


REFUSALS = [
    ({"context_lengths": []}, ValueError, "`context_lengths` must be 'doubling' or a list of wh"),
    ({"context_lengths": "halving"}, TypeError, "`context_lengths` must be 'doubling' or a list"),
    ({"context_lengths": 16}, TypeError, "`context_lengths` must be 'doubling' or a list"),
    ({"context_lengths": [1]}, ValueError, "`context_lengths` must be at least 2, got 1"),
    ({"context_lengths": [8, 9.5]}, TypeError, "`context_lengths` must be a whole number"),
    ({"context_lengths": [8, 17]}, ValueError, "`context_lengths` must be between 2 and 16"),
    ({"context_lengths": [4, 16], "stride": 5}, ValueError, "`stride` must be between 1 and max"),
    ({"context_lengths": [4, 8], "max_length": 16}, ValueError, "`max_length` must be left out"),
    ({"context_lengths": [4, 8], "protocol": "lm-eval"}, ValueError, "no such setting"),
    ({"context_lengths": [4, 8], "stride": [2, 4]}, ValueError, "`context_lengths` must be left"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, kind, message", REFUSALS)
def test_refusals(metric, gpt2, tokenizer, arguments, kind, message):
    with pytest.raises(kind, match=message):
        metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer, **arguments)


def test_texts_shorter_than_the_context_are_refused(metric, gpt2, tokenizer):
    with pytest.raises(
        ValueError, match="be at most the length of the longest text, got 16 for texts of at most 8"
    ):
        metric.compute(
            predictions=[random_text(8)], model=gpt2, tokenizer=tokenizer, context_lengths=[4, 16]
        )
