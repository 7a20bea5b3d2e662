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
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ..errors import ArgumentError, Wording
from ..models.interface import ScoredModel
from ..models.language_model import LanguageModel
from ..models.logits import (
    OTHER_SHAPE,
    UNSUPPORTED_ERRORS,
    differ,
    explain_failure,
    is_out_of_memory,
)
from ..models.module import (
    forward_parameters,
    grows_frequencies,
    input_device,
    num_embeddings,
    position_table,
    precision,
    run_module,
    state_name,
    text_config,
)
from ..plan.measurement import Columns, Measurement
from ..plan.windows import Pass, Place, Plan, Window
from .distributed import Processes
from .measures import Block, Measure
from .passes import CPU_BATCH_TOKENS, count_rows, to_device
from .runner import Session, Work

# Models without `position_ids` whose attention depends only on distances.
ALIBI_MODELS = ("bloom", "mpt")
# Settings of models that scale their attention by the position in the text.
SCALED_BY_PLACE = ("attn_temperature_tuning", "log_scaling_n_floor")
PROBE_LENGTH = 11  # two chunks and a single token
# Where layers of a cache hold keys besides those of each token.
OTHER_KEYS = ("indexer_keys", "idx_keys", "compressed_kv")
# Tokens per chunk where a complete window is read.
WINDOW_CHUNK = 256
# Shift of positions that tests whether only distances matter.
PROBE_SHIFT = 1000


