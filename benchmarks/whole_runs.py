"""Measure the overhead per text: many short texts in one call, rows of a table, a whole command."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import transformers
from bookkeeping import CONTEXT, SHORT_TEXT, VOCABULARY, FreeRun
from cases import ROOT
from measure import now, ratio
from workloads import FreeModel, make_model, make_text, make_tokenizer

sys.path.insert(0, str(ROOT))
from perplexity_sliding.cli import main as command_line

SCORE, IMPORT = "score.py samples/note.txt", 'python -c "import evaluate"'
# The guide's windows: with a start token, the article's last token would have one of its own.
GUIDES_WINDOWS = "--protocol=transformers-docs"
ARTICLE, GUIDE = f"score.py article.txt {GUIDES_WINDOWS}", "a script with the guide's loop"
GUIDE_SCRIPT = """
import sys
sys.path.insert(0, "benchmarks")
import transformers
from peers import guide_loop
folder, article, max_length, stride = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
print(guide_loop(model, tokenizer, open(article).read(), int(max_length), int(stride)))
"""


def many_texts(number: int) -> list[dict]:
    """Seconds per text of ten tokens: in one call, and as rows of a table."""
    texts = [make_text(SHORT_TEXT, VOCABULARY, seed) for seed in range(number)]
    run = FreeRun()
    return [
        {"work": "in one call", "texts": number, "seconds": timed(lambda: run(texts))},
        {"work": "rows of CSV, in and out", "texts": number, "seconds": time_table(texts)},
    ]


def time_table(texts: list[str]) -> float:
    """Seconds in which the command line reads and writes a table, less those for a single row.

    The folder's model gives way to one that costs nothing, as it is opened.
    """
    model = FreeModel(VOCABULARY, CONTEXT).eval()
    nothing_missing = {"missing_keys": [], "mismatched_keys": []}
    opened = mock.patch.object(
        transformers.AutoModelForCausalLM, "from_pretrained", return_value=(model, nothing_missing)
    )
    with tempfile.TemporaryDirectory() as folder, opened:
        make_model("tiny").save_pretrained(folder)
        make_tokenizer(VOCABULARY).save_pretrained(folder)
        table, scores = Path(folder, "texts.csv"), Path(folder, "scores.csv")

        def score(rows: list[str]) -> None:
            table.write_text("\n".join(["text", *rows, ""]))
            arguments = [table, "--model", folder, "--output", scores, "--quiet"]
            if command_line.main([str(argument) for argument in arguments]) != 0:
                raise RuntimeError("the table could not be scored")

        score(texts[:1])  # warm-up
        return timed(lambda: score(texts)) - timed(lambda: score(texts[:1]))


def note(repetitions: int) -> dict:
    """Time a short text with the bundled model, against an import."""
    runs = {
        SCORE: [sys.executable, *SCORE.split()],
        IMPORT: [sys.executable, "-c", "import evaluate"],
    }
    return {"name": "a note, as a whole command", **time_commands(runs, repetitions)}


def article(shape: str, num_tokens: int, stride: int, repetitions: int) -> dict:
    """Time an article with a model of some shape, against the guide's loop started in the same way."""
    with tempfile.TemporaryDirectory() as folder:
        timed = time_commands(article_commands(folder, shape, num_tokens, stride), repetitions)
    return {"name": f"an article of {num_tokens:,} tokens, as a whole command", **timed}


def article_commands(folder: str, shape: str, num_tokens: int, stride: int) -> dict[str, list[str]]:
    """Save a model and an article to a folder; return the commands that score it."""
    model = make_model(shape)
    vocabulary, context = model.config.vocab_size, model.config.n_positions
    model.save_pretrained(folder)
    make_tokenizer(vocabulary).save_pretrained(folder)
    path = str(Path(folder, "article.txt"))
    Path(path).write_text(make_text(num_tokens, vocabulary))
    options = [GUIDES_WINDOWS, "--model", folder, "--stride", str(stride), "--quiet"]
    ours = [sys.executable, "score.py", path, *options]
    guide = [sys.executable, "-c", GUIDE_SCRIPT, folder, path, str(context), str(stride)]
    return {ARTICLE: ours, GUIDE: guide}


def time_commands(runs: dict[str, list[str]], repetitions: int) -> dict:
    """Measure processor time of whole commands, in turns; the ratio is of the first to the second."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    # Compiled once, as packages are when they are installed: a clone is at its first run.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for turn in range(repetitions + 1):
        for name, command in runs.items():
            before = seconds_of_children()
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True
            )
            if turn:  # the first is a warm-up
                seconds[name].append(seconds_of_children() - before)
    ours, other = runs
    return {"seconds": seconds, "ratios": {f"{ours} / {other}": ratio(seconds, [ours], [other])}}


def seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(run: Callable[[], object]) -> float:
    began = now()
    run()
    return now() - began
