"""Inspect a torch module: its inputs, tables, the arguments of its forward, dtypes, and its code."""

import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial, partialmethod
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

# A model's modules by name.
Modules = Sequence[tuple[str, torch.nn.Module]]

# Kinds of rotary embeddings whose frequencies depend on the length of the pass.
GROWING_ROTARY = ("dynamic", "longrope")
# Settings of torch for matrix products on a GPU, with their defaults.
REDUCTIONS = {
    "allow_fp16_reduced_precision_reduction": True,
    "allow_bf16_reduced_precision_reduction": True,
    "allow_fp16_accumulation": False,
}
# Packages whose versions are in the signature, so that a name identifies their code.
PINNED_PACKAGES = ("torch", "transformers")
# Packages whose hooks and wrappers depend only on data that the digests cover.
KNOWN_PACKAGES = (*PINNED_PACKAGES, "peft", "accelerate")
LIBRARIES = frozenset({*KNOWN_PACKAGES, *sys.stdlib_module_names} - {"unittest"})  # of mocks
# Where code looks up torch's functions.
OF_TORCH = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.fft)
# Packages that these import functions from.
DEPENDENCIES = (
    "huggingface_hub", "numpy", "packaging", "safetensors", "tqdm", "triton", "typing_extensions",
)  # fmt: skip
# Types of callable attributes of a torch module, and of objects in Python modules.
OWN_KINDS = (FunctionType, MethodType, partial)
NAMED = (FunctionType, type)
WRAPPERS = (MethodType, staticmethod, partial, partialmethod)
FIXED = (
    bool, int, float, str, tuple, np.generic, torch.dtype, property, cached_property, classmethod,
    ModuleType,
)  # fmt: skip
# Settings of a configuration by which a model returns logits alone, by name.
PLAIN_OUTPUTS = {
    "return_dict": True, "output_attentions": False, "_output_attentions": False,
    "output_hidden_states": False, "output_router_logits": False,
}  # fmt: skip
# Names of strings that no code uses.
UNUSED = frozenset([
    "__doc__", "__file__", "__module__", "__name__", "__package__", "__qualname__", "__slotnames__",
])  # fmt: skip
# Beginning of the names under which torch.compile leaves code in the modules that it compiles.
COMPILED = "__compiled_fn_"
# Names of a model's state; `cache` is that of all models from transformers 5.24 on.
STATE_NAMES = ("cache", "past_key_values", "cache_params", "state")
# Attributes of every module, none of which is called.
OF_EVERY_MODULE = frozenset(name for name, v in vars(torch.nn.Module()).items() if not callable(v))
# Modules of transformers that no forward runs code of.
NEVER_RUN = tuple(
    f"transformers.{name}" for name in ("generation", "quantizers", "tokenization", "models.auto")
)
# Depth to which imports of modules are followed.
MODULES_DEEP = 2
# Parameters of forward methods.
_PARAMETERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# The libraries' code, by the classes of models.
_CODE: dict[frozenset[type], "LibraryCode"] = {}


def named_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """List a model's modules with their names, as `model.named_modules` yields them."""
    return walk_modules(model)[0]


def walk_modules(
    model: torch.nn.Module,
) -> tuple[list[tuple[str, torch.nn.Module]], list[tuple[str, str]]]:
    """List a model's modules with their names, as `model.named_modules` yields them.

    That passes each one through as many generators as it lies deep; a call lists them often.

    Returns:
        the modules, each under its first name, and (further name, first name) of those that have
        several: a layer may run twice.
    """
    found: dict[torch.nn.Module, str] = {}
    repeated: list[tuple[str, str]] = []
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if module in found:
            repeated.append((name, found[module]))
            continue
        found[module] = name
        if module._modules:
            prefix = f"{name}." if name else ""
            children = reversed(module._modules.items())
            waiting += [(prefix + part, child) for part, child in children if child is not None]
    return [(name, module) for module, name in found.items()], repeated


