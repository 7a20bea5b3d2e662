"""The arguments of `compute`: a table of their types, ranges, descriptions and options, and checks.

The metric's documentation, the settings of a measurement and the command line's options are made
from the table.  To add an argument, write its row and its place in `compute`'s signature; then it is
checked, documented and, with `option` and `group`, an option of the command line.  One that changes a
measurement, as `stride` does, is a setting: `is_setting=True`, a field of `Setting`, a name in the
`supported_arguments` of the protocols that know it, and the line that reads it, such as one in
`Measurement.nlls_to_average`.  With `in_signature=True` the signature names it where it is given.

This module must not import slow modules: the command line reads it before torch is imported.
"""

import re
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from math import inf
from numbers import Integral, Real
from operator import index
from os import PathLike
from os.path import isfile
from typing import Any, Literal

from .errors import ArgumentError, ArgumentTypeError, TextsError, Wording, name_positions
from .protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol

# --- kinds of values ------------------------------------------------------------------------------


@dataclass(frozen=True)
class WholeNumber:
    """A whole number of at least `low`; where `several` are allowed, also a list of such and of None."""

    low: int
    several: bool = False

    def check(self, name: str, value: object) -> None:
        is_list = self.several and isinstance(value, list | tuple)
        for each in value if is_list else [value]:  # type: ignore[attr-defined]
            if not (is_list and each is None):
                check_whole_number(name, each, self.low)


@dataclass(frozen=True)
class WholeNumbers:
    """A list of whole numbers of at least `low`, or "doubling"."""

    low: int

    def check(self, name: str, values: object) -> None:
        if isinstance(values, str) and values == "doubling":
            return
        must = f"be 'doubling' or a list of whole numbers of at least {self.low}"
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise ArgumentTypeError(name, must, got=repr(values))
        if not (values := list(values)):
            raise ArgumentError(name, must, got="an empty list")
        for value in values:
            check_whole_number(name, value, self.low)


@dataclass(frozen=True)
class Choice:
    """One of a few values; 1 is not True."""

    choices: tuple

    def check(self, name: str, value: object) -> None:
        chosen = self.choices if isinstance(value, str) else [c for c in self.choices if c is value]
        if value not in chosen:
            shown = ", ".join(map(repr, self.choices))
            raise ArgumentError(name, f"be one of {shown}", got=repr(value))


@dataclass(frozen=True)
class Being:
    """A value of which `holds` is true."""

    must: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: object) -> None:
        if not self.holds(value):
            raise ArgumentTypeError(name, self.must, got=repr(value))


@dataclass(frozen=True)
class Number:
    """A real number: at least `low`, and below `below`."""

    low: float
    below: float = inf
    hint: str = ""

    def check(self, name: str, value: object) -> None:
        below = "" if self.below == inf else f" and below {self.below}"
        must = f"be a number of at least {self.low}{below}{self.hint}"
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ArgumentTypeError(name, must, got=repr(value))
        if not self.low <= float(value) < self.below:
            raise ArgumentError(name, must, got=str(value))


