"""The order of work: read texts, measure them with the metric, show the result.

Texts come from files, from a pipe or from a dataset; the model is the bundled one unless
`--model_id` names another.
"""

import argparse
import json
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from . import sharding, tables, wikitext
from .options import METRIC_ARGUMENTS, ROOT, parse_arguments

METRIC = ROOT / "perplexity_sliding.py"
DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")
REFUSALS = (ValueError, TypeError)


@dataclass(frozen=True)
class Text:
    """A text to score; with `--detokenize`, also what it was before it was turned into prose."""

    name: str
    text: str
    original: str | None = None


def read_shards(args: argparse.Namespace) -> Iterator[list[Text]]:
    """Read the texts from where the command line says, as many at a time as are scored together."""
    return sharding.cut_into_shards(read_texts(args), shard_size(args))


def shard_size(args: argparse.Namespace) -> float:
    """Characters in a shard: no limit where all texts are needed at once."""
    joins = args.separator is not None or args.protocol[0] not in sharding.SCORE_EACH
    if args.compares or joins or args.tokens or args.word_counts:
        return math.inf
    return args.shard_characters


def read_texts(args: argparse.Namespace) -> Iterator[Text]:
    """Read the texts, one after the other as they are asked for."""
    if args.dataset:
        texts = read_dataset(args.dataset, hides_progress(args))
    elif args.files or not sys.stdin.isatty():
        texts = read_files(args.files or ["-"])
    else:
        raise ValueError("There is nothing to score: name a FILE, pipe text in, or pass --dataset.")
    for text in texts:
        if args.detokenize:
            text = Text(text.name, wikitext.detokenize(text.text), original=text.text)
        yield text


def read_files(names: list[str]) -> Iterator[Text]:
    """Read files; one that cannot be opened shows before the first is scored."""
    for name in names:
        if name != "-" and not Path(name).is_fifo():  # a pipe can be opened only once
            open(name, "rb").close()
    return (Text(name, read_file(name)) for name in names)


def read_file(name: str) -> str:
    """Read a file as it is, line ends included; only a byte order mark is dropped."""
    source = "Standard input" if name == "-" else name
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8 text: {error.reason} at byte {error.start}."
        ) from None
    if not text:
        raise ValueError(f"{source} is empty.")
    return text


def read_dataset(spec: str, quiet: bool) -> Iterator[Text]:
    """Read a column of a dataset, given as name:config:split:column, row by row from the disk."""
    import datasets

    if quiet:
        datasets.disable_progress_bars()
    match = DATASET.fullmatch(spec)
    if match is None:
        raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {spec!r}.")
    name, config, split, column = match.groups()
    try:
        rows = datasets.load_dataset(name, config or None, split=split)
    except datasets.exceptions.DatasetsError as error:
        raise ValueError(f"--dataset={spec} could not be loaded: {error}") from error
    if column not in rows.column_names:
        raise ValueError(
            f"--dataset must name one of the columns {', '.join(rows.column_names)}, got {column!r}."
        )
    if rows.features[column].dtype not in ("string", "large_string"):
        raise ValueError(f"--dataset must name a column of strings, but {column!r} holds others.")
    if not len(rows):
        raise ValueError(f"--dataset={spec} has no rows.")
    texts = (row[column] for row in rows.select_columns([column]))
    return (Text(f"row {number}", text or "") for number, text in enumerate(texts))


def hides_progress(args: argparse.Namespace) -> bool:
    return args.quiet or not sys.stderr.isatty()


def load_metric(args: argparse.Namespace):
    """Load the metric, and only now the libraries that it takes seconds to import."""
    import evaluate
    import transformers

    if args.quiet:
        evaluate.logging.disable_progress_bar()
    if hides_progress(args):
        transformers.logging.disable_progress_bar()
    return evaluate.load(str(METRIC))


def metric_arguments(args: argparse.Namespace) -> dict:
    """The metric's arguments that were given; it knows the defaults of the others."""
    given = {name: getattr(args, name) for name in METRIC_ARGUMENTS}
    given |= {"protocol": args.protocol[0], "stride": args.stride[0]}
    return {name: value for name, value in given.items() if value is not None}


def measure(metric, texts: list[Text], arguments: dict) -> dict:
    """Compute once; texts that were turned into prose are also measured by what they were."""
    predictions = [text.text for text in texts]
    if texts[0].original is None:
        return metric.compute(predictions=predictions, **arguments)
    originals = [text.original for text in texts]
    counts = [count_words(original, arguments.get("protocol")) for original in originals]
    result = metric.compute(predictions=predictions, word_counts=counts, **arguments)
    if len(result["perplexities"]) < len(texts):
        return result  # joined, and the bytes of the separators aren't known here
    return with_original_bytes(result, *count_bytes(texts))


def count_bytes(texts: list[Text]) -> tuple[int, int]:
    """UTF-8 bytes of texts that were turned into prose, and of what they were."""
    return sum(len(t.text.encode()) for t in texts), sum(len(t.original.encode()) for t in texts)


def with_original_bytes(result: dict, num_bytes: int, num_original: int) -> dict:
    per_original_byte = result["bits_per_byte"] * num_bytes / num_original
    return result | {"bits_per_original_byte": per_original_byte}


def count_words(text: str, protocol: str | None) -> int:
    """Words of a text in WikiText's form.

    lm-evaluation-harness splits at white space.  Megatron-LM splits at single spaces, so that line
    ends count too, as they do in the perplexities that are published for WikiText.
    """
    return len(re.split(r"\s+", text)) if protocol == "lm-eval" else len(text.strip().split(" "))


