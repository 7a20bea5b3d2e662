"""The Space without a browser: its functions, its served API, and visitors at the same time."""

import asyncio
import base64
import hashlib
import html
import itertools
import json
import math
import shlex
import shutil
import threading
import time
import zlib
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import gradio as gr
import pytest
import regex
import torch
from fake_hub import FakeHub
from gradio_client import Client
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from models import make_byte_tokenizer, words
from space_models import ROOT, bundled_model, byte_model, word_model

import app
from cli import main as command_line
from demo_model.round_weights import load_rounded
from space import endpoints, listeners
from space import handlers as page_handlers
from space import service as space_service
from space.addresses import address
from space.calls import python_call, shell_call
from space.card import card
from space.compare_view import compare_view
from space.endpoints import compare_summary, plain
from space.gain_view import gain_view, headline, measure_gains, repeated_before
from space.handlers import SCORE_OUTPUTS, Handlers, to_share
from space.jobs import (
    TOLD_EVERY,
    Job,
    Jobs,
    OverBudget,
    Shown,
    Stopped,
    Update,
    describe,
    follow,
    newest,
)
from space.limits import Limits, Refused
from space.links import MOST_CHARACTERS, has_text, link, pack, read_link, unpack
from space.measure import measure_pair
from space.metric import new_metric, protocol_rows
from space.models import BUNDLED, ROUNDED
from space.page import build, launch_options
from space.plan_view import sketch
from space.protocols import START_CHOICES, guide
from space.samples import read_upload, samples
from space.score_view import recipe, score_view
from space.service import Service, TradeOff, affordable, gain_share
from space.settings import Settings, check_settings
from space.sharing import sentence, write_files
from space.sweep_view import group_equal, protocol_view, trade_off_view
from space.word_view import word_segments
from views.charts import Point, density_chart, distribution_chart, line_chart, round_levels
from views.comparison import Change, change_colour, kl_colour, measure_changes
from views.markup import escape, number
from views.numbers import odds, story
from views.segments import cut
from views.tokens import text_segments
from views.window_picture import window_picture

PATIENT = {"timeout": 120}  # of an answer on a busy machine
STORY = "It was late, and the lamp had gone out again. Nobody went to light it. " * 12
MANY = "Ça, c’est naïve: 你好 e\u0301 👩‍👩‍👧 🇩🇪! <script>alert(1)</script> & \"'`${x} {{y}}\n\tend"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {
        "bundled": bundled_model(base / "bundled"),
        "bytes": byte_model(base / "bytes"),
        "words": word_model(base / "words"),
    }


@pytest.fixture(scope="module")
def hub(folders):
    hub = FakeHub()
    hub.add("owner/bytes", folders["bytes"])
    hub.add("owner/words", folders["words"])
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def service(folders, hub):
    """A service whose bundled model reads bytes, 64 at a time."""
    return Service(folders["bytes"], Limits(), hub.endpoint)


@pytest.fixture(scope="module")
def scored(service):
    return service.score(MANY * 2, Settings(BUNDLED, 64, 16), Job(60))


def test_a_text_of_one_window_has_its_start_token_once(service):
    scored = service.score("A gull.", Settings(BUNDLED, 64, 16), Job(60))
    assert "start:once" in scored.result["signature"]
    assert "start token once" in recipe(scored)


# Texts are cut at tokens, but characters stay whole


@examples(max_examples=100)
@given(st.text(max_size=60))
def test_segments_cover_the_text_and_never_cut_a_character(text):
    tokenizer = make_byte_tokenizer()
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    segments = cut(text, offsets)
    assert "".join(text[s.start : s.end] for s in segments) == text
    whole = {0, len(text)} | {match.end() for match in regex.finditer(r"\X", text)}
    assert {s.start for s in segments} | {s.end for s in segments} <= whole | {0}
    numbers = [n for s in segments if s.first is not None for n in range(s.first, s.last + 1)]
    assert numbers == list(range(len(offsets)))


@pytest.mark.parametrize(
    "text, offsets, expected",
    [
        ("ab", [(0, 1), (1, 2)], [(0, 1, 0, 0), (1, 2, 1, 1)]),
        ("é", [(0, 1), (0, 1)], [(0, 1, 0, 1)]),  # two bytes, one letter
        ("e\u0301x", [(0, 1), (1, 2), (2, 3)], [(0, 2, 0, 1), (2, 3, 2, 2)]),  # letter and accent
        ("👩‍👧", [(0, 1), (1, 2), (2, 3)], [(0, 3, 0, 2)]),  # joined emoji
        ("a b", [(0, 1), (2, 3)], [(0, 1, 0, 0), (1, 2, None, None), (2, 3, 1, 1)]),  # a gap
        (" a ", [(1, 2)], [(0, 1, None, None), (1, 2, 0, 0), (2, 3, None, None)]),
        ("a", [(0, 0), (0, 1)], [(0, 1, 1, 1)]),  # a start token stands for no text
        ("", [], []),
    ],
)
def test_segments(text, offsets, expected):
    assert [tuple(segment) for segment in cut(text, offsets)] == expected


# A visitor's text never becomes HTML


class Reader(HTMLParser):
    """Collects the tags, attributes and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)


OWN_TAGS = {
    *(
        "a",
        "b",
        "button",
        "code",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "details",
        "summary",
        "em",
        "figcaption",
        "figure",
        "h3",
    ),
    *("i", "label", "legend"),
    *(
        "input",
        "li",
        "ol",
        "output",
        "p",
        "path",
        "polygon",
        "polyline",
        "small",
        "span",
        "svg",
        "table",
    ),
    *("rect", "tbody", "td", "th", "thead", "tr", "ul", "progress"),
}


def pieces_of(page):
    """What a page hands its script to draw a text of: text, lengths and classes."""
    found = regex.findall(r"data-pieces='([^']*)'", page)
    if found:
        return json.loads(html.unescape(found[0]))
    return data_of(page)["pieces"]


def test_escaped_text_is_the_same_text():
    page = escape(MANY)
    assert not set(page) & set("<>\"'{}$`")
    assert "".join(Reader(page).text) == MANY


def test_no_view_lets_a_visitors_text_become_html(service):
    evil = "\"><img src=x onerror=alert(1)><script>alert(2)</script>${alert(3)}{{x}}' onclick=x "
    settings = Settings(BUNDLED, 64, 32)
    scored = service.score(evil * 4, settings, Job(60))
    compared = service.compare(evil * 4, settings, "owner/words", Job(60), clip=True)
    trade_off = service.trade_off(evil * 4, settings, Job(60))
    protocols = service.every_protocol(evil * 4, settings, Job(60))
    html_views = [SCORE_OUTPUTS[name](scored) for name in ("score", "cite", "text")]
    html_views += [compare_view(compared), trade_off_view(trade_off), gain_view(trade_off)]
    html_views += [protocol_view(protocols)]
    for page in html_views:
        reader = Reader(page)
        assert reader.tags <= OWN_TAGS
        assert not {name for name in reader.attributes if name.startswith("on")}
        assert not set(page) & set("{}$`")  # signs that a template would act on
    assert pieces_of(SCORE_OUTPUTS["text"](scored))["text"] == evil * 4


def test_a_models_name_never_becomes_html(service):
    page = page_handlers.alert(str(Refused("<img src=x onerror=alert(1)>")))
    assert Reader(page).tags <= OWN_TAGS


# Numbers


@pytest.mark.parametrize(
    "value, shown",
    [
        (27.314, "27.31"),
        (1e6, "1,000,000"),
        (0.01234, "0.01234"),
        (math.inf, "∞"),
        (999.96, "1000"),
        (191.0, "191.0"),
        (8.5, "8.500"),
        (999_999_999.0, "999,999,999"),
        (5.88623e23, "5.886 × 10²³"),
        (9.99999e9, "1.000 × 10¹⁰"),
    ],
)
def test_numbers_for_people(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize("low, high", [(338.3, 348.9), (0.1, 0.2), (5, 5), (1, 1000)])
def test_grid_levels_are_round_and_inside(low, high):
    levels = round_levels(low, high)
    assert all(low <= level <= high for level in levels)
    assert len(levels) <= 8
    assert low == high or len(levels) >= 2


# Comparing two models


EVIL = "\"><img src=x onerror=alert(1)>${alert(2)} <b>bold</b> & 'more' {{x}}\n" * 12


@pytest.fixture(scope="module")
def quantised(service):
    """What rounding the bundled model's weights does to a text."""
    return service.compare(EVIL, Settings(ROUNDED), BUNDLED, Job(60))


@pytest.fixture(scope="module")
def apart(service):
    """Words against bytes."""
    text = words([5, 9, 4, 33, 71, 8] * 20)
    return service.compare(text, Settings("owner/words"), "owner/bytes", Job(60))


