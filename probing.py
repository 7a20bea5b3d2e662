"""What short forward passes tell about a model: that it looks back only, and how it gives logits.

Found out once for as long as a model stays as it is, so that computing again costs no forward pass.
"""

import weakref
from typing import NamedTuple

import torch

from .heads import Head, ways
from .loading import forward_kwargs, input_device, num_embeddings, position_table

PROBE_LENGTH = 8


class Findings(NamedTuple):
    """What was found out about a model.

    Attributes:
        state: what the model was like then.
        way: the first of `ways(model)` that gives what its plain forward gives.
        vocabulary: logits that it gives for a token.
    """

    state: tuple
    way: int
    vocabulary: int


_FINDINGS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@torch.inference_mode()
def probe(model: torch.nn.Module, revision: str, name: str) -> Findings:
    """Check that a model is a causal language model, and find the cheapest way to its logits.

    Args:
        revision: digests of its weights and configuration.
        name: what to call it in an error.

    Raises:
        ValueError: it gives no logits, or it sees tokens that it predicts.
    """
    state = (revision, model_structure(model))
    found = _FINDINGS.get(model)
    if found is None or found.state != state:
        check_causal(model, name)
        found = _FINDINGS[model] = Findings(state, *find_way(model))
    return found


def model_structure(model: torch.nn.Module) -> int:
    """Hash of what decides, beside weights and configuration, how a model's forward runs."""
    modules = [
        (type(m), id(vars(m).get("forward")), *m._forward_hooks, *m._forward_pre_hooks)
        for m in model.modules()
    ]
    tensors = [(p.device, p.dtype) for p in model.parameters()]
    return hash((*modules, *tensors, torch.is_autocast_enabled("cpu")))


def check_causal(model: torch.nn.Module, name: str) -> None:
    """Refuse a model that looks ahead: change the last token, and earlier logits must not move.

    BERT-like models load as "causal" ones and would predict tokens that they see.
    """
    ids = probe_ids(model).repeat(2, 1)  # (2, T)
    ids[1, -1] = (ids[1, -1] + 1) % max(2, num_embeddings(model) or 2)
    logits = first_logits(model, ids, name)[:, :-1].float().nan_to_num()  # (2, T - 1, V)
    moved = (logits[0] - logits[1]).abs().max().item()
    # Half-precision kernels may round two rows of a batch differently; real leaks are far larger.
    tolerance = 1e-4 if next(model.parameters(), ids.float()).dtype == torch.float32 else 3e-2
    if moved > tolerance * max(logits.abs().max().item(), 1e-3):
        raise ValueError(
            f"{name} must be a causal language model, but its prediction for a token changes with "
            "the tokens after it: it is a masked or bidirectional model, or its configuration "
            "lacks is_decoder=True."
        )


def first_logits(model: torch.nn.Module, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Logits (B, T, V) for token ids (B, T); a model that gives none is refused.

    Raises:
        ValueError: the forward pass fails, or gives something else.
    """
    try:
        logits = model(ids, **forward_kwargs(model)).logits
    except Exception as error:
        raise ValueError(
            f"{name} must be a causal language model, which gives `.logits` for token ids, but a "
            f"forward pass failed: {error or type(error).__name__}."
        ) from error
    if not isinstance(logits, torch.Tensor):
        raise ValueError(
            f"{name} must be a causal language model, which gives `.logits` for token ids, got "
            f"{type(logits).__name__} there."
        )
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise ValueError(
            f"{name} must give logits of the shape (texts, tokens, vocabulary), but for token ids "
            f"{tuple(ids.shape)} it gave {tuple(logits.shape)}."
        )
    return logits


def find_way(model: torch.nn.Module) -> tuple[int, int]:
    """Find the cheapest way to a model's logits that gives what its plain forward gives.

    Returns:
        (its number in `ways(model)`, size of the vocabulary).
    """
    ids = probe_ids(model)
    expected = model(ids, **forward_kwargs(model)).logits  # (1, T, V)
    makers = ways(model)
    number = next(
        (n for n, make in enumerate(makers[:-1]) if _reaches(make(), ids, expected)),
        len(makers) - 1,
    )
    return number, expected.shape[-1]


def probe_ids(model: torch.nn.Module) -> torch.Tensor:
    """A short row of ordinary token ids (1, T), to see how the model behaves."""
    length = min(PROBE_LENGTH, position_table(model) or PROBE_LENGTH)
    size = num_embeddings(model) or length + 1
    spread = torch.arange(1, length + 1) * max(1, size // (length + 2)) % size
    return spread[None].to(input_device(model))


def _reaches(head: Head, ids: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a way to the logits gives the expected ones for the later rows of the probe."""
    length = ids.shape[1]
    scored = torch.arange(length // 2, length, device=ids.device)
    expected = expected[0, length // 2 :].float().nan_to_num()
    # Targets that are no inputs: logits that depend on what was read must not be taken for others.
    targets = ids[0, : len(scored)]
    try:
        logits = torch.cat([rows for rows, _ in head(ids, scored, targets, length)])
    except (TypeError, AttributeError, RuntimeError, ValueError, IndexError, KeyError):
        return False  # a body or a forward of another kind
    if logits.shape != expected.shape:
        return False
    difference = (logits.float().nan_to_num() - expected).abs().max()
    return bool(difference <= 1e-3 * expected.abs().max())
