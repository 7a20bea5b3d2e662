"""Convert texts to token ids and tokens to texts: encodings, start tokens, joined texts.

This module depends on tokenizers, not on models.  Arrays are numpy arrays: ids (N,), and offsets
(N, 2) in characters of the original text, which include the white space of a token.
"""

import io
import json
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import xxhash
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from ..digests import as_json, digest_of
from ..errors import ArgumentError, Wording
from ..protocols import Start

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
    """The part of a text that is scored; the rest is read as context.

    Attributes:
        targets: half-open ranges (first, end) of the scored tokens, ascending.
        spans: half-open ranges of the scored characters.
        tails: for each of `targets`, the characters of its first token before the span; "" if the
            token begins with the span.
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
        """Concatenate the scored spans of a text."""
        return "".join(text[first:end] for first, end in self.spans)

    def without_first(self, begin: int) -> "ScoredPart":
        """Return the part without the text's first token, which has `begin` characters."""
        moved = [(max(first - 1, 0), end - 1) for first, end in self.targets]
        kept = [number for number, (first, end) in enumerate(moved) if first < end]
        spans, longer = (
            tuple((max(first, begin), end) for first, end in ranges if end > begin)
            for ranges in (self.spans, self.longer)
        )
        return ScoredPart(
            tuple(moved[number] for number in kept),
            spans,
            tuple(self.tails[number] for number in kept),
            longer,
        )


@dataclass(frozen=True)
class TokenizedText:
    """One stream of tokens to plan windows over.

    Attributes:
        ids: token ids (N,), without the start token.
        offsets: half-open range of the characters of each token (N, 2), or None if the tokenizer
            returns none.
        added: marks special tokens added by the tokenizer or the protocol (N,).
        begin: number of characters of a dropped start token at the head of the text.
        part: the scored part of the text; None for the whole text.
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
        """The offsets.

        Raises:
            TypeError: the text was tokenized without offsets.
        """
        if self.offsets is None:
            raise TypeError("the text was tokenized without offsets")
        return self.offsets

    @property
    def scored_part(self) -> ScoredPart:
        """The scored part.

        Raises:
            TypeError: the text is scored as a whole.
        """
        if self.part is None:
            raise TypeError("the text is scored as a whole")
        return self.part

    def without_first(self, begin: int) -> "TokenizedText":
        """Return the text without its first token, which has `begin` characters."""
        return TokenizedText(
            self.ids[1:],
            None if self.offsets is None else self.offsets[1:],
            self.added[1:],
            begin,
            None if self.part is None else self.part.without_first(begin),
        )

    def followed_by_end(self, token_id: int, place: int) -> "TokenizedText":
        """Return these tokens with an end-of-text token that is added, after `place` characters."""
        offsets = self.offsets
        if offsets is not None:
            offsets = np.concatenate([offsets, [[place, place]]])
        return TokenizedText(np.append(self.ids, token_id), offsets, np.append(self.added, True))

    def followed_by(self, whole: "TokenizedText") -> "TokenizedText":
        """Return these tokens, and those of a longer text after as many."""
        first = len(self)
        return TokenizedText(
            np.concatenate([self.ids, whole.ids[first:]]),
            np.concatenate([self.known_offsets, whole.known_offsets[first:]]),
            np.concatenate([self.added, whole.added[first:]]),
        )


@dataclass(frozen=True)
class Parts:
    """The scored parts of the texts: exactly one of contexts, spans and chats is given.

    Attributes:
        contexts: context that is read before each text.
        spans: half-open ranges of the scored characters of each text.
        chats: messages to score instead of texts; only the assistant's are scored.
        written: the chats as formatted by another model's template, and their scored spans.
        template: digest of the template that formats chats; empty until it is known.
        boundary: treatment of a token that spans the edge of a scored part.  "joint": score the
            whole token.  "separate": no token does, because context and text are tokenized separately.
    """

    contexts: Sequence[str] | None = None
    spans: Sequence[Sequence[Range]] | None = None
    chats: Sequence[Chat] | None = None
    written: tuple[Sequence[str], Sequence[Sequence[Range]]] | None = None
    boundary: str = "joint"
    template: str = ""

    def describe(self) -> str:
        """Return the kind of parts."""
        if self.chats is not None:
            return "messages"
        return "texts after `contexts`" if self.spans is None else "`score_spans`"

    def fields(self) -> dict[str, str]:
        """Return the fields of the signature."""
        kinds = {"given": self.contexts, "spans": self.spans, "messages": self.chats}
        [kind] = [name for name, values in kinds.items() if values is not None]
        template = {"template": self.template} if self.template else {}
        return {"context": kind, **template, "boundary": self.boundary}

    def formatted_by(self, tokenizer: PreTrainedTokenizerBase) -> "Parts":
        """Return the parts with the digest of the template that formats chats, unless they are written."""
        if self.chats is None or self.written is not None:
            return self
        return replace(self, template=digest_of(getattr(tokenizer, "chat_template", None)))

    def describe_texts(self, texts: Sequence[str]) -> list[str]:
        """Describe each text and its scored part on one line."""
        if self.chats is not None:
            return [as_json([dict(message) for message in chat]) for chat in self.chats]
        return [
            json.dumps([part, text]) for part, text in zip(self.contexts or self.spans or (), texts)
        ]

    def as_read(self, texts: Sequence[str], streams: Sequence[TokenizedText]) -> "Parts":
        """Return the parts for a second model, which must read the same text as the first.

        Its own chat template could produce a different text.

        Args:
            texts, streams: result of `read_parts` for the first model.
        """
        if self.chats is None:
            return self
        spans = [
            [span for span in stream.scored_part.spans if span[0] < span[1]] for stream in streams
        ]
        return replace(self, written=(texts, spans))


def prepends_start_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Check whether the tokenizer itself prepends its start token."""
    if tokenizer.bos_token_id is None or not tokenizer.num_special_tokens_to_add():
        return False
    with unchanged(tokenizer):
        encoded = tokenizer("a", return_special_tokens_mask=True)
    first = zip(encoded["special_tokens_mask"][:1], encoded["input_ids"][:1])
    return list(first) == [(1, tokenizer.bos_token_id)]