class StateReader:
    """Reads rows of token ids in chunks, carrying the model's state from one to the next.

    Attributes:
        single: whether only the first chunk may have several tokens, because Mamba continues from
            a state token by token.
        alone: whether only one text can be read at a time, because RWKV's step mixes rows.
        keeps_keys: whether the state grows with the text unless `keep` drops keys; None before the
            first chunk.
        windows: the attention windows of the model's own layers, in tokens.
    """

    def __init__(self, model: torch.nn.Module, single: bool = False, alone: bool = False) -> None:
        self.model = model
        self.single = single
        self.alone = alone
        self.state_name = state_name(model)
        self.takes_positions = "position_ids" in forward_parameters(model)
        self.keeps_keys: bool | None = None
        self.windows: tuple[int, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Reset the state; the next chunk begins other texts."""
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
        layers = attention_layers(self.state)
        self.keeps_keys = isinstance(self.state, tuple) or bool(layers)
        self.windows = tuple(sorted({layer.sliding_window for layer in layers if is_local(layer)}))
        self.num_read += ids.shape[1]
        return output.logits

    def keep(self, memory: int) -> None:
        """Drop all keys and values except those of the last `memory` tokens.

        Layers with their own attention window count the tokens read to know which keys they have;
        the count is reduced to the kept ones.
        """
        if isinstance(self.state, tuple):  # transformers before 4.48
            self.state = tuple(tuple(last(kept, memory) for kept in layer) for layer in self.state)
        for layer in attention_layers(self.state):
            layer.keys, layer.values = last(layer.keys, memory), last(layer.values, memory)
            if is_local(layer):
                layer.cumulative_length = min(layer.cumulative_length, memory)

    def describe(self, memory: int) -> str:
        """Describe the state for the signature: `keys(512)`, `keys(512,window 128)`, `state`."""
        if not self.keeps_keys:
            return "state"
        return f"keys({','.join([str(memory), *(f'window {size}' for size in self.windows)])})"

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
    """List the layers of a cache with keys and values."""
    return [
        layer
        for layer in getattr(state, "layers", ())
        if isinstance(getattr(layer, "keys", None), torch.Tensor)
    ]


def is_local(layer: object) -> bool:
    """Return whether a layer of a cache has its own attention window."""
    return getattr(layer, "is_sliding", False)


def can_drop_keys(layer: object) -> bool:
    """Return whether keys can be dropped.

    Not those of a window before transformers 4.56, nor with additional keys: of an indexer, or compressed
    ones of DeepSeek V4, which stand for many tokens each.
    """
    counts = not is_local(layer) or isinstance(getattr(layer, "cumulative_length", None), int)
    return counts and all(getattr(layer, name, None) is None for name in OTHER_KEYS)


def last(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Copy the keys or values (B, H, T, D) of the last tokens."""
    return tensor[..., max(0, tensor.shape[-2] - count) :, :].clone()


def probe_ids(model: torch.nn.Module, length: int, first: int = 1) -> torch.Tensor:
    """Return a row of test token ids (T,); `first` selects others."""
    size = num_embeddings(model) or length + 1
    spread = torch.arange(first, first + length) * max(1, size // (length + 2)) % size
    return spread.to(input_device(model))


def find_reader(model: torch.nn.Module) -> StateReader | None:
    """Find a reader whose chunks have the logits of a single forward pass, if there is one."""
    length = min(PROBE_LENGTH, position_table(model) or PROBE_LENGTH)
    ids = torch.stack([probe_ids(model, length), probe_ids(model, length, first=3)])
    expected = run_module(model, ids).logits
    for single, alone in itertools.product((False, True), (False, True)):
        reader = StateReader(model, single, alone)
        rows = len(ids) - alone
        try:
            parts = [reader.logits(ids[:rows, a:b]) for a, b in reader.chunks(length, 5)]
            logits = torch.cat(parts, 1)
        except UNSUPPORTED_ERRORS:
            continue
        if logits.shape == expected[:rows].shape and not differ(
            logits, expected[:rows], OTHER_SHAPE[precision(model)]
        ):
            return reader if _continues_beyond_windows(model, reader) else None
    return None


def _continues_beyond_windows(model: torch.nn.Module, reader: StateReader) -> bool:
    """Return whether chunks still have the logits of a single pass once the windows of layers are full.

    Moshi's cache drops keys that its plain passes attend to.
    """
    window = max(reader.windows, default=0)
    length = window + PROBE_LENGTH
    if not window or length > (position_table(model) or length):
        return True
    ids = probe_ids(model, length)[None]
    name = "logits_to_keep"
    kept = {name: 1} if name in forward_parameters(model) else {}
    try:
        expected = run_module(model, ids, **kept).logits[:, -1:]
        reader.begin()
        ranges = reader.chunks(length, window if reader.single else min(window, WINDOW_CHUNK))
        for first, end in ranges:
            logits = reader.logits(ids[:, first:end])
    except Exception as error:
        if is_out_of_memory(error):
            return True
        raise
    return not differ(logits[:, -1:], expected, OTHER_SHAPE[precision(model)])


@torch.inference_mode()
def open_carrier(model: ScoredModel) -> StateReader:
    """Return the reader that carries a model's state, indefinitely.

    Args:
        model: checked model.

    Raises:
        ValueError: there is none, with the reason.
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(
            Wording(
                "`carry` requires a model of transformers, whose state can be carried, got "
                f"{model.description}. Pass its name or folder as `model_id`, or leave out `carry`."
            )
        )
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


def why_not_carried(model: torch.nn.Module, reader: StateReader | None) -> str | None:
    """Return the reason why a model cannot continue indefinitely; None if it can."""
    table = position_table(model)
    if table is not None:
        return f"its positions are a table of {table} entries, which limits the text"
    if grows_frequencies(model):
        return "its rotary frequencies depend on the length of the pass"
    config = text_config(model)
    # After keys are dropped, a cache such as Llama 4's takes the first that is left for the text's start.
    in_chunks = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    if in_chunks or any(getattr(config, name, None) for name in SCALED_BY_PLACE):
        return "its attention depends on a token's position in the text, counted by the cached keys"
    if reader is None:
        return "its logits differ when it continues from the state that it returned"
    if not all(map(can_drop_keys, attention_layers(reader.state))):
        return "its layers have state that cannot be dropped together with keys"
    if reader.keeps_keys and not sees_distances_only(model):
        return (
            "its attention uses absolute positions, so keys cannot be carried from one segment to the "
            "next"
        )
    return None


def sees_distances_only(model: torch.nn.Module) -> bool:
    """Return whether shifting all positions leaves the logits unchanged."""
    if "position_ids" not in forward_parameters(model):
        return getattr(model.config, "model_type", None) in ALIBI_MODELS
    ids = probe_ids(model, PROBE_LENGTH)[None]
    places = torch.arange(PROBE_LENGTH, device=ids.device)[None]
    try:
        moved = run_module(model, ids, position_ids=places + PROBE_SHIFT).logits
    except UNSUPPORTED_ERRORS:
        return False
    plain = run_module(model, ids, position_ids=places).logits
    return not differ(moved, plain, OTHER_SHAPE[precision(model)])


# --- segments of texts ----------------------------------------------------------------------------


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
        texts = [
            range(end - count, end) for count, end in zip(counts, itertools.accumulate(counts))
        ]
        shared = processes.share([sum(self.costs[number] for number in text) for text in texts])
        return [number for text in sorted(shared) for number in texts[text]]

    def row(self, number: int) -> Segment:  # type: ignore[override]  # its own scorer reads it
        pass_ = self.passes[number]
        first, end = pass_.targets[0]
        ids = self.streams[pass_.stream].ids
        inputs = ids[max(first - 1, 0) : end - 1]
        if first == 0:
            inputs = np.concatenate([[pass_.start_token], inputs])
        return Segment(inputs, ids[first:end], first == int(pass_.start_token is None))

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
    return work, session.run(scorer, work, [model], measures, f"carry{cut}/")


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
        """Score segments as `Scorer.score` does passes; those of a text are in order.

        A batch of texts is read again unless all of them are finished, so that a resumed run rounds
        like an uninterrupted one.
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
            self.reader.begin()
            for place in range(len(segments[0])):  # the first text is the longest
                numbers = [text[place] for text in segments if place < len(text)]
                rows = [row_of(number) for number in numbers]
                try:
                    columns = self._read_segment(rows, len(segments))
                except Exception as error:
                    length = len(rows[0].inputs)
                    raise explain_failure(
                        error, len(segments), length, self.model.device
                    ) from error
                wanted = [place for place, n in enumerate(numbers) if n not in finished]
                if wanted:
                    yield [numbers[n] for n in wanted], [columns[n] for n in wanted]
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
