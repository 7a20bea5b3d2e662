"""Compare the time of this metric with other tools and bare forward passes.

    python benchmarks/run.py

Prints the ratios, writes them to results.json and draws plot.png, both beside this file.  Nothing
else should run on the machine meanwhile.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import bookkeeping
import evaluate
import shared
import torch
import transformers
import two_models
import whole_runs
from cases import PLAIN, Case, Setup, large_batch, timed_cases
from measure import agreement, peak_memory, peak_memory_apart, ratios, spread, time_in_turns
from plot import draw

HERE = Path(__file__).resolve().parent
# Numbers of one case that one float32 execution and another may differ by, relatively.
TOLERANCE = 1e-4
MEMORY_CASES = {  # shape, case: whose memory is measured
    ("gpt2", "one text, S = L/2"): ("ours", "guide"),
    ("gpt2", "mixed lengths"): ("ours", "stock", "lm-eval, batch 16"),
    ("large vocabulary", "a batch of 16 windows"): (
        "ours",
        "ours, logits_memory=2**26",
        "full logits",
    ),
    ("large vocabulary", "two models, two windows"): (
        "both at once, logits_memory=2**27",
        "full logits of both",
    ),
}


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    evaluate.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.memory_of:
        print(json.dumps({"peak_bytes": measure_memory(*options.memory_of, options.texts)}))
        return
    results = {"machine": describe_machine(options.threads), "shape": options.shape, "cases": []}
    if options.only and options.output.exists():
        results = json.loads(options.output.read_text())
    for name, part in all_parts(options, results):
        if (options.only is None or name in options.only) and name not in options.skip:
            part()
            options.output.write_text(json.dumps(results, indent=1) + "\n")
    if results["cases"]:
        draw(results, options.plot)


def all_parts(
    options: argparse.Namespace, results: dict
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The parts of the benchmark, by name; each adds to `results` and prints them."""
    tiny = options.shape == "tiny"

    def one_case(case: Case) -> None:
        measured = run_case(case, options.repetitions)
        print_case(measured)
        places = [n for n, old in enumerate(results["cases"]) if old["name"] == case.name]
        place = places[0] if places else len(results["cases"])
        results["cases"][place : place + 1] = [measured]

    def all_shared() -> None:
        results["shared passes"] = [
            shared.several_strides(setup, 3 if tiny else 12, options.repetitions),
            shared.all_protocols(setup, 100 if tiny else 3_000, options.repetitions),
        ]
        print_ways(results["shared passes"])

    def many_lengths() -> None:
        small = setup if tiny else Setup("small")
        number = 8 if tiny else 64
        results["many lengths"] = [shared.many_lengths(small, number, options.repetitions)]
        print_ways(results["many lengths"])

    def one_context() -> None:
        small = setup if tiny else Setup("small vocabulary")
        sizes = (30, 4, 20) if tiny else (200, 10, 500)
        results["shared context"] = [shared.one_context(small, *sizes, options.repetitions)]
        print_ways(results["shared context"])

    def all_two_models() -> None:
        if tiny:
            pairs = [(setup, setup.context)]
            rows = [(setup, 8)]
        else:
            small = Setup("small")
            pairs = [(small, 1024), (setup, 512)]
            rows = [(small, 128), (Setup("large vocabulary"), 64)]
        results["two models"] = [
            *(two_models.both_at_once(*pair, options.repetitions) for pair in pairs),
            *(two_models.divergence(*size, options.repetitions) for size in rows),
        ]
        print_ways(results["two models"])

    def all_many_texts() -> None:
        results["many texts"] = whole_runs.many_texts(100 if tiny else 10_000)
        print_many_texts(results["many texts"])

    def all_commands() -> None:
        sizes = (64, 16) if tiny else (2048, 512)
        results["commands"] = [
            whole_runs.note(options.repetitions),
            whole_runs.article(options.shape, *sizes, options.repetitions),
        ]
        print_ways(results["commands"])

    def all_bookkeeping() -> None:
        results["bookkeeping"] = run_bookkeeping(tiny, results["cases"])
        print_bookkeeping(results["bookkeeping"])

    def all_memory() -> None:
        results["memory"] = run_memory(options.texts)
        print_memory(results["memory"])

    setup = Setup(options.shape)
    for case in timed_cases(setup, tiny, options.texts):
        yield case.name, partial(one_case, case)
    yield "shared passes", all_shared
    yield "many lengths", many_lengths
    yield "shared context", one_context
    yield "two models", all_two_models
    yield "many texts", all_many_texts
    yield "commands", all_commands
    yield "bookkeeping", all_bookkeeping
    yield "memory", all_memory


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("gpt2", "tiny"), default="gpt2")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--texts", help="folder of text files whose lines are the mixed texts")
    parser.add_argument(
        "--only", action="append", help="a part by its name, which is renewed in OUTPUT"
    )
    parser.add_argument("--skip", action="append", default=[], help="a part by its name")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--plot", type=Path, default=HERE / "plot.png")
    parser.add_argument("--memory-of", nargs=3, metavar=("SHAPE", "CASE", "CONTENDER"))
    return parser.parse_args(arguments)


