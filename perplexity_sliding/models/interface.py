"""The interface of models, and the signature, which identifies what numbers depend on.

A `LanguageModel` runs in this process; other models run in another engine or on a server.  Each is
opened or adopted, prepared, and used::

    model = ModelSource("gpt2").open()
    with model.in_use():
        model.check()                           # find its vocabulary and the head to use
        model.prepare(longest, num_tokens)      # after the windows are planned
        for logits, targets in model.logits(batch, block_rows):
            ...
"""

import copy
import hashlib
import math
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
from ..plan.tokenizer_digest import tokenizer_digest
from ..plan.windows import ContextLimit

# Tokenizers without a limit state one of about 1e30.
LARGEST_LIMIT = 10**9

# Logits (R', V) of some rows at a time, and the token ids (R',) that they predict.
LogitBlocks = Iterator[tuple[torch.Tensor, torch.Tensor]]


# Tokens up to the end of each stretch of a long probe text, and the mean nll of the stretch.
LongProbe = Sequence[Sequence[float]]

# Fields with versions of the libraries that run the model.
LIBRARIES = ("transformers", "torch")

# Maximum length of the short probe text, whose mean nll fingerprints a model.
PROBE_TOKENS = 256
# Nats, more than any computed nll and less than a masked one.
IMPOSSIBLE = 1e10


class Batch(NamedTuple):
    """A batch of passes, and the rows to score.

    Attributes:
        ids: token ids to read (B, T).
        scored: indices of the rows to score (R,), among B * T.
        targets: the token id that each of these rows predicts (R,).
    """

    ids: torch.Tensor
    scored: torch.Tensor
    targets: torch.Tensor


class Prefix(NamedTuple):
    """A model's cache of a prefix that several passes share."""

    cache: Cache

    def copy(self, number: int) -> "Prefix":
        """Copy it for `number` continuations; the original is unchanged."""
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
    """A model that can score texts.

    Attributes:
        name: its name in the signature.
        description: its name in errors.
        tokenizer: its tokenizer.
        limit: its maximum number of tokens.
        device: device of the token ids; "cpu" if it runs elsewhere.
        num_embeddings: exclusive upper bound of token ids; None if unknown.
        tokenizer_digest: identifies the tokenizer, see `plan.tokenizer_digest`.
        gives_logits: whether it returns logits; a server returns only scores of tokens.
        vocabulary_size: number of columns of its logits.  Known after `check`, as are the following.
        by_blocks: whether at most one block of logits exists at a time.
        prefixes_agree: whether scores do not depend on the length of the pass, as far as tested.
        alone: whether a pass must be read alone, since others in its batch change its scores.
        probe: mean nll of the probe text, in nats per token; known after `prepare`.
        rows_tried: size of the largest batch whose passes have the same scores as alone.
        lock: must be held to run the model.
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
    def alone(self) -> bool: ...

    @property
    def probe(self) -> float | None: ...

    def long_probe(self, length: int) -> LongProbe | None:
        """Return the probe of passes of this length; None if the short probe is as long.

        See `long_probe_of`.  Call it after `prepare` with this length.
        """
        ...

    def in_use(self) -> AbstractContextManager:
        """Lock the model within the context; restore it afterwards."""
        ...

    def as_scored(self) -> AbstractContextManager:
        """Set state shared with other models, such as adapters, to that of this model in the context."""
        ...

    def check(self) -> None:
        """Probe the model, unless the result for its current state is known.

        Raises:
            ValueError: it cannot score texts, because it attends to future tokens or is random.
        """
        ...

    def prepare(
        self, length: int, num_tokens: int = 0, whole_lengths: Collection[int] = ()
    ) -> None:
        """Test passes of the lengths that will be read, and measure the probes.

        Args:
            length: tokens in the longest pass to score.
            num_tokens: tokens to read in total.
            whole_lengths: tokens in the longest pass of each measurement with complete windows,
                which are read if scores depend on the length of the pass.

        Raises:
            ValueError: the model cannot score passes of this length.
            MemoryError: such a pass does not fit in memory.
        """
        ...

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield (logits (R', V), targets (R',)) of the scored rows, at most `block_rows` at a time.

        Log-probabilities are valid logits.

        Args:
            prefix: the cached prefix of all passes.
        """
        ...

    def read_in_parts(self, length: int, refusal: str) -> None:
        """Reduce the memory of passes of this length from now on, by reading them in chunks.

        Raises:
            MemoryError: the model cannot do this; the message is `refusal` with the reason.
        """
        ...

    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return whether tokens (T,) have the same scores after a cached prefix (P,)."""
        ...

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Read tokens (1, P) once for several continuations, if `shares_prefixes`."""
        ...

    def signature_fields(self) -> dict[str, object]:
        """Return everything that scores of given tokens depend on, in the signature's order."""
        ...

    def check_identifiable(self, argument: str = "checkpoint") -> None:
        """Refuse to store scores of a model that may change without changing its signature."""
        ...


