"""Table of the command line's options, and checks of their combinations.

To add an option, add a row to one of the tables below.  Rows of MEASURE, MODEL, RUN and TOKENS that
are named like an argument of the metric are passed to `metric.compute`.  New keys of its result
appear in JSON and in tidy rows (rows.py) automatically; add their printed column in comparing.py.
This module must not import slow modules, so that mistakes are reported at once.
"""

import argparse
import difflib
import glob
import os
import re
import sys
import textwrap
from pathlib import Path

from ..about import VERSION
from ..argument_table import ARGUMENTS
from ..protocols import PROTOCOLS
from . import values, verifying
from .messages import to_stdout

PACKAGE = Path(__file__).parent.parent.resolve()
# In a clone, the bundled model is next to the package.
BUNDLED_MODEL = next(
    (
        folder / "demo_model"
        for folder in (PACKAGE, PACKAGE.parent)
        if (folder / "demo_model").exists()
    ),
    PACKAGE / "demo_model",
)
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


def option(help: str, **settings) -> dict:
    """Return the keyword arguments of `add_argument` for an option."""
    return {"help": help} | settings


def of_metric(*names: str) -> dict[str, dict]:
    """Return the options of the metric's arguments, under the same names."""
    found = {}
    for name in names:
        argument = ARGUMENTS[name]
        found[name] = option(argument.option, **values.settings_of(argument.kind))
        if argument.metavar is not None:
            found[name]["metavar"] = argument.metavar
    return found


