"""--part and --merge: score a corpus on several machines, and merge the results.

Part 3 of 8 scores texts 3, 11, 19, … and stores their totals.  Every part reads and hashes all
texts, which is cheap, so that merging detects parts of different texts or settings.  Merging
restores the order of the texts, and all numbers are those of a single run.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from .reading import Text

KIND = "part of a run of perplexity-sliding, 1"
# Fields that all parts of a run share, and the error if they differ.
SHARED = {
    "total": "the numbers of parts differ",
    "num_texts": "the numbers of texts differ",
    "digest": "the texts differ",
    "signature": "the settings differ",
}


class Part:
    """The texts that a part has read and scored so far: of `total` texts, the one at `number`."""

    def __init__(self, number: int, total: int) -> None:
        self.number, self.total, self.num_texts = number, total, 0
        self.places: list[int] = []  # of the scored texts among all
        self.digests: list[str] = []  # of the scored texts
        self.hash = hashlib.sha256()

    def take(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Yield the texts of the part, and hash all texts."""
        for text in texts:
            self.hash.update(repr((text.context, text.chat, text.text, text.error)).encode())
            place, self.num_texts = self.num_texts, self.num_texts + 1
            if place % self.total == self.number - 1:
                yield replace(text, place=place, share=text.share * self.total)

    def add(self, texts: Sequence[Text], text_totals: Sequence) -> None:
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


def read_part(path: str) -> dict:
    """Read the file of a part.

    Raises:
        ValueError: it is another file, or damaged.
    """
    try:
        body = json.loads(Path(path).read_text("utf-8"))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise ValueError(
            f"{path} is not a part of a run: --merge requires files written by --part."
        )
    if body.pop("checksum", None) != checksum(body):
        raise ValueError(f"{path} is damaged: its checksum is wrong. Score that part again.")
    return body


def read_parts(paths: Sequence[str]) -> tuple[dict, object, list[dict], list[int]]:
    """Read all parts of a run, and add them up in the order of the corpus.

    Returns:
        the first part, the totals, the rows of files and refused texts, and the bytes of prose and of
        its originals.

    Raises:
        ValueError: some are missing, duplicate, damaged, or of other runs, or nothing was scored.
    """
    from ..results.totals import Totals

    parts = [read_part(path) for path in paths]
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
