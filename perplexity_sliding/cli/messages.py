"""Messages on stderr, in the terms of the command line."""

import re
import sys
import traceback
from pathlib import Path

from ..errors import wording_of
from .options import METRIC_ARGUMENTS, OF_REFERENCE, with_hyphens
from .streams import to_stderr

# Controls that move the cursor, change colours or reverse the direction of writing: all but tabs and
# newlines, and the marks of bidirectional text.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# Arguments of the metric with other names on the command line.
OTHER_NAMES = {
    "predictions": "the input",
    "model": "--model",
    "tokenizer": "--tokenizer",
    "model_id": "--model",
    "contexts": "--context-column",
    "num_alternatives": "--num-alternatives",
    "words": "--words",
}
# Keys of the metric's dictionaries that are separate options.
OTHER_NAMES |= {
    f"reference[{key!r}]": f"--{with_hyphens(name)}" for name, key in OF_REFERENCE.items()
}
OTHER_NAMES |= {"key_tokens['evaluator']": "--evaluator", "reference['tokenizer']": "--tokenizer"}


def program_name() -> str:
    """Return the name of the program: score.py in a clone, perplexity-sliding once installed."""
    path = Path(sys.argv[0] if sys.argv else "")
    installed = path.stem == "perplexity-sliding" or path.parent.name == "perplexity_sliding"
    return "perplexity-sliding" if installed else "score.py"


def command_name() -> str:
    """Return the command that calls the program."""
    name = program_name()
    return f"python {name}" if name == "score.py" else name


def say(message: str) -> None:
    """Print one line on stderr, if it is open."""
    to_stderr(f"{program_name()}: {harmless(one_line(message))}\n")


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error on stderr."""
    to_stderr(harmless("".join(traceback.format_exception(error))))


def harmless(text: str) -> str:
    """Escape control characters that a terminal would execute."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show_warning(message, *_) -> None:
    """Show a warning; replaces `warnings.showwarning`."""
    say(f"warning: {in_options(message)}")


def describe(error: BaseException) -> str:
    """Return the message of an error, with names of options instead of arguments."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return in_options(error)


def in_options(error: object, **others: object) -> str:
    """Return the message of an error or warning, with options instead of arguments.

    Args:
        others: parts of the message to replace, see `Wording`.
    """
    return wording_of(error).said(as_option, **others)


def as_option(argument: str, value: str | None) -> str | None:
    """Return the option of an argument, with its value in the command line's syntax."""
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
    """List three names and count the others."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
