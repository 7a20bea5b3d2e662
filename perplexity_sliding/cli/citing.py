"""--cite: the sentence for a paper, and the information needed to repeat its number."""

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from .. import CITATION
from ..arguments import WITHOUT_ADAPTER, is_address
from ..digests import describe_probe
from ..protocols import DEFAULT_PROTOCOL, PROTOCOLS
from .comparing import scored_share
from .measuring import model_names
from .messages import COMMAND
from .options import without_secrets
from .reading import STANDARD_INPUT
from .stored import fields_of
from .tables import format_value

# Description of the field `join` of a signature; other values are separators.
JOINED = {"None": "scored separately", "tokens": "with their token ids joined"}


def cite(results: Sequence[dict], args: argparse.Namespace) -> str:
    ids = dict(zip(model_names(args), args.models))
    lines = [
        f"Model:      {place_of(result, ids.get(name, args.model_id))}"
        for name, result in {result.get("name", ""): result for result in results}.items()
    ]
    comparisons = (result["comparison"] for result in results if "comparison" in result)
    for signature in dict.fromkeys(row["reference_signature"] for row in comparisons):
        lines.append(f"Reference:  {place_of({'signature': signature}, args.reference)}")
        lines.append(f"            {signature}")
    digests = dict.fromkeys(result["texts_digest"] for result in results)
    lines += [f"Texts:      digest {digest}" for digest in digests]
    lines.append(f"Command:    {command(args.argv)}")
    sentences = "\n\n".join(write_sentence(result, args) for result in results)
    signed = "\n".join(f"{result['signature']}{describe_probe(result)}" for result in results)
    return "\n\n".join([sentences, "\n".join(lines), signed, CITATION.strip()])


def write_sentence(result: dict, args: argparse.Namespace) -> str:
    fields = fields_of(result["signature"])
    name, bounds = fields["protocol"], result["perplexity_interval"]
    of_bits = result.get("bits_per_byte_interval")
    model = result["name"] if "model" in args.axes else fields["model"]
    scope = f" (95 % interval {result['interval_scope']} "
    interval = f"{scope}{'–'.join(map(format_value, bounds))})" if bounds else ""
    share = f" ({share} of all)" if (share := scored_share(result)) else ""
    texts = result.get("text") or name_texts(args, result["num_texts"])
    layout = describe_layout(result, args)
    bits = format_value(result["bits_per_byte"], 3)
    bits += f" ({'–'.join(format_value(b, 3) for b in of_bits)})" if of_bits else ""
    compared = ""
    if comparison := result.get("comparison"):
        cut = " in the smaller of their windows" if comparison["window_is_cut"] else ""
        compared = f" Compared with {args.reference}{cut}: {comparison['summary']}"
    source = "" if name == DEFAULT_PROTOCOL else f", {PROTOCOLS[name].source}"
    return (
        f"The perplexity of {model} is {format_value(result['perplexity'])}{interval} over "
        f"{result['num_tokens']:,} tokens{share} in {texts}{layout}, {bits} bits per byte, measured in "
        f"windows of {fields['window']} tokens with a stride of {fields['stride']} (protocol {name}{source}; "
        f"{result['signature_short']}; perplexity-sliding {fields['version']})."
        f"{compared}"
    )


def name_texts(args: argparse.Namespace, count: int) -> str:
    number = "one text" if count == 1 else f"{count:,} texts"
    if args.dataset:
        return f"{number} of {args.dataset}"
    if count == 1 and args.files in ([], [STANDARD_INPUT]):
        return "standard input"
    return args.files[0] if len(args.files) == 1 and count == 1 else number


def describe_layout(result: dict, args: argparse.Namespace) -> str:
    fields = fields_of(result["signature"])
    join, said = fields["join"], []
    if args.separator is not None:
        said.append(f"joined by {args.separator!r}")
    elif join not in JOINED:
        said.append("joined by " + join.replace("\\\\", "\\"))
    elif result["num_texts"] > 1 or join != "None":
        said.append(JOINED[join])
    if "detokenizer" in fields:
        said.append("detokenised from WikiText's form as lm-evaluation-harness does")
    if fields.get("context") == "messages":
        said.append(f"of each chat the assistant's turns, boundary {fields['boundary']}")
    if args.context_column:
        between = args.context_separator
        said.append(
            f"each after its context from the column {args.context_column}, boundary "
            f"{args.boundary or 'joint'}"
            + ("" if between is None else f", separated by {between!r}")
        )
    return f" ({'; '.join(said)})" if said else ""


def place_of(result: dict, model_id: str) -> str:
    fields = fields_of(result["signature"])
    path, place = Path(model_id).expanduser(), f"https://huggingface.co/{model_id}"
    if model_id == WITHOUT_ADAPTER:
        place = fields["model"]
    elif path.exists() or is_address(model_id):
        kind = "folder" if path.is_dir() else "file" if path.exists() else "server"
        place = f"{model_id} (a {kind})"
    return f"{place}, revision {fields['revision']}"


def command(argv: Sequence[str]) -> str:
    return f"{COMMAND} {shlex.join(map(published, argv))}"


def published(word: str) -> str:
    """Remove keys and tokens from an argument that is JSON or ends in it."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        given = json.loads(value)
    except ValueError:
        return word
    kept = without_secrets(given)
    return word if kept == given else option + equals + json.dumps(kept)