def try_to_measure(metric, texts: list[Text], arguments: dict) -> dict:
    """Compute once, or say why that cannot be done."""
    try:
        return measure(metric, texts, arguments)
    except REFUSALS as error:
        return {"error": str(error)}


def score_shards(metric, shards: Iterator[list[Text]], args: argparse.Namespace) -> dict:
    """Score shard after shard; report on their texts as if they had been scored in one piece."""
    if shard_size(args) == math.inf:
        return score_files(metric, next(shards), args)[0]
    totals, files, num_texts = None, [], 0
    num_bytes = num_original = 0
    for texts in shards:
        with counted_from(num_texts):
            report, shard_totals = score_files(metric, texts, args)
        totals = shard_totals if totals is None else totals + shard_totals
        num_texts += len(texts)
        files += report.get("files", [])
        if args.detokenize:
            sizes = count_bytes(texts)
            num_bytes, num_original = num_bytes + sizes[0], num_original + sizes[1]
    corpus = totals.result()
    if args.detokenize:
        corpus = with_original_bytes(corpus, num_bytes, num_original)
    return ({} if args.dataset else {"files": files}) | {"corpus": corpus}


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """Say in a refusal of a later shard where its positions count from."""
    try:
        yield
    except REFUSALS as error:
        if first == 0:
            raise
        raise ValueError(f"Counting from text {first} on: {error}") from error


def score_files(metric, texts: list[Text], args: argparse.Namespace) -> tuple[dict, object]:
    """Score the texts together, and each file on its own; return a report and the totals."""
    arguments = metric_arguments(args)
    with kept_scores(arguments, texts) as arguments:
        more = {"return_token_scores": args.tokens, "return_totals": True}
        corpus = measure(metric, texts, arguments | more)
        totals = corpus.pop("totals")
        if args.dataset:
            return {"corpus": corpus}, totals
        if len(texts) == 1:
            return {"files": [{"name": texts[0].name} | corpus], "corpus": corpus}, totals
        files = [
            {"name": text.name} | try_to_measure(metric, [text], for_one(arguments, number))
            for number, text in enumerate(texts)
        ]
    return {"files": files, "corpus": corpus}, totals


@contextmanager
def kept_scores(arguments: dict, texts: list[Text]) -> Iterator[dict]:
    """Keep the scores of the corpus in a checkpoint, so that its files need not be scored again."""
    if len(texts) == 1 or "checkpoint" in arguments or "num_alternatives" in arguments:
        yield arguments
        return
    with tempfile.TemporaryDirectory() as folder:
        yield arguments | {"checkpoint": os.path.join(folder, "scores.sqlite")}


def for_one(arguments: dict, number: int) -> dict:
    """The arguments for a single one of the texts."""
    if "word_counts" not in arguments:
        return arguments
    return arguments | {"word_counts": arguments["word_counts"][number : number + 1]}


def compare(metric, texts: list[Text], args: argparse.Namespace) -> dict:
    """Score the texts with several protocols or strides; a refusal becomes its row."""
    what = "stride" if len(args.stride) > 1 else "protocol"
    values = getattr(args, what)
    if "all" in values:
        values = metric.protocols
    arguments = metric_arguments(args)
    rows = [{what: v} | try_to_measure(metric, texts, arguments | {what: v}) for v in values]
    if all("error" in row for row in rows):
        raise ValueError(rows[0]["error"])
    return {f"{what}s": rows}


def print_report(report: dict, names: list[str]) -> None:
    """Print what was measured as tables, and the signature."""
    if "corpus" in report:
        for name, scores in tables.token_tables(report["corpus"], names):
            print(f"{name}\n{scores}\n")
        print(tables.of_files(report), report["corpus"]["signature"], sep="\n\n")
        return
    kind, rows = next(iter(report.items()))
    print(tables.of_protocols(rows) if kind == "protocols" else tables.of_strides(rows))
    print(f"\n{tables.common_signature(rows)}")


def to_json(value):
    """Replace the numbers that JSON doesn't have by null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def check_plot(path: str | None):
    """Import what draws, and refuse a file that can't be written, before anything is computed."""
    if path is None:
        return None
    try:
        from . import plots
    except ImportError:
        raise ValueError("--plot needs the package matplotlib: pip install matplotlib.") from None
    plots.check_path(path)
    return plots


def run(args: argparse.Namespace) -> None:
    plots = check_plot(args.plot)
    shards = read_shards(args)
    texts = next(shards)  # before the metric is loaded, as that takes seconds
    names = [text.name for text in texts]
    metric = load_metric(args)
    if args.compares:
        report = compare(metric, texts, args)
    else:
        shards = chain([texts], shards)
        del texts  # a shard is forgotten once it is scored
        report = score_shards(metric, shards, args)
    if args.distributed and os.environ.get("RANK", "0") != "0":
        return  # the first process of the torchrun prints
    if args.json:
        print(json.dumps(to_json(report)))
    else:
        print_report(report, names)
    sys.stdout.flush()
    if plots:
        plots.draw(report, args.plot)


def describe(error: Exception) -> str:
    """One line that says what is wrong."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def show_warning(message, *_) -> None:
    print(f"score.py: warning: {' '.join(str(message).split())}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            run(parse_arguments(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (*REFUSALS, OSError, MemoryError) as error:
        print(f"score.py: error: {describe(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
