"""Table of the arguments of `compute`: types, ranges, descriptions and command-line options.

The checks in arguments.py, the metric's documentation and the command line's options are generated
from it.  It must not import slow modules: the command line reads it before torch is imported.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike

from .errors import ArgumentError, ArgumentTypeError
from .protocols import DEFAULT_PROTOCOL, PROTOCOLS

LINE = 100  # columns of the documentation

# --- kinds of values ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anything:
    """A value that is checked where it is used.

    Attributes:
        text: the command line's syntax: "names", "numbers", "name or JSON", "JSON"; None for a
            plain string.
    """

    text: str | None = None

    def check(self, name: str, value: object) -> None:
        """Accept the value."""


@dataclass(frozen=True)
class WholeNumber:
    """A whole number.

    Attributes:
        low: the smallest allowed value.
        several: whether lists are allowed; the command line separates their values by commas.
        is_size: whether the command line accepts sizes in bytes such as 64M.
    """

    low: int
    several: bool = False
    is_size: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuse other types and smaller numbers; None in a list stands for the default."""
        if not (self.several and isinstance(value, list | tuple)):
            value = [value]
        elif None in value:
            value = [each for each in value if each is not None]
        for each in value:
            check_whole_number(name, each, self.low)


@dataclass(frozen=True)
class WholeNumbers:
    """Distinct whole numbers, or "doubling".

    Attributes:
        low: the smallest allowed value.
        fewest: the minimum number of values.
    """

    low: int
    fewest: int = 1

    def check(self, name: str, values: object) -> None:
        """Refuse other types, smaller numbers and shorter lists."""
        if isinstance(values, str) and values == "doubling":
            return
        must = (
            f"be 'doubling' or a list of at least {self.fewest} different whole numbers, each at "
            f"least {self.low}"
        )
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise ArgumentTypeError(name, must, got=repr(values))
        values = list(values)
        for value in values:
            check_whole_number(name, value, self.low)
        if len(set(values)) < self.fewest:
            raise ArgumentError(name, must, got=repr(values))


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    choices: tuple

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not among the choices; 1 is not accepted for True."""
        if not any(
            value is choice or (value == choice and isinstance(value, str))
            for choice in self.choices
        ):
            shown = ", ".join(map(repr, self.choices))
            raise ArgumentError(name, f"be one of {shown}", got=repr(value))


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def check(self, name: str, value: object) -> None:
        """Refuse other types."""
        if not isinstance(value, bool):
            raise ArgumentTypeError(name, "be True or False", got=repr(value))


@dataclass(frozen=True)
class String:
    """A string of valid Unicode.

    Attributes:
        must: the requirement, for an error.
        advice: how to correct the call, for an error.
    """

    must: str = "be a string"
    advice: str = ""

    def check(self, name: str, value: object) -> None:
        """Refuse other types and lone surrogates."""
        if not isinstance(value, str):
            raise ArgumentTypeError(name, self.must, got=repr(value), advice=self.advice)
        if not is_unicode(value):
            raise ArgumentError(name, "be valid Unicode, without lone surrogates", got=repr(value))


@dataclass(frozen=True)
class FilePath:
    """The path of a file."""

    def check(self, name: str, value: object) -> None:
        """Refuse other types and the empty string."""
        if not isinstance(value, str | PathLike) or value == "":
            raise ArgumentTypeError(name, "be the path of a file", got=repr(value))


@dataclass(frozen=True)
class Function:
    """A callable."""

    def check(self, name: str, value: object) -> None:
        """Refuse other objects."""
        if not callable(value):
            raise ArgumentTypeError(name, "be callable", got=repr(value))


@dataclass(frozen=True)
class Share:
    """A fraction, at least 0 and below 1."""

    def check(self, name: str, value: object) -> None:
        """Refuse other types and numbers outside this range."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ArgumentTypeError(name, "be a number such as 0.01 for 1 %", got=repr(value))
        if not 0 <= float(value) < 1:
            raise ArgumentError(name, "be at least 0 and below 1 (0.01 means 1 %)", got=str(value))


