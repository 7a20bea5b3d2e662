"""Sliding-window perplexity of held-out texts during training with transformers' Trainer.

trainer = Trainer(model, args, ..., callbacks=[PerplexityCallback(texts, stride=256)])
"""

import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
import transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .api import compute
from .arguments import check_names, check_texts, read_once
from .errors import ArgumentTypeError
from .plan.parts import separate_chats
from .plan.tokenization import Chat

# Arguments that the Trainer provides.
OF_THE_TRAINER = ("predictions", "model", "model_id", "distributed")


class PerplexityCallback(TrainerCallback):
    """Scores held-out texts at every evaluation of a Trainer, or of trl's, with its live model.

    Every call of the Trainer's `evaluate` scores the current model, once for all data sets.  No model
    is loaded, and the mode and gradients of the live one are restored.  It runs in the precision of
    the training.  Processes share the work if each has the whole model; with a sharded model (FSDP 2,
    DeepSpeed), all of them score all texts.

    The evaluation's metrics gain `eval_perplexity`, its 95 % interval `eval_perplexity_low` and
    `eval_perplexity_high` (omitted with too little text), and `eval_bits_per_byte`.  They are logged
    wherever the Trainer logs, and can be used for `metric_for_best_model`.  Place this callback
    before others that read them, such as `EarlyStoppingCallback`.

    Args:
        texts: as `predictions` of `compute`: texts, or chats, whose answers are scored.
        settings: other arguments of `compute`, such as `stride`, `protocol` or `contexts`;
            `tokenizer` only if the Trainer has none.

    Attributes:
        results: the result of `compute` in the last evaluation; None before the first.

    Raises:
        TypeError: `compute` does not have a setting, the Trainer provides it, or texts are no list of strings.
    """

    def __init__(self, texts: Iterable[str] | Sequence[Chat], **settings: object) -> None:
        check_names(settings)
        if given := [name for name in settings if name in OF_THE_TRAINER]:
            raise ArgumentTypeError(given[0], "be left out: the Trainer provides it")
        predictions: Any = read_once(texts)
        check_texts(separate_chats(predictions)[0], "texts")
        self.texts: list = list(predictions)
        self.settings: dict[str, Any] = {n: read_once(value) for n, value in settings.items()}
        self.results: dict | None = None

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Score the texts once per evaluation, and log the result."""
        evaluation = running_evaluation()
        # The results live in the locals of the Trainer's call, and so are discarded with it.
        scored = {} if evaluation is None else evaluation.setdefault("perplexities", {})
        if self not in scored:
            trainer = None if evaluation is None else evaluation["self"]
            # `trainer.model` may have been replaced after the Trainer passed it to its callbacks.
            model = kwargs["model"] if trainer is None else trainer.model
            tokenizer = kwargs.get("processing_class") or kwargs.get("tokenizer")
            is_sharded = bool(args.fsdp or args.deepspeed)
            precision = torch.bfloat16 if args.bf16 else torch.float16
            with torch.autocast(model.device.type, precision, enabled=args.bf16 or args.fp16):
                settings: dict[str, Any] = {"tokenizer": tokenizer} | self.settings
                is_shared = args.world_size > 1 and not is_sharded
                self.results = scored[self] = compute(
                    self.texts, model=model, distributed=is_shared, **settings
                )
            if trainer is not None:
                trainer.log(summarize(self.results))
        if metrics is not None and self.results is not None:
            metrics.update(summarize(self.results))


def summarize(results: dict) -> dict[str, float]:
    """Return the numbers of a result under the Trainer's names."""
    low, high = results["perplexity_interval"] or (None, None)
    named = {
        "eval_perplexity": results["perplexity"],
        "eval_perplexity_low": low,
        "eval_perplexity_high": high,
        "eval_bits_per_byte": results["bits_per_byte"],
    }
    return {name: value for name, value in named.items() if value is not None}


def running_evaluation() -> dict[str, Any] | None:
    """Return the local variables of the Trainer's `evaluate` that is running, if any.

    The Trainer does not pass itself to its callbacks, but only its `log` reaches TensorBoard and
    others.  With several data sets, `evaluate` calls itself for each: its outermost call is one
    evaluation, which neither the step nor the Trainer identifies.
    """
    frame: FrameType | None = sys._getframe()
    outermost = None
    while frame is not None:
        if frame.f_code is transformers.Trainer.evaluate.__code__:
            outermost = frame.f_locals
        frame = frame.f_back
    return outermost
