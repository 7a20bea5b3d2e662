"""Divergences between two models' predictions: closed forms, and every row again in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perplexity_sliding.scoring.measures import Block, Divergence, compare_distributions

INF = math.inf


def compare(model, reference, targets=None) -> dict[str, torch.Tensor]:
    targets = torch.zeros(len(model), dtype=torch.long) if targets is None else targets
    return Divergence()([Block(logits.float(), targets) for logits in (model, reference)])


def compare_probabilities(model, reference) -> dict[str, float]:
    columns = compare(*(torch.tensor([own]).log() for own in (model, reference)))
    return {name: column.item() for name, column in columns.items()}


def textbook(model, reference) -> dict[str, torch.Tensor]:
    """The definitions, in float64."""
    log_q, log_p = (logits.double().log_softmax(1) for logits in (model, reference))
    p, q = log_p.exp(), log_q.exp()
    return {
        "kl": (p * (log_p - log_q)).sum(1),
        "kl_reverse": (q * (log_q - log_p)).sum(1),
        "total_variation": 1 - torch.minimum(p, q).sum(1),
        "reference_entropy": -(p * log_p).sum(1),
        "reference_top_probability": p.amax(1),
    }


def random_logits(rows, size, distance, seed=0, scale=4.0):
    generator = torch.Generator().manual_seed(seed)
    reference = scale * torch.randn(rows, size, generator=generator)
    return reference + distance * torch.randn(rows, size, generator=generator), reference


# ---- closed forms


def test_a_biased_coin_against_a_fair_one():
    got = compare_probabilities(model=[0.8, 0.2], reference=[0.5, 0.5])
    assert got["kl"] == pytest.approx(0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2))
    assert got["kl_reverse"] == pytest.approx(0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5))
    assert got["total_variation"] == pytest.approx(0.3)
    assert got["reference_entropy"] == pytest.approx(math.log(2))
    assert got["reference_top_probability"] == pytest.approx(0.5)
    assert got["reference_nll"] == pytest.approx(math.log(2))
    assert (got["top"], got["reference_top"]) == (0, 0), "the first of equals"


@pytest.mark.parametrize(
    "model, reference, kl, kl_reverse, total_variation",
    [
        # suppressed by both: the token doesn't exist
        ([0.5, 0.5, 0.0], [0.25, 0.75, 0.0], 0.1308120, 0.1438410, 0.25),
        ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], INF, math.log(2), 0.5),
        ([0.5, 0.5, 0.0], [0.0, 1.0, 0.0], math.log(2), INF, 0.5),
        ([0.0, 1.0, 0.0], [1.0, 0.0, 0.0], INF, INF, 1.0),
        ([1 / 8] * 8, [1 / 4] * 4 + [0.0] * 4, math.log(2), INF, 0.5),
    ],
    ids=["both", "the model", "the reference", "no token in common", "half of them"],
)
def test_tokens_without_probability(model, reference, kl, kl_reverse, total_variation):
    got = compare_probabilities(model, reference)
    assert got["kl"] == pytest.approx(kl, rel=1e-5)
    assert got["kl_reverse"] == pytest.approx(kl_reverse, rel=1e-5)
    assert got["total_variation"] == pytest.approx(total_variation)


def test_not_a_number_stays_one():
    model, reference = random_logits(2, 10, 0.1)
    model[1, 3] = math.nan
    got = compare(model, reference)
    assert got["kl"].isnan().tolist() == [False, True]


# ---- against float64

# An error of the logarithm of a sum, 1e-6 for logits as large as these, enters squared into the
# divergences, and as it is into everything else.
TOLERANCES = {
    "kl": {"rtol": 1e-3, "atol": 1e-11},
    "kl_reverse": {"rtol": 1e-3, "atol": 1e-11},
    "total_variation": {"rtol": 1e-5, "atol": 1e-6},
    "reference_entropy": {"rtol": 1e-5, "atol": 5e-6},
    "reference_top_probability": {"rtol": 1e-5, "atol": 0},
}


@pytest.mark.parametrize("distance", [1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("size", [7, 3000])
def test_every_row_in_float64(size, distance):
    model, reference = random_logits(50, size, distance)
    got = compare(model, reference)
    for name, values in textbook(model, reference).items():
        torch.testing.assert_close(got[name].double(), values, **TOLERANCES[name])


def test_small_divergences_keep_their_digits():
    """Σ p·(ln p - ln q) in float32 would have nothing left of these."""
    model, reference = random_logits(20, 50_000, 1e-4)
    expected = textbook(model, reference)["kl"]
    assert expected.max() < 1e-8
    got = compare(model, reference)["kl"].double()
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=0)
    p, q = (logits.softmax(1) for logits in (reference, model))
    plain = torch.nn.functional.kl_div(q.log(), p, reduction="none").sum(1)
    assert ((plain - expected).abs() > expected).any()


@pytest.mark.parametrize("off", [(0.01, -0.02), (-0.03, -0.03)])
def test_normalizers_need_only_be_near(off):
    """Each sum tells what they are off by."""
    model, reference = random_logits(8, 500, 0.3)
    sums, mass = compare_distributions(
        *((logits, logits.logsumexp(1) + by) for logits, by in zip((reference, model), off))
    )
    torch.testing.assert_close(mass.log(), torch.full((8,), -off[0]), rtol=0, atol=2e-6)
    for name, values in textbook(model, reference).items():
        if name in sums:
            torch.testing.assert_close(sums[name].double(), values, rtol=1e-5, atol=0)


@pytest.mark.parametrize("nll", [3.0, 100.0, INF])
def test_targets_that_tell_little_of_the_normalizer(nll):
    """As unlikely as they are: a loss of 100 nats has lost the digits of the sum."""
    model, reference = random_logits(6, 300, 0.1)
    for logits in (model, reference):
        logits[:, 7] = logits.logsumexp(1) - nll
    targets = torch.full((6,), 7)
    got, expected = compare(model, reference, targets), textbook(model, reference)
    torch.testing.assert_close(got["reference_nll"], torch.full((6,), nll), rtol=0.02, atol=0)
    if nll == INF:
        kept = torch.arange(300) != 7
        expected = textbook(model[:, kept], reference[:, kept])
    for name, values in expected.items():
        torch.testing.assert_close(got[name].double(), values, rtol=1e-5, atol=0)


def test_last_places_make_nothing_negative():
    """Logits that differ in their last place: rounding is larger than the divergences there."""
    model, reference = random_logits(2000, 3, 1e-7, scale=3.0)
    assert (model != reference).any()
    got = compare(model, reference)
    for name in ("kl", "kl_reverse"):
        assert (got[name] >= 0).all() and (got[name] < 1e-12).all(), name


def test_far_apart_rows_among_near_ones():
    """Those are summed in another way; no other row may move, and none may end up elsewhere."""
    model, reference = random_logits(12, 40, 0.1)
    near = compare(model, reference)
    model[[3, 8], 5] += 200.0
    got, expected = compare(model, reference), textbook(model, reference)
    torch.testing.assert_close(got["kl"].double(), expected["kl"], rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(
        got["kl_reverse"].double(), expected["kl_reverse"], rtol=1e-4, atol=0
    )
    others = [row for row in range(12) if row not in (3, 8)]
    assert torch.equal(got["kl"][others], near["kl"][others])


def test_a_token_that_the_reference_hardly_knows():
    """Its probability there is below the numbers that float32 holds in full."""
    model, reference = torch.tensor([[0.0, -15.0]]), torch.tensor([[0.0, -100.0]])
    got, expected = compare(model, reference), textbook(model, reference)
    assert got["kl_reverse"].item() == pytest.approx(expected["kl_reverse"].item(), rel=1e-5)


def test_pieces_of_any_size_give_the_same(monkeypatch):
    """And leave the logits as they are."""
    model, reference = random_logits(11, 100, 40.0)
    before = model.clone(), reference.clone()
    whole = compare(model, reference)
    for piece in (1, 250, 10_000):
        monkeypatch.setattr("perplexity_sliding.scoring.measures.CPU_PIECE", piece)
        for name, column in compare(model, reference).items():
            assert torch.equal(column, whole[name]), (piece, name)
    assert torch.equal(model, before[0]) and torch.equal(reference, before[1])


# ---- what must hold for any two models


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 300),
    distance=st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 3.0, 50.0]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    shift=st.sampled_from([0.0, 1000.0]),
)
def test_bounds(seed, size, distance, scale, shift):
    model, reference = random_logits(4, size, distance, seed, scale)
    got = compare(model + shift, reference)
    assert (got["kl"] >= 0).all() and (got["kl_reverse"] >= 0).all()
    assert ((got["total_variation"] >= 0) & (got["total_variation"] <= 1)).all()
    for kl in (got["kl"], got["kl_reverse"]):  # Pinsker's inequality
        assert (kl >= 2 * got["total_variation"] ** 2 * (1 - 1e-4) - 1e-7).all()
    assert (got["reference_entropy"] <= math.log(size) + 1e-5).all()


@pytest.mark.parametrize("suppressed", [0, 3])
def test_a_model_against_itself(suppressed):
    logits, _ = random_logits(20, 500, 0.0)
    logits[:, :suppressed] = -INF
    got = compare(logits, logits.clone())
    for name in ("kl", "kl_reverse", "total_variation"):
        assert (got[name] == 0).all(), name
    assert torch.equal(got["top"], got["reference_top"])


# ---- vocabularies of different sizes


@pytest.mark.parametrize("padded", ["model", "reference"])
def test_padding_rows_are_left_out(padded):
    model, reference = random_logits(10, 50, 0.5)
    expected = textbook(model, reference)
    padding = torch.full((10, 3), -12.0)
    sides = {"model": model, "reference": reference}
    sides[padded] = torch.cat([sides[padded], padding], 1)
    got = compare(**sides)
    torch.testing.assert_close(got["kl"].double(), expected["kl"], rtol=1e-4, atol=0)
    mass = sides[padded].double().softmax(1)[:, 50:].sum(1)
    key, other = ("outside", "reference_outside")[:: 1 if padded == "model" else -1]
    torch.testing.assert_close(got[key].double(), mass, rtol=1e-4, atol=0)
    assert (got[other] == 0).all()


def test_targets_and_nlls_are_those_of_the_whole_vocabulary():
    model, reference = random_logits(30, 64, 1.0)
    targets = torch.arange(30)
    got = compare(model[:, :40], reference, targets)
    expected = torch.nn.functional.cross_entropy(reference, targets, reduction="none")
    assert torch.equal(got["reference_nll"], expected)
    assert torch.equal(got["top"], model[:, :40].argmax(1))
    assert torch.equal(got["reference_top"], reference.argmax(1))
