"""llama.cpp's own figures: llama-perplexity's for the bundled model, and every line of its
`--kl-divergence` for that model with rounded weights.

How they were made stands in tests/llama_cpp/README.md.  The tool keeps the reference's
log-probabilities in 16 bits, so its figures of a comparison are met to the last digit or 1e-6 from logits
in float64 that went through the same 16 bits here, and the metric, which keeps them all, meets the same
formulas over all bits.
"""

import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo_model.round_weights import round_weights

WINDOW = 64
FIRST = WINDOW // 2 + 1
NUMBER = r"(-?[\d.]+)"
LINE = re.compile(rf"^(.+?): +{NUMBER}%?(?: ± +{NUMBER} ?%?)?$")
PERCENTILES = {"Maximum": 1, "Median": 0.5, "Minimum": 0}
FILE = Path(__file__).parent / "llama_cpp" / "printed.json"
# PPL and ± by sample, window and whether the vocabulary asks for a start token.
PRINTED = json.loads(FILE.read_text("utf-8"))["perplexities"]


def printed_lines(root, bits) -> dict[str, tuple]:
    """The statistics by their names: (value, ±)."""
    text = (root / "tests" / "llama_cpp" / f"kl_divergence_{bits}bit.txt").read_text("utf-8")
    lines = text.split("====== Perplexity statistics ======")[1].splitlines()
    found = [match.groups() for match in map(LINE.match, map(str.strip, lines)) if match]
    return {
        " ".join(name.split()): (float(value), error and float(error))
        for name, value, error in found
    }


@pytest.fixture(scope="module")
def text(root):
    return (root / "samples" / "story.txt").read_text("utf-8").removesuffix("\n")


@pytest.fixture(scope="module")
def tokenizer(root):
    return AutoTokenizer.from_pretrained(root / "demo_model")


def load(root):
    return AutoModelForCausalLM.from_pretrained(root / "demo_model").float().eval()


@pytest.fixture(scope="module")
def reference(root):
    return load(root)


@pytest.mark.parametrize("which", PRINTED)
def test_llama_perplexity(metric, root, reference, which):
    sample, window, adds_start = which.split()
    text = (root / "samples" / f"{sample}.txt").read_text("utf-8").removesuffix("\n")
    tokenizer = AutoTokenizer.from_pretrained(root / "demo_model")
    if adds_start == "1":
        start = tokenizer.bos_token
        template = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, tokenizer.bos_token_id)]
        )
        backend = tokenizer.backend_tokenizer
        backend.post_processor = processors.Sequence([backend.post_processor, template])
    result = metric.compute(
        predictions=[text],
        model=reference,
        tokenizer=tokenizer,
        protocol="llama.cpp",
        max_length=int(window),
    )
    perplexity, error = PRINTED[which]
    # Half of the last digit, and a step and a half of float32.
    assert result["perplexity"] == pytest.approx(perplexity, rel=0, abs=5e-5 + 1.8e-7 * perplexity)
    assert result["tool_stderr"] == pytest.approx(error, rel=1e-6, abs=5e-6)
    assert len(PRINTED) == 8  # all that was recorded


@pytest.fixture(scope="module", params=[4, 2])
def bits(request):
    return request.param


@pytest.fixture(scope="module")
def rounded(root, bits):
    return round_weights(load(root), bits)


@torch.inference_mode()
def scored_logits(model, tokenizer, text) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (R, V) and targets (R,) of the second half of each window, from whole forwards."""
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    logits = model(windows).logits[:, FIRST - 1 : -1]
    return logits.flatten(0, 1), windows[:, FIRST:].flatten()


@pytest.fixture(scope="module")
def rows(reference, tokenizer, text):
    """The reference's logits (R, V), and the targets (R,)."""
    return scored_logits(reference, tokenizer, text)


@pytest.fixture(scope="module")
def log_q(rounded, tokenizer, text):
    """Log-probabilities (R, V) of the rounded model, in float64."""
    return scored_logits(rounded, tokenizer, text)[0].double().log_softmax(1)


