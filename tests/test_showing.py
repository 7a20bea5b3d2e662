"""The texts themselves: --show in a terminal, --html as a report, show() in a notebook, to_frame()."""

import itertools
import json
import math
import os
import re
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
import torch
from models import make_byte_tokenizer, make_model, make_tokenizer, random_text, save

from perplexity_sliding import compute, show, to_frame
from perplexity_sliding.cli import measuring, output
from perplexity_sliding.views import Reading, within

DEMO = str(Path(__file__).resolve().parent.parent / "demo_model")
TEXTS = [random_text(length, seed=length) for length in (60, 45)]
HOSTILE = (
    "</script><img src=x onerror=alert(1)>' \" {x} ${y} `z` \x1b[31m red \u202e desrever &amp; end"
)
ANSI = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, text in zip(("a.txt", "b.txt"), TEXTS):
        Path(name).write_text(text, "utf-8")
    return tmp_path


class Tags(HTMLParser):
    """What a browser makes of a file: its elements, and the words between them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())

    def data(self, name: str) -> list[dict]:
        return [json.loads(attrs[name]) for _, attrs in self.tags if name in attrs]


def read(path="r.html") -> Tags:
    return Tags(Path(path).read_text("utf-8"))


# ---- the report


def test_a_report_has_the_text_with_the_scores_of_the_metric(call, tiny):
    outcome = call("a.txt", "b.txt", "--html=r.html")
    assert outcome.code == 0 and outcome.err.splitlines()[-1].endswith("wrote r.html")
    asked = {"return_token_scores": ["top5"]}
    result = compute(TEXTS, model_id=tiny, **asked)
    page = read()
    assert [pieces["text"] for pieces in page.data("data-pieces")] == TEXTS
    for data, tokens in zip(page.data("data-payload"), result["token_scores"]):
        bits = [None if nll is None else nll / math.log(2) for nll in tokens["nll"]]
        assert data["bits"] == pytest.approx(bits, abs=1e-3)
        assert data["rank"] == tokens["rank"]
        [top, *_] = tokens["alternatives"][3]
        assert data["alternatives"][3][0][0] == top[0]
        assert data["alternatives"][3][0][1] == pytest.approx(math.exp(-top[1]), rel=1e-2)
        windows = [[w["begin"], w["first"], w["end"]] for w in tokens["windows"]]
        assert [window[:3] for window in data["windows"]] == windows
    assert result["signature"] in page.said
    for name, perplexity in zip(("a.txt", "b.txt"), result["perplexities"]):
        assert f"{name}: {perplexity:.4g}" in page.said
    low, high = result["perplexity_interval"]
    assert f"95 % interval {result['interval_scope']} {low:.4g} to {high:.4g}" in page.said
    assert "score.py a.txt b.txt" in page.said


def test_a_hostile_text_stays_a_text(call):
    Path("h.txt").write_text(f"{HOSTILE} " * 3, "utf-8")
    assert call("h.txt", "--html=r.html", model=DEMO).code == 0
    written, page = Path("r.html").read_text("utf-8"), read()
    assert "img" not in {tag for tag, _ in page.tags} and written.count("</script>") == 1
    assert "\x1b" not in written
    [pieces] = page.data("data-pieces")
    assert pieces["text"] == f"{HOSTILE} " * 3


def test_nothing_is_fetched(call):
    call("a.txt", "--html=r.html")
    page = read()
    assert not {"src", "href", "srcset", "action"} & {
        key for _, attrs in page.tags for key in attrs
    }
    assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    [policy] = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    written = Path("r.html").read_text("utf-8")
    assert "@import" not in written and not re.search(r"url\((?!data:)", written)


def test_contexts_are_shown_and_not_scored(call):
    Path("t.csv").write_text('context,text\n"w1 w2 w3","w4 w5 w6 w7"\n', "utf-8")
    assert (
        call("t.csv", "--context-column=context", "--context-separator= ", "--html=r.html").code
        == 0
    )
    page = read()
    [data], [pieces] = page.data("data-payload"), page.data("data-pieces")
    assert pieces["text"] == "w1 w2 w3 w4 w5 w6 w7"
    assert data["num_context_tokens"] == 3
    assert [bits is None for bits in data["bits"]] == [True] * 3 + [False] * 4


def test_strides_have_a_curve_and_a_table(call, tiny):
    assert call("a.txt", "--stride=16,8,4", "--html=r.html").code == 0
    page = read()
    result = compute(TEXTS[:1], model_id=tiny, stride=[16, 8, 4])
    marks = [attrs["aria-label"] for _, attrs in page.tags if attrs.get("class") == "ps-mark"]
    for measurement in result["measurements"]:
        value = f"stride {measurement['stride']}: perplexity {measurement['perplexity']:.4g},"
        assert any(mark.startswith(value) for mark in marks), (value, marks)
    assert page.said.count("95 % interval") >= 3
    first = compute(TEXTS[:1], model_id=tiny, stride=16, return_token_scores=True)
    [data], [tokens] = page.data("data-payload"), first["token_scores"]
    begins = [window["begin"] for window in tokens["windows"]]
    assert [window[0] for window in data["windows"]] == begins  # coloured as in the first


@pytest.fixture(scope="module")
def other_models(tmp_path_factory) -> dict[str, str]:
    """Folders with models that read the tiny one's tokens, and other tokens."""
    folder = tmp_path_factory.mktemp("models")
    of_bytes = make_model("gpt2", vocab_size=300)
    return {
        "tokens": save(folder / "other", make_model("gpt2", seed=1), make_tokenizer()),
        "bytes": save(folder / "bytes", of_bytes, make_byte_tokenizer()),
    }


