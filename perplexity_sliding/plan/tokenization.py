"""Convert texts to token ids: encodings, start tokens, joined texts.

This module depends on tokenizers, not on models.  Arrays are numpy arrays: ids (N,), and offsets
(N, 2) in characters of the original text, which include the white space of a token.
"""

import io
import json
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, cast

import numpy as np
import xxhash
from tokenizers import processors
from transformers import AddedToken, PreTrainedTokenizerBase

from ..digests import as_json, digest_of
from ..errors import ArgumentError, ArgumentTypeError, Wording
from ..protocols import Start

Chat = Sequence[Mapping[str, Any]]

# Long words have many segmentations, so a tokenizer that samples practically never repeats one.
TRIAL = "Incomprehensibilities notwithstanding, counterrevolutionaries mischaracterized it. " * 4
TRIALS = 4

# Texts per call of the tokenizer: enough to keep its threads busy, few enough that the Python lists
# it returns stay small.
TEXTS_PER_CALL = 1024
_LOCKS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()
# No id of any token.
NO_TOKEN = -1

# Parts of the names of settings that are of a tokenizer's origin, padding, truncation or chats, or
# that are digested elsewhere; one that was saved and loaded has more of them.
TOKENIZER_PROVENANCE = (
    "name_or_path", "file", "padding", "pad_token", "truncation", "max_length", "verbose", "template",
    "chat", "backend", "local", "special_tokens", "cache", "init_",
    "total_vocab_size",
    "deprecation_warnings",
)  # fmt: skip
# The probe text, which is followed by PROBE_TOKENS tokens of the vocabulary.
PROBE_TEXT = (
    "The quick brown fox; it's 1,234.56 EUR (or 0x7f)!  Two  spaces,\ttab\r\nand\n\nlines. "
    "na\u00efve nai\u0308ve \ufb01ne \u201cquoted\u201d \u2014 \u2026 \u00a0 \u200b \u3000 "
    "\u0414\u043e\u0431\u0440\u044b\u0439 \u03ba\u03cc\u03c3\u03bc\u03b5 "
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d\u3002\u3053\u3093\u306b\u3061\u306f "
    "\uc548\ub155 \U0001f469\u200d\U0001f4bb\U0001f1fa\U0001f1f3 <b>x</b> https://a.b/c?d=e#f "
    "def f(x): return {'a': [x**2 % 3]} # ok <s> </s> <unk> <|endoftext|> IOI \u0130\u0131\u00df"
)
PROBE_TOKENS = 1024
# Digests of the last tokenizers without custom code, by their state.
MOST_TRIED = 8
_TRIED: dict[tuple[bytes, str], str] = {}
# The ids of fast tokenizers.
_KNOWN_IDS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


# Packages that methods of transformers' tokenizers are written in.
WRITERS = ("transformers", "huggingface_hub")

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

    @property
    def across(self) -> list[tuple[int, str]]:
        """The tokens that span an edge, with their characters before the edge."""
        return [(first, tail) for (first, _), tail in zip(self.targets, self.tails) if tail]

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


@dataclass(frozen=True)
class Parts:
    """The scored parts of the texts: exactly one of contexts, spans and chats is given.

    Attributes:
        contexts: context that is read before each text.
        context_separator: string between a context and its text, which belongs to the text.
        spans: half-open ranges of the scored characters of each text.
        chats: messages to score instead of texts; only the assistant's are scored.
        written: the chats as formatted by another model's template, and their scored spans.
        template: digest of the template that formats chats; empty until it is known.
        boundary: treatment of a token that spans the edge of a scored part.  "joint": score the
            whole token.  "healed": score it given its characters before the part.  "separate": no
            token does, because context and text are tokenized separately.
    """

    contexts: Sequence[str] | None = None
    spans: Sequence[Sequence[Range]] | None = None
    chats: Sequence[Chat] | None = None
    written: tuple[Sequence[str], Sequence[Sequence[Range]]] | None = None
    boundary: str = "joint"
    context_separator: str = ""
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
        separator = {} if self.contexts is None else {"separator": repr(self.context_separator)}
        template = {"template": self.template} if self.template else {}
        return {"context": kind, **separator, **template, "boundary": self.boundary}

    def formatted_by(self, tokenizer: PreTrainedTokenizerBase) -> "Parts":
        """Return the parts with the digest of the template that formats chats, unless they are written."""
        if self.chats is None or self.written is not None:
            return self
        return replace(self, template=digest_of(getattr(tokenizer, "chat_template", None)))

    def describe_texts(self, texts: Sequence[str]) -> list[str]:
        """Describe each text and its scored part on one line.

        Args:
            texts: texts with their separators, see `separated`.
        """
        if self.chats is not None:
            return [as_json([dict(message) for message in chat]) for chat in self.chats]
        return [
            json.dumps([part, text]) for part, text in zip(self.contexts or self.spans or (), texts)
        ]

    def separated(self, texts: Sequence[str]) -> list[str]:
        """Prepend the separator to each text that has a context."""
        return [self._separator(number) + text for number, text in enumerate(texts)]

    def length_before(self, number: int) -> int:
        """Count the characters that are read before the caller's text."""
        context = "" if self.contexts is None else self.contexts[number]
        return len(context + self._separator(number))

    def _separator(self, number: int) -> str:
        return self.context_separator if self.contexts and self.contexts[number] else ""

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
    if tokenizer.bos_token_id is None:
        return False
    [encoded] = tokenize(tokenizer, ["a"], "default")
    return bool(encoded.added[:1].any()) and encoded.ids[0] == tokenizer.bos_token_id


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
    named = {*_roles(tokenizer).values(), *_extra_special(tokenizer)}
    ids = map(tokenizer.convert_tokens_to_ids, sorted(named))
    return {*ids, *(number for number, token in added if token.special)} - {None}


