"""Ask the metric: shard by shard, each file on its own, or several protocols or strides."""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from . import sharding
from .options import METRIC, METRIC_ARGUMENTS
from .progress import Progress
from .reading import Text

REFUSALS = (ValueError, TypeError)


@dataclass
class Report:
    """What was measured.

    Attributes:
        texts: for each text that has a row of its own, its name and the metric's result, or the
            `error` that refused it.
        corpus: the result of all texts together; None in a comparison.
        compared: "protocols", "strides" or "models" in a comparison.
        measurements: a result, or an `error`, for each that was compared.
        scored: the texts, where their tokens or words are shown.
        num_empty: empty rows that were left out.
        num_refused: texts that could not be scored.
        cost: seconds, tokens a second and peak memory.
    """

    texts: list[dict] = field(default_factory=list)
    corpus: dict | None = None
    compared: str | None = None
    measurements: list[dict] = field(default_factory=list)
    scored: list[Text] = field(default_factory=list)
    num_empty: int = 0
    num_refused: int = 0
    cost: dict = field(default_factory=dict)

    @property
    def results(self) -> list[dict]:
        """The results that stand for everything, without those that were refused."""
        corpus = [] if self.corpus is None else [self.corpus]
        return corpus + [result for result in self.measurements if "error" not in result]


def load_metric(args: argparse.Namespace):
    """Load the metric, and only now the libraries that it takes seconds to import."""
    import datasets
    import evaluate
    import huggingface_hub
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.disable_progress_bar()
    if not args.hides_progress and sys.stderr.isatty():
        huggingface_hub.utils.enable_progress_bars()  # a download may take long
    return evaluate.load(str(METRIC))


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep evaluate's own bars away: there is one for the whole run."""
    import evaluate

    enabled = evaluate.logging.is_progress_bar_enabled()
    evaluate.logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            evaluate.logging.enable_progress_bar()


def metric_arguments(args: argparse.Namespace) -> dict:
    """The metric's arguments that were given; it knows the defaults of the others."""
    given = {name: getattr(args, name) for name in METRIC_ARGUMENTS}
    given |= {"protocol": args.protocol[0], "stride": args.stride[0]}
    if args.tokenizer is not None:
        given["tokenizer"] = load_tokenizer(args.tokenizer, given.pop("tokenizer_kwargs") or {})
    return {name: value for name, value in given.items() if value is not None}


def load_tokenizer(name: str, settings: dict):
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(name, **settings)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {name} could not be loaded: {error}") from error


def measure(metric, texts: Iterator[Text], args: argparse.Namespace, progress: Progress) -> Report:
    """Score the texts as the command line says."""
    started = time.monotonic()
    with without_bars():
        scoring = Scoring(metric, args, progress)
        if args.reference_model_id:
            report = scoring.compare_models(texts)
        else:
            report = scoring.compare(texts) if args.compares else scoring.score(texts)
    seconds = time.monotonic() - started
    tokens = sum(result["num_forward_tokens"] for result in report.results)
    report.cost = {
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "peak_memory_bytes": peak_memory(),
    }
    return report


