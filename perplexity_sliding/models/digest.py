"""Digests of models: whatever a forward pass depends on, and nothing else.

All of it is looked at in every call.  What is known of modules is compared with what they have now.
Weights are read again; versions that torch counts would not do, as fused optimizers leave them as
they are.
"""

import copy
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
import xxhash

from ..digests import DIGITS, as_json, digest_of_line
from ..errors import ArgumentError
from .module import (
    PINNED_PACKAGES,
    LibraryCode,
    Modules,
    calls_own_code,
    has_known_hooks,
    is_growing_rotary,
    is_known,
    is_under_a_mode,
    own_names,
    package_of,
    walk_modules,
)

# Configuration entries that say where a model came from, how it was trained or how it generates;
# none has a part in the logits of a text.
WITHOUT_EFFECT = {
    "architectures", "dtype", "torch_dtype", "transformers_version", "tokenizer_class", "use_cache",
    "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id",
    "return_dict", "output_hidden_states", "output_attentions", "output_router_logits",
    "router_aux_loss_coef", "torchscript", "gradient_checkpointing", "problem_type",
    "task_specific_params", "finetuning_task", "id2label", "label2id", "num_labels", "prefix",
    "name_or_path", "training", "padding_idx", "is_gradient_checkpointing", "warnings_issued",
    "do_sample", "max_length", "min_length", "temperature", "top_p", "num_beams",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping",
}  # fmt: skip
# The same by what is in a name.
WITHOUT_EFFECT_PARTS = ("dropout", "pdrop", "layerdrop", "initializer", "summary_", "cached")
# Kinds of values that decide what a module of the libraries computes.
SETTINGS = (bool, int, float, str, FunctionType, BuiltinFunctionType, partial, MethodType)
# Kinds of such values in lists, tuples and dicts.
PLAIN = (bool, int, float, str, type(None))
# Kinds of attributes that stay the same for as long as they are the same object.
CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)

# Structures of models in which a change is seen by comparing attributes.
_STRUCTURES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Buffers that models write while they run, and compute anew.
WRITTEN_WHILE_RUNNING = ("_cached", "_cache")
# Weights on these devices are summed up there, as it takes long to copy them for their digest.
FAR_DEVICES = ("cuda",)
# Kinds of numbers that numpy has too.
NUMPY_TYPES = frozenset({torch.float32, torch.float16, torch.float64, torch.int64, torch.bool})

# Integers of each size in bytes, as which numbers are summed up.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Numbers to a sum, and sums at a time.
ROW, ROWS = 2**18, 16
# Of each model on such devices: its checksum and its digest.
_LAST: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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
    built = examine(model)
    if commit is None or built.structure.adapters:
        commit = weights_digest(built.modules)
    whole = getattr(model, "config", None)
    settings = _settings(whole)
    own = _own_settings(built.configs(), whole, settings) + _loose_numbers(built)
    line = ", ".join([as_json(settings), built.line(), *map(as_json, own)])
    return f"{commit[:DIGITS]}.{digest_of_line(f'[{line}]')}"


def _settings(config: object) -> dict:
    """Return the entries of a configuration that have a part in the logits."""
    return _with_effect(config.to_dict()) if hasattr(config, "to_dict") else {}


def _own_settings(
    configs: Sequence[tuple[str, str, object]], whole: object, settings: dict
) -> list:
    """List the settings of modules that read another configuration than the whole model's.

    Args:
        configs: (module, attribute, configuration).
        whole: the model's configuration.
        settings: its entries that have a part in the logits.
    """
    as_whole = settings, getattr(whole, "_attn_implementation", None)
    known = {id(whole): as_whole}  # most modules share one object
    places = []
    for name, attribute, config in configs:
        if not isinstance(config, transformers.PretrainedConfig):
            continue
        if id(config) not in known:
            known[id(config)] = _settings(config), config._attn_implementation
        if known[id(config)] != as_whole:
            places.append([name, attribute, *known[id(config)]])
    return places


