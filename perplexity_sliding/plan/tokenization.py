"""Convert texts to token ids and tokens to texts: encodings, start tokens, joined texts.

Arrays are of numpy: ids (N,), and offsets (N, 2) in characters of the original text, which include
the white space of a token.
"""

import io
import string
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError

Chat = Sequence[Mapping[str, Any]]

# Texts per call of the tokenizer: enough to keep its threads busy, few enough that the Python lists
# it returns stay small.
TEXTS_PER_CALL = 1024
_LOCKS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()
# No id of any token.
NO_TOKEN = -1

Range = tuple[int, int]


@dataclass(frozen=True)
class ScoredPart:
    """The part of a text that is scored; the rest is read as context.  Ranges are half-open.

    Attributes:
        targets: ranges of the scored tokens, ascending.
        spans: ranges of the scored characters.
        tails: for each of `targets`, the characters of its first token before the span.
        longer: of chats, the spans with the ends of turns, whose tokens are scored; empty elsewhere.
    """

    targets: tuple[Range, ...]
    spans: tuple[Range, ...]
    tails: tuple[str, ...]
    longer: tuple[Range, ...] = ()

    @property
    def num_targets(self) -> int:
        return sum(end - first for first, end in self.targets)

    def of(self, text: str) -> str:
        return "".join(text[first:end] for first, end in self.spans)

    def without_first(self, begin: int) -> "ScoredPart":
        """Return the part without the text's first token, which has `begin` characters."""
        moved = [(max(first - 1, 0), end - 1) for first, end in self.targets]
        kept = [(*ends, tail) for ends, tail in zip(moved, self.tails) if ends[0] < ends[1]]
        spans, longer = (
            tuple((max(first, begin), end) for first, end in ranges if end > begin)
            for ranges in (self.spans, self.longer)
        )
        targets = tuple((first, end) for first, end, _ in kept)
        return ScoredPart(targets, spans, tuple(tail for *_, tail in kept), longer)


@dataclass(frozen=True)
class TokenizedText:
    """One stream of tokens to plan windows over.

    Attributes:
        ids: token ids (N,), without the start token.
        offsets: half-open range of the characters of each token (N, 2), if the tokenizer returns them.
        added: marks special tokens added by the tokenizer or the protocol (N,).
        begin: number of characters of a dropped start token at the head of the text.
    """

    ids: np.ndarray
    offsets: np.ndarray | None
    added: np.ndarray
    begin: int = 0
    part: ScoredPart | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def known_offsets(self) -> np.ndarray:
        assert self.offsets is not None, "tokenized without offsets"
        return self.offsets

    @property
    def scored_part(self) -> ScoredPart:
        assert self.part is not None, "scored as a whole"
        return self.part

    def after(self, first: int) -> "TokenizedText":
        offsets = None if self.offsets is None else self.offsets[first:]
        return TokenizedText(self.ids[first:], offsets, self.added[first:])

    def followed_by_end(self, token_id: int, place: int) -> "TokenizedText":
        ids, ends = np.array([token_id]), np.array([[place, place]])
        return concatenate([self, TokenizedText(ids, ends, np.array([True]))], ["", ""])


def prepends_start_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    if not tokenizer.num_special_tokens_to_add():
        return False
    [stream] = tokenize(tokenizer, ["a"], "default")
    head = stream.ids[:1][stream.added[:1]]
    return head.tolist() == [tokenizer.bos_token_id]


