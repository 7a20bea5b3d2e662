"""Train the bundled model: a small Llama on public-domain novels, from scratch, on a GPU.

    python demo_model/train.py --books BOOKS --output demo_model

BOOKS is a folder of plain-text novels, one paragraph a line with a blank line between.  The
architecture is Llama's (Touvron et al. 2023) with 6 layers of width 224, as many weights as fit
into 10 MB in half precision; the tokenizer is a byte-level BPE of 4096 tokens trained on the same
books.  Its context of 128 tokens is short on purpose: texts of ordinary length need many windows,
so the effect of the stride shows.

One book is held out entirely and only used to report how well the model reads.

Novels hardly teach a model of this size to look back.  Windows that repeat do, once it has heads that
find where the present tokens were read before and copy what followed: induction heads (Olsson et al.,
In-context Learning and Induction Heads, 2022).  By themselves these form late.  The first steps show a
few heads where to look, less and less (Deshpande and Narasimhan, Guiding Attention for Self-Supervised
Learning with Transformers, 2020), in windows of tokens that were drawn at random and repeat.  Then the
model reads novels, among passages that return and prose whose names were replaced by invented ones.

Needs torch 2.9.  On a CPU it takes days; --steps 2000 --batch-size 16 shows in an hour how it goes.
"""

import argparse
import copy
import json
import math
import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 128
VOCABULARY = 4096
START_TOKEN = "<|endoftext|>"
HELD_OUT = "dorian-gray.txt"
# A quarter of the training windows begin with the start token and a new paragraph, so that the
# model knows what the metric's default start token means.
START_TOKEN_SHARE = 0.25
NOT_SCORED = -100  # the label that cross_entropy leaves out
# Windows of random tokens, of passages that return, of prose with invented names, and as they are.
SHARES_GUIDED = [0.45, 0.15, 0.15, 0.25]
SHARES = [0.03, 0.17, 0.1, 0.7]

# (layer, head): how many tokens back it looks.
PREVIOUS_HEADS = {(1, 0): 1, (1, 1): 2}
# These look at what followed when the present tokens were read before.
INDUCTION_HEADS = [(3, 0), (3, 1), (4, 0), (4, 1)]

SENTENCE_END = re.compile(r"(?<=[.!?”\"]) (?=[“\"A-Z])")
NAME = re.compile(r"\b([A-Z][a-z]{3,})\b")
NAME_WITHIN_SENTENCE = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{3,}\b")
VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnprstvwz"


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


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    copy.deepcopy(model).half().save_pretrained(folder)


