"""The interface of models, and the signature, which identifies what numbers depend on.

A `LanguageModel` runs in this process; other models run in another engine or on a server::

    model = ModelSource("gpt2").open()
    with model.in_use():
        model.check()             # find its vocabulary and the head to use
        model.prepare(longest)    # after the windows are planned
        for logits, targets in model.logits(batch, block_rows):
            ...
"""

import copy
import hashlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from .. import __version__
from ..digests import DIGITS
from ..plan.windows import ContextLimit
from .identity import LIVE, tokenizer_digest

# Tokenizers without a limit state one of about 1e30.
LARGEST_LIMIT = 10**9

# Logits (R', V) of some rows at a time, and the token ids (R',) that they predict.
LogitBlocks = Iterator[tuple[torch.Tensor, torch.Tensor]]

# Fields with versions of the libraries that run the model.
LIBRARIES = ("transformers", "torch")


class Batch(NamedTuple):
    """A batch of passes, and the rows to score."""

    ids: torch.Tensor  # to read (B, T)
    scored: torch.Tensor  # indices of the rows to score (R,), among B * T
    targets: torch.Tensor  # the token id that each of these rows predicts (R,)


class Prefix(NamedTuple):
    """A model's cache of a prefix that several passes share."""

    cache: Cache

    def copy(self, number: int) -> "Prefix":
        copied = copy.deepcopy(self.cache)
        copied.batch_repeat_interleave(number)
        return Prefix(copied)

    @property
    def num_bytes(self) -> int:
        cache: Any = self.cache
        if hasattr(cache, "layers"):
            values = [value for layer in cache.layers for value in vars(layer).values()]
        else:  # before transformers 4.54
            values = [*cache.key_cache, *cache.value_cache]
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


class ScoredModel:
    """A model that can score texts: base of `LanguageModel` and of the models of other engines.

    Attributes:
        name: its name in the signature.
        description: its name in errors.
        tokenizer: its tokenizer.
        tokenizer_digest: identifies the tokenizer, or "live".
        limit: its maximum number of tokens.
        device: device of the token ids; "cpu" if it runs elsewhere.
        num_embeddings: exclusive upper bound of token ids; None if unknown.
        gives_logits: whether it returns logits; a server returns only scores of tokens.
        vocabulary_size: number of columns of its logits.  Known after `check`, as are the following.
        by_blocks: whether at most one block of logits exists at a time.
        prefixes_agree: whether scores do not depend on the length of the pass, as far as tested.
        alone: whether a pass must be read alone, since others in its batch change its scores.
        probe: mean nll of the probe text, in nats per token; None unless `identify` has measured it.
        lock: must be held to run the model.
    """

    name: str
    description: str
    tokenizer: PreTrainedTokenizerBase
    tokenizer_digest: str
    limit: ContextLimit
    device: torch.device
    num_embeddings: int | None
    gives_logits: bool
    vocabulary_size: int
    by_blocks: bool
    prefixes_agree: bool = True
    alone: bool = False
    probe: float | None = None
    lock: AbstractContextManager

    def in_use(self) -> AbstractContextManager:
        """Lock the model within the context; restore it afterwards."""
        raise NotImplementedError

    def as_scored(self) -> AbstractContextManager:
        """Set state shared with other models, such as adapters, to that of this model in the context."""
        return nullcontext()

    def check(self) -> None:
        """Refuse a model that cannot score texts: it attends to future tokens, or is random."""
        raise NotImplementedError

    def prepare(self, length: int) -> None:
        """Get ready for passes of at most `length` tokens, or refuse that length."""

    def identify(self) -> None:
        """Digest a live model and its tokenizer, and measure the probe."""
        raise NotImplementedError

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield logits, or log-probabilities, of at most `block_rows` scored rows at a time.

        Args:
            prefix: the cached prefix of all passes.
        """
        raise NotImplementedError

    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return whether tokens (T,) have the same scores after a cached prefix (P,) as after tokens."""
        return False

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Read tokens (1, P) once for several continuations, if `shares_prefixes`."""
        raise NotImplementedError

    def signature_fields(self) -> dict[str, object]:
        """Return everything that scores of given tokens depend on, in the signature's order."""
        raise NotImplementedError


class EngineModel(ScoredModel):
    """Base class of models of other engines than transformers.

    Each pass is read from its beginning, and the engine manages its memory.
    """

    model = None  # instead of a torch module
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @cached_property
    def tokenizer_digest(self) -> str:  # type: ignore[override]
        return tokenizer_digest(self.tokenizer)

    def identify(self) -> None:
        self.probe = self.measure_probe()

    def measure_probe(self) -> float:
        raise NotImplementedError


# --- the signature --------------------------------------------------------------------------------


def describe_model(model: ScoredModel) -> str:
    return _line(_model_fields(model))


def describe_measurement(
    model: ScoredModel,
    measured: dict[str, object],
    words_given: bool,
    word_fields: dict[str, str] | None = None,
) -> dict[str, object]:
    """Return the long and the short signature of a measurement, and the probe if it was measured.

    Similar to sacrebleu's signatures: `key:value` pairs joined by `|`.  The short form consists of
    the protocol, window, stride, `live` if nothing identifies the model, and a digest of the long form.
    """
    of_words = {"words": "given" if words_given else "split"} | (word_fields or {})
    of_tokenizer = {"tokenizer": model.tokenizer_digest}
    fields = _model_fields(model) | of_tokenizer | measured | of_words
    first = ("model", "revision", "tokenizer", *measured, *of_words)
    order = dict.fromkeys([*first, *fields])  # then the model's other fields
    line = _line({name: fields[name] for name in order if name in fields})
    short = ["ppl", measured["protocol"], f"L{measured['window']}", f"S{measured['stride']}"]
    if fields.get("revision") == LIVE:
        short.append(LIVE)
    short.append(hashlib.sha256(line.encode("utf-8")).hexdigest()[:DIGITS])
    described: dict[str, object] = {"signature": line, "signature_short": "|".join(map(str, short))}
    return described if model.probe is None else described | {"probe": model.probe}


def _model_fields(model: ScoredModel) -> dict[str, object]:
    fields = model.signature_fields()
    libraries = {name: fields.pop(name) for name in LIBRARIES if name in fields}
    return fields | {"version": __version__} | libraries


def _line(fields: dict[str, object]) -> str:
    def escaped(value: object) -> str:
        return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")

    return "|".join(f"{key}:{escaped(value)}" for key, value in fields.items())
