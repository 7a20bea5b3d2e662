"""What exactly was loaded, in a few characters: the signature's model and tokenizer fields."""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import xxhash

DIGITS = 12
# Configuration entries that say where a model came from, not what it computes.
PROVENANCE = (
    "_name_or_path",
    "_commit_hash",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
)
# Settings of a tokenizer that say where it came from, or how its owner pads and cuts.
TOKENIZER_PROVENANCE = ("name_or_path", "file", "padding", "pad_token", "truncation", "max_length")


def model_name(name: str, model_kwargs: dict) -> str:
    """A model's name on the Hub, or its folder's without the path, which is this machine's own."""
    local = os.path.isabs(name) or name.startswith(".") or os.path.isdir(name)
    shown = os.path.basename(os.path.abspath(name)) if local else name
    parts = [model_kwargs.get(key) for key in ("subfolder", "variant", "gguf_file")]
    return "/".join([shown, *(part for part in parts if part)])


def model_revision(model: torch.nn.Module, commit: str | None) -> str:
    """The commit that the weights came from, else a digest of them; and one of the configuration.

    A model that was passed live may have been trained since it was loaded: its commit says nothing.
    """
    config = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    settings = {key: value for key, value in settings.items() if key not in PROVENANCE}
    weights = commit or weights_digest(model)
    return f"{weights[:DIGITS]}.{_digest(settings)}"


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter and buffer, by name, saved with the model or not.

    Raises:
        ValueError: a tensor has no values.
    """
    digest = xxhash.xxh3_128()
    for name, tensor in _tensors(model):
        if tensor.is_meta:
            raise ValueError(
                f"`model` must have its weights, but {name.lstrip('.')} is on the meta device, "
                "which holds none. Load the weights before passing the model."
            )
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def tokenizer_digest(tokenizer) -> str:
    """Digest of all that decides how a tokenizer encodes; how it pads and cuts does not."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        # JSON of which truncation and padding come first; half a megabyte is not parsed for them.
        state = [backend.to_str().split('"added_tokens":', 1)[-1]]
        state.append(getattr(tokenizer, "split_special_tokens", False))
    else:
        settings = getattr(tokenizer, "init_kwargs", {})
        kept = {
            key: settings[key]
            for key in settings
            if not any(word in key for word in TOKENIZER_PROVENANCE)
        }
        state = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), kept]
    special = {k: v for k, v in tokenizer.special_tokens_map.items() if k != "pad_token"}
    return _digest([state, special])


def _digest(state) -> str:
    line = json.dumps(state, sort_keys=True, default=str)
    return xxhash.xxh3_128(line.encode()).hexdigest()[:DIGITS]


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a model with a name; offloaded ones as they are brought in.

    Tied ones come under each of their names: offloaded, they are no longer the same object.
    """
    for prefix, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        with _brought_in(module):
            for name, _ in own:
                yield f"{prefix}.{name}", getattr(module, name)


def _brought_in(module: torch.nn.Module) -> AbstractContextManager:
    """Bring weights that accelerate has offloaded to where they can be read."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module, "cpu")
