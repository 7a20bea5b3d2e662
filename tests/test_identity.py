"""Whether a server runs the model that one thinks it does."""

import numpy as np
import pytest
import torch
from fake_engines import FakeServer, running
from models import make_model, random_text

from perplexity_sliding.results.identity import describe_pattern, judge_identity, most_beyond

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
    assert "at every context length" in comparison["summary"]


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
    moved = np.full(len(contexts), 0.01)
    early, late, between = (
        np.where(chosen, 1.0, 0.001)
        for chosen in (contexts < 4, contexts >= 16, (contexts >= 8) & (contexts < 32))
    )
    assert "start token" in describe_pattern(early, moved, contexts)
    assert (
        "agree up to 15 tokens of context and begin to diverge between 16 and 31"
        in describe_pattern(late, moved, contexts)
    )
    assert "from 8 to 31 tokens" in describe_pattern(between, moved, contexts)
    assert "every context length" in describe_pattern(np.ones(len(contexts)), moved, contexts)


@pytest.mark.parametrize("share", [0.02, 0.07, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_a_stale_replica_is_no_cut_window(share, seed):
    """Behind a share of the requests; only the first window of a text has tokens of short contexts."""
    contexts = np.concatenate([np.arange(1, 64)] + [np.arange(64, 128)] * 60)
    differences, rounding = half_precision(len(contexts), seed=seed)
    stale = np.random.default_rng(seed).permutation(60)[: round(60 * share)] + 1
    requests = np.concatenate([[0] * 63, np.repeat(np.arange(1, 61), 64)])
    differences[np.isin(requests, stale)] *= 100
    summary = judge_identity(differences, rounding, contexts)["summary"]
    assert "not the reference" in summary or share == 0.02
    assert "window" not in summary
    assert "behind some of the requests" in summary or share == 0.02


@pytest.mark.parametrize("scale", [1, 1.5, 2, 4, 10])
def test_a_fine_tuned_copy_is_no_cut_window(scale):
    """It differs alike at all lengths of context, of which the short ones have few tokens."""
    contexts = np.tile(np.arange(1, 129), 3)
    for seed in range(40):
        draw = np.random.default_rng(seed)
        distance, moved = np.abs(draw.normal(size=(2, len(contexts)))) * 0.01
        looks = describe_pattern(3 * scale * distance, moved, contexts)
        assert "window" not in looks
        assert "start token" not in looks
        assert "agree at other lengths" not in looks


def test_short_contexts_that_are_not_shown_to_agree():
    """Eight tokens there are off by less than three times rounding; one of the others is not."""
    contexts = np.concatenate([np.full(8, 2), np.full(9, 5), np.full(500, 40)])
    distance, moved = np.full(517, 0.3), np.full(517, 0.01)
    distance[:17] = 0.029
    distance[16] = 1.0
    looks = describe_pattern(distance, moved, contexts)
    assert "No range of context lengths is shown to agree" in looks


def half_precision(number, scale=1.0, seed=0):
    """Draw differences of an honest server and the rounding of the reference, heavy in the tail."""
    draw = np.random.default_rng(seed)
    return scale * 0.01 * draw.standard_t(5, number), 0.01 * draw.standard_t(5, number)


@pytest.mark.parametrize("number", [1, 2, 10, 400, 5000])
def test_false_alarms_are_rare(number):
    """Rounding twice as large as the reference's own in bfloat16 is no other model."""
    verdicts = [
        judge_identity(*half_precision(number, 2, seed), np.ones(number)) for seed in range(200)
    ]
    assert not any(verdict["different"] for verdict in verdicts)
    equal = np.mean([verdict["same"] == "bfloat16" for verdict in verdicts])
    assert equal > (0.85 if number >= 400 else 0.4)


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
    verdict = judge_identity(differences, rounding, np.ones(5000))
    assert verdict["same"] is None
    assert verdict["different"]
    assert verdict["largest_difference"] == pytest.approx(np.abs(differences).max())
    assert "is not the reference" in verdict["summary"]


def test_a_mean_that_rounding_does_not_explain():
    """A perplexity that is 1.5 % higher, beside tokens that are each within rounding."""
    differences, rounding = half_precision(5000)
    assert judge_identity(differences, rounding, np.ones(5000))["same"] == "bfloat16"
    assert judge_identity(differences + 0.015, rounding, np.ones(5000))["same"] is None


def test_values_that_are_all_a_little_too_low_are_rarely_called_equal():
    """A perplexity that is off by 0.8 % stood beside "cannot be distinguished" in 56 % of these runs."""
    verdicts = []
    for seed in range(200):
        differences, rounding = half_precision(500, seed=seed)
        verdicts.append(judge_identity(differences - 0.008, rounding, np.ones(500)))
    assert np.mean([verdict["same"] is not None for verdict in verdicts]) < 0.1


@pytest.mark.parametrize("wrong", [1, 3, 10])
def test_equality_never_contradicts_the_numbers_beside_it(wrong):
    """Too few tokens for a test, yet the root mean square or the largest is beyond rounding."""
    differences, rounding = half_precision(200)
    differences[:wrong] = 0.3
    verdict = judge_identity(differences, rounding, np.ones(200))
    assert (verdict["same"], verdict["different"]) == (None, False)
    assert "not clear" in verdict["summary"]


def test_the_tail_is_counted():
    differences, rounding = np.full(1000, 0.001), np.full(1000, 0.01)
    differences[:30], rounding[0] = 5.0, 0.2
    verdict = judge_identity(differences, rounding, np.ones(1000))
    assert verdict["tail"] == pytest.approx(10 * np.sqrt(np.mean(rounding**2)))
    assert verdict["share_beyond"] == 0.03
    assert verdict["share_beyond_rounding"] == 0.001


@pytest.mark.parametrize("number", [10, 3000])
def test_equality_is_claimed_within_a_bound(number):
    """None of N tokens beyond it: the share of others is below 1 - 0.05^(1/N) at 95 %."""
    differences, rounding = half_precision(number)
    for scale, same in ((1, "bfloat16"), (1e-3, "float32")):
        verdict = judge_identity(scale * differences, rounding, np.ones(number))
        assert verdict["same"] == same
        beyond = int((np.abs(scale * differences) > verdict["bound"]).sum())
        assert beyond == 0
        assert verdict["most_beyond_bound"] == pytest.approx(1 - 0.05 ** (1 / number))
        assert f"{100 * verdict['most_beyond_bound']:.2g} % of such tokens" in verdict["summary"]


def test_bound_where_tokens_lie_beyond_it():
    """Clopper and Pearson's limit is where so few or fewer have a chance of 5 %."""
    from scipy.stats import binom

    share = most_beyond(np.array([0.5] * 3 + [0.0] * 97), 0.1)
    assert binom.cdf(3, 100, share) == pytest.approx(0.05)
    assert most_beyond(np.ones(4), 0.1) == 1


@pytest.mark.parametrize("differences", [[np.inf] * 50, [np.inf] + [0.0] * 400, [9.0] * 4000])
def test_no_p_value_is_zero(differences):
    number = len(differences)
    verdict = judge_identity(np.array(differences), half_precision(number)[1], np.ones(number))
    assert verdict["same"] is None
    assert 0 < verdict["pvalue"] < 1e-3
    assert "(p < 1e-15)" in verdict["summary"] or "(p = " in verdict["summary"]
    assert "p = 0" not in verdict["summary"]


def test_tokens_that_are_impossible_under_both_agree():
    differences, rounding = half_precision(400)
    differences[:9] = rounding[:9] = np.nan  # infinite less infinite
    assert judge_identity(differences, rounding, np.ones(400))["same"] == "bfloat16"


def test_a_reference_in_half_precision_gives_no_verdict_of_identity(metric, tokenizer):
    half = make_model("gpt2").to(torch.bfloat16)
    comparison = ask(metric, half, tokenizer, FakeServer(make_model("gpt2"), tokenizer))
    assert "identity" not in comparison
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(1, abs=0.1)


def test_margin_and_other_tokens(metric, gpt2, tokenizer):
    comparison = ask(metric, gpt2, tokenizer, FakeServer(gpt2, tokenizer), margin=0.01)
    assert comparison["within_margin"] is True
    assert comparison["worst_tokens"] == [], "the same model"
    other = FakeServer(make_model("gpt2", seed=5), tokenizer)
    worst = ask(metric, gpt2, tokenizer, other)["worst_tokens"]
    assert worst[0].keys() >= {"nll", "reference_nll", "token"}
