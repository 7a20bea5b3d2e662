"""A causal language model of transformers, opened by name or adopted live.

This module finds its identity, its limit, its vocabulary and the cheapest head, once per state of
the model.
"""

import logging
import math
import threading
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError, ArgumentTypeError
from ..plan.tokenization import shared_lock
from ..plan.tokenizer_digest import check_tokenizer, tokenizer_digest
from ..plan.windows import ContextLimit
from .digest import (
    Built,
    active_adapters,
    check_adapters,
    check_examinable,
    examine,
    model_name,
    model_revision,
    modifications,
    runs_own_code,
    state_of_code,
)
from .interface import (
    PROBE_TOKENS,
    Batch,
    LogitBlocks,
    LongProbe,
    Prefix,
    ProbeText,
    agree,
    long_probe_of,
    mean_of,
)
from .loading import (
    check_decoder,
    check_exists,
    check_place,
    context_limit,
    find_commit,
    gather_once,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    unwrapped,
)
from .logits import (
    OTHER_SHAPE,
    UNSUPPORTED_ERRORS,
    BodyThenHead,
    ChangedModelError,
    Head,
    cheap_padding,
    describe_head,
    explain_failure,
    has_forward_of_transformers,
    head_makers,
    is_out_of_memory,
)
from .module import (
    evaluating,
    grows_frequencies,
    has_experts,
    implementations,
    input_device,
    input_embeddings,
    library_code,
    modules_of,
    must_read_alone,
    named_modules,
    num_embeddings,
    number_format,
    parameters_of,
    precision,
    selects_keys,
)
from .probes import (
    KeptState,
    check_causal,
    examine_passes,
    gives_logits,
    is_known_architecture,
    look_quickly,
    nlls_of,
    read_probe_text,
    short_probe,
    state_kept,
)
from .settings import skips_padding
from .states import ChunkedHead, StateReader, find_reader, why_not_in_parts

# A child of evaluate's logger, so that evaluate.logging controls it.
logger = logging.getLogger("evaluate.perplexity_sliding")


# Smallest chunk size in tokens.
SMALLEST_PART = 8
# Each call reads the beginning of the probe text again: a share of as many tokens as it scores, at
# least a few.
SHARE_READ, LEAST_READ = 32, 16
# Largest difference taken for rounding, in nats, in the mean, and in the root of the mean square.  Where
# rounding is larger, a model is examined in each call.
SAME_BEGINNING = {
    torch.float32: (1e-4, 3e-4), torch.float16: (0.005, 0.01), torch.bfloat16: (0.01, 0.05)
}  # fmt: skip
NOTHING = np.empty(0)
# Long passes are tested before a run of at least this many; the test costs two and a half.
LONG_RUN = 50


class Findings(NamedTuple):
    """Results of forward passes over random tokens.

    Attributes:
        state: the model's state at that time.
        is_known: whether short passes suffice for its architecture.
        head_number: index of the head in `head_makers(model)`.
        vocabulary_size: number of logits per token.
        length: tokens in the longest pass tested.
        prefixes_agree: whether scores do not depend on the length of the pass.
        stateful: names of modules whose state changes when they run.
        short_nlls: nlls (N,) of the short probe text in nats, if measured.
        part: chunk size in tokens for longer passes; None if every pass fits in memory.
        steps_singly: whether chunked passes continue token by token.
        long_nlls: nlls (N,) of longer probe texts, by length of the pass; only of the longest if
            prefixes agree.
        rows_tried: size of the largest batch whose passes have the same scores as alone.
        alone: whether a pass must be read alone, since others in its batch change its scores.
    """

    state: tuple
    is_known: bool
    head_number: int
    vocabulary_size: int
    length: int
    prefixes_agree: bool = True
    stateful: frozenset[str] = frozenset()
    short_nlls: np.ndarray | None = None
    part: int | None = None
    steps_singly: bool = False
    long_nlls: Mapping[int, np.ndarray] = {}
    rows_tried: int = 2
    alone: bool = False


