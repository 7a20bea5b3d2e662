"""Which forward passes give the scores of many windows: integers only.

For a causal model a shorter window is a prefix of a longer one that begins at the same token, so
all of them are one pass, the longest, and each window's scores are a slice of its pass's::

    tokens        0  1  2  3  4  5  6  7  8  9
    window A               .  .  .  #  #  #         # scored   . read as context
    window B               .  .  #  #
    their pass             .  .  #  #  #  #

Windows of several protocols, strides and window lengths are merged so; equal texts count as one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from .windows import Window


class Pass(NamedTuple):
    """One row of a forward pass, and the targets that are scored in it.

    Attributes:
        stream: number of the stream of tokens that is read.
        begin: first token of the stream that is read.
        end: one past the last target; x[end - 1] is scored but not read.
        start_token: id of the token that stands before x[begin], or None.
        targets: ranges (first, one past the last) of the targets, ascending and apart from each
            other.
    """

    stream: int
    begin: int
    end: int
    start_token: int | None
    targets: tuple[tuple[int, int], ...]

    @property
    def num_inputs(self) -> int:
        """Tokens read, the start token included: the length of the row fed to the model."""
        return self.end - 1 - self.begin + (self.start_token is not None)

    @property
    def num_targets(self) -> int:
        return sum(end - first for first, end in self.targets)


class PlannedWindow(NamedTuple):
    """A window over one of several streams.

    Attributes:
        start_id: the token id that stands before it; None where the window has no start token.
    """

    stream: int
    window: Window
    start_id: int | None


class Place(NamedTuple):
    """Where the scores of a window are: in those of a pass, from `offset` on."""

    number: int
    offset: int


def merge_windows(
    windows: Sequence[PlannedWindow], prefixes_agree: bool = True
) -> tuple[list[Pass], list[Place]]:
    """Merge windows into the fewest passes, in the order in which their first windows come.

    Args:
        prefixes_agree: whether the model gives a token the same score in a shorter and in a longer
            pass; otherwise only windows of the same length are merged.

    Returns:
        the passes, and for every window the place of its scores.
    """
    groups: dict[tuple, list[int]] = {}
    for number, (stream, window, start_id) in enumerate(windows):
        key = (stream, window.begin, start_id, None if prefixes_agree else window.end)
        groups.setdefault(key, []).append(number)
    passes: list[Pass] = []
    places: list[Place] = [Place(0, 0)] * len(windows)
    for (stream, begin, start_id, _), members in groups.items():
        spans = [windows[number].window for number in members]
        targets = unite((window.first, window.end) for window in spans)
        for number, window in zip(members, spans):
            places[number] = Place(len(passes), offset_of(targets, window.first))
        passes.append(Pass(stream, begin, targets[-1][1], start_id, targets))
    return passes, places


class SharedPrefix(NamedTuple):
    """Passes that begin with the same tokens, which can be read once for all of them.

    Attributes:
        numbers: of the passes.
        length: tokens that they share, the start token included; none of their rows is scored.
    """

    numbers: tuple[int, ...]
    length: int

    @property
    def saved(self) -> int:
        """Tokens that need not be read again."""
        return (len(self.numbers) - 1) * self.length


def find_shared_prefixes(
    passes: Sequence[Pass], prefix_of: Callable[[Pass], Sequence[int]], least: int
) -> list[SharedPrefix]:
    """Find the passes that begin with the same tokens.

    Args:
        prefix_of: gives what a pass reads before anything of its own.
        least: fewest tokens to save by reading a prefix once; fewer are not worth it.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(passes):
        prefix = tuple(prefix_of(one))
        if prefix:
            groups.setdefault(prefix, []).append(number)
    shared = [SharedPrefix(tuple(numbers), len(prefix)) for prefix, numbers in groups.items()]
    return [group for group in shared if group.saved >= least]


def unite(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The union of ranges (first, one past the last), as ascending ranges that do not touch."""
    united: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if united and first <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((first, end))
    return tuple(united)


def offset_of(targets: tuple[tuple[int, int], ...], target: int) -> int:
    """How many targets of ascending ranges come before one of them."""
    if len(targets) == 1:
        return target - targets[0][0]
    before = [0, *accumulate(end - first for first, end in targets)]
    place = bisect_right(targets, target, key=lambda span: span[0]) - 1
    return before[place] + target - targets[place][0]


def count_inputs(passes: Iterable[Pass]) -> int:
    """Tokens that passes read: their cost."""
    return sum(one.num_inputs for one in passes)
