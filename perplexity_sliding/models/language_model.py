"""A causal language model of transformers, opened by name or adopted live."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache

from ..errors import ArgumentTypeError
from ..plan.tokenization import shared_lock
from .identity import (
    LIVE,
    active_adapters,
    check_tokenizer,
    model_name,
    model_revision,
    probe_text,
    tokenizer_digest,
)
from .interface import Batch, LogitBlocks, Prefix, ScoredModel
from .loading import (
    check_decoder,
    check_exists,
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
    UNSUPPORTED_ERRORS,
    Head,
    cache_name,
    check_model,
    explain_failure,
    list_heads,
)
from .module import (
    evaluating,
    find_inputs,
    forget_lengths,
    grows_frequencies,
    modules_of,
    number_format,
    run_module,
)

# What the check of each module found, by variant, number format and attention: with the module it goes.
_FINDINGS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Rows of logits per block of the probe text.
PROBE_ROWS = 64


@dataclass(eq=False)
class LanguageModel(ScoredModel):
    """A causal language model and its tokenizer: opened or adopted, checked, and used.

    Attributes:
        model: the torch module.
        revision: its commit or a digest of its weights, and a digest of its configuration; "live"
            if it was adopted and not identified.
        head: computes its logits; known after `check`.
    """

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str
    tokenizer_digest: str
    description: str
    head: Head = field(init=False)

    variant = ""  # distinguishes models that share weights
    gives_logits = True

    def __post_init__(self) -> None:
        self.limit = context_limit(self.model, self.tokenizer)
        reader, self.device, self.num_embeddings = find_inputs(self.model)
        self._modules = modules_of(self.model)
        growing = self._modules if grows_frequencies(self.model) else ()
        self._growing = [module for module in growing if hasattr(module, "original_max_seq_len")]
        # Models with the same embeddings, such as two heads on one body, share a lock.
        self.lock = shared_lock(reader)

    @classmethod
    def open(
        cls,
        model_id: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        model_kwargs: dict | None = None,
        argument: str = "model_id",
    ) -> "LanguageModel":
        """Load a model, and its tokenizer unless one is given, and identify both."""
        model_kwargs = dict(model_kwargs or {})
        placed = "device_map" in model_kwargs or "quantization_config" in model_kwargs
        typed = bool({"dtype", "torch_dtype", "quantization_config"} & set(model_kwargs))
        target = None if placed and device is None else resolve_device(device)
        weights = None if typed and dtype is None else resolve_dtype(dtype)
        check_exists(model_id, model_kwargs, argument)
        if tokenizer is None:
            tokenizer = load_tokenizer(model_id, model_kwargs, argument)
        model = load_model(model_id, target, weights, model_kwargs, argument)
        return cls(
            model,
            tokenizer,
            model_name(model_id, model_kwargs),
            model_revision(model, find_commit(model_id, model_kwargs)),
            tokenizer_digest(tokenizer),
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
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError(
                argument, "be a loaded torch model or a vllm.LLM", got=type(model).__name__
            )
        model = unwrapped(model)
        gather_once(model)
        check_tokenizer(tokenizer, tokenizer_argument)
        config = getattr(model, "config", None)
        check_decoder(config, f"`{argument}`")
        name = model_name(getattr(config, "_name_or_path", "") or type(model).__name__, {})
        return cls(model, tokenizer, name, LIVE, LIVE, f"`{argument}`")

    @torch.inference_mode()
    def identify(self) -> None:
        """Digest a live model that is in use, and measure the probe by the path of the texts."""
        if self.revision == LIVE:
            self.revision = model_revision(self.model)
        if self.tokenizer_digest == LIVE:
            self.tokenizer_digest = tokenizer_digest(self.tokenizer)
        size = min(self.num_embeddings or self.vocabulary_size, self.vocabulary_size)
        ids = torch.tensor(probe_text(size, self.limit.length), device=self.device)
        rows = torch.arange(len(ids) - 1, device=self.device)
        try:
            nlls = [
                torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
                for logits, targets in self.logits(Batch(ids[None, :-1], rows, ids[1:]), PROBE_ROWS)
            ]
        except Exception as error:
            raise explain_failure(error, 1, len(ids) - 1, self.device) from error
        possible = torch.cat(nlls).double()
        possible = possible[possible < 1e10]  # without tokens whose logits a model masks
        self.probe = float(possible.mean()) if len(possible) else float("inf")

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters(), torch.empty(0)).dtype

    def signature_fields(self) -> dict[str, object]:
        adapters = active_adapters(self._modules)
        return {
            "model": self.name,
            "revision": self.revision,
            "dtype": self._number_format,
            **({} if adapters is None else {"adapters": adapters}),
            "attention": self._attention,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        }

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the model, parts of which run differently meanwhile, in evaluation mode."""
        with self.lock, evaluating(self._modules):
            try:
                yield
            finally:
                forget_lengths(self._growing)

    @torch.inference_mode()
    def check(self) -> None:
        """Check the model with short passes, or take what an earlier check of it found."""
        config = getattr(self.model, "config", None)
        self._attention = getattr(config, "_attn_implementation", None)
        known = _FINDINGS.setdefault(self.model, {})
        with self.as_scored():
            self._number_format = number_format(self.model, self._modules)
            # Hooks around the whole model do not run around its body.
            hooked = bool(self.model._forward_hooks or self.model._forward_pre_hooks)
            key = self.variant, self._number_format, self._attention, self.device, hooked
            if key not in known:
                heads = list_heads(self.model, self._modules)
                known[key] = check_model(self.model, heads, self.description, self.limit.length)
            number, self.vocabulary_size, self.prefixes_agree, self.alone = known[key]
            self.head = next(islice(list_heads(self.model, self._modules), number, None))
        self.by_blocks = self.head.by_blocks

    @torch.inference_mode()
    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        # below float32 a different order of sums rounds visibly
        in_full = self.dtype in (torch.float32, torch.float64)
        if not (in_full and self.prefixes_agree) or self.alone:
            return False
        ids = [torch.from_numpy(part)[None].to(self.device) for part in (prefix, following)]
        rows = torch.arange(len(following), device=self.device)

        def collect(ids: torch.Tensor, rows: torch.Tensor, kept: Prefix | None) -> torch.Tensor:
            blocks = self.logits(Batch(ids, rows, torch.zeros_like(rows)), len(rows), kept)
            return torch.cat([logits.clone() for logits, _ in blocks]).float()  # (R, V)

        try:
            kept = self.read_prefix(ids[0]).copy(2)
            shared = collect(ids[1].repeat(2, 1), rows + len(following), kept)
        except UNSUPPORTED_ERRORS:
            return False
        whole = collect(torch.cat(ids, 1), rows + len(prefix), None)
        return torch.allclose(shared, whole, rtol=1e-4, atol=1e-4)

    def read_prefix(self, ids: torch.Tensor) -> Prefix:
        output = run_module(self.head.reader, ids, use_cache=True)
        cache: Any = getattr(output, cache_name(self.head.reader), None)
        if isinstance(cache, tuple):  # transformers before 4.48
            cache = DynamicCache.from_legacy_cache(cache)  # type: ignore[attr-defined]
        is_of_two = hasattr(cache, "cross_attention_cache")  # BERT's kind, for an encoder as well
        if is_of_two or not hasattr(cache, "batch_repeat_interleave"):
            raise TypeError("the model has no cache that can be copied")
        return Prefix(cache)

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        forget_lengths(self._growing)
        yield from self.head(batch, block_rows, prefix)
