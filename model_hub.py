"""Whether there is a model of a name at all, asked once before anything of it is loaded."""

import difflib
import os
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)

CONFIGS = ("config.json", "adapter_config.json")
SECONDS = 10


def check_exists(model_id: str, model_kwargs: dict, argument: str) -> None:
    """Refuse the name of a model that is neither here nor on the Hub.

    The Hub's client tries again for minutes, for each file by itself, where it reaches nobody.

    Raises:
        ValueError: there is none, or nobody to ask.
    """
    if os.path.isdir(model_id) or model_kwargs.get("local_files_only"):
        return
    if is_cached(model_id, model_kwargs):
        return
    reason = why_unreachable(model_id, model_kwargs)
    if reason is not None:
        close = difflib.get_close_matches(
            os.path.basename(model_id), folders_here(), n=1, cutoff=0.5
        )
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(
            f"`{argument}`={model_id!r}: no model of this name: not a folder here, {reason}.{hint}"
        )


def is_cached(model_id: str, model_kwargs: dict) -> bool:
    """Return whether the configuration has been downloaded before."""
    place = {key: model_kwargs[key] for key in ("revision", "cache_dir") if key in model_kwargs}
    try:
        found = [
            huggingface_hub.try_to_load_from_cache(model_id, name, **place) for name in CONFIGS
        ]
    except HFValidationError:
        return False
    return any(isinstance(path, str) for path in found)


def why_unreachable(model_id: str, model_kwargs: dict) -> str | None:
    """Ask the Hub once; None where the model is there, or where loading says better why not."""
    try:
        huggingface_hub.HfApi().model_info(
            model_id, timeout=SECONDS, token=model_kwargs.get("token")
        )
    except GatedRepoError:
        return None
    except RepositoryNotFoundError:
        return "not on the Hub, or private"
    except HFValidationError:
        return "nor can the Hub have such a name"
    except HfHubHTTPError:
        return None
    except Exception:  # no network, no name server, a proxy: each version has its own kinds
        return "not reachable on the Hub"
    return None


def folders_here() -> list[str]:
    """List the folders of the working directory that hold a model."""
    return [path.parent.name for name in CONFIGS for path in Path().glob(f"*/{name}")]