def modules_of(
    model: torch.nn.Module, without: Sequence[torch.nn.Module] = ()
) -> list[torch.nn.Module]:
    """List a model's modules, as `model.modules` yields them.

    Args:
        without: modules to omit, with everything that is reachable only through them.
    """
    found: dict[Any, None] = dict.fromkeys((None, *without))
    first = len(found)
    waiting: list[Any] = [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            if module._modules:
                waiting.extend(reversed(module._modules.values()))
    return list(found)[first:]


def own_names(module: torch.nn.Module) -> set[str]:
    """Return the names of a module's attributes that not every module has."""
    return vars(module).keys() - OF_EVERY_MODULE


def parameters_of(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """List a model's parameters, each once, as `model.parameters` yields them."""
    tables = (module._parameters.values() for module in modules_of(model) if module._parameters)
    own = [parameter for table in tables for parameter in table if parameter is not None]
    return list({id(parameter): parameter for parameter in own}.values())


def input_device(model: torch.nn.Module) -> torch.device:
    """Return the device of a model's token ids."""
    embeddings = input_embeddings(model)
    parameter = next(
        embeddings.parameters() if embeddings is not None else model.parameters(), None
    )
    # An offloaded model's weights are on "meta"; its hooks move the ids.
    if parameter is None or parameter.device.type == "meta":
        return torch.device("cpu")
    return parameter.device


def num_embeddings(model: torch.nn.Module) -> int | None:
    """Return the size of the token embedding table, an upper bound of ids."""
    embeddings: Any = input_embeddings(model)
    if embeddings is not None and hasattr(embeddings, "num_embeddings"):
        return embeddings.num_embeddings
    return getattr(text_config(model), "vocab_size", None)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode and named outputs of logits alone within the context.

    Modules are set one by one.  Weights that differ between the modes, such as merged ones of loralib,
    change with them.
    """
    training = {module: module.training for module in modules_of(model)}
    others = _other_outputs(model)
    is_training = any(training.values())
    try:
        if is_training:
            model.eval()
        for settings, name, value in others:
            settings[name] = not value
        _rescale(training)
        yield
    finally:
        if is_training:
            _restore_modes(training)
        for settings, name, value in others:
            settings[name] = value


def _other_outputs(model: torch.nn.Module) -> list[tuple[dict[str, Any], str, bool]]:
    """List (settings, name, value) of what a model is set to return besides named logits.

    Some layers calculate otherwise where they also return their attention.
    """
    configs = [getattr(model, "config", None), text_config(model)]
    found = {id(config): vars(config) for config in configs if hasattr(config, "__dict__")}
    return [
        (settings, name, not plain)
        for settings in found.values()
        for name, plain in PLAIN_OUTPUTS.items()
        if settings.get(name) is (not plain)
    ]


def _restore_modes(training: Mapping[torch.nn.Module, bool]) -> None:
    """Set each module to training or evaluation, and its weights as they are in that mode."""
    for module in [m for m in training if training[m] and _has_own_modes(m)]:
        module.train()
    for module, was_training in training.items():
        module.training = was_training
    _rescale(training)


def _has_own_modes(module: torch.nn.Module) -> bool:
    """Return whether a module does more than set a flag when its mode changes."""
    return type(module).train is not torch.nn.Module.train


@torch.no_grad()
def _rescale(modules: Iterable[torch.nn.Module]) -> None:
    """Divide the weights of RWKV as in evaluation, or multiply them again as in training.

    It does so itself at its first pass in another mode.
    """
    rescaled: list[Any] = [m for m in modules if hasattr(type(m), "_rescale_layers")]
    for module in rescaled:
        module._rescale_layers()


def text_config(model: torch.nn.Module) -> PretrainedConfig | None:
    """Return the configuration of the language part; multimodal models nest it."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def input_embeddings(model: Any) -> torch.nn.Module | None:
    """Return a model's table of token embeddings, or None if unknown."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def forward_parameters(module: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a module's forward, by name and in order."""
    forward = module.forward
    if not inspect.ismethod(forward):  # replaced
        return inspect.signature(forward).parameters
    if forward.__func__ not in _PARAMETERS:
        _PARAMETERS[forward.__func__] = inspect.signature(forward).parameters
    return _PARAMETERS[forward.__func__]


def forward_kwargs(module: torch.nn.Module) -> dict:
    """Return arguments that avoid unneeded work, if the module has them."""
    return {"use_cache": False} if "use_cache" in forward_parameters(module) else {}


def state_name(module: torch.nn.Module) -> str | None:
    """Return the name of the state in the arguments and outputs of a module's forward, if it has one."""
    parameters = forward_parameters(module)
    return next((name for name in STATE_NAMES if name in parameters), None)


def ids_name(module: torch.nn.Module) -> str:
    """Return the name of the argument for token ids (B, T) in a module's forward.

    Ids are passed by keyword, as in transformers: hooks registered `with_kwargs` expect `input_ids`.
    A custom forward may have another name for its first argument.
    """
    parameters = forward_parameters(module).values()
    names = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return names[0] if names and "input_ids" not in names else "input_ids"


def probe_ids(model: torch.nn.Module, length: int, first: int = 1) -> torch.Tensor:
    """Return a row of test token ids (T,).

    Args:
        first: offset that selects different tokens.
    """
    size = num_embeddings(model) or length + 1
    spread = torch.arange(first, first + length) * max(1, size // (length + 2)) % size
    return spread.to(input_device(model))


# --- number formats -------------------------------------------------------------------------------


def number_format(model: torch.nn.Module) -> str:
    """Describe a model's number formats: quantisation, dtypes, autocast, precision of products."""
    parameters = parameters_of(model)
    dtypes = [dtype for dtype in {p.dtype for p in parameters} if dtype.is_floating_point]
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes] or ["float32"]
    parts = [*quantisation(model, parameters), *sorted(names)]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            parts.append(f"autocast({device},{dtype})")
    for place, autocast in _autocasts_within(model):
        dtype = str(autocast.fast_dtype).removeprefix("torch.") if autocast._enabled else "off"
        parts.append(f"autocast({','.join(filter(None, (autocast.device, dtype, place)))})")
    parts = list(dict.fromkeys(parts))
    if matmul_precision() != "highest":
        parts.append(f"matmul({matmul_precision()})")
    if torch.get_default_dtype() != torch.float32:  # in which some models count positions
        parts.append(f"default({str(torch.get_default_dtype()).removeprefix('torch.')})")
    parts += reductions()
    if not float(torch.tensor(1e-39, dtype=torch.float32) * 1):  # by `torch.set_flush_denormal`
        parts.append("flush")
    return "+".join(parts)


def _autocasts_within(model: torch.nn.Module) -> list[tuple[str, torch.autocast]]:
    """List what casts within forwards, by module, outermost first, as accelerate's mixed precision does."""
    found: list[tuple[str, torch.autocast]] = []
    for name, module in named_modules(model):
        function = vars(module).get("forward")
        function = getattr(function, "__func__", function)
        while function is not None:
            for cell in getattr(function, "__closure__", None) or ():
                with suppress(ValueError):  # an empty cell
                    if isinstance(cell.cell_contents, torch.autocast):
                        found.append((name, cell.cell_contents))
            function = getattr(function, "__wrapped__", None)
    return found


def matmul_precision() -> str:
    """Return the precision of float32 matrix products: "highest" unless set otherwise."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer API of torch 2.9, for each kind of device
        backends: Any = (torch.backends.cuda, torch.backends.mkldnn)
        names = {backend.matmul.fp32_precision for backend in backends}
        return "+".join(sorted(names - {"none", "ieee"})) or "highest"


def reductions() -> list[str]:
    """Return the names of settings for sums in half precision that are not torch's defaults."""
    of_attention = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", None)
    changed = ["sdp(reduced)"] if of_attention is not None and of_attention() else []
    products = torch.backends.cuda.matmul
    for name, default in REDUCTIONS.items():
        if (value := getattr(products, name, default)) != default:
            changed.append(f"{name.removeprefix('allow_')}({value})")
    return changed


def quantisation(
    model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter] | None = None
) -> list[str]:
    """Return the quantisation methods of a model's weights, with their bits.

    Args:
        parameters: parameters of the model, if already listed.
    """
    settings: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    if hasattr(settings, "to_dict"):
        settings = settings.to_dict()
    if settings:
        method = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
        bits = settings.get("bits") or settings.get("w_bit")
        for size in (4, 8):
            bits = size if settings.get(f"load_in_{size}bit") else bits
        kind = settings.get("bnb_4bit_quant_type") if bits == 4 else settings.get("quant_type")
        return ["-".join(str(part) for part in (method, bits and f"{bits}bit", kind) if part)]
    parameters = parameters_of(model) if parameters is None else parameters
    special = [p for p in parameters if type(p) is not torch.nn.Parameter]
    kinds = {type(p.data).__name__ for p in special} - {"Tensor", "Parameter"}
    kinds |= {type(p).__name__ for p in special if type(p).__module__.startswith("bitsandbytes")}
    if any(".quantized." in kind.__module__ for kind in set(map(type, modules_of(model)))):
        kinds.add("torch.ao")
    return sorted(kinds)


def precision(model: torch.nn.Module) -> torch.dtype:
    """Return the coarsest dtype of a model's computations.

    Quantised layers that round a whole batch to one scale count as bfloat16.
    """
    for _, autocast in _autocasts_within(model):
        if autocast._enabled:
            return autocast.fast_dtype
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    parameters = parameters_of(model)
    dtypes = {p.dtype for p in parameters}
    if torch.bfloat16 in dtypes or quantisation(model, parameters):
        return torch.bfloat16
    return torch.float16 if torch.float16 in dtypes else torch.float32


def implementations(config: object) -> tuple[str | None, str | None]:
    """Return the chosen implementations of attention and of mixtures of experts; None for a default."""
    names = ("_attn_implementation", "_experts_implementation")
    attention, experts = (getattr(config, name, None) for name in names)
    return attention, experts


def has_experts(model: torch.nn.Module) -> bool:
    """Return whether a model is a mixture of experts, of whose implementations transformers has several."""
    can_choose = getattr(model, "_can_set_experts_implementation", None)
    return can_choose is not None and bool(can_choose())


def selects_keys(model: torch.nn.Module) -> bool:
    """Return whether layers select the keys that they attend to, as an indexer of sparse attention does.

    They break ties otherwise in passes of other lengths, or in other batches.
    """
    return any(
        "Indexer" in type(module).__name__ or "keep_window_size" in vars(module)  # of Doge
        for module in modules_of(model)
    )


def must_read_alone(model: torch.nn.Module) -> bool:
    """Return whether a pass must be read alone, and its scores depend on all of its tokens.

    Quantised layers may round each token by what is in the whole batch, XLM masks as many of the last
    positions as a row has padding tokens, and in BLT the end of a pass closes a patch of limited length.
    """
    return any(
        ".quantized.dynamic." in type(module).__module__
        or _splits_columns(module)
        or "pad_index" in vars(module)  # of XLM and FlauBERT
        or getattr(vars(module).get("config"), "max_patch_length", None) is not None  # of BLT
        or any(map(_rounds_whole, module._parameters.values()))
        for module in modules_of(model)
    )


def _splits_columns(module: torch.nn.Module) -> bool:
    """Return whether bitsandbytes leaves columns unrounded in which any token has an outlier."""
    is_int8 = type(module).__name__ == "Linear8bitLt"
    return is_int8 and getattr(vars(module).get("state"), "threshold", 0) > 0


def _rounds_whole(weight: object) -> bool:
    """Return whether what a weight of torchao is multiplied by is rounded to one scale."""
    granularity = getattr(getattr(weight, "act_quant_kwargs", None), "granularity", None)
    return type(granularity).__name__ == "PerTensor"


def grows_frequencies(model: torch.nn.Module) -> bool:
    """Return whether rotary frequencies depend on the length of a pass.

    The setting is in the configuration, that of the language part, or a module; it may differ by kind
    of layer.
    """
    configs = (getattr(model, "config", None), text_config(model))
    names = ("rope_parameters", "rope_scaling")
    settings = (getattr(config, name, None) for config in configs for name in names)
    return any(map(_names_growth, settings)) or any(map(is_growing_rotary, modules_of(model)))


def is_growing_rotary(module: torch.nn.Module) -> bool:
    """Return whether a module is a rotary embedding whose frequencies depend on the pass."""
    # `getattr` of a missing attribute of a module is slow.
    kind = vars(module).get("rope_type") or getattr(type(module), "rope_type", None)
    return _names_growth(kind)


def _names_growth(settings: object) -> bool:
    return settings is not None and any(kind in str(settings) for kind in GROWING_ROTARY)


# --- code -----------------------------------------------------------------------------------------


def is_known(function: Callable) -> bool:
    """Return whether a function belongs to a package whose code the digests cover."""
    return package_of(defining_module(function)) in KNOWN_PACKAGES


def defining_module(function: Callable) -> str:
    """Return the name of the module that defines a function or another callable.

    Wrappers of a library are unwrapped; custom ones are not, as they may do anything.
    """
    modules = list(_modules_of(function))
    foreign = [module for module in modules if not is_of_library(module)]
    known = [module for module in modules if package_of(module) in KNOWN_PACKAGES]
    return [*foreign, *known, *modules][0]


def _modules_of(function: Any) -> Iterator[str]:
    """Yield the modules of a function and of the functions that it wraps, the outermost first."""
    while function is not None:
        while isinstance(function, WRAPPERS):
            is_bound = isinstance(function, MethodType | staticmethod)
            function = getattr(function, "__func__" if is_bound else "func")
        module = None
        if isinstance(function, FunctionType):
            module = function.__globals__.get("__name__")
        elif isinstance(function, BuiltinFunctionType | type):
            module = function.__module__
        # An object may have copied its own `__module__` from the function that it wraps.
        yield module or type(function).__module__
        function = vars(function).get("__wrapped__") if hasattr(function, "__dict__") else None


def is_of_library(module: str) -> bool:
    return package_of(module) in LIBRARIES


def package_of(module: str) -> str:
    return module.partition(".")[0]


class LibraryCode:
    """The functions, tables of functions and numbers that code of torch and transformers uses.

    They are compared by identity.  Packages with faster layers, and others, replace them.

    Args:
        classes: the libraries' classes in a model.

    Attributes:
        is_foreign: whether some of it was written elsewhere, and may act otherwise the next time.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        own = _modules_with(classes)
        modules = _modules_behind(own)
        places = [*OF_TORCH, *classes, *_helpers(own), *modules]
        registries = [registry for module in modules for registry in _registries(module)]
        self._spaces: list[tuple] = []
        # A custom function may reference a model, so only a weak reference is kept.
        self._weak: list[tuple] = []
        self.is_foreign = False
        spaces = [*map(vars, places), *registries]
        for space in {id(space): space for space in spaces}.values():
            found = {n: v for n, v in list(space.items()) if _is_used(v) and n not in UNUSED}
            written = [name for name in found if not str(name).startswith(COMPILED)]
            foreign = [name for name in written if _is_foreign(found[name])]
            self.is_foreign |= bool(foreign)
            tables = [name for name in found if _is_table(found[name])]
            weak = [name for name in foreign + tables if type(found[name]).__weakrefoffset__]
            self._weak += [(space, name, weakref.ref(found.pop(name))) for name in weak]
            self._spaces.append((space, _size(space), list(found), list(found.values())))

    def is_unchanged(self) -> bool:
        """Return whether all names still refer to the same objects."""
        return all(
            _size(space) == size and all(map(operator.is_, map(space.get, names), functions))
            for space, size, names, functions in self._spaces
        ) and all(space.get(name) is value() for space, name, value in self._weak)


def _size(space: Mapping) -> int:
    """Count the names of a class or module, without the one that copying an object writes."""
    return len(space) - ("__slotnames__" in space)


def library_code(classes: frozenset[type]) -> LibraryCode:
    """Return the libraries' code behind classes; the same object while it is unchanged."""
    known = _CODE.get(classes)
    if known is None or not known.is_unchanged():
        known = _CODE[classes] = LibraryCode(classes)
    return known


def is_under_a_mode() -> bool:
    """Return whether functions of torch run under a mode, which may replace them."""
    return bool(torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack())


def calls_own_code(module: torch.nn.Module) -> bool:
    """Return whether a module is of no library, or has a function or a hook of none in itself."""
    own = vars(module)
    return (
        package_of(type(module).__module__) not in KNOWN_PACKAGES
        or any(
            isinstance(own[name], OWN_KINDS) and not is_known(own[name])
            for name in own_names(module)
        )
        or not has_known_hooks(module)
    )


def holds_own_tensors(modules: Modules) -> bool:
    """Return whether a weight is of no library's type of tensors: such a type may calculate anything."""
    kinds: set[type] = set()
    for _, module in modules:
        for table in (module._parameters, module._buffers):
            if table:
                kinds.update(map(type, table.values()))
    kinds.discard(type(None))
    return any(package_of(kind.__module__) not in KNOWN_PACKAGES for kind in kinds)


def is_moved(module: torch.nn.Module) -> bool:
    """Return whether accelerate has replaced a module's forward only to load its weights first."""
    own = vars(module)
    return (
        "_hf_hook" in own
        and "forward" in own
        and is_known(own["forward"])
        and has_known_hooks(module)
    )


def has_known_hooks(module: torch.nn.Module) -> bool:
    """Return whether the hooks that accelerate runs around a module's forward, if any, are its own."""
    waiting = [vars(module).get("_hf_hook")]
    while waiting:
        hook = waiting.pop()
        if hook is not None and package_of(type(hook).__module__) not in KNOWN_PACKAGES:
            return False
        waiting += getattr(hook, "hooks", ())  # one after the other
    return True


def _modules_with(classes: Iterable[type]) -> set[str]:
    """Return the names of classes' modules; PEFT has variants of its layers in modules beside."""
    names = {c.__module__ for c in classes}
    of_layers = [name for name in names if name.startswith("peft.tuners.") and name.count(".") > 2]
    folders = {name.rpartition(".")[0] for name in of_layers}
    return names | {name for name in list(sys.modules) if name.rpartition(".")[0] in folders}


def _modules_behind(names: set[str]) -> list[ModuleType]:
    """List modules by their names, and the modules of transformers and PEFT whose code they use."""
    newest = names
    for _ in range(MODULES_DEEP):
        values = (value for name in newest for value in list(vars(sys.modules[name]).values()))
        modules = {getattr(v, "__module__", None) for v in values if isinstance(v, NAMED)}
        found = {m for m in modules if m in sys.modules and _may_run(m)}
        newest = found - names
        names = names | found
    return [sys.modules[name] for name in sorted(names)]


def _may_run(module: str) -> bool:
    """Return whether a forward may run code of a module of transformers or PEFT."""
    return package_of(module) in ("transformers", "peft") and not module.startswith(NEVER_RUN)


def _helpers(names: set[str]) -> list[type]:
    """List the classes besides layers that the code of Python modules uses, such as caches.

    PEFT also makes layers while it runs, such as the sum of a parameter and its adapter.
    """
    modules = [sys.modules[name] for name in sorted(filter(_may_run, names))]
    used = [value for module in modules for value in list(vars(module).values())]
    kept_elsewhere = (torch.nn.Module, PretrainedConfig)
    return [
        value
        for value in dict.fromkeys(v for v in used if isinstance(v, type))
        if _may_run(value.__module__)
        and (package_of(value.__module__) == "peft" or not issubclass(value, kept_elsewhere))
    ]


def _registries(module: ModuleType) -> list[dict]:
    """List the tables in which a module's code looks up functions by name."""
    values = [value for name, value in vars(module).items() if not name.startswith("__")]
    kept = [getattr(value, "_global_mapping", value) for value in values]
    kept += [getattr(value, "_local_mapping", None) for value in values]
    return [table for table in kept if type(table) is dict and any(map(callable, table.values()))]


def _is_used(value: object) -> bool:
    """Return whether code may use a value: a function, one that is missing, a table or a constant."""
    return callable(value) or isinstance(value, FIXED) or value is None or _is_table(value)


def _is_table(value: object) -> bool:
    """Return whether a value is one of transformers' tables of functions by name."""
    return hasattr(type(value), "_global_mapping")


def _is_foreign(value: object) -> bool:
    """Return whether a function or callable object is of no library and none of its dependencies."""
    if not callable(value) or isinstance(value, type | BuiltinFunctionType):
        return False
    packages = set(map(package_of, _modules_of(value))) - LIBRARIES
    return any(
        # Python writes the `__new__` of a named tuple in a module of its own
        not (package in DEPENDENCIES or package.startswith("namedtuple_"))
        for package in packages
    )
