"""Settings of a model besides its weights, as its digest contains them.

Settings of layers, and of what layers hold, are digested unless they are known to have no effect: weights
can be chosen so that any other setting acts on a few tokens only, which a probe may lack.
"""

import inspect
from collections.abc import Set
from enum import Enum
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
import transformers
import xxhash

from .module import KNOWN_PACKAGES, own_names, package_of, walk_modules
from .records import DEEPEST
from .weights import digest_tensors, plain_tensors, weights_digest

# Configuration entries for a model's origin, training or generation.  They do not affect the logits of a
# text, unless code reads them while it runs.
UNLESS_READ = {
    "architectures", "transformers_version", "tokenizer_class", "task_specific_params", "torchscript",
    "finetuning_task", "problem_type", "id2label", "label2id", "num_labels", "prefix",
    "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id", "decoder_start_token_id",
    "do_sample", "max_length", "min_length", "temperature", "top_p", "num_beams",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping",
}  # fmt: skip
# Entries and attributes that are read, but not for the logits, or are set while a call runs, and those
# whose effect is digested elsewhere.
WITHOUT_EFFECT = {
    "dtype", "torch_dtype", "name_or_path", "training", "use_cache", "return_dict",
    "output_hidden_states", "output_attentions", "output_router_logits", "router_aux_loss_coef",
    "gradient_checkpointing", "is_gradient_checkpointing", "warnings_issued", "padding_idx",
    "generation_config", "hf_quantizer", "peft_config", "hf_device_map",
    "_is_hf_initialized", "_active_adapter", "_disable_adapters", "_protos_ready",
}  # fmt: skip
# Special tokens, which modules keep for their weights, too.
TOKEN_IDS = ("bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id")
# Parts of the names of probabilities that act in training only.
PROBABILITIES = ("dropout", "pdrop", "layerdrop")
# Parts of the names of further entries of configurations without effect.
OF_OTHER_HEADS = ("initializer", "summary_")
# Part of the names of values that are written while a model runs; in private names, "cache" suffices.
KEPT = "cached"
# Types of values that are digested by name.
NAMED = (type, FunctionType, BuiltinFunctionType, MethodType)
# Types of values that are digested wherever they are.
SETTINGS = (
    *(bool, int, float, str, np.generic, Enum, torch.dtype),
    *(*NAMED, partial),
)
# Where transformers' layers are written; its classes beside them load models and generate texts.
OF_LAYERS = ("transformers.models.", "transformers.activations")
# Packages whose objects are digested by their settings.
HOLDERS = (
    *KNOWN_PACKAGES, "bitsandbytes", "compressed_tensors", "gptqmodel", "hqq", "optimum", "torchao",
)  # fmt: skip
# Their settings for training, and for the origin of weights.
OF_OBJECTS_WITHOUT_EFFECT = {
    "base_model_name_or_path", "tokenizer_name_or_path", "revision", "peft_version", "auto_mapping",
    "adapters", "task_type", "is_training",
}  # fmt: skip
# How deep objects within objects are followed.
OBJECTS_DEEP = 3
# Attribute of PEFT's layers, and of one's own made of them, with rows of their own for some tokens, which
# the probe may lack.
TRAINED_TOKENS = "token_indices"
# Hooks of accelerate that bring weights in, and do not change them.
OFFLOADING = ("AlignDevicesHook", "CpuOffload", "SequentialHook", "UserCpuOffloadHook")


class Hidden(Exception):
    """A value is not digested."""


@lru_cache(maxsize=256)
def names_read(kinds: frozenset[type]) -> frozenset[str]:
    """Return the names that modules of these classes read while they run.

    Some embed what follows the last end of a text, or padding in the place of images.
    """
    classes = {c for kind in kinds for c in kind.__mro__}
    functions = [
        function
        for written in classes - {torch.nn.Module, object}
        if package_of(written.__module__) != "transformers"
        or written.__module__.startswith(OF_LAYERS)
        for name, value in vars(written).items()
        for function in [getattr(value, "fget", getattr(value, "__func__", value))]
        if isinstance(function, FunctionType) and name not in ("__init__", "_init_weights")
    ]
    waiting: list[Any] = [inspect.unwrap(function).__code__ for function in functions]
    names: set[str] = set()
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return frozenset(names)


