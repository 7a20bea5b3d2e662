"""The calls that give the page's number again: Python and shell, ready to copy."""

import json
import os
import shlex

from .models import BUNDLED, ROUNDED
from .service import Scored

# Longer texts are read from a file.
INLINE_CHARACTERS = 200
TEXT_FILE, CONTEXT_FILE = "text.txt", "context.txt"
# One row, which the command line takes a context from.
TABLE_FILE = "text.jsonl"


def python_call(scored: Scored) -> str:
    """Python that computes the same number from the text in text.txt."""
    imports, lines, model = _model_lines(scored)
    arguments = model | {
        name: literal(value)
        for name, value in _arguments(scored).items()
        if name not in ("model_id", "contexts")
    }
    texts = {"predictions": (scored.text, "text", TEXT_FILE)}
    if scored.settings.context:
        texts["contexts"] = (scored.settings.context, "context", CONTEXT_FILE)
    arguments = {name: f"[{_read(*text)[0]}]" for name, text in texts.items()} | arguments
    return "\n".join(
        [
            *imports,
            "import evaluate",
            "",
            *(line for text in texts.values() for line in _read(*text)[1]),
            *lines,
            f'metric = evaluate.load("{metric_address()}")',
            "results = metric.compute(",
            *(f"    {name}={value}," for name, value in arguments.items()),
            ")",
            'print(results["perplexity"])',
        ]
    )


def _read(text: str, name: str, file: str) -> tuple[str, list[str]]:
    """A text as Python: itself, or a name after the lines that read it from a file."""
    if len(text) <= INLINE_CHARACTERS:
        return literal(text), []
    return name, [f'{name} = open("{file}", encoding="utf-8", newline="").read()']


def _model_lines(scored: Scored) -> tuple[list[str], list[str], dict[str, str]]:
    """Imports and lines before the call, and the arguments of the model, as Python."""
    name = scored.loaded.name
    if name not in (BUNDLED, ROUNDED):
        return [], [], {"model_id": literal(name)}
    imports, lines, folder = [], [], literal(BUNDLED)
    if space():  # the bundled model stands in the Space, wherever the call is made
        imports = ["from huggingface_hub import snapshot_download"]
        lines = [f'folder = snapshot_download("{space()}", repo_type="space")']
        folder = f'f"{{folder}}/{BUNDLED}"'
    if name == BUNDLED:
        return imports, lines, {"model_id": folder}
    if space():
        imports = ["import sys", *imports]
        lines.append("sys.path.append(folder)")
    lines += ["from space.rounding import load_rounded", ""]
    lines.append(f"model, tokenizer = load_rounded({folder})")
    return imports, lines, {"model": "model", "tokenizer": "tokenizer"}


def shell_call(scored: Scored) -> str:
    """Commands that print the same number for the text in text.txt."""
    if scored.loaded.name == ROUNDED:
        return "# This copy is made in memory: see the Python call."
    clone = []
    if space():
        folder = space().split("/")[-1]
        address = f"https://huggingface.co/spaces/{space()}"
        clone = [f"git clone {address}  # the metric and the bundled model", f"cd {folder}"]
    options, file = [], TEXT_FILE
    arguments = _arguments(scored)
    if arguments.pop("contexts", None):
        file = TABLE_FILE
        options += ["--context-column", "context"]
    arguments.pop("words", None)  # another table, of the same number
    for name, value in arguments.items():
        options += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    path = f"../{file}" if clone else file
    return "\n".join([*clone, shlex.join(["python", "score.py", path, *options])])


def literal(value) -> str:
    """Python for a value, strings in double quotes."""
    return repr(value) if isinstance(value, bool | int) else json.dumps(value, ensure_ascii=False)


def space() -> str | None:
    """The Space that this page runs on, such as user/perplexity_sliding."""
    return os.environ.get("SPACE_ID")


def metric_address() -> str:
    """Where to load the metric from: this Space, or the folder of the app."""
    return space() or "./perplexity_sliding.py"


def _arguments(scored: Scored) -> dict:
    """The metric's arguments, the model's version included, less those at their default."""
    arguments = {"model_id": scored.loaded.name} | scored.settings.arguments()
    if scored.loaded.commit is not None:
        arguments["model_kwargs"] = {"revision": scored.loaded.commit}
    defaults = {"add_start_token": True, "protocol": "sliding"}
    return {name: value for name, value in arguments.items() if defaults.get(name) != value}
