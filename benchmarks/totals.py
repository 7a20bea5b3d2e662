"""Measure totals at 10⁷ tokens: memory of a worker, file size, and cost of a merge.

    python benchmarks/totals.py            # 10,000 texts of 1,000 tokens in 8 parts; a minute

The scores are made up, as those of a model of no cost.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np
from measure import peak_memory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perplexity_sliding.results.totals import Aggregation, TextScores, Totals

WINDOW = 512


def score(number: int, length: int) -> TextScores:
    """Generate the scores of a text in windows of `WINDOW` tokens."""
    nlls = np.random.default_rng(number).gamma(2.0, 1.5, length).astype(np.float32)
    ends = range(WINDOW, length, WINDOW)
    return TextScores(
        np.split(nlls, ends), [0, *ends], [], length, length, 4 * length, 4 * length, length // 2
    )


def part_of(number: int, parts: int, texts: int, length: int) -> str:
    """Reduce a part to its totals, a thousand texts at a time, and write them."""
    numbers = range(number, texts, parts)
    shards = (numbers[first : first + 1000] for first in range(0, len(numbers), 1000))
    aggregation = Aggregation(block_tokens=WINDOW)
    totals = (Totals.of([score(n, length) for n in shard], aggregation) for shard in shards)
    return sum(totals).to_json()


def merge(written: list[str]) -> dict:
    """Read the totals of all parts, add them, and report."""
    return sum(map(Totals.from_json, written)).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=1_000)
    parser.add_argument("--parts", type=int, default=8)
    arguments = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    written = [part_of(0, arguments.parts, arguments.texts, arguments.length)]
    worker = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    written += [
        part_of(number, arguments.parts, arguments.texts, arguments.length)
        for number in range(1, arguments.parts)
    ]
    memory = peak_memory(lambda: merge(written))
    began = time.perf_counter()
    result = merge(written)
    seconds = time.perf_counter() - began
    size = sum(map(len, written))
    print(
        f"{result['num_tokens']:,} tokens in {arguments.texts:,} texts and {arguments.parts} parts"
    )
    print(f"memory of a worker beside its model: {worker / 2**10:.0f} MiB")
    print(
        f"size of all totals as JSON: {size / 2**20:.1f} MiB, {size / arguments.texts:,.0f} bytes a text"
    )
    print(f"reading, adding up and reporting: {seconds:.2f} s, {memory / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
