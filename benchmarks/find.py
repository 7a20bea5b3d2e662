"""Measure how often `find` identifies the tool of a figure; prints the table of docs/find.md.

    python benchmarks/find.py                                  # the bundled model, three samples
    python benchmarks/find.py --model NAME wiki.test.raw ...   # a model and texts of your own

Each figure is produced by the tool itself where Python can call it (lm-evaluation-harness, transformers'
Trainer), and otherwise by a loop written from its source (tests/reference.py), with the digits that the
tool prints and with the two decimals of papers.
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
    """A figure, the decimals that its tool prints, and the tool's protocol."""

    tool: str
    value: float
    places: int


def figures(model, tokenizer, text: str) -> Iterator[Case]:
    """Produce the figures of the tools for a text."""
    length, start = model.config.max_position_embeddings, tokenizer.bos_token_id
    ids = tokenizer(text, verbose=False).input_ids
    plain = tokenizer(text, add_special_tokens=False, verbose=False).input_ids

    def nlls(plan: dict[int, list], ids: list[int] = ids, start: int = start) -> list[float]:
        return [*reference.window_nlls(model, ids, plan, start).values()]

    def perplexity(tool: str, places: int, *planned) -> Case:
        return Case(tool, math.exp(reference.mean(nlls(*planned))), places)

    for stride in sorted({length, length // 2}):
        windows = reference.guide_loop(model, ids, length, stride)
        windows = [(labels, loss) for labels, loss in windows if not math.isnan(loss)]
        mean = math.exp(reference.mean(loss for _, loss in windows))
        yield Case("transformers-docs", mean, 2)
        total = sum((labels - 1) * loss for labels, loss in windows)
        weighted = math.exp(total / sum(labels - 1 for labels, _ in windows))
        yield Case("transformers-docs-weighted", weighted, 2)

    nll = Harness(model, tokenizer, batch_size=1)([text])
    yield Case("lm-eval", math.exp(nll / len(re.split(r"\s+", text))), 4)
    yield Case("lm-eval", nll / len(text.encode("utf-8")) / math.log(2), 4)
    blocks = [ids[n : n + length] for n in range(0, len(ids) // length * length, length)]
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, per_device_eval_batch_size=1, report_to=[], disable_tqdm=True, use_cpu=True
        )
        rows = [{"input_ids": block, "labels": block} for block in blocks]
        collate = transformers.default_data_collator
        trainer = transformers.Trainer(model, settings, eval_dataset=rows, data_collator=collate)
        loss = trainer.evaluate()["eval_loss"]
    yield Case("run-clm", math.exp(loss), 4)
    yield Case("run-clm", loss, 4)

    yield perplexity("gptq", 2, reference.chunks(len(ids), length))
    unended = tokenizer(text.removesuffix("\n"), verbose=False).input_ids
    adds_start = unended[:1] == [start]
    yield perplexity("llama.cpp", 4, reference.llama_cpp(len(unended), length, adds_start), unended)
    yield perplexity("exllamav2", 4, reference.exllamav2(len(plain), length, length), plain)
    plan, eos = reference.lm_eval(len(plain), length), tokenizer.eos_token_id
    yield perplexity("paloma", 2, plan, plain, eos)
    windows = reference.yarn(len(plain), length, length - 1, True)
    means = [reference.mean(nlls(window, plain)) for window in windows if window]
    yield Case("yarn", math.exp(reference.mean(means)), 4)
    perplexities = []
    for line in filter(str.strip, text.splitlines()):
        of_line = tokenizer(line, add_special_tokens=False).input_ids
        plan = reference.stock(len(of_line), length, True)
        perplexities.append(math.exp(reference.mean(nlls(plan, of_line))))
    yield Case("stock", reference.mean(perplexities), 2)


def outcome(case: Case, matches: list[dict]) -> str:
    """Return the rank of the tool among the matches of `find`; see docs/find.md."""
    if not matches:
        return "missed"
    if matches[0]["protocol"] == case.tool:
        return "first"
    for match, found in zip(matches, ["tied"] + ["later"] * len(matches)):
        if any(other["protocol"] == case.tool for other in [match, *match["same_value"]]):
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
            cases = list(figures(model.eval(), tokenizer, text))
        for case in cases:
            for digits, places in zip(counted, (case.places, 2)):
                figure = f"{case.value:.{places}f}"
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
