"""The calls that give the page's number again: Python and shell, ready to copy."""

import json
import os
import shlex

from .service import Scored

# Longer texts are read from a file.
INLINE_CHARACTERS = 200
FILE = "text.txt"


def python_call(scored: Scored) -> str:
    """Python that computes the same number from the text in text.txt."""
    lines = [f"    {name}={literal(value)}," for name, value in _arguments(scored).items()]
    short = len(scored.text) <= INLINE_CHARACTERS
    text = literal(scored.text) if short else "text"
    read = [] if short else [f'text = open("{FILE}", encoding="utf-8", newline="").read()']
    return "\n".join(
        [
            "import evaluate",
            "",
            *read,
            f'metric = evaluate.load("{metric_address()}")',
            "results = metric.compute(",
            f"    predictions=[{text}],",
            *lines,
            ")",
            'print(results["perplexity"])',
        ]
    )


def shell_call(scored: Scored) -> str:
    """A command that prints the same number for the text in text.txt."""
    options = []
    for name, value in _arguments(scored).items():
        options += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return " ".join(["python", "score.py", FILE, *map(shlex.quote, options)])


def literal(value) -> str:
    """Python for a value, strings in double quotes."""
    return repr(value) if isinstance(value, bool | int) else json.dumps(value, ensure_ascii=False)


def metric_address() -> str:
    """Where to load the metric from: this Space, or the folder of the app."""
    return os.environ.get("SPACE_ID", "./perplexity_sliding.py")


def _arguments(scored: Scored) -> dict:
    """The metric's arguments, the model's version included, less those at their default."""
    arguments = {"model_id": scored.loaded.name} | scored.settings.arguments()
    if scored.loaded.commit is not None:
        arguments["model_kwargs"] = {"revision": scored.loaded.commit}
    defaults = {"add_start_token": True, "protocol": "sliding"}
    return {name: value for name, value in arguments.items() if defaults.get(name) != value}
