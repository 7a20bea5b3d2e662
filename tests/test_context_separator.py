"""A context and its text without the space between them, as tables have them."""

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


def test_a_missing_space_is_warned_of(metric):
    model = make_model("gpt2", vocab_size=262, n_positions=64).double()
    kwargs = {"model": model, "tokenizer": make_merging_tokenizer()}
    with pytest.warns(UserWarning, match="run together .* position 1 .*'A housefell'"):
        metric.compute(predictions=["old", "fell"], contexts=["The man ", "A house"], **kwargs)


@pytest.fixture
def items(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("previous,sentence\nw3 w4,w5 w6\nw7,w8\n")
    return [path, "--context-column=previous", "--text-column=sentence"]


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
    assert "run together" in call(*items).err
