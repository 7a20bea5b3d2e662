"""Which models a call names, by name or live, and those that stay open for the next call."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

import torch
from transformers import PreTrainedTokenizerBase

from .model import LanguageModel
from .model_gguf import GGUFModel, is_gguf, open_gguf
from .model_loading import files_state, resolve_device, resolve_dtype, snapshot
from .model_served import ServedModel, open_served
from .model_server import is_address
from .request_checks import WITHOUT_ADAPTER
from .text_tokenization import check_tokenizer

# Whatever scores can be had of, by logits or by columns.
AnyModel = LanguageModel | ServedModel | GGUFModel

# What a dictionary may hold that is passed as `reference`.
REFERENCE_KEYS = ("model_id", "model", "tokenizer", "dtype", "model_kwargs", "states")


def open_model(
    model_id: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    model_kwargs: dict | None = None,
    tokenizer_kwargs: dict | None = None,
    argument: str = "model_id",
) -> AnyModel:
    """Open the model of a name: behind an address, in a GGUF file, on the Hub, or in a folder.

    See `LanguageModel.open`, `open_served` and `open_gguf`.
    """
    opener = open_served if is_address(model_id) else open_gguf if is_gguf(model_id) else None
    if opener is not None:
        check_elsewhere(model_id, device, dtype)
        return opener(model_id, tokenizer, model_kwargs, tokenizer_kwargs, argument)
    return LanguageModel.open(
        model_id, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs, argument
    )


def check_elsewhere(
    model_id: str, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> None:
    """Refuse to say where and in what a model runs that transformers does not load.

    Raises:
        ValueError: it is said.
    """
    for name, value in (("device", device), ("dtype", dtype)):
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out with {model_id!r}, got {value!r}: a server runs as it was "
                "told to, and a GGUF file as `model_kwargs` say (n_gpu_layers)."
            )


def adopt_model(
    model: object,
    tokenizer: PreTrainedTokenizerBase,
    argument: str = "model",
    tokenizer_argument: str = "tokenizer",
) -> AnyModel:
    """Take a live model as it is; see `LanguageModel.adopt`."""
    return LanguageModel.adopt(model, tokenizer, argument, tokenizer_argument)


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model by name or live, with what it takes to open it.

    Attributes:
        model_id: a name on the Hub or a folder; None for a live model.
        model: a live model.
        tokenizer: the tokenizer of `model`, or one in the place of that of `model_id`.
        device, dtype: where and in what to load.
        model_kwargs, tokenizer_kwargs: further arguments of `from_pretrained`.
        role: what the model is to the call: "model", "reference" or "evaluator".
    """

    model_id: str | None = None
    model: object = None
    tokenizer: object = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    model_kwargs: dict | None = None
    tokenizer_kwargs: dict | None = None
    role: str = "model"

    def named(self, attribute: str) -> str:
        """Name one of the attributes as the argument that the caller gave."""
        if self.role == "model":
            return attribute
        is_model = attribute in ("model_id", "model")
        return self.role if is_model else f"{self.role}[{attribute!r}]"

    def key(self) -> tuple:
        """Return what tells whether the model that is open is still the one that is named."""
        return (
            self.model_id,
            self.tokenizer,
            snapshot([self.device, self.dtype, self.model_kwargs, self.tokenizer_kwargs]),
            files_state(self.model_id, self.model_kwargs or {}, self.tokenizer_kwargs or {}),
        )

    def open(self) -> LanguageModel:
        """Load the model of the name, or adopt the live one.

        Raises:
            TypeError, ValueError: it is no complete causal language model.
        """
        if self.model is not None:
            names = self.named("model"), self.named("tokenizer")
            return adopt_model(self.model, self.tokenizer, *names)
        return open_model(
            *(self.model_id, self.tokenizer, self.device, self.dtype),
            *(self.model_kwargs, self.tokenizer_kwargs, self.named("model_id")),
        )


@dataclass(frozen=True, eq=False)
class ReferenceSource:
    """What a model is compared with.

    Attributes:
        source: the second model; None for the first one without its adapters.
        states: a file for its last hidden states, where two models do not fit in memory.
    """

    source: ModelSource | None
    states: str | PathLike | None = None


