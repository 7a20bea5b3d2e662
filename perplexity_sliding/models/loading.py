"""Load a causal language model and its tokenizer, and find its limit.

Anything that would silently give wrong numbers is refused: missing weights, encoder-decoders,
windows beyond the position table.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from packaging.version import Version
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file, is_peft_available
from transformers.utils.peft_utils import find_adapter_config_file

from ..errors import ArgumentError, ArgumentTypeError, Wording
from ..plan.windows import ContextLimit
from .identity import check_repeatable
from .interface import LARGEST_LIMIT
from .module import position_table, text_config

CONFIGS = ("config.json", "adapter_config.json")
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", *CONFIGS)
SECONDS = 10

# Attributes under which configurations state how many tokens the model was built for.
LIMIT_NAMES = (
    "max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len",
    "max_sequence_length", "max_target_positions", "model_max_length",
)  # fmt: skip
# Attributes that a tokenizer shares with its model if both are from the same repository.
SHARED_KWARGS = (
    "revision", "token", "trust_remote_code", "cache_dir", "local_files_only", "subfolder",
    "gguf_file",
)  # fmt: skip
# Those of them that say where to look for a single file.
FILE_KWARGS = tuple(k for k in SHARED_KWARGS if k not in ("trust_remote_code", "gguf_file"))
# Arguments of from_pretrained by which other weights are loaded than the commit's usual ones.
OTHER_WEIGHTS = {"use_safetensors", "key_mapping", "state_dict"}
# Wrappers of torch that call the model inside them and nothing else.
WRAPPERS = (
    torch.nn.DataParallel,
    torch.nn.parallel.DistributedDataParallel,
    torch.optim.swa_utils.AveragedModel,
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# transformers exchanges functions of torch while it builds a model: two at a time get random weights.
LOADING = threading.RLock()


def resolve_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if not isinstance(device, str | torch.device):
        raise ArgumentTypeError("device", "be a string such as 'cpu' or 'cuda:0'", got=repr(device))
    try:
        resolved = torch.device("cuda" if device == "gpu" else device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            "device",
            "be a device of this machine, such as 'cpu', 'cuda:0' or 'mps'",
            got=repr(device),
            advice="Leave `device` out to choose automatically.",
        ) from error
    return resolved


def resolve_dtype(dtype: str | torch.dtype | None, argument: str = "dtype") -> torch.dtype | str:
    if dtype is None:  # as the stock metric; transformers 5 would take that of the checkpoint
        return torch.float32
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if dtype == "auto" or dtype in DTYPES.values():
        return dtype
    raise ArgumentError(
        argument,
        "be 'auto', 'float32', 'bfloat16', 'float16' or the torch dtype of that name",
        got=repr(dtype),
    )


def load_tokenizer(
    model_id: str, model_kwargs: dict, argument: str = "model_id"
) -> PreTrainedTokenizerBase:
    """Load the tokenizer from the same source as the model, by the arguments that they share."""
    shared = {key: model_kwargs[key] for key in SHARED_KWARGS if key in model_kwargs}
    kwargs = {"trust_remote_code": False} | shared
    advice = ". Pass one as `tokenizer`." if argument == "model_id" else ""
    name = f"The tokenizer of `{argument}`={model_id!r}"
    with _loading(name, advice):
        try:
            tokenizer = _read_tokenizer(model_id, kwargs)
        except Exception:
            base = base_of_adapter(model_id, shared)
            if base is None:
                raise
            elsewhere = {"trust_remote_code": kwargs["trust_remote_code"]}
            tokenizer = _read_tokenizer(base, elsewhere)
    check_repeatable(tokenizer, name)
    return tokenizer


def _read_tokenizer(name: str, kwargs: dict) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        # transformers creates one from the architecture's name if a folder has none.
        raise ValueError("no tokenizer files found, or an empty vocabulary")
    return tokenizer


def load_model(
    model_id: str,
    device: torch.device | None,
    dtype: torch.dtype | str | None,
    model_kwargs: dict,
    argument: str = "model_id",
) -> torch.nn.Module:
    """Load a causal language model with all of its weights, on its device.

    Args:
        device, dtype: None if `model_kwargs` (device_map, quantization_config) set them.
    """
    name = f"`{argument}`={model_id!r}"
    kwargs = {"trust_remote_code": False} | model_kwargs
    if dtype is not None:
        # Renamed in transformers 4.56.
        is_renamed = Version(transformers.__version__) >= Version("4.56")
        kwargs["dtype" if is_renamed else "torch_dtype"] = dtype
    with _loading(name):
        base = base_of_adapter(model_id, kwargs)
        if base and not is_peft_available():
            raise ValueError("it is an adapter, which requires the package peft: pip install peft")
        of_adapter = {"revision", "subfolder"} if base else set()
        of_base = {key: kwargs[key] for key in kwargs.keys() - of_adapter}
        config = kwargs.get("config") or base or model_id
        if isinstance(config, str | os.PathLike):
            shared = {key: of_base[key] for key in SHARED_KWARGS if key in of_base}
            config = AutoConfig.from_pretrained(os.fspath(config), **shared)
    check_decoder(config, name)
    with _loading(name):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            base or model_id, output_loading_info=True, **of_base
        )
        model, report = loaded
        if base is not None:
            model = _add_adapter(model, model_id, kwargs)
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise ValueError(
            f"{name} must have all weights of its architecture, but {len(missing)} are missing or "
            f"have another shape (first: {missing[0]}); they would be random numbers. Check that "
            "the checkpoint is complete and matches its config.json."
        )
    model.eval()
    is_placed = getattr(model, "hf_device_map", None) or getattr(model, "is_quantized", False)
    if device is None or is_placed:
        return model
    with _loading(name):
        return model.to(device)


def _add_adapter(model: Any, adapter: str, kwargs: dict) -> torch.nn.Module:
    from peft import PeftModel
    from peft.utils import load_peft_weights

    where = {key: kwargs[key] for key in FILE_KWARGS if key in kwargs}
    weights = load_peft_weights(adapter, device="cpu", **where)
    names = [key for key in weights if re.search(r"(emb|wte|head)(?!.*lora_).*\.weight$", key)]
    rows = max((len(weights[key]) for key in names), default=0)
    if rows and rows != len(model.get_input_embeddings().weight):
        # for tokens of its own: the adapter's file has all rows
        model.resize_token_embeddings(rows)
    adapted = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False, **where)
    return unwrapped(adapted)


def base_of_adapter(model_id: str, kwargs: dict) -> str | None:
    """Return the name of an adapter's base model; None for a complete model."""
    where = {key: kwargs[key] for key in FILE_KWARGS if key in kwargs}
    path = find_adapter_config_file(model_id, **where)
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file).get("base_model_name_or_path")


