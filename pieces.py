"""A text cut where two tokenizers both cut it, so that their models can be compared over the pieces.

Numbers of characters, bytes and nats only: neither tokenizer nor model.
"""

from typing import NamedTuple

import numpy as np


class Pieces(NamedTuple):
    """Pieces of a text that begin and end between two tokens of either model, and are fully scored.

    Attributes:
        length: characters of the text.
        ends: where each piece ends (P,).
        tokens: tokens of the model in it (P,).
        num_bytes: its length in UTF-8 (P,).
        nll, reference_nll: its nll under either model, in nats (P,).
    """

    length: int
    ends: np.ndarray
    tokens: np.ndarray
    num_bytes: np.ndarray
    nll: np.ndarray
    reference_nll: np.ndarray


def common_pieces(
    text: str,
    model: tuple[np.ndarray, np.ndarray],
    reference: tuple[np.ndarray, np.ndarray],
) -> Pieces:
    """Cut a text where both models have a token end and the next one begin no sooner.

    Args:
        model, reference: characters (N, 2) of each token and its nll (N,), NaN where unscored.  A
            token without characters, as a start token, counts for nothing.
    """
    model, reference = (drop_empty(*side) for side in (model, reference))
    ends = np.intersect1d(clean_ends(model[0]), clean_ends(reference[0]))
    begins = np.concatenate([[0], ends[:-1]]).astype(int)
    sides = [sum_pieces(ends, *side) for side in (model, reference)]
    num_bytes = [len(text[begin:end].encode()) for begin, end in zip(begins, ends)]
    scored = ~np.isnan(sides[0][1]) & ~np.isnan(sides[1][1])
    return Pieces(
        len(text),
        ends[scored],
        sides[0][0][scored],
        np.array(num_bytes, dtype=int)[scored],
        sides[0][1][scored],
        sides[1][1][scored],
    )


def drop_empty(offsets: np.ndarray, nll: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that stand for characters."""
    filled = offsets[:, 1] > offsets[:, 0]
    return offsets[filled], nll[filled]


def clean_ends(offsets: np.ndarray) -> np.ndarray:
    """Where tokens end that share no character with a later one, ascending."""
    begins, ends = offsets.T
    reached = np.maximum.accumulate(ends)
    next_begin = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], np.iinfo(np.int64).max)
    return np.unique(reached[reached <= next_begin])


def sum_pieces(
    ends: np.ndarray, offsets: np.ndarray, nll: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Number of tokens (P,) and nll (P,) of each piece; NaN where a token of it is unscored."""
    piece = np.searchsorted(ends, offsets[:, 1])
    inside = piece < len(ends)  # behind the last common cut there may be more
    tokens = np.bincount(piece[inside], minlength=len(ends))
    return tokens, np.bincount(piece[inside], nll[inside], minlength=len(ends))
