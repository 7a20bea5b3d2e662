"""Errors with parts: the argument at fault, what it must be, what was given, and what to do.

Sentences are marked: arguments stand between backticks, `` `stride` ``, and so do settings,
`` `protocol='sliding'` ``.  Python, the command line and the page each have their own terms for these::

    >>> error = ArgumentError("stride", "be at most 16", got="20", advice="Pass `max_length=32`.")
    >>> print(error)
    `stride` must be at most 16, got 20. Pass max_length=32.
    >>> print(error.wording.said(lambda name, value: f"--{name}" if value is None else f"--{name} {value}"))
    --stride must be at most 16, got 20. Pass --max_length 32.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

# Errors name this many offending texts and count the rest.
NAMED_TEXTS = 10

E = TypeVar("E", bound="_OfArgument")

# The term for an argument, or for a setting where there is a value; None for Python's.
Naming = Callable[[str, str | None], str | None]


def in_python(name: str, value: str | None) -> str:
    """Name an argument, or a setting, as Python does."""
    return f"`{name}`" if value is None else f"{name}={value}"


def in_terms(marked: str, naming: Naming) -> str:
    """Write a marked sentence in a front end's terms."""
    pieces = marked.split("`")
    for place in range(1, len(pieces) - 1, 2):
        name, _, value = pieces[place].partition("=")
        is_setting = bool(value) and name.isidentifier()
        named = (name, value) if is_setting else (pieces[place], None)
        pieces[place] = naming(*named) or in_python(*named)
    if len(pieces) % 2 == 0:  # a backtick without a second one
        pieces[-2:] = ["`".join(pieces[-2:])]
    return "".join(pieces)


class Wording(str):
    """The message of an error or a warning in Python's terms, with the parts that it is made of.

    Attributes:
        sentence: what is wrong, marked; where it is about an argument, without its full stop.
        advice: what to do, marked; whole sentences.
        argument: the one that it is about, if any.
        got: the value given, as it is shown; None where it goes without saying.
        positions: of the texts at fault; empty where it is about no text.
        why: the reason, marked.
    """

    sentence: str
    advice: str
    argument: str | None
    got: str | None
    positions: Sequence[int]
    why: str

    def __new__(
        cls,
        sentence: str,
        advice: str = "",
        argument: str | None = None,
        got: str | None = None,
        positions: Sequence[int] = (),
        why: str = "",
    ) -> "Wording":
        parts = sentence, advice, argument, got, positions, why
        wording = super().__new__(cls, _write(in_python, *parts))
        vars(wording).update(zip(cls.__annotations__, parts))
        return wording

    def __getnewargs__(self) -> tuple:
        return tuple(vars(self).values())  # for pickle

    def said(self, naming: Naming, **others: Any) -> str:
        """Write it in a front end's terms.

        Args:
            others: parts that the front end puts in the place of these.
        """
        return _write(naming, **(vars(self) | others))


def _write(
    naming: Naming,
    sentence: str,
    advice: str,
    argument: str | None,
    got: str | None,
    positions: Sequence[int],
    why: str,
) -> str:
    written = in_terms(sentence, naming)
    if got is not None:
        written += f", got {got}" + (f" at {name_positions(positions)}" if len(positions) else "")
    if why:
        written += f": {in_terms(why, naming)}"
    if argument is not None:
        written += "."
    return f"{written} {in_terms(advice, naming)}" if advice else written


class _OfArgument(Exception):
    """An error about an argument.

    Args:
        argument: its name; or the whole wording, as pickle passes it.
        must: what it must be.
        advice: see `Wording`.
        parts: further ones of the wording.
    """

    def __init__(self, argument: str, must: str = "", advice: str = "", **parts: Any) -> None:
        if not isinstance(argument, Wording):
            argument = Wording(f"`{argument}` must {must}", advice, argument, **parts)
        super().__init__(argument)

    @property
    def wording(self) -> Wording:
        """The message with its parts."""
        return self.args[0]

    @property
    def positions(self) -> list[int]:
        """The texts at fault, where some are."""
        return list(self.wording.positions)

    def at(self: E, positions: Sequence[int]) -> E:
        """Return the error with the positions of the texts at fault."""
        return type(self)(Wording(**(vars(self.wording) | {"positions": positions})))


class ArgumentError(_OfArgument, ValueError):
    """An argument has a value that is not allowed."""


class ArgumentTypeError(_OfArgument, TypeError):
    """An argument has a type that is not allowed."""


class TextsError(ArgumentError):
    """Some of the texts cannot be scored: those at `positions`."""


def wording_of(error: object) -> Wording:
    """Return the message of an error or a warning, with its parts where it has such."""
    first = error.args[0] if isinstance(error, BaseException) and error.args else error
    return first if isinstance(first, Wording) else Wording(str(error) or type(error).__name__)


def name_positions(numbers: Sequence[int]) -> str:
    """Name positions of texts in a message: the first ten, and how many more there are."""
    named = ", ".join(str(number) for number in numbers[:NAMED_TEXTS])
    more = len(numbers) - NAMED_TEXTS
    places = "position" if len(numbers) == 1 else "positions"
    return f"{places} {named}" + (f" and {more} more" if more > 0 else "")
