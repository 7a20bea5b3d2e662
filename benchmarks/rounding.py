"""Measure how much rounding changes the numbers of a model, to set the tolerance of the probe.

    python benchmarks/rounding.py

The probe, and the nll of every token of a text in batches of 1 and of 16 windows, with the attention of
torch and with it written out, each in a process of its own.  The table has, for each dtype, the largest
distance from the first in batches of 1: of probes, and of tokens as the root of the mean square, in nats.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ATTENTION = ("sdpa", "eager")
DTYPES = ("float32", "float16", "bfloat16")
MODELS = ("demo_model", "llama")
BATCHES = (1, 16)


def measure() -> dict:
    """Compute the probe and the nlls of every model in every dtype and batch, in this process."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import models
    import torch
    import transformers

    from perplexity_sliding import compute

    attention = {"attn_implementation": sys.argv[2]}
    bundled = str(ROOT / "demo_model")
    results = {}
    for name in MODELS:
        if name == "demo_model":
            model = transformers.AutoModelForCausalLM.from_pretrained(bundled, **attention)
            tokenizer = transformers.AutoTokenizer.from_pretrained(bundled)
            text = (ROOT / "samples" / "story.txt").read_text("utf-8")[:600]
        else:
            model, tokenizer = models.make_model(name, **attention), models.make_tokenizer()
            text = models.random_text(60)
        for dtype in DTYPES:
            model = model.to(getattr(torch, dtype))
            for size in BATCHES:
                result = compute(
                    [text], model=model, tokenizer=tokenizer, batch_size=size,
                    add_start_token="once", return_token_scores=True,
                )  # fmt: skip
                nlls = result["token_scores"][0]["nll"]
                results[f"{dtype} {name} {size}"] = [result["probe"], nlls]
    return results


def main() -> None:
    runs = {}
    for attention in ATTENTION:
        command = [sys.executable, __file__, "--one", attention]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs[attention] = json.loads(done.stdout.splitlines()[-1])
    first = runs[ATTENTION[0]]
    print("| dtype | attention | probe | tokens |\n| --- | --- | --- | --- |")
    for dtype in DTYPES:
        for attention, run in runs.items():
            keys = [key for key in run if key.startswith(f"{dtype} ")]
            bases = {key: first[f"{key.rsplit(' ', 1)[0]} 1"] for key in keys}
            probe = max(abs(run[key][0] - bases[key][0]) for key in keys)
            tokens = max(root_mean_square(run[key][1], bases[key][1]) for key in keys)
            print(f"| {dtype} | {attention} | {probe:.1g} | {tokens:.1g} |")


def root_mean_square(nlls: list[float], others: list[float]) -> float:
    squares = [(a - b) ** 2 for a, b in zip(nlls, others, strict=True)]
    return (sum(squares) / len(squares)) ** 0.5


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure()))
    else:
        main()