def test_the_comparison_is_the_metrics_own_of_the_copy_with_the_full_model(service, quantised):
    model, reference = quantised.scored.loaded, quantised.reference
    assert (model.name, reference.name) == (ROUNDED, BUNDLED)
    expected = new_metric().compute(
        predictions=[EVIL],
        model=model.model,
        tokenizer=model.tokenizer,
        reference={"model": reference.model, "tokenizer": reference.tokenizer},
        **quantised.scored.settings.arguments(),
    )["comparison"]
    found = quantised.comparison
    assert found["compared"] == "tokens" and found.keys() == expected.keys()
    assert found["perplexity_ratio"]["ratio"] == pytest.approx(
        expected["perplexity_ratio"]["ratio"], rel=1e-4
    )
    for name in ("kl", "kl_interval", "same_top"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    full, copy = (
        service.score(EVIL, Settings(name), Job(60)).result["perplexity"]
        for name in (BUNDLED, ROUNDED)
    )
    assert found["perplexity_ratio"]["ratio"] == pytest.approx(copy / full, rel=1e-6)


@pytest.mark.parametrize("pair", [(ROUNDED, BUNDLED), ("owner/words", "owner/bytes")])
def test_each_of_two_models_reads_the_text_once(service, pair):
    text, read = words([5, 9, 4] * 500), []
    loaded = [service.load(name, Job(600)).model for name in pair]
    hooks = [
        model.transformer.wte.register_forward_pre_hook(
            lambda module, given: read.append(given[0].numel())
        )
        for model in loaded
    ]
    compared = service.compare(text, Settings(pair[0]), pair[1], Job(600))
    for hook in hooks:
        hook.remove()
    alone = [service.score(text, Settings(name, 16), Job(600)).result for name in pair]
    once = sum(result["num_forward_tokens"] for result in alone)
    if compared.by_tokens:
        once = 2 * compared.scored.result["num_forward_tokens"]
    assert once <= sum(read) < 1.3 * once  # with what is tried out beforehand


def test_changes_are_the_differences_of_two_runs(service, quantised):
    segments, _ = text_segments(quantised.scored)
    changes = measure_changes(quantised, segments)
    alone = [service.score(EVIL, Settings(name), Job(60)).tokens for name in (ROUNDED, BUNDLED)]
    assert len(changes) == len(EVIL)  # a byte is a piece
    for own in changes:
        token = segments[own.piece].first
        nll, reference_nll = (side["nll"][token] / math.log(2) for side in alone)
        assert own.bits == pytest.approx(nll, rel=1e-4)
        assert own.change == pytest.approx(nll - reference_nll, abs=1e-4)
        assert own.kl == quantised.scored.tokens["kl"][token] >= 0
    largest = max(changes, key=lambda own: own.kl)
    assert largest.kl == pytest.approx(quantised.comparison["worst_tokens"][0]["kl"])


def test_pieces_add_up_to_both_models_totals(service, apart):
    assert not apart.by_tokens
    pieces = apart.scores
    changes = measure_changes(apart, cut(apart.scored.text, pieces["offsets"]))
    for own, name in (("bits", "owner/words"), ("reference_bits", "owner/bytes")):
        settings = replace(apart.scored.settings, model=name)
        alone = service.score(apart.scored.text, settings, Job(60)).result
        total = sum(getattr(change, own) for change in changes)
        assert total == pytest.approx(alone["total_nll"] / math.log(2), rel=1e-6)
    per_byte = sum(change.change for change in changes) / len(apart.scored.text)
    assert apart.comparison["bits_per_byte_change"] == pytest.approx(per_byte, rel=1e-6)


@pytest.mark.parametrize(
    "bits, colour",
    [
        (None, "out"),
        (0.05, ""),
        (-0.05, ""),
        (0.11, "v1"),
        (-0.3, "w1"),
        (1.5, "v2"),
        (-1.9, "w2"),
        (2.0, "v3"),
        (-math.inf, "w3"),
        (math.nan, ""),  # impossible for both
    ],
)
def test_the_colour_of_a_change_tells_worse_from_better(bits, colour):
    if bits is None:
        assert change_colour(None) == colour
        return
    both = (math.inf, math.inf) if math.isnan(bits) else (10 + bits, 10)
    both = (10, math.inf) if bits == -math.inf else both
    assert change_colour(Change(0, *both)) == colour


def test_the_colours_of_divergence_grow_with_it():
    levels = [kl_colour(Change(0, 1, 1, kl)) for kl in (0, 0.001, 0.02, 0.3, 1, 9, math.inf)]
    assert levels == ["b0", "b1", "b2", "b3", "b4", "b5", "b5"]
    assert kl_colour(None) == "out"


def test_the_view_of_two_models_says_what_the_metric_says(quantised, apart):
    own = quantised.comparison
    hostile = {"token": "<img src=x onerror=alert(1)>", "top": "${x}", "reference_top": "<script>"}
    tokens = quantised.scored.tokens
    worst = tokens["kl"].index(max(value for value in tokens["kl"] if value is not None))
    tops = {name: [*tokens[name]] for name in ("top", "reference_top")}
    for name, column in tops.items():
        column[worst] = hostile[name]
    result = quantised.scored.result | {"token_scores": [tokens | tops]}
    page = compare_view(replace(quantised, scored=replace(quantised.scored, result=result)))
    reader = Reader(page)
    assert reader.tags <= OWN_TAGS and not set(page) & set("{}$`")
    shown = "".join(reader.text)
    assert hostile["top"] in shown and hostile["reference_top"] in shown
    sentence = own["summary"].replace("The model", ROUNDED).replace("the reference", BUNDLED)
    assert sentence in shown
    for value in (f"× {own['perplexity_ratio']['ratio']:.4f}", f"{number(own['kl'])} nats a token"):
        assert value in shown
    assert f"{100 * own['same_top']:.1f} % if the likeliest is taken" in shown
    of_bytes = "".join(Reader(compare_view(apart)).text)
    assert "compared over the pieces of text that both cut" in of_bytes
    assert f"{apart.comparison['bits_per_byte']:.4g}"[:4] in of_bytes and "KL" not in of_bytes
    assert "owner/bytes could read up to 64" in of_bytes


def test_models_with_other_start_tokens_are_compared_without_one(service, monkeypatch):
    def refuse_starts(loaded, reference, text, settings, callback):
        if settings.start != "none":
            raise Refused("The start tokens differ.")
        return measure_pair(loaded, reference, text, settings, callback)

    monkeypatch.setattr("space.service.measure_pair", refuse_starts)
    compared = service.compare(STORY, Settings(ROUNDED), BUNDLED, Job(60))
    assert compared.scored.tokens["nll"][0] is None
    assert "compared without one" in compare_view(compared)
    assert "compared without one" in compare_summary(compared)["notes"][-1]


def test_a_window_too_long_for_one_of_two_models_is_refused_or_shortened(service):
    with pytest.raises(Refused, match="between 2 and 16 tokens with owner/words, but it is 64"):
        service.compare(STORY, Settings(BUNDLED, 64), "owner/words", Job(60))
    shortened = service.compare(STORY, Settings(BUNDLED, 64), "owner/words", Job(60), clip=True)
    assert shortened.scored.settings == Settings(BUNDLED, 16, 8)
    assert "demo_model could read up to 64" in compare_view(shortened)


def test_a_model_is_not_compared_with_itself(service):
    with pytest.raises(Refused, match="two different models"):
        service.compare(STORY, Settings(BUNDLED), BUNDLED, Job(60))


def test_the_rounded_copy_has_weights_of_4_bits_and_its_own_number(quantised):
    copy, full = quantised.scored, quantised.reference
    assert quantised.comparison["reference_perplexity"] != copy.result["perplexity"]
    assert copy.result["signature"].startswith("model:demo_model-4bit|")
    weight = copy.loaded.model.transformer.h[0].mlp.c_fc.weight
    original = full.model.transformer.h[0].mlp.c_fc.weight
    for group, source in zip(weight[0].split(32), original[0].split(32)):
        step = source.abs().max() / 7
        assert torch.allclose(group, torch.round(source / step) * step, atol=1e-7)
        assert len(set(group.tolist())) <= 15
    tables = [loaded.model.transformer.wte.weight for loaded in (copy.loaded, full)]
    assert torch.equal(*tables)  # tables of tokens are left alone


def test_folders_are_models_only_where_nobody_else_sees_the_page(folders, monkeypatch):
    own = Service(folders["bytes"], local_folders=True)
    assert own.load(folders["words"], Job(60)).window == 16
    with pytest.raises(Refused, match="not the name of a model"):
        Service(folders["bytes"]).load(folders["words"], Job(60))
    for name in ("SPACE_ID", "GRADIO_SERVER_NAME", "GRADIO_SHARE"):
        monkeypatch.delenv(name, raising=False)
    assert app.is_private()
    for name, value in (("SPACE_ID", "a/b"), ("GRADIO_SERVER_NAME", "0.0.0.0")):
        with monkeypatch.context() as outside:
            outside.setenv(name, value)
            assert not app.is_private()


def test_a_folder_is_one_model_however_it_is_written(folders, tmp_path, monkeypatch):
    own = Service(folders["bytes"], local_folders=True)
    shutil.copytree(folders["words"], tmp_path / "mine")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("./mine", "mine/", str(tmp_path / "mine"), "sub/../mine"):
        assert own.load(name, Job(60)).name == str(tmp_path / "mine")
    assert own.load(folders["bytes"], Job(60)).name == BUNDLED
    assert own.shelf.names == [str(tmp_path / "mine"), BUNDLED]
    with pytest.raises(Refused, match="two different models"):
        own.compare(STORY, Settings("./mine"), str(tmp_path / "mine"), Job(60))


@pytest.mark.parametrize("name", ["n" * 500, "owner/" + "n" * 500, "a\0b", "./" + "n/" * 3000])
def test_names_that_no_disk_has_are_refused_with_a_sentence(folders, name):
    own = Service(folders["bytes"], local_folders=True)
    with pytest.raises(Refused, match="not the name of a model"):
        own.load(name, Job(60))


# Settings and links

PROTOCOLS = tuple(protocol_rows())


def test_a_link_brings_its_settings_back():
    settings = Settings("owner/model", 96, 24, "every", "sliding")
    query = dict(pair.split("=") for pair in settings.link()[1:].replace("%2F", "/").split("&"))
    assert read_link(query, BUNDLED, PROTOCOLS) == (settings, [])


@pytest.mark.parametrize(
    "query, remark",
    [
        ({"stride": "many"}, "stride in the link is not a number"),
        ({"stride": "-3"}, "stride in the link is not a number"),
        ({"stride": "0"}, "stride in the link is not a number"),
        ({"window": "9" * 5000}, "window in the link is not a number"),
        ({"window": "٣"}, "window in the link is not a number"),
        ({"protocol": "<script>"}, "no protocol called “<script>”"),
        ({"start": "sometimes"}, "start token must be one of"),
        ({"model": "../../etc"}, "not the name of a model"),
        ({"window": "1"}, "window in the link is not a number of tokens, at least 2"),
    ],
)
def test_a_bad_link_changes_nothing_and_says_so(query, remark):
    settings, [said] = read_link(query, BUNDLED, PROTOCOLS)
    assert settings is None
    assert remark in said and said.count("ignored") == 1


@pytest.mark.parametrize("text", [MANY, "a", STORY * 5, "\x00\ufeff\u202e", "word " * 9000])
def test_a_link_brings_its_text_back(text):
    behind = link(Settings(BUNDLED, 64), text).partition("#")[2]
    assert unpack(f"#{behind}", Limits()) == {"text": text}
    assert regex.fullmatch(r"text=[\w-]+", behind, regex.ASCII)


def test_a_text_that_is_too_long_for_a_link_stays_behind():
    address = link(Settings(BUNDLED, 64), "".join(map(chr, range(0x4E00, 0x4E00 + 5000))))
    assert len(address) < MOST_CHARACTERS and not has_text(address)
    assert "window=64" in address


@pytest.mark.parametrize(
    "behind, said",
    [
        ("#text=*", "broken"),
        ("#text=" + pack("A whole sentence, of which the end is lost.")[:-9], "incomplete"),
        ("#text=" + pack("x" * 10_000_000), "too long"),  # 10 MB in 13 kB
        (
            "#text=" + base64.urlsafe_b64encode(zlib.compress(b"\xff\xfe", wbits=-15)).decode(),
            "broken",
        ),
    ],
)
def test_a_broken_text_in_a_link_is_refused(behind, said):
    with pytest.raises(Refused, match=said):
        unpack(behind, Limits())


def test_an_address_without_a_text_brings_none():
    assert unpack("", Limits()) == unpack("#results", Limits()) == {}


def test_a_link_brings_its_context_back_where_no_server_sees_it():
    address = link(Settings(BUNDLED, 64, context=MANY), "the text")
    query, _, behind = address.partition("#")
    assert "context" not in query
    assert unpack(behind, Limits()) == {"text": "the text", "context": MANY}


def test_a_link_on_the_hub_leads_to_the_hubs_page(monkeypatch):
    monkeypatch.setenv("SPACE_ID", "user/name")
    address = link(Settings(BUNDLED, 64), "text")
    assert address.startswith("https://huggingface.co/spaces/user/name?model=demo_model&window=64")


@pytest.mark.parametrize(
    "settings, said",
    [
        (Settings("m", 65, 8), "between 2 and 64 tokens with m, but it is 65"),
        (Settings("m", 1, 1), "between 2 and 64 tokens with m, but it is 1"),
        (Settings("m", 64, 65), "between 1 and the window, 64 tokens, but it is 65"),
        (Settings("m", 64, 0), "between 1 and the window, 64 tokens, but it is 0"),
    ],
)
def test_windows_and_strides_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(Refused, match=said):
        settings.for_model(64)


def test_settings_that_are_no_settings_are_refused():
    for settings in (
        Settings("m", 3.5),
        Settings("m", 64, True),
        Settings("m", protocol="mine"),
        Settings("m", start="sometimes"),
    ):
        with pytest.raises(Refused):
            check_settings(settings, PROTOCOLS)


def test_every_protocol_has_a_guide(service):
    for protocol in service.protocols:
        known = guide(protocol)
        assert len(known.tool) > 3 and known.idea.endswith(".")


def test_a_new_protocol_needs_no_word_here(folders, monkeypatch):
    row = protocol_rows()["lm-eval"]
    monkeypatch.setitem(protocol_rows(), "new", replace(row, name="new", source="a new tool"))
    service = Service(folders["bytes"])
    assert "new" in service.protocols
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    numbers = {one.settings.protocol: one.result["perplexity"] for one in sweep.scored}
    assert numbers["new"] == numbers["lm-eval"]
    assert "a new tool" in protocol_view(sweep)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_guides_offer_the_settings_that_the_metric_takes(protocol, metric, gpt2, tokenizer):
    def refused(**arguments):
        try:
            metric.compute(
                predictions=[words([3, 4, 5] * 20)],
                model=gpt2,
                tokenizer=tokenizer,
                protocol=protocol,
                max_length=8,
                **arguments,
            )
        except ValueError:
            return True
        return False

    known = guide(protocol)
    assert refused(stride=2) == (not known.stride)
    for name, value in START_CHOICES.items():
        if value is not True:  # the default is never refused
            assert refused(add_start_token=value) == (name not in known.starts)


# Texts, uploads and budgets


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "There is no text yet"),
        ("  \n ", "There is no text yet"),
        (None, "There is no text yet"),
        ("x" * 101, "101 characters, and this page takes 100 at most"),
        ("\ud800", "broken characters"),
        ("x" * 60, "has 60 tokens for demo_model, and this page takes 50 at most"),
    ],
)
def test_texts_that_are_refused(folders, text, said):
    service = Service(folders["bytes"], Limits(characters=100, tokens=50))
    with pytest.raises(Refused, match=said):
        service.score(text, Settings(BUNDLED), Job(60))