def describe_machine(threads: int) -> dict:
    return {
        "cores": os.cpu_count(),
        "threads": threads,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def run_case(case: Case, repetitions: int) -> dict:
    """Check that all contenders give the same number, then time them in turns."""
    plain_settings = case.plain.search()
    differences = agreement(case)
    wrong = {name: value for name, value in differences.items() if not value <= TOLERANCE}
    if wrong:
        raise SystemExit(f"{case.name}: not the same number as ours, relatively: {wrong}")
    runs = {name: contender.run for name, contender in case.contenders.items()}
    seconds = time_in_turns(runs, repetitions)
    return {
        "name": case.name,
        "description": case.description,
        "plain": plain_settings._asdict(),
        "forward_tokens": sum(window.num_inputs for window in case.plain.windows),
        "scored_tokens": sum(window.num_targets for window in case.plain.windows),
        "differences": differences,
        "seconds": seconds,
        "ratios": ratios(seconds),
    }


def run_bookkeeping(tiny: bool, cases: list[dict]) -> dict:
    """With a model without cost, also as a share of the plain passes' time for as many tokens."""
    smaller = 1000 if tiny else 1
    short = bookkeeping.short_texts([n // smaller for n in (12_500, 25_000, 50_000, 100_000)])
    long = bookkeeping.one_text([10**4 // smaller * 10**power for power in range(4)])
    mixed = next(case for case in cases if case["name"] == "mixed lengths")
    per_token = spread(mixed["seconds"][PLAIN])["median"] / mixed["forward_tokens"]
    for run in short + long:
        run["share_of_plain"] = run["seconds"] / (run["forward_tokens"] * per_token)
    return {"short texts": short, "one text": long}


def run_memory(texts: str | None) -> list[dict]:
    folder = [] if texts is None else ["--texts", texts]
    return [
        {
            "shape": shape,
            "case": case,
            "contender": contender,
            "peak_bytes": peak_memory_apart(
                Path(__file__), "--memory-of", shape, case, contender, *folder
            ),
        }
        for (shape, case), contenders in MEMORY_CASES.items()
        for contender in contenders
    ]


def measure_memory(shape: str, name: str, contender: str, texts: str | None) -> int:
    """Peak memory of one contender above the weights, in this process."""
    setup = Setup(shape)
    cases = [large_batch(setup), two_models.large_pair(setup), *timed_cases(setup, False, texts)]
    chosen = next(case for case in cases if case.name == name).contenders[contender]
    weights = sum(p.numel() * p.element_size() for p in setup.model.parameters())
    return peak_memory(chosen.run) - (weights if chosen.own_weights else 0)


def print_case(case: dict) -> None:
    print(f"\n{case['name']}: {case['description']}; plain {case['plain']}")
    for name, seconds in case["seconds"].items():
        print(f"  {name:24} {spread(seconds)['median']:9.2f} s")
    print_ratios(case["ratios"])


def print_ways(cases: list[dict]) -> None:
    for case in cases:
        print(f"\n{case['name']}; tokens read: {case.get('forward_tokens', 'the same')}")
        print_ratios(case["ratios"])


def print_ratios(ratios: dict[str, dict[str, float]]) -> None:
    for label, ratio in ratios.items():
        print(f"  {label:28} {ratio['median']:9.3f}   ({ratio['low']:.3f} to {ratio['high']:.3f})")
    sys.stdout.flush()


def print_bookkeeping(runs: dict) -> None:
    for name, points in runs.items():
        print(f"\nbookkeeping, {name}, with a free model")
        for point in points:
            print(
                f"  {point['texts']:8,} texts {point['tokens']:12,} tokens "
                f"{point['seconds']:8.2f} s {point['seconds'] / point['tokens'] * 1e6:8.2f} µs a "
                f"token, {point['share_of_plain']:.2%} of the plain passes"
            )
    sys.stdout.flush()


def print_many_texts(rows: list[dict]) -> None:
    print("\nmany short texts")
    for row in rows:
        per_text = 1e6 * row["seconds"] / row["texts"]
        print(f"  {row['texts']:,} {row['work']:28} {per_text:9.0f} µs a text")
    sys.stdout.flush()


def print_memory(rows: list[dict]) -> None:
    print("\npeak memory above the weights")
    for row in rows:
        peak = row["peak_bytes"]
        amount = "out of memory" if peak is None else f"{peak / 2**20:8,.0f} MiB"
        print(f"  {row['case']:24} {row['contender']:28} {amount}")


if __name__ == "__main__":
    main()
