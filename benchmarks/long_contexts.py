"""What long contexts cost: tokens read and seconds, for curves and for carried states.

    python benchmarks/long_contexts.py --text TEXT --rotary MODEL

TEXT is a long plain text, MODEL a small model with rotary positions and 128 tokens of context, such
as `python demo_model/train.py --positions rotary` makes.  Prints the tables of benchmarks/README.md.
"""

import argparse
import time
from pathlib import Path

import evaluate
import torch

ROOT = Path(__file__).resolve().parent.parent


def timed(metric, **arguments) -> tuple[dict, float]:
    started = time.process_time()
    result = metric.compute(**arguments)
    return result, time.process_time() - started


def print_curves(metric, text: str) -> None:
    """Seven lengths together, each apart, and the longest alone."""
    lengths = [8 * (number + 1) for number in range(7)]
    common = {"predictions": [text], "model_id": str(ROOT / "demo_model"), "stride": 8}
    longest, seconds = timed(metric, max_length=lengths[-1], **common)
    together, curve_seconds = timed(metric, context_lengths=lengths, **common)
    apart = [timed(metric, max_length=length, **common) for length in lengths]
    rows = {
        "the longest alone": (longest["num_forward_tokens"], seconds),
        "seven lengths, together": (together["num_forward_tokens"], curve_seconds),
        "seven lengths, apart": (
            sum(result["num_forward_tokens"] for result, _ in apart),
            sum(seconds for _, seconds in apart),
        ),
    }
    print("| windows of 8, 16, …, 56 tokens | tokens read | CPU seconds |\n| --- | --- | --- |")
    for name, (tokens, seconds) in rows.items():
        print(f"| {name} | {tokens:,} | {seconds:.1f} |")


def print_carried(metric, text: str, model_id: str) -> None:
    """Perplexity against tokens read: windows that slide, and keys that are carried."""
    common = {"predictions": [text], "model_id": model_id, "max_length": 128}
    settings = [("sliding", {"stride": stride}) for stride in (64, 16, 2)]
    settings += [("carried", {"stride": stride, "carry": True}) for stride in (64, 16)]
    print(
        "\n| L = 128 | S | tokens read | perplexity | CPU seconds |\n| --- | --- | --- | --- | --- |"
    )
    for name, arguments in settings:
        result, seconds = timed(metric, **arguments, **common)
        print(
            f"| {name} | {arguments['stride']} | {result['num_forward_tokens']:,} | "
            f"{result['perplexity']:.3f} | {seconds:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--characters", type=int, default=50_000)
    parser.add_argument("--rotary", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    evaluate.logging.disable_progress_bar()
    metric = evaluate.load(str(ROOT / "perplexity_sliding.py"))
    text = arguments.text.read_text("utf-8")[: arguments.characters]
    print_curves(metric, text)
    print_carried(metric, text, arguments.rotary)


if __name__ == "__main__":
    main()
