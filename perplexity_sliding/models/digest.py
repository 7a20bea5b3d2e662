"""Digests of models: whatever a forward pass depends on, and nothing else."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType

import numpy as np
import torch
import transformers
import xxhash

from ..digests import DIGITS, digest_of
from ..errors import ArgumentError
from .module import (
    PINNED_PACKAGES,
    is_growing_rotary,
    is_known,
    modules_of,
    named_modules,
    own_names,
    package_of,
)

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
# Kinds of values that decide what a module of the libraries computes.
SETTINGS = (bool, int, float, str, FunctionType, BuiltinFunctionType, partial, MethodType)
# In a layer of torch tuples as well; transformers keeps them as a configuration has them, which is
# as lists where it was read from a file.
TORCH_SETTINGS = (*SETTINGS, tuple)


def model_name(name: str, model_kwargs: dict) -> str:
    """Return a model's name on the Hub, or the last part of its folder's path."""
    local = os.path.isabs(name) or name.startswith(".") or os.path.isdir(name)
    shown = os.path.basename(os.path.abspath(name)) if local else name
    parts = [model_kwargs.get(key) for key in ("subfolder", "variant", "gguf_file")]
    return "/".join([shown, *(part for part in parts if part)])


def model_revision(model: torch.nn.Module, commit: str | None) -> str:
    """Return the commit or digest of the weights, and a digest of the model's structure.

    A model that was passed live may have been trained since it was loaded: its commit says nothing,
    and neither does that of an adapter about the model below it.
    """
    if commit is None or active_adapters(model) is not None:
        commit = weights_digest(model)
    settings = [_settings(getattr(model, "config", None)), structure(model), *_own_settings(model)]
    return f"{commit[:DIGITS]}.{digest_of(settings)}"


def _settings(config: object) -> dict:
    """Return the entries of a configuration that have a part in the logits."""
    return _with_effect(config.to_dict()) if hasattr(config, "to_dict") else {}


def _own_settings(model: torch.nn.Module) -> list:
    """List the settings of modules that read another configuration than the whole model's."""
    whole = getattr(model, "config", None)
    as_whole = _settings(whole), getattr(whole, "_attn_implementation", None)
    known = {id(whole): as_whole}  # most modules share one object
    places = []
    for name, module in named_modules(model):
        own = vars(module)
        is_config = {
            n for n in own_names(module) if isinstance(own[n], transformers.PretrainedConfig)
        }
        for attribute in [n for n in own if n in is_config] if is_config else ():
            config = own[attribute]
            if id(config) not in known:
                known[id(config)] = _settings(config), config._attn_implementation
            if known[id(config)] != as_whole:
                places.append([name, attribute, *known[id(config)]])
    return places


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter and buffer, by name, saved with the model or not.

    Raises:
        ValueError: a tensor has no values.
    """
    digest = xxhash.xxh3_128()
    for name, tensor in _tensors(model):
        for part in plain_tensors(tensor):
            if part.is_meta:
                raise ArgumentError(
                    "model",
                    f"have its weights, but {name.lstrip('.')} is on the meta device, which holds "
                    "none",
                    advice="Load the weights before passing the model.",
                )
            digest.update(name.encode())
            digest.update(tensor_bytes(part))
    return digest.hexdigest()


def structure(model: torch.nn.Module) -> list:
    """Describe how a model is built, apart from its configuration, which may have changed since.

    By the names of its classes and functions and the numbers that its modules keep; what somebody's
    own code does with them is measured, by the probe.
    """
    return [
        [name, _class_name(type(module)), _attributes(module), _adapter_state(module)]
        for name, module in named_modules(model)
    ]


def _class_name(kind: type) -> str:
    """Name a class by where its library keeps it; one of a user's by its own name alone."""
    is_pinned = package_of(kind.__module__) in PINNED_PACKAGES
    return f"{kind.__module__}.{kind.__qualname__}" if is_pinned else kind.__qualname__


def modifications(model: torch.nn.Module) -> list[str]:
    """List what has been put over a model's own code, and where, as far as that is cheap to see."""
    places = []
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        places.append("a forward hook of all modules")
    for name, module in named_modules(model):
        place = name or type(module).__name__
        watchers = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if watchers and not all(map(is_known, watchers)):
            places.append(f"a forward hook on {place}")
        places += [f"another {method} on {place}" for method in _replaced_methods(module)]
    kinds = {type(module) for module in modules_of(model)}
    places += [f"another {kind.__name__}.forward" for kind in kinds if _has_other_forward(kind)]
    if not all(map(is_known, _attention_functions(model))):
        places.append("another attention function")
    return places


