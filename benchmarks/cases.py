"""The workloads of run.py and their contenders: bare forward passes, this metric, and other tools."""

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from measure import time_in_turns
from peers import Harness, guide_loop, stock_metric
from workloads import make_lines, make_model, make_text, make_tokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from perplexity_sliding import compute  # noqa: E402
from perplexity_sliding.plan.windows import plan_windows  # noqa: E402
from perplexity_sliding.protocols import PROTOCOLS  # noqa: E402

OURS, PLAIN, TOGETHER = "ours", "plain passes", "together"
# The stock metric pads every text to the longest one: at the full length of WikiText's lines it
# would take most of the time of a run by itself.
LINE_SCALE = 1 / 3
# A window that is long enough for Megatron-LM's stride of 32 not to outweigh all other protocols.
PROTOCOL_WINDOW = 256


class Contender(NamedTuple):
    """One way to run a workload.

    Attributes:
        run: does it once, and returns the number that it reports, if any.
        twin: gives this metric's number for the same windows.
    """

    run: Callable[[], object]
    twin: Callable[[], float] | None = None


@dataclass
class Case:
    """A workload and its contenders, which are timed in turns.

    Attributes:
        ratios: what is divided by what.
    """

    name: str
    description: str
    contenders: dict[str, Contender]
    ratios: list[tuple[str, str]]


class Setup:
    """A model and its tokenizer, in memory and on disk."""

    def __init__(self, shape: str) -> None:
        self.model = make_model(shape)
        self.vocabulary = self.model.config.vocab_size
        self.context = self.model.config.n_positions
        self.tokenizer = make_tokenizer(self.vocabulary)
        self.has_harness = importlib.util.find_spec("lm_eval") is not None
        self._scratch = tempfile.TemporaryDirectory()
        self.folder = self._scratch.name  # for contenders that load the model themselves
        self.model.save_pretrained(self.folder)
        self.tokenizer.save_pretrained(self.folder)

    def ours(self, texts: list[str], **arguments) -> dict:
        return compute(texts, model=self.model, tokenizer=self.tokenizer, **arguments)

    def plain(self, texts: list[str], stride: int) -> Contender:
        """Bare forward passes over the windows that this metric plans for the texts."""
        lengths = [len(text.split()) for text in texts]
        windows = [w for n in lengths for w in plan_windows(n, self.context, stride, "once")]
        return Contender(PlainPasses(self.model, windows))

    def harness(self, texts: list[str], batch_size: int) -> Contender:
        harness = Harness(self.model, self.tokenizer, batch_size)
        return Contender(
            lambda: harness(texts), lambda: self.ours(texts, protocol="lm-eval")["total_nll"]
        )

    def stock(self, texts: list[str]) -> Contender:
        return Contender(
            lambda: stock_metric(self.folder, self.tokenizer, texts),
            lambda: self.ours(texts, protocol="stock")["mean_perplexity"],
        )


