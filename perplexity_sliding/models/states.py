"""Carry a model's state from chunk to chunk of a text.

A recurrent model (Mamba, RWKV) has a state of fixed size; attention keeps the keys and values of
every token.  Tests of the model, not a list of architectures, decide whether it continues from its
state as in a single pass, and whether it can do so indefinitely.
"""

import itertools
from collections.abc import Iterator

import torch

from ..errors import ArgumentError
from .logits import OTHER_SHAPE, UNSUPPORTED_ERRORS, differ, is_out_of_memory
from .module import (
    forward_parameters,
    grows_frequencies,
    input_device,
    num_embeddings,
    position_table,
    precision,
    run_module,
    state_name,
    text_config,
)

# Models without `position_ids` whose attention depends only on distances.
ALIBI_MODELS = ("bloom", "mpt")
# Settings of models that scale their attention by the position in the text.
SCALED_BY_PLACE = ("attn_temperature_tuning", "log_scaling_n_floor")
PROBE_LENGTH = 11  # two chunks and a single token
# Where layers of a cache hold keys besides those of each token.
OTHER_KEYS = ("indexer_keys", "idx_keys", "compressed_kv")
# Tokens per chunk where a complete window is read.
WINDOW_CHUNK = 256
# Shift of positions that tests whether only distances matter.
PROBE_SHIFT = 1000


