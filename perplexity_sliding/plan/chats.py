"""Chats in the place of texts: the tokenizer's template writes them out, the assistant's turns are scored."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError, TextsError, Wording, name_positions
from .tokenization import Chat, Range, TokenizedText, tokenize, untrimmed

# A template that says itself what the model generates.
GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
HOW_TO_MARK = "Mark the assistant's turns in the template with {% generation %}"


def separate_chats(predictions: object) -> tuple[object, list[Chat] | None]:
    """Separate chats from texts.

    Returns:
        texts to hand on, in the place of chats what their assistants say; and the chats, or None.

    Raises:
        ValueError: there are both, or a message is none that a template can write.
    """
    if isinstance(predictions, str) or not isinstance(predictions, Sequence):
        return predictions, None
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
    """Refuse a message without a role or a text, which templates would write as "None".

    Args:
        number: the chat's position.
    """
    for turn, message in enumerate(chat):
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str) and isinstance(content, str):
            continue
        if not isinstance(role, str):
            problem, advice = f"the role {role!r}", "Name one, as 'user' or 'assistant'."
        elif isinstance(content, Sequence):
            problem, advice = "its content in parts", "Join their texts to one string."
        elif message.get("tool_calls"):
            problem = f"tool calls beside the content {content!r}"
            advice = (
                "Pass content='', and the template writes the calls if it knows how, or write them "
                "out as text."
            )
        else:
            problem = f"the content {content!r}"
            advice = "Pass a string, '' for a turn without words."
        raise TextsError(
            "predictions",
            f"hold chats of messages that have a role and a text, but message {turn} of the chat at "
            f"position {number} has {problem}",
            advice=advice,
            positions=[number],
        )


def write_chats(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]
) -> tuple[list[str], list[list[Range]]]:
    """Write chats out with the tokenizer's template; find the characters of the assistant's turns.

    Raises:
        ValueError: the tokenizer has no template, a chat has no turn of an assistant, or the
            template does not write a chat, or not as the continuation of its beginning.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ArgumentError(
            "predictions",
            "be texts where the tokenizer has no chat template, which writes messages out",
            got="chats",
            advice=(
                "Take a model that has one, put one under 'chat_template' in `tokenizer_kwargs` "
                "(or into a tokenizer's attribute of that name), or pass texts and `contexts`."
            ),
        )
    unspoken = [n for n, chat in enumerate(chats) if all(m["role"] != "assistant" for m in chat)]
    if unspoken:
        raise TextsError(
            "predictions",
            "hold chats with a message of the role 'assistant', which is scored",
            got="none",
            positions=unspoken,
        )
    texts = [write(tokenizer, chat, number) for number, chat in enumerate(chats)]
    if marks_turns(tokenizer):
        return texts, [marked_spans(tokenizer, *pair) for pair in zip(chats, texts)]
    turns = [
        find_turns(tokenizer, chat, text, number)
        for number, (chat, text) in enumerate(zip(chats, texts))
    ]
    warn_of_headers(tokenizer, chats, [turn for of_chat in turns for turn in of_chat])
    return texts, [[turn.span for turn in of_chat if turn.said] for of_chat in turns]


def write(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, number: int, prompts: bool = False
) -> str:
    """Write out a chat, or its beginning.

    Args:
        number: the chat's position, for errors.
        prompts: ask the template for the prompt of an answer.

    Raises:
        TextsError: the template fails.
    """
    try:
        return _write(tokenizer, messages, prompts)
    except Exception as error:  # of the template, whatever it is
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise TextsError(
            "predictions",
            "be chats that the tokenizer's template can write, but it fails at message "
            f"{_first_unwritten(tokenizer, messages)} of the chat at position {number} ({reason})",
            advice=f"{'Change the chat or the template.' if messages else BEGINS}",
            positions=[number],
        ) from error


BEGINS = (
    "The chat begins with the assistant, and the template writes nothing before. Put a message of "
    "the user first, or mark the assistant's turns in the template with {% generation %}."
)


def _write(tokenizer: PreTrainedTokenizerBase, messages: Chat, prompts: bool) -> str:
    # In a list, since of no messages transformers does not see that they are a chat.
    [text] = tokenizer.apply_chat_template(
        [list(messages)], tokenize=False, add_generation_prompt=prompts
    )
    return text


def _first_unwritten(tokenizer: PreTrainedTokenizerBase, messages: Chat) -> int:
    """Find the message from which on a template fails; 0 where that is before the first."""
    for turn in range(len(messages) - 1):
        try:
            _write(tokenizer, messages[: turn + 1], prompts=False)
        except Exception:  # whatever made the whole fail
            return turn
    return max(0, len(messages) - 1)


