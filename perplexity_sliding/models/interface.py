"""The interface of models, wherever they run; and the signature, which names what numbers depend on.

A `LanguageModel` runs in this process; others may live in another engine or behind a URL.  Each is
opened or adopted, prepared, and used::

    model = ModelSource("gpt2").open()
    with model.in_use():
        model.check()                           # what it is: vocabulary, way to its logits
        model.prepare(longest, num_tokens)      # once the windows are planned
        for logits, targets in model.logits(batch, block_rows):
            ...
"""

import copy
import hashlib
import random
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from ..about import VERSION
from ..digests import DIGITS
from ..plan.tokenization import tokenizer_digest
from ..plan.windows import ContextLimit

# Tokenizers without a limit state one of about 1e30.
LARGEST_LIMIT = 10**9

# Logits (R', V) of some rows at a time, and the token ids (R',) that they predict.
LogitBlocks = Iterator[tuple[torch.Tensor, torch.Tensor]]


# Tokens up to the end of a stretch of a long made-up text, and the mean nll of that.
LongProbe = Sequence[Sequence[float]]

# Fields whose values are versions of what runs the model.
LIBRARIES = ("transformers", "torch")

# Tokens of the made-up text whose mean nll vouches for a model, at most.
PROBE_TOKENS = 256


class Batch(NamedTuple):
    """Passes side by side, and which of their rows are scored.

    Attributes:
        ids: token ids to read (B, T).
        scored: rows to give logits of (R,), counting through B * T.
        targets: the token id that each of these rows predicts (R,).
    """

    ids: torch.Tensor
    scored: torch.Tensor
    targets: torch.Tensor


class Prefix(NamedTuple):
    """What a model keeps of tokens that several passes begin with."""

    cache: Cache

    def copy(self, number: int) -> "Prefix":
        """Copy it for `number` continuations; the original stays as it is."""
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


class ScoredModel(Protocol):
    """A model that texts can be scored with.

    Attributes:
        name: for the signature.
        description: what to call it in an error.
        tokenizer: its tokenizer.
        limit: tokens that it takes.
        device: where it expects token ids; "cpu" where it runs elsewhere.
        num_embeddings: token ids must be below it; None where the model does not say.
        tokenizer_digest: identifies how that encodes, see `plan.tokenization`.
        gives_logits: and not the scores of tokens alone, as a server does.
        vocabulary_size: columns of its logits.  After `check`, as are the following.
        by_blocks: whether no more than a block of logits exists at a time.
        prefixes_agree: whether a token's score is the same in shorter and in longer passes, as far
            as passes were tried.
        probe: mean nll of the made-up text, in nats a token; after `prepare`.
        rows_tried: passes in the largest batch that gave each of them the scores that it has alone.
        lock: what whoever runs the model holds.
    """

    name: str
    description: str
    tokenizer: PreTrainedTokenizerBase
    limit: ContextLimit
    device: torch.device
    gives_logits: bool
    rows_tried: int

    @property
    def num_embeddings(self) -> int | None: ...

    @property
    def lock(self) -> AbstractContextManager: ...

    @property
    def tokenizer_digest(self) -> str: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def by_blocks(self) -> bool: ...

    @property
    def prefixes_agree(self) -> bool: ...

    @property
    def probe(self) -> float | None: ...

    def long_probe(self, length: int) -> LongProbe | None:
        """Return the probe of passes of this length; None where the probe reaches as far.

        See `long_probe_of`.  After `prepare` with this length.
        """
        ...

    def in_use(self) -> AbstractContextManager:
        """Lock the model for the time of the context; restore it afterwards."""
        ...

    def as_scored(self) -> AbstractContextManager:
        """Let what is shared with other models be, for the time of the context, what is scored."""
        ...

    def check(self) -> None:
        """Find out what the model is; what is known of it in its present state is not tried again.

        Raises:
            ValueError: it cannot be scored with, as it attends to future tokens or is random.
        """
        ...

    def prepare(
        self, length: int, num_tokens: int = 0, whole_lengths: Collection[int] = ()
    ) -> None:
        """Try passes as long as those that will be read, and measure the probes.

        Args:
            length: tokens in the longest pass that will be scored.
            num_tokens: tokens that will be read in all.
            whole_lengths: tokens in the longest pass of each measurement if windows are read past
                their last target, as they are where the model gives a token another score in a
                shorter pass.

        Raises:
            ValueError: it cannot be scored with at this length.
            MemoryError: such a pass does not fit.
        """
        ...

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield (logits (R', V), targets (R',)) of the scored rows, at most `block_rows` at a time.

        Log-probabilities are logits too.

        Args:
            prefix: what was read before each of the passes.
        """
        ...

    def read_in_parts(self, length: int, refusal: str) -> None:
        """Take less memory for passes of this length from now on, as one did not fit.

        Raises:
            MemoryError: the model cannot; with the refusal and why.
        """
        ...

    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return whether tokens (T,) get the same scores after a prefix (P,) that was read before."""
        ...

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Read tokens (1, P) once, for several continuations; asked for where prefixes are shared."""
        ...

    def signature_fields(self) -> dict[str, object]:
        """Return what its scores of given tokens depend on, by name, in the signature's order."""
        ...

    def check_identifiable(self, argument: str = "checkpoint") -> None:
        """Refuse to keep scores of a model that may change under the same signature."""
        ...


