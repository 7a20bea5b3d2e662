"""Texts that are scored in part: after a context, in given spans, or the assistant's turns of a chat.

The whole text is tokenized and read; its `ScoredPart` lists the tokens to score.  `boundary` decides
about tokens that span the edge of a scored part.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import check_contexts, check_spans
from ..errors import ArgumentError, Wording, name_positions
from ..layouts import runs_together
from ..protocols import Protocol
from .chats import without_ends_of_turns, write_chats
from .tokenization import (
    Chat,
    Parts,
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


def check_parts(
    contexts: object,
    score_spans: object,
    boundary: str,
    texts: Sequence[str],
    chats: Sequence[Chat] | None,
) -> Parts | None:
    """Check the arguments; return the scored parts of the texts, or None for whole texts."""
    given = {"`contexts`": contexts, "`score_spans`": score_spans, "messages": chats}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{names[0]} must be left out with {names[1]}, got both.")
    if not names:
        if boundary != "joint":
            raise ArgumentError(
                "boundary", "be left out without `contexts` or `score_spans`", got=repr(boundary)
            )
        return None
    if boundary == "separate" and contexts is None:
        raise ArgumentError(
            "boundary",
            f"be 'joint' with {names[0]}",
            got=repr(boundary),
            why="only a context can be tokenized separately",
        )
    contexts = check_contexts(contexts, len(texts))
    spans = check_spans("score_spans", score_spans, texts)
    if contexts is not None:
        warn_of_joins(contexts, texts)
    return Parts(contexts, spans, chats, boundary=boundary)


def warn_of_joins(contexts: Sequence[str], texts: Sequence[str]) -> None:
    """Warn about texts that run together with their contexts."""
    joined = [n for n, pair in enumerate(zip(contexts, texts)) if runs_together(*pair)]
    if joined:
        first = contexts[joined[0]][-10:] + texts[joined[0]][:10]
        warnings.warn(
            Wording(
                f"Texts run together with their `contexts` at {name_positions(joined)} (first: "
                f"{first!r}). Begin the texts with a space if it is missing."
            ),
            stacklevel=2,
        )


def check_alone(arguments: Mapping[str, object], parts: Parts | None, words: object) -> None:
    """Check that arguments for whole texts are left out if parts or words are scored.

    Args:
        arguments: arguments for whole texts, by name; None if not given.
    """
    given = [name for name, value in arguments.items() if value is not None]
    if given and not (parts is None and words is False):
        name = "`words`" if parts is None else parts.describe()
        raise ArgumentError(
            f"{given[0]}",
            f"be left out with {name}: it requires whole texts",
            advice="Make a separate call for each.",
        )


def check_beside_reference(words: object) -> None:
    """Check that arguments are supported in a comparison of two models."""
    if words is not False:
        raise ArgumentError(
            "words", "be left out with a reference", advice="Make a separate call for each model."
        )


def read_parts(
    parts: Parts, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], protocol: Protocol
) -> tuple[list[str], list[TokenizedText]]:
    """Return the whole texts and their tokens, each with its scored part.

    Raises:
        ValueError: the tokenizer returns no offsets, or a part has no token to score.
    """
    if parts.written is not None:
        whole, streams = list(parts.written[0]), read_spans(tokenizer, *parts.written)
    elif parts.chats is not None:
        whole, streams = read_chats(tokenizer, parts.chats)
    elif parts.contexts is not None:
        whole = [context + text for context, text in zip(parts.contexts, texts)]
        streams = read_after_contexts(parts.contexts, parts.boundary, tokenizer, texts, protocol)
    else:
        whole, streams = list(texts), read_spans(tokenizer, texts, parts.spans or ())
    check_scored(streams, protocol)
    if parts.boundary == "joint":
        warn_of_spanning(whole, streams)
    return whole, streams


def read_chats(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]
) -> tuple[list[str], list[TokenizedText]]:
    """Apply the tokenizer's chat template and tokenize the chats; the assistant is scored."""
    check_fast(tokenizer)
    whole, spans = write_chats(tokenizer, chats)
    streams = read_spans(tokenizer, whole, spans)
    return whole, without_ends_of_turns(whole, streams, chats, special_ids(tokenizer))


def read_after_contexts(
    contexts: Sequence[str],
    boundary: str,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    protocol: Protocol,
) -> list[TokenizedText]:
    """Tokenize texts after their contexts, according to the protocol and the boundary."""
    if protocol.pairs == "by lengths":
        return cut_by_lengths(tokenizer, contexts, texts, protocol)
    if boundary == "separate":
        return tokenize_apart(tokenizer, contexts, texts)
    whole = [context + text for context, text in zip(contexts, texts)]
    spans = [[(len(context), len(pair))] for context, pair in zip(contexts, whole)]
    return read_spans(tokenizer, whole, spans)


def read_spans(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], spans: Sequence[Sequence[Range]]
) -> list[TokenizedText]:
    """Tokenize texts and find the tokens of the scored spans; a token partly in a span is scored.

    Raises:
        ValueError: the tokenizer returns no offsets.
    """
    check_fast(tokenizer)
    streams = tokenize(tokenizer, list(texts), with_offsets=True)
    return [
        replace(stream, part=find_part(text, stream.known_offsets, of_text))
        for text, stream, of_text in zip(texts, streams, spans)
    ]


