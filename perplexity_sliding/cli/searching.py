"""Print the settings that give a published figure: --find; and the texts of a layout, as a program:

python -m perplexity_sliding.cli.searching each-line wiki.test.raw > laid-out.jsonl
"""

import argparse
import json
import shlex
import sys

from ..layouts import LAYOUTS, arrange
from .messages import Progress, program_name, say, to_stdout
from .options import BUNDLED_MODEL, as_list, parse_arguments, with_hyphens
from .reading import open_texts
from .tables import columns_of, format_value
from .values import without_secrets

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
    progress = Progress("Searching", args.hides_progress)
    try:
        progress.status("Reading")
        texts, names = read_corpora(args)
        progress.status("Loading the libraries")
        import transformers

        from ..finding.find import find
        from ..scoring.runner import bars_hidden

        transformers.logging.disable_progress_bar()
        arguments = ("dtype", "device", "batch_size", "model_kwargs", "max_tokens")
        given = {name: getattr(args, name) for name in arguments}
        progress.status("Planning")
        with bars_hidden():
            result = find(
                args.find if len(args.find) > 1 else args.find[0],
                texts,
                model_id=args.models if args.models[1:] else args.model_id,
                files=names,
                callback=progress,
                **{name: value for name, value in given.items() if value is not None},
            )
    finally:
        progress.close()
    for entry in [*result["matches"], *result["nearest"]]:
        entry["command"] = as_called(entry["command"], args)
    to_stdout([json.dumps(result, indent=2) + "\n" if args.format == "json" else to_text(result)])
    return 0


def read_corpora(args: argparse.Namespace) -> tuple[list, list[list[str]]]:
    """Read the texts of each figure.

    Returns:
        one list of texts for all figures, or one per FILE; and the command-line arguments of each.
    """
    names = ("dataset", "text_column", "encoding")
    given = [(f"--{with_hyphens(name)}", getattr(args, name)) for name in names]
    options = [str(word) for pair in given if pair[1] is not None for word in pair]
    if len(args.find) == 1 or args.models[1:]:
        return read_corpus(args), [[*args.files, *options]] * len(args.find)
    corpora = [read_corpus(argparse.Namespace(**vars(args) | {"files": [f]})) for f in args.files]
    return corpora, [[file, *options] for file in args.files]


def read_corpus(args: argparse.Namespace) -> list[str]:
    """Read all texts.

    Raises:
        ValueError: a text cannot be read, or is a chat.
    """
    texts = list(open_texts(args))
    for text in texts:
        if text.error is not None:
            raise ValueError(f"{text.name}: {text.error}")
        if text.chat is not None:
            raise ValueError(f"--find requires texts, got a chat in {text.name}.")
    return [text.text for text in texts]


def as_called(command: str | list[str], args: argparse.Namespace) -> str | list[str]:
    """Return a command with this program's name and `--model-kwargs`, without the bundled model's name."""
    if isinstance(command, list):
        return [as_called(one, args) for one in command]
    if args.takes_bundled_model:
        command = command.replace(shlex.join(["--model", str(BUNDLED_MODEL)]) + " ", "")
    if args.model_kwargs:
        given = json.dumps(without_secrets(args.model_kwargs))
        command += f" {shlex.join(['--model-kwargs', given])}"
    program = program_name()
    return command if program == "score.py" else command.replace("python score.py", program)


def to_text(result: dict) -> str:
    """Format the result as text."""
    figures = result["figure"] if isinstance(result["figure"], list) else [result["figure"]]
    parts = []
    matches, nearest = result["matches"], result["nearest"]
    if matches:
        parts += [f"Settings that give {', '.join(figures)}, most likely first", ""]
        parts += [table(matches[:MOST_SHOWN]), ""]
        if len(matches) > MOST_SHOWN:
            parts += [f"and {len(matches) - MOST_SHOWN:,} more: --json lists them.", ""]
        commands = matches[0]["command"]
        parts += [
            "To repeat the first:",
            *([commands] if isinstance(commands, str) else commands),
            "",
        ]
    if nearest:
        parts += ["Nearest other settings", "", table(nearest), ""]
    for row in result["published"]:
        named = f" ({row['protocol']})" if row["protocol"] else ""
        parts.append(
            f"Published: {row['figure']} for {row['model']} on {row['corpus']}{named}: {row['source']}"
        )
    parts.append(result["conclusion"])
    parts += left_out(result)
    return "\n".join(parts) + "\n"


def left_out(result: dict) -> list[str]:
    """Return a note on the settings that were not tried, and their cost."""
    left = result["not_tried"]
    if not left:
        return []
    num_settings = sum(step["num_settings"] for step in left)
    num_tokens = sum(step["num_forward_tokens"] for step in left)
    far = sum(step["misses_on_sample"] for step in left)
    sampled = f" On a sample, {far} of these passes miss the figure." if far else ""
    return [
        f"Read {result['num_forward_tokens']:,} tokens. Not tried: {num_settings:,} settings, "
        f"which take {num_tokens:,} more. --max-tokens N continues up to N tokens.{sampled}"
    ]


def table(entries: list[dict]) -> str:
    """Format settings with left-aligned columns, all of them, whatever the terminal's width."""
    rows = [[written(key, entry[key]) for key in TITLES] for entry in entries]
    titles = list(TITLES.values())
    if "difference" in entries[0]:
        titles.append("difference")
        rows = [[*row, entry["difference"]] for row, entry in zip(rows, entries)]
    elif any(entry["same_value"] for entry in entries):
        titles.append("same value")
        for row, entry in zip(rows, entries):
            others = dict.fromkeys(other["protocol"] for other in entry["same_value"])
            row.append(", ".join(name for name in others if name != entry["protocol"]))
    lines = [titles, *rows]
    widths = [max(map(columns_of, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell + " " * (width - columns_of(cell)) for cell, width in zip(line, widths)
        ).rstrip()
        for line in lines
    )


def written(key: str, value: object) -> str:
    """Format a value to four places, and a missing start token as "none"."""
    if value is False:
        return "none"
    if key != "value":
        return str(value)
    return ", ".join(format_value(one, 4) for one in as_list(value))


def print_layout(argv: list[str]) -> int:
    """Print the texts of a layout as JSON lines with a column `text`; return the exit code."""
    if not argv or argv[0] not in LAYOUTS:
        say(f"usage: searching NAME FILE ...; NAME is one of {', '.join(LAYOUTS)}")
        return 2
    texts = arrange(read_corpus(parse_arguments(argv[1:])), argv[0])
    to_stdout(json.dumps({"text": text}) + "\n" for text in texts)
    return 0


if __name__ == "__main__":
    sys.exit(print_layout(sys.argv[1:]))