def test_line_ends_are_those_of_the_text_box(service):
    one = service.score("a\r\nb\rc", Settings(BUNDLED), Job(60))
    assert one.text == "a\nb\nc"


@pytest.mark.parametrize(
    "data, expected",
    [
        ("naïve 你好".encode(), "naïve 你好"),
        (b"\xef\xbb\xbfwith a mark", "with a mark"),
        ("as Windows’ “Unicode”".encode("utf-16"), "as Windows’ “Unicode”"),
        (b"\xff\xfe\x00", None),
        (b"x" * 401, None),
    ],
)
def test_uploads(tmp_path, data, expected):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    if expected is not None:
        assert read_upload(str(path), Limits(characters=100)) == expected
    else:
        with pytest.raises(Refused, match=r"UTF-8|401 bytes"):
            read_upload(str(path), Limits(characters=100))


def test_samples_are_there():
    texts = samples()
    assert len(texts) >= 4
    assert all(text.strip() for text in texts.values())


def test_a_request_over_its_time_ends_with_a_clear_sentence(service):
    with pytest.raises(OverBudget, match=r"may take 1 second.*perplexity of .* larger stride"):
        service.score(STORY, Settings(BUNDLED, 64, 1), Job(seconds=0))


def test_a_sweep_over_its_time_leaves_the_dearest_strides_out(service, monkeypatch):
    tried = []

    def impatient(loaded, text, callback, **arguments):
        tried.append(arguments["stride"])
        if len(arguments["stride"]) > 2:
            raise OverBudget(120, "It would take too long.")
        return original(loaded, text, callback, **arguments)

    original = space_service.measure_several
    monkeypatch.setattr(space_service, "measure_several", impatient)
    trade_off = service.trade_off(STORY, Settings(BUNDLED, 64), Job(60))
    assert tried[0] == [64, 32, 16, 8, 4] and tried[-1] == [64, 32]
    assert [one.settings.stride for one in trade_off.strides] == [64, 32]
    assert not trade_off.by_context  # which costs as much as the smallest stride
    page = trade_off_view(trade_off)
    assert "Left out: stride 16, 8, 4. It would take too long." in page


def test_shorter_contexts_over_their_time_leave_the_strides(service, monkeypatch):
    def impatient(*_):
        raise OverBudget(120, "It would take too long.")

    monkeypatch.setattr(space_service, "measure_contexts", impatient)
    trade_off = service.trade_off(STORY, Settings(BUNDLED, 64), Job(60))
    assert len(trade_off.strides) == 5 and not trade_off.by_context
    page = trade_off_view(trade_off)
    assert "Shorter contexts were left out. It would take too long." in page


def test_a_step_is_judged_by_itself_alone():
    """Where earlier steps had taken six seconds, a step was judged by its first batch."""
    job = Job(60)
    job._computed = 20.0  # an earlier step
    callback = job.computing()
    time.sleep(0.05)
    callback(SimpleNamespace(total=10_000, done=10, perplexity=5.0))  # 50 s to go, it seems


@pytest.mark.parametrize(
    "needed, remaining, kept", [(120, 60, 4), (300, 30, 2), (3000, 1, 1), (10, 60, 4)]
)
def test_the_strides_that_fit_are_tried_next(needed, remaining, kept):
    assert affordable([64, 32, 16, 8, 4], needed, remaining) == [64, 32, 16, 8][:kept]


@pytest.mark.parametrize("text, short", [("a", True), ("Hello world", True), (STORY, False)])
def test_a_few_tokens_have_no_perplexity_and_no_verdict(folders, text, short):
    """“a” had 877,518 and was “unlike anything it was trained on”."""
    scored = Service(folders["bundled"]).score(text, Settings(BUNDLED), Job(60))
    page = score_view(scored)
    assert ("ps-big" not in page) == short == ("Too short for a perplexity" in page)
    assert "unlike anything" not in page
    if short:
        bits = [nll / math.log(2) for nll in scored.tokens["nll"] if nll is not None]
        assert all(f"{value:.1f} bits" in page for value in bits)
        assert page.count("<tr>") == len(bits) and "expected" in page


def test_words_of_a_number_that_nobody_can_read(scored):
    huge = replace(scored, result=scored.result | {"word_perplexity": 1.462e53})
    assert "over a million" in score_view(huge) and "10⁵³" not in score_view(huge)


@pytest.mark.parametrize("name", ["trade_off", "every_protocol"])
def test_several_settings_are_one_run_with_one_progress(service, name):
    job = Job(60)
    measured = getattr(service, name)(STORY, Settings(BUNDLED, 64), job)
    updates = [update for update in job.told.queue if getattr(update, "share", None)]
    for _, of_step in itertools.groupby(updates, lambda update: update.sentence.split(":")[0]):
        shares = [update.share for update in of_step]
        assert shares == sorted(shares) and shares[-1] == 1.0
    for one in measured.strides if name == "trade_off" else measured.scored:
        again = service.score(STORY, one.settings, Job(60))
        assert again.result["perplexity"] == pytest.approx(one.result["perplexity"], rel=1e-6)
        assert again.result["signature"] == one.result["signature"]


def test_progress_tells_tokens_and_a_running_estimate(service):
    job = Job(60)
    service.score(STORY, Settings(BUNDLED, 64, 8), job)
    told = [update for update in job.told.queue if update.share is not None]  # else it opens
    shares = [update.share for update in told]
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 10
    assert regex.fullmatch(
        r"Scoring: [\d,]+ of [\d,]+ tokens read, perplexity so far [\d,.]+\. About .+ left\.",
        told[0].sentence,
    )


def test_before_a_perplexity_is_known_none_is_told():
    progress = SimpleNamespace(done=64, total=640, perplexity=math.nan)
    assert describe("Scoring", progress) == "Scoring: 64 of 640 tokens read."


def test_a_slow_page_is_told_only_the_news():
    job = Job(60)
    for step in range(100):  # everything is told before anyone listens
        job.say("step", step / 100)
    assert newest(job.told) == Update("step", 0.99)
    job.say("late")
    job.told.put(None)
    assert newest(job.told) is None


