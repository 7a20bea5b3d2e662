"""What is added needs few edits: a protocol is a row, a measure a class, an argument a row and five lines."""

import ast
import json
import math
import shutil
import subprocess
import sys

import pytest
import reference
from models import BOS, CONTEXT, make_model, make_tokenizer, random_text

from perplexity_sliding.protocols import PROTOCOLS, ROWS
from perplexity_sliding.scoring.measures import TOKEN_MEASURES, Measure

ROW = """
    Protocol(
        "every-fifth",
        source="a tool of this test",
        description="A window begins at every fifth token.",
        stride=5,
        last="dropped",
        join=" ",
        supported_arguments=("max_length",),
    ),
"""
# Asks the metric, the page and the command line, in one process: starting takes most of the time.
SCRIPT = """
import json, pathlib, evaluate
from perplexity_sliding.cli.main import main
from space.jobs import Job
from space.protocols import guide
from space.service import Service
from space.settings import Settings

text = pathlib.Path("samples/note.txt").read_text("utf-8")
metric = evaluate.load("perplexity_sliding.py", cache_dir="cache")
result = metric.compute(
    predictions=[text], model_id="demo_model", protocol="every-fifth", max_length=20
)
everything = metric.compute(predictions=[text], model_id="demo_model", protocol="all", max_length=20)
page = Service("demo_model")
model = "demo_model"
scored = page.score(text, Settings(model, 20, protocol="every-fifth"), Job(60))
options = ["--protocol=every-fifth", "--max-length=20", "--output=printed.json", "--quiet"]
assert main(["samples/note.txt", *options]) == 0
print(json.dumps({
    "perplexity": result["perplexity"],
    "windows": result["num_windows"],
    "among all": [entry["protocol"] for entry in everything["measurements"]],
    "documented": "every-fifth" in metric.inputs_description,
    "page offers": list(page.protocols),
    "page says": guide("every-fifth").idea,
    "page measures": scored.result["perplexity"],
}))
"""


# All edits that add an argument: where, before what, and the lines.
ARGUMENT = (
    ("arguments.py", '    "words": Argument(', """    "max_nll": Argument(
        "float",
        "largest nll of a token in nats; larger ones count as this.",
        "largest nll of a token, in nats",
        metavar="X",
        group="measure",
        kind=Number(0.1),
        is_setting=True,
        in_signature=True,
    ),
"""),
    ("arguments.py", '    window_argument: str = "max_length"', "    max_nll: float | None = None\n"),
    ("api.py", "    words: bool | str", "    max_nll: float | None = None,\n"),
    ("protocols.py", '        Literal["max_length"', '        Literal["max_nll"] |\n'),
    ("protocols.py", '            *("max_length", "stride", "add_start_token", "context_l', '            "max_nll",\n'),
    ("plan/measurement.py", '        return columns["nll"]', """        if self.setting.max_nll is not None:
            return np.minimum(columns["nll"], self.setting.max_nll)
"""),
)  # fmt: skip
ARGUMENT_SCRIPT = """
import json, pathlib
from perplexity_sliding import compute
from perplexity_sliding.cli.main import main

text = pathlib.Path("samples/note.txt").read_text("utf-8")
given = {"predictions": [text], "model_id": "demo_model", "max_nll": 2.5, "stride": 8}
result = compute(**given, return_token_scores=True, reference="demo_model")
curve = compute(**given, context_lengths=[16, 8])["by_context_length"]
refused = []
for wrong in ({"max_nll": 0}, {"protocol": "gptq", "stride": None}):
    try:
        compute(**(given | wrong))
    except ValueError as error:
        refused.append(str(error))
options = ["--max-nll=2.5", "--stride=8", "--output=printed.json", "--quiet"]
assert main(["samples/note.txt", *options]) == 0
assert main(["samples/note.txt", "--verify=printed.json", "--quiet"]) == 0
print(json.dumps({"result": result, "curve": curve, "refused": refused}))
"""


