"""The tables of results: texts, settings, models, contexts, tokens and words; and two models in detail."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from .. import __version__
from .options import AXES as AXIS_NAMES
from .tables import NOTHING, Column, Table, format_value, quoted, signature_fields, tabulate

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


def size_columns(rows: Sequence[dict]) -> list[Column]:
    """Return the number of scored tokens, and their share if it is less in one of the rows."""
    is_less = any(map(scored_share, rows))

    def share(row: dict) -> str:
        return scored_share(row) or "> 99 %" if is_less and "scored_share" in row else ""

    return [Column("tokens", "num_tokens", rank=8), Column("scored", share)]


def perplexity_columns(rows: Sequence[dict], digits: int) -> list[Column]:
    legend = describe_scope_of_intervals(rows)
    return [
        Column("perplexity", "perplexity", digits),
        Column("95 % interval", "perplexity_interval", rank=1, legend=legend),
    ]


def byte_columns(digits: int, rank: int = 6) -> list[Column]:
    """Return bits per byte, of the original for detokenized texts, each with its interval."""
    original = "bits_per_original_byte"

    def unless_original(key: str):
        return lambda row: "" if original in row else row.get(key, "")

    return [
        Column("bits/byte", unless_original("bits_per_byte"), digits, rank=rank),
        Column("bits interval", unless_original("bits_per_byte_interval"), digits, rank=9),
        Column("bits/original byte", original, digits, rank=rank),
        Column("interval of bits", f"{original}_interval", digits, rank=9),
    ]


def tool_columns(rows: Sequence[dict], digits: int) -> list[Column]:
    """Return the numbers of tools, of which those that a protocol's tool reports are never hidden."""
    reported = {OF_TOOLS.get(row.get("protocol")) for row in rows if "error" not in row}
    titles = {"word perplexity": "word_perplexity", "adjusted": "adjusted_perplexity"}
    columns = [
        Column(title, key, digits, rank=0 if title in reported else 12)
        for title, key in titles.items()
    ]
    return [*columns, Column("tool ±", "tool_stderr", 4, rank=7)]


def change_columns(results: Sequence[dict], axes: Sequence[str]) -> list[Column]:
    """Return the paired change of the perplexity, its interval and p-value."""
    key, against = paired_with(results, axes)
    legend = (
        f"change: of the perplexity against {against}, with its 95 % interval; - is lower, which is "
        "better."
    )
    return [
        Column("change", lambda row: change_of(row, key)[0], rank=2, legend=legend),
        Column("of it", lambda row: change_of(row, key)[1], rank=4),
        Column("p", lambda row: pvalue_of(row, key), only_in_papers=True),
    ]


def change_of(row: dict, key: str) -> tuple[str, str]:
    """Format the paired change in per cent, and its interval; empty if there is none."""
    ratio = row.get(key)
    if ratio is None or ratio["ratio"] is None:
        return "", ""
    bounds = ratio["interval"]
    within = "" if bounds is None else " to ".join(f"{100 * (b - 1):+.2f}" for b in bounds)
    return f"{100 * (ratio['ratio'] - 1):+.2f} %", within


def pvalue_of(row: dict, key: str) -> str:
    value = (row.get(key) or {}).get("pvalue")
    return in_sentence(value).removeprefix("p ").removeprefix("= ")


def paired_with(results: Sequence[dict], axes: Sequence[str]) -> tuple[str, str]:
    """Return the key of the ratio to the first model or setting, and the name of that one."""
    first = results[0] if results else {}
    if "model" in axes:
        return "ratio_to_first_model", first.get("name", "")
    varying = [AXES[axis] for axis in axes if AXES[axis] in SETTINGS]
    return "ratio_to_first", label(first, varying or ["protocol"])


def bits_per_byte(row: dict) -> float:
    """Return the bits per byte that a table shows."""
    return row.get("bits_per_original_byte", row["bits_per_byte"])


def scored_share(row: dict) -> str:
    """Format the share of scored tokens, unless it is nearly all."""
    share = row.get("scored_share", 1.0)
    return f"{100 * share:.2g} %" if share < NEARLY_ALL else ""


