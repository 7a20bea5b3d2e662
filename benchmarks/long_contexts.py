"""Measure costs and gains of long contexts: curves, and carried keys.

    python benchmarks/long_contexts.py novel --text TEXT
    python benchmarks/long_contexts.py carried --text TEXT

TEXT is a long plain text, and the model the bundled one.  Prints the tables of benchmarks/README.md;
ratios of processor time, of one thread.
"""

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import evaluate
import numpy as np
import torch
from cases import ROOT
from measure import now, ratio
from table import markdown

from perplexity_sliding.results.uncertainty import Blocks, estimate_ratio

WINDOW = 128
# Sliding by L/2, against which the others are set; by L/8 and L/64; and carried segments.
SETTINGS = (
    ("sliding", {"stride": WINDOW // 2}),
    ("sliding", {"stride": WINDOW // 8}),
    ("sliding", {"stride": WINDOW // 64}),
    ("carried", {"stride": WINDOW // 2, "carry": True}),
    ("carried", {"stride": WINDOW // 8, "carry": True}),
)


def print_novel(text: Path, repetitions: int) -> None:
    """One command that draws a curve, beside one that scores the longest of its lengths alone."""
    with tempfile.TemporaryDirectory() as folder:
        curve = (str(text), "--context-lengths", "doubling", "--plot", f"{folder}/curve.png")
        # The bundled model's window is 128; the shortest length is 8, by a stride of half of it.
        commands = {"curve": curve, "longest": (str(text), "--stride", "4")}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(repetitions):
            for name, arguments in commands.items():
                seconds[name].append(seconds_of_command(*arguments))
    spread = ratio(seconds, ["curve"], ["longest"])
    print(" ".join(f"{name} {value:.3f}" for name, value in spread.items()))


def seconds_of_command(*arguments: str) -> float:
    """Processor time of `score.py` with some arguments."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, str(ROOT / "score.py"), *arguments, "--quiet"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_carried(text: str, model_id: str) -> None:
    """Perplexity against tokens read: sliding windows, and carried keys."""
    metric = evaluate.load(str(ROOT / "perplexity_sliding.py"))
    common = {"predictions": [text], "model_id": model_id, "max_length": WINDOW}
    common["return_token_scores"] = True
    metric.compute(**common)  # loads and examines the model
    rows, first = [], None
    for name, arguments in SETTINGS:
        began = now()
        result = metric.compute(**arguments, **common)
        seconds = now() - began
        nlls = np.array(result["token_scores"][0]["nll"])
        first = first or (nlls, seconds)
        rows.append(
            [
                name,
                str(arguments["stride"]),
                f"{result['num_forward_tokens']:,}",
                f"{result['perplexity']:.3f}",
                "" if nlls is first[0] else paired_change(nlls - first[0]),
                f"{seconds / first[1]:.2f}",
            ]
        )
    against = f"against sliding by {WINDOW // 2}"
    head = [f"L = {WINDOW}", "S", "tokens read", "perplexity", against, "time"]
    print(markdown(head, rows))


def paired_change(differences: np.ndarray) -> str:
    """Change of perplexity with its 95 % interval, by the rule of all intervals of the metric.

    Args:
        differences: of the nlls of the tokens of a text (N,).
    """
    places = np.arange(len(differences))
    columns = [np.ones(len(places)), differences]
    blocks = Blocks.of([len(places)], np.zeros_like(places), places, columns)
    tokens, sums = blocks.clusters(WINDOW).sums.T
    estimate = estimate_ratio(sums, tokens)
    change, low, high = (100 * math.expm1(x) for x in (estimate.value, *estimate.interval))
    return f"{change:+.2f} % ({low:+.2f} to {high:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("novel", "carried"))
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--characters", type=int, default=50_000, help="of TEXT, for carried")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    evaluate.logging.disable_progress_bar()
    if arguments.table == "novel":
        print_novel(arguments.text, arguments.repetitions)
    else:
        text = arguments.text.read_text("utf-8")[: arguments.characters]
        print_carried(text, str(ROOT / "demo_model"))


if __name__ == "__main__":
    main()
