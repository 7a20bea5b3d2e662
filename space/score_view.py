"""The result in numbers: the perplexity large, what it means, and what else was measured."""

import math
from collections.abc import Sequence

from views.markup import count, escape, interval_words, number, payload
from views.piece_list import in_word, shown
from views.surprise import bits_colour

from .intro_view import term
from .links import link
from .service import Scored
from .settings import fingerprint
from .token_view import text_segments, token_texts

ENDLESS = 1e9  # JSON has no infinity
ACTIONS = (
    '<p class="ps-actions"><button type="button" class="ps-button" data-open="share">Share</button> '
    '<button type="button" class="ps-button" data-open="game">Guess the hidden word</button></p>'
)
FEWEST = 20  # tokens; a perplexity of fewer says more of chance than of the text
TOO_LARGE = 1e6  # for anybody to read anything into it


def score_view(scored: Scored) -> str:
    """The card with the perplexity."""
    result, settings = scored.result, scored.settings
    data = {
        "perplexity": min(result["perplexity"], ENDLESS),
        "read": result["num_forward_tokens"],
        "scored": result["num_tokens"],
        "text": fingerprint(settings.context + scored.text),
        "address": link(settings, scored.text),
        "model": settings.model,
        "recipe": recipe(scored),
    }
    return (
        f'<div class="ps-view ps-card" data-view="card" data-of="{escape(settings.mark(scored.text))}" '
        f"data-payload={payload(data)}>{_short(scored) if is_short(scored) else _large(scored)}"
        f"{_notes(result)}</div>"
    )


def is_short(scored: Scored) -> bool:
    """Tell whether a text is too short for a perplexity to speak of."""
    return scored.result["num_tokens"] < FEWEST


def _short(scored: Scored) -> str:
    """The surprise of each token instead of a number for all, and what was expected there."""
    tokens, rows = scored.tokens, []
    names = token_texts(scored)
    for place, nll in enumerate(tokens["nll"]):
        if nll is None:
            continue
        [[top, top_nll], *_] = tokens["alternatives"][place]
        hit = tokens["rank"][place] == 1
        expected = "what it expected" if hit else f"it expected <code>{escape(shown(top))}</code>"
        rows.append(
            f'<tr><th scope="row"><code>{escape(shown(names[place]))}</code></th>'
            f'<td><span class="ps-box {bits_colour(nll / math.log(2))}">'
            f"{bits_words(nll / math.log(2))}</span></td>"
            f"<td>{expected} ({math.exp(-top_nll):.0%})</td></tr>"
        )
    said = f"{count(scored.result['num_tokens'], 'token')} scored"
    return (
        f'<div class="ps-headline"><p class="ps-label">{said} by {escape(scored.loaded.name)}</p>'
        f"<p>Too short for a perplexity: over fewer than {FEWEST} tokens it says more about chance than "
        "about the text. This is how surprising each token was.</p>"
        f'<p class="ps-recipe">{escape(" · ".join(recipe(scored)))}</p></div>'
        f'<table class="ps-table ps-few"><tbody>{"".join(rows)}</tbody></table>{ACTIONS}'
    )


def bits_words(bits: float) -> str:
    """Write surprise for people: `2.1 bits`."""
    return "infinite" if math.isinf(bits) else f"{bits:.1f} bits"


def _large(scored: Scored) -> str:
    """The number with one line under it, the story that it tells, and the rest folded."""
    result = scored.result
    return (
        f'<div class="ps-headline"><p class="ps-label">Perplexity for {escape(scored.loaded.name)}</p>'
        f'<p class="ps-big"><output>{number(result["perplexity"])}</output>'
        '<span class="ps-change" role="status"></span></p>'
        f"<p>{_meaning(scored)}</p></div>{story(scored)}{ACTIONS}"
        '<details class="ps-more" data-keep="numbers"><summary>How it was measured</summary>'
        f'<p class="ps-recipe">{escape(" · ".join(recipe(scored)))}</p>'
        f'<p class="ps-interval">{_interval(scored.interval)}</p>{_numbers(scored)}</details>'
    )


def story(scored: Scored) -> str:
    """Write which word surprised most, how unlikely it was, and what was expected there."""
    segments, text = text_segments(scored)
    nll, worst = scored.tokens["nll"], None
    for piece, segment in enumerate(segments):
        if segment.first is None or segment.first != segment.last:
            continue
        own = nll[segment.first]
        is_word = any(map(str.isalpha, text[segment.start : segment.end]))
        if own is not None and is_word and (worst is None or own > nll[segments[worst].first]):
            worst = piece
    if worst is None:
        return ""
    place = segments[worst].first
    [[expected, _], *_] = scored.tokens["alternatives"][place]
    return (
        '<p class="ps-story">Most surprising word: <button type="button" class="ps-word" '
        f'data-piece="{worst}">{in_word(text, segments[worst])}</button>, {odds(nll[place])}. '
        f"The model expected <em>{escape(shown(expected))}</em>.</p>"
    )


def odds(nll: float) -> str:
    """Write a probability for people: `1 in 53,300`."""
    if math.isinf(nll):
        return "to which it gave no chance at all"
    if nll > math.log(1e9):
        return "less likely than 1 in a billion"
    one_in = math.exp(nll)
    digits = max(0, int(math.log10(max(1, one_in))) - 2)
    return f"1 in {round(one_in, -digits):,.0f}"


def recipe(scored: Scored) -> list[str]:
    """How the number was made: without it, it can't be quoted."""
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


def _meaning(scored: Scored) -> str:
    perplexity = scored.result["perplexity"]
    if perplexity == float("inf"):
        return "The model gave part of this text zero probability."
    known = getattr(scored.loaded.model.config, "vocab_size", None)
    if known and perplexity > known:
        return (
            f"Worse than guessing blindly among the {known:,} tokens that it knows: it was trained on "
            "nothing like this text."
        )
    return f"As unsure of each token as if it guessed among <b>{number(perplexity)}</b> equally likely ones."


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