def was_started_by_torchrun() -> bool:
    """Return whether torchrun started this process directly.

    A program that a torchrun process starts inherits its environment, but no other process would
    join it.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    ancestor, rank = os.getppid(), f"RANK={os.environ.get('RANK')}".encode()
    try:
        while rank in Path(f"/proc/{ancestor}/environ").read_bytes().split(b"\0"):
            name, _, state = Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")
            if name.partition("(")[2].startswith(("python", "pt_main")):
                return False  # a process of that torchrun, or one of its programs
            ancestor = int(state.split()[1])  # a shell between them
    except OSError:  # not Linux
        pass
    return True


MEASURE = of_metric(
    *(
        "protocol",
        "max_length",
        "stride",
        "add_start_token",
        "boundary",
        "context_lengths",
        "carry",
    ),
)
MODEL = of_metric(*("model_id", "device", "dtype", "tokenizer", "model_kwargs"))
MODEL["model_id"]["action"] = "append"
REFERENCE = {
    **of_metric("reference", "margin"),
    "reference_dtype": option("default: --dtype", metavar="NAME"),
    "reference_model_kwargs": option(
        "for the reference's from_pretrained", type=values.json_object, metavar="JSON"
    ),
}
RUN = of_metric("batch_size", "checkpoint", "distributed")
RUN["distributed"]["default"] = was_started_by_torchrun()
TOKENS = {
    "num_alternatives": option(
        "add ranks and the N most likely tokens; implies --tokens",
        type=values.whole_number(0),
        metavar="N",
    )
}
JOINS = {
    "separator": option(
        r"join all texts with this string; \n is a newline", type=values.unescaped, metavar="TEXT"
    ),
    "context_separator": option(
        "between a context and its text, such as ' '", type=values.unescaped, metavar="TEXT"
    ),
}
# Options of a reference, with their keys in the metric's `reference` dictionary.
OF_REFERENCE = {
    "reference": "model_id",
    "reference_dtype": "dtype",
    "reference_model_kwargs": "model_kwargs",
}
# Selects an adapter's base model as reference; `arguments` also defines it, but imports numpy.
WITHOUT_ADAPTER = "without adapter"
# Settings in which measurements can differ, and the numbers that a table can show.
AXES = ("model", "text", "protocol", "window", "stride")
NUMBERS = (
    "perplexity", "bits_per_byte", "interval", "change", "pvalue", "word_perplexity", "tokens",
)  # fmt: skip
HAVE_INTERVALS = ("perplexity", "bits_per_byte")
# The value for Python's None, if it differs from an omitted option.
NONE = "none"
# Separators may be empty.
MAY_BE_EMPTY = {"separator", "context_separator"}
# Options that accept several values separated by commas.
COMPARED = ("protocol", "max_length", "stride")
WORDS = of_metric("word_correction")
WORDS["word_correction"]["choices"].append(NONE)
METRIC_ARGUMENTS = {
    name: settings
    for name, settings in (MEASURE | MODEL | REFERENCE | RUN | WORDS).items()
    if name != "tokenizer"  # a live object to the metric
}
PARTS = {
    "part": option(
        "score every N-th text; write totals to -o FILE", type=values.part, metavar="K/N"
    ),
    "merge": option("show the result of a run from the files of all parts", action="store_true"),
}
INPUT = {
    "dataset": option(
        "read a dataset of the Hub, a folder or a file", metavar="NAME:CONFIG:SPLIT:COLUMN"
    ),
    "text_column": option("column of the texts; default: text", metavar="NAME"),
    "context_column": option("column of contexts, read before the texts", metavar="NAME"),
    "words_column": option("words, regions between |, or [first, end] pairs", metavar="NAME"),
    "id_column": option("column that names the texts in the output", metavar="NAME"),
    "encoding": option(
        "of text files and CSV; default: UTF-8", type=values.encoding, metavar="NAME"
    ),
    "detokenize": option("convert texts in WikiText's form to prose", choices=["wikitext"]),
}
OUTPUT = {
    "format": option(", ".join(FORMATS), choices=FORMATS, metavar="NAME"),
    "json": option("same as --format json", action="store_true"),
    "output": option(
        "write to FILE, in the format of its ending, .parquet too", metavar="FILE"
    ),
    "tokens": option("write a row for every token, with its score", action="store_true"),
    "words": option("write a row for every word, with its surprisal", action="store_true"),
    **WORDS,
    **TOKENS,
    "keep_text": option("add the text and its context to every row", action="store_true"),
    "columns": option(
        f"columns of a table: one of {', '.join(AXES)}; and {', '.join(NUMBERS)}",
        type=values.names, metavar="NAME,...",
    ),
    "label": option("names of the models in the output", type=values.names, metavar="NAME,..."),
    "show": option("print the text, coloured by surprisal", action="store_true"),
    "html": option("write a report with coloured text for the browser", metavar="FILE"),
    "plot": option("draw the comparison: .png, .svg, .pdf", metavar="FILE"),
    "fail_above": option(
        "exit code 1 if the perplexity is above X", type=values.positive, metavar="X"
    ),
    "cite": option("print the sentence for a paper, and BibTeX", action="store_true"),
    "find": option(
        "find settings that give a published figure; several: one per FILE or --model",
        type=values.figures, metavar="X,...",
    ),
    "max_tokens": option(
        "tokens that --find may read; default: 40 per token, at least 200,000",
        type=values.size(1000), metavar="N",
    ),
    "verify": option(
        "repeat the measurement that --format json wrote to FILE; exit code 1 if it differs",
        metavar="FILE",
    ),
    "verbose": option("print the long signature", action="store_true"),
    "quiet": option("hide progress", action="store_true"),
    "debug": option("show the traceback of an error", action="store_true"),
}  # fmt: skip
GROUPS = {
    "texts": INPUT,
    "measure": MEASURE | JOINS,
    "models": MODEL,
    "reference": REFERENCE,
    "run": RUN | PARTS,
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
# Options that affect the numbers, stored with them for --verify.
STORED = (
    *(name for name in INPUT | MEASURE | JOINS | MODEL | REFERENCE | TOKENS | WORDS
      if name not in ("device", "id_column")),
    *("tokens", "words", "columns", "label"),
)  # fmt: skip
# Options whose output is not a sum over texts, so that a part cannot store it.
NOT_IN_PARTS = (
    "tokens", "words", "show", "html", "plot", "cite", "verify", "fail_above",
    "verbose", "columns", "label", "separator", "reference", "context_lengths",
)  # fmt: skip
# Options of --merge, which only change the output.
IN_MERGING = (
    *("files", "merge", "format", "json", "output", "fail_above", "verbose", "quiet"),
    *("debug", "distributed"),
)
# Options of --find; it tries all other settings itself.
IN_FINDING = (
    *("files", "find", "max_tokens", "model_id", "dtype", "device", "batch_size"),
    *("model_kwargs", "format", "json", "quiet", "debug", "distributed"),
    *("dataset", "text_column", "encoding"),
)


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


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help in 80 columns, one option per line, under its first long name."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=80)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        short = [name for name in action.option_strings if not name.startswith("--")]
        long = next(name for name in action.option_strings if name.startswith("--"))
        value = self._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
        return f"{', '.join([*short, long])} {value}".rstrip()


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that all errors look alike."""

    def error(self, message: str):
        raise ValueError(f"{message.removeprefix('argument ')}. See {self.prog} --help.")

    def _print_message(self, message: str, file=None):
        to_stdout([message])  # of --version


