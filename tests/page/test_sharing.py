"""What a researcher takes along: files, a sentence and an entry that quote and repeat a number."""

import csv
import hashlib
import io
import json
import math

import pytest
from pages import MANY, STORY
from space_models import ROOT

from space.jobs import Job
from space.models import BUNDLED
from space.settings import Settings
from space.sharing import TITLE, bibtex, citation, plain, sentence, word_table


@pytest.fixture(scope="module")
def story(service):
    return service.score(STORY, Settings(BUNDLED, 64, 16), Job(60), identify=True)


def test_tables_of_tokens_hold_what_was_measured(service):
    awkward = service.score(MANY + "\r\nend", Settings(BUNDLED, 64, 16), Job(60))
    files = citation(awkward)["files"]
    assert files["text.txt"] == awkward.text
    rows = list(csv.DictReader(io.StringIO(files["tokens.csv"])))
    assert [row["token"] for row in rows] == awkward.tokens["tokens"]
    total = sum(float(row["nll_nats"]) for row in rows if row["nll_nats"])
    assert total == pytest.approx(awkward.result["total_nll"], rel=1e-9)
    whole = json.loads(files["tokens.json"])
    assert [row["rank"] for row in whole["tokens"]] == awkward.tokens["rank"]
    assert whole["perplexity"] == awkward.result["perplexity"]
    characters = awkward.text[whole["tokens"][3]["start"] : whole["tokens"][3]["end"]]
    assert characters == awkward.text[slice(*awkward.tokens["offsets"][3])]


def test_words_are_the_metrics(service):
    settings = Settings(BUNDLED, 64, 16, context="Once there was", words=True)
    scored = service.score(" a lamp that, at night,\nburned.", settings, Job(60))
    rows, [words] = word_table(scored), scored.result["word_scores"]
    assert [row["word"] for row in rows] == ["a", "lamp", "that,", "at", "night,", "burned."]
    for name, own in (("surprisal", "surprisal_bits"), ("nll", "nll_bits")):
        bits = [value / math.log(2) for value in words[name]]
        assert [row[own] for row in rows] == pytest.approx(bits, rel=1e-12)
    assert all(scored.text[row["start"] : row["end"]] == row["word"] for row in rows)
    files = citation(scored)["files"]
    assert files["context.txt"] == "Once there was"
    assert json.loads(files["text.jsonl"]) == {"text": scored.text, "context": "Once there was"}


def test_a_sentence_says_all_that_it_takes(story):
    said = sentence(story)
    low, high = story.result["perplexity_interval"]
    for part in (
        f"Perplexity {story.result['perplexity']:,.0f}",
        f"95 % interval within this text {low:,.0f} to {high:,.0f}",
        f"over {story.result['num_tokens']:,} tokens under demo_model",
        "protocol sliding, window 64, stride 16",
        story.result["signature_short"],
        hashlib.sha256(STORY.encode()).hexdigest(),
    ):
        assert part in said


def test_the_bibtex_entry_is_the_readmes_with_a_signature(story):
    entry = bibtex(story.result["signature"])
    assert TITLE in (ROOT / "README.md").read_text(encoding="utf-8") and TITLE in entry
    read = entry.replace("\\_", "_").replace("\\#", "#").replace("\\%", "%").replace("\\&", "&")
    assert story.result["signature"] in read
    assert entry.count("{") == entry.count("}")


def test_what_json_has_no_number_for_is_said_in_words():
    assert plain({"a": [math.inf, (math.nan, 1.5)], "b": -math.inf, "c": None}) == {
        "a": ["inf", ["nan", 1.5]],
        "b": "-inf",
        "c": None,
    }
