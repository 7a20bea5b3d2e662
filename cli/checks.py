"""What can be told before anything is imported: models that are none, files that cannot be written."""

import json
import os
from importlib.util import find_spec
from pathlib import Path


def check_model(name: str, option: str = "--model") -> None:
    """Refuse what is surely no model that can be loaded.

    Args:
        option: what names it.

    Raises:
        ValueError: a path to nothing, weights without a folder, a folder without a model, or a GGUF
            file or an adapter without the package that loads it.
    """
    if name.lower().startswith(("http://", "https://")):
        return  # whoever answers there is asked
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        _check_gguf(f"{option} {name}", path)
    elif path.is_file():
        raise ValueError(
            f"{option} {name} is a file. Name the folder that holds the weights together with "
            f"config.json and the tokenizer: {option} {path.parent}."
        )
    elif path.is_dir():
        _check_folder(f"{option} {name}", path)
    else:
        check_path(name, option)


def _check_gguf(what: str, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{what}: there is no such file.")
    if find_spec("llama_cpp") is None:
        raise ValueError(
            f"{what} is a GGUF file, which needs llama.cpp: pip install llama-cpp-python."
        )


def check_path(name: str, option: str) -> None:
    """Refuse what is written like a path, and so can be no name on the Hub, and leads nowhere."""
    is_path = name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if is_path and not Path(name).expanduser().exists():
        raise ValueError(f"{option} {name}: there is no such folder.")


def _check_folder(what: str, folder: Path) -> None:
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        if find_spec("peft") is None:
            raise ValueError(f"{what} is an adapter, which needs peft: pip install peft.")
        base = json.loads(adapter.read_text("utf-8")).get("base_model_name_or_path")
        if not base:
            raise ValueError(f"{what} is an adapter that doesn't name its base model.")
        return
    holds_one = any(folder.rglob("config.json")) or any(folder.glob("*.gguf"))
    if not holds_one:
        raise ValueError(
            f"{what} is a folder without config.json. Name one that save_pretrained or "
            "`hf download` has written."
        )


def check_writable(option: str, path: str | None) -> None:
    """Refuse a file that cannot be written before hours of work."""
    if path is None:
        return
    parent = Path(path).parent
    if not parent.is_dir():
        raise ValueError(f"{option} must lie in a folder that exists, got {path!r}.")
    target = path if os.path.exists(path) else parent
    if os.path.isdir(path) or not os.access(target, os.W_OK):
        raise ValueError(f"{option} must be a file that can be written, got {path!r}.")
