"""Scores of words against the packages that publish them, wordsprobability and minicons."""

import re

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def novelist(root):
    """The bundled model and its tokenizer, which puts no space before a text."""
    folder = root / "demo_model"
    tokenizer = AutoTokenizer.from_pretrained(folder, add_prefix_space=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return AutoModelForCausalLM.from_pretrained(folder).float(), tokenizer


@pytest.fixture(scope="module")
def sentences(root, novelist) -> list[str]:
    """Thirty sentences that fit the model's window, without newlines in them."""
    story = " ".join((root / "samples" / "story.txt").read_text("utf-8").split())
    parts = re.split(r"(?<=[.!?]) (?=[A-Z“])", story)
    _, tokenizer = novelist
    return [part for part in parts if len(tokenizer(part).input_ids) < 120][:30]


def words_of(metric, novelist, texts, **kwargs):
    model, tokenizer = novelist
    given = {"predictions": texts, "model": model, "tokenizer": tokenizer, "words": True}
    return metric.compute(**given, **kwargs)["word_scores"]


def close(values):
    # A token's surprisal in float32 was seen 2.3e-5 nats from that in float64.
    return pytest.approx(values, abs=3e-5)


def test_wordsprobability(metric, novelist, sentences):
    main = pytest.importorskip("wordsprobability.main")
    from wordsprobability.models import MODELS, bow_lm

    _, tokenizer = novelist

    class Live(bow_lm.GPT2BaseModel):
        def _initialise_model(self):
            return novelist

    MODELS["live"] = Live
    frame = main._get_surprisal_per_word(sentences, "live", return_buggy_surprisals=True)
    own = words_of(metric, novelist, sentences, word_correction="wordsprobability")
    of_texts = [theirs for _, theirs in frame.groupby("text_id")]
    for ours, theirs in zip(own, of_texts, strict=True):
        # it names words by their tokens, in which "’" is "âĢĻ"
        assert ours["words"] == [tokenizer.convert_tokens_to_string([w]) for w in theirs["word"]]
        assert ours["surprisal"] == close(list(theirs["surprisal"]))
        assert ours["nll"] == close(list(theirs["surprisal_buggy"]))


@pytest.fixture(scope="module")
def minicons(novelist):
    scorer = pytest.importorskip("minicons.scorer")
    model, tokenizer = novelist
    return scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)


def test_minicons(metric, novelist, sentences, minicons):
    own = words_of(metric, novelist, sentences, word_correction="minicons")
    of_all = minicons.word_score_tokenized(
        sentences, tokenize_function=str.split, bow_correction=True, bos_token=True, surprisal=True
    )
    for ours, theirs in zip(own, of_all, strict=True):
        assert ours["words"] == [word for word, _ in theirs]
        assert ours["surprisal"] == close([surprisal for _, surprisal in theirs])


def test_minicons_conditional_score(metric, novelist, minicons):
    contexts, texts = ["The old man", "She laughed"], ["was kind, and he said no.", "aloud."]
    theirs = minicons.conditional_score(
        contexts, texts, reduction=lambda scores: scores.sum().item(), bos_token=True
    )
    model, tokenizer = novelist
    result = metric.compute(
        predictions=[f" {text}" for text in texts],
        contexts=contexts,
        model=model,
        tokenizer=tokenizer,
        return_token_scores=True,
    )
    own = [-sum(nll for nll in s["nll"] if nll is not None) for s in result["token_scores"]]
    assert own == pytest.approx(theirs, rel=1e-5)


def test_the_packages_know_no_white_space_but_the_space(metric, novelist, sentences):
    """So that their words end with another probability than in the definitions."""
    for package, definition in (("minicons", "oh"), ("wordsprobability", "pimentel")):
        one, other = (
            words_of(metric, novelist, sentences, word_correction=name)
            for name in (package, definition)
        )
        pairs = [pair for a, b in zip(one, other) for pair in zip(a["surprisal"], b["surprisal"])]
        far = [abs(of_package - own) > 0.01 for of_package, own in pairs]
        assert 0.01 < sum(far) / len(far) < 0.3
