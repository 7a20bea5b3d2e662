"""Perplexity of texts of any length under a causal language model, with a sliding window.

This file is what `evaluate.load` loads.  The metric itself is in the package `perplexity_sliding`:
beside this file in a clone, around it once installed, in the same Space on the Hub.
"""

import importlib
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import datasets
import evaluate
import huggingface_hub

_PACKAGE = "perplexity_sliding"
# Version of the package that this file belongs to.
_VERSION = "0.3.0"


def _import_metric() -> type:
    """Import the metric from this file's package.

    evaluate copies only this file into its cache, imports the copy, and requires the packages in its
    import statements to be installed.

    Raises:
        ImportError: the package is not found or has another version.
    """
    own, found = _find_beside(), _find_importable()
    package = own or found or _fetch()
    for folder in filter(None, (package, found)):
        text = (folder / "__init__.py").read_text("utf-8")
        found_version = re.search(r'^__version__ = "(.+)"', text, re.M)
        version = found_version[1] if found_version else "0.2.0 or older"
        if version != _VERSION:
            raise ImportError(
                f"The metric {__file__} has version {_VERSION}, but its package {folder} has version "
                f"{version}. Install or load the same version of both, or uninstall one of them."
            )
    if found is None:  # last on the path, also of processes that this one starts
        sys.path.append(str(package.parent))
    metric = importlib.import_module(f"{_PACKAGE}.metric")
    if (imported := importlib.import_module(_PACKAGE).__version__) != _VERSION:
        raise ImportError(
            f"Python imported version {imported} of {package} before its files were updated to "
            f"{_VERSION}. Restart Python."
        )
    return metric.PerplexitySliding


def _find_beside() -> Path | None:
    """Return the package beside the file that evaluate loads, or around it; None if there is none."""
    path = _call_of_load().get("path", __file__)
    record = Path(__file__).with_suffix(".json")  # evaluate's, beside its copy
    if path == __file__ and record.is_file():
        path = json.loads(record.read_text("utf-8")).get("original file path", path)
    file = Path(path) if path.endswith(".py") else Path(path, f"{Path(path).name}.py")
    # In the Hub's cache the file is a symbolic link, and the package is beside the link.
    for folder in (file.absolute().parent, file.resolve().parent):
        for place in (folder / _PACKAGE, folder):
            if _is_package(place):
                return place.resolve()
    return None


def _find_importable() -> Path | None:
    """Return the package that Python imports under this name; None if there is none.

    Raises:
        ImportError: Python imports something else under this name.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:  # a folder without code, such as that of a clone
        return None
    folder = Path(spec.origin).parent.resolve()
    if not _is_package(folder):
        raise ImportError(
            f"The metric's package is {_PACKAGE}, but Python imports {spec.origin} under this name. "
            "Rename it, or remove it from Python's path."
        )
    return folder


def _is_package(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("__init__.py", "metric.py"))


def _fetch() -> Path:
    """Return the package of the Space that this file is from, from the Hub or its cache."""
    load, module = _call_of_load(), __name__.split(".")
    if module[0] != "evaluate_modules" or "--" not in module[2]:
        raise ImportError(
            f"The metric {load.get('path', __file__)} requires its package {_PACKAGE}, which is neither beside it nor "
            "installed. Load the metric from a clone or by its name on the Hub, or install it."
        )
    space, revision = module[2].replace("--", "/"), load.get("revision")
    if re.match(r"\d*\.\d*\.\d*", revision or ""):
        revision = f"v{revision}"  # as evaluate does
    settings = load.get("download_config") or datasets.DownloadConfig()
    try:
        snapshot = huggingface_hub.snapshot_download(
            space,
            repo_type="space",
            revision=revision,
            token=settings.token,
            local_files_only=settings.local_files_only or evaluate.config.HF_EVALUATE_OFFLINE,
            allow_patterns=[f"{_PACKAGE}/**"],
        )
    except Exception as error:  # versions of huggingface_hub differ in what they raise
        raise ImportError(
            f"The package of the metric {space}, revision {revision or 'main'}, could neither be "
            f"downloaded from the Hub nor found in its cache: {error}"
        ) from error
    if not _is_package(package := Path(snapshot, _PACKAGE)):
        raise ImportError(
            f"The metric {space}, revision {revision or 'main'}, has no complete package in "
            f"{snapshot}. Load it once while the Hub is reachable."
        )
    return package


def _call_of_load() -> dict:
    """Return the local variables of the `evaluate.load` call that imports this file, if any.

    evaluate caches one copy of equal files, under the path of the first; only these tell where the
    file is from, at which revision, and with which token.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "evaluate.loading" and frame.f_code.co_name == "load":
            path = frame.f_locals["path"].rstrip(os.sep)
            is_this = Path(path).stem == Path(__file__).stem
            return frame.f_locals | {"path": path} if is_this else {}
        frame = frame.f_back
    return {}


PerplexitySliding = _import_metric()
