"""Chats: the tokenizer's template formats them, and the assistant's turns are scored."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import BatchEncoding, PreTrainedTokenizerBase

from ..errors import ArgumentError, ArgumentTypeError, TextsError, Wording, name_positions
from .tokenization import Chat, Range, TokenizedText

# Marks the model's output in a template.
GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
# A tokenizer whose tokens are characters.
CHARACTERS = Tokenizer(WordLevel({"": 0}, unk_token=""))
CHARACTERS.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
# Writes two characters; the line then ends for the template that follows, but not in the text.
TWO_BEFORE = "{% if true %}**{% endif %}\n"
HOW_TO_MARK = "Mark the assistant's turns in the template with {% generation %}"


def separate_chats(predictions: Any) -> tuple[Any, list[Chat] | None]:
    """Separate chats from texts.

    Returns:
        the texts, or the assistant's messages of each chat; and the chats, or None.

    Raises:
        ValueError: there are both texts and chats, or a message is invalid.
    """
    if isinstance(predictions, str) or not isinstance(predictions, Sequence):
        return predictions, None
    rows = [value[0] if is_chat(value) else value for value in predictions]
    if any(isinstance(row, Mapping) and "generated_text" in row for row in rows):
        raise ArgumentTypeError(
            "predictions",
            "be a list of strings or of chats",
            got="what a pipeline returns",
            advice="Pass [row[0]['generated_text'] for row in outputs].",
        )
    chats = [value for value in predictions if is_chat(value)]
    if not chats:
        return predictions, None
    if len(chats) < len(predictions):
        raise ArgumentError(
            "predictions",
            "be either texts or chats, all in one call",
            got="both",
            why=f"{len(chats)} chats and {len(predictions) - len(chats)} texts",
        )
    for number, chat in enumerate(chats):
        check_messages(chat, number)
    spoken = ([m["content"] for m in chat if m["role"] == "assistant"] for chat in chats)
    return ["\n".join(replies) for replies in spoken], chats


def is_chat(value: object) -> bool:
    """Return whether a value is a list of messages."""
    return (
        not isinstance(value, str)
        and isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(message, Mapping) for message in value)
    )


def check_messages(chat: Chat, number: int) -> None:
    """Refuse a message without a role or a text, which templates would format as "None".

    Args:
        number: the chat's position.
    """
    for turn, message in enumerate(chat):
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str) and isinstance(content, str):
            continue
        if not isinstance(role, str):
            problem, advice = f"the role {role!r}", "Pass one such as 'user' or 'assistant'."
        elif isinstance(content, Sequence):
            problem, advice = "its content in parts", "Join their texts to one string."
        elif message.get("tool_calls"):
            problem = f"tool calls and the content {content!r}"
            advice = (
                "Pass content='' if the template supports tool calls, or pass the calls as text."
            )
        else:
            problem = f"the content {content!r}"
            advice = "Pass a string, '' for a turn without words."
        raise TextsError(
            "predictions",
            f"be chats of messages with a role and a text, but message {turn} of the chat at "
            f"position {number} has {problem}",
            advice=advice,
            positions=[number],
        )


def write_chats(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]
) -> tuple[list[str], list[list[Range]]]:
    """Format chats with the tokenizer's template; find the characters of the assistant's turns.

    Raises:
        ValueError: the tokenizer has no template, a chat has no turn of the assistant, or the
            template fails on a chat or does not format it as a continuation of its beginning.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ArgumentError(
            "predictions",
            "be texts, because the tokenizer has no chat template",
            got="chats",
            advice=(
                "Use a model with a template, set the tokenizer's attribute `chat_template`, or pass "
                "texts and `contexts`."
            ),
        )
    unspoken = [n for n, chat in enumerate(chats) if all(m["role"] != "assistant" for m in chat)]
    if unspoken:
        raise TextsError(
            "predictions",
            "be chats with a message of the role 'assistant', which is scored",
            got="none",
            positions=unspoken,
        )
    texts = [write(tokenizer, chat, number) for number, chat in enumerate(chats)]
    if marks_turns(tokenizer):
        return texts, [marked_spans(tokenizer, chat) for chat in chats]
    turns = [
        find_turn(tokenizer, chat, text, number, turn)
        for number, (chat, text) in enumerate(zip(chats, texts))
        for turn, message in enumerate(chat)
        if message["role"] == "assistant"
    ]
    warn_of_headers(tokenizer, chats, texts, turns)
    spans: list[list[Range]] = [[] for _ in chats]
    for turn in turns:
        if turn.span[0] < turn.span[1]:
            spans[turn.chat].append(turn.span)
    return texts, spans


