"""--cite: the sentence for a paper, and the information needed to repeat its number."""

import argparse
import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from .. import CITATION
from ..arguments import WITHOUT_ADAPTER, is_address
from ..digests import describe_probe
from ..protocols import DEFAULT_PROTOCOL, PROTOCOLS
from .comparing import AXES, SETTINGS, change_of, in_sentence, label, scored_share
from .measuring import model_names
from .messages import COMMAND
from .options import without_secrets
from .reading import STANDARD_INPUT, list_files
from .tables import format_value, signature_fields, with_minus

SENTENCE = """\
The perplexity of {model} is {perplexity}{interval} over {tokens:,} tokens{share} in {texts}{layout}, \
{bits} bits per byte{bits_interval}, measured in windows of {window} tokens with a stride of {stride} \
(protocol {protocol}{source}; {signature}; perplexity-sliding {version}).{change}"""
# Description of the field `join` of a signature; other values are separators.
JOINED = {"None": "scored separately", "tokens": "with their token ids joined"}
SEPARATORS = {"\\n\\n": "blank lines", "\\n": "newlines", " ": "spaces", "": "nothing"}
MOST_NAMED = 5  # files
# Options that do not affect the number, with their number of values.
NOT_OF_THE_NUMBER = {"--cite": 0, "--quiet": 0, "-q": 0, "--verbose": 0, "-v": 0, "--debug": 0}
NOT_OF_THE_NUMBER |= {"--output": 1, "-o": 1, "--html": 1, "--show": 0}


def of_results(results: Sequence[dict], args: argparse.Namespace, axes: Sequence[str] = ()) -> str:
    """Return a sentence per result, the models, texts, command and signatures, and BibTeX.

    Args:
        results: results of the same texts, unless each has a `text`.
        args: the command line.
        axes: settings in which they differ.
    """
    ids = dict(zip(model_names(args), args.models))
    models = {result.get("name", ""): result for result in results}
    lines = [
        f"Model:      {place_of(of_model, ids.get(name, args.model_id))}"
        for name, of_model in models.items()
    ]
    signatures = dict.fromkeys(
        result["comparison"]["reference_signature"] for result in results if "comparison" in result
    )
    for number, signature in enumerate(signatures):
        if not number:
            lines.append(f"Reference:  {place_of({'signature': signature}, args.reference)}")
        lines.append(f"            {signature}")
    lines += [f"Text:       {line}" for line in describe_texts(args)]
    digests = dict.fromkeys(result["texts_digest"] for result in results)
    lines += [f"Texts read: digest {digest}" for digest in digests]
    lines.append(f"Command:    {command(args.argv)}")
    sentences = (write_sentence(result, results[0], args, axes) for result in results)
    signed = "\n".join(f"{result['signature']}{describe_probe(result)}" for result in results)
    parts = ["\n\n".join(sentences), "\n".join(lines), signed]
    return "\n\n".join([*parts, CITATION.strip()])


def write_sentence(
    result: dict, first: dict, args: argparse.Namespace, axes: Sequence[str] = ()
) -> str:
    """Return a sentence with the number, its interval, its settings, and its change from the first."""
    fields = signature_fields(result)
    name = fields["protocol"]
    bounds, of_bits = result["perplexity_interval"], result.get("bits_per_byte_interval")
    scope = f" (95 % interval {result['interval_scope']} "
    return SENTENCE.format(
        model=result["name"] if "model" in axes else fields["model"],
        perplexity=format_value(result["perplexity"]),
        interval=f"{scope}{'–'.join(map(format_value, bounds))})" if bounds else "",
        tokens=result["num_tokens"],
        share=f" ({share} of all)" if (share := scored_share(result)) else "",
        texts=result.get("text") or name_texts(args, result["num_texts"]),
        layout=describe_layout(result, args),
        bits=format_value(result["bits_per_byte"], 3),
        bits_interval=f" ({'–'.join(format_value(b, 3) for b in of_bits)})" if of_bits else "",
        window=fields["window"],
        stride=fields["stride"],
        protocol=name,
        source="" if name == DEFAULT_PROTOCOL else f", {PROTOCOLS[name].source}",
        signature=result["signature_short"],
        version=fields["version"],
        change=with_minus(describe_changes(result, first, args, axes)),
    )


