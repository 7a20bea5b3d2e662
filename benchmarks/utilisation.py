"""Measure the model-FLOPs utilisation of a GPU when scoring a long text.

    python benchmarks/utilisation.py

The rate that counts as all of it is the best of plain matrix products in the same run.  Counted are
the operations that the windows require: two for each weight and token, of attention the pairs that it
may see.  Bare forward passes over the same windows, without a loss, are timed beside it.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
import transformers
from workloads import make_text, make_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perplexity_sliding import compute

QWEN_1_5B = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
MATRIX_SIZE, REPETITIONS = 8192, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=1024, help="of a window, in tokens")
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    device, length = torch.device("cuda"), options.length
    model = make_llama(QWEN_1_5B, length, device)
    left, right = (
        torch.randn(MATRIX_SIZE, MATRIX_SIZE, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    rate = 2 * MATRIX_SIZE**3 / fastest(lambda: torch.mm(left, right), 10 * REPETITIONS)
    vocabulary, results = model.config.vocab_size, []
    arguments = {"predictions": [make_text(128 * length, vocabulary)], "model": model}
    arguments |= {"tokenizer": make_tokenizer(vocabulary), "stride": length}

    def ours() -> None:
        results.append(compute(**arguments, batch_size=options.batch_size))

    seconds = fastest(ours, REPETITIONS)
    share = count_operations(model, results[-1], length) / seconds / rate
    print(f"windows of {length:,} tokens: {share:.1%} of the matrix rate")
    windows = torch.randint(vocabulary, (128, length), device=device).split(options.batch_size)

    @torch.inference_mode()
    def bare() -> None:
        for window in windows:
            model(window, use_cache=False)

    print(f"ours / bare forward passes: {seconds / fastest(bare, REPETITIONS):.2f}")


def make_llama(sizes: dict, length: int, device: torch.device) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    start = sizes["vocab_size"] - 1
    config = transformers.LlamaConfig(
        **sizes, max_position_embeddings=length, bos_token_id=start, eos_token_id=start
    )
    with device:
        model = transformers.LlamaForCausalLM(config)
    return model.to(torch.bfloat16).eval()


def fastest(run, repetitions: int) -> float:
    times = []
    for _ in range(1 + repetitions):  # after a warm-up
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def count_operations(model, result: dict, length: int) -> float:
    linear = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
    weights, config = sum(module.weight.numel() for module in linear), model.config
    # scores and weighted values: two operations for each number and pair, half of the pairs
    pairs = 2 * config.num_hidden_layers * length * config.hidden_size
    body = (2 * weights + pairs) * result["num_forward_tokens"]
    return body + 2 * config.hidden_size * config.vocab_size * result["num_tokens"]


if __name__ == "__main__":
    main()
