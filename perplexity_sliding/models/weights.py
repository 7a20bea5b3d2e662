"""Digest the weights of a model, and copy those of a GPU only if their checksum has changed.

Every call hashes them again; torch's version counters are unsuitable, as fused optimizers do not
change them.
"""

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache

import numpy as np
import torch
import xxhash

from ..errors import ArgumentError
from .module import KNOWN_PACKAGES, Modules, is_growing_rotary, package_of

# Buffers that the libraries' models recompute while they run.
WRITTEN_WHILE_RUNNING = ("_cached", "_cache")
# Weights on these devices have a checksum, as copying them for their digest is slow.
FAR_DEVICES = ("cuda",)
# Dtypes that numpy supports.
NUMPY_TYPES = frozenset({torch.float32, torch.float16, torch.float64, torch.int64, torch.bool})

# Where an object lies, in the description of a tensor's settings.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Integer types by size in bytes, for checksums.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Numbers per sum, and sums at a time.
ROW, ROWS = 2**18, 16
# Last checksum and digest of each model on such devices.
_LAST: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def weights_digest(modules: Modules) -> str:
    """Digest every parameter and buffer by name, including buffers that are not saved.

    Weights on a GPU are copied only if their checksum, computed there, has changed.

    Args:
        modules: modules of the model, which is the first.

    Raises:
        ValueError: a tensor has no values.
    """
    if not any(_lies_far(module) for _, module in modules):
        return _digest(modules)
    try:
        model, checksum = modules[0][1], _checksum(modules)
    except RuntimeError:  # out of memory, or an unsupported dtype
        return _digest(modules)
    last, digest = _LAST.get(model, (None, ""))
    if checksum != last:
        digest = _digest(modules)
        _LAST[model] = checksum, digest
    return digest


def _lies_far(module: torch.nn.Module) -> bool:
    """Return whether a module has weights that are slow to copy."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(t is not None and t.device.type in FAR_DEVICES for t in tensors)


def _digest(modules: Modules) -> str:
    return digest_tensors(_parts(modules))


_written = lru_cache(maxsize=1024)(str)  # of a type or shape, which many tensors share


def digest_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Digest plain tensors with their names, types and shapes."""
    digest = xxhash.xxh3_128()
    for name, part in tensors:
        digest.update(f"{name} {_written(part.dtype)} {_written(part.shape)}".encode())
        digest.update(tensor_bytes(part).data)
    return digest.hexdigest()


@torch.inference_mode()
def _checksum(modules: Modules) -> bytes:
    """Sum up weights on their devices; digest the sums, and weights on the CPU."""
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
    """Yield sums (R,) of a tensor's numbers, each times a factor of its position, modulo 2^64.

    The factors are odd, so a change of a single number always changes the sum; a change of several
    numbers keeps it with a probability of 2^-64.
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
                    f"have its weights, but {name.lstrip('.')} is on the meta device, without data",
                    advice="Load the weights before passing the model.",
                )
            yield name, part


def _tensors(modules: Modules) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a model with its name, after loading offloaded ones.

    Tied tensors are repeated under each of their names, as they are separate objects if offloaded.
    """
    for prefix, module in modules:
        if not (module._parameters or module._buffers or _is_quantised(module)):
            continue
        names = sorted(_names_of(module._parameters))  # PEFT moves them in its first pass
        names += [name for name in _names_of(module._buffers) if _stays(module, name)]
        with _brought_in(module):
            for name in names:
                for tensor in _as_multiplied(module, name):
                    yield f"{prefix}.{name}", tensor
            if _is_quantised(module):
                yield from _quantised_tensors(prefix, module)


def _as_multiplied(module: torch.nn.Module, name: str) -> Iterator[torch.Tensor]:
    """Yield a tensor of a module, and what a layer of bitsandbytes keeps of it itself.

    In 8 bits, the weight has codes and scales beside its data, and the first pass moves them to the layer; in
    4 bits, the layer has the scales of a weight that was replaced.
    """
    tensor = getattr(module, name)
    own = vars(module)
    if isinstance(getattr(tensor, "CB", None), torch.Tensor):
        yield from (tensor.CB, tensor.SCB)
        return
    codes, scales = (getattr(own.get("state"), part, None) for part in ("CB", "SCB"))
    converts_again = getattr(own.get("state"), "has_fp16_weights", False)
    if scales is not None and not converts_again and getattr(tensor, "SCB", scales) is None:
        yield from (tensor if codes is None else codes, scales)
        return
    yield tensor
    if name == "weight" and getattr(tensor, "quant_state", None) is None:
        yield from _scales_of(own.get("quant_state"))


def _names_of(tensors: Mapping[str, torch.Tensor | None]) -> list[str]:
    """List the names of the tensors that exist; one tensor may have several."""
    return [name for name, tensor in tensors.items() if tensor is not None]


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
    """Return whether a forward pass leaves a buffer unchanged."""
    if buffer not in module._non_persistent_buffers_set:
        return True
    prefix = buffer.removesuffix("inv_freq")  # of a kind of layers
    originals = (f"original_{buffer}", f"{prefix}original_inv_freq")
    is_rotary = buffer.endswith("inv_freq") and any(hasattr(module, name) for name in originals)
    if is_rotary and is_growing_rotary(module):
        return False
    is_written = package_of(type(module).__module__) in KNOWN_PACKAGES
    return not (is_written and buffer.endswith(WRITTEN_WHILE_RUNNING))


def _brought_in(module: torch.nn.Module) -> AbstractContextManager:
    """Load weights that accelerate has offloaded within the context."""
    hook = vars(module).get("_hf_hook")
    if hook is None:
        return nullcontext()
    own = (*module._parameters.values(), *module._buffers.values())
    # If others have been assigned, a hook that offloads still replaces them in the next pass.
    replaces = getattr(hook, "offload", False)
    if not replaces and not any(tensor is not None and tensor.is_meta for tensor in own):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module, "cpu")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor, or those that make up a quantised one: codes and scales, and its settings."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not vars(tensor):
        yield tensor
        return
    if hasattr(tensor, "full_tensor"):  # sharded by FSDP2: collected, in each process
        yield from plain_tensors(tensor.full_tensor())
        return
    if hasattr(tensor, "__tensor_flatten__"):
        names, settings = tensor.__tensor_flatten__()
        for name in names:
            yield from plain_tensors(getattr(tensor, name))
        written = ADDRESS.sub("", f"{type(tensor).__qualname__} {settings!r}")
        yield torch.tensor(list(written.encode()), dtype=torch.uint8)
        return
    yield tensor
    for attribute in ("quant_state", "SCB"):  # bitsandbytes
        state = getattr(tensor, attribute, None)
        if isinstance(state, torch.Tensor):
            yield state
        else:
            yield from _scales_of(state)


def _scales_of(state: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a `QuantState` of bitsandbytes; none of anything else."""
    if hasattr(state, "as_dict"):
        values = state.as_dict(packed=True).values()
        yield from (value for value in values if isinstance(value, torch.Tensor))


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray:
    """Return an array with the bytes of a tensor's numbers, in order."""
    numbers = tensor.detach().cpu()
    if numbers.layout != torch.strided:  # sparse
        numbers = numbers.to_dense()
    numbers = numbers.resolve_conj().resolve_neg().contiguous()
    if numbers.dtype not in NUMPY_TYPES:
        numbers = numbers.flatten().view(torch.uint8)
    return numbers.numpy()
