"""The few models in memory.

A forward pass may switch a model's mode for its time, so a model is opened and used only by the one
whose turn it is; see line.py.
"""

import contextlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from demo_model.round_weights import round_weights
from perplexity_sliding.models.loading import LOADING

from .deadline import Countdown, within
from .downloads import Downloads
from .gate import admit
from .jobs import Job
from .limits import Limits, Refused
from .line import Line
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
# More modules of a kind than any model under the size limit has; a configuration can ask for more.
MOST_MODULES = 256
COUNTS = re.compile(
    r"(?:^|_)num_(?!embeddings|positions|tokens|labels|classes|features|channels|mel)"
    r"|(?:^|_)n_\w*(?:layer|head|expert|block)|(?:layers|heads|experts|blocks)$"
)
MOST = 2**31 - 1  # of any other integer
DEEPEST = 20  # entries within entries
CALLS = 60_000  # most calls of torch to build a model: 256 layers need a sixth of them


@dataclass(frozen=True)
class Source:
    """The source of a model: a folder of checked files, or None if it is in memory.

    Attributes:
        commit: of the Hub's repository; None for the bundled model.
    """

    folder: Path | None
    commit: str | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer, ready to score.

    Attributes:
        name: what the visitor calls it.
        window: the longest window to offer.
        commit: of the Hub's repository; None for the bundled model.
    """

    name: str
    model: torch.nn.Module
    tokenizer: object
    window: int
    commit: str | None


class Shelf:
    """At most `limits.models` models; the least recently used is removed first.

    Args:
        bundled: folder of the model that is always at hand.
        find_window: gives the longest window of a model and its tokenizer, and refuses a model
            that cannot be scored.
        suggested: names that are kept in the Hub's cache once downloaded.
        local_folders: whether a model may also be a folder of this machine.
    """

    def __init__(
        self,
        bundled: str | Path,
        find_window: Callable[[torch.nn.Module, object], int],
        limits: Limits,
        endpoint: str | None = None,
        suggested: Sequence[str] = SUGGESTED,
        local_folders: bool = False,
    ):
        self.bundled = Path(bundled)
        self.local_folders = local_folders
        self.find_window = find_window
        self.limits = limits
        self.endpoint = endpoint
        line = Line(limits.waiting, limits.downloads)
        self.downloads = Downloads(line, tuple(suggested), endpoint)
        self._models: OrderedDict[str, LoadedModel] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """Names of the models in memory, the most recently used last."""
        return list(self._models)

    def known_as(self, name: str) -> str:
        """Return the canonical name of a model, for any spelling of its folder."""
        name = name.strip()
        if not self.local_folders or name in (BUNDLED, ROUNDED) or not is_model_folder(name):
            return name
        folder = Path(name).resolve()
        return BUNDLED if folder == self.bundled.resolve() else str(folder)

    @contextlib.contextmanager
    def fetched(self, name: str, job: Job) -> Iterator[Source]:
        """Yield the files of a model, downloaded outside the queue if necessary.

        Raises:
            Refused: the model may not come in.
        """
        if name in (BUNDLED, ROUNDED):
            yield Source(self.bundled)
        elif name in self._models:
            yield Source(None)
        elif self.local_folders and is_model_folder(name):
            yield Source(Path(name))
        else:
            job.say(f"Asking the Hugging Face Hub about {name}.")
            admission = admit(name, self.limits, self.endpoint)
            with self.downloads.folder(admission, job) as folder:
                yield Source(folder, admission.commit)

    def open(self, name: str, source: Source, job: Job) -> LoadedModel:
        """Return a model, opening it if it is not in memory.

        Raises:
            Refused: the model is broken.
        """
        if name in self._models:
            self._models.move_to_end(name)
            return self._models[name]
        if source.folder is None:  # put away while its visitor was waiting
            with self.fetched(name, job) as again:
                return self.open(name, again, job)
        job.say(f"Opening {name}.")
        loaded = within(
            self.limits.looking,
            lambda: self._open(name, source.folder, source.commit),
            job,
            f"{name} cannot be used here: opening it and trying it out",
        )
        self._models[name] = loaded
        return loaded

    def _open(self, name: str, folder: Path, commit: str | None) -> LoadedModel:
        """Load a model from a folder of checked files and test it."""
        try:
            attention = check_configuration(folder, self.limits)
            self._make_room()
            model, tokenizer = load_folder(folder, attention)
            if name == ROUNDED:
                round_weights(model, ROUNDED_BITS)
            model.config._name_or_path = name  # its name in the signature
            window = self.find_window(model, tokenizer)
        except Refused as refusal:
            raise Refused(f"{name} cannot be used here: {refusal}") from refusal
        except Exception as error:  # a hostile or broken repository can make anything fail
            raise Refused(
                f"{name} cannot be used here: loading it failed ({_first_sentence(error, folder)})."
            ) from error
        return LoadedModel(name, model, tokenizer, window, commit)

    def _make_room(self) -> None:
        while len(self._models) >= self.limits.models:
            self._models.popitem(last=False)


def is_model_folder(name: str) -> bool:
    """Return whether there is a model in a folder of this machine; whatever the name, without a fault."""
    return os.path.isfile(os.path.join(name, "config.json"))


def check_configuration(folder: Path, limits: Limits) -> str:
    """Refuse a configuration of a model larger than the checked files.

    Weights that a checkpoint lacks are made up, whatever their number, before anyone counts them.

    Returns:
        the attention to load the model with.
    """
    # First as written, then with the defaults of the architecture.
    check_integers(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    check_integers(config.to_dict())
    model, attention = build_shapes(config, limits)
    weights = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    if weights > limits.model_parameters:
        raise Refused(
            f"its configuration describes {weights:,} weights, and at most "
            f"{limits.model_parameters:,} fit."
        )
    return attention


def check_integers(config: dict) -> None:
    """Refuse a configuration with an integer that no small model has."""
    for name, value in entries(config):
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        least, most = (0, MOST_MODULES) if COUNTS.search(name) else (-MOST, MOST)
        if value > most:
            raise Refused(
                f"its configuration asks for {name} = {value:,}, more than any small model has."
            )
        if value < least:
            raise Refused(f"its configuration asks for {name} = {value:,}, less than none.")


def entries(config: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield all entries of a configuration, including nested ones and lists."""
    if depth > DEEPEST:
        raise Refused("its configuration is nested deeper than any is.")
    if isinstance(config, dict):
        for key, value in config.items():
            yield from entries(value, str(key), depth + 1)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from entries(value, name, depth + 1)
    else:
        yield name, config


