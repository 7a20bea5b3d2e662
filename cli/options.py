"""The command line of score.py: its options, as one table, and what does not go together."""

import argparse
import json
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUNDLED_MODEL = ROOT / "demo_model"
START_CHOICES = {"true": True, "false": False, "once": "once", "every": "every"}


def whole_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a whole number, or several with commas between"
        ) from None


def names(text: str) -> list[str]:
    return text.split(",")


def json_object(text: str) -> dict:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} must be a JSON object such as {{"a": 1}}')
    return value


def unescaped(text: str) -> str:
    r"""Read \n, \t and the like, which a shell passes on as they are."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} has a bad escape: {error.reason}") from None


def start_choice(text: str) -> bool | str:
    try:
        return START_CHOICES[text.lower()]
    except KeyError:
        choices = ", ".join(START_CHOICES)
        raise argparse.ArgumentTypeError(f"{text!r} must be one of {choices}") from None


def option(help: str, **settings) -> dict:
    """What argparse is told of an option."""
    return {"help": help} | settings


# The arguments of the metric, under their own names.
MEASURE = {
    "max_length": option(
        "tokens in a window; by default as many as the model takes", type=int, metavar="L"
    ),
    "stride": option(
        "tokens from one window to the next, 1 to max_length, by default half of it; smaller "
        "strides give each token more context and cost more. Several, such as 128,64,32, are "
        "compared in a table",
        type=whole_numbers,
        metavar="S[,S...]",
    ),
    "add_start_token": option(
        "true (the default), false, once or every: whether the first token is scored too, given "
        "the start token, and whether that stands before the text only or in every window; true "
        "does what the tokenizer does when it encodes",
        type=start_choice,
        metavar="CHOICE",
    ),
    "protocol": option(
        "whose way to measure: sliding (the default), transformers-docs, "
        "transformers-docs-weighted, stock, lm-eval, paloma, llama.cpp, gptq, exllamav2, megatron, "
        "mlx-lm. Several with commas between, or 'all', are compared in a table",
        type=names,
        metavar="NAME[,NAME...]",
    ),
    "separator": option(
        r"joins the texts into one before anything else; escapes such as \n are understood",
        type=unescaped,
        metavar="TEXT",
    ),
    "word_counts": option(
        "words that each text had in its original form, to give the perplexity per such word; "
        "--detokenize counts them by itself",
        type=whole_numbers,
        metavar="N[,N...]",
    ),
}
MODEL = {
    "model_id": option(
        "a causal language model on the Hugging Face Hub, or a folder; by default the small "
        "bundled one, which has read English novels",
        default=str(BUNDLED_MODEL),
        metavar="NAME",
    ),
    "device": option(
        "cpu, cuda, cuda:1, mps; by default an accelerator if there is one", metavar="NAME"
    ),
    "dtype": option("float32 (the default), bfloat16, float16 or auto", metavar="NAME"),
    "model_kwargs": option(
        "more arguments for the model's from_pretrained, such as "
        '\'{"revision": "main", "device_map": "auto"}\'',
        type=json_object,
        metavar="JSON",
    ),
    "tokenizer_kwargs": option("the same for the tokenizer", type=json_object, metavar="JSON"),
}
RUN = {
    "batch_size": option("windows in one forward pass, 16 by default", type=int, metavar="N"),
    "logits_memory": option(
        "what logits may take at a time, 512 MiB by default", type=int, metavar="BYTES"
    ),
    "checkpoint": option(
        "keep the scores of finished windows in this file, and go on from it if there is one",
        metavar="FILE",
    ),
    "distributed": option(
        "share the work out between the processes of a torchrun; under torchrun this is on",
        action="store_true",
        default="TORCHELASTIC_RUN_ID" in os.environ,
    ),
}
TOKENS = {
    "num_alternatives": option(
        "list each token's rank and the N likeliest in its place; implies --tokens",
        type=int,
        metavar="N",
    ),
}
METRIC_ARGUMENTS = MEASURE | MODEL | RUN | TOKENS

INPUT = {
    "dataset": option(
        "score the texts of a dataset: NAME is one on the Hub or a folder, CONFIG may be empty, "
        "SPLIT may be a slice such as test[:100]",
        metavar="NAME:CONFIG:SPLIT:COLUMN",
    ),
    "detokenize": option(
        "the texts are in WikiText's word-level form: score them as ordinary prose, and give the "
        "perplexity per word of the original",
        choices=["wikitext"],
    ),
    "shard_characters": option(
        "read and score texts so many characters at a time, 10 million by default, so that a corpus "
        "may be larger than memory; a single text is never cut, and must fit. Everything is read "
        "at once for --tokens, --word_counts, --separator, comparisons and protocols that join "
        "the texts",
        type=int,
        default=10_000_000,
        metavar="N",
    ),
}
OUTPUT = {
    "json": option(
        "print JSON instead of tables: the metric's results under 'files' and 'corpus', "
        "'protocols' or 'strides', with null for infinite and undefined numbers",
        action="store_true",
    ),
    "tokens": option("list every token with its score", action="store_true"),
    **TOKENS,
    "plot": option(
        "draw the comparison of protocols or strides (needs matplotlib): .png, .svg or .pdf",
        metavar="FILE",
    ),
    "quiet": option("show no progress on stderr", action="store_true"),
}
GROUPS = {
    "texts": INPUT,
    "what is measured": MEASURE,
    "the model": MODEL,
    "how it runs": RUN,
    "output": OUTPUT,
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions, so that all errors look alike."""

    def error(self, message: str):
        raise ValueError(f"{message}. See {self.prog} --help.")


def make_parser() -> Parser:
    parser = Parser(
        prog="score.py",
        usage="%(prog)s [FILE ...] [options]",
        description="Perplexity of texts of any length under a causal language model, read in "
        "windows that slide over them.",
        epilog="Exit code: 0; 2 for bad input, with one line on stderr; 130 when interrupted. "
        "Options may be spelled with dashes: --max-length.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="UTF-8 text; - or nothing for standard input"
    )
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            group.add_argument(f"--{name}", **settings)
    return parser


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line and refuse what does not go together.

    Beside the options, the result says with `compares` whether several protocols or strides were
    given; both are lists.

    Raises:
        ValueError: a bad command line.
    """
    args = make_parser().parse_args(with_underscores(argv))
    args.stride, args.protocol = args.stride or [None], args.protocol or [None]
    args.tokens = args.tokens or bool(args.num_alternatives)
    protocols, strides = args.protocol[1:] or args.protocol == ["all"], args.stride[1:]
    args.compares = bool(protocols or strides)
    conflicts = {
        "FILE and --dataset": args.files and args.dataset,
        "--word_counts and --detokenize": args.word_counts and args.detokenize,
        "several strides and several protocols": strides and protocols,
        "--tokens and several protocols or strides": args.tokens and args.compares,
    }
    for what, given in conflicts.items():
        if given:
            raise ValueError(f"{what} must not be given together.")
    if args.shard_characters < 1:
        raise ValueError(f"--shard_characters must be at least 1, got {args.shard_characters}.")
    if args.plot and not args.compares:
        raise ValueError("--plot needs several protocols or strides to draw.")
    return args


def with_underscores(argv: list[str]) -> list[str]:
    """Write the names of options as the metric's arguments are: --max-length as --max_length."""
    end = argv.index("--") if "--" in argv else len(argv)
    options = [
        re.sub("^--[^=]+", lambda name: f"--{name[0][2:].replace('-', '_')}", word)
        for word in argv[:end]
    ]
    return options + argv[end:]
