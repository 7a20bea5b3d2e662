"""Table of the command line's options, parsers of their values, and checks of their combinations.

To add an option, add a row to one of the tables below.  Options that are named like an argument of
the metric come from its row, and are passed to `compute`.  New keys of its result appear in JSON and
in tidy rows (rows.py) automatically; add their printed column in comparing.py.  This module must not
import slow modules, so that mistakes are reported at once.
"""

import argparse
import difflib
import glob
import json
import os
import re
from pathlib import Path

from .. import __version__
from ..arguments import ARGUMENTS, list_settings
from . import stored
from .messages import PROGRAM

PACKAGE = Path(__file__).parent.parent.resolve()
BUNDLED_MODEL = PACKAGE / "demo_model"
if not BUNDLED_MODEL.exists():  # in a clone, it is next to the package
    BUNDLED_MODEL = PACKAGE.parent / "demo_model"
FORMATS = ("text", "json", "jsonl", "csv", "tsv", "markdown", "latex")
# Formats with one row per text (token, word), and nothing else; Parquet cannot be printed.
TIDY = ("jsonl", "csv", "tsv", "parquet")
# Format of each ending of --output.
ENDINGS = {".txt": "text", ".md": "markdown", ".tex": "latex"}
ENDINGS |= {f".{name}": name for name in ("json", *TIDY)}
# Settings in which measurements can differ, and the numbers that a table can show.
AXES = ("model", "text", "protocol", "window", "stride")
NUMBERS = (
    "perplexity", "bits_per_byte", "interval", "change", "pvalue", "word_perplexity", "tokens",
)  # fmt: skip
NONE = "none"  # for Python's None, where that is another value than the default
# Keys of JSON objects whose values are not published.
SECRET = re.compile(r"(token|key|auth\w*|password|secret|headers?|proxies)$", re.IGNORECASE)


# --- values ---------------------------------------------------------------------------------------


def numbers(text: str) -> list[int] | str:
    return text if text == "doubling" else [int(number) for number in text.split(",")]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def truth(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text.lower(), text.lower())


def part(text: str) -> tuple[int, int]:
    number, total = map(int, text.split("/"))
    if not 1 <= number <= total:
        raise ValueError
    return number, total


def json_object(text: str) -> dict:
    """Parse a JSON object; convert numeric keys of `max_memory`, as accelerate requires."""
    try:
        value = dict(json.loads(text))
    except (ValueError, TypeError) as error:  # without the value, which may be a secret
        raise argparse.ArgumentTypeError(
            f'the value is not a JSON object such as {{"a": 1}}: {error}'
        ) from None
    if isinstance(value.get("max_memory"), dict):
        rooms = value["max_memory"].items()
        value["max_memory"] = {int(key) if key.isdecimal() else key: room for key, room in rooms}
    return value


def unescaped(text: str) -> str:
    r"""Replace escapes such as \n and \t, which a shell passes unchanged."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def without_secrets(value: object) -> object:
    """Remove keys and tokens from a JSON object; the keys of `key_mapping` are names of weights."""
    if not isinstance(value, dict):
        return value
    return {
        key: item if key == "key_mapping" else without_secrets(item)
        for key, item in value.items()
        if not SECRET.search(str(key))
    }


# --- the table ------------------------------------------------------------------------------------


# Parsers by the names of values in the help; others are strings.
PARSERS = {
    "N": int,
    "X": float,
    "L,...": numbers,
    "S,...": numbers,
    "C,...": numbers,
    "K/N": part,
    "NAME,...": names,
    "X,...": names,
    "CHOICE": truth,
    "JSON": json_object,
    "TEXT": unescaped,
}


def option(help: str, value: str | None = None, **settings) -> dict:
    """Return the settings of an option, with the name of its value; None for one without a value."""
    if value is None:
        return {"help": help, "action": "store_true"}
    return {"help": help, "metavar": value, "type": PARSERS.get(value, str)} | settings


def of_metric(group: str) -> dict[str, dict]:
    """Return the options of the metric's arguments in a group; they are checked after parsing."""
    named = {name: row for name, row in ARGUMENTS.items() if row.group == group}
    return {name: option(row.option, row.metavar) for name, row in named.items()}


