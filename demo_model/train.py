"""Train the bundled model: a small GPT-2 on public-domain novels, from scratch, on a CPU.

    python demo_model/train.py --books BOOKS --output demo_model

BOOKS is a folder of plain-text novels, one paragraph a line with a blank line between.  The
architecture is GPT-2's (Radford et al. 2019) with 6 layers of width 192; the tokenizer is a
byte-level BPE of 4096 tokens trained on the same books.  It learns on windows of 128 tokens and
keeps a context of 64, past which so small a model gains next to nothing.  The context is short on
purpose: texts of ordinary length need many windows, so the effect of the stride shows.

One book is held out entirely and only used to report the loss.
"""

import argparse
import copy
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TRAINING_WINDOW = 128
CONTEXT = 64
VOCABULARY = 4096
START_TOKEN = "<|endoftext|>"
HELD_OUT = "dorian-gray.txt"
# A quarter of the training windows begin with the start token and a new paragraph, so that the
# model knows what the metric's default start token means.
START_TOKEN_SHARE = 0.25


def read_books(folder: Path) -> tuple[dict[str, str], str]:
    """Return the training books by name, and the held-out one."""
    books = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.txt"))}
    return books, books.pop(HELD_OUT)


def train_tokenizer(books: dict[str, str]) -> ByteLevelBPETokenizer:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        books.values(), vocab_size=VOCABULARY, special_tokens=[START_TOKEN], show_progress=False
    )
    return tokenizer


def save_tokenizer(tokenizer: ByteLevelBPETokenizer, folder: Path) -> None:
    """Write the two files that every supported transformers version reads."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "bos_token": START_TOKEN,
        "eos_token": START_TOKEN,
        "unk_token": START_TOKEN,
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


def build_model(start_id: int, positions: str) -> torch.nn.Module:
    """Build a model of 6 layers of width 192, with "learned" positions or "rotary" ones."""
    return build_gpt2(start_id) if positions == "learned" else build_llama(start_id)


def build_llama(start_id: int) -> LlamaForCausalLM:
    """As many weights as `build_gpt2`'s, with positions that only tell how far apart tokens are."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=TRAINING_WINDOW,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=6,
            num_attention_heads=6,
            tie_word_embeddings=True,
            bos_token_id=start_id,
            eos_token_id=start_id,
        )
    )


def build_gpt2(start_id: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=TRAINING_WINDOW,
            n_embd=192,
            n_layer=6,
            n_head=6,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own, as one fused operation
            bos_token_id=start_id,
            eos_token_id=start_id,
        )
    )


def paragraph_starts(ids: torch.Tensor, newline_id: int) -> list[int]:
    """Positions of first tokens of paragraphs that lie at least a window before the end."""
    starts = (ids[:-1] == newline_id) & (ids[1:] != newline_id)
    return [
        i + 1 for i in starts.nonzero().flatten().tolist() if i + 1 + TRAINING_WINDOW < len(ids)
    ]


def save_model(model: GPT2LMHeadModel, folder: Path) -> None:
    """Store the weights in half precision, and of learned positions those that are kept."""
    kept = copy.deepcopy(model).half()
    if isinstance(kept, GPT2LMHeadModel):
        kept.transformer.wpe.weight.data = kept.transformer.wpe.weight.data[:CONTEXT].clone()
        kept.config.n_positions = CONTEXT
    kept.save_pretrained(folder)


class WindowSampler:
    """Draws training windows of TRAINING_WINDOW tokens from the books, longer books more often."""

    def __init__(self, books, tokenizer, seed):
        self.random = random.Random(seed)
        self.start_id = tokenizer.token_to_id(START_TOKEN)
        self.books = [torch.tensor(tokenizer.encode(text).ids) for text in books.values()]
        newline_id = tokenizer.token_to_id("Ċ")  # "\n" in byte-level BPE's alphabet
        self.paragraphs = [paragraph_starts(ids, newline_id) for ids in self.books]
        self.weights = [len(ids) for ids in self.books]

    def window(self) -> torch.Tensor:
        (book,) = self.random.choices(range(len(self.books)), self.weights)
        ids = self.books[book]
        if self.random.random() < START_TOKEN_SHARE:
            first = self.random.choice(self.paragraphs[book])
            return torch.cat(
                [torch.tensor([self.start_id]), ids[first : first + TRAINING_WINDOW - 1]]
            )
        first = self.random.randrange(len(ids) - TRAINING_WINDOW)
        return ids[first : first + TRAINING_WINDOW]

    def batch(self, size: int) -> torch.Tensor:
        return torch.stack([self.window() for _ in range(size)])  # (size, TRAINING_WINDOW)


def learning_rate(step: int, steps: int, peak: float, warmup: int = 200) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def build_optimizer(model: torch.nn.Module, peak: float) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=True)


@torch.inference_mode()
def bits_per_byte(model, tokenizer, text: str) -> float:
    """Bits per UTF-8 byte of `text`, read in disjoint windows."""
    ids = tokenizer.encode(text).ids
    nats = 0.0
    for first in range(0, len(ids), CONTEXT):
        window = torch.tensor([ids[first : first + CONTEXT]])
        if window.shape[1] > 1:
            nats += model(window, labels=window).loss.item() * (window.shape[1] - 1)
    return nats / math.log(2) / len(text.encode("utf-8"))


def train(model, sampler, arguments, report) -> None:
    optimizer = build_optimizer(model, arguments.learning_rate)
    for step in range(arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments.steps, arguments.learning_rate)
        windows = sampler.batch(arguments.batch_size)
        loss = model(windows, labels=windows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % arguments.report_every == 0:
            report(step + 1, loss.item())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, required=True, help="folder of .txt novels")
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--positions", choices=("learned", "rotary"), default="learned")
    parser.add_argument("--steps", type=int, default=2900)
    parser.add_argument("--batch-size", type=int, default=16, help="windows per step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--report-every", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    books, held_out = read_books(arguments.books)
    tokenizer = train_tokenizer(books)
    save_tokenizer(tokenizer, arguments.output)
    model = build_model(tokenizer.token_to_id(START_TOKEN), arguments.positions)
    sampler = WindowSampler(books, tokenizer, arguments.seed)
    began = time.monotonic()

    def report(step: int, loss: float) -> None:
        bits = bits_per_byte(model, tokenizer, held_out[:100_000])
        minutes = (time.monotonic() - began) / 60
        print(
            f"step {step:5d}  loss {loss:.3f} nats/token  held out {bits:.4f} bits/byte"
            f"  {minutes:.1f} min",
            flush=True,
        )
        save_model(model, arguments.output)

    train(model, sampler, arguments, report)
    print(
        f"{HELD_OUT}: {bits_per_byte(model, tokenizer, held_out):.4f} bits/byte, disjoint windows"
    )
    save_model(model, arguments.output)


if __name__ == "__main__":
    main()
