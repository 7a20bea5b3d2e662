"""How common each choice is: of a tool, a window, a start token, an average.

Weights are relative to the most common choice.  They are judgements, not measurements.
"""

import math
from collections.abc import Callable


def power_of_two(bits: float) -> float:
    return 2.0**bits if bits < 1024 else math.inf


TOOLS = {
    **{"lm-eval": 1.0, "llama.cpp": 1.0, "gptq": 1.0, "stock": 0.9, "run-clm": 0.8},
    **{"transformers-docs": 0.9, "transformers-docs-weighted": 0.9, "sliding": 0.7},
}
OTHER_TOOL, OTHER_WINDOW, WINDOW_AS_STRIDE, OTHER_STRIDE = 0.5, 0.4, 0.8, 0.4
STARTS: dict[bool | str, float] = {True: 1.0, False: 0.6, "every": 0.2}
# By a tool in the layout that it reads; by a tool in another layout, and by us, beside the layout.
DETOKENIZED_BY_TOOL, DETOKENIZED_ELSEWHERE, DETOKENIZED_BY_US = 2.0, 0.5, 0.1
# Averages: the key of a result, the conversion if any, and the weight for tools that do not print them.
AVERAGES: dict[str, tuple[str, Callable[[float], float] | None, float]] = {
    "perplexity": ("perplexity", None, 0.4),
    "mean_perplexity": ("mean_perplexity", None, 0.3),
    "word_perplexity": ("word_perplexity", None, 0.3),
    "byte_perplexity": ("bits_per_byte", power_of_two, 0.1),
    "bits_per_byte": ("bits_per_byte", None, 0.3),
    "bits_per_original_byte": ("bits_per_original_byte", None, 0.2),
    "original_byte_perplexity": ("bits_per_original_byte", power_of_two, 0.1),
    "bits_per_character": ("bits_per_character", None, 0.2),
    "adjusted_perplexity": ("adjusted_perplexity", None, 0.2),
    "nats_per_token": ("perplexity", math.log, 0.3),
    "bits_per_token": ("perplexity", math.log2, 0.1),
}
# Averages that a tool prints, whose weight is 1; only the perplexity by default.
PRINTED = {
    "stock": ("mean_perplexity",),
    "lm-eval": (
        *("word_perplexity", "byte_perplexity", "bits_per_byte"),
        *("bits_per_original_byte", "original_byte_perplexity"),
    ),
    "paloma": ("perplexity", "bits_per_byte"),
    "run-clm": ("perplexity", "nats_per_token"),
    "megatron": ("perplexity", "adjusted_perplexity", "nats_per_token"),
    "fairseq": ("perplexity", "bits_per_token"),
}
# Tools that may count the first label of a block, which is unscored, and the weight of that average.
COUNT_ALL_LABELS, OVER_ALL_LABELS = ("run-clm",), 0.5
# Decimals that tools print, and the factor by which matching decimals increase the likelihood.
DECIMALS = {"llama.cpp": 4, "lm-eval": 4, "run-clm": 4, "exllamav2": 4, "mlx-lm": 3}
SAME_DECIMALS = 3.0
# Windows in tokens; strides as parts of the window, and in tokens.
WINDOWS, PARTS, STRIDES = (512, 1024, 2048, 4096), (1, 2, 4, 8), (512, 256)
