"""The one check of a model before it scores texts, with two short forward passes.

Later tokens must not change earlier logits.  It finds whether passes of different lengths agree,
whether the rows of a batch do, and the cheapest head.
"""

from typing import NamedTuple

import torch

from .identity import probe_text
from .interface import Batch
from .logits import (
    OTHER_SHAPE,
    SAME_SHAPE,
    UNSUPPORTED_ERRORS,
    differ,
    head_makers,
    plain_logits,
)
from .module import grows_frequencies, input_device, num_embeddings, precision

LENGTH = 12


class Findings(NamedTuple):
    """What the check found.

    Attributes:
        head_number: index of the head to use in `head_makers(model)`.
        vocabulary_size: number of logits per token.
        prefixes_agree: whether scores do not depend on the length of the pass; otherwise passes
            are neither merged nor padded.
        alone: whether a pass must be read alone, since others in its batch change its scores.
    """

    head_number: int
    vocabulary_size: int
    prefixes_agree: bool
    alone: bool


@torch.inference_mode()
def check_model(model: torch.nn.Module, name: str, limit: int | None) -> Findings:
    """Check that a model is causal, and find how its passes can be read.

    Args:
        name: the model's name in errors.
        limit: its maximum number of tokens.

    Raises:
        ValueError: it returns no logits, or they depend on later tokens.
    """
    size = num_embeddings(model) or 2
    ids = torch.tensor(probe_text(size, limit, LENGTH), device=input_device(model))
    half = len(ids) // 2
    other = torch.cat([ids[:half], (ids[half:] + 1 + size // 3) % size])
    together = plain_logits(model, torch.stack([ids, other]), name)  # (2, T, V)
    expected, dtype = together[0], precision(model)
    # transformers #13818, #48745; datasets #4370: BERT's kind loads as a causal model
    if differ(together[1, :half], expected[:half], SAME_SHAPE[dtype], expected):
        raise ValueError(
            f"{name} must be a causal language model, but its prediction for a token changes with "
            "the tokens after it: it is masked or bidirectional, its configuration lacks "
            "is_decoder=True, or a part of it is random."
        )
    # Half of the text alone, by the cheapest head, shows three things at once where it agrees.
    size, grows = expected.shape[-1], grows_frequencies(model)
    number = find_head(model, ids[None, :half], expected[:half], OTHER_SHAPE[dtype])
    if number is not None:
        return Findings(number, size, prefixes_agree=not grows, alone=False)
    # It differs because of the length, or of the other row.
    whole = plain_logits(model, ids[None], name)[0]
    prefix = plain_logits(model, ids[None, :half], name)[0]
    number = find_head(model, ids[None], whole, OTHER_SHAPE[dtype])
    return Findings(
        len(head_makers(model)) - 1 if number is None else number,
        size,
        prefixes_agree=not grows and not differ(prefix, whole[:half], OTHER_SHAPE[dtype], whole),
        alone=differ(whole, expected, OTHER_SHAPE[dtype]),
    )


def find_head(
    model: torch.nn.Module, ids: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> int | None:
    """Return the index of the cheapest head with the expected logits (T, V) of a pass (1, T), if any."""
    # The later rows alone, so that a head that needs the others is not taken.
    rows = torch.arange(ids.shape[1] // 2, ids.shape[1], device=ids.device)
    for number, make in enumerate(head_makers(model)):
        try:
            blocks = make()(Batch(ids, rows, ids[0, : len(rows)]), len(rows))
            logits = torch.cat([block.clone() for block, _ in blocks])
        except UNSUPPORTED_ERRORS:
            continue
        if logits.shape == expected[rows].shape and not differ(logits, expected[rows], tolerance):
            return number
    return None