class WindowSampler(IterableDataset):
    """Draws training windows of CONTEXT tokens: token ids, labels, and the period of random ones."""

    def __init__(self, books, tokenizer, arguments):
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.tokenizer = tokenizer
        self.start_id = tokenizer.token_to_id(START_TOKEN)
        self.texts = list(books.values())
        self.ids = [tokenizer.encode(text).ids for text in self.texts]
        self.weights = [len(ids) for ids in self.ids]  # longer books more often
        newline_id = tokenizer.token_to_id("Ċ")  # "\n" in byte-level BPE's alphabet
        self.starts = [paragraph_starts(ids, newline_id) for ids in self.ids]
        self.paragraphs = [line for text in self.texts for line in text.split("\n") if line]
        self.names = find_names(self.texts)
        counts = Counter(token for ids in self.ids for token in ids)
        self.frequencies = [math.sqrt(counts[token]) for token in range(VOCABULARY)]

    def __iter__(self):
        """Yield batches of ids (size, CONTEXT), labels (size, CONTEXT) and periods (size)."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        self.random = random.Random(f"{self.arguments.seed} {number}")
        kinds = [self.random_tokens, self.repeated, self.renamed, self.plain]
        for step in range(number, self.arguments.steps, workers):  # the loader takes turns
            shares = SHARES_GUIDED if step < self.arguments.guided else SHARES
            drawn = self.random.choices(kinds, shares, k=self.arguments.batch_size)
            windows = [kind() for kind in drawn]
            yield tuple(torch.tensor(column) for column in zip(*windows, strict=True))

    def plain(self):
        (book,) = self.random.choices(range(len(self.ids)), self.weights)
        ids = self.ids[book]
        if self.random.random() < START_TOKEN_SHARE:
            first = self.random.choice(self.starts[book])
            window = [self.start_id, *ids[first : first + CONTEXT - 1]]
        else:
            first = self.random.randrange(len(ids) - CONTEXT)
            window = ids[first : first + CONTEXT]
        return window, window, 0

    def random_tokens(self):
        """A few tokens drawn at random, over and over; the first time cannot be learned.

        Where they are of few kinds, only the tokens before it tell one occurrence from another.
        """
        period = self._between(3, CONTEXT // 2)
        vocabulary = range(VOCABULARY)
        kinds = self.random.choices(vocabulary, self.frequencies, k=self._between(4, 1000))
        tokens = self.random.choices(kinds, k=period)
        window = (tokens * CONTEXT)[:CONTEXT]
        return window, [NOT_SCORED] * period + window[period:], period

    def repeated(self):
        """A passage again and again, half the time with others between, or with a word changed."""
        again = self._passage()
        others = self.random.random() < 0.4
        changed = self.random.random() < 0.25
        pieces = []
        while sum(map(len, pieces)) < 8 * CONTEXT:
            words = again.split(" ")
            if changed and pieces:
                other = self._passage().split(" ")
                words[self.random.randrange(len(words))] = self.random.choice(other)
            pieces.append(" ".join(words))
            if others:
                pieces.append(self._passage())
        return self._window(self.random.choice([" ", " ", "\n", "\n\n"]).join(pieces))

    def renamed(self):
        """Prose in which names that return are replaced by invented ones, not scored at first."""
        names = []
        while len(set(names)) == len(names):
            (book,) = self.random.choices(self.texts, self.weights)
            first = book.find(" ", self.random.randrange(len(book) - 5 * CONTEXT)) + 1
            parts = NAME.split(book[first : first + 4 * CONTEXT])
            names = [part for part in parts if part in self.names]
        written, invented, unknown = "", {}, []
        for part in parts:
            if part in self.names and part not in invented:
                invented[part] = self._invent(part)
                unknown.append((len(written), len(written) + len(invented[part])))
            written += invented.get(part, part)
        return self._window(written, unknown)

    def _window(self, text: str, unknown=()):
        """The tokens of a text; characters in the spans of `unknown` are not scored."""
        encoded = self.tokenizer.encode(text)
        labels = [
            NOT_SCORED if any(start < b and a < end for a, b in unknown) else token
            for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True)
        ]
        ids = encoded.ids
        if self.random.random() < 0.5:
            ids, labels = [self.start_id, *ids], [NOT_SCORED, *labels]
        missing = max(0, CONTEXT - len(ids))
        ids, labels = ids + missing * [self.start_id], labels + missing * [NOT_SCORED]
        return ids[:CONTEXT], labels[:CONTEXT], 0

    def _passage(self) -> str:
        """One to three sentences, or a few words from anywhere, as often short as long."""
        paragraph = self.random.choice(self.paragraphs)
        if self.random.random() < 0.5:
            sentences = SENTENCE_END.split(paragraph)
            first = self.random.randrange(len(sentences))
            return " ".join(sentences[first : first + self.random.randint(1, 3)])[: 2 * CONTEXT]
        words = paragraph.split(" ")
        first = self.random.randrange(len(words))
        return " ".join(words[first : first + self._between(2, 45)])

    def _between(self, low: int, high: int) -> int:
        """A whole number whose logarithm is drawn evenly."""
        return int(low * ((high + 1) / low) ** self.random.random())

    def _invent(self, name: str) -> str:
        """A name that sounds like one: other vowels for the vowels, other consonants for the others."""
        letters = [VOWELS if letter in VOWELS else CONSONANTS for letter in name.lower()]
        return "".join(map(self.random.choice, letters)).capitalize()


def paragraph_starts(ids: list[int], newline_id: int) -> list[int]:
    """Positions of paragraphs' first tokens that are at least a window before the end."""
    return [
        i for i in range(1, len(ids) - CONTEXT) if ids[i - 1] == newline_id and ids[i] != newline_id
    ]


def find_names(texts: list[str]) -> set[str]:
    """Words that are written with a capital within sentences, and seldom without one."""
    capital, small = Counter(), Counter()
    for text in texts:
        capital.update(NAME_WITHIN_SENTENCE.findall(text))
        small.update(re.findall(r"\b[a-z]{4,}\b", text))
    return {name for name, n in capital.items() if n >= 5 and small[name.lower()] < n / 10}


def rate(step: int, steps: int, warmup: int = 100) -> float:
    """Return the share of the peak learning rate: warm-up, constant, then down to 0 from halfway."""
    return min((step + 1) / warmup, 1.0, 2 * (1 - step / steps))


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices; AdamW for the embeddings and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
    ]


