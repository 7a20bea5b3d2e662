"""Ways from token ids to the logits of the rows that are scored, and of no others.

The body of a model runs once over whole windows; its vocabulary head over the scored rows alone, a
block of them at a time.  Models that are built in another way run as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from .loading import forward_kwargs, forward_parameters
from .shortcuts import ScoredRows, body_shortcuts, head_shortcuts


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

    def __init__(self, model: torch.nn.Module, body: torch.nn.Module, with_shortcuts: bool):
        self.model = model
        self.body = body
        self.in_body = body_shortcuts(body) if with_shortcuts else {}
        self.in_head = head_shortcuts(model) if with_shortcuts else {}
        self.model_kwargs = forward_kwargs(model)
        self.body_kwargs = forward_kwargs(body)

    def __call__(self, ids, scored, targets, block_rows):
        """Yield (logits (R', V), targets (R',)) of at most `block_rows` rows at a time.

        Args:
            ids: token ids (B, T).
            scored: which rows to give logits of (R,), counting through B * T.
            targets: the token that each of these rows predicts (R,).
        """
        for shortcut in self.in_body.values():
            if isinstance(shortcut, ScoredRows):
                shortcut.scored = scored
        with replaced_forwards(self.in_body):
            output = self.body(ids, **self.body_kwargs)
        hidden = output.last_hidden_state.flatten(0, 1)[scored]  # (R, D)
        for rows, labels in zip(hidden.split(block_rows), targets.split(block_rows)):
            seen = type(output)(last_hidden_state=rows[None])
            with replaced_forwards(self.in_head | {self.body: lambda *_, seen=seen, **__: seen}):
                logits = self.model(labels[None], **self.model_kwargs).logits  # (1, R', V)
            yield logits[0], labels


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
    found: list[Callable[[], Head]] = [
        partial(BodyThenHead, model, body, with_shortcuts)
        for body in bodies(model)
        for with_shortcuts in (True, False)
    ]
    if "logits_to_keep" in forward_parameters(model):
        found.append(partial(WholeForward, model, takes_index=True))
    return [*found, partial(WholeForward, model, takes_index=False)]


def bodies(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Parts of a model that may give its last hidden states: OPT's is inside its base model."""
    found = [getattr(model, "base_model", None)]
    if hasattr(model, "get_decoder"):
        found.append(model.get_decoder())
    return [part for part in found if isinstance(part, torch.nn.Module) and part is not model]


@contextmanager
def replaced_forwards(forwards: dict[torch.nn.Module, Callable]) -> Iterator[None]:
    """Let modules run another `forward` than their own; say so if one of them was not called."""
    called = set()

    def telling(module, forward):
        return lambda *args, **kwargs: called.add(module) or forward(*args, **kwargs)

    # accelerate puts its hooks where these go
    own = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = telling(module, forward)
    try:
        yield
    finally:
        for module, forward in own.items():
            if forward is None:
                del module.forward
            else:
                module.forward = forward
    if len(called) < len(forwards):
        raise RuntimeError("the model reaches its hidden states in another way")
