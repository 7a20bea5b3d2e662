"""--cite: the sentence for a paper, and all that it takes to repeat its number."""

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..digests import describe_probes
from .messages import command_name
from .sources import STANDARD_INPUT, list_sources
from .tables import format_number, signature_fields

SENTENCE = """\
The perplexity of {model} is {perplexity}{interval} over {tokens:,} tokens in {texts}, measured in \
windows of {window} tokens with a stride of {stride} (protocol {protocol}{source}; {signature}; \
perplexity-sliding {version})."""
# Files that are named one by one.
MOST_NAMED = 5
# What has nothing to do with the number, and how many values it takes.
NOT_OF_THE_NUMBER = {"--cite": 0, "--quiet": 0, "-q": 0, "--verbose": 0, "-v": 0, "--debug": 0}
NOT_OF_THE_NUMBER |= {"--output": 1, "-o": 1, "--plot": 1, "--html": 1, "--show": 0}


def of_results(results: Sequence[dict], args, metric) -> str:
    """Write a sentence for each result, the model, the text, the command and the signatures; BibTeX.

    Args:
        results: of one corpus: a protocol, a window and a stride each.
        args: the command line.
    """
    first = results[0]
    parts = [
        "\n\n".join(sentence(result, args, metric) for result in results),
        "\n".join(
            [
                f"Model:      {model(first, args.model_id)}",
                *(f"Text:       {line}" for line in texts(args)),
                f"Texts read: digest {first['texts_digest']}",
                f"Command:    {command(args.argv)}",
            ]
        ),
        "\n".join(f"{r['signature']}\n{describe_probes(r)}" for r in results),
        metric.citation.strip(),
    ]
    return "\n\n".join(parts)


def sentence(result: dict, args, metric) -> str:
    """Write the number with its interval, and how it was measured."""
    fields = signature_fields(result)
    name, bounds = fields["protocol"], result["perplexity_interval"]
    source = "" if name == metric.default_protocol else f", {metric.protocols[name].source}"
    interval = (
        ""
        if bounds is None
        else f" (95 % interval {result['interval_scope']} "
        f"{format_number(bounds[0])}–{format_number(bounds[1])})"
    )
    return SENTENCE.format(
        model=fields["model"],
        perplexity=format_number(result["perplexity"]),
        interval=interval,
        tokens=result["num_tokens"],
        texts=named_texts(args, result["num_texts"]),
        window=fields["window"],
        stride=fields["stride"],
        protocol=name,
        source=source,
        signature=result["signature_short"],
        version=fields["version"],
    )


def named_texts(args, count: int) -> str:
    """Say what the sentence calls the texts."""
    number = "one text" if count == 1 else f"{count:,} texts"
    if args.dataset:
        return f"{number} of {args.dataset}"
    return args.files[0] if len(args.files) == 1 and count == 1 else number


def model(result: dict, model_id: str) -> str:
    """Say where the model is found: a folder, or a name on the Hub; with the digest that pins it."""
    revision = signature_fields(result)["revision"]
    if Path(model_id).expanduser().is_dir():
        return f"{model_id} (a folder), revision {revision}"
    return f"https://huggingface.co/{model_id}, revision {revision}"


def texts(args) -> list[str]:
    """List the files with their SHA-256, as `sha256sum` prints it; or name the dataset."""
    if args.dataset:
        return [args.dataset]
    names = [source.name for source in list_sources(args.files, warns=False)]
    if names == [STANDARD_INPUT]:
        return ["standard input"]
    listed = [f"{name}, SHA-256 {sha256(name)}" for name in names[:MOST_NAMED]]
    more = len(names) - len(listed)
    return [*listed, *([f"and {more:,} more files"] if more > 0 else [])]


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def command(argv: Sequence[str]) -> str:
    """Write the command that gives the number again."""
    kept, words = [], iter(argv)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in NOT_OF_THE_NUMBER:
            kept.append(word)
        elif NOT_OF_THE_NUMBER[name] and not has_value:
            next(words, None)
    return f"{command_name()} {shlex.join(kept)}"