def test_a_page_is_told_a_few_times_a_second():
    """Each line of status costs a browser with a long text a good part of a second."""

    def work(job):
        for step in range(100):
            job.say("step", step / 100)
            time.sleep(0.01)
        return "whole"

    begun = time.monotonic()
    *updates, last = follow(Job(60), work)
    assert last == Shown("whole")
    assert 1 < len(updates) < 2 + (time.monotonic() - begun) / TOLD_EVERY


def test_stop_stops(service):
    job, seen = Job(60), []
    with pytest.raises(Stopped, match=r"Stopped\. Scoring: [\d,]+ of"):
        for told in follow(job, lambda job: service.score(STORY, Settings(BUNDLED, 64, 1), job)):
            seen.append(told)
            if told.share is not None:  # before, a model may be loaded
                job.stop()
    assert seen[-1].share < 1


def test_stop_while_waiting(service):
    job = Job(60)
    job.stop()
    with pytest.raises(Stopped):
        list(follow(job, lambda job: service.score(STORY, Settings(BUNDLED), job)))


def test_whoever_leaves_stops_the_work(service):
    running = threading.active_count()
    steps = follow(Job(60), lambda job: service.score(STORY * 4, Settings(BUNDLED, 64, 1), job))
    next(steps)
    steps.close()  # as when a visitor's connection ends
    assert threading.active_count() <= running


def test_a_new_request_stops_the_last_of_the_same_visitor_only():
    jobs = Jobs(60)
    first, other = jobs.new("visitor"), jobs.new("neighbour")
    second = jobs.new("visitor")
    with pytest.raises(Stopped):
        first.check()
    second.check()
    other.check()
    jobs.forget("neighbour")
    with pytest.raises(Stopped):
        other.check()


# What the page shows


def test_sketch_says_what_the_stride_does():
    assert "<b>96 to 127 tokens</b> of context" in sketch(128, 32)
    assert "<b>1 to 128 tokens</b> of context" in sketch(128, 128)
    assert "second half" in sketch(128, 32, "llama.cpp")


@pytest.mark.parametrize("perplexity, blind", [(258.0, False), (260.0, True), (1e9, True)])
def test_a_perplexity_above_the_vocabulary_is_no_choice_among_tokens(scored, perplexity, blind):
    page = SCORE_OUTPUTS["score"](
        replace(scored, result=scored.result | {"perplexity": perplexity})
    )
    assert ("Worse than guessing blindly among the 259 tokens" in page) == blind
    assert ("equally likely ones" in page) != blind


@pytest.mark.parametrize(
    "interval, shown", [((8.0, 79.0), True), ((8.0, 81.0), False), (None, False)]
)
def test_an_interval_that_says_nothing_is_not_shown(scored, interval, shown):
    result = scored.result | {"perplexity": 20.0, "perplexity_interval": interval}
    page, *others = (show(replace(scored, result=result)) for show in (score_view, sentence, card))
    for view in (page, *others):
        assert ("95 % interval within this text 8.000 to 79.00" in view) == shown
    assert ("No interval: the text is too short" in page) != shown


@pytest.mark.parametrize("window, stride", [(2, 1), (2, 2), (3, 2), (8, 7), (8, 8), (9, 1)])
def test_the_sketch_counts_the_context_that_tokens_have(service, window, stride):
    """Window 2 seemed to have more context at stride 1 than at stride 2, which has more."""
    scored = service.score(STORY, Settings(BUNDLED, window, stride), Job(60))
    later = scored.tokens["windows"][1]["first"]
    contexts = scored.tokens["context_length"][later:]
    said = sketch(window, stride)
    least, *most = regex.findall(r"<b>(\d+)(?: to (\d+))? tokens?</b>", said)[0]
    assert int(least) == min(contexts) and int(most[0] or least) == max(contexts)
    without_overlap = service.score(STORY, Settings(BUNDLED, window, window), Job(60)).tokens
    more = sum(without_overlap["context_length"][later:]) > sum(contexts)
    assert (f"Stride {window} leaves more" in said) == more


def test_colours_follow_the_legend(scored):
    page = SCORE_OUTPUTS["text"](scored)
    edges = [0, 1, 3, 6, 10, 15, math.inf]
    text = scored.text
    expected = []
    for segment in cut(text, scored.tokens["offsets"]):
        own = scored.tokens["nll"][segment.first : segment.last + 1]
        bits = sum(own) / math.log(2)
        expected.append(next(n for n in range(6) if edges[n] <= bits < edges[n + 1]))
    assert pieces_of(page)["classes"].split() == [f"b{colour}" for colour in expected]
    assert pieces_of(page)["text"] == text


def test_pieces_are_cut_where_the_script_cuts_them(scored):
    """JavaScript counts an emoji as two characters or more."""
    pieces = pieces_of(SCORE_OUTPUTS["text"](scored))
    utf16 = pieces["text"].encode("utf-16-le")
    ends = [2 * end for end in itertools.accumulate(pieces["lengths"])]
    shown = [utf16[a:b].decode("utf-16-le") for a, b in itertools.pairwise([0, *ends])]
    segments = cut(scored.text, scored.tokens["offsets"])
    assert shown == [scored.text[segment.start : segment.end] for segment in segments]
    assert max(pieces["lengths"]) > max(len(piece) for piece in shown)  # there is an emoji


def test_spaces_without_a_token_are_no_pieces(folders):
    spaced = Service(folders["words"]).score(words([5, 9, 4] * 9), Settings(BUNDLED), Job(60))
    pieces = pieces_of(SCORE_OUTPUTS["text"](spaced))
    assert [c == "-" for c in pieces["classes"].split()] == [False, True] * 26 + [False]


def test_every_protocol_is_shown_with_its_number_or_its_reason(service):
    sweep = service.every_protocol("A short text.", Settings(BUNDLED, 64, 32), Job(60))
    page = protocol_view(sweep)
    assert len(sweep.scored) + len(sweep.failed) == len(service.protocols)
    reasons = {settings.protocol: reason for settings, reason in sweep.failed}
    assert "must have at least 128 tokens with the protocol llama.cpp" in reasons["llama.cpp"]
    assert "Lower the window, or pass more text." in reasons["llama.cpp"]
    assert all("`" not in reason for reason in reasons.values())
    assert all(escape(reason) in page for reason in reasons.values())


def fake_trade_off(scored, *perplexities, interval=(0.8, 0.9), contexts=()):
    """Results at strides 64, 32, … with given perplexities; the last differs from the first."""
    made = []
    for place, perplexity in enumerate(perplexities):
        result = scored.result | {"perplexity": perplexity}
        if place:
            ratio = {"ratio": perplexity / perplexities[0], "interval": interval}
            result["ratio_to_first"] = ratio
        stride = replace(scored.settings, stride=64 >> place)
        result["stride"] = stride.stride
        made.append(replace(scored, settings=stride, result=result))
    return TradeOff(made, contexts)


def test_the_knee_is_the_cheapest_stride_with_most_of_the_gain(scored):
    trade_off = fake_trade_off(scored, 100.0, 85.0, 80.6, 80.0, 80.1)
    assert trade_off.best is trade_off.strides[3]
    assert trade_off.knee is trade_off.strides[2]
    share = math.log(100 / 80.6) / math.log(100 / 80)
    assert gain_share(80.6, [100.0, 85.0, 80.0, 80.1]) == pytest.approx(share)
    told = headline(trade_off)
    assert "Stride 8 instead of 64" in told
    assert f"<b>Stride 16</b> gets {100 * share:.0f} % of this gain" in told
    page = trade_off_view(trade_off)
    assert page.count("16 (knee)") == 1 and "−19.4 %" in page


@pytest.mark.parametrize(
    "perplexities, interval, said",
    [
        ((100.0, 95.0), None, "too short to tell whether that is chance"),
        ((100.0, 95.0), (0.7, 1.1), "That may be chance"),
        ((95.0, 100.0), (1.01, 1.1), "No smaller stride lowers the perplexity"),
    ],
)
def test_a_gain_that_may_be_chance_has_no_knee(scored, perplexities, interval, said):
    trade_off = fake_trade_off(scored, *perplexities, interval=interval)
    assert trade_off.knee is None
    told = headline(trade_off)
    assert said in told and "gets" not in told
    page = trade_off_view(trade_off)
    assert "knee" not in page
    # What all are compared with has no interval: a band used to shrink to nothing there.
    assert page.count('class="ps-error"') == page.count("Bars:") == (interval is not None)


def test_the_headline_and_the_chart_are_of_one_computation(scored):
    """One tested the smallest stride and the other the best: "may be chance" stood over a clear gain."""
    trade_off = fake_trade_off(scored, 46.6, 44.75, 44.78, 44.77, 44.95, interval=(0.93, 0.995))
    unsure = trade_off.strides[-1].result["ratio_to_first"] | {"interval": (0.926, 1.005)}
    trade_off.strides[-1].result["ratio_to_first"] = unsure
    assert trade_off.best is trade_off.knee is trade_off.strides[1]
    told = headline(trade_off)
    assert "Stride 32 instead of 64: perplexity <b>46.60 → 44.75</b>, −4.0 %" in told
    assert "chance" not in told and "Smaller strides don't help further." in told
    page = trade_off_view(trade_off)
    assert page.count("32 (knee)") == 1 and page.count('class="ps-error"') == 4
    [line] = regex.findall(r'class="ps-base" d="M0 ([\d.]+)h', page)
    *_, widest = regex.findall(r'class="ps-mark"[^>]*?top:([\d.]+)%', page)
    assert float(line) == pytest.approx(float(widest), abs=0.01)
    assert "−4.0 % (95 % interval −7.0 to −0.5 %)" in told and (
        "−4.0 % (95 % interval −7.0 to −0.5 %)" in page
    )
    segments, _ = text_segments(scored)
    assert measure_gains(trade_off.wide, trade_off.best, segments)


def test_a_text_of_one_window_has_no_trade_off(service):
    trade_off = service.trade_off("Hi", Settings(BUNDLED, 64), Job(60))
    assert trade_off_view(trade_off) == ""


