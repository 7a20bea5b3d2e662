#!/usr/bin/env python3
"""Record what llama-perplexity prints for the bundled model: printed.json and the kl_divergence files.

    record.py PROGRAM

Needs the package gguf, for the conversion.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from convert_gguf import convert

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL, SAMPLES = ROOT / "demo_model", ROOT / "samples"
EXACT = ["-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
FINAL = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")
LINES = re.compile(r"^chunk +PPL.*^Same top p:[^\n]*\n", re.MULTILINE | re.DOTALL)


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def perplexities(program: str, folder: Path) -> dict[str, list[float]]:
    """PPL and ± by sample, window and start token."""
    printed = {}
    for adds in (0, 1):
        file = folder / f"bos{adds}.gguf"
        convert(MODEL, file, bool(adds))
        for sample in ("story", "technical"):
            for window in (64, 32):
                text = SAMPLES / f"{sample}.txt"
                said = run(program, "-m", file, "-f", text, "-c", window, "-b", window, *EXACT)
                printed[f"{sample} {window} {adds}"] = [
                    float(n) for n in FINAL.search(said).groups()
                ]
    return printed


def comparisons(program: str, folder: Path) -> None:
    """Write the lines of --kl-divergence."""
    base = folder / "reference.kld"
    options = ["-c", 64, "-b", 64, *EXACT, "--kl-divergence-base", base]
    run(program, "-m", folder / "bos0.gguf", "-f", SAMPLES / "story.txt", *options)
    for bits in (4, 2):
        rounded = folder / f"rounded{bits}"
        run(sys.executable, MODEL / "round_weights.py", "--bits", bits, "--output", rounded)
        file = folder / f"rounded{bits}.gguf"
        convert(rounded, file)
        said = run(program, "-m", file, *options, "--kl-divergence")
        lines = LINES.search(said)[0]
        (HERE / f"kl_divergence_{bits}bit.txt").write_text(lines, "utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        printed = {"perplexities": perplexities(sys.argv[1], folder)}
        comparisons(sys.argv[1], folder)
    (HERE / "printed.json").write_text(json.dumps(printed, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
