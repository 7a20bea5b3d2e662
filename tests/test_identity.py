"""Whether a server runs the model that one thinks it does."""

import numpy as np
import pytest
import torch
from fake_engines import FakeServer, running
from models import make_model, random_text
from perplexity_sliding.result_comparison import describe_pattern, judge_identity

TEXTS = [random_text(120, n) for n in range(3)]


class Rounded(FakeServer):
    """Runs the same weights in bfloat16."""

    def distributions(self, ids, body):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().distributions(ids, body)


def ask(metric, gpt2, tokenizer, server, **arguments):
    with running(server) as address:
        return metric.compute(
            predictions=TEXTS, model_id=address, tokenizer=tokenizer, reference=gpt2, **arguments
        )["comparison"]


def test_the_same_model_in_float32(metric, gpt2, tokenizer):
    comparison = ask(metric, gpt2, tokenizer, FakeServer(gpt2, tokenizer))
    assert comparison["identity"]["same"] == "float32"
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(1, abs=1e-6)
    assert comparison["same_top"] == 1
    assert comparison["accuracy"] == comparison["reference_accuracy"]
    assert "kl" not in comparison
    assert "is the reference up to the rounding of float32" in comparison["summary"]


def test_the_same_model_in_bfloat16(metric, gpt2, tokenizer):
    comparison = ask(metric, gpt2, tokenizer, Rounded(gpt2, tokenizer))
    assert comparison["identity"]["same"] == "bfloat16"


def test_another_model(metric, gpt2, tokenizer):
    other = make_model("gpt2", seed=9)
    comparison = ask(metric, gpt2, tokenizer, FakeServer(other, tokenizer))
    assert comparison["identity"]["same"] is None
    assert comparison["identity"]["pvalue"] < 1e-6
    assert "at every length of context" in comparison["summary"]


def test_a_copy_of_four_bits(metric, gpt2, tokenizer):
    copy = make_model("gpt2")
    with torch.no_grad():
        for parameter in (p for p in copy.parameters() if p.ndim > 1):
            step = parameter.abs().max() / 7
            parameter.copy_((parameter / step).round() * step)
    comparison = ask(metric, gpt2, tokenizer, FakeServer(copy, tokenizer))
    assert comparison["identity"]["same"] is None


def test_a_window_that_is_cut(metric, gpt2, tokenizer):
    class Cut(FakeServer):
        """Attends to the last seven tokens alone."""

        def distributions(self, ids, body):
            rows = [
                super(Cut, self).distributions(ids[max(0, i - 6) : i + 1], body)[-1]
                if i >= 7
                else super(Cut, self).distributions(ids[: i + 1], body)[-1]
                for i in range(len(ids))
            ]
            return torch.stack(rows)

    comparison = ask(metric, gpt2, tokenizer, Cut(gpt2, tokenizer))
    assert "agree up to 7 tokens of context" in comparison["summary"]


def test_patterns_by_hand():
    contexts = np.repeat(np.arange(1, 64), 10)
    allowed = np.full(len(contexts), 0.01)
    early, late = (np.where(chosen, 1.0, 0.0) for chosen in (contexts < 4, contexts >= 16))
    assert "start token" in describe_pattern(early, allowed, contexts)
    assert "agree up to 15 tokens" in describe_pattern(late, allowed, contexts)
    assert "every length" in describe_pattern(np.ones(len(contexts)), allowed, contexts)


def test_false_alarms_are_rare():
    """Rounding twice as large as the reference's own in bfloat16 is no other model."""
    draw = np.random.default_rng(0)
    alarms = sum(
        judge_identity(draw.normal(size=400) * 0.02, draw.normal(size=400) * 0.01, np.arange(400))[
            "same"
        ]
        is None
        for _ in range(200)
    )
    assert alarms == 0


def test_a_reference_in_half_precision_gives_no_verdict_of_identity(metric, tokenizer):
    half = make_model("gpt2").to(torch.bfloat16)
    comparison = ask(metric, half, tokenizer, FakeServer(make_model("gpt2"), tokenizer))
    assert "identity" not in comparison
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(1, abs=0.1)


def test_margin_and_other_tokens(metric, gpt2, tokenizer):
    comparison = ask(metric, gpt2, tokenizer, FakeServer(gpt2, tokenizer), margin=0.01)
    assert comparison["within_margin"] is True
    assert comparison["worst_tokens"][0].keys() >= {"nll", "reference_nll", "token"}
