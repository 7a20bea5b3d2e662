"""What exactly was measured: digests of model, tokenizer and texts, and the signature made of them.

Equal signatures mean equal numbers, so a digest covers whatever a forward pass depends on, and
nothing that only says where a model came from.  What a digest cannot cover, such as the code of a
hook, is said in the signature: `+modified`.
"""

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import NamedTuple

import numpy as np
import torch
import transformers
import xxhash

VERSION = "0.1.0"
DIGITS = 12
# Configuration entries that say where a model came from, how it was trained or how it generates;
# none has a part in the logits of a text.
WITHOUT_EFFECT = {
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "tokenizer_class",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "output_router_logits",
    "router_aux_loss_coef",
    "torchscript",
    "gradient_checkpointing",
    "problem_type",
    "task_specific_params",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "prefix",
    "name_or_path",
    "training",
    "padding_idx",
    "is_gradient_checkpointing",
    "warnings_issued",
    "do_sample",
    "max_length",
    "min_length",
    "temperature",
    "top_p",
    "num_beams",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "early_stopping",
}
# The same by what is in a name.
WITHOUT_EFFECT_PARTS = ("dropout", "pdrop", "layerdrop", "initializer", "summary_", "cached")
# Buffers that models write while they run, and compute anew.
WRITTEN_WHILE_RUNNING = ("_cached", "_cache")
# Rotary embeddings that change their frequencies with the length of a text.
GROWING_ROTARY = ("dynamic", "longrope")
# Settings of a tokenizer that say where it came from, or how its owner pads and cuts.
TOKENIZER_PROVENANCE = ("name_or_path", "file", "padding", "pad_token", "truncation", "max_length")
# Tokens of the pass by whose logits models are told apart; and by what share of their spread
# machines let logits differ.  More than that makes a checkpoint useless there, not wrong.
FINGERPRINT_LENGTH = 32
FINGERPRINT_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.005, torch.float16: 0.001}
# Packages whose hooks and wrappers compute from nothing but what the digests cover.
KNOWN_PACKAGES = ("torch", "transformers", "peft", "accelerate")


def model_name(name: str, model_kwargs: dict) -> str:
    """A model's name on the Hub, or its folder's without the path, which is this machine's own."""
    local = os.path.isabs(name) or name.startswith(".") or os.path.isdir(name)
    shown = os.path.basename(os.path.abspath(name)) if local else name
    parts = [model_kwargs.get(key) for key in ("subfolder", "variant", "gguf_file")]
    return "/".join([shown, *(part for part in parts if part)])


def model_revision(model: torch.nn.Module, commit: str | None) -> str:
    """The commit that the weights came from, else a digest of them; and one of how it is built.

    A model that was passed live may have been trained since it was loaded: its commit says nothing,
    and neither does that of an adapter about the model below it.
    """
    if commit is None or active_adapters(model) is not None:
        commit = weights_digest(model)
    config = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    return f"{commit[:DIGITS]}.{_digest([_with_effect(settings), structure(model)])}"


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter and buffer, by name, saved with the model or not.

    Raises:
        ValueError: a tensor has no values.
    """
    digest = xxhash.xxh3_128()
    for name, tensor in _tensors(model):
        for part in _plain_tensors(tensor):
            if part.is_meta:
                raise ValueError(
                    f"`model` must have its weights, but {name.lstrip('.')} is on the meta device, "
                    "which holds none. Load the weights before passing the model."
                )
            digest.update(name.encode())
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def structure(model: torch.nn.Module) -> list:
    """How a model is built, beside its configuration, which may have been changed since."""
    return [
        [name, class_identity(type(module)), _attributes(module), _adapter_state(module)]
        for name, module in model.named_modules()
    ]


def class_identity(kind: type) -> list:
    """Name of a class; with the code of those that are no part of torch or transformers."""
    if _package(kind.__module__) in ("torch", "transformers"):
        return [f"{kind.__module__}.{kind.__qualname__}"]
    foreign = [c for c in kind.__mro__ if _package(c.__module__) not in ("torch", "transformers")]
    functions = [
        [name, _code(inspect.unwrap(function).__code__)]
        for c in foreign
        for name, function in sorted(vars(c).items())
        if isinstance(function, FunctionType) and hasattr(inspect.unwrap(function), "__code__")
    ]
    parents = [f"{c.__module__}.{c.__qualname__}" for c in kind.__mro__ if c not in foreign]
    return [kind.__qualname__, functions, parents]


def modifications(model: torch.nn.Module) -> list[str]:
    """List what has been put over a model's own code, and where, as far as that can be seen."""
    places = []
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        places.append("a forward hook of all modules")
    for name, module in model.named_modules():
        place = name or type(module).__name__
        watchers = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if any(_package(_home(hook)) not in KNOWN_PACKAGES for hook in watchers):
            places.append(f"a forward hook on {place}")
        places += [f"another {method} on {place}" for method in _replaced_methods(module)]
    for kind in {type(module) for module in model.modules()}:
        places += [f"another {kind.__name__}.{method}" for method in _foreign_methods(kind)]
    return places


