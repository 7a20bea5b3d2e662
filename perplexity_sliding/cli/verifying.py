"""--verify: repeat a stored result and check that every number is reproduced."""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..argument_table import is_address
from ..digests import probe_tolerance

# Fields that identify a result, and are always printed.
PARTS = ("signature", "texts_digest", "probe", "total_nll", "perplexity", "num_tokens")
# Keys of the results in the output of --format json.
HOLDERS = ("corpus", "measurements", "models")
COMPARED = ("protocol", "max_length", "stride")
# Fields that differ between runs: time, memory, tokens read, which are fewer where texts that are
# scored in one call share a beginning, and names of files.
OF_RUNS = (
    "seconds",
    "tokens_per_second",
    "peak_memory_bytes",
    "num_forward_tokens",
    "name",
    "text",
)
# What the command line has given, and what follows from fields that are compared themselves.
DERIVED = ("signature_short", "options", "long_probe")
# Fields of a signature that may differ without changing the number.
LIBRARIES = {"version": "perplexity-sliding", "transformers": "transformers", "torch": "torch"}
MOST_SHOWN = 8
NOTHING = object()


@dataclass
class Outcome:
    """What a repeated measurement has reproduced.

    Attributes:
        names: the path and the name of each result.
        same: the paths of reproduced fields.
        differing: the paths of the other fields by what differs.
        missing: fields that the repeated call does not return.
        versions: libraries whose versions differ, if the signatures are otherwise equal.
        not_compared: fields that differ between runs.
    """

    names: dict[str, str]
    same: list[str] = field(default_factory=list)
    differing: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)

    @property
    def is_verified(self) -> bool:
        return not self.differing and not self.missing


def read_result(path: str) -> dict:
    """Read the output of `--format json`, or a result of the metric as JSON, under `corpus`.

    Raises:
        ValueError: the file is neither.
    """
    try:
        written = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--verify={path} cannot be read: {error}.") from error
    if isinstance(written, dict) and not written.keys() & set(HOLDERS):
        written = {"models" if "comparison" in written else "corpus": written}
        written = {k: [v] if k == "models" else v for k, v in written.items()}
    results = results_of(written) if isinstance(written, dict) else {}
    if not results or not all({"signature", "texts_digest"} <= r.keys() for r in results.values()):
        raise ValueError(
            f"--verify={path} must be an output of --format json, with signature and texts_digest of "
            "each result."
        )
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


def take_options(stored: dict, args: argparse.Namespace, names: Sequence[str]) -> None:
    """Set options that are not on the command line to those of the stored result.

    A result that was stored from Python has none: all its settings are on the command line.

    Args:
        names: names of the stored options.

    Raises:
        ValueError: the model is a folder that is not found.
    """
    options = stored.get("options") or {}
    for name in names:
        if name in options and getattr(args, name) in (None, False):
            value = options[name]
            is_list = name in COMPARED and not isinstance(value, list)
            setattr(args, name, [value] if is_list else value)
    if args.files:
        args.dataset = None
    for model in args.model_id or ():
        is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
        if is_path and not is_address(model) and not Path(model).expanduser().exists():
            raise ValueError(
                f"--verify={args.verify} is a result of the model {model}, which does not exist here: "
                "pass its path as --model."
            )
    take_commit(stored, args)


def take_commit(stored: dict, args: argparse.Namespace) -> None:
    """Select the commit of the Hub's model that the result names, unless a revision is given."""
    models, settings = args.model_id or [], args.model_kwargs or {}
    if len(models) != 1 or models[0].count("/") != 1 or Path(models[0]).exists():
        return
    if "revision" in settings:
        return
    result = next(iter(results_of(stored).values()))
    short = fields_of(result["signature"]).get("revision", "").partition(".")[0]
    import huggingface_hub

    try:
        commits = [c.commit_id for c in huggingface_hub.HfApi().list_repo_commits(models[0])]
    except Exception:  # no network or no such model: loading raises a better error
        return
    commit = next((commit for commit in commits if short and commit.startswith(short)), None)
    if commit is not None:
        args.model_kwargs = settings | {"revision": commit}


