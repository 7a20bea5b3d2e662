"""Record the attributes of modules, to notice between two calls that one has changed.

A value is recorded by what it contains, as lists, dicts and arrays are changed in place.  Where a
change could not be noticed, nothing is recorded, and the model is probed in every call.
"""

import copy
import operator
import weakref
from collections.abc import Set
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import transformers
import xxhash

from .module import KNOWN_PACKAGES, defining_module, is_of_library, own_names, package_of
from .weights import plain_tensors, tensor_bytes

# Types of values that never change.
CONSTANTS = frozenset([bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size])
# Types of containers that are compared as they are if they contain only constants.
PLAIN = frozenset([list, tuple, dict, set])
# Depth to which containers are followed.
DEEPEST = 8
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Unclear(Exception):
    """A value may change without being noticed."""


class Same(weakref.ref):
    """A weak reference that equals only another one of the same object while that exists."""

    __slots__ = ()
    __hash__ = weakref.ref.__hash__

    def __eq__(self, other: object) -> bool:
        found = self()
        return found is not None and isinstance(other, Same) and other() is found


class ModuleRecord:
    """The attributes of a module, to detect changes.

    Args:
        name: of the module in its model.
        walked: all modules of the model; no reference to them is kept.

    Attributes:
        is_comparable: whether the module is unchanged while `describes` returns True.
    """

    def __init__(self, name: str, module: torch.nn.Module, walked: Set[torch.nn.Module]) -> None:
        own = vars(module)
        names = sorted(own_names(module))
        constants = [n for n in names if _is_constant(own[n])]
        varying = [n for n in names if n not in constants]
        plain = [n for n in varying if type(own[n]) in PLAIN and _is_plain(own[n])]
        self._is_hooked = any(own[n] for n in HOOKS)
        others = [n for n in varying if n not in plain]
        others += HOOKS * self._is_hooked
        self._name, self._kind, self._size = name, type(module), len(own)
        self._constants = constants
        self._get = operator.itemgetter(*HOOKS, *constants)
        self._values = self._get(own)
        self._has_others = bool(plain or others)
        self._plain = [(n, type(own[n]), copy.deepcopy(own[n])) for n in plain]
        self._contents: list[tuple[str, object]] = []
        self.is_comparable = True
        try:
            self._contents = [(n, content_of(own[n], walked)) for n in others]
        except Unclear:
            self.is_comparable = False

    def __eq__(self, other: object) -> bool:
        """Return whether another record of the same module has the same values."""
        return (
            isinstance(other, ModuleRecord)
            and self.is_comparable
            and other.is_comparable
            and (self._name, self._kind, self._size) == (other._name, other._kind, other._size)
            and self._constants == other._constants
            and all(map(operator.is_, self._values, other._values))
            and (self._plain, self._contents) == (other._plain, other._contents)
        )

    def describes(self, name: str, module: torch.nn.Module) -> bool:
        """Return whether a comparable module is unchanged."""
        own = vars(module)
        try:
            values = self._get(own)
            return (
                type(module) is self._kind
                and len(own) == self._size
                and name == self._name
                and all(map(operator.is_, values, self._values))
                and (self._is_hooked or not (values[0] or values[1]))
                and (not self._has_others or self._describes_others(own))
            )
        except Exception:  # removed, of a kind that has no content, or not to be compared
            return False

    def _describes_others(self, own: dict[str, Any]) -> bool:
        """Return whether the attributes that are no constants are as they were."""
        return all(
            type(own[n]) is kind and own[n] == content for n, kind, content in self._plain
        ) and all(content_of(own[n]) == content for n, content in self._contents)


