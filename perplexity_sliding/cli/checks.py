"""Checks before slow imports: models that cannot be loaded, files that cannot be written."""

import json
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..argument_table import is_address
from .messages import list_some
from .options import by_numbers

# The file that marks a folder as a model.
CONFIG = "config.json"
# The file that marks a folder as an adapter, and its key for the base model.
ADAPTER, BASE = "adapter_config.json", "base_model_name_or_path"

# The beginning of a server's address without http://.
HOST = re.compile(r"[^/\\]+:\d+(/|$)")


def check_model(name: str, option: str = "--model", subfolders: Sequence[str] = ()) -> None:
    """Refuse a model that certainly cannot be loaded.

    Args:
        option: the option that names it.
        subfolders: folders in it that a model may be loaded from.

    Raises:
        ValueError: a missing path, a file of weights, a folder without a model, or a GGUF file or
            an adapter without the package that loads it.
    """
    if is_address(name):
        return  # checked when it is opened
    path = Path(name).expanduser()
    if option == "--model" and "," in name and not path.exists():
        each = " ".join(f"{option} {part.strip()}" for part in name.split(","))
        raise ValueError(
            f"{option} {name} is not the name of a model. Pass each model by its own option: {each}."
        )
    if path.suffix.lower() == ".gguf":
        _check_gguf(f"{option} {name}", path)
    elif path.is_file():
        raise ValueError(
            f"{option} {name} is a file. Pass the folder with the weights, config.json and the "
            f"tokenizer: {option} {path.parent}."
        )
    elif path.is_dir():
        _check_folder(f"{option} {name}", path, subfolders)
    elif not HOST.match(name):  # opening it raises an error that asks for http://
        check_path(name, option)


def _check_gguf(what: str, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{what}: there is no such file.")
    if find_spec("llama_cpp") is None:
        raise ValueError(
            f"{what} is a GGUF file, which requires llama.cpp: pip install llama-cpp-python."
        )


def check_path(name: str, option: str) -> None:
    """Refuse a missing path that cannot be a name on the Hub either."""
    is_path = name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if is_path and not Path(name).expanduser().exists():
        raise ValueError(f"{option} {name}: there is no such folder.")


def _check_folder(what: str, folder: Path, subfolders: Sequence[str]) -> None:
    adapter = folder / ADAPTER
    if adapter.is_file():
        if find_spec("peft") is None:
            raise ValueError(f"{what} is an adapter, which requires peft: pip install peft.")
        base = json.loads(adapter.read_text("utf-8")).get(BASE)
        if not base:
            raise ValueError(f"{what} is an adapter whose configuration names no base model.")
        return
    places = [folder, *(folder / name for name in subfolders)]
    if any((place / name).is_file() for place in places for name in (CONFIG, ADAPTER)):
        return
    if any(folder.glob("*.gguf")):
        return
    inside = sorted((str(file.parent) for file in folder.rglob(CONFIG)), key=by_numbers)
    advice = (
        f"one of {list_some(inside)}"
        if inside
        else "a folder written by save_pretrained or `hf download`"
    )
    raise ValueError(f"{what} is a folder without {CONFIG}. Pass {advice}.")


def check_writable(option: str, path: str) -> None:
    """Refuse a file that cannot be written, before hours of work."""
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        raise ValueError(f"{option} must be in an existing folder, got {path!r}.")
    target = path if os.path.exists(path) else parent
    if os.path.isdir(path) or not os.access(target, os.W_OK):
        raise ValueError(f"{option} must be a writable file, got {path!r}.")
