"""The few models in memory.

A model is opened and used only by the one whose turn it is; see `Service`.
"""

import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

from demo_model.round_weights import round_weights

from .gate import admit, fetch
from .jobs import Job
from .limits import Limits, Refused
from .measure import LoadedModel, find_window
from .metric import new_metric

BUNDLED = "demo_model"
# The bundled one with its weights rounded to 4 bits, made on the fly to compare with.
ROUNDED = "demo_model-4bit"
ROUNDED_BITS = 4
# Small public models that a free machine can run; any other name goes through the same gate.
SUGGESTED = (
    "openai-community/gpt2",
    "distilbert/distilgpt2",
    "EleutherAI/pythia-70m",
    "EleutherAI/pythia-160m",
    "HuggingFaceTB/SmolLM2-135M",
)


class Shelf:
    """At most `limits.models` models; the least recently used is removed first.

    Args:
        bundled: folder of the model that is always at hand.
        endpoint: another Hub than huggingface.co.
        local_folders: whether a model may also be a folder of this machine.
    """

    def __init__(
        self,
        bundled: str | Path,
        limits: Limits,
        endpoint: str | None = None,
        local_folders: bool = False,
    ):
        self.bundled = Path(bundled)
        self.limits = limits
        self.endpoint = endpoint
        self.local_folders = local_folders
        self._models: OrderedDict[str, LoadedModel] = OrderedDict()
        self._fetching = threading.Lock()
        self._fetched: dict[str, tuple[Path, str | None]] = {}
        self._downloads = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    @property
    def names(self) -> list[str]:
        """Models in memory, the least recently used first."""
        return list(self._models)

    def known_as(self, name: str) -> str:
        """Return the canonical name of a model, for any spelling of its folder."""
        name = name.strip()
        if not self.local_folders or name in (BUNDLED, ROUNDED) or not is_model_folder(name):
            return name
        folder = Path(name).resolve()
        return BUNDLED if folder == self.bundled.resolve() else str(folder)

    def fetch(self, name: str, job: Job) -> None:
        """Have the files of a model on this machine, one download after the other.

        Raises:
            Refused: the model may not come in.
        """
        if name in self._models or name in (BUNDLED, ROUNDED):
            return
        if self.local_folders and is_model_folder(name):
            self._fetched[name] = Path(name), None
            return
        while not self._fetching.acquire(timeout=0.2):
            job.say(f"Waiting to download {name}.")
        try:
            if name not in self._models and name not in self._fetched:
                job.say(f"Downloading {name}.")
                admission = admit(name, self.limits, self.endpoint)
                # The Hub's cache keeps those that are asked for often.
                own = None if name in SUGGESTED else tempfile.mkdtemp(dir=self._downloads.name)
                self._fetched[name] = fetch(admission, own, self.endpoint), admission.commit
        finally:
            self._fetching.release()

    def open(self, name: str, job: Job) -> LoadedModel:
        """Return a model that was fetched, opening it if it is not in memory.

        Raises:
            Refused: the model is broken.
        """
        if name in self._models:
            self._models.move_to_end(name)
            return self._models[name]
        here = (self.bundled, None) if name in (BUNDLED, ROUNDED) else None
        folder, commit = here or self._fetched.pop(name, (None, None))
        if folder is None:
            raise Refused(f"{name} had to make room for another model meanwhile. Please try again.")
        job.say(f"Opening {name}.")
        while len(self._models) >= self.limits.models:
            self._models.popitem(last=False)
        self._models[name] = self._load(name, folder, commit)
        return self._models[name]

    def _load(self, name: str, folder: Path, commit: str | None) -> LoadedModel:
        """Load a complete model and its tokenizer, without running code of the folder, and try it out."""
        closed = {"trust_remote_code": False, "local_files_only": True}
        try:
            opened = _open(folder, closed, "sdpa")
            model, tokenizer = opened.model, opened.tokenizer
            if name == ROUNDED:
                round_weights(model, ROUNDED_BITS)
            model.config._name_or_path = name  # its name in the signature
            return LoadedModel(
                name, model, tokenizer, find_window(model, tokenizer, self.limits), commit
            )
        except Refused as refusal:
            raise Refused(f"{name} cannot be used here: {refusal}") from refusal
        except Exception as error:  # a broken repository can make anything fail
            line = (str(error).strip().splitlines() or [""])[0].replace(str(folder), name)
            raise Refused(
                f"{name} cannot be used here: loading it failed "
                f"({type(error).__name__}: {line[:200].rstrip('.: ')})."
            ) from error


def _open(folder: Path, closed: dict, attention: str):
    """Open the files of a folder with an attention that is named: a configuration may name a kernel."""
    own = closed | {"use_safetensors": True, "attn_implementation": attention}
    try:
        return new_metric().open_model(str(folder), device="cpu", model_kwargs=own)
    except ValueError as error:  # some architectures have only their own
        if attention == "eager" or "scaled_dot_product_attention" not in str(error):
            raise
        return _open(folder, closed, "eager")


def is_model_folder(name: str) -> bool:
    """Return whether there is a model in a folder of this machine; whatever the name, without a fault."""
    return os.path.isfile(os.path.join(name, "config.json"))
