"""The forward passes that several measurements need, each once.

Equal texts are one stream of tokens, and windows that begin at the same token are one pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from .arguments import positions
from .distributed import Processes
from .language_model import LanguageModel
from .measurement import Measurement
from .scoring import Columns, Row
from .tokenization import stream_hash
from .windows import (
    Pass,
    Place,
    PlannedWindow,
    SharedPrefix,
    Window,
    find_shared_prefixes,
    merge_windows,
)

# Tokens that reading a common context once must save: fewer do not pay for trying it.
LEAST_SAVING = 256


@dataclass(frozen=True)
class Stream:
    """Tokens that passes read; equal ones of all measurements are one.

    Attributes:
        text: position of the first text that has them.
        digest: hash of the ids.
        num_context: tokens at its head that are read and not scored.
    """

    ids: np.ndarray
    text: int
    digest: str
    num_context: int


class Work:
    """The forward passes that measurements need.

    Args:
        prefixes_agree: whether the model gives a token the same score in shorter and in longer
            passes.
        num_shown: measurements, from the first one on, whose tokens make up the perplexity that a
            callback is told; None for all of them.

    Attributes:
        streams: the tokens to read.
        passes: the passes over them.
        lengths: tokens that each pass reads.
        shared: passes that begin with the same tokens, which are read once.
        costs: tokens that each pass reads, those that are shared in the first of them.
        shown: for each pass, where the scores are whose perplexity a callback is told.
    """

    def __init__(
        self,
        measurements: Sequence[Measurement],
        prefixes_agree: bool = True,
        num_shown: int | None = None,
    ):
        self.measurements = measurements
        self.prefixes_agree = prefixes_agree
        self.streams: list[Stream] = []
        self._stream_numbers = self._number_streams()
        self.passes, self._places = self._merge()
        self.lengths = [self.cost(pass_) for pass_ in self.passes]
        self.costs = self.lengths
        self.shared: list[SharedPrefix] = []
        self.shown = self._find_shown(num_shown)

    def share_prefixes(self, model: LanguageModel) -> None:
        """Read contexts that many passes begin with once, where the scores stay the same."""
        shared = find_shared_prefixes(self.passes, self._prefix, LEAST_SAVING)
        if not shared:
            return
        longest = max(shared, key=lambda group: group.length)
        inputs = self.row(longest.numbers[0]).inputs
        if model.shares_prefixes(inputs[: longest.length], inputs[longest.length :]):
            self.shared = shared
            self.costs = costs_of(self.passes, shared)

    def _prefix(self, pass_: Pass) -> list[int]:
        """What a pass reads of its context, but for the last token: its row is scored."""
        end = min(self.streams[pass_.stream].num_context, pass_.targets[0][0]) - 1
        prefix = self.streams[pass_.stream].ids[pass_.begin : max(pass_.begin, end)].tolist()
        return [pass_.start_token, *prefix] if prefix and pass_.start_token is not None else prefix

    @property
    def max_length(self) -> int:
        """The longest window of the plans."""
        return max(measurement.plan.max_length for measurement in self.measurements)

    def cost(self, pass_: Pass) -> int:
        """Tokens that a pass reads."""
        return pass_.num_inputs

    def share(self, processes: Processes) -> list[int]:
        """Return the passes that fall to this process."""
        return processes.share(self.costs)

    def row(self, number: int) -> Row:
        """Return a pass as the scorer takes it."""
        pass_ = self.passes[number]
        ids = self.streams[pass_.stream].ids
        inputs = ids[pass_.begin : pass_.end - 1]
        lead = 0
        if pass_.start_token is not None:
            inputs = np.concatenate([[pass_.start_token], inputs])
            lead = 1
        targets = np.concatenate([np.arange(first, end) for first, end in pass_.targets])
        # What follows the last token is no token: its row is read for what else could follow.
        target_ids = ids[np.minimum(targets, len(ids) - 1)]
        return Row(inputs, targets - 1 - pass_.begin + lead, target_ids)

    def by_measurement(
        self, scores: Sequence[Columns]
    ) -> Iterator[tuple[Measurement, list[list[Columns]], int]]:
        """Yield each measurement, the scores of the windows of its texts, and its cost alone."""
        for number, (of_windows, _) in enumerate(self._cut(scores)):
            yield self.measurements[number], of_windows, self._cost_alone(number)

    def of_borders(self, scores: Sequence[Columns]) -> Iterator[list[list[Columns]]]:
        """Yield for each measurement the scores of the borders of its texts."""
        for _, of_borders in self._cut(scores):
            yield of_borders

    def _cut(self, scores: Sequence[Columns]) -> Iterator[list[list[list[Columns]]]]:
        """Yield for each measurement the scores of windows, then of borders, text by text."""
        for of_parts in self._placed():
            yield [
                [
                    [
                        cut(scores[place.number], place.offset, window.num_targets)
                        for window, place in of_text
                    ]
                    for of_text in of_texts
                ]
                for of_texts in of_parts
            ]

    def _placed(self) -> Iterator[list[list[list[tuple[Window, Place]]]]]:
        """Yield for each measurement its windows, then its borders, text by text, with places."""
        places = iter(self._places)
        for measurement in self.measurements:
            yield [
                [list(zip(windows, places)) for windows in of_texts]
                for of_texts in (measurement.windows, measurement.borders)
            ]

    def _merge(self) -> tuple[list[Pass], list[Place]]:
        """The passes, and for each window where in them its scores are."""
        planned = [
            window for number in range(len(self.measurements)) for window in self._planned(number)
        ]
        return merge_windows(planned, self.prefixes_agree)

    def _find_shown(self, num_shown: int | None) -> list[list[slice]]:
        shown: list[list[slice]] = [[] for _ in self.passes]
        for of_windows, _ in islice(self._placed(), num_shown):
            for window, place in chain.from_iterable(of_windows):
                shown[place.number].append(slice(place.offset, place.offset + window.num_targets))
        return shown

    def _cost_alone(self, number: int) -> int:
        """Tokens that a measurement would read by itself."""
        if len(self.measurements) == 1:
            return sum(self.costs)
        passes = merge_windows(list(self._planned(number)), self.prefixes_agree)[0]
        shared = self.shared and find_shared_prefixes(passes, self._prefix, LEAST_SAVING)
        return sum(costs_of(passes, shared))

    def _planned(self, number: int) -> Iterator[PlannedWindow]:
        measurement = self.measurements[number]
        start_id = measurement.plan.start_id
        for of_texts in (measurement.windows, measurement.borders):
            for stream, windows in zip(self._stream_numbers[number], of_texts):
                for window in windows:
                    yield PlannedWindow(stream, window, start_id if window.start_token else None)

    def _number_streams(self) -> list[list[int]]:
        """Number the streams of each measurement through, equal ones as one."""
        numbers: dict[str, int] = {}
        digests: dict[int, str] = {}  # measurements share most streams: each is hashed once
        for measurement in self.measurements:
            for position, stream in enumerate(measurement.streams):
                if id(stream) not in digests:
                    digest = digests[id(stream)] = stream_hash(stream.ids)
                    if digest not in numbers:
                        numbers[digest] = len(self.streams)
                        context = 0 if stream.part is None else stream.part.targets[0][0]
                        self.streams.append(Stream(stream.ids, position, digest, context))
        return [
            [numbers[digests[id(stream)]] for stream in measurement.streams]
            for measurement in self.measurements
        ]


def plan_work(
    models: Sequence[LanguageModel],
    measurements: Sequence[Measurement],
    num_shown: int | None = None,
) -> Work:
    """Try the models at the length of the longest window, and plan the passes.

    Args:
        num_shown: see `Work`.

    Raises:
        MemoryError, ValueError: one cannot be scored with, or not with these tokens.
    """
    windows = (w for m in measurements for of_text in m.windows + m.borders for w in of_text)
    longest = max(window.num_inputs for window in windows)
    for model in models:
        check_ids(model, measurements)
        model.examine(longest)
    work = Work(measurements, all(model.prefixes_agree for model in models), num_shown)
    if len(models) == 1:
        work.share_prefixes(models[0])
    return work


def check_ids(model: LanguageModel, measurements: Sequence[Measurement]) -> None:
    """Refuse token ids that the model has no embedding or no logit for."""
    size = min(model.num_embeddings or model.vocabulary_size, model.vocabulary_size)
    for measurement in measurements:
        largest = [int(stream.ids.max(initial=0)) for stream in measurement.streams]
        beyond = [number for number, token in enumerate(largest) if token >= size]
        start_id = measurement.plan.start_id or 0
        if beyond or start_id >= size:
            where = f"in the texts at {positions(beyond)}" if beyond else "as its start token"
            raise ValueError(
                f"`tokenizer` must give token ids below {size}, the size of the model's "
                f"vocabulary, got {max(start_id, *largest)} {where}. It belongs to another model."
            )


def costs_of(passes: Sequence[Pass], shared: Sequence[SharedPrefix]) -> list[int]:
    """Tokens that each pass reads, those of a shared prefix in the first one that has it."""
    costs = [pass_.num_inputs for pass_ in passes]
    for group in shared:
        for number in group.numbers[1:]:
            costs[number] -= group.length
    return costs


def cut(columns: Columns, offset: int, count: int) -> Columns:
    """Cut the scores of a window out of those of its pass."""
    return {name: values[offset : offset + count] for name, values in columns.items()}
