"""Perplexity of texts of any length under a causal language model, with a sliding window.

>>> from perplexity_sliding import PerplexitySliding, compute, __version__
"""

from importlib import import_module
from pathlib import Path

from .about import VERSION as __version__

__all__ = [
    "PerplexityCallback",
    "PerplexitySliding",
    "__version__",
    "compute",
    "find",
    "load",
    "show",
    "to_frame",
]

_HERE = Path(__file__).parent.resolve()
# Names that are slow to import, and their modules.
_LAZY = {
    "compute": ".api",
    "PerplexityCallback": ".callback",
    "PerplexitySliding": ".metric",
    "find": ".finding",
    "show": ".views.show",
    "to_frame": ".cli.rows",
}


def load(*args: object, **kwargs: object) -> object:
    """Load the metric as `evaluate.load` would by its name on the Hub."""
    import evaluate

    return evaluate.load(str(_metric_file()), *args, **kwargs)


def _metric_file() -> Path:
    """Return the file of the metric: in this folder once installed, beside it in a clone."""
    name = f"{__name__}.py"
    return next(folder / name for folder in (_HERE.parent, _HERE) if (folder / name).exists())


def __getattr__(name: str) -> object:
    """Import a name on its first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
