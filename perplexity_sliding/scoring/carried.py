"""Read texts once, carrying the model's state from segment to segment.

With a recurrent model (Mamba, RWKV), every token is scored given all tokens before it, and read once.
Attention keeps the keys of the last `memory` tokens between segments.  This is Transformer-XL's
evaluation (Dai et al. 2019): keys of deeper layers depend on earlier tokens, so a token depends on more
than the window's tokens, and the number differs from that of a sliding window::

    segment      0 0 0 0 1 1 1 1 2 2 2 2
    row of 6             m m . #            m  cached key, memory 2
                                            .  key of the same segment

Tests of the model, not a list of architectures, decide whether it continues from its state as in a
single pass, and whether it can do so indefinitely.
"""

import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import cache_utils

from ..errors import ArgumentError
from ..models.identity import probe_text
from ..models.interface import ScoredModel
from ..models.language_model import LanguageModel
from ..models.logits import OTHER_SHAPE, UNSUPPORTED_ERRORS, differ, explain_failure
from ..models.module import (
    find_inputs,
    forward_parameters,
    grows_frequencies,
    position_table,
    precision,
    run_module,
    state_name,
    text_config,
)
from ..plan.measurement import Columns, Measurement
from ..plan.windows import Pass, Place, Plan, Window, growing_spans
from .distributed import Processes
from .measures import Block, Measure
from .passes import CPU_BATCH_TOKENS, Row, Scored, count_rows, to_device
from .runner import Session, Work

# Layers of a cache that have the keys and values of each token, and nothing else.
LAYERS_OF_KEYS = ("DynamicLayer", "DynamicSlidingWindowLayer")
# Models without `position_ids` whose attention depends only on distances.
ALIBI_MODELS = ("bloom", "mpt")
# Settings of models that scale their attention by the position in the text.
SCALED_BY_PLACE = ("attn_temperature_tuning", "log_scaling_n_floor")
PROBE_LENGTH = 11  # two chunks and a single token
# Shift of positions that tests whether only distances matter.
PROBE_SHIFT = 1000


class StateReader:
    """Reads rows of token ids in chunks, carrying the model's state from one to the next."""

    def __init__(self, model: torch.nn.Module, single: bool, alone: bool) -> None:
        self.model = model
        self.single = single  # only the first chunk may have several tokens, for Mamba
        self.alone = alone  # one text at a time, for RWKV's step mixes rows
        self.state_name = state_name(model)
        self.takes_positions = "position_ids" in forward_parameters(model)
        self.keeps_keys = False
        self.begin()

    def begin(self) -> None:
        self.state = None
        self.num_read = 0

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, T, V) for the next token ids (B, T)."""
        kwargs: dict[str, object] = {"use_cache": True}
        if self.state is not None:
            kwargs[self.state_name] = self.state
        if self.takes_positions:
            places = torch.arange(self.num_read, self.num_read + ids.shape[1], device=ids.device)
            kwargs["position_ids"] = places.expand(len(ids), -1)
        output = run_module(self.model, ids, **kwargs)
        self.state = output[self.state_name]
        self.keeps_keys = bool(attention_layers(self.state))
        self.num_read += ids.shape[1]
        return output.logits

    def keep(self, memory: int) -> None:
        """Drop all keys and values (B, H, T, D) except those of the last `memory` tokens.

        Layers with their own attention window count the tokens read to know which keys they have;
        the count is reduced to the kept ones.
        """
        for layer in attention_layers(self.state):
            first = max(0, layer.keys.shape[-2] - memory)
            layer.keys = layer.keys[..., first:, :].clone()
            layer.values = layer.values[..., first:, :].clone()
            if layer.is_sliding:
                layer.cumulative_length = min(layer.cumulative_length, memory)

    def chunks(self, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Divide the next `length` tokens into half-open ranges of at most `size`."""
        if not self.single:
            yield from ((first, min(first + size, length)) for first in range(0, length, size))
            return
        head = min(size, length) if self.num_read == 0 else 0
        if head:
            yield 0, head
        yield from ((place, place + 1) for place in range(head, length))


