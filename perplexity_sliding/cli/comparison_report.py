"""Printed report of a model and its reference: first whether it is worse, then what changes."""

import math
from collections.abc import Sequence

from .tables import (
    NOTHING,
    P,
    Table,
    bits,
    change,
    count,
    different_windows,
    explained_change,
    format_number,
    interval,
    number,
    pvalue_of,
    quoted,
    signature_fields,
    table,
)

CONTEXT_CHARACTERS = 30
WORST_TOKENS = 8


def of_comparison(report: dict, texts: Sequence[str]) -> list[str | Table]:
    """Return the report on one model, as sentences and tables.

    Args:
        report: the metric's result, with `comparison`.
        texts: the scored texts, to show tokens in context; tokens of joined texts are shown alone.
    """
    comparison = report["comparison"]
    blocks = [comparison["summary"]]
    if comparison["compared"] == "bytes":
        blocks += [of_bytes(report, comparison)]
    else:
        blocks += [
            of_changes(report, comparison),
            *([of_divergence(comparison)] if "kl" in comparison else []),
            of_groups("confidence", comparison.get("by_confidence", ()), percent_range),
            of_groups("context", comparison["by_tokens_seen"], token_range),
            of_worst(comparison["worst_tokens"], texts),
        ]
    return [block for block in blocks if isinstance(block, str) or block.lines]


def of_changes(report: dict, comparison: dict) -> Table:
    """Tabulate perplexity and accuracy of both models, and their changes with intervals."""
    ratio = comparison["perplexity_ratio"]
    change = comparison["accuracy_change_interval"]
    rows = [
        {
            "what": "perplexity",
            "reference": format_number(comparison["reference_perplexity"], 4),
            "model": format_number(report["perplexity"], 4),
            "change": NOTHING if ratio["ratio"] is None else f"× {ratio['ratio']:.4f}",
            "interval": bounds(ratio["interval"], "{:.4f}"),
            "note": pvalue(ratio["pvalue"]),
        },
        {
            "what": "right next token",
            "reference": percent(comparison["reference_accuracy"]),
            "model": percent(comparison["accuracy"]),
            "change": f"{100 * comparison['accuracy_change']:+.2f} pt",
            "interval": bounds(change and [100 * bound for bound in change], "{:+.2f}"),
            "note": f"{percent(comparison['right_to_wrong'])} lost, "
            f"{percent(comparison['wrong_to_right'])} won",
        },
    ]
    if is_cut(report):
        own, of_reference = comparison["own_window"], comparison["reference_own_window"]
        rows.append(
            {
                "what": "window",
                "reference": out_of(report["max_length"], of_reference),
                "model": out_of(report["max_length"], own),
                "change": "",
                "interval": "",
                "note": "the smaller of the two",
            }
        )
    columns = {
        "": lambda row: row["what"],
        "reference": lambda row: row["reference"],
        "model": lambda row: row["model"],
        "change": lambda row: row["change"],
        "interval": lambda row: row["interval"],
        " ": lambda row: row["note"],
    }
    return table(rows, columns, left=("", " "))


def is_cut(report: dict) -> bool:
    """Return whether one of the models has other numbers alone, in its longer window."""
    return report["comparison"]["window_is_cut"]


def out_of(window: int, own: int | None) -> str:
    """Format the window of a comparison, and a model's own window if it is larger."""
    if own == window:
        return f"{window:,}"
    return f"{window:,} of {own:,}" if own is not None else f"{window:,}, no limit"


def of_divergence(comparison: dict) -> str:
    """Describe the divergence: changes for better or worse."""
    points = comparison["kl_percentiles"]
    lines = [
        f"KL divergence     {format_number(comparison['kl'], 5)} nats"
        f" ({bounds(comparison['kl_interval'], '{:.5f}')}); median "
        f"{format_number(points['50'], 5)}, 99 % {format_number(points['99'], 4)},"
        f" max {format_number(points['100'], 4)}",
        f"same next token   up to {percent(comparison['token_agreement'])} if sampled, "
        f"{percent(comparison['same_top'])} if the likeliest is taken",
        f"right token's p   {100 * comparison['delta_p']:+.3f} pt on average, "
        f"{100 * comparison['rms_delta_p']:.3f} pt root mean square",
    ]
    if comparison["num_infinite_kl"]:
        lines.append(
            f"{comparison['num_infinite_kl']:,} tokens have an infinite divergence: the model assigns "
            "probability 0 to tokens that the reference does not"
        )
    if comparison["interval_sample"]:
        sample, scope = comparison["interval_sample"], comparison["interval_scope"]
        lines.append(f"intervals         95 % {scope}, from {sample}")
    return "\n".join(lines)


def of_kl(rows: Sequence[dict], columns: dict) -> dict:
    """Return the columns of the divergence; none if no row has it, as with a server."""
    return columns if any("kl" in row for row in rows) else {}


