"""From texts to token ids: what is encoded, which start token there is, what is joined.

Knows tokenizers, not models.  Arrays are numpy's: ids (N,), offsets (N, 2) in characters of the
original text.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import xxhash
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from .protocols import Protocol, Start

# Texts handed to the tokenizer in one call: enough to keep its threads busy, few enough that the
# Python lists it returns stay small.
TEXTS_PER_CALL = 1024


Range = tuple[int, int]


@dataclass(frozen=True)
class ScoredPart:
    """What of a text is scored; the rest is read as context.

    Attributes:
        targets: ranges (first, one past the last) of the tokens that are scored, ascending.
        spans: the same in characters.
        tails: for each of `targets`, the characters before its span that its first token stands
            for too; "" where a token begins where the span does.
    """

    targets: tuple[Range, ...]
    spans: tuple[Range, ...]
    tails: tuple[str, ...]

    @property
    def num_targets(self) -> int:
        return sum(end - first for first, end in self.targets)

    def of(self, text: str) -> str:
        """Return the characters that are scored, one span after the other."""
        return "".join(text[first:end] for first, end in self.spans)

    def without_first(self) -> "ScoredPart":
        """The same in a text without its first token."""
        moved = [(max(first - 1, 0), end - 1) for first, end in self.targets]
        kept = [number for number, (first, end) in enumerate(moved) if first < end]
        return ScoredPart(
            tuple(moved[number] for number in kept),
            self.spans,
            tuple(self.tails[number] for number in kept),
        )


@dataclass(frozen=True)
class TokenizedText:
    """One stream of tokens to plan windows over.

    Attributes:
        ids: token ids (N,), without the start token.
        offsets: first and one-past-last character of each token (N, 2), or None where the
            tokenizer does not say.
        num_added: how many of the ids are special tokens that the tokenizer added by itself.
        begin: characters at the head of the text that a dropped start token stands for.
        part: what of the text is scored; None for all of it.
    """

    ids: np.ndarray
    offsets: np.ndarray | None
    num_added: int
    begin: int = 0
    part: ScoredPart | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def without_first(self, begin: int) -> "TokenizedText":
        """The same without its first token, which stands for `begin` characters."""
        return TokenizedText(
            self.ids[1:],
            None if self.offsets is None else self.offsets[1:],
            self.num_added,
            begin,
            None if self.part is None else self.part.without_first(),
        )


def check_tokenizer(tokenizer: object, argument: str = "tokenizer") -> None:
    if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TypeError(
            f"`{argument}` must be a transformers tokenizer, got {type(tokenizer).__name__}."
        )


def prepends_start_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer itself puts its start token before a text that it encodes."""
    if tokenizer.bos_token_id is None:
        return False
    with unchanged(tokenizer):
        encoded = tokenizer("a", padding=False, truncation=False)["input_ids"]
        plain = tokenizer("a", padding=False, truncation=False, add_special_tokens=False)[
            "input_ids"
        ]
    return len(encoded) > len(plain) and encoded[0] == tokenizer.bos_token_id


def start_token_id(tokenizer: PreTrainedTokenizerBase, kind: str) -> int | None:
    """Return the id of the start token: "bos", "eos", or "bos or eos"; None where there is none."""
    if kind == "bos":
        return tokenizer.bos_token_id
    if kind == "bos or eos" and tokenizer.bos_token_id is not None:
        return tokenizer.bos_token_id
    return tokenizer.eos_token_id


def resolve_start(tokenizer: PreTrainedTokenizerBase, add_start_token: bool | str) -> str:
    """Turn the argument `add_start_token` into "none", "once" or "every".

    True means "every" where the tokenizer itself prepends a start token: models trained so expect
    one in each window.  A tokenizer without a start token gets none, as in the stock metric.
    """
    if add_start_token is False:
        return "none"
    if tokenizer.bos_token_id is None:
        warnings.warn(
            "The tokenizer has no start token (bos_token), so none is put before the texts and "
            "their first tokens are not scored. Pass `add_start_token=False` to silence this.",
            stacklevel=2,
        )
        return "none"
    if add_start_token is True:
        return "every" if prepends_start_token(tokenizer) else "once"
    return add_start_token


