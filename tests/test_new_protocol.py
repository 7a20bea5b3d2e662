"""A protocol is a row: one that is added to the table works everywhere without another edit."""

import json
import shutil
import subprocess
import sys

import pytest

ROW = """
    Protocol(
        "every-fifth",
        source="a tool of this test",
        description="A window begins at every fifth token.",
        stride=5,
        last="dropped",
        join=" ",
        knobs=("max_length",),
    ),
"""
# Asks the metric and the page; the command line is asked by itself.
SCRIPT = """
import json, pathlib, evaluate
from space.protocols import guide
from space.service import Service

text = pathlib.Path("samples/note.txt").read_text("utf-8")
metric = evaluate.load("perplexity_sliding.py", cache_dir="cache")
result = metric.compute(
    predictions=[text], model_id="demo_model", protocol="every-fifth", max_length=20
)
everything = metric.compute(predictions=[text], model_id="demo_model", protocol="all", max_length=20)
print(json.dumps({
    "perplexity": result["perplexity"],
    "windows": result["num_windows"],
    "among all": [entry["protocol"] for entry in everything["measurements"]],
    "documented": "every-fifth" in metric.inputs_description,
    "page offers": list(Service("demo_model").protocols),
    "page says": guide("every-fifth").idea,
}))
"""


@pytest.fixture(scope="module")
def copy(root, tmp_path_factory):
    """The project, with one more row in the table of protocols."""
    folder = tmp_path_factory.mktemp("project")
    for module in root.glob("*.py"):
        shutil.copy(module, folder)
    for name in ("cli", "space", "samples", "demo_model"):
        shutil.copytree(root / name, folder / name)
    protocols = folder / "protocols.py"
    table = "PROTOCOLS = protocol_table(\n"
    source = protocols.read_text("utf-8")
    assert source.count(table) == 1
    protocols.write_text(source.replace(table, table + ROW.lstrip("\n")), "utf-8")
    return folder


def run(copy, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_row_works_in_python_on_the_command_line_and_on_the_page(copy):
    pytest.importorskip("gradio", reason="the page needs it")
    reported = json.loads(run(copy, "-c", SCRIPT).splitlines()[-1])
    # 49 tokens, windows of 20 every 5: the last that fills begins at 25
    assert reported["windows"] == 6
    assert "every-fifth" in reported["among all"] and reported["documented"]
    assert "every-fifth" in reported["page offers"]
    assert reported["page says"] == "A window begins at every fifth token."
    arguments = ("samples/note.txt", "--protocol", "every-fifth", "--max-length", "20")
    printed = run(copy, "score.py", *arguments, "--format", "json", "--quiet")
    assert json.loads(printed)["corpus"]["perplexity"] == pytest.approx(reported["perplexity"])
    assert "every-fifth" in run(copy, "score.py", "--help")
