"""Run the forward passes: those not in the checkpoint, shared out between processes, with progress."""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import evaluate
import numpy as np

from .checkpoint import Checkpoint
from .distributed import Processes
from .identity import describe_all
from .language_model import LanguageModel
from .measurement import Measurement
from .measures import Measure
from .results import exp
from .scoring import Columns, Scorer
from .windows import Pass
from .work import Work, plan_work


@dataclass(frozen=True)
class Progress:
    """How far a run has come: what `callback` gets after every batch.

    Attributes:
        done, total: tokens that went and that have to go through the model, in this process; where
            a reference stores its states in a file first, through both, one after the other.
        perplexity: of the tokens scored so far, longest windows first; NaN before there is one.
    """

    done: int
    total: int
    perplexity: float


class RunningEstimate:
    """Perplexity of the tokens scored so far, and how many tokens went through the model."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.nll_sum, self.num_scored = 0.0, 0

    def add(self, nlls: Sequence[np.ndarray], cost: int) -> None:
        """Count a pass: the nlls in it that are part of the result, and the tokens it reads."""
        self.nll_sum += sum(float(nll.sum(dtype=np.float64)) for nll in nlls)
        self.num_scored += sum(map(len, nlls))
        self.done += cost

    @property
    def perplexity(self) -> float:
        return exp(self.nll_sum / self.num_scored) if self.num_scored else math.nan


@dataclass(frozen=True)
class Session:
    """How a call runs: batches, memory, checkpoint, processes, progress.

    Attributes:
        batch_size: windows of the longest length in one forward pass.
        logits_memory: bytes that logits and the losses over them may take.
        checkpoint, processes, callback: see `Runner`.
    """

    batch_size: int
    logits_memory: int
    checkpoint: Checkpoint | None
    processes: Processes
    callback: Callable[[Progress], None] | None

    def after(self, num_tokens: int) -> "Session":
        """The same, with progress that goes on where `num_tokens` tokens have been read already."""
        if self.callback is None:
            return self

        def callback(progress: Progress) -> None:
            done, total = progress.done + num_tokens, progress.total + num_tokens
            self.callback(Progress(done, total, progress.perplexity))

        return replace(self, callback=callback)

    def score(
        self,
        models: Sequence[LanguageModel],
        measurements: Sequence[Measurement],
        measures: Sequence[Measure],
        num_shown: int | None = None,
    ) -> tuple[Work, list[Columns]]:
        """Plan the passes of measurements, and score them under a model, or it and its reference.

        Args:
            num_shown: measurements, from the first one on, whose perplexity the callback is told.
        """
        work = plan_work(models, measurements, num_shown)
        scorer = Scorer(models, measures, self.batch_size * work.max_length, self.logits_memory)
        return work, self.run(scorer, work, models, measures)

    def run(
        self,
        scorer: Scorer,
        work: Work,
        models: Sequence[LanguageModel],
        measures: Sequence[Measure],
        manner: str = "",
    ) -> list[Columns]:
        """Score the passes of a work that all processes agree on.

        Args:
            manner: tells scores apart that depend on more than what a pass reads.
        """
        self.processes.agree(
            manner + describe_all(models, work.measurements, measures),
            "model and settings",
            "Pass the same models, tokenizers and arguments to every process.",
        )
        if self.checkpoint is not None:
            self.checkpoint.use(models, measures, manner)
        return Runner(scorer, work, self.checkpoint, self.processes, self.callback).run()


@dataclass(frozen=True)
class Runner:
    """Scores the passes of a work.

    Attributes:
        checkpoint: keeps the scores of finished passes, and has those of an earlier run.
        processes: who shares the work.
        callback: called after every batch.
    """

    scorer: Scorer
    work: Work
    checkpoint: Checkpoint | None
    processes: Processes
    callback: Callable[[Progress], None] | None

    def run(self) -> list[Columns]:
        """Return the scores of every pass, in all processes."""
        finished = self._load_finished()
        # Each process may have a checkpoint of its own: the first that has a pass hands it over.
        holders: dict[int, int] = {}
        for rank, numbers in enumerate(self.processes.exchange(list(finished))):
            for number in numbers:
                holders.setdefault(number, rank)
        rank = self.processes.rank
        scores = {number: finished[number] for number in finished if holders[number] == rank}
        try:
            self._score_share(scores, holders.keys())
        except Exception as error:
            self.processes.announce(error)
            raise
        gathered = dict(self.processes.gather(list(scores.items())))
        return [gathered[number] for number in range(len(self.work.passes))]

    def _score_share(self, scores: dict[int, Columns], known: Set[int]) -> None:
        """Score this process's passes into `scores`, longest first, and show how it goes.

        Args:
            known: passes that one of the processes has the scores of.
        """
        share = self.work.share(self.processes)
        costs = [self.work.costs[number] for number in share]
        finished = {place for place, number in enumerate(share) if number in known}
        estimate = RunningEstimate(sum(costs))
        for place in finished:
            estimate.add(self._shown(share[place], scores), costs[place])
        with evaluate.logging.tqdm(
            total=estimate.total,
            initial=estimate.done,
            unit="token",
            desc="Scoring",
            disable=True if self.processes.rank else None,
        ) as bar:
            for places, batch in self._score(share, finished):
                numbers = [share[place] for place in places]
                for number, place, columns in zip(numbers, places, batch):
                    self._check_numbers(columns, self.work.passes[number])
                    scores[number] = columns
                    estimate.add(self._shown(number, scores), costs[place])
                self._save(numbers, batch)
                bar.set_postfix(perplexity=f"{estimate.perplexity:.2f}", refresh=False)
                bar.update(sum(costs[place] for place in places))
                if self.callback is not None:
                    self.callback(Progress(estimate.done, estimate.total, estimate.perplexity))

    def _score(
        self, share: Sequence[int], finished: Container[int]
    ) -> Iterator[tuple[list[int], list[Columns]]]:
        """Score the passes of a share, by place, those that share a context first."""
        place_of = {number: place for place, number in enumerate(share)}
        shared: set[int] = set()
        for group in self.work.shared:
            places = [place_of[number] for number in group.numbers if number in place_of]
            shared.update(places)
            unfinished = [place for place in places if place not in finished]
            if unfinished:
                yield from self.scorer.score_after_prefix(
                    lambda place: self.work.row(share[place]), unfinished, group.length
                )
        yield from self.scorer.score(
            lambda place: self.work.row(share[place]),
            [self.work.lengths[number] for number in share],
            shared.union(finished),
        )

    def _shown(self, number: int, scores: Mapping[int, Columns]) -> list[np.ndarray]:
        """The nlls of a pass that are part of the result, if this process has them."""
        if number not in scores:
            return []
        return [scores[number]["nll"][part] for part in self.work.shown[number]]

    def _load_finished(self) -> dict[int, Columns]:
        """Load the scores that an earlier run left in this process's checkpoint, by pass."""
        if self.checkpoint is None:
            return {}
        digests = [stream.digest for stream in self.work.streams]
        return self.checkpoint.load([(digests[pass_.stream], pass_) for pass_ in self.work.passes])

    def _save(self, numbers: Sequence[int], batch: Sequence[Columns]) -> None:
        if self.checkpoint is None:
            return
        passes = [self.work.passes[number] for number in numbers]
        self.checkpoint.save(
            (self.work.streams[pass_.stream].digest, pass_, columns)
            for pass_, columns in zip(passes, batch)
        )

    def _check_numbers(self, columns: Columns, pass_: Pass) -> None:
        """Refuse NaN, naming the model and the text; infinity is a result."""
        for name, who in (("nll", "model"), ("reference_nll", "reference model")):
            if name not in columns or not np.isnan(columns[name]).any():
                continue
            raise ValueError(
                f"The {who} gave NaN for the text at position {self.work.streams[pass_.stream].text}, "
                f"in its tokens {pass_.targets[0][0]} to {pass_.end - 1}. Its weights hold NaN, or it "
                "overflows in its dtype: load it with dtype='float32'."
            )
