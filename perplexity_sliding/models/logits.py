"""Compute the logits of the scored rows only.

The body of a model runs once over complete windows; its vocabulary head runs only over the scored
rows, block by block.  Some parts have faster replacements with the same numbers up to rounding.
Models are split into parts only if their forward is transformers' own, and each such head is tested
first; any other model runs unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from transformers.activations import NewGELUActivation
from transformers.cache_utils import DynamicCache

from ..errors import Wording
from .interface import Batch, LogitBlocks, Prefix
from .module import forward_kwargs, forward_parameters, ids_name, modules_of, state_name

# Largest difference due to rounding for each dtype, relative to the logits' spread: between passes
# of the same shape, and between passes of different shapes or with different kernels.
SAME_SHAPE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
OTHER_SHAPE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}

# Tokens of padding in a forward pass that cost as much as another one, which reads all weights: on
# a CPU as measured, elsewhere about the ratio of an accelerator's matrix rate to its memory's.
CPU_PADDING = 32
PADDING = 256

CACHE_LINE = 16  # float32 numbers
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
WITH_PROMPTS = (
    "Adapters that put tokens before the text (prompt tuning, p-tuning) are not supported."
)
# Errors of a head that does not support the architecture.
UNSUPPORTED_ERRORS = (TypeError, AttributeError, RuntimeError, ValueError, IndexError, KeyError)


class Head(Protocol):
    """A way to compute a model's logits.

    Attributes:
        by_blocks: whether at most one block of logits exists at a time.
    """

    by_blocks: bool

    def __call__(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield (logits (R', V), targets (R',)) of at most `block_rows` rows at a time.

        Args:
            prefix: state before each of the B rows; `read_prefix` returns one.
        """
        ...

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Return what the model keeps of tokens (1, T), to continue from them."""
        ...


class BodyThenHead:
    """Run the body of a model once, then the rest of its forward over blocks of the scored rows.

    The rest is the model's own: its vocabulary head with whatever follows (soft caps, scales,
    casts).  It is given the hidden states of the scored rows in the place of the body's output, so
    no row is projected that is not scored, and no more than a block of logits exists at a time.

    Args:
        with_shortcuts: let parts of the model run faster, where it has such.  A block of logits is
            then gone when the next one is computed.
    """

    by_blocks = True

    def __init__(self, model: torch.nn.Module, body: torch.nn.Module, with_shortcuts: bool) -> None:
        self.model = model
        self.body = body
        self.in_body = faster_activations(body) if with_shortcuts else {}
        self.in_head = faster_product(model) if with_shortcuts else {}
        self.model_ids, self.model_kwargs = ids_name(model), forward_kwargs(model)
        self.body_ids, self.body_kwargs = ids_name(body), forward_kwargs(body)

    def __call__(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield blocks of logits, as `Head` does."""
        return self.blocks(self.states(batch.ids, batch.scored, prefix), batch.targets, block_rows)

    def states(
        self, ids: torch.Tensor, scored: torch.Tensor, prefix: Prefix | None = None
    ) -> torch.Tensor:
        """Compute the body's last hidden states of the scored rows (R, D)."""
        with replaced_forwards(self.in_body):
            output = self.body(
                **{self.body_ids: ids}, **after_prefix(self.body, self.body_kwargs, prefix)
            )
        self.output_type = type(output)
        hidden = output.last_hidden_state.flatten(0, 1)
        return hidden[scored.to(hidden.device)]  # (R, D)

    def blocks(self, states: torch.Tensor, targets: torch.Tensor, block_rows: int) -> LogitBlocks:
        """Yield the logits of hidden states (R, D), as a call does."""
        for rows, labels in zip(states.split(block_rows), targets.split(block_rows)):
            waiting = [self.output_type(last_hidden_state=rows[None])]
            in_its_place = {self.body: lambda *_, waiting=waiting, **__: waiting.pop()}
            with replaced_forwards(self.in_head | in_its_place):
                named = {self.model_ids: labels[None]}
                logits = self.model(**named, **self.model_kwargs).logits  # (1, R', V)
            if waiting:
                raise RuntimeError("the model does not call its body")
            yield logits[0], labels.to(logits.device)

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Return what the model keeps of tokens (1, T), to continue from them."""
        return read_prefix(self.body, ids)


class WholeForward:
    """Run the model's own forward, for only the required rows of logits if it supports that.

    For models of any other architecture.  Rows are asked for by index where the model takes
    `logits_to_keep` so, else all are computed and the rest dropped.
    """

    by_blocks = False

    def __init__(self, model: torch.nn.Module, takes_index: bool) -> None:
        self.model = model
        self.takes_index = takes_index
        self.ids, self.kwargs = ids_name(model), forward_kwargs(model)

    def __call__(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield blocks of logits, as `Head` does, with a whole window's in memory at once."""
        ids, scored, targets = batch
        if prefix is not None:
            named = {self.ids: ids} | after_prefix(self.model, self.kwargs, prefix)
            logits = self.model(**named).logits.flatten(0, 1)
            logits = logits[scored.to(logits.device)]
            yield from zip(logits.split(block_rows), targets.to(logits.device).split(block_rows))
            return
        length = ids.shape[1]
        per_pass = max(1, block_rows // length)  # windows whose logits fit in memory together
        for first in range(0, len(ids), per_pass):
            part = ids[first : first + per_pass]
            inside = (scored >= first * length) & (scored < (first + per_pass) * length)
            logits = self._logits(part, scored[inside] - first * length)
            labels = targets[inside].to(logits.device)
            yield from zip(logits.split(block_rows), labels.split(block_rows))

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Return the model's cache of tokens (1, T), to continue from them."""
        return read_prefix(self.model, ids)

    def _logits(self, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Compute the logits (R, V) of given rows among all rows of `ids` (B, T)."""
        named = {self.ids: ids} | self.kwargs
        if not self.takes_index:
            logits = self.model(**named).logits.flatten(0, 1)
            return logits[rows.to(logits.device)]
        places = rows % ids.shape[1]
        kept = torch.unique(places)  # sorted; nearly the same positions in all windows of a batch
        logits = self.model(**named, logits_to_keep=kept).logits  # (B, K, V)
        windows, columns = rows // ids.shape[1], torch.searchsorted(kept, places)
        return logits[windows.to(logits.device), columns.to(logits.device)]


class AlignedProduct:
    """A linear layer that writes its output to a reused buffer with aligned rows.

    If the number of outputs is not a multiple of a cache line, such as GPT-2's 50257 tokens, a plain
    product on a CPU writes unaligned rows, and memory that is newly allocated for every block must be
    mapped each time.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        self.linear = linear
        self.buffer = linear.weight.new_empty(0)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (..., V) for hidden states (..., D); the next call overwrites them."""
        rows = hidden.flatten(0, -2)  # (R, D)
        weight, bias = self.linear.weight, self.linear.bias
        if len(rows) > len(self.buffer):
            width = -(-len(weight) // CACHE_LINE) * CACHE_LINE
            self.buffer = weight.new_empty(len(rows), width)
        logits = self.buffer[: len(rows), : len(weight)]
        if bias is None:
            torch.mm(rows, weight.t(), out=logits)
        else:
            torch.addmm(bias, rows, weight.t(), out=logits)
        return logits.unflatten(0, hidden.shape[:-1])


def fused_gelu(hidden: torch.Tensor) -> torch.Tensor:
    """Compute GELU's tanh approximation in one step, instead of the eight of "gelu_new"."""
    return torch.nn.functional.gelu(hidden, approximate="tanh")


def head_makers(model: torch.nn.Module) -> list[Callable[[], Head]]:
    """List constructors of a model's possible heads, the cheapest first; the last is the plain forward."""
    makers: list[Callable[[], Head]] = [
        partial(BodyThenHead, model, body, with_shortcuts)
        for body in bodies(model)
        for with_shortcuts in (True, False)
    ]
    if "logits_to_keep" in forward_parameters(model):
        makers.append(partial(WholeForward, model, takes_index=True))
    return [*makers, partial(WholeForward, model, takes_index=False)]


def bodies(model: Any) -> list[torch.nn.Module]:
    """List parts of a model that may return its last hidden states; OPT's is in its base model."""
    parts = [getattr(model, "base_model", None)]
    if hasattr(model, "get_decoder"):
        parts.append(model.get_decoder())
    found = [part for part in parts if isinstance(part, torch.nn.Module) and part is not model]
    return list(dict.fromkeys(found))


def faster_product(model: Any) -> dict[torch.nn.Module, Callable]:
    """Return a faster vocabulary head on a CPU in float32, by the module that it replaces."""
    linear = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(linear) is torch.nn.Linear and on_cpu_in_float32(linear):
        return {linear: AlignedProduct(linear)}
    return {}


def faster_activations(body: torch.nn.Module) -> dict[torch.nn.Module, Callable]:
    """Return fused activations on a CPU in float32, by the modules that they replace.

    In half precision each of the eight steps rounds.
    """
    slow = [module for module in modules_of(body) if type(module) is NewGELUActivation]
    return dict.fromkeys(slow, fused_gelu) if slow and on_cpu_in_float32(body) else {}


def on_cpu_in_float32(module: torch.nn.Module) -> bool:
    """Return whether a module, judging by its first weight, computes on a CPU in float32."""
    weight = next(module.parameters(), torch.empty(0, dtype=torch.half))
    in_float32 = weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return in_float32 and weight.device.type == "cpu"


def read_prefix(module: torch.nn.Module, ids: torch.Tensor) -> Prefix:
    """Read tokens (1, T), to continue from them.

    Raises:
        TypeError: the model has no cache that can be copied for several continuations.
    """
    output = module(**{ids_name(module): ids}, use_cache=True)
    cache = getattr(output, cache_name(module), None)
    if isinstance(cache, tuple):  # transformers before 4.48
        cache = DynamicCache.from_legacy_cache(cache)  # type: ignore[attr-defined]
    is_of_two = hasattr(cache, "cross_attention_cache")  # BERT's kind, for an encoder as well
    if cache is None or is_of_two or not hasattr(cache, "batch_repeat_interleave"):
        raise TypeError("the model has no cache that can be copied")
    return Prefix(cache)


def after_prefix(module: torch.nn.Module, kwargs: dict, prefix: Prefix | None) -> dict:
    if prefix is None:
        return kwargs
    return kwargs | {"use_cache": True, cache_name(module): prefix.cache}


def cache_name(module: torch.nn.Module) -> str:
    """Return the name of the cache of keys and values in the arguments and outputs of a forward."""
    return "cache" if state_name(module) == "cache" else "past_key_values"


@contextmanager
def replaced_forwards(forwards: Mapping[torch.nn.Module, Callable]) -> Iterator[None]:
    """Replace the `forward` of modules within the context."""
    # accelerate stores its hooks in the same attribute; `setattr` of a module is slow
    replaced = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, own in replaced.items():
            vars(module).pop("forward") if own is None else vars(module).update(forward=own)


def plain_logits(model: torch.nn.Module, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Compute logits (B, T, V) for token ids (B, T) with the model's own forward.

    Raises:
        ValueError: the forward pass fails, or does not return logits.
    """
    needed = f"{name} must be a causal language model, which returns `.logits` for token ids, "
    try:
        logits = model(**{ids_name(model): ids}, **forward_kwargs(model)).logits
    except Exception as error:
        if is_out_of_memory(error):
            raise explain_failure(error, len(ids), ids.shape[1], ids.device) from error
        reason = f"but a forward pass failed: {str(error) or type(error).__name__}."
        raise ValueError(Wording(needed + reason)) from error
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if getattr(logits, "is_meta", False):
        shape = "a tensor on the meta device, without weights,"
    if not isinstance(logits, torch.Tensor) or shape[:-1] != tuple(ids.shape):
        advice = WITH_PROMPTS if hasattr(model, "peft_config") else ""
        raise ValueError(
            Wording(
                f"{needed}of the shape (texts, tokens, vocabulary), got {shape} for "
                f"{tuple(ids.shape)}.",
                advice,
            )
        )
    return logits


# --- the same logits, up to rounding --------------------------------------------------------------


def differ(
    logits: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float,
    scale_by: torch.Tensor | None = None,
) -> bool:
    """Return whether logits (..., V) differ by more than rounding, ignoring offsets.

    Args:
        tolerance: the largest difference due to rounding, relative to the logits' spread.
        scale_by: logits whose spread is used; `expected` by default.
    """
    # Kernels may multiply masked values by zero, so that one NaN spreads to earlier rows.
    numbers = ~(logits.isnan().any(-1) | expected.isnan().any(-1))
    spread = root_mean_square(centred(expected if scale_by is None else scale_by))
    difference = root_mean_square(centred(logits[numbers]) - centred(expected[numbers]))
    return bool(difference > tolerance * max(spread, 1e-3))


def centred(logits: torch.Tensor) -> torch.Tensor:
    """Remove the offset of logits, which no probability depends on; replace infinite ones by 0."""
    logits = logits.float().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return logits - logits.mean(-1, keepdim=True)


def root_mean_square(values: torch.Tensor) -> float:
    return values.square().mean().sqrt().item() if values.numel() else 0.0


# --- a forward pass that failed -------------------------------------------------------------------


def explain_failure(
    error: Exception, num_windows: int, length: int, device: torch.device
) -> Exception:
    """Return the error to raise instead of that of a forward pass."""
    if is_out_of_memory(error):
        return MemoryError(
            Wording(
                f"One window of {length} tokens does not fit in the memory of {device}: reduce "
                "`max_length`, or load the model in a smaller `dtype`."
            )
        )
    return ValueError(
        Wording(
            f"`model` failed on {num_windows} windows of {length} tokens: "
            f"{str(error) or type(error).__name__}."
        )
    )


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        phrase in str(error).lower() for phrase in OUT_OF_MEMORY
    )


def cheap_padding(device: torch.device) -> int:
    """Return the tokens of padding that cost as much as another pass."""
    return CPU_PADDING if device.type == "cpu" else PADDING