def check_whole_number(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(name, f"be a whole number of at least {low}", got=repr(value))
    if value < low:
        raise ArgumentError(name, f"be at least {low}", got=str(value))


def is_address(model_id: object) -> bool:
    """Return whether the name of a model is the address of a server."""
    return isinstance(model_id, str) and model_id.lower().startswith(("http://", "https://"))


# --- the table ------------------------------------------------------------------------------------


REQUIRED = object()  # in the place of a default
# Forms in which arguments are given, beside which others must be left out.
SEVERAL = "a list of `protocol`, `max_length` or `stride`"
CHATS = "chats"
LENGTHS = "a list of `context_lengths`"
WORD_LIST = "a list of `words`"
PARTIAL = ("`contexts`", "`score_spans`", "`words`", CHATS)  # texts are not scored as wholes


@dataclass(frozen=True)
class Argument:
    """An argument of `compute`.

    Attributes:
        type, help: its type and its description in the documentation.
        option, metavar, group: the help text of its command-line option, if it has one, the name of
            the option's value (None if it has no value), and the group in the help.
        kind: its allowed values, and None if it is the default; None if it is checked where it is used.
        is_setting: whether measurements of one call may differ in it; see `Setting`.
        in_signature: whether the signature names it, where it is given, by its own name.
        excludes: arguments, and forms of arguments, with which it must be left out.
        needs: an argument without which it must be left out.
    """

    type: str
    help: str
    option: str | None = None
    metavar: str | None = "NAME"
    group: Literal["measure", "models", "reference", "run", "words"] | None = None
    kind: WholeNumber | WholeNumbers | Choice | Being | Number | None = None
    default: object = None
    is_setting: bool = False
    in_signature: bool = False
    excludes: tuple[str, ...] = ()
    needs: str | None = None

    def check(self, name: str, value: object) -> None:
        if self.kind is not None and (value is not None or self.default is not None):
            self.kind.check(name, value)


_PROTOCOLS = ", ".join(
    f'"{name}"' + " (the default)" * (name == DEFAULT_PROTOCOL) for name in PROTOCOLS
)

ARGUMENTS = {
    "predictions": Argument(
        "list of str",
        "texts; or chats, each a list of messages (dicts with role and content). Chats are formatted "
        "by the tokenizer's chat template, and only the assistant's messages are scored.",
        default=REQUIRED,
    ),
    "model_id": Argument(
        "str",
        "name of a causal language model on the Hub, path of a folder or a GGUF file, or address of "
        'a server such as vLLM\'s, "http://host:8000/v1". It can also be the configuration name: '
        '`evaluate.load("user/perplexity_sliding", "openai-community/gpt2")`.',
        "Hub name, folder, URL or .gguf; default: bundled",
        group="models",
    ),
    "batch_size": Argument(
        "int",
        "number of full windows per forward pass; shorter windows fit in larger numbers. On a CPU, "
        "where large passes are slow, a pass is limited to 1,024 tokens, or one window if longer.",
        "windows per forward pass; default: 16",
        metavar="N",
        group="run",
        kind=WholeNumber(1),
        default=16,
    ),
    "add_start_token": Argument(
        "bool or str",
        'whether to score the first token too, given the tokenizer\'s start token. "once" prepends '
        'the start token to the text, "every" to each window, where it occupies one position. True '
        'means "every" if the tokenizer itself prepends a start token when it encodes, else "once".',
        "score the first token: true, false, once, every",
        metavar="CHOICE",
        group="measure",
        kind=Choice((True, False, "once", "every")),
        default=True,
        is_setting=True,
    ),
    "device": Argument(
        "str",
        '"cpu", "gpu", "cuda", "cuda:1" or "mps"; an accelerator by default, if available.',
        "cpu, cuda, cuda:1, mps; default: an accelerator",
        group="models",
    ),
    "max_length": Argument(
        "int or list of int",
        "window length in tokens; the model's limit by default.",
        "window length in tokens; default: model's limit",
        metavar="L,...",
        excludes=(LENGTHS,),
        group="measure",
        kind=WholeNumber(2, several=True),
        is_setting=True,
    ),
    "stride": Argument(
        "int or list of int",
        "tokens by which the window moves, from 1 to `max_length`; half the window by default. A "
        "smaller stride gives each token more context and takes longer.",
        "tokens between window starts, 1 to L; default: L/2",
        metavar="S,...",
        group="measure",
        kind=WholeNumber(1, several=True),
        is_setting=True,
    ),
    "model": Argument(
        "torch.nn.Module or vllm.LLM",
        "a live model, instead of `model_id`; its state is restored afterwards.",
    ),
    "tokenizer": Argument(
        "PreTrainedTokenizerBase",
        "the tokenizer of `model`, or a replacement for that of `model_id`, which is loaded with the "
        "revision, token and similar arguments of the model.",
        "name or folder; default: that of the model",
        group="models",
    ),
    "dtype": Argument(
        "str or torch.dtype",
        'dtype of the loaded weights: "float32" (the default), "bfloat16", "float16", or "auto" for '
        "the dtype of the checkpoint.",
        "float32 (default), bfloat16, float16, auto",
        group="models",
    ),
    "model_kwargs": Argument(
        "dict",
        "additional arguments of the model's `from_pretrained`: revision, device_map, "
        "quantization_config, token, attn_implementation, trust_remote_code, …",
        'for from_pretrained: \'{"revision": "main"}\'',
        metavar="JSON",
        group="models",
    ),
    "return_token_scores": Argument(
        "bool or list of str",
        'also return the score of every token. A list selects additional columns: "rank", "entropy", '
        'and for example "top5" for the rank and the five most likely tokens.',
        default=False,
    ),
    "protocol": Argument(
        "str or list of str",
        f'evaluation protocol: {_PROTOCOLS}; or "all". If `protocol`, `max_length` or `stride` is a '
        "list, every combination is measured and shared forward passes run once: see "
        "`measurements`.",
        f"{', '.join(PROTOCOLS)}; several, or all",
        metavar="NAME,...",
        group="measure",
        default=DEFAULT_PROTOCOL,
        is_setting=True,
    ),
    "callback": Argument(
        "callable",
        "called after every batch, in the place of a progress bar, with an object that has the "
        "attributes `done` and `total` (tokens read by the model) and `perplexity` (so far, of the "
        "first measurement). An "
        "exception that it raises ends the run; added texts are kept. A method `resumed` is called "
        "with the numbers of tokens that a checkpoint has and of all.",
        kind=Being("be callable", callable),
    ),
    "checkpoint": Argument(
        "str",
        "path of a SQLite file that stores the scores of finished passes. Repeating an interrupted "
        "call with the same file resumes it, with the same result.",
        "store finished passes, and resume from them",
        metavar="FILE",
        group="run",
        kind=Being(
            "be the path of a file", lambda path: isinstance(path, str | PathLike) and path != ""
        ),
    ),
    "identify": Argument(
        "bool",
        "digest a live model and its tokenizer, whose signature says `live` otherwise, and add the "
        "probe, the mean nll of a fixed random text, to the result. `checkpoint` does so by itself.",
        kind=Choice((True, False)),
        default=False,
    ),
    "distributed": Argument(
        "bool",
        "distribute the windows over the processes of `torchrun`. Every process must make the same "
        "call, and gets the same result. Requires accelerate.",
        "distribute the work over torchrun's processes",
        metavar=None,
        group="run",
        kind=Choice((True, False)),
        default=False,
    ),
    "return_totals": Argument(
        "bool or str",
        'also return totals, which add up over shards of a corpus; "texts" adds those of each text.',
        kind=Choice((True, False, "texts")),
        default=False,
    ),
    "detokenizer": Argument(
        "str",
        "conversion of the texts before they are scored: "
        '"wikitext", from WikiText\'s word-level form to prose, as lm-evaluation-harness and Megatron-LM '
        "do. Words are those of the original.",
        kind=Choice(("wikitext",)),
        excludes=("`score_spans`", CHATS, WORD_LIST),
    ),
    "reference": Argument(
        "str, torch.nn.Module or dict",
        'a second model to compare with, by name or live; "without adapter" is the model itself with '
        "its adapters disabled. Both models read the same windows, and their logits are compared "
        "block by block: see `comparison`. A dict has the keys model_id or model; tokenizer (by "
        "default that of the named reference, or that of `model` for a live one); dtype (that of the "
        "model by default); and model_kwargs for `from_pretrained`.",
        "model to compare with; or 'without adapter'",
        group="reference",
    ),
    "margin": Argument(
        "float",
        "largest acceptable increase of perplexity: 0.01 for 1 %. The `verdict` then refers to this "
        "margin, and `within_margin` is True if the model is within it at 95 % confidence.",
        "exit code 1 if worse by more: 0.01 is 1 %%",
        metavar="X",
        group="reference",
        kind=Number(0, 1, hint=" (0.01 means 1 %)"),
        needs="reference",
    ),
    "context_lengths": Argument(
        "list of int or str",
        "also compare windows of these lengths on the same tokens, in the passes of the longest. "
        'All other numbers are those of the longest. "doubling" takes the window and its successive '
        "halves. `stride` defaults to half of the shortest.",
        "compare windows of these lengths; or doubling",
        metavar="C,...",
        group="measure",
        kind=WholeNumbers(2),
        excludes=(*PARTIAL, SEVERAL),
    ),
    "carry": Argument(
        "bool",
        "read every text once, in segments of `stride` tokens, and carry the model's state from "
        "segment to segment. A recurrent model then sees the whole context. A model with attention "
        "sees the cached keys of the last `max_length - stride` tokens, as in the evaluation of "
        "Transformer-XL; its numbers differ from those of a sliding window. Models with learned "
        "positions are refused.",
        "read once, carrying the model's state",
        metavar=None,
        group="measure",
        kind=Choice((True, False)),
        default=False,
        excludes=("`reference`", "`context_lengths`", *PARTIAL, SEVERAL),
    ),
    "contexts": Argument(
        "str or list of str",
        "context that is read before each text without being scored: one string for all texts, or "
        "one for each. All numbers are those of the texts alone. Nothing is inserted between the two: "
        "begin a text with the space that belongs there.",
        excludes=("`score_spans`", CHATS),
    ),
    "score_spans": Argument(
        "list of lists of pairs",
        "(start, end) pairs of the characters to score in each text, with end exclusive; the rest is "
        "read as context.",
        excludes=(CHATS,),
    ),
    "boundary": Argument(
        "str",
        'how to score a token that spans the edge of a scored part: "joint" scores the whole token, '
        'with a warning; "separate" tokenizes context and text separately, so that no token spans '
        "the edge.",
        "tokens at a context's edge: joint, separate",
        group="measure",
        kind=Choice(("joint", "separate")),
        default="joint",
        needs="contexts",
    ),
    "words": Argument(
        "bool or list",
        "also return the scores of words: True splits at white space; a list gives the words of each "
        "text, or the (start, end) characters of its words, with end exclusive.",
        default=False,
        excludes=("`reference`",),
    ),
    "word_correction": Argument(
        "str or None",
        'correction for the space between words: "pimentel" (Pimentel and Meister, 2024), "oh" (Oh '
        "and Schuler, 2024), or None for plain sums.",
        "pimentel (default), oh or none; implies --words",
        group="words",
        kind=Choice(("pimentel", "oh", None)),
        default="pimentel",
        needs="words",
    ),
}


def describe_arguments() -> str:
    wrapper = textwrap.TextWrapper(100, break_on_hyphens=False, break_long_words=False)
    wrapper.initial_indent, wrapper.subsequent_indent = " " * 4, " " * 8
    described = []
    for name, argument in ARGUMENTS.items():
        line, default = f"{name} ({argument.type}): {argument.help}", argument.default
        if default not in (None, REQUIRED) and "the default)" not in line:
            shown = f'"{default}"' if isinstance(default, str) else default
            line += f" Defaults to {shown}."
        described.append(wrapper.fill(line))
    return "\n".join(described)


# --- checks ---------------------------------------------------------------------------------------

# Selects a PEFT model's base model as the reference.
WITHOUT_ADAPTER = "without adapter"
FILE_NAME = re.compile(r"\.\w{1,7}$")
SURROGATE = re.compile("[\ud800-\udfff]")
# Arguments, and their names in other tools.
OTHER_NAMES = {
    "max_length": ("window", "context_length", "n_ctx", "seqlen"),
    # input_texts: of the stock metric, before evaluate 0.3
    "predictions": ("texts", "data", "dataset", "text", "input_texts"),
    "model_id": ("pretrained",),
    "add_start_token": ("add_bos",),
    "dtype": ("torch_dtype",),
    "reference": ("reference_model", "reference_model_id"),
}
# Arguments of `from_pretrained`, which are passed in `model_kwargs`.
OF_FROM_PRETRAINED = (
    *("trust_remote_code", "revision", "token", "device_map", "attn_implementation", "subfolder"),
    "quantization_config",
)
# Scripts without spaces between words: Thai to Tibetan, Burmese, Khmer, Chinese and Japanese.
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
)
CLITIC = re.compile(r"['’](?:d|ll|m|re|s|t|ve)\b", re.IGNORECASE)


