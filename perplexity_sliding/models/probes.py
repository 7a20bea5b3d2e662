"""Test a model with forward passes of random tokens before it scores texts.

Models that attend to future tokens, are not deterministic, or mix the rows of a batch are refused.
If logits depend on the length of a pass, passes of different lengths are not merged.
"""

import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import Wording
from .digest import examine, modifications, runs_own_code
from .interface import Batch, LogitBlocks, ProbeText
from .logits import (
    OTHER_SHAPE,
    SAME_SHAPE,
    UNSUPPORTED_ERRORS,
    Head,
    differ,
    explain_failure,
    has_forward_of_transformers,
    head_makers,
    is_out_of_memory,
    root_mean_square,
)
from .module import (
    KNOWN_PACKAGES,
    evaluating,
    forward_kwargs,
    grows_frequencies,
    ids_name,
    input_device,
    input_embeddings,
    is_growing_rotary,
    is_known,
    is_moved,
    library_code,
    modules_of,
    num_embeddings,
    package_of,
    precision,
    probe_ids,
    quantisation,
    text_config,
)

# Values of `model_type`.
VERIFIED_ARCHITECTURES = frozenset([
    "apertus", "arcee", "biogpt", "bloom", "codegen", "cohere", "ctrl", "exaone4", "falcon",
    "gemma", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_neox_japanese", "gptj",
    "granite", "helium", "hunyuan_v1_dense", "jais2", "llama", "ministral", "mistral", "mpt",
    "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "openai-gpt", "opt", "persimmon", "phi",
    "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2", "xglm",
])  # fmt: skip
ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3")
# Settings of layers with local attention.
LOCAL_SETTINGS = ("sliding_window", "attention_chunk_size", "attention_window")

PROBE_LENGTH = 12
# Rows of logits that are compared in long passes.
PROBE_ROWS = 32
# Tokens of the probe text in a short pass, and rows of logits per block.
QUICK_ROWS, TEXT_ROWS = 8, 64

# Tokens of the forward passes that identify tables of positions.
TABLE_PROBES = (3, 5)
# Found position tables, by the model and the sizes of its embeddings.
_TABLES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Attributes of modules that a forward pass may set.
PLAIN = (bool, int, float, str, torch.Tensor, type(None))
# Placeholder for a missing attribute.
MISSING = object()
WITH_PROMPTS = (
    "Adapters that put tokens before the text (prompt tuning, p-tuning) are not supported."
)
IN_INFERENCE_MODE = (
    "It performs an operation that torch's inference mode forbids. Pass a model without hooks, such as one "
    "loaded from a checkpoint."
)

