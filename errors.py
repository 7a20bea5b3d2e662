"""What an error says."""

from collections.abc import Sequence

# Errors name this many offending texts and count the rest.
NAMED_TEXTS = 10


class TextsError(ValueError):
    """Some of the texts cannot be scored.

    Attributes:
        positions: which of them.
    """

    def __init__(self, message: str, positions: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.positions = list(positions)


def name_positions(numbers: Sequence[int]) -> str:
    """Name positions of texts in a message: the first ten, and how many more there are."""
    named = ", ".join(str(number) for number in numbers[:NAMED_TEXTS])
    more = len(numbers) - NAMED_TEXTS
    places = "position" if len(numbers) == 1 else "positions"
    return f"{places} {named}" + (f" and {more} more" if more > 0 else "")
