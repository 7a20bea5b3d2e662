"""Picture of the windows over a text."""

import math
from collections.abc import Iterator, Sequence

from .markup import count
from .reading import Reading

LANES = 3  # windows are drawn in turns below each other, so that overlaps can be seen
PICTURED = 10  # number of window lengths, from the start of the text, over which windows are drawn
KEY = (
    '<ul class="ps-key"><li><i class="ps-context"></i>read as context</li><li><i class="ps-new"></i>'
    'scored</li><li><i class="ps-lost"></i>not scored at all</li></ul>'
)


def window_picture(reading: Reading) -> str:
    """Draw the windows over this text: tokens that they read, tokens that they score, unscored tokens.

    Over a long text, only the first windows are drawn; the scored tokens are shown for all of it.
    """
    tokens, windows = reading.tokens, reading.tokens["windows"]
    length = max(1, len(tokens["tokens"]))
    lost = tokens["nll"].count(None)
    reach = pictured_tokens(reading)
    longest = max(window["end"] - window["begin"] for window in windows)
    step = (windows[-1]["begin"] - windows[0]["begin"]) / max(1, len(windows) - 1) or longest
    skip = max(1, math.ceil(longest / step / LANES))
    words = (
        f"{count(len(windows), 'window')}{f', 1 in {skip} drawn' if skip > 1 else ''}; "
        f"{lost:,} of {count(length, 'token')} not scored"
    )
    drawn = [window for window in windows[::skip] if window["begin"] < reach]
    coverage = "".join(
        f'<rect class="{kind}" x="{begin}" y="0" width="{end - begin}" height="1"/>'
        for kind, begin, end in _runs(tokens["nll"])
    )
    return (
        f'<div class="ps-cut" role="img" aria-label="{words}">'
        f'<svg viewBox="0 0 {reach} {LANES}" preserveAspectRatio="none">{"".join(_window_bars(drawn))}'
        f'</svg><svg viewBox="0 0 {length} 1" preserveAspectRatio="none">{coverage}</svg></div>'
        f"<small>{words}</small>"
    )


def pictured_tokens(reading: Reading) -> int:
    """Count the tokens of the text under the drawn windows: all of a short one."""
    return max(1, min(len(reading.tokens["tokens"]), PICTURED * reading.window))


def _window_bars(windows: Sequence[dict]) -> Iterator[str]:
    for index, window in enumerate(windows):
        lane = index % LANES
        for kind, begin, end in (
            ("ps-context", window["begin"], window["first"]),
            ("ps-new", window["first"], window["end"]),
        ):
            if end > begin:
                yield (
                    f'<rect class="{kind}" x="{begin}" y="{lane}" width="{end - begin}" height="0.8"/>'
                )


def _runs(nll: Sequence[float | None]) -> Iterator[tuple[str, int, int]]:
    """Yield ranges of scored or unscored tokens, as (class, begin, end)."""
    begin = 0
    for place in range(1, len(nll) + 1):
        if place == len(nll) or (nll[place] is None) != (nll[begin] is None):
            yield "ps-lost" if nll[begin] is None else "ps-new", begin, place
            begin = place
