"""The text coloured by what was measured of its tokens, over the windows that read it."""

import itertools
import math
from collections.abc import Sequence

from views.markup import count, escape, payload
from views.segments import Segment, cut, segment_data
from views.surprise import LABELS, ODDS, bits_colour, in_bits
from views.text_box import piece_columns, utf16_length

from .protocols import guide
from .service import Scored
from .word_view import word_data

CHOICES = ("surprise", "rank", "context", "window")
RANKS = ("first guess", "top 10", "top 100", "top 1,000", "top 10,000", "later")


def text_view(scored: Scored) -> str:
    """Write what the page's script colours the visitor's own text with, and its controls."""
    segments, text = text_segments(scored)
    pieces = [text[segment.start : segment.end] for segment in segments]
    colours = [
        _colour(scored.tokens["nll"], segment, piece) for segment, piece in zip(segments, pieces)
    ]
    data = token_data(scored, segments) | {
        "pieces": {"text": text, **piece_columns(pieces, colours)},
        "before": utf16_length(scored.settings.context),
        "slides": guide(scored.settings.protocol).slides,
    }
    return (
        # Without the mark of an old result: what is typed keeps the colours around it.
        f'<div class="ps-view" data-view="text" '
        f'data-payload={payload(data)}>{_steps(scored)}<details class="ps-more" data-keep="colours">'
        f"<summary>Colours and words</summary>{_choices(scored)}{legends()}"
        f"{_count_line(scored, segments)}</details></div>"
    )


def text_segments(scored: Scored) -> tuple[list[Segment], str]:
    """Segments and the text they cut; where a tokenizer gives no places, its tokens in a row."""
    offsets = scored.tokens["offsets"]
    if None not in offsets:
        return cut(scored.whole, offsets), scored.whole
    names = [name.replace("▁", " ").replace("Ġ", " ") for name in scored.tokens["tokens"]]
    ends = [0]
    for name in names:
        ends.append(ends[-1] + len(name))
    return cut("".join(names), list(itertools.pairwise(ends))), "".join(names)


def legends() -> str:
    """What the colours mean, for each choice of them."""
    by_bits = "".join(
        f'<li><span class="ps-box b{n}">{label}</span><small>{odds}</small></li>'
        for n, (label, odds) in enumerate(zip(LABELS, ODDS))
    )
    by_rank = "".join(
        f'<li><span class="ps-box b{n}">{label}</span></li>' for n, label in enumerate(RANKS)
    )
    return (
        f'<div class="ps-legend"><ul data-legend="surprise">{by_bits}</ul>'
        f'<ul data-legend="rank" hidden>{by_rank}</ul>'
        '<ul data-legend="context" hidden><li><span class="ps-box c0">little context</span></li>'
        '<li><span class="ps-box c5">much</span></li></ul>'
        '<ul data-legend="window" hidden><li><span><i class="ps-box n0"></i><i class="ps-box n1"></i>'
        '<i class="ps-box n2"></i> colours alternate by window</span></li></ul></div>'
    )


def colour_choice(names: Sequence[str], group: str) -> str:
    """What to colour a text by; the script shows the legend of what is chosen.

    Args:
        group: of the radio buttons, one for each view.
    """
    choices = "".join(
        f'<label><input type="radio" name="{group}" value="{name}">{name}</label>' for name in names
    )
    return (
        f'<fieldset class="ps-choice" data-colours><legend>Colour by</legend>{choices}</fieldset>'
    )


def _choices(scored: Scored) -> str:
    """What the pieces are, what to colour them by, and what the lines under them mean."""
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
    """Why the words of this text cannot be scored; None if they can."""
    if not guide(scored.settings.protocol).words:
        return f"No words here: {scored.settings.protocol} joins all texts before it scores them."
    if None in scored.tokens["offsets"]:
        return "No words here: this tokenizer does not say where its tokens are in the text."
    return None


def _steps(scored: Scored) -> str:
    """Write the controls that slide the window through the text."""
    windows = max(1, len(scored.tokens["windows"]))
    return (
        '<div class="ps-steps"><button type="button" class="ps-button" data-step="play">Play</button>'
        '<button type="button" class="ps-button" data-step="-1" aria-label="Window before">◀</button>'
        f'<input type="range" min="1" max="{windows}" value="1" aria-label="Window of the text">'
        '<button type="button" class="ps-button" data-step="1" aria-label="Next window">▶</button>'
        '</div><p class="ps-says"></p>'
    )


def token_data(scored: Scored, segments: list[Segment]) -> dict:
    """What the script shows of each token, as columns."""
    tokens = scored.tokens
    return {
        "names": token_texts(scored),
        "num_context_tokens": scored.result.get("num_context_tokens", 0),
        "bits": [None if nll is None else in_bits(nll) for nll in tokens["nll"]],
        "rank": tokens["rank"],
        "context": tokens["context_length"],
        "alternatives": [
            top and [[name, float(f"{math.exp(-nll):.3g}")] for name, nll in top]
            for top in tokens["alternatives"]
        ],
        "segments": segment_data(segments),
        "windows": window_data(scored),
        "words": word_data(scored),
    }


def token_texts(scored: Scored) -> list[str]:
    """What each token stands for in the text; its own name where the tokenizer gives no place."""
    tokens = scored.tokens
    return [
        name if offset is None else scored.whole[slice(*offset)]
        for name, offset in zip(tokens["tokens"], tokens["offsets"])
    ]


def window_data(scored: Scored) -> list[list[int]]:
    """Windows as [first token read, first scored, one past the last, start token]."""
    return [
        [w["begin"], w["first"], w["end"], int(w["start_token"])] for w in scored.tokens["windows"]
    ]


def _colour(nll: list[float | None], segment: Segment, piece: str) -> str | None:
    """The colour class of a segment: by the sum of its tokens' surprisal."""
    if segment.first is None:
        return "" if piece.strip() else None
    own = nll[segment.first : segment.last + 1]
    return "out" if None in own else bits_colour(sum(own) / math.log(2))


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
