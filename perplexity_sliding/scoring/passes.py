"""Causal language models as scorers: passes of token ids in, columns of scores out.

Passes of all texts are pooled, sorted by length, right-padded and run in batches; a causal model
needs no mask for padding on the right.  Only the rows that are scored go through the vocabulary
head, a block of them at a time, so that logits never fill the memory.  Several models read the same
batches, and their logits meet block by block.
"""

import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from ..errors import Wording
from ..models.interface import Batch, LogitBlocks, Prefix, ScoredModel
from ..models.logits import explain_failure, is_out_of_memory
from ..plan.measurement import Columns
from .measures import Block, Measure

# On a CPU: tokens in a forward pass, and rows of logits computed at once, beyond which more of them
# only cost cache misses; and bytes of logits that the loss finds in cache.
CPU_BATCH_TOKENS = 1024
CPU_BLOCK_ROWS = 512
CPU_LOSS_BYTES = 2**23
# On a CPU: bytes of keys and values that are copied at once for passes after a shared prefix.
CPU_CACHE_BYTES = 2**25
# Tokens of padding in a forward pass that cost as much as another one, which reads all weights: on
# a CPU as measured, elsewhere about the ratio of an accelerator's matrix rate to its memory's.
CPU_PADDING = 32
PADDING = 256


class Row(NamedTuple):
    """One pass as the scorer reads it.

    Attributes:
        inputs: token ids to read (T,), the start token included.
        scored: the rows that are scored (R,), ascending, each at most T - 1.
        targets: the token id that each of these rows predicts (R,).
    """

    inputs: np.ndarray
    scored: np.ndarray
    targets: np.ndarray

    def after(self, length: int) -> "Row":
        """Leave out the first tokens, which were read already."""
        return Row(self.inputs[length:], self.scored - length, self.targets)


class Launched(NamedTuple):
    """A launched batch; on a GPU its columns are complete after the event `copied`."""

    numbers: list[int]
    columns: dict[str, torch.Tensor]
    counts: list[int]
    copied: torch.cuda.Event | None


