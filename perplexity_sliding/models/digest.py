"""Digests of models: everything that a forward pass depends on, and nothing else.

Every call checks all of it.  The known structure of modules is compared with the current one.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import transformers

from ..digests import DIGITS, as_json, digest_of_line
from .module import (
    KNOWN_PACKAGES,
    PINNED_PACKAGES,
    LibraryCode,
    Modules,
    calls_own_code,
    has_known_hooks,
    holds_own_tensors,
    implementations,
    is_growing_rotary,
    is_known,
    is_under_a_mode,
    own_names,
    package_of,
    walk_modules,
)
from .records import ModuleRecord, as_weak
from .settings import attributes_of, may_affect, names_read, names_written_by_hooks, with_effect
from .weights import digest_tensors, plain_tensors, weights_digest

# Known structures of models whose changes can be detected by comparing attributes.
_STRUCTURES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def model_name(name: str, model_kwargs: dict) -> str:
    """Return a model's name on the Hub, or the last part of its folder's path."""
    local = os.path.isabs(name) or name.startswith(".") or os.path.isdir(name)
    shown = os.path.basename(os.path.abspath(name)) if local else name
    signs = {"subfolder": "/", "variant": ":", "gguf_file": "/"}
    parts = [sign + model_kwargs[key] for key, sign in signs.items() if model_kwargs.get(key)]
    return "".join([shown, *parts])


def model_revision(model: torch.nn.Module, commit: str | None) -> str:
    """Return the commit or digest of the weights, and a digest of the model's structure.

    A live model may have been trained after loading, so its commit is not used; the commit of an
    adapter does not cover its base model.
    """
    built = examine(model)
    dtypes = _dtypes(built.modules)
    if commit is None or built.structure.adapters:
        commit, dtypes = weights_digest(built.modules), []
    whole = getattr(model, "config", None)
    read = names_read(built.structure.kinds)
    settings = _settings(whole, read)
    own = _own_settings(built.configs(), whole, settings, read) + _loose_numbers(built) + dtypes
    line = ", ".join([as_json(settings), built.line(), *map(as_json, own)])
    return f"{commit[:DIGITS]}.{digest_of_line(f'[{line}]')}"


def _dtypes(modules: Modules) -> list:
    """List the dtypes of weights by name, if there are several: a commit says nothing of them."""
    dtypes = [
        [f"{name}.{own}", str(tensor.dtype)]
        for name, module in modules
        for own, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None and tensor.is_floating_point()
    ]
    return dtypes if len({dtype for _, dtype in dtypes}) > 1 else []


def _settings(config: object, read: frozenset[str]) -> dict:
    """Return the entries of a configuration that affect the logits; see `names_read`."""
    return with_effect(config.to_dict(), read) if hasattr(config, "to_dict") else {}


def _own_settings(
    configs: Sequence[tuple[str, str, object]],
    whole: object,
    settings: dict,
    read: frozenset[str],
) -> list:
    """List the settings of modules whose configuration differs from the model's.

    Args:
        configs: (module, attribute, configuration).
        whole: the model's configuration.
        settings: its entries that affect the logits.
        read: see `names_read`.
    """
    as_whole = settings, *implementations(whole)
    known = {id(whole): as_whole}  # most modules share one object
    places = []
    for name, attribute, config in configs:
        if not isinstance(config, transformers.PretrainedConfig):
            continue
        if id(config) not in known:
            known[id(config)] = _settings(config, read), *implementations(config)
        if known[id(config)] != as_whole:
            places.append([name, attribute, *known[id(config)]])
    return places


def _loose_numbers(built: "Built") -> list:
    """List the digest of tensors that are plain attributes of modules, if there are any."""
    tensors = [(name, part) for name, tensor in built.tensors() for part in plain_tensors(tensor)]
    tensors = [(name, part) for name, part in tensors if not part.is_meta]
    return [digest_tensors(tensors)] if tensors else []


class Structure:
    """The structure of a model, except for its configuration, which may change.

    It consists of the names of classes and functions and the numeric attributes of modules.  The
    probe covers the effect of custom code.

    Args:
        modules: modules of the model; no reference to them is kept.
        repeated: further names of modules, see `walk_modules`.

    Attributes:
        described: [name, class, attributes] of each module.
        configs: (index of the module, attribute) of the configurations that modules read.
        tensors: (index, attribute) of tensors that are neither parameters nor buffers.
        adapters: indices of the modules with PEFT adapters.
        shortens_rows: whether passes shorten the rows of an embedding that they read.
        is_unfinished: whether the next pass will write weights of adapters.
        kinds: classes of the modules.
        of_libraries: classes of torch, transformers, PEFT and accelerate among these and their bases.
        calls: code that a call of each module runs, see `_calls`.
        replaced: replacements of the modules' own code, and their places.
        calls_own_code: whether a module calls custom code.
        is_comparable: whether the structure is unchanged while `describes` returns True.
    """

    def __init__(self, modules: Modules, repeated: Sequence[tuple[str, str]] = ()) -> None:
        self._repeated = list(repeated)
        walked = {module for _, module in modules}
        self._records = [ModuleRecord(name, module, walked) for name, module in modules]
        self.described = [
            [name, _class_name(type(module)), attributes_of(module, walked)]
            for name, module in modules
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
            and may_affect(module, attribute)
            and attribute not in names_written_by_hooks(module)
            and package_of(type(module).__module__) in PINNED_PACKAGES
            and not is_growing_rotary(module)  # which writes them while it runs
        ]
        self.adapters = [n for n, (_, module) in enumerate(modules) if _has_adapters(module)]
        self.shortens_rows = any(_shortens_rows(module) for _, module in modules)
        self.is_unfinished = any(_is_unfinished(module) for _, module in modules)
        self.kinds = frozenset(type(module) for _, module in modules)
        classes = {c for kind in self.kinds for c in kind.__mro__}
        self.of_libraries = frozenset(
            c for c in classes if package_of(c.__module__) in KNOWN_PACKAGES
        )
        self.calls = tuple(_calls(module) for _, module in modules)
        self.replaced = [place for named in modules for place in _replaced_in(*named)]
        self.calls_own_code = any(calls_own_code(module) for _, module in modules)
        self.is_comparable = not (self.replaced or self.calls_own_code) and all(
            record.is_comparable for record in self._records
        )

    def __eq__(self, other: object) -> bool:
        """Return whether another structure of the same model is the same, and both comparable."""
        return isinstance(other, Structure) and (
            self._repeated == other._repeated and self._records == other._records
        )

    def describes(self, modules: Modules, repeated: Sequence[tuple[str, str]]) -> bool:
        """Return whether modules are unchanged."""
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


def _shortens_rows(module: torch.nn.Module) -> bool:
    """Return whether a module is an embedding with a `max_norm`."""
    is_table = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
    return is_table and module.max_norm is not None


def _is_unfinished(module: torch.nn.Module) -> bool:
    """Return whether a module of PEFT changes weights in its first pass, and has not yet run.

    Arrow's router finds the prototypes of its adapters, and subtracts the general adapters from the others;
    KaSA truncates the base's weights, if they were loaded later.
    """
    own = vars(module)
    subtracts = own.get("use_gks") and not own.get("gks_done")
    truncates = own.get("_lora_kasa_truncation_deferred")
    return own.get("_protos_ready") is False or bool(
        subtracts or truncates or own.get("gks_added_adapter_names")
    )


def _calls(module: torch.nn.Module) -> tuple:
    """Describe the code that a call of a module runs, for comparison.

    It includes the module's own functions: replaced methods, activations, what torch.compile made.
    Weak references to functions and hooks are never equal to later objects at the same address.
    """
    own = vars(module)
    functions = [(name, as_weak(own[name])) for name in own_names(module) if callable(own[name])]
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return type(module), dict(functions), *map(as_weak, hooks)


class Built(NamedTuple):
    """A model with its current structure."""

    model: torch.nn.Module
    structure: Structure
    modules: Modules

    def line(self) -> str:
        """Return the structure as JSON, with the current state of adapters."""
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
    """Return the full name of a library's class, or the bare name of a user's class."""
    is_pinned = package_of(kind.__module__) in PINNED_PACKAGES
    return f"{kind.__module__}.{kind.__qualname__}" if is_pinned else kind.__qualname__


def modifications(built: Built) -> list[str]:
    """List replacements of a model's own code, and their places, as far as they are cheap to detect."""
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
    """List replacements of a module's own code, and their places."""
    place = name or type(module).__name__
    watchers = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    watched = [] if all(map(is_known, watchers)) else [f"a forward hook on {place}"]
    return watched + [f"another {method} on {place}" for method in _replaced_methods(module)]