def write(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, number: int, prompts: bool = False
) -> str:
    """Format a chat, or its beginning.

    Args:
        number: the chat's position, for errors.
        prompts: whether to add the generation prompt.

    Raises:
        TextsError: the template fails.
    """
    try:
        return _write(tokenizer, messages, prompts)
    except Exception as error:  # templates raise any
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise TextsError(
            "predictions",
            "be chats that the tokenizer's template can format, but it fails at message "
            f"{_first_unwritten(tokenizer, messages)} of the chat at position {number} ({reason})",
            advice=f"{'Change the chat or the template.' if messages else BEGINS}",
            positions=[number],
        ) from error


BEGINS = (
    "The chat begins with the assistant, and the template cannot format an empty beginning. Add a "
    "user's message before, or mark the assistant's turns in the template with {% generation %}."
)


def _write(tokenizer: PreTrainedTokenizerBase, messages: Chat, prompts: bool) -> str:
    # In a list, because transformers does not recognise an empty chat.
    texts: Any = tokenizer.apply_chat_template(
        [[dict(message) for message in messages]], tokenize=False, add_generation_prompt=prompts
    )
    [text] = texts
    return text


def _first_unwritten(tokenizer: PreTrainedTokenizerBase, messages: Chat) -> int:
    """Find the first message at which a template fails; 0 if it fails before the first."""
    for turn in range(len(messages) - 1):
        try:
            _write(tokenizer, messages[: turn + 1], prompts=False)
        except Exception:  # the same error as for the whole
            return turn
    return max(0, len(messages) - 1)


# --- turns ----------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A turn of the assistant.

    Attributes:
        chat: position of its chat.
        number: number of its message.
        span: characters that the turn adds to the chat, without trailing white space.
        prompted: whether a generation prompt precedes them.
    """

    chat: int
    number: int
    span: Range
    prompted: bool

    def said(self, text: str) -> str:
        return text[slice(*self.span)]


def find_turn(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, text: str, number: int, turn: int
) -> Turn:
    """Find a turn of the assistant by formatting the chat up to it, without it and with it.

    Raises:
        TextsError: the template formats this beginning of the chat differently from the whole.
    """
    before = write(tokenizer, chat[:turn], number, prompts=True)
    after = write(tokenizer, chat[: turn + 1], number).rstrip()
    goes_on = after.startswith(before) or after == before.rstrip()  # an empty turn
    if not (goes_on and text.startswith(after)):
        raise TextsError(
            "predictions",
            "be chats whose beginnings the tokenizer's template formats like the whole, but it "
            f"formats the chat at position {number} up to its message {turn} differently",
            advice=f"{HOW_TO_MARK}, or pass texts and `contexts`.",
            positions=[number],
        )
    prompted = before != write(tokenizer, chat[:turn], number)
    return Turn(number, turn, (len(before), max(len(before), len(after))), prompted)


def warn_of_headers(
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[Chat],
    texts: Sequence[str],
    turns: Sequence[Turn],
) -> None:
    """Warn about chats in which other text is scored as part of the assistant's turns."""
    headers = (foreign_text(tokenizer, chats[turn.chat], texts[turn.chat], turn) for turn in turns)
    foreign = [(turn, header) for turn, header in zip(turns, headers) if header]
    if not foreign:
        return
    first, written = foreign[0]
    warnings.warn(
        Wording(
            f"The chat template ignores `add_generation_prompt` and writes {written!r} into the "
            "assistant's turns, where it is scored, in the chats at "
            f"{name_positions(sorted({turn.chat for turn, _ in foreign}))} (first: message "
            f"{first.number}). {HOW_TO_MARK}."
        ),
        stacklevel=2,
    )


