"""A model that lives elsewhere and gives the log-probabilities of tokens, not logits.

A server of vLLM, SGLang or anybody who speaks OpenAI's legacy completions; or, by the same
interface, an engine in this process.  It stands beside the models whose logits are read, and is
asked for columns of scores in their place.
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
    """A model that gives columns of scores; otherwise as `LanguageModel`.

    Attributes:
        source: where its values come from.
        limit: tokens of a window, and of those the most that are read.
        engine: the program that runs it, with its version, for the signature.
        dtype: what it computes in, where that is known.
        vocabulary_size: ids of the tokenizer; the server may have more.
        probe: mean nll of the made-up text in nats a token; after `prepare`.
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
        self._tried = 0  # tokens of the longest prompt that was tried

    @property
    def identity(self) -> Identity:
        """What the model said on trial; there after `check`."""
        if self._identity is None:
            raise RuntimeError(f"{self.description} must be checked first: call check().")
        return self._identity

    @property
    def revision(self) -> str:
        """What identifies the model, as far as asking it can: its loss on made-up tokens."""
        return f"measured({self.identity.mean:.3f})"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the model and keep connections to it."""
        with self.lock, self.source.connected():
            yield

    def check(self) -> None:
        """Try it, unless it is the model that was tried before.

        Raises:
            ValueError: it cannot be believed.
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
        """Try a prompt as long as the longest window, unless one as long was tried before.

        Raises:
            ValueError: the server does not read such a window whole.
        """
        if length + 1 > self._tried:
            self._try_length(length)

    def _measure_probe(self) -> float:
        """Read the made-up text that other models are measured on, as far as the server reads it."""
        ids = ProbeText.of(self.vocabulary_size, self.limit.length).ids
        if len(ids) == len(self.identity.probe.ids) or not self.source.api.forces:
            return self.identity.mean
        return float(self.source.values([Prompt(ids[:-1], ids[-1])])[0].nll.mean())

    def _try_length(self, length: int) -> None:
        """Try a prompt as long as the longest window: the probe, and more after it.

        Raises:
            ValueError: it reads no more than a part of it, or refuses it.
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
                    f"{self.description} must read windows of {length} tokens. A prompt of so "
                    f"many was sent; it answered with {error}. Pass a smaller `max_length`."
                )
            ) from None
        if differ(values[: len(known.nll)], known.nll[: len(values)]):
            raise ValueError(
                Wording(
                    f"{self.description} must give a token one value whatever follows it, but in "
                    f"a prompt of {len(ids)} tokens the first {len(known.nll)} cost "
                    f"{values[: len(known.nll)].mean():.4f} nats each, and by themselves "
                    f"{known.mean:.4f}: it cuts long prompts short, or reads them in another way. "
                    "Pass a smaller `max_length`."
                )
            )
        self._tried = length + 1

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Refuse: see `gives_logits`.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.description} gives no logits")

    def tokenize(self, text: str) -> list[int] | None:
        """Return the ids that the engine cuts a text into; None where it does not say."""
        return self.source.tokenize(text)

    @property
    def _longest_prompt(self) -> int | None:
        """Tokens that the server takes as a prompt."""
        readable = self.limit.readable
        return None if readable is None else readable + (not self.source.api.forces)

    def check_same(self) -> None:
        """Refuse a server that runs another model now than at the start.

        Raises:
            ValueError: it does.
        """
        if not self.identity.is_of(self.source):
            raise changed_model(self.description)

    def signature_fields(self) -> dict[str, object]:
        """Return what the scores of given tokens depend on, as far as the server tells."""
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {"model": self.name, "revision": self.revision, **dtype, "engine": self.engine}
