"""A live `vllm.LLM` in this process, which returns the log-probabilities of tokens.

Its outputs are converted to the format of vLLM's server, so that the same checks apply.
https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm/
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError
from ..models.digest import model_name
from ..plan.tokenization import shared_lock
from ..plan.tokenizer_digest import check_tokenizer
from ..plan.windows import ContextLimit
from .served import ServedModel
from .server_apis import VLLM, AnswerError, LogprobsAPI, Prompt, TokenValues

# Requests per call of the engine, which batches them itself.
REQUESTS_AT_A_TIME = 8


def is_vllm(model: object) -> bool:
    """Return whether a live model is a `vllm.LLM`."""
    return hasattr(model, "llm_engine") and hasattr(model, "generate")


def adopt_vllm(
    engine: Any,
    tokenizer: PreTrainedTokenizerBase,
    argument: str = "model",
    tokenizer_argument: str = "tokenizer",
) -> ServedModel:
    """Adopt a live `vllm.LLM`.

    Args:
        argument, tokenizer_argument: names of the arguments, for errors.

    Raises:
        ValueError: it is not a generative model, or the tokenizer is invalid.
    """
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
    """A live `vllm.LLM` with the interface of its server."""

    api: LogprobsAPI = VLLM()

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.lock = shared_lock(engine)  # answers to two callers would get mixed up

    def connected(self) -> AbstractContextManager:
        """Lock the engine within the context."""
        return self.lock

    def values(
        self, prompts: Sequence[Prompt], num_likeliest: int = 0, **sampling: float
    ) -> list[TokenValues]:
        """Request the values of prompts.

        Raises:
            AnswerError: the answer does not contain them.
        """
        outputs = self._generate(prompts, num_likeliest, {"detokenize": True} | sampling)
        return self._read(outputs, prompts, num_likeliest)

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Run several requests at a time; yield (number, values or error)."""
        numbered = enumerate(requests)
        while some := list(islice(numbered, REQUESTS_AT_A_TIME)):
            together = [prompt for _, prompts in some for prompt in prompts]
            outputs = iter(self._generate(together, num_likeliest, {"detokenize": False}))
            for number, prompts in some:
                try:
                    own = list(islice(outputs, len(prompts)))
                    yield number, self._read(own, prompts, num_likeliest)
                except AnswerError as error:
                    yield number, error

    def generating(self) -> "EngineSource":
        """Return the engine itself, which forces a token instead of generating one."""
        return self

    def tokenize(self, text: str) -> list[int] | None:
        """Return the token ids of the engine's own tokenizer; None if it has none."""
        if self.engine.llm_engine.model_config.skip_tokenizer_init:
            return None
        return self.engine.get_tokenizer()(text, add_special_tokens=False)["input_ids"]

    def _generate(self, prompts: Sequence[Prompt], num_likeliest: int, settings: dict) -> list:
        """Run the engine on prompts, with sampling that leaves distributions unchanged."""
        from vllm import SamplingParams

        settings = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1} | settings
        settings |= {"prompt_logprobs": num_likeliest}
        forced = ({"allowed_token_ids": [p.forced], "logprobs": num_likeliest} for p in prompts)
        params = [
            SamplingParams(**settings, **({} if prompt.forced is None else of_answer))
            for prompt, of_answer in zip(prompts, forced)
        ]
        ids = [{"prompt_token_ids": prompt.ids} for prompt in prompts]
        return self.engine.generate(ids, params, use_tqdm=False)

    def _read(
        self, outputs: Sequence[object], prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        """Read answers as values of prompts that include the forced token, which thus has a rank."""
        whole = [Prompt([p.ids[0], *p.targets]) for p in prompts]
        choices = [
            {"index": number, "prompt_logprobs": entries_of(output, prompt)}
            for number, (output, prompt) in enumerate(zip(outputs, prompts))
        ]
        return self.api.read({"choices": choices}, whole, num_likeliest)


def entries_of(output: Any, prompt: Prompt) -> list[dict | None] | None:
    """Return the engine's values of each token of a prompt, and of the forced one."""
    entries = output.prompt_logprobs
    if entries is not None and prompt.forced is not None:
        entries = [*entries, *output.outputs[0].logprobs]
    return entries and [
        entry and {str(token): as_dict(found) for token, found in entry.items()}
        for entry in entries
    ]


def as_dict(found: Any) -> dict:
    return {"logprob": found.logprob, "rank": found.rank, "decoded_token": found.decoded_token}
