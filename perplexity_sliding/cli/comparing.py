"""The tables of results: texts, settings, models, contexts, tokens and words; and two models in detail."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product

from .. import __version__
from .messages import one_line
from .tables import NOTHING, Column, Table, format_value, quoted, signature_fields, tabulate

# The key that distinguishes measurements, for each axis.
AXES = {
    "model": "name",
    "text": "text",
    "protocol": "protocol",
    "window": "max_length",
    "stride": "stride",
}
# The share of scored tokens is shown below this value.
NEARLY_ALL = 0.99
# The number that a protocol's tool reports, where it is not the perplexity per token.
OF_TOOLS = {"lm-eval": "word perplexity", "megatron": "adjusted"}
OTHER_TOKENIZERS = "The tokenizers differ: perplexities per token cannot be compared."


# --- numbers of a result --------------------------------------------------------------------------


def number_columns(
    results: Sequence[dict], axes: Sequence[str], digits: int
) -> dict[str, list[Column]]:
    """Return the columns of each of `options.NUMBERS`, an interval under that of the number before it."""
    key, against = paired_with(results, axes)
    differ = have_other_tokenizers(results)
    legend = describe_scope_of_intervals(results)
    # of the original, for detokenized texts
    has_original = any("bits_per_original_byte" in row for row in results)
    unit = "original_byte" if has_original else "byte"
    bits, of_bits = max(3, digits), f"bits_per_{unit}_interval"
    reported = {OF_TOOLS.get(row["protocol"]) for row in results}
    change = f"change: of the perplexity against {against}, with its 95 % interval; - is lower, which is better."

    def of_tool(title: str, name: str) -> Column:
        return Column(title, name, digits, rank=0 if title in reported else 12)

    return {
        "tokens": [Column("tokens", "num_tokens", rank=8)],
        "share": [Column("scored", scored_share)],
        "cost": [
            Column("windows", "num_windows", rank=14),
            Column("forward tokens", "num_forward_tokens", rank=11),
        ],
        "perplexity": [Column("perplexity", "perplexity", digits)],
        "perplexity interval": [
            Column("95 % interval", "perplexity_interval", rank=1, legend=legend)
        ],
        "change": [
            Column("change", lambda row: change_of(row, key)[0], rank=2, legend=change),
            Column("of it", lambda row: change_of(row, key)[1], rank=4),
        ],
        "pvalue": [Column("p", lambda row: pvalue_of(row.get(key)), rank=10)],
        "bits_per_byte": [
            Column(
                f"bits/{unit.replace('_', ' ')}", f"bits_per_{unit}", bits, rank=6 * (not differ)
            )
        ],
        "bits_per_byte interval": [Column("bits interval", of_bits, bits, rank=9)],
        "word_perplexity": [of_tool("word perplexity", "word_perplexity")],
        "others": [
            of_tool("adjusted", "adjusted_perplexity"),
            Column("tool ±", "tool_stderr", 4, rank=7),
        ],
    }


def change_of(row: dict, key: str) -> tuple[str, str]:
    ratio = row.get(key)
    if ratio is None or ratio["ratio"] is None:
        return "", ""
    bounds = ratio["interval"]
    within = "" if bounds is None else " to ".join(f"{100 * (b - 1):+.2f}" for b in bounds)
    return f"{100 * (ratio['ratio'] - 1):+.2f} %", within


def pvalue_of(ratio: dict | None) -> str:
    pvalue = (ratio or {}).get("pvalue")
    return "" if pvalue is None else "< 0.0001" if pvalue < 1e-4 else f"{pvalue:.4f}"


def paired_with(results: Sequence[dict], axes: Sequence[str]) -> tuple[str, str]:
    if "model" in axes:
        return "ratio_to_first_model", results[0].get("name", "")
    return "ratio_to_first", label_setting(results[0], axes)


def scored_share(row: dict) -> str:
    """Format the share of scored tokens, unless it is nearly all."""
    share = row.get("scored_share", 1.0)
    return f"{100 * share:.2g} %" if share < NEARLY_ALL else ""


def describe_scope_of_intervals(rows: Sequence[dict]) -> str:
    """Return a note on what intervals cover: other texts, or only these."""
    scopes = sorted({row.get("interval_scope") for row in rows} - {None})
    beyond = "" if scopes == ["over texts"] else ": other texts may differ by more"
    return f"95 % interval {' or '.join(scopes)}{beyond}." if scopes else ""


def have_other_tokenizers(results: Sequence[dict]) -> bool:
    return len({signature_fields(row)["tokenizer"] for row in results}) > 1


def setting_of(row: dict, name: str) -> str:
    return signature_fields(row)[name].partition("(")[0]


def label(row: dict, keys: Sequence[str]) -> str:
    return ", ".join(str(row[key]) for key in keys if row.get(key) is not None)


def label_setting(row: dict, axes: Sequence[str]) -> str:
    varying = [AXES[axis] for axis in axes if axis not in ("model", "text")]
    return label(row, varying or ["protocol"])


def list_errors(rows: Sequence[dict], keys: Sequence[str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            names.setdefault(one_line(row["error"]), []).append(label(row, keys))
    return [f"{NOTHING} {'; '.join(of)}: {error}" for error, of in names.items()]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# --- texts, contexts, tokens and words ------------------------------------------------------------


def tabulate_texts(rows: Sequence[dict], corpus: dict) -> Table:
    rows, several = list(rows), corpus["num_texts"] > 1
    if several or sum("error" not in row for row in rows) != 1:
        rows.append(corpus | {"name": "all together"})
    numbers = number_columns([row for row in rows if "error" not in row], [], 2)
    del numbers["cost"], numbers["pvalue"], numbers["change"]
    if several:
        rows.append({"name": "mean of them", "perplexity": corpus["mean_perplexity"]})
    has_interval = any(row.get("perplexity_interval") for row in rows)
    is_short = not has_interval and math.isfinite(corpus["perplexity"])
    notes = ["No 95 % interval: too little text."] if is_short else []
    columns = [Column("text", "name", left=True), *chain.from_iterable(numbers.values())]
    return tabulate(rows, columns, notes + list_errors(rows, ["name"]))


def tabulate_contexts(by_context_length: list[dict]) -> Table:
    longest = by_context_length[-1]["context_length"]

    def against(row: dict) -> str:
        ratio = row.get("ratio_to_longest") or {}
        return "" if ratio.get("ratio") is None else f"× {ratio['ratio']:.4f}"

    return tabulate(
        by_context_length,
        [
            Column("context", "context_length"),
            Column("tokens", "num_tokens"),
            Column("perplexity", "perplexity", 4),
            Column("95 % interval", "interval"),
            Column(f"against {longest:,}", against),
            Column(
                "interval of the ratio",
                lambda row: (row.get("ratio_to_longest") or {}).get("interval", ""),
                4,
            ),
        ],
    )


def tabulate_parts(rows: Sequence[dict], unit: str) -> Table:

    def place(row: dict) -> str:
        return "" if row["first"] is None else f"{row['first']}-{row['last']}"

    def likeliest(row: dict) -> str:
        found = row.get("alternatives_nats") or ()
        return ", ".join(f"{quoted(piece)} {nll:.2f}" for piece, nll in found)

    return tabulate(
        rows,
        [
            Column("characters", place, rank=2),
            Column("context", "context_length", rank=1),
            Column("tokens", "num_tokens"),
            Column("surprisal, bits", "surprisal_bits", 4),
            Column("entropy, bits", "entropy_bits", 4),
            Column("nll, nats", "nll_nats", 4),
            Column("nll, bits", "" if unit == "word" else "nll_bits", 4),
            Column("reference, nats", "reference_nll_nats", 4),
            Column("KL, nats", "kl_nats", 5),
            Column("rank", "rank"),
            Column(unit, lambda row: quoted(row[unit]), left=True),
            Column("likeliest, nats", likeliest, left=True),
        ],
    )


# --- settings and models --------------------------------------------------------------------------


def tabulate_measurements(
    rows: Sequence[dict], axes: Sequence[str], chosen: Sequence[str] = ()
) -> Table:
    """Tabulate results, or errors, that differ in `axes`.

    Args:
        chosen: at most one axis, whose values become columns; and the numbers to show.
    """
    results = [row for row in rows if "error" not in row]
    differ, axes = have_other_tokenizers(results), list(axes) or ["protocol"]
    across = next((name for name in chosen if name in AXES), None)
    down = [axis for axis in axes if axis != across] or ["protocol"]
    numbers = number_columns(results, axes, 4 if across is None else 2)
    names = [name for name in chosen if name not in AXES]
    names = [f"{a} {b}" if b == "interval" else b for a, b in zip(["", *names], names)]
    keys = [AXES[axis] for axis in axes]
    notes = [OTHER_TOKENIZERS] if differ else []
    windows = {(row["protocol"], row["max_length"]) for row in results}
    if "model" in axes and "window" not in axes and len(windows) > len({p for p, _ in windows}):
        notes.append("The windows of the models differ; pass --max-length for the same.")
    notes += list_errors(rows, keys)
    columns = [Column(axis, AXES[axis], left=axis not in ("window", "stride")) for axis in down]
    if across is None:
        settings = ("window", "stride", "start") if "protocol" in axes else ("window",)
        columns += [
            Column(name, lambda row, name=name: setting_of(row, name), rank=13)
            for name in (settings if not names and {"protocol", "model"} & {*axes} else ())
            if name not in axes
        ]
        left_out = {"perplexity", "perplexity interval"} if differ else set()
        left_out |= {"cost"} if "model" in axes else set()
        names = names or [name for name in numbers if name not in left_out]
        columns += chain.from_iterable(numbers[name] for name in names)
        return tabulate(rows, columns, notes)
    names = names or ["bits_per_byte" if differ else "perplexity"]
    placed = {tuple(row.get(AXES[axis]) for axis in (*down, across)): row for row in results}
    known = [row for row in rows if {AXES[axis] for axis in axes} <= row.keys()]
    places = dict.fromkeys(tuple(row[AXES[axis]] for axis in down) for row in known)
    lines = {place: [format_value(str(value)) for value in place] for place in places}
    legends = [column.legend for name in names for column in numbers[name]]
    shown = {name: name.rpartition(" ")[2].replace("_", " ") for name in names}
    for head, name in product(dict.fromkeys(row[AXES[across]] for row in known), names):
        columns.append(Column(f"{head}" if len(names) == 1 else f"{head}: {shown[name]}", name))
        for place, line in lines.items():
            row = placed.get((*place, head), {"error": ""})
            line.append(" ".join(filter(None, (c.cell(row) for c in numbers[name]))) or NOTHING)
    notes = [*filter(None, legends), f"Cells: {' and '.join(shown.values())}.", *notes]
    return Table(columns, list(lines.values()), notes)


def with_measurement(what: Table, rows: Sequence[dict], axes: Sequence[str]) -> Table:
    """Add what all rows share to the notes, and the signature; several become comments."""
    results = [row for row in rows if "error" not in row]
    written = {
        "model": "model {}",
        "window": "windows of {} tokens",
        "stride": "stride {}",
        "protocol": "protocol {}",
        "start": "start token {}",
    }
    shared = []
    for name, form in written.items():
        values = {setting_of(row, name) for row in results}
        if len(values) == 1 and name not in axes:
            shared.append(form.format(*values))
    notes = [*what.notes, f"Measured with perplexity-sliding {__version__}: {', '.join(shared)}."]
    names: dict[str, list[str]] = {}
    for row in results:
        names.setdefault(row["signature_short"], []).append(label(row, [AXES[a] for a in axes]))
    if len(names) == 1:
        return replace(what, notes=[*notes, f"Signature: {', '.join(names)}."])
    comments = [f"{'; '.join(of)}: {signature}" for signature, of in names.items()]
    return replace(what, notes=notes, comments=comments)


# --- models and their reference -------------------------------------------------------------------


def tabulate_models(rows: Sequence[dict], reference: str) -> Table:
    """Tabulate models beside their reference, in bits per byte if it has another tokenizer."""
    results = [row for row in rows if "error" not in row]
    comparisons = [row["comparison"] for row in results]
    by_tokens = all(comparison["compared"] == "tokens" for comparison in comparisons)
    notes = [f"The reference is {reference}.", *([] if by_tokens else [OTHER_TOKENIZERS])]
    if any(comparison["window_is_cut"] for comparison in comparisons):
        notes.append("Each model and the reference read the smaller of their two windows.")
    margins = {comparison.get("margin") for comparison in comparisons} - {None}
    notes += [f"Margin: a perplexity up to {100 * margin:g} % higher." for margin in margins]
    legend = describe_scope_of_intervals(results)

    def of_ratio(key: str):
        return lambda row: row["perplexity_ratio"].get(key, "")

    def signed(key: str):
        def write(row: dict) -> str:
            values = row[key] if isinstance(row[key], list) else [row[key]]
            return " – ".join(NOTHING if value is None else f"{value:+.4f}" for value in values)

        return write

    if by_tokens:
        numbers = [
            Column("perplexity", "perplexity", 4),
            Column("reference", "reference_perplexity", 4, rank=4),
            Column("× reference", of_ratio("ratio"), 4),
            Column("interval", of_ratio("interval"), 4, legend=legend),
            Column("p", of_ratio("pvalue"), 4, rank=9),
            Column("KL, nats", "kl", 5, rank=3),
            Column("KL interval", "kl_interval", 5, rank=6),
            Column("KL 99 %", lambda row: row.get("kl_percentiles", {"99": ""})["99"], 4, rank=7),
            Column(
                "same top",
                lambda row: percent(row["same_top"]) if "same_top" in row else "",
                rank=5,
            ),
        ]
    else:
        numbers = [
            Column("bits/byte", "bits_per_byte", 4),
            Column("reference", "reference_bits_per_byte", 4),
            Column("change", signed("bits_per_byte_change"), 4),
            Column("interval", signed("bits_per_byte_change_interval"), 4, legend=legend),
        ]
    columns = [
        Column("model", "name", left=True),
        *numbers,
        Column("verdict", "verdict", left=True, rank=2),
    ]
    lines = [row | row.get("comparison", {}) for row in rows]
    return tabulate(lines, columns, notes + list_errors(rows, ["name"]))