def check_names(arguments: Iterable[str]) -> None:
    for name in arguments:
        if name in ARGUMENTS:
            continue
        close = [known for known, others in OTHER_NAMES.items() if name in others]
        close += get_close_matches(name, ARGUMENTS, n=1)
        hint = "The texts are `predictions`, the model `model_id`; help(compute) lists the others."
        if name in OF_FROM_PRETRAINED:
            hint = f"Pass it as model_kwargs={{{name!r}: …}}."
        elif name in ("load_in_8bit", "load_in_4bit"):
            hint = "Pass model_kwargs={'quantization_config': BitsAndBytesConfig(…)}."
        elif close:
            hint = f"Did you mean `{close[0]}`?"
        raise TypeError(f"compute() got an unexpected keyword argument {name!r}. {hint}")


def read_once(value: Any) -> object:
    return list(value) if hasattr(type(value), "__next__") else value


def check_texts(texts: Iterable[str], name: str = "predictions") -> list[str]:
    """Return the texts as a list; raise an error with the positions of invalid texts."""
    got, advice = type(texts).__name__, ""
    if isinstance(texts, str | bytes):
        got = f"one {got}, which would be scored character by character"
        advice = f"Put it in a list: {name}=[text]."
    elif isinstance(texts, Mapping) or hasattr(texts, "columns") or hasattr(texts, "column_names"):
        got, advice = f"a {got}", f"Pass one of its columns: {name}=table['text']."
    if advice or not hasattr(texts, "__iter__"):
        raise ArgumentTypeError(name, "be a list of strings", got=got, advice=advice)
    texts = list(texts)
    if not texts:
        raise ArgumentError(name, "have at least one text", got="an empty list")
    if wrong := [number for number, text in enumerate(texts) if not isinstance(text, str)]:
        kinds = sorted({type(texts[number]).__name__ for number in wrong})
        advice = "Leave out missing values." if {"float", "NoneType"} & set(kinds) else ""
        got = ", ".join(kinds)
        raise ArgumentTypeError(name, "contain only strings", advice, got=got, positions=wrong)
    if broken := [number for number, text in enumerate(texts) if SURROGATE.search(text)]:
        must = f"be valid Unicode, but there are lone surrogates at {name_positions(broken)}"
        advice = "Decode the bytes with errors='replace'."
        raise TextsError(name, must, advice, positions=broken)
    named = [number for number, text in enumerate(texts) if FILE_NAME.search(text[-8:])]
    if paths := [n for n in named if "\n" not in texts[n] and isfile(texts[n])]:
        first = repr(texts[paths[0]])
        warnings.warn(
            Wording(
                f"`{name}` contain the name of a file at {name_positions(paths)} (first: {first}); "
                f"the name itself is scored. To score the file, pass Path({first}).read_text('utf-8')."
            ),
            stacklevel=2,
        )
    return texts


