"""The tables of results: texts, settings, models, contexts, tokens and words; and two models in detail."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ..about import VERSION
from .options import AXES as AXIS_NAMES
from .tables import (
    NOTHING,
    Cell,
    Column,
    Table,
    count,
    format_interval,
    format_number,
    interval,
    number,
    printable,
    quoted,
    signature_fields,
    tabulate,
)

# Settings in which measurements differ, with the titles of their columns.
SETTINGS = {"protocol": "protocol", "max_length": "window", "stride": "stride"}
# The key that distinguishes measurements, for each axis.
AXES = {"model": "name", "text": "text"} | {title: key for key, title in SETTINGS.items()}
# The share of scored tokens is shown below this value.
NEARLY_ALL = 0.99
# The number that a protocol's tool reports, where it is not the perplexity per token.
OF_TOOLS = {"lm-eval": "word perplexity", "megatron": "adjusted"}
OTHER_TOKENIZERS = "The tokenizers differ: perplexities per token cannot be compared."
CONTEXT_CHARACTERS = 30
WORST_TOKENS = 8


# --- numbers of a result --------------------------------------------------------------------------


def size_columns() -> list[Column]:
    return [
        Column("tokens", count("num_tokens"), rank=8),
        Column("scored", scored_share, why_empty="above 99 %"),
    ]


def perplexity_columns(rows: Sequence[dict], digits: int) -> list[Column]:
    return [
        Column("perplexity", number("perplexity", digits)),
        Column(
            "95 % interval",
            interval("perplexity_interval"),
            rank=1,
            why_empty="too little text",
            legend=scope_of_intervals(rows),
        ),
    ]


def byte_columns(digits: int, rank: int = 6) -> list[Column]:
    """Return bits per byte, of the original for detokenized texts, each with its interval."""

    def unless_original(cell: Cell) -> Cell:
        return lambda row: "" if "bits_per_original_byte" in row else cell(row)

    def known_interval(key: str) -> Cell:
        return lambda row: format_interval(row[key], digits) if row.get(key) else ""

    key = "bits_per_byte"
    original = "bits_per_original_byte"
    return [
        Column("bits/byte", unless_original(number(key, digits)), rank=rank),
        Column("bits interval", unless_original(known_interval(f"{key}_interval")), rank=9),
        Column("bits/original byte", number(original, digits), rank=rank),
        Column("interval of bits", known_interval(f"{original}_interval"), rank=9),
    ]


def tool_columns(rows: Sequence[dict], digits: int) -> list[Column]:
    """Return the numbers of tools, of which those that a protocol's tool reports are never hidden."""
    reported = {OF_TOOLS.get(row.get("protocol")) for row in rows if "error" not in row}

    def column(title: str, key: str) -> Column:
        return Column(title, number(key, digits), rank=0 if title in reported else 12)

    return [
        column("word perplexity", "word_perplexity"),
        column("adjusted", "adjusted_perplexity"),
        Column("tool ±", number("tool_stderr", 4), rank=7, why_empty="not printed by the tool"),
    ]


def change_columns(key: str, against: str) -> list[Column]:
    """Return the paired change of the perplexity, its interval and p-value.

    Args:
        key: key of the ratio, "ratio_to_first" (setting) or "ratio_to_first_model".
    """
    why = "the row that the others are compared with, or a row with other tokens"
    return [
        Column(
            "change",
            lambda row: change_of(row, key)[0],
            rank=2,
            why_empty=why,
            legend=f"change: of the perplexity against {against}, with its 95 % interval; - is lower, "
            "which is better.",
        ),
        Column("of it", lambda row: change_of(row, key)[1], rank=4, why_empty=why),
        Column("p", lambda row: pvalue_of(row, key), why_empty=why, only_in_papers=True),
    ]


def change_of(row: dict, key: str = "ratio_to_first") -> tuple[str, str]:
    """Format the paired change in per cent, and its interval; empty if there is none."""
    ratio = row.get(key)
    if ratio is None or ratio["ratio"] is None:
        return "", ""
    bounds = ratio["interval"]
    within = "" if bounds is None else " to ".join(f"{100 * (b - 1):+.2f}" for b in bounds)
    return f"{100 * (ratio['ratio'] - 1):+.2f} %", within


