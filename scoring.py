"""A causal language model as a scorer: windows of token ids in, negative log-likelihoods out.

Windows of all texts are pooled, sorted by length, right-padded and run in batches; a causal model
needs no mask for padding on the right.  Only the rows that are scored go through the vocabulary
head, a block of them at a time, so that logits never fill the memory.  Log-likelihoods are taken in
float32 whatever the model runs in: in bfloat16 they would come in steps.
"""

import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from .heads import Head

# On a CPU: tokens in a forward pass, and rows of logits computed at once, beyond which more of them
# only cost cache misses; and bytes of logits that the loss finds in cache.
CPU_BATCH_TOKENS = 1024
CPU_BLOCK_ROWS = 512
CPU_LOSS_BYTES = 2**23
# Tokens of padding in a forward pass that cost as much as another one, which reads all weights: on
# a CPU as measured, elsewhere about the ratio of an accelerator's matrix rate to its memory's.
CPU_PADDING = 32
PADDING = 256
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class Row(NamedTuple):
    """One window as the scorer sees it.

    Attributes:
        inputs: token ids to read (T,), the start token included.
        targets: token ids to score (R,), each predicted from one of the last R rows.
    """

    inputs: np.ndarray
    targets: np.ndarray


class TokenColumns(NamedTuple):
    """Scores of a window's R targets.

    Attributes:
        nll: negative log-likelihoods in nats (R,), float32.
        rank: 1 for the likeliest token, and so on (R,); with alternatives only, as all below.
        top_ids: the likeliest tokens, best first (R, K).
        top_nll: their negative log-likelihoods (R, K).
    """

    nll: np.ndarray
    rank: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_nll: np.ndarray | None = None