def describe_scope_of_intervals(rows: Sequence[dict]) -> str:
    """Return a note on what intervals cover: other texts, or only these."""
    scopes = {row.get("interval_scope") for row in rows} - {None}
    if len(scopes) > 1 and "over texts" in scopes:
        wide = [row for row in rows if row.get("interval_scope") == "over texts"]
        is_total = rows[-1].get("name") == "mean of them"
        names = ["all together" if is_total else label(row, ["text", "protocol"]) for row in wide]
        listed = "; ".join(dict.fromkeys(names))
        return f"95 % intervals: over texts for {listed}; else within texts."
    scope = scopes.pop() if len(scopes) == 1 else "within these texts" if scopes else ""
    beyond = "" if scope == "over texts" else ": other texts may differ by more"
    return scope and f"95 % interval {scope}{beyond}."


def have_other_tokenizers(results: Sequence[dict]) -> bool:
    return len({signature_fields(row)["tokenizer"] for row in results}) > 1


def setting_of(row: dict, name: str) -> str:
    """Return a field of the signature, without what stands in parentheses."""
    return signature_fields(row)[name].partition("(")[0]


def label(row: dict, keys: Sequence[str]) -> str:
    """Return the settings that distinguish a measurement."""
    return ", ".join(str(row[key]) for key in keys if row.get(key) is not None)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# --- texts, contexts, tokens and words ------------------------------------------------------------


def tabulate_texts(rows: Sequence[dict], corpus: dict) -> Table:
    """Tabulate texts and corpus: sizes, perplexity with interval, tokenizer-independent numbers."""
    rows, several = list(rows), corpus["num_texts"] > 1
    if several or len(rows) != 1:
        rows.append({"name": "all together"} | corpus)
    if several:
        rows.append({"name": "mean of them", "perplexity": corpus["mean_perplexity"]})
    has_interval = any(row.get("perplexity_interval") for row in rows)
    is_short = not has_interval and math.isfinite(corpus["perplexity"])
    return tabulate(
        rows,
        [
            Column("text", "name", left=True),
            *size_columns(rows),
            *perplexity_columns(rows, 2),
            *byte_columns(3),
            *tool_columns([corpus], 2),
        ],
        notes=["No 95 % interval: too little text."] if is_short else [],
    )


def tabulate_contexts(by_context_length: list[dict]) -> Table:
    """Tabulate context lengths: perplexity of the same tokens, and its ratio with an interval."""
    rows = []
    for row in by_context_length:
        ratio = row.get("ratio_to_longest") or {}
        against = "" if ratio.get("ratio") is None else f"× {ratio['ratio']:.4f}"
        rows.append(row | {"against": against, "within": ratio.get("interval", "")})
    longest = by_context_length[-1]["context_length"]
    return tabulate(
        rows,
        [
            Column("context", "context_length"),
            Column("tokens", "num_tokens"),
            Column("perplexity", "perplexity", 4),
            Column("95 % interval", "interval"),
            Column(f"against {longest:,}", "against"),
            Column("interval of the ratio", "within", 4),
        ],
    )


def tabulate_parts(rows: Sequence[dict], unit: str) -> Table:
    """Tabulate tokens or words: their characters, context, and scores."""

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
            Column("likeliest, nats", likeliest, left=True, wraps=True),
        ],
    )


# --- settings and models --------------------------------------------------------------------------


def tabulate_measurements(
    rows: Sequence[dict], axes: Sequence[str], chosen: Sequence[str] = ()
) -> Table:
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
        return cross(rows, results, axes, across, names)
    keys = [AXES[axis] for axis in axes] or ["protocol"]
    is_by_protocol = axes[:1] == ["protocol"]

    def first(row: dict) -> str:
        return label(row, keys if "error" in row else keys[:1])

    columns = [Column(axes[0] if axes else "protocol", first, left=True, wraps=is_by_protocol)]
    columns += [
        Column(axis, lambda row, key=key: str(row.get(key, "")), left=axis != "stride")
        for axis, key in zip(axes[1:], keys[1:])
    ]
    if names:
        columns += itertools.chain.from_iterable(choose_columns(names, results, axes).values())
    else:
        columns += list_columns(results, axes)
    made = tabulate(rows, columns, *remarks_on(results, axes))
    if is_by_protocol:  # one row of protocols whose cells are all the same
        of_cells: dict[tuple, list[str]] = {}
        for place, (name, *cells) in enumerate(made.lines):
            of_cells.setdefault((*cells, made.errors.get(place)), []).append(name)
        made.lines = [[", ".join(names), *cells] for (*cells, _), names in of_cells.items()]
        made.errors = {n: why for n, (*_, why) in enumerate(of_cells) if why is not None}
    return made


