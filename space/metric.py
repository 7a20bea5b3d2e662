"""The metric of the page, loaded with `evaluate.load`, and its protocols."""

import functools
from collections.abc import Mapping
from pathlib import Path

import evaluate

METRIC = Path(__file__).resolve().parent.parent / "perplexity_sliding.py"


def new_metric() -> evaluate.Metric:
    """Create an instance; each serves one request at a time."""
    metric = type(_loaded())()
    # Copies that evaluate makes for their docstrings: 115 kB an instance, which they refer to, so that all
    # of it would stay until a full collection.
    for name in ("compute", "add", "add_batch"):
        vars(metric).pop(name, None)
    return metric


@functools.cache
def _loaded() -> evaluate.Metric:
    """Load the metric with `evaluate.load`, which reads and copies all sources each time."""
    return evaluate.load(str(METRIC))


@functools.cache
def protocol_rows() -> Mapping[str, object]:
    """Return the metric's protocols by name, with their descriptions and settings."""
    return _loaded().protocols