def check_identifiable(model: torch.nn.Module) -> None:
    """Refuse a checkpoint for a model whose scores may change under the same digests.

    Raises:
        ValueError: code that nothing can identify runs in the model.
    """
    places = modifications(model)
    if places:
        raise ValueError(
            f"`checkpoint` must be left out with a model whose code was changed ({places[0]}): what it "
            "computes cannot be told by looking at it, and the file may hold another model's scores. "
            "Remove the change, or score without a checkpoint."
        )


def active_adapters(model: torch.nn.Module) -> str | None:
    """Names of the adapters (LoRA and its kin) in use, "none" if switched off; None without any."""
    states = [state for module in model.modules() if (state := _adapter_state(module))]
    if not states:
        return None
    names = dict.fromkeys(
        name
        for active, disabled, merged, _ in states
        for name in ([] if disabled else active) + merged
    )
    return "+".join(names) or "none"


def number_format(model: torch.nn.Module) -> str:
    """Describe what a model computes in: quantisation, dtypes of the weights, autocast."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes] or ["float32"]
    parts = [*quantisation(model), *sorted(names)]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            parts.append(f"autocast({device},{dtype})")
    return "+".join(parts)


def quantisation(model: torch.nn.Module) -> list[str]:
    """Name the methods that a model's weights are quantised by, with the bits."""
    settings = getattr(getattr(model, "config", None), "quantization_config", None)
    if hasattr(settings, "to_dict"):
        settings = settings.to_dict()
    if settings:
        method = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
        bits = settings.get("bits") or settings.get("w_bit")
        for size in (4, 8):
            bits = size if settings.get(f"load_in_{size}bit") else bits
        kind = settings.get("bnb_4bit_quant_type") if bits == 4 else settings.get("quant_type")
        return ["-".join(str(part) for part in (method, bits and f"{bits}bit", kind) if part)]
    kinds = {type(p.data).__name__ for p in model.parameters()} - {"Tensor", "Parameter"}
    if any(".quantized." in type(module).__module__ for module in model.modules()):
        kinds.add("torch.ao")
    return sorted(kinds)


def tokenizer_digest(tokenizer) -> str:
    """Digest whatever decides how a tokenizer encodes; padding and truncation do not."""
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


class Fingerprint(NamedTuple):
    """Numbers by which to tell models apart that look alike.

    Attributes:
        values: projections of logits, whose root mean square is about the logits' spread.
        dtype: the coarsest that the model computes in.
    """

    values: np.ndarray
    dtype: torch.dtype

    @classmethod
    def of(cls, logits: torch.Tensor, dtype: torch.dtype) -> "Fingerprint":
        """Project logits (R, V) on a few directions."""
        logits = logits.double().cpu().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        logits = logits - logits.mean(-1, keepdim=True)
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, (logits.shape[-1], 8), generator=generator).double() * 2 - 1
        return cls((logits @ signs).flatten().numpy() / logits.shape[-1] ** 0.5, dtype)

    def is_close_to(self, values: np.ndarray) -> bool:
        """Whether the same model may have given these, on another machine perhaps."""
        if values.shape != self.values.shape:
            return False
        difference = np.sqrt(np.mean((self.values - values) ** 2))
        return bool(difference <= FINGERPRINT_TOLERANCE[self.dtype] * np.sqrt(np.mean(values**2)))


