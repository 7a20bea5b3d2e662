"""APIs of servers for the log-probabilities of a prompt, one class each.

All three read token ids and return a value for every token of a prompt but the first.  An answer is
compared with the request: the number and order of prompts, the number of tokens, their ids if the API
returns them, and valid log-probabilities.

vLLM: POST /v1/completions with `prompt_logprobs`; https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
SGLang: POST /generate with `return_logprob`; https://docs.sglang.ai/basic_usage/native_api.html
OpenAI's legacy completions: POST /v1/completions with `echo` and `logprobs`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# vLLM's value for a log-probability of minus infinity, which JSON cannot represent.
NO_PROBABILITY = -9999.0
# Tolerance for log-probabilities above 0 due to rounding, in nats.
ABOVE_ZERO = 1e-3
TOKEN_ID = "token_id:"
# Values of an answer that an error shows.
SHOWN_VALUES = 6
# Maximum size of an answer in bytes: per value with the name of its token, and in addition.
BYTES_OF_A_VALUE = 512
BYTES_AROUND = 2**20


class ServerError(ValueError):
    """A server did not respond, refused a request, or sent an invalid answer.

    Attributes:
        status: HTTP status code; None without an answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AnswerError(ValueError):
    """An answer does not contain the requested values.

    Attributes:
        place: index of the affected prompt in the request, if any.
    """

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


class Prompt(NamedTuple):
    """Tokens to score.

    Attributes:
        ids: token ids to read.
        forced: a token after them that is scored without being read, or None.
    """

    ids: list[int]
    forced: int | None = None

    @property
    def targets(self) -> list[int]:
        """The tokens that are scored: all but the first."""
        return self.ids[1:] if self.forced is None else [*self.ids[1:], self.forced]


class Generated(NamedTuple):
    """A token that a server generated after a prompt.

    Attributes:
        id: its id; None if the server returns no ids.
        text: its text; None if the server returns none.
        nll: negative log-likelihood in nats.
    """

    id: int | None
    text: str | None
    nll: float


@dataclass
class TokenValues:
    """Values of the tokens of a prompt, except the first.

    Attributes:
        nll: negative log-likelihoods in nats (N,).
        rank: 1 for the likeliest (N,); 0 if unknown.
        top: for each token the (id, log-probability) pairs of the likeliest, best first; id -1 if
            the server returns no ids.
        texts: the server's text of each token, if any.
        generated: the generated token; None without one, or without its value.
    """

    nll: np.ndarray
    rank: np.ndarray
    top: list[list[tuple[int, float]]]
    texts: list[str | None] = field(default_factory=list)
    generated: Generated | None = None