class Scoring:
    """One run of the command line."""

    def __init__(self, metric, args: argparse.Namespace, progress: Progress):
        self.metric, self.args, self.progress = metric, args, progress
        self.arguments = metric_arguments(args)
        self.report = Report()
        self.num_bytes = [0, 0]  # with --detokenize: of the prose, and of the originals

    @property
    def joins(self) -> bool:
        """Whether the texts are one text to the metric, so that empty ones count too."""
        if self.args.separator is not None:
            return True
        return self.args.protocol[0] not in sharding.SCORE_EACH

    @property
    def shard_size(self) -> float:
        """Characters in a shard: no limit where all texts are needed at once."""
        args = self.args
        if args.compares or self.joins or args.tokens or args.word_counts:
            return math.inf
        return args.shard_characters

    def score(self, texts: Iterator[Text]) -> Report:
        """Score shard after shard; report on their texts as if they had been scored in one piece."""
        totals = corpus = None
        num_shards = 0
        texts = (self.as_prose(text, self.args.protocol[0]) for text in self.without_empty(texts))
        for shard in sharding.cut_into_shards(texts, self.shard_size):
            self.progress.begin_part(sum(len(text.text) for text in shard), None)
            result = self.score_shard(shard)
            self.progress.end_part()
            if result is not None:
                num_shards += 1
                shard_totals, corpus = result.pop("totals"), result
                totals = shard_totals if totals is None else totals + shard_totals
        self.report.corpus = corpus if num_shards < 2 else self.of_shards(totals)
        self.check_anything()
        return self.report

    def of_shards(self, totals) -> dict:
        """The result of all shards."""
        result = totals.result()
        return with_original_bytes(result, *self.num_bytes) if self.args.detokenize else result

    def check_anything(self) -> None:
        """Refuse to report on nothing."""
        if self.report.corpus is None and not self.report.measurements:
            errors = [row["error"] for row in self.report.texts if "error" in row]
            raise ValueError(errors[0] if errors else "There is no text in it that isn't empty.")

    def without_empty(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Leave empty rows out where each text is scored on its own, and count them."""
        for text in texts:
            if text.text or text.error or self.joins:
                yield text
            else:
                self.report.num_empty += 1

    def score_shard(self, texts: list[Text]) -> dict | None:
        """Score texts together, and each that has a row of its own; None without one to score."""
        good = [text for text in texts if text.error is None]
        self.report.num_refused += len(texts) - len(good)
        if self.args.detokenize:
            self.num_bytes = [a + b for a, b in zip(self.num_bytes, count_bytes(good))]
        if not good:
            self.report.texts += [{"name": text.name, "error": text.error} for text in texts]
            return None
        with kept_scores(self.arguments, good) as arguments:
            callback = {} if self.progress.hidden else {"callback": self.progress}
            more = {"return_token_scores": self.args.tokens, "return_totals": True}
            corpus = self.compute(good, arguments | more | callback)
            if self.args.tokens:
                self.report.scored = good
            places = {id(text): number for number, text in enumerate(good)}
            for text in texts:
                if text.error is not None:
                    self.report.texts.append({"name": text.name, "error": text.error})
                elif text.row is None or self.args.carries_columns:
                    alone = len(good) == 1
                    own = {"num_alternatives": 0} if "num_alternatives" in arguments else {}
                    result = (
                        {name: value for name, value in corpus.items() if name != "totals"}
                        if alone
                        else self.compute([text], for_one(arguments, places[id(text)]) | own)
                    )
                    self.report.texts.append(described(text) | result)
        return corpus

    def compute(self, texts: list[Text], arguments: dict) -> dict:
        """Compute once; texts that were turned into prose are also measured by what they were."""
        predictions = [text.text for text in texts]
        if any(text.context is not None for text in texts):
            arguments = arguments | {"contexts": [text.context or "" for text in texts]}
        if texts[0].original is None:
            return self.metric.compute(predictions=predictions, **arguments)
        count_words = self.protocol(arguments.get("protocol")).count_words
        counts = [count_words(text.original) for text in texts]
        result = self.metric.compute(predictions=predictions, word_counts=counts, **arguments)
        if len(result["perplexities"]) < len(texts):
            return result  # joined, and the bytes of the separators aren't known here
        return with_original_bytes(result, *count_bytes(texts))

    def protocol(self, name: str | None):
        """The metric's protocol of this name, by default its first."""
        return self.metric.protocols[name or next(iter(self.metric.protocols))]

    def as_prose(self, text: Text, protocol: str | None) -> Text:
        """With `--detokenize`, a text as the protocol's tool turns it into prose, if it does."""
        detokenize = self.protocol(protocol).detokenize
        if text.original is None or detokenize is None:
            return text
        return replace(text, text=detokenize(text.original))

    def compare(self, texts: Iterator[Text]) -> Report:
        """Score the texts with several protocols or strides; a refusal becomes its row."""
        what = "stride" if len(self.args.stride) > 1 else "protocol"
        values = getattr(self.args, what)
        if "all" in values:
            values = list(self.metric.protocols)
        good = [text for text in texts if text.error is None and text.text]
        callback = {} if self.progress.hidden else {"callback": self.progress}
        for value in values:
            arguments = self.arguments | {what: value} | callback
            self.progress.begin_part(1, len(values))
            try:
                prose = [self.as_prose(text, arguments.get("protocol")) for text in good]
                row = self.compute(prose, arguments)
            except REFUSALS as error:
                row = {"error": str(error)}
            self.progress.end_part()
            self.report.measurements.append({what: value} | row)
        if all("error" in row for row in self.report.measurements):
            raise ValueError(self.report.measurements[0]["error"])
        self.report.compared = f"{what}s"
        return self.report

    def compare_models(self, texts: Iterator[Text]) -> Report:
        """Score the texts with each model beside the reference; a refusal becomes its row."""
        good = [text for text in texts if text.error is None and text.text]
        with_tokens = self.args.tokens or self.args.plot is not None
        more = {"return_token_scores": with_tokens}
        if not self.progress.hidden:
            more["callback"] = self.progress
        for model_id in self.args.models:
            self.progress.begin_part(1, len(self.args.models))
            row = {"name": os.path.basename(model_id.rstrip("/")) or model_id}
            try:
                row |= self.compute(good, self.arguments | more | {"model_id": model_id})
            except REFUSALS as error:
                row["error"] = str(error)
            self.progress.end_part()
            self.report.measurements.append(row)
        if all("error" in row for row in self.report.measurements):
            raise ValueError(self.report.measurements[0]["error"])
        self.report.num_refused = len(self.report.measurements) - len(self.report.results)
        self.report.compared, self.report.scored = "models", good
        return self.report


def described(text: Text) -> dict:
    """What a text's result is called by, beside its numbers."""
    carried = {"carried": text.carried} if text.carried else {}
    return {"name": text.name} | ({} if text.row is None else {"row": text.row}) | carried


def count_bytes(texts: list[Text]) -> tuple[int, int]:
    """UTF-8 bytes of texts that were turned into prose, and of what they were."""
    return sum(len(t.text.encode()) for t in texts), sum(len(t.original.encode()) for t in texts)


def with_original_bytes(result: dict, num_bytes: int, num_original: int) -> dict:
    per_original_byte = result["bits_per_byte"] * num_bytes / num_original
    return result | {"bits_per_original_byte": per_original_byte}


@contextmanager
def kept_scores(arguments: dict, texts: list[Text]) -> Iterator[dict]:
    """Keep the scores of the corpus in a checkpoint, so that its files need not be scored again."""
    if len(texts) == 1 or "checkpoint" in arguments or "num_alternatives" in arguments:
        yield arguments
        return
    with tempfile.TemporaryDirectory() as folder:
        yield arguments | {"checkpoint": os.path.join(folder, "scores.sqlite")}


def for_one(arguments: dict, number: int) -> dict:
    """The arguments for a single one of the texts."""
    if "word_counts" not in arguments:
        return arguments
    return arguments | {"word_counts": arguments["word_counts"][number : number + 1]}


def peak_memory() -> int | None:
    """The most memory that this process has had, and on an accelerator what torch reserved there."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
