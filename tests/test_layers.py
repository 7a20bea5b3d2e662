"""The package's folders: imports point downwards, without circles."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "perplexity_sliding"
# From top to bottom; what is on one line imports nothing of its neighbours.
FLOORS = (
    {"__main__", "perplexity_sliding"},
    {"cli"},
    {"views", "callback", "metric"},
    {"finding"},
    {"api"},
    {"results"},
    {"scoring"},
    {"engines"},
    {"models"},
    {"plan"},
    {"arguments", "layouts"},
    {"errors", "protocols", "digests", "__init__"},
)


def name_of(path: Path) -> str:
    """The dotted name of a module inside the package; of a folder's `__init__`, that of the folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a module imports anywhere in it, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1]
            folder = folder.joinpath(*(node.module or "").split("."))
            found |= {name_of(one) for one in files_of(folder, [a.name for a in node.names])}
    return found


def files_of(module: Path, names: Iterable[str]) -> set[Path]:
    """The files of a module, or those of a folder's modules that are imported from it."""
    if module != PACKAGE and module.with_suffix(".py").exists():
        return {module.with_suffix(".py")}
    files = {module / f"{name}.py" for name in names}
    return {file if file.exists() else module / "__init__.py" for file in files}


def count_floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each module: 1 without imports, otherwise one above the highest that it imports.

    Modules of a circle, and what stands on it, have none.
    """
    floors: dict[str, int] = {}
    while ready := [m for m in imports if m not in floors and imports[m] <= set(floors)]:
        floors |= {m: 1 + max((floors[below] for below in imports[m]), default=0) for m in ready}
    return floors


def folder_of(name: str) -> str:
    return name.partition(".")[0]


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return {name_of(path): imports_of(path) for path in PACKAGE.rglob("*.py")}


def test_circles_have_no_floor():
    assert count_floors({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == {"d": 1}


def test_imports_have_no_circle(imports):
    assert sum(map(len, imports.values())) > 200
    assert set(imports) == set(count_floors(imports))


def test_imports_between_folders_point_downwards(imports):
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert {folder_of(name) for name in imports} == set(floor)
    upward = [
        f"{name} imports {below}"
        for name, belows in imports.items()
        for below in belows
        if folder_of(name) != folder_of(below) and floor[folder_of(name)] >= floor[folder_of(below)]
    ]
    assert upward == []


def test_imports_are_relative():
    """Absolute ones would escape the tests above."""
    named = [
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name))
        or (
            isinstance(node, ast.Import)
            and any(a.name.startswith(PACKAGE.name) for a in node.names)
        )
    ]
    assert named == []


def test_http_is_imported_for_a_server_alone():
    """It would delay every call with another model."""
    script = "import perplexity_sliding.api, sys; assert 'perplexity_sliding.engines.server' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, check=True)