def as_weak(value: Any) -> Any:
    """Return a weak reference to an object, if it supports one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _is_constant(value: object) -> bool:
    """Return whether a value is unchanged while it is the same object.

    Configurations can change, but are read again wherever they matter.
    """
    if type(value) is tuple:
        return all(map(_is_constant, value))
    is_config = isinstance(value, transformers.PretrainedConfig) and not callable(value)
    return _is_number_or_name(value) or is_config


def _is_number_or_name(value: object) -> bool:
    """Return whether a value never changes; members of one's own enumerations may."""
    kind = type(value)
    is_member = issubclass(kind, Enum) and is_of_library(kind.__module__)
    return kind in CONSTANTS or issubclass(kind, np.generic) or is_member


def _is_plain(value: Any, depth: int = DEEPEST) -> bool:
    """Return whether a value consists of lists, dicts, sets, numbers and strings."""
    if type(value) in PLAIN and depth:
        items = value.items() if type(value) is dict else value
        return all(_is_plain(item, depth - 1) for item in items)
    return type(value) in CONSTANTS


def content_of(
    value: Any, walked: Set[torch.nn.Module] | None = None, depth: int = DEEPEST
) -> object:
    """Return what equals only the content of an equal value.

    Functions and objects of libraries are the same objects, the latter with the same plain settings.
    They are referenced weakly, as they may reference the model.

    Args:
        walked: modules of the model, whose own attributes are recorded; any module if None.
        depth: how many containers may lie within each other.

    Raises:
        Unclear: it may change without being noticed.
    """
    kind = type(value)
    if _is_number_or_name(value):
        return kind, value
    if depth == 0:
        raise Unclear
    if issubclass(kind, torch.nn.Module) and (walked is None or value in walked):
        return Same(value)
    if kind is np.ndarray:
        return _content_of_array(value)
    if not is_of_library(kind.__module__):
        raise Unclear
    if issubclass(kind, torch.Tensor):
        return _content_of_tensor(value)
    if isinstance(value, dict):
        return kind, *(content_of(item, walked, depth - 1) for item in value.items())
    if isinstance(value, list | tuple):
        return kind, *(content_of(item, walked, depth - 1) for item in value)
    if isinstance(value, set | frozenset):
        return kind, frozenset(content_of(item, walked, depth - 1) for item in value)
    if isinstance(value, partial):
        return kind, content_of([value.func, value.args, value.keywords], walked, depth - 1)
    if isinstance(value, MethodType):
        return kind, content_of([value.__self__, value.__func__], walked, depth - 1)
    return _content_of_object(value)


def _content_of_array(value: np.ndarray) -> tuple:
    """Return the type and the shape of an array, and a digest of its numbers."""
    if value.dtype.hasobject:
        raise Unclear
    return value.dtype, value.shape, xxhash.xxh3_128_digest(value.tobytes())


def _content_of_tensor(value: torch.Tensor) -> tuple:
    """Return the type of a tensor, and a digest of the types, shapes and numbers of its parts."""
    digest = xxhash.xxh3_128()
    try:
        for part in plain_tensors(value):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(tensor_bytes(part).data)
    except (RuntimeError, TypeError) as error:  # on the meta device, or not dense
        raise Unclear from error
    return type(value), digest.digest()


def _content_of_object(value: Any) -> tuple:
    """Return a weak reference to a function or object of a library, and its plain settings."""
    if isinstance(value, BuiltinFunctionType):
        is_fixed = isinstance(value.__self__, ModuleType | None)
    elif isinstance(value, FunctionType | type):
        is_fixed = is_of_library(defining_module(value))
    else:
        is_module = isinstance(value, torch.nn.Module)  # not part of the model
        is_fixed = package_of(type(value).__module__) in KNOWN_PACKAGES and not is_module
    if not is_fixed:
        raise Unclear
    try:
        reference = Same(value)
    except TypeError as error:
        raise Unclear from error
    settings = getattr(value, "__dict__", {}).items()
    return reference, *(
        (name, setting if _is_constant(setting) else content_of(setting))
        for name, setting in settings
        if _is_constant(setting) or _is_plain(setting)
    )