@pytest.mark.parametrize("compared", ["tokens", "bytes"])
def test_several_texts_have_one_verdict(call, other_models, compared):
    outcome = call("a.txt", "b.txt", f"--reference={other_models[compared]}", "--html=r.html")
    assert outcome.code == 0, outcome.err
    page = Path("r.html").read_text("utf-8").partition("<main")[2]
    assert page.count('class="ps-verdict"') == 1 and "All 2 texts together" in page
    assert page.count("<table") == 1, "numbers of all"


def test_a_report_of_much_text_shows_its_beginning_and_asks_for_no_more(call, monkeypatch):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 20)
    Path("t.jsonl").write_text(rows, "utf-8")
    whole = call("t.jsonl", "--json").json["corpus"]
    most, asked = len(TEXTS[0]) + 20, []
    monkeypatch.setattr(measuring, "SHARD_CHARACTERS", 60_000)  # of which few with alternatives
    monkeypatch.setattr(measuring, "SHOWN", most)
    loaded = measuring.load_metric

    def watched(args):
        compute = loaded(args)
        return lambda **given: asked.append(bool(given["return_token_scores"])) or compute(**given)

    monkeypatch.setattr("perplexity_sliding.cli.main.load_metric", watched)
    outcome = call("t.jsonl", "--json", "--html=r.html")
    assert outcome.json["corpus"]["total_nll"] == pytest.approx(whole["total_nll"], rel=1e-6)
    first, second = (pieces["text"] for pieces in read().data("data-pieces"))
    assert first == TEXTS[0] and TEXTS[1].startswith(second) and 10 < len(second) <= 20
    assert "characters are shown" in read().said
    assert asked[0] and not any(asked[1:]) and len(asked) > 2


def test_a_text_is_cut_between_tokens():
    tokens = {
        "tokens": ["ab", "cd", "ef"],
        "offsets": [[0, 2], [2, 4], [4, 6]],
        "nll": [1.0, 2.0, 3.0],
        "context_length": [0, 1, 1],
        "windows": [
            {"begin": 0, "first": 0, "end": 2, "start_token": False},
            {"begin": 1, "first": 2, "end": 3, "start_token": False},
        ],
    }
    reading = Reading("abcdef", tokens, {}, "model")
    cut = reading.beginning(5)
    assert cut.whole == "abcd" and cut.tokens["nll"] == [1.0, 2.0]
    assert [window["end"] for window in cut.tokens["windows"]] == [2, 2]
    assert [one.whole for one in within([reading, reading, reading], 8)] == ["abcdef", "ab"]


# ---- nothing is lost


