"""A model that returns the log-probabilities of tokens instead of logits, and what it is tested for.

It is a server of vLLM, SGLang or OpenAI's legacy completions API, or, with the same interface, an
engine in this process.  The value of a token must depend only on the tokens before it; random prompts
show whether it does, and their values are kept, by which the same model is recognised later.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..models.identity import PROBE_TOKENS, probe_text
from ..models.interface import Batch, EngineModel, LogitBlocks, Prefix
from ..plan.windows import ContextLimit
from .server_apis import AnswerError, LogprobsAPI, Prompt, ServerError, TokenValues

# Tokens of the known prompt in every request.
CANARY_LENGTH = 16
# Tolerances for values of one token in different requests in half precision, in nats: root mean
# square, and mean.  In float32 the differences are below 1e-4.
MOST_SPREAD = 0.1
MOST_SHIFT = 0.03
# Tolerance for values of the same computation, in nats.
EXACTLY = 1e-5
# Status codes for a prompt that is too long.
TOO_LONG = {400, 413, 422}
# Tokens to put in the place of one; the value of a single one may be that of the original by chance.
REPLACEMENTS = 3


class Source(Protocol):
    """A source of the values of tokens: a server, or an engine in this process.

    Attributes:
        api: its API.
    """

    api: LogprobsAPI

    def connected(self) -> AbstractContextManager:
        """Keep connections open within the context."""
        ...

    def values(self, prompts: Sequence[Prompt], num_likeliest: int = 0) -> list[TokenValues]:
        """Request the values of prompts.

        Raises:
            AnswerError: the answer does not contain them.
            ServerError: there is no answer.
        """
        ...

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Send several requests; yield (number, values or error) as answers arrive."""
        ...

    def tokenize(self, text: str) -> list[int] | None:
        """Return the engine's own token ids of a text; None if unavailable."""
        ...


@dataclass(frozen=True)
class Identity:
    """A model's values of random tokens, by which it is recognised.

    Attributes:
        probe: the random prompt.
        nll: nlls of its tokens except the first, in nats.
        canary, canary_nll: a short prompt and its nlls.
    """

    probe: Prompt
    nll: np.ndarray
    canary: Prompt
    canary_nll: np.ndarray

    @property
    def mean(self) -> float:
        """Mean negative log-likelihood of the random tokens, in nats per token."""
        return float(self.nll.mean())

    def is_of(self, source: Source) -> bool:
        """Ask again; return whether it is still the same model."""
        return not differ(source.values([self.probe])[0].nll, self.nll)


class ServedModel(EngineModel):
    """A model that returns scores of tokens; otherwise like `LanguageModel`.

    Attributes:
        source: the source of its values.
        limit: limits of a window and of the tokens that a request reads.
        engine: name and version of the program that runs it, for the signature.
        dtype: dtype of its computations, if known.
        vocabulary_size: size of the tokenizer's vocabulary; the server's may be larger.
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

    @property
    def identity(self) -> Identity:
        """The model's values of the test prompts; known after `check`."""
        if self._identity is None:
            raise RuntimeError(f"{self.description} must be checked first: call check().")
        return self._identity

    def measure_probe(self) -> float:
        """Return the mean nll of the probe text in nats per token, up to the server's limit."""
        return self.identity.mean

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
        if self._identity is None or not self._identity.is_of(self.source):
            self._identity = self._test()

    def _test(self) -> Identity:
        """Test prompts as long as the probe text, or half as long until the server accepts them."""
        length = PROBE_TOKENS
        if self.limit.readable is not None:
            length = min(length, self.limit.readable + 1)  # the last token may be forced
        while True:
            test = ServerTest(self.source, self.tokenizer, self.vocabulary_size, length)
            try:
                return test.run()
            except ServerError as error:
                is_limit = self.limit.readable is None and error.status in TOO_LONG
                if not is_limit or length <= CANARY_LENGTH:
                    raise
                length //= 2
            except AnswerError as error:
                raise ValueError(
                    f"{self.description} must return the log-probability of every token of a "
                    f"prompt, but answered a prompt of {length} token ids with {error}."
                ) from None
            except Refusal as error:
                raise ValueError(f"{self.description} cannot be believed: {error}") from None

    def prepare(self, length: int) -> None:
        """Do nothing: answers are checked as they arrive."""

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Refuse to return logits, see `gives_logits`.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.description} returns no logits")

    def tokenize(self, text: str) -> list[int] | None:
        return self.source.tokenize(text)

    def check_same(self) -> None:
        """Check that the server still runs the same model.

        Raises:
            ValueError: it runs another one.
        """
        if not self.identity.is_of(self.source):
            raise changed_model(self.description)

    def signature_fields(self) -> dict[str, object]:
        """Return the known settings that scores of given tokens depend on."""
        revision = f"measured({self.identity.mean:.3f})"
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {"model": self.name, "revision": revision, **dtype, "engine": self.engine}


class Refusal(ValueError):
    """A server's answers to the test prompts are inconsistent."""


