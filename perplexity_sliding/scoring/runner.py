"""Plan the distinct forward passes of measurements, and run them.

Equal texts are one stream of tokens, and windows that begin at the same token are one pass.  Passes
that are not in the checkpoint are shared out between processes and scored, with progress.
"""

import gc
import math
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import xxhash
from tqdm.auto import tqdm

from ..digests import digest_of
from ..engines.served import ServedModel
from ..errors import ArgumentError, Wording
from ..models.interface import ScoredModel, describe_measurement
from ..plan.measurement import Columns, Measurement
from ..plan.windows import (
    Pass,
    Place,
    PlannedWindow,
    SharedPrefix,
    Window,
    find_shared_prefixes,
    merge_windows,
)
from .checkpoint import Checkpoint
from .distributed import Processes
from .measures import Measure
from .passes import PassError, Row, Scored, Scorer, ServedScorer

# A shared context must save at least this many tokens to be worth the test.
LEAST_SAVING = 256


class Stream(NamedTuple):
    """Tokens that passes read; equal ones of all measurements are one."""

    ids: np.ndarray
    text: int  # position of the first text that has them
    digest: str  # of the ids
    num_context: int  # tokens at its head that are read and not scored


class Work:
    """The forward passes over streams of tokens that measurements need.

    Attributes:
        lengths: tokens that each pass reads.
        shared: passes with a common prefix, which is read once.
        costs: tokens that each pass reads; shared tokens count for the first pass.
        shown: for each pass, the slices of scores of the first measurement, which progress reports.
    """

    def __init__(self, measurements: Sequence[Measurement], prefixes_agree: bool = True) -> None:
        self.measurements = measurements
        self.prefixes_agree = prefixes_agree
        self.streams: list[Stream] = []
        self._stream_numbers = self._number_streams()
        self.passes, self._places = self._merge()
        self.lengths = self.costs = [pass_.num_inputs for pass_ in self.passes]
        self.shared: list[SharedPrefix] = []
        self.shown: list[list[slice]] = [[] for _ in self.passes]
        of_windows, _ = next(self._placed())
        for window, place in chain.from_iterable(of_windows):
            part = slice(place.offset, place.offset + window.num_targets)
            self.shown[place.number].append(part)

    def _number_streams(self) -> list[list[int]]:
        numbers: dict[str, int] = {}
        number_of: dict[int, int] = {}  # measurements share most streams: each is hashed once
        for measurement in self.measurements:
            for position, stream in enumerate(measurement.streams):
                if id(stream) in number_of:
                    continue
                digest = xxhash.xxh3_128(np.ascontiguousarray(stream.ids).data).hexdigest()
                if digest not in numbers:
                    numbers[digest] = len(self.streams)
                    context = 0 if stream.part is None else stream.part.targets[0][0]
                    self.streams.append(Stream(stream.ids, position, digest, context))
                number_of[id(stream)] = numbers[digest]
        return [[number_of[id(stream)] for stream in m.streams] for m in self.measurements]

    def _merge(self) -> tuple[list[Pass], list[Place]]:
        planned = chain.from_iterable(map(self._planned, range(len(self.measurements))))
        return merge_windows(list(planned), self.prefixes_agree)

    def _planned(self, number: int) -> Iterator[PlannedWindow]:
        measurement = self.measurements[number]
        for of_texts in (measurement.windows, measurement.borders):
            for stream, windows in zip(self._stream_numbers[number], of_texts):
                yield from measurement.plan.over(stream, windows)

    def share_prefixes(self, model: ScoredModel) -> None:
        """Read contexts that passes share once, if that leaves the scores unchanged."""
        if not any(stream.num_context for stream in self.streams):
            return
        shared = find_shared_prefixes(self.passes, self._prefix, LEAST_SAVING)
        if not shared:
            return
        # Tested with the most and the fewest tokens after a prefix, and with the longest prefix: one
        # token may run through other kernels than several, and a cache may keep the last keys alone.
        cuts = [(group.length, number) for group in shared for number in group.numbers]
        by_rest = sorted(cuts, key=lambda cut: (self.lengths[cut[1]] - cut[0], cut[0]))
        for length, number in dict.fromkeys((by_rest[-1], by_rest[0], max(cuts))):
            inputs = self.row(number).inputs
            if not model.shares_prefixes(inputs[:length], inputs[length:]):
                return
        self.shared = shared
        self.costs = costs_of(self.passes, shared)

    def _prefix(self, pass_: Pass) -> list[int]:
        """List the context tokens of a pass, except for the last one, whose row is scored."""
        end = min(self.streams[pass_.stream].num_context, pass_.targets[0][0]) - 1
        prefix = self.streams[pass_.stream].ids[pass_.begin : max(pass_.begin, end)].tolist()
        return [pass_.start_token, *prefix] if prefix and pass_.start_token is not None else prefix

    def share(self, processes: Processes) -> list[int]:
        return processes.share(self.costs)

    def named(self, number: int) -> tuple[str, Pass]:
        """Return the hash of the tokens that a pass reads, and the pass."""
        return self.streams[self.passes[number].stream].digest, self.passes[number]

    def row(self, number: int) -> Row:
        pass_ = self.passes[number]
        ids = self.streams[pass_.stream].ids
        inputs = ids[pass_.begin : pass_.end - 1]
        if pass_.start_token is not None:
            inputs = np.concatenate([[pass_.start_token], inputs])
        ranges = [np.arange(first, end) for first, end in pass_.targets]
        targets = ranges[0] if len(ranges) == 1 else np.concatenate(ranges)
        # The target after the last token does not exist; its row is read for the word's end.
        target_ids = ids.take(targets, mode="clip")
        first = pass_.begin + (pass_.start_token is None)  # predicted from the first row
        return Row(inputs, targets - first, target_ids)

    def by_measurement(
        self, scores: Sequence[Columns]
    ) -> Iterator[tuple[Measurement, list[list[Columns]], list[list[Columns]], int]]:
        """Yield each measurement, scores of its windows and of its borders, and its cost alone."""
        for number, (of_windows, of_borders) in enumerate(self._placed()):
            cost = sum(self.costs)
            if len(self.measurements) > 1:
                passes = merge_windows(list(self._planned(number)), self.prefixes_agree)[0]
                shared = self.shared and find_shared_prefixes(passes, self._prefix, LEAST_SAVING)
                cost = sum(costs_of(passes, shared))
            windows, borders = (cut_texts(placed, scores) for placed in (of_windows, of_borders))
            yield self.measurements[number], windows, borders, cost

    def _placed(self) -> Iterator[list[list[list[tuple[Window, Place]]]]]:
        """Yield for each measurement its windows, then its borders, text by text, with places."""
        places = iter(self._places)
        for measurement in self.measurements:
            yield [
                [list(zip(windows, places)) for windows in of_texts]
                for of_texts in (measurement.windows, measurement.borders)
            ]