def start_token_id(tokenizer: PreTrainedTokenizerBase, kind: str) -> int | None:
    """Return the id of the start token: "bos", "eos", or "bos or eos"; None if there is none."""
    ids = (getattr(tokenizer, f"{role}_token_id") for role in kind.split(" or "))
    return next((number for number in ids if number is not None), None)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of all special tokens but one for padding alone, as any may be chosen."""
    tokens = set(tokenizer.all_special_tokens)
    roles = tokenizer.special_tokens_map.items()
    if tokenizer.pad_token not in [token for role, token in roles if role != "pad_token"]:
        tokens.discard(tokenizer.pad_token)
    added = tokenizer.added_tokens_decoder.items()
    ids: Iterator[Any] = map(tokenizer.convert_tokens_to_ids, sorted(tokens))
    return {*ids, *(number for number, token in added if token.special)} - {None}


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    encoding: str = "plain",
    with_offsets: bool = False,
) -> list[TokenizedText]:
    """Encode each text, untruncated, without padding.

    Args:
        encoding: "plain" for the text alone, "default" with the tokenizer's special tokens,
            "default once" with them unless the text itself begins with the start token, "default
            ended" with them and the end-of-text token unless it is the last, "lines" for each line
            separately, followed by the end-of-text token.
    """
    eos: Any = None
    if encoding in ("lines", "default ended"):  # to look it up takes as long as a text
        eos = tokenizer.eos_token_id
        if eos is None:
            raise ArgumentError(
                "tokenizer",
                "have an end-of-text token (eos_token) with this protocol, which adds it after every "
                f"{'line' if encoding == 'lines' else 'text'}",
                got="one without it",
            )
    if encoding == "lines":
        streams = []
        for text in texts:
            # Split lines like a file; `splitlines` splits at other characters too.
            lines = list(io.StringIO(text, newline="")) or [""]
            bare = [line.rstrip("\r\n") for line in lines]
            parts = zip(tokenize(tokenizer, bare, with_offsets=with_offsets), bare)
            ended = [part.followed_by_end(eos, len(line)) for part, line in parts]
            streams.append(concatenate(ended, lines))
        return streams
    if encoding == "default ended":
        streams = tokenize(tokenizer, texts, "default", with_offsets)
        return [
            stream if stream.ids[-1:].tolist() == [eos] else stream.followed_by_end(eos, len(text))
            for stream, text in zip(streams, texts)
        ]
    if encoding == "default once":
        start = tokenizer.bos_token or tokenizer.eos_token or "\0"
        encodings = ["plain" if text.startswith(start) else "default" for text in texts]
        return tokenize_each(tokenizer, texts, encodings, with_offsets)
    with_offsets = with_offsets and tokenizer.is_fast
    streams = []
    with unchanged(tokenizer, untrimmed=with_offsets):
        for first in range(0, len(texts), TEXTS_PER_CALL):
            some = list(texts[first : first + TEXTS_PER_CALL])
            streams += _encode(tokenizer, some, encoding == "default", with_offsets)
    return streams


def tokenize_each(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    encodings: Sequence[str],
    with_offsets: bool = False,
) -> list[TokenizedText]:
    streams: dict[int, TokenizedText] = {}
    for encoding in sorted(set(encodings)):
        places = [place for place, of_text in enumerate(encodings) if of_text == encoding]
        chosen = [texts[place] for place in places]
        streams |= zip(places, tokenize(tokenizer, chosen, encoding, with_offsets))
    return [streams[place] for place in range(len(texts))]


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], special: bool, with_offsets: bool
) -> Iterator[TokenizedText]:
    marks = special and tokenizer.is_fast
    encoded = tokenizer(
        texts,
        add_special_tokens=special,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_special_tokens_mask=marks,
        return_offsets_mapping=with_offsets,
        verbose=False,  # no warning "Token indices sequence length is longer than…"
    )
    head = tail = 0
    if special and not marks:  # a slow tokenizer, whose mask may be empty
        built = tokenizer.build_inputs_with_special_tokens([NO_TOKEN])
        head, tail = built.index(NO_TOKEN), built[::-1].index(NO_TOKEN)
    for number, ids in enumerate(encoded["input_ids"]):
        added = np.zeros(len(ids), dtype=bool)
        added[:head] = added[len(ids) - tail :] = True
        if marks:
            added = np.array(encoded["special_tokens_mask"][number], dtype=bool)
        offsets = None
        if with_offsets:
            offsets = np.array(encoded["offset_mapping"][number], dtype=np.int64).reshape(-1, 2)
        yield TokenizedText(np.array(ids, dtype=np.int64), offsets, added)


def concatenate(parts: Sequence[TokenizedText], texts: Sequence[str]) -> TokenizedText:
    """Join streams; offsets refer to the joined texts, "" where those of the next refer to the same."""
    ids = np.concatenate([part.ids for part in parts])
    added = np.concatenate([part.added for part in parts])
    if any(part.offsets is None for part in parts):
        return TokenizedText(ids, None, added)
    starts = np.cumsum([0, *map(len, texts)])
    offsets = np.concatenate([part.offsets + start for part, start in zip(parts, starts)])
    return TokenizedText(ids, offsets, added)


def without_start_token(
    tokenizer: PreTrainedTokenizerBase, start_id: int, text: str, stream: TokenizedText
) -> TokenizedText:
    """Drop a start token that is written at the start of the text, so that there are never two."""
    [written] = tokens_of(tokenizer, [start_id])  # the id is ambiguous: unknown words may have it
    if stream.ids[:1].tolist() != [start_id] or not text.lstrip().startswith(written):
        return stream
    begin = text.index(written) + len(written)
    part = None if stream.part is None else stream.part.without_first(begin)
    return replace(stream.after(1), begin=begin, part=part)


def check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    if not tokenizer.is_fast:
        raise ArgumentError(
            "tokenizer",
            "be a fast tokenizer, which returns the offsets needed to locate a part of a text",
            got=type(tokenizer).__name__,
            advice="Load it with use_fast=True, or pass `boundary='separate'` with contexts.",
        )


def shared_lock(owner: object) -> threading.RLock:
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(owner, threading.RLock())


@contextmanager
def unchanged(tokenizer: PreTrainedTokenizerBase, untrimmed: bool) -> Iterator[None]:
    """Restore the truncation and padding of a fast tokenizer afterwards, which a call changes.

    If `untrimmed`, offsets include white space; `trim_offsets` excludes it, and empties those of
    tokens of white space.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "no_padding"):
        yield
        return
    with shared_lock(tokenizer):
        truncation, padding = backend.truncation, backend.padding
        post_processor = backend.post_processor
        state = post_processor.__getstate__() if untrimmed and post_processor else b""
        try:
            if b'"trim_offsets":true' in state:
                # the only way to change a processor inside a sequence
                whole = processors.ByteLevel()
                whole.__setstate__(state.replace(b'"trim_offsets":true', b'"trim_offsets":false'))
                backend.post_processor = whole
            yield
        finally:
            if truncation is None:
                backend.no_truncation()
            else:
                backend.enable_truncation(**truncation)
            backend.no_padding() if padding is None else backend.enable_padding(**padding)
            if post_processor is not None:
                backend.post_processor = post_processor