def test_the_curve_of_contexts_is_the_metrics(service):
    trade_off = service.trade_off(STORY, Settings(BUNDLED, 64), Job(60))
    model = trade_off.wide.loaded
    expected = new_metric().compute(
        predictions=[STORY],
        model=model.model,
        tokenizer=model.tokenizer,
        context_lengths="doubling",
    )["by_context_length"]
    assert [row["context_length"] for row in trade_off.by_context] == [8, 16, 32, 64]
    for row, other in zip(trade_off.by_context, expected):
        assert row["perplexity"] == pytest.approx(other["perplexity"], rel=1e-6)
    page = trade_off_view(trade_off)
    for row in expected:
        assert (
            f"a window of {row['context_length']}: perplexity {number(row['perplexity'])}" in page
        )
    assert f"The same {expected[0]['num_tokens']:,} tokens" in page


def context_rows(*perplexities, interval):
    """The metric's rows at 8, 16, … tokens; the first differs from the longest by an interval."""
    rows = [
        {"context_length": 8 << place, "perplexity": perplexity, "num_tokens": 500}
        for place, perplexity in enumerate(perplexities)
    ]
    for row in rows[:-1]:
        ratio = row["perplexity"] / perplexities[-1]
        row["ratio_to_longest"] = {"ratio": ratio, "interval": interval}
    return rows


@pytest.mark.parametrize(
    "perplexities, interval, said, knee",
    [
        ((120.0, 101.0, 100.2, 100.0), (1.1, 1.3), "A 16-token window gets 95 % of what", 16),
        ((120.0, 110.0, 100.0, 101.0), (1.1, 1.3), "A 32-token window is enough", 32),
        ((120.0, 110.0, 105.0, 100.0), (1.1, 1.3), "The model uses all 64 tokens", 64),
        ((120.0, 110.0, 105.0, 100.0), (0.9, 1.3), "makes no difference that is clear", None),
        ((120.0, 110.0, 105.0, 100.0), None, "makes no difference that is clear", None),
    ],
)
def test_the_knee_of_the_contexts_is_the_shortest_that_brings_most(
    scored, perplexities, interval, said, knee
):
    rows = context_rows(*perplexities, interval=interval)
    trade_off = fake_trade_off(scored, 100.0, 80.0, contexts=rows)
    page = trade_off_view(trade_off).split("<h3>")[-1]
    assert said in page
    assert regex.findall(r">(\d+) \(knee\)<", page) == ([] if knee is None else [str(knee)])


# Charts


def places_of(chart, name):
    return [float(left) for left in regex.findall(rf'class="{name}" [^>]*?left:([\d.]+)%', chart)]


def test_a_line_has_error_bars_only_where_it_has_intervals():
    points = [
        Point(2.0**n, 1.0 + n, str(2**n), f"point {n}", None if n == 2 else (0.5 + n, 1.5 + n))
        for n in range(5)
    ]
    chart = line_chart(points, "x", "y")
    lefts = places_of(chart, "ps-mark")
    tops = [float(top) for top in regex.findall(r'class="ps-mark"[^>]*?top:([\d.]+)%', chart)]
    bars = [
        [float(end) for end in bar]
        for bar in regex.findall(r'class="ps-error" d="[^"]*M([\d.]+) ([\d.]+)V([\d.]+)"', chart)
    ]
    assert [bar[0] for bar in bars] == pytest.approx([lefts[n] for n in (0, 1, 3, 4)], abs=0.01)
    half = (tops[0] - tops[4]) / 8  # a point is 1 above the one before
    for (_, low, high), n in zip(bars, (0, 1, 3, 4)):
        assert [low - tops[n], tops[n] - high] == pytest.approx([half, half], abs=0.02)
    steps = [after - before for before, after in itertools.pairwise(lefts)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.1)  # logarithmic


def test_a_line_chart_shows_its_base():
    points = [Point(1, 5.0, "1", "a", None), Point(2, 6.0, "2", "b", None)]
    chart = line_chart(points, "x", "y", base=0)
    [level] = regex.findall(r'<path class="ps-base" d="M0 ([\d.]+)h', chart)
    lowest = max(float(top) for top in regex.findall(r'ps-mark"[^>]*top:([\d.]+)%', chart))
    assert float(level) > lowest and "<b>0</b>" in chart


def test_a_distribution_counts_every_value():
    values = [0.001] * 5 + [0.1] * 10 + [10.0]
    chart = distribution_chart(values, [(0.1, "half"), (10.0, "largest")], "KL", "Tokens")
    heights = [float(h) for h in regex.findall(r'height="([\d.]+)"', chart)]
    assert [round(10 * h / max(heights)) for h in heights if h] == [5, 10, 1]
    assert "16 values" in chart and places_of(chart, "ps-line-mark")[1] == pytest.approx(94, abs=1)


def test_a_density_lies_on_the_line_where_both_are_equal():
    values = [0.5 * n for n in range(20)]
    chart = density_chart(values, values, "x", "y", "All on the line.")
    cells = regex.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', chart)
    assert cells and all(
        float(x) + float(y) + float(w) == pytest.approx(100, abs=0.1) for x, y, w in cells
    )
    worse = density_chart([1.0] * 9, [3.0] * 9, "x", "y", "Above.")
    [(x, y)] = regex.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', worse)
    assert float(y) < 100 - float(x) - 20  # above the line


def bars(picture, kind):
    """Places (begin, width) of the bars of a kind, in tokens."""
    found = regex.findall(
        rf'class="{kind}" x="(\d+)" y="\d+" width="(\d+)" height="(?:1|0.8)"', picture
    )
    return [(int(begin), int(width)) for begin, width in found]


