"""The result in numbers: the perplexity, its interpretation, and other measures."""

import math
from collections.abc import Sequence

from perplexity_sliding.views.markup import count, escape, interval_words, number, payload
from perplexity_sliding.views.numbers import FEWEST, TOO_SHORT, few_tokens, meaning, story

from .intro_view import term
from .links import link
from .models import BUNDLED
from .service import Scored
from .settings import fingerprint

ENDLESS = 1e9  # JSON has no infinity
ACTIONS = (
    '<p class="ps-actions"><button type="button" class="ps-button" data-open="share">Share</button> '
    '<button type="button" class="ps-button" data-open="game">And you? Guess twenty words</button></p>'
)
EXPLAINED = ("perplexity", "token", "window", "context", "stride")
TOO_LARGE = 1e6  # for anybody to read anything into it


def score_view(scored: Scored) -> str:
    """Show the card with the perplexity."""
    result, settings = scored.result, scored.settings
    data = {
        "perplexity": min(result["perplexity"], ENDLESS),
        "read": result["num_forward_tokens"],
        "scored": result["num_tokens"],
        "text": fingerprint(settings.context + scored.text),
        "model": settings.model,
        "recipe": recipe(scored),
    }
    return (
        f'<div class="ps-view ps-card" data-view="card" data-address="{escape(link(settings, scored.text))}" data-of="{escape(settings.mark(scored.text))}" '
        f"data-payload={payload(data)}>{_short(scored) if is_short(scored) else _large(scored)}"
        f'{_notes(result)}<p class="ps-signature ps-printed"><code>{escape(result["signature"])}</code></p></div>'
    )


def is_short(scored: Scored) -> bool:
    """Return whether a text is too short for a meaningful perplexity."""
    return scored.result["num_tokens"] < FEWEST


def warn_of_few(scored: Scored) -> str:
    """Warn about comparing perplexities of short texts."""
    words = (
        f"Too short to judge by: over fewer than {FEWEST} tokens, a perplexity is mostly chance."
    )
    return f'<p class="ps-verdict">{words}</p>' if is_short(scored) else ""


def _short(scored: Scored) -> str:
    """Show the surprise and the expected token for each token, instead of one number."""
    said = f"{count(scored.result['num_tokens'], 'token')} scored"
    return (
        f'<div class="ps-headline"><p class="ps-label">{said} by {escape(scored.loaded.name)}</p>'
        f"<p>{TOO_SHORT}</p>"
        f'<p class="ps-recipe">{escape(" · ".join(recipe(scored)))}</p></div>{few_tokens(scored)}{ACTIONS}'
    )


def _large(scored: Scored) -> str:
    """Show the number, its interpretation in one line, and the rest collapsed."""
    result = scored.result
    vocabulary = getattr(scored.loaded.model.config, "vocab_size", None)
    return (
        f'<div class="ps-headline"><p class="ps-label">Perplexity for {escape(scored.loaded.name)}</p>{_introduce(scored)}'
        f'<p class="ps-big"><output>{number(result["perplexity"])}</output>'
        '<span class="ps-change" role="status"></span></p>'
        f"<p>{meaning(scored.result['perplexity'], vocabulary)}</p></div>{story(scored)}{ACTIONS}"
        '<details class="ps-more" data-keep="numbers"><summary>How it was measured</summary>'
        f'<p class="ps-recipe">{escape(" · ".join(recipe(scored)))}</p>'
        f'<p class="ps-interval">{_interval(scored.interval)}</p>{_numbers(scored)}'
        f'<p class="ps-note">In these words: {", ".join(map(term, EXPLAINED))}.</p></details>'
    )


def _introduce(scored: Scored) -> str:
    """Explain that the bundled model is small, and its numbers are not typical."""
    known = scored.settings.model == BUNDLED
    return '<p class="ps-note">A tiny model, trained on old novels.</p>' if known else ""


def recipe(scored: Scored) -> list[str]:
    """Write the settings of the number, without which it cannot be cited."""
    settings = scored.settings
    begins = [bool(window["start_token"]) for window in scored.tokens["windows"]]
    start = "no start token"
    if any(begins):
        start = "start token in every window" if begins[1:2] == [True] else "start token once"
    stride = [] if settings.stride is None else [f"stride {settings.stride:,}"]
    context = [f"after {count(scored.num_context_tokens, 'token')} of context"] * bool(
        settings.context
    )
    return [
        f"protocol {settings.protocol}",
        f"window {settings.window:,}",
        *stride,
        start,
        *context,
    ]


def _interval(interval: Sequence[float] | None) -> str:
    if interval is None:
        return "No interval: the text is too short to tell how far another part would differ."
    return (
        f"{interval_words(interval)}: were it longer and went on like this, its perplexity would most "
        "likely lie there. Another text may differ by more."
    )


def _numbers(scored: Scored) -> str:
    result = scored.result
    length = len(scored.tokens["tokens"])
    own = length - scored.num_context_tokens
    texts = "context and text" if scored.settings.context else "the text"
    rows = [
        (
            "Tokens scored",
            f"{result['num_tokens']:,}",
            f"of {own:,} in the text"
            + ", some of them several times" * (result["num_tokens"] > own),
        ),
        ("Windows", f"{result['num_windows']:,}", _window_words(scored)),
        ("Read", f"{result['num_forward_tokens'] / max(1, length):.1f} ×", f"{texts}: the cost"),
        (
            "Bits per token",
            number(result["total_nll"] / math.log(2) / result["num_tokens"]),
            "mean surprise of a token",
        ),
        (
            term("bits per byte", "Bits per byte"),
            number(result["bits_per_byte"]),
            "comparable between tokenizers",
        ),
        ("Word perplexity", _word_perplexity(result), "per word instead of token"),
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


def _word_perplexity(result: dict) -> str:
    value = result["word_perplexity"]
    return "over a million" if value > TOO_LARGE else number(value)


def _window_words(scored: Scored) -> str:
    settings = scored.settings
    words = f"of up to {count(settings.window, 'token')}"
    return words if settings.stride is None else f"{words}, {settings.stride:,} apart"


def _notes(result: dict) -> str:
    return "".join(f'<p class="ps-note">{escape(note)}</p>' for note in result["notes"])
