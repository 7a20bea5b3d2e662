"""The forward passes that several measurements need, each once.

Equal texts are one stream of tokens, and windows that begin at the same token are one pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .arguments import positions
from .distributed import Processes
from .language_model import LanguageModel
from .measurement import Measurement
from .passes import Pass, Place, PlannedWindow, count_inputs, merge_windows
from .scoring import Columns, Row
from .tokenization import stream_hash


@dataclass(frozen=True)
class Stream:
    """Tokens that passes read; equal ones of all measurements are one.

    Attributes:
        text: position of the first text that has them.
        digest: hash of the ids.
    """

    ids: np.ndarray
    text: int
    digest: str


class Work:
    """What is to be run for some measurements.

    Args:
        prefixes_agree: whether the model gives a token the same score in shorter and in longer
            passes.

    Attributes:
        streams: the tokens to read.
        passes: the passes over them.
        costs: tokens that each pass reads.
    """

    def __init__(self, measurements: Sequence[Measurement], prefixes_agree: bool = True):
        self.measurements = measurements
        self.prefixes_agree = prefixes_agree
        self.streams: list[Stream] = []
        self._stream_numbers = self._number_streams()
        self.passes, self._places = self._merge()
        self.costs = [self.cost(one) for one in self.passes]

    @property
    def max_length(self) -> int:
        """The longest window of the plans."""
        return max(measurement.plan.max_length for measurement in self.measurements)

    def cost(self, one: Pass) -> int:
        """Tokens that a pass reads."""
        return one.num_inputs

    def share(self, processes: Processes) -> list[int]:
        """The passes that fall to this process."""
        return processes.share(self.costs)

    def row(self, number: int) -> Row:
        """A pass as the scorer wants it."""
        one = self.passes[number]
        ids = self.streams[one.stream].ids
        inputs = ids[one.begin : one.end - 1]
        lead = 0
        if one.start_token is not None:
            inputs = np.concatenate([[one.start_token], inputs])
            lead = 1
        targets = np.concatenate([np.arange(first, end) for first, end in one.targets])
        return Row(inputs, targets - 1 - one.begin + lead, ids[targets])

    def by_measurement(
        self, scores: Sequence[Columns]
    ) -> Iterator[tuple[Measurement, list[list[Columns]], int]]:
        """Yield each measurement, the scores of the windows of its texts, and its cost alone."""
        places = iter(self._places)
        for number, measurement in enumerate(self.measurements):
            of_texts = [
                [
                    cut(scores[place.number], place.offset, window.num_targets)
                    for window, place in zip(windows, places)
                ]
                for windows in measurement.windows
            ]
            yield measurement, of_texts, self._cost_alone(number)

    def _merge(self) -> tuple[list[Pass], list[Place]]:
        """The passes, and for each window where in them its scores are."""
        planned = [
            window for number in range(len(self.measurements)) for window in self._planned(number)
        ]
        return merge_windows(planned, self.prefixes_agree)

    def _cost_alone(self, number: int) -> int:
        """Tokens that a measurement would read by itself."""
        if len(self.measurements) == 1:
            return sum(self.costs)
        return count_inputs(merge_windows(list(self._planned(number)), self.prefixes_agree)[0])

    def _planned(self, number: int) -> Iterator[PlannedWindow]:
        measurement = self.measurements[number]
        start_id = measurement.plan.start_id
        for stream, windows in zip(self._stream_numbers[number], measurement.windows):
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
                        self.streams.append(Stream(stream.ids, position, digest))
        return [
            [numbers[digests[id(stream)]] for stream in measurement.streams]
            for measurement in self.measurements
        ]


def plan_work(models: Sequence[LanguageModel], measurements: Sequence[Measurement]) -> Work:
    """Try the models at the length of the longest window, and plan the passes.

    Raises:
        MemoryError, ValueError: one cannot be scored with, or not with these tokens.
    """
    windows = (w for m in measurements for of_text in m.windows for w in of_text)
    longest = max(window.num_inputs for window in windows)
    for model in models:
        check_ids(model, measurements)
        model.examine(longest)
    return Work(measurements, all(model.prefixes_agree for model in models))


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


def cut(columns: Columns, offset: int, count: int) -> Columns:
    """The scores of a window from those of its pass."""
    return {name: values[offset : offset + count] for name, values in columns.items()}
