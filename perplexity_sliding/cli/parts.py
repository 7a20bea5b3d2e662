"""--part and --merge: score a corpus on several machines, and merge the results.

Part 3 of 8 scores texts 3, 11, 19, … and stores their totals.  Every part reads and hashes all
texts, which is cheap, so that merging detects parts of different texts or settings.  Merging
restores the order of the texts, and all numbers are those of a single run.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass
class Part:
    """The texts that a part has read and scored so far.

    Attributes:
        num_texts: number of texts read, of which every `total`-th is scored.
        number, total: the number of the part, and of all parts.
        totals: totals of the scored texts; None without any.
        places: positions of the scored texts among all.
        digests: digests of the scored texts.
    """

    number: int
    total: int
    num_texts: int = 0
    totals: object = None
    places: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hash = hashlib.sha256()

    def take(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Yield the texts of the part, and hash all texts."""
        for text in texts:
            self._hash.update(repr((text.context, text.chat, text.text, text.error)).encode())
            place, self.num_texts = self.num_texts, self.num_texts + 1
            if place % self.total == self.number - 1:
                yield replace(text, place=place, share=text.share * self.total)

    def add(self, texts: Sequence[Text], text_totals: Sequence) -> None:
        """Add texts that were scored together, with the totals of each."""
        self.places += [text.place for text in texts]
        self.digests += [str(totals.texts_digest.value) for totals in text_totals]

    def to_json(self, report: dict) -> str:
        """Return the part as JSON with a checksum.

        Args:
            report: further fields to store.
        """
        body = {
            "kind": KIND,
            "part": self.number,
            "total": self.total,
            "num_texts": self.num_texts,
            "digest": self._hash.hexdigest(),
            "signature": None if self.totals is None else self.totals.identity["signature"],
            "places": self.places,
            "digests": self.digests,
            "totals": None if self.totals is None else self.totals.to_json(),
            **report,
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


def read_parts(paths: Sequence[str]) -> list[dict]:
    """Read all parts of a run, in their order.

    Raises:
        ValueError: some are missing, duplicate, damaged, or of other runs.
    """
    named = [(path, read_part(path)) for path in paths]
    first_path, first = named[0]
    for path, part in named:
        for key, what in SHARED.items():
            if part[key] != first[key] and None not in (part[key], first[key]):
                raise ValueError(
                    f"{path} does not belong to {first_path}: {what} ({key} {part[key]} instead of "
                    f"{first[key]}). Score all parts with the same command, except for --part."
                )
    parts = sorted((part for _, part in named), key=lambda part: part["part"])
    numbers = [part["part"] for part in parts]
    doubled = sorted({number for number in numbers if numbers.count(number) > 1})
    missing = sorted({*range(1, first["total"] + 1)} - {*numbers})
    for what, which in (("given more than once", doubled), ("missing", missing)):
        if which:
            listed = ", ".join(f"{number}/{first['total']}" for number in which)
            raise ValueError(f"--merge requires every part once, but {listed} is {what}.")
    return parts


def merge_totals(parts: Sequence[dict], read_totals) -> object:
    """Add the totals of parts, their texts in the order of the corpus.

    Args:
        read_totals: the engine's `Totals.from_json`.
    """
    scored = [read_totals(part["totals"]) for part in parts if part["totals"] is not None]
    if not scored:
        raise ValueError("No text in the parts could be scored.")
    totals = sum(scored)
    places = list(chain.from_iterable(part["places"] for part in parts))
    digests = list(chain.from_iterable(part["digests"] for part in parts))
    order = sorted(range(len(places)), key=places.__getitem__)
    return totals.take(order, [int(digests[number]) for number in order])