def find_part(text: str, offsets: np.ndarray, spans: Iterable[Range]) -> ScoredPart:
    """Find the tokens of spans of characters; spans that share a token become one range.

    Args:
        offsets: characters of each token (N, 2).
    """
    targets: list[Range] = []
    tails: list[str] = []
    spans = tuple(spans)
    for first, end in spans:
        # Offsets ascend; the bytes of one character have equal offsets.
        begin = int(np.searchsorted(offsets[:, 1], first, side="right"))
        stop = int(np.searchsorted(offsets[:, 0], end, side="left"))
        if targets and begin < targets[-1][1]:
            targets[-1] = (targets[-1][0], stop)
        elif begin < stop:
            targets.append((begin, stop))
            tails.append(text[int(offsets[begin, 0]) : first])
    return ScoredPart(tuple(targets), spans, tuple(tails))


def tokenize_apart(
    tokenizer: PreTrainedTokenizerBase, contexts: Sequence[str], texts: Sequence[str]
) -> list[TokenizedText]:
    """Tokenize contexts and texts separately, and concatenate their tokens."""
    before = tokenize(tokenizer, list(contexts), with_offsets=True)
    after = tokenize(tokenizer, list(texts), with_offsets=True)
    streams = []
    for context, text, *pair in zip(contexts, texts, before, after):
        stream = concatenate(pair, [context, text])
        part = ScoredPart(
            ((len(pair[0]), len(stream)),), ((len(context), len(context) + len(text)),), ("",)
        )
        streams.append(replace(stream, part=part))
    return streams


def cut_by_lengths(
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[str],
    texts: Sequence[str],
    protocol: Protocol,
) -> list[TokenizedText]:
    """Tokenize as lm-evaluation-harness does for `loglikelihood(context, continuation)`.

    White space at the end of a context moves to the text.  The context has the tokens that it has alone,
    and the text those of both together, from as many on.  An empty context is the start token, or an
    equal first token.
    """
    whole = [context + text for context, text in zip(contexts, texts)]
    cut = [context.rstrip() for context in contexts]
    start_id = start_token_id(tokenizer, protocol.start_is)
    encodings = [protocol.encoding if context else "plain" for context in contexts]
    pairs = zip(
        tokenize_each(tokenizer, whole, encodings, with_offsets=True),
        tokenize_each(tokenizer, cut, encodings, with_offsets=True),
    )
    streams = []
    for number, (stream, alone) in enumerate(pairs):
        if contexts[number]:
            first, stream = len(alone), alone.followed_by(stream)
        else:
            first = int(stream.ids[:1].tolist() == [start_id])
        targets = ((first, len(stream)),) if first < len(stream) else ()
        part = ScoredPart(targets, ((len(contexts[number]), len(whole[number])),), ("",))
        streams.append(replace(stream, part=part))
    return streams


def check_scored(streams: Sequence[TokenizedText], protocol: Protocol) -> None:
    """Check that each text has a token to score."""
    empty = [number for number, stream in enumerate(streams) if not stream.scored_part.num_targets]
    if empty and protocol.pairs == "by lengths":
        raise ArgumentError(
            "predictions",
            "have more tokens together with their contexts than these have alone with "
            f"`protocol={protocol.name!r}`",
            got="none",
            positions=empty,
            why="a token spans the join",
            advice="Pass `protocol='sliding'`, which separates them by characters.",
        )
    if empty:
        raise ArgumentError(
            "predictions",
            "have at least 1 token in the scored part",
            got="none",
            positions=empty,
            advice="Remove them.",
        )


def warn_of_spanning(texts: Sequence[str], streams: Sequence[TokenizedText]) -> None:
    """Warn about texts in which a token spans the edge of the scored part."""
    spanning = [number for number, stream in enumerate(streams) if any(stream.scored_part.tails)]
    if not spanning:
        return
    part, offsets = streams[spanning[0]].scored_part, streams[spanning[0]].known_offsets
    begin = next(begin for (begin, _), tail in zip(part.targets, part.tails) if tail)
    first, end = offsets[begin].tolist()
    places = f" in the texts at {name_positions(spanning)}" if len(texts) > 1 else ""
    warnings.warn(
        Wording(
            f"A token spans the edge of the scored part{places} (first: "
            f"{texts[spanning[0]][first:end]!r}); it is scored as a whole",
            advice="Move the edge to that of a token.",
            argument="boundary",
        ),
        stacklevel=2,
    )


# --- windows --------------------------------------------------------------------------------------


def windows_of_part(plan: Plan, stream: TokenizedText) -> list[Window]:
    """Plan the windows that score a part of a text.

    Raises:
        ValueError: the part does not fit into the protocol's single window.
    """
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
    """Plan windows over the token after each scored range, which ends its last word.

    A token of the text is predicted in the window that would score it.  After the last token, the
    row that would predict the next one is read.
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