def pvalue_of(row: dict, key: str = "ratio_to_first") -> str:
    value = (row.get(key) or {}).get("pvalue")
    return "" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def bits_per_byte(row: dict) -> float:
    """Return the bits per byte that a table shows."""
    return row.get("bits_per_original_byte", row["bits_per_byte"])


def scored_share(row: dict) -> str:
    """Format the share of scored tokens, unless it is nearly all."""
    share = row.get("scored_share", 1.0)
    return f"{100 * share:.2g} %" if share < NEARLY_ALL else ""


def scope_of_intervals(rows: Sequence[dict]) -> str:
    """Return a note if intervals are within texts, and do not cover other texts."""
    scopes = {row.get("interval_scope") for row in rows} - {None}
    if scopes <= {"over texts"}:
        return ""
    if "over texts" in scopes:
        return "95 % intervals: within each text; for all together, over texts."
    scope = "within this text" if scopes == {"within this text"} else "within these texts"
    return f"95 % interval {scope}: other texts may differ by more."


# --- texts ----------------------------------------------------------------------------------------


def of_texts(rows: Sequence[dict], corpus: dict) -> Table:
    """Tabulate texts and corpus: sizes, perplexity with interval, tokenizer-independent numbers."""
    rows, several = list(rows), corpus["num_texts"] > 1
    if several or len(rows) != 1:
        rows.append({"name": "all together"} | corpus)
    if several:
        rows.append({"name": "mean of them", "perplexity": corpus["mean_perplexity"]})
    has_intervals = any(row.get("perplexity_interval") for row in rows)
    is_short = not has_intervals and math.isfinite(corpus["perplexity"])
    return tabulate(
        rows,
        [
            Column("text", lambda row: printable(row["name"]), left=True),
            *size_columns(),
            *perplexity_columns(rows, 2)[: 1 + has_intervals],
            *byte_columns(3),
            *tool_columns([corpus], 2),
        ],
        notes=["No 95 % interval: too little text."] if is_short else [],
    )


# --- settings and models --------------------------------------------------------------------------


def of_measurements(rows: Sequence[dict], axes: Sequence[str], chosen: Sequence[str] = ()) -> Table:
    """Tabulate measurements that differ in models, texts or settings.

    Args:
        rows: results, or an `error`, with the keys of `AXES`.
        axes: settings in which they differ.
        chosen: at most one axis, whose values become columns; and the numbers to show.
    """
    results = [row for row in rows if "error" not in row]
    across = next((name for name in chosen if name in AXIS_NAMES), None)
    names = [name for name in chosen if name not in AXIS_NAMES]
    if across is not None:
        return crossed(rows, results, axes, across, names)
    keys = [AXES[axis] for axis in axes] or ["protocol"]

    def first(row: dict) -> str:
        return printable(label(row, keys if "error" in row else keys[:1]))

    columns = [
        Column(axes[0] if axes else "protocol", first, left=True, wraps=axes[:1] == ["protocol"])
    ]
    columns += [
        Column(axis, lambda row, key=key: printable(str(row.get(key, ""))), left=axis != "stride")
        for axis, key in zip(axes[1:], keys[1:])
    ]
    if names:
        numbers = columns_of_numbers(results, axes)
        columns += [column for group in chosen_groups(names) for column in numbers[group]]
    else:
        columns += all_columns(results, axes)
    notes, advice = notes_on(results, axes)
    made = tabulate(rows, columns, notes, advice)
    return merged(made) if axes[:1] == ["protocol"] else made


def all_columns(results: Sequence[dict], axes: Sequence[str]) -> list[Column]:
    """Return the columns of a list of measurements."""
    columns = []
    if "protocol" in axes:
        named = [name for name in ("window", "stride", "start") if name not in axes]
        columns += [Column(name, signed(name), rank=13) for name in named]
    columns += size_columns()
    if "model" not in axes:
        columns += [
            Column("windows", count("num_windows"), rank=14),
            Column("forward tokens", count("num_forward_tokens"), rank=11),
        ]
    if not have_other_tokenizers(results):
        columns += perplexity_columns(results, 4)
    columns += change_columns(*paired_with(results, axes))
    columns += byte_columns(4, rank=0 if have_other_tokenizers(results) else 6)
    return columns + tool_columns(results, 4)


