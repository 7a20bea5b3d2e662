"""Intervals from few parts of a text, which the page does not show."""

from perplexity_sliding.results.comparison import judge

# From fewer parts, the width of an interval is mostly chance (Schmeiser, 1982, finds 10 to 30 enough), and
# it would go into the sentence for a paper.
FEWEST_PARTS = 10
# What is said of an interval, or concluded from one, beside the intervals themselves.
ABOUT = {"interval_sample", "interval_scope", "sample", "pvalue", "accuracy_change_pvalue"}


def without_thin(value, is_thin: bool = False):
    """Replace intervals from fewer than ten parts of a text with None, and judge comparisons again.

    Args:
        value: a result of the metric, or a part of one; it is not changed.
        is_thin: what it belongs to has too few parts.
    """
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [without_thin(entry, is_thin) for entry in value]
    if not isinstance(value, dict):
        return value
    sample = value.get("interval_sample", value.get("sample"))
    is_thin = is_thin or (sample is not None and num_parts(sample) < FEWEST_PARTS)
    kept = {
        name: None if is_thin and _tells_of_interval(name) else without_thin(entry, is_thin)
        for name, entry in value.items()
    }
    if is_thin and "verdict" in kept:
        kept |= _judge_again(kept)
    return kept


def num_parts(sample: str) -> int:
    """Read the number of parts of an interval: 20 of "20 parts of 1 text"."""
    return int(sample.split()[0])


def _tells_of_interval(name: str) -> bool:
    return name in ABOUT or name.endswith("interval")


def _judge_again(comparison: dict) -> dict:
    """Return the verdict on one text, and its sentence, without an interval."""
    if "perplexity_ratio" in comparison:
        return judge(comparison["perplexity_ratio"], None, "perplexity", num_texts=1)
    return judge(comparison["byte_perplexity_ratio"], None, "perplexity per byte", num_texts=1)