class Store(argparse._StoreAction):
    """Store a value, and refuse a repeated list; argparse would drop the first one."""

    def __call__(self, parser, namespace, values, option_string=None):
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
        formatter_class=HelpFormatter,
    )
    parser.register("action", None, Store)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="text, CSV, TSV, JSON lines or Parquet, optionally gzipped; "
        "a folder or glob of these; standard input if - or omitted",
    )
    version = f"perplexity-sliding {VERSION}"
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
    True if the output can have the other columns of a table.  `detokenizer` is that of a stored result
    of prose.

    Raises:
        ValueError: a bad command line.
    """
    parser = make_parser(program)
    own = argv[: argv.index("--")] if "--" in argv else argv  # after it, there are only files
    words = [re.sub("^--[^=]+", lambda name: with_hyphens(name[0]), word) for word in own]
    args, unknown = parser.parse_known_intermixed_args(words)  # files between options
    args.files += argv[len(own) + 1 :]
    if unknown:
        known = ["--help", "--version", "--model", *map(spelled, ALL)]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f" (did you mean {close[0]}?)" if close and unknown[0].startswith("-") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    check_not_empty(args)
    args.argv, args.detokenizer = argv, None
    args.stored = verifying.read_result(args.verify) if args.verify else None
    if args.stored:
        verifying.take_options(args.stored, args, STORED)
    args.takes_bundled_model = args.model_id is None
    names = args.model_id or [str(BUNDLED_MODEL)]
    args.models = [model for name in names for model in matching_models(name)]
    args.model_id = args.models[0]
    args.tokens = args.tokens or bool(args.num_alternatives)
    args.words = args.words or bool(args.words_column) or args.word_correction is not None
    args.unit = "token" if args.tokens else "word" if args.words else None
    check_protocols(args.protocol or [])
    args.compares = args.protocol == ["all"]
    for name in COMPARED:
        given = getattr(args, name)
        args.compares |= len(given or []) > 1
        if given is not None and len(given) == 1:
            setattr(args, name, given[0])
    args.takes_each_file = "text" in (args.columns or ())
    args.is_grid = args.takes_each_file or (args.compares and len(args.models) > 1)
    varies = {
        "model": len(args.models) > 1,
        "text": args.takes_each_file,
        "protocol": isinstance(args.protocol, list) or args.protocol == "all",
        "window": isinstance(args.max_length, list),
        "stride": isinstance(args.stride, list),
    }
    args.axes = [axis for axis in AXES if varies[axis]]
    args.format = resolve_format(args)
    args.carries_columns = args.format in TIDY
    if args.find or args.max_tokens is not None:
        check_finding(args)
    if args.merge or args.part:
        check_parts(args)
    check_together(args)
    check_columns(args)
    check_files(args)
    args.hides_progress = args.quiet or sys.stderr is None or os.environ.get("RANK", "0") != "0"
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
    if args.json and args.format not in (None, "json"):
        raise ValueError("--json and --format cannot be combined.")
    if args.part or args.verify:
        if args.format or args.json:
            option = "--part" if args.part else "--verify"
            raise ValueError(f"{option} cannot be combined with --format.")
        return "json"
    if args.output is None or args.format or args.json:
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
    parser = make_parser()
    # False is a choice, but for flags; 0 always is.
    flags = {name for name in kept if parser.get_default(name) is False}
    return {
        name: value
        for name, value in kept.items()
        if value is not None and value != {} and (value is not False or name not in flags)
    }


def written_files(args: argparse.Namespace) -> dict[str, str]:
    """Return the paths of output files, by option."""
    names = ("output", "html", "plot", "checkpoint")
    files = {spelled(name): getattr(args, name) for name in names}
    return {option: path for option, path in files.items() if path is not None}


# --- combinations ---------------------------------------------------------------------------------


def check_not_empty(args: argparse.Namespace) -> None:
    """Refuse "", the value of a shell variable that is not set."""
    for name, value in vars(args).items():
        if "" in as_list(value) and name not in MAY_BE_EMPTY:
            option = {"files": "FILE", "model_id": "--model"}.get(name, spelled(name))
            raise ValueError(
                f"{option} must not be empty, got ''. Leave it out, or set its shell variable."
            )


def check_protocols(given: list[str]) -> None:
    """Refuse unknown names before slow imports, and suggest the closest one."""
    known = list(PROTOCOLS)
    for name in given:
        if name != "all" and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Use {', '.join(known)}, or all."
            raise ValueError(f"--protocol={name} is not known. {hint}")
    if "all" in given and len(given) > 1:
        raise ValueError("--protocol=all cannot be combined with other protocols.")


def check_together(args: argparse.Namespace) -> None:
    """Refuse options that exclude each other or require another, as far as the metric does not."""
    comparison = "several protocols, windows or strides"
    shows = args.show or args.html
    of_models = args.models[1:]
    conflicts = {
        "FILE and --dataset": args.files and args.dataset,
        "--dataset and --text-column": args.dataset and args.text_column,
        "--words and --tokens": args.words and args.tokens,
        f"--tokens or --words and {comparison}": args.unit and args.compares,
        "--tokens or --words and several models": args.unit and of_models,
        "--words and --reference": args.words and args.reference,
        "--words-column and --detokenize": args.words_column and args.detokenize,
        "--separator and --words or --context-column": args.separator is not None
        and (args.words or args.context_column),
        f"--reference and {comparison}": args.reference and args.compares,
        "--columns and --tokens or --words": args.columns and args.unit,
        "--columns and --reference": args.columns and args.reference,
        "--columns text and --dataset": args.takes_each_file and args.dataset,
        "--columns text and --show, --html or --context-lengths": args.takes_each_file
        and (shows or args.context_lengths),
        "--context-lengths and several models": args.context_lengths and of_models,
        f"--context-lengths and {comparison}": args.context_lengths and args.compares,
        "--show or --html and several models": shows and of_models,
        f"--show and {comparison}, --reference, --output or --format": args.show
        and (args.compares or args.reference or args.output or args.format != "text"),
        "--cite and --tokens or --words": args.cite and args.unit,
        "--cite and --format": args.cite and args.format != "text",
        "--verify and other output": args.verify
        and (shows or args.output or args.plot or args.json or args.fail_above is not None),
        "--verify and --find or --merge": args.verify and (args.find or args.merge),
    }
    for what, given in conflicts.items():
        if given:
            raise ValueError(f"{what} cannot be combined.")
    draws = args.axes or args.reference or args.context_lengths
    if args.plot and not draws:
        raise ValueError(
            f"--plot requires {comparison}, several models, --context-lengths or --reference."
        )
    if args.html and Path(args.html).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--html must be a file that ends in .html, got {args.html!r}.")
    if args.keep_text and not args.carries_columns:
        raise ValueError(
            f"--keep-text requires --format {', '.join(TIDY)}, got {args.format}, which has no "
            "column for it."
        )
    settings = [name for name in REFERENCE if getattr(args, name) is not None]
    if settings and not args.reference:
        raise ValueError(
            f"{spelled(settings[0])} requires a model to compare with: pass --reference NAME."
        )
    of_model = [name for name in settings if name not in ("reference", "margin")]
    if of_model and args.reference == WITHOUT_ADAPTER:
        raise ValueError(
            f"{spelled(of_model[0])} cannot be combined with --reference {WITHOUT_ADAPTER!r}, which is "
            "the model itself."
        )
    if args.boundary and not (args.context_column or args.text_column or args.dataset):
        raise ValueError(
            "--boundary must be left out without --context-column, or the --text-column of chats."
        )
    if args.context_separator is not None and not args.context_column:
        raise ValueError("--context-separator must be left out without --context-column.")


def check_columns(args: argparse.Namespace) -> None:
    """Refuse columns that the measurements do not have, and labels that do not match the models."""
    labels = args.label or []
    if labels and len(labels) != len(args.models):
        raise ValueError(
            f"--label must have one name per model, got {len(labels)} for {len(args.models)}."
        )
    if twice := next((name for name in labels if labels.count(name) > 1), None):
        raise ValueError(f"--label must have a different name for each model, got {twice!r} twice.")
    given = args.columns or []
    for number, name in enumerate(given):
        if name not in (*AXES, *NUMBERS):
            known = ", ".join((*AXES, *NUMBERS))
            raise ValueError(f"--columns must be among {known}, got {name!r}.")
        if name in AXES and name not in args.axes:
            raise ValueError(f"--columns {name} requires several {name}s.")
        if name == "interval" and (not number or given[number - 1] not in HAVE_INTERVALS):
            raise ValueError(
                f"--columns interval must follow {' or '.join(HAVE_INTERVALS)}, whose interval it is, "
                f"got {','.join(given)}."
            )
    if sum(name in AXES for name in given) > 1:
        raise ValueError(
            f"--columns must have at most one of {', '.join(AXES)}, got {', '.join(given)}: the "
            "others are rows."
        )
    if args.takes_each_file and not args.files:
        raise ValueError("--columns text requires FILEs, one per column.")
    if args.format in DATA_FORMATS and given not in ([], ["text"]):
        raise ValueError(
            f"--columns requires --format text, markdown or latex, got {args.format}, which has "
            "all columns."
        )


def check_files(args: argparse.Namespace) -> None:
    """Refuse two outputs with the same file, and inputs that only one process of torchrun can read."""
    seen: dict[str, str] = {}
    for option, path in written_files(args).items():
        first = seen.setdefault(os.path.realpath(path), option)
        if first is not option:
            raise ValueError(
                f"{first} and {option} must be different files, got {path!r} for both."
            )
    if not args.distributed or args.dataset or args.merge:
        return
    for name in args.files or ["-"]:
        if name == "-" or Path(name).is_fifo():
            shown = "standard input" if name == "-" else f"the pipe {name}"
            raise ValueError(
                f"FILE must be a file that every process of torchrun can read, got {shown}. Write "
                "the text to a file first."
            )


def given_beside(args: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    """List the options on the command line that are not among some."""
    parser = make_parser()
    # what parsing has derived from other options
    resolved = {"model_id": None if args.takes_bundled_model else args.models}
    resolved["format"] = None if args.format == "text" else args.format
    found = {name: resolved.get(name, getattr(args, name)) for name in ALL if name not in names}
    return [name for name, value in found.items() if value != parser.get_default(name)]


def check_finding(args: argparse.Namespace) -> None:
    """Refuse options that --find tries itself or has no output for."""
    if not args.find:
        raise ValueError("--max-tokens requires --find.")
    if given := given_beside(args, IN_FINDING):
        raise ValueError(f"--find cannot be combined with {spelled(given[0])}.")
    if args.format not in ("text", "json"):
        raise ValueError(f"--find requires --format text or json, got {args.format}.")
    several, num = ("--model", len(args.models)) if args.models[1:] else ("FILE", len(args.files))
    if len(args.find) != num and (len(args.find) > 1 or args.models[1:]):
        raise ValueError(
            f"--find must have one figure per {several}, got {', '.join(args.find)} for {num}. A comma "
            "separates figures: write 1,234.5 as 1234.5."
        )


def check_parts(args: argparse.Namespace) -> None:
    """Refuse options that --part cannot store or --merge cannot change."""
    if args.merge:
        if args.cite:
            raise ValueError(
                "--merge cannot be combined with --cite: it names the checksum of every file and the "
                "model's location, which parts do not store. Cite the signature instead."
            )
        if given := given_beside(args, IN_MERGING):
            raise ValueError(
                f"--merge cannot be combined with {spelled(given[0])}: the parts are scored already."
            )
        if not args.files:
            raise ValueError("--merge requires the files of all parts.")
        return
    given = [name for name in NOT_IN_PARTS if getattr(args, name) not in (None, False)]
    if given or args.compares or args.models[1:]:
        what = spelled(given[0]) if given else "several measurements"
        raise ValueError(f"--part cannot be combined with {what}: a part stores only totals.")
    if args.output is None:
        raise ValueError("--part requires --output FILE, which stores the totals.")
    if ENDINGS.get(Path(args.output).suffix.lower(), "json") != "json":
        raise ValueError(f"--part stores totals as JSON, got --output {args.output!r}. Use .json.")