def check_contexts(contexts: object, num_texts: int) -> list[str] | None:
    """Return the context of each text; repeat a single string for all texts."""
    if contexts is None:
        return None
    if isinstance(contexts, str):
        return [contexts] * num_texts
    checked = check_texts(contexts, "contexts")  # type: ignore[arg-type]  # refused there
    if len(checked) != num_texts:
        raise ArgumentError(
            "contexts",
            f"be a string for all texts, or a list of one string per text, {num_texts}",
            got=str(len(checked)),
        )
    return checked


def runs_together(context: str, text: str) -> bool:
    """Return whether a context and a text lack the space that their script writes between words."""
    before, after = context[-1:], text[:1]
    if not before or not after or UNSPACED.search(before + after) or CLITIC.match(text):
        return False
    ends_word = unicodedata.category(before)[0] in "LMN" or before in ".,;:!?…)]}»”"
    begins_word = unicodedata.category(after)[0] in "LN" or after in "([{«“\"'¿¡$€£"
    return ends_word and begins_word


def check_spans(spans: object, texts: Sequence[str]) -> list[list[tuple[int, int]]] | None:
    if spans is None:
        return None
    if not isinstance(spans, Sequence) or len(spans) != len(texts):
        must = f"have one list of spans per text, {len(texts)}"
        raise ArgumentError("score_spans", must, got=f"{spans!r:.80}")
    pairs = enumerate(zip(spans, texts))
    return [check_spans_of("score_spans", *pair, number) for number, pair in pairs]


