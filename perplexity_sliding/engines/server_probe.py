"""Test a server with random prompts, whose answers must be consistent.

The value of a token depends only on the tokens before it: not on those after it, on other prompts, on
earlier requests, or on how an answer is sampled.  Servers violate each of these without an error.
The values are kept as `Identity`, by which the same model is recognised later.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..models.interface import PROBE_TOKENS, ProbeText
from .server_apis import (
    AnswerError,
    Generated,
    LogprobsAPI,
    Prompt,
    ServerError,
    TokenValues,
    shown,
)

# Tokens of the known prompt in every request.
CANARY_LENGTH = 16
# Tolerances for values of one token in different requests in half precision, in nats: root mean
# square, and mean.  In float32 the differences are below 1e-4.
MOST_SPREAD = 0.1
MOST_SHIFT = 0.03
# Status codes for a prompt that is too long.
TOO_LONG = {400, 413, 422}
# Sampling of the answer, which must not affect the values of the prompt.
OTHER_SAMPLING = {"temperature": 0.5, "top_p": 0.5}
# Tolerance for values of the same computation, in nats.
EXACTLY = 1e-5
# Other prompts in a request with the probe.
COMPANY = 14
# A value is a floor if at least this share, and this number, of random tokens have it.
FLOOR_SHARE, FEWEST_AT_FLOOR = 0.05, 4
# Likeliest tokens to request.
NUM_LIKELIEST = 2
# Prompts after which a token is generated or forced; a single value may agree by chance.
NUM_SEVERAL = 8
# Symbols for a space in texts, and in the vocabularies of SentencePiece and of byte-level BPE.
SPACES = (" ", "\u2581", "\u0120")
# Share of random tokens whose text may differ, as tokenizers write fragments of characters.
MOST_RENAMED = 0.1


class Source(Protocol):
    """A source of the values of tokens: a server, or an engine in this process.

    Attributes:
        api: its API.
    """

    api: LogprobsAPI

    def connected(self) -> AbstractContextManager:
        """Keep connections open within the context."""
        ...

    def values(
        self, prompts: Sequence[Prompt], num_likeliest: int = 0, **sampling: float
    ) -> list[TokenValues]:
        """Request the values of prompts."""
        ...

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Send several requests; yield (number, values or error) as answers arrive."""
        ...

    def generating(self) -> "Source":
        """Return the source that generates a token after each prompt and returns its value."""
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


class Refusal(ValueError):
    """A server's answers to the probe are inconsistent."""


def try_source(
    source: Source, tokenizer: PreTrainedTokenizerBase, length: int | None, description: str
) -> Identity:
    """Test whether the values of a source are those of a causal model.

    Args:
        tokenizer: tokenizer of the ids.
        length: tokens that a prompt may have; None where that is not known.

    Raises:
        ValueError: they are not; it says what was sent and what came back.
    """
    trial = ServerProbe(source, tokenizer, min(length or PROBE_TOKENS, PROBE_TOKENS))
    if length is None:
        trial = shortened(trial)
    try:
        return trial.run()
    except AnswerError as error:
        raise ValueError(
            f"{description} must return the log-probability of every token of a prompt, but answered "
            f"a prompt of {trial.length} token ids with {error}."
        ) from None
    except Refusal as error:
        raise ValueError(f"{description} cannot be believed: {error}") from None


