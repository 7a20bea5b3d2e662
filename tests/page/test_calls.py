"""The calls to repeat a number give that number."""

import json
import shlex

import pytest
from pages import STORY
from space_models import ROOT

from demo_model.round_weights import load_rounded
from perplexity_sliding.cli import main as command_line
from space.calls import python_call, shell_call, text_files
from space.jobs import Job
from space.models import BUNDLED, ROUNDED
from space.service import Service
from space.settings import Settings


@pytest.fixture
def elsewhere(folders, tmp_path, monkeypatch):
    """A folder with the metric and the model, and nothing else of the page."""
    (tmp_path / "demo_model").symlink_to(folders["bytes"])
    for path in ROOT.glob("*.py"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_shell(call, folders, capsys):
    """What the commands to copy print; the copy is made of the folder's model."""
    *before, command = [shlex.split(line) for line in call.splitlines()]
    if before:
        assert before == [
            ["python", "demo_model/round_weights.py", "--bits", "4", "--output", "demo_model-4bit"]
        ]
        for part in load_rounded(folders["bytes"], 4):
            part.save_pretrained(ROUNDED)
    assert command[:2] == ["python", "score.py"]
    capsys.readouterr()
    assert command_line.main([*command[2:], "--json"]) in (0, None)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(BUNDLED, 64, 16),
        Settings(BUNDLED, 64, 64, "none"),
        Settings(BUNDLED, 32, 8, "every"),
        Settings(BUNDLED, 64, protocol="lm-eval"),
        Settings(BUNDLED, 64, start="none", protocol="stock"),
        Settings(ROUNDED, 64, 16),
        Settings(BUNDLED, 64, 16, context="It had rained since noon."),
        Settings(BUNDLED, 64, 16, context="Nobody had come.\n" * 20, words=True),
        Settings(BUNDLED, 64, protocol="lm-eval", context="Was it late?"),
    ],
)
def test_calls_give_the_same_number(folders, elsewhere, capsys, settings):
    text = STORY[:50] if settings.protocol == "lm-eval" and settings.context else STORY
    scored = Service(folders["bytes"]).score(text, settings, Job(60), identify=True)
    for name, content in text_files(scored).items():
        (elsewhere / name).write_text(content, encoding="utf-8", newline="")
    namespace = {}
    exec(python_call(scored), namespace)
    capsys.readouterr()
    assert namespace["results"]["perplexity"] == pytest.approx(
        scored.result["perplexity"], rel=1e-6
    )
    printed = run_shell(shell_call(scored), folders, capsys)
    [printed] = printed.get("files") or [printed["corpus"]]  # of a table, all of it
    reads = scored.result["num_forward_tokens"]  # one more where the words are scored
    assert namespace["results"]["num_forward_tokens"] == printed["num_forward_tokens"] == reads
    assert printed["perplexity"] == pytest.approx(scored.result["perplexity"], rel=1e-6)
    if settings.model != ROUNDED:  # which is a folder on the command line
        assert namespace["results"]["signature_short"] == scored.result["signature_short"]


def test_calls_repeat_a_comparison(folders, elsewhere, capsys):
    compared = Service(folders["bytes"]).compare(STORY, Settings(ROUNDED, 64), BUNDLED, Job(60))
    (elsewhere / "text.txt").write_text(STORY, encoding="utf-8", newline="")
    namespace = {}
    exec(python_call(compared.scored, compared.reference), namespace)
    assert capsys.readouterr().out.strip() == compared.pair.comparison["summary"]
    printed = run_shell(shell_call(compared.scored, compared.reference), folders, capsys)
    found = printed["models"][0]["comparison"]["perplexity_ratio"]["ratio"]
    assert found == pytest.approx(compared.pair.comparison["perplexity_ratio"]["ratio"], rel=1e-6)


def test_on_a_space_the_call_to_copy_works_anywhere(folders, tmp_path, monkeypatch):
    """Outside of any clone, with nothing but what `evaluate` and the Hub bring."""
    import evaluate
    import huggingface_hub

    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "demo_model").symlink_to(folders["bytes"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("SPACE_ID", "user/perplexity_sliding")
    asked, load, here = [], evaluate.load, str(ROOT / "perplexity_sliding.py")

    def snapshot_download(name, repo_type):
        asked.append((name, repo_type))
        return str(tmp_path / "space")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(
        evaluate,
        "load",
        lambda name, **how: load(name.replace("user/perplexity_sliding", here), **how),
    )
    scored = Service(folders["bytes"]).score(STORY, Settings(BUNDLED, 64, 16), Job(60))
    (tmp_path / "elsewhere" / "text.txt").write_text(STORY, encoding="utf-8", newline="")
    namespace = {}
    exec(python_call(scored), namespace)
    assert namespace["results"]["perplexity"] == scored.result["perplexity"]
    assert asked == [("user/perplexity_sliding", "space")]
    clone, enter, command = shell_call(scored).splitlines()
    assert clone.startswith("git clone https://huggingface.co/spaces/user/perplexity_sliding")
    assert enter == "cd perplexity_sliding"
    assert command.startswith("python score.py ../text.txt --model_id demo_model")
