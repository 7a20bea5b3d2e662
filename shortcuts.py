"""Parts of a model that can run faster than they do, for the same numbers up to rounding.

Each takes the place of a module's `forward` while windows are scored.  A module that somebody has
changed or hooked is left alone.
"""

from collections.abc import Callable

import torch
from transformers.activations import NewGELUActivation

CACHE_LINE = 16  # float32 numbers
# What the part of a transformer block after its attention is called.
FEED_FORWARD_NAMES = ("mlp", "feed_forward", "ffn")


class AlignedProduct:
    """What a linear layer computes, written into rows that begin at a cache line, always the same.

    Where the number of outputs is no multiple of a cache line, as GPT-2's 50257 tokens are none,
    a CPU's product otherwise writes every row across the lines; and memory that is asked for anew
    for every block has to be mapped anew.
    """

    def __init__(self, linear: torch.nn.Linear):
        self.linear = linear
        self.buffer = linear.weight.new_empty(0)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) for hidden states (..., D), which the next call overwrites."""
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


class ScoredRows:
    """What a feed-forward layer computes for the rows that are scored, and zeros for the others.

    It works on each row by itself, and after a model's last attention no row is read by another.

    Attributes:
        scored: the rows (R,), counting through all of a batch.
    """

    def __init__(self, module: torch.nn.Module):
        self.own = module.forward
        self.scored = torch.empty(0, dtype=torch.long)

    def __call__(self, *states: torch.Tensor) -> torch.Tensor:
        """The layer's output (B, T, D) for its inputs, each (B, T, D)."""
        shape = states[0].shape[:2]
        if len(self.scored) == shape.numel():
            return self.own(*states)
        rows = self.own(*(state.flatten(0, 1)[self.scored][None] for state in states))[0]  # (R, D)
        output = rows.new_zeros(shape.numel(), rows.shape[-1])
        output[self.scored] = rows
        return output.unflatten(0, shape)


def fused_gelu(hidden: torch.Tensor) -> torch.Tensor:
    """The tanh approximation of GELU, which transformers' "gelu_new" takes in eight steps."""
    return torch.nn.functional.gelu(hidden, approximate="tanh")


def head_shortcuts(model: torch.nn.Module) -> dict[torch.nn.Module, Callable]:
    """A faster vocabulary head, by the module whose place it takes."""
    linear = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    # On a GPU, and in other dtypes, the product is another one.
    if type(linear) is torch.nn.Linear and linear.weight.device.type == "cpu" and _plain(linear):
        return {linear: AlignedProduct(linear)}
    return {}


def body_shortcuts(body: torch.nn.Module) -> dict[torch.nn.Module, Callable]:
    """Faster parts of a model's body, by the modules whose places they take."""
    activations = [m for m in body.modules() if type(m) is NewGELUActivation and untouched(m)]
    # In half precision each of the eight steps rounds.
    found: dict[torch.nn.Module, Callable] = (
        dict.fromkeys(activations, fused_gelu) if _plain(body) else {}
    )
    feed_forward = last_feed_forward(body)
    if feed_forward is not None and untouched(feed_forward):
        found[feed_forward] = ScoredRows(feed_forward)
    return found


def last_feed_forward(body: torch.nn.Module) -> torch.nn.Module | None:
    """The feed-forward layer of the last block, where a model has one of a usual name."""
    blocks = next((m for m in body.modules() if isinstance(m, torch.nn.ModuleList) and m), [None])
    named = (getattr(blocks[-1], name, None) for name in FEED_FORWARD_NAMES)
    return next((part for part in named if isinstance(part, torch.nn.Module)), None)


def untouched(module: torch.nn.Module) -> bool:
    """Whether nobody has put something in the place of a forward, or watches one."""
    return not any(
        "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in module.modules()
    )


def _plain(module: torch.nn.Module) -> bool:
    """Whether a module computes in float32."""
    return (
        untouched(module)
        and all(p.dtype == torch.float32 for p in module.parameters())
        and not any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    )
