"""The words of a text with their surprisal, as the reader shows them in the place of its tokens."""

import bisect
import math

from perplexity_sliding.views.segments import Segment, segment_data
from perplexity_sliding.views.surprise import bits_colour, in_bits
from perplexity_sliding.views.text_box import piece_columns, text_label

from .service import Scored


def word_data(scored: Scored) -> dict | None:
    """Return the data of each word for the script, as columns; None without word scores.

    `scores` are bits: surprisal, the plain sum over the tokens, and the entropy before the word.
    """
    if "word_scores" not in scored.result:
        return None
    [words] = scored.result["word_scores"]
    segments = word_segments(scored)
    pieces = [scored.whole[segment.start : segment.end] for segment in segments]
    rows = zip(words["surprisal"], words["nll"], words["entropy"])
    by_start = {first: row for (first, _), row in zip(words["offsets"], rows)}
    scores = [by_start.get(segment.start) for segment in segments]
    colours = [_colour(row, piece) for row, piece in zip(scores, pieces)]
    return {
        "label": text_label("word"),
        **piece_columns(pieces, colours),
        "segments": segment_data(segments),
        "scores": [
            row and [None if nll is None else in_bits(nll) for nll in row] for row in scores
        ],
    }


def word_segments(scored: Scored) -> list[Segment]:
    """Return words with their tokens, and the text between them, without tokens."""
    [words] = scored.result["word_scores"]
    starts = [first for first, _ in scored.tokens["offsets"]]
    segments, reached = [], 0
    for (first, end), num_tokens in zip(words["offsets"], words["num_tokens"]):
        if first > reached:
            segments.append(Segment(reached, first))
        last_token = bisect.bisect_left(starts, end) - 1
        tokens = (last_token + 1 - num_tokens, last_token) if num_tokens else (None, None)
        segments.append(Segment(first, end, *tokens))
        reached = end
    if reached < len(scored.whole):
        segments.append(Segment(reached, len(scored.whole)))
    return segments


def _colour(scores: tuple[float | None, ...] | None, piece: str) -> str | None:
    """Return the class of a piece; None for white space, which cannot be pointed at."""
    if scores is None:
        return "out" if piece.strip() else None
    surprisal = scores[0]
    return "out" if surprisal is None else bits_colour(surprisal / math.log(2))
