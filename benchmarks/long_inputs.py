"""Measure time and memory of the command line for growing tables and texts.

    python benchmarks/long_inputs.py --rows 10000 100000 1000000        # a quarter of an hour
    python benchmarks/long_inputs.py --characters 1000000 4000000

Prints the peak memory and the processor time of each, in a process of its own.  The model has two
narrow layers, rows hold ten tokens; further options are handed on to the command line.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bookkeeping import SHORT_TEXT
from cases import ROOT
from whole_runs import seconds_of_children
from workloads import make_model, make_text, make_tokenizer

# The peak is the process's own: `getrusage` would begin with that of this one, which starts it.
COMMAND = """
import re, sys
from cli.main import main
assert main(sys.argv[1:]) == 0
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
DIFFERENT_TEXTS = 1000


def write_table(path: Path, number: int, vocabulary: int) -> None:
    """Write a number of rows, some of them equal."""
    texts = [make_text(SHORT_TEXT, vocabulary, seed) for seed in range(DIFFERENT_TEXTS)]
    with path.open("w") as table:
        table.write("text\n")
        table.writelines(f"{texts[row % len(texts)]}\n" for row in range(number))


def write_text(path: Path, number: int, vocabulary: int) -> None:
    """Write a text of a number of characters, almost five per token."""
    path.write_text(make_text(number // 4, vocabulary)[:number])


def measure(table: Path, folder: str, options: list[str]) -> tuple[int, float]:
    """Score a file; return the peak memory in bytes and the processor time in seconds."""
    scores = str(Path(folder, "scores.csv"))
    arguments = [str(table), "--model", folder, "--output", scores, "--quiet", *options]
    before = seconds_of_children()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return 1024 * int(done.stdout), seconds_of_children() - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[])
    parser.add_argument("--characters", type=int, nargs="+", default=[])
    arguments, options = parser.parse_known_args()
    model = make_model("tiny")
    vocabulary = model.config.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        make_tokenizer(vocabulary).save_pretrained(folder)
        inputs = [("texts.csv", "rows", write_table, number) for number in arguments.rows]
        inputs += [("a.txt", "characters", write_text, number) for number in arguments.characters]
        for name, unit, write, number in inputs:
            path = Path(folder, name)
            write(path, number, vocabulary)
            peak, seconds = measure(path, folder, options)
            print(f"{number:9,} {unit} {peak / 2**20:6,.0f} MiB {seconds:8.1f} s", flush=True)


if __name__ == "__main__":
    main()