def was_started_by_torchrun() -> bool:
    """Return whether torchrun started this process itself: no other joins a process of its processes."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    parent = Path(f"/proc/{os.getppid()}/environ")  # of Linux
    return not parent.exists() or b"TORCHELASTIC_RUN_ID=" not in parent.read_bytes()


INPUT = {
    "dataset": option("read a dataset of the Hub or a folder", "NAME:CONFIG:SPLIT:COLUMN"),
    "text_column": option("column of the texts; default: text", "NAME"),
    "context_column": option("column of contexts, read before the texts", "NAME"),
    "words_column": option("words, regions between |, or [first, end] pairs", "NAME"),
    "id_column": option("column that names the texts in the output", "NAME"),
    "encoding": option("of text files and CSV; default: UTF-8", "NAME"),
    "detokenize": option("wikitext: to prose from its form", "NAME", choices=["wikitext"]),
}
MEASURE = of_metric("measure") | {
    "separator": option(r"join all texts with this string; \n is a newline", "TEXT"),
    "context_separator": option("between a context and its text, such as ' '", "TEXT"),
}
MODEL = of_metric("models")
MODEL["model_id"]["action"] = "append"
REFERENCE = of_metric("reference") | {
    "reference_dtype": option("default: --dtype", "NAME"),
    "reference_model_kwargs": option("for the reference's from_pretrained", "JSON"),
}
RUN = of_metric("run") | {
    "part": option("score every N-th text; write totals to -o FILE", "K/N"),
    "merge": option("show the result of a run from the files of all parts"),
}
RUN["distributed"]["default"] = was_started_by_torchrun()
OUTPUT = {
    "format": option(", ".join(FORMATS), "NAME", choices=FORMATS),
    "json": option("same as --format json"),
    "output": option("write to FILE, in the format of its ending, .parquet too", "FILE"),
    "tokens": option("write a row for every token, with its score"),
    "words": option("write a row for every word, with its surprisal"),
    **of_metric("words"),
    "num_alternatives": option("add ranks and the N most likely tokens; implies --tokens", "N"),
    "keep_text": option("add the text and its context to every row"),
    "columns": option(
        f"columns of a table: one of {', '.join(AXES)}; and {', '.join(NUMBERS)}", "NAME,..."
    ),
    "label": option("names of the models in the output", "NAME,..."),
    "show": option("print the text, coloured by surprisal"),
    "html": option("write a report with coloured text for the browser", "FILE"),
    "fail_above": option("exit code 1 if the perplexity is above X", "X"),
    "cite": option("print the sentence for a paper, and BibTeX"),
    "find": option("settings of a published figure, or of one per FILE or --model", "X,..."),
    "max_tokens": option("tokens that --find may read; default: 40 per token of text", "N"),
    "verify": option("repeat what --format json wrote; exit code 1 if it differs", "FILE"),
    "verbose": option("print the long signature"),
    "quiet": option("hide progress"),
    "debug": option("show the traceback of an error"),
}
GROUPS = {
    "texts": INPUT,
    "measure": MEASURE,
    "models": MODEL,
    "reference": REFERENCE,
    "run": RUN,
    "output": OUTPUT,
}
ALL = {name: settings for options in GROUPS.values() for name, settings in options.items()}
SHORT = {"model_id": "--model", "output": "-o", "verbose": "-v", "quiet": "-q"}
# Options of a reference, with their keys in the metric's `reference` dictionary.
OF_REFERENCE = {
    "reference": "model_id",
    "reference_dtype": "dtype",
    "reference_model_kwargs": "model_kwargs",
}
# Options that are passed to the metric, which takes the tokenizer as an object.
METRIC_ARGUMENTS = {
    name for name in ALL if name in ARGUMENTS and name not in ("tokenizer", "words")
} | {*OF_REFERENCE}
# Options that accept several values separated by commas.
COMPARED = ("protocol", "max_length", "stride")
# Options that affect the numbers, stored with them for --verify.
STORED = (
    *(name for name in INPUT | MEASURE | MODEL | REFERENCE if name not in ("device", "id_column")),
    *("num_alternatives", "word_correction", "tokens", "words", "columns", "label"),
)


def spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def all_but(*names: str) -> list[str]:
    return [spelled(name) for name in ALL if name not in names]


ALWAYS = ("format", "json", "verbose", "quiet", "debug", "distributed")
SEVERAL, MODELS = "several protocols, windows or strides", "several models"
EACH_FILE = "--columns text"
# What cannot be combined, beyond what the metric refuses.  --find tries all other settings itself,
# --merge only shows what the parts have, and --part stores sums over texts.
EXCLUDED = {
    "--find": all_but(
        *("find", "max_tokens", "model_id", "dtype", "device", "batch_size", "model_kwargs"),
        *("dataset", "text_column", "encoding", *ALWAYS),
    ),
    "--merge": all_but("merge", "output", "fail_above", *ALWAYS),
    "--part": (
        *("--tokens", "--words", "--show", "--html", "--cite", "--verify", "--label"),
        *("--format", "--json", "--fail-above", "--verbose", "--columns", "--separator"),
        *("--reference", "--context-lengths", SEVERAL, MODELS),
    ),
    "--verify": ("--format", "--json", "--show", "--html", "--output", "--fail-above", "--cite"),
    "--dataset": ("FILE", "--text-column", EACH_FILE),
    "--tokens": ("--words", SEVERAL, MODELS),
    "--words": (SEVERAL, MODELS, "--reference", "--separator"),
    "--columns": ("--tokens", "--words", "--reference"),
    EACH_FILE: ("--show", "--html", "--context-lengths"),
    "--context-lengths": (MODELS,),
    "--reference": (SEVERAL,),
    "--show": (SEVERAL, MODELS, "--reference", "--output", "--format"),
    "--html": (MODELS,),
    "--cite": ("--tokens", "--words", "--format"),
    "--detokenize": ("--context-separator",),
    "--separator": ("--context-column",),
}
INTRODUCTION = f"""\
Compute the perplexity of texts of any length under a language model. The model
reads at most one window of tokens at a time; the window slides by a stride, and
each token is scored once. Lower is better.

  {PROGRAM} samples/story.txt                 a text, a table, a folder, or -
  {PROGRAM} samples --model openai-community/gpt2 --stride 256
  {PROGRAM} story.txt --protocol all          compare all protocols
  {PROGRAM} story.txt --stride 64,32,16       compare strides
  {PROGRAM} story.txt --model me/4bit --reference me/full --margin 0.01
  {PROGRAM} reviews.csv --id-column id --output scores.csv
  {PROGRAM} items.csv --words --context-column context -o words.csv
