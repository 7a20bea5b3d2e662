"""--cite: the sentence for a paper, and the information needed to repeat its number."""

import argparse
import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..argument_table import is_address
from ..digests import describe_probe
from .measuring import model_names
from .messages import command_name
from .options import WITHOUT_ADAPTER
from .papers import with_minus
from .sources import STANDARD_INPUT, list_sources
from .tables import (
    AXES,
    SETTINGS,
    change,
    format_number,
    label,
    of_key_tokens,
    pvalue_of,
    scored_share,
    signature_fields,
)
from .values import without_secrets

SENTENCE = """\
The perplexity of {model} is {perplexity}{interval} over {tokens:,} tokens{share} in {texts}{layout}, measured in \
windows of {window} tokens with a stride of {stride} (protocol {protocol}{source}; {signature}; \
perplexity-sliding {version}).{change}"""
# Description of the field `join` of a signature; other values are separators.
JOINED = {"None": "scored separately", "tokens": "with their token ids joined"}
SEPARATORS = {"\\n\\n": "blank lines", "\\n": "newlines", " ": "spaces", "": "nothing"}
# Files that are listed.
MOST_NAMED = 5
# Options that do not affect the number, with their number of values.
NOT_OF_THE_NUMBER = {"--cite": 0, "--quiet": 0, "-q": 0, "--verbose": 0, "-v": 0, "--debug": 0}
NOT_OF_THE_NUMBER |= {"--output": 1, "-o": 1, "--plot": 1, "--html": 1, "--show": 0}


def of_results(
    results: Sequence[dict], args: argparse.Namespace, metric, axes: Sequence[str] = ()
) -> str:
    """Return a sentence per result, the models, texts, command and signatures, and BibTeX.

    Args:
        results: results of the same texts, unless each has a `text`.
        args: the command line.
        axes: settings in which they differ.
    """
    models = {result.get("name", ""): result for result in results}
    ids = dict(zip(model_names(args), args.models))
    digests = dict.fromkeys(result["texts_digest"] for result in results)
    parts = [
        "\n\n".join(sentence(result, results[0], args, metric, axes) for result in results),
        "\n".join(
            [
                *(
                    f"Model:      {model(of_model, ids.get(name, args.model_id))}"
                    for name, of_model in models.items()
                ),
                *references(results, args),
                *(f"Text:       {line}" for line in texts(args)),
                *(f"Texts read: digest {digest}" for digest in digests),
                f"Command:    {command(args.argv)}",
            ]
        ),
        "\n".join(f"{r['signature']}{describe_probe(r)}" for r in results),
        metric.citation.strip(),
    ]
    return "\n\n".join(parts)


def references(results: Sequence[dict], args: argparse.Namespace) -> list[str]:
    """Return lines with the reference and its signature, one for each window; none without it."""
    compared = [result["comparison"] for result in results if "comparison" in result]
    signatures = list(dict.fromkeys(row["reference_signature"] for row in compared))
    if not signatures:
        return []
    named = model({"signature": signatures[0]}, args.reference)
    return [f"Reference:  {named}", *(f"            {signature}" for signature in signatures)]


def sentence(
    result: dict, first: dict, args: argparse.Namespace, metric, axes: Sequence[str] = ()
) -> str:
    """Return a sentence with the number, its interval, its settings, and its change from the first."""
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
        model=result["name"] if "model" in axes else fields["model"],
        perplexity=format_number(result["perplexity"]),
        interval=interval,
        tokens=result["num_tokens"],
        share=f" ({share} of all)" if (share := scored_share(result)) else "",
        texts=result.get("text") or named_texts(args, result["num_texts"]),
        layout=layout(result, args),
        window=fields["window"],
        stride=fields["stride"],
        protocol=name,
        source=source,
        signature=result["signature_short"],
        version=fields["version"],
        change="".join([with_minus(changes(result, first, args, axes)), *long_perplexity(result)]),
    )


def long_perplexity(result: dict) -> list[str]:
    """Return a sentence with LongPPL, and the rule and evaluator that found its tokens."""
    said = of_key_tokens(result)
    return [] if said is None else [f" {said} Its signature: {result['longppl_signature']}."]


