"""Print the settings that give a published figure: --find."""

import argparse
import json
import shlex

from . import progress as bars
from .messages import program_name
from .options import BUNDLED_MODEL
from .reading import open_texts
from .streams import to_stdout

MOST_SHOWN = 20
TITLES = {
    "protocol": "protocol",
    "max_length": "L",
    "stride": "S",
    "add_start_token": "start",
    "layout": "layout",
    "average": "average",
    "value": "value",
}


def search(args: argparse.Namespace) -> int:
    """Find the settings, print them, and return the exit code."""
    progress = bars.Progress("Searching", args.hides_progress)
    try:
        progress.status("Reading")
        texts = list(open_texts(args))
        for text in texts:
            if text.error is not None:
                raise ValueError(f"{text.name}: {text.error}")
            if text.row is not None or text.name == "-":
                raise ValueError(f"--find must go with files that are texts, got {text.name}.")
        progress.status("Loading the libraries")
        import transformers

        from ..finding import find
        from ..scoring.runner import bars_hidden

        transformers.logging.disable_progress_bar()
        names = ("dtype", "device", "batch_size", "logits_memory", "model_kwargs", "max_tokens")
        given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        progress.status("Searching")
        with bars_hidden():
            result = find(
                args.find if len(args.find) > 1 else args.find[0],
                [text.text for text in texts],
                model_id=args.model_id,
                files=args.files,
                **given,
            )
    finally:
        progress.close()
    for entry in [*result["matches"], *result["nearest"]]:
        entry["command"] = as_called(entry["command"], args)
    to_stdout([json.dumps(result, indent=2) + "\n" if args.format == "json" else to_text(result)])
    return 0


def as_called(command: str | list[str], args: argparse.Namespace) -> str | list[str]:
    """Write a command as this program was called; the bundled model needs no name."""
    if isinstance(command, list):
        return [as_called(one, args) for one in command]
    if args.takes_bundled_model:
        command = command.replace(shlex.join(["--model", str(BUNDLED_MODEL)]) + " ", "")
    program = program_name()
    return command if program == "score.py" else command.replace("python score.py", program)


def to_text(result: dict) -> str:
    """Write the result for people."""
    figures = result["figure"] if isinstance(result["figure"], list) else [result["figure"]]
    parts = []
    matches, nearest = result["matches"], result["nearest"]
    if matches:
        parts += [f"Settings that give {', '.join(figures)}, likeliest first", ""]
        parts += [table(matches[:MOST_SHOWN]), ""]
        if len(matches) > MOST_SHOWN:
            parts += [f"and {len(matches) - MOST_SHOWN:,} more: --json lists them.", ""]
        commands = matches[0]["command"]
        parts += ["The first again:", *([commands] if isinstance(commands, str) else commands), ""]
    if nearest:
        parts += ["Nearest others", "", table(nearest), ""]
    parts.append(result["conclusion"])
    left = result["not_tried"]
    if left:
        num_settings = sum(step["num_settings"] for step in left)
        num_tokens = sum(step["num_forward_tokens"] for step in left)
        parts.append(
            f"Read {result['num_forward_tokens']:,} tokens. Not tried: {num_settings:,} settings, "
            f"which would read {num_tokens:,}: --max-tokens N goes on until N tokens are read."
        )
    return "\n".join(parts) + "\n"


def table(entries: list[dict]) -> str:
    from tabulate import tabulate

    rows = [[written(key, entry[key]) for key in TITLES] for entry in entries]
    titles = list(TITLES.values())
    if "difference" in entries[0]:
        titles.append("difference")
        rows = [[*row, entry["difference"]] for row, entry in zip(rows, entries)]
    return tabulate(rows, titles, "plain", disable_numparse=True)


def written(key: str, value: object) -> str:
    """Write a value to four places."""
    if key != "value":
        return str(value)
    return ", ".join(f"{one:.4f}" for one in (value if isinstance(value, list) else [value]))