def test_pictures_of_protocols_show_what_is_thrown_away(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    length = len(sweep.scored[0].tokens["tokens"])
    for one in sweep.scored:
        windows, coverage = window_picture(one).split("</svg>")[:2]
        assert f'viewBox="0 0 {len(one.tokens["tokens"])} 1"' in coverage  # the whole text
        lost = one.tokens["nll"].count(None)
        assert sum(width for _, width in bars(coverage, "ps-lost")) == lost
        drawn = [(w["first"], w["end"] - w["first"]) for w in one.tokens["windows"]]
        reach = [new for new in drawn if new[0] < 640]
        assert bars(windows, "ps-new")[:3] == reach[:3]
    cut = {one.settings.protocol: one.tokens["nll"].count(None) for one in sweep.scored}
    assert cut["stock"] == length - 63 and cut["sliding"] == 0
    title = "How the first 640 tokens are split" if length > 640 else "How the text is split"
    assert title in protocol_view(sweep)


def test_windows_that_would_hide_each_other_are_not_all_drawn(service):
    one = service.score(STORY, Settings(BUNDLED, 64, 4), Job(60))
    picture = window_picture(one)
    assert "1 in 6 drawn" in picture
    starts = [begin for begin, _ in bars(picture.split("</svg>")[0], "ps-new")]
    expected = [w["first"] for w in one.tokens["windows"][::6] if w["begin"] < 640]
    assert starts == expected


def test_protocols_stand_in_order_on_one_axis_with_their_difference(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    page = protocol_view(sweep)
    numbers = sorted(one.result["perplexity"] for one in sweep.scored)
    assert f"Same model, same text: {number(numbers[0])} to {number(numbers[-1])}" in page
    places = [float(left) for left in regex.findall(r'<b style="left:([\d.]+)%"', page)]
    assert places == sorted(places) and places[0] == 4 and places[-1] == 96
    ratio = sweep.scored[4].result["ratio_to_first"]
    shown = f"{100 * (ratio['ratio'] - 1):+.1f} %".replace("-", "−")
    assert shown in page
    assert "what the others are compared with" in page


def test_tools_of_equal_results_are_one_row(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    groups = group_equal(sweep.scored)
    assert sum(map(len, groups)) == len(sweep.scored) > len(groups)
    for group in groups:
        assert len({number(one.result["perplexity"]) for one in group}) == 1
    page = protocol_view(sweep)
    assert page.count("<summary>") == len(groups)
    assert page.count("data-protocol=") == len(sweep.scored)
    names = [one.settings.protocol for one in max(groups, key=len)]
    assert f'<span class="ps-names">{", ".join(names)}</span>' in page


@pytest.mark.parametrize("measure", ["trade_off", "every_protocol"])
def test_a_refusal_stands_in_the_view_that_it_concerns(handlers, measure):
    """The view stayed empty, and the reason stood below the screen."""
    asked = ("", BUNDLED, 64, 32, "automatic", "sliding", "")
    run = handlers.noting("a view", getattr(handlers, measure), ())
    *_, (line, first, *_, measured) = run(visitor(), *asked)
    assert 'role="alert"' in line and "There is no text yet" in first
    assert measured == gr.skip()  # so that it is asked for again


def test_the_story_is_of_the_most_surprising_word(folders):
    scored = Service(folders["bundled"]).score(STORY, Settings(BUNDLED), Job(60))
    told = story(scored)
    offsets, nll = scored.tokens["offsets"], scored.tokens["nll"]
    words_ = [n for n, (a, b) in enumerate(offsets) if any(map(str.isalpha, STORY[a:b]))]
    worst = max((n for n in words_ if nll[n] is not None), key=nll.__getitem__)
    assert STORY[slice(*offsets[worst])].strip() in told and odds(nll[worst]) in told
    assert scored.tokens["alternatives"][worst][0][0].strip() in told


@pytest.mark.parametrize(
    "one_in, said",
    [(1.2, "1 in 1"), (53_318, "1 in 53,300"), (812.4, "1 in 812"), (1e12, "1 in a billion")],
)
def test_odds_for_people(one_in, said):
    assert said in odds(math.log(one_in))
    assert "no chance" in odds(math.inf)


# Words, and a text after a context


@pytest.fixture(scope="module")
def worded(service):
    settings = Settings(BUNDLED, 64, 16, context="Before it, a context 👩‍👩‍👧.", words=True)
    return service.score(" " + MANY * 2, settings, Job(60))


def data_of(page):
    [data] = regex.findall(r"data-payload='([^']*)'", page)
    return json.loads(html.unescape(data))


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
        Refused,
        match=f"The protocol must be one that scores texts after a context, got '{regex.escape(protocol)}'",
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
        ("\ud800", "The context holds broken characters"),
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


# The calls to repeat a number give that number


@pytest.mark.parametrize(
    "settings",
    [
        Settings(BUNDLED, 64, 16),
        Settings(BUNDLED, 64, 64, "none"),
        Settings(BUNDLED, 32, 8, "every"),
        Settings(BUNDLED, 64, protocol="lm-eval"),
        Settings(BUNDLED, 64, start="none", protocol="stock"),
        Settings(ROUNDED, 64, 16),
        Settings(BUNDLED, 64, 16, context="It had rained since noon."),
        Settings(BUNDLED, 64, 16, context="Nobody had come.\n" * 20, words=True),
        Settings(BUNDLED, 64, protocol="lm-eval", context="Was it late?"),
    ],
)
def test_calls_give_the_same_number(folders, elsewhere, capsys, settings):
    text = STORY[:50] if settings.protocol == "lm-eval" and settings.context else STORY
    scored = Service(folders["bytes"]).score(text, settings, Job(60))
    write_files(to_share(scored), elsewhere)
    namespace = {}
    exec(python_call(scored), namespace)
    capsys.readouterr()
    assert namespace["results"]["perplexity"] == pytest.approx(
        scored.result["perplexity"], rel=1e-6
    )
    printed = run_shell(shell_call(scored), folders, capsys)
    [printed] = printed.get("files") or [printed["corpus"]]  # of a table, all of it
    reads = scored.result["num_forward_tokens"]  # one more where the words are scored
    assert namespace["results"]["num_forward_tokens"] == printed["num_forward_tokens"] == reads
    assert printed["perplexity"] == pytest.approx(scored.result["perplexity"], rel=1e-6)
    if settings.model != ROUNDED:  # which is a folder on the command line
        assert namespace["results"]["signature_short"] == scored.result["signature_short"]


def test_calls_repeat_a_comparison(folders, elsewhere, capsys):
    compared = Service(folders["bytes"]).compare(STORY, Settings(ROUNDED, 64), BUNDLED, Job(60))
    (elsewhere / "text.txt").write_text(STORY, encoding="utf-8", newline="")
    namespace = {}
    exec(python_call(compared.scored, compared.reference), namespace)
    assert capsys.readouterr().out.strip() == compared.comparison["summary"]
    printed = run_shell(shell_call(compared.scored, compared.reference), folders, capsys)
    found = printed["models"][0]["comparison"]["perplexity_ratio"]["ratio"]
    assert found == pytest.approx(compared.comparison["perplexity_ratio"]["ratio"], rel=1e-6)


@pytest.fixture
def elsewhere(folders, tmp_path, monkeypatch):
    """A folder with the metric and the model, and nothing else of the page."""
    (tmp_path / "demo_model").symlink_to(folders["bytes"])
    for path in ROOT.glob("*.py"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_shell(call, folders, capsys):
    """What the commands to copy print; the copy is made of the folder's model."""
    *before, command = [shlex.split(line) for line in call.splitlines()]
    if before:
        assert before == [
            ["python", "demo_model/round_weights.py", "--bits", "4", "--output", "demo_model-4bit"]
        ]
        for part in load_rounded(folders["bytes"], 4):
            part.save_pretrained(ROUNDED)
    assert command[:2] == ["python", "score.py"]
    capsys.readouterr()
    assert command_line.main([*command[2:], "--json"]) in (0, None)
    return json.loads(capsys.readouterr().out)


def test_on_a_space_the_call_to_copy_works_anywhere(folders, tmp_path, monkeypatch):
    """Outside of any clone, with nothing but what `evaluate` and the Hub bring."""
    import evaluate
    import huggingface_hub

    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "demo_model").symlink_to(folders["bytes"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("SPACE_ID", "user/perplexity_sliding")
    asked, load, here = [], evaluate.load, str(ROOT / "perplexity_sliding.py")

    def snapshot_download(name, repo_type):
        asked.append((name, repo_type))
        return str(tmp_path / "space")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(
        evaluate,
        "load",
        lambda name, **how: load(name.replace("user/perplexity_sliding", here), **how),
    )
    scored = Service(folders["bytes"]).score(STORY, Settings(BUNDLED, 64, 16), Job(60))
    (tmp_path / "elsewhere" / "text.txt").write_text(STORY, encoding="utf-8", newline="")
    namespace = {}
    exec(python_call(scored), namespace)
    assert namespace["results"]["perplexity"] == scored.result["perplexity"]
    assert asked == [("user/perplexity_sliding", "space")]
    clone, enter, command = shell_call(scored).splitlines()
    assert clone.startswith("git clone https://huggingface.co/spaces/user/perplexity_sliding")
    assert enter == "cd perplexity_sliding"
    assert command.startswith("python score.py ../text.txt --model_id demo_model")


# The page's handlers, as its components call them


def visitor(name="visitor", **query):
    return SimpleNamespace(session_hash=name, query_params=query)


@pytest.fixture
def handlers(service):
    return Handlers(service)


def test_scoring_fills_every_place(handlers):
    handlers.begin(visitor())
    steps = list(handlers.score(visitor(), STORY, BUNDLED, 64, 32, "automatic", "sliding"))
    assert all(len(step) == 4 + len(SCORE_OUTPUTS) for step in steps)
    assert any("progress" in str(step[0]) for step in steps)
    assert "Scored with demo_model" in steps[-1][0]
    assert "ps-big" in steps[-1][4]


def test_refusals_are_announced_and_change_nothing_else(handlers):
    [step] = handlers.score(visitor(), "", BUNDLED, 64, 32, "automatic", "sliding")
    assert 'role="alert"' in step[0] and "There is no text yet" in step[0]
    assert all(value == gr.skip() for value in step[1:])


def test_faults_are_not_shown_to_visitors(handlers, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(handlers.service, "score", fail)
    [step] = handlers.score(visitor(), STORY, BUNDLED, 64, 32, "automatic", "sliding")
    assert "Something went wrong" in step[0] and "secret" not in step[0]
    assert "secret detail" in caplog.text


def test_the_stop_button_ends_the_visitors_own_request(handlers):
    handlers.begin(visitor())
    steps = handlers.score(visitor(), STORY, BUNDLED, 64, 1, "automatic", "sliding")
    next(steps)
    handlers.stop(visitor("neighbour"))
    next(steps)
    # Its answer could arrive behind the job's last word, so the job itself says "Stopping…".
    assert handlers.stop(visitor()) is None
    last = list(steps)[-1]
    assert "Stopped." in last[0]


def test_sliders_follow_the_model(handlers):
    steps = list(handlers.adopt_model(visitor(), "owner/words", 32, "sliding"))
    _, name, window, stride, picture = steps[-1]
    assert name == "owner/words"
    assert (window.value, window.maximum) == (16, 16)
    assert (stride.value, stride.maximum) == (8, 16)
    assert "<b>8 to 15 tokens</b> of context" in picture


def test_the_stride_follows_the_window(handlers):
    stride, _ = handlers.move_window(16, 48, "sliding")
    assert (stride.value, stride.maximum) == (16, 16)


@pytest.mark.parametrize(
    "window, stride, taken",
    [
        (16, 48, (16, 16)),
        (999999, 4, (999999, 4)),
        (-5, 0, (2, 2)),
        (None, None, (2, 2)),
        (7.9, math.nan, (7, 7)),
        (math.inf, "3", (2, 2)),
    ],
)
def test_whatever_is_typed_into_the_sliders_can_be_drawn(handlers, window, stride, taken):
    slider, drawn = handlers.move_window(window, stride, "sliding")
    assert (slider.maximum, slider.value) == taken
    assert handlers.move_stride(window, stride, "sliding") == (drawn, taken[1])


@pytest.mark.parametrize(
    "window, stride, said",
    [
        (999999, 4, "Scored with"),  # as long as the model takes
        (None, None, "Scored with"),
        (-5, 4, "The window must be between 2 and 64"),
        (32, 0, "The stride must be between 1 and"),
    ],
)
def test_whatever_is_typed_is_scored_or_refused_with_a_sentence(handlers, window, stride, said):
    *_, last = handlers.score(visitor(), STORY, BUNDLED, window, stride, "automatic", "sliding")
    assert said in last[0]


def test_a_protocol_without_a_stride_switches_the_slider_off(handlers):
    stride, start, *_ = handlers.choose_protocol("llama.cpp", 64, "once")
    assert stride.interactive is False
    assert stride.value == 64  # the tool's own
    assert start.interactive is False
    stride, *_ = handlers.choose_protocol("megatron", 64, "once")
    assert (stride.interactive, stride.value) == (True, 32)


def test_each_protocol_begins_with_its_usual_stride(handlers):
    """The stride of the protocol before stayed, and with it the number was another."""
    *_, wanted = handlers.choose_protocol("fairseq", 64, "once")
    assert wanted == 64
    stride, *_, wanted = handlers.choose_protocol("sliding", 64, "once")
    assert stride.value == wanted == 32


def arrive(handlers, behind="", kept="", **query):
    """What a visitor finds who comes by a link."""
    names = ("text", "context", "model", "window", "stride", "start", "protocol", "sketch")
    values = handlers.arrive(visitor(**query), behind, kept, 3)
    names += ("status", "visits", "remark")
    return SimpleNamespace(**dict(zip(names, values, strict=True)))


def test_links_set_the_controls_and_are_scored(handlers):
    found = arrive(handlers, window="32", stride="4", protocol="transformers-docs")
    assert (found.model, found.protocol) == (BUNDLED, "transformers-docs")
    assert (found.window.value, found.stride.value) == (32, 4)
    assert found.text == gr.skip()
    assert found.visits == 4  # which scores


def test_a_link_may_bring_a_text_alone(handlers):
    found = arrive(handlers, f"#text={pack(MANY)}")
    assert (found.text, found.visits) == (MANY, 4)
    assert (found.window.value, found.stride.value) == (64, 32)


def test_a_text_is_back_after_a_reload_even_if_the_address_is_older(handlers):
    kept = json.dumps({"text": "typed later", "context": "and this before it"})
    found = arrive(handlers, f"#text={pack(MANY)}", kept, window="32")
    assert (found.text, found.context) == ("typed later", "and this before it")
    assert (found.window.value, found.visits) == (32, 4)


def test_a_long_text_that_is_back_waits_for_the_button(handlers):
    found = arrive(handlers, kept=json.dumps({"text": "long " * 20_000, "context": ""}))
    assert found.text.startswith("long") and found.visits == 3
    assert "Press Score" in found.status


@pytest.mark.parametrize("kept", ["", "{", "[1]", '{"text": 5}', "null", '{"other": "x"}'])
def test_what_no_page_kept_is_no_text(handlers, kept):
    assert all(value == gr.skip() for value in vars(arrive(handlers, kept=kept)).values())


def test_a_window_alone_brings_half_of_it_as_stride(handlers):
    found = arrive(handlers, window="32")
    assert (found.window.value, found.stride.value) == (32, 16)


@pytest.mark.parametrize(
    "behind, query, said",
    [
        ("", {"window": "1"}, "window in the link is not a number"),
        ("#text=*", {}, "text in the link is broken"),
    ],
)
def test_a_link_of_which_nothing_is_left_says_so_alone(handlers, behind, query, said):
    *others, remark = vars(arrive(handlers, behind, **query)).values()
    assert said in remark.value and 'role="alert"' in remark.value
    assert all(value == gr.skip() for value in others)


@pytest.mark.parametrize(
    "behind, query, said",
    [
        ("", {"window": "32", "stride": "some"}, "stride in the link is not a number"),
        ("#text=*", {"window": "32"}, "text in the link is broken"),
    ],
)
def test_a_link_that_is_partly_wrong_says_so_and_is_scored(handlers, behind, query, said):
    found = arrive(handlers, behind, **query)
    assert said in found.remark.value and found.remark.visible
    assert (found.window.value, found.stride.value, found.visits) == (32, 16, 4)


def test_a_link_with_too_long_a_window_says_what_is_used(handlers):
    found = arrive(handlers, window="100000", stride="90000")
    assert found.window.value == 64
    assert "window of 100,000 is more than fits: 64 is used" in found.remark.value
    assert "stride of 90,000" in found.remark.value


def test_an_address_without_its_text_says_so(handlers):
    long = "".join(map(chr, range(300, 2300)))
    asked = (BUNDLED, 64, 64, "automatic", "sliding")
    *_, (line, *_) = handlers.score(visitor(), long, *asked)
    assert "too long for a link" in line
    *_, (line, *_) = handlers.score(visitor(), STORY, *asked)
    assert "too long" not in line


def test_a_link_to_another_model_asks_for_its_own_window(handlers):
    found = arrive(handlers, model="owner/words")
    model, window, stride = found.model, found.window, found.stride
    assert (model, window.value, stride.value) == ("owner/words", 2048, 1024)
    chosen = (model, window.value, stride.value, "automatic", "sliding")
    last = list(handlers.score(visitor(), words([5, 9, 4] * 20), *chosen))[-1]
    assert (last[1].value, last[1].maximum) == (16, 16)  # what the model takes
    assert (last[2].value, last[2].maximum) == (8, 16)


def test_a_visitor_who_arrives_does_not_wait_for_those_who_compute(handlers):
    handlers.service.default_settings  # noqa: B018  # known since the page was built
    arrived = []
    with handlers.service.line.turn(Job(60)):  # as during a computation
        visit = threading.Thread(target=lambda: arrived.append(arrive(handlers, stride="4")))
        visit.start()
        visit.join(timeout=30)
    assert arrived[0].stride.value == 4


def test_a_plain_visit_changes_nothing(handlers):
    assert all(value == gr.skip() for value in vars(arrive(handlers)).values())


def test_a_hostile_link_is_ignored_with_a_sentence(handlers):
    found = arrive(handlers, stride="1e9", protocol="<script>alert(1)</script>", window="99999")
    assert 'role="alert"' in found.remark.value
    assert "<script>" not in found.remark.value


# The served app


@pytest.fixture(scope="module")
def url(folders, hub):
    """The app with the bundled model, served on this machine."""
    page = app.create_app(folders["bundled"], endpoint=hub.endpoint)
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    yield url
    page.close()


def test_the_api_has_two_functions_with_types_and_words(url):
    told = Client(url, httpx_kwargs=PATIENT, verbose=False).view_api(
        return_format="dict", print_info=False
    )
    named = told["named_endpoints"]
    assert set(named) == {"/score", "/compare"}
    parameters = {p["parameter_name"]: p for p in named["/score"]["parameters"]}
    assert list(parameters) == [
        *("text", "model", "window", "stride", "start_token", "protocol", "tokens"),
        *("context", "words"),
    ]
    for endpoint in named.values():
        for parameter in endpoint["parameters"]:
            assert parameter["label"] == parameter["parameter_name"]
            assert len(parameter["python_type"]["description"]) > 10
    assert "half of it by default" in parameters["stride"]["python_type"]["description"]
    assert parameters["text"]["python_type"]["type"] == "str"
    assert parameters["stride"]["parameter_has_default"]
    assert "Perplexity of a text" in named["/score"]["description"]
    assert "Compare a model with a reference" in named["/compare"]["description"]


def test_the_api_gives_the_metrics_number(url, folders, metric):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY, stride=16, api_name="/score"
    )
    expected = metric.compute(predictions=[STORY], model_id=folders["bundled"], stride=16)
    assert result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
    assert result["num_windows"] == expected["num_windows"]
    assert (
        result["signature"].split("|protocol:")[1] == expected["signature"].split("|protocol:")[1]
    )


def test_the_api_gives_tokens_and_words_to_quote(url):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY, tokens=True, api_name="/score"
    )
    assert sum(row["nll"] for row in result["tokens"]) == pytest.approx(result["total_nll"])
    assert STORY[result["tokens"][4]["start"] : result["tokens"][4]["end"]].strip()
    assert result["text_sha256"] == hashlib.sha256(STORY.encode()).hexdigest()
    assert result["text_sha256"] in result["sentence"]
    assert "#text=" in result["link"]


def test_the_api_gives_words_after_a_context(url):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        " was kind.", context="The old man", words=True, api_name="/score"
    )
    assert [row["word"] for row in result["words"]] == ["was", "kind."]
    assert " was kind."[result["words"][1]["start"] : result["words"][1]["end"]] == "kind."
    assert result["num_context_tokens"] > 0 and "of context" in result["sentence"]
    assert "&context=" in result["link"]


def test_what_json_has_no_number_for_is_said_in_words():
    assert plain({"a": [math.inf, (math.nan, 1.5)], "b": -math.inf, "c": None}) == {
        "a": ["inf", ["nan", 1.5]],
        "b": "-inf",
        "c": None,
    }


def test_a_language_model_gets_json(url):
    """Gradio's own header says that a tool was called through MCP."""
    client = Client(url, httpx_kwargs=PATIENT, verbose=False, headers={"x-gradio-user": "mcp"})
    answer = client.predict("Some text.", api_name="/score")
    assert json.loads(answer)["perplexity"] > 1


def test_the_api_compares(url, folders):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY * 3, tokens=True, api_name="/compare"
    )
    comparison, rows = result["comparison"], result["tokens"]
    assert result["signature"].startswith("model:demo_model-4bit|")
    assert comparison["reference_signature"].startswith("model:demo_model|")
    ratio = result["perplexity"] / comparison["reference_perplexity"]
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(ratio, rel=1e-6)
    scored = [row for row in rows if row["nll"] is not None]
    assert len(scored) == result["num_tokens"]
    changes = [row["nll"] - row["reference_nll"] for row in scored]
    assert math.exp(sum(changes) / len(changes)) == pytest.approx(ratio, rel=1e-5)
    assert sum(row["kl"] for row in scored) / len(scored) == pytest.approx(
        comparison["kl"], rel=1e-5
    )
    assert all(row["top"] and row["reference_top"] for row in scored)
    assert (STORY * 3)[rows[4]["start"] : rows[4]["end"]].strip()
    documented = new_metric().inputs_description
    assert not [k for k in comparison if regex.sub("_(interval|pvalue)$", "", k) not in documented]
    assert {"verdict", "summary", "same_top", "token_agreement", "worst_tokens"} <= set(comparison)


def test_the_api_compares_models_with_other_tokens_by_bytes(url):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY * 3, "demo_model", "owner/bytes", tokens=True, api_name="/compare"
    )
    comparison, pieces = result["comparison"], result["tokens"]
    assert comparison["compared"] == "bytes"
    low, high = comparison["bits_per_byte_change_interval"]
    assert low <= comparison["bits_per_byte_change"] <= high
    total = sum(piece["nll"] - piece["reference_nll"] for piece in pieces) / math.log(2)
    assert total / comparison["num_compared_bytes"] == pytest.approx(
        comparison["bits_per_byte_change"], rel=1e-6
    )


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"stride": 100}, "The stride must be between 1 and the window, 64 tokens"),
        ({"window": 65}, "The window must be between 2 and 64 tokens"),
        ({"model": "demo_model"}, "two different models"),
        ({"model": ""}, "`model` must be the name of a model"),
        ({"reference_model": ""}, "`reference_model` must be the name of a model"),
    ],
)
def test_the_api_compares_as_asked_or_not_at_all(url, arguments, said):
    with pytest.raises(Exception, match=said):
        Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
            STORY, **arguments, api_name="/compare"
        )


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"text": ""}, "There is no text yet"),
        ({"text": "x", "model": "../up"}, "not the name of a model"),
        ({"text": "x", "model": "owner/absent"}, "no public model called owner/absent"),
        ({"text": "x", "window": 10**6}, "The window must be between"),
        ({"text": "x", "stride": -1}, "The stride must be between"),
        ({"text": "x", "stride": 0}, r"The stride must be between.* is 0\.$"),
        ({"text": "x", "protocol": "mine"}, "There is no protocol called"),
        (
            {"text": "x", "protocol": "llama.cpp", "stride": 4},
            "llama.cpp has no `stride` to choose",
        ),
        (
            {"text": "x", "protocol": "lm-eval", "start_token": "every"},
            "has no `start_token` “every”",
        ),
        ({"text": "x", "model": None}, "must be the name of a model"),
        ({"text": "x", "model": "n" * 500}, "not the name of a model"),
        ({"text": "x", "protocol": ["sliding"]}, "`protocol` must be a name"),
        ({"text": "x", "protocol": {}}, "`protocol` must be a name"),
        ({"text": "x", "start_token": ["once"]}, "`start_token` must be a name"),
        ({"text": "x", "window": {}}, "The window must be a whole number"),
        ({"text": ["x"]}, "There is no text yet"),
        ({"text": "x", "context": {"a": 1}}, "The context must be a text"),
        ({"text": "x", "protocol": "gptq", "words": True}, "`words` must be left out"),
        (
            {"text": "x", "protocol": "gptq", "context": "y"},
            "must be one that scores texts after a context",
        ),
    ],
)
def test_the_api_refuses_with_a_sentence(url, arguments, said):
    with pytest.raises(Exception, match=said):
        Client(url, httpx_kwargs=PATIENT, verbose=False).predict(**arguments, api_name="/score")


