"""The rows of the table of protocols hold values that the project knows: mypy reads their types."""

import subprocess
import sys
from pathlib import Path

import pytest

from perplexity_sliding.protocols import PROTOCOLS, ROWS

ROOT = Path(__file__).resolve().parent.parent
ROW = 'NEW = Protocol("new", source="a tool", description="As it does.", {})\n'
UNKNOWN = ('encoding="defualt"', 'stride="third"', 'supported_arguments=("window",)', "stridee=3")


def errors_of(rows: str, folder: Path) -> list[str]:
    """What mypy says of the table with further rows."""
    pytest.importorskip("mypy")
    copy = folder / "protocols.py"
    copy.write_text(
        (ROOT / "perplexity_sliding" / "protocols.py").read_text("utf-8") + rows, "utf-8"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    checked = subprocess.run(
        [*command, "--no-incremental", str(copy)], capture_output=True, text=True
    )
    return [line for line in checked.stdout.splitlines() if ": error: " in line]


def test_no_two_rows_have_the_same_name():
    assert len(PROTOCOLS) == len(ROWS)


def test_the_rows_are_of_their_types(tmp_path):
    assert errors_of(ROW.format('encoding="default", stride=3'), tmp_path) == []


def test_a_value_that_nothing_knows_is_an_error(tmp_path):
    said = errors_of("".join(map(ROW.format, UNKNOWN)), tmp_path)
    assert len({line.split(":")[1] for line in said}) == len(UNKNOWN)
