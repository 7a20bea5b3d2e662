"""An error is an object: the argument at fault, what it must be, what was given, and what to do.

Sentences are marked: arguments stand between backticks, `` `stride` ``, and so do settings,
`` `protocol='sliding'` ``.  Python, the command line and the page each have their own words for these::

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

E = TypeVar("E", bound=Exception)
# Words for an argument, or for a setting where there is a value; None to leave it as Python has it.
Naming = Callable[[str, str | None], str | None]


def in_python(name: str, value: str | None) -> str:
    """Name an argument, or a setting, as Python does."""
    return f"`{name}`" if value is None else f"{name}={value}"


def in_words(marked: str, naming: Naming) -> str:
    """Write a marked sentence with a door's words for arguments and settings."""
    pieces = marked.split("`")
    for place in range(1, len(pieces) - 1, 2):
        name, _, value = pieces[place].partition("=")
        is_setting = bool(value) and name.isidentifier()
        named = (name, value) if is_setting else (pieces[place], None)
        pieces[place] = naming(*named) or in_python(*named)
    if len(pieces) % 2 == 0:  # a backtick without its fellow
        pieces[-2:] = ["`".join(pieces[-2:])]
    return "".join(pieces)


class Wording(str):
    """What is wrong or worth a warning, in the words of Python; doors write it in theirs.

    Attributes:
        sentence: what is the matter, marked; where it is about an argument, without its stop.
        advice: what to do, marked; whole sentences.
        argument: the one that it is about, if any.
        got: what was given in its place, as it is shown; None where that goes without saying.
        positions: of the texts that were given so; empty where no text is.
        why: why it is not taken, marked.
    """

    sentence: str
    advice: str
    argument: str | None
    got: str | None
    positions: Sequence[int]
    why: str

    def __new__(cls, sentence: str, advice: str = "", **parts: Any) -> "Wording":
        parts = _PARTS | parts | {"sentence": sentence, "advice": advice}
        wording = super().__new__(cls, _write(in_python, **parts))
        vars(wording).update(parts)
        return wording

    def __reduce__(self) -> tuple:
        return _restore_wording, (vars(self),)

    def said(self, naming: Naming, **others: Any) -> str:
        """Write it with a door's words.

        Args:
            others: parts that the door has in the place of these.
        """
        return _write(naming, **(vars(self) | others))


_PARTS: dict[str, Any] = {"argument": None, "got": None, "positions": (), "why": ""}


def _write(
    naming: Naming,
    sentence: str,
    advice: str,
    argument: str | None,
    got: str | None,
    positions: Sequence[int],
    why: str,
) -> str:
    written = in_words(sentence, naming)
    if got is not None:
        written += f", got {got}" + (f" at {name_positions(positions)}" if len(positions) else "")
    if why:
        written += f": {in_words(why, naming)}"
    if argument is not None:
        written += "."
    return f"{written} {in_words(advice, naming)}" if advice else written


def _restore_wording(parts: dict) -> Wording:
    return Wording(**parts)


class _OfArgument(Exception):
    """An argument is not what it may be.

    Attributes:
        wording: what is wrong, with its parts.
    """

    def __init__(self, argument: str, must: str, advice: str = "", **parts: object) -> None:
        """Say what an argument must be; see `Wording` for the parts."""
        super().__init__(Wording(f"`{argument}` must {must}", advice, argument=argument, **parts))

    @property
    def wording(self) -> Wording:
        return self.args[0]

    @property
    def positions(self) -> list[int]:
        """The texts at fault, where some are."""
        return list(self.wording.positions)

    def with_advice(self, more: str) -> "_OfArgument":
        """Return the error with further advice."""
        parts = vars(self.wording)
        advice = f"{parts['advice']} {more}".strip()
        return _restore(type(self), Wording(**(parts | {"advice": advice})))

    def at(self, positions: Sequence[int]) -> "_OfArgument":
        """Return the error with the positions of the texts that it is about."""
        return _restore(type(self), Wording(**(vars(self.wording) | {"positions": positions})))

    def __reduce__(self) -> tuple:
        return _restore, (type(self), self.wording)


class ArgumentError(_OfArgument, ValueError):
    """An argument has a value that it must not have."""


class ArgumentTypeError(_OfArgument, TypeError):
    """An argument is of a type that it must not be of."""


class TextsError(ArgumentError):
    """Some of the texts cannot be scored; `positions` says which."""


def _restore(kind: type[E], wording: Wording) -> E:
    error = kind.__new__(kind, wording)
    error.args = (wording,)
    return error


def wording_of(error: object) -> Wording:
    """Return what an error or a warning says, with its parts where it has such."""
    first = error.args[0] if isinstance(error, BaseException) and error.args else error
    return first if isinstance(first, Wording) else Wording(str(error) or type(error).__name__)


def name_positions(numbers: Sequence[int]) -> str:
    """Name positions of texts in a message: the first ten, and how many more there are."""
    named = ", ".join(str(number) for number in numbers[:NAMED_TEXTS])
    more = len(numbers) - NAMED_TEXTS
    places = "position" if len(numbers) == 1 else "positions"
    return f"{places} {named}" + (f" and {more} more" if more > 0 else "")