def _roles(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return the special tokens by their roles, without the one for padding."""
    roles = tokenizer.special_tokens_map.items()
    return {k: v for k, v in roles if k != "pad_token" and isinstance(v, str)}


def _extra_special(tokenizer: PreTrainedTokenizerBase) -> list[str]:
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
            "default once" with them unless the text itself begins with the start token, "lines"
            for each line separately, followed by the end-of-text token.
        with_offsets: keep character offsets, if the tokenizer returns them.
    """
    if encoding == "lines":
        return [tokenize_lines(tokenizer, text, with_offsets) for text in texts]
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
    if tokenizer.eos_token_id is None:
        raise ArgumentError(
            "tokenizer",
            "have an end-of-text token (eos_token) with this protocol, which adds it after every "
            "line",
            got="one without it",
        )
    # Split lines like a file; `splitlines` splits at other characters too.
    lines = list(io.StringIO(text, newline="")) or [""]
    without_ends = [line.rstrip("\r\n") for line in lines]
    parts = []
    for line, part in zip(
        without_ends, tokenize(tokenizer, without_ends, with_offsets=with_offsets)
    ):
        offsets = part.offsets
        if offsets is not None:
            offsets = np.concatenate([offsets, [[len(line), len(line)]]])
        ids, added = np.append(part.ids, tokenizer.eos_token_id), np.append(part.added, True)
        parts.append(TokenizedText(ids, offsets, added))
    return concatenate(parts, lines)


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


@dataclass(frozen=True)
class VocabularyIds:
    """The ids of a fast tokenizer's vocabulary, without added tokens.

    Attributes:
        num_words: the number of words.
        end: the largest id and one; more than the number of words if ids are unused.
        shared: for each id with several words, the alphabetically first.
        digest: of all words, if ids are shared; "" otherwise.
    """

    num_words: int
    end: int
    shared: Mapping[int, str]
    digest: str


def vocabulary_ids(tokenizer: PreTrainedTokenizerBase) -> VocabularyIds | None:
    """Return the ids of a fast tokenizer's vocabulary; None for a tokenizer in Python."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        return None
    num_words = backend.get_vocab_size(with_added_tokens=False)
    known = _KNOWN_IDS.get(tokenizer)
    if known is None or known.num_words != num_words:
        words = backend.get_vocab(with_added_tokens=False)
        shared = {number for number, count in Counter(words.values()).items() if count > 1}
        ordered = sorted(words.items()) if shared else []
        known = _KNOWN_IDS[tokenizer] = VocabularyIds(
            num_words,
            1 + max(words.values(), default=-1),
            {number: word for word, number in reversed(ordered) if number in shared},
            digest_of(ordered) if shared else "",
        )
    return known


def tokens_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the tokens with some ids; "" for an unused id.

    Of several words with one id, the tokenizers library returns a random one, and of an added token
    at times what the normalizer makes of it.
    """
    known = vocabulary_ids(tokenizer)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    written = {
        **(known.shared if known else {}),
        **{number: token.content for number, token in added.items()},
    }
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    return [written.get(number, token) or "" for number, token in zip(ids, tokens)]


def end_of_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the largest id of a token and one; more than the number of tokens if ids are unused."""
    known = vocabulary_ids(tokenizer)
    if known is None:
        return 1 + max(tokenizer.get_vocab().values(), default=-1)
    return max(known.end, 1 + max(tokenizer.added_tokens_decoder, default=-1))


def vocabulary_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Decode every token of the vocabulary by id; an unused id gives ""."""
    tokens = tokens_of(tokenizer, range(end_of_ids(tokenizer)))
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


# --- checks ---------------------------------------------------------------------------------------


def check_tokenizer(tokenizer: Any, argument: str = "tokenizer") -> None:
    """Check that an object is a tokenizer, and a deterministic one.

    Raises:
        TypeError: it is not a tokenizer.
        ValueError: it samples, or has a part that cannot be identified.
    """
    needed = ("convert_ids_to_tokens", "is_fast")  # which mistral-common's has not
    if not callable(tokenizer) or not all(hasattr(tokenizer, name) for name in needed):
        raise ArgumentTypeError(
            argument, "be a transformers tokenizer", got=type(tokenizer).__name__
        )
    check_repeatable(tokenizer, f"`{argument}`")


def check_repeatable(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a tokenizer is deterministic.

    Args:
        name: its name in an error.

    Raises:
        ValueError: it samples, or has a part that cannot be identified.
    """
    setting = random_setting(tokenizer)
    if setting is None and _has_own_code(tokenizer):
        # The tokenizers library samples only by its settings.
        first, *others = tokenize(tokenizer, [TRIAL] * TRIALS)
        if any(not np.array_equal(other.ids, first.ids) for other in others):
            setting = f"a {type(tokenizer).__name__} that encoded one text in two ways"
    if setting is not None:
        raise ValueError(
            f"{name} must be deterministic, got {setting}: it samples its segmentation, so scores are "
            "not reproducible. Disable sampling."
        )
    part = part_in_python(tokenizer)
    if part is not None:
        raise ValueError(
            f"{name} must consist of components of the tokenizers library, got a {part} in Python, "
            "which a signature cannot identify. Use one of the library's, or a subclass of "
            "PreTrainedTokenizer."
        )


def random_setting(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Describe the setting that makes a tokenizer sample; None without one."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    for setting in ("dropout", "alpha"):  # of byte-pair encoding and unigram models
        value = getattr(model, setting, None)
        if value:
            return f"`backend_tokenizer.model.{setting}`={value:.3g}"
    sampling = getattr(tokenizer, "sp_model_kwargs", None) or {}
    return "`sp_model_kwargs` with enable_sampling" if sampling.get("enable_sampling") else None


def part_in_python(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the name of a component of a fast tokenizer in Python; None without one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(backend, name, None)
        try:
            if part is not None:
                part.__getstate__()
        except Exception:  # the library's own components can be serialised
            return name.replace("_", "-")
    return None


# --- the digest -----------------------------------------------------------------------------------


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest everything that affects encoding and decoding, except padding and truncation.

    The digest covers the tokenizer's state, and its tokens of a probe text, which identify custom
    code.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        state: list[Any] = [_backend_state(tokenizer, backend)]
        state.append(getattr(tokenizer, "split_special_tokens", False))
    else:
        settings = _plain_settings(tokenizer)
        given = {
            key: str(value) if isinstance(value, AddedToken) else value
            for key, value in getattr(tokenizer, "init_kwargs", {}).items()
            if key not in settings and not any(word in key for word in TOKENIZER_PROVENANCE)
        }
        state = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), settings, given]
        state += _rules(tokenizer)
    special: dict = dict(tokenizer.special_tokens_map)
    if tokenizer.is_fast:  # others keep the padding token whole, wherever it is
        special.pop("pad_token", None)
    if extra := _extra_special(tokenizer):
        special["extra"] = extra
    if _has_own_code(tokenizer):
        offsets = [part.offsets for part in _encode_probe(tokenizer)]
        tried = [_try_out(tokenizer), [None if o is None else o.tolist() for o in offsets]]
        return digest_of([digest_of([state, special]), *tried])
    # Usually it is one of the last; serialising its state would take several times longer.  Its tokens
    # of a short text show changed code whatever its form.
    written, *others = state
    hashed = xxhash.xxh3_128(written.encode())
    for part in _encode_probe(tokenizer):
        hashed.update(part.ids.tobytes())
        hashed.update(b"" if part.offsets is None else part.offsets.tobytes())
    key = (hashed.digest(), repr([others, special]))
    digest = _TRIED.get(key)
    if digest is None:
        if len(_TRIED) >= MOST_TRIED:
            _TRIED.clear()
        digest = _TRIED[key] = digest_of([digest_of([state, special]), _try_out(tokenizer)])
    return digest


def _backend_state(tokenizer: PreTrainedTokenizerBase, backend: Any) -> str:
    """Return the state of a fast tokenizer as JSON, without truncation and padding.

    The JSON holds one word for each id, a random one if there are two; then its vocabulary is digested
    in its place, and its merges are written as ids.
    """
    known = vocabulary_ids(tokenizer)
    if known is not None and known.digest:
        written = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
        words = backend.get_vocab(with_added_tokens=False)
        merges = written["model"].get("merges", ())
        pairs = (m.split(" ") if isinstance(m, str) else m for m in merges)
        written["model"]["merges"] = [[words.get(word) for word in pair] for pair in pairs]
        written["model"]["vocab"] = known.digest
        return as_json(written)
    # Truncation and padding come first in the JSON; parsing half a megabyte would be slow.
    return backend.to_str().split('"added_tokens":', 1)[-1]


def _rules(tokenizer: Any) -> list:
    """List what determines how a tokenizer in Python splits a text, besides its vocabulary."""
    ranks: dict = getattr(tokenizer, "bpe_ranks", {})
    added = getattr(tokenizer, "added_tokens_decoder", {})
    parts = [
        (name, part)  # such as the WordPiece of BERT-like ones
        for name, part in sorted(vars(tokenizer).items())
        if type(part).__module__.startswith("transformers.")
    ]
    return [
        sorted(ranks, key=lambda pair: ranks[pair]),
        [_sentencepiece(owner) for owner in (tokenizer, *(part for _, part in parts))],
        sorted((number, repr(token)) for number, token in added.items()),
        sorted(getattr(tokenizer, "_added_tokens_encoder", {}).items()),
        getattr(tokenizer, "split_special_tokens", False),
        *([name, _plain_settings(part)] for name, part in parts),
    ]


def _sentencepiece(owner: object) -> list[str]:
    """Digest the models of SentencePiece of a tokenizer, or of a part of it."""
    held = (value for _, value in sorted(getattr(owner, "__dict__", {}).items()))
    protos = [m.serialized_model_proto() for m in held if hasattr(m, "serialized_model_proto")]
    return [xxhash.xxh3_128(proto).hexdigest() for proto in protos]


def _plain_settings(owner: object) -> dict:
    """Return the attributes of a tokenizer, or a part of it, that consist of numbers and strings."""
    return {
        name: sorted(map(repr, value)) if isinstance(value, set) else value
        for name, value in getattr(owner, "__dict__", {}).items()
        if not name.startswith("_")
        and not any(word in name for word in TOKENIZER_PROVENANCE)
        and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    """Return whether a value is a number or a string, or consists of such."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _has_own_code(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Check whether custom code may affect how a tokenizer encodes."""
    kind = type(tokenizer)
    return (
        not (tokenizer.is_fast and kind.__module__.startswith("transformers."))
        or any(
            callable(value) and callable(getattr(kind, name, None))
            for name, value in vars(tokenizer).items()
        )
        or any(map(_is_replaced, kind.__mro__))
    )


def _is_replaced(kind: type) -> bool:
    """Check whether a method of a class of transformers was written elsewhere."""
    if not kind.__module__.startswith("transformers."):
        return False
    return any(
        isinstance(value, FunctionType)
        and value.__globals__.get("__name__", "").partition(".")[0] not in WRITERS
        for value in vars(kind).values()
    )


def _encode_probe(tokenizer: PreTrainedTokenizerBase) -> list[TokenizedText]:
    """Encode a probe text of many scripts, without and with special tokens."""
    return [
        *tokenize(tokenizer, [PROBE_TEXT, _added_words(tokenizer)], with_offsets=True),
        *tokenize(tokenizer, [PROBE_TEXT], "default"),
    ]


def _added_words(tokenizer: PreTrainedTokenizerBase) -> str:
    """Join the added tokens that are normalised, in several cases.

    They are recognised as the normalizer wrote them when they were added; its settings may have been
    changed in place since.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    words = sorted(token.content for token in added if token.normalized)
    return " ".join(case(word) for word in words for case in (str, str.lower, str.upper))


def _try_out(tokenizer: PreTrainedTokenizerBase) -> list:
    """Encode a probe text, and decode some tokens of the vocabulary.

    The text has many scripts, then tokens from the whole vocabulary, unchanged and with swapped case.
    """
    end = end_of_ids(tokenizer)
    tokens = tokens_of(tokenizer, range(0, end, max(1, end // PROBE_TOKENS)))
    words = " ".join(tokens).replace("\u0120", " ").replace("\u2581", " ")
    texts = [PROBE_TEXT, words, words.swapcase()]
    if added := _added_words(tokenizer):
        texts.append(added)
    streams = tokenize(tokenizer, texts)
    streams += tokenize(tokenizer, [PROBE_TEXT], "default")
    return [[stream.ids.tolist() for stream in streams], token_texts(tokenizer, tokens)]
