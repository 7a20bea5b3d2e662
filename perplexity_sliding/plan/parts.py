"""Texts that are scored in part: after a context, in given spans, or the assistant's turns of a chat.

The whole text is tokenized and read; its `ScoredPart` lists the tokens to score.  `boundary` decides
about tokens that span the edge of a scored part.  The tokenizer's template formats chats.
"""

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import check_contexts, check_spans, runs_together
from ..digests import as_json, digest_of
from ..errors import ArgumentError, TextsError, Wording, name_positions
from ..protocols import Protocol
from .tokenization import (
    Chat,
    Range,
    ScoredPart,
    TokenizedText,
    check_fast,
    concatenate,
    special_ids,
    start_token_id,
    tokenize,
    tokenize_each,
)
from .windows import Plan, Window, last_window, restrict_windows

# The tags around the model's output in a template, with their control of white space.
BEGIN = re.compile(r"\{%(-?)\s*generation\s*(-?)%\}")
END = re.compile(r"\{%(-?)\s*endgeneration\s*(-?)%\}")
# Stands for a tag in a formatted chat; no text contains it.
NONCHARACTER = "\ufdd0"
HOW_TO_MARK = "Mark the assistant's turns in the template with {% generation %}"


@dataclass(frozen=True)
class Parts:
    """The scored parts of the texts: exactly one of contexts, spans and chats is given.

    Attributes:
        spans: half-open ranges of the scored characters of each text.
        chats: messages to score instead of texts; only the assistant's are scored.
        written: the chats as formatted by another model's template, and their scored spans.
        boundary: "joint" scores a token that spans the edge of a scored part as a whole; "separate"
            tokenizes context and text separately, so that none does.
        template: digest of the template that formats chats; empty until it is known.
    """

    contexts: Sequence[str] | None = None
    spans: Sequence[Sequence[Range]] | None = None
    chats: Sequence[Chat] | None = None
    written: tuple[Sequence[str], Sequence[Sequence[Range]]] | None = None
    boundary: str = "joint"
    template: str = ""

    def fields(self) -> dict[str, str]:
        kind = "given" if self.contexts is not None else "spans"
        kind = "messages" if self.chats is not None else kind
        template = {"template": self.template} if self.template else {}
        return {"context": kind, **template, "boundary": self.boundary}

    def formatted_by(self, tokenizer: PreTrainedTokenizerBase) -> "Parts":
        if self.chats is None or self.written is not None:
            return self
        return replace(self, template=digest_of(getattr(tokenizer, "chat_template", None)))

    def describe_texts(self, texts: Sequence[str]) -> list[str]:
        if self.chats is not None:
            return [as_json([dict(message) for message in chat]) for chat in self.chats]
        parts = self.contexts or self.spans or ()
        return [json.dumps([part, text]) for part, text in zip(parts, texts)]

    def as_read(self, texts: Sequence[str], streams: Sequence[TokenizedText]) -> "Parts":
        """Return the parts for a second model, whose template could format chats differently."""
        if self.chats is None:
            return self
        spans = [
            [span for span in stream.scored_part.spans if span[0] < span[1]] for stream in streams
        ]
        return replace(self, written=(texts, spans))


def check_parts(
    contexts: object,
    score_spans: object,
    boundary: str,
    texts: Sequence[str],
    chats: Sequence[Chat] | None,
) -> Parts | None:
    if contexts is None and score_spans is None and chats is None:
        return None
    contexts = check_contexts(contexts, len(texts))
    spans = check_spans(score_spans, texts)
    joined = [n for n, pair in enumerate(zip(contexts or (), texts)) if runs_together(*pair)]
    if contexts is not None and joined:
        first = contexts[joined[0]][-10:] + texts[joined[0]][:10]
        warnings.warn(
            f"Texts run together with their `contexts` at {name_positions(joined)} (first: {first!r}). "
            "Begin the texts with a space if it is missing.",
            stacklevel=2,
        )
    return Parts(contexts, spans, chats, boundary=boundary)


