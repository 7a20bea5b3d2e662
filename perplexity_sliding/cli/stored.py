"""Results of earlier runs: a stored one is compared with its repetition; parts of a run are added up."""

import argparse
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ..digests import probe_tolerance

# Keys of the results in the output of --format json.
HOLDERS = ("corpus", "measurements", "models")
COMPARED = ("protocol", "max_length", "stride")
# What differs between runs: time; tokens read, which are fewer where texts of one call share a beginning;
# names of files; and what follows from fields that are compared themselves.
NOT_COMPARED = {
    *("seconds", "tokens_per_second", "num_forward_tokens", "name", "text", "signature_short"),
}
# Fields of a signature that may differ without changing the number.
LIBRARIES = ("version", "transformers", "torch")
MOST_SHOWN = 8
KIND = "part of a run of perplexity-sliding, 1"
# Fields that all parts of a run share; the digest is that of the texts.
SHARED = ("total", "num_texts", "digest", "signature")


# --- verifying ------------------------------------------------------------------------------------


def read_result(path: str) -> dict:
    """Read the output of `--format json`, or a result of the metric as JSON, under `corpus`."""
    try:
        written = json.loads(Path(path).read_text(encoding="utf-8"))
        written = {"corpus": written} if "perplexity" in written else written
        signed = [{"signature", "texts_digest"} <= result.keys() for result in results_of(written)]
        if not signed or not all(signed):
            raise ValueError("not every result has a signature and texts_digest")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(
            f"--verify={path} must be a file written by --format json: {error}."
        ) from error
    return written


def results_of(written: dict) -> list[dict]:
    held = (written.get(holder, []) for holder in HOLDERS)
    found = chain.from_iterable(of if isinstance(of, list) else [of] for of in held)
    return [result for result in found if "error" not in result]


def take_options(stored: dict, args: argparse.Namespace, names: Sequence[str]) -> None:
    """Set options that are not on the command line to those of the stored result, if it has any."""
    options = stored.get("options") or {}
    for name in names:
        if name in options and getattr(args, name) in (None, False):
            value = options[name]
            is_list = name in COMPARED and not isinstance(value, list)
            setattr(args, name, [value] if is_list else value)
    if args.files:
        args.dataset = None


def compare(stored: dict, repeated: dict) -> tuple[str, bool]:
    """Return the differences of two outputs, and whether there are none.

    Numbers may differ by the relative tolerance of a probe, in nats per token, which that of a
    perplexity is up to rounding too.
    """
    tolerance = max(probe_tolerance(result["signature"]) for result in results_of(repeated))
    now, num_same = dict(leaves(repeated)), 0
    places: dict[str, list[str]] = {}  # of each difference
    versions: dict[str, None] = {}
    kept = {key: stored[key] for key in (*HOLDERS, *stored) if key in stored and key != "options"}
    for place, value in leaves(kept):
        name = place.rpartition(".")[2]
        if name in NOT_COMPARED or (name == "probe" and place not in now):
            continue
        said = ""
        if place not in now:
            said = "not repeated: pass the options that the result was measured with"
        elif name.endswith("signature"):
            pair = fields_of(value), fields_of(now[place])
            changed = {
                key: f"{key} {' and '.join(fields.get(key, 'none') for fields in pair)}"
                for key in pair[0] | pair[1]
                if pair[0].get(key) != pair[1].get(key)
            }
            versions |= {changed.pop(key): None for key in LIBRARIES if key in changed}
            said = changed and f"differs: {'; '.join(changed.values())}"
        elif not agree(value, now[place], tolerance):
            said = f"differs: {abbreviate(value)} and {abbreviate(now[place])}"
        if said:
            places.setdefault(said, []).append(place.removeprefix("corpus."))
        else:
            num_same += 1
    lines = [
        f"{first}{f' (and {len(more):,} more)' if more else ''}  {said}"
        for said, (first, *more) in places.items()
    ]
    if len(lines) > MOST_SHOWN:
        lines[MOST_SHOWN:] = [f"{len(lines) - MOST_SHOWN:,} more differ"]
    lines.append(f"{num_same:,} fields are the same, up to rounding")
    if versions:
        lines.append(f"other versions: {'; '.join(versions)}")
    lines.append("not verified" if places else "verified")
    return "\n".join(lines) + "\n", not places


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def agree(before: object, now: object, tolerance: float) -> bool:
    """Whether two values are equal; numbers that are no counts, up to rounding."""
    if isinstance(before, float | int) and isinstance(now, float) and not isinstance(before, bool):
        return math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance / 10)
    return type(before) is type(now) and before == now


