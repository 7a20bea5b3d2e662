"""Measure peak memory: of logits, of long inputs, and of a window larger than memory.

    python benchmarks/memory.py logits                      # 16 windows over a vocabulary of 128,256
    python benchmarks/memory.py rows 10000 100000           # of a table on the command line
    python benchmarks/memory.py characters 1000000 2000000  # of a text on the command line
    python benchmarks/memory.py window                      # 32,768 tokens within 64 MiB

Each number is of a process of its own (Linux), above the weights for `logits` and `window`.
"""

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from cases import ROOT, Setup
from measure import peak_memory, status_bytes
from workloads import make_model, make_text, make_tokenizer

from perplexity_sliding import compute

# The peak is the process's own: `getrusage` would begin with that of this one, which starts it.
COMMAND = """
import re, sys
from perplexity_sliding.cli.main import main
assert main(sys.argv[1:]) == 0
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
VOCABULARY = 4096  # of the long window


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("logits", "ours", "full", "rows", "characters", "window"))
    parser.add_argument("sizes", type=int, nargs="*")
    parser.add_argument("--length", type=int, default=32768, help="tokens in the window")
    parser.add_argument("--width", type=int, default=64, help="of the window's model")
    parser.add_argument("--budget", type=int, default=64, help="MiB for the window")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "logits":
        for contender in ("ours", "full"):
            subprocess.run([sys.executable, __file__, contender], check=True)
    elif options.what in ("ours", "full"):
        print(f"{options.what:5} {peak_of_logits(options.what) / 2**20:8,.0f} MiB")
    elif options.what == "window":
        print(json.dumps(measure_window(options)))
    else:
        measure_inputs(options.what, options.sizes)


def peak_of_logits(contender: str) -> int:
    """Peak memory of sixteen full windows in this process."""
    setup = Setup("large vocabulary")
    text = make_text(16 * setup.context, setup.vocabulary)
    ids = torch.randint(setup.vocabulary, (16, setup.context))
    with torch.inference_mode():
        if contender == "full":
            return peak_memory(lambda: setup.model(ids).logits)
        return peak_memory(lambda: setup.ours([text], stride=setup.context))


def measure_inputs(unit: str, sizes: list[int]) -> None:
    """Score growing files on the command line, under a model of two narrow layers."""
    model = make_model("tiny")
    vocabulary = model.config.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        make_tokenizer(vocabulary).save_pretrained(folder)
        path = Path(folder, "texts.csv" if unit == "rows" else "a.txt")
        arguments = [path, "--model", folder, "--output", f"{folder}/scores.csv", "--quiet"]
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        for size in sizes:
            if unit == "rows":  # of ten tokens
                texts = [make_text(10, vocabulary, seed) for seed in range(1000)]
                path.write_text("\n".join(["text", *(texts[n % 1000] for n in range(size)), ""]))
            else:  # almost five a token
                path.write_text(make_text(size // 4, vocabulary)[:size])
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            print(f"{size:9,} {unit} {int(done.stdout.split()[-1]) / 2**10:6,.0f} MiB", flush=True)


# --- a window larger than memory ------------------------------------------------------------------


def measure_window(options: argparse.Namespace) -> dict:
    """Peak memory and scores of a plain pass and of ours, whole and within the budget.

    The budget is enforced: the process cannot get more memory than it has when the model is there,
    and so much on top.
    """
    length, budget, results = options.length, 2**20 * options.budget, {}
    models = [make_rotary(length, options.width, options.attention) for _ in range(2)]
    text, tokenizer = make_text(length - 1, VOCABULARY), make_tokenizer(VOCABULARY)

    @torch.inference_mode()
    def plain() -> None:
        models[0](torch.randint(VOCABULARY, (1, length)))

    def ours(name: str, model: torch.nn.Module) -> None:
        results[name] = compute([text], model=model, tokenizer=tokenizer, stride=length)

    peaks = {
        "plain pass": peak_memory(plain),
        "whole": peak_memory(lambda: ours("whole", models[0])),
    }
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is had no more
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + budget, hard))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        peaks["in parts"] = peak_memory(lambda: ours("in parts", models[1]))
    return {
        "num_tokens": results["whole"]["num_tokens"],
        "budget_bytes": budget,
        "peak_bytes": peaks,
        "total_nll": {name: result["total_nll"] for name, result in results.items()},
        "said": [str(w.message) for w in caught if "does not fit" in str(w.message)],
    }


def make_rotary(length: int, width: int, attention: str) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=length,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=1,
        num_attention_heads=width // 64,
        bos_token_id=VOCABULARY - 1,
        eos_token_id=VOCABULARY - 1,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.15)  # as it is initialised, all tokens are equally likely
    return model.eval()


if __name__ == "__main__":
    main()