def layout(result: dict, args: argparse.Namespace) -> str:
    """Describe the layout of the texts: joining, detokenization, chats, contexts."""
    fields = signature_fields(result)
    said = [joined(fields["join"])] if result["num_texts"] > 1 or fields["join"] != "None" else []
    if "detokenizer" in fields:
        said.append(f"detokenised from WikiText's form by {fields['detokenizer']}")
    if fields.get("context") == "messages":
        said.append(f"of each chat the assistant's turns, boundary {fields['boundary']}")
    if args.context_column:
        between = args.context_separator
        said.append(
            f"each after its context from the column {args.context_column}, boundary "
            f"{args.boundary or 'joint'}"
            + ("" if between is None else f", separated by {named_separator(repr(between))}")
        )
    return f" ({'; '.join(said)})" if said else ""


def joined(join: str) -> str:
    """Describe how texts were joined, from the field of a signature."""
    return JOINED.get(join) or f"joined by {named_separator(join.replace(chr(92) * 2, chr(92)))}"


def named_separator(quoted: str) -> str:
    """Return the name of a quoted separator."""
    return SEPARATORS.get(quoted[1:-1], quoted)


def changes(result: dict, first: dict, args: argparse.Namespace, axes: Sequence[str]) -> str:
    """Describe the paired change from the reference, the first model or the first setting."""
    comparison = result.get("comparison")
    if comparison is not None:
        return (
            f" Compared with {args.reference}{smaller_window(comparison)}: {comparison['summary']}"
        )
    said = []
    for key, keys in (
        ("ratio_to_first_model", ["name"]),
        ("ratio_to_first", [AXES[axis] for axis in axes if AXES[axis] in SETTINGS] or ["protocol"]),
    ):
        changed = change(result, key)
        if changed:
            value = pvalue_of(result, key)
            sign = f", p {value}" if value.startswith("<") else f", p = {value}" if value else ""
            said.append(f" Paired change against {label(first, keys)}: {changed}{sign}.")
    return "".join(said)


def smaller_window(comparison: dict) -> str:
    """Say that one of two models reads a longer window alone, and has other numbers there."""
    if not comparison["window_is_cut"]:
        return ""
    own, of_reference = (
        "any number of" if length is None else f"{length:,}"
        for length in (comparison["own_window"], comparison["reference_own_window"])
    )
    return (
        f" in the smaller of their windows (alone, the model reads {own} tokens, "
        f"the reference {of_reference})"
    )


def named_texts(args, count: int) -> str:
    """Return the phrase for the texts."""
    number = "one text" if count == 1 else f"{count:,} texts"
    if args.dataset:
        return f"{number} of {args.dataset}"
    if count == 1 and args.files in ([], [STANDARD_INPUT]):
        return "standard input"
    return args.files[0] if len(args.files) == 1 and count == 1 else number


def model(result: dict, model_id: str) -> str:
    """Return the location of the model, here, on a server or on the Hub, and its revision."""
    fields = signature_fields(result)
    revision = fields["revision"]
    if model_id == WITHOUT_ADAPTER:
        return f"{fields['model']}, revision {revision}"
    path = Path(model_id).expanduser()
    kinds = {
        "a folder": path.is_dir(),
        "a file": path.is_file(),
        "a server": is_address(model_id),
    }
    for kind, is_one in kinds.items():
        if is_one:
            return f"{model_id} ({kind}), revision {revision}"
    return f"https://huggingface.co/{model_id}, revision {revision}"


def texts(args) -> list[str]:
    """Return the files with their SHA-256, or the dataset."""
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
    """Return the command that reproduces the number, without secrets."""
    kept, words = [], iter(argv)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in NOT_OF_THE_NUMBER:
            kept.append(published(word))
        elif NOT_OF_THE_NUMBER[name] and not has_value:
            next(words, None)
    return f"{command_name()} {shlex.join(kept)}"


def published(word: str) -> str:
    """Remove keys and tokens from an argument that is JSON or ends in it."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        given = json.loads(value)
    except ValueError:
        return word
    kept = without_secrets(given)
    return word if kept == given else option + equals + json.dumps(kept)