"""
EXIT_CODES = """\
exit codes: 0 success; 1 above --fail-above, or not within --margin; 2 bad input
(see stderr); 3 crash; 130, 143 interrupted. Details: docs/command-line.md
"""


# --- parsing --------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that all errors look alike."""

    def error(self, message: str):
        raise ValueError(f"{message.removeprefix('argument ')}. See {self.prog} --help.")


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage="%(prog)s [FILE ...] [options]",
        description=INTRODUCTION,
        epilog=EXIT_CODES,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 30, 80),
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="text, CSV, TSV, JSON lines or Parquet, optionally gzipped; "
        "a folder or glob of these; standard input if - or omitted",
    )
    version = f"perplexity-sliding {__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version")
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            flags = [SHORT[name]] if name in SHORT else []
            group.add_argument(*flags, spelled(name), dest=name, **settings)
    return parser


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line and refuse invalid combinations of options.

    `compares` is True if several protocols, windows or strides were given; only then are these lists.
    """
    parser = make_parser()
    words = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in argv]
    args, unknown = parser.parse_known_intermixed_args(words)  # files between options
    if unknown:
        known = ["--help", "--version", "--model", *map(spelled, ALL)]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f" (did you mean {close[0]}?)" if close and unknown[0].startswith("-") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    for name in ALL.keys() - {"separator", "context_separator"}:
        if "" in as_list(getattr(args, name)):
            parser.error(f"{spelled(name)} must not be empty. Is its shell variable set?")
    args.argv = argv
    args.stored = stored.read_result(args.verify) if args.verify else None
    if args.stored:
        stored.take_options(args.stored, args, STORED)
    given = {spelled(name) for name in ALL if getattr(args, name) != parser.get_default(name)}
    args.takes_bundled_model = args.model_id is None
    models = args.model_id or [str(BUNDLED_MODEL)]
    args.models = [model for name in models for model in matching_models(name)]
    args.model_id = args.models[0]
    args.tokens = args.tokens or bool(args.num_alternatives)
    args.words = args.words or bool(args.words_column) or args.word_correction is not None
    args.unit = "token" if args.tokens else "word" if args.words else None
    for name in COMPARED:
        if len(getattr(args, name) or ()) == 1:
            setattr(args, name, getattr(args, name)[0])
    settings = [getattr(args, name) for name in COMPARED]
    varies = [isinstance(value, list) or value == "all" for value in settings]
    args.compares = any(varies)
    args.takes_each_file = "text" in (args.columns or ())
    args.is_grid = args.takes_each_file or (args.compares and len(args.models) > 1)
    varies = [len(args.models) > 1, args.takes_each_file, *varies]
    args.axes = [axis for axis, does in zip(AXES, varies) if does]
    fixed_format = args.part or args.verify
    if args.json or fixed_format:
        args.format = "json"
    elif args.format is None:
        ending = ".txt" if args.output is None else Path(args.output).suffix.lower()
        if ending not in ENDINGS:
            raise ValueError(f"--output must end in {', '.join(ENDINGS)}, got {args.output!r}.")
        args.format = ENDINGS[ending]
    args.carries_columns = args.format in TIDY
    args.hides_progress = args.quiet or os.environ.get("RANK", "0") != "0"
    states = {
        "FILE": args.files,
        "--tokens": args.tokens,
        "--words": args.words,
        "--format": args.format != "text" and not fixed_format,
        SEVERAL: args.compares,
        MODELS: args.models[1:],
        EACH_FILE: args.takes_each_file,
    }
    check(args, given | {name for name, is_given in states.items() if is_given})
    return args


def as_list(value: object) -> list:
    return value if isinstance(value, list) else [value]


def matching_models(name: str) -> list[str]:
    """List the folders and GGUF files that match a glob, in natural order: 9 before 10."""
    if "://" in name or not glob.has_magic(name) or os.path.exists(name):
        return [name]
    found = glob.glob(os.path.expanduser(name), recursive=True)
    models = [path for path in found if os.path.isdir(path) or path.lower().endswith(".gguf")]
    if not models:
        raise ValueError(f"--model {name}: no folder and no .gguf file matches.")
    return sorted(models, key=by_numbers)


def by_numbers(path: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"(\d+)", path)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]


def stored_options(args: argparse.Namespace) -> dict:
    """Return the options that affect the numbers, without secrets, for --verify."""
    given = {name: getattr(args, name) for name in STORED}
    given["model_id"] = None if args.takes_bundled_model else args.models
    given["columns"] = ["text"] if args.takes_each_file else None
    kept = {name: without_secrets(value) for name, value in given.items()}
    default = make_parser().get_default
    return {k: value for k, value in kept.items() if value not in (None, {}, default(k))}


# --- checks ---------------------------------------------------------------------------------------


def check(args: argparse.Namespace, given: set[str]) -> None:
    """Refuse values out of range, and combinations of options given in the terms of `EXCLUDED`."""
    arguments = {}
    for name in METRIC_ARGUMENTS & ARGUMENTS.keys():
        value = getattr(args, name)
        value = ARGUMENTS[name].default if value is None else None if value == NONE else value
        ARGUMENTS[name].check(name, value)
        arguments[name] = value
    list_settings(arguments)
    for name, others in EXCLUDED.items():
        if name in given and (other := next(filter(given.__contains__, others), None)):
            raise ValueError(f"{name} cannot be combined with {other}.")
    if args.label and len({*args.label}) != len(args.models):
        raise ValueError(f"--label must have a name for each model, got {', '.join(args.label)}.")
    if not args.files and (args.merge or args.takes_each_file):
        raise ValueError("--merge and --columns text require FILE.")
    if args.part and Path(args.output or "").suffix.lower() != ".json":
        raise ValueError("--part requires --output FILE, a .json, which stores the totals.")
    columns, known = args.columns or [], (*args.axes, *NUMBERS)
    got = f"got {', '.join(columns)}"
    if not set(columns) <= set(known):
        several = "a setting is a column if it has several values"
        raise ValueError(f"--columns must be among {', '.join(known)}, {got}; {several}.")
    if sum(name in AXES for name in columns) > 1:
        raise ValueError(f"--columns must have at most one of {', '.join(AXES)}, {got}.")
    for last, name in zip(["", *columns], columns):
        if name == "interval" and last not in ("perplexity", "bits_per_byte"):
            raise ValueError(f"--columns interval must follow perplexity or bits_per_byte, {got}.")
