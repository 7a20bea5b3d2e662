"""Measure the coverage of the 95 % interval of a perplexity on simulated corpora.

    python benchmarks/coverage.py                # a minute; prints the table of docs/uncertainty.md

A text has a difficulty of its own (normal, 0.25 nats around 3), and its tokens scatter around that
by 2.5 nats, neighbours being alike (AR(1), 0.3).  What the texts are drawn from has a mean of 3
nats; the mean that these texts would have, were they endless, is another.  The first is what an
interval over texts must hold, the second one within texts.  Of 2,000 corpora the share that does is
known to half a per cent.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perplexity_sliding.results.uncertainty import Blocks, Clusters, estimate_ratio

MEAN, EFFECT, NOISE, CORRELATION = 3.0, 0.25, 2.5, 0.3
WINDOW = 256

Lengths = Callable[[np.random.Generator], np.ndarray]


def equal(number: int, length: int) -> Lengths:
    return lambda generator: np.full(number, length)


def unequal(number: int, spread: float = 1.0) -> Lengths:
    """Draw log-normal lengths around 500 tokens; with a spread of 1 the longest of 12 is a third."""
    return lambda generator: 20 + np.exp(generator.normal(np.log(500), spread, number)).astype(int)


def one_long(number: int) -> Lengths:
    return lambda generator: np.array([4000, *[40] * (number - 1)])


SCENARIOS: dict[str, Lengths] = {
    "one of 4,000 tokens": equal(1, 4000),
    "three of 1,500": equal(3, 1500),
    "nine of 1,000": equal(9, 1000),
    "ten of 1,000": equal(10, 1000),
    "ten of log-normal lengths": unequal(10),
    "twelve of log-normal lengths": unequal(12),
    "twelve, more unequal (spread 1.5)": unequal(12, 1.5),
    "thirty of 1,000": equal(30, 1000),
    "thirty of log-normal lengths": unequal(30),
    "a hundred of log-normal lengths": unequal(100),
    "one of 4,000 and thirty of 40": one_long(31),
}


def draw(generator: np.random.Generator, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw the nlls of the tokens of texts, one after the other, and the difficulty of each text."""
    difficulty = generator.normal(MEAN, EFFECT, len(lengths))
    steps = generator.standard_normal(lengths.sum()) * np.sqrt(1 - CORRELATION**2)
    noise = lfilter([1], [1, -CORRELATION], steps)
    return np.repeat(difficulty, lengths) + NOISE * noise, difficulty


def cluster(lengths: np.ndarray, nlls: np.ndarray) -> Clusters:
    """Split a corpus into clusters that are assumed to be independent, like the metric."""
    texts = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(nlls)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Blocks.of(lengths, texts, positions, [np.ones_like(nlls), nlls]).clusters(WINDOW)


def simulate(draw_lengths: Lengths, corpora: int, seed: int = 0) -> dict[str, float]:
    """Measure the frequency and the coverage of each kind of interval, in per cent.

    Returns:
        "over texts": share of corpora whose interval is over texts; "within", of those within;
        "held, over texts" and "held, within": how many of these hold what they speak of; "others":
        how many of those within hold the mean of other texts too.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(corpora):
        lengths = draw_lengths(generator)
        nlls, difficulty = draw(generator, lengths)
        clusters = cluster(lengths, nlls)
        tokens, sums = clusters.sums.T
        low, high = estimate_ratio(sums, tokens).interval
        own = np.average(difficulty, weights=lengths)
        rows.append((clusters.are_texts, low <= MEAN <= high, low <= own <= high))
    over, holds_others, holds_own = np.array(rows).T
    return {
        "over texts": 100 * over.mean(),
        "within": 100 * (~over).mean(),
        "held, over texts": 100 * holds_others[over].mean() if over.any() else np.nan,
        "held, within": 100 * holds_own[~over].mean() if not over.all() else np.nan,
        "others": 100 * holds_others[~over].mean() if not over.all() else np.nan,
    }


def row(name: str, result: dict[str, float]) -> str:
    """Write a row of the table; a kind of interval that no corpus had is empty."""

    def cell(kind: str, *keys: str) -> list[str]:
        return [f"{result[key]:.0f} %" if result[kind] else "" for key in keys]

    cells = cell("over texts", "over texts", "held, over texts")
    return " | ".join([f"| {name}", *cells, *cell("within", "held, within", "others")]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpora", type=int, default=2000)
    arguments = parser.parse_args()
    print(
        "| texts | with an interval over texts | its coverage | within: coverage of these texts | of other texts |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name, draw_lengths in SCENARIOS.items():
        print(row(name, simulate(draw_lengths, arguments.corpora)), flush=True)


if __name__ == "__main__":
    main()