def foreign_text(tokenizer: PreTrainedTokenizerBase, chat: Chat, text: str, turn: Turn) -> str:
    """Return text around the assistant's words that is not part of its turn.

    That is the role's header if the template does not write it as a prompt, or the prompt for the
    next answer if the template always ends with one; else "".
    """
    words = chat[turn.number]["content"].strip()
    said = turn.said(text)
    if turn.prompted or not words or words not in said:
        return ""
    head, _, tail = said.partition(words)
    if head.strip() or turn.number < len(chat) - 1:
        return head.strip()
    longer = write(tokenizer, [*chat, {"role": "user", "content": words}], turn.chat)
    following = longer[turn.span[0] :].partition(words)[2]
    return "" if following.startswith(tail) else tail


def marks_turns(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer's template marks the assistant's output."""
    return GENERATION_MARK.search(_template(tokenizer)) is not None


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the template that formats chats, of several the default."""
    template = tokenizer.chat_template
    return template if isinstance(template, str) else template.get("default", "")


def marked_spans(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> list[Range]:
    """Find the characters that a template marks with `{% generation %}`.

    transformers converts them to tokens, and before 5.24 it loses those that begin or end with white space
    that the tokenizer drops; so it is given the characters as tokens.  It also errs at the first token.
    """
    kind = type(tokenizer)
    reads_characters = {"__call__": lambda _, text, **__: _characters(text)}
    reader: Any = object.__new__(type(kind.__name__, (kind,), reads_characters))
    vars(reader).update(vars(tokenizer))
    encoded = reader.apply_chat_template(
        [dict(message) for message in chat],
        chat_template=TWO_BEFORE + _template(tokenizer),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    edges = np.flatnonzero(np.diff([0, *encoded["assistant_masks"][2:], 0])).tolist()
    return list(zip(edges[::2], edges[1::2]))


def _characters(text: str) -> BatchEncoding:
    """Encode a text as its characters."""
    encoding = CHARACTERS.encode(text)
    return BatchEncoding({"input_ids": encoding.ids}, encoding)


def without_ends_of_turns(
    texts: Iterable[str], streams: Iterable[TokenizedText], chats: Sequence[Chat], special: set[int]
) -> list[TokenizedText]:
    """Exclude the special tokens that end each turn from its characters.

    These tokens are scored, but are not part of the assistant's words.

    Raises:
        TextsError: the assistant has no words in a chat.
    """
    streams = [without_end_of_turn(stream, special) for stream in streams]
    scored = [stream.scored_part.of(text) for text, stream in zip(texts, streams)]
    silent = [number for number, words in enumerate(scored) if not words.strip()]
    if silent:
        first = next(t for t, m in enumerate(chats[silent[0]]) if m["role"] == "assistant")
        raise TextsError(
            "predictions",
            "be chats with words of the assistant",
            got="only empty turns",
            why=f"the first is message {first}",
            advice="Remove them.",
            positions=silent,
        )
    return streams


def without_end_of_turn(stream: TokenizedText, special: set[int]) -> TokenizedText:
    """Exclude the special tokens at the end of each turn from the scored characters."""
    spans = []
    part, offsets = stream.scored_part, stream.known_offsets
    for begin, stop in part.spans:
        first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
        end = int(np.searchsorted(offsets[:, 0], stop, side="left"))
        while end > first and int(stream.ids[end - 1]) in special:
            end -= 1
            stop = int(offsets[end, 0])
        spans.append((begin, max(begin, stop)))
    return replace(stream, part=replace(part, spans=tuple(spans), longer=part.spans))
