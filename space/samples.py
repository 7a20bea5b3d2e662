"""Texts to begin with, and texts that a visitor uploads."""

from pathlib import Path

from .limits import Limits, Refused

FOLDER = Path(__file__).resolve().parent.parent / "samples"
NAMES = {
    "technical": "Technical prose, on windows",
    "story": "A story",
    "list": "A list of things",
    "deutsch": "A story in German",
    "note": "A short note",
}
# UTF-8 takes at most four bytes for a character.
BYTES_PER_CHARACTER = 4


def samples() -> dict[str, str]:
    """The sample texts by name, the first one shown first."""
    present = {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}
    order = [*[stem for stem in NAMES if stem in present], *[s for s in present if s not in NAMES]]
    return {
        NAMES.get(stem, stem.capitalize()): present[stem].read_text(encoding="utf-8").strip()
        for stem in order
    }


def read_upload(path: str, limits: Limits) -> str:
    """Read an uploaded text file."""
    data = Path(path).read_bytes()
    if len(data) > BYTES_PER_CHARACTER * limits.characters:
        raise Refused(
            f"The file has {len(data):,} bytes, and this page takes texts of at most "
            f"{limits.characters:,} characters. Upload a part of it."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(
            "The file is not plain text in UTF-8. Save it as a text file (.txt) with the encoding "
            "UTF-8 and upload it again."
        ) from None