def attention_layers(state: object) -> list:
    return [
        layer
        for layer in getattr(state, "layers", ())
        if isinstance(getattr(layer, "keys", None), torch.Tensor)
    ]


@torch.inference_mode()
def open_carrier(model: ScoredModel) -> StateReader:
    """Return the reader that carries a checked model's state, or refuse it with the reason."""
    reader = None
    reason: str | None
    if not isinstance(model, LanguageModel):
        reason = "it does not run in this process"
    elif not hasattr(cache_utils, "DynamicSlidingWindowLayer"):
        reason = "transformers before 4.56 keeps keys in another form"
    else:
        reader = find_reader(model.model)
        reason = why_not_carried(model.model, reader)
    if reader is None or reason is not None:
        raise ArgumentError(
            "carry",
            f"be left out with {model.description}: {reason}",
            advice="Use a sliding window instead.",
        )
    reader.begin()
    return reader


def find_reader(model: torch.nn.Module) -> StateReader | None:
    """Find a reader whose chunks have the logits of a single forward pass, if there is one."""
    length = min(PROBE_LENGTH, position_table(model) or PROBE_LENGTH)
    _, device, size = find_inputs(model)
    ids = torch.tensor(probe_text(size or length, None, 2 * length), device=device).view(2, length)
    expected = run_module(model, ids).logits
    for single, alone in itertools.product((False, True), (False, True)):
        reader = StateReader(model, single, alone)
        rows = len(ids) - alone
        try:
            parts = [reader.logits(ids[:rows, a:b]) for a, b in reader.chunks(length, 5)]
        except UNSUPPORTED_ERRORS:
            continue
        logits = torch.cat(parts, 1)
        if logits.shape == expected[:rows].shape and not differ(
            logits, expected[:rows], OTHER_SHAPE[precision(model)]
        ):
            return reader
    return None


def why_not_carried(model: torch.nn.Module, reader: StateReader | None) -> str | None:
    if position_table(model) is not None:
        return f"its positions are a table of {position_table(model)} entries"
    if grows_frequencies(model):
        return "its rotary frequencies depend on the length of the pass"
    if reader is None:
        return "its logits differ when it continues from the state that it returned"
    layers = attention_layers(reader.state)
    if any(type(layer).__name__ not in LAYERS_OF_KEYS for layer in layers):
        return "its layers have state that cannot be dropped together with keys"
    config = text_config(model)
    # After keys are dropped, a cache such as Llama 4's takes the first that is left for the text's start.
    in_chunks = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    by_place = in_chunks or any(getattr(config, name, None) for name in SCALED_BY_PLACE)
    if layers and (by_place or not sees_distances_only(model)):
        return "its attention depends on positions in the text, not on distances alone"
    return None


def sees_distances_only(model: torch.nn.Module) -> bool:
    if "position_ids" not in forward_parameters(model):
        return getattr(model.config, "model_type", None) in ALIBI_MODELS
    _, device, size = find_inputs(model)
    drawn = probe_text(size or PROBE_LENGTH, None, PROBE_LENGTH)
    ids = torch.tensor([drawn], device=device)
    places = torch.arange(PROBE_LENGTH, device=ids.device)[None]
    plain = run_module(model, ids, position_ids=places).logits
    moved = run_module(model, ids, position_ids=places + PROBE_SHIFT).logits
    return not differ(moved, plain, OTHER_SHAPE[precision(model)])


# --- segments of texts ----------------------------------------------------------------------------


class CarriedWork(Work):
    """Segments of the texts of one measurement, each a pass over its own tokens, in order."""

    def _merge(self) -> tuple[list[Pass], list[Place]]:
        passes = [
            Pass(stream, max(0, first - 1), end, start_id if first == 0 else None, ((first, end),))
            for stream, (_, first, end, *_), start_id in self._planned(0)
        ]
        ends = list(itertools.accumulate(map(len, self.measurements[0].windows), initial=0))
        self.texts = list(itertools.starmap(range, itertools.pairwise(ends)))
        return passes, [Place(number, 0) for number in range(len(passes))]

    def share(self, processes: Processes) -> list[int]:
        shared = processes.share(
            [sum(self.costs[number] for number in text) for text in self.texts]
        )
        return [number for text in shared for number in self.texts[text]]


