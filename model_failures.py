"""What it means that a forward pass failed."""

import torch

from .errors import Wording

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def explain_failure(
    error: Exception, num_windows: int, length: int, device: torch.device
) -> Exception:
    """Return the error to raise in place of the one that a forward pass ended with."""
    if is_out_of_memory(error):
        return MemoryError(
            Wording(
                f"One window of {length} tokens does not fit in the memory of {device}: lower "
                "`max_length`, load the model in a smaller `dtype`, or lower `logits_memory`."
            )
        )
    return ValueError(
        Wording(
            f"`model` failed on {num_windows} windows of {length} tokens: "
            f"{error or type(error).__name__}."
        )
    )


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        phrase in str(error).lower() for phrase in OUT_OF_MEMORY
    )
