"""Windows, which define the tokens to read and to score, and their merging into passes.

Each pass is one row of a forward.  For a causal model a shorter window is a prefix of a longer one
that begins at the same token, so all of them are one pass, the longest, and each window's scores
are a slice of its pass's::

    tokens        0  1  2  3  4  5  6  7  8  9
    window A               .  .  .  #  #  #         # scored   . read as context
    window B               .  .  #  #
    their pass             .  .  #  #  #  #

Windows of several protocols, strides and lengths are merged in this way; equal texts count as one.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol, Start

# Longest window for a model that states no limit, unless `max_length` is given.
UNLIMITED_WINDOW = 2048


@dataclass(frozen=True)
class ContextLimit:
    """The maximum number of tokens of a model, or None.

    Attributes:
        length: the stated limit.
        table: size of the table of absolute positions, which no window may exceed.
        readable: tokens that one pass may read; a server reserves space for its answer.
    """

    length: int | None
    table: int | None
    readable: int | None = None


class Window(NamedTuple):
    """One forward pass over part of a text, and the targets it scores.

    With `begin=2, first=4, end=7` (and no start token), the model reads x[2..5] and scores x[4..6],
    each predicted from the row of the token before it::

        INPUT   x2  x3  x4  x5
        PRED        .   x4  x5  x6

    Attributes:
        begin: first token that is read.
        first, end: half-open range of the targets; x[end - 1] is scored but not read.
        start_token: whether the start token precedes x[begin].
        behind: tokens of the planned window from x[end - 1] on that no target needs.  They are read
            if the model's scores depend on the length of the pass.
    """

    begin: int
    first: int
    end: int
    start_token: bool = False
    behind: int = 0

    @property
    def num_inputs(self) -> int:
        return self.end - 1 - self.begin + self.start_token

    @property
    def num_targets(self) -> int:
        return self.end - self.first

    def context_length(self, target: int) -> int:
        """Count the tokens that the prediction of x[target] sees, the start token included."""
        return target - self.begin + self.start_token

    def context_lengths(self) -> range:
        return range(self.context_length(self.first), self.context_length(self.end))


def plan_windows(
    num_tokens: int,
    max_length: int,
    stride: int,
    start: Start = "none",
    protocol: Protocol = PROTOCOLS[DEFAULT_PROTOCOL],
) -> Iterator[Window]:
    """Plan the windows over a text of `num_tokens` tokens, without the start token, in order.

    Under "sliding", window k consists of the `max_length` tokens from k * stride on.  A token is
    scored in the first window that contains it, given all preceding tokens of that window.  With
    `stride == max_length` windows share no token, so the first token of a later window is scored
    from the last row of the previous one.  Every token with a predecessor is scored exactly once for
    every stride.

    Args:
        max_length: positions in a window, at least 2; at least 3 if second halves are scored.
        stride: 1 to `max_length`; with `start="every"`, to `max_length - 1`.
        start: "none"; "once", before the text; "every", at the head of each window; "replace",
            instead of each window's first token.
    """
    if start == "every":
        # The start token occupies a position, and precedes the first token of each window.
        spans = _spans(num_tokens, max_length - 1, stride, protocol.last, lead=0)
        return (Window(begin, first, end, True) for begin, first, end in spans)
    scores_next = protocol.scores_next == "always" or (
        protocol.scores_next == "without overlap" and stride == max_length
    )
    width = max_length + scores_next
    if start == "once":
        spans = (
            _spans(num_tokens + 1, width, stride, protocol.last)
            if protocol.first_window == "full"
            else growing_spans(num_tokens + 1, width, stride)
        )
        # of [start token] + text
        return (
            Window(max(begin - 1, 0), first - 1, end - 1, begin == 0) for begin, first, end in spans
        )
    spans = _spans(num_tokens, width, stride, protocol.last)
    if protocol.scores == "all":
        spans = ((begin, begin + 1, end) for begin, _, end in spans)
    if protocol.scores == "second half":
        spans = ((begin, begin + max_length // 2 + 1, end) for begin, _, end in spans)
    replaced = start == "replace"
    return (Window(begin + replaced, first, end, replaced) for begin, first, end in spans)


def _spans(
    length: int, width: int, stride: int, last: str, lead: int = 1
) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, first, end) of windows of `width` tokens, with `lead` tokens before a target."""
    if last == "popped":
        length = (length - width - 1) // stride * stride + width - 1
    scored = 0
    for begin in range(0, length, stride):
        end = begin + width
        if end > length:
            if last in ("dropped", "popped"):
                return
            if last == "full":
                begin = max(0, length - width)
            end = length
        first = max(scored, begin + lead)
        if first < end:
            yield begin, first, end
        scored = end
        if end == length or last == "cut":
            return