class EngineModel:
    """Base class of models of other engines than transformers.

    Each pass is read from its beginning, the engine manages its memory, and the model's code cannot
    be modified.

    Attributes:
        model: None instead of a torch module.
        lock: must be held to run the model.
    """

    model = None
    device = torch.device("cpu")
    prefixes_agree = True  # `prepare` refuses any other
    alone = False
    rows_tried = sys.maxsize
    description: str
    tokenizer: PreTrainedTokenizerBase

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @cached_property
    def tokenizer_digest(self) -> str:
        return tokenizer_digest(self.tokenizer)

    def tokenize(self, text: str) -> list[int] | None:
        """Return the engine's own token ids of a text; None if unavailable."""
        return None

    def long_probe(self, length: int) -> LongProbe | None:
        """Return None: other engines have only the short probe."""
        return None

    def as_scored(self) -> AbstractContextManager:
        return nullcontext()

    def read_in_parts(self, length: int, refusal: str) -> None:
        """Raise MemoryError: an engine manages its own memory."""
        raise MemoryError(refusal)

    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return False: engines manage their own caches."""
        return False

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Refuse: `shares_prefixes` is False.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.description} shares no prefixes")

    def check_identifiable(self, argument: str = "checkpoint") -> None:
        """Accept any: a digest of the file, or the probe, identifies stored scores."""


class ProbeText(NamedTuple):
    """A random text that identifies models.

    Attributes:
        ids: token ids (T,), which depend only on the size of the vocabulary.
    """

    ids: list[int]

    @classmethod
    def of(cls, vocabulary_size: int, limit: int | None, length: int = PROBE_TOKENS) -> "ProbeText":
        """Generate the text for a vocabulary, up to the model's limit.

        Shorter texts are prefixes of longer ones.  Python guarantees that `random()` returns the same
        numbers in every version.
        """
        draw = random.Random(0)
        length = min(length, limit or length)
        return cls([int(draw.random() * vocabulary_size) for _ in range(length)])

    def batch(self, device: torch.device) -> Batch:
        """Return one pass over the text, every token but the first scored."""
        ids = torch.tensor(self.ids, device=device)
        return Batch(ids[None, :-1], torch.arange(len(ids) - 1, device=device), ids[1:])


def long_probe_of(nlls: np.ndarray, prefixes_agree: bool) -> LongProbe:
    """Average the nlls of a probe text over stretches between doublings of 256, and at its end.

    Texts of different lengths share the former, so that measurements with different passes can be
    compared.

    Args:
        nlls: nlls of all tokens of the text but the first (N - 1,).
        prefixes_agree: whether scores do not depend on the length of the pass.

    Returns:
        [tokens up to the end of a stretch, its mean nll in nats per token] pairs, as in JSON.
    """
    end = len(nlls) + 1
    ends = [PROBE_TOKENS]
    while prefixes_agree and 2 * ends[-1] < end:
        ends.append(2 * ends[-1])
    last = max(1, min(ends[-1], end - PROBE_TOKENS))  # rounding needs tokens to average over
    stretches = [*pairwise(ends), (last, end)]
    return [[stop, mean_of(nlls[first - 1 : stop - 1])] for first, stop in stretches]


def mean_of(nlls: np.ndarray) -> float:
    """Return the mean nll of a probe text in nats, without tokens that a model never predicts.

    Their logits are masked, by infinity or the lowest number, next to which no other token counts.
    """
    possible = nlls[nlls < IMPOSSIBLE]
    return float(possible.mean()) if len(possible) else math.inf


def agree(values: np.ndarray, others: np.ndarray, tolerance: float) -> bool:
    """Return whether values (N,) differ by no more than rounding, in the root of the mean square."""
    same = values == others  # infinite ones too
    difference = np.subtract(values, others, where=~same, out=np.zeros_like(values))
    return bool(np.sqrt(np.mean(difference**2)) <= tolerance)


# --- the signature --------------------------------------------------------------------------------

# It describes the settings of a forward pass, but not the origin of a model.  Modified code is marked
# `+modified` if it is cheap to detect.  The probe, a measured number, complements the signature.  Equal
# signatures and equal probes mean equal numbers.


def describe_model(model: ScoredModel) -> str:
    """Describe on one line everything that a model's scores of given tokens depend on."""
    return _line(_model_fields(model))


def describe_key_tokens(evaluator: ScoredModel, rule: str) -> str:
    """Describe on one line how key tokens are selected.

    Args:
        evaluator: the model that finds them.
        rule: description of the rule.
    """
    fields = {"tokenizer": evaluator.tokenizer_digest, "limit": evaluator.limit.length}
    return _line({"key_tokens": rule} | fields | _model_fields(evaluator))


def describe_measurement(
    model: ScoredModel,
    measured: dict[str, object],
    length: int,
    words_given: bool,
    word_fields: dict[str, str] | None = None,
) -> dict[str, object]:
    """Return the long and the short signature of a measurement, and its probes.

    Similar to sacrebleu's signatures: `key:value` pairs joined by `|`.  The short form consists of
    the protocol, window, stride and a digest of the long form.

    Args:
        measured: fields of the measurement, see `Measurement.signature_fields`.
        length: tokens in its longest forward pass.
        word_fields: fields for the scoring of words and for detokenization, if any.
    """
    of_words = {"words": "given" if words_given else "split"} | (word_fields or {})
    of_tokenizer = {"tokenizer": model.tokenizer_digest}
    fields = _model_fields(model) | of_tokenizer | measured | of_words
    first = ("model", "revision", "tokenizer", *measured, *of_words)
    order = dict.fromkeys([*first, *fields])  # then the model's other fields
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
    """Return the fields of a model, with the metric's version first, then those of the libraries."""
    fields = model.signature_fields()
    libraries = {name: fields.pop(name) for name in LIBRARIES if name in fields}
    return fields | {"version": VERSION} | libraries


def _line(fields: dict[str, object]) -> str:
    return "|".join(f"{key}:{_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """Format a field's value on one line, with an escaped separator."""
    return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")
