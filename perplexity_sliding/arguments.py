"""Checks of the arguments of `compute` that go beyond argument_table.py."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from operator import index
from os.path import isfile
from typing import Any

from .argument_table import ARGUMENTS, Choice, check_whole_number, is_unicode
from .errors import ArgumentError, ArgumentTypeError, TextsError, Wording, name_positions
from .protocols import PROTOCOLS, Protocol

# Selects a PEFT model's base model as the reference.
WITHOUT_ADAPTER = "without adapter"
FILE_NAME = re.compile(r"\.\w{1,7}$")
# Names of arguments in other tools, and those of `compute`.
COMMON_NAMES = {
    "window": "max_length",
    "context_length": "max_length",
    "n_ctx": "max_length",
    "seqlen": "max_length",
    "texts": "predictions",
    "data": "predictions",
    "dataset": "predictions",
    "text": "predictions",
    "input_texts": "predictions",  # of the stock metric, before evaluate 0.3
    "pretrained": "model_id",
    "add_bos": "add_start_token",
    "torch_dtype": "dtype",
    "reference_model": "reference",
    "reference_model_id": "reference",
}
# Arguments of `from_pretrained` that are not also arguments of `compute`, and how they are passed.
OF_FROM_PRETRAINED = {
    **dict.fromkeys(
        (
            "trust_remote_code",
            "revision",
            "token",
            "device_map",
            "attn_implementation",
            "subfolder",
        ),
        "Pass it as model_kwargs={{{name!r}: …}}.",
    ),
    **dict.fromkeys(
        ("load_in_8bit", "load_in_4bit", "quantization_config"),
        "Pass model_kwargs={{'quantization_config': BitsAndBytesConfig(…)}}.",
    ),
}
# Largest count that a float represents exactly.
LARGEST_COUNT = 2**53


def check_names(known: Sequence[str], arguments: dict) -> None:
    """Refuse unknown arguments, and suggest the closest known one."""
    for name in arguments:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            meant = COMMON_NAMES.get(name) or (close[0] if close else None)
            hint = (
                "The texts are `predictions`, the model `model_id`; help(compute) lists the others."
            )
            if name in OF_FROM_PRETRAINED:
                hint = OF_FROM_PRETRAINED[name].format(name=name)
            elif meant:
                hint = f"Did you mean `{meant}`?"
            raise TypeError(f"compute() got an unexpected keyword argument {name!r}. {hint}")


def read_once(value: object) -> object:
    """Return an iterator's values as a list, so that they can be read again; return others unchanged."""
    return list(value) if isinstance(value, Iterator) else value


def check_kinds(arguments: Mapping) -> None:
    """Check each argument of `compute` on its own.

    Raises:
        TypeError, ValueError: an argument has an invalid type or value.
    """
    for name, value in arguments.items():
        ARGUMENTS[name].check(name, value)


def check_texts(texts: Iterable[str], name: str = "predictions") -> list[str]:
    """Return the texts as a list; raise an error with the positions of invalid texts."""
    if isinstance(texts, str | bytes):
        raise ArgumentTypeError(
            name,
            "be a list of strings",
            got=f"one {type(texts).__name__}, which would be scored character by character",
            advice=f"Put it in a list: {name}=[text].",
        )
    if isinstance(texts, Mapping) or hasattr(texts, "columns") or hasattr(texts, "column_names"):
        raise ArgumentTypeError(
            name,
            "be a list of strings",
            got=f"a {type(texts).__name__}",
            advice=f"Pass one of its columns: {name}=table['text'].",
        )
    try:
        texts = list(texts)
    except TypeError:
        raise ArgumentTypeError(name, "be a list of strings", got=type(texts).__name__) from None
    if not texts:
        raise ArgumentError(name, "have at least one text", got="an empty list")
    not_strings = [number for number, text in enumerate(texts) if not isinstance(text, str)]
    if not_strings:
        kinds = sorted({type(texts[number]).__name__ for number in not_strings})
        raise ArgumentTypeError(
            name, "contain only strings", got=", ".join(kinds), positions=not_strings
        )
    broken = [number for number, text in enumerate(texts) if not is_unicode(text)]
    if broken:
        raise TextsError(
            f"{name}",
            f"be valid Unicode, but there are lone surrogates at {name_positions(broken)}",
            advice="Decode the bytes with errors='replace'.",
            positions=broken,
        )
    warn_of_paths(name, texts)
    return texts


