"""Scripts and styles of the views; a page must include `SCRIPTS` before its own."""

from pathlib import Path

# Not the file: in the cache of the Hub it is a link to a file elsewhere.
HERE = Path(__file__).parent.resolve()
STYLE = HERE / "pieces.css"
SCRIPTS = tuple(HERE / name for name in ("base.js", "text.js", "tell.js", "pairs.js"))


def joined(paths: tuple[Path, ...]) -> str:
    """Read files one after the other."""
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
