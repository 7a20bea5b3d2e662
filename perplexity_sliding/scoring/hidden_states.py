"""The reference's last hidden states in a file, for two models that do not fit in memory together.

The reference's body runs first and stores the rows that its vocabulary head takes.  Then the head alone
stays in memory, and computes from the file the logits that it would have computed beside the model.
Rows of hidden states are about thirty times smaller than rows of logits, and nothing is rounded.

Layout: a line of JSON that describes the measurement, padded to a multiple of `PAGE_BYTES`; for each
pass eight bytes, the digest of its rows, or 0 while they are missing; and the rows, pass by pass.

Not in SQLite as the scores of `checkpoint`: a value there has at most 10^9 bytes, fewer than the states
of one window of 131,072 tokens, 4,096 wide, in bfloat16; and the room for all states is taken before the
reference runs, so that a full disk shows at once.
"""

import errno
import json
import logging
import math
import os
from collections.abc import Collection, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xxhash

from ..digests import same_long_probes, same_probe
from ..errors import ArgumentError, Wording
from ..models.interface import Batch, LogitBlocks, Prefix, ScoredModel, describe_model
from ..models.language_model import LanguageModel
from ..models.logits import BodyThenHead
from ..plan.measurement import Columns, Measurement
from .measures import Block
from .passes import Scorer
from .runner import Progress, Session, Work, plan_work, progress_bar

FORMAT = "perplexity-sliding hidden states, 2"
PAGE_BYTES = 4096

# A child of evaluate's logger, so that evaluate.logging controls it.
logger = logging.getLogger("evaluate.perplexity_sliding")


def store_reference(
    path: str | PathLike,
    reference: ScoredModel,
    measurements: Sequence[Measurement],
    session: Session,
) -> tuple["StoredReference", Session]:
    """Store the reference's missing hidden states in a file, and free its body.

    Returns:
        the reference, and the session whose progress continues from here.

    Raises:
        ValueError: its architecture returns no last hidden states, it cannot be identified, or the
            file is of another kind or another run.
    """
    reference.check_identifiable("reference['states']")
    work = plan_work([reference], measurements)
    if not isinstance(reference, LanguageModel) or not isinstance(reference.head, BodyThenHead):
        raise ValueError(
            Wording(
                "`reference['states']` requires a reference that returns its last hidden states, "
                f"but {reference.description} has an unsupported architecture. Leave it out."
            )
        )
    file = StatesFile(path, reference, reference.head, work)
    if len(file.finished) < len(work.passes):
        file.record(session)
        session = session.after(sum(work.costs))
    return StoredReference(file), session


class HiddenRows:
    """A measure that returns its input: rows of hidden states (R, D)."""

    columns = ("states",)
    num_models = 1
    key = "states"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"states": blocks[0].logits}


class Body:
    """A model that returns hidden states instead of logits, with the attributes that a scorer reads."""

    def __init__(self, model: LanguageModel, head: BodyThenHead) -> None:
        self.forget_passes = model.forget_passes
        self.device, self.head, self.prefixes_agree = model.device, head, model.prefixes_agree
        # so that batches are equal to those with the model
        self.vocabulary_size, self.by_blocks = model.vocabulary_size, model.by_blocks
        self.alone = model.alone

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        self.forget_passes()
        yield self.head.states(batch.ids, batch.scored, prefix), batch.targets

    def read_in_parts(self, length: int, refusal: str) -> None:
        raise MemoryError(Wording(f"{refusal} `reference['states']` does not support chunks."))


