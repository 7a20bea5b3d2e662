"""Compute the logits of the scored rows only, after one check of the model with short passes.

The body of a model runs once over complete windows; its vocabulary head runs only over the scored
rows, block by block.  Some parts have faster replacements with the same numbers up to rounding.
Each such head is tested first; a model with which none agrees runs unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers.activations import NewGELUActivation

from ..errors import Wording
from .identity import probe_text
from .interface import Batch, LogitBlocks, Prefix
from .module import (
    find_inputs,
    grows_frequencies,
    precision,
    run_module,
    state_name,
)

# Largest difference due to rounding for each dtype, relative to the logits' spread: between passes
# of the same shape, and between passes of different shapes or with different kernels.
SAME_SHAPE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
OTHER_SHAPE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}

CACHE_LINE = 16  # float32 numbers
CHECK_LENGTH = 12
WITH_PROMPTS = (
    "Adapters that put tokens before the text (prompt tuning, p-tuning) are not supported."
)
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
# Errors of a head that does not support the architecture.
UNSUPPORTED_ERRORS = (TypeError, AttributeError, RuntimeError, ValueError, IndexError, KeyError)


# --- heads ----------------------------------------------------------------------------------------


class BodyThenHead:
    """Run the body of a model once, then the rest of its forward over blocks of the scored rows.

    The rest is the model's own: its vocabulary head with whatever follows (soft caps, scales,
    casts).  It is given the hidden states of the scored rows in the place of the body's output, so
    no row is projected that is not scored, and no more than a block of logits exists at a time.

    Args:
        faster: faster forwards by the modules that they replace.  With them, a block of logits is
            gone when the next one is computed.
    """

    by_blocks = True

    def __init__(
        self, model: torch.nn.Module, body: torch.nn.Module, faster: Mapping[Any, Callable]
    ) -> None:
        self.model, self.reader, self.faster = model, body, faster

    def __call__(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        with replaced_forwards(self.faster):
            output = run_module(self.reader, batch.ids, **after_prefix(self.reader, prefix))
        hidden = output.last_hidden_state.flatten(0, 1)
        states = hidden[batch.scored.to(hidden.device)]  # (R, D)
        for first in range(0, len(states), block_rows):
            rows, labels = (of[first : first + block_rows] for of in (states, batch.targets))
            waiting = [type(output)(last_hidden_state=rows[None])]
            in_its_place = {self.reader: lambda *_, waiting=waiting, **__: waiting.pop()}
            with replaced_forwards({**self.faster, **in_its_place}):
                logits = run_module(self.model, labels[None]).logits  # (1, R', V)
            if waiting:
                raise RuntimeError("the model does not call its body")
            yield logits[0], labels.to(logits.device)


class WholeForward:
    """Run the model's own forward, with all logits of a window in memory at once."""

    by_blocks = False

    def __init__(self, model: torch.nn.Module) -> None:
        self.reader = model

    def __call__(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        ids, scored, targets = batch
        length = ids.shape[1]
        # windows whose logits fit in memory together
        per_pass = len(ids) if prefix is not None else max(1, block_rows // length)
        for first in range(0, len(ids), per_pass):
            inside = (scored >= first * length) & (scored < (first + per_pass) * length)
            part, after = ids[first : first + per_pass], after_prefix(self.reader, prefix)
            logits = run_module(self.reader, part, **after).logits.flatten(0, 1)
            logits = logits[(scored[inside] - first * length).to(logits.device)]
            labels = targets[inside].to(logits.device)
            yield from zip(logits.split(block_rows), labels.split(block_rows))


Head = BodyThenHead | WholeForward


def list_heads(model: Any, modules: Sequence[torch.nn.Module]) -> Iterator[Head]:
    """Yield the possible heads of a model, the cheapest first; the last is the plain forward."""
    faster = faster_forwards(model, modules)
    tried: list[Any] = [model]
    # OPT's decoder is in its base model.
    for find in (lambda: getattr(model, "base_model", None), getattr(model, "get_decoder", list)):
        body: Any = find()
        if isinstance(body, torch.nn.Module) and body not in tried:
            tried.append(body)
            yield from (BodyThenHead(model, body, forwards) for forwards in (faster, {}))
    yield WholeForward(model)


def faster_forwards(
    model: Any, modules: Sequence[torch.nn.Module]
) -> dict[torch.nn.Module, Callable]:
    """Return faster forwards on a CPU in float32, by the modules that they replace.

    GPT-2's activation takes eight steps, each of which rounds in half precision.
    """
    weight = next((p for m in modules for p in m._parameters.values() if p is not None), None)
    if torch.is_autocast_enabled("cpu") or not is_float32_on_cpu(weight):
        return {}
    faster: dict[torch.nn.Module, Callable] = {
        module: fused_gelu for module in modules if type(module) is NewGELUActivation
    }
    linear = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(linear) is torch.nn.Linear and is_float32_on_cpu(linear.weight):
        faster[linear] = AlignedProduct(linear)
    return faster


def is_float32_on_cpu(weight: torch.Tensor | None) -> bool:
    return weight is not None and weight.dtype == torch.float32 and weight.device.type == "cpu"


def fused_gelu(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(hidden, approximate="tanh")


class AlignedProduct:
    """A linear layer that writes its output to a reused buffer with aligned rows.

    If the number of outputs is not a multiple of a cache line, such as GPT-2's 50257 tokens, a plain
    product on a CPU writes unaligned rows, and memory that is newly allocated for every block must be
    mapped each time.  The next call overwrites what the last one returned.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        self.linear = linear
        self.buffer = linear.weight.new_empty(0)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
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


def after_prefix(module: torch.nn.Module, prefix: Prefix | None) -> dict:
    return {} if prefix is None else {"use_cache": True, cache_name(module): prefix.cache}


def cache_name(module: torch.nn.Module) -> str:
    """Return the name of the cache of keys and values in the arguments and outputs of a forward."""
    return "cache" if state_name(module) == "cache" else "past_key_values"


@contextmanager
def replaced_forwards(forwards: Mapping[torch.nn.Module, Callable]) -> Iterator[None]:
    # accelerate stores its hooks in the same attribute; `setattr` of a module is slow
    replaced = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, own in replaced.items():
            vars(module).pop("forward") if own is None else vars(module).update(forward=own)


# --- the one check of a model ---------------------------------------------------------------------


class Findings(NamedTuple):
    """What the check found: the head to use in `list_heads`, and attributes of `ScoredModel`."""

    head_number: int
    vocabulary_size: int
    prefixes_agree: bool
    alone: bool


@torch.inference_mode()
def check_model(
    model: torch.nn.Module, heads: Iterable[Head], name: str, limit: int | None
) -> Findings:
    """Check that later tokens do not change earlier logits, and find how a model can be read."""
    _, device, known_size = find_inputs(model)
    size = known_size or 2
    ids = torch.tensor(probe_text(size, limit, CHECK_LENGTH), device=device)
    half = len(ids) // 2
    other = torch.cat([ids[:half], (ids[half:] + 1 + size // 3) % size])
    together = plain_logits(model, torch.stack([ids, other]), name)  # (2, T, V)
    expected, dtype = together[0], precision(model)
    # transformers #13818, #48745; datasets #4370: BERT's kind loads as a causal model
    if differ(together[1, :half], expected[:half], SAME_SHAPE[dtype], expected):
        raise ValueError(
            f"{name} must be a causal language model, but its prediction for a token changes with "
            "the tokens after it: it is masked or bidirectional, its configuration lacks "
            "is_decoder=True, or a part of it is random."
        )
    # Half of the text alone, by the cheapest head, shows three things at once where it agrees.
    heads, size, grows = list(heads), expected.shape[-1], grows_frequencies(model)
    number = find_head(heads, ids[None, :half], expected[:half], OTHER_SHAPE[dtype])
    if number is not None:
        return Findings(number, size, prefixes_agree=not grows, alone=False)
    # It differs because of the length, or of the other row.
    whole = plain_logits(model, ids[None], name)[0]
    prefix = plain_logits(model, ids[None, :half], name)[0]
    number = find_head(heads, ids[None], whole, OTHER_SHAPE[dtype])
    return Findings(
        len(heads) - 1 if number is None else number,
        size,
        prefixes_agree=not grows and not differ(prefix, whole[:half], OTHER_SHAPE[dtype], whole),
        alone=differ(whole, expected, OTHER_SHAPE[dtype]),
    )


def find_head(
    heads: Sequence[Head], ids: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> int | None:
    """Return the index of the cheapest head with the expected logits (T, V) of a pass (1, T), if any."""
    # The later rows alone, so that a head that needs the others is not taken.
    rows = torch.arange(ids.shape[1] // 2, ids.shape[1], device=ids.device)
    for number, head in enumerate(heads):
        try:
            blocks = head(Batch(ids, rows, ids[0, : len(rows)]), len(rows))
            logits = torch.cat([block.clone() for block, _ in blocks])
        except UNSUPPORTED_ERRORS:
            continue
        if logits.shape == expected[rows].shape and not differ(logits, expected[rows], tolerance):
            return number
    return None


def plain_logits(model: torch.nn.Module, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Compute logits (B, T, V) for token ids (B, T) with the model's own forward."""
    needed = f"{name} must be a causal language model, which returns `.logits` for token ids, "
    try:
        logits = run_module(model, ids).logits
    except Exception as error:
        if is_out_of_memory(error):
            raise explain_failure(error, len(ids), ids.shape[1], ids.device) from error
        reason = f"but a forward pass failed: {str(error) or type(error).__name__}."
        raise ValueError(Wording(needed + reason)) from error
    if not isinstance(logits, torch.Tensor) or logits.is_meta:
        got = type(logits).__name__ if logits is None else "one on the meta device, without weights"
        raise ValueError(Wording(f"{needed}got {got}."))
    if logits.shape[:-1] != ids.shape:
        advice = "" if not hasattr(model, "peft_config") else WITH_PROMPTS
        got = f"of the shape {tuple(logits.shape)} for {tuple(ids.shape)}"
        raise ValueError(Wording(f"{needed}got logits {got}.", advice))
    return logits


def differ(
    logits: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float,
    scale_by: torch.Tensor | None = None,
) -> bool:
    """Return whether logits (..., V) differ by more than rounding.

    Args:
        tolerance: relative to the spread of the logits `scale_by`, by default of `expected`.
    """

    def centred(logits: torch.Tensor) -> torch.Tensor:
        # no probability depends on the offset; masked logits are infinite
        logits = logits.float().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return logits - logits.mean(-1, keepdim=True)

    def size(values: torch.Tensor) -> float:
        return values.square().mean().sqrt().item() if values.numel() else 0.0

    # Kernels may multiply masked values by zero, so that one NaN spreads to earlier rows.
    numbers = ~(logits.isnan().any(-1) | expected.isnan().any(-1))
    spread = size(centred(expected if scale_by is None else scale_by))
    difference = size(centred(logits[numbers]) - centred(expected[numbers]))
    return bool(difference > tolerance * max(spread, 1e-3))


# --- a forward pass that failed -------------------------------------------------------------------


def explain_failure(
    error: Exception, num_windows: int, length: int, device: torch.device
) -> Exception:
    """Return the error to raise instead of that of a forward pass."""
    if is_out_of_memory(error):
        advice = "reduce `max_length`, or load the model in a smaller `dtype`."
        said = f"One window of {length} tokens does not fit in the memory of {device}: {advice}"
        return MemoryError(Wording(said))
    said = f"`model` failed on {num_windows} windows of {length} tokens: "
    return ValueError(Wording(f"{said}{str(error) or type(error).__name__}."))


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        phrase in str(error).lower() for phrase in OUT_OF_MEMORY
    )