def _loose_numbers(built: "Built") -> list:
    """List a digest of the tensors that modules keep as they keep a number, where there are any."""
    tensors = [(name, part) for name, tensor in built.tensors() for part in plain_tensors(tensor)]
    tensors = [(name, part) for name, part in tensors if not part.is_meta]
    return [_digest_tensors(tensors)] if tensors else []


class Structure:
    """How a model is built, apart from its configuration, which may have changed since.

    It is described by the names of classes and functions and by the numbers that modules keep.
    What somebody's own code does with them is measured, by the probe.

    Args:
        modules: of the model; no reference to them is kept.
        repeated: further names of modules, see `walk_modules`.

    Attributes:
        described: [name, class, attributes] of each module.
        configs: (place in the list of modules, attribute) of the configurations that modules read.
        tensors: the same of tensors that are neither parameters nor buffers.
        adapters: places of the modules that PEFT has put adapters on.
        kinds: classes of the modules.
        of_libraries: those of torch and transformers among them and among their bases.
        calls: what each module runs when it is called, see `_calls`.
        replaced: what was put over the modules' own code, and where.
        calls_own_code: whether a module calls code of no library.
        is_comparable: whether the structure is the same while `describes` returns True.
    """

    def __init__(self, modules: Modules, repeated: Sequence[tuple[str, str]] = ()) -> None:
        self._repeated = list(repeated)
        self._records = [ModuleRecord(name, module) for name, module in modules]
        self.described = [
            [name, _class_name(type(module)), _attributes(module)] for name, module in modules
        ]
        self.configs = [
            (n, attribute)
            for n, (_, module) in enumerate(modules)
            for attribute, value in vars(module).items()
            if isinstance(value, transformers.PretrainedConfig) or attribute == "config"
        ]
        self.tensors = [
            (n, attribute)
            for n, (_, module) in enumerate(modules)
            for attribute, value in vars(module).items()
            if isinstance(value, torch.Tensor)
            and _has_effect(attribute)
            and package_of(type(module).__module__) in PINNED_PACKAGES
            and not is_growing_rotary(module)  # which writes them while it runs
        ]
        self.adapters = [n for n, (_, module) in enumerate(modules) if _has_adapters(module)]
        self.kinds = frozenset(type(module) for _, module in modules)
        classes = {c for kind in self.kinds for c in kind.__mro__}
        self.of_libraries = frozenset(
            c for c in classes if package_of(c.__module__) in PINNED_PACKAGES
        )
        self.calls = tuple(_calls(module) for _, module in modules)
        self.replaced = [place for named in modules for place in _replaced_in(*named)]
        self.calls_own_code = any(calls_own_code(module) for _, module in modules)
        self.is_comparable = not (self.replaced or self.calls_own_code) and all(
            record.is_comparable for record in self._records
        )

    def describes(self, modules: Modules, repeated: Sequence[tuple[str, str]]) -> bool:
        """Return whether modules are as they were."""
        return (
            len(modules) == len(self._records)
            and repeated == self._repeated
            and all(
                record.describes(name, module)
                for record, (name, module) in zip(self._records, modules)
            )
        )

    @cached_property
    def line(self) -> str:
        """The structure as JSON, without adapters."""
        return self.line_with([None] * len(self.described))

    def line_with(self, states: Sequence[object]) -> str:
        """Write the structure as JSON, with the state of each module's adapters."""
        described = [[*described, state] for described, state in zip(self.described, states)]
        return as_json([*described, *self._repeated])


