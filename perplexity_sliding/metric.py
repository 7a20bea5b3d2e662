"""The metric for `evaluate`: its documentation, and texts that are added in batches."""

import re
import threading
from collections.abc import Iterable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import datasets
import evaluate
import torch
from transformers import PreTrainedTokenizerBase

from . import CITATION
from .api import compute, compute_with
from .arguments import check_texts, describe_arguments
from .engines.sources import ModelSource, OpenModels, check_model_source
from .errors import ArgumentError
from .models.interface import ScoredModel
from .plan.tokenization import Chat
from .protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol
from .results.totals import Totals

_DESCRIPTION = """\
Perplexity of texts of any length under a causal language model.

A window slides over texts that are longer than the model's context, and every token is scored
exactly once, given the preceding tokens of its window. Perplexity is the exponential of the mean
negative log-likelihood per token, in nats. `protocol` reproduces the numbers of other tools, whose
windows, start tokens and averages differ.
"""

_INPUTS_DESCRIPTION = """
Args:
{arguments}

Returns:
    dict of plain Python numbers, in this order; docs/python.md lists the units and further keys:
        perplexity (float): perplexity of all texts together: exp(total_nll / num_tokens), unless
            the protocol aggregates differently.
        perplexity_interval (list of float or None): 95 % confidence interval of `perplexity`; None
            with too little text. perplexity_stderr is its standard error.
        interval_sample (str or None): sampling units of the interval: texts if there are at least
            ten and none of them dominates, or all are too short to be divided; else parts of the
            longer texts.
        interval_scope (str or None): population of the interval: "over texts" of this kind, else
            "within these texts" or "within this text"; other texts may differ by more.
        bits_per_byte, bits_per_character, word_perplexity (float): measures that do not depend on
            the tokenizer. Bytes and characters are those of the scored tokens if the tokenizer
            returns offsets; otherwise unscored tokens count as average ones. Words are counted as
            the protocol's tool does; word_perplexity is None without words.
        bits_per_byte_interval (list of float or None): 95 % confidence interval of `bits_per_byte`.
        signature_short, signature (str): identify the measurement. Quote the short one with the
            number.
        perplexities, mean_perplexity: perplexity of each text and their mean, as in the stock metric.
        total_nll (float): negative log-likelihood in nats.
        num_tokens, num_tokens_per_text, num_texts, num_windows, num_forward_tokens: number of scored
            tokens, in all and in each text; of texts, where joined texts count as one; of windows;
            and of tokens read, which is the cost.
        scored_share (float): share of all tokens that were scored, 0 to 1.
        protocol, max_length, stride, add_start_token, model_name: the settings used, with defaults
            resolved.
        texts_digest (str): digest of the texts in their order.
        probe (float): with `identify` or a `checkpoint`, mean nll of a fixed random text in nats.

    And, on request: token_scores (with `return_token_scores`), word_scores (`words`), comparison
    (`reference`), by_context_length (`context_lengths`), measurements (a list of protocols, windows
    or strides), totals (`return_totals`), num_context_tokens (`contexts`, `score_spans`, chats),
    tool_stderr (the ± that the protocol's tool prints).

Raises:
    TypeError, ValueError: invalid arguments or texts. Nothing is computed, and texts added with
        `add` or `add_batch` are kept.

Examples:
    >>> import evaluate
    >>> metric = evaluate.load("perplexity_sliding.py")
    >>> texts = ["The old man closed the door.", "Door the closed man old the."]
    >>> results = metric.compute(predictions=texts, model_id="demo_model")
    >>> [round(perplexity) for perplexity in results["perplexities"]]
    [18, 2774]

    Every token is scored exactly once, whatever the stride:

    >>> results = metric.compute(predictions=texts, model_id="demo_model", max_length=8, stride=4)
    >>> results["num_tokens"], results["num_windows"]
    (15, 3)
""".replace("{arguments}", describe_arguments())

