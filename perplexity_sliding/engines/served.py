"""A model that returns log-probabilities of tokens instead of logits: how it is asked, and what it is tested for.

All APIs read token ids and return a value for every token of a prompt but the first.  The values of random
prompts show whether each depends only on the tokens before it, and recognise the model.

vLLM: POST /v1/completions with `prompt_logprobs`; https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
SGLang: POST /generate with `return_logprob`; https://docs.sglang.ai/basic_usage/native_api.html
OpenAI's legacy completions: POST /v1/completions with `echo` and `logprobs`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..models.identity import check_tokenizer, model_name, probe_text
from ..models.interface import EngineModel
from ..plan.tokenization import shared_lock
from ..plan.windows import ContextLimit

# vLLM's value for a log-probability of minus infinity, which JSON cannot represent.
NO_PROBABILITY = -9999.0
# Tolerance for log-probabilities above 0 due to rounding, in nats.
ABOVE_ZERO = 1e-3
# Prefix of a token's name that is its id.
TOKEN_ID = "token_id:"
# Sampling of an answer of one token that leaves distributions unchanged.
UNCHANGED = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0}
# Tokens of the known prompt in every request.
CANARY_LENGTH = 16
# Tolerances for values of one token in different requests in half precision, in nats: root mean
# square, and mean.  In float32 the differences are below 1e-4.
MOST_SPREAD = 0.1
MOST_SHIFT = 0.03
# Tolerance for values of the same computation, in nats.
EXACTLY = 1e-5
# Tokens to put in the place of one; the value of a single one may be that of the original by chance.
REPLACEMENTS = 3
# Requests per call of a live vLLM, which batches them itself.
REQUESTS_AT_A_TIME = 8


class ServerError(ValueError):
    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AnswerError(ValueError):
    """An answer lacks the requested values of the prompt at `place` in the request."""

    place = 0


class Prompt(NamedTuple):
    """Tokens to score.

    Attributes:
        ids: token ids to read; all but the first are scored.
        forced: a token after them that is scored without being read, or None.
    """

    ids: list[int]
    forced: int | None = None

    @property
    def tokens(self) -> list[int]:
        return self.ids if self.forced is None else [*self.ids, self.forced]


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


class Row(NamedTuple):
    """What an answer says of one token of a prompt; the id is -1 if it has none."""

    token: int
    value: object
    rank: int | None = 0
    top: Sequence[tuple[int, object]] = ()


# --- APIs -----------------------------------------------------------------------------------------


class LogprobsAPI:
    name: str
    path = "/v1/completions"
    forces = False  # whether it can score a token after the last one read

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        """Build a request for the values of prompts, which share the forced token, if any."""
        # No `seed`: vLLM's engine for CPUs crashes at a prompt that exceeds the rest of its step.
        ids = [prompt.ids for prompt in prompts]
        return {"model": served_name, "prompt": ids, "stream": False, **UNCHANGED}

    def read(self, reply: Any, prompts: Sequence[Prompt], num_likeliest: int) -> list[TokenValues]:
        """Read the answer to a request, and compare it with the prompts."""
        values: list[TokenValues] = []
        try:
            answers = self._answers(reply)
            if len(answers) != len(prompts):
                raise AnswerError(f"{len(answers)} answers to {len(prompts)} prompts")
            for answer, prompt in zip(answers, prompts):
                rows = self._rows(answer, prompt, num_likeliest)
                values.append(values_of_rows(rows, prompt.tokens, num_likeliest))
        except AnswerError as error:
            error.place = len(values)
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            message = f"an unexpected format ({type(error).__name__}: {error}): {reply!r:.200}"
            raise AnswerError(message) from None
        return values

    def _answers(self, reply: Any) -> list:
        choices = {int(choice["index"]): choice for choice in reply["choices"]}
        return [choices[number] for number in range(len(choices))]

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        raise NotImplementedError


class VLLM(LogprobsAPI):
    """vLLM's `prompt_logprobs`, with ids and ranks; `allowed_token_ids` scores the last token."""

    name, forces = "vLLM", True

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        body = super().body(served_name, prompts, num_likeliest)
        by_id = {} if prompts[0].forced is None else {"return_tokens_as_token_ids": True}
        return body | self.sampling(prompts[0], num_likeliest) | by_id

    def sampling(self, prompt: Prompt, num_likeliest: int) -> dict:
        forced = {"allowed_token_ids": [prompt.forced], "logprobs": num_likeliest}
        of_prompt = {"prompt_logprobs": num_likeliest, **UNCHANGED}
        return of_prompt if prompt.forced is None else of_prompt | forced

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        entries = [
            {int(name): (v["logprob"], v.get("rank")) for name, v in (entry or {}).items()}
            for entry in answer["prompt_logprobs"] or ()
        ]
        rows = [ranked_row(*pair, num_likeliest) for pair in zip(entries, prompt.ids, strict=True)]
        if prompt.forced is not None:
            found = answer["logprobs"]
            top = named_top((found.get("top_logprobs") or [None])[0])
            rows.append(Row(id_of(found["tokens"][0]), found["token_logprobs"][0], 0, top))
        return rows


