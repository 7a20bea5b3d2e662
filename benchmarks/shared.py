"""Time measurements that share forward passes: in one call, and separately."""

from collections.abc import Callable
from unittest.mock import patch

from cases import Setup
from measure import ratio, time_in_turns
from peers import Harness
from workloads import make_text

TOGETHER = "together"
# A context that is long enough for Megatron-LM's stride of 32 not to outweigh all other protocols.
PROTOCOL_CONTEXT = 256
# Numbers that passes of other shapes give may differ by this much, relatively.
TOLERANCE = 1e-4


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
    """Every protocol over one text, with a window of at most 256 tokens."""
    text = make_text(num_tokens, setup.vocabulary)
    length = min(PROTOCOL_CONTEXT, setup.context)
    protocols = [
        name
        for name, row in setup.metric.protocols.items()
        if "max_length" in row.supported_arguments
    ]
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


def many_lengths(setup: Setup, number: int, repetitions: int) -> dict:
    """YaRN's curve over one text: windows of that many evenly spaced lengths, each cut after one."""
    step = setup.context // number
    lengths = [step * (place + 1) for place in range(number)]
    text = make_text(setup.context, setup.vocabulary)
    given = {"protocol": "yarn-truncated"}
    return measure(
        f"YaRN's {number} lengths, {lengths[0]} to {lengths[-1]:,}",
        {
            TOGETHER: lambda: setup.ours([text], max_length=lengths, **given),
            "the longest alone": lambda: [setup.ours([text], max_length=lengths[-1], **given)],
            "one by one": lambda: [
                setup.ours([text], max_length=length, **given) for length in lengths
            ],
        },
        repetitions,
    )


def one_context(
    setup: Setup, num_texts: int, text_tokens: int, num_context_tokens: int, repetitions: int
) -> dict:
    """Short texts after one context: read once, with every text, and by lm-evaluation-harness."""
    context = make_text(num_context_tokens, setup.vocabulary, seed=num_texts)
    texts = [" " + make_text(text_tokens, setup.vocabulary, seed) for seed in range(num_texts)]

    def ours() -> dict:
        return setup.ours(texts, contexts=context, protocol="lm-eval")

    def apart() -> dict:
        with patch("perplexity_sliding.scoring.runner.LEAST_SAVING", float("inf")):
            return ours()

    contenders: dict[str, Callable] = {TOGETHER: ours, "apart": apart}
    if setup.has_harness:
        harness = Harness(setup.model, setup.tokenizer, batch_size=16)
        contenders["lm-eval, batch 16"] = lambda: harness.after_context(context, texts)
    return measure(
        f"{num_texts} texts of {text_tokens} tokens after a context of {num_context_tokens}",
        contenders,
        repetitions,
        number="total_nll",
    )


def measure(
    name: str, contenders: dict[str, Callable], repetitions: int, number: str | None = None
) -> dict:
    """Time the contenders in turns; also count the tokens that each reads.

    Args:
        number: key of a result that all have to give alike; a contender may also return it alone.
    """
    results = {label: run() for label, run in contenders.items()}  # and warm up
    if number is not None:
        check_numbers(name, {label: number_of(r, number) for label, r in results.items()})
    tokens = {label: count_tokens(r) for label, r in results.items() if not isinstance(r, float)}
    seconds = time_in_turns(contenders, repetitions)
    ratios = {
        f"{TOGETHER} / {label}": ratio(seconds, [TOGETHER], [label])
        for label in contenders
        if label != TOGETHER
    }
    return {"name": name, "forward_tokens": tokens, "seconds": seconds, "ratios": ratios}


def number_of(result: dict | float, key: str) -> float:
    return result if isinstance(result, float) else result[key]


def check_numbers(name: str, numbers: dict[str, float]) -> None:
    """Stop unless all contenders give one number."""
    first = next(iter(numbers.values()))
    if any(not abs(value / first - 1) <= TOLERANCE for value in numbers.values()):
        raise SystemExit(f"{name}: not the same number: {numbers}")


def count_tokens(results: dict | list[dict]) -> int:
    """Number of tokens read for one result, or for several."""
    parts = results if isinstance(results, list) else [results]
    return sum(part["num_forward_tokens"] for part in parts)
