"""Time everything but the model: a model without cost, and growing inputs."""

import tempfile
import time

import evaluate
from cases import ROOT
from workloads import FreeModel, make_text, make_tokenizer

VOCABULARY, CONTEXT, SHORT_TEXT = 8, 1024, 10


class FreeRun:
    """The metric with a model of almost no cost."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.metric = evaluate.load(
            str(ROOT / "perplexity_sliding.py"), cache_dir=self.scratch.name
        )
        self.model = FreeModel(VOCABULARY, CONTEXT).eval()
        self.tokenizer = make_tokenizer(VOCABULARY)
        self(["w1 w2"])  # warm-up

    def __call__(self, texts: list[str]) -> dict:
        """Seconds, and the work done in them."""
        began = time.perf_counter()
        result = self.metric.compute(predictions=texts, model=self.model, tokenizer=self.tokenizer)
        return {
            "seconds": time.perf_counter() - began,
            "texts": len(texts),
            "tokens": result["num_tokens"],
            "forward_tokens": result["num_forward_tokens"],
        }


def short_texts(numbers: list[int]) -> list[dict]:
    """Growing numbers of texts of ten tokens."""
    run = FreeRun()
    texts = [make_text(SHORT_TEXT, VOCABULARY, seed) for seed in range(max(numbers))]
    return [run(texts[:number]) for number in numbers]


def one_text(numbers: list[int]) -> list[dict]:
    """One text of growing length."""
    run = FreeRun()
    words = make_text(max(numbers), VOCABULARY).split()
    return [run([" ".join(words[:number])]) for number in numbers]
