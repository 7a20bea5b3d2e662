"""The tables that score.py prints.

A row is a result of the metric with the name of what was measured, or with an `error` instead.
"""

import json
import math
from collections.abc import Callable, Iterator

Cell = Callable[[dict], str]
NOTHING = "–"


def number(key: str, digits: int = 2) -> Cell:
    """A cell with a number of the result."""
    return lambda row: format_number(row[key], digits) if key in row else ""


def count(key: str) -> Cell:
    return lambda row: f"{row[key]:,}" if key in row else ""


def interval(row: dict) -> str:
    bounds = row.get("perplexity_interval")
    if bounds is None:
        return NOTHING if "perplexity_interval" in row else ""
    return " – ".join(format_number(bound) for bound in bounds)


def plus_minus(row: dict) -> str:
    """The tool's own ± where the protocol has one, else the metric's."""
    return format_number(row.get("tool_stderr", row["perplexity_stderr"]), 4)


def signed(key: str) -> Cell:
    """A cell with a field of the signature."""
    return lambda row: signature_fields(row)[key].partition("(")[0]


def format_number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return NOTHING
    if math.isfinite(value) and abs(value) >= 1e7:
        return f"{value:.{digits}e}"
    return f"{value:.{digits}f}"


def signature_fields(row: dict) -> dict[str, str]:
    pairs = (field.partition(":") for field in row["signature"].split("|"))
    return {name: value for name, _, value in pairs}


def common_signature(rows: list[dict]) -> str:
    """The part of the signature that all rows share; the tables have columns for the rest."""
    fields = [signature_fields(row) for row in rows if "error" not in row]
    shared = (name for name in fields[0] if all(own[name] == fields[0][name] for own in fields))
    return "|".join(f"{name}:{fields[0][name]}" for name in shared)


def of_files(report: dict) -> str:
    """Files and corpus: sizes, perplexity with its interval, and what no tokenizer decides."""
    corpus, files = report["corpus"], report.get("files", [])
    rows = list(files)
    if len(files) != 1:
        rows.append({"name": "all together"} | corpus)
    if len(corpus["perplexities"]) > 1:
        rows.append({"name": "mean of them", "perplexity": corpus["mean_perplexity"]})
    return table(
        rows,
        {
            "text": lambda row: row["name"],
            "tokens": count("num_tokens"),
            "windows": count("num_windows"),
            "perplexity": number("perplexity"),
            "95 % interval": interval,
            "tool's ±": number("tool_stderr", 4),
            "bits/byte": number("bits_per_byte", 3),
            "bits/original byte": number("bits_per_original_byte", 3),
            "word perplexity": number("word_perplexity"),
            "adjusted": number("adjusted_perplexity"),
        },
    )


def of_protocols(rows: list[dict]) -> str:
    """Protocols side by side, to the digits that the tools print."""
    return table(
        rows,
        {
            "protocol": lambda row: row["protocol"],
            "window": signed("window"),
            "stride": signed("stride"),
            "start": signed("start"),
            "tokens": count("num_tokens"),
            "perplexity": number("perplexity", 4),
            "±": plus_minus,
            "bits/byte": number("bits_per_byte", 4),
            "bits/original byte": number("bits_per_original_byte", 4),
            "word perplexity": number("word_perplexity", 4),
            "adjusted": number("adjusted_perplexity", 4),
        },
    )


def of_strides(rows: list[dict]) -> str:
    """Strides: what a smaller one gains, and what it costs."""
    base = max((row for row in rows if "error" not in row), key=lambda row: row["stride"])

    def gain(row: dict) -> str:
        return "" if row is base else f"{100 * (1 - row['perplexity'] / base['perplexity']):.2f} %"

    return table(
        rows,
        {
            "stride": lambda row: str(row["stride"]),
            "tokens": count("num_tokens"),
            "windows": count("num_windows"),
            "forward tokens": count("num_forward_tokens"),
            "perplexity": number("perplexity", 4),
            "95 % interval": interval,
            f"gain on {base['stride']}": gain,
        },
    )


def token_tables(corpus: dict, names: list[str]) -> Iterator[tuple[str, str]]:
    """Every token of each text, if their scores were asked for."""
    scores = corpus.get("token_scores", [])
    if len(scores) < len(names):
        names = ["all together"]  # joined
    return ((name, of_tokens(columns)) for name, columns in zip(names, scores))


def of_tokens(columns: dict[str, list]) -> str:
    """Tokens with their characters, context, and negative log-likelihood in nats and in bits."""
    keys = [key for key in columns if key != "windows"]
    rows = [dict(zip(keys, values)) for values in zip(*(columns[key] for key in keys))]
    return table(
        rows,
        {
            "characters": lambda row: "-".join(map(str, row["offsets"] or ())),
            "context": number("context_length", 0),
            "nats": number("nll", 4),
            "bits": lambda row: format_number(row["nll"] and row["nll"] / math.log(2), 4),
            "rank": lambda row: str(row["rank"] or NOTHING) if "rank" in row else "",
            "token": lambda row: row["tokens"],
            "likeliest, nats": lambda row: ", ".join(
                f"{json.dumps(piece, ensure_ascii=False)} {nll:.2f}"
                for piece, nll in row.get("alternatives") or ()
            ),
        },
        left=("token", "likeliest, nats"),
    )


def table(rows: list[dict], columns: dict[str, Cell], left: tuple[str, ...] | None = None) -> str:
    """Lay out rows under the columns' titles, without the columns that are empty in all rows.

    Args:
        left: titles of the columns to align on the left; by default the first one.
    """
    titles = list(columns)
    left = left or titles[:1]
    cells = [[cell(row) for cell in columns.values()] for row in rows if "error" not in row]
    used = [n for n in range(len(titles)) if any(line[n] for line in cells)]
    lines = [titles, *cells]
    first = columns[titles[0]]
    widths = {n: max(len(line[n]) for line in lines) for n in used}
    widths[0] = max([widths[0], *(len(first(row)) for row in rows)])

    def lay_out(line: list[str]) -> str:
        padded = (
            line[n].ljust(widths[n]) if titles[n] in left else line[n].rjust(widths[n])
            for n in used
        )
        return "  ".join(padded).rstrip()

    measured = iter(cells)
    body = [
        f"{first(row).ljust(widths[0])}  {row['error']}"
        if "error" in row
        else lay_out(next(measured))
        for row in rows
    ]
    return "\n".join([lay_out(titles), *body])
