"""Train the bundled model: a small Llama on public-domain novels, from scratch, on a CPU.

    python demo_model/train.py --books BOOKS --output demo_model

BOOKS is a folder of plain-text novels, one paragraph a line with a blank line between.  The
architecture is Llama's (Touvron et al. 2023) with 6 layers of width 224, as many weights as fit
into 10 MB in half precision; the tokenizer is a byte-level BPE of 4096 tokens trained on the same
books.  Its context of 128 tokens is short on purpose: texts of ordinary length need many windows,
so the effect of the stride shows.

One book is held out entirely and only used to report the loss.

    python demo_model/train.py --books BOOKS --output demo_model --weights demo_model --peak 0.6

goes on from weights that are there, at 0.6 of the learning rates: another --seed draws other windows.
With `--average 0.5` what comes out lies halfway between these weights and where they were led, which
expects better than either (Izmailov et al., Averaging Weights Leads to Wider Optima and Better
Generalization, 2018).
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
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 128
# What the held-out book is read in while training is reported: the context of the first release.
REPORTED_WINDOW = 64
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


def build_model(start_id: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            hidden_size=224,
            intermediate_size=608,
            num_hidden_layers=6,
            num_attention_heads=7,
            tie_word_embeddings=True,
            bos_token_id=start_id,
            eos_token_id=start_id,
        )
    )


def paragraph_starts(ids: torch.Tensor, newline_id: int) -> list[int]:
    """Positions of paragraphs' first tokens that are at least a window before the end."""
    starts = (ids[:-1] == newline_id) & (ids[1:] != newline_id)
    return [i + 1 for i in starts.nonzero().flatten().tolist() if i + 1 + CONTEXT < len(ids)]


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    copy.deepcopy(model).half().save_pretrained(folder)


class WindowSampler:
    """Draws training windows of CONTEXT tokens from the books, longer books more often."""

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
            return torch.cat([torch.tensor([self.start_id]), ids[first : first + CONTEXT - 1]])
        first = self.random.randrange(len(ids) - CONTEXT)
        return ids[first : first + CONTEXT]

    def batch(self, size: int) -> torch.Tensor:
        return torch.stack([self.window() for _ in range(size)])  # (size, CONTEXT)


def rate(step: int, steps: int, warmup: int = 100) -> float:
    """Return the share of the peak learning rate: warm-up, constant, then down to 0 from halfway."""
    return min((step + 1) / warmup, 1.0, 2 * (1 - step / steps))


def orthogonalize(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Set the singular values of each matrix close to 1 by Newton-Schulz iteration.

    The coefficients are those of Jordan et al. (2024), "Muon: an optimizer for hidden layers".

    Args:
        matrices: of shape (matrices, rows, columns).
    """
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon in single precision: torch.optim's own works in bfloat16, which few CPUs multiply."""

    def __init__(self, matrices: list[torch.Tensor], lr: float, momentum: float = 0.95):
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for shape in {matrix.shape for matrix in group["params"]}:
                alike = [matrix for matrix in group["params"] if matrix.shape == shape]
                self._step_alike(alike, group["lr"], group["momentum"])

    def _step_alike(self, matrices: list[torch.Tensor], lr: float, momentum: float) -> None:
        directions = []
        for matrix in matrices:
            state = self.state[matrix]
            velocity = state.setdefault("velocity", torch.zeros_like(matrix))
            velocity.lerp_(matrix.grad, 1 - momentum)
            directions.append(matrix.grad.lerp(velocity, momentum))
        rows, columns = matrices[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        updates = orthogonalize(torch.stack(directions))
        for matrix, update in zip(matrices, updates, strict=True):
            matrix.sub_(update, alpha=lr * scale)


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices; AdamW for the embeddings and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        Muon(matrices, lr=0.02),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


@torch.inference_mode()
def bits_per_byte(model, tokenizer, text: str) -> float:
    """Return bits per UTF-8 byte of `text`, read in disjoint windows of REPORTED_WINDOW tokens."""
    ids = tokenizer.encode(text).ids
    nats = 0.0
    for first in range(0, len(ids), REPORTED_WINDOW):
        window = torch.tensor([ids[first : first + REPORTED_WINDOW]])
        if window.shape[1] > 1:
            nats += model(window, labels=window).loss.item() * (window.shape[1] - 1)
    return nats / math.log(2) / len(text.encode("utf-8"))


def train(model, sampler, arguments, report) -> None:
    optimizers = build_optimizers(model)
    peaks = [
        [arguments.peak * group["lr"] for group in optimizer.param_groups]
        for optimizer in optimizers
    ]
    for step in range(arguments.steps):
        windows = sampler.batch(arguments.batch_size)
        loss = model(windows, labels=windows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group, lr in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = lr * rate(step, arguments.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % arguments.report_every == 0:
            report(step + 1, loss.item())


@torch.no_grad()
def average(model: LlamaForCausalLM, before: dict[str, torch.Tensor], share: float) -> None:
    """Move the weights back towards the previous ones; keep a `share` of the change."""
    for name, weights in model.named_parameters():  # those that are tied once
        weights.lerp_(before[name], 1 - share)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, required=True, help="folder of .txt novels")
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--weights", type=Path, help="folder of a model to go on from")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--peak", type=float, default=1.0, help="share of the learning rates")
    parser.add_argument(
        "--average", type=float, default=1.0, help="share of the new weights, beside --weights"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="windows per step")
    parser.add_argument("--report-every", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.average != 1 and arguments.weights is None:
        parser.error("--average must be left out without --weights: it goes back towards those.")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    books, held_out = read_books(arguments.books)
    tokenizer = train_tokenizer(books)
    save_tokenizer(tokenizer, arguments.output)
    if arguments.weights is None:
        model = build_model(tokenizer.token_to_id(START_TOKEN))
    else:
        model = LlamaForCausalLM.from_pretrained(arguments.weights, dtype=torch.float32)
    before = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    model.train()
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
    average(model, before, arguments.average)
    print(
        f"{HELD_OUT}: {bits_per_byte(model, tokenizer, held_out):.4f} bits/byte, disjoint windows"
    )
    save_model(model, arguments.output)


if __name__ == "__main__":
    main()
