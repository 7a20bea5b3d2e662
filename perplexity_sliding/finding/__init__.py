"""From a published figure to the settings that give it; here the figure, a number as printed."""

import math
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from ..errors import ArgumentError, ArgumentTypeError

ROUNDING = 2e-6  # relative rounding error of a loss in single precision
# Figures that are accepted; beyond them, products and ratios would leave the range of floats.
SMALLEST, LARGEST = 1e-9, 1e38


class Figure(NamedTuple):
    """A printed number, and the interval [low, high) that rounds to it.

    If a number has more digits than single precision resolves, the interval is as wide as its
    rounding errors.
    """

    printed: str
    low: float
    high: float
    decimals: int

    @classmethod
    def read(cls, figure: object) -> "Figure":
        """Parse a figure; a string keeps its trailing zeros.

        Raises:
            TypeError, ValueError: it is not a number between `SMALLEST` and `LARGEST`.
        """
        if isinstance(figure, bool) or not isinstance(figure, str | int | float | Decimal):
            raise ArgumentTypeError(
                "figure", "be a number, a string of digits, or a list of them", got=repr(figure)
            )
        try:
            number = Decimal(str(figure).strip())
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite() or not SMALLEST <= number <= LARGEST:
            raise ArgumentError(
                "figure",
                f"be a number such as '29.41', from {SMALLEST:g} to {LARGEST:g}",
                got=repr(figure),
                advice="Write it as printed.",
            )
        decimals = -int(number.as_tuple().exponent)
        rounding = float(number) * ROUNDING * max(1.0, abs(math.log(float(number))))
        half = max(Decimal((0, (5,), -decimals - 1)), Decimal(rounding))
        return cls(str(figure).strip(), float(number - half), float(number + half), decimals)

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    def fits(self, value: float) -> bool:
        """Return whether a value rounds to the figure."""
        return self.low <= value < self.high

    def distance(self, value: float) -> float:
        """Return the absolute logarithm of the ratio of a value to the figure."""
        return abs(math.log(value / self.value)) if value > 0 else math.inf
