"""Print the settings that give a published figure: --find; and the texts of a layout, as a program:

python -m perplexity_sliding.cli.searching each-line wiki.test.raw > laid-out.jsonl
"""

import argparse
import json
import shlex
import sys

from ..layouts import LAYOUTS, arrange
from .messages import COMMAND, Progress, say, to_stdout
from .options import BUNDLED_MODEL, as_list, parse_arguments, spelled, without_secrets
from .reading import open_texts
from .tables import Column, format_value, lay_out, tabulate

MOST_SHOWN = 20
TITLES = {
    "protocol": "protocol",
    "max_length": "L",
    "stride": "S",
    "add_start_token": "start",
    "layout": "layout",
    "average": "average",
    "value": "value",
    "difference": "difference",
    "same_value": "same value",
}
# A copied setting needs all of its columns, whatever the terminal's width.
ENDLESS = 10_000


def search(args: argparse.Namespace) -> int:
    progress = Progress("Searching", args.hides_progress)
    try:
        progress.status("Reading")
        options = [
            word
            for name in ("dataset", "text_column", "encoding")
            if getattr(args, name) is not None
            for word in (spelled(name), getattr(args, name))
        ]
        if len(args.find) == 1 or args.models[1:]:
            texts = read_corpus(args, args.files)
            called = [[*args.files, *options]] * len(args.find)
        else:
            texts = [read_corpus(args, [file]) for file in args.files]
            called = [[file, *options] for file in args.files]
        progress.status("Loading the libraries")
        import transformers

        from ..finding import find

        transformers.logging.disable_progress_bar()
        names = ("dtype", "device", "batch_size", "model_kwargs", "max_tokens")
        settings = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        progress.status("Planning")
        result = find(
            args.find if len(args.find) > 1 else args.find[0],
            texts,
            model_id=args.models if args.models[1:] else args.model_id,
            files=called,
            callback=progress,
            **settings,
        )
    finally:
        progress.close()
    for entry in [*result["matches"], *result["nearest"]]:
        commands = [as_called(command, args) for command in as_list(entry["command"])]
        entry["command"] = commands if isinstance(entry["command"], list) else commands[0]
    to_stdout([json.dumps(result, indent=2) + "\n" if args.format == "json" else to_text(result)])
    return 0


def read_corpus(args: argparse.Namespace, files: list[str]) -> list[str]:
    texts = list(open_texts(args, files))
    for text in texts:
        if text.error is not None:
            raise ValueError(f"{text.name}: {text.error}")
        if text.chat is not None:
            raise ValueError(f"--find requires texts, got a chat in {text.name}.")
    return [text.text for text in texts]


def as_called(command: str, args: argparse.Namespace) -> str:
    """Return a command with this program's name and `--model-kwargs`, without the bundled model's name."""
    if args.takes_bundled_model:
        command = command.replace(shlex.join(["--model", str(BUNDLED_MODEL)]) + " ", "")
    if args.model_kwargs:
        given = json.dumps(without_secrets(args.model_kwargs))
        command += f" {shlex.join(['--model-kwargs', given])}"
    return command.replace("python score.py", COMMAND)


def to_text(result: dict) -> str:
    matches, nearest, left = result["matches"], result["nearest"], result["not_tried"]
    parts = []
    if matches:
        figures = ", ".join(as_list(result["figure"]))
        parts += [f"Settings that give {figures}, most likely first", ""]
        parts += [to_table(matches[:MOST_SHOWN]), ""]
        if len(matches) > MOST_SHOWN:
            parts += [f"and {len(matches) - MOST_SHOWN:,} more: --format json lists them.", ""]
        parts += ["To repeat the first:", *as_list(matches[0]["command"]), ""]
    if nearest:
        parts += ["Nearest other settings", "", to_table(nearest), ""]
    parts.append(result["conclusion"])
    if left:
        num_settings, num_tokens = (
            sum(step[name] for step in left) for name in ("num_settings", "num_forward_tokens")
        )
        parts.append(
            f"Read {result['num_forward_tokens']:,} tokens. Not tried: {num_settings:,} settings, "
            f"which take {num_tokens:,} more. --max-tokens N continues up to N tokens."
        )
    return "\n".join(parts) + "\n"


def to_table(entries: list[dict]) -> str:
    rows = []
    for entry in entries:
        others = dict.fromkeys(other["protocol"] for other in entry.get("same_value", ()))
        written = {name: str(entry[name]) for name in ("max_length", "stride")}
        written["same_value"] = ", ".join(name for name in others if name != entry["protocol"])
        written["value"] = ", ".join(format_value(one, 4) for one in as_list(entry["value"]))
        start = entry["add_start_token"]
        rows.append(entry | written | {"add_start_token": "none" if start is False else str(start)})
    columns = [Column(title, key, left=True) for key, title in TITLES.items()]
    return lay_out(tabulate(rows, columns), ENDLESS)


def print_layout(argv: list[str]) -> int:
    """Print the texts of a layout as JSON lines with a column `text`; return the exit code."""
    if not argv or argv[0] not in LAYOUTS:
        say(f"usage: searching NAME FILE ...; NAME is one of {', '.join(LAYOUTS)}")
        return 2
    args = parse_arguments(argv[1:])
    texts = arrange(read_corpus(args, args.files), argv[0])
    to_stdout(json.dumps({"text": text}) + "\n" for text in texts)
    return 0


if __name__ == "__main__":
    sys.exit(print_layout(sys.argv[1:]))