def of_groups(title: str, groups: Sequence[dict], name) -> Table:
    """Tabulate the divergence and change of groups of tokens."""
    return table(
        list(groups),
        {
            title: name,
            "share": lambda row: percent(row["share"]),
            **of_kl(
                groups,
                {
                    "KL, nats": lambda row: format_number(row.get("kl"), 5),
                    "interval": lambda row: bounds(row.get("kl_interval"), "{:.5f}"),
                },
            ),
            "perplexity": lambda row: f"× {ratio_of(row['log_ratio']):.4f}",
            "interval ": lambda row: bounds(
                row["log_ratio_interval"] and [ratio_of(b) for b in row["log_ratio_interval"]],
                "{:.4f}",
            ),
        },
    )


def of_worst(tokens: Sequence[dict], texts: Sequence[str]) -> str | Table:
    """Tabulate the tokens with the largest divergence, with the text before them."""
    changed = [token for token in tokens if token.get("kl", token["nll"] != token["reference_nll"])]
    if not changed:
        return "No token's probability changed."
    return table(
        changed[:WORST_TOKENS],
        {
            "worst tokens": place,
            **of_kl(tokens, {"KL, nats": lambda row: format_number(row.get("kl"), 4)}),
            "was": lambda row: percent(math.exp(-row["reference_nll"])),
            "is": lambda row: percent(math.exp(-row["nll"])),
            "in the text": lambda row: in_context(row, texts),
        },
        left=("worst tokens", "in the text"),
    )


def of_bytes(report: dict, comparison: dict) -> str:
    """Describe the comparison of models with different tokenizers."""
    change = comparison["bits_per_byte_change_interval"]
    return "\n".join(
        [
            "The tokenizers differ, so the models are compared in bits per byte over "
            f"{comparison['num_compared_bytes']:,} bytes that both score.",
            f"reference {comparison['reference_bits_per_byte']:.4f}   "
            f"model {comparison['bits_per_byte']:.4f}   "
            f"change {comparison['bits_per_byte_change']:+.4f} ({bounds(change, '{:+.4f}')})   "
            f"{pvalue(comparison['byte_perplexity_ratio']['pvalue'])}",
            *([windows_of_both(report)] if is_cut(report) else []),
        ]
    )


def windows_of_both(report: dict) -> str:
    """Describe the windows if one of the models reads smaller ones than alone."""
    comparison, window = report["comparison"], report["max_length"]
    return (
        "Both read the smaller of their windows: "
        f"reference {out_of(window, comparison['reference_own_window'])}   "
        f"model {out_of(window, comparison['own_window'])}"
    )


def of_models(rows: Sequence[dict], reference: str | None) -> Table:
    """Tabulate several models side by side.

    Args:
        rows: results with a `name`, or an `error`.
        reference: the display name of the reference, if any.
    """
    if reference is None:
        return of_measured_models(rows)
    compared = [row for row in rows if "error" not in row]
    rows = rows_of_reference(reference, compared) + [
        row if "error" in row else row | row["comparison"] for row in rows
    ]
    notes: list[str] = []
    if any(map(is_cut, compared)):
        for row in rows:
            if "error" not in row:
                row["window"] = out_of(row["max_length"], row["own_window"])
        notes.append(smaller_windows(reference, compared))
    if all(row["comparison"]["compared"] == "tokens" for row in compared):
        return of_alike(rows, notes)
    return of_other_tokenizers(rows, notes)


def smaller_windows(reference: str, compared: Sequence[dict]) -> str:
    """Note the windows, whose column a narrow terminal hides."""
    listed = ", ".join(f"{row['name']} {row['max_length']:,}" for row in compared)
    return (
        "Each model and the reference read the smaller of their two windows, in tokens: "
        f"{listed}. The reference is {reference}."
    )


def rows_of_reference(reference: str, compared: Sequence[dict]) -> list[dict]:
    """Return the reference's own numbers, once for each window that changes them."""
    windows = list(dict.fromkeys(row["max_length"] for row in compared))
    if len(windows) == 1 or not any(map(is_cut, compared)):
        return [{"name": f"{reference} (reference)"} | row_of_reference(compared)]
    return [
        {"name": f"reference, L{window}"}  # short, as a narrow terminal hides columns
        | row_of_reference([row for row in compared if row["max_length"] == window])
        for window in windows
    ]


def row_of_reference(compared: Sequence[dict]) -> dict:
    """Return the reference's own numbers, preferably from a comparison over tokens."""
    by_tokens = [row for row in compared if row["comparison"]["compared"] == "tokens"]
    row = (by_tokens or compared)[0]
    comparison = row["comparison"]
    shown = ("perplexity", "bits_per_byte", "own_window")
    names = [(name, f"reference_{name}") for name in shown]
    of_reference = {name: comparison[key] for name, key in names if key in comparison}
    return of_reference | {"max_length": row["max_length"]}


