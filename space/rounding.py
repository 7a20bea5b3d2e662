"""The bundled model as if its weights had 4 bits: what quantisation does, shown without a download.

Plain rounding to nearest in groups, with one scale each, as the simplest quantisers do it; the
better ones lose less.
"""

import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LEVELS = 7  # -7 to 7, which takes 4 bits
GROUP = 32  # weights with one scale


def load_rounded(folder: str | os.PathLike) -> tuple[torch.nn.Module, object]:
    """Load a model in single precision with its weights rounded, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    round_weights(model)
    return model, AutoTokenizer.from_pretrained(folder)


def round_weights(model: torch.nn.Module) -> None:
    """Round the matrices of a model's layers in place; embeddings and vectors stay as they are."""
    tables = {id(module.weight) for module in (embeddings(model)) if module is not None}
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2 and id(weight) not in tables:
                weight.copy_(rounded(weight))


def embeddings(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Tables with a row for each token or place, which quantisers leave alone."""
    return [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Round a matrix to `LEVELS` steps either side of zero, in groups of `GROUP` weights of a row.

    Args:
        weight: of shape (rows, columns).
    """
    columns = weight.shape[1]
    padded = torch.nn.functional.pad(weight, (0, -columns % GROUP))
    groups = padded.reshape(weight.shape[0], -1, GROUP)
    scale = (
        groups.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / LEVELS
    )
    return ((groups / scale).round() * scale).reshape(weight.shape[0], -1)[:, :columns]