def list_columns(results: Sequence[dict], axes: Sequence[str]) -> list[Column]:
    """Return the columns of a list of measurements."""
    columns = []
    if "protocol" in axes:
        named = [name for name in ("window", "stride", "start") if name not in axes]
        columns += [
            Column(name, lambda row, name=name: setting_of(row, name), rank=13) for name in named
        ]
    columns += size_columns(results)
    if "model" not in axes:
        columns += [
            Column("windows", "num_windows", rank=14),
            Column("forward tokens", "num_forward_tokens", rank=11),
        ]
    differ = have_other_tokenizers(results)
    return [
        *columns,
        *([] if differ else perplexity_columns(results, 4)),
        *change_columns(results, axes),
        *byte_columns(4, rank=0 if differ else 6),
        *tool_columns(results, 4),
    ]


def choose_columns(
    names: Sequence[str], results: Sequence[dict], axes: Sequence[str], digits: int = 4
) -> dict[str, list[Column]]:
    """Return the columns of numbers of `options.NUMBERS`; an interval is that of the number before it."""
    perplexity, of_perplexity = perplexity_columns(results, digits)
    byte, of_byte, original, of_original = byte_columns(max(3, digits))
    change, of_change, pvalue = change_columns(results, axes)
    known = {
        "tokens": [Column("tokens", "num_tokens")],
        "perplexity": [perplexity],
        "perplexity interval": [of_perplexity],
        "bits_per_byte": [byte, original],
        "bits_per_byte interval": [of_byte, of_original],
        "change": [change, of_change],
        "pvalue": [replace(pvalue, only_in_papers=False)],
        "word_perplexity": [Column("word perplexity", "word_perplexity", digits)],
    }
    before = ["", *names]
    keys = (f"{b} {name}" if name == "interval" else name for b, name in zip(before, names))
    return {key: known[key] for key in keys}


def cross(
    rows: Sequence[dict],
    results: Sequence[dict],
    axes: Sequence[str],
    across: str,
    names: Sequence[str],
) -> Table:
    """Tabulate one axis as columns, the others as rows; notes give the reasons for empty cells."""
    names = names or ["bits_per_byte" if have_other_tokenizers(results) else "perplexity"]
    down = [axis for axis in axes if axis != across] or ["protocol"]
    keys, groups = [AXES[axis] for axis in down], choose_columns(names, results, axes, 2)

    def line_of(row: dict) -> tuple:
        return tuple(row.get(key) for key in keys)

    heads = dict.fromkeys(row[AXES[across]] for row in rows if AXES[across] in row)
    lines = list(dict.fromkeys(line_of(row) for row in rows if set(keys) <= row.keys()))
    placed = {(line_of(row), row.get(AXES[across])): row for row in results}
    columns = [Column(axis, axis, left=True) for axis in down]
    cells = [[format_value(str(value)) for value in line] for line in lines]
    for head, (group, of_group) in itertools.product(heads, groups.items()):
        name = "interval" if "interval" in group else group.replace("_", " ")
        columns.append(Column(str(head) if len(groups) == 1 else f"{head}: {name}", group))
        for line, written in zip(lines, cells):
            row = placed.get((line, head), {})
            written.append(" ".join(filter(None, (c.cell(row) for c in of_group))) or NOTHING)
    of_error: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            of_error.setdefault(row["error"], []).append(label(row, [AXES[axis] for axis in axes]))
    remarks, advice = remarks_on(results, axes)
    notes = [
        *filter(None, (column.legend for of_group in groups.values() for column in of_group)),
        f"Cells: {' and '.join(name.replace('_', ' ') for name in names)}.",
        *remarks,
        *(f"{NOTHING} {'; '.join(of)}: {error}" for error, of in of_error.items()),
    ]
    return Table(columns, cells, {}, notes, advice)


def remarks_on(results: Sequence[dict], axes: Sequence[str]) -> tuple[list[str], list[str]]:
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


# --- a model and its reference --------------------------------------------------------------------


