"""Perplexity of texts of any length with a sliding window, as a package.

In a clone and in a Space the modules lie flat beside each other, as evaluate's loader needs it; the
wheel puts them into this package.  From a clone, and installed with `pip install -e`, they are found
there all the same.

    >>> from perplexity_sliding import PerplexitySliding, compute, __version__
"""

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE / "perplexity_sliding.py").exists():
    __path__.append(str(_HERE.parent))

METRIC = str(Path(__path__[-1]) / "perplexity_sliding.py")


def load(*args: object, **kwargs: object) -> object:
    """Load the metric as `evaluate.load` would by its name on the Hub."""
    import evaluate

    return evaluate.load(METRIC, *args, **kwargs)


def _metric_module() -> object:
    """Import the metric's module; in a clone this folder hides it from the import system."""
    name = f"{__name__}.perplexity_sliding"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, METRIC)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def __getattr__(name: str) -> object:
    """Import what takes seconds, or evaluate, when it is asked for."""
    if name == "__version__":
        from .about import VERSION

        return VERSION
    if name == "compute":
        from .api import compute

        return compute
    if name == "PerplexitySliding":
        return _metric_module().PerplexitySliding
    if name == "PerplexityCallback":
        from .callback import PerplexityCallback

        return PerplexityCallback
    if name == "show":
        from .views.show import show

        return show
    if name == "to_frame":
        from .views.frames import to_frame

        return to_frame
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
