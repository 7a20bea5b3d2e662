"""Texts, uploads and the time that a request may take."""

import time
from types import SimpleNamespace

import pytest
from pages import STORY

from space import service as space_service
from space.jobs import Job, OverBudget
from space.limits import Limits, Refused
from space.models import BUNDLED
from space.samples import read_upload, samples
from space.service import Service, affordable
from space.settings import Settings
from space.sweep_view import trade_off_view


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