# --- configurations -------------------------------------------------------------------------------


def with_effect(settings: dict, read: frozenset[str]) -> dict:
    """Drop the entries of a configuration, and of those within it, that do not affect the logits.

    Args:
        read: see `names_read`.
    """
    return {
        key: with_effect(value, read)
        if isinstance(value, dict) and "model_type" in value
        else value
        for key, value in settings.items()
        if _is_of_forward(key, value, read)
    }


def _is_of_forward(key: str, value: object, read: frozenset[str]) -> bool:
    """Return whether an entry of a configuration may affect the logits."""
    return not (
        key.startswith("_")
        or key in WITHOUT_EFFECT
        or (key in UNLESS_READ and key not in read)
        or _is_of_training(key, value)
        or any(part in key for part in (*OF_OTHER_HEADS, KEPT))
    )


def _is_of_training(name: str, value: object) -> bool:
    """Return whether a value is a probability that acts in training only."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and any(part in name for part in PROBABILITIES)


# --- modules --------------------------------------------------------------------------------------


def attributes_of(
    module: torch.nn.Module, walked: Set[torch.nn.Module] = frozenset()
) -> dict[str, object]:
    """Return a module's settings besides its weights, and those of its hooks.

    Lists and objects of custom code are not covered; the probe measures their effect.

    Args:
        walked: modules of the model, which are described by themselves.
    """
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return {}
    own, found = vars(module), {}
    for name in own_names(module):
        value = own[name]
        if (
            may_affect(module, name)
            and not _is_of_training(name, value)
            and differs_from_class(module, name)
            and (_is_looked_into(module, name, value) or isinstance(value, SETTINGS))
        ):
            try:
                found[name] = _shown(value, walked)
            except Hidden:
                continue
    hooks = [_object_shown(hook, walked, OBJECTS_DEEP) for hook in objects_hooked(module)]
    return found | ({"hooks": hooks} if hooks else {})


def may_affect(module: torch.nn.Module, name: str) -> bool:
    """Return whether an attribute of this name may affect a module's output."""
    if name == "padding_idx":
        return skips_padding(module)
    if name == "vocab_size" and _has_in_configuration(module, name):
        return False  # left behind by `resize_token_embeddings`
    is_private = name.startswith("_")
    if name in WITHOUT_EFFECT or KEPT in name or (is_private and "cache" in name):
        return False
    is_known_to_act = not (is_private or name in TOKEN_IDS)
    return is_known_to_act or name in names_read(frozenset([type(module)]))


def _has_in_configuration(module: torch.nn.Module, name: str) -> bool:
    """Return whether an attribute repeats an entry of the module's own configuration."""
    config = vars(module).get("config")
    return isinstance(config, transformers.PretrainedConfig) and (
        vars(module)[name] == getattr(config.get_text_config(), name, None)
    )


def skips_padding(module: torch.nn.Module) -> bool:
    """Return whether a forward reads `padding_idx`, as RoBERTa's: padding has no position there.

    Elsewhere it affects only gradients.
    """
    forward = inspect.unwrap(type(module).forward)
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    return "padding_idx" in names and forward is not torch.nn.Embedding.forward


def _is_looked_into(module: torch.nn.Module, name: str, value: object) -> bool:
    """Return whether a container, an object or None is digested as an attribute."""
    package = package_of(type(module).__module__)
    if value is None:
        return getattr(type(module), name, None) is not None
    if isinstance(value, torch.Tensor):
        return False  # digested elsewhere, or written by each pass
    return package in HOLDERS or name == TRAINED_TOKENS


def differs_from_class(module: torch.nn.Module, name: str) -> bool:
    """Return whether an attribute differs from its class's; replaced methods do not count."""
    of_class, value = getattr(type(module), name, None), vars(module)[name]
    is_same = isinstance(value, bool | int | float | str) and value == of_class
    return not callable(of_class) and not is_same