def tabulate_models(rows: Sequence[dict], reference: str) -> Table:
    """Tabulate several models beside their reference.

    Args:
        rows: results with a `name`, or an `error`.
        reference: the display name of the reference.
    """
    compared = [row for row in rows if "error" not in row]
    by_tokens = all(row["comparison"]["compared"] == "tokens" for row in compared)
    notes = [] if by_tokens else [OTHER_TOKENIZERS]
    is_cut = any(row["comparison"]["window_is_cut"] for row in compared)
    if is_cut:
        listed = ", ".join(f"{row['name']} {row['max_length']:,}" for row in compared)
        notes.append(
            "Each model and the reference read the smaller of their two windows, in tokens: "
            f"{listed}. The reference is {reference}."
        )
    # the reference's own numbers, once for each window that changes them, preferably from a
    # comparison over tokens; their names are short, as a narrow terminal hides columns
    by_bytes_first = sorted(compared, key=lambda row: row["comparison"]["compared"])
    lines = [
        {
            "name": f"reference, L{row['max_length']}" if is_cut else f"{reference} (reference)",
            "max_length": row["max_length"],
            "own_window": row["comparison"]["reference_own_window"],
            "bits_per_byte": row["comparison"]["reference_bits_per_byte"],
            "perplexity": row["comparison"].get("reference_perplexity", ""),
        }
        for row in {is_cut and row["max_length"]: row for row in by_bytes_first}.values()
    ]
    for row in rows:
        comparison = row.get("comparison", {})
        ratio = comparison.get("perplexity_ratio")
        if not by_tokens:
            ratio = comparison.get("byte_perplexity_ratio") or ratio
        lines.append(row | comparison | {"of_reference": ratio or {}})

    margins = {row["comparison"].get("margin") for row in compared} - {None}
    notes += [f"Margin: a perplexity up to {100 * margin:g} % higher." for margin in margins]
    legend = describe_scope_of_intervals(lines)

    def of_ratio(key: str):
        return lambda line: line.get("of_reference", {}).get(key, "")

    if by_tokens:
        numbers = [
            Column("perplexity", "perplexity", 4),
            Column("× reference", of_ratio("ratio"), 4),
            Column("interval", of_ratio("interval"), 4, legend=legend),
        ]
    else:
        numbers = [
            Column("bits/byte", "bits_per_byte", 4),
            Column("change", "bits_per_byte_change", 4, "+"),
            Column("interval", "bits_per_byte_change_interval", 4, "+", legend=legend),
        ]
    divergence = [
        Column("KL, nats", "kl", 5, rank=3),
        Column("KL interval", "kl_interval", 5, rank=4),
        Column("KL 99 %", lambda line: line.get("kl_percentiles", {"99": ""})["99"], 4, rank=6),
        Column(
            "same top",
            lambda line: percent(line["same_top"]) if "same_top" in line else "",
            rank=5,
        ),
    ]
    return tabulate(
        lines,
        [
            Column("model", "name", left=True),
            Column("window", lambda line: describe_window(line) if is_cut else "", rank=2),
            *numbers,
            Column("p", lambda line: pvalue_of(line, "of_reference"), only_in_papers=True),
            *(divergence if by_tokens else []),
            Column("verdict", "verdict", left=True, wraps=True),
        ],
        notes,
    )


def describe_window(row: dict, own: str = "own_window") -> str:
    """Format the window of a comparison, and a model's own window if it is larger."""
    window, of_model = row["max_length"], row[own]
    if of_model == window:
        return f"{window:,}"
    return f"{window:,}, no limit" if of_model is None else f"{window:,} of {of_model:,}"


