"""The workloads and their contenders: plain passes, this metric, and other tools."""

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import evaluate
import torch
from peers import Harness, guide_loop, stock_metric
from plain import PlainPasses
from workloads import make_lines, make_model, make_text, make_tokenizer, read_lines

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perplexity_sliding.plan.windows import plan_windows  # noqa: E402

OURS, PLAIN = "ours", "plain passes"
# The stock metric pads every text to the longest one: at the full length of WikiText's lines it
# would take most of the time of a run by itself.
LINE_SCALE = 1 / 3


@dataclass(frozen=True)
class Contender:
    """One way to run a workload.

    Attributes:
        run: does it once, and returns the number it reports, if any.
        twin: gives this metric's number for the same windows.
        own_weights: whether it loads the model for itself.
    """

    run: Callable[[], float | None]
    twin: Callable[[], float] | None = None
    own_weights: bool = False


@dataclass
class Case:
    """A workload and its contenders, which are timed in turns."""

    name: str
    description: str
    plain: PlainPasses
    contenders: dict[str, Contender] = field(default_factory=dict)


class Setup:
    """A model, its tokenizer and the metric, in memory and on disk."""

    def __init__(self, shape: str):
        self.shape = shape
        self.model = make_model(shape)
        self.vocabulary = self.model.config.vocab_size
        self.context = self.model.config.n_positions
        self.tokenizer = make_tokenizer(self.vocabulary)
        self.scratch = tempfile.TemporaryDirectory()
        self.metric = evaluate.load(
            str(ROOT / "perplexity_sliding.py"), cache_dir=self.scratch.name
        )
        self.has_harness = importlib.util.find_spec("lm_eval") is not None

    def folder(self) -> str:
        """The folder of the saved model, for contenders that load it themselves."""
        path = Path(self.scratch.name) / "model"
        if not path.exists():
            self.model.save_pretrained(path)
            self.tokenizer.save_pretrained(path)
        return str(path)

    def ours(self, texts: list[str], **arguments) -> dict:
        return self.metric.compute(
            predictions=texts, model=self.model, tokenizer=self.tokenizer, **arguments
        )

    def plain(self, texts: list[str], stride: int) -> PlainPasses:
        """Bare forward passes over the windows that this metric plans for the texts."""
        windows = [
            window
            for text in texts
            for window in plan_windows(len(text.split()), self.context, stride, "once")
        ]
        return PlainPasses(self.model, windows)

    def harness(self, texts: list[str], batch_size: int) -> Contender:
        harness = Harness(self.model, self.tokenizer, batch_size)
        return Contender(
            lambda: harness(texts), lambda: self.ours(texts, protocol="lm-eval")["total_nll"]
        )


def long_text(setup: Setup, part: int, num_windows: int) -> Case:
    """One text of that many windows, at a stride of 1/`part` of the context."""
    stride = setup.context // part
    num_tokens = setup.context + (num_windows - 1) * stride
    text = make_text(num_tokens, setup.vocabulary)
    label = "L" if part == 1 else f"L/{part}"
    case = Case(f"one text, S = {label}", f"{num_tokens:,} tokens", setup.plain([text], stride))
    case.contenders = {
        PLAIN: Contender(case.plain),
        OURS: Contender(lambda: setup.ours([text], stride=stride)["perplexity"]),
        "guide": Contender(
            lambda: guide_loop(setup.model, setup.tokenizer, text, setup.context, stride),
            lambda: setup.ours([text], stride=stride, protocol="transformers-docs")["perplexity"],
        ),
    }
    if part == 1 and setup.has_harness:
        case.contenders["lm-eval"] = setup.harness([text], 1)
    return case


def mixed_texts(setup: Setup, number: int, folder: str | None) -> Case:
    """Texts with the lengths of WikiText's lines, times `LINE_SCALE`."""
    longest = setup.context - 1
    if folder is None:
        texts = make_lines(number, setup.vocabulary, LINE_SCALE, longest)
    else:
        texts = read_lines(folder, number, setup.vocabulary, LINE_SCALE, longest)
    lengths = [len(text.split()) for text in texts]
    case = Case(
        "mixed lengths",
        f"{number} texts, {sum(lengths):,} tokens, the longest {max(lengths)}",
        setup.plain(texts, setup.context // 2),
    )
    case.contenders = {
        PLAIN: Contender(case.plain),
        OURS: Contender(lambda: setup.ours(texts)["perplexity"]),
        "stock": stock(setup, texts),
    }
    if setup.has_harness:
        case.contenders["lm-eval"] = setup.harness(texts, 1)
        case.contenders["lm-eval, batch 16"] = setup.harness(texts, 16)
    return case


def repeated_calls(setup: Setup, times: int, number: int) -> Case:
    """A few short texts in repeated calls: the fixed cost of a call."""
    texts = make_lines(number, setup.vocabulary, LINE_SCALE, setup.context - 1)
    case = Case(
        "repeated calls", f"{times} calls of {number} texts", setup.plain(texts, setup.context // 2)
    )
    folder = setup.folder()
    case.contenders = {
        PLAIN: Contender(case.plain),
        OURS: Contender(lambda: setup.ours(texts)["perplexity"]),
        "ours, by name": Contender(
            lambda: setup.metric.compute(predictions=texts, model_id=folder, device="cpu")[
                "perplexity"
            ],
            lambda: setup.ours(texts)["perplexity"],
            own_weights=True,
        ),
        "stock": stock(setup, texts),
    }
    for name, contender in case.contenders.items():
        case.contenders[name] = replace(contender, run=repeat(contender.run, times))
    return case


def stock(setup: Setup, texts: list[str]) -> Contender:
    folder = setup.folder()
    return Contender(
        lambda: stock_metric(folder, setup.tokenizer, texts),
        lambda: setup.ours(texts, protocol="stock")["mean_perplexity"],
        own_weights=True,
    )


def repeat(run: Callable[[], float | None], times: int) -> Callable[[], float | None]:
    return lambda: [run() for _ in range(times)][-1]


def large_batch(setup: Setup) -> Case:
    """Sixteen full windows in a batch, for the memory of their logits."""
    text = make_text(16 * setup.context, setup.vocabulary)
    ids = torch.randint(setup.vocabulary, (16, setup.context))
    case = Case("a batch of 16 windows", "", setup.plain([text], setup.context))

    def ours(**arguments):
        return Contender(lambda: setup.ours([text], stride=setup.context, **arguments)["total_nll"])

    def full_logits():
        with torch.no_grad():
            setup.model(ids).logits  # noqa: B018

    case.contenders = {
        OURS: ours(),
        "ours, logits_memory=2**26": ours(logits_memory=2**26),
        "full logits": Contender(full_logits),
    }
    return case


def timed_cases(setup: Setup, tiny: bool, folder: str | None) -> list[Case]:
    """All timed workloads; `tiny` ones only check that everything works."""
    return [
        long_text(setup, 1, 5),
        long_text(setup, 2, 12),
        long_text(setup, 8, 12),
        mixed_texts(setup, 12 if tiny else 200, folder),
        repeated_calls(setup, 2 if tiny else 3, 4 if tiny else 16),
    ]