def through_16_bits(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (R, V) as the tool's file gives them back, in float64."""
    highest = logits.amax(1, keepdim=True)
    lowest = torch.maximum(logits.amin(1, keepdim=True), highest - 16)
    step = (highest - lowest) / 65535
    offset = lowest - highest - (logits - highest).logsumexp(1, keepdim=True)
    codes = torch.where(logits > lowest, ((logits - lowest) / step).round(), 0)
    return step.double() * codes.double() + offset.double()


def tool_statistics(log_q, log_p, targets, cutoff=-16) -> dict[str, tuple]:
    """The tool's own formulas over rows of log-probabilities (R, V) in float64: (value, ±)."""
    rows = torch.arange(len(targets))
    a, b = -log_q[rows, targets].numpy(), -log_p[rows, targets].numpy()
    kept = log_p > cutoff  # what 16 bits cut off doesn't count
    kl = torch.where(kept, log_p.exp() * (log_p - log_q), 0).sum(1).numpy()
    change = 100 * (np.exp(-a) - np.exp(-b))
    same = 100.0 * (log_q.argmax(1) == log_p.argmax(1)).numpy()
    n = len(a)

    def error(values):
        return np.sqrt((np.mean(values**2) - np.mean(values) ** 2) / (n - 1))

    ratio, ppl, base = a.mean() - b.mean(), np.exp(a.mean()), np.exp(b.mean())
    rms = np.sqrt(np.mean(change**2))
    return {
        "Mean PPL(Q)": (ppl, ppl * error(a)),
        "Mean PPL(base)": (base, base * error(b)),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": (100 * np.corrcoef(a, b)[0, 1], None),
        "Mean ln(PPL(Q)/PPL(base))": (ratio, error(a - b)),
        "Mean PPL(Q)/PPL(base)": (np.exp(ratio), np.exp(ratio) * error(a - b)),
        "Mean PPL(Q)-PPL(base)": (ppl - base, error(ppl * a - base * b)),
        "Mean KLD": (kl.mean(), error(kl)),
        "Mean Δp": (change.mean(), error(change)),
        "RMS Δp": (rms, error(change**2) / (2 * rms)),
        "Same top p": (same.mean(), error(same)),
        **percentile_lines("KLD", kl),
        **percentile_lines("Δp", change),
    }


def percentile_lines(name: str, values: np.ndarray) -> dict[str, tuple]:
    named = PERCENTILES | {f"{p:.1f}%": p / 100 for p in (0.1, 1, 5, 10, 25, 75, 90, 95, 99, 99.9)}
    return {f"{head} {name}": (np.quantile(values, p), None) for head, p in named.items()}


def test_every_printed_line_through_16_bits(root, tokenizer, text, rounded, bits):
    """In float64: the rounding of a forward in float32 moves some logits to the next of 16 bits."""
    printed = printed_lines(root, bits)
    assert len(printed) == 34
    logits, targets = scored_logits(load(root).double(), tokenizer, text)
    log_q = scored_logits(copy.deepcopy(rounded).double(), tokenizer, text)[0].log_softmax(1)
    computed = tool_statistics(log_q, through_16_bits(logits.float()), targets)
    for name, (value, error) in printed.items():
        digits = 3e-6 if "PPL" in name or "KLD" in name else 1.1e-3
        digits = 1.1e-2 if name.startswith("Cor") else digits
        digits = 3e-5 if name.endswith("PPL(Q)-PPL(base)") else digits  # 1e-6 of either
        # One token's value: the tool's own logit, in float32, may fall to the next of 16 bits,
        # 2.4e-4 nats away.
        if name.endswith(" KLD") and not name.startswith("Mean"):
            digits = 1e-4
        if name.endswith(" Δp") and not name.startswith(("Mean", "RMS")):
            digits = 5e-3
        assert computed[name][0] == pytest.approx(value, rel=1e-6, abs=digits), name
        if error is not None:
            assert computed[name][1] == pytest.approx(error, rel=1e-6, abs=digits), name


@pytest.fixture(scope="module")
def compared(root, text, tokenizer, reference, rounded, tmp_path_factory):
    import evaluate

    folder = tmp_path_factory.mktemp("cache")
    metric = evaluate.load(str(root / "perplexity_sliding.py"), cache_dir=str(folder))
    return metric.compute(
        predictions=[text],
        model=rounded,
        tokenizer=tokenizer,
        reference=reference,
        protocol="llama.cpp",
        max_length=WINDOW,
        return_token_scores=True,
    )


def metric_lines(result) -> dict[str, float]:
    """What the metric gives, under the tool's names and in its units."""
    comparison = result["comparison"]
    ppl, base = result["perplexity"], comparison["reference_perplexity"]
    ratio = comparison["perplexity_ratio"]["ratio"]
    scores = result["token_scores"][0]
    nlls = np.array([scores["nll"], scores["reference_nll"]], dtype=float)  # NaN where unscored
    lines = {
        "Mean PPL(Q)": ppl,
        "Mean PPL(base)": base,
        "Cor(ln(PPL(Q)), ln(PPL(base)))": 100 * np.corrcoef(nlls[:, ~np.isnan(nlls[0])])[0, 1],
        "Mean ln(PPL(Q)/PPL(base))": math.log(ratio),
        "Mean PPL(Q)/PPL(base)": ratio,
        "Mean PPL(Q)-PPL(base)": ppl - base,
        "Mean KLD": comparison["kl"],
        "Mean Δp": 100 * comparison["delta_p"],
        "RMS Δp": 100 * comparison["rms_delta_p"],
        "Same top p": 100 * comparison["same_top"],
    }
    heads = {"0": "Minimum", "50": "Median", "100": "Maximum"}
    for name, key, unit in (("KLD", "kl", 1), ("Δp", "delta_p", 100)):
        for percent, value in comparison[f"{key}_percentiles"].items():
            lines[f"{heads.get(percent, f'{float(percent):.1f}%')} {name}"] = unit * value
    return lines


def test_the_metric_gives_every_line_in_float64(compared, rows, log_q):
    """The tool's formulas over all bits of the logits: what it would print without its file."""
    logits, targets = rows
    log_p = logits.double().log_softmax(1)
    lines = metric_lines(compared)
    for name, (value, _) in tool_statistics(log_q, log_p, targets, cutoff=-np.inf).items():
        if name not in lines:
            continue
        # A tenth of the digits that the tool prints: one token's value is of float32.
        assert lines[name] == pytest.approx(value, rel=2e-5, abs=1e-4), name