_FINDINGS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class LanguageModel:
    """A causal language model and its tokenizer: opened or adopted, prepared, and used.

    It implements `ScoredModel`.

    Attributes:
        model: the torch module.
        tokenizer: its tokenizer.
        name: its name in the signature.
        revision: digests of its weights and configuration, computed before any forward pass.
        description: its name in errors.
        limit: its maximum number of tokens.
        device: device of the token ids.
        num_embeddings: exclusive upper bound of token ids; None if unknown.
    """

    variant = ""  # distinguishes models that share weights
    gives_logits = True

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        revision: str,
        description: str,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.description = description
        self.limit: ContextLimit = context_limit(model, tokenizer)
        self.device = input_device(model)
        self.num_embeddings = num_embeddings(model)
        self._found: Findings | None = None
        self._head: Head | None = None
        self._kept_state: KeptState | None = None
        self._changed: set[torch.nn.Module] = set()  # by passes over random tokens
        self._stateful: list[torch.nn.Module] = []
        self._built: Built | None = None
        # How a call compares the model with what earlier calls found, see `_has_changed`.
        self._prepared: tuple = ()
        self._earlier = NOTHING  # nlls of the probe text in earlier calls
        self._unread = 0  # tokens of the probe text that are still to be read again

    @classmethod
    def open(
        cls,
        model_id: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        model_kwargs: dict | None = None,
        tokenizer_kwargs: dict | None = None,
        argument: str = "model_id",
    ) -> "LanguageModel":
        """Load a model, and its tokenizer unless one is given.

        Args:
            argument: name of the argument, for errors.

        Raises:
            ValueError: it cannot be loaded, or is not a complete causal language model.
        """
        model_kwargs, tokenizer_kwargs = dict(model_kwargs or {}), dict(tokenizer_kwargs or {})
        placed = "device_map" in model_kwargs or "quantization_config" in model_kwargs
        typed = bool({"dtype", "torch_dtype", "quantization_config"} & set(model_kwargs))
        target = None if placed and device is None else resolve_device(device)
        weights = None if typed and dtype is None else resolve_dtype(dtype)
        check_place(model_id, argument, model_kwargs)
        check_exists(model_id, model_kwargs, argument)
        if tokenizer is None:
            tokenizer = load_tokenizer(model_id, tokenizer_kwargs, model_kwargs, argument)
        model = load_model(model_id, target, weights, model_kwargs, argument)
        with evaluating(model):
            return cls(
                model,
                tokenizer,
                model_name(model_id, model_kwargs),
                model_revision(model, find_commit(model_id, model_kwargs)),
                f"`{argument}`={model_id!r}",
            )

    @classmethod
    def adopt(
        cls,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        argument: str = "model",
        tokenizer_argument: str = "tokenizer",
    ) -> "LanguageModel":
        """Adopt a live model and its tokenizer.

        Args:
            argument, tokenizer_argument: names of the arguments, for errors.

        Raises:
            TypeError: they have other types.
            ValueError: the model is an encoder-decoder, or has no weights.
        """
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError(
                argument,
                "be a loaded torch model or a vllm.LLM",
                got=type(model).__name__,
                advice=(
                    "Pass a name or a folder as "
                    f"`{'model_id' if argument == 'model' else argument}`."
                ),
            )
        model = unwrapped(model)
        gather_once(model, argument)
        check_tokenizer(tokenizer, tokenizer_argument)
        config = getattr(model, "config", None)
        check_decoder(config, f"`{argument}`")
        name = model_name(getattr(config, "_name_or_path", "") or type(model).__name__, {})
        with lock_of(model), evaluating(model):
            return cls(model, tokenizer, name, model_revision(model, None), f"`{argument}`")

    @cached_property
    def tokenizer_digest(self) -> str:
        return tokenizer_digest(self.tokenizer)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return next(self.model.parameters(), torch.empty(0)).dtype

    @property
    def lock(self) -> threading.RLock:
        """The lock for running or inspecting the model."""
        return lock_of(self.model)

    def signature_fields(self) -> dict[str, object]:
        """Return everything that scores of given tokens depend on, in the signature's order."""
        built = self._built or examine(self.model)
        adapters = active_adapters(built)
        attention, experts = implementations(getattr(self.model, "config", None))
        return {
            "model": self.name + ("+modified" if modifications(built) else ""),
            "revision": self.revision,
            "dtype": number_format(self.model),
            **({} if adapters is None else {"adapters": adapters}),
            "attention": attention,
            **({"experts": experts} if experts and has_experts(self.model) else {}),
            **({"passes": "apart"} if self._reads_apart(built) else {}),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        }

    def _reads_apart(self, built: Built) -> bool:
        """Return whether no pass is read as a part of a longer one because of code of one's own.

        The libraries' code is known by its version, quantised layers by their settings, and for which of
        them the length of a pass matters need not show in each part of a run.
        """
        if self._found is None or self.prefixes_agree or self.alone:
            return False
        code = library_code(built.structure.of_libraries)
        return bool(modifications(built)) or runs_own_code(built, code)

    def check_identifiable(self, argument: str = "checkpoint") -> None:
        """Refuse to store scores of a model that may change without changing its signature.

        Args:
            argument: the argument that names the file.

        Raises:
            ValueError: code that cannot be identified runs in the model.
        """
        places = modifications(examine(self.model))
        if places:
            raise ArgumentError(
                argument,
                f"be left out with a model whose code was changed ({places[0]}): its scores "
                "cannot be verified, and the file may contain those of another model",
                advice=f"Remove the change, or leave out `{argument}`.",
            )

    @property
    def findings(self) -> Findings:
        """The findings of `check` and `prepare`."""
        if self._found is None:
            raise RuntimeError(f"{self.description} must be checked first: call check().")
        return self._found

    @property
    def head(self) -> Head:
        """The head that computes its logits."""
        if self._head is None:
            raise RuntimeError(f"{self.description} must be prepared first: call prepare().")
        return self._head

    @property
    def vocabulary_size(self) -> int:
        return self.findings.vocabulary_size

    @property
    def by_blocks(self) -> bool:
        return self.head.by_blocks

    @property
    def prefixes_agree(self) -> bool:
        return self.findings.prefixes_agree

    @property
    def alone(self) -> bool:
        return self.findings.alone

    @property
    def probe(self) -> float | None:
        """The probe; a call that reports it has read its beginning, see `_compare_beginning`."""
        self._compare_beginning()
        nlls = self.findings.short_nlls
        return None if nlls is None else mean_of(nlls)

    def long_probe(self, length: int) -> LongProbe | None:
        """Return the probe of passes of this length; see `ScoredModel`."""
        self._compare_beginning()
        nlls = self._long_nlls(length)
        return None if nlls is None else long_probe_of(nlls, self.prefixes_agree)

    def _long_nlls(self, length: int) -> np.ndarray | None:
        """Return the nlls (length,) of a long probe text, or None if unknown."""
        known = self.findings.long_nlls
        if self.prefixes_agree:
            longest = max(known, default=0)
            return known[longest][:length] if self._probe_length < length <= longest else None
        return known.get(length)

    @property
    def _probe_length(self) -> int:
        """Length of the short probe text."""
        return min(PROBE_TOKENS, self.limit.length or PROBE_TOKENS)

    @property
    def rows_tried(self) -> int:
        return self.findings.rows_tried

    @rows_tried.setter
    def rows_tried(self, rows: int) -> None:
        self._found = self.findings._replace(rows_tried=rows)
        _FINDINGS.setdefault(self.model, {})[self.variant] = self._found

    def as_scored(self) -> AbstractContextManager:
        """Return a context without effect: the torch module is this model."""
        return nullcontext()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the model and put it in evaluation mode; restore it afterwards.

        Other threads that use the same model wait, because parts of it run differently meanwhile.
        """
        with lock_of(self.model), evaluating(self.model), state_kept(self.model) as state:
            outer, self._kept_state = self._kept_state, state  # for nested calls by a callback
            try:
                yield
                self._compare_beginning()
            finally:
                self._kept_state = outer

    @torch.inference_mode()
    def check(self) -> None:
        """Probe the model, or take the known findings for its current state; see `ScoredModel`."""
        built = self._built = examine(self.model)
        check_examinable(built, self.description)
        check_adapters(built, self.description)
        code = library_code(built.structure.of_libraries)
        modified = modifications(built)
        # affects the forward, in addition to weights and configuration
        tensors = ((p.device, p.dtype) for p in parameters_of(self.model))
        structure = (*state_of_code(built), *tensors, number_format(self.model))
        state = (self.revision, code, structure, self._probe_length, *modified)
        known = _FINDINGS.get(self.model, {}).get(self.variant)
        self._earlier = NOTHING
        if known is None or known.state != state:
            known = self._look(state)
            logger.info(f"{self.description}: logits by {describe_head(self._make_head(known))}")
            self._apply(known)
            return
        self._earlier = nlls_known(known)
        if modified or runs_own_code(built, code):
            # It may behave differently from the last call, and is probed again.
            known = known._replace(short_nlls=None, long_nlls={}, rows_tried=2)
        self._adopt(known)  # no pass has run since that could have changed it

    @torch.inference_mode()
    def prepare(
        self, length: int, num_tokens: int = 0, whole_lengths: Collection[int] = ()
    ) -> None:
        """Test long passes and measure the probes, unless already done; see `ScoredModel`.

        Passes as long as the longest are tested if short ones do not suffice, or if the run is so
        long that the test is cheap.  A pass that does not fit in memory is read in chunks if the
        model can continue from its state.
        """
        if self._found is None:
            self.check()
        self._unread = 0  # the passes below are no part of the call
        self._prepared = length, num_tokens, whole_lengths
        is_unmeasured = self.findings.short_nlls is None
        if not self.findings.is_known:
            # only passes of this length show whether the length matters
            length = max([length, *whole_lengths])
        is_worth_it = not self.findings.is_known or num_tokens >= LONG_RUN * length
        if length > self.findings.length and is_worth_it:
            self._try_long_passes(length)
        if is_unmeasured:
            nlls = self._read_probe_text(PROBE_TOKENS, self.limit.length)
            self._apply(self.findings._replace(short_nlls=nlls))
        for probed in [length] if self.prefixes_agree else sorted({length, *whole_lengths}):
            self._measure_long_probe(probed)
        if is_unmeasured:
            if not self._reads_alike(nlls_known(self.findings)):
                self._examine_again()
            self._earlier = NOTHING  # it is probed in this call
        share = max(LEAST_READ, num_tokens // SHARE_READ)
        self._unread = min(length, share, len(nlls_known(self.findings)))

    def _measure_long_probe(self, length: int) -> None:
        """Measure the probe of this length, unless the short one is as long, or it is known."""
        if length <= self._probe_length or self._long_nlls(length) is not None:
            return
        nlls = self._read_probe_text(length + 1)
        kept = {} if self.prefixes_agree else self.findings.long_nlls
        self._apply(self.findings._replace(long_nlls={**kept, length: nlls}))

    @torch.inference_mode()
    def _compare_beginning(self) -> None:
        """Read the beginning of the probe text again, unless this call has read it, and compare."""
        count, self._unread = self._unread, 0
        count = min(count, len(self._earlier))
        if count:
            with self.as_scored():
                self._has_changed(self._read_probe_text(count + 1))

    @torch.inference_mode()
    def _has_changed(self, nlls: np.ndarray) -> bool:
        """Return whether the beginning of the probe text has other nlls (N,) than in earlier calls.

        The model was then changed in a way that comparing its parts does not show; it is examined and
        probed again.

        Raises:
            ValueError: it has changed so much that the call's plan does not suit it.
        """
        before, self._unread = self.findings, 0
        if self._reads_alike(nlls):
            return False
        try:
            self._examine_again(before.prefixes_agree)
        except ValueError as error:
            raise ChangedModelError(*error.args) from error
        planned = before.vocabulary_size, before.prefixes_agree
        if planned != (self.vocabulary_size, self.prefixes_agree):
            raise ChangedModelError(
                f"{self.description} must answer as in earlier calls, but its code has changed, and "
                "the passes of this call were planned for the former. Call again."
            )
        return True

    def _reads_alike(self, nlls: np.ndarray) -> bool:
        """Return whether the probe text had these nlls (N,) in earlier calls, as far as they are known."""
        count = min(len(nlls), len(self._earlier))
        if not count:
            return True
        nlls, earlier = nlls[:count], self._earlier[:count]
        of_mean, of_each = SAME_BEGINNING[precision(self.model)]
        means = mean_of(nlls), mean_of(earlier)
        return agree(nlls, earlier, of_each) and math.isclose(*means, rel_tol=0.0, abs_tol=of_mean)

    def _examine_again(self, prefixes_agree: bool = True) -> None:
        """Check and prepare a model that has changed since the last call.

        Args:
            prefixes_agree: False if passes are planned for prefixes that do not agree.
        """
        logger.info(f"{self.description}: changed since the last call; examining it again")
        self._earlier = NOTHING
        self._restore()
        found = self._look(self.findings.state)
        self._apply(found._replace(prefixes_agree=prefixes_agree))
        self.prepare(*self._prepared)
        self._unread = 0

    def _look(self, state: tuple) -> Findings:
        """Check with short passes that it is a causal language model, and find its head.

        Raises:
            ValueError: it returns no logits, or it attends to future tokens.
        """
        if is_known_architecture(self.model) and precision(self.model) == torch.float32:
            with suppress(MemoryError, torch.OutOfMemoryError):
                seen = look_quickly(self.model, self.description, self.limit.length)
                if seen is not None:
                    return Findings(state, True, **seen._asdict())
        expected = check_causal(self.model, self.description)  # (2, T, V)
        number = self._find_head(expected)
        # The short passes were of one length, which does not show whether it matters.
        length = 1 if grows_frequencies(self.model) else expected.shape[1]
        # Equal keys tie up to their rounding, which depends on the shape of the batch.
        alone = must_read_alone(self.model) or selects_keys(self.model)
        return Findings(
            *(state, False, number, expected.shape[-1], length),
            prefixes_agree=not alone,
            alone=alone,
        )

    def _try_long_passes(self, length: int) -> None:
        """Test passes of this length; read them in chunks from now on if they do not fit."""
        try:
            self._examine(length)
            return
        except MemoryError as error:
            # Continue outside, where no traceback references the activations.
            refusal = str(error)
        self.read_in_parts(length, refusal)

    @torch.inference_mode()
    def read_in_parts(self, length: int, refusal: str) -> None:
        """Halve the chunk size until a pass of this length fits; see `ScoredModel`."""
        self._restore()
        try:
            reason = why_not_in_parts(self.model)
            reader = None if reason else find_reader(self.model)
        except Exception as error:
            if is_out_of_memory(error):  # not even the short test passes fit
                raise MemoryError(refusal) from error
            raise
        if reader is None:
            reason = reason or "its logits differ when it continues from the state that it returned"
            raise MemoryError(f"{refusal} It cannot be read in chunks: {reason}.")
        part = min(length, self.findings.part or length) // 2
        while part >= SMALLEST_PART:
            self._apply(self.findings._replace(part=part, steps_singly=reader.single))
            try:
                self._examine(length)
            except MemoryError:
                part //= 2
                continue
            warnings.warn(
                f"One window of {length} tokens does not fit in the memory of {self.device}; "
                f"reading it in chunks of {part} tokens, which changes only the rounding.",
                stacklevel=2,
            )
            return
        raise MemoryError(refusal)

    def _examine(self, length: int) -> None:
        agree = examine_passes(length, self.model, self.description, self._row_logits)
        findings = self.findings
        agree = agree and findings.prefixes_agree
        length = max(length, findings.length)
        kept = findings.long_nlls if agree == findings.prefixes_agree else {}
        self._apply(findings._replace(length=length, prefixes_agree=agree, long_nlls=kept))

    def _read_probe_text(self, length: int, limit: int | None = None) -> np.ndarray:
        """Read the probe text like other texts; return the nlls of all its tokens but the first."""
        batch = self._probe_batch(length, limit)
        self._restore()
        try:
            return read_probe_text(self.logits, batch)[1]
        except Exception as error:
            failure = explain_failure(error, 1, batch.ids.shape[1], self.device)
            if not is_out_of_memory(error):
                raise failure from error
            refusal = str(failure)
        self.read_in_parts(batch.ids.shape[1], refusal)
        return self._read_probe_text(length, limit)

    def _probe_batch(self, length: int, limit: int | None = None) -> Batch:
        """Return one pass over the probe text, every token but the first scored."""
        size = min(self.num_embeddings or self.vocabulary_size, self.vocabulary_size)
        return ProbeText.of(size, limit, length).batch(self.device)

    @torch.inference_mode()
    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return whether tokens after a cached prefix have the scores of a complete pass.

        False below float32, where a different order of sums rounds visibly, where positions skip padding
        tokens, and with custom code in the forward, which may depend on the other tokens of the pass.

        Args:
            prefix, following: token ids (P,) and (T,) of a pass, one after the other.
        """
        in_full = self.dtype in (torch.float32, torch.float64)
        if not (in_full and self.prefixes_agree and has_forward_of_transformers(self.model)):
            return False
        if any(map(skips_padding, modules_of(self.model))):
            return False
        self._compare_beginning()  # whose refusal would pass for an unsupported architecture
        ids = [torch.from_numpy(part)[None].to(self.device) for part in (prefix, following)]
        rows = torch.arange(len(following), device=self.device)
        targets = torch.zeros_like(rows)
        try:
            kept = self.head.read_prefix(ids[0]).copy(2)
            shared = self._collect(ids[1].repeat(2, 1), rows + len(following), targets, kept)
        except UNSUPPORTED_ERRORS:
            return False
        whole = self._collect(torch.cat(ids, 1), rows + len(prefix), targets)
        return torch.allclose(shared, whole, rtol=1e-4, atol=1e-4)

    def _collect(
        self,
        ids: torch.Tensor,
        rows: torch.Tensor,
        targets: torch.Tensor,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """Compute the logits (R, V) of given rows."""
        blocks = self.logits(Batch(ids, rows, targets), len(rows), prefix)
        return torch.cat([logits.clone() for logits, _ in blocks]).float()

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        """Return the model's cache of tokens (1, T), to continue from them."""
        return self.head.read_prefix(ids)

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield the logits of the scored rows of a batch on `device`, as a `Head` does."""
        padding = batch.ids.shape[1] - self._unread
        in_any_order = isinstance(self.head, BodyThenHead) and prefix is None
        is_cheap = padding <= cheap_padding(self.device)
        if self._unread and in_any_order and is_cheap and not self.alone:
            yield from self._after_beginning(batch, block_rows)
            return
        self._compare_beginning()
        self.forget_passes()
        yield from self.head(batch, block_rows, prefix)

    def _after_beginning(self, batch: Batch, block_rows: int) -> LogitBlocks:
        """Yield the logits of a batch that reads the beginning of the probe text too.

        That costs less than a pass of its own.  It is in the middle, so that code that acts on the first
        row of a batch, or on its last, acts on the texts; its logits come first.
        """
        length = batch.ids.shape[1]
        count = min(length, self._unread)
        beginning = self._probe_batch(count + 1)
        row = (len(batch.ids) + 1) // 2
        ids = [batch.ids[:row], F.pad(beginning.ids, (0, length - count)), batch.ids[row:]]
        after = batch.scored >= row * length
        scored = [beginning.scored + row * length, batch.scored + length * after]
        joined = Batch(
            torch.cat(ids), torch.cat(scored), torch.cat([beginning.targets, batch.targets])
        )
        self.forget_passes()
        nlls: list[np.ndarray] = []
        for logits, targets in self.head(joined, block_rows):
            own = min(count, len(targets))
            if own:
                nlls.append(nlls_of(logits[:own], targets[:own]))
                count -= own
                if not count and self._has_changed(np.concatenate(nlls)):
                    yield from self.logits(batch, block_rows)
                    return
            if own < len(targets):
                yield logits[own:], targets[own:]

    def forget_passes(self) -> None:
        """Reset stateful modules to their state before the first pass."""
        if self._stateful and self._kept_state is not None:
            self._kept_state.restore(self._stateful)

    def _apply(self, findings: Findings) -> None:
        """Adopt findings, and record the modules that passes have changed."""
        if self._kept_state is not None:
            self._restore()
            names = {module: name for name, module in named_modules(self.model)}
            changed = frozenset(names[module] for module in self._changed if module in names)
            findings = findings._replace(stateful=findings.stateful | changed)
        self._adopt(findings)

    def _adopt(self, findings: Findings) -> None:
        """Adopt findings unchanged."""
        modules = dict(named_modules(self.model)) if findings.stateful else {}
        self._stateful = [modules[name] for name in findings.stateful if name in modules]
        self._found, self._head = findings, self._make_head(findings)
        _FINDINGS.setdefault(self.model, {})[self.variant] = findings

    def _make_head(self, findings: Findings) -> Head:
        head = head_makers(self.model)[findings.head_number]()
        if findings.part is None:
            return head
        return ChunkedHead(head, StateReader(self.model, findings.steps_singly), findings.part)

    def _restore(self) -> None:
        """Undo the changes that passes made to the model, and record the changed modules."""
        if self._kept_state is None:
            raise RuntimeError(f"{self.description} must be in use: enter in_use() first.")
        changed = self._kept_state.changed()
        self._changed.update(changed)
        self._kept_state.restore(changed)

    def _find_head(self, expected: torch.Tensor) -> int:
        """Return the index of the cheapest head with the logits of the plain forward."""
        ids = short_probe(self.model)
        tolerance = OTHER_SHAPE[precision(self.model)]
        makers = head_makers(self.model)
        for number, make in enumerate(makers[:-1]):
            if gives_logits(make, ids, expected, tolerance):
                return number
        return len(makers) - 1

    def _row_logits(
        self, ids: torch.Tensor, rows: torch.Tensor, head: Head | None = None
    ) -> torch.Tensor:
        """Compute the logits (R, V) of given rows of the first pass of (B, T)."""
        try:
            self._restore()
            return collect_rows(head or self.head, ids, rows)
        except Exception as error:
            raise explain_failure(error, 1, ids.shape[1], self.device) from error


def nlls_known(findings: Findings) -> np.ndarray:
    """Return the nlls of the longest probe text whose beginning is one of all passes."""
    longest = max(findings.long_nlls, default=0) if findings.prefixes_agree else 0
    nlls = findings.long_nlls[longest] if longest else findings.short_nlls
    return NOTHING if nlls is None else nlls


def collect_rows(head: Head, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Compute the logits (R, V) of given rows of the first pass of (B, T)."""
    rows = rows.to(ids.device)
    # One block as large as that of a complete forward, so that all passes run together.
    blocks = head(Batch(ids, rows, ids[0, : len(rows)]), ids.numel())
    return torch.cat([logits.clone() for logits, _ in blocks])


def lock_of(model: torch.nn.Module) -> threading.RLock:
    """Return the lock for running or inspecting a model.

    Models with the same embeddings, such as two heads on one body, share a lock.
    """
    embeddings = input_embeddings(model)
    return shared_lock(embeddings if isinstance(embeddings, torch.nn.Module) else model)
