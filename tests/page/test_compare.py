"""Two models on one text: the metric's own numbers, and what the page shows of them."""

import math
from dataclasses import replace

import pytest
import torch
from models import words
from pages import OWN_TAGS, STORY, Reader

from perplexity_sliding.views.comparison import (
    Change,
    change_colour,
    comparison_view,
    measure_changes,
)
from perplexity_sliding.views.text import cut, number, text_segments
from space.endpoints import compare_summary
from space.jobs import Job
from space.limits import Refused
from space.measure import measure_pair
from space.metric import new_metric
from space.models import BUNDLED, ROUNDED
from space.settings import Settings

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
        identify=True,
        **quantised.scored.settings.arguments(),
    )["comparison"]
    found = quantised.pair.comparison
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


def test_changes_are_the_differences_of_two_runs(service, quantised):
    segments, _ = text_segments(quantised.scored)
    changes = measure_changes(quantised.pair, segments)
    alone = [service.score(EVIL, Settings(name), Job(60)).tokens for name in (ROUNDED, BUNDLED)]
    assert len(changes) == len(EVIL)  # a byte is a piece
    for own in changes:
        token = segments[own.piece].first
        nll, reference_nll = (side["nll"][token] / math.log(2) for side in alone)
        assert own.bits == pytest.approx(nll, rel=1e-4)
        assert own.change == pytest.approx(nll - reference_nll, abs=1e-4)
        assert own.kl == quantised.scored.tokens["kl"][token] >= 0
    largest = max(changes, key=lambda own: own.kl)
    assert largest.kl == pytest.approx(quantised.pair.comparison["worst_tokens"][0]["kl"])


def test_pieces_add_up_to_both_models_totals(service, apart):
    assert not apart.pair.by_tokens
    pieces = apart.pair.scores
    changes = measure_changes(apart.pair, cut(apart.scored.text, pieces["offsets"]))
    for own, name in (("bits", "owner/words"), ("reference_bits", "owner/bytes")):
        settings = replace(apart.scored.settings, model=name)
        alone = service.score(apart.scored.text, settings, Job(60)).result
        total = sum(getattr(change, own) for change in changes)
        assert total == pytest.approx(alone["total_nll"] / math.log(2), rel=1e-6)
    per_byte = sum(change.change for change in changes) / len(apart.scored.text)
    assert apart.pair.comparison["bits_per_byte_change"] == pytest.approx(per_byte, rel=1e-6)


@pytest.mark.parametrize(
    "bits, colour",
    [
        *[
            (10.05, ""),
            (10.11, "v1"),
            (11.5, "v2"),
            (12, "v3"),
            (9.95, ""),
            (9.7, "w1"),
            (8.1, "w2"),
        ],
        (math.inf, "v3"),
    ],
)
def test_the_colour_of_a_change_tells_worse_from_better(bits, colour):
    assert change_colour(Change(0, bits, 10)) == colour
    assert change_colour(Change(0, math.inf, math.inf)) == "" and change_colour(None) == "out"


def test_the_view_of_two_models_says_what_the_metric_says(quantised, apart):
    own = quantised.pair.comparison
    page = comparison_view(quantised.pair)
    reader = Reader(page)
    assert reader.tags <= OWN_TAGS
    shown = "".join(reader.text)
    sentence = own["summary"].replace("The model", ROUNDED).replace("the reference", BUNDLED)
    assert sentence in shown
    for value in (f"× {own['perplexity_ratio']['ratio']:.4f}", f"{number(own['kl'])} nats a token"):
        assert value in shown
    assert f"{100 * own['same_top']:.1f} % if the likeliest is taken" in shown
    of_bytes = "".join(Reader(comparison_view(apart.pair)).text)
    assert "compared over the pieces of text that both cut" in of_bytes
    assert f"{apart.pair.comparison['bits_per_byte']:.4g}"[:4] in of_bytes and "KL" not in of_bytes
    assert "owner/bytes could read up to 64" in of_bytes


def test_models_with_other_start_tokens_are_compared_without_one(service, monkeypatch):
    def refuse_starts(loaded, reference, text, settings, callback):
        if settings.start != "none":
            raise Refused("The start tokens differ.")
        return measure_pair(loaded, reference, text, settings, callback)

    monkeypatch.setattr("space.service.measure_pair", refuse_starts)
    compared = service.compare(STORY, Settings(ROUNDED), BUNDLED, Job(60))
    assert compared.scored.tokens["nll"][0] is None
    assert "compared without one" in comparison_view(compared.pair)
    assert "compared without one" in compare_summary(compared)["notes"][-1]


def test_a_window_too_long_for_one_of_two_models_is_refused_or_shortened(service):
    with pytest.raises(Refused, match="between 2 and 16 tokens with owner/words, but it is 64"):
        service.compare(STORY, Settings(BUNDLED, 64), "owner/words", Job(60))
    shortened = service.compare(STORY, Settings(BUNDLED, 64), "owner/words", Job(60), clip=True)
    assert shortened.scored.settings == Settings(BUNDLED, 16, 8)
    assert "demo_model could read up to 64" in comparison_view(shortened.pair)


def test_a_model_is_not_compared_with_itself(service):
    with pytest.raises(Refused, match="two different models"):
        service.compare(STORY, Settings(BUNDLED), BUNDLED, Job(60))


def test_the_rounded_copy_has_weights_of_4_bits_and_its_own_number(quantised):
    copy, full = quantised.scored, quantised.reference
    assert quantised.pair.comparison["reference_perplexity"] != copy.result["perplexity"]
    assert copy.result["signature"].startswith("model:demo_model-4bit|")
    weight = copy.loaded.model.transformer.h[0].mlp.c_fc.weight
    original = full.model.transformer.h[0].mlp.c_fc.weight
    for group, source in zip(weight[0].split(32), original[0].split(32)):
        step = source.abs().max() / 7
        assert torch.allclose(group, torch.round(source / step) * step, atol=1e-7)
        assert len(set(group.tolist())) <= 15
    tables = [loaded.model.transformer.wte.weight for loaded in (copy.loaded, full)]
    assert torch.equal(*tables)  # tables of tokens are left alone
