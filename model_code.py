"""Whose code a function or a class is; and what somebody's own around a tokenizer does and holds.

Digests of tokenizers are made of these descriptions, the same in every process.  Functions and classes
of torch and transformers are described by their names, others by their code and by the values that the
code finds in them.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType

import numpy as np
import torch

# Packages whose versions the signature names, so that a name says what their code does.
PINNED_PACKAGES = ("torch", "transformers")
# Packages whose hooks and wrappers compute from nothing but what the digests cover.
KNOWN_PACKAGES = (*PINNED_PACKAGES, "peft", "accelerate")
LIBRARIES = frozenset({*KNOWN_PACKAGES, *sys.stdlib_module_names})
# How deep the values that a function or an object holds are looked into.
DEPTH = 5


def describe(value: object, depth: int = DEPTH) -> object:
    """Describe a value, for JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return type(value).__qualname__
    inside = partial(describe, depth=depth - 1)
    if isinstance(value, list | tuple):
        return [inside(item) for item in value]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(json.dumps(inside(item)) for item in value)]
    if isinstance(value, dict):
        return ["dict", *([str(key), inside(value[key])] for key in sorted(value, key=str))]
    if isinstance(value, partial):
        return ["partial", *map(inside, (value.func, value.args, value.keywords))]
    if isinstance(value, MethodType):
        return ["method", inside(value.__self__), inside(value.__func__)]
    if isinstance(value, staticmethod | classmethod):
        return ["method", inside(value.__func__)]
    if isinstance(value, property):
        return ["property", inside(value.fget)]
    if isinstance(value, FunctionType):
        return _describe_function(value, inside)
    if isinstance(value, type | BuiltinFunctionType):
        return value.__qualname__
    return _describe_object(value, inside)


def describe_class(kind: type) -> list:
    """Describe a class: its name, with what those hold that are no part of torch or transformers."""
    if package_of(kind.__module__) in PINNED_PACKAGES:
        return [f"{kind.__module__}.{kind.__qualname__}"]
    foreign = [c for c in kind.__mro__ if package_of(c.__module__) not in PINNED_PACKAGES]
    members = [
        [name, describe(value)]
        for c in foreign
        for name, value in sorted(vars(c).items())
        if isinstance(value, FunctionType) or not name.startswith("__")
    ]
    parents = [f"{c.__module__}.{c.__qualname__}" for c in kind.__mro__ if c not in foreign]
    return [kind.__qualname__, members, parents]


def differs_from_class(module: torch.nn.Module, name: str) -> bool:
    """Return whether an attribute differs from its class's; replaced methods do not count."""
    of_class, value = getattr(type(module), name, None), vars(module)[name]
    is_same = isinstance(value, bool | int | float | str) and value == of_class
    return not callable(of_class) and not is_same


def is_known(function: Callable) -> bool:
    """Return whether a function belongs to a package whose code the digests cover."""
    return package_of(defining_module(function)) in KNOWN_PACKAGES


def defining_module(function: Callable) -> str:
    """Name the module in which a function, or another callable, was written.

    Wrappers of a library are looked through, somebody's own are not, as they may do anything.
    """
    modules = list(_modules_of(function))
    foreign = [module for module in modules if not _is_of_library(module)]
    known = [module for module in modules if package_of(module) in KNOWN_PACKAGES]
    return [*foreign, *known, *modules][0]


def _modules_of(function: Callable) -> Iterator[str]:
    """Yield the modules of a function and of those that it wraps, the outermost first."""
    while function is not None:
        while hasattr(function, "func"):  # functools.partial
            function = function.func
        module = getattr(function, "__globals__", {}).get("__name__")
        yield module or getattr(function, "__module__", None) or type(function).__module__
        function = getattr(function, "__wrapped__", None)


def package_of(module: str) -> str:
    return module.partition(".")[0]


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


def _is_of_library(module: str) -> bool:
    return package_of(module) in LIBRARIES


def _describe_function(function: FunctionType, inside: Callable) -> object:
    """Describe a pinned function by its name, any other by its code and the values it holds."""
    if package_of(defining_module(function)) in PINNED_PACKAGES:
        return function.__qualname__
    held = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing is in it yet
            held.append(cell.cell_contents)
    return [_describe_code(function.__code__), *map(inside, held)]


def _describe_code(code: CodeType) -> list:
    """Describe what a function does, without the place where it is written."""
    return [code.co_code.hex(), code.co_names, [_describe_constant(c) for c in code.co_consts]]


def _describe_constant(value: object) -> object:
    """Describe a constant of a function; sets in an order that is the same in every process."""
    if isinstance(value, CodeType):
        return _describe_code(value)
    if isinstance(value, frozenset):
        return ["set", *sorted(map(repr, value))]
    return [_describe_constant(item) for item in value] if isinstance(value, tuple) else repr(value)


def _describe_object(value: object, inside: Callable) -> object:
    """Describe an object by its class; one of a user's class also by what it does and holds."""
    kind = type(value)
    if isinstance(value, bytes | complex):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.tolist()]
    if _is_of_library(kind.__module__):
        return kind.__qualname__
    methods = {name: m for name, m in vars(kind).items() if isinstance(m, FunctionType)}
    return [kind.__qualname__, inside(methods), inside(getattr(value, "__dict__", {}))]
