"""--verify: repeat a stored result and check that every number is reproduced."""

import argparse
import ast
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..argument_table import is_address
from ..digests import probe_tolerance
from ..protocols import PROTOCOLS, Protocol
from .values import refuse_duplicates

# Fields that identify a result, and are always printed.
PARTS = ("signature", "texts_digest", "probe", "total_nll", "perplexity", "num_tokens")
NUMBERS = ("probe", "perplexity", "total_nll", "num_tokens")
SETTINGS = ("protocol", "max_length", "stride", "add_start_token")
# Keys of the results in the output of --format json.
HOLDERS = ("corpus", "measurements", "models")
COMPARED = ("protocol", "max_length", "stride")
BUNDLED_NAME = "demo_model"
# Fields that differ between runs: time, memory, tokens read, which are fewer where texts that are
# scored in one call share a beginning, and names of files.
COSTS = ("seconds", "tokens_per_second", "peak_memory_bytes", "num_forward_tokens")
NAMES = ("name", "text")
# Fields of a signature that may differ without changing the number.
LIBRARIES = {"version": "perplexity-sliding", "transformers": "transformers", "torch": "torch"}
# The relative tolerance applies to numbers of at least this size, or 1 for scores of tokens.
SMALLEST = 0.01
# Sums of nlls per word, byte or character, or their exponential.
PER_UNIT = (
    "bits_per_byte", "bits_per_original_byte", "bits_per_character",
    "word_perplexity",
)  # fmt: skip
# Quotients of counts.
EXACT = ("scored_share",)
MOST_SHOWN = 8
NOTHING = object()
# Keys of long and short signatures, with the key of the long one.
SIGNATURES = {"signature": "signature", "signature_short": "signature"}
SIGNATURES |= {"reference_signature": "reference_signature"}
UNITS = {"total_nll": " nats", "probe": " nats a token"}


@dataclass
class Outcome:
    """Fields that were reproduced, and fields that were not.

    Attributes:
        results: the paths of the results.
        names: the name of each result, by its path; empty for a single result.
        same: the paths of reproduced fields.
        differing: the difference of each other field, by its path.
        missing: fields that the repeated call does not return.
        versions: libraries whose versions differ, if the signatures are otherwise equal.
        not_compared: fields that differ between runs, and names and options that differ.
    """

    results: list[str] = field(default_factory=lambda: ["corpus"])
    names: dict[str, str] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def is_verified(self) -> bool:
        return not self.differing and not self.missing