def check_spans_of(name: str, spans: Any, text: str, number: int) -> list[tuple[int, int]]:
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
        if not place <= first < end <= len(text):
            raise ArgumentError(
                name,
                f"contain ascending spans that are not empty and do not overlap, within the "
                f"{len(text)} characters of the text at position {number}",
                got=f"({first}, {end})",
            )
        place = end
    return checked


def check_combinations(given: Mapping[str, Any], forms: Mapping[str, bool]) -> None:
    """Refuse an argument with an argument, or a form of one, that it excludes, or without one that it needs."""
    present = {form for form, is_given in forms.items() if is_given}
    for name, value in given.items():
        default = ARGUMENTS[name].default
        if value is not default and not (isinstance(value, str) and value == default):
            present.add(f"`{name}`")
    for name, argument in ARGUMENTS.items():
        if f"`{name}`" not in present:
            continue
        for other in argument.excludes:
            if other in present:
                advice = "Leave one out, or make a separate call for each."
                raise ArgumentError(name, f"be left out with {other}", advice)
        if argument.needs is not None and f"`{argument.needs}`" not in present:
            raise ArgumentError(name, f"be left out without `{argument.needs}`")


# --- settings -------------------------------------------------------------------------------------

SETTING_NAMES = [name for name, argument in ARGUMENTS.items() if argument.is_setting]