def count_rows(logits_memory: int, models: Sequence[ScoredModel]) -> int:
    """Count the rows of logits, at least one, that fit in the memory at once.

    A row exists in the model's dtype, in float32, and once more inside the loss.
    """
    return max(1, logits_memory // sum(3 * 4 * model.vocabulary_size for model in models))


class Scorer:
    """Scores of passes under a model, or under a model and its reference.

    Args:
        models: the model and, for measures of two, its reference; each examined.
        measures: what to measure of each target.
        batch_tokens: tokens in one forward pass, padding included; a longer pass runs alone.
        logits_memory: bytes that logits and the loss over them may take, and as many the copies
            of what a model keeps of a shared prefix.
    """

    def __init__(
        self,
        models: Sequence[ScoredModel],
        measures: Sequence[Measure],
        batch_tokens: int,
        logits_memory: int,
    ) -> None:
        self.models = models
        self.measures = measures
        self.device = models[0].device
        self.batch_tokens = batch_tokens
        self.padding = PADDING
        self.cache_memory = logits_memory
        self.block_rows = count_rows(logits_memory, models)
        self.loss_rows = self.block_rows
        if self.device.type == "cpu":
            self.batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS)
            self.cache_memory = min(logits_memory, CPU_CACHE_BYTES)
            self.padding = CPU_PADDING
            self.loss_rows = max(1, CPU_LOSS_BYTES // (models[0].vocabulary_size * 4))
            if all(model.by_blocks for model in models):
                self.block_rows = min(self.block_rows, CPU_BLOCK_ROWS)
        if not all(model.prefixes_agree for model in models):
            self.padding = 0  # a padded pass would be read as a longer one

    @torch.inference_mode()
    def score(
        self,
        row_of: Callable[[int], Row],
        lengths: Sequence[int],
        finished: Container[int] = (),
    ) -> Iterator[tuple[list[int], list[Columns]]]:
        """Score passes, longest first; yield after every batch.

        Args:
            row_of: gives the pass of a number, 0 to len(lengths) - 1.
            lengths: tokens that each pass reads.
            finished: numbers to leave out.  The rest is batched as if they were there, so that a
                resumed run rounds as the whole one would have.

        Yields:
            (numbers of the passes, their scores).

        Raises:
            MemoryError: a single pass does not fit.
            ValueError: the model's forward pass failed in another way.
        """
        waiting = [
            unfinished
            for numbers in reversed(batches(lengths, self.batch_tokens, self.padding))
            if (unfinished := [number for number in numbers if number not in finished])
        ]
        # On a GPU a batch is collected once the next one is launched, so that it never waits.
        launched: Launched | None = None
        while waiting:
            numbers = waiting.pop()
            if len(numbers) > 1 and len(numbers) * lengths[numbers[0]] > self.batch_tokens:
                waiting += [numbers[len(numbers) // 2 :], numbers[: len(numbers) // 2]]
                continue
            previous, launched = launched, self._try_to_launch(numbers, lengths, row_of)
            if launched is None:
                waiting.append(numbers)
                launched = previous
                continue
            if previous is not None:
                yield previous.numbers, collect(previous)
            if launched.copied is None:
                yield launched.numbers, collect(launched)
                launched = None
        if launched is not None:
            yield launched.numbers, collect(launched)

    @torch.inference_mode()
    def score_after_prefix(
        self, row_of: Callable[[int], Row], numbers: Sequence[int], length: int
    ) -> Iterator[tuple[list[int], list[Columns]]]:
        """Score passes that begin with the same tokens, which are read once; as `score`.

        Args:
            row_of: gives the pass of a number.
            numbers: the passes.
            length: tokens that they share; none of their rows is scored.
        """
        prefix = row_of(numbers[0]).inputs[None, :length]
        prefixes = [model.read_prefix(to_device(prefix, model.device)) for model in self.models]
        most = max(1, self.cache_memory // max(1, sum(prefix.num_bytes for prefix in prefixes)))
        lengths = {number: len(row_of(number).inputs) - length for number in numbers}
        places = batches([lengths[n] for n in numbers], self.batch_tokens, self.padding)
        waiting = [
            [numbers[place] for place in batch[first : first + most]]
            for batch in reversed(places)
            for first in range(0, len(batch), most)
        ]
        while waiting:
            batch = waiting.pop()
            launched = self._try_to_launch(
                batch, lengths, lambda number: row_of(number).after(length), prefixes
            )
            if launched is None:
                waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                continue
            yield launched.numbers, collect(launched)

    def _try_to_launch(
        self,
        numbers: list[int],
        lengths: Sequence[int] | Mapping[int, int],
        row_of: Callable[[int], Row],
        prefixes: Sequence[Prefix] | None = None,
    ) -> Launched | None:
        """Launch a batch; return None where memory ran out and the batch was lowered.

        Args:
            prefixes: what each model keeps of the tokens before all of them.
        """
        length = lengths[numbers[0]]
        try:
            return self._launch(numbers, [row_of(number) for number in numbers], prefixes)
        except Exception as error:
            failure = explain_failure(error, len(numbers), length, self.device)
            if not is_out_of_memory(error) or (len(numbers) == 1 and prefixes is not None):
                raise failure from error
            refusal = str(failure)
        # Here, where no traceback refers to the activations any more.
        if len(numbers) > 1:
            self._lower_batch(len(numbers), length)
        else:
            for model in self.models:
                model.read_in_parts(length, refusal)
        return None

    def _launch(
        self, numbers: list[int], rows: list[Row], prefixes: Sequence[Prefix] | None
    ) -> Launched:
        ids = np.full((len(rows), max(len(row.inputs) for row in rows)), rows[0].inputs[0])
        for line, row in zip(ids, rows):
            line[: len(row.inputs)] = row.inputs  # right padding
        counts = [len(row.targets) for row in rows]
        lines = np.repeat(np.arange(len(rows)), counts)
        batch = (
            ids,  # (B, T)
            np.concatenate([row.scored for row in rows]) + lines * ids.shape[1],  # (R,), in B * T
            np.concatenate([row.targets for row in rows]),  # (R,)
        )
        copies: list[Prefix | None] = [None] * len(self.models)
        if prefixes is not None:
            copies = [prefix.copy(len(rows)) for prefix in prefixes]
        columns = self._columns(batch, copies)
        on_gpu = next(iter(columns.values())).is_cuda
        on_host = {name: column.to("cpu", non_blocking=on_gpu) for name, column in columns.items()}
        copied = None
        if on_gpu:
            device = next(iter(columns.values())).device
            copied = torch.cuda.current_stream(device).record_event()
        return Launched(numbers, on_host, counts, copied)

    def _columns(
        self, batch: tuple[np.ndarray, ...], prefixes: Sequence[Prefix | None]
    ) -> dict[str, torch.Tensor]:
        """Score a batch into columns of all its rows, block by block."""
        num_rows = len(batch[2])
        columns: dict[str, torch.Tensor] = {}
        done = 0
        streams = [
            model.logits(
                Batch(*(to_device(array, model.device) for array in batch)), self.block_rows, prefix
            )
            for model, prefix in zip(self.models, prefixes)
        ]
        for parts in same_rows(streams, self.loss_rows):
            device = parts[0][0].device
            blocks = [Block(logits.to(device), labels.to(device)) for logits, labels in parts]
            count = len(blocks[0].targets)
            for measure in self.measures:
                for name, values in measure(blocks).items():
                    # At once in their place: kept, they would lie between the blocks that a CPU's
                    # allocator takes for every loss, and none could be taken again.
                    if name not in columns:
                        columns[name] = values.new_empty(num_rows, *values.shape[1:])
                    columns[name][done : done + count] = values
            done += count
        return columns

    def _lower_batch(self, num_windows: int, length: int) -> None:
        """Halve the batch for the rest, after memory ran out."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.batch_tokens = (num_windows // 2) * length
        warnings.warn(
            Wording(
                f"Out of memory with {num_windows} windows of {length} tokens in a batch; "
                f"continuing with {num_windows // 2}. Pass a smaller `batch_size` to avoid the "
                "detour."
            ),
            stacklevel=2,
        )


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def same_rows(streams: Sequence[LogitBlocks], most_rows: int) -> Iterator[list[tuple]]:
    """Cut blocks of (logits (R, V), targets (R,)) so that all streams have the same rows.

    A model's next block, which may overwrite the last, is computed once that one is used up.
    """
    waiting = [list(next(stream, ())) for stream in streams]
    while waiting[0]:
        count = min(most_rows, *(len(labels) for _, labels in waiting))
        yield [(logits[:count], labels[:count]) for logits, labels in waiting]
        for block, stream in zip(waiting, streams):
            block[:] = [part[count:] for part in block]
            if not len(block[1]):
                block.clear()  # frees the block before the next one is computed
                block[:] = next(stream, ())


def collect(launched: Launched) -> list[Columns]:
    """Return the scores of a batch pass by pass, once they have been copied to the host."""
    if launched.copied is not None:
        launched.copied.synchronize()
    columns = {name: column.numpy() for name, column in launched.columns.items()}
    ends = accumulate(launched.counts, initial=0)
    return [
        {name: values[first:end] for name, values in columns.items()}
        for first, end in pairwise(ends)
    ]


def batches(lengths: Sequence[int], batch_tokens: int, padding: int) -> list[list[int]]:
    """Group passes of similar lengths, longest first, so that there is little padding.

    Each group takes at most `batch_tokens` tokens once padded to its longest, at most `padding` of
    them padding, or has one pass.
    """
    groups: list[list[int]] = []
    longest = padded = 0
    for number in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        padded += longest - lengths[number]
        if groups and (len(groups[-1]) + 1) * longest <= batch_tokens and padded <= padding:
            groups[-1].append(number)
        else:
            groups.append([number])
            longest, padded = lengths[number], 0
    return groups