class LiveVLLM(VLLM):
    """The outputs of a `vllm.LLM`, where the forced token has a rank too."""

    def _answers(self, reply: Any) -> list:
        return reply

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        entries = list(answer.prompt_logprobs or ())
        if prompt.forced is not None:
            entries += answer.outputs[0].logprobs
        found = [{t: (v.logprob, v.rank) for t, v in (entry or {}).items()} for entry in entries]
        return [ranked_row(*pair, num_likeliest) for pair in zip(found, prompt.tokens, strict=True)]


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
        return [
            Row(token, value, 0, [(int(other[1]), other[0]) for other in top or ()])
            for (value, token, *_), top in zip(entries, tops, strict=True)
        ]


class OpenAI(LogprobsAPI):
    """OpenAI's legacy `echo` with `logprobs`, with ids if the server returns them."""

    name = "OpenAI"

    def body(self, served_name: str, prompts: Sequence[Prompt], num_likeliest: int) -> dict:
        return super().body(served_name, prompts, num_likeliest) | {
            "echo": True,
            "logprobs": max(1, num_likeliest),
            "return_tokens_as_token_ids": True,
        }

    def _rows(self, answer: Any, prompt: Prompt, num_likeliest: int) -> list[Row]:
        found = answer["logprobs"]
        values = found["token_logprobs"][: len(prompt.ids)]  # without that of the answer
        names = found.get("tokens") or [None] * len(values)
        tops = found.get("top_logprobs") or [None] * len(values)
        return [
            Row(id_of(name), value, 0, named_top(top))
            for name, value, top in zip(names, values, tops)
        ]


# The APIs in the order in which they are tried.
APIS = (VLLM(), SGLang(), OpenAI())


def ranked_row(entry: dict[int, tuple[Any, Any]], token: int, num_likeliest: int) -> Row:
    """Find a token among the (log-probability, rank) of it and of the likeliest, by id."""
    if not entry:  # of the first token
        return Row(token, None)
    found = token if token in entry else next(iter(entry))
    if not num_likeliest:
        return Row(found, *entry[found])
    by_rank = sorted((rank, other, value) for other, (value, rank) in entry.items() if rank)
    top = [(other, value) for rank, other, value in by_rank if rank <= num_likeliest]
    return Row(found, *entry[found], top)


def id_of(name: object) -> int:
    is_id = isinstance(name, str) and name.startswith(TOKEN_ID)
    return int(str(name).removeprefix(TOKEN_ID)) if is_id else -1


def named_top(top: dict | None) -> list[tuple[int, float]]:
    pairs = [(id_of(name), value) for name, value in (top or {}).items()]
    return sorted(pairs, key=lambda pair: -pair[1])


