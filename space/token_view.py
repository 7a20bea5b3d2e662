"""The text, coloured by its tokens' scores, above its windows."""

import math
from collections.abc import Iterable

from perplexity_sliding.views.markup import count, escape, payload
from perplexity_sliding.views.segments import Segment
from perplexity_sliding.views.text_box import piece_columns, utf16_length
from perplexity_sliding.views.tokens import colour_choice, piece_colour, text_segments, token_data

from .protocols import guide
from .service import Scored
from .word_view import word_data

CHOICES = ("surprise", "rank", "context", "window")
RANKS = ("first guess", "top 10", "top 100", "top 1,000", "top 10,000", "later")
# The least chance of a token of each colour: 2 to the power of minus the edge between two.
CHANCES = ("over 1/2", "1/8", "1/64", "1/1,000", "1/33,000", "less")


def text_view(scored: Scored) -> str:
    """Write the data and controls with which the page's script colours the visitor's text."""
    segments, text = text_segments(scored)
    pieces = [text[segment.start : segment.end] for segment in segments]
    colours = [
        piece_colour(scored.tokens["nll"], segment, piece)
        for segment, piece in zip(segments, pieces)
    ]
    data = token_data(scored, segments) | {
        "words": word_data(scored),
        "pieces": {"text": text, **piece_columns(pieces, colours)},
        "before": utf16_length(scored.settings.context),
        "slides": guide(scored.settings.protocol).slides,
        "starts": starts_every_window(scored),
        "stride": scored.settings.stride,
        "perplexity": token_perplexity(scored),
    }
    return (
        # Without the mark of an old result: what is typed keeps the colours around it.
        f'<div class="ps-view" data-view="text" '
        f'data-payload={payload(data)}>{legends()}<details class="ps-more" data-keep="colours">'
        f"<summary>Colours and words</summary>{_choices(scored)}"
        f"{_count_line(scored, segments)}</details></div>"
    )


def token_perplexity(scored: Scored) -> float | None:
    """Return the perplexity if it is that of the mean over tokens, each counted once; else None.

    Some tools average in another way, or count a token many times: a mean over the tokens read so far
    would not end at their number.
    """
    perplexity = scored.result["perplexity"]
    own = [nll for nll in scored.tokens["nll"] if nll is not None]
    if not own or not math.isfinite(perplexity):
        return None
    is_mean = math.isclose(math.log(perplexity), math.fsum(own) / len(own), abs_tol=1e-5)
    return perplexity if is_mean else None


def starts_every_window(scored: Scored) -> bool:
    """Return whether a start token takes a place in each window."""
    return scored.settings.arguments().get("add_start_token") == "every"


def legends() -> str:
    """Explain the colours, for each choice of them; the script shows the one that is chosen."""

    def legend(
        name: str, lead: str, boxes: Iterable[tuple[str, str]], hidden: str = " hidden"
    ) -> str:
        entries = "".join(
            f'<li><span class="ps-box {colour}">{words}</span></li>' for colour, words in boxes
        )
        return f'<ul class="ps-colours" data-legend="{name}"{hidden}><li>{lead}</li>{entries}</ul>'

    levels = [f"b{n}" for n in range(len(RANKS))]
    return (
        '<div class="ps-legend">'
        + legend("surprise", "Chance:", zip(levels, CHANCES), hidden="")
        + legend("rank", "Rank:", zip(levels, RANKS))
        + legend("context", "Tokens before it:", [("c0", "few"), ("c5", "many")])
        + legend(
            "window", "Scored by window:", [(f"n{n}", f"{n + 1}, {n + 4}, …") for n in range(3)]
        )
        + "</div>"
    )


def _choices(scored: Scored) -> str:
    """Write the choices of pieces and colours, and explain the lines under them."""
    refused = words_refused(scored)
    off = f' disabled title="{escape(refused)}"' if refused else ""
    return (
        '<div class="ps-bar-line"><fieldset class="ps-choice" data-units><legend>Show</legend>'
        '<label><input type="radio" name="ps-unit" value="tokens" checked>tokens</label>'
        f'<label><input type="radio" name="ps-unit" value="words"{off}>words</label></fieldset>'
        f"{colour_choice(CHOICES, 'ps-colour')}"
        "</div>" + (f'<p class="ps-note">{escape(refused)}</p>' if refused else "")
    )


def words_refused(scored: Scored) -> str | None:
    """Return the reason why the words of this text cannot be scored; None if they can."""
    if not guide(scored.settings.protocol).words:
        return f"No words here: {scored.settings.protocol} joins all texts before it scores them."
    if None in scored.tokens["offsets"]:
        return "No words here: this tokenizer does not say where its tokens are in the text."
    return None


def steps() -> str:
    """Write the controls that slide the window through the text; the script sets how many there are."""
    return (
        '<div class="ps-view"><div class="ps-steps"><button type="button" class="ps-button" '
        'data-step="play">Play</button><input type="range" min="1" max="1" value="1" '
        'aria-label="Window of the text"></div><p class="ps-says"></p></div>'
    )


def _count_line(scored: Scored, segments: list[Segment]) -> str:
    whole = [s for s in segments if s.first is not None and s.last > s.first]
    pieces = [count(len(scored.tokens["tokens"]), "token")]
    if whole:
        pieces.append(
            f"{count(len(whole), 'piece')} of text made of several tokens, because one character can "
            "span several tokens; their bits are summed"
        )
    words = ""
    if "word_scores" in scored.result:
        words = (
            f" {count(len(scored.result['word_scores'][0]['words']), 'word')}: their table is among the "
            "files under “Share”."
        )
    return f'<p class="ps-note">{", with ".join(pieces)}.{words}</p>'
