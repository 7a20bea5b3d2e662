"""Perplexity of texts of any length under a causal language model, with a sliding window.

>>> from perplexity_sliding import PerplexitySliding, compute, __version__
"""

from importlib import import_module
from pathlib import Path

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

__version__ = "0.3.0"
# Publishing replaces USER by the Space's owner.
CITATION = """\
@software{perplexity_sliding,
  author = {USER},
  title = {Perplexity Sliding: perplexity of texts of any length, under every published protocol},
  year = {2026},
  version = {VERSION},
  url = {https://huggingface.co/spaces/USER/perplexity_sliding},
  license = {Apache-2.0}
}

@article{jelinek1977perplexity,
  title = {Perplexity—a measure of the difficulty of speech recognition tasks},
  author = {Jelinek, Fred and Mercer, Robert L. and Bahl, Lalit R. and Baker, James K.},
  journal = {The Journal of the Acoustical Society of America},
  volume = {62},
  year = {1977}
}
""".replace("{VERSION}", f"{{{__version__}}}")

_HERE = Path(__file__).parent.resolve()
# Names that are slow to import, and their modules.
_LAZY = {
    "compute": ".api",
    "PerplexityCallback": ".callback",
    "PerplexitySliding": ".metric",
    "find": ".finding",
    "show": ".views.report",
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
