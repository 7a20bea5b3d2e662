"""Print a benchmark's results as the tables of README.md."""

from collections.abc import Iterable

PEERS = ("guide", "stock", "lm-eval", "lm-eval, batch 16")
# What the README's first table calls the workloads, for those who have not read of windows and strides.
AT_A_GLANCE = {
    "one text, S = L": "time for a long text, disjoint windows",
    "one text, S = L/2": "time for a long text, windows that overlap by half",
    "mixed lengths": "time for 200 texts of mixed lengths",
}


def speed_table(results: dict) -> str:
    """Ours over the plain passes, then every peer over ours: medians, with the lowest and highest."""
    labels = ["ours / plain passes", *(f"{peer} / ours" for peer in PEERS)]
    rows = [
        [f"{case['name']} ({case['description']})"]
        + [_ratio(case["ratios"].get(label)) for label in labels]
        for case in results["cases"]
    ]
    return markdown(["workload", *labels], rows)


def rows_at_a_glance(results: dict) -> str:
    """The last rows of the README's first table: times of three peers in multiples of ours, medians."""
    ratios = {case["name"]: case["ratios"] for case in results["cases"]}
    labels = [f"{peer} / ours" for peer in ("stock", "guide", "lm-eval")]
    return table_lines(
        [what, "1", *(_median(ratios[name].get(label)) for label in labels)]
        for name, what in AT_A_GLANCE.items()
    )


def shared_table(results: dict, part: str = "shared passes") -> str:
    """Several measurements in one call, relative to separate calls."""
    rows = [
        [case["name"], label, _ratio(ratio), _tokens(case, label)]
        for case in results[part]
        for label, ratio in case["ratios"].items()
    ]
    return markdown(["measurements", "", "time", "tokens read"], rows)


def ways_table(results: dict, part: str) -> str:
    """Ratios of two ways of the same work: two models, first calls, a short text with a live model."""
    rows = [
        [case["name"], label, _ratio(ratio)]
        for case in results[part]
        for label, ratio in case["ratios"].items()
    ]
    return markdown(["work", "", "time"], rows)


def many_texts_table(results: dict) -> str:
    """Cost of a short text in addition to the model."""
    rows = [
        [f"{run['texts']:,} {run['work']}", f"{1e6 * run['seconds'] / run['texts']:.0f} µs"]
        for run in results["many texts"]
    ]
    return markdown(["texts of ten tokens", "processor time a text"], rows)


def _tokens(case: dict, label: str) -> str:
    """Ratio of tokens read by two contenders, if both report them."""
    read = [case["forward_tokens"].get(name) for name in label.split(" / ")]
    return f"{read[0] / read[1]:.3f}" if all(read) else ""


def memory_table(results: dict) -> str:
    """Peak memory above the weights."""
    rows = [
        [
            f"{row['case']} ({row['shape']})",
            row["contender"],
            "none was enough"
            if row["peak_bytes"] is None
            else f"{row['peak_bytes'] / 2**20:,.0f} MiB",
        ]
        for row in results["memory"]
    ]
    return markdown(["workload (model)", "by", "peak memory above the weights"], rows)


def bookkeeping_table(results: dict) -> str:
    """Cost of everything but the model."""
    rows = [
        [
            f"{run['texts']:,}",
            f"{run['tokens']:,}",
            f"{run['seconds'] / run['tokens'] * 1e6:.2f} µs",
            f"{run['share_of_plain']:.2%}",
        ]
        for runs in results["bookkeeping"].values()
        for run in runs
    ]
    return markdown(["texts", "tokens", "time per token", "share of the plain passes' time"], rows)


def _ratio(ratio: dict | None) -> str:
    if ratio is None:
        return ""
    digits = 2 if ratio["median"] > 0.1 else 3
    median, low, high = (f"{ratio[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"**{median}** ({low}–{high})"


def _median(ratio: dict | None) -> str:
    return "" if ratio is None else f"{ratio['median']:.1f}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return table_lines([head, ["---"] * len(head), *rows])


def table_lines(lines: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