def read_result(path: str) -> dict:
    """Read the output of `--format json`, or a result of the metric as JSON.

    Returns:
        the output; a result of the metric under `corpus`, or `models` if it has a reference.

    Raises:
        ValueError: the file is neither.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        written = json.loads(text, object_pairs_hook=refuse_duplicates)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--verify={path} cannot be read: {error}.") from error
    if isinstance(written, dict) and not written.keys() & set(HOLDERS):
        # as the command line writes it
        written = {"models": [written]} if "comparison" in written else {"corpus": written}
    results = results_of(written) if isinstance(written, dict) else {}
    needed = {"signature", "texts_digest", *NUMBERS, *SETTINGS}
    if not results or not all(needed <= result.keys() for result in results.values()):
        raise ValueError(
            f"--verify={path} must be an output of --format json, with signature, texts_digest and "
            "probe of each result."
        )
    for result in results.values():
        check_values(path, result)
    if not isinstance(written.get("options", {}), dict):
        raise ValueError(f"--verify={path} must have a JSON object as options.")
    return written


def results_of(written: dict) -> dict[str, dict]:
    """Return the results in an output by their path, without refused ones."""
    found = {}
    for holder in HOLDERS:
        value = written.get(holder)
        for number, result in enumerate(value if isinstance(value, list) else [value]):
            place = f"{holder}.{number}" if isinstance(value, list) else holder
            if isinstance(result, dict) and "error" not in result:
                found[place] = result
    return found


def check_values(path: str, result: dict) -> None:
    """Refuse a result with impossible settings or numbers.

    Raises:
        ValueError: it names the file, the field and its value.
    """
    start = result["add_start_token"]
    conditions = {
        "a text": {name: isinstance(result[name], str) for name in ("signature", "texts_digest")},
        f"one of {', '.join(PROTOCOLS)}": {
            "protocol": isinstance(result["protocol"], str) and result["protocol"] in PROTOCOLS
        },
        "a number": {n: result[n] is None or as_float(result[n]) is not None for n in NUMBERS},
        "a whole number of at least 1": {
            name: type(result[name]) is int and result[name] > 0
            for name in ("max_length", "stride")
        },
        "true, false, once, every or replace": {
            "add_start_token": isinstance(start, bool) or start in ("once", "every", "replace")
        },
    }
    for what, conditions_met in conditions.items():
        for name, is_met in conditions_met.items():
            if not is_met:
                raise ValueError(
                    f"--verify={path} must have {what} as {name}, got {shown(result[name])}."
                )


def take_options(stored: dict, args: argparse.Namespace, names: Sequence[str]) -> None:
    """Set options that are not on the command line to those of the stored result.

    Args:
        names: names of the stored options.

    Raises:
        ValueError: the result does not name its model, or the model is not found.
    """
    options = stored.get("options")
    if options is None:
        result = take_settings(stored, args)
        if args.model_id is None:
            args.model_id = model_of(result, args.verify)
    for name in names:
        is_free = getattr(args, name) is None or getattr(args, name) is False
        if name in (options or {}) and is_free:
            value = options[name]
            is_list = name in COMPARED and not isinstance(value, list)
            setattr(args, name, [value] if is_list else value)
    if args.files:
        args.dataset = None
    for model in args.model_id or ():
        check_found(model, args.verify)
    take_commit(stored, args)


def take_settings(stored: dict, args: argparse.Namespace) -> dict:
    """Take the settings of a result that was stored from Python, without options.

    The result also contains settings that its protocol fixes; these are not passed.

    Returns:
        the result.

    Raises:
        ValueError: there are several results, or it has a reference, whose path is not in it.
    """
    if len(results_of(stored)) != 1:
        raise ValueError(
            f"--verify={args.verify} has several results without options: verify each separately."
        )
    [result] = results_of(stored).values()
    if "comparison" in result and args.reference is None:
        reference = fields_of(result["comparison"]["reference_signature"]).get("model", "a model")
        raise ValueError(
            f"--verify={args.verify} is a comparison with {reference}: pass it as --reference."
        )
    if args.protocol is None:
        args.protocol = [result["protocol"]]
    known = PROTOCOLS[result["protocol"]]
    for name in known.supported_arguments:
        if name in SETTINGS and getattr(args, name) is None:
            setattr(args, name, [result[name]] if name in COMPARED else result[name])
    if args.add_start_token not in (None, *known.start_choices):
        args.add_start_token = True  # once or in every window, as in the tool
    fields = fields_of(result["signature"])
    join = fields.get("join", "").encode().decode("unicode_escape")
    if args.separator is None and join[:1] in ("'", '"') and ast.literal_eval(join) != known.join:
        args.separator = ast.literal_eval(join)
    args.carry = args.carry or ("carry" in fields or None)
    if "detokenizer" in fields and args.detokenize is None:
        take_detokenizer(fields, known, args)
    return result


def take_detokenizer(fields: dict[str, str], protocol: Protocol, args: argparse.Namespace) -> None:
    """Take the detokenizer of a result that was stored from Python.

    The file is the original where the words were counted there and the command line has that
    detokenizer; otherwise it is the prose.
    """
    own = protocol.detokenize.__name__ if protocol.detokenize else "wikitext"
    if fields["detokenizer"] == own and fields.get("words") == "given" and not args.word_counts:
        args.detokenize = "wikitext"
    else:
        args.detokenizer = fields["detokenizer"]


def model_of(result: dict, path: str) -> list[str] | None:
    """Return the model of a result if it is on the Hub; None for the bundled one.

    Raises:
        ValueError: the model is a folder, whose path is not in the result.
    """
    model = fields_of(result["signature"]).get("model", "")
    if model == BUNDLED_NAME:
        return None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return [model]
    raise ValueError(f"--verify={path} is a result of the model {model}: pass its path as --model.")


def check_found(model: str, path: str) -> None:
    """Refuse a result whose model is a missing folder.

    Raises:
        ValueError: it names the folder.
    """
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if is_path and not is_address(model) and not Path(model).expanduser().exists():
        raise ValueError(
            f"--verify={path} is a result of the model {model}, which does not exist here: pass its "
            "path as --model."
        )


def take_commit(stored: dict, args: argparse.Namespace) -> None:
    """Select the commit of the Hub's model that the result names, unless a revision is given."""
    signatures = {
        r["model_name"]: r["signature"] for r in results_of(stored).values() if "model_name" in r
    }
    models = args.model_id or []
    if len(models) != 1 or models[0] not in signatures or Path(models[0]).exists():
        return
    if "revision" in (args.model_kwargs or {}) or "/" not in models[0]:
        return
    short = fields_of(signatures[models[0]])["revision"].partition(".")[0]
    commit = find_commit(models[0], short)
    if commit is not None:
        args.model_kwargs = (args.model_kwargs or {}) | {"revision": commit}


