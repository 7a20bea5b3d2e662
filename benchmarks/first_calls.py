"""Time the first call with a model, as in every run of a command and for every model of a table.

Each turn has a model that nobody has called yet: ours looks at it before it scores, others do not.
"""

from collections.abc import Callable

from cases import Setup
from measure import now, ratio
from peers import Harness, guide_loop, stock_metric
from workloads import make_model, make_text

FIRST, LATER = "ours, first call", "ours, a later call"


def one_text(setup: Setup, num_tokens: int, stride: int, repetitions: int) -> dict:
    """Time one text; each contender has a new model in every turn."""
    text = make_text(num_tokens, setup.vocabulary)
    contenders = contenders_of(setup, text, stride)
    seconds: dict[str, list[float]] = {name: [] for name in [*contenders, LATER]}
    for turn in range(repetitions):
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            setup.model = make_model(setup.shape, seed=turn)
            run = contenders[name]()
            seconds[name].append(timed(run))
            if name == FIRST:
                seconds[LATER].append(timed(run))
    others = [name for name in seconds if name != FIRST]
    return {
        "name": f"first call, {num_tokens:,} tokens",
        "seconds": seconds,
        "ratios": {f"{FIRST} / {name}": ratio(seconds, [FIRST], [name]) for name in others},
    }


def contenders_of(setup: Setup, text: str, stride: int) -> dict[str, Callable[[], Callable]]:
    """Return functions that set up each contender with the model of the turn."""
    tokenizer, folder = setup.tokenizer, setup.folder()

    def ours() -> Callable:
        model = setup.model
        return lambda: setup.metric.compute(
            predictions=[text], model=model, tokenizer=tokenizer, stride=stride
        )

    def guide() -> Callable:
        model = setup.model
        return lambda: guide_loop(model, tokenizer, text, setup.context, stride)

    contenders = {FIRST: ours, "guide": guide}
    if len(text.split()) < setup.context:  # it cuts longer ones
        contenders["stock, which loads the model"] = lambda: (
            lambda: stock_metric(folder, tokenizer, [text])
        )
    if setup.has_harness:

        def harness() -> Callable:
            ask = Harness(setup.model, tokenizer, 1)
            return lambda: ask([text])

        contenders["lm-eval"] = harness
    return contenders


def timed(run: Callable[[], object]) -> float:
    began = now()
    run()
    return now() - began