def columns_of_numbers(
    results: Sequence[dict], axes: Sequence[str], digits: int = 4
) -> dict[str, list[Column]]:
    """Return the columns of each number of `options.NUMBERS`, with intervals after their numbers."""
    perplexity, of_perplexity = perplexity_columns(results, digits)
    byte, of_byte, original, of_original = byte_columns(max(3, digits))
    change, of_change, pvalue = change_columns(*paired_with(results, axes))
    return {
        "tokens": [Column("tokens", count("num_tokens"))],
        "perplexity": [perplexity],
        "perplexity interval": [of_perplexity],
        "bits_per_byte": [byte, original],
        "bits_per_byte interval": [of_byte, of_original],
        "change": [change, of_change],
        "pvalue": [replace(pvalue, only_in_papers=False)],
        "word_perplexity": [Column("word perplexity", number("word_perplexity", digits))],
    }


def chosen_groups(names: Sequence[str]) -> list[str]:
    """Return the keys of chosen numbers; an interval is that of the number before it."""
    return [
        f"{names[n - 1]} interval" if name == "interval" else name for n, name in enumerate(names)
    ]


def crossed(
    rows: Sequence[dict],
    results: Sequence[dict],
    axes: Sequence[str],
    across: str,
    names: Sequence[str],
) -> Table:
    """Tabulate one axis as columns, the others as rows; notes give the reasons for empty cells."""
    names = names or ["bits_per_byte" if have_other_tokenizers(results) else "perplexity"]
    down = [axis for axis in axes if axis != across]
    keys, numbers = [AXES[axis] for axis in down], columns_of_numbers(results, axes, 2)
    heads = dict.fromkeys(row[AXES[across]] for row in rows if AXES[across] in row)
    placed = {(tuple(row.get(key) for key in keys), row.get(AXES[across])): row for row in results}
    lines = dict.fromkeys(
        tuple(row.get(key) for key in keys) for row in rows if set(keys) <= row.keys()
    )
    columns = [
        Column(axis, lambda line, n=n: printable(str(line["keys"][n])), left=True)
        for n, axis in enumerate(down)
    ] or [Column("", lambda line: "", left=True)]
    groups = chosen_groups(names)
    for head, group in itertools.product(heads, groups):

        def cell(line: dict, head=head, group=group) -> str:
            row = placed.get((line["keys"], head))
            return (
                NOTHING if row is None else "".join(c.cell(row) for c in numbers[group]) or NOTHING
            )

        name = "interval" if "interval" in group else group.replace("_", " ")
        title = str(head) if len(groups) == 1 else f"{head}: {name}"
        legend = next((c.legend for c in numbers[group] if c.legend), "")
        # what is missing has its reason among the notes
        columns.append(Column(title, cell, legend=legend, why_empty=""))
    of_error: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            of_error.setdefault(row["error"], []).append(label(row, [AXES[axis] for axis in axes]))
    notes, advice = notes_on(results, axes)
    reasons = [f"{NOTHING} {'; '.join(of)}: {error}" for error, of in of_error.items()]
    what = f"Cells: {' and '.join(name.replace('_', ' ') for name in names)}."
    return tabulate([{"keys": line} for line in lines], columns, [what, *notes, *reasons], advice)


def merged(what: Table) -> Table:
    """Make one row of protocols whose cells are all the same, naming all of them."""
    names: dict[tuple, list[str]] = {}
    errors: dict[tuple, str] = {}
    for place, (name, *cells) in enumerate(what.lines):
        key = (*cells, what.errors.get(place))
        names.setdefault(key, []).append(name)
        if place in what.errors:
            errors[key] = what.errors[place]
    lines = [[", ".join(of_key), *key[:-1]] for key, of_key in names.items()]
    of_place = {n: errors[key] for n, key in enumerate(names) if key in errors}
    return replace(what, lines=lines, errors=of_place)