def warn_of_paths(name: str, texts: Sequence[str]) -> None:
    """Warn about texts that are names of existing files."""
    paths = [number for number, text in enumerate(texts) if FILE_NAME.search(text[-8:])]
    paths = [number for number in paths if "\n" not in texts[number] and isfile(texts[number])]
    if paths:
        warnings.warn(
            Wording(
                f"`{name}` contain the name of a file at {name_positions(paths)} (first: "
                f"{texts[paths[0]]!r}); the name itself is scored. To score the file, pass "
                f"Path({texts[paths[0]]!r}).read_text('utf-8')."
            ),
            stacklevel=2,
        )


@dataclass(frozen=True)
class Setting:
    """Settings of one measurement of a call.

    Attributes:
        max_length, stride: as in `compute`; None for the default of the protocol and the model.
        add_start_token: whether, and where, to add a start token.
        window_argument: the argument that set `max_length`, for errors.
    """

    protocol: Protocol
    max_length: int | None = None
    stride: int | None = None
    add_start_token: bool | str = True
    window_argument: str = "max_length"

    def describe(self) -> dict[str, object]:
        """Return the protocol's name, the window and the stride."""
        return {
            "protocol": self.protocol.name,
            "max_length": self.max_length,
            "stride": self.stride,
        }


def list_settings(
    protocol: object,
    max_length: object,
    stride: object,
    add_start_token: Any = True,
) -> tuple[list[Setting], bool]:
    """List all combinations of protocols, window lengths and strides, in the given order.

    Returns:
        the settings, and whether an argument is a list (or "all").

    Raises:
        ValueError, TypeError: a protocol is unknown, or a list is empty or has duplicates.
    """
    protocols = list(PROTOCOLS) if isinstance(protocol, str) and protocol == "all" else protocol
    several = [isinstance(values, list | tuple) for values in (protocols, max_length, stride)]
    rows = [_check_protocol_name(name) for name in _as_list(protocols)]
    lengths, strides = _as_list(max_length), _as_list(stride)
    for name, values in (("protocol", rows), ("max_length", lengths), ("stride", strides)):
        if not values:
            raise ArgumentError(name, "have at least one value", got="an empty list")
        if len(set(values)) < len(values):
            given = {"protocol": protocol, "max_length": max_length, "stride": stride}[name]
            raise ArgumentError(name, "have no duplicates", got=repr(given))
    settings = [Setting(*values, add_start_token) for values in product(rows, lengths, strides)]
    return settings, any(several)


def _as_list(values: object) -> list:
    return list(values) if isinstance(values, list | tuple) else [values]


def _check_protocol_name(name: object) -> Protocol:
    if not isinstance(name, str) or name not in PROTOCOLS:
        close = get_close_matches(str(name), list(PROTOCOLS), n=1)
        raise ArgumentError(
            "protocol",
            f"be one of {', '.join(PROTOCOLS)}",
            got=repr(name),
            advice=f"Did you mean {close[0]!r}?" if close else "",
        )
    return PROTOCOLS[name]


def check_setting(setting: Setting) -> None:
    """Refuse arguments that the protocol's tool does not have."""
    protocol = setting.protocol
    given = {
        "max_length": setting.max_length is not None,
        "stride": setting.stride is not None,
        "add_start_token": setting.add_start_token is not True,
    }
    for argument in (argument for argument, is_given in given.items() if is_given):
        check_supported(argument, protocol)
    Choice(protocol.start_choices).check("add_start_token", setting.add_start_token)


def check_supported(argument: str, protocol: Protocol) -> None:
    """Refuse an argument that the protocol's tool does not have."""
    if argument not in protocol.supported_arguments:
        raise ArgumentError(
            argument,
            f"be left out with `protocol={protocol.name!r}`: {protocol.source} has no such setting",
            advice="Supported arguments: "
            f"{', '.join(f'`{argument}`' for argument in protocol.supported_arguments)}.",
        )


def check_stride(stride: int, max_length: int, start: str) -> None:
    """Refuse a stride that would skip tokens."""
    if start == "every" and not 1 <= stride <= max_length - 1:
        raise ArgumentError(
            "stride",
            f"be between 1 and max_length-1={max_length - 1} if every window begins with a "
            "start token",
            got=str(stride),
            advice="Reduce it, or pass `add_start_token='once'`.",
        )
    if not 1 <= stride <= max_length:
        raise ArgumentError(
            "stride",
            f"be between 1 and `max_length={max_length}`",
            got=str(stride),
            advice="A larger stride would skip tokens.",
        )


