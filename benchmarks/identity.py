"""How many tokens it takes to tell a quantised copy from the rounding of half precision.

    pip install llama-cpp-python gguf
    python benchmarks/identity.py          # the table of docs/served-models.md; a few minutes

The bundled model over the samples, in windows side by side.  For each number of tokens, runs of so
many that follow each other are judged as `--reference` judges a server; a copy is told apart where
p < 0.001.  The honest copy, all of whose numbers are in bfloat16, must not be.
"""

import argparse
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

import evaluate
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perplexity_sliding.result_comparison import judge_identity

from perplexity_sliding import compute

ROOT = Path(__file__).resolve().parent.parent
DEMO = str(ROOT / "demo_model")
KINDS = ("F32", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K")
NUMBERS = (10, 20, 50, 100, 200, 500, 1000, 2000)
RUNS = 200


def quantised(folder: Path) -> dict[str, str]:
    """Write the bundled model as GGUF files."""
    import llama_cpp

    paths = {kind: str(folder / f"demo-{kind}.gguf") for kind in KINDS}
    converter = str(ROOT / "tests" / "llama_cpp" / "convert_gguf.py")
    with mock.patch.object(sys, "argv", [converter, DEMO, paths["F32"]]):
        runpy.run_path(converter, run_name="__main__")
    for kind in KINDS[1:]:
        params = llama_cpp.llama_model_quantize_default_params()
        names = (f"LLAMA_FTYPE_MOSTLY_{kind}", f"LLAMA_FTYPE_{kind}")
        params.ftype = next(getattr(llama_cpp, n) for n in names if hasattr(llama_cpp, n))
        written = llama_cpp.llama_model_quantize(
            paths["F32"].encode(), paths[kind].encode(), params
        )
        if written != 0:
            raise SystemExit(f"llama.cpp could not write {kind}")
    return paths


def nlls(texts: list[str], **model: object) -> np.ndarray:
    """Score texts; return the nlls (N,) of their tokens."""
    scores = compute(texts, return_token_scores=True, **model)["token_scores"]
    return np.concatenate([of_text["nll"] for of_text in scores]).astype(np.float64)


def in_dtype(dtype: torch.dtype) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=dtype).eval()


def share_told(differences: np.ndarray, rounding: np.ndarray, number: int) -> float:
    """Return the share of runs of so many tokens in which a copy is told apart."""
    starts = np.random.default_rng(0).integers(0, len(differences) - number + 1, RUNS)
    contexts = np.ones(number)
    verdicts = [
        judge_identity(differences[s : s + number], rounding[s : s + number], contexts)
        for s in starts
    ]
    return float(np.mean([verdict["same"] is None for verdict in verdicts]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    evaluate.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "samples").glob("*.txt"))]
    reference = nlls(texts, model=in_dtype(torch.float32), tokenizer=tokenizer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounding = nlls(texts, model=in_dtype(torch.float32), tokenizer=tokenizer) - reference
    copies = {"all in bfloat16": nlls(texts, model=in_dtype(torch.bfloat16), tokenizer=tokenizer)}
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in quantised(Path(folder)).items():
            copies[kind] = nlls(texts, model_id=path, tokenizer=tokenizer)
    print(f"{len(reference):,} tokens; rounding {rms(rounding):.2g} nats (root mean square)")
    print("| copy | differs by (rms, nats) | " + " | ".join(f"{n:,}" for n in NUMBERS) + " |")
    print("| --- " * (len(NUMBERS) + 2) + "|")
    for name, values in copies.items():
        shares = [share_told(values - reference, rounding, n) for n in NUMBERS]
        told = " | ".join(f"{share:.0%}" for share in shares)
        print(f"| {name} | {rms(values - reference):.2g} | {told} |")


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


if __name__ == "__main__":
    main()
