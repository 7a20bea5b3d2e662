"""A model that returns the log-probabilities of tokens instead of logits, and what it is tested for.

It is a server of vLLM, SGLang or OpenAI's legacy completions API, or a live `vllm.LLM`.  The value of a
token must depend only on the tokens before it; random prompts show whether it does, and their values are
kept, by which the same model is recognised later.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError
from ..models.identity import PROBE_TOKENS, check_tokenizer, model_name, probe_text
from ..models.interface import EngineModel
from ..plan.tokenization import shared_lock
from ..plan.windows import ContextLimit
from .server_apis import VLLM, AnswerError, LogprobsAPI, Prompt, ServerError, TokenValues

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
# Requests per call of a live vLLM, which batches them itself.
REQUESTS_AT_A_TIME = 8


class Source(Protocol):
    """A source of the values of tokens: a server, or an engine in this process.

    `values` raises an AnswerError or a ServerError where there are none; `values_of_all` yields the
    number of each request with its values or AnswerError, as answers arrive; `tokenize` returns the
    engine's own token ids, or None.
    """

    @property
    def api(self) -> LogprobsAPI: ...

    def connected(self) -> AbstractContextManager: ...

    def values(self, prompts: Sequence[Prompt], num_likeliest: int = 0) -> list[TokenValues]: ...

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]: ...

    def tokenize(self, text: str) -> list[int] | None: ...


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
        identity: its values of the test prompts; known after `check`.
    """

    gives_logits = False
    num_embeddings = None
    by_blocks = False
    identity: Identity

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

    def measure_probe(self) -> float:
        """Return the mean nll of the probe text in nats per token, up to the server's limit."""
        return float(self.identity.nll.mean())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the model and keep connections open."""
        with self.lock, self.source.connected():
            yield

    def check(self) -> None:
        """Test the model, unless it is the model that was tested before.

        The prompts are as long as the probe text, or half as long until the server accepts them.
        """
        if hasattr(self, "identity") and self.identity.is_of(self.source):
            return
        length = PROBE_TOKENS
        if self.limit.readable is not None:
            length = min(length, self.limit.readable + 1)  # the last token may be forced
        while True:
            ids = probe_text(self.vocabulary_size, length)
            try:
                self.identity = try_source(self.source, self.tokenizer, ids)
                return
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

    def tokenize(self, text: str) -> list[int] | None:
        return self.source.tokenize(text)

    def check_same(self) -> None:
        """Check that the server still runs the same model."""
        if not self.identity.is_of(self.source):
            raise changed_model(self.description)

    def signature_fields(self) -> dict[str, object]:
        """Return the known settings that scores of given tokens depend on."""
        revision = f"measured({self.measure_probe():.3f})"
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {"model": self.name, "revision": revision, **dtype, "engine": self.engine}


def differ(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values (N,) in nats differ by more than rounding."""
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


# --- what a source is tested for ------------------------------------------------------------------


class Refusal(ValueError):
    """A server's answers to the test prompts are inconsistent."""