Kind = Anything | WholeNumber | WholeNumbers | Choice | Flag | String | FilePath | Function | Share


def check_whole_number(name: str, value: object, low: int) -> None:
    """Refuse other types, and numbers below `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(name, f"be a whole number of at least {low}", got=repr(value))
    if value < low:
        raise ArgumentError(name, f"be at least {low}", got=str(value))


def is_address(model_id: object) -> bool:
    """Return whether the name of a model is the address of a server."""
    return isinstance(model_id, str) and model_id.lower().startswith(("http://", "https://"))


def is_unicode(text: str) -> bool:
    """Return whether a string has no lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- the table ------------------------------------------------------------------------------------


class _Required:
    """Placeholder for the default of a required argument."""


REQUIRED = _Required()


@dataclass(frozen=True)
class Argument:
    """An argument of `compute`.

    Attributes:
        type: its type in the documentation.
        kind: its allowed values; None is also allowed if it is the default.
        default: its default value.
        help: its documentation.
        option: the help text of its command-line option; None if there is no such option.
        metavar: the name of the option's value in the help.
    """

    type: str
    kind: Kind
    default: object
    help: str
    option: str | None = None
    metavar: str | None = None

    def check(self, name: str, value: object) -> None:
        """Refuse a value of another kind."""
        if value is not None or self.default is not None:
            self.kind.check(name, value)


_PROTOCOLS = ", ".join(
    f'"{name}"' + " (the default)" * (name == DEFAULT_PROTOCOL) for name in PROTOCOLS
)
# Columns that `return_token_scores` may add.
TOKEN_COLUMNS = ("rank", "entropy")
BOUNDARIES = ("joint", "separate")
CORRECTIONS = ("pimentel", "oh", "wordsprobability", "minicons", None)

