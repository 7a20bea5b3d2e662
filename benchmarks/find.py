"""Measure how often `find` identifies the tool of a figure; prints the table of docs/find.md.

    python benchmarks/find.py                                  # the bundled model, three samples
    python benchmarks/find.py --model NAME wiki.test.raw ...   # a model and texts of your own

Each figure is produced by the tool itself where Python can call it (lm-evaluation-harness and its
WikiText task, transformers' Trainer, the guide's loop), and otherwise by a loop written from its source
(tests/reference.py), with the digits that the tool prints and with the two decimals of papers.
"""

import argparse
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import reference  # noqa: E402
from peers import Harness  # noqa: E402

from perplexity_sliding import find  # noqa: E402

SAMPLES = [str(ROOT / "samples" / name) for name in ("technical.txt", "list.txt", "deutsch.txt")]
OUTCOMES = ("first", "tied", "later", "missed", "wrong")


class Case(NamedTuple):
    """A figure, and the protocols of its tool."""

    tool: str
    printed: str
    value: float
    protocols: tuple[str, ...]


class Subject:
    """The input of the tools: a model with its tokenizer, and a text."""

    def __init__(self, model, tokenizer, text: str) -> None:
        self.model, self.tokenizer, self.text = model, tokenizer, text
        self.length = model.config.max_position_embeddings
        self.plain = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        self.ids = tokenizer(text, verbose=False).input_ids
        self.start = tokenizer.bos_token_id
        self.adds_start = self.ids[:1] == [self.start]

    def nlls(self, ids: list[int], plan: dict[int, list], start: int | None = None) -> list[float]:
        """Return the nlls of a plan's targets."""
        return [*reference.window_nlls(self.model, ids, plan, start or self.start).values()]


# --- the tools ------------------------------------------------------------------------------------