def fields_of(signature: str) -> dict[str, str]:
    parts = (part.partition(":") for part in signature.split("|"))
    return {name: value for name, _, value in parts}


def abbreviate(value: object) -> str:
    written = format(value, ".10g") if isinstance(value, float) else repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"


# --- parts ----------------------------------------------------------------------------------------


class Part:
    """The texts that a part has read and scored so far: of `total` texts, the one at `number`."""

    def __init__(self, number: int, total: int) -> None:
        self.number, self.total, self.num_texts = number, total, 0
        self.places: list[int] = []  # of the scored texts among all
        self.digests: list[str] = []  # of the scored texts
        self.hash = hashlib.sha256()

    def take(self, texts: Iterable) -> Iterator:
        for text in texts:
            self.hash.update(repr((text.context, text.chat, text.text, text.error)).encode())
            place, self.num_texts = self.num_texts, self.num_texts + 1
            if place % self.total == self.number - 1:
                yield replace(text, place=place, share=text.share * self.total)

    def add(self, texts: Sequence, text_totals: Sequence) -> None:
        self.places += [text.place for text in texts]
        self.digests += [str(totals.texts_digest.value) for totals in text_totals]

    def to_json(self, totals, **more: object) -> str:
        body = {
            "kind": KIND,
            "part": self.number,
            "total": self.total,
            "num_texts": self.num_texts,
            "digest": self.hash.hexdigest(),
            "signature": None if totals is None else totals.identity["signature"],
            "places": self.places,
            "digests": self.digests,
            "totals": None if totals is None else totals.to_json(),
        }
        return json.dumps(body | more) + "\n"


def read_parts(paths: Sequence[str]) -> tuple[dict, object, list[dict], list[int]]:
    """Return the first part, the totals of all in the order of the corpus, the rows of files and
    refused texts, and the bytes of prose and of its originals.
    """
    from ..results.totals import Totals

    parts = []
    for path in paths:
        try:
            parts.append(json.loads(Path(path).read_text("utf-8")))
            is_part = parts[-1]["kind"] == KIND
        except (ValueError, TypeError, KeyError):
            is_part = False
        if not is_part:
            raise ValueError(
                f"{path} is not a part of a run: --merge requires files written by --part."
            )
    first = parts[0]
    for path, part in zip(paths, parts):
        for key in SHARED:
            if part[key] != first[key] and None not in (part[key], first[key]):
                raise ValueError(
                    f"{path} does not belong to {paths[0]}: {key} {part[key]} instead of "
                    f"{first[key]}. Score all parts with the same command, except for --part."
                )
    parts.sort(key=lambda part: part["part"])
    numbers = [part["part"] for part in parts]
    if numbers != [*range(1, first["total"] + 1)]:
        listed = ", ".join(f"{number}/{first['total']}" for number in numbers)
        raise ValueError(f"--merge requires every part once, got {listed}.")
    totals = sum(Totals.from_json(part["totals"]) for part in parts if part["totals"] is not None)
    if not totals:
        raise ValueError("No text in the parts could be scored.")
    places, digests, rows = (
        list(chain.from_iterable(part[name] for part in parts))
        for name in ("places", "digests", "rows")
    )
    order = sorted(range(len(places)), key=places.__getitem__)
    rows.sort(key=lambda row: row["place"])
    num_bytes = [sum(sizes) for sizes in zip(*(part["num_bytes"] for part in parts))]
    return parts[0], totals.take(order, [int(digests[place]) for place in order]), rows, num_bytes
