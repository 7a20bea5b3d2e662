"""Measure how often `find` identifies the tool of a figure.

    python benchmarks/find.py                                  # three small models, four texts
    python benchmarks/find.py --model NAME wiki.test.raw ...   # a model and texts of your own

Each figure is produced by the tool itself where Python can call it (lm-evaluation-harness and its
WikiText task, transformers' Trainer, the guide's loop), and otherwise by a loop written from its source
(tests/reference.py), with the digits that the tool prints and with the two decimals of papers.  Two of
the three models are trained here, for some seconds, on a text that is not searched.

Prints a table of docs/find.md; --cases prints a line for each figure too.
"""

import argparse
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import reference  # noqa: E402
from peers import Harness  # noqa: E402

from perplexity_sliding import find  # noqa: E402
from perplexity_sliding.finding import find as search  # noqa: E402
from perplexity_sliding.finding.candidates import Scorer  # noqa: E402
from perplexity_sliding.finding.wikitext import tokenize  # noqa: E402

START = "<|endoftext|>"
SAMPLES = ("technical.txt", "list.txt", "deutsch.txt")
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


# --- models and texts -----------------------------------------------------------------------------


def bundled() -> tuple:
    folder = str(ROOT / "demo_model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def make_tokenizer(text: str, vocabulary: int, adds_start: bool):
    """Train a byte-level BPE tokenizer."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[START, "<s>"], initial_alphabet=alphabet
    )
    backend.train_from_iterator([text], trainer)
    start = "<s>" if adds_start else START
    if adds_start:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=start, eos_token=START, pad_token=START
    )


def train(model, tokenizer, text: str, steps: int):
    """Train a model for some seconds, until context helps."""
    ids = torch.tensor(tokenizer(text, verbose=False).input_ids)
    length = model.config.max_position_embeddings
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(steps):
        begins = torch.randint(0, len(ids) - length, (2,), generator=generator).tolist()
        batch = torch.stack([ids[begin : begin + length] for begin in begins])
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


def trained_gpt2(text: str) -> tuple:
    """A GPT-2 of 1,024 positions, whose start token is its end token and not added."""
    tokenizer = make_tokenizer(text, 1000, adds_start=False)
    sizes = {"n_positions": 1024, "n_embd": 64, "n_layer": 2, "n_head": 4}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), **sizes, **ids)
    return train(transformers.GPT2LMHeadModel(config), tokenizer, text, 150)


def trained_llama(text: str) -> tuple:
    """A Llama of 512 positions over bytes, whose tokenizer adds a start token."""
    tokenizer = make_tokenizer(text, 258, adds_start=True)
    sizes = {"max_position_embeddings": 512, "hidden_size": 64, "intermediate_size": 128}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": 1, "eos_token_id": 0}
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes, **layers, **ids)
    return train(transformers.LlamaForCausalLM(config), tokenizer, text, 250)


def loaded(name: str) -> tuple:
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(name)


def sample_texts() -> dict[str, str]:
    texts = {name: (ROOT / "samples" / name).read_text("utf-8") for name in SAMPLES}
    return texts | {"technical.txt as WikiText": tokenize(texts["technical.txt"])}


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


def remember() -> None:
    """Plan and score the passes of a text once for all of its figures."""
    list_steps, steps = search.list_steps, {}
    score, known = Scorer.score, {}

    def remembered_steps(cases: list) -> list:
        key = repr([(id(case.scorer.arguments["model"]), case.texts) for case in cases])
        if key not in steps:
            steps[key] = list_steps(cases)
        return steps[key]

    def remembered(self, texts: list[str], settings: dict, **others) -> list[dict]:
        key = (id(self.arguments["model"]), repr((texts, list(settings), others)))
        if key not in known:
            known[key] = score(self, texts, settings, **others)
        return [dict(result) for result in known[key]]

    Scorer.score = remembered
    search.list_steps = remembered_steps


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="files instead of the samples")
    parser.add_argument("--model", help="a name or folder instead of the three models")
    parser.add_argument("--cases", action="store_true", help="print a line for each figure too")
    arguments = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    story = (ROOT / "samples" / "story.txt").read_text("utf-8")
    makers = {
        "bundled, L=128": bundled,
        "GPT-2, L=1024": lambda: trained_gpt2(story),
        "Llama, bytes, L=512": lambda: trained_llama(story),
    }
    if arguments.model:
        makers = {arguments.model: lambda: loaded(arguments.model)}
    texts = {name: Path(name).read_text("utf-8") for name in arguments.texts} or sample_texts()
    remember()
    counted: dict[tuple[str, str], Counter] = {}
    for label, make in makers.items():
        model, tokenizer = make()
        for name, text in texts.items():
            subject = Subject(model, tokenizer, text)
            with torch.inference_mode():
                cases = [case for tool in TOOLS for case in tool(subject)]
            for case in cases:
                for digits, figure in ("as printed", case.printed), ("papers", f"{case.value:.2f}"):
                    result = find(figure, [text], model=model, tokenizer=tokenizer)
                    found = outcome(case, result["matches"])
                    counted.setdefault((label, digits), Counter())[found] += 1
                    if arguments.cases:
                        report(label, name, case, figure, found, result)
    print_table(counted)


def report(label: str, name: str, case: Case, figure: str, found: str, result: dict) -> None:
    keys = ("protocol", "max_length", "stride", "add_start_token", "layout", "average")
    first = [str(result["matches"][0][key]) for key in keys] if result["matches"] else []
    line = {
        **{"model": label, "text": name, "tool": case.tool, "figure": figure, "found": found},
        **{"matches": len(result["matches"]), "first": " ".join(first)},
        **{"by chance": round(result["expected_by_chance"], 3), "left": len(result["not_tried"])},
    }
    print(json.dumps(line), flush=True)


def print_table(counted: dict[tuple[str, str], Counter]) -> None:
    """Print the counts as Markdown."""
    print(f"| model | digits | figures | {' | '.join(OUTCOMES)} |")
    print("| --- | --- |" + " --- |" * (len(OUTCOMES) + 1))
    for digits in ("as printed", "papers"):
        counted["all", digits] = sum(
            (c for key, c in counted.items() if key[1] == digits), Counter()
        )
    for (label, digits), counts in counted.items():
        cells = [label, digits, counts.total(), *(counts[name] for name in OUTCOMES)]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