class ModuleRecord:
    """The attributes that a module has of its own, to see whether any has changed.

    Attributes:
        is_comparable: whether the module is the same while `describes` returns True: it has no
            hooks, and its attributes are constants, or objects by their identity.
    """

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        own = vars(module)
        self._name, self._kind, self._size = name, type(module), len(own)
        names = own_names(module)
        constants = [n for n in names if _is_constant(own[n])]
        self._get = operator.itemgetter("_forward_hooks", "_forward_pre_hooks", *constants)
        self._values = self._get(own)
        containers = [n for n in names if type(own[n]) in (list, dict, set)]
        # The contents of others have no part in the structure.
        kept = _attributes(module) if containers else {}
        self._containers = [(n, type(own[n]), copy.deepcopy(kept.get(n))) for n in containers]
        # They may lead back to the model, which is not kept alive for them.
        objects = {n: as_weak(own[n]) for n in names.difference(constants, containers)}
        self._objects = list(objects.items())
        self._others = bool(self._containers or self._objects)
        self.is_comparable = not (module._forward_hooks or module._forward_pre_hooks) and all(
            isinstance(found, weakref.ref) for found in objects.values()
        )

    def describes(self, name: str, module: torch.nn.Module) -> bool:
        """Return whether a module is as it was."""
        own = vars(module)
        try:
            values = self._get(own)
            return (
                type(module) is self._kind
                and len(own) == self._size
                and name == self._name
                and all(map(operator.is_, values, self._values))
                and not (values[0] or values[1])  # hooks
                and (not self._others or self._describes_others(own))
            )
        except KeyError:  # an attribute is gone
            return False

    def _describes_others(self, own: dict[str, object]) -> bool:
        """Return whether the attributes that are no constants are as they were."""
        return all(
            type(own[n]) is kind and (content is None or own[n] == content)
            for n, kind, content in self._containers
        ) and all(own[n] is not None and own[n] is found() for n, found in self._objects)


def as_weak(value: Any) -> Any:
    """Return a weak reference to an object, where it can have one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _calls(module: torch.nn.Module) -> tuple:
    """Describe what a module runs when it is called, to be compared.

    Replaced forwards and hooks are held weakly: compared while they live, and never taken for
    others that come to lie at the same address.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return type(module), as_weak(vars(module).get("forward")), *map(as_weak, hooks)


def _is_constant(value: object) -> bool:
    """Return whether a value is the same for as long as it is the same object.

    Configurations, which change, are read anew wherever they matter.
    """
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, (*CONSTANTS, transformers.PretrainedConfig))


class Built(NamedTuple):
    """A model as it is built at this moment."""

    model: torch.nn.Module
    structure: Structure
    modules: Modules

    def line(self) -> str:
        """Write the structure as JSON, with the adapters as they are set."""
        if not self.structure.adapters:
            return self.structure.line
        states: list = [None] * len(self.modules)
        for n in self.structure.adapters:
            states[n] = _adapter_state(self.modules[n][1])
        return self.structure.line_with(states)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """List the tensors that are neither parameters nor buffers, with their names."""
        return [
            (f"{name}.{attribute}", vars(module)[attribute])
            for n, attribute in self.structure.tensors
            for name, module in [self.modules[n]]
        ]

    def configs(self) -> list[tuple[str, str, object]]:
        """List (module, attribute, configuration) of the configurations that modules read."""
        return [
            (self.modules[n][0], attribute, vars(self.modules[n][1])[attribute])
            for n, attribute in self.structure.configs
        ]


def examine(model: torch.nn.Module) -> Built:
    """Return how a model is built; what is known of it is compared, and not read again."""
    modules, repeated = walk_modules(model)
    known = _STRUCTURES.get(model)
    if known is None or not known.describes(modules, repeated):
        known = Structure(modules, repeated)
        if known.is_comparable:
            _STRUCTURES[model] = known
        else:
            _STRUCTURES.pop(model, None)
    return Built(model, known, modules)


def _class_name(kind: type) -> str:
    """Name a class by where its library keeps it; one of a user's by its own name alone."""
    is_pinned = package_of(kind.__module__) in PINNED_PACKAGES
    return f"{kind.__module__}.{kind.__qualname__}" if is_pinned else kind.__qualname__


def modifications(built: Built) -> list[str]:
    """List what has been put over a model's own code, and where, as far as that is cheap to see."""
    places = list(built.structure.replaced)
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        places.insert(0, "a forward hook of all modules")
    kinds = sorted(built.structure.kinds, key=_class_name)
    places += [f"another {kind.__name__}.forward" for kind in kinds if _has_other_forward(kind)]
    configs = {id(config): config for _, _, config in built.configs()}
    if not all(map(is_known, _attention_functions(configs.values()))):
        places.append("another attention function")
    return places