def costs_of(passes: Sequence[Pass], shared: Sequence[SharedPrefix]) -> list[int]:
    """Count the tokens that each pass reads; a shared prefix counts for its first pass."""
    costs = [pass_.num_inputs for pass_ in passes]
    for group in shared:
        for number in group.numbers[1:]:
            costs[number] -= group.length
    return costs


def cut_texts(
    placed: Sequence[Sequence[tuple[Window, Place]]], scores: Sequence[Columns]
) -> list[list[Columns]]:
    def cut(window: Window, place: Place) -> Columns:
        columns, end = scores[place.number], place.offset + window.num_targets
        if window.num_targets == len(columns["nll"]):
            return columns
        return {name: values[place.offset : end] for name, values in columns.items()}

    return [[cut(*one) for one in of_text] for of_text in placed]


def prepare_model(model: ScoredModel, measurements: Sequence[Measurement]) -> None:
    """Get a model ready for the longest window, and refuse token ids without an embedding or a logit."""
    model.prepare(max(measurement.longest_pass for measurement in measurements))
    size = min(model.num_embeddings or model.vocabulary_size, model.vocabulary_size)
    for measurement in measurements:
        largest = [int(stream.ids.max(initial=0)) for stream in measurement.streams]
        highest = max(measurement.plan.start_id or 0, *largest)
        if highest >= size:
            raise ArgumentError(
                "tokenizer",
                f"return token ids below {size}, the size of the model's vocabulary",
                got=f"{highest}",
                advice="It belongs to another model.",
            )


