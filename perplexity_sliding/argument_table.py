"""The arguments of `compute`, in one table: their types, ranges, descriptions and options.

Python's checks (arguments.py), the metric's documentation and the options of the command line are made
from it.  Nothing here imports what takes long: the command line reads it before torch is imported.
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
    """A value that the module which uses it checks.

    Attributes:
        text: how the command line writes it: "names", "numbers", "name or JSON", "JSON"; None for a
            plain string.
    """

    text: str | None = None

    def check(self, name: str, value: object) -> None:
        """Accept the value."""


@dataclass(frozen=True)
class WholeNumber:
    """A whole number.

    Attributes:
        low: the smallest that is allowed.
        several: whether the command line takes several with commas in between.
        is_size: whether the command line takes sizes in bytes such as 64M.
    """

    low: int
    several: bool = False
    is_size: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuse what is no whole number, or too small; a list may have None in it, the default."""
        if not (self.several and isinstance(value, list | tuple)):
            value = [value]
        elif None in value:
            value = [each for each in value if each is not None]
        for each in value:
            check_whole_number(name, each, self.low)


@dataclass(frozen=True)
class WholeNumbers:
    """Different whole numbers, or "doubling".

    Attributes:
        low: the smallest that is allowed.
        fewest: how many there must be.
    """

    low: int
    fewest: int = 1

    def check(self, name: str, values: object) -> None:
        """Refuse what is no such list."""
        if isinstance(values, str) and values == "doubling":
            return
        must = f"be 'doubling' or a list of at least {self.fewest} {{}}from {self.low} on"
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise ArgumentTypeError(name, must.format("whole numbers "), got=repr(values))
        values = list(values)
        for value in values:
            check_whole_number(name, value, self.low)
        if len(set(values)) < self.fewest:
            raise ArgumentError(name, must.format("different whole numbers "), got=repr(values))


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    choices: tuple

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not among the choices; True is not 1."""
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
        """Refuse anything else."""
        if not isinstance(value, bool):
            raise ArgumentTypeError(name, "be True or False", got=repr(value))


@dataclass(frozen=True)
class String:
    """A string of valid Unicode.

    Attributes:
        must: what it must be, for an error.
        advice: what to do instead.
    """

    must: str = "be a string"
    advice: str = ""

    def check(self, name: str, value: object) -> None:
        """Refuse anything else."""
        if not isinstance(value, str):
            raise ArgumentTypeError(name, self.must, got=repr(value), advice=self.advice)
        if not is_unicode(value):
            raise ArgumentError(name, "be valid Unicode, without lone surrogates", got=repr(value))


@dataclass(frozen=True)
class FilePath:
    """The path of a file."""

    def check(self, name: str, value: object) -> None:
        """Refuse anything else."""
        if not isinstance(value, str | PathLike) or value == "":
            raise ArgumentTypeError(name, "be the path of a file", got=repr(value))


@dataclass(frozen=True)
class Function:
    """A callable."""

    def check(self, name: str, value: object) -> None:
        """Refuse anything else."""
        if not callable(value):
            raise ArgumentTypeError(name, "be callable", got=repr(value))


@dataclass(frozen=True)
class Share:
    """A number from 0 to below 1."""

    def check(self, name: str, value: object) -> None:
        """Refuse anything else."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ArgumentTypeError(name, "be a number such as 0.01 for 1 %", got=repr(value))
        if not 0 <= float(value) < 1:
            raise ArgumentError(name, "be from 0 to below 1, 0.01 for 1 %", got=str(value))


Kind = Anything | WholeNumber | WholeNumbers | Choice | Flag | String | FilePath | Function | Share


def check_whole_number(name: str, value: object, low: int) -> None:
    """Refuse what is no whole number, or one that is too small."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(name, f"be a whole number from {low} on", got=repr(value))
    if value < low:
        raise ArgumentError(name, f"be at least {low}", got=str(value))


def is_unicode(text: str) -> bool:
    """Return whether a string has no lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- the table ------------------------------------------------------------------------------------


class _Required:
    """The default of an argument that must be given."""