# Returns the logits of given rows (R, V) for token ids (B, T).
RowLogits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def with_other_end(ids: torch.Tensor, size: int) -> torch.Tensor:
    """Return the ids with a changed second half."""
    changed = ids.clone()
    half = ids.shape[-1] // 2
    changed[..., half:] = (changed[..., half:] + 1 + size // 3) % max(2, size)
    return changed


def short_probe(model: torch.nn.Module) -> torch.Tensor:
    """Return two different short rows of token ids (2, T), whose logits are all compared."""
    length = min(PROBE_LENGTH, position_table(model) or PROBE_LENGTH)
    return torch.stack([probe_ids(model, length), probe_ids(model, length, first=3)])


def check_causal(model: torch.nn.Module, name: str) -> torch.Tensor:
    """Refuse a model that attends to future tokens: changing these must not change earlier logits.

    BERT-like models can be loaded as causal ones, and would predict tokens that they see.

    Returns:
        the logits (2, T, V) of `short_probe`.

    Raises:
        ValueError: it returns no logits, or it attends to future tokens.
    """
    ids = short_probe(model)
    expected = plain_logits(model, ids, name)
    moved = plain_logits(model, with_other_end(ids, num_embeddings(model) or 2), name)
    half = ids.shape[1] // 2
    tolerance = SAME_SHAPE[precision(model)]
    if differ(moved[:, :half], expected[:, :half], tolerance, expected):
        refuse(name, plain_logits(model, ids, name), expected, tolerance)
    half_precision = precision(model) != torch.float32 and not quantisation(model)
    if half_precision and leaks(model, ids, expected, moved, name):
        refuse(name, plain_logits(model, ids, name), expected, tolerance)
    return expected


def leaks(
    model: torch.nn.Module,
    ids: torch.Tensor,
    expected: torch.Tensor,
    moved: torch.Tensor,
    name: str,
) -> bool:
    """Return whether changes of earlier logits, as small as rounding, are due to later tokens.

    Passes of the same shape round equally, except for experts, which get tokens in other groups.
    The latter also happens if the tokens of the other row change.

    Args:
        ids: two rows (2, T).
        expected, moved: logits (2, T, V) with them, and with other later tokens.
    """
    half = ids.shape[1] // 2
    move = moved[0, :half].float() - expected[0, :half].float()
    if not (move != 0).any(-1).all():  # attention to later tokens moves every row
        return False
    other_row = torch.stack([ids[0], with_other_end(ids, num_embeddings(model) or 2)[1]])
    rounding = plain_logits(model, other_row, name)[0, :half].float() - expected[0, :half].float()
    return root_mean_square(move) > 3 * root_mean_square(rounding)


def refuse(name: str, again: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Refuse a model whose earlier logits change, with the reason.

    Raises:
        ValueError: always; the model is random, or it attends to future tokens.
    """
    if differ(again, expected, tolerance):
        raise ValueError(
            f"{name} must be deterministic, but its logits differ from one forward pass to the next: "
            "a part of it is random. Disable that in its configuration."
        )
    raise ValueError(
        f"{name} must be a causal language model, but its prediction for a token changes with "
        "the tokens after it: it is a masked or bidirectional model, its configuration lacks "
        "is_decoder=True, or its layers round all tokens of a batch to one scale."
    )


def plain_logits(model: torch.nn.Module, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Compute logits (B, T, V) for token ids (B, T) with the model's own forward.

    Raises:
        ValueError: the forward pass fails, or does not return logits.
    """
    try:
        logits = model(**{ids_name(model): ids}, **forward_kwargs(model)).logits
    except Exception as error:
        if is_out_of_memory(error):
            raise explain_failure(error, len(ids), ids.shape[1], ids.device) from error
        raise ValueError(
            Wording(
                f"{name} must be a causal language model, which returns `.logits` for token ids, "
                f"but a forward pass failed: {str(error) or type(error).__name__}.",
                IN_INFERENCE_MODE if "nference tensor" in str(error) else "",
            )
        ) from error
    if not isinstance(logits, torch.Tensor):
        raise ValueError(
            Wording(
                f"{name} must be a causal language model, which returns `.logits` for token ids, "
                f"got {type(logits).__name__} as `.logits`."
            )
        )
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise ValueError(
            Wording(
                f"{name} must return logits of the shape (texts, tokens, vocabulary), but for token "
                f"ids {tuple(ids.shape)} it returned {tuple(logits.shape)}.",
                WITH_PROMPTS if hasattr(model, "peft_config") else "",
            )
        )
    return logits


def gives_logits(
    make: Callable[[], Head], ids: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> bool:
    """Return whether a head can be made that has the expected logits (B, T, V) in the later rows."""
    length = ids.shape[1]
    later = torch.arange(length // 2, length, device=ids.device)
    scored = torch.cat([later + row * length for row in range(len(ids))])
    # Targets that differ from the inputs, to detect a head that confuses them.
    targets = ids.flatten()[: len(scored)]
    try:
        blocks = make()(Batch(ids, scored, targets), length)
        logits = torch.cat([rows.clone() for rows, _ in blocks])
    except UNSUPPORTED_ERRORS:
        return False
    wanted = expected[:, length // 2 :].flatten(0, 1)
    return logits.shape == wanted.shape and not differ(logits, wanted, tolerance)


class QuickLook(NamedTuple):
    """Findings of a short pass and a pass over the probe text that agree.

    Attributes:
        head_number: index of the head in `head_makers(model)`.
        vocabulary_size: number of logits per token.
        length: length of the probe text.
        short_nlls: the nlls (N,) of its tokens but the first, in nats.
    """

    head_number: int
    vocabulary_size: int
    length: int
    short_nlls: np.ndarray


def look_quickly(model: torch.nn.Module, name: str, limit: int | None) -> QuickLook | None:
    """Compare the beginning of the probe text in two passes; None if more tests are needed.

    The plain forward reads the beginning in a batch, and the cheapest head the complete text.  If
    their logits agree, these depend neither on later tokens, nor on the length of a pass, nor on the
    batch, nor on the head.
    """
    size = num_embeddings(model)
    text = ProbeText.of(size or 2, limit)
    count = min(QUICK_ROWS, len(text.ids) // 2)
    if size is None or count < 2:
        return None
    batch = text.batch(input_device(model))
    ids = torch.tensor(text.ids[: 2 * count], device=batch.ids.device).view(2, count)
    expected = plain_logits(model, ids, name)[0]
    for number, make in enumerate(head_makers(model)):
        try:
            rows, nlls = read_probe_text(make(), batch, count)
        except UNSUPPORTED_ERRORS as error:
            if is_out_of_memory(error):
                raise
            continue
        agree = rows.shape == expected.shape and not any(
            differ(row, of_plain, SAME_SHAPE[torch.float32], expected)
            for row, of_plain in zip(rows, expected)
        )
        fits = expected.shape[-1] >= size
        return (
            QuickLook(number, expected.shape[-1], len(text.ids), nlls) if agree and fits else None
        )
    return None


def read_probe_text(
    head: Callable[[Batch, int], LogitBlocks], batch: Batch, count: int = 0
) -> tuple[torch.Tensor, np.ndarray]:
    """Return the first logits (count, V) of a pass, and the nll (R,) of its tokens in nats."""
    first: list[torch.Tensor] = []
    nlls: list[np.ndarray] = []
    for logits, targets in head(batch, TEXT_ROWS):
        if len(first) * TEXT_ROWS < count:
            first.append(logits.clone())
        nlls.append(nlls_of(logits, targets))
    return torch.cat(first)[:count] if first else torch.empty(0), np.concatenate(nlls)


def nlls_of(logits: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """Return the nll (R,) of targets (R,) in nats under their logits (R, V)."""
    losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    return losses.double().cpu().numpy()


def examine_passes(length: int, model: torch.nn.Module, name: str, row_logits: RowLogits) -> bool:
    """Test passes of `length` tokens, and their prefixes of decreasing length.

    Logits that are equal in a prefix do not depend on later tokens.  If they differ by more than
    rounding in passes of the same shape, a second test changes the later tokens.  The prefix of half
    the length runs in a batch with another row.

    Returns:
        whether logits are equal in the prefixes.  They differ if rotary frequencies depend on the
        length of a pass ("dynamic", "longrope"), or if a model pads internally.

    Raises:
        ValueError: the model attends to future tokens in such passes, is random, or mixes the rows
            of a batch.
    """
    # Frequencies may change at any length.
    lengths = prefix_lengths(length, 1 if grows_frequencies(model) else PROBE_LENGTH)
    ids, rows = probe_ids(model, length)[None], probe_rows(length, lengths)
    expected = row_logits(ids, rows)
    half, *shorter = lengths
    inside = rows[rows < half]
    beside = torch.cat([ids[:, :half], probe_ids(model, half, first=3)[None]])
    together, tolerance = row_logits(beside, inside), OTHER_SHAPE[precision(model)]
    stays = not differ(together, expected[: len(inside)], SAME_SHAPE[torch.float32], expected)
    if not stays:
        check_not_moved(ids, rows, expected, model, name, row_logits)
        alone = row_logits(ids[:, :half], inside)
        if differ(together, alone, tolerance):
            raise ValueError(
                f"{name} must treat the rows of a batch independently, but its logits for {half} "
                "tokens change with the other rows."
            )
    agree = stays or not differ(alone, expected[: len(inside)], tolerance)
    for part in shorter:
        inside = rows[rows < part]
        alone = row_logits(ids[:, :part], inside)
        agree = agree and not differ(alone, expected[: len(inside)], tolerance)
    return agree


def check_not_moved(
    ids: torch.Tensor,
    rows: torch.Tensor,
    expected: torch.Tensor,
    model: torch.nn.Module,
    name: str,
    row_logits: RowLogits,
) -> None:
    """Refuse a model whose earlier logits (R, V) change with later tokens of a pass (1, T).

    Raises:
        ValueError: they change, or a part of the model is random.
    """
    moved = row_logits(with_other_end(ids, num_embeddings(model) or 2), rows)
    early = rows < ids.shape[1] // 2
    tolerance = SAME_SHAPE[precision(model)]
    if differ(moved[early], expected[early], tolerance, expected):
        refuse(name, row_logits(ids, rows), expected, tolerance)


def prefix_lengths(length: int, shortest: int) -> list[int]:
    """List lengths of prefixes to test: half, a quarter, and so on, down to `shortest` or less."""
    lengths = [length // 2]
    while lengths[-1] > shortest:
        lengths.append(lengths[-1] // 2)
    return lengths


def probe_rows(length: int, prefixes: Sequence[int]) -> torch.Tensor:
    """Choose rows (R,) of a pass to compare, ascending: spread evenly, and at the ends of prefixes."""
    spread = torch.linspace(0, length - 1, min(length, PROBE_ROWS)).long()
    ends = torch.tensor(prefixes) - 1
    return torch.cat([spread, ends.clamp(min=0)]).unique()


class KeptState:
    """State that modules keep between forward passes, besides their weights.

    "Dynamic" rotary embeddings keep grown frequencies, and BigBird keeps the attention that a short
    text selects; scores would then depend on earlier texts.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self.saved = {
            module: SavedModule.of(module)
            for module in modules
            if not isinstance(module, torch.jit.ScriptModule)  # about to be refused
        }

    def changed(self) -> list[torch.nn.Module]:
        """List the modules that have changed."""
        return [module for module, saved in self.saved.items() if not saved.describes(module)]

    def restore(self, modules: list[torch.nn.Module]) -> None:
        """Undo the changes of modules."""
        for module in modules:
            self.saved[module].restore(module)


class SavedModule(NamedTuple):
    """State of a module besides its weights.

    Attributes:
        contents: copies of the values of its buffers, which newer rotary embeddings overwrite.
        attributes: its attributes; a forward pass may set those of PLAIN types.
    """

    children: dict[str, torch.nn.Module | None]
    buffers: dict[str, Any]
    contents: dict[str, torch.Tensor]
    attributes: dict[str, object]

    @classmethod
    def of(cls, module: torch.nn.Module) -> "SavedModule":
        contents = {
            name: buffer.detach().clone()
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.is_floating_point() and not buffer.is_meta
        }
        return cls(dict(module._modules), dict(module._buffers), contents, dict(vars(module)))

    def describes(self, module: torch.nn.Module) -> bool:
        """Return whether the module is unchanged."""
        present = vars(module)
        return (
            same_objects(module._modules, self.children)
            and same_objects(module._buffers, self.buffers)
            and (same_objects(present, self.attributes) or self._has_same_settings(present))
            and (not self.contents or self._has_same_contents())
        )

    def _has_same_contents(self) -> bool:
        return all(torch.equal(self.buffers[name], old) for name, old in self.contents.items())

    def _has_same_settings(self, present: dict[str, object]) -> bool:
        return all(
            name in present and is_same(present[name], value)
            for name, value in self._settings().items()
        )

    def _settings(self) -> dict[str, object]:
        return {name: value for name, value in self.attributes.items() if isinstance(value, PLAIN)}

    def restore(self, module: torch.nn.Module) -> None:
        """Undo the changes of the module."""
        module._modules.clear()
        module._modules.update(self.children)
        module._buffers.clear()
        module._buffers.update(self.buffers)
        with torch.inference_mode():  # buffers created in this mode can be written only in it
            for name, content in self.contents.items():
                self.buffers[name].copy_(content)
        vars(module).update(self._settings())


@contextmanager
def state_kept(model: torch.nn.Module) -> Iterator[KeptState]:
    """Restore the buffers and settings of a model afterwards.

    Yields:
        its state before any text is read.
    """
    modules = modules_of(model)
    state = KeptState(modules)
    try:
        yield KeptState(modules) if forget_lengths(modules) else state
    finally:
        state.restore(state.changed())


def forget_lengths(modules: Sequence[torch.nn.Module]) -> bool:
    """Reset rotary embeddings to their frequencies before any text was read.

    Returns:
        whether there are embeddings whose frequencies grow.
    """
    growing = [module for module in modules if is_growing_rotary(module)]
    for module in growing:  # frequencies that a user has set are intentional
        limit = getattr(module, "original_max_seq_len", None)
        for name in [n for n in module._buffers if n.endswith("inv_freq")]:
            prefix = name.removesuffix("inv_freq")
            original = getattr(module, f"{prefix}original_inv_freq", None)
            if limit is not None and isinstance(original, torch.Tensor):
                module._buffers[name] = original.clone().to(getattr(module, name).device)
                setattr(module, f"{prefix}max_seq_len_cached", limit)
    return bool(growing)


def same_objects(present: dict, saved: dict) -> bool:
    if not saved:
        return not present
    found = map(present.get, saved, itertools.repeat(MISSING))
    return len(present) == len(saved) and all(map(operator.is_, found, saved.values()))


def is_same(value: object, other: object) -> bool:
    if value is other:
        return True
    return isinstance(value, int | float | str) and type(value) is type(other) and value == other


# --- tables of positions --------------------------------------------------------------------------


def position_table(model: torch.nn.Module) -> int | None:
    """Return the size of the model's table of learned or precomputed absolute positions, or None.

    Tables of relative positions and those of a vision tower are not limits, but cannot be recognised
    by their names, so short forward passes record the entries that are read for each position.
    """
    embeddings = input_embeddings(model)
    sizes, fixed = [], []
    for module in modules_of(model):
        if isinstance(module, torch.nn.Embedding) and module is not embeddings:
            sizes.append(module.num_embeddings)
        for name in ("embed_positions", "pos_encoding"):  # GPT-J and CodeGen; CTRL
            precomputed = getattr(
                module, name, None
            )  # a plain attribute, in CTRL and older transformers
            if isinstance(precomputed, torch.Tensor) and precomputed.ndim == 2:
                fixed.append(precomputed.shape[0])
    if sizes:
        known = _TABLES.get(model)
        if known is None or known[0] != sizes:
            known = _TABLES[model] = sizes, tables_read(model)
        fixed += known[1]
    return min(fixed, default=None)


def tables_read(model: torch.nn.Module) -> list[int]:
    """Return the size of each table that the model reads at consecutive entries, one for each token.

    Tables of prefix tuning are read at as many entries in every pass.
    """
    short, longer = TABLE_PROBES
    found = tables_read_by(model, short)
    again = tables_read_by(model, longer) if found else None  # None as well if it has fewer entries
    return [rows - first for rows, first in found or () if again is None or (rows, first) in again]


@torch.inference_mode()
def tables_read_by(model: torch.nn.Module, length: int) -> list[tuple[int, int]] | None:
    """Return (rows, first entry) of the tables that a pass reads at consecutive entries; None if it fails.

    OPT and its kin keep the first entries for themselves.
    """
    # It has no position in RoBERTa, whose modules keep what the configuration was.
    padding = {getattr(module, "padding_idx", None) for module in modules_of(model)}
    padding.add(getattr(text_config(model), "pad_token_id", None))
    # Descending, so that token ids are not mistaken for positions.
    tokens = [token for token in range(length + len(padding), -1, -1) if token not in padding]
    tokens = tokens[-length:]
    ids = torch.tensor([tokens], device=input_device(model))
    recorder = _EmbeddingRecorder()
    try:
        with evaluating(model), state_kept(model), recorder:
            model(**{ids_name(model): ids}, **forward_kwargs(model))
    except Exception:
        return None  # other modules are refused elsewhere
    steps = torch.arange(length)
    return [
        (rows, int(entries[0]))
        for rows, entries in recorder.read
        if len(entries) == len(steps) and torch.equal(entries - entries[0], steps)
    ]


class _EmbeddingRecorder(TorchDispatchMode):
    """Records look-ups in tables.

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


# --- architectures for which short passes suffice ------------------------------------------------


def is_known_architecture(model: torch.nn.Module) -> bool:
    """Return whether a model has a verified architecture without detectable modifications."""
    config, built = getattr(model, "config", None), examine(model)
    return (
        getattr(config, "model_type", None) in VERIFIED_ARCHITECTURES
        and getattr(config, "_attn_implementation", None) in ATTENTION
        and not grows_frequencies(model)
        and not has_local_layers(config)
        and has_forward_of_transformers(model)
        and all(map(is_of_library, modules_of(model)))
        and not modifications(built)
        and not runs_own_code(built, library_code(built.structure.of_libraries))
    )


def has_local_layers(config: object) -> bool:
    """Return whether the configuration has layers with local attention."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return any(getattr(config, name, None) is not None for name in LOCAL_SETTINGS)


def is_of_library(module: torch.nn.Module) -> bool:
    """Return whether a module belongs to torch, transformers, peft or accelerate, unmodified."""
    own = vars(module)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return (
        package_of(type(module).__module__) in KNOWN_PACKAGES
        and ("forward" not in own or is_moved(module))
        and all(map(is_known, hooks))
    )