def objects_hooked(module: torch.nn.Module) -> list[object]:
    """List the objects of libraries, with settings of their own, that run around a forward.

    Such as those of torch that normalise or prune a weight, and of accelerate that change its type.
    """
    waiting = [vars(module).get("_hf_hook")]
    waiting += [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    found = []
    while waiting:
        hook = waiting.pop(0)
        waiting += getattr(hook, "hooks", ())  # one after the other
        if _is_described(hook) and type(hook).__name__ not in OFFLOADING:
            found.append(hook)
    return found


def names_written_by_hooks(module: torch.nn.Module) -> set[str]:
    """Return the names of the tensors that a module's hooks calculate before each pass."""
    hooks = objects_hooked(module)
    return {
        getattr(hook, attribute, "") for hook in hooks for attribute in ("name", "_tensor_name")
    }


# --- values ---------------------------------------------------------------------------------------


def _shown(value: Any, walked: Set[torch.nn.Module], depth: int = DEEPEST) -> object:
    """Return a value as JSON: functions and classes by name, arrays by their digest.

    Raises:
        Hidden: it contains something that is not digested.
    """
    if isinstance(value, partial):
        return [_shown(part, walked, depth) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, NAMED):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if value is None or isinstance(value, SETTINGS):
        return value
    if not depth:
        raise Hidden
    if isinstance(value, dict):
        items = [(repr(key), _shown(value[key], walked, depth - 1)) for key in value]
        return sorted(items, key=lambda item: item[0])
    if isinstance(value, list | tuple):
        return [_shown(item, walked, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_shown(item, walked, depth - 1)) for item in value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [str(value.dtype), value.shape, xxhash.xxh3_128_hexdigest(value.tobytes())]
    if isinstance(value, torch.Tensor):
        return _tensor_shown(value)
    if issubclass(type(value), torch.nn.Module):  # and no proxy of one
        return _outer_shown(value, walked)
    return _object_shown(value, walked, min(depth, OBJECTS_DEEP))


def _tensor_shown(tensor: torch.Tensor) -> str:
    parts = list(plain_tensors(tensor))
    if any(part.is_meta for part in parts):
        raise Hidden
    return digest_tensors(("", part) for part in parts)


def _outer_shown(module: torch.nn.Module, walked: Set[torch.nn.Module]) -> list:
    """Describe a module that a layer holds without being its parent, such as PEFT's shared weights."""
    modules, _ = walk_modules(module)
    if package_of(type(module).__module__) not in KNOWN_PACKAGES or any(
        inner in walked for _, inner in modules
    ):
        raise Hidden  # of the model, or what contains it
    walked = {*walked, *(inner for _, inner in modules)}
    described = [
        [name, type(inner).__qualname__, attributes_of(inner, walked)] for name, inner in modules
    ]
    return [described, weights_digest(modules)]


def _object_shown(value: object, walked: Set[torch.nn.Module], depth: int) -> list:
    """Describe an object of a library by its class and its public settings."""
    if not depth or not _is_described(value):
        raise Hidden
    is_prompt = getattr(value, "is_prompt_learning", False)  # embedded otherwise once trained
    settings = {}
    for name, setting in vars(value).items():
        is_of_origin = name in OF_OBJECTS_WITHOUT_EFFECT or name.startswith(("_", "init_"))
        is_of_training = name == "inference_mode" and not is_prompt
        if setting is None or is_of_origin or is_of_training or name in WITHOUT_EFFECT:
            continue
        if isinstance(setting, torch.Tensor) or _is_of_training(name, setting):
            continue  # passes move weights there
        try:
            settings[name] = _shown(setting, walked, depth - 1)
        except Hidden:
            continue
    return [type(value).__qualname__, settings]


def _is_described(value: object) -> bool:
    """Return whether a value is an object of a library with settings, and no configuration."""
    module = type(value).__module__
    is_config = isinstance(value, transformers.PretrainedConfig | transformers.GenerationConfig)
    is_of_library = package_of(module) in HOLDERS and not module.startswith("torch.distributed")
    return is_of_library and hasattr(value, "__dict__") and not is_config
