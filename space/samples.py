"""Sample texts, and uploaded texts."""

import codecs
from pathlib import Path

from .limits import Limits, Refused
from .measure import check_text

FOLDER = Path(__file__).resolve().parent.parent / "samples"
# Samples on the page.
NAMES = {
    "opening": "A story",
    "news": "News",
    "code": "Code",
    "deutsch": "German",
    "limerick": "A limerick",
    "nonsense": "Nonsense",
    "story": "A long story",
}
# UTF-8 takes at most four bytes for a character.
BYTES_PER_CHARACTER = 4
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def samples() -> dict[str, str]:
    """Return the sample texts by name as they are on disk, the first one shown first."""
    paths = {name: FOLDER / f"{stem}.txt" for stem, name in NAMES.items()}
    return {
        name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()
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
        # Windows' "Unicode" begins with a byte order mark.
        text = data.decode("utf-16" if data.startswith(UTF16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(
            "The file is not plain text in UTF-8. Save it as a text file (.txt) with the encoding "
            "UTF-8 and upload it again."
        ) from None
    return check_text(text, limits)
