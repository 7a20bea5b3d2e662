"""What is said on stderr, in the language of the command line."""

import re
import sys
import traceback
from pathlib import Path

from ..errors import wording_of
from .options import METRIC_ARGUMENTS, OF_REFERENCE, with_hyphens
from .streams import to_stderr

# What moves the cursor, changes colours or turns the direction of writing: controls but for tabs and
# line ends, and the marks of bidirectional text.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# What the metric calls otherwise than the command line.
OTHER_NAMES = {
    "predictions": "the input",
    "model": "--model",
    "tokenizer": "--tokenizer",
    "model_id": "--model",
    "contexts": "--context-column",
    "num_alternatives": "--num-alternatives",
    "words": "--words",
}
# Entries of the metric's dictionaries that are options of their own.
OTHER_NAMES |= {
    f"reference[{key!r}]": f"--{with_hyphens(name)}" for name, key in OF_REFERENCE.items()
}
OTHER_NAMES |= {"key_tokens['evaluator']": "--evaluator", "reference['tokenizer']": "--tokenizer"}


def program_name() -> str:
    """Tell how the command line was called: score.py in a clone, perplexity-sliding once installed."""
    path = Path(sys.argv[0] if sys.argv else "")
    installed = path.stem == "perplexity-sliding" or path.parent.name == "perplexity_sliding"
    return "perplexity-sliding" if installed else "score.py"


def command_name() -> str:
    """Say what is typed to call it."""
    name = program_name()
    return f"python {name}" if name == "score.py" else name


def say(message: str) -> None:
    """Print one line on stderr; where nobody reads it, the run goes on without."""
    to_stderr(f"{program_name()}: {harmless(one_line(message))}\n")


def show_traceback(error: BaseException) -> None:
    """Print where an error comes from on stderr."""
    to_stderr(harmless("".join(traceback.format_exception(error))))


def harmless(text: str) -> str:
    """Escape what a terminal would obey instead of showing it."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show_warning(message, *_) -> None:
    """Show a warning, in the place of `warnings.showwarning`."""
    say(f"warning: {in_options(message)}")


def describe(error: BaseException) -> str:
    """Say what is wrong, with the names of options instead of those of arguments."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return in_options(error)


def in_options(error: object, **others: object) -> str:
    """Write an error, a warning or a sentence with options in the place of arguments.

    Args:
        others: parts of an error that are left out or said otherwise, see `Wording`.
    """
    return wording_of(error).said(as_option, **others)


def as_option(argument: str, value: str | None) -> str | None:
    """Name the option of an argument, with its value as the command line takes it."""
    name = OTHER_NAMES.get(argument)
    if name is None and argument in METRIC_ARGUMENTS:
        name = f"--{with_hyphens(argument)}"
    is_flag = METRIC_ARGUMENTS.get(argument, {}).get("action") == "store_true"
    if name is None or value in (None, "True") or is_flag:
        return name
    bare = value.strip("'")
    return f"{name} {bare.lower() if bare.strip() else value}"


def one_line(text: str) -> str:
    return " ".join(text.split())


def named(names: list[str]) -> str:
    """Name three and count the others."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
