"""Words, and a text after a context."""

import math
from dataclasses import replace

import pytest
import regex
from pages import MANY, STORY, data_of, pieces_of

from space.handlers import SCORE_OUTPUTS
from space.jobs import Job
from space.limits import Refused
from space.metric import protocol_rows
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings
from space.sharing import sentence
from space.word_view import word_segments


@pytest.fixture(scope="module")
def worded(service):
    settings = Settings(BUNDLED, 64, 16, context="Before it, a context 👩‍👩‍👧.", words=True)
    return service.score(" " + MANY * 2, settings, Job(60))


def test_a_text_after_a_context_has_the_metrics_number(worded, service, metric):
    bundled = service.load(BUNDLED, Job(60))
    expected = metric.compute(
        predictions=[worded.text],
        contexts=[worded.settings.context],
        model=bundled.model,
        tokenizer=bundled.tokenizer,
        max_length=64,
        stride=16,
        words=True,
    )
    for key in ("perplexity", "num_tokens", "num_context_tokens", "word_scores", "signature"):
        assert worded.result[key] == expected[key]
    num_context = len(worded.settings.context.encode())  # the model reads bytes
    assert worded.num_context_tokens == num_context == worded.tokens["nll"].count(None)
    for words_of in (sentence(worded), SCORE_OUTPUTS["score"](worded)):
        assert f"after {num_context} tokens of context" in words_of
    assert f"of {len(worded.text.encode())} in the text" in SCORE_OUTPUTS["score"](worded)


def test_the_context_is_shown_and_not_coloured(worded):
    pieces = pieces_of(SCORE_OUTPUTS["text"](worded))
    assert pieces["text"] == worded.settings.context + worded.text
    reached = 0
    for length, shown in zip(pieces["lengths"], pieces["classes"].split()):
        inside = reached < len(worded.settings.context.encode("utf-16-le")) // 2
        assert (shown == "out") == inside
        reached += length


def test_words_are_made_of_their_tokens(worded):
    [words_scored] = worded.result["word_scores"]
    data = data_of(SCORE_OUTPUTS["text"](worded))["words"]
    shown = [scores for scores in data["scores"] if scores]
    assert len(shown) == len(MANY.split()) * 2 - 1  # "end" and the next "Ça," are one
    own = [s for s in word_segments(worded) if s.first is not None]
    assert [worded.whole[s.start : s.end] for s in own] == worded.text.split()
    for segment, nll, surprisal, entropy, scores in zip(
        own, *(words_scored[name] for name in ("nll", "surprisal", "entropy")), shown
    ):
        assert sum(worded.tokens["nll"][segment.first : segment.last + 1]) == pytest.approx(nll)
        bits = [value / math.log(2) for value in (surprisal, nll, entropy)]
        assert scores == pytest.approx(bits, abs=1e-3)
    utf16 = worded.whole.encode("utf-16-le")
    assert 2 * sum(data["lengths"]) == len(utf16)


def test_words_are_coloured_by_their_surprisal(worded):
    """Not by the plain sum, which pays for the space before the word."""
    [words_scored] = worded.result["word_scores"]
    bits = [(0.5, 2, 4, 8, 12, 20)[n % 6] for n in range(len(words_scored["words"]))]
    changed = words_scored | {"surprisal": [value * math.log(2) for value in bits]}
    page = SCORE_OUTPUTS["text"](replace(worded, result=worded.result | {"word_scores": [changed]}))
    classes = data_of(page)["words"]["classes"].split()
    shown = [name for name in classes if name not in ("-", "out")]
    assert shown == [f"b{n % 6}" for n in range(len(bits))]


def test_words_are_scored_when_they_are_first_looked_at(handlers, scored, worded):
    assert handlers.ask_words(True, None, 3) == 4
    assert handlers.ask_words(True, scored, 3) == 4
    assert handlers.ask_words(True, worded, 3) == 3
    assert handlers.ask_words(False, scored, 3) == 3


def test_words_that_nobody_asked_for_are_not_scored(scored):
    assert "word_scores" not in scored.result
    assert data_of(SCORE_OUTPUTS["text"](scored))["words"] is None


@pytest.mark.parametrize(
    "protocol", [name for name, row in protocol_rows().items() if row.join is not None]
)
def test_a_protocol_that_joins_texts_says_that_it_has_no_words(service, protocol):
    settings = Settings(BUNDLED, 16, protocol=protocol, words=True)
    page = SCORE_OUTPUTS["text"](service.score(STORY, settings, Job(60)))
    assert f"No words here: {protocol} joins all texts" in page
    assert 'value="words" disabled' in page


@pytest.mark.parametrize(
    "protocol", [name for name, row in protocol_rows().items() if row.pairs is None]
)
def test_a_protocol_without_contexts_says_so(service, protocol):
    settings = Settings(BUNDLED, 16, protocol=protocol, context="Before.")
    with pytest.raises(
        Refused, match=f"The protocol {regex.escape(protocol)} scores no text after a context"
    ):
        service.score(STORY, settings, Job(60))


def test_tools_that_take_no_context_say_so_in_the_table(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64, context="Before."), Job(60))
    assert len(sweep.scored) == sum(
        row.pairs == "by characters" for row in protocol_rows().values()
    )
    reasons = {settings.protocol: reason for settings, reason in sweep.failed}
    assert "scores texts after a context, got 'llama.cpp'" in reasons["llama.cpp"]
    assert "at most a window of 64 tokens after their contexts" in reasons["lm-eval"]
    assert all("`" not in reason for reason in reasons.values())
    assert sweep.scored[0].num_context_tokens == len("Before.")


@pytest.mark.parametrize(
    "context, said",
    [
        ("x" * 20_001, "The context has 20,001 characters, and this page takes 20,000 at most"),
        ("\ud800", "The context contains broken characters"),
        (7, "The context must be a text"),
    ],
)
def test_contexts_that_are_refused(service, context, said):
    with pytest.raises(Refused, match=said):
        service.score(STORY, Settings(BUNDLED, 64, 16, context=context), Job(60))


def test_line_ends_of_a_context_are_those_of_the_page(service):
    scored = service.score(STORY, Settings(BUNDLED, 64, 16, context="a\r\nb\r"), Job(60))
    assert scored.settings.context == "a\nb\n"


def test_a_token_across_the_join_is_said_in_the_pages_words(service, folders):
    tokens = Service(folders["bundled"]).score(
        "man came.", Settings(BUNDLED, context="wo"), Job(60)
    )
    if tokens.result["notes"]:  # the bundled model cuts words into parts
        [note] = tokens.result["notes"]
        assert "edge of the scored part (first: " in note and "Begin the text with a space" in note
        assert "boundary" not in note and "`" not in note
