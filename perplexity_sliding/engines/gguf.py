"""A GGUF file run by llama.cpp in this process, with all of its logits.

It uses the C interface of llama-cpp-python.  Tokens are decoded in chunks, and logits are computed
only for the scored rows, so that those of one chunk fit in memory.
https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h
"""

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from types import ModuleType

import numpy as np
import torch
import xxhash
from transformers import PreTrainedTokenizerBase

from ..digests import DIGITS
from ..errors import ArgumentError
from ..models.identity import probe_text
from ..models.interface import Batch, EngineModel, LogitBlocks, Prefix
from ..models.loading import load_tokenizer, parts_of
from ..plan.windows import ContextLimit

# Tokens per decoding step, llama.cpp's own default.
PART = 512
# Architectures with a table of positions of the trained length.
LEARNED_POSITIONS = ("gpt2", "starcoder")
# Bytes of a file to read at a time for its digest.
CHUNK = 2**24
# Prefixes of the settings of llama.cpp that do not affect scores.
WITHOUT_EFFECT = ("n_threads", "n_gpu_layers", "main_gpu", "load_mode", "lazy_mode", "no_perf")


def is_gguf(model_id: object) -> bool:
    return isinstance(model_id, str) and model_id.lower().endswith(".gguf")


@cache
def load_library(argument: str) -> ModuleType:
    try:
        import llama_cpp
    except ImportError:
        raise ValueError(
            f"`{argument}` is a GGUF file, which requires the package llama-cpp-python: "
            "pip install llama-cpp-python"
        ) from None
    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _SILENT(level: int, text: bytes, data: object) -> None:
    pass


