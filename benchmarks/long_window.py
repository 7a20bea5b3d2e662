"""Score a window larger than memory, within a budget that a plain pass exceeds several times.

    python benchmarks/long_window.py --length 32768 --budget 64

The budget is enforced: the process cannot get more memory than it has when the model is there, and
so much on top.  A small model with rotary positions and random weights; one thread.
"""

import argparse
import ctypes
import json
import resource
import tempfile
import warnings

import evaluate
import torch
import transformers
from cases import ROOT
from measure import peak_memory, status_bytes
from workloads import make_text, make_tokenizer

VOCABULARY = 4096
HEAD_WIDTH = 64


def make_rotary(length: int, width: int, attention: str) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=length,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=1,
        num_attention_heads=width // HEAD_WIDTH,
        bos_token_id=VOCABULARY - 1,
        eos_token_id=VOCABULARY - 1,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.15)  # as it is initialised, all tokens are equally likely
    return model.eval()


def limit_memory(budget: int) -> None:
    """Limit this process to `budget` bytes more than its present memory."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is had no more
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (status_bytes("VmData") + budget, resource.getrlimit(resource.RLIMIT_DATA)[1]),
    )


def measure(
    metric: evaluate.Metric,
    length: int,
    width: int,
    attention: str,
    budget: int,
    logits_memory: int,
) -> dict:
    """Peak memory and scores of a plain pass and of ours, whole and within the budget."""
    arguments = {
        "predictions": [make_text(length - 1, VOCABULARY)],
        "tokenizer": make_tokenizer(VOCABULARY),
        "stride": length,
        "logits_memory": logits_memory,
    }
    models = [make_rotary(length, width, attention) for _ in range(2)]
    results = {}

    @torch.no_grad()
    def plain() -> None:
        models[0](torch.randint(VOCABULARY, (1, length)))

    def ours(name: str, model: torch.nn.Module) -> None:
        results[name] = metric.compute(model=model, **arguments)

    peaks = {
        "plain pass": peak_memory(plain),
        "whole": peak_memory(lambda: ours("whole", models[0])),
    }
    limit_memory(budget)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        peaks["in parts"] = peak_memory(lambda: ours("in parts", models[1]))
    nlls = {name: result["total_nll"] for name, result in results.items()}
    return {
        "length": length,
        "attention": attention,
        "num_tokens": results["whole"]["num_tokens"],
        "budget_bytes": budget,
        "peak_bytes": peaks,
        "total_nll": nlls,
        "said": [
            str(warning.message) for warning in caught if "does not fit" in str(warning.message)
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=32768, help="tokens in the window")
    parser.add_argument("--width", type=int, default=64, help=f"a multiple of {HEAD_WIDTH}")
    parser.add_argument("--budget", type=int, default=64, help="MiB")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--logits-memory", type=int, default=16, help="MiB")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    evaluate.logging.disable_progress_bar()
    budget, logits_memory = (2**20 * size for size in (options.budget, options.logits_memory))
    with tempfile.TemporaryDirectory() as cache:
        metric = evaluate.load(str(ROOT / "perplexity_sliding.py"), cache_dir=cache)
        shape = (options.length, options.width, options.attention)
        measured = measure(metric, *shape, budget, logits_memory)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
