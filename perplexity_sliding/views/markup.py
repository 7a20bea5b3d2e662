"""Escaping: the only way to put a visitor's text into HTML."""

import html
import json
from collections.abc import Sequence

# Signs that a template engine might act on, beyond those that html.escape knows.
TEMPLATE_SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "{}$`"}

HUGE = 1e9  # from here on, digits are hard to count
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def escape(text: object) -> str:
    """Make text safe between tags and inside quoted attributes."""
    return html.escape(str(text), quote=True).translate(TEMPLATE_SIGNS)


def payload(data: object) -> str:
    """Write JSON as the value of a data-attribute, which the page's script reads back.

    In single quotes, because JSON is full of double ones: escaped, they were a third of a long text's.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"""'{escape(text).replace("&quot;", '"')}'"""


def number(value: float, digits: int = 4) -> str:
    """Write a number for people: grouped thousands, `digits` significant digits, zeros included.

    From a thousand million on, as a power of ten.
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "∞" if value == float("inf") else str(value)
    if abs(value) >= HUGE:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e+")
        return f"{mantissa} × 10{str(int(exponent)).translate(RAISED)}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def count(value: int, noun: str) -> str:
    """Write a count with its noun: `1 window`, `2,000 windows`."""
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def interval_words(interval: Sequence[float]) -> str:
    """Write `95 % interval within this text 8.000 to 79.00`: the page scores one text at a time."""
    low, high = map(number, interval)
    return f"95 % interval within this text {low} to {high}"


def per_cent(ratio: float) -> str:
    """Write a ratio as a change in per cent: 1.02 as "+2.0"."""
    return f"{100 * (ratio - 1):+.1f}".replace("-", "−")


def change(ratio: dict) -> str:
    """Write a ratio of perplexities and its paired interval in per cent."""
    said = f"{per_cent(ratio['ratio'])} %"
    if ratio["interval"] is None:
        return said
    low, high = map(per_cent, ratio["interval"])
    return f"{said} (95 % interval {low} to {high} %)"


def shown(piece: str) -> str:
    """Strip the spaces around a piece; make a piece of only spaces visible."""
    return piece.strip() or piece.replace("\n", "↵").replace(" ", "·").replace("\t", "⇥")