def build_shapes(config, limits: Limits) -> tuple[torch.nn.Module, str]:
    """Build a model without memory for its weights; return it and the attention that it takes.

    Attention is named here, because a configuration may name a kernel to be downloaded.
    """
    with LOADING, torch.device("meta"), Countdown(CALLS, limits.looking / 2):
        try:
            return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"), "sdpa"
        except ValueError as error:  # some architectures have only their own
            if isinstance(error, Refused):
                raise
            return AutoModelForCausalLM.from_config(config, attn_implementation="eager"), "eager"


def load_folder(folder: Path, attention: str) -> tuple[torch.nn.Module, object]:
    """Load a complete model and its tokenizer, without running code or following links in the folder."""
    closed = {"trust_remote_code": False, "local_files_only": True}
    opened = new_metric().open_model(
        str(folder),
        device="cpu",
        model_kwargs=closed | {"use_safetensors": True, "attn_implementation": attention},
        tokenizer_kwargs=closed,
    )
    return opened.model, opened.tokenizer


def _first_sentence(error: Exception, folder: Path) -> str:
    """Return the first line of an error, with the folder replaced by "the model"."""
    lines = str(error).strip().splitlines() or [""]
    line = lines[0].replace(f"`model_id`={str(folder)!r}", "the model")
    return f"{type(error).__name__}: {line[:200]}".rstrip(".: ")