def values_of_rows(rows: Sequence[Row], tokens: Sequence[int], num_likeliest: int) -> TokenValues:
    if len(rows) != len(tokens):
        raise AnswerError(f"values of {len(rows)} tokens to {len(tokens)}")

    def log_probability(value: Any) -> float:
        if not isinstance(value, int | float) or not value <= ABOVE_ZERO:
            raise AnswerError(f"for token {number} no log-probability but {value!r}")
        return -math.inf if value <= NO_PROBABILITY else min(float(value), 0.0)

    nlls, ranks, tops = [], [], []
    for number, (row, token) in enumerate(zip(rows[1:], tokens[1:]), 1):
        if row.token not in (-1, token):
            raise AnswerError(
                f"for token {number}, whose id is {token}, values of id {row.token}: another tokenizer"
            )
        top = [(other, log_probability(value)) for other, value in row.top[:num_likeliest]]
        if len(top) < num_likeliest:
            raise AnswerError(f"{len(top)} likeliest tokens of {num_likeliest}")
        nlls.append(-log_probability(row.value))
        ranks.append(row.rank or 0)
        tops.append(top)
    return TokenValues(np.array(nlls), np.array(ranks), tops)


# --- models ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class ServedModel(EngineModel):
    """A model that returns scores of tokens; otherwise like `LanguageModel`.

    Attributes:
        source: a server, or an engine in this process.  `values` raises an AnswerError or a ServerError
            where there are none; `values_of_all` yields the number of each request with its values or
            AnswerError, as answers arrive.
        engine: name and version of the program that runs it, for the signature.
        tried, nll: a random prompt, and the nlls in nats of its tokens but the first, by which the model
            is recognised; known after `check`.
    """

    source: Any
    tokenizer: PreTrainedTokenizerBase
    name: str
    description: str
    engine: str
    limit: ContextLimit
    dtype: str | None = None
    tried: Prompt = field(init=False)
    nll: np.ndarray = field(init=False)

    gives_logits = False
    num_embeddings = None
    by_blocks = False

    def __post_init__(self) -> None:
        super().__init__()
        # of the tokenizer; the server's may be larger
        self.vocabulary_size = int(max(self.tokenizer.get_vocab().values())) + 1

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.lock, self.source.connected():
            yield

    def check(self) -> None:
        if hasattr(self, "tried") and self.is_same():
            return
        # one more than is read: the last token may be forced
        limit = self.limit.length if self.limit.readable is None else self.limit.readable + 1
        ids = probe_text(self.vocabulary_size, limit)
        try:
            self.tried, self.nll = self._test(ids)
        except AnswerError as error:
            raise ValueError(f"{self.description} answered {len(ids)} ids with {error}.") from None

    def _test(self, ids: list[int]) -> tuple[Prompt, np.ndarray]:
        """Test the source with random prompts of at most `len(ids)` tokens, the forced one included."""
        vocabulary = set(self.tokenizer.get_vocab().values())
        ordinary = np.array(sorted(vocabulary - set(self.tokenizer.all_special_ids)))
        ask = self.source.values

        def draw(length: int, seed: int | None = None) -> list[int]:
            return np.random.default_rng(seed).choice(ordinary, length).tolist()

        def refusal(reason: str) -> ValueError:
            return ValueError(f"{self.description} cannot be believed: {reason}")

        probe = Prompt(ids[:-1], ids[-1]) if self.source.api.forces else Prompt(ids)
        nll = ask([probe])[0].nll
        impossible = int((np.isinf(nll) | (nll < EXACTLY)).sum())
        if impossible:
            raise refusal(
                f"it assigns probability 0 or 1 to {impossible} of {len(nll)} random tokens: start vLLM "
                "with --logprobs-mode raw_logprobs and --generation-config vllm, so that the sampling "
                "of answers does not truncate distributions, and check its --dtype."
            )

        # of a replaced token, the first value to change is its own
        place = len(probe.ids) // 2
        others = [
            probe._replace(ids=[*probe.ids[:place], other, *probe.ids[place + 1 :]])
            for other in draw(REPLACEMENTS, seed=5)
        ]
        moved = [np.flatnonzero(np.abs(of.nll - nll) > MOST_SPREAD) for of in ask(others)]
        first = min((int(changed[0]) for changed in moved if len(changed)), default=place - 1)
        if first != place - 1:
            raise refusal(
                f"its values are at the wrong tokens: with another token {place} in a prompt, the "
                f"first value to change was that of token {first + 1}."
            )

        longest = len(ids) - 1  # such a prompt has room for an answer
        start_id = self.tokenizer.bos_token_id
        if start_id is not None:
            short = draw(min(longest, CANARY_LENGTH) - 1, seed=4)
            bare, after = ask([Prompt(short), Prompt([start_id, *short])])
            if np.allclose(bare.nll, after.nll[1:], rtol=0, atol=EXACTLY):
                raise refusal(
                    f"{len(short)} tokens have the same values with and without a start token (id "
                    f"{start_id}) before them: it adds one itself. Disable that."
                )

        # values must not depend on earlier requests or other prompts; unseeded: it may have a cache
        fresh, half = draw(longest), longest // 2
        alone = ask([Prompt(fresh)])[0].nll
        again = ask([Prompt(fresh[:half] + draw(longest - half)), Prompt(fresh)])
        if any(differ(of.nll[:n], alone[:n]) for n, of in zip((half - 1, longest - 1), again)):
            raise refusal(
                "the values of the same tokens differ in a second request. Disable prefix caching "
                "(vLLM: --no-enable-prefix-caching; SGLang: --disable-radix-cache)."
            )
        return probe, nll

    def is_same(self) -> bool:
        return not differ(self.source.values([self.tried])[0].nll, self.nll)

    def check_same(self) -> None:
        if not self.is_same():
            raise changed_model(self.description)

    def measure_probe(self) -> float:
        return float(self.nll.mean())

    def signature_fields(self) -> dict[str, object]:
        revision = f"measured({self.measure_probe():.3f})"
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {"model": self.name, "revision": revision, **dtype, "engine": self.engine}