def start_token_id(tokenizer: PreTrainedTokenizerBase, kind: str) -> int | None:
    """Return the id of the start token: "bos", "eos", or "bos or eos"; None if there is none."""
    if kind == "bos":
        return tokenizer.bos_token_id
    if kind == "bos or eos" and tokenizer.bos_token_id is not None:
        return tokenizer.bos_token_id
    return tokenizer.eos_token_id


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of all special tokens, with and without a role such as "bos".

    A token that is special for padding alone is not: no text is padded, and any may be chosen.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    named = {*_roles(tokenizer).values(), *extra_special(tokenizer)}
    ids = map(tokenizer.convert_tokens_to_ids, sorted(named))
    return {*ids, *(number for number, token in added if token.special)} - {None}


def _roles(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return the special tokens by their roles, without the one for padding."""
    roles = tokenizer.special_tokens_map.items()
    return {k: v for k, v in roles if k != "pad_token" and isinstance(v, str)}


def extra_special(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """List the special tokens without a role."""
    names = ("extra_special_tokens", "additional_special_tokens")
    lists = (getattr(tokenizer, name, None) for name in names)
    return sorted({str(token) for tokens in lists if isinstance(tokens, list) for token in tokens})


def resolve_start(tokenizer: PreTrainedTokenizerBase, add_start_token: bool | str) -> Start:
    """Resolve the argument `add_start_token` to "none", "once" or "every".

    True means "every" if the tokenizer itself prepends a start token, because such models expect
    one in each window.  Without a start token it means "none", as in the stock metric.
    """
    if add_start_token is False:
        return "none"
    if tokenizer.bos_token_id is None:
        warnings.warn(
            Wording(
                "The tokenizer has no start token (bos_token), so the first tokens of the texts are "
                "not scored. Pass `add_start_token=False` to silence this warning."
            ),
            stacklevel=2,
        )
        return "none"
    if add_start_token is True:
        return "every" if prepends_start_token(tokenizer) else "once"
    return cast(Start, add_start_token)


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
        with_offsets: keep character offsets, if the tokenizer returns them.

    Raises:
        ValueError: the tokenizer has no end-of-text token, and the encoding adds one.
    """
    if encoding == "lines":
        return [tokenize_lines(tokenizer, text, with_offsets) for text in texts]
    if encoding == "default ended":
        eos = end_token_id(tokenizer, "text")
        streams = tokenize(tokenizer, texts, "default", with_offsets)
        return [
            stream
            if len(stream) and stream.ids[-1] == eos
            else stream.followed_by_end(eos, len(text))
            for stream, text in zip(streams, texts)
        ]
    if encoding == "default once":
        start = tokenizer.bos_token or tokenizer.eos_token or "\0"
        encodings = ["plain" if text.startswith(start) else "default" for text in texts]
        return tokenize_each(tokenizer, texts, encodings, with_offsets)
    with_offsets = with_offsets and tokenizer.is_fast
    with untrimmed(tokenizer) if with_offsets else unchanged(tokenizer):
        return [
            stream
            for first in range(0, len(texts), TEXTS_PER_CALL)
            for stream in _encode(
                *(tokenizer, list(texts[first : first + TEXTS_PER_CALL])),
                *(encoding == "default", with_offsets),
            )
        ]


def tokenize_each(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    encodings: Sequence[str],
    with_offsets: bool = False,
) -> list[TokenizedText]:
    """Encode each text in its own encoding, with one call per encoding."""
    streams: dict[int, TokenizedText] = {}
    for encoding in sorted(set(encodings)):
        places = [place for place, of_text in enumerate(encodings) if of_text == encoding]
        chosen = [texts[place] for place in places]
        streams |= zip(places, tokenize(tokenizer, chosen, encoding, with_offsets))
    return [streams[place] for place in range(len(texts))]


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], special: bool, with_offsets: bool
) -> Iterator[TokenizedText]:
    """Encode texts in one call of the tokenizer, with or without its special tokens."""
    encoded = tokenizer(
        texts,
        add_special_tokens=special,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=with_offsets,
        verbose=False,  # no warning "Token indices sequence length is longer than…"
    )
    offsets = encoded["offset_mapping"] if with_offsets else [None] * len(texts)
    head, tail = added_around(tokenizer, texts) if special else (0, 0)
    for ids, spans in zip(encoded["input_ids"], offsets):
        added = np.zeros(len(ids), dtype=bool)
        if special:
            added[:head] = added[len(ids) - tail :] = True
        if spans is not None:
            spans = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
        yield TokenizedText(np.asarray(ids, dtype=np.int64), spans, added)