def test_faults_reach_no_caller(url, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("a secret")

    monkeypatch.setattr(Service, "score", fail)
    with pytest.raises(Exception, match="Something went wrong on this page's side"):
        Client(url, httpx_kwargs=PATIENT, verbose=False).predict("x", api_name="/score")


def test_parallel_visitors_each_get_their_own_answer(url, folders, metric):
    texts = [f"Visitor {n} writes {n} lines. " * (3 + n) for n in range(8)]
    strides = [8, 16, 32, 64] * 2
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(
                lambda text, stride: Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
                    text, stride=stride, api_name="/score"
                ),
                texts,
                strides,
            )
        )
    for text, stride, result in zip(texts, strides, results):
        expected = metric.compute(predictions=[text], model_id=folders["bundled"], stride=stride)
        assert result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
        assert result["num_tokens"] == expected["num_tokens"]
        assert f"|stride:{stride}|" in result["signature"]


@pytest.fixture
def served(folders):
    """A service with a short line whose model reads bytes, and the address where it is served."""
    service = Service(folders["bytes"], Limits(waiting=4))
    page = build(service)
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    yield service, url
    page.close()


def ask(url, **headers):
    """Ask for a score as a program does that does not wait for it; return where the answer will be."""
    import httpx

    call = f"{url}gradio_api/call/score"
    data = [STORY, BUNDLED, None, None, "automatic", "sliding", False, "", False]
    asked = httpx.post(call, json={"data": data}, headers=headers, timeout=60)
    return f"{call}/{asked.json()['event_id']}"


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_nobody_waits_for_is_not_computed(served, monkeypatch):
    """A hundred such requests kept the next visitor waiting for two minutes."""
    service, url = served
    monkeypatch.setattr(listeners, "PATIENCE", 3.0)
    with service.line.turn(Job(60)):  # nobody gets a turn
        for n in range(3):
            ask(url, **{"x-forwarded-for": f"9.9.9.{n}"})
        until(lambda: len(service.line) > 1)
        until(lambda: len(service.line) == 1)


