"""What the published tools give for the words of a few texts: wordsprobability 0.17 and minicons 0.3.39.

    pip install wordsprobability==0.17 minicons==0.3.39
    python tests/word_peers.py              # records it in word_peers.json
    python tests/word_peers.py --newlines   # counts the words that newlines make differ from minicons

They find the words of a text by the sign "Ġ" alone, so they are right where a model knows no other white
space, which `without_newlines` makes of one.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
RECORDED = Path(__file__).parent / "word_peers.json"
TEXTS = [
    "The old man was kind, and he said nothing of it.",
    "She laughed aloud when I told her so.",
]
PAIRS = [("The old man", "was kind, and he said nothing."), ("She laughed", "aloud.")]
WITH_NEWLINE = "He was old.\nShe was not."


def load_novelist():
    """The bundled model and its tokenizer, which puts no space before a text."""
    folder = ROOT / "demo_model"
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    return model, AutoTokenizer.from_pretrained(folder, add_prefix_space=False)


@contextmanager
def without_newlines(model, tokenizer) -> Iterator[None]:
    """Let a model find all white space but spaces impossible."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    decoded = [tokenizer.convert_tokens_to_string(["a", token]) for token in tokens]
    others = [
        number
        for number, (token, text) in enumerate(zip(tokens, decoded))
        if text[1:2].isspace() and not token.startswith("Ġ")
    ]
    assert "Ċ" in tokenizer.convert_ids_to_tokens(others)

    def forbid(module, inputs, logits):
        logits = logits.clone()
        logits[..., others] = -torch.inf
        return logits

    hook = model.lm_head.register_forward_hook(forbid)
    try:
        yield
    finally:
        hook.remove()


def wordsprobability_words(model, tokenizer, texts):
    """[word, surprisal, plain sum] of each word of each text, in nats."""
    from wordsprobability import main
    from wordsprobability.models import MODELS, bow_lm

    class Live(bow_lm.GPT2BaseModel):
        def _initialise_model(self):
            return model, tokenizer

    MODELS["live"] = Live
    frame = main._get_surprisal_per_word(texts, "live", return_buggy_surprisals=True)
    return [
        [[row.word, row.surprisal, row.surprisal_buggy] for row in own.itertuples()]
        for _, own in frame.groupby("text_id")
    ]


def minicons_words(model, tokenizer, texts):
    """[word, surprisal] of each word of each text, in nats."""
    from minicons import scorer

    model = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    return model.word_score_tokenized(
        texts, tokenize_function=str.split, bow_correction=True, bos_token=True, surprisal=True
    )


def minicons_conditional(model, tokenizer, pairs):
    """Log-probability of each text after its context, with a start token."""
    from minicons import scorer

    model = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    contexts, texts = map(list, zip(*pairs))
    return model.conditional_score(
        contexts, texts, reduction=lambda scores: scores.sum().item(), bos_token=True
    )


def ask_tools(model, tokenizer) -> dict[str, list]:
    """What the tools give, by the names under which it is recorded."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with without_newlines(model, tokenizer):
        given = {
            "wordsprobability": wordsprobability_words(model, tokenizer, TEXTS),
            "minicons": minicons_words(model, tokenizer, TEXTS),
            "minicons conditional": minicons_conditional(model, tokenizer, PAIRS),
        }
    for tool in (wordsprobability_words, minicons_words):
        name = tool.__name__.replace("_words", " newline")
        given[name] = tool(model, tokenizer, [WITH_NEWLINE])
    return given


def sentences(tokenizer) -> list[str]:
    """The sentences of the sample that fit the model's window, without newlines in them."""
    story = " ".join((ROOT / "samples" / "story.txt").read_text("utf-8").split())
    parts = re.split(r"(?<=[.!?]) (?=[A-Z“])", story)
    return [part for part in parts if len(tokenizer(part).input_ids) < 120]


def differences_to_minicons(model, tokenizer, texts) -> list[list[float]]:
    """Surprisal by minicons less that of this metric, of each word of each text, in bits."""
    from perplexity_sliding import compute

    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    theirs = minicons_words(model, tokenizer, texts)
    asked = {"words": True, "word_correction": "oh"}
    ours = compute(texts, model=model, tokenizer=tokenizer, **asked)["word_scores"]
    return [
        [(b - a) / math.log(2) for a, (_, b) in zip(own["surprisal"], words, strict=True)]
        for own, words in zip(ours, theirs, strict=True)
    ]


def describe_newlines(model, tokenizer) -> str:
    """How many words differ as newlines may follow them, and how far all agree where none may."""
    texts = sentences(tokenizer)
    found = differences_to_minicons(model, tokenizer, texts)
    far = [[abs(bits) > 0.1 for bits in of_text] for of_text in found]
    with without_newlines(model, tokenizer):
        same = differences_to_minicons(model, tokenizer, texts)
    least = max(abs(bits) for of_text in same for bits in of_text)
    return (
        f"{sum(map(sum, far))} of {sum(map(len, far)):,} words differ by more than 0.1 bit, "
        f"{sum(of_text[-1] for of_text in far)} of them the last of a sentence; without newlines, "
        f"{'none differs by more than 0.0001 bit' if least < 1e-4 else f'by up to {least:.4f} bit'}"
    )


def main() -> None:
    if "--newlines" in sys.argv:
        return print(describe_newlines(*load_novelist()))
    given = json.dumps(ask_tools(*load_novelist()), indent=1, ensure_ascii=False)
    RECORDED.write_text(f"{given}\n", "utf-8")


if __name__ == "__main__":
    main()
