"""Every ground that a letter can stand on leaves it readable, in light and in dark."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STYLE = (ROOT / "perplexity_sliding" / "views" / "pieces.css").read_text(encoding="utf-8")
ENOUGH = 4.5  # to 1, as WCAG 2 has it
GROUNDS = r"--ps-(b[1-4]|c\d|n\d|w\d|v\d|good|better|context|out|ground|panel): (#\w{6})"
OTHERS = [
    ("on-b5", "b5"),
    ("soft", "ground"),
    ("soft", "panel"),
    ("soft", "out"),
    ("ground", "accent"),
]


def colours(theme: str) -> dict[str, str]:
    block = re.search(rf"^{re.escape(theme)} {{(.*?)^}}", STYLE, re.S | re.M)[1]
    return dict(re.findall(r"--ps-([\w-]+): (#\w{6})", block))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [":root", ".dark"])
def test_letters_can_be_read_on_every_colour(theme):
    found = colours(theme)
    grounds = re.findall(GROUNDS, STYLE)
    assert len(grounds) == 50  # of both themes
    pairs = [("ink", name) for name in {name for name, _ in grounds}] + OTHERS
    ratios = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in pairs}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < ENOUGH} == {}
