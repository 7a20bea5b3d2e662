"""Bytes, characters, words and digests of texts, the detokeniser of other tools, and texts after contexts."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer
from models import make_model
from test_parts import make_merging_tokenizer

from perplexity_sliding.arguments import runs_together
from perplexity_sliding.digests import same_probe
from perplexity_sliding.plan.tokenization import TokenizedText
from perplexity_sliding.protocols import (
    count_words,
    count_words_and_ends,
    count_words_and_lines,
    detokenize_wikitext,
)
from perplexity_sliding.results.report import count_bytes_before, measure_span

# ---- words


@pytest.mark.parametrize(
    ("text", "plain", "with_ends", "with_lines"),
    [
        ("Hello there.", 2, 2, 2),
        ("Hello there.\n", 2, 3, 2),  # an empty word behind the line end
        ("\tHello  there.", 2, 3, 3),  # two spaces
        (" = Title = \n \n One , two . \n", 7, 9, 9),
        ("", 0, 1, 1),
        (" \n", 0, 2, 1),
    ],
)
def test_words(text, plain, with_ends, with_lines):
    assert count_words(text) == plain
    assert count_words_and_ends(text) == with_ends
    assert count_words_and_lines(text) == with_lines


@given(st.text(" \n\tab.", max_size=30))
def test_words_of_lm_eval_are_those_of_its_task(text):
    _, words = process_results({"page": text}, [-1.0])["word_perplexity"]
    assert count_words_and_ends(text) == words


# ---- detokeniser

PIECES = ["a", "s", "N", "12", "'", "'s", '"', *"()[]{}:;.!?,=°/\n", "@-@", "@,@", "@.@", "the"]


@given(st.lists(st.sampled_from(PIECES)))
@example(["{", "a", "}"])
@example(["/'", "5/"])
@example(["/'", "[0-9]/"])
def test_the_detokeniser_is_lm_evals(pieces):
    text = f" {' '.join(pieces)} "
    assert detokenize_wikitext(text) == wikitext_detokenizer({"page": text})


def test_the_detokeniser_on_a_page():
    page = " \n = Actors = \n \n The actors ' guild 's ( 1 @,@ 000 % ) sure , \" yes . \" \n"
    prose = "\n= Actors =\n\nThe actors'guild's (1,000 %) sure, \"yes.\"\n"
    assert detokenize_wikitext(page) == wikitext_detokenizer({"page": page}) == prose


# ---- the part that is scored


@given(st.text(max_size=20))
def test_bytes_before_each_character(text):
    text = text.encode("utf-8", "ignore").decode("utf-8")
    expected = [len(text[:end].encode("utf-8")) for end in range(len(text) + 1)]
    assert count_bytes_before(text).tolist() == expected


def stream_of(offsets, added=(), begin=0):
    """Tokens with these characters, some of which were added."""
    ids = np.zeros(len(offsets), dtype=int)
    return TokenizedText(ids, np.array(offsets), np.isin(np.arange(len(ids)), added), begin)


def test_all_tokens_stand_for_the_whole_text():
    """Even where the tokenizer leaves spaces out, and added special tokens."""
    stream = stream_of([[0, 0], [2, 4], [5, 7], [8, 10], [0, 0]], added=[0, 4])
    text = "  né 漢字 🙂!  "
    assert measure_span(text, stream, np.ones(5, bool)) == (len(text.encode()), len(text))


def test_a_character_of_several_tokens_counts_once():
    text = "a🙂b"
    stream = stream_of([[0, 1], [1, 2], [1, 2], [1, 2], [1, 2], [2, 3]])
    assert measure_span(text, stream, np.ones(6, bool)) == (6, 3)


def test_a_start_token_written_at_the_head_does_not_count():
    stream = stream_of([[4, 6], [7, 8]], begin=3)
    assert measure_span("<s> ab c", stream, np.ones(2, bool)) == (5, 5)


def test_what_a_tokenizer_drops_between_texts_is_the_next_tokens():
    """Of two joined texts each with an added token, the first with a space that has no token."""
    text, stream = "ab cd", stream_of([[0, 0], [0, 2], [3, 3], [3, 5]], added=[0, 2])
    assert measure_span(text, stream, np.ones(4, bool)) == (5, 5)
    assert measure_span(text, stream, np.arange(4) == 3) == (3, 3)


# ---- digests


@pytest.mark.parametrize(
    "signature, nats",
    [
        ("model:a|dtype:float32|start:once", 1e-4),
        ("dtype:float16", 0.005),
        ("model:a|dtype:bfloat16", 0.01),
        ("model:a|dtype:int8+float32|start:once", 0.03),  # the coarsest, where it is none of these
        ("model:dtype:float32", 0.03),
    ],
)
def test_what_two_probes_may_differ_by(signature, nats):
    for probe in (0.5, 9.0):
        for sign in (-1, 1):
            assert same_probe(probe, probe + sign * 0.9 * nats, signature)
            assert not same_probe(probe, probe + sign * 1.1 * nats, signature)


# ---- contexts


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