def files_state(model_id: str, model_kwargs: dict) -> list[tuple]:
    """List the sizes and times of a local model's files, also of an adapter's base and of arguments."""
    base = base_of_adapter(model_id, {}) if os.path.isdir(model_id) else None
    places = [
        Path(place).absolute()
        for place in (*parts_of(model_id), base, *model_kwargs.values())
        if isinstance(place, str | os.PathLike) and os.path.exists(place)
    ]
    inside = [file for place in places for file in (place, *place.glob("*"), *place.glob("*/*"))]
    states = [(file, file.stat()) for file in inside if file.is_file()]
    return sorted((str(file), state.st_size, state.st_mtime_ns) for file, state in states)


def parts_of(path: str) -> list[str]:
    """List all files of a model that is split into several of GGUF, given the first."""
    found = re.fullmatch(r"(.*-)00001(-of-(\d{5})\.gguf)", path)
    if found is None:
        return [path]
    return [f"{found[1]}{number:05}{found[2]}" for number in range(1, int(found[3]) + 1)]


def find_commit(model_id: str, model_kwargs: dict) -> str | None:
    """Return the commit of a model of the Hub, from its path in the Hub's cache."""
    if OTHER_WEIGHTS & set(model_kwargs) or os.path.isdir(model_id):
        return None
    kwargs = {key: model_kwargs[key] for key in FILE_KWARGS if key in model_kwargs}
    path = cached_file(
        model_id, "config.json", _raise_exceptions_for_missing_entries=False, **kwargs
    )
    commit = re.search(r"snapshots[/\\]([0-9a-f]{40})[/\\]", str(path or ""))
    return commit[1] if commit else None


