"""Which values match a figure, and how many would by chance."""

import math

from .figures import Figure

NEIGHBOURHOOD = 1.1  # values within this factor of a figure determine their density


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
