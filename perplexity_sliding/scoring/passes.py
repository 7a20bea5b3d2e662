"""Causal language models as scorers: passes of token ids in, columns of scores out.

Passes of all texts are pooled, sorted by length, right-padded and run in batches; a causal model
needs no mask for padding on the right.  Only the rows that are scored go through the vocabulary
head, a block of them at a time, so that logits never fill the memory.  Several models read the same
batches, and their logits meet block by block.  Of a model that gives the values of tokens alone, a
pass is a prompt in a request.
"""

import warnings
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from ..engines.served import (
    CANARY_LENGTH,
    MOST_SPREAD,
    AnswerError,
    Prompt,
    ServedModel,
    TokenValues,
    changed_model,
    differ,
)
from ..errors import Wording
from ..models.interface import Batch, LogitBlocks, Prefix, ScoredModel
from ..models.logits import explain_failure, is_out_of_memory
from ..plan.measurement import Columns
from .measures import Alternatives, Block, Measure, NegativeLogLikelihood

# Bytes of logits and their loss at a time, and of the copies of a shared prefix's cache.
LOGITS_MEMORY = 2**29
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
# Columns that a served model gives, and the names of others in errors.
SERVED_COLUMNS = ("nll", "rank", "top_ids", "top_nll", "top")
NEEDS_LOGITS = {"entropy": "The entropy of a prediction", "kl": "KL divergence"}

# Numbers of passes and their scores, batch by batch.
Scored = Iterator[tuple[list[int], list[Columns]]]


class Row(NamedTuple):
    """One pass as the scorer reads it."""

    inputs: np.ndarray  # token ids to read (T,), the start token included
    scored: np.ndarray  # the rows that are scored (R,), ascending, each at most T - 1
    targets: np.ndarray  # the token id that each of these rows predicts (R,)

    def after(self, length: int) -> "Row":
        return Row(self.inputs[length:], self.scored - length, self.targets)


class Launched(NamedTuple):
    """A launched batch; on a GPU its columns are complete after the event `copied`."""

    numbers: list[int]
    columns: dict[str, torch.Tensor]
    counts: list[int]
    copied: torch.cuda.Event | None


