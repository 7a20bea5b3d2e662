"""Settings that fit the model, and the guides to those that a protocol takes."""

from dataclasses import replace

import pytest
from models import words
from pages import STORY

from space.jobs import Job
from space.limits import Refused
from space.metric import protocol_rows
from space.models import BUNDLED
from space.protocols import START_CHOICES, guide
from space.service import Service
from space.settings import Settings, check_settings
from space.tools_view import tools_view

PROTOCOLS = tuple(protocol_rows())


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


def test_a_new_protocol_needs_no_word_here(folders, monkeypatch):
    row = protocol_rows()["lm-eval"]
    monkeypatch.setitem(protocol_rows(), "new", replace(row, name="new", source="a new tool"))
    service = Service(folders["bytes"])
    assert "new" in service.protocols
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    numbers = {one.settings.protocol: one.result["perplexity"] for one in sweep.scored}
    assert numbers["new"] == numbers["lm-eval"]
    assert "a new tool" in tools_view(sweep)


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
