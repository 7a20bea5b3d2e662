"""Table of the command line's options, and checks of their combinations.

To add an option, add a row to one of the tables below.  Options that are named like an argument of
the metric come from its row, and are passed to `compute`.  New keys of its result appear in JSON and
in tidy rows (rows.py) automatically; add their printed column in comparing.py.  This module must not
import slow modules, so that mistakes are reported at once.
"""

import argparse
import difflib
import glob
import os
import re
import sys
from pathlib import Path

from .. import __version__
from ..arguments import ARGUMENTS, WITHOUT_ADAPTER
from ..protocols import PROTOCOLS
from . import stored, values

PACKAGE = Path(__file__).parent.parent.resolve()
BUNDLED_MODEL = PACKAGE / "demo_model"
if not BUNDLED_MODEL.exists():  # in a clone, it is next to the package
    BUNDLED_MODEL = PACKAGE.parent / "demo_model"
FORMATS = ("text", "json", "jsonl", "csv", "tsv", "markdown", "latex")
# Format of each ending of --output; Parquet cannot be printed.
ENDINGS = {
    ".txt": "text",
    ".json": "json",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".md": "markdown",
    ".tex": "latex",
    ".parquet": "parquet",
}
# Formats with one row per text (token, word), and nothing else.
TIDY = ("jsonl", "csv", "tsv", "parquet")
DATA_FORMATS = ("json", *TIDY)
# Settings in which measurements can differ, and the numbers that a table can show.
AXES = ("model", "text", "protocol", "window", "stride")
NUMBERS = (
    "perplexity", "bits_per_byte", "interval", "change", "pvalue", "word_perplexity", "tokens",
)  # fmt: skip
HAVE_INTERVALS = ("perplexity", "bits_per_byte")
# The value for Python's None, if it differs from an omitted option.
NONE = "none"


# --- the table ------------------------------------------------------------------------------------


def option(help: str, **settings) -> dict:
    """Return the keyword arguments of `add_argument` for an option."""
    return {"help": help} | settings


def of_metric(group: str) -> dict[str, dict]:
    """Return the options of the metric's arguments in a group, under the same names."""
    found = {}
    for name, argument in ARGUMENTS.items():
        if argument.group == group:
            found[name] = option(argument.option, **values.settings_of(argument.kind))
            if argument.metavar is not None:
                found[name]["metavar"] = argument.metavar
    return found