# --- running them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Progress of a run, which `callback` is called with after every batch.

    Attributes:
        done, total: tokens read so far and in total, in this process.
        perplexity: of the tokens scored so far in the first measurement; NaN before its first.
    """

    done: int
    total: int
    perplexity: float


@dataclass(frozen=True)
class Session:
    """Settings of how a call runs; `batch_size` is that of windows of the longest length."""

    batch_size: int
    checkpoint: Checkpoint | None
    processes: Processes
    callback: Callable[[Progress], None] | None

    def score(
        self,
        models: Sequence[ScoredModel],
        measurements: Sequence[Measurement],
        measures: Sequence[Measure],
    ) -> tuple[Work, list[Columns]]:
        """Plan the passes of measurements, and score them under a prepared model, or it and another."""
        with without_collecting():
            work = Work(measurements, all(model.prefixes_agree for model in models))
        if len(models) == 1:
            work.share_prefixes(models[0])
        batch_tokens = self.batch_size * max(m.plan.max_length for m in measurements)
        scorer: Scorer | ServedScorer
        if isinstance(models[0], ServedModel):
            scorer = ServedScorer(models[0], measures, self.batch_size, batch_tokens)
        else:
            scorer = Scorer(models, measures, batch_tokens)
        return work, self.run(scorer, work)

    def run(self, scorer: Any, work: Work, key_prefix: str = "") -> list[Columns]:
        """Return the scores of every pass, in all processes; `key_prefix` is for `Checkpoint.use`."""

        def describe() -> str:
            lines = [
                describe_measurement(model, measurement.signature_fields(), False)["signature"]
                for model in scorer.models
                for measurement in work.measurements
            ]
            # A chat template may write another text in each process, such as the time.
            passes = digest_of([[stream.digest for stream in work.streams], work.passes])
            return repr((key_prefix, lines, [measure.key for measure in scorer.measures], passes))

        self.processes.agree(
            describe,
            "model, settings and tokens",
            "Pass the same models, tokenizers, chat templates and arguments to every process.",
        )
        share = work.share(self.processes)
        scores: dict[int, Columns] = {}
        if self.checkpoint is not None:
            self.checkpoint.use(scorer.models, scorer.measures, key_prefix)
            scores = self.checkpoint.load({number: work.named(number) for number in share})
        try:
            self._score_share(scorer, work, share, scores)
        except Exception as error:
            self.processes.announce(error)
            raise
        gathered = dict(chain.from_iterable(self.processes.exchange(list(scores.items()))))
        return [gathered[number] for number in range(len(work.passes))]

    def _score_share(
        self, scorer: Any, work: Work, share: Sequence[int], scores: dict[int, Columns]
    ) -> None:
        total = sum(work.costs[number] for number in share)
        done, nll_sum, num_scored = 0, 0.0, 0

        def count(numbers: Sequence[int]) -> float:
            nonlocal done, nll_sum, num_scored
            done += sum(work.costs[number] for number in numbers)
            averaged = work.measurements[0].nlls_to_average
            nlls = [averaged(scores[n])[part] for n in numbers for part in work.shown[n]]
            if nlls:
                together = np.concatenate(nlls)
                nll_sum += float(together.sum(dtype=np.float64))
                num_scored += len(together)
            with np.errstate(over="ignore"):
                return float(np.exp(nll_sum / num_scored)) if num_scored else math.nan

        finished = set(scores)
        if finished:
            count(list(finished))
            if resumed := getattr(self.callback, "resumed", None):
                resumed(done, total)
        evaluate = sys.modules.get("evaluate")  # who has not imported it has not disabled its bars
        off = evaluate is not None and not evaluate.logging.is_progress_bar_enabled()
        off = off or bool(self.processes.rank) or self.callback is not None or not sys.stderr
        settings = {"total": total, "initial": done, "unit": "token", "desc": "Scoring"}
        # A single pass has no progress; disable=None: off without a terminal.
        bar: Any = None if off or len(share) < 2 else tqdm(**settings, disable=None)
        with bar if bar is not None else nullcontext():
            for numbers, batch in score_passes(scorer, work, share, finished):
                check_scores(work, numbers, batch)
                scores.update(zip(numbers, batch))
                if self.checkpoint is not None:
                    self.checkpoint.save(zip(map(work.named, numbers), batch))
                if bar is None and self.callback is None:
                    continue
                before, perplexity = done, count(numbers)
                if self.callback is not None:
                    self.callback(Progress(done, total, perplexity))
                else:
                    bar.set_postfix(perplexity=f"{perplexity:.2f}", refresh=False)
                    bar.update(done - before)


def score_passes(scorer: Any, work: Work, share: Sequence[int], finished: Set[int]) -> Scored:
    """Score the other passes of a share, those that have a context in common first."""
    alone, streams = set(share), []
    for group in work.shared:
        numbers = [number for number in group.numbers if number in alone]
        alone.difference_update(numbers)
        streams.append(scorer.score(work.row, numbers, work.lengths, finished, group.length))
    numbers = [number for number in share if number in alone]
    streams.append(scorer.score(work.row, numbers, work.lengths, finished))
    try:
        yield from chain.from_iterable(streams)
    except PassError as error:
        pass_ = work.passes[error.number]
        raise ValueError(
            f"{error} It is the window over tokens {pass_.begin} to {pass_.end - 1} of the "
            f"text at position {work.streams[pass_.stream].text}."
        ) from None


def check_scores(work: Work, numbers: Sequence[int], batch: Sequence[Columns]) -> None:
    """Refuse NaN, naming the model and the text; infinity is a result."""
    for name, who in (("nll", "model"), ("reference_nll", "reference model")):
        for number, columns in zip(numbers, batch):
            if name in columns and np.isnan(columns[name]).any():
                pass_ = work.passes[number]
                raise ValueError(
                    Wording(
                        f"The {who} gave NaN for the text at position "
                        f"{work.streams[pass_.stream].text}, in its tokens {pass_.targets[0][0]} to "
                        f"{pass_.end - 1}. Its weights contain NaN, or it overflows in its dtype: load "
                        "it with `dtype='float32'`."
                    )
                )


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pause the garbage collector while millions of plans and results are created without garbage.

    What was made meanwhile is old to it afterwards: else it would go through all of that at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # else other code froze objects, which must stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