def read_parts(
    parts: Parts, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], protocol: Protocol
) -> tuple[list[str], list[TokenizedText]]:
    """Return the whole texts and their tokens, each with its scored part."""
    whole = list(texts)
    if parts.written is not None:
        whole, streams = list(parts.written[0]), read_spans(tokenizer, *parts.written)
    elif parts.chats is not None:
        whole, streams = read_chats(tokenizer, parts.chats)
    elif parts.contexts is None:
        streams = read_spans(tokenizer, whole, parts.spans or ())
    else:
        whole = [context + text for context, text in zip(parts.contexts, texts)]
        if protocol.pairs == "by lengths":
            streams = cut_by_lengths(tokenizer, parts.contexts, whole, protocol)
        elif parts.boundary == "separate":
            streams = tokenize_apart(tokenizer, parts.contexts, texts)
        else:
            spans = [[(len(context), len(pair))] for context, pair in zip(parts.contexts, whole)]
            streams = read_spans(tokenizer, whole, spans)
    empty = [number for number, stream in enumerate(streams) if not stream.scored_part.num_targets]
    if empty:
        by_lengths = protocol.pairs == "by lengths"
        advice = "Pass `protocol='sliding'`, which separates them by characters."
        raise ArgumentError(
            "predictions",
            "have at least 1 token in the scored part",
            got="none",
            positions=empty,
            why="a token spans the join, or a text is empty" if by_lengths else "",
            advice=advice if by_lengths else "Remove them.",
        )
    spanning = [number for number, stream in enumerate(streams) if any(stream.scored_part.tails)]
    if spanning:
        text, stream = whole[spanning[0]], streams[spanning[0]]
        pairs = zip(stream.scored_part.targets, stream.scored_part.tails)
        first, end = stream.known_offsets[next(begin for (begin, _), tail in pairs if tail)]
        warnings.warn(
            Wording(
                "A token spans the edge of the scored part in the texts at "
                f"{name_positions(spanning)} (first: {text[first:end]!r}); it is scored as a whole",
                advice="Move the edge to that of a token.",
                argument="boundary",
            ),
            stacklevel=2,
        )
    return whole, streams


def read_spans(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], spans: Sequence[Sequence[Range]]
) -> list[TokenizedText]:
    check_fast(tokenizer)
    streams = tokenize(tokenizer, list(texts), with_offsets=True)
    return [
        replace(stream, part=find_part(text, stream.known_offsets, of_text))
        for text, stream, of_text in zip(texts, streams, spans)
    ]


def find_part(text: str, offsets: np.ndarray, spans: Iterable[Range]) -> ScoredPart:
    """Find the tokens of spans of characters, given offsets (N, 2); spans that share one are united."""
    targets: list[Range] = []
    tails: list[str] = []
    spans = tuple(spans)
    for span in spans:
        begin, stop = tokens_of_span(offsets, *span)
        if targets and begin < targets[-1][1]:
            targets[-1] = (targets[-1][0], stop)
        elif begin < stop:
            targets.append((begin, stop))
            tails.append(text[int(offsets[begin, 0]) : span[0]])
    return ScoredPart(tuple(targets), spans, tuple(tails))


def tokens_of_span(offsets: np.ndarray, first: int, end: int) -> Range:
    """Find the tokens with a character of a span; those of one character's bytes have equal offsets."""
    begin = np.searchsorted(offsets[:, 1], first, side="right")
    return int(begin), int(np.searchsorted(offsets[:, 0], end, side="left"))


def tokenize_apart(
    tokenizer: PreTrainedTokenizerBase, contexts: Sequence[str], texts: Sequence[str]
) -> list[TokenizedText]:
    before = tokenize(tokenizer, list(contexts), with_offsets=True)
    after = tokenize(tokenizer, list(texts), with_offsets=True)
    streams = []
    for context, text, *pair in zip(contexts, texts, before, after):
        stream = concatenate(pair, [context, text])
        span = len(context), len(context) + len(text)
        part = ScoredPart(((len(pair[0]), len(stream)),), (span,), ("",))
        streams.append(replace(stream, part=part))
    return streams