def growing_spans(length: int, width: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield as `_spans`, with `stride` targets per window, after all context that fits."""
    for first in range(1, length, stride):
        yield max(0, first + stride - width), first, min(first + stride, length)


@dataclass(frozen=True)
class Plan:
    """A protocol with its settings for one model.

    Attributes:
        start, start_id: position of the start token, and its id; None without one.
        carries: state carried from window to window: "nothing", "keys(N)" for the keys of the last
            `max_length - stride` tokens, or a recurrent "state".
    """

    protocol: Protocol
    max_length: int
    stride: int
    start: Start
    start_id: int | None
    carries: str = "nothing"

    def windows(self, num_tokens: int) -> list[Window]:
        return list(
            plan_windows(num_tokens, self.max_length, self.stride, self.start, self.protocol)
        )

    def over(self, stream: int, windows: Iterable[Window]) -> "list[PlannedWindow]":
        if self.protocol.feeds_last:
            windows = [window._replace(behind=window.behind + 1) for window in windows]
        return [PlannedWindow(stream, w, self.start_id if w.start_token else None) for w in windows]


def num_scored(windows: list[Window]) -> int:
    return sum(window.num_targets for window in windows)


def restrict_windows(windows: Iterable[Window], targets: Sequence[tuple[int, int]]) -> list[Window]:
    """Restrict windows to ranges of targets, ascending and disjoint; each gives a window of its own."""
    restricted, place = [], 0
    for window in windows:
        while place < len(targets) and targets[place][1] <= window.first:
            place += 1
        following = place
        while following < len(targets) and targets[following][0] < window.end:
            first, end = max(window.first, targets[following][0]), targets[following][1]
            end = min(window.end, end)
            restricted.append(window._replace(first=first, end=end, behind=window.end - end))
            following += 1
    return restricted


def last_window(num_tokens: int, first: int, max_length: int, starts: bool) -> Window:
    """Plan the window in which lm-evaluation-harness scores a continuation, from token `first` on.

    It reads the last `max_length` tokens before its last target; a start token is dropped first.
    """
    begin = max(0, num_tokens - 1 - max_length)
    return Window(begin, first, num_tokens, starts and num_tokens <= max_length)


def guide_weights(windows: list[Window]) -> list[int]:
    """Compute the weights of the window losses in the transformers guide's present form.

    It counts the labels of the window that are not masked, less one for the shift, which costs a label
    only where the window's first token is among them: later windows weigh one too little.
    """
    ends = [0] + [window.end for window in windows]
    return [end - previous_end - 1 for previous_end, end in itertools.pairwise(ends)]


# --- passes ---------------------------------------------------------------------------------------


class Pass(NamedTuple):
    """One row of a forward pass, and the targets that are scored in it.

    Attributes:
        begin, end: the tokens x[begin..end - 2] are read; x[end - 1] is only scored, if it is a target.
        start_token: id of the token before x[begin], or None.
        targets: half-open ranges (first, end) of the targets, ascending and disjoint.
    """

    stream: int
    begin: int
    end: int
    start_token: int | None
    targets: tuple[tuple[int, int], ...]

    @property
    def num_inputs(self) -> int:
        return self.end - 1 - self.begin + (self.start_token is not None)

    @property
    def num_targets(self) -> int:
        return sum(end - first for first, end in self.targets)


class PlannedWindow(NamedTuple):
    stream: int
    window: Window
    start_id: int | None


class Place(NamedTuple):
    """The location of a window's scores: a pass, and the offset in its scores."""

    number: int
    offset: int


def merge_windows(
    windows: Sequence[PlannedWindow], prefixes_agree: bool = True
) -> tuple[list[Pass], list[Place]]:
    """Merge windows into the fewest passes, in the order of their first windows, and locate each.

    Unless `prefixes_agree`, only windows of the same length are merged, and each is read completely.
    """
    groups: dict[tuple, list[int]] = {}
    for number, (stream, window, start_id) in enumerate(windows):
        whole_end = None if prefixes_agree else window.end + window.behind
        key = (stream, window.begin, start_id, whole_end)
        groups.setdefault(key, []).append(number)
    passes: list[Pass] = []
    places: list[Place] = [Place(0, 0)] * len(windows)
    for (stream, begin, start_id, whole_end), members in groups.items():
        spans = [windows[number].window for number in members]
        targets = unite([(window.first, window.end) for window in spans])
        for number, window in zip(members, spans):
            before = [
                min(end, window.first) - first for first, end in targets if first < window.first
            ]
            places[number] = Place(len(passes), sum(before))
        passes.append(Pass(stream, begin, whole_end or targets[-1][1], start_id, targets))
    return passes, places


class SharedPrefix(NamedTuple):
    """Numbers of passes with a common prefix to be read once, and its length with the start token."""

    numbers: tuple[int, ...]
    length: int


def find_shared_prefixes(
    passes: Sequence[Pass], prefix_of: Callable[[Pass], Sequence[int]], least: int
) -> list[SharedPrefix]:
    """Find the passes with a common prefix, none of whose rows is scored, that saves `least` tokens."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, pass_ in enumerate(passes):
        groups.setdefault(tuple(prefix_of(pass_)), []).append(number)
    return [
        SharedPrefix(tuple(numbers), len(prefix))
        for prefix, numbers in groups.items()
        if (len(numbers) - 1) * len(prefix) >= least
    ]


def unite(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Unite half-open ranges into ascending ranges that do not touch."""
    ranges = sorted(ranges)
    if len(ranges) == 1:  # most short texts
        return (ranges[0],)
    united: list[tuple[int, int]] = []
    for first, end in ranges:
        if united and first <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((first, end))
    return tuple(united)


def count_inputs(passes: Iterable[Pass]) -> int:
    return sum(pass_.num_inputs for pass_ in passes)
