"""The models of a call: named or live, opened, kept open for the next call, and used together."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import is_peft_available

from ..arguments import WITHOUT_ADAPTER, is_address
from ..errors import ArgumentError, ArgumentTypeError
from ..models.identity import check_tokenizer
from ..models.interface import Batch, LogitBlocks, Prefix, ScoredModel
from ..models.language_model import LanguageModel
from ..models.loading import files_state, resolve_device, resolve_dtype
from ..plan.windows import ContextLimit
from .gguf import GGUFModel, is_gguf
from .served import adopt_vllm, is_vllm

# Keys of a dictionary passed as `reference`.
REFERENCE_KEYS = ("model_id", "model", "tokenizer", "dtype", "model_kwargs")
# Arguments of a named model, and what they are called in `model_kwargs`.
OF_NAMED = {"device": "device_map", "dtype": "torch_dtype", "model_kwargs": "model_kwargs"}


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model, by name or live, with the arguments that open it.

    Attributes:
        model_id: a name on the Hub or a folder; None for a live model.
        model: a live model; a reference without either is the model without its adapters.
        tokenizer: the tokenizer of `model`, or a replacement for that of `model_id`.
        role: role of the model in the call: "model" or "reference".
    """

    model_id: str | None = None
    model: Any = None
    tokenizer: Any = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    model_kwargs: dict | None = None
    role: str = "model"

    def named(self, attribute: str) -> str:
        if self.role == "model":
            return attribute
        is_model = attribute in ("model_id", "model")
        return self.role if is_model else f"{self.role}[{attribute!r}]"

    def key(self) -> tuple:
        """Return a key that changes when the named model is no longer the open one."""
        return (
            self.model_id,
            self.tokenizer,
            getattr(self.tokenizer, "model_max_length", None),  # may be set between two calls
            repr([self.device, self.dtype, self.model_kwargs]),
            files_state(str(self.model_id), self.model_kwargs or {}),
        )

    def open(self) -> ScoredModel:
        if self.model is not None:
            adopt: Callable = adopt_vllm if is_vllm(self.model) else LanguageModel.adopt
            return adopt(self.model, self.tokenizer, self.named("model"), self.named("tokenizer"))
        model_id, rest = str(self.model_id), (self.model_kwargs, self.named("model_id"))
        if not is_address(model_id) and not is_gguf(model_id):
            return LanguageModel.open(model_id, self.tokenizer, self.device, self.dtype, *rest)
        for name in ("device", "dtype"):
            if getattr(self, name) is not None:
                raise ArgumentError(
                    self.named(name),
                    f"be left out with {model_id!r}",
                    got=repr(getattr(self, name)),
                    why="a server has its own settings, and those of a GGUF file are in "
                    "`model_kwargs` (n_gpu_layers)",
                )
        if is_gguf(model_id):
            return GGUFModel(model_id, self.tokenizer, *rest)
        from .server import open_served  # imports the HTTP client

        return open_served(model_id, self.tokenizer, *rest)