class OpenModels:
    """Models that stay open from call to call: one for each role that a model has in a call."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[tuple, LanguageModel]] = {}

    def open(self, source: ModelSource) -> LanguageModel:
        """Adopt the live model, or load the named one unless it is open in this role."""
        if source.model is not None:
            return source.open()
        if source.tokenizer is not None:
            check_tokenizer(source.tokenizer, source.named("tokenizer"))
        key = source.key()
        if source.role not in self._opened or self._opened[source.role][0] != key:
            # refused before the model in memory is given up
            resolve_device(source.device)
            resolve_dtype(source.dtype, source.named("dtype"))
            self.close(source.role)
            self._opened[source.role] = key, source.open()
        return self._opened[source.role][1]

    def close(self, role: str) -> None:
        """Give up the model of a role: its memory is needed, or nobody can use what is left of it."""
        self._opened.pop(role, None)


def check_model_source(source: ModelSource) -> ModelSource:
    """Check that exactly one of a name and a live model is given, and only what goes with it."""
    if (source.model_id is None) == (source.model is None):
        got = "neither" if source.model_id is None else "both"
        raise ValueError(f"`model_id` or `model` must be given, and only one of them, got {got}.")
    for name in ("model_kwargs", "tokenizer_kwargs"):
        value = getattr(source, name)
        if value is not None and not isinstance(value, dict):
            raise TypeError(
                f"`{source.named(name)}` must be a dict of from_pretrained arguments, got {value!r}."
            )
    if source.model is None:
        _check_named(source)
    else:
        _check_live(source)
    return source


def _check_named(source: ModelSource) -> None:
    if not isinstance(source.model_id, str) or not source.model_id:
        raise TypeError(
            f"`{source.named('model_id')}` must be the name of a model on the Hub or a folder, got "
            f"{source.model_id!r}. Pass a loaded model as `{source.named('model')}`."
        )
    for name, same in (("device", ("device_map",)), ("dtype", ("dtype", "torch_dtype"))):
        value = getattr(source, name)
        said_twice = [key for key in same if key in (source.model_kwargs or {})]
        if value is not None and said_twice:
            raise ValueError(
                f"`{source.named(name)}` must be left out when `{source.named('model_kwargs')}` holds "
                f"{said_twice[0]!r}, got {value!r}."
            )


def _check_live(source: ModelSource) -> None:
    if source.tokenizer is None and source.role == "model":
        raise ValueError("`tokenizer` must be given with `model`, got None.")
    for name in ("device", "dtype", "model_kwargs", "tokenizer_kwargs"):
        value = getattr(source, name)
        if value is not None:
            raise ValueError(
                f"`{source.named(name)}` must be left out with `{source.named('model')}`, "
                f"which is used as it is, got {value!r}. Prepare the model before passing it."
            )


def check_reference(
    reference: object, model: ModelSource, distributed: bool
) -> ReferenceSource | None:
    """Return what the model is compared with, if anything.

    Args:
        reference: a name or folder, a live model, "without adapter", or a dictionary with some of
            `REFERENCE_KEYS`.
        model: lends a reference that is named its device and dtype.
    """
    if reference is None:
        return None
    if reference == WITHOUT_ADAPTER and isinstance(reference, str):
        return ReferenceSource(None)
    given = _as_dictionary(reference)
    states = given.pop("states", None)
    is_live = given.get("model") is not None
    defaults = {} if is_live else {"device": model.device, "dtype": model.dtype}
    given = {name: value for name, value in given.items() if value is not None}
    check_model_source(ModelSource(**given, role="reference"))
    if {"dtype", "torch_dtype"} & set(given.get("model_kwargs") or {}):
        defaults.pop("dtype", None)
    source = ModelSource(**(defaults | given), role="reference")
    if states is not None:
        _check_states(states, is_live, distributed)
    return ReferenceSource(source, states)


def _as_dictionary(reference: object) -> dict:
    if isinstance(reference, str):
        return {"model_id": reference}
    if not isinstance(reference, Mapping):
        if not callable(reference) and not hasattr(reference, "generate"):
            raise TypeError(
                "`reference` must be the name of a model on the Hub, a folder, a loaded model, "
                f"{WITHOUT_ADAPTER!r}, or a dictionary of these, got {reference!r}."
            )
        return {"model": reference}
    unknown = [name for name in reference if name not in REFERENCE_KEYS]
    if unknown or ((reference.get("model_id") is None) == (reference.get("model") is None)):
        raise ValueError(
            f"`reference` must be a dictionary with one of model_id and model, and with no others "
            f"than {', '.join(REFERENCE_KEYS)}, got {', '.join(map(str, reference))}."
        )
    return dict(reference)


def _check_states(states: object, is_live: bool, distributed: bool) -> None:
    if not isinstance(states, str | PathLike):
        raise TypeError(f"`reference['states']` must be the path of a file, got {states!r}.")
    if is_live:
        raise ValueError(
            "`reference['states']` must be left out with a live model, which is in memory anyway, "
            f"got {states!r}. Name the reference by `reference['model_id']`."
        )
    if distributed:
        raise ValueError(
            "`reference['states']` must be left out with `distributed`: one process writes the file, "
            f"got {states!r}. Start one process, or leave it out."
        )
