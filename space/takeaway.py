"""Export of a result: its address, a citation, a picture and files.

All of it is text, so that a page keeps little of a comparison.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perplexity_sliding.views.markup import count, number
from perplexity_sliding.views.numbers import surprise_words

from .calls import python_call, shell_call
from .card import Head, chart_card, comparison_card
from .endpoints import compare_summary, comparison_table, plain
from .links import MODELS, STRIDES, TOOLS, link
from .protocols import usual_stride
from .service import STRIDES_SET, Compared, Scored, Sweep, TradeOff
from .settings import Settings
from .sharing import SHORT_COMMIT, as_csv, bibtex, digest, files, sentence, text_files
from .sweep_view import group_equal

SETTING_COLUMNS = (
    *("protocol", "window", "stride", "perplexity", "ratio", "ratio_low", "ratio_high"),
    *("num_tokens", "num_forward_tokens", "signature"),
)


@dataclass(frozen=True)
class Takeaway:
    """One result to export.

    Attributes:
        mark: what it is a result of, as the view's `data-of`.
        address: of the page that shows it.
        friend: a sentence for a friend.
        paper: a sentence for a paper.
        signatures: of the metric, one for each number.
        texts: SHA-256 of the text, and of the context where there is one.
        bibtex, python, shell: an entry for the metric, and the calls that repeat the numbers.
        picture: SVG.
        files: contents by name.
    """

    mark: str
    address: str
    friend: str
    paper: str
    signatures: Sequence[str]
    texts: dict[str, str]
    bibtex: str
    python: str
    shell: str
    picture: str
    files: dict[str, str]


def of_score(scored: Scored) -> Takeaway:
    """Export the score of a text."""
    signature, perplexity = scored.result["signature"], number(scored.result["perplexity"])
    made = files(scored)
    return Takeaway(
        scored.settings.mark(scored.text),
        link(scored.settings, scored.text),
        f"How surprised is a language model by these words? {scored.loaded.name} has a perplexity of "
        f"{perplexity}. {surprise_words(scored)}.",
        sentence(scored),
        [signature],
        digests(scored),
        bibtex([signature]),
        python_call(scored),
        shell_call(scored),
        made["card.svg"],
        made,
    )


def of_models(compared: Compared) -> Takeaway:
    """Export the comparison of a model with the page's."""
    scored, reference = compared.scored, compared.reference
    asked = compared.page_settings
    names = {"The model": scored.loaded.name, "the model": scored.loaded.name}
    names |= {"The reference": reference.name, "the reference": reference.name}
    summary = compared.comparison["summary"]
    for words, name in names.items():
        summary = summary.replace(words, name)
    picture = comparison_card(compared)
    rows = comparison_table(compared)
    columns = list(rows[0]) if rows else []
    return Takeaway(
        asked.mark(scored.text),
        link(asked, scored.text, {"compare": MODELS, "other": scored.settings.model}),
        summary,
        f"{summary} {count(scored.result['num_tokens'], 'token')}, {setting_words([scored])}; "
        f"{scored.result['signature_short']}; text with SHA-256 {digest(scored.text)}.",
        [scored.result["signature"]],
        digests(scored),
        bibtex([scored.result["signature"]]),
        python_call(scored, reference),
        shell_call(scored, reference),
        picture,
        text_files(scored)
        | {
            "comparison.csv": as_csv(columns, rows),
            "comparison.json": as_json(compare_summary(compared)),
            "card.svg": picture,
        },
    )


def of_strides(trade_off: TradeOff, asked: Settings) -> Takeaway:
    """Export the perplexities of a text under several strides.

    Args:
        asked: the page's settings.
    """
    wide, best = trade_off.wide, trade_off.best
    low, high = (number(scored.result["perplexity"]) for scored in (wide, best))
    if best is wide:
        change, said = low, "no smaller stride lowers the perplexity"
        friend = f"Same model, same text: perplexity {low}, and no smaller stride lowers it."
    else:
        change, said = (
            f"{low} → {high}",
            f"strides {wide.settings.stride:,} and {best.settings.stride:,}",
        )
        friend = f"Same model, same text, {said}: perplexity {low} and {high}."
    values = [
        (f"stride {one.settings.stride:,}", one.result["perplexity"]) for one in trade_off.strides
    ]
    title = "What does a smaller stride change?"
    head = Head(title, change, [f"Same model, same text, {said}", ""])
    return _of_settings(
        trade_off.strides,
        "strides",
        wide.settings.mark(wide.text, but=STRIDES_SET),
        link(asked, wide.text, {"compare": STRIDES}),
        friend,
        chart_card(head, values, wide),
        [{"stride": [one.settings.stride for one in trade_off.strides]}],
        {"by_context_length": list(trade_off.by_context)},
    )


