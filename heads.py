"""Ways from token ids to the logits of the rows that are scored, and of no others.

The body of a model runs once over whole windows; its vocabulary head over the scored rows alone, a
block of them at a time.  Models that are built in another way run as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from .loading import forward_kwargs, forward_parameters

CACHE_LINE = 16  # float32 numbers


class BodyThenHead:
    """Run the body of a model once, then the rest of its forward over blocks of the scored rows.

    The rest is the model's own: its vocabulary head with whatever follows (soft caps, scales,
    casts).  It is given the hidden states of the scored rows in the place of the body's output, so
    no row is projected that is not scored, and no more than a block of logits exists at a time.

    Args:
        linear: a linear layer of the rest, the vocabulary head, to run as an `AlignedProduct`.
            A block is then gone when the next one is computed.
    """

    by_blocks = True

    def __init__(
        self, model: torch.nn.Module, body: torch.nn.Module, linear: torch.nn.Linear | None = None
    ):
        self.model = model
        self.body = body
        self.replaced = {} if linear is None else {linear: AlignedProduct(linear)}
        self.model_kwargs = forward_kwargs(model)
        self.body_kwargs = forward_kwargs(body)

    def __call__(self, ids, scored, targets, block_rows):
        """Yield (logits (R', V), targets (R',)) of at most `block_rows` rows at a time.

        Args:
            ids: token ids (B, T).
            scored: which rows to give logits of (R,), counting through B * T.
            targets: the token that each of these rows predicts (R,).
        """
        output = self.body(ids, **self.body_kwargs)
        hidden = output.last_hidden_state.flatten(0, 1)[scored]  # (R, D)
        for rows, labels in zip(hidden.split(block_rows), targets.split(block_rows)):
            with ExitStack() as replaced:
                seen = type(output)(last_hidden_state=rows[None])
                replaced.enter_context(
                    replaced_forward(self.body, lambda *_, seen=seen, **__: seen)
                )
                for module, forward in self.replaced.items():
                    replaced.enter_context(replaced_forward(module, forward))
                logits = self.model(labels[None], **self.model_kwargs).logits  # (1, R', V)
            yield logits[0], labels


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


class WholeForward:
    """Run the model's forward as it is, asking for no more rows of logits than it lets one.

    For models that are built in another way.  Rows are asked for by index where the model takes
    `logits_to_keep` so, else all are computed and the rest dropped.
    """

    by_blocks = False

    def __init__(self, model: torch.nn.Module, takes_index: bool):
        self.model = model
        self.takes_index = takes_index
        self.kwargs = forward_kwargs(model)

    def __call__(self, ids, scored, targets, block_rows):
        """As `BodyThenHead` does, but for memory: a whole window's logits exist at once."""
        length = ids.shape[1]
        per_pass = max(1, block_rows // length)  # windows whose logits fit in memory together
        for first in range(0, len(ids), per_pass):
            part = ids[first : first + per_pass]
            mine = (scored >= first * length) & (scored < (first + per_pass) * length)
            logits = self._logits(part, scored[mine] - first * length)
            yield from zip(logits.split(block_rows), targets[mine].split(block_rows))

    def _logits(self, ids, rows):
        """Logits (R, V) of the wanted rows, which count through all rows of `ids` (B, T)."""
        if not self.takes_index:
            return self.model(ids, **self.kwargs).logits.flatten(0, 1)[rows]
        places = rows % ids.shape[1]
        kept = torch.unique(places)  # sorted; windows of a batch want nearly the same places
        logits = self.model(ids, logits_to_keep=kept, **self.kwargs).logits  # (B, K, V)
        return logits[rows // ids.shape[1], torch.searchsorted(kept, places)]


Head = BodyThenHead | WholeForward


def ways(model: torch.nn.Module) -> list[Callable[[], Head]]:
    """Makers of every way to a model's logits that may be one, the cheapest first.

    The last one always is: the plain forward pass.
    """
    linear = plain_linear(model)
    found: list[Callable[[], Head]] = []
    for body in bodies(model):
        if linear is not None:
            found.append(partial(BodyThenHead, model, body, linear))
        found.append(partial(BodyThenHead, model, body))
    if "logits_to_keep" in forward_parameters(model):
        found.append(partial(WholeForward, model, takes_index=True))
    return [*found, partial(WholeForward, model, takes_index=False)]


def bodies(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Parts of a model that may give its last hidden states: OPT's is inside its base model."""
    found = [getattr(model, "base_model", None)]
    if hasattr(model, "get_decoder"):
        found.append(model.get_decoder())
    return [part for part in found if isinstance(part, torch.nn.Module) and part is not model]


def plain_linear(model: torch.nn.Module) -> torch.nn.Linear | None:
    """The vocabulary head, if it is a float32 linear layer on a CPU that nobody has changed."""
    linear = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    plain = (
        type(linear) is torch.nn.Linear
        and "forward" not in vars(linear)
        and (linear.weight.device.type, linear.weight.dtype) == ("cpu", torch.float32)
        and not torch.is_autocast_enabled("cpu")
    )
    return linear if plain else None


@contextmanager
def replaced_forward(module: torch.nn.Module, forward: Callable) -> Iterator[None]:
    """Let a module run another `forward` than its own; say so if nobody called it."""
    calls = []
    own = module.__dict__.get("forward")  # accelerate puts its hooks there
    module.forward = lambda *args, **kwargs: calls.append(module) or forward(*args, **kwargs)
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
    if not calls:
        raise RuntimeError("the model reaches its hidden states in another way")