def _replaced_in(name: str, module: torch.nn.Module) -> list[str]:
    """List what has been put over a module's own code, and where."""
    place = name or type(module).__name__
    watchers = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    watched = [] if all(map(is_known, watchers)) else [f"a forward hook on {place}"]
    return watched + [f"another {method} on {place}" for method in _replaced_methods(module)]


def _attention_functions(configs: Iterable[object]) -> list[Callable]:
    """List the functions registered under the names of the attention that configurations ask for."""
    registered = getattr(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS", {})
    names = dict.fromkeys(getattr(config, "_attn_implementation", None) for config in configs)
    functions = [registered[name] for name in names if name in registered]
    return functions or [torch.nn.functional.scaled_dot_product_attention]


def runs_own_code(built: Built, code: LibraryCode) -> bool:
    """Return whether code of no library runs in a model or behind it.

    It may act otherwise the next time, under the same name.

    Args:
        code: the libraries' that it runs.
    """
    return is_under_a_mode() or code.is_foreign or built.structure.calls_own_code


def active_adapters(built: Built) -> str | None:
    """Name the adapters (LoRA and its kin) in use: "none" if switched off, None without any."""
    if not built.structure.adapters:
        return None
    states = [_adapter_state(built.modules[n][1]) for n in built.structure.adapters]
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
        and not (name == "forward" and hasattr(module, "_hf_hook") and has_known_hooks(module))
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
    # What somebody's own code writes into a list is not its business; the probe measures what it does.
    with_containers = package_of(type(module).__module__) in PINNED_PACKAGES
    own = vars(module)
    names = [
        n
        for n in own_names(module)
        if _has_effect(n)
        and (isinstance(own[n], SETTINGS) or (with_containers and _is_plain_container(own[n])))
    ]
    return {name: _shown(own[name]) for name in names if differs_from_class(module, name)}


def _is_plain_container(value: object) -> bool:
    """Return whether JSON has a list, tuple or dict as it is; as a list where it is a tuple."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and _is_plain_container(
            list(value.values())
        )
    return isinstance(value, list | tuple) and all(
        isinstance(item, PLAIN) or _is_plain_container(item) for item in value
    )


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


def _has_adapters(module: torch.nn.Module) -> bool:
    """Return whether a module is a layer that PEFT has put adapters on."""
    return (
        hasattr(module, "active_adapters")
        and hasattr(module, "disable_adapters")
        and not isinstance(module, transformers.PreTrainedModel)
        and not callable(module.disable_adapters)
    )


def _adapter_state(module: Any) -> tuple:
    """Return (active adapters, switched off, merged adapters, their scales) of a PEFT layer."""
    return (
        list(module.active_adapters),
        bool(module.disable_adapters),
        list(getattr(module, "merged_adapters", [])),
        dict(getattr(module, "scaling", {})),
    )


# --- weights --------------------------------------------------------------------------------------


def weights_digest(modules: Modules) -> str:
    """Digest every parameter and buffer, by name, saved with the model or not.

    Weights on a GPU are copied only where a checksum of them, computed there, has changed.

    Args:
        modules: of the model, which is the first.

    Raises:
        ValueError: a tensor has no values.
    """
    if not any(_lies_far(module) for _, module in modules):
        return _digest(modules)
    try:
        model, checksum = modules[0][1], _checksum(modules)
    except RuntimeError:  # not in the memory that is left, or of a kind that cannot be summed up
        return _digest(modules)
    last, digest = _LAST.get(model, (None, ""))
    if checksum != last:
        digest = _digest(modules)
        _LAST[model] = checksum, digest
    return digest


def _lies_far(module: torch.nn.Module) -> bool:
    """Return whether a module has weights of its own that take long to copy."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(t is not None and t.device.type in FAR_DEVICES for t in tensors)


def _digest(modules: Modules) -> str:
    return _digest_tensors(_parts(modules))


def _digest_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = xxhash.xxh3_128()
    for name, part in tensors:
        digest.update(name.encode())
        digest.update(tensor_bytes(part).data)
    return digest.hexdigest()


@torch.inference_mode()
def _checksum(modules: Modules) -> bytes:
    """Sum up weights on the devices that they lie on; digest the sums, and weights on the CPU."""
    digest = xxhash.xxh3_128()
    sums: dict[torch.device, list[torch.Tensor]] = {}
    for name, part in _parts(modules):
        digest.update(f"{name} {part.dtype} {tuple(part.shape)} {part.device}".encode())
        if part.device.type in FAR_DEVICES:
            sums.setdefault(part.device, []).extend(_sums(part))
        else:
            digest.update(tensor_bytes(part).data)
    for of_device in sums.values():
        digest.update(torch.cat(of_device).cpu().numpy().data)
    return digest.digest()


def _sums(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield sums (R,) of a tensor's numbers, each times a factor of its place, modulo 2^64.

    The factors are odd: no change of a single number leaves its sum as it was, and one of several
    numbers does by chance once in 2^64 times.
    """
    numbers = tensor.detach().contiguous().flatten()
    numbers = numbers.view(INTEGERS[min(numbers.element_size(), 8)])
    factors = _factors(tensor.device)
    whole = len(numbers) // ROW * ROW
    for rows in numbers[:whole].view(-1, ROW).split(ROWS):
        yield (rows * factors).sum(-1)
    rest = numbers[whole:]
    yield (rest * factors[: len(rest)]).sum(-1, keepdim=True)


@cache
def _factors(device: torch.device) -> torch.Tensor:
    """Draw odd numbers (ROW,), the same on every device."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(-(2**63), 2**63 - 1, (ROW,), generator=draw).bitwise_or(1).to(device)


def _parts(modules: Modules) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every plain tensor of a model with its name, see `plain_tensors`.

    Raises:
        ValueError: one has no values.
    """
    for name, tensor in _tensors(modules):
        for part in plain_tensors(tensor):
            if part.is_meta:
                raise ArgumentError(
                    "model",
                    f"have its weights, but {name.lstrip('.')} is on the meta device, which holds "
                    "none",
                    advice="Load the weights before passing the model.",
                )
            yield name, part


def _tensors(modules: Modules) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a model with its name; offloaded ones as they are brought in.

    Tied ones come under each of their names: offloaded, they are no longer the same object.
    """
    for prefix, module in modules:
        if not (module._parameters or module._buffers or _is_quantised(module)):
            continue
        names = _names_of(module._parameters)
        names += [name for name in _names_of(module._buffers) if _stays(module, name)]
        with _brought_in(module):
            for name in names:
                yield f"{prefix}.{name}", getattr(module, name)
            if _is_quantised(module):
                yield from _quantised_tensors(prefix, module)


def _names_of(tensors: Mapping[str, torch.Tensor | None]) -> list[str]:
    """List the names of tensors, each of which under its first."""
    names: dict[int, str] = {}
    for name, tensor in tensors.items():
        if tensor is not None:
            names.setdefault(id(tensor), name)
    return list(names.values())


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
    if "_hf_hook" not in vars(module):
        return nullcontext()
    own = (*module._parameters.values(), *module._buffers.values())
    if not any(tensor is not None and tensor.is_meta for tensor in own):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module, "cpu")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor, or those that make up a quantised one: codes and scales."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not vars(tensor):
        yield tensor
        return
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
        return
    yield tensor
    for attribute in ("quant_state", "SCB"):  # bitsandbytes
        state = getattr(tensor, attribute, None)
        if isinstance(state, torch.Tensor):
            yield state
        elif state is not None and hasattr(state, "as_dict"):
            values = state.as_dict(packed=True).values()
            yield from (value for value in values if isinstance(value, torch.Tensor))


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray:
    """Return the numbers of a tensor, in order, as something that their bytes can be read from."""
    numbers = tensor.detach().cpu().contiguous()
    if numbers.dtype not in NUMPY_TYPES:
        numbers = numbers.flatten().view(torch.uint8)
    return numbers.numpy()
