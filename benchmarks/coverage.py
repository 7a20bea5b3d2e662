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
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perplexity_sliding.results.uncertainty import Blocks, estimate_ratio

MEAN, EFFECT, NOISE, CORRELATION = 3.0, 0.25, 2.5, 0.3
WINDOW = 256
# Lengths of the texts, or their number and the spread of their log-normal lengths around 500 tokens;
# with a spread of 1 the longest of twelve is a third.
SCENARIOS: dict[str, list[int] | tuple[int, float]] = {
    "one of 4,000 tokens": [4000],
    "three of 1,500": [1500] * 3,
    "four of 1,000": [1000] * 4,
    "nine of 1,000": [1000] * 9,
    "ten of 1,000": [1000] * 10,
    "twelve of log-normal lengths": (12, 1.0),
    "twelve, more unequal (spread 1.5)": (12, 1.5),
    "thirty of log-normal lengths": (30, 1.0),
    "a hundred of log-normal lengths": (100, 1.0),
    "one of 4,000 and thirty of 40": [4000] + [40] * 30,
}


def draw(generator: np.random.Generator, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw the nlls of the tokens of texts, one after the other, and the difficulty of each text."""
    difficulty = generator.normal(MEAN, EFFECT, len(lengths))
    steps = generator.standard_normal(lengths.sum()) * np.sqrt(1 - CORRELATION**2)
    noise = lfilter([1], [1, -CORRELATION], steps)
    return np.repeat(difficulty, lengths) + NOISE * noise, difficulty


def simulate(scenario: list[int] | tuple[int, float], corpora: int) -> list[str]:
    """Measure how many intervals are over texts, and the coverage of each kind.

    Returns:
        cells of a row; a kind of interval that no corpus had is empty.
    """
    generator, rows = np.random.default_rng(0), []
    for _ in range(corpora):
        lengths = np.array(scenario)
        if isinstance(scenario, tuple):
            number, spread = scenario
            lengths = 20 + np.exp(generator.normal(np.log(500), spread, number)).astype(int)
        nlls, difficulty = draw(generator, lengths)
        texts = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(nlls)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        blocks = Blocks.of(lengths, texts, positions, [np.ones_like(nlls), nlls])
        clusters = blocks.clusters(WINDOW)
        tokens, sums = clusters.sums.T
        low, high = estimate_ratio(sums, tokens).interval
        own = np.average(difficulty, weights=lengths)
        rows.append((clusters.are_texts, low <= MEAN <= high, low <= own <= high))
    over, holds_others, holds_own = np.array(rows).T
    over_texts = [over, holds_others[over]] if over.any() else []
    within = [holds_own[~over], holds_others[~over]] if not over.all() else []
    cells = [[f"{100 * values.mean():.0f} %" for values in kind] for kind in (over_texts, within)]
    return [text for kind in cells for text in kind or ["", ""]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpora", type=int, default=2000)
    corpora = parser.parse_args().corpora
    print(
        "| texts | with an interval over texts | its coverage | within: coverage of these texts "
        "| of other texts |\n| --- | --- | --- | --- | --- |"
    )
    for name, scenario in SCENARIOS.items():
        print(f"| {' | '.join([name, *simulate(scenario, corpora)])} |", flush=True)


if __name__ == "__main__":
    main()
