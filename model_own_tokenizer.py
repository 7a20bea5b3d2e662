"""A model's own tokenizer beside the one that texts are scored with.

An engine that reads ids does not mind which tokenizer they come from: a number of other tokens than
the ones that users of the engine see is a number all the same.
"""

import warnings
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from .text_tokenization import tokenize

# Characters of the texts that are compared, at most; and tokens that a warning shows.
MOST_CHARACTERS = 10**6
SHOWN_TOKENS = 5


class HasOwnTokenizer(Protocol):
    """A model whose engine cuts texts, too.

    Attributes:
        tokenizer: what texts are scored with.
        description: what to call it in a warning.
    """

    tokenizer: PreTrainedTokenizerBase
    description: str

    def tokenize(self, text: str) -> Sequence[int] | None:
        """Return the ids that the engine cuts a text into, without a start token; None if unknown."""
        ...


def compare_tokenizers(model: HasOwnTokenizer, texts: Sequence[str]) -> None:
    """Warn of a model that cuts texts into other tokens by itself."""
    text = "\n".join(texts)[:MOST_CHARACTERS]
    own = model.tokenize(text)
    if own is None:
        return
    own, ids = np.asarray(own), tokenize(model.tokenizer, [text])[0].ids
    if np.array_equal(own, ids):
        return
    common = min(len(own), len(ids))
    place = int(np.argmax([*(own[:common] != ids[:common]), True]))
    by_itself, given = (
        [
            model.tokenizer.decode([token])
            for token in of_text[place : place + SHOWN_TOKENS].tolist()
        ]
        for of_text in (own, ids)
    )
    warnings.warn(
        f"{model.description} cuts the texts in another way than the tokenizer: into {len(own):,} "
        f"tokens and not {len(ids):,}, from token {place + 1:,} on {by_itself} where the tokenizer "
        f"gives {given}. What the tokenizer gives is scored; whoever uses the model by itself gets "
        "the other. Files that were converted long ago hold an old tokenizer.",
        stacklevel=2,
    )
