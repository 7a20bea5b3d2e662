"""Scores of words against the published tools, wordsprobability 0.17 and minicons 0.3.39.

Their numbers are recorded, and compared with the tools themselves where these are installed.  They
find the words of a text by the sign "Ġ" alone, so they are right where a model knows no other white
space: `without_newlines` is such a model.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

RECORDED = Path(__file__).parent / "word_peers.json"
TEXTS = [
    "The old man was kind, and he said nothing of it.",
    "She laughed aloud when I told her so.",
]
PAIRS = [("The old man", "was kind, and he said nothing."), ("She laughed", "aloud.")]
WITH_NEWLINE = "He was old.\nShe was not."


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def novelist(root):
    """The bundled model and its tokenizer, which puts no space before a text."""
    folder = root / "demo_model"
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    return model, AutoTokenizer.from_pretrained(folder, add_prefix_space=False)


@pytest.fixture
def without_newlines(novelist):
    """The same model, which finds all white space but spaces impossible."""
    model, tokenizer = novelist
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    decoded = [tokenizer.convert_tokens_to_string(["a", token]) for token in tokens]
    others = [
        number
        for number, (token, text) in enumerate(zip(tokens, decoded))
        if text[1:2].isspace() and not token.startswith("Ġ")
    ]
    assert "Ċ" in tokenizer.convert_ids_to_tokens(others)

    def forbid(module, inputs, logits):
        logits = logits.clone()
        logits[..., others] = -torch.inf
        return logits

    hook = model.lm_head.register_forward_hook(forbid)
    yield model, tokenizer
    hook.remove()


def words_of(metric, model, tokenizer, texts, **kwargs):
    result = metric.compute(
        predictions=texts, model=model, tokenizer=tokenizer, words=True, **kwargs
    )
    return result["word_scores"]


def close(value):
    return pytest.approx(value, abs=1e-5)


# --- the tools ------------------------------------------------------------------------------------


def wordsprobability_words(model, tokenizer, texts):
    """[word, surprisal, plain sum] of each word of each text, in nats."""
    main = pytest.importorskip("wordsprobability.main")
    from wordsprobability.models import MODELS, bow_lm

    class Live(bow_lm.GPT2BaseModel):
        def _initialise_model(self):
            return model, tokenizer

    MODELS["live"] = Live
    frame = main._get_surprisal_per_word(texts, "live", return_buggy_surprisals=True)
    return [
        [[row.word, row.surprisal, row.surprisal_buggy] for row in own.itertuples()]
        for _, own in frame.groupby("text_id")
    ]


def minicons_words(model, tokenizer, texts):
    """[word, surprisal] of each word of each text, in nats."""
    scorer = pytest.importorskip("minicons.scorer")
    model = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    return model.word_score_tokenized(
        texts, tokenize_function=str.split, bow_correction=True, bos_token=True, surprisal=True
    )


def minicons_conditional(model, tokenizer, pairs):
    """Log-probability of each text after its context, with a start token."""
    scorer = pytest.importorskip("minicons.scorer")
    model = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    contexts, texts = map(list, zip(*pairs))
    return model.conditional_score(
        contexts, texts, reduction=lambda scores: scores.sum().item(), bos_token=True
    )


@pytest.fixture
def tools(novelist, without_newlines):
    """What the installed tools give, by the names under which it is recorded."""
    tokenizer = novelist[1]
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return {
        "wordsprobability": wordsprobability_words(*without_newlines, TEXTS),
        "minicons": minicons_words(*without_newlines, TEXTS),
        "minicons conditional": minicons_conditional(*without_newlines, PAIRS),
    }


def flat(value):
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [] if isinstance(value, str) else [value]


def test_the_tools_give_what_is_recorded(recorded, tools):
    for name, value in tools.items():
        assert flat(value) == close(flat(recorded[name])), name


def test_the_tools_give_what_is_recorded_of_newlines(recorded, novelist):
    for tool in (minicons_words, wordsprobability_words):
        name = tool.__name__.replace("_words", " newline")
        assert flat(tool(*novelist, [WITH_NEWLINE])) == close(flat(recorded[name])), name


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