class StatesFile:
    """Hidden states of the passes of some work under one reference.

    Args:
        path: the file; created if it is missing.
        reference: prepared.
        head: the way to its logits.

    Attributes:
        finished: the passes whose rows are in the file, undamaged.

    Raises:
        ValueError: the file is of another kind, or of another reference, text or plan.
        OSError: the disk has too little room.
    """

    def __init__(
        self, path: str | PathLike, reference: LanguageModel, head: BodyThenHead, work: Work
    ) -> None:
        self.path = Path(path)
        self.reference, self.body_and_head = reference, head
        self.work = work
        counts = [pass_.num_targets for pass_ in work.passes]
        self.first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        with torch.inference_mode():
            ids = torch.zeros(1, 1, dtype=torch.long, device=reference.device)
            states = head.states(ids, ids[0])
        self.dtype = states.dtype
        self.width = states.shape[1] * states.element_size()
        self.header: dict[str, Any] = {
            "format": FORMAT,
            "reference": describe_model(reference),
            "probe": reference.probe,
            "long_probe": reference.long_probe(max(work.lengths)),
            "passes": digest(work),
            "vocabulary": reference.vocabulary_size,
            "states": states.shape[1],
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        line = json.dumps(self.header).encode()
        self.head = line.ljust(-(-len(line) // PAGE_BYTES) * PAGE_BYTES, b"\0")
        self._open()
        self.digests = np.fromfile(self.path, np.uint64, len(counts), offset=len(self.head))
        self.finished = self._find_finished()

    @property
    def num_bytes(self) -> int:
        return self._place(len(self.work.passes))

    def _place(self, number: int) -> int:
        """Return the position of a pass's rows in the file."""
        num_digests = len(self.work.passes)
        return len(self.head) + 8 * num_digests + int(self.first_rows[number]) * self.width

    def _open(self) -> None:
        """Check the file; recreate an empty one that a killed run has left."""
        if self.path.exists() and not self.path.is_file():
            is_folder = self.path.is_dir()
            raise ArgumentError(
                "reference['states']",
                "be a file on a disk",
                got=f"the {'folder' if is_folder else 'device'} {str(self.path)!r}",
                advice="Name a file in it." if is_folder else "Name a new file.",
            )
        head = b""
        if self.path.exists():
            with open(self.path, "rb") as file:
                head = file.read(len(self.head)).rstrip(b"\0")
        if head:
            self._check(head)
        self._allocate(is_new=not head)

    def _check(self, head: bytes) -> None:
        try:
            stored = json.loads(head)
        except ValueError:
            stored = {}
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise ValueError(
                Wording(
                    f"`reference['states']`={str(self.path)!r} must be a file of hidden states, "
                    "or a new one, got a file of another kind."
                )
            )
        differing = [name for name in self.header if not self._agrees(name, stored.get(name))]
        if differing:
            raise ValueError(
                Wording(
                    f"`reference['states']`={str(self.path)!r} was made for another "
                    f"{NAMES[differing[0]]}. Name another file, or remove this one."
                )
            )
        size = self.path.stat().st_size
        if size > self.num_bytes:
            raise ValueError(
                Wording(
                    f"`reference['states']`={str(self.path)!r} must have {self.num_bytes} bytes, "
                    f"got {size}: something was added to it. Remove it."
                )
            )

    def _agrees(self, name: str, stored: Any) -> bool:
        """Check an entry of the header against this reference and this work."""
        value = self.header[name]
        if name == "probe" and isinstance(stored, float) and value is not None:
            return same_probe(value, stored, self.header["reference"])
        if name == "long_probe" and value is not None:
            return same_long_probes(value, stored, self.header["reference"])
        return stored == value

    def _allocate(self, is_new: bool) -> None:
        """Allocate the file before hours of work, and write the header."""
        try:
            with open(self.path, "wb" if is_new else "r+b") as file:
                allocate(file.fileno(), self.num_bytes)
                file.write(self.head)
        except OSError as error:
            if is_new:
                self.path.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise OSError(
                error.errno,
                f"{error.strerror}: `reference['states']` needs {self.num_bytes / 2**30:.3g} GiB",
                str(self.path),
            ) from None

    def _find_finished(self) -> set[int]:
        """Return the passes whose rows are intact; warn of damaged ones."""
        written = np.flatnonzero(self.digests).tolist()
        finished = {number for number in written if self._is_whole(number, self._read(number))}
        if len(finished) < len(written):
            logger.warning(
                f"`reference['states']`={str(self.path)!r} is damaged in "
                f"{len(written) - len(finished)} of "
                f"{len(self.digests)} passes, which are computed again."
            )
        return finished

    def _read(self, number: int) -> np.ndarray:
        """Read the bytes of a pass's rows; fewer if the file is truncated."""
        begin, end = self._place(number), self._place(number + 1)
        return np.fromfile(self.path, np.uint8, end - begin, offset=begin)

    def _is_whole(self, number: int, data: np.ndarray) -> bool:
        return digest_of_rows(number, data) == self.digests[number]

    def record(self, session: Session) -> None:
        """Run the reference's body over the passes whose rows are missing."""
        costs = self.work.costs
        batch_tokens = session.batch_size * self.work.max_length
        body = cast(ScoredModel, Body(self.reference, self.body_and_head))
        scorer = Scorer([body], [HiddenRows()], batch_tokens, session.logits_memory)
        done, total = sum(costs[number] for number in self.finished), sum(costs)
        with progress_bar(
            total=total, initial=done, unit="token", desc="Reference", disable=None
        ) as bar:
            for numbers, batch in scorer.score(self.work.row, costs, frozenset(self.finished)):
                self._keep(numbers, batch)
                read = sum(costs[number] for number in numbers)
                bar.update(read)
                done += read
                if session.callback is not None:  # the model reads as many tokens afterwards
                    session.callback(Progress(done, 2 * total, math.nan))

    def _keep(self, numbers: Sequence[int], batch: Sequence[Columns]) -> None:
        """Write the rows of passes, and then their digests."""
        with open(self.path, "r+b") as file:
            for number, columns in zip(numbers, batch):
                states = torch.from_numpy(columns["states"]).to(self.dtype)  # exact: it came so
                data = states.contiguous().view(torch.uint8).numpy()
                file.seek(self._place(number))
                file.write(data.data)
                self.digests[number] = digest_of_rows(number, data)
                file.seek(len(self.head) + 8 * number)
                file.write(self.digests[number].tobytes())
        self.finished.update(numbers)

    def states(self, number: int) -> torch.Tensor:
        """Return the rows (R, D) of a pass.

        Raises:
            ValueError: they have changed since the file was opened.
        """
        data = self._read(number)
        if not self._is_whole(number, data):
            raise ValueError(
                Wording(
                    f"`reference['states']`={str(self.path)!r} was changed while it was read. "
                    "Repeat the call."
                )
            )
        return torch.from_numpy(data).view(self.dtype).reshape(-1, self.header["states"])


def allocate(file: int, num_bytes: int) -> None:
    """Allocate space for a file, if the system supports it; keep its contents."""
    try:
        os.posix_fallocate(file, 0, num_bytes)
    except AttributeError:  # macOS, Windows
        os.truncate(file, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some network disks
            raise
        os.truncate(file, num_bytes)


def digest_of_rows(number: int, data: np.ndarray) -> int:
    """Return a hash of a pass's rows, never 0."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(data).data, seed=number) or 1


# Names of the header's entries in errors.
NAMES = {
    "reference": "reference model",
    "probe": "reference model, by its nll of the probe text",
    "long_probe": "reference model, by its nll of a long probe text",
    "passes": "text, window or stride",
    "vocabulary": "reference model",
    "states": "reference model",
    "dtype": "dtype",
}


class StoredReference(LanguageModel):
    """A reference without its body: its hidden states come from a file."""

    def __init__(self, file: StatesFile) -> None:
        reference = file.reference
        self.__dict__.update(vars(reference))
        self.file = file
        self._numbers = {
            row_key(row.inputs, row.scored): number
            for number, row in enumerate(map(file.work.row, range(len(file.work.passes))))
        }
        drop_body(reference.model, file.body_and_head.body)

    def check(self) -> None:
        """Do nothing: the model was checked when it was whole."""

    def prepare(
        self, length: int, num_tokens: int = 0, whole_lengths: Collection[int] = ()
    ) -> None:
        """Do nothing: the model was prepared when it was whole."""

    def read_in_parts(self, length: int, refusal: str) -> None:
        raise MemoryError(refusal)

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        """Yield logits as `LanguageModel.logits` does, for passes that are in the file."""
        length = batch.ids.shape[1]
        lines, rows = batch.ids.cpu().numpy(), batch.scored.cpu().numpy()
        states = []
        for line in range(len(lines)):
            scored_rows = rows[rows // length == line] - line * length
            # Where the length of a pass matters, nothing is padded.
            read = scored_rows[-1] + 1 if self.prefixes_agree else length
            number = self._numbers.get(row_key(lines[line, :read], scored_rows))
            if number is None:
                raise ValueError(
                    Wording(
                        "`reference['states']` cannot be used with a model whose scores depend on "
                        "the length of a pass. Leave it out."
                    )
                )
            states.append(self.file.states(number))
        rows_of_batch = torch.cat(states).to(self.device)
        yield from self.file.body_and_head.blocks(rows_of_batch, batch.targets, block_rows)


def row_key(inputs: np.ndarray, scored: np.ndarray) -> str:
    """Return a digest that identifies a pass by the tokens it reads and the rows it scores."""
    digest = xxhash.xxh3_128(np.ascontiguousarray(inputs, np.int64).tobytes())
    digest.update(b"|")
    digest.update(np.ascontiguousarray(scored, np.int64).tobytes())
    return digest.hexdigest()


def digest(work: Work) -> str:
    """Hash all passes: the tokens that they read, and those that they score."""
    digest = xxhash.xxh3_128()
    for stream in work.streams:
        digest.update(stream.digest.encode())
    for pass_ in work.passes:
        digest.update(repr(tuple(pass_)).encode())
    return digest.hexdigest()


def drop_body(model: Any, body: torch.nn.Module) -> None:
    """Free the weights of a model's body that its head does not share."""
    inside = {id(parameter) for parameter in body.parameters()}
    in_body = set(body.modules())
    outside = (module for module in model.modules() if module not in in_body)
    kept = {
        id(parameter)
        for module in (model.get_output_embeddings(), *outside)
        for parameter in module.parameters(recurse=False)
    }
    for module in body.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) in inside - kept:
                empty = torch.empty_like(parameter, device="meta")
                module._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
