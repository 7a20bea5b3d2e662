"""Published figures: a number as printed, the values that match it, and how many would by chance."""

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from ..errors import ArgumentError, ArgumentTypeError

ROUNDING = 2e-6  # relative rounding error of a loss in single precision
# Figures that are accepted; beyond them, products and ratios would leave the range of floats.
SMALLEST, LARGEST = 1e-9, 1e38
NEIGHBOURHOOD = 1.1  # values within this factor of a figure determine their density


@dataclass(frozen=True)
class Figure:
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
        half = Decimal((0, (5,), -decimals - 1))
        rounding = Decimal(float(number) * ROUNDING * max(1.0, abs(math.log(float(number)))))
        half = max(half, rounding)
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


def is_match(entry: dict, figures: list[Figure]) -> bool:
    """Return whether a setting explains all figures."""
    return all(figure.fits(value) for figure, value in zip(figures, entry["values"]))


def chance(tried: list[dict], figures: list[Figure]) -> float:
    """Return the expected number of matches by chance.

    This assumes that values around each figure are uniform on a logarithmic scale, and that figures
    of several texts are independent, which is only approximate for those of one setting.
    """
    # those that differ in their first eight digits
    rows = {tuple(float(f"{value:.8g}") for value in entry["values"]) for entry in tried}
    expected = float(len(rows))
    for place, figure in enumerate(figures):
        values = {row[place] for row in rows}
        around = [v for v in values if figure.distance(v) <= math.log(NEIGHBOURHOOD)]
        width = math.log(figure.high / max(figure.low, figure.value / 100))
        share = len(around) / len(values) * width / (2 * math.log(NEIGHBOURHOOD))
        expected *= min(1.0, share)
    return expected
