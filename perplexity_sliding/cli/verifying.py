"""--verify: repeat a result that was stored, and say whether every number of it comes out again."""

import argparse
import ast
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..protocols import PROTOCOLS
from .values import without_twins

# What pins a result, and always has a line.
PARTS = ("signature", "texts_digest", "probe", "total_nll", "perplexity", "num_tokens")
NUMBERS = ("probe", "perplexity", "total_nll", "num_tokens")
SETTINGS = ("protocol", "max_length", "stride", "add_start_token")
# Where results stand in what --format json writes.
HOLDERS = ("corpus", "measurements", "models")
COMPARED = ("protocol", "max_length", "stride")
BUNDLED_NAME = "demo_model"
# What no two runs have in common: the time and memory that they took, and what a file is called.
COSTS = ("seconds", "tokens_per_second", "peak_memory_bytes")
NAMES = ("name", "text")
# Fields of a signature that other libraries may leave the number alone by.
LIBRARIES = {"version": "perplexity-sliding", "transformers": "transformers", "torch": "torch"}
# Numbers below it are compared as if they were so large; tokens by themselves as if they were 1.
SMALLEST = 0.01
MOST_SHOWN = 8
NOTHING = object()
# Long and short signatures, by the name of the long one beside them.
SIGNATURES = {"signature": "signature", "signature_short": "signature"}
SIGNATURES |= {"reference_signature": "reference_signature"}
UNITS = {"total_nll": " nats", "probe": " nats a token"}


@dataclass
class Outcome:
    """What came out again, and what did not.

    Attributes:
        results: the places of the results.
        names: what each result is of, by its place; empty where there is one alone.
        same: the places of the fields that did.
        differing: how each other field differs, by its place.
        missing: the fields that this call does not give.
        versions: of libraries that differ, where nothing else of the signature does.
        not_compared: the fields that each run has its own of; names and options where they differ.
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
    """Read what `--format json` wrote, or a result of the metric as JSON.

    Returns:
        what was written; a result of the metric as `corpus`.

    Raises:
        ValueError: it is something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        written = json.loads(text, object_pairs_hook=without_twins)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--verify={path} cannot be read: {error}.") from error
    if isinstance(written, dict) and not written.keys() & set(HOLDERS):
        written = {"corpus": written}
    results = results_of(written) if isinstance(written, dict) else {}
    needed = {"signature", "texts_digest", *NUMBERS, *SETTINGS}
    if not results or not all(needed <= result.keys() for result in results.values()):
        raise ValueError(
            f"--verify={path} must be what --format json wrote, with signature, texts_digest and "
            "probe of each result."
        )
    for result in results.values():
        check_values(path, result)
    if not isinstance(written.get("options", {}), dict):
        raise ValueError(f"--verify={path} must have an object of JSON as options.")
    return written


def results_of(written: dict) -> dict[str, dict]:
    """List the results in what was written, by their place; those that were refused are none."""
    found = {}
    for holder in HOLDERS:
        value = written.get(holder)
        for number, result in enumerate(value if isinstance(value, list) else [value]):
            place = f"{holder}.{number}" if isinstance(value, list) else holder
            if isinstance(result, dict) and "error" not in result:
                found[place] = result
    return found


def check_values(path: str, result: dict) -> None:
    """Refuse a result whose settings and numbers are of no run.

    Raises:
        ValueError: with the file, the field and its value.
    """
    start = result["add_start_token"]
    conditions = {
        "a text": {name: isinstance(result[name], str) for name in ("signature", "texts_digest")},
        f"one of {', '.join(PROTOCOLS)}": {
            "protocol": isinstance(result["protocol"], str) and result["protocol"] in PROTOCOLS
        },
        "a number": {n: result[n] is None or as_float(result[n]) is not None for n in NUMBERS},
        "a whole number from 1 on": {
            name: type(result[name]) is int and result[name] > 0
            for name in ("max_length", "stride")
        },
        "true, false, once or every": {
            "add_start_token": isinstance(start, bool) or start in ("once", "every")
        },
    }
    for what, held in conditions.items():
        for name, holds in held.items():
            if not holds:
                raise ValueError(
                    f"--verify={path} must have {what} as {name}, got {shown(result[name])}."
                )


