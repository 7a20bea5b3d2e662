"""What a text costs beside the model: many short ones in one call, rows of a table, a whole command."""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bookkeeping import SHORT_TEXT, VOCABULARY, FreeRun
from cases import ROOT
from measure import now, ratio
from workloads import make_model, make_text, make_tokenizer

sys.path.insert(0, str(ROOT))
from cli import main as command_line

SCORE, IMPORT = "score.py samples/note.txt", 'python -c "import evaluate"'


def many_texts(number: int) -> list[dict]:
    """Seconds that each of many texts of ten tokens takes: in one call, and as rows of a table."""
    texts = [make_text(SHORT_TEXT, VOCABULARY, seed) for seed in range(number)]
    run = FreeRun()
    return [
        {"work": "in one call", "texts": number, "seconds": timed(lambda: run(texts))},
        {"work": "rows of CSV, in and out", "texts": number, "seconds": time_table(texts)},
    ]


def time_table(texts: list[str]) -> float:
    """Seconds in which the command line reads and writes a table, beyond those for a single row.

    The model has two narrow layers; loading it is left out so.
    """
    model = make_model("tiny")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        make_tokenizer(model.config.vocab_size).save_pretrained(folder)
        table, scores = Path(folder, "texts.csv"), Path(folder, "scores.csv")

        def score(rows: list[str]) -> None:
            table.write_text("\n".join(["text", *rows, ""]))
            arguments = [table, "--model", folder, "--output", scores, "--quiet"]
            if command_line.main([str(argument) for argument in arguments]) != 0:
                raise RuntimeError("the table could not be scored")

        score(texts[:1])  # warm-up
        return timed(lambda: score(texts)) - timed(lambda: score(texts[:1]))


def commands(repetitions: int) -> dict:
    """Processor time of whole commands, in turns: a note under the bundled model, and an import."""
    runs = {
        SCORE: [sys.executable, *SCORE.split()],
        IMPORT: [sys.executable, "-c", "import evaluate"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repetitions + 1):
        for name, command in runs.items():
            before = seconds_of_children()
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            if turn:  # the first is a warm-up
                seconds[name].append(seconds_of_children() - before)
    return {
        "name": "a whole command",
        "seconds": seconds,
        "ratios": {f"{SCORE} / {IMPORT}": ratio(seconds, [SCORE], [IMPORT])},
    }


def seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(run: Callable[[], object]) -> float:
    began = now()
    run()
    return now() - began