def differ(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values (N,) in nats differ by more than rounding in half precision."""
    with np.errstate(invalid="ignore"):
        difference = values - expected
    return not (
        np.sqrt(np.mean(difference**2)) <= MOST_SPREAD and abs(difference.mean()) <= MOST_SHIFT
    )


def changed_model(description: str) -> ValueError:
    return ValueError(
        f"{description} returns different values for the same tokens than at the start: another model "
        "answers now. A checkpoint has only windows of the first. Run the same command again."
    )


# --- a live vLLM ----------------------------------------------------------------------------------


def is_vllm(model: object) -> bool:
    return hasattr(model, "llm_engine") and hasattr(model, "generate")


def adopt_vllm(
    engine: Any, tokenizer: PreTrainedTokenizerBase, argument: str, tokenizer_argument: str
) -> ServedModel:
    import vllm

    check_tokenizer(tokenizer, tokenizer_argument)
    config = engine.llm_engine.model_config
    length = int(config.max_model_len)
    return ServedModel(
        EngineSource(engine),
        tokenizer,
        model_name(config.model, {}),
        f"`{argument}`",
        f"vLLM {vllm.__version__}",
        ContextLimit(length, None, length - 1),  # one position is reserved for the answer
        str(config.dtype).removeprefix("torch."),
    )


class EngineSource:
    """A live `vllm.LLM`; https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm/."""

    api = LiveVLLM()

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.lock = shared_lock(engine)  # answers to two callers would get mixed up

    def connected(self) -> AbstractContextManager:
        return self.lock

    def values(self, prompts: Sequence[Prompt], num_likeliest: int = 0) -> list[TokenValues]:
        return self.api.read(self._generate(prompts, num_likeliest), prompts, num_likeliest)

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        numbered = enumerate(requests)
        while some := list(islice(numbered, REQUESTS_AT_A_TIME)):
            together = [prompt for _, prompts in some for prompt in prompts]
            outputs = iter(self._generate(together, num_likeliest))
            for number, prompts in some:
                own = list(islice(outputs, len(prompts)))
                try:
                    yield number, self.api.read(own, prompts, num_likeliest)
                except AnswerError as error:
                    yield number, error

    def _generate(self, prompts: Sequence[Prompt], num_likeliest: int) -> list:
        from vllm import SamplingParams

        settings = [self.api.sampling(prompt, num_likeliest) for prompt in prompts]
        params = [SamplingParams(**of_prompt, detokenize=False) for of_prompt in settings]
        ids = [{"prompt_token_ids": prompt.ids} for prompt in prompts]
        return self.engine.generate(ids, params, use_tqdm=False)
