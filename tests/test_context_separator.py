"""A context and its text without the space between them, as tables have them."""

import warnings

import pytest
from models import make_model
from test_parts import make_merging_tokenizer

from perplexity_sliding.layouts import runs_together


@pytest.mark.parametrize(
    "context, text",
    [
        ("The old man", "was"),
        ("He said.", "Then"),
        ("one,", '"yes"'),
        ("Answer:", "42"),
        ("über", "äpfel"),
        ("cost", "$5"),
        ("Он", "пришёл"),
        ("안녕", "하세요"),
        ("هذا", "كتاب"),
        ("(so)", "¿qué?"),
    ],
)
def test_words_that_run_together(context, text):
    assert runs_together(context, text)
    assert not runs_together(context + " ", text)
    assert not runs_together(context, "\n" + text)


@pytest.mark.parametrize(
    "context, text",
    [
        ("老人", "很好"),
        ("老人很好。", "然后"),
        ("カタカナ", "ひらがな"),
        ("ประเทศ", "ไทย"),
        ("我用", "Python"),
        ("the well-", "known"),
        ("The man", ", who was"),
        ("The man", "'s hat"),
        ("f(", "x"),
        ("<|user|>", "Hello"),
        ("", "was"),
    ],
)
def test_what_is_written_without_a_space(context, text):
    assert not runs_together(context, text)


@pytest.fixture(scope="module")
def settings():
    model = make_model("gpt2", vocab_size=262, n_positions=64).double()
    return {"model": model, "tokenizer": make_merging_tokenizer()}


def without_signature(result):
    """The numbers alone: the signature names what stands between context and text."""
    return {key: value for key, value in result.items() if not key.startswith("signature")}


@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_the_separator_is_the_text_s(metric, settings, boundary):
    """Scores are those of texts that begin with it; so are digests."""
    kwargs = settings | {"contexts": ["The man", "A house"], "boundary": boundary}
    named = metric.compute(predictions=["old", "fell"], context_separator=" ", **kwargs)
    typed = metric.compute(predictions=[" old", " fell"], **kwargs)
    assert without_signature(named) == without_signature(typed)
    assert "|separator:' '|" in named["signature"]
    run_together = metric.compute(predictions=["old", "fell"], context_separator="", **kwargs)
    assert run_together["perplexity"] != named["perplexity"]


def test_a_text_without_a_context_begins_without_the_separator(metric, settings):
    contexts = ["", "A house"]
    named = metric.compute(
        predictions=["old", "fell"], contexts=contexts, context_separator=" ", **settings
    )
    typed = metric.compute(predictions=["old", " fell"], contexts=contexts, **settings)
    assert without_signature(named) == without_signature(typed)


def test_characters_of_words_count_from_the_text_as_given(metric, settings):
    result = metric.compute(
        predictions=["old fell"],
        contexts=["The man"],
        context_separator=" ",
        words=[[(0, 3), (4, 8)]],
        **settings,
    )
    assert result["word_scores"][0]["words"] == ["old", "fell"]


def test_a_missing_space_is_warned_of(metric, settings):
    kwargs = settings | {"contexts": ["The man ", "A house"]}
    with pytest.warns(UserWarning, match="run together .* position 1 .*'A housefell'.*' '"):
        metric.compute(predictions=["old", "fell"], **kwargs)
    with pytest.warns(UserWarning, match="already separated by white space .* position 0 "):
        metric.compute(predictions=["old", "fell"], context_separator=" ", **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.compute(predictions=["fell"], contexts="A house", context_separator="", **settings)


def test_a_separator_without_contexts_is_refused(metric, settings):
    with pytest.raises(ValueError, match="`context_separator` must be left out without"):
        metric.compute(predictions=["old"], context_separator=" ", **settings)


@pytest.fixture
def items(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("previous,sentence\nw3 w4,w5 w6\nw7,w8\n")
    return [path, "--context-column=previous", "--text-column=sentence"]


def test_the_command_line_asks_for_the_separator(call, items):
    ran = call(*items)
    [warning] = [warning for warning in ran.warnings if "run together" in warning]
    assert "'w3 w4w5 w6'" in warning and "--context-separator ' '" in warning


def test_the_command_line_puts_the_separator_there(call, items, metric, tiny):
    ran = call(*items, "--context-separator", " ", "--words", "--format=json")
    texts, contexts = [" w5 w6", " w8"], ["w3 w4", "w7"]
    expected = metric.compute(predictions=texts, contexts=contexts, words=True, model_id=tiny)
    assert ran.json["corpus"]["perplexity"] == expected["perplexity"]
    assert ran.json["corpus"]["word_scores"] == expected["word_scores"]
    assert ran.warnings == []
    rows = call(*items, "--context-separator", " ", "--words", "--format=csv").out.splitlines()
    # characters are those of the cell
    assert "w5,0,2," in rows[1] and "w6,3,5," in rows[2] and "w8,0,2," in rows[3]


def test_nothing_between_is_taken_when_named(call, items):
    ran = call(*items, "--context-separator=")
    assert ran.code == 0
    assert all("spans the edge" in warning for warning in ran.warnings)
