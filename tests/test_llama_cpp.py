"""llama.cpp's own figures for the bundled model, recorded from its llama-perplexity.

How they were made stands in tests/llama_cpp/README.md.
"""

import json
from pathlib import Path

import pytest
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

START = "<|endoftext|>"

# PPL and ± by sample, window and whether the vocabulary asks for a start token.
FILE = Path(__file__).parent / "llama_cpp" / "printed.json"
PRINTED = json.loads(FILE.read_text("utf-8"))["perplexities"]


@pytest.fixture(scope="module")
def bundled(root):
    return AutoModelForCausalLM.from_pretrained(root / "demo_model").float()


def bundled_tokenizer(root, adds_start: bool):
    """The bundled tokenizer, and one that says of itself that it adds a start token."""
    tokenizer = AutoTokenizer.from_pretrained(root / "demo_model")
    if adds_start:
        template = processors.TemplateProcessing(
            single=f"{START} $A", special_tokens=[(START, tokenizer.bos_token_id)]
        )
        backend = tokenizer.backend_tokenizer
        backend.post_processor = processors.Sequence([backend.post_processor, template])
    return tokenizer


@pytest.mark.parametrize("which", PRINTED)
def test_llama_perplexity(metric, root, bundled, which):
    sample, window, adds_start = which.split()
    text = (root / "samples" / f"{sample}.txt").read_text("utf-8").removesuffix("\n")
    result = metric.compute(
        predictions=[text],
        model=bundled,
        tokenizer=bundled_tokenizer(root, adds_start == "1"),
        protocol="llama.cpp",
        max_length=int(window),
    )
    perplexity, error = PRINTED[which]
    # Half of the last digit, and a step and a half of float32.
    assert result["perplexity"] == pytest.approx(perplexity, rel=0, abs=5e-5 + 1.8e-7 * perplexity)
    assert result["tool_stderr"] == pytest.approx(error, rel=1e-6, abs=5e-6)


def test_what_is_recorded_is_all():
    assert len(PRINTED) == 8
