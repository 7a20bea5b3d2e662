"""Models of real shapes with random weights, and texts for them, without downloads.

How fast a transformer runs does not depend on the values of its weights, and how long a text takes
does not depend on its words.
"""

import math
import random

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

START = "<|endoftext|>"
# Shapes of GPT-2's configuration; "gpt2" is its default.
SHAPES = {
    "gpt2": {},
    "narrow": {"n_layer": 12, "n_embd": 128, "n_head": 4, "vocab_size": 4096},
    "tiny": {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 257},
    "large vocabulary": {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 128256},
}
# WikiText-2's lines: a third are headings of a few words; the lengths of the others are close to
# log-normal, and none is longer than about 480 words.
HEADINGS, HEADING_WORDS = 0.32, (3, 12)
LINE_LOG_MEAN, LINE_LOG_SPREAD, LONGEST_LINE = 4.55, 0.76, 480


def make_model(shape: str, seed: int = 0) -> transformers.GPT2LMHeadModel:
    torch.manual_seed(seed)
    vocabulary = SHAPES[shape].get("vocab_size", transformers.GPT2Config().vocab_size)
    config = transformers.GPT2Config(
        **SHAPES[shape], bos_token_id=vocabulary - 1, eos_token_id=vocabulary - 1
    )
    return transformers.GPT2LMHeadModel(config).eval()


def make_tokenizer(vocabulary: int) -> transformers.PreTrainedTokenizerFast:
    """One token per word, so that texts have a given length; the last token is the start token."""
    words = {f"w{number}": number for number in range(vocabulary - 1)} | {START: vocabulary - 1}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=START, eos_token=START, pad_token=START
    )


def make_text(num_tokens: int, vocabulary: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(vocabulary - 1)}" for _ in range(num_tokens))


def make_lines(number: int, vocabulary: int, scale: float, longest: int) -> list[str]:
    """Texts with the lengths of WikiText-2's lines, times `scale`."""
    draw = random.Random(0)
    lengths = []
    for _ in range(number):
        words = math.exp(draw.gauss(LINE_LOG_MEAN, LINE_LOG_SPREAD))
        if draw.random() < HEADINGS:
            words = draw.randint(*HEADING_WORDS)
        lengths.append(max(2, min(longest, round(scale * min(words, LONGEST_LINE)))))
    return [make_text(length, vocabulary, seed) for seed, length in enumerate(lengths)]
