"""What a torch module says of itself: where its inputs go, its tables, what its forward takes."""

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PretrainedConfig

# Tokens of the forward pass that shows which tables hold a model's positions.
TABLE_PROBE = 3
# Found position tables, by the model and the sizes of its embeddings.
_TABLES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def input_device(model: torch.nn.Module) -> torch.device:
    """Return where the model expects token ids."""
    embeddings = input_embeddings(model)
    parameter = next(
        embeddings.parameters() if embeddings is not None else model.parameters(), None
    )
    # An offloaded model's weights are on "meta"; its hooks move the ids where they are needed.
    if parameter is None or parameter.device.type == "meta":
        return torch.device("cpu")
    return parameter.device


def num_embeddings(model: torch.nn.Module) -> int | None:
    """Count the entries of the token embedding table: ids must be below it."""
    embeddings = input_embeddings(model)
    if embeddings is not None and hasattr(embeddings, "num_embeddings"):
        return embeddings.num_embeddings
    return getattr(_text_config(model), "vocab_size", None)


def position_table(model: torch.nn.Module) -> int | None:
    """Count the tokens that the model's learned or precomputed absolute positions reach, or None.

    Tables of relative positions and those of a vision tower are no limit, and nothing in a name
    tells them apart; so a short forward pass shows which entries are read for which position.
    """
    embeddings = input_embeddings(model)
    sizes, fixed = [], []
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module is not embeddings:
            sizes.append(module.num_embeddings)
        precomputed = getattr(module, "embed_positions", None)  # GPT-J, CodeGen: a tensor
        if isinstance(precomputed, torch.Tensor) and precomputed.ndim == 2:
            fixed.append(precomputed.shape[0])
    if sizes:
        known = _TABLES.get(model)
        if known is None or known[0] != sizes:
            known = _TABLES[model] = sizes, tables_read(model)
        fixed += known[1]
    return min(fixed, default=None)


@torch.inference_mode()
def tables_read(model: torch.nn.Module) -> list[int]:
    """Count the tokens of each table that the model reads at one entry more for every token."""
    padding = getattr(_text_config(model), "pad_token_id", None)  # RoBERTa gives it no position
    # Descending: token ids are not taken for positions.
    tokens = [token for token in range(TABLE_PROBE, -1, -1) if token != padding][:TABLE_PROBE]
    ids = torch.tensor([tokens], device=input_device(model))
    recorder = _EmbeddingRecorder()
    try:
        with evaluating(model), recorder:
            model(ids, **forward_kwargs(model))
    except Exception:
        return []  # what is no language model is refused elsewhere
    steps = torch.arange(TABLE_PROBE)
    return [
        rows - int(entries[0])  # OPT and its kin keep the first entries for themselves
        for rows, entries in recorder.read
        if len(entries) == len(steps) and torch.equal(entries - entries[0], steps)
    ]


class _EmbeddingRecorder(TorchDispatchMode):
    """Notes which entries of which tables are looked up.

    Attributes:
        read: (rows of the table, entries (N,)) of each look-up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[int, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if func is torch.ops.aten.embedding.default:
            self.read.append((len(args[0]), args[1].flatten().cpu().long()))
        return func(*args, **(kwargs or {}))


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode and named outputs, and back afterwards, module by module."""
    training = [module for module in model.modules() if module.training]
    config = getattr(model, "config", None)
    returns_tuples = getattr(config, "return_dict", True) is False
    model.eval()
    if returns_tuples:
        config.return_dict = True
    try:
        yield
    finally:
        for module in training:
            module.training = True
        if returns_tuples:
            config.return_dict = False


def _text_config(model: torch.nn.Module) -> PretrainedConfig | None:
    """Return the configuration of the language part; multimodal models nest it."""
    config = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def input_embeddings(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return a model's table of token embeddings, or None where it does not say which that is."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def forward_parameters(module: torch.nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def forward_kwargs(module: torch.nn.Module) -> dict:
    """Return arguments that spare the module needless work, as far as it has them."""
    return {"use_cache": False} if "use_cache" in forward_parameters(module) else {}


def probe_ids(model: torch.nn.Module, length: int, first: int = 1) -> torch.Tensor:
    """Make a row of ordinary token ids (T,), to see how the model behaves.

    Args:
        first: begins another row of other tokens.
    """
    size = num_embeddings(model) or length + 1
    spread = torch.arange(first, first + length) * max(1, size // (length + 2)) % size
    return spread.to(input_device(model))
