"""Scores of words against the published tools, wordsprobability 0.17 and minicons 0.3.39.

Their numbers are recorded (word_peers.py), and compared with the tools themselves where these are installed.
"""

import json
from pathlib import Path

import pytest
from word_peers import (
    PAIRS,
    RECORDED,
    TEXTS,
    WITH_NEWLINE,
    ask_tools,
    describe_newlines,
    load_novelist,
)
from word_peers import without_newlines as forbid_newlines


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def novelist():
    """The bundled model and its tokenizer, which puts no space before a text."""
    return load_novelist()


@pytest.fixture
def without_newlines(novelist):
    """The same model, which finds all white space but spaces impossible."""
    with forbid_newlines(*novelist):
        yield novelist


def words_of(metric, model, tokenizer, texts, **kwargs):
    result = metric.compute(
        predictions=texts, model=model, tokenizer=tokenizer, words=True, **kwargs
    )
    return result["word_scores"]


def close(value):
    # A token's surprisal in float32 was seen 2.3e-5 nats from that in float64.
    return pytest.approx(value, abs=2e-5)


# --- the tools ------------------------------------------------------------------------------------


def flat(value):
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [] if isinstance(value, str) else [value]


def test_the_tools_give_what_is_recorded(recorded, novelist):
    pytest.importorskip("wordsprobability.main")
    pytest.importorskip("minicons.scorer")
    given = ask_tools(*novelist)
    assert set(given) == set(recorded)
    for name, value in given.items():
        assert flat(value) == close(flat(recorded[name])), name


# --- the metric -----------------------------------------------------------------------------------


def test_wordsprobability(metric, recorded, without_newlines):
    for ours, theirs in zip(
        words_of(metric, *without_newlines, TEXTS), recorded["wordsprobability"], strict=True
    ):
        assert ours["words"] == [word for word, *_ in theirs]
        assert ours["surprisal"] == close([surprisal for _, surprisal, _ in theirs])
        assert ours["nll"] == close([plain for *_, plain in theirs])


def test_minicons(metric, recorded, without_newlines):
    scores = words_of(metric, *without_newlines, TEXTS, word_correction="oh")
    for ours, theirs in zip(scores, recorded["minicons"], strict=True):
        assert ours["words"] == [word for word, _ in theirs]
        assert ours["surprisal"] == close([surprisal for _, surprisal in theirs])


def test_minicons_conditional_score(metric, recorded, without_newlines):
    model, tokenizer = without_newlines
    result = metric.compute(
        predictions=[f" {text}" for _, text in PAIRS],
        contexts=[context for context, _ in PAIRS],
        model=model,
        tokenizer=tokenizer,
        return_token_scores=True,
    )
    totals = [-sum(nll for nll in s["nll"] if nll is not None) for s in result["token_scores"]]
    assert totals == pytest.approx(recorded["minicons conditional"], rel=1e-5)


def test_the_two_definitions_differ(recorded):
    first = [words[0][1] for words in (recorded["wordsprobability"][0], recorded["minicons"][0])]
    assert abs(first[0] - first[1]) > 1e-3


def test_newlines_are_white_space(metric, recorded, novelist):
    """wordsprobability makes one word of two; minicons moves a word's surprisal to the next."""
    [ours] = words_of(metric, *novelist, [WITH_NEWLINE])
    assert ours["words"] == ["He", "was", "old.", "She", "was", "not."]
    theirs = recorded["wordsprobability newline"][0]
    assert [word for word, *_ in theirs] == ["He", "was", "old.ĊShe", "was", "not."]
    assert sum(ours["nll"]) == close(sum(plain for *_, plain in theirs))
    theirs = dict(recorded["minicons newline"][0][3:5])
    she, was = ours["surprisal"][3:5]
    assert theirs["She"] < she - 10
    assert theirs["was"] > was + 10


def test_the_documented_difference_to_minicons(novelist):
    """Newlines explain all of it: a model that never writes one gives both the same surprisals."""
    pytest.importorskip("minicons.scorer")
    docs = Path(__file__).resolve().parent.parent / "docs" / "contexts-and-words.md"
    assert describe_newlines(*novelist) in " ".join(docs.read_text("utf-8").split())
