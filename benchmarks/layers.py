"""Time single parts: adopted and rejected optimizations.

    python benchmarks/layers.py

For each part, the time of every way to do it over that of the first one, repetition by repetition.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import evaluate
import torch
import transformers
from cases import ROOT
from measure import spread
from workloads import make_model

from perplexity_sliding.models import logits as shortcuts

METRIC = evaluate.load(str(ROOT / "perplexity_sliding.py"))
cross_entropy = torch.nn.functional.cross_entropy


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("gpt2", "tiny"), default="gpt2")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    model = make_model(options.shape)
    for part in (batches, body, head, loss, compiled_body):
        print(f"\n{part.__doc__}")
        for name, ratio in in_turns(part(model), options.repetitions).items():
            print(
                f"  {name:36} {ratio['median']:.2f}   ({ratio['low']:.2f} to {ratio['high']:.2f})"
            )


@torch.no_grad()
def in_turns(contenders: dict[str, Callable], repetitions: int) -> dict[str, dict[str, float]]:
    """Time of each contender over the first's; a first round warms up and isn't counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions + 1):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    first = next(iter(seconds.values()))
    return {
        name: spread([taken / base for taken, base in zip(times[1:], first[1:])])
        for name, times in seconds.items()
    }


def batches(model) -> dict[str, Callable]:
    """Four full windows through the body"""
    ids = random_ids(model, 4)
    return {
        f"{count} at a time": lambda count=count: [
            model.base_model(part, use_cache=False) for part in ids.split(count)
        ]
        for count in (1, 2, 4)
    }


def body(model) -> dict[str, Callable]:
    """A full window through the body"""
    ids = random_ids(model, 1)
    length = ids.shape[1]
    activations = dict.fromkeys(
        (block.mlp.act for block in model.base_model.h), shortcuts.fused_gelu
    )

    def run(forwards):
        with replaced(forwards):
            model.base_model(ids, use_cache=False)

    def scoring(part):
        shortcut = shortcuts.ScoredRows(model.base_model.h[-1].mlp)
        shortcut.scored = torch.arange(length - length // part, length)
        return {model.base_model.h[-1].mlp: shortcut}

    return {
        "as it is": lambda: run({}),
        "activation fused": lambda: run(activations),
        "last feed-forward of scored, S = L/2": lambda: run(scoring(2)),
        "last feed-forward of scored, S = L/8": lambda: run(scoring(8)),
    }


def head(model) -> dict[str, Callable]:
    """The head over a window's rows"""
    hidden = torch.randn(model.config.n_positions, model.config.n_embd)
    linear, aligned = model.lm_head, shortcuts.AlignedProduct(model.lm_head)

    def run(product, rows):
        return lambda: [product(part) for part in hidden.split(rows)]

    contenders = {f"plain, {rows} rows a block": run(linear, rows) for rows in (512, 128, 1024)}
    contenders |= {f"aligned, {rows} rows a block": run(aligned, rows) for rows in (128, 512, 1024)}
    packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight, None)
    return contenders | {
        "oneDNN, packed, 512 rows a block": run(
            lambda part: torch.ops.mkldnn._linear_pointwise(part, packed, None, "none", [], ""), 512
        )
    }


def loss(model) -> dict[str, Callable]:
    """The head over 512 rows and their loss"""
    hidden = torch.randn(512, model.config.n_embd)
    targets = torch.randint(model.config.vocab_size, (512,))
    product = shortcuts.AlignedProduct(model.lm_head)

    def run(rows, nll):
        def blocks():
            for part, labels in zip(product(hidden).split(rows), targets.split(rows)):
                nll(part, labels)

        return blocks

    def by_cross_entropy(logits, labels):
        return cross_entropy(logits, labels, reduction="none")

    def by_logsumexp(logits, labels):
        return logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]

    return {
        "no loss": lambda: product(hidden),
        "cross_entropy, 512 rows": run(512, by_cross_entropy),
        "cross_entropy, 128 rows": run(128, by_cross_entropy),
        "cross_entropy, 32 rows": run(32, by_cross_entropy),
        "logsumexp, 32 rows": run(32, by_logsumexp),
    }


def compiled_body(model) -> dict[str, Callable]:
    """A full window through the body, compiled for its length"""
    ids = random_ids(model, 1)
    compiled = torch.compile(model.base_model, dynamic=False)
    return {
        "as it is": lambda: model.base_model(ids, use_cache=False),
        "compiled": lambda: compiled(ids, use_cache=False),
    }


def random_ids(model, count: int) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (count, model.config.n_positions))


@contextmanager
def replaced(forwards: dict[torch.nn.Module, Callable]) -> Iterator[None]:
    for module, forward in forwards.items():
        module.forward = forward
    yield
    for module in forwards:
        del module.forward


if __name__ == "__main__":
    main()