REQUIRED = _Required()


@dataclass(frozen=True)
class Argument:
    """An argument of `compute`.

    Attributes:
        type: as the documentation writes it.
        kind: the values that it may have.
        default: the value where it is left out; None is always allowed where it is the default.
        help: its documentation.
        option: one line on its option, where the command line has one.
        metavar: stands for the option's value in the help.
    """

    type: str
    kind: Kind
    default: object
    help: str
    option: str | None = None
    metavar: str | None = None

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not of its kind."""
        if value is not None or self.default is not None:
            self.kind.check(name, value)


_PROTOCOLS = ", ".join(
    f'"{name}"' + " (the default)" * (name == DEFAULT_PROTOCOL) for name in PROTOCOLS
)
# Columns that `return_token_scores` may add.
TOKEN_COLUMNS = ("rank", "entropy")
BOUNDARIES = ("joint", "healed", "separate")
CORRECTIONS = ("pimentel", "oh", None)

ARGUMENTS = {
    "predictions": Argument(
        "list of str",
        Anything(),
        REQUIRED,
        "the texts; or chats, lists of messages (dicts with role and content): the tokenizer's chat "
        "template writes them out, and the assistant's messages are scored.",
    ),
    "model_id": Argument(
        "str",
        Anything(),
        None,
        "a causal language model on the Hub, a folder, a GGUF file, or the address of a server such "
        'as vLLM\'s, "http://host:8000/v1". The configuration name does as well: '
        '`evaluate.load("user/perplexity_sliding", "openai-community/gpt2")`.',
        "Hub name, folder, URL or .gguf; default: bundled",
        "NAME",
    ),
    "batch_size": Argument(
        "int",
        WholeNumber(1),
        16,
        "windows of `max_length` tokens in one forward pass; more of them where they are shorter. On "
        "a CPU, where larger passes are slower, a pass has at most 1,024 tokens, or one window.",
        "windows in one forward pass, default 16",
        "N",
    ),
    "add_start_token": Argument(
        "bool or str",
        Choice((True, False, "once", "every")),
        True,
        'whether the first token is scored too, given the tokenizer\'s start token. "once" puts it '
        'before the text, "every" at the head of every window, where it takes one of the places; '
        'True means "every" where the tokenizer itself prepends one when it encodes, and "once" '
        "elsewhere.",
        "score the first token: true, false, once, every",
        "CHOICE",
    ),
    "device": Argument(
        "str",
        Anything(),
        None,
        '"cpu", "gpu", "cuda", "cuda:1", "mps"; by default an accelerator if there is one.',
        "cpu, cuda, cuda:1, mps; an accelerator by default",
        "NAME",
    ),
    "max_length": Argument(
        "int or list of int",
        WholeNumber(2, several=True),
        None,
        "tokens in a window, the model's limit by default.",
        "tokens in a window, default: the model's limit",
        "L,...",
    ),
    "stride": Argument(
        "int or list of int",
        WholeNumber(1, several=True),
        None,
        "tokens from one window to the next, 1 to `max_length`; half the window by default. Smaller "
        "strides give each token more context and cost more.",
        "tokens from window to window, 1 to L; default L/2",
        "S,...",
    ),
    "model": Argument(
        "torch.nn.Module or vllm.LLM",
        Anything(),
        None,
        "a live model instead of `model_id`; left as it was found.",
    ),
    "tokenizer": Argument(
        "PreTrainedTokenizerBase",
        Anything(),
        None,
        "the tokenizer of `model`, or one to use instead of that of `model_id`.",
        "of another model than --model, by name or folder",
        "NAME",
    ),
    "dtype": Argument(
        "str or torch.dtype",
        Anything(),
        None,
        'the dtype to load the weights in: "float32" (the default), "bfloat16", "float16", or "auto" '
        "for that of the checkpoint.",
        "float32 (the default), bfloat16, float16 or auto",
        "NAME",
    ),
    "model_kwargs": Argument(
        "dict",
        Anything("JSON"),
        None,
        "more arguments for the model's `from_pretrained`: revision, device_map, "
        "quantization_config, token, attn_implementation, trust_remote_code, …",
        'for from_pretrained: \'{"revision": "main"}\'',
        "JSON",
    ),
    "tokenizer_kwargs": Argument(
        "dict",
        Anything("JSON"),
        None,
        "the same for the tokenizer, which by default shares revision, token and the like with the "
        "model.",
        "the same for the tokenizer",
        "JSON",
    ),
    "return_token_scores": Argument(
        "bool or list of str",
        Anything(),
        False,
        "also return every token's score; a list adds columns to it: "
        + ", ".join(f'"{name}"' for name in TOKEN_COLUMNS)
        + ".",
    ),
    "protocol": Argument(
        "str or list of str",
        Anything("names"),
        DEFAULT_PROTOCOL,
        f'whose windows to use: {_PROTOCOLS}; or "all" of them. Where `protocol`, `max_length` or '
        "`stride` is a list, every combination is measured, and what they share is read once: see "
        "`measurements`.",
        f"{', '.join(PROTOCOLS)}; several, or all",
        "NAME,...",
    ),
    "separator": Argument(
        "str",
        String(),
        None,
        "joins the texts into one before anything else. By default each is scored on its own; "
        "protocols that join do so by themselves.",
        r"join the texts by this into one; \n is a line end",
        "TEXT",
    ),
    "word_counts": Argument(
        "list of int",
        Anything("numbers"),
        None,
        "the number of original words (or tokens) of each text, to normalise by. By default words "
        "are counted between white space, or as the protocol's tool counts them.",
        "original words of each text, to normalise by",
        "N,...",
    ),
    "logits_memory": Argument(
        "int",
        WholeNumber(1, is_size=True),
        2**29,
        "bytes that logits may take at a time.",
        "what logits may take at a time, default 512M",
        "SIZE",
    ),
    "num_alternatives": Argument(
        "int",
        WholeNumber(0),
        0,
        "also return each token's rank, and this many of the likeliest tokens in its place, in "
        "`token_scores`.",
        "also ranks and the N likeliest; implies --tokens",
        "N",
    ),
    "callback": Argument(
        "callable",
        Function(),
        None,
        "called after every batch with an object that has `done` and `total` (tokens through the "
        "model; where a reference stores its states, through both, one after the other) and "
        "`perplexity` (so far; NaN while the reference runs alone). An exception that it raises ends "
        "the run; texts that were added are kept. Its method `status`, if it has one, is called with "
        "the name of each step before the first batch.",
    ),
    "checkpoint": Argument(
        "str",
        FilePath(),
        None,
        "a SQLite file that keeps the scores of finished passes. The same call with the same file "
        "resumes where a killed one stopped, with the same result; another stride, window or "
        "protocol over the same texts takes what is there already.",
        "keep finished windows here, and go on from them",
        "FILE",
    ),
    "distributed": Argument(
        "bool",
        Flag(),
        False,
        "share the windows out between the processes that `torchrun` started; each must make this "
        "same call, and gets the same result. Needs the package accelerate.",
        "share the work between the processes of a torchrun",
    ),
    "return_totals": Argument(
        "bool or str",
        Choice((True, False, "texts")),
        False,
        'also return what adds up over shards of a corpus; "texts" does so for each text by itself '
        "too.",
    ),
    "detokenizer": Argument(
        "str",
        String("be a name for the signature", "Turn the texts into prose before passing them."),
        None,
        "the name of what turned the texts into prose beforehand, for the signature.",
    ),
    "reference": Argument(
        "str, torch.nn.Module or dict",
        Anything(),
        None,
        'a second model to compare the first with, by name or live; "without adapter" takes the '
        "first with its adapters switched off. Both read the same windows, and their logits meet "
        "block by block: see `comparison`. A dict has the keys model_id or model; tokenizer, if it is "
        "not its own (by name) or the model's (live); dtype, that of the model by default; "
        "model_kwargs for `from_pretrained`; and states, a file for the reference's last hidden "
        "states, where two models do not fit in memory together: the reference runs first and alone, "
        "then only its head stays. The result is the same. A killed run resumes, and the next "
        "candidate finds the states there.",
        "is it worse than this? or 'without adapter'",
        "NAME",
    ),
    "margin": Argument(
        "float",
        Share(),
        None,
        "how much worse the model may be: 0.01 for 1 % of perplexity. The `verdict` then says "
        "whether it stays within, and `within_margin` whether that is certain at 95 % confidence.",
        "exit code 1 unless surely within: 0.01 for 1 %%",
        "X",
    ),
    "context_lengths": Argument(
        "list of int or str",
        WholeNumbers(2),
        None,
        "also compare windows of these lengths on the same tokens, read in the passes of the longest. "
        '`max_length` may name the longest, and the other numbers are of it. "doubling" takes the '
        "window and its halves. `stride` is half of the shortest by default.",
        "also compare windows of these lengths; or doubling",
        "C,...",
    ),
    "positions": Argument(
        "list of int or str",
        WholeNumbers(0, fewest=2),
        None,
        "also give the loss by place in the text: edges of bins, 0 being the first token, or "
        '"doubling".',
        "also the loss by place in the text; or doubling",
        "P,...",
    ),
    "carry": Argument(
        "bool",
        Choice((True, False)),
        False,
        "read every text once, in segments of `stride` tokens, and carry the model's state on: with "
        "a recurrent model, the score with all context; with attention the keys of the last "
        "`max_length - stride` tokens, as Transformer-XL is evaluated, which gives other numbers than "
        "a sliding window. Refused for learned positions.",
        "read once and carry the model's state on",
    ),
    "key_tokens": Argument(
        "str or dict",
        Anything("name or JSON"),
        None,
        '"longppl" also gives the perplexity of tokens that need a long context (Fang et al. 2025); '
        "a dict changes some of its settings: short_context (4096 tokens), stride (1024), gain (2 "
        "nats), largest_nll (2 nats), and evaluator, the model that finds them: a name, a folder, or "
        "a pair (model, tokenizer); the measured one by default.",
        "longppl: also of tokens that need long contexts",
        "NAME",
    ),
    "contexts": Argument(
        "str or list of str",
        Anything(),
        None,
        "read before each text and not scored: one for all, or one for each. Every number is then of "
        "the texts alone.",
    ),
    "score_spans": Argument(
        "list of lists of pairs",
        Anything(),
        None,
        "(first, one past the last) characters of each text that are scored; the rest is read.",
    ),
    "boundary": Argument(
        "str",
        Choice(BOUNDARIES),
        "joint",
        'how to score a token that reaches across the edge of a scored part: "joint" as a whole, with '
        'a warning; "healed" given those of its characters that stand before the edge; "separate" '
        "tokenizes context and text apart, so that no token does.",
        "at a context's edge: joint, healed or separate",
        "NAME",
    ),
    "context_separator": Argument(
        "str",
        String(),
        None,
        'put between each context and its text, and scored with the text; " " where neither has '
        "the space between them. Without it, texts that run together with their contexts are warned "
        'of; "" keeps them so.',
        "between a context and its text: ' ', or ''",
        "TEXT",
    ),
    "words": Argument(
        "bool or list",
        Anything(),
        False,
        "also return the scores of words: True for those between white space, or a list with the "
        "words of each text, or with the (first, one past the last) characters of each.",
    ),
    "word_correction": Argument(
        "str or None",
        Choice(CORRECTIONS),
        "pimentel",
        'how to account for the space between words: "pimentel" (Pimentel and Meister, 2024), "oh" '
        "(Oh and Schuler, 2024), or None for plain sums.",
        "pimentel (the default), oh or none; implies --words",
        "NAME",
    ),
}


def describe_arguments() -> str:
    """Write the documentation of all arguments, in Google's style."""
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
    """Write the default, unless it is None or in the description."""
    default = argument.default
    if default is None or default is REQUIRED or "the default)" in argument.help:
        return ""
    shown = (
        "512 MiB" if default == 2**29 else f'"{default}"' if isinstance(default, str) else default
    )
    return f" Defaults to {shown}."
