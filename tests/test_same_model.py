"""Whether a server runs the model that one thinks it does."""

import numpy as np
import pytest
import torch
from fake_engines import FakeServer, running
from models import make_model, random_text

from perplexity_sliding.results.comparison import judge_sameness

TEXTS = [random_text(120, n) for n in range(3)]


def ask(metric, reference, tokenizer, server, **arguments):
    with running(server) as address:
        return metric.compute(
            predictions=TEXTS,
            model_id=address,
            tokenizer=tokenizer,
            reference=reference,
            **arguments,
        )["comparison"]


def test_the_same_model_in_float32(metric, gpt2, tokenizer):
    comparison = ask(metric, gpt2, tokenizer, FakeServer(gpt2, tokenizer), margin=0.01)
    assert comparison["identity"]["same"] == "float32"
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(1, abs=1e-6)
    assert comparison["same_top"] == 1
    assert comparison["accuracy"] == comparison["reference_accuracy"]
    assert comparison["within_margin"] is True
    assert comparison["worst_tokens"] == [], "the same model"
    assert "kl" not in comparison
    assert comparison["summary"].startswith("The model is the reference: over ")


def test_the_same_model_in_bfloat16(metric, gpt2, tokenizer):
    class Rounded(FakeServer):
        def values(self, ids, body):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().values(ids, body)

    comparison = ask(metric, gpt2, tokenizer, Rounded(gpt2, tokenizer))
    assert comparison["identity"]["same"] == "bfloat16"


def test_a_copy_of_four_bits(metric, gpt2, tokenizer):
    copy = make_model("gpt2")
    with torch.no_grad():
        for parameter in (p for p in copy.parameters() if p.ndim > 1):
            step = parameter.abs().max() / 7
            parameter.copy_((parameter / step).round() * step)
    comparison = ask(metric, gpt2, tokenizer, FakeServer(copy, tokenizer))
    assert comparison["identity"]["same"] is None
    assert comparison["summary"].startswith("The model is not the reference")
    assert comparison["worst_tokens"][0].keys() >= {"nll", "reference_nll", "token"}


def test_a_reference_in_half_precision_measures_no_rounding(metric, tokenizer):
    half = make_model("gpt2").to(torch.bfloat16)
    comparison = ask(metric, half, tokenizer, FakeServer(make_model("gpt2"), tokenizer))
    assert "identity" not in comparison
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(1, abs=0.1)


def half_precision(number, scale=1.0, seed=0):
    """Draw differences of an honest server and the rounding of the reference, heavy in the tail."""
    draw = np.random.default_rng(seed)
    return scale * 0.01 * draw.standard_t(5, number), 0.01 * draw.standard_t(5, number)


@pytest.mark.parametrize(("number", "most"), [(100, 0.02), (400, 0.005), (5000, 0)])
def test_false_alarms_are_rare(number, most):
    """Rounding twice as large as the reference's own in bfloat16 is no other model."""
    verdicts = [judge_sameness(*half_precision(number, 2, seed)) for seed in range(400)]
    assert np.mean([verdict["same"] is None for verdict in verdicts]) <= most


def test_few_tokens_leave_it_open():
    verdict = judge_sameness(*half_precision(99))
    assert verdict["same"] is None
    assert verdict["summary"].startswith("It takes 100 tokens to tell")


@pytest.mark.parametrize(
    ("share", "nats"), [(0.12, 5), (0.05, 1.9), (0.04, 1.0), (0.009, 5), (0.0002, 5), (0.9, 0.02)]
)
@pytest.mark.parametrize("rounded", [True, False])
def test_a_minority_of_wrong_tokens_is_seen(share, nats, rounded):
    """Beside rounding of 0.01 nats, in a server of half or of single precision."""
    differences, rounding = half_precision(5000)
    differences *= 1 if rounded else 1e-5
    wrong = np.random.default_rng(1).permutation(5000)[: round(5000 * share)]
    differences[wrong] += nats
    verdict = judge_sameness(differences, rounding)
    assert verdict["same"] is None
    assert verdict["difference"]["largest"] == pytest.approx(np.abs(differences).max())
    assert verdict["difference"]["rms"] == pytest.approx(np.sqrt(np.mean(differences**2)))


@pytest.mark.parametrize("nats", [0.015, -0.008])
def test_a_mean_that_rounding_does_not_explain(nats):
    """A perplexity off by 1.5 or 0.8 %, beside tokens that are each within rounding."""
    differences, rounding = half_precision(5000)
    assert judge_sameness(differences, rounding)["same"] == "bfloat16"
    assert judge_sameness(differences + nats, rounding)["same"] is None


def test_tokens_that_are_impossible():
    """Under both models, the token agrees; under one, it does not."""
    differences, rounding = half_precision(400)
    differences[:9] = rounding[:9] = np.nan  # infinite less infinite
    assert judge_sameness(differences, rounding)["same"] == "bfloat16"
    differences[3] = -np.inf
    assert judge_sameness(differences, rounding)["same"] is None