def find_commit(model: str, short: str) -> str | None:
    """Find the commit on the Hub with the abbreviated hash of a signature; None if there is none."""
    import huggingface_hub

    try:
        commits = huggingface_hub.HfApi().list_repo_commits(model)
    except Exception:  # no network or no such model: loading raises a better error
        return None
    return next((c.commit_id for c in commits if c.commit_id.startswith(short)), None)


def compare(stored: dict, repeated: dict) -> Outcome:
    """Compare a stored output with that of the repeated call, field by field.

    Probes, mean nlls and logarithms of perplexities may differ by the tolerance of the probe, in
    nats per token; in comparisons, by the larger one of the two models.
    """
    of_models, of_pairs = tolerances(repeated)
    named = [row["name"] for row in results_of(repeated).values() if "name" in row]
    outcome = Outcome(list(results_of(stored)), names_of(stored))
    for place, before, now in pairs(stored, repeated):
        name = place.rpartition(".")[2]
        full, place = place, place.removeprefix("corpus.")
        is_name = name in NAMES and "worst_tokens" not in full and before not in named
        is_of_call = is_name or full.startswith("options.")
        if name in COSTS or (is_of_call and before != now):
            outcome.not_compared.append(place)
        elif now is NOTHING:
            outcome.missing.append(place)
        elif name in SIGNATURES and (changed := changed_versions(stored, repeated, full, name)):
            outcome.versions |= changed
            outcome.same.append(place)
        elif is_of_call or agree(
            *(full, before, now, of_pairs if "comparison" in full else of_models, repeated)
        ):
            outcome.same.append(place)
        else:
            outcome.differing[place] = difference(name, before, now)
    return outcome


def tolerances(repeated: dict) -> tuple[float, float]:
    """Return the tolerance, in nats per token, of results, and of their comparisons with a reference."""
    results = results_of(repeated).values()
    of_models = max(probe_tolerance(result["signature"]) for result in results)
    compared = [result["comparison"] for result in results if "comparison" in result]
    of_references = (probe_tolerance(pair["reference_signature"]) for pair in compared)
    return of_models, max([of_models, *of_references])


def changed_versions(stored: dict, repeated: dict, place: str, name: str) -> dict[str, str]:
    """Return differences between versions of libraries, unless the signatures differ otherwise too.

    Args:
        place, name: path and name of a long or short signature; the latter contains a digest of the
            long one.
    """
    long = place.removesuffix(name) + SIGNATURES[name]
    before, now = (value_at(written, long) for written in (stored, repeated))
    if not (isinstance(before, str) and isinstance(now, str)):
        return {}
    both = changed_fields(before, now)
    if not both.keys() <= LIBRARIES.keys():
        return {}
    return {LIBRARIES[key]: " and ".join(values) for key, values in both.items()}


def value_at(written: object, place: str) -> object:
    """Return the value at a path; None if there is none."""
    for key in place.split("."):
        if isinstance(written, list):
            written = written[int(key)] if int(key) < len(written) else None
        else:
            written = written.get(key) if isinstance(written, dict) else None
    return written


def changed_fields(before: str, now: str) -> dict[str, tuple[str, str]]:
    """Return the fields in which two signatures differ, with both values."""
    both = [fields_of(line) for line in (before, now)]
    values = {key: tuple(of.get(key, "none") for of in both) for key in both[0] | both[1]}
    return {key: value for key, value in values.items() if value[0] != value[1]}


