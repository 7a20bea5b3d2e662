"""Measure peak memory: of logits, and of long inputs.

    python benchmarks/memory.py logits                      # 16 windows over a vocabulary of 128,256
    python benchmarks/memory.py rows 10000 100000           # of a table on the command line
    python benchmarks/memory.py characters 1000000 2000000  # of a text on the command line

Each number is of a process of its own (Linux), above the weights for `logits`.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from cases import ROOT, Setup
from measure import peak_memory
from workloads import make_model, make_text, make_tokenizer

# The peak is the process's own: `getrusage` would begin with that of this one, which starts it.
COMMAND = """
import re, sys
from perplexity_sliding.cli.main import main
assert main(sys.argv[1:]) == 0
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("logits", "ours", "full", "rows", "characters"))
    parser.add_argument("sizes", type=int, nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "logits":
        for contender in ("ours", "full"):
            subprocess.run([sys.executable, __file__, contender], check=True)
    elif options.what in ("ours", "full"):
        print(f"{options.what:5} {peak_of_logits(options.what) / 2**20:8,.0f} MiB")
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


if __name__ == "__main__":
    main()
