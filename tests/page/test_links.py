"""Links bring settings and texts back."""

import base64
import zlib

import pytest
import regex
from pages import MANY, STORY

from space.limits import Limits, Refused
from space.links import MOST_CHARACTERS, has_text, link, pack, read_link, unpack
from space.metric import protocol_rows
from space.models import BUNDLED
from space.settings import Settings

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
