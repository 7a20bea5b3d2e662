"""Admission of the models that visitors choose.

A repository on the Hub can hold anything, so nothing of it is downloaded before its description has
passed every check here, and then only plain data: configuration, tokenizer and safetensors files of
the very commit that was checked.  It is then loaded from that folder, so that nothing in it can send
the loader elsewhere.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
)

from .limits import Limits, Refused

TIMEOUT = 10  # seconds
NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
# Classes of transformers that predict the next token.
CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel")
WEIGHTS = re.compile(r"model[\w.-]*\.safetensors")
# Files of a model and its tokenizer, at the top of the repository; no code, no pickles.
DATA = re.compile(
    r"(config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json"
    r"|model\.safetensors\.index\.json|merges\.txt|vocab\.txt|(tokenizer|spiece|spm)\.model"
)
# Tokenizers and configurations of honest models are far smaller.
DATA_BYTES = 60_000_000


@dataclass(frozen=True)
class Admission:
    """An admitted model: repository, commit and files."""

    name: str
    commit: str
    files: tuple[str, ...]


def admit(name: str, limits: Limits, endpoint: str | None = None) -> Admission:
    """Check a model on the Hub without downloading it.

    Args:
        endpoint: another Hub than huggingface.co.

    Raises:
        Refused: with a sentence that says why.
    """
    check_name(name)
    info = look_up(name, endpoint)
    check_access(name, info)
    check_code(name, info)
    check_architecture(name, info)
    check_size(name, info, limits)
    if not COMMIT.fullmatch(info.sha or ""):
        raise Refused(f"The Hub does not report the revision of {name}. Try again later.")
    names = [file.rfilename for file in info.siblings]
    files = tuple(name for name in names if WEIGHTS.fullmatch(name) or DATA.fullmatch(name))
    return Admission(name, info.sha, files)


def check_name(name: str) -> None:
    """Refuse a name unless it is a Hub name, `owner/name`, and not a local folder."""
    if not NAME.fullmatch(name) or ".." in name or "--" in name:
        raise Refused(
            "That is not the name of a model. Names on the Hugging Face Hub look like "
            "openai-community/gpt2: the owner, a slash, and the model."
        )
    if os.path.exists(name):  # do not reveal whether files exist
        raise Refused(
            f"{name} cannot be used here. Only models on the Hugging Face Hub and those on the list "
            "can."
        )


def look_up(name: str, endpoint: str | None) -> ModelInfo:
    """Query the Hub about a model, anonymously."""
    api = HfApi(endpoint=endpoint, token=False)
    try:
        return api.model_info(name, files_metadata=True, timeout=TIMEOUT, token=False)
    except GatedRepoError:
        raise Refused(_gated(name)) from None
    except RepositoryNotFoundError:
        raise Refused(
            f"The Hub has no public model called {name}. Check the spelling; private models cannot "
            "be used here."
        ) from None
    except HfHubHTTPError as error:
        raise Refused(
            f"The Hugging Face Hub refused to describe {name} just now. Try again later, or choose "
            "the bundled model."
        ) from error
    except Exception as error:  # which network errors there are depends on the client's version
        raise Refused(
            f"The Hugging Face Hub could not be reached, so {name} cannot be used now. The bundled "
            "model works without it."
        ) from error


def check_access(name: str, info: ModelInfo) -> None:
    if info.gated:
        raise Refused(_gated(name))
    if info.private or info.disabled:
        raise Refused(f"{name} is not open to the public, so it cannot be used here.")


def check_code(name: str, info: ModelInfo) -> None:
    """Refuse a model that requires its own code, or that only refers to another."""
    files = {file.rfilename for file in info.siblings or ()}
    if "custom_code" in (info.tags or ()) or "auto_map" in (info.config or {}):
        raise Refused(
            f"{name} requires program code of its own, which this page does not run. Choose a model "
            "that transformers supports natively."
        )
    if "adapter_config.json" in files:
        raise Refused(
            f"{name} is an adapter, a change to another model, and not a model of its own. Choose a "
            "complete model."
        )


def check_architecture(name: str, info: ModelInfo) -> None:
    """Refuse a model unless its architectures predict the next token."""
    architectures = (info.config or {}).get("architectures") or ["unknown"]
    if not all(str(a).endswith(CAUSAL_ENDINGS) for a in architectures):
        raise Refused(
            f"{name} is not a model that predicts the next token (its architecture is "
            f"{architectures[0]}), so it has no perplexity. Choose a text-generation model."
        )


def check_size(name: str, info: ModelInfo, limits: Limits) -> None:
    """Refuse a model without weights, or with too many."""
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    weights = [size for file, size in sizes.items() if WEIGHTS.fullmatch(file)]
    data = [size for file, size in sizes.items() if DATA.fullmatch(file)]
    if not weights:
        raise Refused(
            f"{name} has no weights in the safetensors format, the only one that is safe to open. "
            "Choose a model that has."
        )
    if None in weights or None in data:
        raise Refused(f"The Hub does not say how large {name} is, so it is not downloaded.")
    if sum(weights) > limits.model_bytes or sum(data) > DATA_BYTES:
        raise Refused(
            f"{name} is too large for this page: its weights take {sum(weights) / 1e9:.1f} GB, and "
            f"at most {limits.model_bytes / 1e9:.1f} GB fit. Use the metric on a machine of your own."
        )


def fetch(admission: Admission, folder: str | None = None, endpoint: str | None = None) -> Path:
    """Download the checked commit of an admitted model; return its folder.

    Args:
        folder: where to put it; None for the Hub's cache.
    """
    try:
        paths = [
            hf_hub_download(
                admission.name,
                file,
                revision=admission.commit,
                local_dir=folder,
                endpoint=endpoint,
                token=False,
                etag_timeout=TIMEOUT,
            )
            for file in admission.files
        ]
    except EntryNotFoundError as error:
        raise Refused(f"A file of {admission.name} is missing on the Hub.") from error
    except Exception as error:  # any kind of network trouble
        raise Refused(
            f"{admission.name} could not be downloaded just now. Try again later, or choose the "
            "bundled model."
        ) from error
    return Path(paths[0]).parent


def _gated(name: str) -> str:
    return (
        f"{name} is gated: its owner lets in only people who signed in and agreed to terms. Use the "
        "metric on your own machine for it."
    )