def guidance(attentions: tuple[torch.Tensor, ...], periods: torch.Tensor) -> torch.Tensor:
    """Return how much the guided heads miss what they should look at, in nats per head.

    Args:
        attentions: per layer (windows, heads, CONTEXT, CONTEXT).
        periods: of the windows of random tokens; the others have 0.
    """
    here = torch.arange(CONTEXT, device=periods.device).expand(len(periods), CONTEXT)
    what_followed = here + 1 - periods[:, None]
    repeats = (periods[:, None] > 0) & (here >= periods[:, None])

    def miss(layer: int, head: int, targets: torch.Tensor) -> torch.Tensor:
        at_target = (
            attentions[layer][:, head].float().gather(2, targets.clamp(0, CONTEXT - 1)[..., None])
        )
        return -(at_target.squeeze(2) + 1e-20).log()  # (windows, CONTEXT)

    missed = sum(miss(*head, here - back).mean() for head, back in PREVIOUS_HEADS.items())
    for layer, head in INDUCTION_HEADS:
        missed = missed + (miss(layer, head, what_followed) * repeats).sum() / repeats.sum().clamp(
            min=1
        )
    return missed


def loss_of(model, ids, labels, periods, guide) -> torch.Tensor:
    outputs = model(ids, use_cache=False, output_attentions=guide is not None)
    logits = outputs.logits[:, :-1].flatten(0, 1).float()
    loss = cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=NOT_SCORED)
    if guide is not None:
        loss = loss + guide * guidance(outputs.attentions, periods)
    return loss


def train(model, sampler, arguments, report) -> None:
    optimizers = build_optimizers(model)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    compiled = torch.compile(loss_of)
    loader = DataLoader(sampler, batch_size=None, num_workers=arguments.workers)
    for step, batch in enumerate(loader):
        guide = None
        if step < arguments.guided:
            guide = torch.tensor(1 - step / arguments.guided, device=model.device)
        with torch.autocast(model.device.type, torch.bfloat16):
            loss = compiled(model, *(column.to(model.device) for column in batch), guide)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate(step, arguments.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % arguments.report_every == 0:
            report(step + 1)


@torch.inference_mode()
def surprisals(model, windows: torch.Tensor) -> torch.Tensor:
    """Return the nats of each token but the first: (windows, length) to (windows, length - 1)."""
    scored = [
        cross_entropy(model(some).logits[:, :-1].mT, some[:, 1:], reduction="none")
        for some in windows.to(model.device).split(32)
    ]
    return torch.cat(scored)


def bits_per_byte(model, tokenizer, text: str) -> float:
    """Return bits per UTF-8 byte in windows that overlap by half; the last, partial one is left out."""
    ids = torch.tensor(tokenizer.encode(text).ids)
    nats = surprisals(model, ids.unfold(0, CONTEXT, CONTEXT // 2))
    scored = torch.cat([nats[0], nats[1:, CONTEXT // 2 - 1 :].flatten()])
    return scored.mean().item() * len(ids) / math.log(2) / len(text.encode("utf-8"))


def second_reading(model, tokenizer, text: str, length: int = 40, passages: int = 100) -> float:
    """Return what passages cost when they are read again at once, relative to the first time."""
    ids = torch.tensor(tokenizer.encode(text).ids)
    starts = torch.linspace(0, len(ids) - length, passages).long()
    passage = ids[starts[:, None] + torch.arange(length)]
    start = torch.full((passages, 1), tokenizer.token_to_id(START_TOKEN))
    nats = surprisals(model, torch.cat([start, passage, passage], 1))
    return (nats[:, length:].sum() / nats[:, :length].sum()).item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, required=True, help="folder of .txt novels")
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--guided", type=int, default=1000, help="steps that guide a few heads")
    parser.add_argument("--batch-size", type=int, default=256, help="windows per step")
    parser.add_argument("--workers", type=int, default=7, help="processes that draw windows")
    parser.add_argument("--report-every", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes that draw windows do it
    torch.manual_seed(arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    books, held_out = read_books(arguments.books)
    tokenizer = train_tokenizer(books)
    save_tokenizer(tokenizer, arguments.output)
    model = build_model(tokenizer.token_to_id(START_TOKEN))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    model.set_attn_implementation("eager")  # which returns attentions
    sampler = WindowSampler(books, tokenizer, arguments)
    began = time.monotonic()

    def report(step: int, text: str) -> None:
        print(
            f"step {step:5d}  held out {bits_per_byte(model, tokenizer, text):.4f} bits/byte,"
            f" a second reading costs {second_reading(model, tokenizer, text):.2f} of the first"
            f"  {(time.monotonic() - began) / 60:.1f} min",
            flush=True,
        )
        save_model(model, arguments.output)

    train(model, sampler, arguments, lambda step: report(step, held_out[:50_000]))
    report(arguments.steps, held_out)


if __name__ == "__main__":
    main()
