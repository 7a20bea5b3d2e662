"""Several measurements of one text, which share forward passes: in one call, and each by itself."""

import time
from collections.abc import Callable

from cases import Setup
from measure import spread
from workloads import make_text

TOGETHER = "together"
# A context that is long enough for Megatron-LM's stride of 32 not to outweigh all other protocols.
PROTOCOL_CONTEXT = 256


def several_strides(setup: Setup, num_windows: int, repetitions: int) -> dict:
    """Strides of L, L/2, L/4 and L/8 over a text of that many windows at L/8."""
    strides = [setup.context // part for part in (1, 2, 4, 8)]
    text = make_text(setup.context + (num_windows - 1) * strides[-1], setup.vocabulary)
    return measure(
        "strides L, L/2, L/4, L/8",
        {
            TOGETHER: lambda: setup.ours([text], stride=strides),
            "the finest alone": lambda: [setup.ours([text], stride=strides[-1])],
            "one by one": lambda: [setup.ours([text], stride=stride) for stride in strides],
        },
        repetitions,
    )


def all_protocols(setup: Setup, num_tokens: int, repetitions: int) -> dict:
    """Every protocol over one text, by a window of at most 256 tokens."""
    text = make_text(num_tokens, setup.vocabulary)
    length = min(PROTOCOL_CONTEXT, setup.context)
    protocols = [name for name, row in setup.metric.protocols.items() if "max_length" in row.knobs]
    given = {"max_length": length}
    return measure(
        f"all {len(protocols)} protocols, L = {length}",
        {
            TOGETHER: lambda: setup.ours([text], protocol=protocols, **given),
            "one by one": lambda: [
                setup.ours([text], protocol=protocol, **given) for protocol in protocols
            ],
        },
        repetitions,
    )


def measure(name: str, contenders: dict[str, Callable], repetitions: int) -> dict:
    """Time the contenders in turns; also count the tokens that each reads."""
    tokens = {label: count_tokens(run()) for label, run in contenders.items()}  # and warm up
    seconds: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(repetitions):
        for label, run in contenders.items():
            began = time.perf_counter()
            run()
            seconds[label].append(time.perf_counter() - began)
    others = [label for label in contenders if label != TOGETHER]
    ratios = {
        f"{TOGETHER} / {label}": spread([a / b for a, b in zip(seconds[TOGETHER], seconds[label])])
        for label in others
    }
    return {"name": name, "forward_tokens": tokens, "seconds": seconds, "ratios": ratios}


def count_tokens(results: dict | list[dict]) -> int:
    """Tokens that went through the model for one result, or for several."""
    parts = results if isinstance(results, list) else [results]
    return sum(part["num_forward_tokens"] for part in parts)
