"""Compare the time of this metric with other tools and bare forward passes.

    python benchmarks/run.py            # half an hour on an idle machine; writes results.json
    python benchmarks/run.py --tables   # the tables of docs/speed.md and README.md, from results.json

All contenders must give one number, and take turns in one process; every ratio is of two times of one turn.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import transformers
from cases import Case, Setup, all_protocols, long_text, mixed_texts, several_strides
from measure import ratio, time_in_turns

RESULTS = Path(__file__).resolve().parent / "results.json"
# Numbers of one case that one float32 execution and another may differ by, relatively.
TOLERANCE = 1e-4
PEERS = ("guide", "stock", "lm-eval", "lm-eval, batch 16")
# What the README calls the workloads, for those who have not read of windows and strides.
AT_A_GLANCE = {
    "one text, S = L": "time for a long text, disjoint windows",
    "one text, S = L/2": "time for a long text, windows that overlap by half",
    "mixed lengths": "time for 200 texts of mixed lengths",
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("gpt2", "tiny"), default="gpt2")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tables", action="store_true", help="only print the tables")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.tables:
        results = json.loads(options.output.read_text())
        print(speed_table(results), shared_table(results), rows_at_a_glance(results), sep="\n\n")
        return
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    machine = {
        "cores": os.cpu_count(),
        "threads": options.threads,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    results = {"machine": machine, "cases": [], "shared passes": []}
    setup, tiny = Setup(options.shape), options.shape == "tiny"
    cases = {
        "cases": [
            *(long_text(setup, *sizes) for sizes in ((1, 5), (2, 12), (8, 12))),
            mixed_texts(setup, 12 if tiny else 200),
        ],
        "shared passes": [
            several_strides(setup, 3 if tiny else 12),
            all_protocols(setup, 100 if tiny else 3_000),
        ],
    }
    for part, of_part in cases.items():
        for case in of_part:
            results[part].append(run_case(case, options.repetitions))
            options.output.write_text(json.dumps(results, indent=1) + "\n")


def run_case(case: Case, repetitions: int) -> dict:
    """Check that all contenders give the same number, then time them in turns."""
    found = {name: contender.run() for name, contender in case.contenders.items()}  # warms up too
    differences = {
        name: abs(found[name] / contender.twin() - 1)
        for name, contender in case.contenders.items()
        if contender.twin is not None
    }
    if not all(value <= TOLERANCE for value in differences.values()):
        raise SystemExit(f"{case.name}: not the same number as ours, relatively: {differences}")
    seconds = time_in_turns({n: c.run for n, c in case.contenders.items()}, repetitions)
    ratios = {f"{a} / {b}": ratio(seconds, [a], [b]) for a, b in case.ratios}
    print(f"\n{case.name} {case.description}")
    for label, found_ratio in ratios.items():
        print(f"  {label:28} {cell(found_ratio)}", flush=True)
    return {
        "name": case.name,
        "description": case.description,
        "forward_tokens": {n: count_tokens(r) for n, r in found.items() if count_tokens(r)},
        "differences": differences,
        "seconds": seconds,
        "ratios": ratios,
    }


def count_tokens(result: object) -> int:
    """Number of tokens read for one result, or for several; 0 if it does not say."""
    parts = result if isinstance(result, list) else [result]
    return sum(part["num_forward_tokens"] for part in parts if isinstance(part, dict))


# --- tables ---------------------------------------------------------------------------------------


def speed_table(results: dict) -> str:
    """Ours over the plain passes, then every peer over ours: medians, with the lowest and highest."""
    labels = ["ours / plain passes", *(f"{peer} / ours" for peer in PEERS)]
    rows = [
        [f"{case['name']} ({case['description']})"]
        + [cell(case["ratios"].get(label)) for label in labels]
        for case in results["cases"]
    ]
    return markdown([["workload", *labels], ["---"] * (1 + len(labels)), *rows])


def shared_table(results: dict) -> str:
    """Several measurements in one call, relative to separate calls."""
    rows = []
    for case in results["shared passes"]:
        for label, found in case["ratios"].items():
            above, below = (case["forward_tokens"][name] for name in label.split(" / "))
            rows.append([case["name"], label, cell(found), f"{above / below:.3f}"])
    return markdown([["measurements", "", "time", "tokens read"], ["---"] * 4, *rows])


def rows_at_a_glance(results: dict) -> str:
    """The last rows of the README's first table: times of three peers in multiples of ours, medians."""
    ratios = {case["name"]: case["ratios"] for case in results["cases"]}
    labels = [f"{peer} / ours" for peer in ("stock", "guide", "lm-eval")]
    found = {name: [ratios[name].get(label) for label in labels] for name in AT_A_GLANCE}
    return markdown(
        [what, "1", *("" if r is None else f"{r['median']:.1f}" for r in found[name])]
        for name, what in AT_A_GLANCE.items()
    )


def cell(found: dict | None) -> str:
    if found is None:
        return ""
    median, low, high = (f"{found[name]:.2f}" for name in ("median", "low", "high"))
    return f"**{median}** ({low}–{high})"


def markdown(rows) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
