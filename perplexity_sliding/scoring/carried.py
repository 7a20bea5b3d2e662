"""Read texts once, carrying the model's state from segment to segment.

With a recurrent model, every token is scored given all tokens before it, and read once.  Attention
keeps the keys of the last `memory` tokens between segments.  This is Transformer-XL's evaluation (Dai
et al. 2019): keys of deeper layers depend on earlier tokens, so a token depends on more than the
window's tokens, and the number differs from that of a sliding window::

    segment      0 0 0 0 1 1 1 1 2 2 2 2
    row of 6             m m . #            m  cached key, memory 2
                                            .  key of the same segment
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from ..errors import Wording
from ..models.interface import ScoredModel
from ..models.language_model import LanguageModel
from ..models.logits import explain_failure
from ..models.states import StateReader, find_carrier
from ..plan.measurement import Columns, Measurement
from ..plan.windows import Pass, Place, Plan, Window
from .distributed import Processes
from .measures import Block, Measure
from .passes import CPU_BATCH_TOKENS, count_rows, to_device
from .runner import Runner, Session, Work


class Segment(NamedTuple):
    """One segment of a text as the scorer reads it: all of its rows are scored.

    Attributes:
        inputs: token ids to read (T,).
        targets: the token id that each row predicts (T,).
        begins_text: whether it begins a text, without a carried state.
    """

    inputs: np.ndarray
    targets: np.ndarray
    begins_text: bool


class CarriedWork(Work):
    """Segments of texts, to be read in order; each costs its own tokens only."""

    def cost(self, pass_: Pass) -> int:
        return pass_.num_targets

    def share(self, processes: Processes) -> list[int]:
        """Return the segments of whole texts, in order."""
        counts = [len(windows) for windows in self.measurements[0].windows]
        texts = [range(end - count, end) for count, end in zip(counts, accumulate(counts))]
        shared = processes.share([sum(self.costs[number] for number in text) for text in texts])
        return [number for text in sorted(shared) for number in texts[text]]

    def row(self, number: int) -> Segment:  # type: ignore[override]  # its own scorer reads it
        pass_ = self.passes[number]
        first, end = pass_.targets[0]
        ids = self.streams[pass_.stream].ids
        if pass_.start_token is None:
            return Segment(ids[first - 1 : end - 1], ids[first:end], first == 1)
        if first == 0:
            inputs = np.concatenate([[pass_.start_token], ids[: end - 1]])
            return Segment(inputs, ids[:end], True)
        return Segment(ids[first - 1 : end - 1], ids[first:end], False)

    def _merge(self) -> tuple[list[Pass], list[Place]]:
        """Return one pass per segment; the text's start token distinguishes texts."""
        start_id = self.measurements[0].plan.start_id
        passes = [
            Pass(stream, window.begin, window.end, start_id, ((window.first, window.end),))
            for stream, window, _ in self._planned(0)
        ]
        return passes, [Place(number, 0) for number in range(len(passes))]


def score_carried(
    session: Session,
    model: ScoredModel,
    reader: StateReader,
    measurement: Measurement,
    measures: Sequence[Measure],
) -> tuple[CarriedWork, list[Columns]]:
    """Plan the texts in segments of one stride each, and score them.

    Args:
        model: prepared model.
        reader: carries the model's state.
    """
    memory = measurement.plan.max_length - measurement.plan.stride
    plan = replace(
        measurement.plan,
        start="none" if measurement.plan.start == "none" else "once",
        carries=reader.describe(memory),
    )
    windows = [
        list(plan_segments(len(stream), plan, memory if reader.keeps_keys else None))
        for stream in measurement.streams
    ]
    work = CarriedWork([replace(measurement, plan=plan, windows=windows)])
    scorer = CarryingScorer(model, reader, measures, memory, session.batch_size)
    # Keys of deeper layers depend on where the segments before were cut.
    cut = f" {memory},{plan.stride}" if reader.keeps_keys else ""
    return work, Runner(session, scorer, work).run([model], measures, f"carry{cut}/")


