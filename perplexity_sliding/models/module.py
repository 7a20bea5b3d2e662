"""Inspect a torch module: its inputs and tables, the arguments of its forward, its number formats."""

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PretrainedConfig

# Kinds of rotary embeddings whose frequencies depend on the length of the pass.
GROWING_ROTARY = ("dynamic", "longrope")
# Names of the modules that hold absolute positions: of GPT-2, OPT, BERT and their kin.
POSITION_TABLES = (
    "wpe", "embed_positions", "position_embeddings", "position_embedding", "positions_embed",
    "pos_encoding",
)  # fmt: skip
_TABLES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Names of a model's state; `cache` is that of all models from transformers 5.24 on.
STATE_NAMES = ("cache", "past_key_values", "cache_params", "state")
# Parameters of forward methods, which take long to inspect.
_PARAMETERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def modules_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """List a model's modules, several times as fast as `model.modules()`."""
    found: dict[torch.nn.Module, None] = {}
    waiting: list[Any] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            if module._modules:  # most have none
                waiting.extend(reversed(module._modules.values()))
    return list(found)


# --- inputs ---------------------------------------------------------------------------------------


def text_config(model: torch.nn.Module) -> PretrainedConfig | None:
    """Return the configuration of the language part; multimodal models nest it."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def find_inputs(model: Any) -> tuple[torch.nn.Module, torch.device, int | None]:
    """Find the module that reads token ids, else the model, its device, and an upper bound of ids."""
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        embeddings = None
    reader = model if embeddings is None else embeddings
    parameter: Any = next(reader.parameters(), None)
    # An offloaded model's weights are on "meta"; its hooks move the ids.
    offloaded = parameter is None or parameter.device.type == "meta"
    device = torch.device("cpu") if offloaded else parameter.device
    if hasattr(embeddings, "num_embeddings"):
        return reader, device, embeddings.num_embeddings
    return reader, device, getattr(text_config(model), "vocab_size", None)


def position_table(model: torch.nn.Module) -> int | None:
    """Return how many tokens the model's table of absolute positions has entries for, if it has one."""
    if model in _TABLES:
        return _TABLES[model]
    sizes = []
    for name, module in model.named_modules():
        if "vision" in name or "visual" in name:
            continue
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in POSITION_TABLES:
            # OPT and RoBERTa keep the first entries for themselves.
            padding = module.padding_idx
            kept = getattr(module, "offset", 0 if padding is None else padding + 1)
            sizes.append(module.num_embeddings - kept)
        for attribute in ("embed_positions", "pos_encoding"):  # GPT-J and CodeGen; CTRL
            table = vars(module).get(attribute, module._buffers.get(attribute))
            if isinstance(table, torch.Tensor) and table.ndim == 2:
                sizes.append(len(table))
    _TABLES[model] = min(sizes, default=None)
    return _TABLES[model]


# --- the forward ----------------------------------------------------------------------------------