def was_started_by_torchrun() -> bool:
    """Return whether torchrun started this process, and not one of its processes, which no other joins."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:  # not Linux
        return True
    return b"TORCHELASTIC_RUN_ID=" not in environment


INPUT = {
    "dataset": option(
        "read a dataset of the Hub, a folder or a file", metavar="NAME:CONFIG:SPLIT:COLUMN"
    ),
    "text_column": option("column of the texts; default: text", metavar="NAME"),
    "context_column": option("column of contexts, read before the texts", metavar="NAME"),
    "words_column": option("words, regions between |, or [first, end] pairs", metavar="NAME"),
    "id_column": option("column that names the texts in the output", metavar="NAME"),
    "encoding": option("of text files and CSV; default: UTF-8", metavar="NAME"),
    "detokenize": option("convert texts in WikiText's form to prose", choices=["wikitext"]),
}
MEASURE = of_metric("measure") | {
    "separator": option(
        r"join all texts with this string; \n is a newline", type=values.unescaped, metavar="TEXT"
    ),
    "context_separator": option(
        "between a context and its text, such as ' '", type=values.unescaped, metavar="TEXT"
    ),
}
MODEL = of_metric("models")
MODEL["model_id"]["action"] = "append"
REFERENCE = of_metric("reference") | {
    "reference_dtype": option("default: --dtype", metavar="NAME"),
    "reference_model_kwargs": option(
        "for the reference's from_pretrained", type=values.json_object, metavar="JSON"
    ),
}
RUN = of_metric("run") | {
    "part": option(
        "score every N-th text; write totals to -o FILE", type=values.part, metavar="K/N"
    ),
    "merge": option("show the result of a run from the files of all parts", action="store_true"),
}
RUN["distributed"]["default"] = was_started_by_torchrun()
OUTPUT = {
    "format": option(", ".join(FORMATS), choices=FORMATS, metavar="NAME"),
    "json": option("same as --format json", action="store_true"),
    "output": option(
        "write to FILE, in the format of its ending, .parquet too", metavar="FILE"
    ),
    "tokens": option("write a row for every token, with its score", action="store_true"),
    "words": option("write a row for every word, with its surprisal", action="store_true"),
    **of_metric("words"),
    "num_alternatives": option(
        "add ranks and the N most likely tokens; implies --tokens", type=int, metavar="N"
    ),
    "keep_text": option("add the text and its context to every row", action="store_true"),
    "columns": option(
        f"columns of a table: one of {', '.join(AXES)}; and {', '.join(NUMBERS)}",
        type=values.names, metavar="NAME,...",
    ),
    "label": option("names of the models in the output", type=values.names, metavar="NAME,..."),
    "show": option("print the text, coloured by surprisal", action="store_true"),
    "html": option("write a report with coloured text for the browser", metavar="FILE"),
    "fail_above": option("exit code 1 if the perplexity is above X", type=float, metavar="X"),
    "cite": option("print the sentence for a paper, and BibTeX", action="store_true"),
    "find": option(
        "find settings that give a published figure; several: one per FILE or --model",
        type=values.names, metavar="X,...",
    ),
    "max_tokens": option(
        "tokens that --find may read; default: 40 per token, at least 200,000",
        type=int, metavar="N",
    ),
    "verify": option(
        "repeat the measurement that --format json wrote to FILE; exit code 1 if it differs",
        metavar="FILE",
    ),
    "verbose": option("print the long signature", action="store_true"),
    "quiet": option("hide progress", action="store_true"),
    "debug": option("show the traceback of an error", action="store_true"),
}  # fmt: skip
OUTPUT["word_correction"]["choices"].append(NONE)
GROUPS = {
    "texts": INPUT,
    "measure": MEASURE,
    "models": MODEL,
    "reference": REFERENCE,
    "run": RUN,
    "output": OUTPUT,
}
ALL = {name: settings for options in GROUPS.values() for name, settings in options.items()}
SHORT = {
    "model_id": ["--model"],
    "reference": ["--reference"],
    "output": ["-o"],
    "verbose": ["-v"],
    "quiet": ["-q"],
}
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
# Separators may be empty.
MAY_BE_EMPTY = ("separator", "context_separator")
# Options that affect the numbers, stored with them for --verify.
STORED = (
    *(name for name in INPUT | MEASURE | MODEL | REFERENCE if name not in ("device", "id_column")),
    *("num_alternatives", "word_correction", "tokens", "words", "columns", "label"),
)
# Options that go with a mode.  --find tries all other settings itself, --merge only shows what the
# parts have, and --part stores sums over texts.
BESIDE = {
    "find": (
        *("max_tokens", "model_id", "dtype", "device", "batch_size", "model_kwargs", "format", "json"),
        *("quiet", "debug", "distributed", "dataset", "text_column", "encoding"),
    ),
    "merge": ("format", "json", "output", "fail_above", "verbose", "quiet", "debug", "distributed"),
    "part": ALL.keys() - {
        *("find", "merge", "tokens", "words", "show", "html", "cite", "verify", "label"),
        *("fail_above", "verbose", "columns", "separator", "reference", "context_lengths"),
    },
}  # fmt: skip
INTRODUCTION = """\
Compute the perplexity of texts of any length under a language model. The model
reads at most one window of tokens at a time; the window slides by a stride, and
each token is scored once. Lower is better.

  {program} samples/story.txt                 a text, a table, a folder, or -
  {program} samples --model openai-community/gpt2 --stride 256
  {program} story.txt --protocol all          compare all protocols
  {program} story.txt --stride 64,32,16       compare strides
  {program} story.txt --model me/4bit --reference me/full --margin 0.01
  {program} reviews.csv --id-column id --output scores.csv
  {program} items.csv --words --context-column context -o words.csv
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


class Store(argparse._StoreAction):
    """Store a value; refuse "", of a shell variable that is not set, and a list given twice."""

    def __call__(self, parser, namespace, values, option_string=None):
        if "" in as_list(values) and self.dest not in MAY_BE_EMPTY:
            raise argparse.ArgumentError(
                self, "must not be empty. Leave it out, or set its shell variable"
            )
        if self.option_strings and isinstance(getattr(namespace, self.dest), list):
            raise argparse.ArgumentError(
                self, "must be given only once. Separate several values by commas"
            )
        super().__call__(parser, namespace, values, option_string)


def make_parser(program: str = "score.py") -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s [FILE ...] [options]",
        description=INTRODUCTION.format(program=program),
        epilog=EXIT_CODES,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 30, 80),
    )
    parser.register("action", None, Store)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="text, CSV, TSV, JSON lines or Parquet, optionally gzipped; "
        "a folder or glob of these; standard input if - or omitted",
    )
    version = f"perplexity-sliding {__version__}"
    parser.add_argument(
        "--version", action="version", version=version, help="show the version and exit"
    )
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            group.add_argument(*SHORT.get(name, ()), spelled(name), dest=name, **settings)
    return parser


