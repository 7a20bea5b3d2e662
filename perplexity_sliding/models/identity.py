"""What identifies a model and a tokenizer in a signature.

A named model is identified once, when it is loaded: by its commit on the Hub, else by a digest of its
weights, and by a digest of its configuration.  A live one is called `live`, unless it is to be
identified.  Code is not identified; the probe, which is measured on request, shows its effect.
"""

import json
import os
import random
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from transformers import PreTrainedTokenizerBase

from ..digests import DIGITS, digest_of
from ..errors import ArgumentTypeError
from ..plan.tokenization import tokenize

# The revision of a model, or the digest of a tokenizer, that nothing identifies.
LIVE = "live"
# Entries of a configuration that do not affect logits.
OF_ORIGIN = (
    "_name_or_path", "_commit_hash", "architectures", "transformers_version", "dtype",
    "torch_dtype", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
)  # fmt: skip
# Length of the probe text in tokens.
PROBE_TOKENS = 256

# Long words have many segmentations, so a tokenizer that samples practically never repeats one.
TRIAL = "Incomprehensibilities notwithstanding, counterrevolutionaries mischaracterized it. " * 4
TRIALS = 4
# Text of many scripts, whose tokens identify a tokenizer beside its settings.
MANY_SCRIPTS = (
    "The quick brown fox; it's 1,234.56 EUR (or 0x7f)!  Two  spaces,\ttab\r\nand\n\nlines. "
    "na\u00efve nai\u0308ve \ufb01ne \u201cquoted\u201d \u2014 \u2026 \u00a0 \u200b \u3000 "
    "\u0414\u043e\u0431\u0440\u044b\u0439 \u03ba\u03cc\u03c3\u03bc\u03b5 "
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d\u3002\u3053\u3093\u306b\u3061\u306f "
    "\uc548\ub155 \U0001f469\u200d\U0001f4bb\U0001f1fa\U0001f1f3 <b>x</b> https://a.b/c?d=e#f "
    "def f(x): return {'a': [x**2 % 3]} # ok <s> </s> <unk> <|endoftext|> IOI \u0130\u0131\u00df"
)
_REPEATABLE: weakref.WeakSet = weakref.WeakSet()


def model_name(name: str, model_kwargs: dict) -> str:
    local = os.path.isabs(name) or name.startswith(".") or os.path.isdir(name)
    shown = os.path.basename(os.path.abspath(name)) if local else name
    signs = {"subfolder": "/", "variant": ":", "gguf_file": "/"}
    parts = [sign + model_kwargs[key] for key, sign in signs.items() if model_kwargs.get(key)]
    return "".join([shown, *parts])


def model_revision(model: torch.nn.Module, commit: str | None = None) -> str:
    """Return the commit, or a digest of the weights, and a digest of the configuration.

    The commit of an adapter does not cover its base model, whose weights are digested.
    """
    if commit is None or active_adapters(model.modules()) is not None:
        commit = weights_digest(model)
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    settings = {key: value for key, value in settings.items() if key not in OF_ORIGIN}
    return f"{commit[:DIGITS]}.{digest_of(settings)}"


def weights_digest(model: torch.nn.Module) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(model.state_dict().items()):
        for part in plain_tensors(tensor):
            digest.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
            values = part.detach().cpu().contiguous().flatten()
            digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield a tensor, or those that make up a quantised or sharded one."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:  # settings; offloaded weights
        return
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
        return
    yield tensor


def active_adapters(modules: Iterable[torch.nn.Module]) -> str | None:
    """Return the names of the active PEFT adapters; "none" if disabled, None without any."""
    if "peft" not in sys.modules:
        return None
    layers: list[Any] = [module for module in modules if hasattr(module, "merged_adapters")]
    active = (
        [*layer.merged_adapters, *([] if layer.disable_adapters else layer.active_adapters)]
        for layer in layers
    )
    names = dict.fromkeys(name for of_layer in active for name in of_layer)
    return ("+".join(names) or "none") if layers else None


def probe_text(vocabulary_size: int, limit: int | None, length: int = PROBE_TOKENS) -> list[int]:
    """Return the token ids of the random text whose mean nll is the probe of a model.

    They depend only on the size of the vocabulary; a shorter text is the beginning of a longer one.
    """
    draw = random.Random(0)  # whose `random()` returns the same numbers in every version of Python
    return [int(draw.random() * vocabulary_size) for _ in range(min(length, limit or length))]


# --- tokenizers -----------------------------------------------------------------------------------


def check_tokenizer(tokenizer: Any, argument: str = "tokenizer") -> None:
    needed = ("convert_ids_to_tokens", "is_fast")  # which mistral-common's has not
    if not callable(tokenizer) or not all(hasattr(tokenizer, name) for name in needed):
        raise ArgumentTypeError(
            argument, "be a transformers tokenizer", got=type(tokenizer).__name__
        )
    check_repeatable(tokenizer, f"`{argument}`")


def check_repeatable(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a tokenizer that samples, which encodes one text in several ways (tokenizers #644)."""
    if tokenizer in _REPEATABLE:
        return
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    samples = any(getattr(model, name, None) for name in ("dropout", "alpha"))  # BPE, unigrams
    first, *others = tokenize(tokenizer, [TRIAL] * TRIALS)
    if samples or any(not np.array_equal(other.ids, first.ids) for other in others):
        raise ValueError(
            f"{name} must be deterministic, but it encodes one text in several ways: it samples its "
            "segmentation (dropout, enable_sampling), so no score can be repeated. Disable sampling."
        )
    _REPEATABLE.add(tokenizer)


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest what affects encoding: the saved state, special tokens, and the tokens of one text."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    state: Any
    if hasattr(backend, "to_str"):
        state = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
    else:
        state = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    special.pop("pad_token", None)
    streams = [
        *tokenize(tokenizer, [MANY_SCRIPTS]),
        *tokenize(tokenizer, [MANY_SCRIPTS], "default"),
    ]
    template = getattr(tokenizer, "chat_template", None)
    return digest_of([state, special, template, [stream.ids.tolist() for stream in streams]])