def notes_on(results: Sequence[dict], axes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return notes on other tokenizers and windows, and advice for a terminal."""
    notes = [OTHER_TOKENIZERS] if have_other_tokenizers(results) else []
    of_protocols: dict[str, dict[str, int]] = {}
    for row in results if "model" in axes and "window" not in axes else ():
        of_protocols.setdefault(row["protocol"], {})[row["name"]] = row["max_length"]
    for windows in of_protocols.values():
        smallest = min(windows.values())
        if smallest < max(windows.values()):
            listed = ", ".join(f"{name} {length:,}" for name, length in windows.items())
            notes.append(f"The windows differ, in tokens: {listed}.")
            return notes, [f"--max-length {smallest} compares the models in the same window."]
    return notes, []


def paired_with(results: Sequence[dict], axes: Sequence[str]) -> tuple[str, str]:
    """Return the key of the ratio to the first model or setting, and the name of that one."""
    first = results[0] if results else {}
    if "model" in axes:
        return "ratio_to_first_model", first.get("name", "")
    varying = [AXES[axis] for axis in axes if AXES[axis] in SETTINGS]
    return "ratio_to_first", label(first, varying or ["protocol"])


def have_other_tokenizers(results: Sequence[dict]) -> bool:
    return len({signature_fields(row)["tokenizer"] for row in results}) > 1


def signed(key: str) -> Cell:
    """Return a cell with a field of the signature."""
    return lambda row: signature_fields(row)[key].partition("(")[0]


def label(row: dict, keys: Sequence[str]) -> str:
    """Return the settings that distinguish a measurement."""
    return ", ".join(str(row[key]) for key in keys if row.get(key) is not None)


# --- contexts, tokens and words -------------------------------------------------------------------


def of_contexts(by_context_length: list[dict]) -> Table:
    """Tabulate context lengths: perplexity of the same tokens, and its ratio with an interval."""

    def ratio(row: dict) -> dict:
        return row.get("ratio_to_longest") or {}

    longest = by_context_length[-1]["context_length"]
    why = "the context that the others are compared with"
    return tabulate(
        by_context_length,
        [
            Column("context", count("context_length")),
            Column("tokens", count("num_tokens")),
            Column("perplexity", number("perplexity", 4)),
            Column("95 % interval", interval("interval"), why_empty="too little text"),
            Column(
                f"against {longest:,}",
                lambda row: f"× {ratio(row)['ratio']:.4f}" if "ratio" in ratio(row) else "",
                why_empty=why,
            ),
            Column(
                "interval of the ratio",
                lambda row: format_interval(ratio(row)["interval"], 4) if ratio(row) else "",
                why_empty=why,
            ),
        ],
    )


def of_parts(rows: Sequence[dict], unit: str) -> Table:
    """Tabulate tokens or words: their characters, context, and scores."""

    def place(row: dict) -> str:
        return "" if row["first"] is None else f"{row['first']}-{row['last']}"

    def likeliest(row: dict) -> str:
        found = row.get("alternatives_nats") or ()
        return ", ".join(f"{quoted(piece)} {nll:.2f}" for piece, nll in found)

    if unit == "word":
        scores = [
            Column("tokens", number("num_tokens", 0)),
            Column("surprisal, bits", number("surprisal_bits", 4)),
            Column("entropy, bits", number("entropy_bits", 4)),
        ]
    else:
        scores = [
            Column("nll, nats", number("nll_nats", 4), why_empty="not scored"),
            Column("nll, bits", number("nll_bits", 4), why_empty="not scored"),
            Column("reference, nats", number("reference_nll_nats", 4)),
            Column("KL, nats", number("kl_nats", 5)),
            Column("rank", lambda row: str(row["rank"] or NOTHING) if "rank" in row else ""),
        ]
    return tabulate(
        rows,
        [
            Column("characters", place, rank=2, why_empty="not in the text"),
            Column("context", number("context_length", 0), rank=1),
            *scores,
            Column(unit, lambda row: quoted(row[unit]), left=True),
            Column("likeliest, nats", likeliest, left=True, wraps=True),
        ],
    )


# --- a model and its reference --------------------------------------------------------------------


def of_models(rows: Sequence[dict], reference: str) -> Table:
    """Tabulate several models beside their reference.

    Args:
        rows: results with a `name`, or an `error`.
        reference: the display name of the reference.
    """
    compared = [row for row in rows if "error" not in row]
    rows = rows_of_reference(reference, compared) + [
        row if "error" in row else row | row["comparison"] for row in rows
    ]
    notes = []
    if any(row["comparison"]["window_is_cut"] for row in compared):
        for row in rows:
            if "error" not in row:
                row["window"] = out_of(row["max_length"], row["own_window"])
        listed = ", ".join(f"{row['name']} {row['max_length']:,}" for row in compared)
        notes.append(
            "Each model and the reference read the smaller of their two windows, in tokens: "
            f"{listed}. The reference is {reference}."
        )
    by_tokens = all(row["comparison"]["compared"] == "tokens" for row in compared)
    if not by_tokens:
        notes.insert(0, OTHER_TOKENIZERS)
    why = "the reference itself"

    def ratio(row: dict) -> dict:
        return (
            row.get("perplexity_ratio" if by_tokens else "byte_perplexity_ratio")
            or row.get("perplexity_ratio")
            or {}
        )

    def if_has(key: str, write) -> Cell:
        return lambda row: NOTHING if row.get(key) is None else write(row[key])

    has_kl = any("kl" in row for row in rows)
    if by_tokens:
        numbers = [
            Column("perplexity", number("perplexity", 4)),
            Column(
                "× reference", lambda row: format_number(ratio(row).get("ratio"), 4), why_empty=why
            ),
            Column(
                "interval",
                lambda row: format_interval(ratio(row).get("interval"), 4),
                why_empty=why,
            ),
        ]
    else:
        key = "bits_per_byte_change"
        numbers = [
            Column("bits/byte", number("bits_per_byte", 4)),
            Column("change", if_has(key, "{:+.4f}".format), why_empty=why),
            Column(
                "interval",
                if_has(f"{key}_interval", lambda b: format_interval(b, 4, "+")),
                why_empty=why,
            ),
        ]
    divergence = [
        Column("KL, nats", if_has("kl", lambda kl: format_number(kl, 5)), rank=3, why_empty=why),
        Column(
            "KL interval",
            if_has("kl_interval", lambda b: format_interval(b, 5)),
            rank=4,
            why_empty=why,
        ),
        Column(
            "KL 99 %",
            if_has("kl_percentiles", lambda of: format_number(of["99"], 4)),
            rank=6,
            why_empty=why,
        ),
    ]
    columns = [
        Column("model", lambda row: printable(row["name"]), left=True),
        Column("window", lambda row: row.get("window", ""), rank=2),
        *numbers,
        Column(
            "p",
            lambda row: pvalue_of({"of": ratio(row)}, "of"),
            only_in_papers=True,
            why_empty="no change, or too little text",
        ),
        *(divergence if has_kl and by_tokens else []),
        *(
            [Column("same top", if_has("same_top", percent), rank=5, why_empty=why)]
            if by_tokens
            else []
        ),
        Column("verdict", if_has("verdict", str), left=True, wraps=True, why_empty=why),
    ]
    return tabulate(rows, columns, notes)


def rows_of_reference(reference: str, compared: Sequence[dict]) -> list[dict]:
    """Return the reference's own numbers, once for each window that changes them."""
    is_cut = any(row["comparison"]["window_is_cut"] for row in compared)
    found = []
    for window in dict.fromkeys(row["max_length"] for row in compared if is_cut) or [None]:
        of_window = [row for row in compared if window in (None, row["max_length"])]
        # preferably from a comparison over tokens
        row = max(of_window, key=lambda row: row["comparison"]["compared"] == "tokens")
        keys = {name: f"reference_{name}" for name in ("perplexity", "bits_per_byte", "own_window")}
        own = {n: row["comparison"][key] for n, key in keys.items() if key in row["comparison"]}
        # short, as a narrow terminal hides columns
        name = f"{reference} (reference)" if window is None else f"reference, L{window}"
        found.append({"name": name, "max_length": row["max_length"]} | own)
    return found


def of_comparison(report: dict, texts: Sequence[str]) -> list[str | Table]:
    """Return the report on one model: first whether it is worse, then what changes.

    Args:
        report: the metric's result, with `comparison`.
        texts: the scored texts, to show tokens in context; tokens of joined texts are shown alone.
    """
    comparison = report["comparison"]
    if comparison["compared"] == "bytes":
        return [comparison["summary"], of_bytes(report)]
    blocks = [comparison["summary"], of_changes(report)]
    if "kl" in comparison:
        blocks.append(of_divergence(comparison))
    blocks += [
        of_groups("confidence", comparison.get("by_confidence", ()), "{:.0f} – {:.0f} %", 100),
        of_groups("context", comparison["by_tokens_seen"], "{} – {}", 1),
        of_worst(comparison["worst_tokens"], texts),
    ]
    return [block for block in blocks if isinstance(block, str) or block.lines]


def of_changes(report: dict) -> Table:
    """Tabulate perplexity and accuracy of both models, and their changes with intervals."""
    comparison = report["comparison"]
    ratio, window = comparison["perplexity_ratio"], report["max_length"]
    bounds = comparison["accuracy_change_interval"]
    lost, won = (percent(comparison[key]) for key in ("right_to_wrong", "wrong_to_right"))
    lines = [
        (
            "perplexity",
            format_number(comparison["reference_perplexity"], 4),
            format_number(report["perplexity"], 4),
            NOTHING if ratio["ratio"] is None else f"× {ratio['ratio']:.4f}",
            format_interval(ratio["interval"], 4),
            in_sentence(ratio["pvalue"]),
        ),
        (
            "right next token",
            percent(comparison["reference_accuracy"]),
            percent(comparison["accuracy"]),
            f"{100 * comparison['accuracy_change']:+.2f} pt",
            format_interval(bounds and [100 * bound for bound in bounds], 2, "+"),
            f"{lost} lost, {won} won",
        ),
    ]
    if comparison["window_is_cut"]:
        own, of_reference = comparison["own_window"], comparison["reference_own_window"]
        shown = out_of(window, of_reference), out_of(window, own)
        lines.append(("window", *shown, "", "", "the smaller of the two"))
    titles = ("", "reference", "model", "change", "interval", " ")
    columns = [
        Column(
            title, lambda line, n=n: line["cells"][n], left=not title.strip(), wraps=title == " "
        )
        for n, title in enumerate(titles)
    ]
    return tabulate([{"cells": line} for line in lines], columns)


def of_divergence(comparison: dict) -> str:
    """Describe the divergence: changes for better or worse."""
    points = comparison["kl_percentiles"]
    lines = [
        f"KL divergence     {format_number(comparison['kl'], 5)} nats"
        f" ({format_interval(comparison['kl_interval'], 5)}); median "
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


def of_groups(title: str, groups: Sequence[dict], form: str, scale: float) -> Table:
    """Tabulate the divergence and change of groups of tokens.

    Args:
        form, scale: format of the bounds of a group, and what they are multiplied by.
    """

    def name(group: dict) -> str:
        low, high = scale * group["low"], scale * group["high"]
        return f"{low}" if low == high else form.format(low, high)

    def ratios(group: dict) -> list[float] | None:
        bounds = group["log_ratio_interval"]
        return bounds and [math.exp(min(bound, 700.0)) for bound in bounds]

    divergence = [
        Column("KL, nats", lambda row: format_number(row.get("kl"), 5)),
        Column("interval", lambda row: format_interval(row.get("kl_interval"), 5)),
    ]
    return tabulate(
        groups,
        [
            Column(title, name, left=True),
            Column("share", lambda row: percent(row["share"])),
            *(divergence if any("kl" in row for row in groups) else []),
            Column("perplexity", lambda row: f"× {math.exp(min(row['log_ratio'], 700.0)):.4f}"),
            Column("interval", lambda row: format_interval(ratios(row), 4)),
        ],
    )


def of_worst(tokens: Sequence[dict], texts: Sequence[str]) -> str | Table:
    """Tabulate the tokens with the largest divergence, with the text before them."""
    changed = [token for token in tokens if token.get("kl", token["nll"] != token["reference_nll"])]
    if not changed:
        return "No token's probability changed."

    def place(token: dict) -> str:
        offset = token["offset"]
        where = f"token {token['position']}" if offset is None else f"{offset[0]}-{offset[1]}"
        return f"{token['text']}: {where}"

    def in_context(token: dict) -> str:
        if token["offset"] is None or token["text"] >= len(texts):
            return f"[{quoted(token['token'])}]"
        (begin, end), text = token["offset"], texts[token["text"]]
        before = text[max(0, begin - CONTEXT_CHARACTERS) : begin]
        return " ".join(f"…{before}[{text[begin:end]}]".split())

    divergence = Column("KL, nats", lambda row: format_number(row.get("kl"), 4))
    return tabulate(
        changed[:WORST_TOKENS],
        [
            Column("worst tokens", place, left=True),
            *([divergence] if any("kl" in row for row in tokens) else []),
            Column("was", lambda row: percent(math.exp(-row["reference_nll"]))),
            Column("is", lambda row: percent(math.exp(-row["nll"]))),
            Column("in the text", in_context, left=True),
        ],
    )


def of_bytes(report: dict) -> str:
    """Describe the comparison of models with different tokenizers."""
    comparison, window = report["comparison"], report["max_length"]
    change = comparison["bits_per_byte_change_interval"]
    lines = [
        "The tokenizers differ, so the models are compared in bits per byte over "
        f"{comparison['num_compared_bytes']:,} bytes that both score.",
        f"reference {comparison['reference_bits_per_byte']:.4f}   "
        f"model {comparison['bits_per_byte']:.4f}   "
        f"change {comparison['bits_per_byte_change']:+.4f} ({format_interval(change, 4, '+')})   "
        f"{in_sentence(comparison['byte_perplexity_ratio']['pvalue'])}",
    ]
    if comparison["window_is_cut"]:
        lines.append(
            "Both read the smaller of their windows: "
            f"reference {out_of(window, comparison['reference_own_window'])}   "
            f"model {out_of(window, comparison['own_window'])}"
        )
    return "\n".join(lines)


def out_of(window: int, own: int | None) -> str:
    """Format the window of a comparison, and a model's own window if it is larger."""
    if own == window:
        return f"{window:,}"
    return f"{window:,} of {own:,}" if own is not None else f"{window:,}, no limit"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def in_sentence(pvalue: float | None) -> str:
    """Format a p-value for a sentence; empty if there is none."""
    return "" if pvalue is None else "p < 0.0001" if pvalue < 1e-4 else f"p = {pvalue:.4f}"


# --- papers ---------------------------------------------------------------------------------------


def with_measurement(what: Table, rows: Sequence[dict], axes: Sequence[str]) -> Table:
    """Add what all rows share, of model, window, stride, protocol and start token, to the notes.

    The signature is added too; several become comments.

    Args:
        rows: results, or an `error`.
        axes: settings in which they differ, which are already in the table.
    """
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
        values = {signed(name)(row) for row in results}
        if len(values) == 1 and name not in axes:
            shared.append(form.format(*values))
    measured = f"Measured with perplexity-sliding {VERSION}: {', '.join(shared)}."
    of_signature: dict[str, list[str]] = {}
    for row in results:
        name = label(row, [AXES[axis] for axis in axes])
        of_signature.setdefault(row["signature_short"], []).append(name)
    if len(of_signature) == 1:
        [signature] = of_signature
        return replace(what, notes=(*what.notes, measured, f"Signature: {signature}."))
    comments = tuple(f"{'; '.join(of)}: {signature}" for signature, of in of_signature.items())
    return replace(what, notes=(*what.notes, measured), comments=comments)