def _attention_functions(model: torch.nn.Module) -> list[Callable]:
    """List the functions registered under the names of the attention that a model's parts ask for."""
    registered = getattr(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS", {})
    configs = {id(c): c for c in (getattr(m, "config", None) for m in modules_of(model))}.values()
    names = dict.fromkeys(getattr(config, "_attn_implementation", None) for config in configs)
    functions = [registered[name] for name in names if name in registered]
    return functions or [torch.nn.functional.scaled_dot_product_attention]


def check_identifiable(model: torch.nn.Module, argument: str = "checkpoint") -> None:
    """Refuse to keep scores of a model that may change under the same digests.

    Args:
        argument: what names the file that they would be kept in.

    Raises:
        ValueError: code that nothing can identify runs in the model.
    """
    places = modifications(model)
    if places:
        raise ArgumentError(
            argument,
            f"be left out with a model whose code was changed ({places[0]}): what it computes "
            "cannot be verified, and the file may hold another model's scores",
            advice=f"Remove the change, or leave out `{argument}`.",
        )


def active_adapters(model: torch.nn.Module) -> str | None:
    """Name the adapters (LoRA and its kin) in use: "none" if switched off, None without any."""
    states = [state for module in modules_of(model) if (state := _adapter_state(module))]
    if not states:
        return None
    names = dict.fromkeys(
        name
        for active, disabled, merged, _ in states
        for name in ([] if disabled else active) + merged
    )
    return "+".join(names) or "none"


def _replaced_methods(module: torch.nn.Module) -> list[str]:
    """List methods of a module's class that the module itself overrides."""
    return [
        name
        for name in sorted(own_names(module))
        if callable(value := vars(module)[name])
        and callable(getattr(type(module), name, None))
        # accelerate brings offloaded weights in before a forward; its mixed precision is said.
        and not (name == "forward" and hasattr(module, "_hf_hook"))
        and (name in ("forward", "_call_impl") or not hasattr(torch.nn.Module, name))
        and not _is_compiled(value, module, name)
    ]


def _is_compiled(value: object, module: torch.nn.Module, name: str) -> bool:
    """Return whether torch.compile made this function from the module's own method."""
    original = getattr(value, "_torchdynamo_orig_callable", None)
    return original is not None and original == getattr(type(module), name).__get__(module)


def _has_other_forward(kind: type) -> bool:
    """Return whether the forward of a library's class, or of one over it, was replaced."""
    writers = [c for c in kind.__mro__ if "forward" in vars(c)]
    if package_of(kind.__module__) == "transformers_modules" or not writers:
        return False
    of_library = [c for c in writers if package_of(c.__module__) in PINNED_PACKAGES]
    is_replaced = any(not is_known(vars(c)["forward"]) for c in of_library)
    over = [c for c in of_library if package_of(c.__module__) == "transformers"]
    return is_replaced or bool(over and writers[0] is not over[0])


def _with_effect(settings: dict) -> dict:
    """Drop the entries of a configuration that have no part in the logits, nested ones too."""
    return {
        key: _with_effect(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if _has_effect(str(key))
    }


@lru_cache(maxsize=4096)
def _has_effect(name: str) -> bool:
    return not (
        name.startswith("_")
        or name in WITHOUT_EFFECT
        or any(part in name for part in WITHOUT_EFFECT_PARTS)
    )


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """Return what a module keeps beside its weights: numbers, names, functions by name."""
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return {}
    kinds = TORCH_SETTINGS if package_of(type(module).__module__) == "torch" else SETTINGS
    own = vars(module)
    names = [n for n in own_names(module) if _has_effect(n) and isinstance(own[n], kinds)]
    return {name: _shown(own[name]) for name in names if differs_from_class(module, name)}


def differs_from_class(module: torch.nn.Module, name: str) -> bool:
    """Return whether an attribute differs from its class's; replaced methods do not count."""
    of_class, value = getattr(type(module), name, None), vars(module)[name]
    is_same = isinstance(value, bool | int | float | str) and value == of_class
    return not callable(of_class) and not is_same


def _shown(value: object) -> object:
    """Return a plain value as it is, a function by its name."""
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return value


def _adapter_state(module: torch.nn.Module) -> tuple | None:
    """Return (active adapters, switched off, merged adapters, their scales) of a PEFT layer."""
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
    """Yield every tensor of a model with its name; offloaded ones as they are brought in.

    Tied ones come under each of their names: offloaded, they are no longer the same object.
    """
    for prefix, module in named_modules(model):
        if not (module._parameters or module._buffers or _is_quantised(module)):
            continue
        names = [name for name, _ in module.named_parameters(recurse=False)]
        names += [name for name, _ in module.named_buffers(recurse=False) if _stays(module, name)]
        with _brought_in(module):
            for name in names:
                yield f"{prefix}.{name}", getattr(module, name)
            if _is_quantised(module):
                yield from _quantised_tensors(prefix, module)


def _is_quantised(module: torch.nn.Module) -> bool:
    """Return whether a module is a layer quantised by torch.ao."""
    return ".quantized." in type(module).__module__


def _quantised_tensors(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of layers quantised by torch.ao, which are not parameters."""
    for name in ("weight", "bias"):
        getter = getattr(module, name, None)
        value = getter() if callable(getter) else None
        if isinstance(value, torch.Tensor):
            yield f"{prefix}.{name}", value.dequantize()


def _stays(module: torch.nn.Module, buffer: str) -> bool:
    """Return whether a forward pass leaves a buffer as it is."""
    if buffer not in module._non_persistent_buffers_set:
        return True
    is_rotary = buffer.endswith("inv_freq") and hasattr(module, f"original_{buffer}")
    if is_rotary and is_growing_rotary(module):
        return False
    return not buffer.endswith(WRITTEN_WHILE_RUNNING)


def _brought_in(module: torch.nn.Module) -> AbstractContextManager:
    """Bring weights that accelerate has offloaded to where they can be read."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module, "cpu")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor, or those that make up a quantised one: codes and scales."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
        return
    yield tensor
    for attribute in ("quant_state", "SCB"):  # bitsandbytes
        state = getattr(tensor, attribute, None)
        if isinstance(state, torch.Tensor):
            yield state
        elif hasattr(state, "as_dict"):
            values = state.as_dict(packed=True).values()
            yield from (value for value in values if isinstance(value, torch.Tensor))


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray:
    """Return the numbers of a tensor as bytes (N,)."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