class Scorer:
    """Negative log-likelihoods of windows under one model.

    Args:
        device: where the model takes its token ids.
        head: the way to its logits.
        vocabulary: logits that it gives for a token.
        batch_tokens: tokens in one forward pass, padding included; a longer window runs alone.
        logits_memory: bytes that logits and the loss over them may take.
        num_alternatives: likeliest tokens to report beside each target.
    """

    def __init__(
        self,
        device: torch.device,
        head: Head,
        vocabulary: int,
        batch_tokens: int,
        logits_memory: int,
        num_alternatives: int = 0,
    ):
        self.device = device
        self.head = head
        self.batch_tokens = batch_tokens
        self.padding = PADDING
        # A row of logits exists in the model's dtype, in float32, and once more inside the loss.
        self.block_rows = max(1, logits_memory // (vocabulary * 12))
        self.loss_rows = self.block_rows
        self.num_alternatives = min(num_alternatives, vocabulary)
        if device.type == "cpu":
            self.batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS)
            self.padding = CPU_PADDING
            self.loss_rows = max(1, CPU_LOSS_BYTES // (vocabulary * 4))
            if head.by_blocks:
                self.block_rows = min(self.block_rows, CPU_BLOCK_ROWS)

    @torch.inference_mode()
    def score(
        self,
        row: Callable[[int], Row],
        lengths: Sequence[int],
        finished: Container[int] = (),
    ) -> Iterator[tuple[list[int], list[TokenColumns]]]:
        """Score windows, longest first; yield after every batch.

        Args:
            row: gives the window of a number, 0 to len(lengths) - 1.
            lengths: tokens that each window reads.
            finished: numbers to leave out.  The rest is batched as if they were there, so that a
                resumed run rounds as the whole one would have.

        Yields:
            (numbers of the windows, their scores): see `TokenColumns`.

        Raises:
            MemoryError: a single window does not fit.
            ValueError: the model's forward pass failed in another way.
        """
        waiting = [
            rest
            for numbers in reversed(batches(lengths, self.batch_tokens, self.padding))
            if (rest := [number for number in numbers if number not in finished])
        ]
        running = None  # collected once the next batch is launched, so that a GPU never waits
        while waiting:
            numbers = waiting.pop()
            if len(numbers) > 1 and len(numbers) * lengths[numbers[0]] > self.batch_tokens:
                waiting += [numbers[len(numbers) // 2 :], numbers[: len(numbers) // 2]]
                continue
            try:
                launched = numbers, self._launch([row(number) for number in numbers])
            except Exception as error:
                if not is_out_of_memory(error):
                    raise ValueError(
                        f"`model` failed on {len(numbers)} windows of {lengths[numbers[0]]} "
                        f"tokens: {error or type(error).__name__}."
                    ) from error
                self._lower_batch(len(numbers), lengths[numbers[0]], error)
                waiting.append(numbers)
                continue
            if running is not None:
                yield running[0], collect(*running[1])
            running = launched
        if running is not None:
            yield running[0], collect(*running[1])

    def _launch(self, rows: list[Row]) -> tuple[list[torch.Tensor], list[int], object]:
        """Score a batch; return what `collect` takes, on a GPU before it has been computed."""
        ids = np.full((len(rows), max(len(row.inputs) for row in rows)), rows[0].inputs[0])
        for line, row in zip(ids, rows):
            line[: len(row.inputs)] = row.inputs  # right padding
        scored = [
            np.arange(len(row.inputs) - len(row.targets), len(row.inputs)) + number * ids.shape[1]
            for number, row in enumerate(rows)
        ]
        blocks = self.head(
            self._to_device(ids),  # (B, T)
            self._to_device(np.concatenate(scored)),  # (R,), counting through B * T
            self._to_device(np.concatenate([row.targets for row in rows])),  # (R,)
            self.block_rows,
        )
        columns = self._columns(blocks, sum(len(row.targets) for row in rows))
        on_gpu = columns[0].is_cuda
        on_host = [column.to("cpu", non_blocking=on_gpu) for column in columns]
        copied = torch.cuda.current_stream(columns[0].device).record_event() if on_gpu else None
        return on_host, [len(row.targets) for row in rows], copied

    def _columns(self, blocks: Iterator, num_rows: int) -> list[torch.Tensor]:
        """Score blocks of logits into columns of `num_rows` rows; see `TokenColumns`."""
        columns, done = [], 0
        for logits, targets in blocks:
            for part in zip(logits.split(self.loss_rows), targets.split(self.loss_rows)):
                values = token_columns(*part, self.num_alternatives)
                # At once in their place: kept, they would lie between the blocks that a CPU's
                # allocator takes for every loss, and none could be taken again.
                if not columns:
                    columns = [value.new_empty(num_rows, *value.shape[1:]) for value in values]
                for column, value in zip(columns, values):
                    column[done : done + len(value)] = value
                done += len(part[1])
        return columns

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _lower_batch(self, num_windows: int, length: int, error: Exception) -> None:
        """After running out of memory: halve the batch for the rest, or give up on one window."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if num_windows == 1:
            raise MemoryError(
                f"One window of {length} tokens does not fit in the memory of {self.device}: lower "
                "`max_length`, load the model in a smaller `dtype`, or lower `logits_memory`."
            ) from error
        self.batch_tokens = (num_windows // 2) * length
        warnings.warn(
            f"Out of memory with {num_windows} windows of {length} tokens in a batch; going on "
            f"with {num_windows // 2}. Pass a smaller `batch_size` to avoid the detour.",
            stacklevel=2,
        )


def collect(columns: list[torch.Tensor], counts: list[int], copied) -> list[TokenColumns]:
    """Give the scores of a batch window by window, once they have been `copied` to the host."""
    if copied is not None:
        copied.synchronize()
    ends = np.cumsum(counts)[:-1]
    return [TokenColumns(*own) for own in zip(*(np.split(c.numpy(), ends) for c in columns))]


def batches(lengths: Sequence[int], batch_tokens: int, padding: int) -> list[list[int]]:
    """Group windows of like lengths, longest first, so that hardly any padding is run.

    Each group takes at most `batch_tokens` tokens once padded to its longest, at most `padding` of
    them padding, or holds one window.
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


def token_columns(
    logits: torch.Tensor, targets: torch.Tensor, num_alternatives: int
) -> tuple[torch.Tensor, ...]:
    """Score targets (R,) under logits (R, V), in float32; see `TokenColumns` for what comes."""
    logits = logits.float()
    nll = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    if not num_alternatives:
        return (nll,)
    rank = 1 + (logits > logits.gather(1, targets[:, None])).sum(1)
    top = logits.topk(num_alternatives)
    return nll, rank, top.indices, logits.logsumexp(1, keepdim=True) - top.values


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        phrase in str(error).lower() for phrase in OUT_OF_MEMORY
    )
