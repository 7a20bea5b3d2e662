"""Published perplexities, measured again with the real weights.

These need the Hugging Face Hub (12 GB of weights and small corpora) and are skipped where it can't
be reached; `pytest -m "not hub"` leaves them out, `pytest -m hub` runs nothing else.  Models of 7
billion weights need an accelerator as well.
"""

import urllib.request

import datasets
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer

pytestmark = [pytest.mark.hub, pytest.mark.usefixtures("hub")]


@pytest.fixture(scope="module")
def hub():
    """Skip with the reason where there is no Hub to load from."""
    if constants.HF_HUB_OFFLINE:
        pytest.skip("HF_HUB_OFFLINE is set")
    address = f"{constants.ENDPOINT}/api/models/openai-community/gpt2"
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5).close()
    except OSError as error:
        pytest.skip(f"{constants.ENDPOINT} can't be reached: {error}")


@pytest.fixture(scope="module")
def wikitext(hub):
    """The lines of WikiText-2's test part, raw, which every protocol here joins by empty lines."""
    return datasets.load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1", split="test")["text"]


needs_accelerator = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="hours of an accelerator"
)
HALF = {"dtype": "float16", "batch_size": 1}

# From "Perplexity of fixed-length models", the guide of transformers: as it stated them when it took
# the mean of window means, but for the last, which its present weighting prints.  GPT-2 medium's, by
# the same guide, is from the card of smpanaro/gpt2-medium-AutoGPTQ-4bit-128g.
GUIDE = [
    # protocol, model, stride, perplexity
    ("transformers-docs", "openai-community/gpt2-large", 1024, 19.44),
    ("transformers-docs", "openai-community/gpt2-large", 512, 16.45),
    ("transformers-docs", "openai-community/gpt2-medium", 512, 18.474),
    ("transformers-docs-weighted", "openai-community/gpt2", 512, 25.17),
]


@pytest.mark.parametrize("protocol, model_id, stride, perplexity", GUIDE)
def test_the_guide_on_wikitext(metric, wikitext, protocol, model_id, stride, perplexity):
    result = metric.compute(
        predictions=list(wikitext),
        model_id=model_id,
        protocol=protocol,
        max_length=1024,
        stride=stride,
    )
    assert result["perplexity"] == pytest.approx(perplexity, abs=0.0051)


# Models in half precision, before anything is pruned or quantised: OPT from SparseGPT (Frantar and
# Alistarh, arXiv 2301.00774), whose evaluation is GPTQ's; LLaMA from GPTQ's README and AWQ (Lin et
# al., arXiv 2306.00978, table 4).
GPTQ = [
    # model, perplexity
    ("facebook/opt-125m", 27.66),
    ("facebook/opt-350m", 22.00),
    ("facebook/opt-1.3b", 14.62),
    pytest.param("huggyllama/llama-7b", 5.68, marks=needs_accelerator),
    pytest.param("NousResearch/Llama-2-7b-hf", 5.47, marks=needs_accelerator),
]


@pytest.mark.parametrize("model_id, perplexity", GPTQ)
def test_quantisation_papers_on_wikitext(metric, wikitext, model_id, perplexity):
    settings = HALF if torch.cuda.is_available() else {}
    result = metric.compute(
        predictions=list(wikitext), model_id=model_id, protocol="gptq", **settings
    )
    assert result["perplexity"] == pytest.approx(perplexity, abs=0.02)


# From llama.cpp's tools/perplexity/README.md: half precision, windows of 512 tokens.
@needs_accelerator
@pytest.mark.parametrize("model_id, perplexity", [("huggyllama/llama-7b", 5.9066)])
def test_llama_cpp_on_wikitext(metric, wikitext, model_id, perplexity):
    result = metric.compute(
        predictions=list(wikitext), model_id=model_id, protocol="llama.cpp", **HALF
    )
    assert result["perplexity"] == pytest.approx(perplexity, rel=2e-3)


@needs_accelerator
def test_lm_eval_on_wikitext(metric):
    """From EleutherAI/lm-evaluation-harness#833."""
    name = "EleutherAI/wikitext_document_level"
    pages = datasets.load_dataset(name, "wikitext-2-raw-v1", split="test")["page"]
    result = metric.compute(
        predictions=list(pages),
        detokenizer="wikitext",
        model_id="NousResearch/Llama-2-7b-hf",
        protocol="lm-eval",
        tokenizer=AutoTokenizer.from_pretrained("NousResearch/Llama-2-7b-hf", add_bos_token=False),
        **HALF,
    )
    assert result["adjusted_perplexity"] == pytest.approx(8.7922, rel=2e-3)


# From data/govreport.csv of jquesnelle/yarn: windows of 32,768 tokens, 256 apart, over the first 50
# reports of at least 16,384 tokens.
YARN = [("codellama/CodeLlama-7b-hf", 4.4381), ("togethercomputer/LLaMA-2-7B-32K", 3.6678)]


@needs_accelerator
@pytest.mark.filterwarnings("ignore:`max_length`=32768 exceeds")
@pytest.mark.parametrize("model_id, perplexity", YARN)
def test_yarn_on_government_reports(metric, model_id, perplexity):
    rows = datasets.load_dataset("emozilla/govreport-test-tokenized", split="test")
    long_enough = rows.filter(lambda row: row["tokenized_len"] >= 16384)
    result = metric.compute(
        predictions=long_enough["input"][:50],
        model_id=model_id,
        protocol="yarn",
        max_length=32768,
        dtype="bfloat16",
        batch_size=1,
    )
    assert result["perplexity"] == pytest.approx(perplexity, rel=0.01)


def test_the_example_of_the_stock_metric(metric):
    """From the documentation of evaluate's own perplexity."""
    result = metric.compute(
        predictions=["lorem ipsum", "Happy Birthday!", "Bienvenue"],
        model_id="openai-community/gpt2",
        add_start_token=False,
        protocol="stock",
    )
    assert result["perplexities"] == pytest.approx([32.25, 1499.69, 408.27], abs=0.0051, rel=1e-5)
    assert result["mean_perplexity"] == pytest.approx(646.74, abs=0.0051, rel=1e-5)
