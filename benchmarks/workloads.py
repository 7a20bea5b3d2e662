"""Models of real shapes with random weights, and texts for them, without downloads.

How fast a transformer runs does not depend on the values of its weights, and how long a text takes
does not depend on its words.
"""

import math
import random
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

START = "<|endoftext|>"
# Shapes of GPT-2's configuration; "gpt2" is its default.
SHAPES = {
    "gpt2": {},
    "small": {"n_layer": 6, "n_embd": 384, "n_head": 6},
    "small vocabulary": {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 4096},
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


def read_lines(folder: str, number: int, vocabulary: int, scale: float, longest: int) -> list[str]:
    """Texts with the lengths of the lines of a folder's files, times `scale`.

    The lines are evenly spaced from the shortest to the longest of all, so that there is as much to
    pad as in the whole.  Their words are replaced: those of the tokenizer here mean nothing.
    """
    files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    lines = (line for path in files for line in path.open(encoding="utf-8"))
    lengths = sorted(len(line.split()) for line in lines if line.strip())
    number = min(number, len(lengths))
    chosen = [lengths[n * (len(lengths) - 1) // max(1, number - 1)] for n in range(number)]
    random.Random(0).shuffle(chosen)
    return [
        make_text(max(2, min(longest, round(scale * length))), vocabulary, seed)
        for seed, length in enumerate(chosen)
    ]


class FreeModel(torch.nn.Module):
    """A causal model of almost no cost, to measure everything around a model.

    Its parts are where other models have theirs; its forward is its own, so that all of it runs.
    """

    def __init__(self, vocabulary: int, context: int):
        super().__init__()
        self.config = transformers.PretrainedConfig(
            vocab_size=vocabulary, max_position_embeddings=context
        )
        self.base_model = FreeBody(vocabulary)
        self.head = torch.nn.Linear(1, vocabulary, bias=False)

    def get_input_embeddings(self):
        return self.base_model.embeddings

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.head(self.base_model(input_ids).last_hidden_state))


class FreeBody(torch.nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.embeddings = torch.nn.Embedding(vocabulary, 1)

    def forward(self, input_ids):
        return BaseModelOutput(last_hidden_state=self.embeddings(input_ids))
