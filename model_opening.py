"""Where a model lives, told by its name or its kind: the one place where any of them is opened."""

import torch
from transformers import PreTrainedTokenizerBase

from .model import LanguageModel
from .model_gguf import GGUFModel, is_gguf, open_gguf
from .model_served import ServedModel, open_served
from .model_server import is_address

# Whatever scores can be had of, by logits or by columns.
AnyModel = LanguageModel | ServedModel | GGUFModel


def open_model(
    model_id: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    model_kwargs: dict | None = None,
    tokenizer_kwargs: dict | None = None,
    argument: str = "model_id",
) -> AnyModel:
    """Open the model of a name: behind an address, in a GGUF file, on the Hub, or in a folder.

    See `LanguageModel.open`, `open_served` and `open_gguf`.
    """
    opener = open_served if is_address(model_id) else open_gguf if is_gguf(model_id) else None
    if opener is not None:
        check_elsewhere(model_id, device, dtype)
        return opener(model_id, tokenizer, model_kwargs, tokenizer_kwargs, argument)
    return LanguageModel.open(
        model_id, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs, argument
    )


def check_elsewhere(
    model_id: str, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> None:
    """Refuse to say where and in what a model runs that transformers does not load.

    Raises:
        ValueError: it is said.
    """
    for name, value in (("device", device), ("dtype", dtype)):
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out with {model_id!r}, got {value!r}: a server runs as it was "
                "told to, and a GGUF file as `model_kwargs` say (n_gpu_layers)."
            )


def adopt_model(
    model: object,
    tokenizer: PreTrainedTokenizerBase,
    argument: str = "model",
    tokenizer_argument: str = "tokenizer",
) -> AnyModel:
    """Take a live model as it is; see `LanguageModel.adopt`."""
    return LanguageModel.adopt(model, tokenizer, argument, tokenizer_argument)
