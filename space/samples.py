"""Sample texts of the page."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "samples"
# On the page; the files are served as they are.
NAMES = {
    "rhyme": "A nursery rhyme",
    "opening": "A story",
    "gate": "A short tale",
    "news": "News",
    "list": "A list",
    "code": "Code",
    "deutsch": "German",
    "limerick": "A limerick",
    "nonsense": "Nonsense",
    "story": "A long story",
}


def samples() -> dict[str, str]:
    """Return the names of the samples that are there, by file."""
    files = {f"{stem}.txt": name for stem, name in NAMES.items()}
    return {file: name for file, name in files.items() if (FOLDER / file).is_file()}
