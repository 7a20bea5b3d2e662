"""A model and its reference: opened over one another, locked together, and whether they read alike."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import is_peft_available

from .model import LanguageModel, lock_of
from .model_interface import Batch, ContextLimit, LogitBlocks, Prefix
from .request_checks import WITHOUT_ADAPTER


class FreedModel(NamedTuple):
    """What is kept of a model that was freed: its tokenizer and its limit."""

    tokenizer: object
    limit: ContextLimit


class WithoutAdapter(LanguageModel):
    """A model as it is without its adapters (LoRA and its kin): the same weights in memory, once."""

    variant = WITHOUT_ADAPTER

    @classmethod
    def of(cls, model: LanguageModel) -> "WithoutAdapter":
        """Take the model below the adapters of another.

        Raises:
            ValueError: it has no adapters, or they are merged into its weights.
        """
        layers = adapter_layers(model.model)
        if not layers:
            raise ValueError(
                f"`reference`={cls.variant!r} needs a model with an adapter, got "
                f"{type(model.model).__name__} without. Name the reference instead."
            )
        if any(layer.merged for layer in layers):
            raise ValueError(
                f"`reference`={cls.variant!r} needs an adapter that can be switched off, but "
                "it is merged into the weights. Call unmerge_adapter() first."
            )
        name, description = f"{model.name} {cls.variant}", f"{model.description} {cls.variant}"
        return cls(model.model, model.tokenizer, name, model.revision, description)

    @contextmanager
    def as_scored(self) -> Iterator[None]:
        """Switch the model's adapters off for the time of the context."""
        with lock_of(self.model):
            # switching them also changes which weights are trained
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

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """As `LanguageModel.in_use`; the state that is kept is that without the adapters."""
        with lock_of(self.model), ExitStack() as stack:
            with self.as_scored():
                stack.enter_context(super().in_use())
            try:
                yield
            finally:
                with self.as_scored():
                    stack.close()

    def prepare(self, length: int = 0, num_tokens: int = 0) -> None:
        with self.as_scored():
            super().prepare(length, num_tokens)

    def read_in_parts(self, length: int, refusal: str) -> None:
        with self.as_scored():
            super().read_in_parts(length, refusal)

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """As `LanguageModel.logits`; between the blocks the model has its adapters again."""
        blocks = super().logits(batch, block_rows, prefix)
        while True:
            with self.as_scored():
                block = next(blocks, None)
            if block is None:
                return
            yield block


class InBfloat16(WithoutAdapter):
    """A model as it is in bfloat16, by autocast: the same weights in memory, once."""

    variant = "in bfloat16"

    @classmethod
    def of(cls, model: LanguageModel) -> "InBfloat16":
        """Take a model in float32."""
        name, description = f"{model.name} {cls.variant}", f"{model.description} {cls.variant}"
        return cls(model.model, model.tokenizer, name, model.revision, description)

    @contextmanager
    def as_scored(self) -> Iterator[None]:
        """Round products to bfloat16 for the time of the context."""
        with lock_of(self.model), torch.autocast(self.device.type, dtype=torch.bfloat16):
            yield


def adapter_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """List the layers of a model that PEFT has put adapters on."""
    if not is_peft_available():
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


@contextmanager
def in_use_together(models: Sequence[LanguageModel]) -> Iterator[None]:
    """Lock models in one order for all threads, so that no two wait for each other."""
    with ExitStack() as stack:
        for model in sorted(models, key=lambda model: id(model.lock)):
            stack.enter_context(model.in_use())
        yield


def smallest_limit(models: Sequence[LanguageModel]) -> ContextLimit:
    """Return the number of tokens that all of the models take."""
    lengths = [model.limit.length for model in models if model.limit.length is not None]
    tables = [model.limit.table for model in models if model.limit.table is not None]
    readable = [model.limit.readable for model in models if model.limit.readable is not None]
    return ContextLimit(*(min(limits, default=None) for limits in (lengths, tables, readable)))


def read_alike(model: LanguageModel, reference: LanguageModel, pairs: Sequence[tuple]) -> bool:
    """Return whether two models read the same tokens, and mean the same by them.

    Args:
        pairs: each measurement, planned with the tokenizer of either.

    Raises:
        ValueError: they differ in nothing but the start token.
    """
    if not same_vocabulary(model.tokenizer, reference.tokenizer):
        return False
    for measurement, other in pairs:
        streams = zip(measurement.streams, other.streams)
        if not all(
            np.array_equal(stream.ids, of_reference.ids) for stream, of_reference in streams
        ):
            return False
    for measurement, other in pairs:
        if measurement.plan != other.plan:
            starts = [f"{m.plan.start} ({m.plan.start_id})" for m in (measurement, other)]
            raise ValueError(
                "`reference` must have the start token of the model, got "
                f"{starts[1]} and {starts[0]}. Pass add_start_token=False, or the model's "
                "tokenizer as `reference['tokenizer']`."
            )
    return True


def same_vocabulary(
    tokenizer: PreTrainedTokenizerBase, reference_tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Return whether two tokenizers have the same tokens by id, but for added ones.

    Where one has more of them, it is by chance that both cut a text alike.
    """
    if tokenizer is reference_tokenizer:
        return True
    tokenizers = (tokenizer, reference_tokenizer)
    added = {number for each in tokenizers for number in getattr(each, "added_tokens_decoder", {})}
    tokens, reference_tokens = (
        {number: token for token, number in each.get_vocab().items() if number not in added}
        for each in tokenizers
    )
    return tokens == reference_tokens