def check_word_counts(word_counts: object, texts: Sequence[str]) -> list[int] | None:
    """Return the number of words of each text; 0 is allowed for texts of white space."""
    if word_counts is None:
        return None
    if isinstance(word_counts, str) or not isinstance(word_counts, Iterable):
        raise ArgumentTypeError("word_counts", "be a list of whole numbers", got=repr(word_counts))
    word_counts = list(word_counts)
    if len(word_counts) != len(texts):
        raise ArgumentError(
            "word_counts", f"have one number per text, {len(texts)}", got=str(len(word_counts))
        )
    for count, text in zip(word_counts, texts):
        check_whole_number("word_counts", count, 1 if text.strip() else 0)
        if count > LARGEST_COUNT:
            raise ArgumentError("word_counts", f"be at most {LARGEST_COUNT}", got="a larger number")
    return [int(count) for count in word_counts]


def check_contexts(contexts: object, num_texts: int) -> list[str] | None:
    """Return the context of each text; repeat a single string for all texts."""
    if contexts is None:
        return None
    if isinstance(contexts, str):
        contexts = [contexts] * num_texts
    if not isinstance(contexts, Iterable):
        raise ArgumentTypeError("contexts", "be a string or a list of strings", got=repr(contexts))
    contexts = list(contexts)
    if len(contexts) != num_texts:
        raise ArgumentError(
            "contexts",
            f"be a string for all texts, or a list of one string per text, {num_texts}",
            got=str(len(contexts)),
        )
    return check_texts(contexts, "contexts")


def check_spans(
    name: str, spans: object, texts: Sequence[str]
) -> list[list[tuple[int, int]]] | None:
    """Return the spans of characters of each text; raise an error for invalid spans."""
    if spans is None:
        return None
    if not isinstance(spans, Sequence) or len(spans) != len(texts):
        raise ArgumentError(
            name, f"have one list of spans per text, {len(texts)}", got=f"{spans!r:.80}"
        )
    return [
        check_spans_of(name, of_text, text, number)
        for number, (of_text, text) in enumerate(zip(spans, texts))
    ]


def check_spans_of(name: str, spans: Any, text: str, number: int) -> list[tuple[int, int]]:
    checked: list[tuple[int, int]] = []
    try:
        checked = [(index(first), index(end)) for first, end in spans]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            name,
            "contain (start, end) pairs of characters, with end exclusive",
            got=f"{spans!r:.80} for the text at position {number}",
        ) from None
    place = 0
    for first, end in checked:
        if first == end:
            raise ArgumentError(
                name,
                "contain no empty spans",
                got=f"({first}, {end}) for the text at position {number}",
                advice="Remove it.",
            )
        if not place <= first < end <= len(text):
            raise ArgumentError(
                name,
                f"contain ascending spans that do not overlap, within the {len(text)} characters "
                f"of the text at position {number}",
                got=f"({first}, {end})",
            )
        place = end
    return checked


# --- long contexts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LongContext:
    """Arguments for measurements over long contexts.

    Attributes:
        context_lengths: window lengths to compare, "doubling", or None.
        carry: whether to read every text once, carrying the model's state.
    """

    context_lengths: list[int] | str | None
    carry: bool


def check_long_context(
    context_lengths: Any, carry: Any, settings: Sequence[Setting], gives_list: bool
) -> LongContext:
    """Check the arguments for long contexts, which require a single measurement."""
    lengths = context_lengths
    if lengths is not None and not isinstance(lengths, str):  # "doubling"
        lengths = sorted({int(length) for length in lengths})
    given = {"context_lengths": lengths is not None, "carry": carry}
    for name in (name for name, is_given in given.items() if is_given):
        if gives_list:
            raise ArgumentError(
                name,
                "be left out if `protocol`, `max_length` or `stride` is a list",
                advice="Make a separate call for each setting.",
            )
        check_supported(name, settings[0].protocol)
    if isinstance(lengths, list) and settings[0].max_length not in (None, lengths[-1]):
        raise ArgumentError(
            "max_length",
            "be left out with `context_lengths`, or equal its longest length",
            got=f"{settings[0].max_length} and {lengths[-1]}",
        )
    if carry and lengths is not None:
        raise ArgumentError(
            "carry", "be left out with `context_lengths`: a carried context has no length to vary"
        )
    if carry and settings[0].add_start_token == "every":
        raise ArgumentError(
            "add_start_token",
            "not be 'every' with `carry`, which has no windows",
            got="'every'",
            advice="Pass 'once'.",
        )
    return LongContext(lengths, carry)
