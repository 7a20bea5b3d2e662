"""The notebook of docs/, run cell by cell as a student would, and what it says of its results."""

import ast
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "windows-and-strides.ipynb"


@pytest.fixture(scope="module")
def ran():
    """The names that the cells leave, and the value that each cell shows."""
    names, values = {"__name__": "notebook"}, []
    path = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(NOTEBOOK.parent)
        for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                values.append(run("".join(cell["source"]), names))
    sys.path[:] = path
    return names, values


def run(source: str, names: dict):
    """Run a cell; return the value of its last line, if that has one."""
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), NOTEBOOK.name, "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    exec(compile(ast.Module([last], []), NOTEBOOK.name, "exec"), names)
    return None


def test_every_cell_runs_and_texts_are_shown(ran):
    _, values = ran
    shown = [value for value in values if hasattr(value, "save")]
    assert len(shown) == 5
    assert all(value._repr_html_().startswith("<iframe") for value in shown)
    assert "Effect of the setting" in shown[3].html


def test_what_it_says_is_so(ran):
    names, _ = ran
    assert names["by_hand"] == pytest.approx(names["scored"]["perplexity"], rel=1e-6)
    assert len(names["tokens"]) > 1000
    assert names["scored"]["num_tokens"] == 16
    once, twice = (names[name]["total_nll"] for name in ("scored", "repeated"))
    assert twice - once < 0.4 * once
    means = names["by_context"]["mean"]
    assert means.iloc[0] > means.iloc[1] and means.iloc[0] > means.iloc[-1]
    by_stride = names["by_stride"].set_index("stride")
    gains = -by_stride["perplexity"].diff().dropna()
    assert gains.iloc[0] == gains.max() and gains.iloc[0] > 0
    assert all(by_stride["times read"].diff().dropna() > 0)
    more = by_stride["times read"].to_numpy()
    assert all(1.7 < later / earlier < 2.1 for earlier, later in pairwise(more))
    assert names["helped"]["saved"].max() > 3
    least = names["slid"]["measurements"][2]["token_scores"][0]
    later = [least["context_length"][w["first"]] for w in least["windows"][1:]]
    assert min(later) >= 96
    low, high = names["ratio"]["interval"]
    assert high < 1 or low > 1


def test_it_is_stored_without_results():
    """Who opens it is to predict before they look."""
    stored = json.loads(NOTEBOOK.read_text("utf-8"))
    assert stored["nbformat"] == 4
    assert len({cell["id"] for cell in stored["cells"]}) == len(stored["cells"])
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    said = [cell for cell in stored["cells"] if cell["cell_type"] == "markdown"]
    assert sum("**Predict:**" in "".join(cell["source"]) for cell in said) == 7
