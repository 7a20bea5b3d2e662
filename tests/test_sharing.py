"""What visitors take along: files, sentences and pictures of a result."""

import csv
import hashlib
import io
import itertools
import json
import math
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from space_models import ROOT, byte_model

from space.card import COLUMNS, LETTER, LINES, MARGIN, card, page_colours
from space.handlers import to_share
from space.jobs import Job
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings
from space.sharing import TITLE, bibtex, files, sentence, token_table, word_table, write_files

AWKWARD = 'Ça, c’est naïve: 你好 👩‍👩‍👧 "q",=1+1 <script>&amp;\x01\r\n\n' + "x" * 300 + " end "
STORY = "It was late, and the lamp had gone out again. Nobody went to light it. " * 12
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    return Service(byte_model(tmp_path_factory.mktemp("models") / "bytes"))


@pytest.fixture(scope="module")
def awkward(service):
    return service.score(AWKWARD, Settings(BUNDLED, 64, 16), Job(60))


@pytest.fixture(scope="module")
def story(service):
    return service.score(STORY, Settings(BUNDLED, 64, 16), Job(60))


def test_the_file_of_the_text_is_the_text_that_was_scored(awkward, tmp_path):
    paths = write_files(files(to_share(awkward)), tmp_path)
    data = (tmp_path / "text.txt").read_bytes()
    assert data.decode() == awkward.text
    assert sorted(path.rsplit("/", 1)[1] for path in paths) == [
        "card.svg",
        "text.txt",
        "tokens.csv",
        "tokens.json",
    ]
    decoded = subprocess.run(
        ["sha256sum", tmp_path / "text.txt"], capture_output=True, text=True, check=True
    )
    assert decoded.stdout.split()[0] in sentence(awkward)


def test_tables_of_tokens_hold_what_was_measured(awkward):
    rows = list(csv.DictReader(io.StringIO(files(awkward)["tokens.csv"])))
    tokens = awkward.tokens
    assert [row["token"] for row in rows] == tokens["tokens"]
    total = sum(float(row["nll_nats"]) for row in rows if row["nll_nats"])
    assert total == pytest.approx(awkward.result["total_nll"], rel=1e-9)
    whole = json.loads(files(awkward)["tokens.json"])
    assert [row["rank"] for row in whole["tokens"]] == tokens["rank"]
    assert whole["text_sha256"] == hashlib.sha256(awkward.text.encode()).hexdigest()
    assert whole["perplexity"] == awkward.result["perplexity"]
    characters = awkward.text[whole["tokens"][3]["start"] : whole["tokens"][3]["end"]]
    assert characters == awkward.text[slice(*tokens["offsets"][3])]


def test_tables_of_words_are_the_metrics(service):
    settings = Settings(BUNDLED, 64, 16, context="Once there was", words=True)
    scored = service.score(" a lamp that, at night,\nburned.", settings, Job(60))
    made = files(scored)
    rows = list(csv.DictReader(io.StringIO(made["words.csv"])))
    [words] = scored.result["word_scores"]
    assert [row["word"] for row in rows] == ["a", "lamp", "that,", "at", "night,", "burned."]
    for name, own in (("surprisal", "surprisal_bits"), ("nll", "nll_bits")):
        bits = [value / math.log(2) for value in words[name]]
        assert [float(row[own]) for row in rows] == pytest.approx(bits, rel=1e-12)
    for row in rows:
        assert scored.text[int(row["start"]) : int(row["end"])] == row["word"]
    whole = json.loads(made["words.json"])
    assert whole["words"] == word_table(scored)
    assert whole["signature"] == scored.result["signature"]
    assert made["context.txt"] == "Once there was"
    assert json.loads(made["text.jsonl"]) == {"text": scored.text, "context": "Once there was"}


def test_no_file_is_made_of_what_was_not_asked(story):
    assert set(files(story)) == {"text.txt", "tokens.csv", "tokens.json", "card.svg"}


def test_the_card_of_a_text_after_a_context_shows_the_text(service):
    settings = Settings(BUNDLED, 64, 16, context="Before it. " * 60)
    picture = card(service.score("Only this is scored.", settings, Job(60)))
    assert "".join(text for text, *_ in words_of(picture)) == "Onlythisisscored."
    assert "20 tokens scored after 660 tokens of context." in picture


def test_impossible_and_unscored_tokens_stay_apart_in_json(story):
    tokens = story.tokens | {"nll": [math.inf, None, *story.tokens["nll"][2:]]}
    changed = type(story)(
        story.text, story.settings, story.loaded, story.result | {"token_scores": [tokens]}
    )
    rows = token_table(changed)
    assert [row["nll_nats"] for row in rows[:2]] == ["inf", None]
    json.dumps(rows, allow_nan=False)