def forward_parameters(module: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    function = getattr(module.forward, "__func__", module.forward)
    if function not in _PARAMETERS:
        _PARAMETERS[function] = inspect.signature(module.forward).parameters
    return _PARAMETERS[function]


def run_module(module: torch.nn.Module, ids: torch.Tensor, **further: Any) -> Any:
    """Return the output of a module's forward for token ids (B, T), by default without a cache.

    Ids are passed by keyword, as in transformers: hooks registered `with_kwargs` expect `input_ids`.
    """
    parameters = forward_parameters(module)
    name = "input_ids"
    if name not in parameters:  # a forward of somebody's own
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        name = next((p.name for p in parameters.values() if p.kind is positional), name)
    if "use_cache" in parameters:
        further.setdefault("use_cache", False)
    return module(**{name: ids}, **further)


def state_name(module: torch.nn.Module) -> str | None:
    """Return the name of the state in the arguments and outputs of a module's forward, if it has one."""
    parameters = forward_parameters(module)
    return next((name for name in STATE_NAMES if name in parameters), None)


@contextmanager
def evaluating(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Set modules to evaluation mode within the context, one by one: `eval` would merge some adapters."""
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


# --- frequencies that depend on the length of a pass ----------------------------------------------


def grows_frequencies(model: torch.nn.Module) -> bool:
    """Return whether the configuration says that rotary frequencies depend on the length of a pass."""
    config, of_text = getattr(model, "config", None), text_config(model)
    configs = (config,) if config is of_text else (config, of_text)
    names = ("rope_parameters", "rope_scaling")
    settings = [getattr(each, name, None) for each in configs for name in names]
    return any(kind in str(setting) for setting in settings for kind in GROWING_ROTARY)


def forget_lengths(rotaries: Sequence[Any]) -> None:
    """Reset the frequencies that rotary embeddings keep of long passes (transformers #25104, #27227)."""
    for rotary in rotaries:
        for name in [name for name in rotary._buffers if name.endswith("inv_freq")]:
            prefix = name.removesuffix("inv_freq")
            original = getattr(rotary, f"{prefix}original_inv_freq", None)
            if original is not None:
                rotary._buffers[name] = original.clone().to(rotary._buffers[name].device)
                setattr(rotary, f"{prefix}max_seq_len_cached", rotary.original_max_seq_len)


# --- number formats -------------------------------------------------------------------------------


def number_format(model: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> str:
    """Describe a model's number formats: quantisation, dtypes, autocast, precision of products."""
    parameters = parameters_of(modules)
    dtypes = {parameter.dtype for parameter in parameters}
    names = sorted(short_name(dtype) for dtype in dtypes if dtype.is_floating_point)
    parts = [*quantisation(model, modules, parameters), *(names or ["float32"])]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            parts.append(f"autocast({device},{short_name(torch.get_autocast_dtype(device))})")
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer API of torch 2.9, for each kind of device
        backends: Any = (torch.backends.cuda, torch.backends.mkldnn)
        set_to = {backend.matmul.fp32_precision for backend in backends}
        products = "+".join(sorted(set_to - {"none", "ieee"})) or "highest"
    if products != "highest":
        parts.append(f"matmul({products})")
    return "+".join(dict.fromkeys(parts))


def parameters_of(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Parameter]:
    own = (module._parameters.values() for module in modules if module._parameters)
    return [parameter for of_module in own for parameter in of_module if parameter is not None]


def short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def quantisation(
    model: torch.nn.Module,
    modules: Sequence[torch.nn.Module],
    parameters: Sequence[torch.nn.Parameter],
) -> list[str]:
    settings: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    settings = settings.to_dict() if hasattr(settings, "to_dict") else settings
    if settings:
        method = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
        bits = settings.get("bits") or settings.get("w_bit")
        for size in (4, 8):
            bits = size if settings.get(f"load_in_{size}bit") else bits
        kind = settings.get("bnb_4bit_quant_type") if bits == 4 else settings.get("quant_type")
        return ["-".join(str(part) for part in (method, bits and f"{bits}bit", kind) if part)]
    special = [p for p in parameters if type(p) is not torch.nn.Parameter]
    kinds = {type(p.data).__name__ for p in special} - {"Tensor", "Parameter"}
    kinds |= {type(p).__name__ for p in special if type(p).__module__.startswith("bitsandbytes")}
    if any(".quantized." in kind.__module__ for kind in set(map(type, modules))):
        kinds.add("torch.ao")
    return sorted(kinds)


def precision(model: torch.nn.Module) -> torch.dtype:
    """Return the coarsest dtype of a model's computations; quantised layers count as bfloat16."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    modules = modules_of(model)
    parameters = parameters_of(modules)
    dtypes = {p.dtype for p in parameters}
    if torch.bfloat16 in dtypes or quantisation(model, modules, parameters):
        return torch.bfloat16
    return torch.float16 if torch.float16 in dtypes else torch.float32