def describe_layout(result: dict, args: argparse.Namespace) -> str:
    """Describe the layout of the texts: joining, detokenization, chats, contexts."""
    fields = signature_fields(result)
    join, said = fields["join"], []
    if args.separator is not None:
        said.append(f"joined by {name_separator(repr(args.separator))}")
    elif join in JOINED and (result["num_texts"] > 1 or join != "None"):
        said.append(JOINED[join])
    elif join not in JOINED:
        said.append(f"joined by {name_separator(join.replace(chr(92) * 2, chr(92)))}")
    if "detokenizer" in fields:
        said.append(f"detokenised from WikiText's form by {fields['detokenizer']}")
    if fields.get("context") == "messages":
        said.append(f"of each chat the assistant's turns, boundary {fields['boundary']}")
    if args.context_column:
        between = args.context_separator
        said.append(
            f"each after its context from the column {args.context_column}, boundary "
            f"{args.boundary or 'joint'}"
            + ("" if between is None else f", separated by {name_separator(repr(between))}")
        )
    return f" ({'; '.join(said)})" if said else ""


def name_separator(quoted: str) -> str:
    """Return the name of a quoted separator."""
    return SEPARATORS.get(quoted[1:-1], quoted)


def describe_changes(
    result: dict, first: dict, args: argparse.Namespace, axes: Sequence[str]
) -> str:
    """Describe the paired change from the reference, the first model or the first setting."""
    comparison = result.get("comparison")
    if comparison is not None:
        windows = ""
        if comparison["window_is_cut"]:
            own, of_reference = (
                "any number of" if length is None else f"{length:,}"
                for length in (comparison["own_window"], comparison["reference_own_window"])
            )
            windows = (
                f" in the smaller of their windows (alone, the model reads {own} tokens, the "
                f"reference {of_reference})"
            )
        return f" Compared with {args.reference}{windows}: {comparison['summary']}"
    said = []
    settings = [AXES[axis] for axis in axes if AXES[axis] in SETTINGS] or ["protocol"]
    for key, keys in (("ratio_to_first_model", ["name"]), ("ratio_to_first", settings)):
        changed, bounds = change_of(result, key)
        if changed:
            parts = [
                f"{changed} ({bounds})" if bounds else changed,
                in_sentence(result[key]["pvalue"]),
            ]
            against = ", ".join(filter(None, parts))
            said.append(f" Paired change against {label(first, keys)}: {against}.")
    return "".join(said)


def name_texts(args, count: int) -> str:
    """Return the phrase for the texts."""
    number = "one text" if count == 1 else f"{count:,} texts"
    if args.dataset:
        return f"{number} of {args.dataset}"
    if count == 1 and args.files in ([], [STANDARD_INPUT]):
        return "standard input"
    return args.files[0] if len(args.files) == 1 and count == 1 else number


def place_of(result: dict, model_id: str) -> str:
    """Return the location of the model, here, on a server or on the Hub, and its revision."""
    fields = signature_fields(result)
    path, place = Path(model_id).expanduser(), f"https://huggingface.co/{model_id}"
    if model_id == WITHOUT_ADAPTER:
        place = fields["model"]
    elif path.exists() or is_address(model_id):
        kind = "folder" if path.is_dir() else "file" if path.exists() else "server"
        place = f"{model_id} (a {kind})"
    return f"{place}, revision {fields['revision']}"


def describe_texts(args) -> list[str]:
    """Return the files with their SHA-256, or the dataset."""
    if args.dataset:
        return [args.dataset]
    names = list_files(args.files)
    if names == [STANDARD_INPUT]:
        return ["standard input"]
    listed = [
        f"{name}, SHA-256 {hashlib.sha256(Path(name).read_bytes()).hexdigest()}"
        for name in names[:MOST_NAMED]
    ]
    more = len(names) - len(listed)
    return [*listed, *([f"and {more:,} more files"] if more > 0 else [])]


def command(argv: Sequence[str]) -> str:
    """Return the command that reproduces the number, without secrets."""
    kept, words = [], iter(argv)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in NOT_OF_THE_NUMBER:
            kept.append(published(word))
        elif NOT_OF_THE_NUMBER[name] and not has_value:
            next(words, None)
    return f"{COMMAND} {shlex.join(kept)}"


def published(word: str) -> str:
    """Remove keys and tokens from an argument that is JSON or ends in it."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        given = json.loads(value)
    except ValueError:
        return word
    kept = without_secrets(given)
    return word if kept == given else option + equals + json.dumps(kept)