# --- turns ----------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A turn of the assistant.

    Attributes:
        chat: position of its chat.
        number: of its message there.
        before: all that is written before it, the prompt for the answer included.
        said: what the chat has more with it, without white space at its end.
    """

    chat: int
    number: int
    before: str
    said: str

    @property
    def span(self) -> Range:
        return len(self.before), len(self.before) + len(self.said)


def find_turns(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, text: str, number: int
) -> list[Turn]:
    """Find the assistant's turns in a chat that a template without marks has written out."""
    turns = []
    for turn, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before = write(tokenizer, chat[:turn], number, prompts=True)
        after = write(tokenizer, chat[: turn + 1], number).rstrip()
        goes_on = after.startswith(before) or after == before.rstrip()  # an empty turn
        if not (goes_on and text.startswith(after)):
            raise TextsError(
                "predictions",
                "be chats that the tokenizer's template writes as it writes their beginnings, "
                f"but it writes the chat at position {number} up to its message {turn} in another "
                "way than the whole",
                advice=f"{HOW_TO_MARK}, or pass texts and `contexts`.",
                positions=[number],
            )
        turns.append(Turn(number, turn, before, after[len(before) :]))
    return turns


def warn_of_headers(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat], turns: Iterable[Turn]
) -> None:
    """Name the chats in which more than the assistant's words is scored as if it had said it."""
    foreign = [(turn, foreign_text(tokenizer, chats[turn.chat], turn)) for turn in turns]
    foreign = [(turn, written) for turn, written in foreign if written]
    if not foreign:
        return
    first, written = foreign[0]
    warnings.warn(
        Wording(
            f"The chat template takes no notice of `add_generation_prompt` and writes {written!r} "
            "into the assistant's turns, where it is scored as if the assistant had said it, in "
            f"the chats at {name_positions(sorted({turn.chat for turn, _ in foreign}))} (first: "
            f"message {first.number}). {HOW_TO_MARK}."
        ),
        stacklevel=2,
    )


def foreign_text(tokenizer: PreTrainedTokenizerBase, chat: Chat, turn: Turn) -> str:
    """Return what is written around the assistant's words though it is no part of its turn.

    That is the header of its role, where the template does not write it as a prompt; or the prompt
    for the next answer, where it always ends in one.  "" where there is neither.
    """
    words = chat[turn.number]["content"].strip()
    prompted = turn.before != write(tokenizer, chat[: turn.number], turn.chat)
    if prompted or not words or words not in turn.said:
        return ""
    head, _, tail = turn.said.partition(words)
    if head.strip() or turn.number < len(chat) - 1:
        return head.strip()
    longer = write(tokenizer, [*chat, {"role": "user", "content": words}], turn.chat)
    following = longer[len(turn.before) :].partition(words)[2]
    return "" if following.startswith(tail) else tail


def marks_turns(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer's template says itself what the assistant generates."""
    template = tokenizer.chat_template
    source = template if isinstance(template, str) else template.get("default", "")
    return GENERATION_MARK.search(source) is not None


def marked_spans(tokenizer: PreTrainedTokenizerBase, chat: Chat, text: str) -> list[Range]:
    """Find the characters that a template marks with `{% generation %}`."""
    with untrimmed(tokenizer):  # else a turn that begins with white space is not found
        encoded = tokenizer.apply_chat_template(
            list(chat), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
    [stream] = tokenize(tokenizer, [text], with_offsets=True)
    edges = np.flatnonzero(np.diff([0, *encoded["assistant_masks"], 0])).tolist()
    return [
        (int(stream.offsets[first, 0]), int(stream.offsets[end - 1, 1]))
        for first, end in zip(edges[::2], edges[1::2])
    ]


def without_ends_of_turns(
    texts: Iterable[str],
    streams: Iterable[TokenizedText],
    chats: Sequence[Chat],
    special: set[int],
) -> list[TokenizedText]:
    """Let the characters of each turn end before the special tokens that end it.

    These are scored, but stand for none of the assistant's words.

    Raises:
        TextsError: an assistant has no words in a whole chat.
    """
    streams = [without_end_of_turn(stream, special) for stream in streams]
    scored = [stream.part.of(text) for text, stream in zip(texts, streams)]
    silent = [number for number, words in enumerate(scored) if not words.strip()]
    if silent:
        first = next(t for t, m in enumerate(chats[silent[0]]) if m["role"] == "assistant")
        raise TextsError(
            "predictions",
            "hold chats in which the assistant says something",
            got="nothing but empty turns",
            why=f"the first is message {first}",
            advice="Remove them.",
            positions=silent,
        )
    return streams


def without_end_of_turn(stream: TokenizedText, special: set[int]) -> TokenizedText:
    """Return it with scored characters that end before the special tokens of each turn's end."""
    spans = []
    for begin, stop in stream.part.spans:
        first = int(np.searchsorted(stream.offsets[:, 1], begin, side="right"))
        end = int(np.searchsorted(stream.offsets[:, 0], stop, side="left"))
        while end > first and int(stream.ids[end - 1]) in special:
            end -= 1
            stop = int(stream.offsets[end, 0])
        spans.append((begin, max(begin, stop)))
    return replace(stream, part=replace(stream.part, spans=tuple(spans)))