def of_alike(rows: Sequence[dict], notes: Sequence[str]) -> Table:
    """Tabulate models that read the same tokens: perplexity, its ratio, and other changes."""

    def ratio(row: dict) -> dict:
        return row.get("perplexity_ratio", {})

    return table(
        rows,
        {
            "model": lambda row: row["name"],
            "window": lambda row: row.get("window", ""),
            "perplexity": lambda row: format_number(row["perplexity"], 4),
            "× reference": lambda row: format_number(ratio(row).get("ratio"), 4),
            "interval": lambda row: bounds(ratio(row).get("interval"), "{:.4f}"),
            P: lambda row: pvalue_of(row, "perplexity_ratio"),
            **of_kl(
                rows,
                {
                    "KL, nats": lambda row: format_number(row.get("kl"), 5),
                    "KL interval": lambda row: bounds(row.get("kl_interval"), "{:.5f}"),
                    "KL 99 %": lambda row: format_number(
                        row.get("kl_percentiles", {}).get("99"), 4
                    ),
                },
            ),
            "same top": lambda row: percent(row["same_top"]) if "same_top" in row else NOTHING,
            "verdict": lambda row: row.get("verdict", NOTHING),
        },
        left=("model", "verdict"),
        notes=tuple(notes),
    )


def of_other_tokenizers(rows: Sequence[dict], notes: Sequence[str]) -> Table:
    """Tabulate models with different tokenizers by bits per byte, as perplexities are per token."""
    return table(
        rows,
        {
            "model": lambda row: row["name"],
            "window": lambda row: row.get("window", ""),
            "bits/byte": lambda row: format_number(row["bits_per_byte"], 4),
            "change": lambda row: signed(row.get("bits_per_byte_change")),
            "interval": lambda row: bounds(row.get("bits_per_byte_change_interval"), "{:+.4f}"),
            P: lambda row: (
                pvalue_of(row, "byte_perplexity_ratio") or pvalue_of(row, "perplexity_ratio")
            ),
            "verdict": lambda row: row.get("verdict", NOTHING),
        },
        left=("model", "verdict"),
        notes=("The tokenizers differ: perplexities per token cannot be compared.", *notes),
    )


def signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.4f}"


def of_measured_models(rows: Sequence[dict]) -> Table:
    """Tabulate several models without a reference: absolute numbers, with intervals of the perplexity."""
    tokenizers = {signature_fields(row)["tokenizer"] for row in rows if "error" not in row}
    first = next(row for row in rows if "error" not in row)["name"]
    against, key = f"against {first}", "ratio_to_first_model"
    per_token = {
        "perplexity": number("perplexity", 4),
        "95 % interval": interval,
        against: lambda row: change(row, key),
        P: lambda row: pvalue_of(row, key),
    }
    return table(
        rows,
        {
            "model": lambda row: row["name"],
            "tokens": count("num_tokens"),
            **(per_token if len(tokenizers) == 1 else {}),
            **bits(4),
            "word perplexity": number("word_perplexity", 2),
        },
        notes=(
            *([explained_change(against)] if any(key in row for row in rows) else []),
            *different_windows([row for row in rows if "error" not in row]),
            *(
                ("The tokenizers differ: perplexities per token cannot be compared.",)
                if len(tokenizers) > 1
                else ()
            ),
        ),
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def percent_range(group: dict) -> str:
    return f"{100 * group['low']:.0f} – {100 * group['high']:.0f} %"


def token_range(group: dict) -> str:
    low, high = group["low"], group["high"]
    return f"{low}" if low == high else f"{low} – {high}"


def bounds(limits: Sequence[float] | None, form: str) -> str:
    return NOTHING if limits is None else " – ".join(form.format(bound) for bound in limits)


def pvalue(value: float | None) -> str:
    """Format a p-value for a sentence; empty if there is none."""
    if value is None:
        return ""
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.4f}"


def ratio_of(log_ratio: float) -> float:
    return math.exp(min(log_ratio, 700.0))


def place(token: dict) -> str:
    offset = token["offset"]
    where = f"token {token['position']}" if offset is None else f"{offset[0]}-{offset[1]}"
    return f"{token['text']}: {where}"


def in_context(token: dict, texts: Sequence[str]) -> str:
    """Quote the text before a token, and the token itself in brackets."""
    if token["offset"] is None or token["text"] >= len(texts):
        return f"[{quoted(token['token'])}]"
    begin, end = token["offset"]
    text = texts[token["text"]]
    before = text[max(0, begin - CONTEXT_CHARACTERS) : begin]
    return " ".join(f"…{before}[{text[begin:end]}]".split())
