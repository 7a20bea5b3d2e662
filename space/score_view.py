"""The result in numbers: the perplexity large, what it means, and what else was measured."""

import math

from .markup import count, escape, number
from .service import Scored


def score_view(scored: Scored) -> str:
    """The card with the perplexity."""
    result = scored.result
    return (
        f'<div class="ps-view ps-card"><p class="ps-label">Perplexity of this text for '
        f"{escape(scored.loaded.name)}</p>"
        f'<p class="ps-big"><output>{number(result["perplexity"])}</output></p>'
        f'<p class="ps-interval">{_interval(result)}</p>'
        f"<p>{_meaning(result)}</p>{_numbers(scored)}{_notes(result)}</div>"
    )


def _interval(result: dict) -> str:
    interval = result["perplexity_interval"]
    if interval is None:
        return "No interval: the text is too short to tell how far another part would differ."
    low, high = (number(end) for end in interval)
    return (
        f"95 % interval {low} to {high}: the perplexity of much more text like this would most "
        "likely lie there."
    )


def _meaning(result: dict) -> str:
    if result["perplexity"] == float("inf"):
        return "The model held a part of this text for impossible."
    return (
        "On average the model was as unsure of each token as if it had to guess among "
        f"<b>{number(result['perplexity'])}</b> equally likely ones. Lower means less surprised."
    )


def _numbers(scored: Scored) -> str:
    result = scored.result
    length = len(scored.tokens["tokens"])
    rows = [
        ("Tokens scored", f"{result['num_tokens']:,}", f"of {length:,} in the text"),
        ("Windows", f"{result['num_windows']:,}", _window_words(scored)),
        (
            "Tokens read",
            f"{result['num_forward_tokens']:,}",
            f"the cost: {result['num_forward_tokens'] / max(1, length):.1f} × the text",
        ),
        (
            "Bits per token",
            number(result["total_nll"] / math.log(2) / result["num_tokens"]),
            "mean surprise of a token",
        ),
        ("Bits per byte", number(result["bits_per_byte"]), "comparable between tokenizers"),
        ("Word perplexity", number(result["word_perplexity"]), "per word instead of token"),
    ]
    if result.get("tool_stderr") is not None:
        rows.append(
            ("The tool's own ±", number(result["tool_stderr"]), "as if tokens were independent")
        )
    items = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{words}</small></dd></div>"
        for name, value, words in rows
    )
    return f'<dl class="ps-numbers">{items}</dl>'


def _window_words(scored: Scored) -> str:
    settings = scored.settings
    words = f"of up to {count(settings.window, 'token')}"
    return words if settings.stride is None else f"{words}, {settings.stride:,} apart"


def _notes(result: dict) -> str:
    return "".join(f'<p class="ps-note">{escape(note)}</p>' for note in result["notes"])
