"""The metric as an installed package: perplexity of texts of any length with a sliding window.

In a clone and in a Space the modules lie flat beside each other, as evaluate's loader needs it; the
wheel puts them into this package.  From a clone, and installed with `pip install -e`, they are found
there all the same.

    >>> import perplexity_sliding
    >>> metric = perplexity_sliding.load()
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE / "perplexity_sliding.py").exists():
    __path__.append(str(_HERE.parent))

METRIC = str(Path(__path__[-1]) / "perplexity_sliding.py")


def load(*args, **kwargs):
    """The metric, as `evaluate.load` would give it by its name on the Hub."""
    import evaluate

    return evaluate.load(METRIC, *args, **kwargs)
