"""llama.cpp's own figures for the bundled model, recorded from its llama-perplexity.

How they were made stands in tests/llama_cpp/README.md.
"""

import pytest
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

START = "<|endoftext|>"

# (sample, window, start token): PPL and ± with an exact GELU, and PPL of the tool as it comes.
PRINTED = {
    ("story", 64, False): (37.3003, 2.19484, 37.3004),
    ("story", 64, True): (37.3638, 2.21181, 37.3637),
    ("story", 32, False): (37.0687, 2.17945, 37.0687),
    ("story", 32, True): (37.1192, 2.17835, 37.1190),
    ("technical", 64, False): (214.4114, 26.06380, 214.4145),
    ("technical", 64, True): (230.2592, 28.07215, 230.2615),
    ("technical", 32, False): (195.7895, 23.67331, 195.7896),
    ("technical", 32, True): (224.5551, 27.66229, 224.5542),
}


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


@pytest.mark.parametrize("sample, window, adds_start", PRINTED)
def test_llama_perplexity(metric, root, bundled, sample, window, adds_start):
    text = (root / "samples" / f"{sample}.txt").read_text("utf-8").removesuffix("\n")
    result = metric.compute(
        predictions=[text],
        model=bundled,
        tokenizer=bundled_tokenizer(root, adds_start),
        protocol="llama.cpp",
        max_length=window,
    )
    exact, error, as_it_comes = PRINTED[sample, window, adds_start]
    assert result["perplexity"] == pytest.approx(exact, rel=1e-6, abs=5e-5)
    assert result["tool_stderr"] == pytest.approx(error, rel=1e-6, abs=5e-6)
    assert result["perplexity"] == pytest.approx(as_it_comes, rel=3e-5)