def choose_start(
    tokenizer: PreTrainedTokenizerBase, protocol: Protocol, add_start_token: bool | str
) -> Start:
    """Choose where the start token stands: the user's choice where the protocol leaves it."""
    if protocol.start == "chosen":
        start = resolve_start(tokenizer, add_start_token)
        # With one window to a text, "every" is "once".
        return "once" if protocol.last == "cut" and start == "every" else start
    if protocol.start == "replace" and not prepends_start_token(tokenizer):
        return "none"
    if protocol.start == "every if any":
        return "none" if start_token_id(tokenizer, protocol.start_is) is None else "every"
    return protocol.start


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    encoding: str = "plain",
    with_offsets: bool = False,
    untrimmed: bool = False,
) -> list[TokenizedText]:
    """Encode each text, untruncated, without padding.

    Args:
        encoding: "plain" for the text alone, "default" with the tokenizer's special tokens,
            "default once" with them unless the text itself begins with the start token, "lines"
            for every line alone with the end-of-text token after it.
        with_offsets: keep character offsets, where the tokenizer gives them.
        untrimmed: count white space that a token stands for among its characters, also where the
            tokenizer leaves it out of its offsets; for the encoding "plain".
    """
    if encoding == "lines":
        return [tokenize_lines(tokenizer, text, with_offsets) for text in texts]
    if encoding == "default once":
        start = tokenizer.bos_token or tokenizer.eos_token or "\0"
        return [
            text
            for begins_with_start, group in groupby(texts, key=lambda text: text.startswith(start))
            for text in tokenize(
                tokenizer, list(group), "plain" if begins_with_start else "default", with_offsets
            )
        ]
    with unchanged(tokenizer):
        if untrimmed and tokenizer.is_fast and tokenizer.backend_tokenizer.post_processor:
            # Without special tokens all that it does is trim.
            untrimming = processors.ByteLevel(trim_offsets=False)
            tokenizer.backend_tokenizer.post_processor = untrimming
        return [
            stream
            for first in range(0, len(texts), TEXTS_PER_CALL)
            for stream in _encode(
                tokenizer,
                texts[first : first + TEXTS_PER_CALL],
                encoding == "default",
                with_offsets and tokenizer.is_fast,
            )
        ]


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], special: bool, with_offsets: bool
) -> Iterator[TokenizedText]:
    """Encode texts in one call of a tokenizer, with its special tokens or without."""
    encoded = tokenizer(
        texts,
        add_special_tokens=special,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=with_offsets,
        verbose=False,  # "Token indices sequence length is longer than…" is no news here
    )
    num_added = tokenizer.num_special_tokens_to_add() if special else 0
    offsets = encoded["offset_mapping"] if with_offsets else [None] * len(texts)
    for ids, spans in zip(encoded["input_ids"], offsets):
        if spans is not None:
            spans = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
        yield TokenizedText(np.asarray(ids, dtype=np.int64), spans, num_added)


def tokenize_lines(
    tokenizer: PreTrainedTokenizerBase, text: str, with_offsets: bool
) -> TokenizedText:
    """Encode each line alone; the end-of-text token after it stands for the line's end.

    Raises:
        ValueError: the tokenizer has no such token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            "`tokenizer` must have an end-of-text token (eos_token) with this protocol, which puts "
            "it after every line, got one without."
        )
    lines = text.splitlines(keepends=True) or [""]
    without_ends = [line.rstrip("\r\n") for line in lines]
    parts = []
    for line, part in zip(
        without_ends, tokenize(tokenizer, without_ends, with_offsets=with_offsets)
    ):
        offsets = part.offsets
        if offsets is not None:
            offsets = np.concatenate([offsets, [[len(line), len(line)]]])
        parts.append(TokenizedText(np.append(part.ids, tokenizer.eos_token_id), offsets, 1))
    return concatenate(parts, lines)


def concatenate(parts: list[TokenizedText], texts: list[str]) -> TokenizedText:
    """Join the tokens of several texts into one stream; offsets count through `texts` joined."""
    ids = np.concatenate([part.ids for part in parts])
    num_added = sum(part.num_added for part in parts)
    if any(part.offsets is None for part in parts):
        return TokenizedText(ids, None, num_added)
    starts = np.cumsum([0] + [len(text) for text in texts[:-1]])
    offsets = np.concatenate([part.offsets + start for part, start in zip(parts, starts)])
    return TokenizedText(ids, offsets, num_added)


def without_start_token(
    tokenizer: PreTrainedTokenizerBase, start_id: int, text: str, stream: TokenizedText
) -> TokenizedText:
    """Drop a start token written out at the head of the text, so that there are never two."""
    if len(stream) == 0 or stream.ids[0] != start_id:
        return stream
    written = tokenizer.convert_ids_to_tokens(start_id)
    _, mark, remainder = text.partition(written)
    return stream.without_first(begin=len(text) - len(remainder) if mark else 0)


def tokenizer_vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return tokens by id, without added ones, which differ between models of a family."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {number: token for token, number in tokenizer.get_vocab().items() if number not in added}


def stream_hash(ids: np.ndarray) -> str:
    """Identify a text by the tokens that the model reads."""
    return xxhash.xxh3_128(np.ascontiguousarray(ids, dtype=np.int64)).hexdigest()


@contextmanager
def unchanged(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Restore the truncation, padding and processing of a tokenizer afterwards.

    Calling a fast tokenizer with `padding=False` switches its backend's padding off for good.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "no_padding"):
        yield
        return
    truncation, padding = backend.truncation, backend.padding
    post_processor = backend.post_processor
    try:
        yield
    finally:
        backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
        backend.no_padding() if padding is None else backend.enable_padding(**padding)
        if post_processor is not None:
            backend.post_processor = post_processor


def token_texts(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> list[str]:
    """Decode each token as in the middle of a text, with its white space.

    A token is decoded between two others, since decoders strip what is at the ends.  Offsets would
    not do: some tokenizers trim them, others count a space that is not in the text.
    """
    join = tokenizer.convert_tokens_to_string
    anchor = _anchor(tokenizer)
    if join([anchor, anchor]) == anchor + anchor:
        return [_cut(join([anchor, token, anchor]), anchor, anchor) for token in tokens]
    # The decoder puts a space before every word: tokens that it puts none before go on with one.
    texts = [_cut(join([anchor, token]), anchor, "") for token in tokens]
    if all(text[:1].isspace() for text in texts):
        return [text.lstrip() + " " for text in texts]  # every token is a whole word
    return texts


def _anchor(tokenizer: PreTrainedTokenizerBase) -> str:
    """Find a token of plain letters, which decodes to itself beside any other."""
    vocabulary = tokenizer.get_vocab()
    letters = "abcdefghijklmnopqrstuvwxyz"
    return next((letter for letter in letters if letter in vocabulary), "a")


def _cut(text: str, head: str, tail: str) -> str:
    return text[len(head) : len(text) - len(tail)]
