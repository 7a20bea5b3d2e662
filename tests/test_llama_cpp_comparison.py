"""llama.cpp's `--kl-divergence` for the bundled model with rounded weights, every line that it prints.

How the lines were made stands in tests/llama_cpp/README.md.  The tool keeps the reference's
log-probabilities in 16 bits, so its figures are met twice: to every printed digit from logits that
went through the same 16 bits here, and by the metric, which keeps them all, to what 16 bits cost.
"""

import re

import numpy as np
import pytest
import torch
from core.demo_model.round_weights import round_weights
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW = 64
FIRST = WINDOW // 2 + 1
NUMBER = r"(-?[\d.]+)"
LINE = re.compile(rf"^(.+?): +{NUMBER}%?(?: ± +{NUMBER} ?%?)?$")
PERCENTILES = {"Maximum": 1, "Median": 0.5, "Minimum": 0}
# What decode_logits.py finds in the tool's file.
DECODED_MEAN = 3.619002137
DECODED_FIRST = [1.707382, 1.488452, 2.901072, 6.706156, 0.927481, 8.038387, 2.746898, 3.007980]


def printed_lines(root, bits) -> tuple[dict[str, tuple], np.ndarray]:
    """The statistics by their names, (value, ±), and the table of running values by window."""
    text = (root / "tests" / "llama_cpp" / f"kl_divergence_{bits}bit.txt").read_text("utf-8")
    table, statistics = text.split("====== Perplexity statistics ======")
    rows = [re.findall(r"-?\d+\.?\d*", line) for line in table.splitlines()[1:] if line.strip()]
    found = {}
    for line in statistics.splitlines():
        match = LINE.match(line.strip())
        if match:
            name, value, error = match.groups()
            found[" ".join(name.split())] = (float(value), error and float(error))
    return found, np.array(rows, dtype=float)


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


def through_16_bits(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (R, V) as the tool's file gives them back, in float64."""
    highest = logits.amax(1, keepdim=True)
    lowest = torch.maximum(logits.amin(1, keepdim=True), highest - 16)
    step = (highest - lowest) / 65535
    offset = lowest - highest - (logits - highest).logsumexp(1, keepdim=True)
    codes = torch.where(logits > lowest, ((logits - lowest) / step).round(), 0)
    return step.double() * codes.double() + offset.double()


def tool_statistics(log_q, log_p, targets, running=False) -> dict[str, tuple]:
    """The tool's own formulas over rows of log-probabilities (R, V) in float64: (value, ±)."""
    rows = torch.arange(len(targets))
    a, b = -log_q[rows, targets].numpy(), -log_p[rows, targets].numpy()
    # what 16 bits cut off doesn't count
    kept = log_p > -16
    kl = torch.where(kept, log_p.exp() * (log_p - log_q), 0).sum(1).numpy()
    change = 100 * (np.exp(-a) - np.exp(-b))
    same = 100.0 * (log_q.argmax(1) == log_p.argmax(1)).numpy()
    n = len(a)

    def error(values):
        return np.sqrt((np.mean(values**2) - np.mean(values) ** 2) / (n - 1))

    ratio, ppl, base = a.mean() - b.mean(), np.exp(a.mean()), np.exp(b.mean())
    rms = np.sqrt(np.mean(change**2))
    found = {
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
    }
    if running:
        return found
    return found | percentile_lines("KLD", kl) | percentile_lines("Δp", change)


def percentile_lines(name: str, values: np.ndarray) -> dict[str, tuple]:
    named = PERCENTILES | {f"{p:.1f}%": p / 100 for p in (0.1, 1, 5, 10, 25, 75, 90, 95, 99, 99.9)}
    return {f"{head} {name}": (np.quantile(values, p), None) for head, p in named.items()}


def test_every_printed_line_through_16_bits(root, text, tokenizer, reference, rounded, bits):
    printed, table = printed_lines(root, bits)
    assert len(printed) == 34 and len(table) == 51
    logits, targets = scored_logits(reference, tokenizer, text)
    log_p = through_16_bits(logits)
    log_q = scored_logits(rounded, tokenizer, text)[0].double().log_softmax(1)
    computed = tool_statistics(log_q, log_p, targets)
    for name, (value, error) in printed.items():
        digits = 3e-6 if "PPL" in name or "KLD" in name else 1.1e-3
        digits = 1.1e-2 if name.startswith("Cor") else digits
        assert computed[name][0] == pytest.approx(value, rel=1e-6, abs=digits), name
        if error is not None:
            assert computed[name][1] == pytest.approx(error, rel=1e-6, abs=digits), name