def added_around(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> tuple[int, int]:
    """Count the special tokens that a tokenizer adds before and after texts."""
    if not tokenizer.is_fast:
        built = tokenizer.build_inputs_with_special_tokens([NO_TOKEN])
        head = built.index(NO_TOKEN)
        return head, len(built) - head - 1
    for text in ("a", *texts):  # the first suffices, unless the vocabulary cannot encode it
        added = tokenizer(text, return_special_tokens_mask=True)["special_tokens_mask"]
        if 0 in added:
            return added.index(0), added[::-1].index(0)
    return len(added), 0


def tokenize_lines(
    tokenizer: PreTrainedTokenizerBase, text: str, with_offsets: bool
) -> TokenizedText:
    """Encode each line separately, with the end-of-text token instead of the newline.

    Raises:
        ValueError: the tokenizer has no end-of-text token.
    """
    eos = end_token_id(tokenizer, "line")
    # Split lines like a file; `splitlines` splits at other characters too.
    lines = list(io.StringIO(text, newline="")) or [""]
    without_ends = [line.rstrip("\r\n") for line in lines]
    parts = []
    for line, part in zip(
        without_ends, tokenize(tokenizer, without_ends, with_offsets=with_offsets)
    ):
        parts.append(part.followed_by_end(eos, len(line)))
    return concatenate(parts, lines)


def end_token_id(tokenizer: PreTrainedTokenizerBase, after: str) -> int:
    """Return the id of the end-of-text token that a protocol adds.

    Raises:
        ValueError: the tokenizer has none.
    """
    if tokenizer.eos_token_id is None:
        raise ArgumentError(
            "tokenizer",
            "have an end-of-text token (eos_token) with this protocol, which adds it after every "
            f"{after}",
            got="one without it",
        )
    return tokenizer.eos_token_id


def concatenate(parts: list[TokenizedText], texts: list[str]) -> TokenizedText:
    """Join the tokens of several texts into one stream; offsets refer to the joined texts."""
    ids = np.concatenate([part.ids for part in parts])
    added = np.concatenate([part.added for part in parts])
    if any(part.offsets is None for part in parts):
        return TokenizedText(ids, None, added)
    starts = np.cumsum([0] + [len(text) for text in texts[:-1]])
    offsets = np.concatenate([part.offsets + start for part, start in zip(parts, starts)])
    return TokenizedText(ids, offsets, added)


def without_start_token(
    tokenizer: PreTrainedTokenizerBase, start_id: int, text: str, stream: TokenizedText
) -> TokenizedText:
    """Drop a start token that is written at the start of the text, so that there are never two.

    The id alone is ambiguous, because unknown words may have the same id.
    """
    if len(stream) == 0 or stream.ids[0] != start_id:
        return stream
    [written] = tokens_of(tokenizer, [start_id])
    if not text.lstrip().startswith(written):
        return stream
    return stream.without_first(begin=text.index(written) + len(written))


def check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer returns offsets."""
    if not tokenizer.is_fast:
        raise ArgumentError(
            "tokenizer",
            "be a fast tokenizer, which returns the offsets needed to locate a part of a text",
            got=type(tokenizer).__name__,
            advice=(
                "Load it with use_fast=True, or tokenize contexts separately with "
                "`boundary='separate'`."
            ),
        )


def stream_hash(ids: np.ndarray) -> str:
    """Return a hash of the tokens that the model reads."""
    return xxhash.xxh3_128(np.ascontiguousarray(ids, dtype=np.int64).data).hexdigest()


def shared_lock(owner: object) -> threading.RLock:
    """Return the lock of an object that threads share, the same one each time."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(owner, threading.RLock())


@contextmanager
def unchanged(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Restore the truncation, padding and processing of a tokenizer afterwards.

    A call with `padding=False` permanently disables the padding of a fast tokenizer's backend.  Other
    threads wait, because they would encode with the changed settings.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "no_padding"):
        yield
        return
    with shared_lock(tokenizer):
        truncation, padding = backend.truncation, backend.padding
        post_processor = backend.post_processor
        try:
            yield
        finally:
            if truncation is None:
                backend.no_truncation()
            else:
                backend.enable_truncation(**truncation)
            backend.no_padding() if padding is None else backend.enable_padding(**padding)
            if post_processor is not None:
                backend.post_processor = post_processor


@contextmanager
def untrimmed(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Make a fast tokenizer return offsets that include white space; restore it afterwards.

    `trim_offsets` excludes white space, and gives tokens of white space empty offsets.
    """
    with unchanged(tokenizer):
        backend = tokenizer.backend_tokenizer
        state = backend.post_processor and backend.post_processor.__getstate__()
        if state and b'"trim_offsets":true' in state:
            # The only way to change a processor inside a sequence.
            whole = processors.ByteLevel()
            whole.__setstate__(json.dumps(json.loads(state, object_hook=_keep_all)).encode())
            backend.post_processor = whole
        yield


def _keep_all(settings: dict) -> dict:
    """Disable `trim_offsets` in the settings of a post-processor."""
    return settings | {"trim_offsets": False} if "trim_offsets" in settings else settings


def tokens_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the tokens with some ids; "" for an unused id."""
    return [token or "" for token in tokenizer.convert_ids_to_tokens(list(ids))]


def vocabulary_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Decode every token of the vocabulary by id; an unused id gives ""."""
    end = 1 + max(tokenizer.get_vocab().values(), default=-1)
    tokens = tokens_of(tokenizer, range(end))
    return [token and text for token, text in zip(tokens, token_texts(tokenizer, tokens))]


def token_texts(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> list[str]:
    """Decode each token as in the middle of a text, with its white space.

    A token is decoded between two others, because decoders strip both ends.  Offsets are unsuitable:
    some tokenizers trim them, others count a space that is not in the text.
    """
    join = partial(_join, tokenizer)
    anchor = _anchor(tokenizer)
    if join([anchor, anchor]) == anchor + anchor:
        return [_cut(join([anchor, token, anchor]), anchor, anchor) for token in tokens]
    # The decoder adds a space before every word; tokens without one continue a word.
    texts = [_cut(join([anchor, token]), anchor, "") for token in tokens]
    if all(text[:1].isspace() for text in texts):
        return [text.lstrip() + " " for text in texts]  # every token is a whole word
    return texts


def _join(tokenizer: PreTrainedTokenizerBase, tokens: list[str]) -> str:
    """Decode tokens as one text; without a decoder, join them with spaces.

    transformers 4.45 fails on a tokenizer without a decoder.
    """
    if tokenizer.is_fast and tokenizer.backend_tokenizer.decoder is None:
        return " ".join(tokens)
    return tokenizer.convert_tokens_to_string(tokens)


def _anchor(tokenizer: PreTrainedTokenizerBase) -> str:
    """Find a token of plain letters, which decodes to itself next to any other token."""
    vocabulary = tokenizer.get_vocab()
    letters = "abcdefghijklmnopqrstuvwxyz"
    return next((letter for letter in letters if letter in vocabulary), "a")


def _cut(text: str, head: str, tail: str) -> str:
    return text[len(head) : len(text) - len(tail)]
