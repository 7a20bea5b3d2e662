"""--verify: repeat a result that was stored, and say whether every number of it comes out again."""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..protocols import PROTOCOLS

# What pins a result, and always has a line.
PARTS = ("signature", "texts_digest", "probe", "total_nll", "perplexity", "num_tokens")
NUMBERS = ("probe", "perplexity", "total_nll", "num_tokens")
SETTINGS = ("protocol", "max_length", "stride", "add_start_token")
# What no two runs have in common: the time and memory that they took, and what a file is called.
COSTS = ("seconds", "tokens_per_second", "peak_memory_bytes")
NAMES = ("name",)
# Numbers below it are compared as if they were so large; tokens by themselves as if they were 1.
SMALLEST = 0.01
MOST_SHOWN = 8
NOTHING = object()
UNITS = {"total_nll": " nats", "probe": " nats a token"}


@dataclass
class Outcome:
    """What came out again, and what did not.

    Attributes:
        same: the places of the fields that did.
        differing: how each other field differs, by its place.
        missing: the fields that this call does not give.
        costs: the fields that are not compared.
    """

    same: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    costs: list[str] = field(default_factory=list)

    @property
    def is_verified(self) -> bool:
        return not self.differing and not self.missing


def read_result(path: str) -> dict:
    """Read what `--format json` wrote, or a result of the metric as JSON.

    Returns:
        what was written, with the result of all texts as `corpus`.

    Raises:
        ValueError: it is something else.
    """
    try:
        written = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--verify={path} cannot be read: {error}.") from error
    result = written.get("corpus", written) if isinstance(written, dict) else None
    needed = {"signature", "texts_digest", *NUMBERS, *SETTINGS}
    if not isinstance(result, dict) or not needed <= result.keys():
        raise ValueError(
            f"--verify={path} must be one result that --format json wrote, with signature, "
            "texts_digest and probe."
        )
    check_values(path, result)
    return written if "corpus" in written else {"corpus": result}


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
                    f"--verify={path} must hold {what} as {name}, got {shown(result[name])}."
                )


def take_settings(stored: dict, args: argparse.Namespace) -> None:
    """Measure as the stored result was measured, where the command line says nothing else.

    What a protocol leaves no choice of is in the result too.

    Raises:
        ValueError: the result is of another model than the bundled one, and none is named.
    """
    result = stored["corpus"]
    model = fields_of(result["signature"]).get("model", "")
    if args.takes_bundled_model and model != Path(args.model_id).name:
        raise ValueError(
            f"--verify={args.verify} is a result of the model {model}: name it by --model."
        )
    args.protocol = args.protocol or result["protocol"]
    known = PROTOCOLS[args.protocol]
    for name in known.supported_arguments:
        if name in SETTINGS and getattr(args, name) is None:
            setattr(args, name, result[name])
    if args.add_start_token not in (None, *known.start_choices):
        args.add_start_token = True  # once or in every window, as the tool has it


def compare(stored: dict, repeated: dict, tolerance: float) -> Outcome:
    """Compare what was stored with what the same call writes now, field by field.

    Args:
        tolerance: how far probes, mean nlls and logarithms of perplexities may be apart, in nats a
            token.
    """
    outcome = Outcome()
    num_tokens = repeated["corpus"]["num_tokens"]
    for place, before, now in pairs(stored, repeated):
        name = place.rpartition(".")[2]
        place = place.removeprefix("corpus.")
        if name in COSTS:
            outcome.costs.append(place)
        elif now is NOTHING:
            outcome.missing.append(place)
        elif name in NAMES or agree(place, before, now, tolerance, num_tokens):
            outcome.same.append(place)
        else:
            outcome.differing[place] = difference(name, before, now)
    return outcome


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
    both = [fields_of(line) for line in (before, now)]
    return "; ".join(
        f"{key} {both[0].get(key, 'none')} and {both[1].get(key, 'none')}"
        for key in dict.fromkeys([*both[0], *both[1]])
        if both[0].get(key) != both[1].get(key)
    )


def fields_of(signature: str) -> dict[str, str]:
    """Take a signature apart."""
    parts = (part.partition(":") for part in signature.split("|"))
    return {name: value for name, _, value in parts}


def shown(value: object) -> str:
    """Write a value on one short line."""
    written = format(value, ".10g") if isinstance(value, float) else repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"


def describe(outcome: Outcome) -> str:
    """Write a line for each part, what else differs or is not repeated, and the verdict."""
    lines = [
        f"{name:<12}  "
        + (f"differs: {outcome.differing[name]}" if name in outcome.differing else "the same")
        for name in PARTS
    ]
    others = {name: said for name, said in outcome.differing.items() if name not in PARTS}
    lines += [f"{name}  differs: {said}" for name, said in list(others.items())[:MOST_SHOWN]]
    if len(others) > MOST_SHOWN:
        lines.append(f"others        differ: {', '.join(list(others)[MOST_SHOWN:])}")
    elif not others:
        lines.append(f"others        the same: {len(set(outcome.same) - set(PARTS)):,} fields")
    if outcome.missing:
        lines.append(
            f"not repeated  {', '.join(outcome.missing)}: pass the options that the result was "
            "measured with"
        )
    if outcome.costs:
        lines.append(f"not compared  {', '.join(outcome.costs)}: each run has its own")
    return "\n".join([*lines, "verified" if outcome.is_verified else "not verified"]) + "\n"