def test_a_request_ends_when_its_caller_leaves(served, monkeypatch):
    import httpx

    service, url = served
    monkeypatch.setattr(listeners, "PATIENCE", 2.0)
    with service.line.turn(Job(60)):
        answer = ask(url)
        with httpx.stream("GET", answer, timeout=60):
            time.sleep(3)
            assert len(service.line) == 2  # somebody waits for it
        until(lambda: len(service.line) == 1)


def test_a_tool_call_ends_when_its_caller_leaves(served, monkeypatch):
    """Through MCP a client in the Space's own process listens, and would to the end."""
    pytest.importorskip("mcp", reason="the mcp package is not installed")
    import httpx

    service, url = served
    monkeypatch.setattr(listeners, "PATIENCE", 2.0)
    tools = httpx.get(f"{url}gradio_api/mcp/schema").json()
    [score] = [tool for tool in tools if tool["name"].endswith("score")]
    call = {"name": score["name"], "arguments": {"text": STORY}}
    request = {
        "json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        "headers": {"Accept": "application/json, text/event-stream"},
        "timeout": 60,
    }
    with service.line.turn(Job(60)):
        with httpx.stream("POST", f"{url}gradio_api/mcp/", **request):
            until(lambda: len(service.line) == 2)
            time.sleep(3)
            assert len(service.line) == 2  # somebody waits for it
        until(lambda: len(service.line) == 1)


def test_a_tool_call_has_a_key_of_its_own(monkeypatch):
    """Whatever the caller writes into the header; what is no call of a tool is left as it is."""
    headers = [(b"accept", b"*/*"), (b"X-Perplexity-Caller", b"mine")]
    scope = {"type": "http", "method": "POST", "path": "/gradio_api/mcp/", "headers": headers}
    seen = []

    async def app(scope, receive, send):
        told = dict(scope["headers"])
        key = told[listeners.CALLER.encode()].decode()
        served = SimpleNamespace(scope=scope)
        caller = {listeners.CALLER: key}
        watched = SimpleNamespace(session_hash="open", headers=caller, request=served)
        seen.append((key, counted.listens(key), listeners.watch(watched)))
        assert len(scope["headers"]) == 2 and told[b"accept"] == b"*/*"

    counted = listeners.Listeners(app)
    asyncio.run(counted(scope, None, None))
    [(key, listened, has_left)] = seen
    assert listened and key != "mine" and not counted.listens(key)
    counted._count("open", 1)  # the stream of the client in this process
    assert not has_left()
    monkeypatch.setattr(listeners, "PATIENCE", -1.0)
    assert has_left()
    other = {"method": "POST", "path": "/gradio_api/call/score", "headers": headers}
    assert listeners.mark_tool_call(other) is None and other["headers"] is headers


def test_without_the_middleware_nobody_seems_to_leave():
    assert not listeners.watch(visitor())()


def test_too_many_requests_are_turned_away_with_a_sentence(served):
    service, url = served
    with service.line.turn(Job(60)):
        callers = [Client(url, httpx_kwargs=PATIENT, verbose=False) for _ in range(6)]
        jobs = [caller.submit("Some text.", api_name="/score") for caller in callers]
        refused, waiting = futures.wait(jobs, timeout=60, return_when=futures.FIRST_COMPLETED)
        while len(waiting) > 4:
            done, waiting = futures.wait(waiting, 60, return_when=futures.FIRST_COMPLETED)
            refused |= done
    assert all("no room" in str(job.exception(timeout=60)) for job in refused)
    assert all(job.result(timeout=60)["num_tokens"] == 10 for job in waiting)


@pytest.mark.parametrize(
    "space, forwarded, expected",
    [
        (None, "9.9.9.9", "10.1.1.1"),  # nobody vouches for it
        ("user/space", "9.9.9.9", "9.9.9.9"),
        ("user/space", "6.6.6.6, 9.9.9.9, 10.0.0.7", "9.9.9.9"),  # forged, seen, a proxy
        ("user/space", "6.6.6.6,2001:4860::8", "2001:4860::8"),
        ("user/space", "nonsense, 127.0.0.1", "10.1.1.1"),
        ("user/space", "", "10.1.1.1"),
    ],
)
def test_forwarded_addresses_are_believed_from_the_proxy_of_a_space(
    monkeypatch, space, forwarded, expected
):
    monkeypatch.delenv("SPACE_ID", raising=False)
    if space:
        monkeypatch.setenv("SPACE_ID", space)
    request = SimpleNamespace(
        client=SimpleNamespace(host="10.1.1.1"), headers={"x-forwarded-for": forwarded}
    )
    assert address(request) == expected


def test_a_program_of_this_machine_cannot_choose_its_address(served, monkeypatch):
    """Uvicorn takes what such a program forwards for the address of the connection."""
    _, url = served
    seen = []
    monkeypatch.setattr(endpoints, "address", lambda request: seen.append(address(request)))
    headers = {"x-forwarded-for": "9.9.9.9"}
    Client(url, httpx_kwargs=PATIENT, verbose=False, headers=headers).predict(
        "Some text.", api_name="/score"
    )
    assert seen == ["127.0.0.1"]


def test_nobody_gets_around_the_queue(url):
    import httpx

    answer = httpx.post(f"{url}gradio_api/run/score", json={"data": [STORY]})
    assert answer.status_code in (403, 404) or "error" in answer.text.lower()
    assert "perplexity" not in answer.text


def test_the_page_needs_nothing_from_elsewhere(url):
    import httpx

    page = httpx.get(url).text
    outside = set(regex.findall(r'(?:src|href)="(?:https?:)?//([^/"]+)', page))
    assert outside <= {"127.0.0.1", "localhost"}


def test_the_tools_of_the_mcp_server(url):
    pytest.importorskip("mcp", reason="the mcp package is not installed")
    import httpx

    tools = httpx.get(f"{url}gradio_api/mcp/schema").json()
    assert {tool["name"].rsplit("_", 1)[-1] for tool in tools} == {"score", "compare"}
    [score] = [tool for tool in tools if tool["name"].endswith("score")]
    call = {"name": score["name"], "arguments": {"text": "Some text."}}
    reply = httpx.post(
        f"{url}gradio_api/mcp/",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        headers={"Accept": "application/json, text/event-stream"},
        timeout=60,
    )
    [data] = regex.findall(r"data: (.*)", reply.text)
    [content] = json.loads(data)["result"]["content"]
    assert json.loads(content["text"])["perplexity"] > 1


# Why context helps


def test_gains_are_the_differences_of_the_metrics_own_scores(service):
    trade_off = service.trade_off(STORY, Settings(BUNDLED, 64, 32), Job(60))
    wide, narrow = trade_off.wide, trade_off.strides[-1]
    segments, _ = text_segments(wide)
    gains = measure_gains(wide, narrow, segments)
    assert len(gains) == len(wide.tokens["nll"])  # a byte is a piece
    total = sum(gain.saved for gain in gains) * math.log(2)
    expected = wide.result["total_nll"] - narrow.result["total_nll"]
    assert total == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "names, token, context, far",
    [
        ([" lamp", "a", "b", " lamp"], 3, (2, 3), 3),  # only the narrow stride shows it
        ([" lamp", "a", "b", " lamp"], 3, (3, 3), None),  # seen before, too
        (["Lamp", " lamp", "b", " lamp"], 3, (1, 3), 2),  # the nearest
        ([".", "a", "b", "."], 3, (1, 3), None),  # a full stop is no word
    ],
)
def test_a_word_that_came_in_sight(names, token, context, far):
    assert repeated_before(names, token, context) == far


def test_a_text_in_one_window_has_no_gain(service):
    trade_off = service.trade_off("Short.", Settings(BUNDLED, 64, 32), Job(60))
    assert "fits in one window" in gain_view(trade_off)