def parse_arguments(argv: list[str], program: str = "score.py") -> argparse.Namespace:
    """Parse the command line and refuse invalid combinations of options.

    The result has attributes beyond the options.  `compares` is True if several protocols, windows
    or strides were given; only then are these lists.  `format` is resolved.  `carries_columns` is
    True if the output can have the other columns of a table.

    Raises:
        ValueError: a bad command line.
    """
    parser = make_parser(program)
    words = [re.sub("^--[^=]+", lambda name: with_hyphens(name[0]), word) for word in argv]
    args, unknown = parser.parse_known_intermixed_args(words)  # files between options
    if unknown:
        known = ["--help", "--version", "--model", *map(spelled, ALL)]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f" (did you mean {close[0]}?)" if close and unknown[0].startswith("-") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    args.argv = argv
    args.stored = stored.read_result(args.verify) if args.verify else None
    if args.stored:
        stored.take_options(args.stored, args, STORED)
    args.takes_bundled_model = args.model_id is None
    names = args.model_id or [str(BUNDLED_MODEL)]
    args.models = [model for name in names for model in matching_models(name)]
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
    args.format = resolve_format(args)
    args.carries_columns = args.format in TIDY
    args.hides_progress = args.quiet or sys.stderr is None or os.environ.get("RANK", "0") != "0"
    check_values(args)
    check_modes(args)
    check_together(args)
    check_requirements(args)
    return args


def as_list(value: object) -> list:
    return value if isinstance(value, list) else [value]


def with_hyphens(name: str) -> str:
    return name.replace("_", "-")


def spelled(name: str) -> str:
    """Return the option of an attribute."""
    return f"--{with_hyphens(name)}"


def matching_models(name: str) -> list[str]:
    """List the folders and GGUF files that match a glob, in natural order: 9 before 10.

    Raises:
        ValueError: nothing matches a glob.
    """
    if "://" in name or not glob.has_magic(name) or os.path.exists(name):
        return [name]
    models = [  # a broken link is an error later, not left out
        path
        for path in glob.glob(os.path.expanduser(name), recursive=True)
        if os.path.isdir(path) or path.lower().endswith(".gguf") or not os.path.exists(path)
    ]
    if not models:
        raise ValueError(f"--model {name}: no folder and no .gguf file matches.")
    return sorted(models, key=by_numbers)