def shortened(trial: "ServerProbe") -> "ServerProbe":
    """Halve the length of prompts until a server without a stated limit accepts them."""
    while trial.length > CANARY_LENGTH:
        try:
            trial.source.values([trial.probe])
        except ServerError as error:
            if error.status not in TOO_LONG:
                raise
            trial = ServerProbe(trial.source, trial.tokenizer, trial.length // 2)
        else:
            break
    return trial


class ServerProbe:
    """Tests of a source with random prompts.

    Args:
        length: tokens of the longest prompt.
    """

    def __init__(self, source: Source, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
        self.source, self.tokenizer, self.length = source, tokenizer, length
        special = set(tokenizer.all_special_ids)
        self.ordinary = np.array(sorted(set(tokenizer.get_vocab().values()) - special))
        self.probe = Prompt(ProbeText.of(int(max(tokenizer.get_vocab().values())) + 1, length).ids)
        self.canary = Prompt(self.make_up(min(length, CANARY_LENGTH), seed=1))

    def make_up(self, length: int, seed: int | None = None) -> list[int]:
        """Draw random ordinary tokens."""
        return np.random.default_rng(seed).choice(self.ordinary, length).tolist()

    def make_up_several(self) -> list[list[int]]:
        """Draw short prompts that leave room for one more token."""
        size = min(self.length, CANARY_LENGTH) - 1
        return [self.make_up(size, seed) for seed in range(10, 10 + NUM_SEVERAL)]

    def run(self) -> Identity:
        """Run all checks.

        Raises:
            AnswerError: an answer has an invalid format.
            Refusal: the answers are inconsistent.
        """
        first = self.source.values([self.probe], NUM_LIKELIEST)[0]
        self.check_possible(first.nll)  # before others, which compare values
        self.check_places(first.nll)
        self.check_values(first)
        self.check_names(first)
        self.check_order(first.nll)
        self.check_start()
        self.check_repeats()
        self.check_sampling(first.nll)
        if self.source.api.forces:
            self.check_forced(first.nll)
        else:
            self.check_generated(first)
        canary = self.source.values([self.canary])[0]
        return Identity(self.probe, first.nll, self.canary, canary.nll)

    def check_possible(self, nll: np.ndarray) -> None:
        """Refuse probabilities of 0."""
        impossible = np.isinf(nll).sum()
        if impossible == len(nll):
            raise Refusal(
                f"it assigns probability 0 to all of {len(nll)} random tokens: its model's outputs "
                "overflow or are not numbers. Check its weights and precision (vLLM: --dtype)."
            )
        if impossible:
            raise Refusal(
                f"it assigns probability 0 to {impossible} of {len(nll)} random tokens, "
                "so its distribution is truncated by top-p or top-k. " + self.advice_on_sampling()
            )

    def check_values(self, values: TokenValues) -> None:
        """Refuse floors, wrong sums, and wrong most likely tokens."""
        same, counts = np.unique(values.nll, return_counts=True)
        if counts.max(initial=0) >= max(FEWEST_AT_FLOOR, FLOOR_SHARE * len(values.nll)):
            raise Refusal(
                f"it returned the same log-probability, {-same[counts.argmax()]:.4f}, for "
                f"{counts.max()} of {len(values.nll)} random tokens: it knows only the likeliest "
                "tokens, and uses a floor for the others."
            )
        if len(values.nll) >= FEWEST_AT_FLOOR and (np.diff(values.nll) >= 0).all():
            raise Refusal(
                f"its log-probabilities never increase, from {-values.nll[0]:.4f} to "
                f"{-values.nll[-1]:.4f}: they are cumulative sums."
            )
        for nll, top in zip(values.nll, values.top):
            if sum(np.exp(value) for _, value in top) > 1.01 or (
                top and -nll > top[0][1] + MOST_SPREAD
            ):
                raise Refusal(
                    f"it returned the log-probability {-nll:.4f} for a token, and {shown(top)} as the "
                    "likeliest in its place."
                )

    def check_names(self, values: TokenValues) -> None:
        """Refuse a server whose vocabulary differs from the tokenizer's."""
        pairs = [
            (str(self.tokenizer.decode([token])), text)
            for token, text in zip(self.probe.targets, values.texts)
            if isinstance(text, str) and not text.startswith("token_id:")
        ]
        clean = [pair for pair in pairs if pair[0].strip().isascii() and pair[0].strip()]
        other = [pair for pair in clean if pair[0].strip() != pair[1].strip()]
        if len(other) > MOST_RENAMED * len(clean):
            raise Refusal(
                f"its vocabulary differs from the tokenizer's: it read {other[0][0]!r} as "
                f"{other[0][1]!r}, and {len(other)} of {len(clean)} tokens differ. Pass the served "
                "model's own tokenizer."
            )

    def check_order(self, alone: np.ndarray) -> None:
        """Refuse a server whose values depend on the other prompts of a request."""
        sizes = [self.length, self.length // 2, *[min(self.length, CANARY_LENGTH)] * COMPANY]
        other = [Prompt(self.make_up(size, seed)) for seed, size in enumerate(sizes, 2)]
        half = len(other) // 2
        company = self.source.values([*other[:half], self.probe, *other[half:]])[half].nll
        if differ(company, alone):
            raise Refusal(
                "the values of a prompt differ in a batch: "
                f"{in_numbers(alone, company)} It mixes up its answers, or batches change them. "
                "vLLM: start it with --no-enable-prefix-caching."
            )

    def check_start(self) -> None:
        """Refuse a server that adds a start token to prompts without one."""
        start = self.tokenizer.bos_token_id
        if start is None:
            return
        ids = self.make_up(min(self.length, CANARY_LENGTH) - 1, seed=4)
        bare = self.source.values([Prompt(ids)])[0].nll
        after_start = self.source.values([Prompt([start, *ids])])[0].nll[1:]
        if np.allclose(bare, after_start, rtol=0, atol=EXACTLY):
            raise Refusal(
                f"{len(ids)} tokens have the same values with and without a start token (id {start}) "
                "before them: it adds one itself, even to windows in the middle of a text. Disable "
                "that."
            )

    def check_repeats(self) -> None:
        """Refuse values that depend on earlier requests, through a stale cache.

        The prompt is not seeded, because a server may have cached that of an earlier run.
        """
        fresh = Prompt(self.make_up(self.length))
        half = self.length // 2
        following = Prompt(fresh.ids[:half] + self.make_up(self.length - half))
        expected = self.source.values([fresh])[0].nll
        for prompt, size in ((following, half - 1), (fresh, self.length - 1)):
            values = self.source.values([prompt])[0].nll[:size]
            if differ(values, expected[:size]):
                raise Refusal(
                    "the values of the same tokens differ in a second request: "
                    f"{in_numbers(expected[:size], values)} Disable prefix caching "
                    "(vLLM: --no-enable-prefix-caching; SGLang: --disable-radix-cache)."
                )

    def check_places(self, expected: np.ndarray) -> None:
        """Refuse values at wrong tokens.

        If a token is replaced, its own value must be the first to change.
        """
        for place in (self.length - 1, self.length // 2):
            changes = []
            for replacement in self.make_up(3, seed=5):
                ids = list(self.probe.ids)
                ids[place] = replacement
                if replacement == self.probe.ids[place]:
                    continue
                moved = np.abs(self.source.values([Prompt(ids)])[0].nll - expected)
                changes += np.flatnonzero(moved > MOST_SPREAD)[:1].tolist()
            wrong = [change + 1 for change in changes if change != place - 1]
            if wrong and (min(wrong) < place or len(wrong) == len(changes)):
                raise Refusal(
                    f"after replacing token {place} of a prompt, the first value to change was that "
                    f"of token {wrong[0]}: its values are at the wrong tokens."
                )

    def check_sampling(self, expected: np.ndarray) -> None:
        """Refuse values that are affected by temperature or top-p."""
        values = self.source.values([self.probe], 0, **OTHER_SAMPLING)[0].nll
        if differ(values, expected):
            raise Refusal(
                "its values of a prompt depend on the sampling of the answer (temperature, top-p): "
                f"{in_numbers(expected, values)} {self.advice_on_sampling()}"
            )

    def check_forced(self, expected: np.ndarray) -> None:
        """Refuse values of forced tokens that differ from those of the same tokens in a prompt."""
        *ids, last = self.probe.ids
        values = self.source.values([Prompt(ids, last)])[0].nll
        prompts = self.make_up_several()
        forced = self.source.values([Prompt(ids, last) for ids in prompts])
        sent = self.source.values([Prompt([*ids, last]) for ids in prompts])
        pairs = [(expected[-1], values[-1])]
        pairs += [(one.nll[-1], other.nll[-1]) for one, other in zip(sent, forced)]
        worst = most_different(pairs)
        if differ(values, expected) or worst is not None:
            value, of_answer = worst or pairs[0]
            raise Refusal(
                f"the log-probability of a prompt's last token was {-value:.4f}, but that of the same "
                f"token as the only answer allowed {-of_answer:.4f}. {self.advice_on_sampling()}"
            )

    def check_generated(self, first: TokenValues) -> None:
        """Refuse values of the neighbouring position.

        Such values are consistent with each other, but the value of a generated token has the right
        position, and must be returned again when this token is sent.

        Args:
            first: the values of the probe, with the server's names of its tokens.
        """
        prompts = [Prompt(ids) for ids in self.make_up_several()]
        generated = [values.generated for values in self.source.generating().values(prompts)]
        ids = [self.find_id(token, first.texts) for token in generated]
        known = [
            (prompt, token, number)
            for prompt, token, number in zip(prompts, generated, ids)
            if token is not None and number is not None
        ]
        sent = [Prompt([*prompt.ids, number]) for prompt, _, number in known]
        returned = self.source.values(sent) if sent else []
        pairs = [
            (token.nll, values.nll[-1])
            for (_, token, _), values in zip(known, returned)
            if token.id is not None or token.text == values.texts[-1]
        ]
        if not pairs:
            warnings.warn(
                "The server does not return the tokens that it generates, so values of the "
                "neighbouring position cannot be excluded. Pass the model itself as `reference` to "
                "compare them.",
                stacklevel=2,
            )
            return
        worst = most_different(pairs)
        if worst is not None:
            raise Refusal(
                f"it generated a token with the log-probability {-worst[0]:.4f}, but returned "
                f"{-worst[1]:.4f} for the same token in a prompt: its values of a prompt belong to "
                "the neighbouring position, or those of its answers depend on the sampling (top-k, "
                "top-p)."
            )

    def find_id(self, token: Generated | None, names: Sequence[str | None]) -> int | None:
        """Find the id of a generated token by its name, if the server returns no ids.

        Args:
            names: names of the probe's tokens.  If the server drops leading spaces, a name is
                ambiguous.
        """
        if token is None or token.id is not None or token.text is None:
            return token and token.id
        of_tokenizer = self.tokenizer.convert_ids_to_tokens(self.probe.targets)
        if has_spaces(of_tokenizer) != has_spaces(names):
            return None
        vocabulary = self.tokenizer.get_vocab()
        written = (token.text.replace(" ", mark) for mark in SPACES)
        return next((vocabulary[name] for name in written if name in vocabulary), None)

    def advice_on_sampling(self) -> str:
        return (
            "vLLM: start it with --logprobs-mode raw_logprobs, which is its default, and "
            "--generation-config vllm."
        )


def has_spaces(names: Sequence[str | None]) -> bool:
    """Return whether any name of a token begins with a space, or a vocabulary's symbol for one."""
    return any(name is not None and name.startswith(SPACES) for name in names)


def differ(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values (N,) in nats differ by more than rounding."""
    if values.shape != expected.shape:
        return True
    with np.errstate(invalid="ignore"):
        difference = values - expected
    return not (
        np.sqrt(np.mean(difference**2)) <= MOST_SPREAD and abs(difference.mean()) <= MOST_SHIFT
    )


def most_different(pairs: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the pair of values that differs most; None if all agree up to rounding."""
    differences = np.abs([one - other for one, other in pairs])
    if np.sqrt(np.mean(differences**2)) <= MOST_SPREAD:
        return None
    return pairs[int(np.argmax(differences))]


def in_numbers(expected: np.ndarray, values: np.ndarray) -> str:
    """Describe the largest and the mean difference of values."""
    place = int(np.nanargmax(np.abs(values - expected)))
    return (
        f"token {place + 1} {-expected[place]:.4f} and then {-values[place]:.4f}, "
        f"{np.mean(expected):.4f} and {np.mean(values):.4f} nats per token on average."
    )


def changed_model(description: str) -> ValueError:
    return ValueError(
        f"{description} returns different values for the same tokens than at the start: the server "
        "was restarted with another model or other settings, or several models answer at one address. "
        "A checkpoint has only windows of the first. Run the same command again."
    )