def of_tools(sweep: Sweep) -> Takeaway:
    """Export each tool's result for a text."""
    groups = group_equal(sweep.scored)
    low, high = (number(group[0].result["perplexity"]) for group in (groups[0], groups[-1]))
    said = f"Same model, same text: {low} to {high}"
    values = [
        (", ".join(one.settings.protocol for one in group), group[0].result["perplexity"])
        for group in groups
    ]
    first = sweep.scored[0]
    lines = ["Each tool calls its number “the perplexity”.", "So say which one you used."]
    head = Head("Same model, same text", f"{low} to {high}", lines)
    return _of_settings(
        sweep.scored,
        "tools",
        sweep.asked.mark(first.text),
        link(sweep.asked, first.text, {"compare": TOOLS}),
        f"{said}. It depends on the tool that computes the perplexity.",
        chart_card(head, values, first),
        [{}] * (not _is_usual(first.settings))
        + [{"protocol": "all", "stride": None, "add_start_token": None}],
    )


def _is_usual(settings: Settings) -> bool:
    """Return whether a call for all tools has these settings of a tool."""
    stride = settings.stride and usual_stride(settings.protocol, settings.window)
    return settings == replace(settings, stride=stride, start="automatic")


def _of_settings(
    results: Sequence[Scored],
    name: str,
    mark: str,
    address: str,
    friend: str,
    picture: str,
    varied: Sequence[dict],
    more: dict | None = None,
) -> Takeaway:
    """Export results of one text under several settings."""
    first = results[0]
    rows = [setting_row(scored) for scored in results]
    named = "; ".join(
        f"{setting_words([one])}: {number(one.result['perplexity'])}" for one in results
    )
    return Takeaway(
        mark,
        address,
        friend,
        f"Perplexity under {model_words(first)}, {named}; text with SHA-256 {digest(first.text)}.",
        [scored.result["signature"] for scored in results],
        digests(first),
        bibtex([scored.result["signature_short"] for scored in results]),
        python_call(first, varied=varied),
        shell_call(first, varied=varied),
        picture,
        text_files(first)
        | {
            f"{name}.csv": as_csv(SETTING_COLUMNS, rows),
            f"{name}.json": as_json({name: rows, "text_sha256": digest(first.text)} | (more or {})),
            "card.svg": picture,
        },
    )


def setting_row(scored: Scored) -> dict:
    """Return one row of a table of settings: `SETTING_COLUMNS`, the ratio to the first with its interval."""
    settings, result = scored.settings, scored.result
    ratio = result.get("ratio_to_first") or {"ratio": None, "interval": None}
    low, high = ratio["interval"] or (None, None)
    values = (
        *(settings.protocol, settings.window, settings.stride, result["perplexity"]),
        *(ratio["ratio"], low, high),
        *(result["num_tokens"], result["num_forward_tokens"], result["signature"]),
    )
    return plain(dict(zip(SETTING_COLUMNS, values)))


def setting_words(results: Sequence[Scored]) -> str:
    """Name the settings of a number."""
    settings = results[0].settings
    stride = "" if settings.stride is None else f", stride {settings.stride:,}"
    return f"{settings.protocol}, window {settings.window:,}{stride}"


def model_words(scored: Scored) -> str:
    """Name a model with its commit."""
    commit = scored.loaded.commit
    return scored.loaded.name + (f" at {commit[:SHORT_COMMIT]}" if commit else "")


def digests(scored: Scored) -> dict[str, str]:
    """Return the SHA-256 of the text, and of the context where there is one."""
    texts = {"text": scored.text, "context": scored.settings.context}
    return {name: digest(text) for name, text in texts.items() if text}


def as_json(value: object) -> str:
    return json.dumps(plain(value), ensure_ascii=False, indent=1)