def by_numbers(path: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts numbers within names by their value."""
    parts = re.split(r"(\d+)", path)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]


def resolve_format(args: argparse.Namespace) -> str:
    """Return the output format: --format if given, else that of the ending of --output."""
    if args.part or args.verify:
        if args.format or args.json:
            raise ValueError("--part and --verify cannot be combined with --format.")
        return "json"
    if args.format or args.json or args.output is None:
        return args.format or ("json" if args.json else "text")
    ending = Path(args.output).suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(
            f"--output must end in one of {', '.join(ENDINGS)}, got {args.output!r}. Use another "
            "ending, or pass --format."
        )
    return ENDINGS[ending]


def stored_options(args: argparse.Namespace) -> dict:
    """Return the options that affect the numbers, without secrets, for --verify."""
    given = {name: getattr(args, name) for name in STORED}
    given["model_id"] = None if args.takes_bundled_model else args.models
    given["columns"] = ["text"] if args.takes_each_file else None
    kept = {name: values.without_secrets(value) for name, value in given.items()}
    default = make_parser().get_default
    return {k: value for k, value in kept.items() if value not in (None, {}, default(k))}


def written_files(args: argparse.Namespace) -> dict[str, str]:
    """Return the paths of output files, by option."""
    names = ("output", "html", "checkpoint")
    files = {spelled(name): getattr(args, name) for name in names}
    return {option: path for option, path in files.items() if path is not None}


# --- checks ---------------------------------------------------------------------------------------


def check_values(args: argparse.Namespace) -> None:
    """Refuse values out of range and unknown protocols before slow imports."""
    for name in METRIC_ARGUMENTS & ARGUMENTS.keys() - {"word_correction"}:
        if getattr(args, name) is not None:
            ARGUMENTS[name].check(name, getattr(args, name))
    for name in as_list(args.protocol or "all"):
        if name != "all" and name not in PROTOCOLS:
            close = difflib.get_close_matches(name, PROTOCOLS, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Use {', '.join(PROTOCOLS)}, or all."
            raise ValueError(f"--protocol={name} is not known. {hint}")
    if isinstance(args.protocol, list) and "all" in args.protocol:
        raise ValueError("--protocol=all cannot be combined with other protocols.")


def check_together(args: argparse.Namespace) -> None:
    """Refuse options that exclude each other or require another, as far as the metric does not."""
    comparison = "several protocols, windows or strides"
    shows = args.show or args.html
    of_reference = args.reference_dtype or args.reference_model_kwargs
    conflicts = {
        "FILE and --dataset": args.files and args.dataset,
        "--dataset and --text-column": args.dataset and args.text_column,
        "--words and --tokens": args.words and args.tokens,
        f"--tokens, --words or --reference and {comparison}": args.compares
        and (args.unit or args.reference),
        "--tokens, --words, --context-lengths, --show or --html and several models": args.models[1:]
        and (args.unit or args.context_lengths or shows),
        "--words or --columns and --reference": args.reference and (args.words or args.columns),
        "--detokenize and --words-column or --context-separator": args.detokenize
        and (args.words_column or args.context_separator is not None),
        "--separator and --words or --context-column": args.separator is not None
        and (args.words or args.context_column),
        "--columns and --tokens, --words or a --format that has all columns": args.columns
        and (args.unit or (args.format in DATA_FORMATS and args.columns != ["text"])),
        "--columns text and --dataset, standard input, --show, --html or --context-lengths": (
            args.takes_each_file and (not args.files or shows or args.context_lengths)
        ),
        f"--show and {comparison}, --reference, --output or --format": args.show
        and (args.compares or args.reference or args.output or args.format != "text"),
        "--cite and --tokens, --words or --format": args.cite
        and (args.unit or args.format != "text"),
        "--verify and --find, --merge or other output": args.verify
        and (args.find or args.merge or shows or args.output or args.fail_above),
        f"--reference {WITHOUT_ADAPTER!r} and settings of another model": of_reference
        and args.reference == WITHOUT_ADAPTER,
    }
    for what, given in conflicts.items():
        if given:
            raise ValueError(f"{what} cannot be combined.")


def check_requirements(args: argparse.Namespace) -> None:
    """Refuse options that lack what they require."""
    of_reference = args.margin is not None or args.reference_dtype or args.reference_model_kwargs
    given, known = args.columns or [], (*args.axes, *NUMBERS)
    stray = [b for a, b in zip(["", *given], given) if b == "interval" and a not in HAVE_INTERVALS]
    several, num = ("--model", len(args.models)) if args.models[1:] else ("FILE", len(args.files))
    figures = args.find or ()
    paths = [os.path.realpath(path) for path in written_files(args).values()]
    read_once = any(name == "-" or Path(name).is_fifo() for name in args.files or ["-"])
    unmet = {
        f"--html must be a file that ends in .html, got {args.html!r}": args.html
        and Path(args.html).suffix.lower() not in (".html", ".htm"),
        f"--keep-text requires --format {', '.join(TIDY)}, got {args.format}, which has no column for "
        "it": args.keep_text and not args.carries_columns,
        "--margin, --reference-dtype and --reference-model-kwargs require a model to compare with: pass "
        "--reference NAME": of_reference and not args.reference,
        f"--label must have a name of its own for each model, got {args.label}": args.label
        and len(set(args.label)) != len(args.models),
        f"--columns must be among {', '.join(known)}, got {', '.join(given)}; a setting is a column if "
        "it has several values": not set(given) <= set(known),
        f"--columns interval must follow {' or '.join(HAVE_INTERVALS)}, whose interval it is": stray,
        f"--columns must have at most one of {', '.join(AXES)}, got {', '.join(given)}: the others are "
        "rows": sum(name in AXES for name in given) > 1,
        "--output, --html and --checkpoint must be different files": len(set(paths)) < len(paths),
        "FILE must be a file that every process of torchrun can read, got standard input or a pipe; "
        "write the text to a file first": args.distributed
        and read_once
        and not (args.dataset or args.merge),
        f"--find requires --format text or json, got {args.format}": figures
        and args.format not in ("text", "json"),
        f"--find must have one figure per {several}, got {', '.join(figures)} for {num}; a comma "
        "separates figures: write 1,234.5 as 1234.5": len(figures) != num
        and (figures[1:] or (figures and args.models[1:])),
        "--merge requires the files of all parts": args.merge and not args.files,
        "--part cannot be combined with several measurements": args.part
        and (args.compares or args.models[1:]),
        "--part requires --output FILE, a .json, which stores the totals": args.part
        and Path(args.output or "").suffix.lower() != ".json",
    }
    for sentence, is_unmet in unmet.items():
        if is_unmet:
            raise ValueError(f"{sentence}.")


def check_modes(args: argparse.Namespace) -> None:
    """Refuse options that do not go with --find, --merge or --part."""
    default = make_parser().get_default
    # what parsing has derived from other options
    derived = {"model_id": None if args.takes_bundled_model else args.models}
    derived["format"] = None if args.part or args.format == "text" else args.format
    given = [name for name in ALL if derived.get(name, getattr(args, name)) != default(name)]
    for mode in (mode for mode in BESIDE if mode in given):
        if others := [name for name in given if name != mode and name not in BESIDE[mode]]:
            raise ValueError(f"{spelled(mode)} cannot be combined with {spelled(others[0])}.")
