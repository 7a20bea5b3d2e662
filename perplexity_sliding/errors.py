"""Structured errors: the invalid argument, the requirement, the value given, and advice.

Messages mark arguments, `` `stride` ``, and settings, `` `protocol='sliding'` ``, with backticks.
Python, the command line and the page replace these by their own terms::

    >>> error = ArgumentError("stride", "be at most 16", got="20", advice="Pass `max_length=32`.")
    >>> print(error)
    `stride` must be at most 16, got 20. Pass max_length=32.
    >>> print(error.wording.said(lambda name, value: f"--{name}" if value is None else f"--{name} {value}"))
    --stride must be at most 16, got 20. Pass --max_length 32.
"""

from collections.abc import Callable, Sequence
from typing import Any

# Errors list this many invalid texts and count the rest.
NAMED_TEXTS = 10

# Returns the term for an argument, or for a setting if there is a value; None for Python's term.
Naming = Callable[[str, str | None], str | None]


class Wording(str):
    """The message of an error or a warning in Python's terms, with its parts.

    Attributes:
        sentence: what is wrong, marked; without its full stop if there is an argument.
        advice: what to do, in complete sentences, marked.
        argument: the invalid argument, if any.
        got: the value given, as displayed; None to omit it.
        positions: positions of the invalid texts, if any.
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
        parts = dict(zip(cls.__annotations__, (sentence, advice, argument, got, positions, why)))
        wording = super().__new__(cls, write(lambda name, value: None, **parts))
        vars(wording).update(parts)
        return wording

    def __getnewargs__(self) -> tuple:
        return tuple(vars(self).values())  # for pickle

    def said(self, naming: Naming, **others: Any) -> str:
        """Return the message in a front end's terms, with other parts in the place of its own."""
        return write(naming, **(vars(self) | others))


def write(naming: Naming, **parts: Any) -> str:
    """Write the parts of a `Wording` in a front end's terms."""
    written = in_terms(parts["sentence"], naming)
    if parts["got"] is not None:
        written += f", got {parts['got']}"
        if len(parts["positions"]):
            written += f" at {name_positions(parts['positions'])}"
    if parts["why"]:
        written += f": {in_terms(parts['why'], naming)}"
    if parts["argument"] is not None:
        written += "."
    return f"{written} {in_terms(parts['advice'], naming)}" if parts["advice"] else written


def in_terms(marked: str, naming: Naming) -> str:
    """Replace the marked terms of a message by those of a front end."""
    pieces = marked.split("`")
    for place in range(1, len(pieces) - 1, 2):
        name, _, value = pieces[place].partition("=")
        if value and name.isidentifier():
            pieces[place] = naming(name, value) or pieces[place]
        else:
            pieces[place] = naming(pieces[place], None) or f"`{pieces[place]}`"
    if len(pieces) % 2 == 0:  # an unpaired backtick
        pieces[-2:] = ["`".join(pieces[-2:])]
    return "".join(pieces)


def name_positions(numbers: Sequence[int]) -> str:
    """List positions of texts for a message: the first ten, and the number of others."""
    named = ", ".join(str(number) for number in numbers[:NAMED_TEXTS])
    more = len(numbers) - NAMED_TEXTS
    places = "position" if len(numbers) == 1 else "positions"
    return f"{places} {named}" + (f" and {more} more" if more > 0 else "")


class _OfArgument(Exception):
    """An error about an argument, which must be as said; or with a complete wording, when unpickled."""

    def __init__(self, argument: str, must: str = "", advice: str = "", **parts: Any) -> None:
        if not isinstance(argument, Wording):
            argument = Wording(f"`{argument}` must {must}", advice, argument, **parts)
        super().__init__(argument)

    @property
    def wording(self) -> Wording:
        return self.args[0]

    @property
    def positions(self) -> list[int]:
        """Positions of the invalid texts, if any."""
        return list(self.wording.positions)

    def at(self, positions: Sequence[int]) -> Any:
        """Return the error with the positions of invalid texts."""
        return type(self)(Wording(**(vars(self.wording) | {"positions": positions})))


class ArgumentError(_OfArgument, ValueError):
    """An argument has a value that is not allowed."""


class ArgumentTypeError(_OfArgument, TypeError):
    """An argument has a type that is not allowed."""


class TextsError(ArgumentError):
    """Some of the texts cannot be scored: those at `positions`."""


def wording_of(error: object) -> Wording:
    """Return the message of an error or a warning, with its parts if it has any."""
    first = error.args[0] if isinstance(error, BaseException) and error.args else error
    return first if isinstance(first, Wording) else Wording(str(error) or type(error).__name__)