def _attention_functions(configs: Iterable[object]) -> list[Callable]:
    """List the registered functions of the attention that configurations select."""
    registered = getattr(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS", {})
    names = dict.fromkeys(getattr(config, "_attn_implementation", None) for config in configs)
    functions = [registered[name] for name in names if name in registered]
    return functions or [torch.nn.functional.scaled_dot_product_attention]


def runs_own_code(built: Built, code: LibraryCode) -> bool:
    """Return whether custom code runs in a model or in functions that it calls.

    Such code may behave differently the next time, under the same name, as may objects that cannot
    be compared.

    Args:
        code: the libraries' code that the model runs.
    """
    is_comparable = built.structure.is_comparable and not holds_own_tensors(built.modules)
    return is_under_a_mode() or code.is_foreign or not is_comparable


def state_of_code(built: Built) -> tuple:
    """Return what a forward pass depends on besides weights and settings, to compare two calls."""
    structure = built.structure
    chosen = [implementations(config) for _, _, config in built.configs()]
    of_modules = structure if structure.is_comparable else structure.calls
    return of_modules, is_under_a_mode(), chosen


def active_adapters(built: Built) -> str | None:
    """Return the names of the active adapters; "none" if disabled, None without any."""
    return "+".join(_active_names(built)) or "none" if built.structure.adapters else None


def _active_names(built: Built) -> list[str]:
    states = [_adapter_state(built.modules[n][1]) for n in built.structure.adapters]
    names = dict.fromkeys(
        name
        for active, disabled, merged, _ in states
        for name in ([] if disabled else active) + merged
    )
    return list(names)


def check_examinable(built: Built, name: str) -> None:
    """Refuse modules whose code and state are out of sight, or whose passes change their weights.

    Args:
        name: of the model in an error.

    Raises:
        ValueError: there is one.
    """
    if any(issubclass(kind, torch.jit.ScriptModule) for kind in built.structure.kinds):
        raise ValueError(
            f"{name} must consist of modules whose code and state can be examined, got TorchScript. Pass "
            "the model as it was before `torch.jit.script` or `torch.jit.trace`."
        )
    if built.structure.shortens_rows:
        raise ValueError(
            f"{name} must keep its weights while it runs, but an embedding has a `max_norm`, so every "
            "pass shortens the rows that it reads. Shorten all of them once, and set `max_norm` to None."
        )


def check_adapters(built: Built, name: str) -> None:
    """Refuse adapters whose next pass writes weights, that sample, or that begin to act within a text.

    For the last, PEFT's wrapper finds the last of their invocation tokens, so a token's score would
    depend on those after it; the model inside the wrapper, which is scored, does not run them at all.

    Args:
        name: of the model in an error.

    Raises:
        ValueError: one is active.
    """
    states = [_adapter_state(built.modules[n][1]) for n in built.structure.adapters]
    if any(disabled and merged for _, disabled, merged, _ in states):
        raise ValueError(
            f"{name} must not have adapters that are merged and disabled: the next pass unmerges them, "
            "which rounds the weights. Call unmerge_adapter() first."
        )
    if built.structure.is_unfinished:
        raise ValueError(
            f"{name} must have run once with its adapters, because they change weights in the first pass: "
            "Arrow's routers compute prototypes and subtract general knowledge, KaSA truncates the base. "
            "Run the model on any text."
        )
    active = _active_names(built)
    for adapter, settings in getattr(built.model, "peft_config", {}).items():
        if adapter in active and getattr(settings, "alora_invocation_tokens", None):
            raise ValueError(
                f"{name} must have no activated LoRA, got the adapter {adapter!r} with "
                "`alora_invocation_tokens`: which tokens it acts on depends on later tokens. Disable "
                "the adapter to score the model without it."
            )
        if adapter in active and getattr(settings, "sample_at_inference", False):
            raise ValueError(
                f"{name} must be deterministic, got the adapter {adapter!r} with `sample_at_inference`: "
                "it draws random numbers in each pass. Load it with sample_at_inference=False."
            )


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
    """Return whether the forward of a library's class, or of its subclass, was replaced."""
    writers = [c for c in kind.__mro__ if "forward" in vars(c)]
    if package_of(kind.__module__) == "transformers_modules" or not writers:
        return False
    of_library = [c for c in writers if package_of(c.__module__) in PINNED_PACKAGES]
    is_replaced = any(not is_known(vars(c)["forward"]) for c in of_library)
    over = [c for c in of_library if package_of(c.__module__) == "transformers"]
    return is_replaced or bool(over and writers[0] is not over[0])


def _has_adapters(module: torch.nn.Module) -> bool:
    """Return whether a module is a layer with PEFT adapters."""
    return (
        hasattr(module, "active_adapters")
        and hasattr(module, "disable_adapters")
        and not isinstance(module, transformers.PreTrainedModel)
        and not callable(module.disable_adapters)
    )


def _adapter_state(module: Any) -> tuple:
    """Return (active adapters, disabled, merged adapters, scales) of a PEFT layer."""
    return (
        list(module.active_adapters),
        bool(module.disable_adapters),
        list(getattr(module, "merged_adapters", [])),
        dict(getattr(module, "scaling", {})),
    )