def score_carried(
    session: Session,
    model: ScoredModel,
    reader: StateReader,
    measurement: Measurement,
    measures: Sequence[Measure],
) -> tuple[CarriedWork, list[Columns]]:
    """Plan the texts in segments of one stride each, and score them under a prepared model."""
    memory = measurement.plan.max_length - measurement.plan.stride
    plan = replace(
        measurement.plan,
        start="none" if measurement.plan.start == "none" else "once",
        carries=f"keys({memory})" if reader.keeps_keys else "state",
    )
    windows = [
        list(plan_segments(len(stream), plan, memory if reader.keeps_keys else None))
        for stream in measurement.streams
    ]
    work = CarriedWork([replace(measurement, plan=plan, windows=windows)])
    scorer = CarryingScorer(model, reader, measures, memory, session.batch_size, work.texts)
    # Keys of deeper layers depend on where the segments before were cut.
    key_prefix = f"carry {memory},{plan.stride},{plan.start},{plan.start_id}/"
    return work, session.run(scorer, work, key_prefix)


def plan_segments(num_tokens: int, plan: Plan, memory: int | None) -> Iterator[Window]:
    """Yield segments of a text as windows that begin at the first token that they see.

    Args:
        memory: tokens before a segment whose keys it sees; None for all.
    """
    start = plan.start != "none"
    width = plan.stride + 1 + (num_tokens if memory is None else memory)
    for begin, first, end in growing_spans(num_tokens + start, width, plan.stride):
        sees_start = start and begin == 0
        yield Window(max(0, begin - start), first - start, end - start, sees_start)


@dataclass
class CarryingScorer:
    """Scores texts segment by segment, in batches of texts.

    Attributes:
        memory: number of tokens whose keys are kept between segments.
        texts: the numbers of the segments of each text.
    """

    model: ScoredModel
    reader: StateReader
    measures: Sequence[Measure]
    memory: int
    batch_size: int
    texts: Sequence[range]

    def __post_init__(self) -> None:
        self.models = [self.model]
        self.rows = count_rows(self.models)
        if self.model.device.type == "cpu":
            self.rows = min(self.rows, CPU_BATCH_TOKENS)
        is_alone = self.reader.alone or self.model.alone
        self.batch_size = 1 if is_alone else min(self.batch_size, self.rows)

    @torch.inference_mode()
    def score(
        self,
        row_of: Callable[[int], Row],
        numbers: Sequence[int],
        lengths: Sequence[int],
        finished: Container[int] = (),
    ) -> Scored:
        """Score the segments of whole texts as `Scorer.score` does passes.

        A batch of texts is read again unless all of them are finished, so that a resumed run rounds
        like an uninterrupted one.
        """
        wanted_texts = set(numbers)
        texts = [text for text in self.texts if not wanted_texts.isdisjoint(text)]
        text_lengths = [sum(lengths[number] for number in text) for text in texts]
        for group in side_by_side(text_lengths, self.batch_size):
            segments = [texts[number] for number in group]
            if all(number in finished for text in segments for number in text):
                continue
            self.reader.begin()
            for place in range(len(segments[0])):  # the first text is the longest
                numbers = [text[place] for text in segments if place < len(text)]
                rows = [row_of(number) for number in numbers]
                try:
                    columns = self._read_segment(rows, len(segments))
                except Exception as error:
                    shape = len(segments), len(rows[0].inputs)
                    raise explain_failure(error, *shape, self.model.device) from error
                wanted = [place for place, n in enumerate(numbers) if n not in finished]
                if wanted:
                    yield [numbers[n] for n in wanted], [columns[n] for n in wanted]
                self.reader.keep(self.memory)

    def _read_segment(self, segments: list[Row], num_texts: int) -> list[Columns]:
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
    """Group at most `most` texts, longest first, none shorter than 3/4 of the longest."""
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if groups and len(groups[-1]) < most and lengths[number] >= 0.75 * lengths[groups[-1][0]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups
