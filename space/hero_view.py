"""The picture that the page begins with: one line of a story, read through a moving window.

The visitor drags the window's width and its step, so what each token costs after each possible
context is measured beforehand.
"""

import math

from .markup import payload
from .metric import new_metric
from .models import LoadedModel

LINE = (
    "The coach set me down at the cross roads a little after four o’clock, with my box beside me, "
    "and the rain coming on."
)
LONGEST_LINE = 40  # tokens; a tokenizer of bytes would make four times as many
WIDTHS = (4, 24)  # tokens in a window, fewest and most
WIDTH, STRIDE = 12, 4  # as the picture begins
DIGITS = 4


def hero_view(loaded: LoadedModel) -> str:
    """The frame of the picture, which the page's script draws and moves."""
    data = hero_data(loaded)
    return (
        f'<div class="ps-view ps-hero" data-view="hero" data-payload={payload(data)}>'
        '<div class="ps-reel"><div class="ps-film"></div></div>'
        '<p class="ps-caption"></p>'
        '<div class="ps-figures"><p><small>perplexity so far</small><b class="ps-so-far"></b></p>'
        "<p><small>tokens read for it</small><b class='ps-read'></b></p>"
        '<button type="button" class="ps-button" data-hero="play">Pause</button></div></div>'
    )


def hero_data(loaded: LoadedModel) -> dict:
    """The line's tokens, and the bits of each after every context it can have in a window.

    Places count from the start token: place 0 is the start token, place t + 1 the line's token t.
    `bits[begin][n]` is what the token at place begin + n + 1 costs when the window begins at `begin`.
    """
    tokenizer = loaded.tokenizer
    offsets = tokenizer(LINE, return_offsets_mapping=True, add_special_tokens=False)
    line = LINE[: offsets["offset_mapping"][:LONGEST_LINE][-1][1]]
    longest = min(WIDTHS[1], loaded.window)
    # A window's last token has all of it before it; stride 1 has a window end at every token.
    measured = new_metric().compute(
        predictions=[line],
        model=loaded.model,
        tokenizer=tokenizer,
        max_length=list(range(2, longest + 1)),
        stride=1,
        add_start_token="once",
        return_token_scores=True,
        batch_size=LONGEST_LINE,
    )["measurements"]
    bits: dict[int, dict[int, float]] = {}
    for [scores] in (one["token_scores"] for one in measured):
        for window in scores["windows"]:
            begin = 0 if window["start_token"] else window["begin"] + 1
            for token in range(window["first"], window["end"]):
                nll = scores["nll"][token] / math.log(2)
                bits.setdefault(begin, {})[token - begin] = round(nll, DIGITS)
    return {
        "tokens": [line[first:end] for first, end in scores["offsets"]],
        "bits": [[row[n] for n in sorted(row)] for _, row in sorted(bits.items())],
        "widths": [min(WIDTHS[0], longest), longest],
        "width": min(WIDTH, longest),
        "stride": min(STRIDE, longest - 1),
    }