def take_options(stored: dict, args: argparse.Namespace, names: Sequence[str]) -> None:
    """Measure as the stored result was measured, where the command line says nothing else.

    Args:
        names: of the options that are stored.

    Raises:
        ValueError: the result does not say which model it is of, or that model is not found.
    """
    options = stored.get("options")
    if options is None:
        take_settings(stored, args)
        if args.model_id is None:
            args.model_id = model_of(stored["corpus"], args.verify)
    for name in names:
        if name in (options or {}) and getattr(args, name) in (None, False):
            value = options[name]
            is_list = name in COMPARED and not isinstance(value, list)
            setattr(args, name, [value] if is_list else value)
    if args.files:
        args.dataset = None
    for model in args.model_id or ():
        check_found(model, args.verify)
    take_commit(stored, args)


def take_settings(stored: dict, args: argparse.Namespace) -> None:
    """Take the settings of a result that was stored without options, as Python stores it.

    What a protocol leaves no choice of is in the result too.

    Raises:
        ValueError: there are several results.
    """
    if set(results_of(stored)) != {"corpus"}:
        raise ValueError(
            f"--verify={args.verify} has several results without options: verify each by itself."
        )
    result = stored["corpus"]
    if args.protocol is None:
        args.protocol = [result["protocol"]]
    known = PROTOCOLS[result["protocol"]]
    for name in known.supported_arguments:
        if name in SETTINGS and getattr(args, name) is None:
            setattr(args, name, [result[name]] if name in COMPARED else result[name])
    if args.add_start_token not in (None, *known.start_choices):
        args.add_start_token = True  # once or in every window, as the tool has it
    fields = fields_of(result["signature"])
    join = fields.get("join", "").encode().decode("unicode_escape")
    if args.separator is None and join[:1] in ("'", '"') and ast.literal_eval(join) != known.join:
        args.separator = ast.literal_eval(join)
    args.carry = args.carry or ("carry" in fields or None)
    if "detokenizer" in fields and args.detokenize is None:
        args.detokenize = "wikitext"


def model_of(result: dict, path: str) -> list[str] | None:
    """Return the model that a result names, if it is one of the Hub; None for the bundled one.

    Raises:
        ValueError: it names a folder, whose place it does not say.
    """
    model = fields_of(result["signature"]).get("model", "")
    if model == BUNDLED_NAME:
        return None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return [model]
    raise ValueError(f"--verify={path} is a result of the model {model}: name it by --model.")


def check_found(model: str, path: str) -> None:
    """Refuse a folder that the result names and that is not here.

    Raises:
        ValueError: with the folder.
    """
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if is_path and not Path(model).expanduser().exists():
        raise ValueError(
            f"--verify={path} is a result of the model {model}, which is not here: name it by --model."
        )


def take_commit(stored: dict, args: argparse.Namespace) -> None:
    """Load the commit of a model of the Hub that a result names, unless a revision is given."""
    signatures = {r["model"]: r["signature"] for r in results_of(stored).values() if "model" in r}
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
    """Find the commit on the Hub that begins as a signature says; None where there is none."""
    import huggingface_hub

    try:
        commits = huggingface_hub.HfApi().list_repo_commits(model)
    except Exception:  # no network, no such model: loading says it better
        return None
    return next((c.commit_id for c in commits if c.commit_id.startswith(short)), None)


