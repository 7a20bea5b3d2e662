"""A server is tried before it is believed: made-up prompts whose answers must hang together.

A model gives a token one value, which depends on the tokens before it and on nothing else: not on
those after it, on other prompts, on what was asked before, or on how an answer would be sampled.
Servers break each of these, and answer all the same.  What is found out here is kept as `Identity`,
by which the same model is recognised later.
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

# Tokens of the prompt that stands beside the texts in every request.
CANARY_LENGTH = 16
# Nats by which values of one token differ from request to request where a model computes in half
# precision: root mean square, and on average.  Float32 stays below 1e-4.
MOST_SPREAD = 0.1
MOST_SHIFT = 0.03
# What a server may say to a prompt that is too long for it.
TOO_LONG = {400, 413, 422}
# Sampling that an answer is drawn with, and that a prompt's values must not know of.
OTHER_SAMPLING = {"temperature": 0.5, "top_p": 0.5}
# Nats by which values of one and the same computation may differ.
EXACTLY = 1e-5
# Prompts beside the probe in one request.
COMPANY = 14
# Share of made-up tokens with one and the same value from which on it is a floor, and fewest.
FLOOR_SHARE, FEWEST_AT_FLOOR = 0.05, 4
# Likeliest tokens to ask for.
NUM_LIKELIEST = 2
# Prompts after which a token is generated or forced: the values of one may agree by chance.
NUM_SEVERAL = 8
# Signs for a space in texts, and in the vocabularies of SentencePiece and of byte-level BPE.
SPACES = (" ", "\u2581", "\u0120")
# Share of made-up tokens whose text may differ, as tokenizers write fragments of characters.
MOST_RENAMED = 0.1


class Source(Protocol):
    """Where the values of tokens come from: a server, or an engine in this process.

    Attributes:
        api: how it is asked, and what it can say.
    """

    api: LogprobsAPI

    def connected(self) -> AbstractContextManager:
        """Keep connections for the time of the context."""
        ...

    def values(
        self, prompts: Sequence[Prompt], num_likeliest: int = 0, **sampling: float
    ) -> list[TokenValues]:
        """Ask for the values of prompts in one request."""
        ...

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Ask for the values of requests; yield (number, values or what is wrong) as they come."""
        ...

    def generating(self) -> "Source":
        """Return what generates a token after each prompt and gives its value."""
        ...

    def tokenize(self, text: str) -> list[int] | None:
        """Return the ids that the engine itself cuts a text into; None where it does not say."""
        ...


@dataclass(frozen=True)
class Identity:
    """What a model said of made-up tokens: by this it is recognised.

    Attributes:
        probe: the made-up prompt.
        nll: of its tokens but the first, in nats.
        canary, canary_nll: the same of a short prompt.
    """

    probe: Prompt
    nll: np.ndarray
    canary: Prompt
    canary_nll: np.ndarray

    @property
    def mean(self) -> float:
        """Mean negative log-likelihood of the made-up tokens, in nats a token."""
        return float(self.nll.mean())

    def is_of(self, source: Source) -> bool:
        """Ask again; return whether it is still the same model."""
        return not differ(source.values([self.probe])[0].nll, self.nll)


class Refusal(ValueError):
    """What a server did on trial that no honest one does."""