def tokens_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the tokens with some ids; "" for an unused id."""
    return [token or "" for token in tokenizer.convert_ids_to_tokens(list(ids))]


def vocabulary_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Decode every token of the vocabulary by id, with its white space; an unused id gives "".

    A token is decoded between two others, because decoders strip both ends.  Offsets are unsuitable:
    some tokenizers trim them, others count a space that is not in the text.
    """
    vocabulary = tokenizer.get_vocab()
    tokens = tokens_of(tokenizer, range(1 + max(vocabulary.values(), default=-1)))
    join: Callable[[list[str]], str] = tokenizer.convert_tokens_to_string
    if tokenizer.is_fast and tokenizer.backend_tokenizer.decoder is None:
        join = " ".join  # transformers 4.45 fails on a tokenizer without a decoder
    # plain letters decode to themselves next to any other token
    anchor = next((letter for letter in string.ascii_lowercase if letter in vocabulary), "a")
    if join([anchor, anchor]) == anchor + anchor:
        texts = [join([anchor, token, anchor])[1:-1] for token in tokens]
    else:
        # The decoder adds a space before every word; tokens without one continue a word.
        texts = [join([anchor, token])[1:] for token in tokens]
        if all(text[:1].isspace() for text in texts):  # every token is a whole word
            texts = [text.lstrip() + " " for text in texts]
    return [token and text for token, text in zip(tokens, texts)]