# Of `compute` as a method: evaluate's combinations pass the arguments that are in it.
_SIGNATURE = signature(compute)
_SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
_SIGNATURE = _SIGNATURE.replace(parameters=[_SELF, *_SIGNATURE.parameters.values()])


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS_DESCRIPTION)
class PerplexitySliding(evaluate.Metric):
    """Sliding-window perplexity as a Hugging Face `evaluate` metric.

    Attributes:
        protocols: the allowed values of `protocol`, with their rows.
        default_protocol: the default value of `protocol`.
    """

    protocols: dict[str, Protocol] = PROTOCOLS
    default_protocol: str = DEFAULT_PROTOCOL
    totals_from_json = staticmethod(Totals.from_json)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if self.num_process > 1:  # each would score its own texts alone
            advice = "Load the metric without it, and pass `distributed=True` to `compute`."
            raise ArgumentError("num_process", "be 1", advice, got=str(self.num_process))
        self._texts: list[str] = []  # added texts
        self._lock = threading.RLock()  # reentrant for callbacks that use this metric
        self._models = OpenModels()

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=CITATION,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Value("string")}),
            reference_urls=["https://huggingface.co/docs/transformers/perplexity"],
        )

    def _build_data_dir(self) -> str:
        # The configuration name may be a model's path: unlike evaluate's, the folder stays in the cache.
        name = re.sub(r"[^\w.-]+", "--", self.config_name)
        folder = Path(self._data_dir_root, self.name, name)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def __len__(self) -> int:
        return len(self._texts)

    def add(
        self,
        *,
        prediction: str | None = None,
        reference: object = None,
        predictions: str | None = None,
    ) -> None:
        """Add one text, and check its type immediately.

        Args:
            prediction: the text. `predictions` is accepted as well, as in `evaluate` itself.
            reference: ignored, as in the stock metric.

        Raises:
            TypeError: the text is not a string.
        """
        text = prediction if predictions is None else predictions
        self.add_batch(predictions=[text])  # type: ignore[list-item]  # checked there

    def add_batch(
        self, *, predictions: Iterable[str] | None = None, references: object = None
    ) -> None:
        """Add texts, and check their types immediately.

        Args:
            predictions: the texts.
            references: ignored, as in the stock metric; other metrics of a combination read them.

        Raises:
            TypeError: `predictions` is not a list of strings.
            ValueError: the list is empty.
        """
        texts = check_texts(predictions)  # type: ignore[arg-type]  # None is refused there
        with self._lock:
            self._texts += texts

    def compute(
        self,
        *,
        predictions: Iterable[str] | Sequence[Chat] | None = None,
        references: object = None,
        **kwargs: object,
    ) -> dict:
        """Compute the perplexity of the added texts followed by `predictions`.

        If it fails, added texts are kept for the next call.

        Args:
            predictions: the texts; or chats, lists of messages, all in one call.
            references: ignored, as in the stock metric; other metrics of a combination read them.

        Raises:
            TypeError, ValueError: an argument is unknown or invalid, or the model or its tokenizer
                cannot be loaded or used.
        """
        with self._lock:
            texts: Any = predictions
            if self._texts:
                given: Any = () if predictions is None else predictions
                more = given if isinstance(given, list | tuple) else check_texts(given)
                texts = [*self._texts, *more]
            # A callback that uses this metric must not see the texts of this call.
            added, self._texts = self._texts, []
            try:
                # evaluate's own `compute` writes the texts to a file and synchronises processes
                return self._compute(texts, **kwargs)
            except BaseException:
                self._texts = [*added, *self._texts]
                raise

    def _compute(self, predictions: Sequence[str] | Sequence[Chat], **kwargs: object) -> dict:
        if kwargs.get("model_id") is None and kwargs.get("model") is None:
            kwargs["model_id"] = None if self.config_name == "default" else self.config_name
        return compute_with(self._models, {"predictions": predictions} | kwargs)

    _compute.__signature__ = _SIGNATURE  # type: ignore[attr-defined]

    def open_model(
        self,
        model_id: str | None = None,
        *,
        model: torch.nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        model_kwargs: dict | None = None,
    ) -> ScoredModel:
        """Open a model with arguments of `compute`, to inspect it or to reuse it in several calls.

        Returns:
            an object with `model` and `tokenizer`, which `compute` accepts, and with `name`,
            `revision`, `device`, `num_embeddings` and `limit`, whose `length` is the model's limit
            in tokens (None without a stated limit).

        Raises:
            TypeError, ValueError: as in `compute`.
        """
        named = model_id, model, tokenizer, device, dtype, model_kwargs
        return check_model_source(ModelSource(*named)).open()
