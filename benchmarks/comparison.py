"""What comparing two models costs: both at once against two single runs, and memory above both.

    python benchmarks/comparison.py [--repetitions 3] [--vocabulary 50257] [--tokens 2048]

Two copies of a small GPT-2 with random weights, in one process and in turns; the median of the
times, with the lowest and the highest, in thread seconds, which other programs do not lengthen much.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import evaluate
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from models import make_tokenizer, words  # noqa: E402

LENGTH = 512
WIDTH, LAYERS = 384, 6


def make_gpt2(vocabulary: int, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=6
    )
    return transformers.GPT2LMHeadModel(config).eval()


def timed(call) -> float:
    """CPU seconds of this process."""
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--tokens", type=int, default=2048)
    args = parser.parse_args()
    evaluate.logging.disable_progress_bar()
    metric = evaluate.load(str(ROOT / "perplexity_sliding.py"))
    model, reference = (make_gpt2(args.vocabulary, seed) for seed in (0, 1))
    ids = torch.randint(3, args.vocabulary, (args.tokens,)).tolist()
    shared = {
        "predictions": [words(ids)],
        "tokenizer": make_tokenizer(vocabulary=args.vocabulary),
        "stride": LENGTH,
    }
    runs = {
        "model alone": lambda: metric.compute(model=model, **shared),
        "reference alone": lambda: metric.compute(model=reference, **shared),
        "both at once": lambda: metric.compute(model=model, reference_model=reference, **shared),
    }
    for run in runs.values():
        run()  # examines the models
    times = {name: [] for name in runs}
    for _ in range(args.repetitions):
        for name, run in runs.items():
            times[name].append(timed(run))
    for name, seconds in times.items():
        shown = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"
        print(f"{name:16} {shown}")
    alone = zip(times["model alone"], times["reference alone"])
    ratios = [both / (a + b) for (a, b), both in zip(alone, times["both at once"])]
    print(
        f"both at once / two single runs: {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f}-{max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