def count_rows(models: Sequence[ScoredModel]) -> int:
    """Count the rows of logits, at least one, that fit in the memory at once.

    A row exists in the model's dtype, in float32, and once more inside the loss.
    """
    return max(1, LOGITS_MEMORY // sum(3 * 4 * model.vocabulary_size for model in models))


class Scorer:
    """Scores of passes under a model, or under a model and its reference.

    Args:
        batch_tokens: tokens in one forward pass, padding included; a longer pass runs alone.
    """

    def __init__(
        self, models: Sequence[ScoredModel], measures: Sequence[Measure], batch_tokens: int
    ) -> None:
        self.models = models
        self.measures = measures
        self.device = models[0].device
        self.batch_tokens = batch_tokens
        self.padding = PADDING
        self.only_nll = False
        self.cache_memory = LOGITS_MEMORY
        self.block_rows = self.loss_rows = count_rows(models)
        if self.device.type == "cpu":
            self.padding = CPU_PADDING
            self.batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS)
            self.cache_memory = min(LOGITS_MEMORY, CPU_CACHE_BYTES)
            self.loss_rows = max(1, CPU_LOSS_BYTES // (models[0].vocabulary_size * 4))
            self.only_nll = list(map(type, measures)) == [NegativeLogLikelihood]
            if all(model.by_blocks for model in models):
                self.block_rows = min(self.block_rows, CPU_BLOCK_ROWS)
        if not all(model.prefixes_agree for model in models):
            self.padding = 0  # a padded pass would be read as a longer one
        if any(model.alone for model in models):
            self.batch_tokens = 1  # every pass is longer, and runs alone

    def score(
        self,
        row_of: Callable[[int], Row],
        numbers: Sequence[int],
        lengths: Sequence[int],
        finished: Container[int] = (),
        shared: int = 0,
    ) -> Scored:
        """Score passes, longest first; yield after every batch.

        Args:
            lengths: tokens that each pass reads, by number.
            finished: numbers to skip.  The others are batched as if these were included, so that a
                resumed run rounds like an uninterrupted one.
            shared: number of tokens at the head of all passes that are the same, and unscored; they
                are read once.
        """
        if all(number in finished for number in numbers):
            return
        rest: Sequence[int] | Mapping[int, int] = lengths
        prefixes, most = None, len(numbers)
        if shared:
            prefix = row_of(numbers[0]).inputs[None, :shared]
            with torch.inference_mode():
                ids = [to_device(prefix, model.device) for model in self.models]
                prefixes = [model.read_prefix(of_one) for model, of_one in zip(self.models, ids)]
            most = max(1, self.cache_memory // max(1, sum(prefix.num_bytes for prefix in prefixes)))
            rest = {number: lengths[number] - shared for number in numbers}
        groups: list[list[int]] = []
        for batch in batches(numbers, rest, self.batch_tokens, self.padding):
            batch = [number for number in batch if number not in finished]
            groups += [batch[first : first + most] for first in range(0, len(batch), most)]
        yield from self._score_batches(groups, lambda n: row_of(n).after(shared), prefixes)

    def _score_batches(
        self,
        groups: list[list[int]],
        row_of: Callable[[int], Row],
        prefixes: Sequence[Prefix] | None,
    ) -> Scored:
        """Score groups of passes, one a batch; halve them where memory runs out."""
        waiting = groups[::-1]
        launched: deque[Launched] = deque()
        while waiting:
            numbers = waiting.pop()
            half = len(numbers) // 2
            rows = [row_of(number) for number in numbers]
            longest = len(rows[0].inputs)
            if half and len(numbers) * longest > self.batch_tokens:
                waiting += [numbers[half:], numbers[:half]]
                continue
            try:
                launched.append(self._launch(numbers, rows, prefixes))
            except Exception as error:
                if not is_out_of_memory(error) or not half:
                    raise explain_failure(error, len(numbers), longest, self.device) from error
            else:
                # On a GPU a batch is collected once the next one is launched, so that it never waits.
                if launched[0].copied is None or len(launched) > 1:
                    yield collect(launched.popleft())
                continue
            # Here, where no traceback refers to the activations any more.
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            waiting.append(numbers)
            self.batch_tokens = half * longest
            warnings.warn(
                Wording(
                    f"Out of memory with {len(numbers)} windows of {longest} tokens in a batch; "
                    f"continuing with {half}. Pass a smaller `batch_size` to avoid the detour."
                ),
                stacklevel=2,
            )
        yield from map(collect, launched)

    @torch.inference_mode()
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
        streams = [
            model.logits(
                Batch(*(to_device(array, model.device) for array in batch)),
                self.block_rows,
                None if prefixes is None else prefixes[number].copy(len(rows)),
            )
            for number, model in enumerate(self.models)
        ]
        columns: dict[str, torch.Tensor] = {}
        done = 0
        for parts in same_rows(streams, self.loss_rows):
            device = parts[0][0].device
            blocks = [
                Block(logits.to(device), labels.to(device), self.only_nll)
                for logits, labels in parts
            ]
            count = len(blocks[0].targets)
            for measure in self.measures:
                for name, values in measure(blocks).items():
                    # At once in their place: kept, they would lie between the blocks that a CPU's
                    # allocator takes for every loss, and none could be taken again.
                    if name not in columns:
                        columns[name] = values.new_empty(sum(counts), *values.shape[1:])
                    columns[name][done : done + count] = values
            done += count
        on_gpu = device.type == "cuda"
        on_host = {name: column.to("cpu", non_blocking=on_gpu) for name, column in columns.items()}
        copied = torch.cuda.current_stream(device).record_event() if on_gpu else None
        return Launched(numbers, on_host, counts, copied)


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
            if count < len(block[1]):
                block[:] = [part[count:] for part in block]
            else:
                block.clear()  # frees the block before the next one is computed
                block[:] = next(stream, ())


def collect(launched: Launched) -> tuple[list[int], list[Columns]]:
    if launched.copied is not None:
        launched.copied.synchronize()
    columns = {name: column.numpy() for name, column in launched.columns.items()}
    return launched.numbers, [
        {name: values[first:end] for name, values in columns.items()}
        for first, end in pairwise(accumulate(launched.counts, initial=0))
    ]


def batches(
    numbers: Sequence[int],
    lengths: Sequence[int] | Mapping[int, int],
    batch_tokens: int,
    padding: int,
) -> list[list[int]]:
    """Group passes of similar lengths, longest first, so that there is little padding.

    Each group takes at most `batch_tokens` tokens once padded to its longest, at most `padding` of
    them padding, or has one pass.
    """
    groups: list[list[int]] = []
    longest = padded = 0
    for number in sorted(numbers, key=lambda number: -lengths[number]):
        padded += longest - lengths[number]
        if groups and (len(groups[-1]) + 1) * longest <= batch_tokens and padded <= padding:
            groups[-1].append(number)
        else:
            groups.append([number])
            longest, padded = lengths[number], 0
    return groups


# --- served models --------------------------------------------------------------------------------


class PassError(ValueError):
    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class ServedScorer:
    """Scores of passes under a served model.

    Beside the passes each request has a short prompt with known values, by which an answer of another
    model is detected.
    """

    def __init__(
        self, model: ServedModel, measures: Sequence[Measure], batch_size: int, batch_tokens: int
    ) -> None:
        self.model, self.models, self.measures = model, [model], measures
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.columns = [name for measure in measures for name in measure.columns]
        for column in self.columns:
            if column not in SERVED_COLUMNS:
                raise ValueError(
                    f"{NEEDS_LOGITS.get(column, column)} requires the logits of all tokens, but "
                    f"{model.description} gives log-probabilities of single ones. Load the model "
                    "itself, or leave it out."
                )
        tops = [measure.number for measure in measures if isinstance(measure, Alternatives)]
        self.num_likeliest = max(tops, default=int("top" in self.columns))
        self.num_top = max(tops, default=0)

    def score(
        self,
        row_of: Callable[[int], Row],
        numbers: Sequence[int],
        lengths: Sequence[int],
        finished: Container[int] = (),
    ) -> Scored:
        """Score passes as `Scorer.score` does; yield after every answer."""
        source, canary = self.model.source, Prompt(self.model.tried.ids[:CANARY_LENGTH])
        known = self.model.nll[: len(canary.ids) - 1]
        unfinished = [number for number in numbers if number not in finished]
        groups = []
        for group in batches(unfinished, lengths, self.batch_tokens, self.batch_tokens):
            # All prompts of a request have the same forced token.
            size = 1 if self._is_full(lengths[group[0]]) else self.batch_size
            groups += [group[first : first + size] for first in range(0, len(group), size)]

        def requests() -> Iterator[list[Prompt]]:
            for group in groups:
                prompts = [self._prompt(row_of(number)) for number in group]
                yield [canary._replace(forced=prompts[0].forced), *prompts]

        for number, answer in source.values_of_all(requests(), self.num_likeliest):
            group = groups[number]
            if isinstance(answer, AnswerError):
                raise PassError(
                    f"{self.model.description} answered with {answer}.",
                    group[max(0, answer.place - 1)],
                )
            nlls = answer[0].nll[: len(known)]
            if differ(nlls, known):  # of another model than the one that was tried
                self.model.check_same()
                if not np.abs(nlls - known).max() <= 10 * MOST_SPREAD:
                    raise changed_model(self.model.description)
            yield (
                group,
                [self._columns(values, row_of(n), n) for values, n in zip(answer[1:], group)],
            )
        self.model.check_same()

    def _is_full(self, length: int) -> bool:
        """Return whether a pass fills the model, so that its last target cannot be read too."""
        return self.model.source.api.forces and length == self.model.limit.readable

    def _prompt(self, row: Row) -> Prompt:
        ids, last = row.inputs.tolist(), int(row.targets[-1])
        if row.scored[-1] < len(ids) - 1:
            return Prompt(ids)
        return Prompt(ids, last) if self._is_full(len(ids)) else Prompt([*ids, last])

    def _columns(self, values: TokenValues, row: Row, number: int) -> Columns:
        columns: Columns = {"nll": values.nll[row.scored]}
        if "rank" in self.columns:
            if (values.rank == 0).any():
                raise PassError(
                    f"{self.model.description} does not say the rank of every token. Leave out ranks "
                    "and likeliest tokens, and coloured texts, which show both; or pass a smaller "
                    "max_length where it is that of the last token of a window that fills the model.",
                    number,
                )
            columns["rank"] = values.rank[row.scored]
        if "top" in self.columns:
            columns["top"] = np.array([top[0][0] for top in values.top])[row.scored]
        if self.num_top:
            tops = np.array([top[: self.num_top] for top in values.top])[row.scored]  # (R, K, 2)
            columns["top_ids"], columns["top_nll"] = tops[..., 0].astype(np.int64), -tops[..., 1]
        return columns