def unwrapped(model: Any) -> torch.nn.Module:
    """Return the model inside wrappers for compilation, data parallelism, averages or adapters."""
    if hasattr(model, "_orig_mod"):  # torch.compile
        return unwrapped(model._orig_mod)
    if isinstance(model, WRAPPERS):
        return unwrapped(model.module)
    if hasattr(model, "get_base_model"):  # PEFT
        settings = getattr(model, "peft_config", {}).values()
        # accelerate's mixed precision casts in the forward that it is given.
        is_prepared = "forward" in vars(model)
        acts_itself = any(  # prompts, and the weights of X-LoRA's experts
            getattr(adapter, "is_prompt_learning", False)
            or getattr(adapter, "peft_type", None) == "XLORA"
            for adapter in settings
        )
        if not is_prepared and not acts_itself:
            return unwrapped(model.get_base_model())
    return model


def gather_once(model: torch.nn.Module) -> None:
    """Let FSDP 2 allocate its buffers outside torch's inference mode; others cannot be written to later."""
    shards = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, shards):
                    module.unshard()
                    module.reshard()


def check_decoder(config: object, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} must be a causal (decoder-only) language model, got the encoder-decoder "
            f"architecture {getattr(config, 'model_type', '?')!r}."
        )


def context_limit(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> ContextLimit:
    """Return the model's limit: from its configuration, else from its tokenizer."""
    config = text_config(model)
    stated = chain(
        (getattr(config, name, None) for name in LIMIT_NAMES),
        [getattr(tokenizer, "model_max_length", None)],
    )
    usable = (int(n) for n in stated if isinstance(n, int | float) and 0 < n < LARGEST_LIMIT)
    limit, table = next(usable, None), position_table(model)
    # A position table is a limit even if the configuration does not state it.
    return ContextLimit(min((n for n in (limit, table) if n), default=None), table)


@contextmanager
def _loading(name: str, advice: str = "") -> Iterator[None]:
    """Load one at a time; convert any failure to a ValueError that names the model or tokenizer."""
    try:
        with LOADING:
            yield
    except MemoryError:
        raise
    except Exception as error:  # transformers, safetensors and remote code raise any
        if "trust_remote_code" in str(error):
            advice = ". To run the code in its repository, pass it in `model_kwargs`."
        raise ValueError(f"{name} could not be loaded: {error}{advice}") from error


def check_exists(
    model_id: str, model_kwargs: dict, argument: str, files: Sequence[str] = CONFIGS
) -> None:
    """Refuse what is neither the folder of a model nor its name on the Hub, by a single request.

    Without a network, the Hub's client would retry each file for minutes.

    Args:
        files: a model is cached if one of these files is.
    """
    weights = sorted(Path(model_id).glob("*.gguf"))
    if weights and "gguf_file" not in model_kwargs and not Path(model_id, CONFIGS[0]).is_file():
        raise ArgumentError(
            argument,
            "be a folder with a config.json",
            got=repr(model_id),
            advice=f"Pass {str(weights[0])!r} to read that file with llama.cpp, or its name as "
            "'gguf_file' in `model_kwargs` to read it with transformers.",
        )
    if os.path.isdir(model_id):
        return
    is_path = os.path.isabs(model_id) or model_id.startswith((".", "~")) or model_id.count("/") > 1
    if is_path or os.path.isfile(model_id):
        raise ArgumentError(
            argument,
            "be a folder or a name on the Hub",
            got=f"{'the file' if os.path.isfile(model_id) else 'no folder'} {model_id!r}",
            advice="Pass the folder with the weights, config.json and the tokenizer; a leading ~ is "
            "not expanded.",
        )
    if model_kwargs.get("local_files_only"):
        return
    place = {key: model_kwargs[key] for key in ("revision", "cache_dir") if key in model_kwargs}
    try:
        for name in files:
            if isinstance(huggingface_hub.try_to_load_from_cache(model_id, name, **place), str):
                return
        huggingface_hub.HfApi().model_info(
            model_id, timeout=SECONDS, token=model_kwargs.get("token")
        )
        return
    except GatedRepoError:  # loading gives a better error
        return
    except (RepositoryNotFoundError, HFValidationError):
        said = "does not exist: it is not a local folder, not on the Hub, or private"
    except HfHubHTTPError:
        return
    except Exception:  # no network, no name server, a proxy: exceptions differ by version
        said = "was never downloaded, and the Hub is not reachable: check the name and the network"
    raise ValueError(Wording(f"`{argument}`={model_id!r} {said}."))
