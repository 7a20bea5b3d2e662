"""What everything around the model costs: a model that is free, and ever more to do."""

import tempfile
import time

import evaluate
from cases import ROOT
from workloads import FreeModel, make_text, make_tokenizer

VOCABULARY, CONTEXT, SHORT_TEXT = 8, 1024, 10


class FreeRun:
    """The metric with a model that costs next to nothing."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.metric = evaluate.load(
            str(ROOT / "perplexity_sliding.py"), cache_dir=self.scratch.name
        )
        self.model = FreeModel(VOCABULARY, CONTEXT).eval()
        self.tokenizer = make_tokenizer(VOCABULARY)
        self(["w1 w2"])  # warm-up

    def __call__(self, texts: list[str]) -> dict:
        """Seconds, and what was done in them."""
        began = time.perf_counter()
        result = self.metric.compute(predictions=texts, model=self.model, tokenizer=self.tokenizer)
        return {
            "seconds": time.perf_counter() - began,
            "texts": len(texts),
            "tokens": result["num_tokens"],
            "forward_tokens": result["num_forward_tokens"],
        }


def short_texts(numbers: list[int]) -> list[dict]:
    """Ever more texts of ten tokens."""
    run = FreeRun()
    texts = [make_text(SHORT_TEXT, VOCABULARY, seed) for seed in range(max(numbers))]
    return [run(texts[:number]) for number in numbers]


def one_text(numbers: list[int]) -> list[dict]:
    """One text of ever more tokens."""
    run = FreeRun()
    words = make_text(max(numbers), VOCABULARY).split()
    return [run([" ".join(words[:number])]) for number in numbers]