class GGUFModel(EngineModel):
    """A GGUF file run by llama.cpp; otherwise like `LanguageModel`.

    Args:
        path: the file; the first one of a split model.
        tokenizer: the original model's tokenizer; by default transformers builds one from the file.
        settings: fields of llama.cpp's `llama_model_params` and `llama_context_params`.
    """

    gives_logits = True
    by_blocks = True

    def __init__(
        self,
        path: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        settings: dict | None = None,
        argument: str = "model_id",
    ) -> None:
        super().__init__()
        for part in parts_of(path):
            if not os.path.isfile(part):
                raise ArgumentError(argument, f"be a GGUF file, but there is none at {part!r}")
        self.library = load_library(argument)
        self.name = os.path.basename(path)
        self.description = f"`{argument}`={path!r}"
        self.settings = dict(settings or {})
        self._context, self._places = None, 0
        self._free: Callable[[], object] = lambda: None
        params = self.library.llama_model_default_params()
        unknown = set_fields(params, self.settings)
        unknown &= set_fields(self.library.llama_context_default_params(), self.settings)
        if unknown:
            raise ArgumentError(
                "model_kwargs",
                "contain settings of llama.cpp with a GGUF file, such as n_gpu_layers, n_threads, type_k",
                got=repr(sorted(unknown)[0]),
            )
        self._model = self.library.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise ValueError(
                f"{self.description} could not be loaded by llama.cpp: the file is damaged, "
                "unsupported by this version, or too large for the memory."
            )
        weakref.finalize(self, self.library.llama_model_free, self._model)
        self._vocabulary = self.library.llama_model_get_vocab(self._model)
        self.vocabulary_size = int(self.library.llama_vocab_n_tokens(self._vocabulary))
        self.num_embeddings = self.vocabulary_size
        trained = int(self.library.llama_model_n_ctx_train(self._model)) or None
        learned = trained if self.metadata("general.architecture") in LEARNED_POSITIONS else None
        self.limit = ContextLimit(trained, learned)
        # after the weights: for a damaged file, transformers reports a misleading error
        folder, file = os.path.split(os.path.abspath(path))
        self.tokenizer = tokenizer or load_tokenizer(folder, {"gguf_file": file}, argument)
        check_vocabulary(self, path)
        self.revision = file_digest(path)

    def metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        size = self.library.llama_model_meta_val_str(self._model, key.encode(), buffer, 256)
        return buffer.value.decode(errors="replace") if size >= 0 else None

    def tokens(self) -> dict[int, str]:
        """Return the file's own ordinary tokens by id; empty without a vocabulary."""
        library, vocabulary = self.library, self._vocabulary
        if library.llama_vocab_type(vocabulary) == library.LLAMA_VOCAB_TYPE_NONE:
            return {}
        ordinary = library.LLAMA_TOKEN_ATTR_NORMAL | library.LLAMA_TOKEN_ATTR_BYTE
        return {
            token: library.llama_vocab_get_text(vocabulary, token).decode(errors="replace")
            for token in range(self.vocabulary_size)
            if library.llama_vocab_get_attr(vocabulary, token) & ordinary
        }

    def in_use(self) -> AbstractContextManager:
        return self.lock

    def check(self) -> None:
        """Accept the model: llama.cpp runs decoders alone."""

    def measure_probe(self) -> float:
        ids = probe_text(self.vocabulary_size, self.limit.length)
        self.prepare(len(ids) - 1)
        blocks = self._decode(ids[:-1], np.arange(len(ids) - 1), PART)
        logits = torch.cat([block.clone() for block in blocks])
        return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()

    def prepare(self, length: int) -> None:
        if length <= self._places:
            return
        params = self.library.llama_context_default_params()
        # not all of the machine: its threads spin while they wait
        params.n_threads = self.settings.get("n_threads", torch.get_num_threads())
        params.n_threads_batch = params.n_threads
        set_fields(params, self.settings)
        params.n_ctx = max(length, PART)
        params.n_batch = params.n_ubatch = PART
        self._free()
        self._places = 0
        self._context = self.library.llama_init_from_model(self._model, params)
        if not self._context:
            raise MemoryError(
                f"One window of {length} tokens of {self.description} does not fit in memory: "
                "reduce `max_length`."
            )
        self._places = length
        self._free = weakref.finalize(self, self.library.llama_free, self._context)

    def logits(self, batch: Batch, block_rows: int, prefix: Prefix | None = None) -> LogitBlocks:
        width = batch.ids.shape[1]
        scored, targets = batch.scored.numpy(), batch.targets
        ends = np.searchsorted(scored, np.arange(1, len(batch.ids) + 1) * width)
        begins = np.concatenate([[0], ends[:-1]])
        for line, begin, end in zip(batch.ids.tolist(), begins, ends):
            done = begin
            for logits in self._decode(line, scored[begin:end] % width, block_rows):
                yield logits, targets[done : done + len(logits)]
                done += len(logits)

    def _decode(self, ids: list[int], rows: np.ndarray, block_rows: int) -> Iterator[torch.Tensor]:
        """Yield the logits (R', V) of given rows of a pass; the next block overwrites them."""
        library, wanted = self.library, set(rows.tolist())
        last = int(rows[-1]) if len(rows) else -1
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        batch = library.llama_batch_init(PART, 0, 1)
        try:
            for first in range(0, last + 1, PART):
                part = range(first, min(first + PART, last + 1))
                batch.n_tokens = len(part)
                for number, place in enumerate(part):
                    batch.token[number], batch.pos[number] = ids[place], place
                    batch.n_seq_id[number], batch.seq_id[number][0] = 1, 0
                    batch.logits[number] = place in wanted
                status = library.llama_decode(self._context, batch)
                if status:
                    raise ValueError(f"llama.cpp failed on a window (status {status})")
                count = sum(place in wanted for place in part)
                if not count:
                    continue
                pointer = library.llama_get_logits(self._context)
                values = np.ctypeslib.as_array(pointer, shape=(count, self.vocabulary_size))
                yield from torch.from_numpy(values).split(block_rows)
        finally:
            library.llama_batch_free(batch)

    def signature_fields(self) -> dict[str, object]:
        given = {k: v for k, v in self.settings.items() if not k.startswith(WITHOUT_EFFECT)}
        options = ",".join(f"{key}={given[key]}" for key in sorted(given))
        return {
            "model": self.name,
            "revision": self.revision,
            "dtype": f"gguf-{self.file_type}",
            **({"options": options} if options else {}),
            "engine": f"llama-cpp-python {self.library.__version__}",
        }

    @property
    def file_type(self) -> str:
        """The quantisation of most weights, such as Q4_K_M."""
        number = self.metadata("general.file_type")
        for name in dir(self.library):
            kind = name.removeprefix("LLAMA_FTYPE_")
            if kind != name and number == str(int(getattr(self.library, name))):
                return kind.removeprefix("MOSTLY_").removeprefix("ALL_")
        return "unknown"


def check_vocabulary(model: GGUFModel, path: str) -> None:
    """Refuse a tokenizer with other tokens, except special and added ones, and spaces as ▁."""
    given = {token: text for text, token in model.tokenizer.get_vocab().items()}
    common = given.keys() - set(model.tokenizer.get_added_vocab().values())
    own = {token: text for token, text in model.tokens().items() if token in common}
    others = [t for t in own if given[t].replace("\u2581", " ") != own[t].replace("\u2581", " ")]
    if others:
        first = others[0]
        raise ArgumentError(
            "tokenizer",
            f"have the tokens of {path!r}",
            got=f"another token for {len(others):,} of {len(own):,} ids",
            why=f"{first} is {own[first]!r} in the file and {given[first]!r} in the tokenizer",
            advice="Leave it out for the file's own, or pass the tokenizer of the original model.",
        )


def set_fields(params: ctypes.Structure, settings: dict) -> set[str]:
    """Set fields of a structure; return the settings that it lacks."""
    names = {field[0] for field in params._fields_}
    for name in names & settings.keys():
        setattr(params, name, settings[name])
    return set(settings) - names


def file_digest(path: str) -> str:
    digest = xxhash.xxh3_128()
    for part in parts_of(path):
        with open(part, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:DIGITS]