class EngineModel:
    """What models of other engines than transformers have in common.

    Each pass is read from its beginning, in the memory that the engine has, by a model that nothing
    can be put over.

    Attributes:
        model: no torch module.
        lock: what whoever runs the model holds.
    """

    model = None
    device = torch.device("cpu")
    prefixes_agree = True  # `prepare` refuses any other
    rows_tried = sys.maxsize
    description: str
    tokenizer: PreTrainedTokenizerBase

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.probe: float | None = None

    @cached_property
    def tokenizer_digest(self) -> str:
        return tokenizer_digest(self.tokenizer)

    def tokenize(self, text: str) -> list[int] | None:
        """Return the ids that the engine cuts a text into; None where it does not say."""
        return None

    def long_probe(self, length: int) -> LongProbe | None:
        """Return None: what runs elsewhere is measured on the first tokens alone."""
        return None

    def as_scored(self) -> AbstractContextManager:
        return nullcontext()

    def read_in_parts(self, length: int, refusal: str) -> None:
        """Raise MemoryError: an engine manages its own memory."""
        raise MemoryError(refusal)

    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return False: what an engine keeps of a context is its own affair."""
        return False

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Refuse: `shares_prefixes` is False.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.description} shares no prefixes")

    def check_identifiable(self, argument: str = "checkpoint") -> None:
        """Accept any: a digest of the file, or the probe, tells apart the scores that are kept."""


class ProbeText(NamedTuple):
    """The text that models are told apart by.

    Attributes:
        ids: token ids (T,), the same for each vocabulary of a size, in every process.
    """

    ids: list[int]

    @classmethod
    def of(cls, vocabulary_size: int, limit: int | None, length: int = PROBE_TOKENS) -> "ProbeText":
        """Make it up for a vocabulary, of as many tokens as the model takes; longer ones begin alike.

        Python promises that `random()` draws the same numbers in every version.
        """
        draw = random.Random(0)
        length = min(length, limit or length)
        return cls([int(draw.random() * vocabulary_size) for _ in range(length)])

    def batch(self, device: torch.device) -> Batch:
        """Return one pass over the text, every token but the first scored."""
        ids = torch.tensor(self.ids, device=device)
        return Batch(ids[None, :-1], torch.arange(len(ids) - 1, device=device), ids[1:])


def long_probe_of(nlls: np.ndarray, prefixes_agree: bool) -> LongProbe:
    """Average the nlls of a made-up text over stretches: between doublings of the probe, and at its end.

    Shorter and longer texts share the former, by which what was read in passes of other lengths is
    compared.

    Args:
        nlls: of every token of the text but the first (N - 1,).
        prefixes_agree: whether a shorter pass would give the same.

    Returns:
        [tokens up to the end of a stretch, its mean nll in nats a token], as JSON has them.
    """
    end = len(nlls) + 1
    ends = [PROBE_TOKENS]
    while prefixes_agree and 2 * ends[-1] < end:
        ends.append(2 * ends[-1])
    last = max(1, min(ends[-1], end - PROBE_TOKENS))  # rounding needs tokens to average over
    stretches = [*pairwise(ends), (last, end)]
    return [[stop, float(nlls[first - 1 : stop - 1].mean())] for first, stop in stretches]


# --- the signature --------------------------------------------------------------------------------

# It covers the settings of a forward pass, as far as a description can, and leaves out where a model came
# from.  Code put over a model's own, where that is cheap to see, is marked: `+modified`.  Beside it stands
# the probe, a measured number.  Equal signatures and equal probes mean equal numbers.


def describe_model(model: ScoredModel) -> str:
    """Describe on one line what a model's scores of given tokens depend on."""
    return _line(_model_fields(model))


def describe_key_tokens(evaluator: ScoredModel, rule: str) -> str:
    """Describe on one line what decides which tokens are key.

    Args:
        evaluator: finds them.
        rule: how it tells them from others.
    """
    fields = {"tokenizer": evaluator.tokenizer_digest} | _model_fields(evaluator)
    return _line({"key_tokens": rule} | fields)


def describe_measurement(
    model: ScoredModel,
    measured: dict[str, object],
    length: int,
    words_given: bool,
    word_fields: dict[str, str] | None = None,
) -> dict[str, object]:
    """Write the signature of a measurement under a model, long and short; and its probes.

    In the spirit of sacrebleu's: `key:value` pairs joined by `|`.  The short form keeps the
    protocol and a digest of the whole line.

    Args:
        measured: what the measurement says of itself, see `Measurement.signature_fields`.
        length: tokens that its longest forward pass reads.
        word_fields: how words are scored, where they are, and what the texts were before.
    """
    of_words = {"words": "given" if words_given else "split"} | (word_fields or {})
    of_tokenizer = {"tokenizer": model.tokenizer_digest}
    fields = _model_fields(model) | of_tokenizer | measured | of_words
    first = ("model", "revision", "tokenizer", *measured, *of_words)
    order = dict.fromkeys([*first, *fields])  # then what else the model says of itself
    line = _line({name: fields[name] for name in order if name in fields})
    digest = hashlib.sha256(line.encode("utf-8")).hexdigest()[:DIGITS]
    short = f"ppl|{measured['protocol']}|L{measured['window']}|S{measured['stride']}|{digest}"
    return {
        "signature": line,
        "signature_short": short,
        "probe": model.probe,
        "long_probe": model.long_probe(length),
    }


def _model_fields(model: ScoredModel) -> dict[str, object]:
    """Return what a model says of itself, the metric's version before those of the libraries."""
    fields = model.signature_fields()
    libraries = {name: fields.pop(name) for name in LIBRARIES if name in fields}
    return fields | {"version": VERSION} | libraries


def _line(fields: dict[str, object]) -> str:
    return "|".join(f"{key}:{_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """Write a field's value on one line, without the sign that ends it."""
    return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")