def pairs(before: object, now: object, place: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield the path of each stored value, the value, and the repeated one."""
    is_list = isinstance(before, list) and isinstance(now, list) and len(before) == len(now)
    if is_list:
        before, now = (dict(enumerate(values)) for values in (before, now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        yield place, before, now
        return
    for key, value in before.items():
        yield from pairs(value, now.get(key, NOTHING), f"{place}.{key}" if place else str(key))


def agree(place: str, before: object, now: object, tolerance: float, repeated: dict) -> bool:
    """Return whether two values are equal up to rounding.

    The tolerance is that of a mean nll in nats, and applies to what depends on one accordingly; to other
    numbers it is relative.

    Args:
        place: path of the value.
        repeated: the repeated output, which contains it.
    """
    values = [as_float(before), as_float(now)]
    if isinstance(now, int) or None in values:  # counts, truth values and words
        return isinstance(before, bool) == isinstance(now, bool) and before == now
    if place.rpartition(".")[2] in EXACT:
        return math.isclose(*values)
    if "perplexit" in place and min(values) > 0:
        values = [math.log(value) for value in values]
    scale = scale_of(place, max(map(abs, values)), repeated)
    return math.isclose(*values, rel_tol=0.0, abs_tol=tolerance * scale)


def scale_of(place: str, size: float, repeated: dict) -> float:
    """Return how many times as much as a mean nll a number may differ.

    Args:
        size: the number, or the logarithm of a perplexity.
    """
    owner, _, name = place.rpartition(".")
    result = value_at(repeated, owner)
    num_tokens = result.get("num_tokens") if isinstance(result, dict) else None
    if name == "probe" or (name == "perplexity" and num_tokens):
        return 1.0
    if name.endswith("total_nll") and num_tokens:
        return float(num_tokens)
    if name in PER_UNIT and num_tokens and result["total_nll"]:
        return size * num_tokens / result["total_nll"]
    return max(size, 1.0 if "_scores." in place else SMALLEST)


def as_float(value: object) -> float | None:
    """Return a number as a float; None for other values, or numbers too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def difference(name: str, before: object, now: object) -> str:
    """Format both values; for signatures, the fields that differ."""
    if name != "signature" or not isinstance(before, str):
        return f"{shown(before)} and {shown(now)}{UNITS.get(name, '')}"
    changed = changed_fields(before, now)
    return "; ".join(f"{key} {' and '.join(values)}" for key, values in changed.items())


def fields_of(signature: str) -> dict[str, str]:
    """Split a signature into its fields."""
    parts = (part.partition(":") for part in signature.split("|"))
    return {name: value for name, _, value in parts}


def shown(value: object) -> str:
    """Write a value on one short line."""
    written = format(value, ".10g") if isinstance(value, float) else repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"


def names_of(stored: dict) -> dict[str, str]:
    """Name the results by model, text and settings, if there are several."""
    results = results_of(stored)
    keys = ("name", "text", "protocol", "max_length", "stride")
    return {
        place: ", ".join(str(result[key]) for key in keys if key in result)
        for place, result in results.items()
        if len(results) > 1
    }


def describe(outcome: Outcome) -> str:
    """Write one line per part of each result, other differences, and the verdict."""
    lines, parts = [], set()
    for place in outcome.results:
        prefix = "" if place == "corpus" else f"{place}."
        of_result = [f"{prefix}{name}" for name in PARTS]
        parts |= set(of_result)
        lines += [f"{outcome.names[place]}:"] if place in outcome.names else []
        lines += [
            f"{name:<12}  "
            + (f"differs: {outcome.differing[full]}" if full in outcome.differing else "the same")
            for name, full in zip(PARTS, of_result)
            if full not in outcome.missing
        ]
    others = {name: said for name, said in outcome.differing.items() if name not in parts}
    lines += [f"{name}  differs: {said}" for name, said in list(others.items())[:MOST_SHOWN]]
    if len(others) > MOST_SHOWN:
        lines.append(f"others        differ: {', '.join(list(others)[MOST_SHOWN:])}")
    elif not others:
        lines.append(f"others        the same: {len(set(outcome.same) - parts):,} fields")
    if outcome.missing:
        lines.append(
            f"not repeated  {', '.join(outcome.missing)}: pass the options that the result was "
            "measured with"
        )
    if outcome.not_compared:
        lines.append(f"not compared  {', '.join(outcome.not_compared)}: each run has its own")
    if outcome.versions:
        versions = "; ".join(f"{name} {values}" for name, values in outcome.versions.items())
        lines.append(f"versions      other ones: {versions}")
    return "\n".join([*lines, "verified" if outcome.is_verified else "not verified"]) + "\n"