class LogprobsAPI:
    """An API for log-probabilities.

    Attributes:
        name: its name in messages and the signature.
        path: path of requests.
        gives_ranks: whether it returns the rank of a token.
        forces: whether it can score a token after the last one read.
        num_new: number of tokens that the server must generate.
        tokenizer_path: path for tokenizing a text; empty if unavailable.
    """

    name: str
    path: str
    tokenizer_path = ""
    gives_ranks = False
    forces = False
    num_new = 1

    @property
    def generating(self) -> "LogprobsAPI":
        """The same API, with the value of a generated token in the answer if possible."""
        return self

    def most_bytes(self, prompts: Sequence[Prompt], num_likeliest: int) -> int:
        """Return the maximum size of a valid answer in bytes."""
        num_tokens = sum(len(prompt.ids) + 1 for prompt in prompts)
        return BYTES_AROUND + BYTES_OF_A_VALUE * num_tokens * (2 + num_likeliest)

    def body(
        self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int, **sampling: float
    ) -> dict:
        """Build a request for the values of prompts, which share the forced token, if any.

        Args:
            num_likeliest: number of likeliest tokens to return in addition.
            sampling: settings of the answer's sampling; the defaults leave distributions unchanged.
        """
        raise NotImplementedError

    def read(
        self, reply: object, prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        """Read the answer.

        Raises:
            AnswerError: it does not contain the requested values.
        """
        raise NotImplementedError


class VLLM(LogprobsAPI):
    """vLLM's `prompt_logprobs`, with ids and ranks; `allowed_token_ids` scores the last token."""

    name, path, tokenizer_path = "vLLM", "/v1/completions", "/tokenize"
    gives_ranks, forces = True, True

    def body(
        self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int, **sampling: float
    ) -> dict:
        body = completion(served_name, prompts, **sampling)
        body |= {"prompt_logprobs": num_likeliest}
        if prompts[0].forced is not None:
            body |= {
                "allowed_token_ids": [prompts[0].forced],
                "logprobs": num_likeliest,
                "return_tokens_as_token_ids": True,
            }
        return body

    def read(
        self, reply: object, prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        return [
            self._read_choice(choice, prompt, num_likeliest, place)
            for place, (choice, prompt) in enumerate(zip(choices_of(reply, prompts), prompts))
        ]

    def _read_choice(
        self, choice: dict, prompt: Prompt, num_likeliest: int, place: int
    ) -> TokenValues:
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list):
            raise AnswerError(f"no `prompt_logprobs` but {sorted(choice)}", place)
        check_length(entries, prompt.ids, place)
        rows = [
            self._read_entry(entry, token, num_likeliest, number, place)
            for number, (entry, token) in enumerate(zip(entries, prompt.ids))
            if number
        ]
        if prompt.forced is not None:
            rows.append(forced_row(choice, prompt.forced, num_likeliest, place))
        return values_of(rows)

    def _read_entry(
        self, entry: object, token: int, num_likeliest: int, number: int, place: int
    ) -> tuple:
        if not isinstance(entry, dict) or str(token) not in entry:
            raise AnswerError(
                f"for token {number}, whose id is {token}, values of {shown(entry)}", place
            )
        own = entry[str(token)]
        likeliest = sorted(
            (value["rank"], int(name), value["logprob"])
            for name, value in entry.items()
            if value.get("rank") and value["rank"] <= num_likeliest
        )[:num_likeliest]
        if len(likeliest) < num_likeliest:
            raise AnswerError(f"{len(likeliest)} likeliest tokens of {num_likeliest}", place)
        value = log_probability(own.get("logprob"), number, place)
        top = [(name, log_probability(value, number, place)) for _, name, value in likeliest]
        return value, own.get("rank") or 0, top, own.get("decoded_token")


class SGLang(LogprobsAPI):
    """SGLang's own `/generate`, with ids."""

    name, path = "SGLang", "/generate"

    def body(
        self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int, **sampling: float
    ) -> dict:
        return {
            "input_ids": [prompt.ids for prompt in prompts],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0} | sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": num_likeliest,
        }

    def read(
        self, reply: object, prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        if not isinstance(reply, list) or len(reply) != len(prompts):
            raise AnswerError(f"{count_of(reply)} answers to {len(prompts)} prompts")
        return [
            self._read_one(answer, prompt, num_likeliest, place)
            for place, (answer, prompt) in enumerate(zip(reply, prompts))
        ]

    def _read_one(
        self, answer: object, prompt: Prompt, num_likeliest: int, place: int
    ) -> TokenValues:
        found: Any = answer.get("meta_info") if isinstance(answer, dict) else None
        entries = found.get("input_token_logprobs") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise AnswerError(f"no `input_token_logprobs` but {shown(answer)}", place)
        check_length(entries, prompt.ids, place, first_is_null=entries[:1] == [None])
        likeliest = found.get("input_top_logprobs") or [None] * len(entries)
        check_length(likeliest, prompt.ids, place, first_is_null=False)
        rows = []
        for number, (entry, token, top) in enumerate(zip(entries, prompt.ids, likeliest)):
            if number == 0:
                continue
            if not isinstance(entry, list) or entry[1] != token:
                raise AnswerError(
                    f"for token {number}, whose id is {token}, values of {shown(entry)}", place
                )
            value = log_probability(entry[0], number, place)
            named = [
                (int(other[1]), log_probability(other[0], number, place)) for other in top or ()
            ]
            rows.append((value, 0, named, entry[2] if len(entry) > 2 else None))
        answered = found.get("output_token_logprobs") or [(None, None)]
        logprob, token = answered[0][:2]
        return values_of(rows, generated_token(token, None, logprob))


class OpenAI(LogprobsAPI):
    """OpenAI's legacy `echo` with `logprobs`, with ids if the server returns them.

    Args:
        num_new: number of tokens that the server must generate: 0 if it allows that, else 1.
    """

    name, path = "OpenAI", "/v1/completions"

    def __init__(self, num_new: int = 0) -> None:
        self.num_new = num_new

    @property
    def generating(self) -> "OpenAI":
        return OpenAI(1)

    def body(
        self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int, **sampling: float
    ) -> dict:
        return completion(served_name, prompts, **sampling) | {
            "max_tokens": self.num_new,
            "echo": True,
            "logprobs": max(1, num_likeliest),
            "return_tokens_as_token_ids": True,
        }

    def read(
        self, reply: object, prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        return [
            self._read_choice(choice, prompt, place)
            for place, (choice, prompt) in enumerate(zip(choices_of(reply, prompts), prompts))
        ]

    def _read_choice(self, choice: dict, prompt: Prompt, place: int) -> TokenValues:
        found: Any = choice.get("logprobs")
        values = found.get("token_logprobs") if isinstance(found, dict) else None
        if not isinstance(values, list):
            raise AnswerError(f"no `token_logprobs` but {shown(choice)}", place)
        names = found.get("tokens") or [None] * len(values)
        generated = None
        if self.num_new and len(values) == len(prompt.ids) + 1:
            name = names[-1] if len(names) == len(values) else None
            generated = generated_token(id_of(name), name, values[-1])
            values = values[:-1]
        check_length(values, prompt.ids, place)
        texts = names[: len(values)]
        tops = (found.get("top_logprobs") or [None] * len(values))[: len(values)]
        if len(texts) < len(values) or len(tops) < len(values):
            raise AnswerError(f"{len(texts)} tokens and {len(values)} values", place)
        rows = []
        for number, (value, text, top) in enumerate(zip(values, texts, tops)):
            named = id_of(text)
            if named is not None and named != prompt.ids[number]:
                raise AnswerError(
                    f"for token {number}, whose id is {prompt.ids[number]}, values of {text!r}",
                    place,
                )
            if number:
                value = log_probability(value, number, place)
                rows.append((value, 0, named_top(top, text, number, place), text))
        return values_of(rows, generated)


# The APIs in the order in which they are tried.
LOGPROBS_APIS = (VLLM(), SGLang(), OpenAI(0), OpenAI(1))


def completion(served_name: str, prompts: Sequence[Prompt], **sampling: float) -> dict:
    """Build the common part of requests for completions; sampling leaves distributions unchanged.

    There is no `seed`, because vLLM's engine on a CPU then crashes at the first prompt that exceeds
    the rest of its step (`max_num_batched_tokens`).
    """
    ids = [prompt.ids for prompt in prompts]
    settings = {"model": served_name, "prompt": ids, "max_tokens": 1, "stream": False}
    return settings | {"temperature": 1.0, "top_p": 1.0} | sampling


def choices_of(reply: object, prompts: Sequence[Prompt]) -> list[dict]:
    """Return the choices of a completion, one per prompt, in their order.

    Raises:
        AnswerError: some are missing or duplicate.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise AnswerError(f"no `choices` but {shown(reply)}")
    numbers = [choice.get("index") for choice in choices]
    if sorted(map(str, numbers)) != sorted(map(str, range(len(prompts)))):
        raise AnswerError(f"choices numbered {shown(numbers)} to {len(prompts)} prompts")
    return sorted(choices, key=lambda choice: int(choice["index"]))


def check_length(
    entries: Sequence, ids: Sequence[int], place: int, first_is_null: bool = True
) -> None:
    """Check that there is a value for every token of a prompt but the first."""
    if len(entries) != len(ids):
        raise AnswerError(f"values of {len(entries)} tokens to {len(ids)}", place)
    if first_is_null and entries and entries[0] is not None:
        raise AnswerError(
            f"a value for the first token, which nothing predicts: {shown(entries[0])}", place
        )


def log_probability(value: object, number: int, place: int) -> float:
    """Return a log-probability in nats; minus infinity for vLLM's placeholder.

    Raises:
        AnswerError: it is not a number, or above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise AnswerError(f"for token {number} no log-probability but {value!r}", place)
    if value > ABOVE_ZERO:
        raise AnswerError(f"for token {number} a log-probability above 0, {value!r}", place)
    return -math.inf if value <= NO_PROBABILITY else min(float(value), 0.0)


def forced_row(choice: dict, token: int, num_likeliest: int, place: int) -> tuple:
    """Read the value of the forced token."""
    found = choice.get("logprobs")
    if not isinstance(found, dict) or not found.get("token_logprobs"):
        raise AnswerError(f"no `logprobs` of the answer but {shown(found)}", place)
    text, value = found["tokens"][0], found["token_logprobs"][0]
    if id_of(text) != token:
        raise AnswerError(f"the answer {text!r}, where only id {token} was allowed", place)
    top = (found.get("top_logprobs") or [None])[0]
    number = len(found["token_logprobs"])
    named = named_top(top, text, number, place)[:num_likeliest]
    return log_probability(value, number, place), 0, named, None


def id_of(text: object) -> int | None:
    """Return the id in the name of a token, if the server returns ids."""
    if not isinstance(text, str) or not text.startswith(TOKEN_ID):
        return None
    number = text.removeprefix(TOKEN_ID)
    return int(number) if number.isdecimal() else None


def named_top(top: object, own: object, number: int, place: int) -> list[tuple[int, float]]:
    """List (id, log-probability) pairs of the most likely tokens, named by text or by id."""
    if not isinstance(top, dict):
        return []
    named = ((id_of(text), log_probability(value, number, place)) for text, value in top.items())
    pairs = [(-1 if token is None else token, value) for token, value in named]
    return sorted(pairs, key=lambda pair: -pair[1])


def generated_token(token: object, text: object, value: object) -> Generated | None:
    """Return the generated token; None without a valid value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Generated(
        token if isinstance(token, int) else None, text if isinstance(text, str) else None, -value
    )


def values_of(rows: Sequence[tuple], generated: Generated | None = None) -> TokenValues:
    """Combine the (log-probability, rank, likeliest, text) rows of tokens."""
    columns = list(zip(*rows)) or [(), (), (), ()]
    return TokenValues(
        -np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.int64),
        list(columns[2]),
        list(columns[3]),
        generated,
    )


def count_of(reply: object) -> str:
    return str(len(reply)) if isinstance(reply, list) else f"{shown(reply)} and no"


def shown(value: object) -> str:
    """Format a part of an answer, shortened."""
    if isinstance(value, list) and len(value) > SHOWN_VALUES:
        return f"{value[:SHOWN_VALUES]!r:.200}, … ({len(value)})"
    return f"{value!r:.200}"
