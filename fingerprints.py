"""What exactly was loaded, in a few characters: the signature's model and tokenizer fields."""

import json

import torch
import xxhash

DIGITS = 12
# Configuration entries that say where a model came from, not what it computes.
PROVENANCE = ("_name_or_path", "transformers_version", "_commit_hash", "dtype", "torch_dtype")


def model_revision(model: torch.nn.Module, commit: str | None) -> str:
    """The commit that the weights came from, else a digest of them; and one of the configuration.

    A model that was passed live may have been trained since it was loaded: its commit says nothing.
    """
    config = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    settings = {key: value for key, value in settings.items() if key not in PROVENANCE}
    digest = xxhash.xxh3_128(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    return f"{(commit or weights_digest(model))[:DIGITS]}.{digest[:DIGITS]}"


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter and buffer, by name; "offloaded" where some are out of reach."""
    digest = xxhash.xxh3_128()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue  # quantisation state kept as plain objects
        if tensor.device.type == "meta":
            return "offloaded"
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def tokenizer_digest(tokenizer) -> str:
    """Digest of all that decides how a tokenizer encodes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        state = json.loads(backend.to_str())
        # Set by whoever called the tokenizer last; the metric asks for neither.
        state.pop("truncation", None), state.pop("padding", None)
    else:
        state = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    state = json.dumps([state, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return xxhash.xxh3_128(state.encode()).hexdigest()[:DIGITS]
