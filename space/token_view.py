"""The text coloured by surprisal, with what was measured of each token for the page's script."""

import bisect
import itertools
import math

from .markup import count, escape, payload
from .segments import Segment, cut
from .service import Scored

# Lower edges of the colours, in bits, and how likely a token at the edge is.
EDGES = (0, 1, 3, 6, 10, 15)
LABELS = ("under 1 bit", "1–3 bits", "3–6 bits", "6–10 bits", "10–15 bits", "over 15 bits")
ODDS = (
    "likelier than 1 in 2",
    "to 1 in 8",
    "to 1 in 64",
    "to 1 in 1,000",
    "to 1 in 33,000",
    "rarer",
)
ENDLESS = 1e9  # JSON has no infinity
SCRIPT_DIGITS = 3


def token_view(scored: Scored) -> str:
    """The whole view: legend, text, and a place for the selected token."""
    segments, text = text_segments(scored)
    spans = "".join(
        segment_span(text, segment, _colour(scored.tokens["nll"], segment)) for segment in segments
    )
    return (
        f'<div class="ps-view" data-view="tokens" data-payload="{payload(token_data(scored, segments))}">'
        f"{legend()}"
        f'<div class="ps-text" role="listbox" tabindex="0" aria-label="The text, token by token. '
        f'Arrow keys move from token to token.">{spans}</div>'
        f'<div class="ps-detail" role="status"><p class="ps-hint">Point at a piece of the text, or '
        f"move with the arrow keys, to see what the model expected there.</p></div>"
        f"{_count_line(scored, segments)}</div>"
    )


def text_segments(scored: Scored) -> tuple[list[Segment], str]:
    """Segments and the text they cut; where a tokenizer gives no places, its tokens in a row."""
    offsets = scored.tokens["offsets"]
    if None not in offsets:
        return cut(scored.text, offsets), scored.text
    names = [name.replace("▁", " ").replace("Ġ", " ") for name in scored.tokens["tokens"]]
    ends = [0]
    for name in names:
        ends.append(ends[-1] + len(name))
    return cut("".join(names), list(itertools.pairwise(ends))), "".join(names)


def segment_span(text: str, segment: Segment, colour: str) -> str:
    """One piece of the text; line ends are made visible and still break the line."""
    piece = escape(text[segment.start : segment.end]).replace("\n", "<i></i>\n")
    return f'<span class="{colour}">{piece}</span>' if colour else f"<span>{piece}</span>"


def legend() -> str:
    """The scale: what each colour means, in bits and in odds."""
    boxes = "".join(
        f'<li><span class="ps-box b{number}">{label}</span><small>{odds}</small></li>'
        for number, (label, odds) in enumerate(zip(LABELS, ODDS))
    )
    return (
        '<div class="ps-legend"><p>How surprising each token was for the model, in bits:</p>'
        f"<ul>{boxes}<li><span class='ps-box'>plain</span><small>not scored</small></li></ul></div>"
    )


def token_data(scored: Scored, segments: list[Segment]) -> dict:
    """What the script shows of each token, as columns."""
    tokens = scored.tokens
    return {
        "names": tokens["tokens"],
        "bits": [None if nll is None else in_bits(nll) for nll in tokens["nll"]],
        "rank": tokens["rank"],
        "context": tokens["context_length"],
        "alternatives": [
            top and [[name, float(f"{math.exp(-nll):.3g}")] for name, nll in top]
            for top in tokens["alternatives"]
        ],
        "segments": segment_data(segments),
        "windows": window_data(scored),
    }


def segment_data(segments: list[Segment]) -> list[list[int] | None]:
    """First and last token of each segment, None where it has none."""
    return [None if s.first is None else [s.first, s.last] for s in segments]


def window_data(scored: Scored) -> list[list[int]]:
    """Windows as [first token read, first scored, one past the last, start token]."""
    return [
        [w["begin"], w["first"], w["end"], int(w["start_token"])] for w in scored.tokens["windows"]
    ]


def in_bits(nll: float) -> float:
    return round(nll / math.log(2), SCRIPT_DIGITS) if math.isfinite(nll) else ENDLESS


def _colour(nll: list[float | None], segment: Segment) -> str:
    """The colour class of a segment: by the sum of its tokens' surprisal."""
    own = [] if segment.first is None else nll[segment.first : segment.last + 1]
    if not own or None in own:
        return ""
    bits = sum(own) / math.log(2)
    return f"b{max(0, bisect.bisect_right(EDGES, bits) - 1)}"


def _count_line(scored: Scored, segments: list[Segment]) -> str:
    whole = [s for s in segments if s.first is not None and s.last > s.first]
    pieces = [count(len(scored.tokens["tokens"]), "token")]
    if whole:
        pieces.append(
            f"{count(len(whole), 'piece')} of text made of several tokens, because a character is "
            "never cut; their bits are added up"
        )
    return f'<p class="ps-note">{", with ".join(pieces)}.</p>'
