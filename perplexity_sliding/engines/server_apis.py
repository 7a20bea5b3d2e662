"""The APIs by which servers return the log-probabilities of a prompt, one class each.

All read token ids and return a value for every token of a prompt but the first.  An answer is compared
with the request: the number and order of prompts, the number of tokens, and their ids if it has them.

vLLM: POST /v1/completions with `prompt_logprobs`; https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
SGLang: POST /generate with `return_logprob`; https://docs.sglang.ai/basic_usage/native_api.html
OpenAI's legacy completions: POST /v1/completions with `echo` and `logprobs`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# vLLM's value for a log-probability of minus infinity, which JSON cannot represent.
NO_PROBABILITY = -9999.0
# Tolerance for log-probabilities above 0 due to rounding, in nats.
ABOVE_ZERO = 1e-3
TOKEN_ID = "token_id:"

# (log-probability, rank or 0, likeliest (id, log-probability) pairs) of a token.
Row = tuple[float, int, list[tuple[int, float]]]


class ServerError(ValueError):
    """A server did not respond, or refused a request.

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
        ids: token ids to read; all but the first are scored.
        forced: a token after them that is scored without being read, or None.
    """

    ids: list[int]
    forced: int | None = None


class TokenValues(NamedTuple):
    """Values of the tokens of a prompt, except the first.

    Attributes:
        nll: negative log-likelihoods in nats (N,).
        rank: 1 for the likeliest (N,); 0 if unknown.
        top: for each token the (id, log-probability) pairs of the likeliest, best first; id -1 if
            the server returns no ids.
    """

    nll: np.ndarray
    rank: np.ndarray
    top: list[list[tuple[int, float]]]


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

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        """Build a request for the values of prompts, which share the forced token, if any.

        There is no `seed`: with one, vLLM's engine for CPUs crashes at the first prompt that exceeds
        the rest of its step (`max_num_batched_tokens`).

        Args:
            num_likeliest: number of likeliest tokens to return in addition.
        """
        ids = [prompt.ids for prompt in prompts]
        settings = {"model": served_name, "prompt": ids, "max_tokens": 1, "stream": False}
        return settings | {"temperature": 1.0, "top_p": 1.0}

    def read(
        self, reply: object, prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        """Read the answer.

        Raises:
            AnswerError: it does not contain the requested values.
        """
        values: list[TokenValues] = []
        answers: Any = reply
        try:
            answers = self._answers(reply)
            if len(answers) != len(prompts):
                raise AnswerError(f"{len(answers)} answers to {len(prompts)} prompts")
            for answer, prompt in zip(answers, prompts):
                nlls, ranks, tops = zip(*self._rows(answer, prompt, num_likeliest))
                values.append(TokenValues(-np.array(nlls), np.array(ranks), list(tops)))
        except AnswerError as error:
            raise AnswerError(str(error), len(values)) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            message = f"an unexpected format ({type(error).__name__}: {error}): {reply!r:.200}"
            raise AnswerError(message, len(values)) from None
        return values

    def _answers(self, reply: Any) -> list:
        """Return the answers to the prompts in their order; here the choices of a completion."""
        choices = {int(choice["index"]): choice for choice in reply["choices"]}
        return [choices[number] for number in range(len(choices))]

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        """Read the values of a prompt's tokens but the first."""
        raise NotImplementedError


class VLLM(LogprobsAPI):
    """vLLM's `prompt_logprobs`, with ids and ranks; `allowed_token_ids` scores the last token."""

    name, path, tokenizer_path = "vLLM", "/v1/completions", "/tokenize"
    gives_ranks, forces = True, True

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        body = super().body(served_name, prompts, num_likeliest)
        body |= {"prompt_logprobs": num_likeliest}
        if prompts[0].forced is not None:
            body |= {
                "allowed_token_ids": [prompts[0].forced],
                "logprobs": num_likeliest,
                "return_tokens_as_token_ids": True,
            }
        return body

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        entries = answer["prompt_logprobs"] or []
        check_length(entries, prompt.ids)
        rows = []
        for number, (entry, token) in enumerate(zip(entries[1:], prompt.ids[1:]), 1):
            if str(token) not in entry:
                raise other_token(number, token, entry)
            likeliest = sorted(
                (value["rank"], int(name), value["logprob"])
                for name, value in entry.items()
                if value.get("rank") and value["rank"] <= num_likeliest
            )[:num_likeliest]
            if len(likeliest) < num_likeliest:
                raise AnswerError(f"{len(likeliest)} likeliest tokens of {num_likeliest}")
            own = entry[str(token)]
            top = [(name, log_probability(value, number)) for _, name, value in likeliest]
            rows.append((log_probability(own["logprob"], number), own.get("rank") or 0, top))
        if prompt.forced is not None:
            number, found = len(prompt.ids), answer["logprobs"]
            if id_of(found["tokens"][0]) != prompt.forced:
                raise other_token(number, prompt.forced, found["tokens"])
            top = named_top((found.get("top_logprobs") or [None])[0], number)[:num_likeliest]
            rows.append((log_probability(found["token_logprobs"][0], number), 0, top))
        return rows