def cut_by_lengths(
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[str],
    whole: Sequence[str],
    protocol: Protocol,
) -> list[TokenizedText]:
    """Tokenize as lm-evaluation-harness does for `loglikelihood(context, continuation)`.

    White space at the end of a context moves to the text.  The context has the tokens that it has alone,
    and the text those of both together (`whole`), from as many on.  An empty context is the start token,
    or an equal first token.
    """
    cut = [context.rstrip() for context in contexts]
    start_id = start_token_id(tokenizer, protocol.start_is)
    encodings = [protocol.encoding if context else "plain" for context in contexts]
    pairs = zip(
        tokenize_each(tokenizer, whole, encodings, with_offsets=True),
        tokenize_each(tokenizer, cut, encodings, with_offsets=True),
    )
    streams = []
    for context, text, (stream, alone) in zip(contexts, whole, pairs):
        first = int(stream.ids[:1].tolist() == [start_id])
        if context:
            first = len(alone)
            stream = concatenate([alone, stream.after(first)], ["", ""])
        targets = ((first, len(stream)),) if first < len(stream) else ()
        part = ScoredPart(targets, ((len(context), len(text)),), ("",))
        streams.append(replace(stream, part=part))
    return streams


# --- chats ----------------------------------------------------------------------------------------


def separate_chats(predictions: Any) -> tuple[Any, list[Chat] | None]:
    """Return the texts, or the assistant's messages of each chat; and the chats, or None."""
    if isinstance(predictions, str) or not isinstance(predictions, Sequence):
        return predictions, None
    chats = [
        value
        for value in predictions
        if isinstance(value, Sequence) and value and all(isinstance(m, Mapping) for m in value)
    ]
    if not chats:
        return predictions, None
    if len(chats) < len(predictions):
        raise ArgumentError(
            "predictions",
            "be either texts or chats, all in one call",
            got=f"{len(chats)} chats and {len(predictions) - len(chats)} texts",
        )
    for number, chat in enumerate(chats):
        for turn, message in enumerate(chat):
            role, content = message.get("role"), message.get("content")
            if not isinstance(role, str) or not isinstance(content, str):
                raise TextsError(
                    "predictions",
                    "be chats of messages with a role and a text",
                    got=f"the role {role!r} and the content {content!r:.60} in message {turn}",
                    advice="Join parts of a content; pass '' for a turn without words.",
                    positions=[number],
                )
    spoken = ([m["content"] for m in chat if m["role"] == "assistant"] for chat in chats)
    return ["\n".join(replies) for replies in spoken], chats


def read_chats(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]
) -> tuple[list[str], list[TokenizedText]]:
    """Format and tokenize chats; the special tokens that end a turn are scored, but are no words."""
    check_fast(tokenizer)
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ArgumentError(
            "predictions",
            "be texts, because the tokenizer has no chat template",
            got="chats",
            advice="Set the tokenizer's attribute `chat_template`, or pass texts and `contexts`.",
        )
    texts = [write(tokenizer, chat, number) for number, chat in enumerate(chats)]
    template = template if isinstance(template, str) else template.get("default", "")
    if BEGIN.search(template):
        spans = [marked_spans(tokenizer, template, chat) for chat in chats]
    else:
        spans = find_turns(tokenizer, chats, texts)
    special = special_ids(tokenizer)
    streams = [without_ends(s, special) for s in read_spans(tokenizer, texts, spans)]
    parts = [stream.scored_part.of(text).strip() for text, stream in zip(texts, streams)]
    if "" in parts:
        raise TextsError(
            "predictions",
            "be chats with words of the role 'assistant', which are scored",
            got="none",
            positions=[number for number, part in enumerate(parts) if not part],
            advice="Remove them.",
        )
    return texts, streams


def write(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, number: int, prompts: bool = False
) -> str:
    """Format a chat, or its beginning, with the generation prompt or without; `number` is for errors."""
    # in a list, because transformers does not recognise an empty chat
    chats = [[dict(message) for message in messages]]
    try:
        texts: Any = tokenizer.apply_chat_template(
            chats, tokenize=False, add_generation_prompt=prompts
        )
    except Exception as error:  # templates raise any
        raise TextsError(
            "predictions",
            f"be chats that the tokenizer's template can format, but it fails on {len(messages)} "
            f"messages of the chat at position {number} ({type(error).__name__}: {error})",
            advice=f"Change the chat or the template. {HOW_TO_MARK} if the chat begins with one.",
            positions=[number],
        ) from error
    return texts[0]


