"""Measure the cost of comparing two models: time against two single runs, and extra memory."""

import torch
from cases import Case, Contender, Setup
from measure import ratio, time_in_turns
from workloads import make_model, make_text

from perplexity_sliding.scoring import measures
from perplexity_sliding.scoring import passes as scoring

# Windows whose full logits under two models fit into the memory of a small machine.
NUM_WINDOWS = 2


def both_at_once(setup: Setup, num_tokens: int, repetitions: int) -> dict:
    """A model and its reference in one call, beside a call for each, in windows side by side."""
    reference = make_model(setup.shape, seed=1)
    text = make_text(num_tokens, setup.vocabulary)
    given = {"stride": setup.context}
    runs = {
        "both at once": lambda: setup.ours([text], reference=reference, **given),
        "the model alone": lambda: setup.ours([text], **given),
        "the reference alone": lambda: setup.metric.compute(
            predictions=[text], model=reference, tokenizer=setup.tokenizer, **given
        ),
    }
    both, model, other = (run() for run in runs.values())  # also examines the models
    numbers = [both["total_nll"], both["comparison"]["reference_perplexity"]]
    if numbers != [model["total_nll"], other["perplexity"]]:
        raise SystemExit(f"two models: not the numbers of single runs: {numbers}")
    seconds = time_in_turns(runs, repetitions)
    return {
        "name": f"two models ({setup.shape}), {num_tokens:,} tokens",
        "seconds": seconds,
        "ratios": {
            "both at once / one after the other": ratio(
                seconds, ["both at once"], ["the model alone", "the reference alone"]
            )
        },
    }


def divergence(setup: Setup, num_rows: int, repetitions: int) -> dict:
    """Time of comparing rows of logits, against the two losses and the two heads."""
    width = setup.model.config.n_embd
    states = torch.randn(num_rows, width)
    targets = torch.randint(setup.vocabulary, (num_rows,))
    heads = [torch.randn(setup.vocabulary, width) / width**0.5 for _ in range(2)]
    logits = [states @ head.T for head in heads]
    step = max(1, scoring.CPU_LOSS_BYTES // (4 * setup.vocabulary))

    def blocks(place: int) -> list:
        rows = slice(place, place + step)
        return [measures.Block(of_model[rows], targets[rows]) for of_model in logits]

    def losses() -> None:
        for place in range(0, num_rows, step):
            for block in blocks(place):
                measures.NegativeLogLikelihood()([block])

    def losses_and_divergence() -> None:
        for place in range(0, num_rows, step):
            both = blocks(place)
            measures.NegativeLogLikelihood()(both)
            measures.Divergence()(both)

    runs = {
        "the two heads": lambda: [states @ head.T for head in heads],
        "the two losses": losses,
        "losses and divergence": losses_and_divergence,
    }
    for run in runs.values():
        run()
    with torch.inference_mode():
        seconds = time_in_turns(runs, repetitions)
    above = ["losses and divergence"]
    return {
        "name": f"{num_rows} rows of {setup.vocabulary:,} logits, width {width}",
        "seconds": seconds,
        "ratios": {
            f"{above[0]} / {below}": ratio(seconds, above, [below])
            for below in ("the two losses", "the two heads")
        },
    }


def large_pair(setup: Setup) -> Case:
    """Two full windows under two models, for the memory of their logits."""
    reference = make_model(setup.shape, seed=1)
    text = make_text(NUM_WINDOWS * setup.context, setup.vocabulary)
    ids = torch.randint(setup.vocabulary, (NUM_WINDOWS, setup.context))
    case = Case("two models, two windows", "", setup.plain([text], setup.context))

    def both_at_once() -> float:
        given = {"stride": setup.context, "reference": reference, "logits_memory": 2**27}
        return setup.ours([text], **given)["total_nll"]

    @torch.no_grad()
    def full_logits() -> None:
        log_p, log_q = (model(ids).logits.log_softmax(-1) for model in (reference, setup.model))
        torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)

    case.contenders = {
        "both at once, logits_memory=2**27": Contender(both_at_once),
        "full logits of both": Contender(full_logits),
    }
    return case


def llama_cpp_bytes(num_windows: int, length: int, vocabulary: int) -> dict[str, int]:
    """Bytes that llama.cpp's `--kl-divergence` stores for as many windows, and needs in memory.

    Of every scored token, those in the second half of a window, its file has 16 bits for each entry
    of the vocabulary and two floats.  In memory are those of one window and the logits of its
    second half in float32, at least.  From its tools/perplexity/perplexity.cpp.
    """
    row = 2 * (2 * -(-vocabulary // 2) + 4)
    scored = length - 1 - length // 2
    return {
        "file": 20 + 4 * num_windows * length + num_windows * scored * row,
        "memory": scored * row + 4 * (length - length // 2) * vocabulary,
    }