class SGLang(LogprobsAPI):
    """SGLang's own `/generate`, with ids."""

    name, path = "SGLang", "/generate"

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        return {
            "input_ids": [prompt.ids for prompt in prompts],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": num_likeliest,
        }

    def _answers(self, reply: Any) -> list:
        return reply

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        found = answer["meta_info"]
        entries = found["input_token_logprobs"]
        tops = found.get("input_top_logprobs") or [None] * len(entries)
        for values in (entries, tops):
            check_length(values, prompt.ids, first_is_null=False)
        rows = []
        for number, (entry, token, top) in enumerate(zip(entries, prompt.ids, tops)):
            if number == 0:
                continue
            if entry[1] != token:
                raise other_token(number, token, entry)
            named = [(int(other[1]), log_probability(other[0], number)) for other in top or ()]
            rows.append((log_probability(entry[0], number), 0, named))
        return rows


class OpenAI(LogprobsAPI):
    """OpenAI's legacy `echo` with `logprobs`, with ids if the server returns them.

    Args:
        num_new: number of tokens that the server must generate: 0 if it allows that, else 1.
    """

    name, path = "OpenAI", "/v1/completions"

    def __init__(self, num_new: int = 0) -> None:
        self.num_new = num_new

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        return super().body(served_name, prompts, num_likeliest) | {
            "max_tokens": self.num_new,
            "echo": True,
            "logprobs": max(1, num_likeliest),
            "return_tokens_as_token_ids": True,
        }

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        found = answer["logprobs"]
        values = found["token_logprobs"]
        if len(values) == len(prompt.ids) + self.num_new:
            values = values[: len(prompt.ids)]
        check_length(values, prompt.ids)
        names = found.get("tokens") or [None] * len(values)
        tops = found.get("top_logprobs") or [None] * len(values)
        rows = []
        for number, (value, token) in enumerate(zip(values, prompt.ids)):
            if id_of(names[number]) not in (None, token):
                raise other_token(number, token, names[number])
            if number:
                rows.append((log_probability(value, number), 0, named_top(tops[number], number)))
        return rows


# The APIs in the order in which they are tried.
APIS = (VLLM(), SGLang(), OpenAI(0), OpenAI(1))


def check_length(entries: Sequence, ids: Sequence[int], first_is_null: bool = True) -> None:
    """Check that there is a value for every token of a prompt but the first."""
    if len(entries) != len(ids):
        raise AnswerError(f"values of {len(entries)} tokens to {len(ids)}")
    if first_is_null and entries[0] is not None:
        raise AnswerError(f"a value for the first token, which nothing predicts: {entries[0]!r}")


def other_token(number: int, token: int, found: object) -> AnswerError:
    return AnswerError(f"for token {number}, whose id is {token}, values of {found!r:.200}")


def log_probability(value: object, number: int) -> float:
    """Check a log-probability in nats; return minus infinity for vLLM's placeholder."""
    if not isinstance(value, int | float) or not value <= ABOVE_ZERO:
        raise AnswerError(f"for token {number} no log-probability but {value!r}")
    return -math.inf if value <= NO_PROBABILITY else min(float(value), 0.0)


def id_of(name: object) -> int | None:
    """Return the id in the name of a token, if the server returns ids."""
    if not isinstance(name, str) or not name.startswith(TOKEN_ID):
        return None
    return int(name.removeprefix(TOKEN_ID))


def named_top(top: dict | None, number: int) -> list[tuple[int, float]]:
    """List (id, log-probability) pairs of the most likely tokens, which are named by text or by id."""
    named = [(id_of(name), log_probability(value, number)) for name, value in (top or {}).items()]
    pairs = [(-1 if token is None else token, value) for token, value in named]
    return sorted(pairs, key=lambda pair: -pair[1])
