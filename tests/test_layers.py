"""The engine's rooms: every import points downwards, there are at most eight floors, and few calls deep."""

import ast
import traceback
from pathlib import Path

import pytest

from perplexity_sliding import compute

ROOT = Path(__file__).resolve().parent.parent
FACE = "perplexity_sliding"
# Doors: programs and the callback for Trainer.  Nothing of the engine imports them.
DOORS = {"app", "score", "training"}
MOST_FLOORS = 8
MOST_CALLS = 14


def imports_of(path: Path) -> set[str]:
    """Modules beside a module that it imports anywhere in it, in functions too."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 1}


def count_floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each module: 1 without imports, otherwise one above the highest that it imports.

    Modules of a circle, and what stands on it, have none.
    """
    floors: dict[str, int] = {}
    while ready := [m for m in imports if m not in floors and imports[m] <= set(floors)]:
        floors |= {m: 1 + max((floors[below] for below in imports[m]), default=0) for m in ready}
    return floors


@pytest.fixture(scope="module")
def engine() -> dict[str, set[str]]:
    return {path.stem: imports_of(path) for path in ROOT.glob("*.py")}


def test_circles_have_no_floor():
    assert count_floors({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == {"d": 1}


def test_imports_have_no_circle(engine):
    assert set(engine) == set(count_floors(engine))


def test_there_are_at_most_eight_floors(engine):
    floors = count_floors(engine)
    assert floors[FACE] == max(floors.values()) == MOST_FLOORS


def test_the_face_imports_every_room(engine):
    """evaluate's loader copies those files alone that the metric's own file imports."""
    assert engine[FACE] == set(engine) - DOORS - {FACE}


def test_no_import_is_for_annotations_alone():
    paths = [path for folder in ("", "cli") for path in (ROOT / folder).glob("*.py")]
    assert [path.name for path in paths if "TYPE_CHECKING" in path.read_text("utf-8")] == []


def imported_with(name: str) -> set[str]:
    """The modules that are imported as soon as one of them is."""
    found, waiting = set(), [name]
    while waiting:
        found.add(name := waiting.pop())
        body = ast.parse((ROOT / f"{name}.py").read_text("utf-8")).body
        below = {n.module for n in body if isinstance(n, ast.ImportFrom) and n.level == 1}
        waiting += below - found
    return found


def test_http_is_imported_for_a_server_alone():
    """It would delay every call with another model."""
    assert {"call", "model_source"} <= imported_with("call")
    assert imported_with("call") & {"model_server", "model_server_opening"} == set()


def test_few_calls_lie_between_compute_and_the_model(gpt2, tokenizer):
    depths = []

    def look(module, inputs):
        frames = traceback.extract_stack()
        calls = [f for f in frames if Path(f.filename).parent == ROOT and f.name != "<listcomp>"]
        depths.append(len(calls))

    handle = gpt2.transformer.register_forward_pre_hook(look)
    compute(["w3 w4 w5 w6"] * 3, model=gpt2, tokenizer=tokenizer, batch_size=1)
    handle.remove()
    assert 0 < depths[-1] <= MOST_CALLS  # the last passes are those that are scored
