"""How common each choice is: of a tool, a window, a start token, an average."""

import math
from collections.abc import Callable

from ..arguments import Setting
from ..plan.windows import Plan
from ..protocols import Protocol
from ..results.uncertainty import exp

# Weights of choices relative to the most common one.  These are judgements, not measurements.
TOOLS = {
    **{"lm-eval": 1.0, "llama.cpp": 1.0, "gptq": 1.0, "stock": 0.9, "run-clm": 0.8},
    **{"transformers-docs": 0.9, "transformers-docs-weighted": 0.9, "sliding": 0.7},
}
OTHER_TOOL, OTHER_WINDOW, WINDOW_AS_STRIDE, OTHER_STRIDE = 0.5, 0.4, 0.8, 0.4
STARTS: dict[bool | str, float] = {True: 1.0, False: 0.6, "every": 0.2}
# By a tool in the layout that it reads; by a tool in another layout, and by us, beside the layout.
DETOKENIZED_BY_TOOL, DETOKENIZED_ELSEWHERE, DETOKENIZED_BY_US = 2.0, 0.5, 0.1
# Averages that a tool does not print itself.
AVERAGES = {
    "perplexity": 0.4,
    "mean_perplexity": 0.3,
    "word_perplexity": 0.3,
    "byte_perplexity": 0.1,
    "bits_per_byte": 0.3,
    "bits_per_original_byte": 0.2,
    "bits_per_character": 0.2,
    "adjusted_perplexity": 0.2,
}
# Averages computed from a key of a result: the key, the conversion, and the weight.
DERIVED: dict[str, tuple[str, Callable[[float], float], float]] = {
    "nats_per_token": ("perplexity", math.log, 0.3),
    "bits_per_token": ("perplexity", math.log2, 0.1),
    "original_byte_perplexity": (
        "bits_per_original_byte",
        lambda bits: exp(bits * math.log(2)),
        0.1,
    ),
}
# Tools that may count the first label of a block, which is unscored, and the weight of that average.
COUNT_ALL_LABELS, OVER_ALL_LABELS = ("run-clm",), 0.5
# Averages that a tool prints; only the perplexity by default.
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
# Decimals that tools print, and the factor by which matching decimals increase the likelihood.
DECIMALS = {"llama.cpp": 4, "lm-eval": 4, "run-clm": 4, "exllamav2": 4, "mlx-lm": 3}
SAME_DECIMALS = 3.0


def prior_of(setting: Setting, plan: Plan) -> float:
    """Return the weight of a setting."""
    usual = TOOLS.get(setting.protocol.name, OTHER_TOOL) * STARTS[setting.add_start_token]
    usual *= 1.0 if setting.max_length is None else OTHER_WINDOW
    if setting.stride is None:
        return usual
    return usual * (WINDOW_AS_STRIDE if plan.stride == plan.max_length else OTHER_STRIDE)


def prior_of_detokenized(protocol: Protocol, layout: str, usual: float) -> float:
    """Return the weight of a layout of detokenized WikiText for a tool.

    Tools that detokenize read articles separately, or all text as one.
    """
    if protocol.detokenize is None:
        return usual * DETOKENIZED_BY_US
    reads = ("each-article",) if protocol.scores_each_text else ("as-is", "joined")
    return DETOKENIZED_BY_TOOL if layout in reads else usual * DETOKENIZED_ELSEWHERE


def prior_of_average(protocol: str, average: str) -> float:
    """Return the weight of an average for a protocol's tool."""
    if average in PRINTED.get(protocol, ("perplexity",)):
        return 1.0
    if average.startswith("trainer_"):
        return OVER_ALL_LABELS
    return DERIVED[average][2] if average in DERIVED else AVERAGES[average]