def compare(stored: dict, repeated: dict, tolerance: float) -> Outcome:
    """Compare what was stored with what the same call writes now, field by field.

    Args:
        tolerance: how far probes, mean nlls and logarithms of perplexities may be apart, in nats a
            token.
    """
    num_tokens = {place: result["num_tokens"] for place, result in results_of(repeated).items()}
    outcome = Outcome(list(results_of(stored)), names_of(stored))
    for place, before, now in pairs(stored, repeated):
        name = place.rpartition(".")[2]
        holder = next((p for p in num_tokens if place.startswith(f"{p}.")), next(iter(num_tokens)))
        full, place = place, place.removeprefix("corpus.")
        is_of_call = name in NAMES or full.startswith("options.")
        if name in COSTS or (is_of_call and before != now):
            outcome.not_compared.append(place)
        elif now is NOTHING:
            outcome.missing.append(place)
        elif name in SIGNATURES and (changed := changed_versions(stored, repeated, full, name)):
            outcome.versions |= changed
            outcome.same.append(place)
        elif is_of_call or agree(place, before, now, tolerance, num_tokens[holder]):
            outcome.same.append(place)
        else:
            outcome.differing[place] = difference(name, before, now)
    return outcome


def changed_versions(stored: dict, repeated: dict, place: str, name: str) -> dict[str, str]:
    """Return how versions of libraries differ; nothing where the signature differs otherwise too.

    Args:
        place, name: of a signature, long or short: the short one has a digest of the long one.
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
    """Find a value by its place; None where there is none."""
    for key in place.split("."):
        if isinstance(written, list):
            written = written[int(key)] if int(key) < len(written) else None
        else:
            written = written.get(key) if isinstance(written, dict) else None
    return written


def changed_fields(before: str, now: str) -> dict[str, tuple[str, str]]:
    """List the fields of two signatures that differ, with both values."""
    both = [fields_of(line) for line in (before, now)]
    values = {key: tuple(of.get(key, "none") for of in both) for key in both[0] | both[1]}
    return {key: value for key, value in values.items() if value[0] != value[1]}


def pairs(before: object, now: object, place: str = "") -> Iterator[tuple[str, object, object]]:
    """Go through what was stored: the place of each value, the value, and what stands there now."""
    is_list = isinstance(before, list) and isinstance(now, list) and len(before) == len(now)
    if is_list:
        before, now = (dict(enumerate(values)) for values in (before, now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        yield place, before, now
        return
    for key, value in before.items():
        yield from pairs(value, now.get(key, NOTHING), f"{place}.{key}" if place else str(key))


def agree(place: str, before: object, now: object, tolerance: float, num_tokens: int) -> bool:
    """Return whether two values are the same, but for rounding.

    Numbers may be apart by the tolerance's share of them; perplexities by that of their logarithms.
    """
    values = [as_float(before), as_float(now)]
    if isinstance(now, int) or None in values:  # counts, truth values and words
        return isinstance(before, bool) == isinstance(now, bool) and before == now
    if "perplexit" in place and min(values) > 0:
        values = [math.log(value) for value in values]
    if place == "probe" or place.endswith(".probe"):
        scale = 1.0
    elif place.endswith("total_nll"):
        scale = float(num_tokens)
    else:
        scale = max(*map(abs, values), 1.0 if "_scores." in place else SMALLEST)
    return math.isclose(*values, rel_tol=0.0, abs_tol=tolerance * scale)


def as_float(value: object) -> float | None:
    """Return a number as a float; None of what is no number, or past what a float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def difference(name: str, before: object, now: object) -> str:
    """Write both values; of signatures, the fields that differ."""
    if name != "signature" or not isinstance(before, str):
        return f"{shown(before)} and {shown(now)}{UNITS.get(name, '')}"
    changed = changed_fields(before, now)
    return "; ".join(f"{key} {' and '.join(values)}" for key, values in changed.items())


def fields_of(signature: str) -> dict[str, str]:
    """Take a signature apart."""
    parts = (part.partition(":") for part in signature.split("|"))
    return {name: value for name, _, value in parts}


def shown(value: object) -> str:
    """Write a value on one short line."""
    written = format(value, ".10g") if isinstance(value, float) else repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"


def names_of(stored: dict) -> dict[str, str]:
    """Name the results by model, text and settings, where there are several."""
    results = results_of(stored)
    keys = ("name", "text", "protocol", "max_length", "stride")
    return {
        place: ", ".join(str(result[key]) for key in keys if key in result)
        for place, result in results.items()
        if len(results) > 1
    }


def describe(outcome: Outcome) -> str:
    """Write a line for each part of each result, what else differs or is not repeated, the verdict."""
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