def test_tables_count_characters_from_the_text(service):
    settings = Settings(BUNDLED, 64, 16, context="Somebody came. ", words=True)
    after_context = service.score("It was late, and cold.", settings, Job(60))
    text = after_context.text
    for rows, piece in ((token_table(after_context), "token"), (word_table(after_context), "word")):
        inside = [row for row in rows if row["start"] >= 0]
        assert [inside[0]["start"], inside[-1]["end"]] == [0, len(text)]
        for row in inside:
            assert text[row["start"] : row["end"]] == row[piece].replace("Ġ", " ")


def test_a_sentence_says_all_that_it_takes(story):
    said = sentence(story)
    low, high = story.result["perplexity_interval"]
    for part in (
        f"Perplexity {story.result['perplexity']:,.0f}",
        f"95 % interval within this text {low:,.0f} to {high:,.0f}",
        f"over {story.result['num_tokens']:,} tokens under demo_model",
        "protocol sliding, window 64, stride 16",
        story.result["signature_short"],
    ):
        assert part in said


def test_the_bibtex_entry_is_the_readmes_with_a_signature(story):
    entry = bibtex([story.result["signature"]])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert TITLE in readme and TITLE in entry
    plain = entry.replace("\\_", "_").replace("\\#", "#").replace("\\%", "%").replace("\\&", "&")
    assert story.result["signature"] in plain
    assert entry.count("{") == entry.count("}")


# The card


def words_of(picture):
    """(text, x, y, width) of the card's coloured part."""
    tree = ElementTree.fromstring(picture)
    return [
        (node.text, float(node.get("x")), float(node.get("y")), float(node.get("textLength")))
        for node in tree.iter(f"{SVG}text")
        if node.get("textLength")
    ]


def test_a_card_is_a_picture_of_the_text_and_nothing_else(story):
    picture = card(to_share(story))
    tags = {node.tag.removeprefix(SVG) for node in ElementTree.fromstring(picture).iter()}
    assert tags == {"svg", "rect", "text"}
    assert "href" not in picture and "url(" not in picture
    shown = "".join(text for text, *_ in words_of(picture))
    assert "".join(STORY.split()).startswith(shown) and len(shown) > 500
    assert story.result["signature_short"] in picture
    assert f">{story.result['perplexity']:,.0f}</text>" in picture


def test_a_card_says_whether_it_shows_all_of_the_text(service, story):
    longer = service.score(STORY * 2, Settings(BUNDLED, 64, 64), Job(60))
    assert "of which the beginning is shown" in card(longer)
    assert "of which the beginning is shown" not in card(story)


def test_a_cards_words_stay_inside_it_and_apart(awkward):
    picture = card(awkward)
    words = words_of(picture)
    edge = MARGIN + COLUMNS * LETTER
    assert all(x >= MARGIN and x + width <= edge + 0.1 for _, x, _, width in words)
    for (_, x, y, width), (_, next_x, next_y, _) in itertools.pairwise(words):
        assert next_y > y or next_x >= x + width - 0.2
    assert len({y for *_, y, _ in words}) <= LINES
    assert "<script>" not in picture


def test_a_cards_words_run_in_their_own_direction(service):
    """The words of an Arabic or Hebrew text stood in the order of a Latin one."""
    text = "\u05d0\u05d1, the 12 \u05d2\u05d3!\nWe say \u05d0\u05d1 \u05d2\u05d3 here."
    tree = ElementTree.fromstring(card(service.score(text, Settings(BUNDLED, 64, 16), Job(60))))
    rows = {}
    for node in tree.iter(f"{SVG}text"):
        if wide := float(node.get("textLength", 0)):
            begin = float(node.get("x")) - (wide if node.get("direction") == "rtl" else 0)
            row = rows.setdefault(node.get("y"), [" "] * COLUMNS)
            row[round((begin - MARGIN) / LETTER)] = node.text
    first, second = ("".join(row) for row in rows.values())
    assert first == "!\u05d3\u05d2 the 12 ,\u05d1\u05d0".rjust(COLUMNS)
    assert second.rstrip() == "We say \u05d3\u05d2 \u05d1\u05d0 here."


def test_a_cards_colours_are_those_of_the_page(story):
    colours = page_colours()
    assert {f"b{n}" for n in range(1, 6)} <= set(colours)
    used = {
        node.get("fill")
        for node in ElementTree.fromstring(card(story)).iter(f"{SVG}rect")
        if node.get("rx") == "4"
    }
    assert used and used <= {ground for ground, _ in colours.values()}
