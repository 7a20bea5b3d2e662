"""What the published tools give for the words of a few texts: wordsprobability 0.17 and minicons 0.3.39.

    pip install wordsprobability==0.17 minicons==0.3.39
    python tests/word_peers.py      # records it in word_peers.json

They find the words of a text by the sign "Ġ" alone, so they are right where a model knows no other white
space, which `without_newlines` makes of one.
"""

import json
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


def main() -> None:
    given = json.dumps(ask_tools(*load_novelist()), indent=1, ensure_ascii=False)
    RECORDED.write_text(f"{given}\n", "utf-8")


if __name__ == "__main__":
    main()