def report_comparison(report: dict, texts: Sequence[str]) -> list[str | Table]:
    """Return the report on one model: first whether it is worse, then what changes.

    Args:
        report: the metric's result, with `comparison`.
        texts: the scored texts, to show tokens in context; tokens of joined texts are shown alone.
    """
    comparison = report["comparison"]
    flat = report | comparison
    if comparison["compared"] == "bytes":
        ratio = comparison["byte_perplexity_ratio"]
        interval = format_value(comparison["bits_per_byte_change_interval"], 4, "+")
        said = (
            "The tokenizers differ, so the models are compared in bits per byte over "
            f"{comparison['num_compared_bytes']:,} bytes that both score.\n"
            f"reference {comparison['reference_bits_per_byte']:.4f}   "
            f"model {comparison['bits_per_byte']:.4f}   "
            f"change {comparison['bits_per_byte_change']:+.4f} ({interval})   "
            f"{in_sentence(ratio['pvalue'])}"
        )
        if comparison["window_is_cut"]:
            said += (
                "\nBoth read the smaller of their windows: "
                f"reference {describe_window(flat, 'reference_own_window')}   "
                f"model {describe_window(flat)}"
            )
        return [comparison["summary"], said]
    blocks = [comparison["summary"], tabulate_changes(report)]
    if "kl" in comparison:
        blocks.append(describe_divergence(comparison))
    blocks += [
        tabulate_groups(
            "confidence", comparison.get("by_confidence", ()), "{:.0f} – {:.0f} %", 100
        ),
        tabulate_groups("context", comparison["by_tokens_seen"], "{} – {}", 1),
        tabulate_worst(comparison["worst_tokens"], texts),
    ]
    return [block for block in blocks if isinstance(block, str) or block.lines]


def tabulate_changes(report: dict) -> Table:
    """Tabulate perplexity and accuracy of both models, and their changes with intervals."""
    comparison = report["comparison"]
    ratio, bounds = comparison["perplexity_ratio"], comparison["accuracy_change_interval"]
    lost, won = (percent(comparison[key]) for key in ("right_to_wrong", "wrong_to_right"))
    titles = ("", "reference", "model", "change", "interval", " ")
    lines = [
        (
            "perplexity",
            format_value(comparison["reference_perplexity"], 4),
            format_value(report["perplexity"], 4),
            NOTHING if ratio["ratio"] is None else f"× {ratio['ratio']:.4f}",
            format_value(ratio["interval"], 4),
            in_sentence(ratio["pvalue"]),
        ),
        (
            "right next token",
            percent(comparison["reference_accuracy"]),
            percent(comparison["accuracy"]),
            f"{100 * comparison['accuracy_change']:+.2f} pt",
            format_value(bounds and [100 * bound for bound in bounds], 2, "+"),
            f"{lost} lost, {won} won",
        ),
    ]
    if comparison["window_is_cut"]:
        flat = report | comparison
        windows = describe_window(flat, "reference_own_window"), describe_window(flat)
        lines.append(("window", *windows, "", "", "the smaller of the two"))
    columns = [Column(t, t, left=not t.strip(), wraps=t == " ") for t in titles]
    return tabulate([dict(zip(titles, line)) for line in lines], columns)


def describe_divergence(comparison: dict) -> str:
    """Describe the divergence: changes for better or worse."""
    points = comparison["kl_percentiles"]
    lines = [
        f"KL divergence     {format_value(comparison['kl'], 5)} nats"
        f" ({format_value(comparison['kl_interval'], 5)}); median "
        f"{format_value(points['50'], 5)}, 99 % {format_value(points['99'], 4)},"
        f" max {format_value(points['100'], 4)}",
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


def tabulate_groups(title: str, groups: Sequence[dict], form: str, scale: float) -> Table:
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

    return tabulate(
        groups,
        [
            Column(title, name, left=True),
            Column("share", lambda group: percent(group["share"])),
            Column("KL, nats", "kl", 5),
            Column("interval", "kl_interval", 5),
            Column("perplexity", lambda group: f"× {math.exp(min(group['log_ratio'], 700.0)):.4f}"),
            Column("interval", ratios, 4),
        ],
    )


def tabulate_worst(tokens: Sequence[dict], texts: Sequence[str]) -> str | Table:
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

    return tabulate(
        changed[:WORST_TOKENS],
        [
            Column("worst tokens", place, left=True),
            Column("KL, nats", "kl", 4),
            Column("was", lambda token: percent(math.exp(-token["reference_nll"]))),
            Column("is", lambda token: percent(math.exp(-token["nll"]))),
            Column("in the text", in_context, left=True),
        ],
    )


def in_sentence(pvalue: float | None) -> str:
    """Format a p-value for a sentence; empty if there is none."""
    return "" if pvalue is None else "p < 0.0001" if pvalue < 1e-4 else f"p = {pvalue:.4f}"