def try_source(source: Source, tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> Identity:
    """Test a source with random prompts of at most `len(ids)` tokens, the forced one included.

    Raises:
        AnswerError: an answer has an invalid format.
        Refusal: values are impossible, at wrong tokens, after a start token that was not sent, or
            different in a second request.
        ServerError: there is no answer.
    """
    ordinary = np.array(
        sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    )

    def draw(length: int, seed: int | None = None) -> list[int]:
        return np.random.default_rng(seed).choice(ordinary, length).tolist()

    probe = Prompt(ids[:-1], ids[-1]) if source.api.forces else Prompt(ids)
    nll = source.values([probe])[0].nll
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

    # of a replaced token, the first value to change is its own
    place = len(probe.ids) // 2
    others = [
        probe._replace(ids=[*probe.ids[:place], other, *probe.ids[place + 1 :]])
        for other in draw(REPLACEMENTS, seed=5)
    ]
    moved = [np.flatnonzero(np.abs(of.nll - nll) > MOST_SPREAD) for of in source.values(others)]
    first = min((int(changed[0]) for changed in moved if len(changed)), default=place - 1)
    if first != place - 1:
        raise Refusal(
            f"after replacing token {place} of a prompt, the first value to change was that of "
            f"token {first + 1}: its values are at the wrong tokens."
        )

    longest = len(ids) - 1  # such a prompt has room for an answer
    start_id = tokenizer.bos_token_id
    if start_id is not None:
        short = draw(min(longest, CANARY_LENGTH) - 1, seed=4)
        bare, after = source.values([Prompt(short), Prompt([start_id, *short])])
        if np.allclose(bare.nll, after.nll[1:], rtol=0, atol=EXACTLY):
            raise Refusal(
                f"{len(short)} tokens have the same values with and without a start token (id "
                f"{start_id}) before them: it adds one itself, even to windows in the middle of a "
                "text. Disable that."
            )

    # values must not depend on earlier requests or other prompts; unseeded, as it may have a cache
    fresh, half = draw(longest), longest // 2
    alone = source.values([Prompt(fresh)])[0].nll
    again = source.values([Prompt(fresh[:half] + draw(longest - half)), Prompt(fresh)])
    for size, values in zip((half - 1, longest - 1), again):
        if differ(values.nll[:size], alone[:size]):
            place = int(np.nanargmax(np.abs(values.nll[:size] - alone[:size])))
            raise Refusal(
                f"the values of the same tokens differ in a second request: token {place + 1} "
                f"{-alone[place]:.4f} and then {-values.nll[place]:.4f}. Disable prefix caching "
                "(vLLM: --no-enable-prefix-caching; SGLang: --disable-radix-cache)."
            )
    canary = Prompt(draw(min(longest, CANARY_LENGTH), seed=1))
    return Identity(probe, nll, canary, source.values([canary])[0].nll)


# --- a live vLLM ----------------------------------------------------------------------------------


def is_vllm(model: object) -> bool:
    """Return whether a live model is a `vllm.LLM`."""
    return hasattr(model, "llm_engine") and hasattr(model, "generate")


def adopt_vllm(
    engine: Any, tokenizer: PreTrainedTokenizerBase, argument: str, tokenizer_argument: str
) -> ServedModel:
    """Adopt a live `vllm.LLM`; the names of the arguments are for errors."""
    import vllm

    check_tokenizer(tokenizer, tokenizer_argument)
    config = engine.llm_engine.model_config
    if config.runner_type != "generate":
        raise ArgumentError(
            argument,
            "be a causal language model",
            got=f"a vllm.LLM with runner={config.runner_type!r}",
        )
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
    """A live `vllm.LLM` with the interface of its server.

    Its outputs are converted to the server's format, so that the same checks apply.
    https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm/
    """

    api: LogprobsAPI = VLLM()

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.lock = shared_lock(engine)  # answers to two callers would get mixed up

    def connected(self) -> AbstractContextManager:
        return self.lock

    def values(self, prompts: Sequence[Prompt], num_likeliest: int = 0) -> list[TokenValues]:
        return self._read(self._generate(prompts, num_likeliest), prompts, num_likeliest)

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        numbered = enumerate(requests)
        while some := list(islice(numbered, REQUESTS_AT_A_TIME)):
            together = [prompt for _, prompts in some for prompt in prompts]
            outputs = iter(self._generate(together, num_likeliest))
            for number, prompts in some:
                try:
                    own = list(islice(outputs, len(prompts)))
                    yield number, self._read(own, prompts, num_likeliest)
                except AnswerError as error:
                    yield number, error

    def tokenize(self, text: str) -> list[int] | None:
        if self.engine.llm_engine.model_config.skip_tokenizer_init:
            return None
        return self.engine.get_tokenizer()(text, add_special_tokens=False)["input_ids"]

    def _generate(self, prompts: Sequence[Prompt], num_likeliest: int) -> list:
        """Run the engine on prompts, with sampling that leaves distributions unchanged."""
        from vllm import SamplingParams

        settings = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1, "detokenize": False}
        settings |= {"prompt_logprobs": num_likeliest}
        params = []
        for prompt in prompts:
            forced = {"allowed_token_ids": [prompt.forced], "logprobs": num_likeliest}
            params.append(
                SamplingParams(**settings, **(forced if prompt.forced is not None else {}))
            )
        ids = [{"prompt_token_ids": prompt.ids} for prompt in prompts]
        return self.engine.generate(ids, params, use_tqdm=False)

    def _read(
        self, outputs: Sequence[Any], prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        """Read answers as values of prompts that include the forced token, which thus has a rank."""
        choices, whole = [], []
        for number, (output, prompt) in enumerate(zip(outputs, prompts)):
            entries, ids = list(output.prompt_logprobs or ()), prompt.ids
            if prompt.forced is not None:
                entries, ids = [*entries, *output.outputs[0].logprobs], [*ids, prompt.forced]
            named = [
                entry and {str(t): {"logprob": f.logprob, "rank": f.rank} for t, f in entry.items()}
                for entry in entries
            ]
            choices.append({"index": number, "prompt_logprobs": named})
            whole.append(Prompt(ids))
        return self.api.read({"choices": choices}, whole, num_likeliest)