class TextsDigest(NamedTuple):
    """Digest of a sequence of texts; that of two sequences, one after the other, is their sum.

    A polynomial in the hashes of the texts, so that the parts of a corpus can be read apart.
    """

    count: int = 0
    value: int = 0

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextsDigest":
        digest = cls()
        for text in texts:
            digest += cls(1, xxhash.xxh3_128_intdigest(text.encode("utf-8")) % TEXTS_MODULUS)
        return digest

    def __add__(self, after: "TextsDigest") -> "TextsDigest":
        shifted = self.value * pow(TEXTS_BASE, after.count, TEXTS_MODULUS)
        return TextsDigest(self.count + after.count, (shifted + after.value) % TEXTS_MODULUS)

    def __str__(self) -> str:
        return hashlib.sha256(f"{self.count} {self.value}".encode()).hexdigest()[:DIGITS]


TEXTS_MODULUS = 2**127 - 1  # a prime
TEXTS_BASE = 0x9E3779B97F4A7C15F39CC0605CEDC835 % TEXTS_MODULUS  # an arbitrary number


def describe_model(model) -> str:
    """Describe on one line what a `LanguageModel`'s scores of given tokens depend on."""
    return _line(_model_fields(model))


def describe_measurement(
    model, measurement, words_given: bool, word_fields: dict[str, str] | None = None
) -> dict[str, str]:
    """Write the signature of a `Measurement` under a `LanguageModel`, long and short.

    In the spirit of sacrebleu's: `key:value` pairs joined by `|`.  The short form keeps the
    protocol and a digest of the whole line.

    Args:
        word_fields: how words are scored, where they are, and what the texts were before.
    """
    plan, separator = measurement.plan, measurement.separator
    join = plan.protocol.join if separator is None else separator
    is_string = separator is not None or join not in (None, "tokens")
    fields = _model_fields(model) | {
        "tokenizer": tokenizer_digest(model.tokenizer),
        "protocol": plan.protocol.name,
        "window": plan.max_length,
        "stride": plan.stride,
        "start": plan.start if plan.start_id is None else f"{plan.start}({plan.start_id})",
        "join": repr(join) if is_string else join,
        "words": "given" if words_given else "split",
    }
    if plan.carries != "nothing":
        fields["carry"] = plan.carries
    part_fields = {} if measurement.parts is None else measurement.parts.fields()
    fields |= part_fields | (word_fields or {})
    order = (
        *("model", "revision", "tokenizer", "protocol", "window", "stride", "carry", "start"),
        *("join", *part_fields, "words", *(word_fields or {})),
        *("dtype", "adapters", "attention", "version", "transformers", "torch"),
    )
    line = _line({name: fields[name] for name in order if name in fields})
    digest = hashlib.sha256(line.encode("utf-8")).hexdigest()[:DIGITS]
    short = f"ppl|{plan.protocol.name}|L{plan.max_length}|S{plan.stride}|{digest}"
    return {"signature": line, "signature_short": short}


def describe_all(models, measurements, measures) -> str:
    """Describe on one line what processes that share work must have in common."""
    signatures = [
        describe_measurement(model, measurement, words_given=False)["signature"]
        for model in models
        for measurement in measurements
    ]
    return repr((signatures, [measure.key for measure in measures]))


def _model_fields(model) -> dict[str, object]:
    module = model.model
    adapters = active_adapters(module)
    return {
        "model": model.name + ("+modified" if modifications(module) else ""),
        "revision": model.revision,
        "dtype": number_format(module),
        **({} if adapters is None else {"adapters": adapters}),
        "attention": getattr(getattr(module, "config", None), "_attn_implementation", None),
        "version": VERSION,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def _line(fields: dict[str, object]) -> str:
    return "|".join(f"{key}:{_shown(value)}" for key, value in fields.items())


def _shown(value) -> str:
    """A field's value on one line, without the sign that ends it."""
    return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")


def _digest(state) -> str:
    line = json.dumps(state, sort_keys=True, default=str)
    return xxhash.xxh3_128(line.encode()).hexdigest()[:DIGITS]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _home(function) -> str:
    """Name the module in which a function, or another callable, was written."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    function = inspect.unwrap(function)
    return getattr(function, "__module__", None) or type(function).__module__


def _replaced_methods(module: torch.nn.Module) -> list[str]:
    """List methods of a module's class that the module itself overrides."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and callable(getattr(type(module), name, None))
        # accelerate brings offloaded weights in before a forward; its mixed precision is said.
        and not (name == "forward" and hasattr(module, "_hf_hook"))
        and (name in ("forward", "_call_impl") or not hasattr(torch.nn.Module, name))
    ]