@dataclass(frozen=True)
class Setting:
    """Settings of one measurement of a call, as given: the arguments in which measurements may differ.

    Attributes:
        max_length, stride: None for the default of the protocol and the model.
        window_argument: the argument that set `max_length`, for errors.
    """

    protocol: Protocol
    max_length: int | None = None
    stride: int | None = None
    add_start_token: bool | str = True
    window_argument: str = "max_length"

    def given(self) -> dict[str, object]:
        """Return the settings that differ from their defaults, but for the protocol."""
        values = {name: getattr(self, name) for name in SETTING_NAMES if name != "protocol"}
        return {n: value for n, value in values.items() if value != ARGUMENTS[n].default}

    def signature_fields(self) -> dict[str, object]:
        """Return those of them that the signature names as they are given."""
        return {n: value for n, value in self.given().items() if ARGUMENTS[n].in_signature}

    def check(self) -> None:
        for name in self.given():
            check_supported(name, self.protocol)
        Choice(self.protocol.start_choices).check("add_start_token", self.add_start_token)


def list_settings(given: Mapping[str, Any]) -> tuple[list[Setting], bool]:
    """List all combinations of protocols, window lengths and strides, in the given order.

    Returns:
        the settings, and whether an argument is a list (or "all").
    """
    varied = {name: given[name] for name in ("protocol", "max_length", "stride")}
    if isinstance(given["protocol"], str) and given["protocol"] == "all":
        varied["protocol"] = list(PROTOCOLS)
    gives_list = any(isinstance(values, list | tuple) for values in varied.values())
    lists = [v if isinstance(v, list | tuple) else [v] for v in varied.values()]
    for name, values in zip(varied, lists):
        if not values:
            raise ArgumentError(name, "have at least one value", got="an empty list")
    for name in lists[0]:
        Choice(tuple(PROTOCOLS)).check("protocol", name)
    others = {name: given[name] for name in SETTING_NAMES if name not in varied}
    return [Setting(PROTOCOLS[p], *rest, **others) for p, *rest in product(*lists)], gives_list


def check_supported(argument: str, protocol: Protocol) -> None:
    """Refuse an argument that the protocol's tool does not have."""
    if argument not in protocol.supported_arguments:
        supported = ", ".join(f"`{argument}`" for argument in protocol.supported_arguments)
        raise ArgumentError(
            argument,
            f"be left out with `protocol={protocol.name!r}`, which has no such setting",
            advice=f"Supported arguments: {supported}.",
        )
