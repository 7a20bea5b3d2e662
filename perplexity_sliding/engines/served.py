"""A model that returns the log-probabilities of tokens instead of logits.

It is a server of vLLM, SGLang or OpenAI's legacy completions API; or, with the same interface, an
engine in this process.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from transformers import PreTrainedTokenizerBase

from ..errors import Wording
from ..models.interface import Batch, EngineModel, LogitBlocks, Prefix, ProbeText
from ..plan.windows import ContextLimit
from .server_apis import AnswerError, Prompt
from .server_probe import (
    CANARY_LENGTH,
    Identity,
    ServerProbe,
    Source,
    changed_model,
    differ,
    try_source,
)


class ServedModel(EngineModel):
    """A model that returns scores of tokens; otherwise like `LanguageModel`.

    Attributes:
        source: the source of its values.
        limit: limits of a window and of the tokens that a request reads.
        engine: name and version of the program that runs it, for the signature.
        dtype: dtype of its computations, if known.
        vocabulary_size: size of the tokenizer's vocabulary; the server's may be larger.
        probe: mean nll of the probe text in nats per token; known after `prepare`.
    """

    gives_logits = False
    num_embeddings = None
    by_blocks = False

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        description: str,
        engine: str,
        limit: ContextLimit,
        dtype: str | None = None,
    ) -> None:
        super().__init__()
        self.source, self.tokenizer = source, tokenizer
        self.name, self.description, self.engine = name, description, engine
        self.limit, self.dtype = limit, dtype
        self.vocabulary_size = int(max(tokenizer.get_vocab().values())) + 1
        self._identity: Identity | None = None
        self._tried = 0  # tokens of the longest prompt tested

    @property
    def identity(self) -> Identity:
        """The model's values of the test prompts; known after `check`."""
        if self._identity is None:
            raise RuntimeError(f"{self.description} must be checked first: call check().")
        return self._identity

    @property
    def revision(self) -> str:
        """The measured identity of the model: its loss on random tokens."""
        return f"measured({self.identity.mean:.3f})"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the model and keep connections open."""
        with self.lock, self.source.connected():
            yield

    def check(self) -> None:
        """Test the model, unless it is the model that was tested before.

        Raises:
            ValueError: its values are inconsistent.
        """
        if self._identity is not None and self._identity.is_of(self.source):
            return
        longest = self._longest_prompt
        self._identity = try_source(self.source, self.tokenizer, longest, self.description)
        self.probe = self._measure_probe()
        self._tried = len(self.identity.probe.ids)

    def prepare(
        self, length: int, num_tokens: int = 0, whole_lengths: Collection[int] = ()
    ) -> None:
        """Test a prompt as long as the longest window, unless one was tested before.

        Raises:
            ValueError: the server does not read such a window completely.
        """
        if length + 1 > self._tried:
            self._try_length(length)

    def _measure_probe(self) -> float:
        """Measure the probe text, up to the server's limit."""
        ids = ProbeText.of(self.vocabulary_size, self.limit.length).ids
        if len(ids) == len(self.identity.probe.ids) or not self.source.api.forces:
            return self.identity.mean
        return float(self.source.values([Prompt(ids[:-1], ids[-1])])[0].nll.mean())

    def _try_length(self, length: int) -> None:
        """Test a prompt as long as the longest window, which begins with the known probe.

        Raises:
            ValueError: the server refuses or truncates it.
        """
        known = self.identity
        whole = length + 1 if self._longest_prompt is None else self._longest_prompt
        more = ServerProbe(self.source, self.tokenizer, CANARY_LENGTH).make_up(length + 1, seed=6)
        ids = [*known.probe.ids, *more][: min(length + 1, whole)]
        forced = more[-1] if length + 1 > whole else None
        try:
            values = self.source.values([Prompt(ids, forced)])[0].nll
        except AnswerError as error:
            raise ValueError(
                Wording(
                    f"{self.description} must read windows of {length} tokens, but answered such a "
                    f"prompt with {error}. Pass a smaller `max_length`."
                )
            ) from None
        if differ(values[: len(known.nll)], known.nll[: len(values)]):
            raise ValueError(
                Wording(
                    f"{self.description} must return the same value of a token in longer prompts, but "
                    f"in a prompt of {len(ids)} tokens the first {len(known.nll)} cost "
                    f"{values[: len(known.nll)].mean():.4f} nats each, and alone "
                    f"{known.mean:.4f}: it truncates long prompts, or reads them differently. Pass a "
                    "smaller `max_length`."
                )
            )
        self._tried = length + 1

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Refuse to return logits, see `gives_logits`.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.description} returns no logits")

    def tokenize(self, text: str) -> list[int] | None:
        """Return the engine's own token ids of a text; None if unavailable."""
        return self.source.tokenize(text)

    @property
    def _longest_prompt(self) -> int | None:
        """The server's limit for a prompt, in tokens."""
        readable = self.limit.readable
        return None if readable is None else readable + (not self.source.api.forces)

    def check_same(self) -> None:
        """Check that the server still runs the same model.

        Raises:
            ValueError: it runs another one.
        """
        if not self.identity.is_of(self.source):
            raise changed_model(self.description)

    def signature_fields(self) -> dict[str, object]:
        """Return the known settings that scores of given tokens depend on."""
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {"model": self.name, "revision": self.revision, **dtype, "engine": self.engine}