def _foreign_methods(kind: type) -> Iterator[str]:
    """Yield methods of a class that were written elsewhere, or a replaced forward of a model."""
    if _package(kind.__module__) in ("torch", "transformers"):
        for c in kind.__mro__:
            for name, function in vars(c).items():
                if isinstance(function, FunctionType) and _package(_home(function)) not in (
                    _package(c.__module__),
                    *KNOWN_PACKAGES,
                ):
                    yield name
    elif "forward" in vars(kind) and _package(kind.__module__) != "transformers_modules":
        parents = (c for c in kind.__mro__[1:] if "forward" in vars(c))
        if _package(next(parents, torch.nn.Module).__module__) == "transformers":
            yield "forward"


def _code(code: CodeType) -> list:
    """Describe what a function does, without the place where it is written."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), code.co_names, constants]


def _with_effect(settings: dict) -> dict:
    """A configuration without entries that have no part in the logits, nested ones too."""
    return {
        key: _with_effect(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if _has_effect(str(key))
    }


def _has_effect(name: str) -> bool:
    return not (
        name.startswith("_")
        or name in WITHOUT_EFFECT
        or any(part in name for part in WITHOUT_EFFECT_PARTS)
    )


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """Numbers, names and functions that a module keeps beside its weights."""
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return {}
    kinds = bool | int | float | str | FunctionType | BuiltinFunctionType
    return {
        name: _named(value)
        for name, value in vars(module).items()
        if _has_effect(name) and isinstance(value, kinds) and not hasattr(type(module), name)
    }


def _named(value):
    """A number or string itself, a library's function by its name, any other by what it does."""
    if isinstance(value, FunctionType) and _package(_home(value)) not in KNOWN_PACKAGES:
        return _code(value.__code__)
    return getattr(value, "__qualname__", value)


def _adapter_state(module: torch.nn.Module) -> tuple | None:
    """(names of active adapters, switched off, merged ones, their scales) of a PEFT layer."""
    if not hasattr(module, "active_adapters") or not hasattr(module, "disable_adapters"):
        return None
    if isinstance(module, transformers.PreTrainedModel) or callable(module.disable_adapters):
        return None
    return (
        list(module.active_adapters),
        bool(module.disable_adapters),
        list(getattr(module, "merged_adapters", [])),
        dict(getattr(module, "scaling", {})),
    )


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a model with a name; offloaded ones as they are brought in.

    Tied ones come under each of their names: offloaded, they are no longer the same object.
    """
    for prefix, module in model.named_modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        names += [name for name, _ in module.named_buffers(recurse=False) if _stays(module, name)]
        with _brought_in(module):
            for name in names:
                yield f"{prefix}.{name}", getattr(module, name)
            if ".quantized." in type(module).__module__:
                yield from _packed(prefix, module)


def _packed(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of layers that torch.ao has quantised, which are no parameters."""
    for name in ("weight", "bias"):
        getter = getattr(module, name, None)
        value = getter() if callable(getter) else None
        if isinstance(value, torch.Tensor):
            yield f"{prefix}.{name}", value.dequantize()


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor, or those that a quantised one is made of: codes and scales."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain_tensors(getattr(tensor, name))
        return
    yield tensor
    for attribute in ("quant_state", "SCB"):  # bitsandbytes
        state = getattr(tensor, attribute, None)
        if isinstance(state, torch.Tensor):
            yield state
        elif hasattr(state, "as_dict"):
            values = state.as_dict(packed=True).values()
            yield from (value for value in values if isinstance(value, torch.Tensor))


def _stays(module: torch.nn.Module, buffer: str) -> bool:
    """Whether a buffer is the same after a forward pass."""
    if buffer not in module._non_persistent_buffers_set:
        return True
    grows = any(kind in str(getattr(module, "rope_type", "")) for kind in GROWING_ROTARY)
    if grows and buffer.endswith("inv_freq") and hasattr(module, f"original_{buffer}"):
        return False
    return not buffer.endswith(WRITTEN_WHILE_RUNNING)


def _brought_in(module: torch.nn.Module) -> AbstractContextManager:
    """Bring weights that accelerate has offloaded to where they can be read."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module, "cpu")
