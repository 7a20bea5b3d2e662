"""Results of earlier runs: --verify repeats one; --part stores totals of some texts, which --merge adds up.

Part 3 of 8 scores texts 3, 11, 19, … and stores their totals.  Every part reads and hashes all
texts, which is cheap, so that merging detects parts of different texts or settings.  Merging
restores the order of the texts, and all numbers are those of a single run.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ..arguments import is_address
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
DERIVED = ("signature_short", "options")
# Fields of a signature that may differ without changing the number.
LIBRARIES = {"version": "perplexity-sliding", "transformers": "transformers", "torch": "torch"}
MOST_SHOWN = 8
NOTHING = object()
KIND = "part of a run of perplexity-sliding, 1"
# Fields that all parts of a run share, and the error if they differ.
SHARED = {
    "total": "the numbers of parts differ",
    "num_texts": "the numbers of texts differ",
    "digest": "the texts differ",
    "signature": "the settings differ",
}


# --- verifying ------------------------------------------------------------------------------------


def read_result(path: str) -> dict:
    """Read the output of `--format json`, or a result of the metric as JSON, under `corpus`.

    Raises:
        ValueError: the file is neither.
    """
    try:
        written = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--verify={path} must be a file written by --format json: {error}."
        ) from error
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


def compare(stored: dict, repeated: dict) -> tuple[str, bool]:
    """Compare a stored output with that of the repeated call, field by field.

    Numbers may differ by the relative tolerance of a probe, in nats per token, which that of a
    perplexity is up to rounding too.

    Returns:
        a line per part of each result, each other difference once, and the verdict; and whether all
        is reproduced.
    """
    pairs, results = list(pair_values(stored, repeated)), results_of(stored)
    signed = (now for place, _, now in pairs if place.endswith("signature"))
    tolerance = max((probe_tolerance(now) for now in signed if isinstance(now, str)), default=0.0)
    outcome: dict[str, str] = {}  # what differs in each field, or nothing
    missing, own, versions = [], {}, {}
    for place, before, now in pairs:
        name = place.rpartition(".")[2]
        if name in OF_RUNS and "worst_tokens" not in place:
            own[name] = None
        elif set(DERIVED) & set(place.split(".")) or (name == "probe" and now is NOTHING):
            continue
        elif now is NOTHING:
            missing.append(place)
        elif name.endswith("signature") and isinstance(before, str) and isinstance(now, str):
            one, other = fields_of(before), fields_of(now)
            changed = {
                key: f"{one.get(key, 'none')} and {other.get(key, 'none')}"
                for key in one | other
                if one.get(key) != other.get(key)
            }
            versions |= {
                name: changed.pop(key) for key, name in LIBRARIES.items() if key in changed
            }
            outcome[place] = "; ".join(f"{key} {values}" for key, values in changed.items())
        else:
            agrees = agree(before, now, tolerance)
            outcome[place] = "" if agrees else f"{abbreviate(before)} and {abbreviate(now)}"
    lines, said = [], set()
    for place, result in results.items():
        if len(results) > 1:
            named = [str(result[key]) for key in ("name", "text", *COMPARED) if key in result]
            lines.append(f"{', '.join(named)}:")
        for part in PARTS:
            full = f"{place}.{part}".removeprefix("corpus.")
            if full in outcome:
                said.add(full)
                lines.append(
                    f"{part:<12}  {outcome[full] and 'differs: '}{outcome[full] or 'the same'}"
                )
    others: dict[str, list[str]] = {}
    for place, what in outcome.items():
        others.setdefault(what, []).append(place)
    same = set(others.pop("", ())) - said
    others = {what: places for what, places in others.items() if not said & set(places)}
    for what, places in list(others.items())[:MOST_SHOWN]:
        more = f" (and {len(places) - 1:,} more)" if places[1:] else ""
        lines.append(f"{places[0]}{more}  differs: {what}")
    if len(others) > MOST_SHOWN:
        lines.append(f"others        {len(others) - MOST_SHOWN:,} more differ")
    elif not others:
        lines.append(f"others        the same: {len(same):,} fields")
    if missing:
        lines.append(
            f"not repeated  {', '.join(missing)}: pass the options that the result was measured with"
        )
    if own:
        lines.append(f"not compared  {', '.join(own)}: each run has its own")
    if versions:
        listed = "; ".join(f"{name} {values}" for name, values in versions.items())
        lines.append(f"versions      other ones: {listed}")
    is_verified = not missing and not any(outcome.values())
    return "\n".join([*lines, "verified" if is_verified else "not verified"]) + "\n", is_verified


def pair_values(
    before: object, now: object, place: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield the path of each stored value, the value, and the repeated one."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = (dict(enumerate(values)) for values in (before, now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        yield place.removeprefix("corpus."), before, now
        return
    for key, value in before.items():
        yield from pair_values(
            value, now.get(key, NOTHING), f"{place}.{key}" if place else str(key)
        )


def agree(before: object, now: object, tolerance: float) -> bool:
    """Return whether two values are equal, numbers that are no counts up to rounding."""
    if isinstance(before, float | int) and isinstance(now, float) and not isinstance(before, bool):
        return math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance / 10)
    return type(before) is type(now) and before == now


def fields_of(signature: str) -> dict[str, str]:
    """Split a signature into its fields."""
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
        """Yield the texts of the part, and hash all texts."""
        for text in texts:
            self.hash.update(repr((text.context, text.chat, text.text, text.error)).encode())
            place, self.num_texts = self.num_texts, self.num_texts + 1
            if place % self.total == self.number - 1:
                yield replace(text, place=place, share=text.share * self.total)

    def add(self, texts: Sequence, text_totals: Sequence) -> None:
        """Add texts that were scored together, with the totals of each."""
        self.places += [text.place for text in texts]
        self.digests += [str(totals.texts_digest.value) for totals in text_totals]

    def to_json(self, totals, **more: object) -> str:
        """Return the part as JSON with a checksum.

        Args:
            totals: those of the scored texts; None without any.
            more: further fields to store.
        """
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
            **more,
        }
        return json.dumps(body | {"checksum": checksum(body)}) + "\n"


def checksum(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_parts(paths: Sequence[str]) -> tuple[dict, object, list[dict], list[int]]:
    """Read all parts of a run, and add them up in the order of the corpus.

    Returns:
        the first part, the totals, the rows of files and refused texts, and the bytes of prose and of
        its originals.

    Raises:
        ValueError: some are missing, duplicate, damaged, or of other runs, or nothing was scored.
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
        if parts[-1].pop("checksum", None) != checksum(parts[-1]):
            raise ValueError(f"{path} is damaged: its checksum is wrong. Score that part again.")
    first = parts[0]
    for path, part in zip(paths, parts):
        for key, what in SHARED.items():
            if part[key] != first[key] and None not in (part[key], first[key]):
                raise ValueError(
                    f"{path} does not belong to {paths[0]}: {what} ({key} {part[key]} instead of "
                    f"{first[key]}). Score all parts with the same command, except for --part."
                )
    parts.sort(key=lambda part: part["part"])
    numbers = [part["part"] for part in parts]
    doubled = sorted({number for number in numbers if numbers.count(number) > 1})
    missing = sorted({*range(1, first["total"] + 1)} - {*numbers})
    for what, which in (("given more than once", doubled), ("missing", missing)):
        if which:
            listed = ", ".join(f"{number}/{first['total']}" for number in which)
            raise ValueError(f"--merge requires every part once, but {listed} is {what}.")
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