class OpenModels:
    """Models that stay open between calls, one for each role."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[tuple, ScoredModel]] = {}

    def open(self, source: ModelSource) -> ScoredModel:
        if source.model is not None:
            return source.open()
        if source.tokenizer is not None:
            check_tokenizer(source.tokenizer, source.named("tokenizer"))
        key = source.key()
        if source.role not in self._opened or self._opened[source.role][0] != key:
            # refuse these before closing the model in memory
            resolve_device(source.device)
            resolve_dtype(source.dtype, source.named("dtype"))
            self.close(source.role)
            self._opened[source.role] = key, source.open()
        return self._opened[source.role][1]

    def close(self, role: str) -> None:
        self._opened.pop(role, None)


def check_model_source(source: ModelSource) -> ModelSource:
    if isinstance(source.model_id, PathLike):
        source = replace(source, model_id=os.fspath(source.model_id))
    named, model, model_id = source.named, source.model, source.model_id
    if (model_id is None) == (model is None):
        got = "neither" if model is None else "both"
        raise ValueError(f"Exactly one of `model_id` and `model` must be given, got {got}.")
    if model is None and (not isinstance(model_id, str) or not model_id):
        raise ArgumentTypeError(
            named("model_id"),
            "be the name of a model on the Hub or a folder",
            got=repr(model_id),
            advice=f"Pass a loaded model as `{named('model')}`.",
        )
    if isinstance(model, str | PathLike):
        advice = f"Pass it as `{named('model_id')}`."
        got = f"the name {str(model)!r}"
        raise ArgumentTypeError(named("model"), "be a loaded model", got=got, advice=advice)
    if model is not None and source.tokenizer is None and source.role == "model":
        raise ArgumentError("tokenizer", "be given with `model`", got="None")
    if not isinstance(source.model_kwargs, dict | None):
        must, got = "be a dict of from_pretrained arguments", repr(source.model_kwargs)
        raise ArgumentTypeError(named("model_kwargs"), must, got=got)
    for name, other in OF_NAMED.items():
        twice = {name, other} & set(source.model_kwargs or ())
        if getattr(source, name) is not None and (model is not None or twice):
            reason = f"with `{named('model')}`, which is already loaded"
            if model is None:
                reason = f"if `{named('model_kwargs')}` contains {' or '.join(map(repr, twice))}"
            got = repr(getattr(source, name))
            raise ArgumentError(named(name), f"be left out {reason}", got=got)
    return source


def check_reference(reference: object, model: ModelSource) -> ModelSource | None:
    """Return the reference, if any; `model` has the default device and dtype of a named one."""
    if reference is None:
        return None
    if isinstance(reference, str) and reference == WITHOUT_ADAPTER:
        return ModelSource(role="reference")
    if not isinstance(reference, Mapping):
        is_live = callable(reference) or hasattr(reference, "generate")
        reference = {"model" if is_live else "model_id": reference}
    given: dict[str, Any] = {k: value for k, value in reference.items() if value is not None}
    if not set(reference) <= set(REFERENCE_KEYS) or ("model_id" in given) == ("model" in given):
        raise ArgumentError(
            "reference",
            "be a dictionary with one of model_id and model, and only the keys "
            f"{', '.join(REFERENCE_KEYS)}",
            got=", ".join(map(str, reference)),
        )
    source = check_model_source(ModelSource(**given, role="reference"))
    if source.model is None:
        of_kwargs = {"dtype", "torch_dtype"} & set(source.model_kwargs or {})
        dtype = source.dtype if source.dtype is not None or of_kwargs else model.dtype
        source = replace(source, device=model.device, dtype=dtype)
    return source


# --- several models -------------------------------------------------------------------------------


class WithoutAdapter(LanguageModel):
    """A model without its adapters (LoRA and similar), which shares the weights in memory."""

    variant = WITHOUT_ADAPTER

    @classmethod
    def of(cls, model: Any) -> "WithoutAdapter":
        layers = adapter_layers(model.model) if isinstance(model, LanguageModel) else []
        merged = any(getattr(layer, "merged", False) for layer in layers)
        if cls is WithoutAdapter and (not layers or merged):
            why = ", but it is merged into the weights: call unmerge_adapter() first"
            raise ValueError(
                f"`reference` {cls.variant!r} requires a model with an adapter, got "
                f"{type(model.model or model).__name__}{why if merged else ' without'}."
            )
        name, description = f"{model.name} {cls.variant}", f"{model.description} {cls.variant}"
        identity = model.revision, model.tokenizer_digest
        return cls(model.model, model.tokenizer, name, *identity, description)

    @contextmanager
    def as_scored(self) -> Iterator[None]:
        with self.lock:
            # disabling them also changes `requires_grad`
            trained = {parameter: parameter.requires_grad for parameter in self.model.parameters()}
            layers = [layer for layer in adapter_layers(self.model) if not layer.disable_adapters]
            for layer in layers:
                layer.enable_adapters(False)
            try:
                yield
            finally:
                for layer in layers:
                    layer.enable_adapters(True)
                for parameter, requires_grad in trained.items():
                    parameter.requires_grad = requires_grad

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield logits as `LanguageModel.logits` does; between blocks the adapters are enabled."""
        blocks = super().logits(batch, block_rows, prefix)
        while True:
            with self.as_scored():
                block = next(blocks, None)
            if block is None:
                return
            yield block


class InBfloat16(WithoutAdapter):
    """A float32 model in bfloat16 by autocast, which shares the weights in memory."""

    variant = "in bfloat16"

    @contextmanager
    def as_scored(self) -> Iterator[None]:
        with self.lock, torch.autocast(self.device.type, dtype=torch.bfloat16):
            yield


def adapter_layers(model: torch.nn.Module) -> list:
    """List the layers of a model with PEFT adapters, or with a trained copy in their place."""
    if not is_peft_available():
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import other

    # before peft 0.15, the only one of its kind
    copies = getattr(other, "AuxiliaryTrainingWrapper", other.ModulesToSaveWrapper)
    return [module for module in model.modules() if isinstance(module, BaseTunerLayer | copies)]


@contextmanager
def in_use_together(models: Sequence[ScoredModel]) -> Iterator[None]:
    """Lock models in the same order in all threads."""
    with ExitStack() as stack:
        for model in sorted(models, key=lambda model: id(model.lock)):
            stack.enter_context(model.in_use())
        yield


def smallest_limit(models: Sequence[ScoredModel]) -> ContextLimit:
    fields = zip(*(vars(model.limit).values() for model in models))
    return ContextLimit(*(min(filter(None, limits), default=None) for limits in fields))


def read_alike(model: ScoredModel, reference: ScoredModel, pairs: Sequence[tuple]) -> bool:
    """Return whether two models read the same tokens; `pairs` are measurements planned with either."""
    if not same_vocabulary(model.tokenizer, reference.tokenizer):
        return False
    streams = [both for pair in pairs for both in zip(*(measured.streams for measured in pair))]
    if not all(np.array_equal(stream.ids, its.ids) for stream, its in streams):
        return False
    for pair in pairs:
        start, of_reference = (f"{m.plan.start} ({m.plan.start_id})" for m in pair)
        if pair[0].plan != pair[1].plan:
            raise ArgumentError(
                "reference",
                "have the start token of the model",
                got=f"{of_reference} and {start}",
                advice="Pass `add_start_token=False`, or `reference['tokenizer']`.",
            )
    return True


def same_vocabulary(
    tokenizer: PreTrainedTokenizerBase, reference_tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Return whether two tokenizers have the same tokens by id, except for added ones."""
    if tokenizer is reference_tokenizer:
        return True
    both = (tokenizer, reference_tokenizer)
    added = {number for each in both for number in getattr(each, "added_tokens_decoder", {})}
    tokens, reference_tokens = (
        {number: token for token, number in each.get_vocab().items() if number not in added}
        for each in both
    )
    return tokens == reference_tokens