def open_carrier(model: ScoredModel) -> StateReader:
    """Return the reader that carries a model's state.

    Args:
        model: checked model.

    Raises:
        ValueError: the model runs in another engine, or cannot continue indefinitely.
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(
            Wording(
                "`carry` requires a model of transformers, whose state can be carried, got "
                f"{model.description}. Pass its name or folder as `model_id`, or leave out `carry`."
            )
        )
    return find_carrier(model.model, model.description)


def plan_segments(num_tokens: int, plan: Plan, memory: int | None) -> Iterator[Window]:
    """Divide a text of `num_tokens` tokens into segments of one stride each.

    Args:
        memory: tokens whose keys a segment sees; None for all before it.

    Yields:
        windows that begin at the first token that they see.
    """
    start = plan.start != "none"
    last_row = num_tokens - 1 + start  # rows count the start token, and the last predicts nothing
    for first in range(0, last_row, plan.stride):
        end = min(first + plan.stride, last_row)
        seen = 0 if memory is None else max(0, first - memory)
        sees_start = bool(start and seen == 0)
        yield Window(max(0, seen - start), first + 1 - start, end + 1 - start, sees_start)


class CarryingScorer:
    """Scores texts segment by segment, in batches of texts.

    Args:
        model: checked model, in use while this scores.
        reader: carries the model's state.
        measures: measures of each target.
        memory: number of tokens whose keys are kept between segments.
        batch_size: texts per batch.
    """

    models: Sequence[ScoredModel] = ()  # batches continue, so a text cannot be scored again alone

    def __init__(
        self,
        model: ScoredModel,
        reader: StateReader,
        measures: Sequence[Measure],
        memory: int,
        batch_size: int,
    ) -> None:
        self.model = model
        self.reader = reader
        self.measures = measures
        self.memory = memory
        self.rows = count_rows([model])
        if model.device.type == "cpu":
            self.rows = min(self.rows, CPU_BATCH_TOKENS)
        self.batch_size = 1 if reader.alone or model.alone else min(batch_size, self.rows)

    @torch.inference_mode()
    def score(
        self,
        row_of: Callable[[int], Segment],
        lengths: Sequence[int],
        finished: Container[int] = (),
    ) -> Iterator[tuple[list[int], list[Columns]]]:
        """Score texts, longest first; yield after every segment.

        Args:
            row_of: returns the segment of a number, 0 to len(lengths) - 1; those of a text in order.
            lengths: tokens in each segment.
            finished: numbers to skip.  A batch of texts is read again unless all of them are
                finished, so that a resumed run rounds like an uninterrupted one.

        Yields:
            (numbers of the segments, their scores).

        Raises:
            MemoryError: a batch of texts does not fit in memory.
            ValueError: the model's forward pass failed.
        """
        texts: list[list[int]] = []
        for number in range(len(lengths)):
            if row_of(number).begins_text:
                texts.append([])
            texts[-1].append(number)
        text_lengths = [sum(lengths[number] for number in text) for text in texts]
        for group in side_by_side(text_lengths, self.batch_size):
            segments = [texts[number] for number in group]
            if all(number in finished for text in segments for number in text):
                continue
            for numbers, columns in self._read_group(segments, row_of):
                wanted = [place for place, n in enumerate(numbers) if n not in finished]
                if wanted:
                    yield [numbers[n] for n in wanted], [columns[n] for n in wanted]

    def _read_group(
        self, texts: list[list[int]], row_of: Callable[[int], Segment]
    ) -> Iterator[tuple[list[int], list[Columns]]]:
        """Read a batch of texts to their ends; the first one is the longest."""
        self.reader.begin()
        for place in range(len(texts[0])):
            numbers = [text[place] for text in texts if place < len(text)]
            try:
                columns = self._read_segment([row_of(number) for number in numbers], len(texts))
            except Exception as error:
                length = len(row_of(numbers[0]).inputs)
                raise explain_failure(error, len(texts), length, self.model.device) from error
            yield numbers, columns
            self.reader.keep(self.memory)

    def _read_segment(self, segments: list[Segment], num_texts: int) -> list[Columns]:
        """Read the next segment of texts; finished texts read padding, which is not scored."""
        length = len(segments[0].inputs)
        ids = np.zeros((2, num_texts, length), dtype=np.int64)  # inputs, targets
        for line, segment in enumerate(segments):
            ids[0, line, : len(segment.inputs)] = segment.inputs
            ids[1, line, : len(segment.inputs)] = segment.targets
        inputs, targets = to_device(ids, self.model.device)  # (B, T) each
        parts: dict[str, list[np.ndarray]] = {}
        for first, end in self.reader.chunks(length, max(1, self.rows // num_texts)):
            logits = self.reader.logits(inputs[:, first:end])
            block = Block(logits.flatten(0, 1), targets[:, first:end].flatten().to(logits.device))
            for measure in self.measures:
                for name, values in measure([block]).items():
                    values = values.unflatten(0, (num_texts, end - first))
                    parts.setdefault(name, []).append(values.cpu().numpy())
        columns = {name: np.concatenate(values, axis=1) for name, values in parts.items()}
        return [
            {name: values[line, : len(segment.inputs)] for name, values in columns.items()}
            for line, segment in enumerate(segments)
        ]


def side_by_side(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Group texts of similar lengths, longest first: at most `most`, with at most a quarter padding."""
    groups: list[list[int]] = []
    read = 0
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        length = lengths[number]
        if groups and len(groups[-1]) < most:
            padded = (len(groups[-1]) + 1) * lengths[groups[-1][0]]
            if padded <= 4 / 3 * (read + length):
                groups[-1].append(number)
                read += length
                continue
        groups.append([number])
        read = length
    return groups
