"""Digests of settings, and what two probes may differ by."""

from pathlib import Path

import pytest

from perplexity_sliding.digests import digest_of, same_probe


def test_a_digest_is_of_what_is_there_in_any_order():
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({"a": 1, "b": 2}) != digest_of({"a": 2, "b": 1})
    assert digest_of(Path("a")) == digest_of("a") != digest_of(Path("b"))


@pytest.mark.parametrize(
    "signature, nats",
    [
        ("model:a|dtype:float32|start:once", 1e-4),
        ("dtype:float16", 0.005),
        ("model:a|dtype:bfloat16", 0.01),
        ("model:a|dtype:int8+float32|start:once", 0.03),  # the coarsest, where it is none of these
        ("model:dtype:float32", 0.03),
    ],
)
def test_what_two_probes_may_differ_by(signature, nats):
    for probe in (0.5, 9.0):
        for sign in (-1, 1):
            assert same_probe(probe, probe + sign * 0.9 * nats, signature)
            assert not same_probe(probe, probe + sign * 1.1 * nats, signature)
