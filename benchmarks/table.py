"""A benchmark's results as the tables of README.md."""

PEERS = ("guide", "stock", "lm-eval", "lm-eval, batch 16")


def speed_table(results: dict) -> str:
    """Ours over the plain passes, then every peer over ours: medians, with the lowest and highest."""
    labels = ["ours / plain passes", *(f"{peer} / ours" for peer in PEERS)]
    rows = [
        [f"{case['name']} ({case['description']})"]
        + [_ratio(case["ratios"].get(label)) for label in labels]
        for case in results["cases"]
    ]
    return _markdown(["workload", *labels], rows)


def shared_table(results: dict) -> str:
    """Several measurements in one call, over what they take alone."""
    rows = [
        [case["name"], label, _ratio(ratio), f"{_tokens(case, label):.3f}"]
        for case in results["shared passes"]
        for label, ratio in case["ratios"].items()
    ]
    return _markdown(["measurements", "", "time", "tokens read"], rows)


def _tokens(case: dict, label: str) -> float:
    above, below = label.split(" / ")
    return case["forward_tokens"][above] / case["forward_tokens"][below]


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
    return _markdown(["workload (model)", "by", "peak memory above the weights"], rows)


def bookkeeping_table(results: dict) -> str:
    """What everything around the model costs."""
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
    return _markdown(["texts", "tokens", "time per token", "share of the plain passes' time"], rows)


def _ratio(ratio: dict | None) -> str:
    if ratio is None:
        return ""
    return f"**{ratio['median']:.2f}** ({ratio['low']:.2f}–{ratio['high']:.2f})"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
