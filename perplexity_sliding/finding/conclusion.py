"""The result of a search, and what its matches are worth."""

from typing import Any

from .entries import FIELDS, agree
from .figures import Figure, chance, is_match
from .published import list_published
from .search import Search

NUM_NEAREST = 5


def conclude(figure: Any, search: Search) -> dict:
    """Build the result of `find`."""
    several = isinstance(figure, list | tuple)
    figures, tried, matches = search.figures, search.tried, search.matches
    total = sum(map(search.likelihood, matches))
    expected = chance(tried, figures)
    return {
        "figure": list(figure) if several else figure,
        "matches": [
            shown(entry, several) | {"likelihood": search.likelihood(entry) / total}
            for entry in matches
        ],
        "nearest": [
            shown(entry, several) | {"difference": text}
            for entry, text in list_nearest(tried, matches, figures)
        ],
        "published": list_published(search.cases),
        "num_tried": len(tried),
        "expected_by_chance": expected,
        "num_forward_tokens": search.num_read,
        "not_tried": [
            {
                "layout": step.layout,
                "add_start_token": step.start,
                "num_settings": len(step.settings),
                "num_forward_tokens": step.num_tokens,
                "nearest_estimate": estimate,
            }
            for step, estimate in search.left_out
        ],
        "conclusion": describe(tried, matches, figures, expected),
    }


def shown(entry: dict, several: bool) -> dict:
    """Return the settings of an entry with its value and command, or those of each figure."""
    values, commands = entry["values"], entry["commands"]
    return {name: entry[name] for name in FIELDS} | {
        "value": values if several else values[0],
        "command": commands if several else commands[0],
    }


def list_nearest(
    tried: list[dict], matches: list[dict], figures: list[Figure]
) -> list[tuple[dict, str]]:
    """Return the nearest other settings, each with its difference from the likeliest match.

    With a match, these differ from it in one setting; otherwise their values are the nearest.
    """
    others = [entry for entry in tried if not is_match(entry, figures)]
    others.sort(key=lambda e: max(f.distance(v) for f, v in zip(figures, e["values"])))
    if not matches:
        return [(entry, distance(entry, figures)) for entry in others[:NUM_NEAREST]]
    best = matches[0]
    found = []
    for entry in others:
        differing = [name for name in FIELDS if entry[name] != best[name]]
        if len(differing) == 1:
            name = differing[0]
            found.append((entry, f"{name} {entry[name]} instead of {best[name]}"))
    return found[:NUM_NEAREST]


def distance(entry: dict, figures: list[Figure]) -> str:
    ratios = [value / figure.value - 1 for figure, value in zip(figures, entry["values"])]
    return ", ".join(f"{100 * ratio:+.2f} %" for ratio in ratios)


def describe(tried: list[dict], matches: list[dict], figures: list[Figure], expected: float) -> str:
    """Assess the matches, or explain why nothing matches."""
    by_chance = f"{expected:.2g} of {len(tried):,} values would round to it by chance"
    if len(figures) > 1:
        by_chance = f"{expected:.2g} of {len(tried):,} settings would fit all figures by chance"
    if matches:
        if all(agree(entry["values"], matches[0]["values"]) for entry in matches[1:]):
            several = " All matches have the same value: these texts cannot distinguish them."
        else:
            several = " Several settings match: more figures from the same source can decide."
        return f"{by_chance}.{several if len(matches) > 1 else ''}"
    ppls = [entry["values"][0] for entry in tried if entry["average"] == "perplexity"]
    low, high, value = min(ppls), max(ppls), figures[0].value
    if len(figures) > 1:
        return "No setting tried explains all figures; search for each of them separately."
    if value < low:
        implied = (
            f"it is lower than every perplexity per token tried, the lowest being {low:.4g}: another "
            "unit, another text or split, a text seen in training, another model, or a larger window"
        )
    elif value > high:
        implied = (
            f"it is higher than every perplexity per token tried, the highest being {high:.4g}: another "
            "unit, text or model, coarser weights, or a smaller window"
        )
    else:
        implied = (
            f"it lies among the perplexities per token tried ({low:.4g} to {high:.4g}): another layout of the "
            "text, another split, precision, window or stride"
        )
    return f"No setting tried rounds to {figures[0].printed}; {implied}. {by_chance}."