def test_a_report_that_cannot_be_written_costs_no_numbers(call, monkeypatch):
    Path("r.html").write_text("an older one", "utf-8")
    without = call("a.txt")

    def full(*_):
        raise OSError(28, "No space left on device", "r.html")

    monkeypatch.setattr(os, "replace", full)
    outcome = call("a.txt", "--html=r.html")
    assert outcome.code == 2 and "r.html: No space left on device" in outcome.err
    assert outcome.out == without.out
    assert Path("r.html").read_text("utf-8") == "an older one"
    assert sorted(path.name for path in Path().iterdir()) == ["a.txt", "b.txt", "r.html"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--html=nowhere/r.html"], "--html must be a file in a writable folder"),
        (["--html=a.txt"], "--html must not be one of the files to read"),
        (["--show", "--format=csv"], "--show cannot be combined with --format"),
        (["--show", "--stride=8,4"], "--show cannot be combined with several protocols"),
        (["--show", f"--reference={DEMO}"], "--show cannot be combined with --reference"),
        (["--html=r.html", f"--model={DEMO}"], "--html cannot be combined with several models"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_computed(call, arguments, said):
    outcome = call("a.txt", *arguments)
    assert outcome.code == 2 and said in outcome.err and outcome.out == ""
    assert Path("a.txt").read_text("utf-8") == TEXTS[0]


# ---- the terminal


class Screen(StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch, readings, terminal: bool, **environment) -> str:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", **environment}.items():
        monkeypatch.setenv(name, value)
    out = Screen() if terminal else StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    output.print_texts(readings)
    return out.getvalue()


def made_up(
    text="expected word, surprise!\nfury \x1b[5m\u202e",
    cuts=(0, 8, 13, 14, 23, 24, 25, 29, None),
    nll=(0.1, 3.0, 2.5, 12.0, 1.0, 0.2, 8.0, 9.0),  # nats
) -> Reading:
    cuts, size = [*cuts[:-1], len(text)], len(nll)
    tokens = {
        "tokens": [text[a:b] for a, b in itertools.pairwise(cuts)],
        "offsets": [list(pair) for pair in itertools.pairwise(cuts)],
        "nll": list(nll),
        "context_length": [*range(size)],
        "alternatives": [[[" guess", 0.5]]] * size,
        "rank": [2] * size,
        "windows": [{"begin": 0, "first": 0, "end": size, "start_token": False}],
    }
    return Reading(text, tokens, {}, "model", name="a.txt")


def test_a_terminal_gets_colours_and_no_escapes_of_the_text(monkeypatch):
    shown = printed(monkeypatch, [made_up()], terminal=True, COLORTERM="truecolor")
    assert re.search(r"\x1b\[1;38;2;255;255;255;48;2;192;32;58msurprise\x1b\[0m", shown)
    assert "\x1b[5m" not in shown and "\u202e" not in shown and r"\x1b[5m\u202e" in shown
    assert "expected " in ANSI.split(shown)[0]  # what was expected has no colour
    words = [line.split(":")[0] for line in ANSI.sub("", shown).splitlines() if ": " in line]
    assert [word.strip() for word in words] == [
        "surprise",
        r"\x1b[5m\u202e",
        "fury",
        "word",
        "expected",
    ]
    assert "surprise: 17.3 bits, 1 in 163,000. The model expected “guess” (61 %)." in " ".join(
        ANSI.sub("", shown).split()
    )


@pytest.mark.parametrize(
    ("terminal", "environment"), [(False, {}), (True, {"NO_COLOR": "1"}), (True, {"TERM": "dumb"})]
)
def test_without_colours_there_are_marks(monkeypatch, terminal, environment):
    shown = printed(monkeypatch, [made_up()], terminal, **environment)
    assert not ANSI.search(shown.replace("\x1b[1m", "").replace("\x1b[0m", "")) or terminal
    assert "\x1b[38" not in shown and "48;" not in shown
    assert "expected word, [[surprise]]!\n[fury]" in ANSI.sub("", shown)
    assert "[10 to 15 bits of surprise], [[15 bits or more]]" in ANSI.sub("", shown)


def test_the_words_that_surprised_most_are_the_metrics(call, tiny):
    shown = call("a.txt", "--show").out
    scores = compute(TEXTS[:1], model_id=tiny, return_token_scores=["top1"])
    tokens = scores["token_scores"][0]
    worst = sorted(zip(tokens["nll"], tokens["offsets"]), key=lambda row: -row[0])[:5]
    lines = re.findall(r"^  (\w+): ([\d.]+) bits", shown, re.M)
    assert [(word, float(bits)) for word, bits in lines] == [
        (TEXTS[0][first:last].strip(), round(nll / math.log(2), 1)) for nll, (first, last) in worst
    ]


# ---- notebooks


@pytest.fixture(scope="module")
def results():
    asked = {"return_token_scores": ["top3"], "words": True}
    return compute(["She closed the door.", "He ran."], model_id=DEMO, **asked)


def test_a_notebook_gets_the_report_in_a_frame_of_its_own(results, tmp_path):
    shown = show(results, ["She closed the door.", "He ran."])
    [(tag, attributes)] = Tags(shown._repr_html_()).tags
    assert tag == "iframe" and attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == shown.html
    page = Tags(shown.html)
    assert [data["text"] for data in page.data("data-pieces")] == [
        "She closed the door.",
        "He ran.",
    ]
    shown.save(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text("utf-8") == shown.html


def test_contexts_and_joined_texts_are_put_together_as_they_were_read():
    texts, contexts = [" was kind.", " ran."], ["The man", "She"]
    asked = {"model_id": DEMO, "return_token_scores": True}
    after = compute(texts, contexts=contexts, **asked)
    pieces = Tags(show(after, texts, contexts).html).data("data-pieces")
    assert [data["text"] for data in pieces] == ["The man was kind.", "She ran."]
    joined = compute(texts, protocol="gptq", max_length=2, **asked)
    [data] = Tags(show(joined, texts).html).data("data-pieces")
    assert data["text"] == " was kind.\n\n ran."
    given = [" The co @-@ star , he said . "]
    prose = compute(given, detokenizer="wikitext", **asked)
    [data] = Tags(show(prose, given).html).data("data-pieces")
    assert data["text"] == " The co-star, he said. "


def test_other_texts_than_those_of_the_results_are_refused(results):
    with pytest.raises(
        ValueError, match=r"`results` must have token scores .* return_token_scores=\['top5'\]"
    ):
        show(compute(["He ran."], model_id=DEMO), ["He ran."])
    with pytest.raises(ValueError, match=r"`texts` must be as many .* 2, got 1"):
        show(results, "He ran.")
    with pytest.raises(ValueError, match=r"in their order: these have another digest"):
        show(results, ["He ran.", "She closed the door."])
    after = compute([" ran."], contexts="He", model_id=DEMO, return_token_scores=True)
    with pytest.raises(ValueError, match=r"with the `contexts` .* to character 7, but there are 5"):
        show(after, [" ran."])


def test_tables_hold_the_numbers_of_the_result(results):
    tokens, words, one = (to_frame(results, of) for of in ("tokens", "words", "measurements"))
    assert tokens["nll_nats"].sum() == pytest.approx(results["total_nll"], rel=1e-6)
    assert tokens["nll_bits"].sum() == pytest.approx(results["total_nll"] / math.log(2), rel=1e-6)
    assert to_frame(results).equals(tokens)
    assert list(words["word"]) == ["She", "closed", "the", "door.", "He", "ran."]
    assert list(words["text"]) == [0, 0, 0, 0, 1, 1]
    nats = [value for scores in results["word_scores"] for value in scores["surprisal"]]
    expected = [value / math.log(2) for value in nats]
    assert list(words["surprisal_bits"]) == pytest.approx(expected)
    assert (
        one["perplexity"].item() == results["perplexity"]
        and one["stride"].item() == results["stride"] == 64
    )
    several = compute(["She closed the door."], model_id=DEMO, stride=[4, 2], max_length=8)
    assert list(to_frame(several)["stride"]) == [4, 2]


def test_tables_have_tokens_as_the_text_writes_them():
    texts, asked = ["“Café” — déjà vu.", "He ran."], {"return_token_scores": True, "words": True}
    results = compute(texts, model_id=DEMO, **asked)
    raw, read = to_frame(results, "tokens"), to_frame(results, "tokens", texts)
    assert list(read["piece"]) == list(raw["token"]) and "Ġran" in list(raw["token"])
    for number, text in enumerate(texts):
        rows = read[read["text"] == number]
        assert all(text[row["first"] : row["last"]] == row["token"] for _, row in rows.iterrows())
        assert "".join(dict(zip(rows["first"], rows["token"])).values()) == text
    assert to_frame(results, "words", texts).equals(to_frame(results, "words"))
    after = compute([" ran."], contexts="He", model_id=DEMO, return_token_scores=True)
    frame = to_frame(after, texts=[" ran."], contexts="He")
    assert list(frame["token"]) == ["He", " ran", "."] and list(frame["first"]) == [-2, 0, 4]
    with pytest.raises(ValueError, match=r"`texts` .* another digest"):
        to_frame(results, "tokens", ["He ran.", "“Café” — déjà vu."])


@pytest.mark.parametrize("scale", [1e4, 1e6])
@pytest.mark.parametrize("option", ["--reference", "--context-lengths"])
def test_a_report_of_a_model_that_is_very_sure(call, tiny, tmp_path, scale, option):
    """Tokens of more than 1,024 bits ended a comparison, and infinite perplexities a curve."""
    model = make_model("gpt2")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    sure = save(tmp_path / "sure", model, make_tokenizer())
    value = tiny if option == "--reference" else "2,4,8"
    outcome = call("a.txt", f"{option}={value}", "--html=r.html", model=sure)
    assert outcome.code in (0, 1), outcome.err
    written = Path("r.html").read_text("utf-8")
    assert ('class="ps-verdict"' in written) == (option == "--reference")