@pytest.fixture(scope="module")
def copy(root, tmp_path_factory):
    """The project, with one more row in the table of protocols."""
    folder = tmp_path_factory.mktemp("project")
    for module in root.glob("*.py"):
        shutil.copy(module, folder)
    for name in ("space", "samples", "demo_model", "perplexity_sliding"):
        shutil.copytree(root / name, folder / name)
    protocols = folder / "perplexity_sliding" / "protocols.py"
    table = "ROWS = (\n"
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
    assert reported["page measures"] == pytest.approx(reported["perplexity"])
    assert reported["page says"] == "A window begins at every fifth token."
    printed = json.loads((copy / "printed.json").read_text("utf-8"))
    assert printed["corpus"]["perplexity"] == pytest.approx(reported["perplexity"])
    assert "every-fifth" in run(copy, "score.py", "--help")


def test_a_new_argument_is_six_places_in_four_files(copy):
    """It is checked, refused, signed, applied to all sums, documented, an option, and verified."""
    for name, before, lines in ARGUMENT:
        file = copy / "perplexity_sliding" / name
        assert file.read_text("utf-8").count(before) == 1, before
        file.write_text(file.read_text("utf-8").replace(before, lines + before), "utf-8")
    reported = json.loads(run(copy, "-c", ARGUMENT_SCRIPT).splitlines()[-1])
    result = reported["result"]
    nlls = result["token_scores"][0]["nll"]
    expected = math.fsum(min(nll, 2.5) for nll in nlls) / len(nlls)
    assert max(nlls) > 2.5 and math.log(result["perplexity"]) == pytest.approx(expected)
    assert result["comparison"]["reference_perplexity"] == pytest.approx(result["perplexity"])
    assert all(row["nll"] < 2.5 for row in reported["curve"])
    assert "|max_nll:2.5|" in result["signature"]
    wrong, unsupported = reported["refused"]
    assert wrong == "`max_nll` must be a number of at least 0.1, got 0."
    assert unsupported.startswith("`max_nll` must be left out")
    printed = json.loads((copy / "printed.json").read_text("utf-8"))
    assert printed["corpus"]["perplexity"] == pytest.approx(result["perplexity"])
    assert "--max-nll X" in run(copy, "score.py", "--help")


def test_no_protocol_is_asked_for_by_name(root):
    """What a protocol does differently is an attribute of its row."""
    files = [
        *root.glob("*.py"),
        *(path for room in ("perplexity_sliding", "space") for path in (root / room).rglob("*.py")),
    ]
    asked = [
        f"{path.name}:{node.lineno} {ast.unparse(node)}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in PROTOCOLS
    ]
    assert len(files) > 60
    assert asked == []


# ---- a measure


class Lead(Measure):
    """`lead`: nats by which the likeliest token leads the second (R,)."""

    columns = ("lead",)

    def __call__(self, blocks):
        first, second = blocks[0].logits.topk(2).values.T
        return {"lead": first - second}


def test_a_new_measure_reaches_token_scores_a_checkpoint_and_a_list(metric, monkeypatch, tmp_path):
    monkeypatch.setitem(TOKEN_MEASURES, "lead", Lead)
    model, text = make_model("gpt2"), random_text(40)
    arguments = {
        "predictions": [text],
        "model": model,
        "tokenizer": make_tokenizer(),
        "stride": [CONTEXT, 5],
        "return_token_scores": ["lead", "rank"],
        "checkpoint": str(tmp_path / "run.sqlite"),
    }
    _, entry = metric.compute(**arguments)["measurements"]
    [scores] = entry["token_scores"]
    ids = [int(word[1:]) for word in text.split()]
    plan = reference.sliding(len(ids), CONTEXT, 5, "once")
    for target, context in plan.items():
        fed = [BOS if place == reference.START else ids[place] for place in context]
        first, second = reference.log_probs(model, fed)[-1].topk(2).values.tolist()
        assert scores["lead"][target] == pytest.approx(first - second, abs=1e-4)
    assert metric.compute(**arguments)["measurements"][1]["token_scores"] == [scores]  # kept


def test_no_two_rows_have_the_same_name():
    assert len(PROTOCOLS) == len(ROWS)