ARGUMENTS = {
    "predictions": Argument(
        "list of str",
        Anything(),
        REQUIRED,
        "texts; or chats, each a list of messages (dicts with role and content). Chats are formatted "
        "by the tokenizer's chat template, and only the assistant's messages are scored.",
    ),
    "model_id": Argument(
        "str",
        Anything(),
        None,
        "name of a causal language model on the Hub, path of a folder or a GGUF file, or address of "
        'a server such as vLLM\'s, "http://host:8000/v1". It can also be the configuration name: '
        '`evaluate.load("user/perplexity_sliding", "openai-community/gpt2")`.',
        "Hub name, folder, URL or .gguf; default: bundled",
        "NAME",
    ),
    "batch_size": Argument(
        "int",
        WholeNumber(1),
        16,
        "number of full windows per forward pass; shorter windows fit in larger numbers. On a CPU, "
        "where large passes are slow, a pass is limited to 1,024 tokens, or one window if longer.",
        "windows per forward pass; default: 16",
        "N",
    ),
    "add_start_token": Argument(
        "bool or str",
        Choice((True, False, "once", "every")),
        True,
        'whether to score the first token too, given the tokenizer\'s start token. "once" prepends '
        'the start token to the text, "every" to each window, where it occupies one position. True '
        'means "every" if the tokenizer itself prepends a start token when it encodes, else "once".',
        "score the first token: true, false, once, every",
        "CHOICE",
    ),
    "device": Argument(
        "str",
        Anything(),
        None,
        '"cpu", "gpu", "cuda", "cuda:1" or "mps"; an accelerator by default, if available.',
        "cpu, cuda, cuda:1, mps; default: an accelerator",
        "NAME",
    ),
    "max_length": Argument(
        "int or list of int",
        WholeNumber(2, several=True),
        None,
        "window length in tokens; the model's limit by default.",
        "window length in tokens; default: model's limit",
        "L,...",
    ),
    "stride": Argument(
        "int or list of int",
        WholeNumber(1, several=True),
        None,
        "tokens by which the window moves, from 1 to `max_length`; half the window by default. A "
        "smaller stride gives each token more context and takes longer.",
        "tokens between window starts, 1 to L; default: L/2",
        "S,...",
    ),
    "model": Argument(
        "torch.nn.Module or vllm.LLM",
        Anything(),
        None,
        "a live model, instead of `model_id`; its state is restored afterwards.",
    ),
    "tokenizer": Argument(
        "PreTrainedTokenizerBase",
        Anything(),
        None,
        "the tokenizer of `model`, or a replacement for that of `model_id`, which is loaded with the "
        "revision, token and similar arguments of the model.",
        "name or folder; default: that of the model",
        "NAME",
    ),
    "dtype": Argument(
        "str or torch.dtype",
        Anything(),
        None,
        'dtype of the loaded weights: "float32" (the default), "bfloat16", "float16", or "auto" for '
        "the dtype of the checkpoint.",
        "float32 (default), bfloat16, float16, auto",
        "NAME",
    ),
    "model_kwargs": Argument(
        "dict",
        Anything("JSON"),
        None,
        "additional arguments of the model's `from_pretrained`: revision, device_map, "
        "quantization_config, token, attn_implementation, trust_remote_code, …",
        'for from_pretrained: \'{"revision": "main"}\'',
        "JSON",
    ),
    "return_token_scores": Argument(
        "bool or list of str",
        Anything(),
        False,
        "also return the score of every token. A list selects additional columns: "
        + ", ".join(f'"{name}"' for name in TOKEN_COLUMNS)
        + ', and for example "top5" for the rank and the five most likely tokens.',
    ),
    "protocol": Argument(
        "str or list of str",
        Anything("names"),
        DEFAULT_PROTOCOL,
        f'evaluation protocol: {_PROTOCOLS}; or "all". If `protocol`, `max_length` or `stride` is a '
        "list, every combination is measured and shared forward passes run once: see "
        "`measurements`.",
        f"{', '.join(PROTOCOLS)}; several, or all",
        "NAME,...",
    ),
    "word_counts": Argument(
        "list of int",
        Anything("numbers"),
        None,
        "number of original words (or tokens) of each text, for normalisation. By default, words are "
        "separated by white space, or counted as the protocol's tool does.",
    ),
    "callback": Argument(
        "callable",
        Function(),
        None,
        "called after every batch with an object that has the attributes `done` and `total` (tokens "
        "read by the model) and `perplexity` (so far). An exception raised by the callback ends the run; added texts are kept. If the callback has a method `status`, it is "
        "called with the name of each step before the first batch; a method `resumed`, with the "
        "numbers of tokens that a checkpoint has and of all.",
    ),
    "checkpoint": Argument(
        "str",
        FilePath(),
        None,
        "path of a SQLite file that stores the scores of finished passes. Repeating an interrupted "
        "call with the same file resumes it, with the same result. Calls with another stride, window "
        "or protocol over the same texts reuse the stored passes that they share.",
        "store finished passes, and resume from them",
        "FILE",
    ),
    "identify": Argument(
        "bool",
        Flag(),
        False,
        "digest a live model and its tokenizer, whose signature says `live` otherwise, and add the "
        "probe, the mean nll of a fixed random text, to the result. `checkpoint` does so by itself.",
    ),
    "distributed": Argument(
        "bool",
        Flag(),
        False,
        "distribute the windows over the processes of `torchrun`. Every process must make the same "
        "call, and gets the same result. Requires accelerate.",
        "distribute the work over torchrun's processes",
    ),
    "return_totals": Argument(
        "bool or str",
        Choice((True, False, "texts")),
        False,
        'also return totals, which add up over shards of a corpus; "texts" adds those of each text.',
    ),
    "detokenizer": Argument(
        "str",
        String("be a name for the signature", "Detokenize the texts before passing them."),
        None,
        "name of the detokenizer that was applied to the texts, for the signature.",
    ),
    "reference": Argument(
        "str, torch.nn.Module or dict",
        Anything(),
        None,
        'a second model to compare with, by name or live; "without adapter" is the model itself with '
        "its adapters disabled. Both models read the same windows, and their logits are compared "
        "block by block: see `comparison`. A dict has the keys model_id or model; tokenizer (by "
        "default that of the named reference, or that of `model` for a live one); dtype (that of the "
        "model by default); and model_kwargs for `from_pretrained`.",
        "model to compare with; or 'without adapter'",
        "NAME",
    ),
    "margin": Argument(
        "float",
        Share(),
        None,
        "largest acceptable increase of perplexity: 0.01 for 1 %. The `verdict` then refers to this "
        "margin, and `within_margin` is True if the model is within it at 95 % confidence.",
        "exit code 1 if worse by more: 0.01 is 1 %%",
        "X",
    ),
    "context_lengths": Argument(
        "list of int or str",
        WholeNumbers(2),
        None,
        "also compare windows of these lengths on the same tokens, in the passes of the longest. "
        "All other numbers are those of the longest, which `max_length` may repeat. "
        '"doubling" takes the window and its successive halves. `stride` defaults to half of the '
        "shortest.",
        "compare windows of these lengths; or doubling",
        "C,...",
    ),
    "carry": Argument(
        "bool",
        Choice((True, False)),
        False,
        "read every text once, in segments of `stride` tokens, and carry the model's state from "
        "segment to segment. A recurrent model then sees the whole context. A model with attention "
        "sees the cached keys of the last `max_length - stride` tokens, as in the evaluation of "
        "Transformer-XL; its numbers differ from those of a sliding window. Models with learned "
        "positions are refused.",
        "read once, carrying the model's state",
    ),
    "contexts": Argument(
        "str or list of str",
        Anything(),
        None,
        "context that is read before each text without being scored: one string for all texts, or "
        "one for each. All numbers are those of the texts alone. Nothing is inserted between the two: "
        "begin a text with the space that belongs there.",
    ),
    "score_spans": Argument(
        "list of lists of pairs",
        Anything(),
        None,
        "(start, end) pairs of the characters to score in each text, with end exclusive; the rest is "
        "read as context.",
    ),
    "boundary": Argument(
        "str",
        Choice(BOUNDARIES),
        "joint",
        'how to score a token that spans the edge of a scored part: "joint" scores the whole token, '
        'with a warning; "separate" tokenizes context and text separately, so that no token spans '
        "the edge.",
        "tokens at a context's edge: joint, separate",
        "NAME",
    ),
    "words": Argument(
        "bool or list",
        Anything(),
        False,
        "also return the scores of words: True splits at white space; a list gives the words of each "
        "text, or the (start, end) characters of its words, with end exclusive.",
    ),
    "word_correction": Argument(
        "str or None",
        Choice(CORRECTIONS),
        "pimentel",
        'correction for the space between words: "pimentel" (Pimentel and Meister, 2024), "oh" (Oh '
        'and Schuler, 2024), "wordsprobability" or "minicons" for exactly the numbers of these '
        "packages, or None for plain sums.",
        "pimentel (default), oh, a package or none; implies --words",
        "NAME",
    ),
}


def describe_arguments() -> str:
    """Return the documentation of all arguments, in Google style."""
    return "\n".join(
        textwrap.fill(
            f"{name} ({argument.type}): {argument.help}{_default_of(argument)}",
            LINE,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        for name, argument in ARGUMENTS.items()
    )


def _default_of(argument: Argument) -> str:
    """Return the default as a sentence; empty if it is None or part of the description."""
    default = argument.default
    if default is None or default is REQUIRED or "the default)" in argument.help:
        return ""
    shown = (
        "512 MiB" if default == 2**29 else f'"{default}"' if isinstance(default, str) else default
    )
    return f" Defaults to {shown}."