def try_source(
    source: Source, tokenizer: PreTrainedTokenizerBase, length: int | None, description: str
) -> Identity:
    """Try whether the values that a source gives are those of a causal model.

    Args:
        tokenizer: whose ids are sent.
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
            f"{description} must give the log-probability of every token of a prompt. A prompt of "
            f"{trial.length} token ids was sent; it answered with {error}."
        ) from None
    except Refusal as error:
        raise ValueError(f"{description} cannot be believed: {error}") from None


def shortened(trial: "ServerProbe") -> "ServerProbe":
    """Halve a trial's prompts until a server that states no limit takes them."""
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
    """Made-up prompts, and what each of them shows.

    Args:
        length: tokens of the longest.
    """

    def __init__(self, source: Source, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
        self.source, self.tokenizer, self.length = source, tokenizer, length
        special = set(tokenizer.all_special_ids)
        self.ordinary = np.array(sorted(set(tokenizer.get_vocab().values()) - special))
        self.probe = Prompt(ProbeText.of(int(max(tokenizer.get_vocab().values())) + 1, length).ids)
        self.canary = Prompt(self.make_up(min(length, CANARY_LENGTH), seed=1))

    def make_up(self, length: int, seed: int | None = None) -> list[int]:
        """Draw tokens that stand for text."""
        return np.random.default_rng(seed).choice(self.ordinary, length).tolist()

    def make_up_several(self) -> list[list[int]]:
        """Draw short prompts after each of which one more token fits."""
        size = min(self.length, CANARY_LENGTH) - 1
        return [self.make_up(size, seed) for seed in range(10, 10 + NUM_SEVERAL)]

    def run(self) -> Identity:
        """Run all checks.

        Raises:
            AnswerError: an answer has not even the form of one.
            Refusal: the answers do not hang together.
        """
        first = self.source.values([self.probe], NUM_LIKELIEST)[0]
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

    def check_values(self, values: TokenValues) -> None:
        """Refuse probabilities of 0, floors, sums, and likeliest tokens that are not."""
        impossible = np.flatnonzero(np.isinf(values.nll))
        if len(impossible):
            raise Refusal(
                f"it finds {len(impossible)} of {len(values.nll)} made-up tokens impossible, so its "
                "values are of a distribution cut by top-p or top-k, not of the model's. "
                + self.advice_on_sampling()
            )
        same, counts = np.unique(values.nll, return_counts=True)
        if counts.max(initial=0) >= max(FEWEST_AT_FLOOR, FLOOR_SHARE * len(values.nll)):
            raise Refusal(
                f"it gave {counts.max()} of {len(values.nll)} made-up tokens one log-probability, "
                f"{-same[counts.argmax()]:.4f}: it knows the likeliest tokens alone, and the others "
                "have a floor."
            )
        if len(values.nll) >= FEWEST_AT_FLOOR and (np.diff(values.nll) >= 0).all():
            raise Refusal(
                f"its log-probabilities never rise, from {-values.nll[0]:.4f} to "
                f"{-values.nll[-1]:.4f}: they are sums over all tokens so far."
            )
        for nll, top in zip(values.nll, values.top):
            if sum(np.exp(value) for _, value in top) > 1.01 or (
                top and -nll > top[0][1] + MOST_SPREAD
            ):
                raise Refusal(
                    f"it gave a token the log-probability {-nll:.4f}, and {shown(top)} as the "
                    "likeliest in its place."
                )

    def check_names(self, values: TokenValues) -> None:
        """Refuse a server whose ids mean other tokens than the tokenizer's."""
        pairs = [
            (str(self.tokenizer.decode([token])), text)
            for token, text in zip(self.probe.targets, values.texts)
            if isinstance(text, str) and not text.startswith("token_id:")
        ]
        clean = [pair for pair in pairs if pair[0].strip().isascii() and pair[0].strip()]
        other = [pair for pair in clean if pair[0].strip() != pair[1].strip()]
        if len(other) > MOST_RENAMED * len(clean):
            raise Refusal(
                f"its tokens are others than the tokenizer's: where {other[0][0]!r} was sent it "
                f"read {other[0][1]!r}, and so for {len(other)} of {len(clean)} tokens. Pass the "
                "served model's own tokenizer."
            )

    def check_order(self, alone: np.ndarray) -> None:
        """Refuse a server that mixes up the answers to several prompts, or their influence."""
        sizes = [self.length, self.length // 2, *[min(self.length, CANARY_LENGTH)] * COMPANY]
        other = [Prompt(self.make_up(size, seed)) for seed, size in enumerate(sizes, 2)]
        half = len(other) // 2
        company = self.source.values([*other[:half], self.probe, *other[half:]])[half].nll
        if differ(company, alone):
            raise Refusal(
                "a prompt gets other values in company than alone: "
                f"{in_numbers(alone, company)} It mixes up its answers, or its batches change them. "
                "vLLM: start it with --no-enable-prefix-caching."
            )

    def check_start(self) -> None:
        """Refuse a server that puts a start token before prompts that have none."""
        start = self.tokenizer.bos_token_id
        if start is None:
            return
        ids = self.make_up(min(self.length, CANARY_LENGTH) - 1, seed=4)
        bare = self.source.values([Prompt(ids)])[0].nll
        after_start = self.source.values([Prompt([start, *ids])])[0].nll[1:]
        if np.allclose(bare, after_start, rtol=0, atol=EXACTLY):
            raise Refusal(
                f"{len(ids)} tokens get the same values with a start token (id {start}) before them "
                "as without: it puts one there itself, also where a window begins in the middle of a "
                "text. Switch that off."
            )

    def check_repeats(self) -> None:
        """Refuse values that depend on what was asked before: a stale cache.

        The prompt is drawn by chance, as a server may remember another day's.
        """
        fresh = Prompt(self.make_up(self.length))
        half = self.length // 2
        following = Prompt(fresh.ids[:half] + self.make_up(self.length - half))
        expected = self.source.values([fresh])[0].nll
        for prompt, size in ((following, half - 1), (fresh, self.length - 1)):
            values = self.source.values([prompt])[0].nll[:size]
            if differ(values, expected[:size]):
                raise Refusal(
                    "the same tokens get other values the next time: "
                    f"{in_numbers(expected[:size], values)} Switch prefix caching off "
                    "(vLLM: --no-enable-prefix-caching; SGLang: --disable-radix-cache)."
                )

    def check_places(self, expected: np.ndarray) -> None:
        """Refuse values that belong to another token than they stand at.

        Where a token is replaced, its own value is the first to change.
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
                    f"token {place} of a prompt was replaced by another, and the first value to "
                    f"change was that of token {wrong[0]}: values stand at other tokens than they "
                    "are of."
                )

    def check_sampling(self, expected: np.ndarray) -> None:
        """Refuse values that are scaled by a temperature or cut by top-p."""
        values = self.source.values([self.probe], 0, **OTHER_SAMPLING)[0].nll
        if differ(values, expected):
            raise Refusal(
                "its values of a prompt follow the sampling of the answer, temperature and top-p: "
                f"{in_numbers(expected, values)} {self.advice_on_sampling()}"
            )

    def check_forced(self, expected: np.ndarray) -> None:
        """Refuse a value of a forced token that is another than that of the token in a prompt."""
        *ids, last = self.probe.ids
        values = self.source.values([Prompt(ids, last)])[0].nll
        prompts = self.make_up_several()
        forced = self.source.values([Prompt(ids, last) for ids in prompts])
        sent = self.source.values([Prompt([*ids, last]) for ids in prompts])
        pairs = [(expected[-1], values[-1])]
        pairs += [(one.nll[-1], other.nll[-1]) for one, other in zip(sent, forced)]
        worst = farthest(pairs)
        if differ(values, expected) or worst is not None:
            value, of_answer = worst or pairs[0]
            raise Refusal(
                f"the last token of a prompt got {-value:.4f}, and the same token as the "
                f"only answer allowed {-of_answer:.4f}. {self.advice_on_sampling()}"
            )

    def check_generated(self, first: TokenValues) -> None:
        """Refuse values that are of the neighbouring position.

        They hang together, but the value of a token that is generated is of the right position: it
        must come back when that token is sent.

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
                "The server does not say which tokens it generates, so that it could not be checked "
                "whether its values belong to the neighbouring position. Compare it with "
                "`reference`, the model itself.",
                stacklevel=2,
            )
            return
        worst = farthest(pairs)
        if worst is not None:
            raise Refusal(
                f"it generated a token with the log-probability {-worst[0]:.4f}, and the "
                f"same token after the same prompt got {-worst[1]:.4f} when it was sent: its "
                "values of a prompt belong to the neighbouring position, or those of its answers "
                "follow the sampling (top-k, top-p)."
            )

    def find_id(self, token: Generated | None, names: Sequence[str | None]) -> int | None:
        """Find the id of a generated token by its name, where the server names no ids.

        Args:
            names: of the probe's tokens.  Where the server leaves out spaces that the tokenizer's
                names begin with, a name stands for two tokens.
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
    """Return whether some names of tokens begin with a space, or a vocabulary's sign for one."""
    return any(name is not None and name.startswith(SPACES) for name in names)


def differ(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values (N,) differ by more than rounding does, in nats."""
    if values.shape != expected.shape:
        return True
    with np.errstate(invalid="ignore"):
        difference = values - expected
    return not (
        np.sqrt(np.mean(difference**2)) <= MOST_SPREAD and abs(difference.mean()) <= MOST_SHIFT
    )


def farthest(pairs: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the pair of values that differs most; None where they agree up to rounding."""
    differences = np.abs([one - other for one, other in pairs])
    if np.sqrt(np.mean(differences**2)) <= MOST_SPREAD:
        return None
    return pairs[int(np.argmax(differences))]


def in_numbers(expected: np.ndarray, values: np.ndarray) -> str:
    """Say where values differ most."""
    place = int(np.nanargmax(np.abs(values - expected)))
    return (
        f"token {place + 1} {-expected[place]:.4f} and then {-values[place]:.4f}, "
        f"{np.mean(expected):.4f} and {np.mean(values):.4f} nats a token over all."
    )


def changed_model(description: str) -> ValueError:
    return ValueError(
        f"{description} gives other values to the same tokens than at the start: the server was "
        "started again with another model or other settings, or several models answer under one "
        "address. Windows that are kept in a checkpoint are of the first. Run the same command again."
    )