class PlainPasses:
    """The lower bound of a plain execution: bare forward passes of a model over windows.

    The body of the model over the tokens of every window, and the vocabulary product over the rows
    that are scored: no loss, no texts, no bookkeeping.  Batches and blocks have the size that a
    short search found fastest.
    """

    BATCH_TOKENS = (1, 512, 1024, 2048, 4096)  # 1 runs each window alone
    BLOCK_ROWS = (64, 128, 256, 512, 1024)

    def __init__(self, model, windows: Sequence) -> None:
        self.body, self.head = model.base_model, model.get_output_embeddings().weight  # (V, D)
        self.windows = sorted(windows, key=lambda window: -window.num_inputs)
        self.settings: tuple[int, int] | None = None

    def __call__(self) -> None:
        if self.settings is None:
            # evenly spaced windows that fill the largest batch
            num_tokens = sum(window.num_inputs for window in self.windows)
            some = self.windows[:: max(1, num_tokens // max(self.BATCH_TOKENS))]
            settings = list(product(self.BATCH_TOKENS, self.BLOCK_ROWS))
            runs = {each: partial(self.run, some, *each) for each in settings}
            seconds = time_in_turns(runs, 2)
            self.settings = min(settings, key=lambda each: min(seconds[each]))
        self.run(self.windows, *self.settings)

    @torch.inference_mode()
    def run(self, windows: Sequence, batch_tokens: int, block_rows: int) -> None:
        batches: list[list] = []
        for window in windows:
            if batches and (len(batches[-1]) + 1) * batches[-1][0].num_inputs <= batch_tokens:
                batches[-1].append(window)
            else:
                batches.append([window])
        for batch in batches:
            ids = torch.ones(len(batch), batch[0].num_inputs, dtype=torch.long)
            hidden = self.body(ids, use_cache=False).last_hidden_state  # (B, T, D)
            scored = [
                row[window.num_inputs - window.num_targets : window.num_inputs]
                for row, window in zip(hidden, batch)
            ]
            for rows in torch.cat(scored).split(block_rows):
                torch.nn.functional.linear(rows, self.head)


def long_text(setup: Setup, part: int, num_windows: int) -> Case:
    """One text of that many windows, at a stride of 1/`part` of the context."""
    stride = setup.context // part
    num_tokens = setup.context + (num_windows - 1) * stride
    text = make_text(num_tokens, setup.vocabulary)
    contenders = {
        PLAIN: setup.plain([text], stride),
        OURS: Contender(lambda: setup.ours([text], stride=stride)["perplexity"]),
        "guide": Contender(
            lambda: guide_loop(setup.model, setup.tokenizer, text, setup.context, stride),
            lambda: setup.ours([text], stride=stride, protocol="transformers-docs")["perplexity"],
        ),
    }
    if part == 1 and setup.has_harness:
        contenders["lm-eval"] = setup.harness([text], 1)
    label = "L" if part == 1 else f"L/{part}"
    return beside_plain(f"one text, S = {label}", f"{num_tokens:,} tokens", contenders)


def mixed_texts(setup: Setup, number: int) -> Case:
    """Texts with the lengths of WikiText's lines, times `LINE_SCALE`."""
    texts = make_lines(number, setup.vocabulary, LINE_SCALE, setup.context - 1)
    lengths = [len(text.split()) for text in texts]
    contenders = {
        PLAIN: setup.plain(texts, setup.context // 2),
        OURS: Contender(lambda: setup.ours(texts)["perplexity"]),
        "stock": setup.stock(texts),
    }
    if setup.has_harness:
        contenders["lm-eval"] = setup.harness(texts, 1)
        contenders["lm-eval, batch 16"] = setup.harness(texts, 16)
    described = f"{number} texts, {sum(lengths):,} tokens, the longest {max(lengths)}"
    return beside_plain("mixed lengths", described, contenders)


def beside_plain(name: str, description: str, contenders: dict[str, Contender]) -> Case:
    others = [other for other in contenders if other not in (OURS, PLAIN)]
    return Case(name, description, contenders, [(OURS, PLAIN), *((n, OURS) for n in others)])


def several_strides(setup: Setup, num_windows: int) -> Case:
    """Strides of L, L/2, L/4 and L/8 over a text of that many windows at L/8."""
    strides = [setup.context // part for part in (1, 2, 4, 8)]
    text = make_text(setup.context + (num_windows - 1) * strides[-1], setup.vocabulary)
    contenders = {
        TOGETHER: Contender(lambda: setup.ours([text], stride=strides)),
        "the finest alone": Contender(lambda: setup.ours([text], stride=strides[-1])),
        "one by one": Contender(lambda: [setup.ours([text], stride=s) for s in strides]),
    }
    ratios = [(TOGETHER, "the finest alone"), (TOGETHER, "one by one")]
    return Case("strides L, L/2, L/4, L/8", "", contenders, ratios)


def all_protocols(setup: Setup, num_tokens: int) -> Case:
    """Every protocol over one text."""
    text, length = make_text(num_tokens, setup.vocabulary), min(PROTOCOL_WINDOW, setup.context)
    names = [n for n, row in PROTOCOLS.items() if "max_length" in row.supported_arguments]

    def ours(protocol: str | list[str]) -> dict:
        return setup.ours([text], protocol=protocol, max_length=length)

    contenders = {
        TOGETHER: Contender(lambda: ours(names)),
        "one by one": Contender(lambda: [ours(name) for name in names]),
    }
    name = f"all {len(names)} protocols, L = {length}"
    return Case(name, "", contenders, [(TOGETHER, "one by one")])