def guide(subject: Subject) -> Iterator[Case]:
    """transformers' guide: the mean of window means (2022-24), and the present weighted mean."""
    length = subject.length
    for stride in sorted({length, length // 2, min(512, length)}):
        windows = reference.guide_loop(subject.model, subject.ids, length, stride)
        windows = [(labels, loss) for labels, loss in windows if not math.isnan(loss)]
        mean = math.exp(reference.mean(loss for _, loss in windows))
        yield Case(f"guide, S={stride}", f"{mean:.2f}", mean, ("transformers-docs",))
        total = sum((labels - 1) * loss for labels, loss in windows)
        weighted = math.exp(total / sum(labels - 1 for labels, _ in windows))
        name = f"present guide, S={stride}"
        yield Case(name, f"{weighted:.2f}", weighted, ("transformers-docs-weighted",))


def harness(subject: Subject) -> Iterator[Case]:
    """lm-evaluation-harness: its WikiText task, or a task of the same metrics without detokenizing."""
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

    harness = Harness(subject.model, subject.tokenizer, batch_size=1)
    page = {"page": subject.text}
    written = wikitext_detokenizer(page) if is_wikitext(subject.text) else subject.text
    items = process_results(page, (-harness([written]),))
    averaged = {name: weighted_perplexity([item]) for name, item in items.items()}
    averaged["bits_per_byte"] = bits_per_byte([items["bits_per_byte"]])
    for name, value in averaged.items():
        yield Case(f"lm-eval, {name}", f"{value:.4f}", value, ("lm-eval",))


def trainer(subject: Subject) -> Iterator[Case]:
    """transformers' run_clm.py: `group_texts`, then `Trainer.evaluate`."""
    stated = subject.tokenizer.model_max_length
    block = min(1024, subject.length) if stated > subject.length else stated
    ids = subject.ids
    blocks = [ids[n : n + block] for n in range(0, len(ids) // block * block, block)]
    if not blocks:
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, per_device_eval_batch_size=1, report_to=[], disable_tqdm=True, use_cpu=True
        )
        trainer = transformers.Trainer(
            subject.model,
            settings,
            eval_dataset=[{"input_ids": block, "labels": block} for block in blocks],
            data_collator=transformers.default_data_collator,
        )
        loss = trainer.evaluate()["eval_loss"]
    yield Case("run_clm, perplexity", f"{math.exp(loss):.4f}", math.exp(loss), ("run-clm",))
    yield Case("run_clm, eval_loss", f"{loss:.4f}", loss, ("run-clm",))


def quantisation(subject: Subject) -> Iterator[Case]:
    """The loop of GPTQ and AWQ."""
    length = min(2048, subject.length)
    if len(subject.ids) >= length:
        nlls = subject.nlls(subject.ids, reference.chunks(len(subject.ids), length))
        yield perplexity_case("gptq", nlls, 2)


def llama_cpp(subject: Subject) -> Iterator[Case]:
    length = min(512, subject.length)
    ids = subject.tokenizer(subject.text.removesuffix("\n"), verbose=False).input_ids
    if len(ids) >= 2 * length:
        plan = reference.llama_cpp(len(ids), length, subject.adds_start)
        yield perplexity_case("llama.cpp", subject.nlls(ids, plan), 4)


def mlx(subject: Subject) -> Iterator[Case]:
    length = min(512, subject.length)
    ids = [*subject.ids, subject.tokenizer.eos_token_id]  # which the tool adds to each text
    if len(ids) >= length:
        nlls = subject.nlls(ids, reference.chunks(len(ids), length))
        yield perplexity_case("mlx-lm", nlls, 3)


def exllama(subject: Subject) -> Iterator[Case]:
    stride = min(512, subject.length)
    if len(subject.plain) >= subject.length:
        plan = reference.exllamav2(len(subject.plain), subject.length, stride)
        yield perplexity_case("exllamav2", subject.nlls(subject.plain, plan), 4)


def megatron(subject: Subject) -> Iterator[Case]:
    """Megatron-LM, which scores WikiText alone; its detokenizer has the harness's steps."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    text = subject.text
    if not is_wikitext(text):
        return
    written = wikitext_detokenizer({"page": text})
    ids = subject.tokenizer(written, add_special_tokens=False, verbose=False).input_ids
    nlls = subject.nlls(ids, reference.megatron(len(ids), subject.length, 32))
    loss, num_words = reference.mean(nlls), len(text.strip().split(" "))
    yield Case("megatron, ppl", f"{math.exp(loss):.4E}", math.exp(loss), ("megatron",))
    adjusted = math.exp(min(20, loss * (len(ids) - 1) / (num_words - 1)))
    yield Case("megatron, adjusted ppl", f"{adjusted:.4E}", adjusted, ("megatron",))


def paloma(subject: Subject) -> Iterator[Case]:
    ids, eos = subject.plain, subject.tokenizer.eos_token_id
    plan = reference.lm_eval(len(ids), min(2048, subject.length))
    nlls = subject.nlls(ids, plan, eos)
    yield perplexity_case("paloma", nlls, 2)
    bits = math.fsum(nlls) / len(subject.text.encode("utf-8")) / math.log(2)
    yield Case("paloma, bits per byte", f"{bits:.4f}", bits, ("paloma",))


def yarn(subject: Subject) -> Iterator[Case]:
    stride = min(256, subject.length - 1)
    windows = reference.yarn(len(subject.plain), subject.length, stride, True)
    means = [reference.mean(subject.nlls(subject.plain, w)) for w in windows if w]
    yield Case("yarn", *printed(math.exp(reference.mean(means)), 4), ("yarn",))


def fairseq(subject: Subject) -> Iterator[Case]:
    tokenizer, eos = subject.tokenizer, subject.tokenizer.eos_token_id
    lines = [tokenizer(line, add_special_tokens=False) for line in subject.text.splitlines()]
    ids = [token for line in lines for token in [*line.input_ids, eos]]
    plan = reference.fairseq(len(ids), subject.length, subject.length)
    nlls = subject.nlls(ids, plan, eos)
    yield perplexity_case("fairseq", nlls, 2)


def stock(subject: Subject) -> Iterator[Case]:
    """evaluate's own metric, over non-blank lines."""
    lines = [line for line in subject.text.splitlines() if line.strip()]
    perplexities = []
    for line in lines:
        ids = subject.tokenizer(line, add_special_tokens=False).input_ids
        plan = reference.stock(len(ids), subject.length, True)
        perplexities.append(math.exp(reference.mean(subject.nlls(ids, plan))))
    mean = reference.mean(perplexities)
    yield Case("stock, each line", *printed(mean, 2), ("stock",))


TOOLS = (
    *(guide, harness, trainer, quantisation, llama_cpp, mlx, exllama, megatron, paloma, yarn),
    *(fairseq, stock),
)


def perplexity_case(tool: str, nlls: list[float], places: int) -> Case:
    return Case(tool, *printed(math.exp(reference.mean(nlls)), places), (tool,))


def printed(value: float, places: int) -> tuple[str, float]:
    return f"{value:.{places}f}", value


def is_wikitext(text: str) -> bool:
    return re.search(r" @[-,.]@ ", text) is not None


# --- the outcomes ---------------------------------------------------------------------------------


def outcome(case: Case, matches: list[dict]) -> str:
    """Return the rank of the tool among the matches of `find`.

    "first": in its first line; "tied": with the number of its first line; "later": among the others
    that round to the figure; "missed": nothing was found; "wrong": others alone were.
    """
    if not matches:
        return "missed"
    if matches[0]["protocol"] in case.protocols:
        return "first"
    for match, found in zip(matches, ["tied"] + ["later"] * len(matches)):
        if any(other["protocol"] in case.protocols for other in [match, *match["same_value"]]):
            return found
    return "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", help="files", default=SAMPLES)
    parser.add_argument("--model", help="a name or folder", default=str(ROOT / "demo_model"))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    counted = {digits: Counter() for digits in ("as printed", "papers")}
    for name in arguments.texts:
        text = Path(name).read_text("utf-8")
        with torch.inference_mode():
            subject = Subject(model.eval(), tokenizer, text)
            cases = [case for tool in TOOLS for case in tool(subject)]
        for case in cases:
            for digits, figure in zip(counted, (case.printed, f"{case.value:.2f}")):
                result = find(figure, [text], model=model, tokenizer=tokenizer)
                found = outcome(case, result["matches"])
                counted[digits][found] += 1
                if found in ("missed", "wrong"):
                    print(f"{found}: {case.tool} of {name}, {figure}", file=sys.stderr)
    print(f"| digits | figures | {' | '.join(OUTCOMES)} |")
    print("| --- | --- |" + " --- |" * len(OUTCOMES))
    for digits, counts in counted.items():
        cells = [digits, counts.total(), *(counts[name] for name in OUTCOMES)]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