def compare(stored: dict, repeated: dict) -> Outcome:
    """Compare a stored output with that of the repeated call, field by field.

    Numbers may differ by the relative tolerance of a probe, in nats per token, which that of a
    perplexity is up to rounding too.
    """
    results, now_results = results_of(stored), results_of(repeated)
    signatures = [of["signature"] for of in now_results.values()]
    signatures += [
        of["comparison"]["reference_signature"] for of in now_results.values() if "comparison" in of
    ]
    tolerance = max(map(probe_tolerance, signatures), default=0.0)
    keys = ("name", "text", *COMPARED)
    outcome = Outcome(
        {
            place: ", ".join(str(of[key]) for key in keys if key in of) if len(results) > 1 else ""
            for place, of in results.items()
        }
    )
    for full, before, now in pairs(stored, repeated):
        place = full.removeprefix("corpus.")
        name = place.rpartition(".")[2]
        if name in OF_RUNS and "worst_tokens" not in full:
            outcome.not_compared.append(place)
        elif any(key in DERIVED for key in full.split(".")) or (name == "probe" and now is NOTHING):
            continue
        elif now is NOTHING:
            outcome.missing.append(place)
        elif name.endswith("signature") and isinstance(before, str) and isinstance(now, str):
            changed = changed_fields(before, now)
            own = {key: said for key, said in changed.items() if key not in LIBRARIES}
            outcome.versions |= {LIBRARIES[k]: of for k, of in changed.items() if k in LIBRARIES}
            for key, said in own.items():
                outcome.differing.setdefault(f"{key} {said}", []).append(place)
            outcome.same += [] if own else [place]
        elif agree(before, now, tolerance):
            outcome.same.append(place)
        else:
            said = f"{shown(before)} and {shown(now)}"
            outcome.differing.setdefault(said, []).append(place)
    return outcome


def pairs(before: object, now: object, place: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield the path of each stored value, the value, and the repeated one."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = (dict(enumerate(values)) for values in (before, now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        yield place, before, now
        return
    for key, value in before.items():
        yield from pairs(value, now.get(key, NOTHING), f"{place}.{key}" if place else str(key))


def agree(before: object, now: object, tolerance: float) -> bool:
    """Return whether two values are equal, numbers that are no counts up to rounding."""
    if isinstance(before, float | int) and isinstance(now, float) and not isinstance(before, bool):
        return math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance / 10)
    return type(before) is type(now) and before == now


def changed_fields(before: str, now: str) -> dict[str, str]:
    """Return the fields in which two signatures differ, with both values."""
    one, other = fields_of(before), fields_of(now)
    return {
        key: f"{one.get(key, 'none')} and {other.get(key, 'none')}"
        for key in one | other
        if one.get(key) != other.get(key)
    }


def fields_of(signature: str) -> dict[str, str]:
    """Split a signature into its fields."""
    parts = (part.partition(":") for part in signature.split("|"))
    return {name: value for name, _, value in parts}


def shown(value: object) -> str:
    """Write a value on one short line."""
    written = format(value, ".10g") if isinstance(value, float) else repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"


def describe(outcome: Outcome) -> str:
    """Write one line per part of each result, each other difference once, and the verdict."""
    lines, parts = [], set()
    said_of = {place: said for said, places in outcome.differing.items() for place in places}
    for place, name in outcome.names.items():
        lines += [f"{name}:"] if name else []
        for part in PARTS:
            full = f"{place}.{part}".removeprefix("corpus.")
            if full in said_of or full in outcome.same:
                parts.add(full)
                said = f"differs: {said_of[full]}" if full in said_of else "the same"
                lines.append(f"{part:<12}  {said}")
    others = []
    for said, places in outcome.differing.items():
        if not parts & set(places):  # not said above
            more = f" (and {len(places) - 1:,} more)" if places[1:] else ""
            others.append(f"{places[0]}{more}  differs: {said}")
    lines += others[:MOST_SHOWN]
    if len(others) > MOST_SHOWN:
        lines.append(f"others        {len(others) - MOST_SHOWN:,} more differ")
    elif not others:
        lines.append(f"others        the same: {len(set(outcome.same) - parts):,} fields")
    if outcome.missing:
        lines.append(
            f"not repeated  {', '.join(outcome.missing)}: pass the options that the result was "
            "measured with"
        )
    if outcome.not_compared:
        names = dict.fromkeys(place.rpartition(".")[2] for place in outcome.not_compared)
        lines.append(f"not compared  {', '.join(names)}: each run has its own")
    if outcome.versions:
        versions = "; ".join(f"{name} {values}" for name, values in outcome.versions.items())
        lines.append(f"versions      other ones: {versions}")
    return "\n".join([*lines, "verified" if outcome.is_verified else "not verified"]) + "\n"
