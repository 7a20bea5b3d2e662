"""Measure how many tokens distinguish a wrong or quantised copy from half-precision rounding.

    python benchmarks/identity.py          # the table of docs/served-models.md; a few minutes
    pip install llama-cpp-python gguf      # for the rows of quantised copies

The bundled model over the samples, in windows side by side.  For each number of tokens, runs of so
many that follow each other are judged as `--reference` judges a server: a copy is called different,
the same, or neither; the first two are printed, in percent.  The honest copies, all of whose numbers
are in half precision, must not be called different.  The wrong ones are otherwise honest copies in
bfloat16.
"""

import argparse
import importlib.util
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
from perplexity_sliding import compute
from perplexity_sliding.results.identity import judge_identity

ROOT = Path(__file__).resolve().parent.parent
DEMO = str(ROOT / "demo_model")
KINDS = ("F32", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K")
NUMBERS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
STEPS, RATE = 10, 1e-4  # of the fine-tuned copy
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


def swapped(share: float) -> torch.nn.Module:
    """Build a copy with pairwise swapped output rows for a share of the vocabulary."""
    model = in_dtype(torch.bfloat16)
    rows = model.get_output_embeddings().weight.detach().clone()
    number = round(share * len(rows)) // 2 * 2
    ids = torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:number])
    rows[ids] = rows[ids.flip(0)]
    head = torch.nn.Linear(*rows.T.shape, bias=False, dtype=rows.dtype)
    head.weight = torch.nn.Parameter(rows)
    model.set_output_embeddings(head)
    return model


def fine_tuned(texts: list[str], tokenizer: object) -> torch.nn.Module:
    """Train a copy for a few steps."""
    torch.manual_seed(0)
    model = in_dtype(torch.float32).train()
    length = model.config.max_position_embeddings
    ids = torch.tensor([tokenizer(text)["input_ids"][:length] for text in texts[:1]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model.to(torch.bfloat16).eval()


def off_by(values: np.ndarray, share: float, nats: float) -> np.ndarray:
    """Shift the nlls of a random share of the tokens up or down by a number of nats."""
    draw = np.random.default_rng(0)
    moved = draw.random(len(values)) < share
    return values + moved * draw.choice([-nats, nats], len(values))


def copies_of(texts: list[str], tokenizer: object) -> dict[str, np.ndarray]:
    """Score the texts under copies of the model; return the nlls (N,) by the copy's name."""
    models = {
        "all in bfloat16": in_dtype(torch.bfloat16),
        "all in float16": in_dtype(torch.float16),
        "output rows of 4 % of the vocabulary swapped": swapped(0.04),
        f"fine-tuned by {STEPS} steps": fine_tuned(texts, tokenizer),
    }
    copies = {name: nlls(texts, model=model, tokenizer=tokenizer) for name, model in models.items()}
    honest = copies["all in bfloat16"]
    copies["5 % of the tokens off by 1.9 nats"] = off_by(honest, 0.05, 1.9)
    copies["0.9 % of the tokens off by 5 nats"] = off_by(honest, 0.009, 5)
    copies["every value 0.05 nats too low"] = honest - 0.05
    if not all(map(importlib.util.find_spec, ("llama_cpp", "gguf"))):
        print("no quantised copies: llama-cpp-python or gguf is not installed", file=sys.stderr)
        return copies
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in quantised(Path(folder)).items():
            copies[kind] = nlls(texts, model_id=path, tokenizer=tokenizer)
    return copies


def shares(differences: np.ndarray, rounding: np.ndarray, number: int) -> str:
    """Return the shares of runs of a length in which a copy is distinguished, and accepted as equal."""
    starts = np.random.default_rng(0).integers(0, len(differences) - number + 1, RUNS)
    contexts = np.ones(number)
    verdicts = [
        judge_identity(differences[s : s + number], rounding[s : s + number], contexts)
        for s in starts
    ]
    told = np.mean([verdict["different"] for verdict in verdicts])
    equal = np.mean([verdict["same"] is not None for verdict in verdicts])
    return f"{100 * told:.0f} / {100 * equal:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    evaluate.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "samples").glob("*.txt"))]
    reference = nlls(texts, model=in_dtype(torch.float32), tokenizer=tokenizer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounding = nlls(texts, model=in_dtype(torch.float32), tokenizer=tokenizer) - reference
    copies = copies_of(texts, tokenizer)
    print(f"{len(reference):,} tokens; rounding {rms(rounding):.2g} nats (root mean square)")
    print("| copy | difference (rms, nats) | " + " | ".join(f"{n:,}" for n in NUMBERS) + " |")
    print("| --- " * (len(NUMBERS) + 2) + "|")
    for name, values in copies.items():
        cells = " | ".join(shares(values - reference, rounding, n) for n in NUMBERS)
        print(f"| {name} | {rms(values - reference):.2g} | {cells} |")


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


if __name__ == "__main__":
    main()