def find_turns(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat], texts: Sequence[str]
) -> list[list[Range]]:
    """Find the characters of the assistant's turns in formatted chats.

    A turn is what the chat up to it has after the one before with the generation prompt, stripped.
    """
    spans: list[list[Range]] = [[] for _ in chats]
    headers: dict[int, str] = {}
    for number, (chat, text) in enumerate(zip(chats, texts)):
        for turn, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            before = write(tokenizer, chat[:turn], number, prompts=True)
            after = write(tokenizer, chat[: turn + 1], number).rstrip()
            goes_on = after.startswith(before) or after == before.rstrip()  # an empty turn
            if not (goes_on and text.startswith(after)):
                raise TextsError(
                    "predictions",
                    "be chats whose beginnings the tokenizer's template formats like the whole, but "
                    f"it formats the chat at position {number} up to its message {turn} differently",
                    advice=f"{HOW_TO_MARK}, or pass texts and `contexts`.",
                    positions=[number],
                )
            said, words = after[len(before) :], message["content"].strip()
            if said:
                spans[number].append((len(before), len(after)))
            header = said[: said.find(words)].strip() if words in said else ""
            if header and before == write(tokenizer, chat[:turn], number):
                headers.setdefault(number, header)
    if headers:
        warnings.warn(
            "The chat template ignores `add_generation_prompt` and writes "
            f"{next(iter(headers.values()))!r} into the assistant's turns, where it is scored, in the "
            f"chats at {name_positions(sorted(headers))}. {HOW_TO_MARK}.",
            stacklevel=2,
        )
    return spans


def marked_spans(tokenizer: PreTrainedTokenizerBase, template: str, chat: Chat) -> list[Range]:
    """Find the characters that a template marks with `{% generation %}`.

    The mask of transformers is of tokens; before 5.24 it lacks some next to white space.
    """
    mark = "{% if true %}" + NONCHARACTER + "{% endif %}"
    template = BEGIN.sub(mark.replace("{%", r"{%\1", 1) + r"{% generation \2%}", template)
    template = END.sub(r"{%\1 endgeneration %}" + mark[:-2] + r"\2%}", template)
    messages = [dict(message) for message in chat]
    text: Any = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    edges = list(accumulate(map(len, text.split(NONCHARACTER))))
    return [span for span in zip(edges[::2], edges[1::2]) if span[0] < span[1]]


def without_ends(stream: TokenizedText, special: set[int]) -> TokenizedText:
    spans, part, offsets = [], stream.scored_part, stream.known_offsets
    for begin, stop in part.spans:
        first, end = tokens_of_span(offsets, begin, stop)
        while end > first and int(stream.ids[end - 1]) in special:
            end -= 1
            stop = int(offsets[end, 0])
        spans.append((begin, max(begin, stop)))
    return replace(stream, part=replace(part, spans=tuple(spans), longer=part.spans))


# --- windows --------------------------------------------------------------------------------------


def windows_of_part(plan: Plan, stream: TokenizedText) -> list[Window]:
    part = stream.scored_part
    if plan.protocol.pairs != "by lengths":
        return restrict_windows(plan.windows(len(stream)), part.targets)
    first, end = part.targets[0]
    if end - first > plan.max_length:
        raise ArgumentError(
            "predictions",
            f"have at most `max_length={plan.max_length}` tokens after their contexts with "
            f"`protocol={plan.protocol.name!r}`",
            got=f"{end - first}",
            advice="Pass `protocol='sliding'`, which accepts any number.",
        )
    return [last_window(end, first, plan.max_length, starts=first == 0)]


def border_windows(plan: Plan, stream: TokenizedText) -> list[Window]:
    """Plan windows over the token after each scored range, in which its last word ends.

    After the last token of the text, the row that would predict the next one is read.
    """
    if stream.part is not None and plan.protocol.pairs == "by lengths":
        first, end = stream.part.targets[0]
        return [last_window(end + 1, end, plan.max_length, starts=first == 0)]
    targets = ((0, len(stream)),) if stream.part is None else stream.part.targets
    borders = [(end, end + 1) for _, end in targets]
    inside = [border for border in borders if border[0] < len(stream)]
    windows = restrict_windows(plan.windows(len(stream)), inside)
    last = restrict_windows(plan.windows(len(stream) + 1), borders[len(inside) :])
    if plan.protocol.feeds_last:  # the last token is fed in any case
        last = [window._replace(behind=-1) for window in last]
    return windows + last
