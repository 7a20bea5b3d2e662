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
from ..models.identity import check_tokenizer, model_name
from ..plan.tokenization import shared_lock
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
        forced = ({"allowed_token_ids": [p.forced], "logprobs": num_likeliest} for p in prompts)
        params = [
            SamplingParams(**settings, **({} if prompt.forced is None else of_answer))
            for prompt, of_answer in zip(prompts, forced)
        ]
        ids = [{"prompt_token_ids": prompt.ids} for prompt in prompts]
        return self.engine.generate(ids, params, use_tqdm=False)

    def _read(
        self, outputs: Sequence[Any], prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        """Read answers as values of prompts that include the forced token, which thus has a rank."""
        choices, whole = [], []
        for number, (output, prompt) in enumerate(zip(outputs, prompts)):
            entries, ids = output.prompt_logprobs, prompt.ids
            if entries is not None and prompt.forced is not None:
                entries, ids = [*entries, *output.outputs[0].logprobs], [*ids, prompt.forced]
            named = entries and [
                entry and {str(t): {"logprob": f.logprob, "rank": f.rank} for t, f in entry.items()}
                for entry in entries
            ]
            choices.append({"index": number, "prompt_logprobs": named})
            whole.append(Prompt(ids))
        return self.api.read({"choices": choices}, whole, num_likeliest)
