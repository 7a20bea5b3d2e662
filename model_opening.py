"""Where a model lives, told by its name or its kind: the one place where any of them is opened."""

import torch
from transformers import PreTrainedTokenizerBase

from .model import LanguageModel


def open_model(
    model_id: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    model_kwargs: dict | None = None,
    tokenizer_kwargs: dict | None = None,
    argument: str = "model_id",
) -> LanguageModel:
    """Open the model of a name; see `LanguageModel.open`."""
    return LanguageModel.open(
        model_id, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs, argument
    )


def adopt_model(
    model: object,
    tokenizer: PreTrainedTokenizerBase,
    argument: str = "model",
    tokenizer_argument: str = "tokenizer",
) -> LanguageModel:
    """Take a live model as it is; see `LanguageModel.adopt`."""
    return LanguageModel.adopt(model, tokenizer, argument, tokenizer_argument)
