"""Compare the numbers of other tools with this metric's, for the bundled model and a sample.

    python benchmarks/agreement.py

Prints the table of docs/protocols.md; llama.cpp's figures are recorded ones (tests/llama_cpp/README.md).
"""

import json
import math
import sys
from pathlib import Path

import torch
from peers import Harness, guide_loop, stock_metric
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perplexity_sliding import compute  # noqa: E402

MODEL = str(ROOT / "demo_model")
PRINTED = ROOT / "tests" / "llama_cpp" / "printed.json"
CONTEXT = 128
WINDOW = 64  # one that was recorded


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    text = (ROOT / "samples" / "story.txt").read_text("utf-8").removesuffix("\n")
    short = [line for line in text.split("\n") if 0 < len(tokenizer(line).input_ids) < CONTEXT - 1]

    def ours(protocol: str, texts: list[str], **settings) -> dict:
        return compute(texts, model=model, tokenizer=tokenizer, protocol=protocol, **settings)

    harness, nll = ours("lm-eval", [text]), Harness(model, tokenizer, batch_size=1)([text])
    tokenizer.pad_token = tokenizer.eos_token
    rows = [
        (
            f"transformers guide's loop, S = {stride}",
            guide_loop(model, tokenizer, text, CONTEXT, stride),
            ours("transformers-docs", [text], stride=stride)["perplexity"],
        )
        for stride in (CONTEXT, CONTEXT // 2)
    ]
    rows += [
        (
            f"stock metric's formula, {len(short)} paragraphs",
            stock_metric(MODEL, tokenizer, short),
            ours("stock", short)["mean_perplexity"],
        ),
        (
            "lm-evaluation-harness 0.4.13, word perplexity",
            math.exp(nll / len(text.split())),
            harness["word_perplexity"],
        ),
        (
            "lm-evaluation-harness 0.4.13, bits per byte",
            nll / len(text.encode("utf-8")) / math.log(2),
            harness["bits_per_byte"],
        ),
    ]
    printed, _ = json.loads(PRINTED.read_text("utf-8"))["perplexities"][f"story {WINDOW} 0"]
    llama = ours("llama.cpp", [text], max_length=WINDOW)["perplexity"]
    rows.append((f"llama.cpp, -c {WINDOW}", printed, llama))
    print("| tool | its number | ours | relative difference |\n| --- | --- | --- | --- |")
    for tool, theirs, number in rows:
        print(f"| {tool} | {theirs:.6g} | {number:.6g} | {abs(number / theirs - 1):.0e} |")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
