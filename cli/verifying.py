"""--verify: repeat a result that was stored, and say whether it comes out again."""

import argparse
import json
import math
from pathlib import Path

from perplexity_sliding.protocols import PROTOCOLS

NUMBERS = ("probe", "perplexity", "total_nll", "num_tokens")
SETTINGS = ("protocol", "max_length", "stride", "add_start_token")


def read_result(path: str) -> dict:
    """Read the result of all texts from what `--format json` wrote.

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
    for name in ("signature", "texts_digest", "protocol"):
        if not isinstance(result[name], str):
            raise ValueError(f"--verify={path} must hold a text as {name}, got {result[name]!r}.")
    for name in NUMBERS:
        value = result[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"--verify={path} must hold a number as {name}, got {value!r}.")
    return result | {name: math.inf for name in NUMBERS if result[name] is None}  # as JSON has it


def take_settings(stored: dict, args: argparse.Namespace) -> None:
    """Measure as the stored result was measured, where the command line says nothing else.

    What a protocol leaves no choice of is in the result too.
    """
    args.protocol = args.protocol or stored["protocol"]
    known = PROTOCOLS.get(args.protocol)
    for name in known.knobs if known else ():
        if name in SETTINGS and getattr(args, name) is None:
            setattr(args, name, stored[name])
    if known and args.add_start_token not in (None, *known.start_choices):
        args.add_start_token = True  # once or in every window, as the tool has it


def compare(stored: dict, repeated: dict, tolerance: float) -> dict[str, tuple[bool, str]]:
    """Compare two results.

    Args:
        tolerance: how far probes, mean nlls and logarithms of perplexities may be apart, in nats a
            token.

    Returns:
        of each part, whether it came out again, and both values.
    """
    outcome = {
        name: (stored[name] == repeated[name], f"{stored[name]} and {repeated[name]}")
        for name in ("signature", "texts_digest")
    }
    probes = (stored["probe"], repeated["probe"])
    nlls = [result["total_nll"] / max(1, result["num_tokens"]) for result in (stored, repeated)]
    for name, (before, now) in {"probe": probes, "mean nll": nlls}.items():
        same = math.isclose(before, now, rel_tol=0.0, abs_tol=tolerance)
        outcome[name] = same, f"{before:.6f} and {now:.6f} nats a token"
    numbers = stored["perplexity"], repeated["perplexity"]
    outcome["perplexity"] = (
        is_close(*numbers, tolerance),
        " and ".join(format(number, ".6g") for number in numbers),
    )
    tokens = [result["num_tokens"] for result in (stored, repeated)]
    outcome["num_tokens"] = tokens[0] == tokens[1], f"{tokens[0]:,} and {tokens[1]:,}"
    return outcome


def is_close(number: float, other: float, tolerance: float) -> bool:
    """Compare two perplexities by their logarithms; both may be infinite."""
    logarithms = [math.log(value) if value > 0 else -math.inf for value in (number, other)]
    return math.isclose(*logarithms, rel_tol=0.0, abs_tol=tolerance)


def describe(outcome: dict[str, tuple[bool, str]]) -> str:
    """Write a line for each part, and the verdict."""
    lines = [
        f"{name:<12}  {'the same' if same else f'differs: {values}'}"
        for name, (same, values) in outcome.items()
    ]
    verdict = "verified" if all(same for same, _ in outcome.values()) else "not verified"
    return "\n".join([*lines, verdict]) + "\n"