class StateReader:
    """Reads rows of token ids in chunks, carrying the model's state from one to the next.

    Attributes:
        single: whether only the first chunk may have several tokens, because Mamba continues from
            a state token by token.
        alone: whether only one text can be read at a time, because RWKV's step mixes rows.
        keeps_keys: whether the state grows with the text unless `keep` drops keys; None before the
            first chunk.
        windows: the attention windows of the model's own layers, in tokens.
    """

    def __init__(self, model: torch.nn.Module, single: bool = False, alone: bool = False) -> None:
        self.model = model
        self.single = single
        self.alone = alone
        self.state_name = state_name(model)
        self.takes_positions = "position_ids" in forward_parameters(model)
        self.keeps_keys: bool | None = None
        self.windows: tuple[int, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Reset the state; the next chunk begins other texts."""
        self.state = None
        self.num_read = 0

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, T, V) for the next token ids (B, T)."""
        kwargs: dict[str, object] = {"use_cache": True}
        if self.state is not None:
            kwargs[self.state_name] = self.state
        if self.takes_positions:
            places = torch.arange(self.num_read, self.num_read + ids.shape[1], device=ids.device)
            kwargs["position_ids"] = places.expand(len(ids), -1)
        output = run_module(self.model, ids, **kwargs)
        self.state = output[self.state_name]
        layers = attention_layers(self.state)
        self.keeps_keys = isinstance(self.state, tuple) or bool(layers)
        self.windows = tuple(sorted({layer.sliding_window for layer in layers if is_local(layer)}))
        self.num_read += ids.shape[1]
        return output.logits

    def keep(self, memory: int) -> None:
        """Drop all keys and values except those of the last `memory` tokens.

        Layers with their own attention window count the tokens read to know which keys they have;
        the count is reduced to the kept ones.
        """
        if isinstance(self.state, tuple):  # transformers before 4.48
            self.state = tuple(tuple(last(kept, memory) for kept in layer) for layer in self.state)
        for layer in attention_layers(self.state):
            layer.keys, layer.values = last(layer.keys, memory), last(layer.values, memory)
            if is_local(layer):
                layer.cumulative_length = min(layer.cumulative_length, memory)

    def describe(self, memory: int) -> str:
        """Describe the state for the signature: `keys(512)`, `keys(512,window 128)`, `state`."""
        if not self.keeps_keys:
            return "state"
        return f"keys({','.join([str(memory), *(f'window {size}' for size in self.windows)])})"

    def chunks(self, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Divide the next `length` tokens into half-open ranges of at most `size`."""
        if not self.single:
            yield from ((first, min(first + size, length)) for first in range(0, length, size))
            return
        head = min(size, length) if self.num_read == 0 else 0
        if head:
            yield 0, head
        yield from ((place, place + 1) for place in range(head, length))


def attention_layers(state: object) -> list:
    """List the layers of a cache with keys and values."""
    return [
        layer
        for layer in getattr(state, "layers", ())
        if isinstance(getattr(layer, "keys", None), torch.Tensor)
    ]


def is_local(layer: object) -> bool:
    """Return whether a layer of a cache has its own attention window."""
    return getattr(layer, "is_sliding", False)


def can_drop_keys(layer: object) -> bool:
    """Return whether keys can be dropped.

    Not those of a window before transformers 4.56, nor with additional keys: of an indexer, or compressed
    ones of DeepSeek V4, which stand for many tokens each.
    """
    counts = not is_local(layer) or isinstance(getattr(layer, "cumulative_length", None), int)
    return counts and all(getattr(layer, name, None) is None for name in OTHER_KEYS)


def last(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Copy the keys or values (B, H, T, D) of the last tokens."""
    return tensor[..., max(0, tensor.shape[-2] - count) :, :].clone()


def probe_ids(model: torch.nn.Module, length: int, first: int = 1) -> torch.Tensor:
    """Return a row of test token ids (T,); `first` selects others."""
    size = num_embeddings(model) or length + 1
    spread = torch.arange(first, first + length) * max(1, size // (length + 2)) % size
    return spread.to(input_device(model))


def find_reader(model: torch.nn.Module) -> StateReader | None:
    """Find a reader whose chunks have the logits of a single forward pass, if there is one."""
    length = min(PROBE_LENGTH, position_table(model) or PROBE_LENGTH)
    ids = torch.stack([probe_ids(model, length), probe_ids(model, length, first=3)])
    expected = run_module(model, ids).logits
    for single, alone in itertools.product((False, True), (False, True)):
        reader = StateReader(model, single, alone)
        rows = len(ids) - alone
        try:
            parts = [reader.logits(ids[:rows, a:b]) for a, b in reader.chunks(length, 5)]
            logits = torch.cat(parts, 1)
        except UNSUPPORTED_ERRORS:
            continue
        if logits.shape == expected[:rows].shape and not differ(
            logits, expected[:rows], OTHER_SHAPE[precision(model)]
        ):
            return reader if _continues_beyond_windows(model, reader) else None
    return None


def _continues_beyond_windows(model: torch.nn.Module, reader: StateReader) -> bool:
    """Return whether chunks still have the logits of a single pass once the windows of layers are full.

    Moshi's cache drops keys that its plain passes attend to.
    """
    window = max(reader.windows, default=0)
    length = window + PROBE_LENGTH
    if not window or length > (position_table(model) or length):
        return True
    ids = probe_ids(model, length)[None]
    name = "logits_to_keep"
    kept = {name: 1} if name in forward_parameters(model) else {}
    try:
        expected = run_module(model, ids, **kept).logits[:, -1:]
        reader.begin()
        ranges = reader.chunks(length, window if reader.single else min(window, WINDOW_CHUNK))
        for first, end in ranges:
            logits = reader.logits(ids[:, first:end])
    except Exception as error:
        if is_out_of_memory(error):
            return True
        raise
    return not differ(logits[:, -1:], expected, OTHER_SHAPE[precision(model)])


@torch.inference_mode()
def find_carrier(model: torch.nn.Module, name: str) -> StateReader:
    """Find a reader that can continue indefinitely.

    Raises:
        ValueError: there is none, with the reason.
    """
    reader = find_reader(model)
    reason = why_not_carried(model, reader)
    if reader is None or reason is not None:
        raise ArgumentError(
            "carry", f"be left out with {name}: {reason}", advice="Use a sliding window instead."
        )
    reader.begin()
    return reader


def why_not_carried(model: torch.nn.Module, reader: StateReader | None) -> str | None:
    """Return the reason why a model cannot continue indefinitely; None if it can."""
    table = position_table(model)
    if table is not None:
        return f"its positions are a table of {table} entries, which limits the text"
    if grows_frequencies(model):
        return "its rotary frequencies depend on the length of the pass"
    if counts_places(model):
        return "its attention depends on a token's position in the text, counted by the cached keys"
    if reader is None:
        return "its logits differ when it continues from the state that it returned"
    if not all(map(can_drop_keys, attention_layers(reader.state))):
        return "its layers have state that cannot be dropped together with keys"
    if reader.keeps_keys and not sees_distances_only(model):
        return (
            "its attention uses absolute positions, so keys cannot be carried from one segment to the "
            "next"
        )
    return None


def counts_places(model: torch.nn.Module) -> bool:
    """Return whether attention is chunked, or scaled by the position, as in Llama 4.

    After keys are dropped, its cache would treat the first remaining key as the start of the text.
    """
    config = text_config(model)
    in_chunks = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    return in_chunks or any(getattr(config, name, None) for name in SCALED_BY_PLACE)


def sees_distances_only(model: torch.nn.Module) -> bool:
    """Return whether shifting all positions leaves the logits unchanged."""
    if "position_ids" not in forward_parameters(model):
        return getattr(model.config, "model_type", None) in ALIBI_MODELS
    ids = probe_ids(model, PROBE_LENGTH)[None]
    places = torch.arange(PROBE_LENGTH, device=ids.device)[None]
    try:
        moved = run_module(model, ids, position_ids=places + PROBE_SHIFT).logits
    except UNSUPPORTED_ERRORS:
        return False
    plain = run_module(model, ids, position_ids=places).logits
    return not differ(moved, plain, OTHER_SHAPE[precision(model)])
