#!/usr/bin/env python3
"""How many tokens it takes to tell quantised copies of the bundled model from rounding to bfloat16.

Makes Q8_0 and Q4_K_M files by llama.cpp, scores samples/story.txt under each, under the model in
float32 and in bfloat16, and counts the tokens until `judge_identity` says that they are another
model at p < 0.001, from many places of the text.  Needs llama-cpp-python and gguf.

    python benchmarks/identity_tokens.py
"""

import runpy
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
STARTS = 200
KINDS = ("Q8_0", "Q4_K_M")


def make_files(folder):
    """Write the bundled model as GGUF files; returns their paths by kind."""
    import llama_cpp

    full = f"{folder}/demo-F32.gguf"
    arguments, sys.argv = sys.argv, ["convert_gguf.py", str(ROOT / "demo_model"), full]
    runpy.run_path(str(ROOT / "tests" / "llama_cpp" / "convert_gguf.py"), run_name="__main__")
    sys.argv = arguments
    paths = {"F32": full}
    for kind in KINDS:
        paths[kind] = f"{folder}/demo-{kind}.gguf"
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        params.nthread = 1
        llama_cpp.llama_model_quantize(full.encode(), paths[kind].encode(), params)
    return paths


def nlls(metric, text, **model):
    result = metric.compute(predictions=[text], return_token_scores=True, **model)
    return np.array(result["token_scores"][0]["nll"], dtype=np.float64)


def rounded_nlls(text):
    """Score under the bundled model in bfloat16, as the verdict does."""
    import torch
    import transformers

    from perplexity_sliding import PerplexitySliding

    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "demo_model").float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "demo_model")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nlls(PerplexitySliding(), text, model=model, tokenizer=tokenizer)


def tokens_needed(differences, rounding):
    """Count the tokens until the verdict, from many places of the text; the median and the 90 %."""
    from perplexity_sliding.result_identity import MARGIN, PVALUE, farther

    counts = []
    for start in np.linspace(0, len(differences) // 2, STARTS).astype(int):
        distance = np.abs(differences[start:])
        allowed = MARGIN * np.abs(rounding[start:])
        sizes = range(8, len(distance), 4)
        counts.append(
            next((n for n in sizes if farther(distance[:n], allowed[:n]) < PVALUE), np.inf)
        )
    return np.quantile(counts, [0.5, 0.9], method="inverted_cdf")


def main():
    from perplexity_sliding import PerplexitySliding

    warnings.simplefilter("ignore")
    text = (ROOT / "samples" / "story.txt").read_text("utf-8")
    metric = PerplexitySliding()
    exact = nlls(metric, text, model_id=str(ROOT / "demo_model"))
    rounding = rounded_nlls(text) - exact
    print(
        f"bfloat16: {np.sqrt(np.mean(rounding**2)):.4f} nats root mean square, {len(exact)} tokens"
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in make_files(folder).items():
            difference = nlls(metric, text, model_id=path) - exact
            median, most = tokens_needed(difference, rounding)
            spread = np.sqrt(np.mean(difference**2))
            print(f"{kind}: {spread:.4f} nats; told after {median:g} tokens, 90 % after {most:g}")


if __name__ == "__main__":
    main()