class ServerTest:
    """Four tests of a source with random prompts.

    Args:
        length: tokens of the longest prompt, with the one that is forced.
    """

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary_size: int,
        length: int,
    ) -> None:
        self.source, self.start_id = source, tokenizer.bos_token_id
        ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
        self.ordinary = np.array(sorted(ordinary))
        self.ids = probe_text(vocabulary_size, length)
        self.longest = length - 1  # such a prompt has room for an answer

    def run(self) -> Identity:
        """Run all tests.

        Raises:
            AnswerError: an answer has an invalid format.
            Refusal: the answers are inconsistent.
            ServerError: there is no answer.
        """
        probe = Prompt(self.ids)
        if self.source.api.forces:
            probe = Prompt(self.ids[:-1], self.ids[-1])
        nll = self.source.values([probe])[0].nll
        self.check_possible(nll)
        self.check_places(probe, nll)
        self.check_start()
        self.check_repeats()
        canary = Prompt(self.draw(min(self.longest, CANARY_LENGTH), seed=1))
        return Identity(probe, nll, canary, self.source.values([canary])[0].nll)

    def draw(self, length: int, seed: int | None = None) -> list[int]:
        """Draw random ordinary tokens."""
        return np.random.default_rng(seed).choice(self.ordinary, length).tolist()

    def check_possible(self, nll: np.ndarray) -> None:
        """Refuse random tokens that are certain or impossible."""
        if np.isinf(nll).all():
            raise Refusal(
                f"it assigns probability 0 to all of {len(nll)} random tokens: its model's outputs "
                "overflow or are not numbers. Check its weights and precision (vLLM: --dtype)."
            )
        wrong = int((np.isinf(nll) | (nll < EXACTLY)).sum())
        if wrong:
            raise Refusal(
                f"it assigns probability 0 or 1 to {wrong} of {len(nll)} random tokens, so its "
                "distribution is truncated by the sampling of answers. vLLM: start it with "
                "--logprobs-mode raw_logprobs, which is its default, and --generation-config vllm."
            )

    def check_places(self, probe: Prompt, expected: np.ndarray) -> None:
        """Refuse values at wrong tokens: of a replaced token, the first value to change is its own."""
        place = len(probe.ids) // 2
        others = [
            probe._replace(ids=[*probe.ids[:place], other, *probe.ids[place + 1 :]])
            for other in self.draw(REPLACEMENTS, seed=5)
        ]
        moved = [np.abs(values.nll - expected) for values in self.source.values(others)]
        first = [np.flatnonzero(each > MOST_SPREAD)[0] for each in moved if max(each) > MOST_SPREAD]
        if first and min(first) != place - 1:
            raise Refusal(
                f"after replacing token {place} of a prompt, the first value to change was that of "
                f"token {min(first) + 1}: its values are at the wrong tokens."
            )

    def check_start(self) -> None:
        """Refuse a server that adds a start token to prompts without one."""
        if self.start_id is None:
            return
        ids = self.draw(min(self.longest, CANARY_LENGTH) - 1, seed=4)
        bare, after = self.source.values([Prompt(ids), Prompt([self.start_id, *ids])])
        if np.allclose(bare.nll, after.nll[1:], rtol=0, atol=EXACTLY):
            raise Refusal(
                f"{len(ids)} tokens have the same values with and without a start token (id "
                f"{self.start_id}) before them: it adds one itself, even to windows in the middle of "
                "a text. Disable that."
            )

    def check_repeats(self) -> None:
        """Refuse values that depend on earlier requests or on other prompts, as by a stale cache.

        The prompt is not seeded, because a server may have cached that of an earlier run.
        """
        fresh = self.draw(self.longest)
        half = self.longest // 2
        following = fresh[:half] + self.draw(self.longest - half)
        alone = self.source.values([Prompt(fresh)])[0].nll
        again = self.source.values([Prompt(following), Prompt(fresh)])
        for size, values in zip((half - 1, self.longest - 1), again):
            if differ(values.nll[:size], alone[:size]):
                place = int(np.nanargmax(np.abs(values.nll[:size] - alone[:size])))
                raise Refusal(
                    "the values of the same tokens differ in a second request: token "
                    f"{place + 1} {-alone[place]:.4f} and then {-values.nll[place]:.4f}, "
                    f"{alone[:size].mean():.4f} and {values.nll[:size].mean():.4f} nats per token on "
                    "average. Disable prefix caching (vLLM: --no-enable-prefix-caching; SGLang: "
                    "--disable-radix-cache)."
                )


def differ(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values (N,) in nats differ by more than rounding."""
    if values.shape != expected.shape:
        return True
    with np.errstate(invalid="ignore"):
        difference = values - expected
    return not (
        np.sqrt(np.mean(difference**2)) <= MOST_SPREAD and abs(difference.mean()) <= MOST_SHIFT
    )


def changed_model(description: str) -> ValueError:
    return ValueError(
        f"{description} returns different values for the same tokens than at the start: the server "
        "was restarted with another model or other settings, or several models answer at one address. "
        "A checkpoint has only windows of the first. Run the same command again."
    )
