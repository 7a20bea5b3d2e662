"""Texts beside their tokens: their length in bytes, characters and words, and tools' detokeniser.

The numbers per byte, character and word compare models with different tokenizers, so they are only
as good as these counts.  Strings and integers: no model, no score.
"""

import re
from typing import NamedTuple

import numpy as np

# How lm-evaluation-harness and Megatron-LM turn WikiText's word-level form into prose, both by the
# same list, applied in this order.  Its slips belong to it: the second step only finds what is
# between slashes, and quotes are paired from the first one on, across clitics and lines.
WIKITEXT_STEPS = (
    *[("s '", "s'"), ("/' [0-9]/", "/'[0-9]/")],
    *[(f" @{re.escape(mark)}@ ", mark) for mark in "-,."],
    *[(f" {re.escape(mark)} ", f"{mark} ") for mark in ":;.!?,"],
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
    *[(rf"{mark}\s*([^{mark}]*?)\s*{mark}", rf"{mark}\1{mark}") for mark in "\"'"],
    *[("= " * (count - 1) + "=", "=" * count) for count in (4, 3, 2)],
    *[(" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")],
)


class Span(NamedTuple):
    """The part of a text that scored tokens stand for.

    Attributes:
        tokens: which tokens stand for characters (N,); special ones that were added do not.
        num_bytes, num_characters: of the tokens that are scored as well.
    """

    tokens: np.ndarray
    num_bytes: int
    num_characters: int


def scored_span(text: str, offsets: np.ndarray, scored: np.ndarray, begin: int = 0) -> Span:
    """Measure what scored tokens stand for, as nanochat's `evaluate_bpb` counts bytes.

    Characters that no token has, as spaces that a tokenizer drops, go to the token after them, or
    to the last one.  A character that several tokens share goes to the first of them.

    Args:
        offsets: first and one-past-last character of each token (N, 2).
        scored: which tokens are scored (N,).
        begin: where the text begins, if a start token written at its head does not count.
    """
    tokens = offsets[:, 1] > offsets[:, 0]
    ends = np.maximum.accumulate(np.maximum(offsets[:, 1], begin))
    if tokens.any():
        ends[np.flatnonzero(tokens)[-1] :] = len(text)
    starts = np.concatenate([[begin], ends[:-1]])
    bytes_before = count_bytes_before(text)
    counted = scored & tokens
    return Span(
        tokens,
        int((bytes_before[ends] - bytes_before[starts])[counted].sum()),
        int((ends - starts)[counted].sum()),
    )


def count_bytes_before(text: str) -> np.ndarray:
    """UTF-8 bytes before each character, and in all of them (N + 1,)."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def count_words(text: str) -> int:
    """Count what stands between white space."""
    return len(text.split())


def count_words_and_ends(text: str) -> int:
    """As lm-evaluation-harness: white space at the beginning or end sets an empty word apart."""
    return len(re.split(r"\s+", text))


def count_words_and_lines(text: str) -> int:
    """As Megatron-LM: between single spaces, so that in WikiText's form line ends are words."""
    return len(text.strip().split(" "))


def detokenize_wikitext(text: str) -> str:
    """Turn WikiText's word-level form into prose as lm-evaluation-harness and Megatron-LM do."""
    for pattern, written in WIKITEXT_STEPS:
        text = re.sub(pattern, written, text)
    return text
