"""Readers that leave, streams that are closed: files and exit code are those of any other run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import main

ROOT = Path(main.__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(random_text(120), "utf-8")
    return tmp_path


def broken_pipe():
    """Return a stream to a reader that has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", encoding="utf-8")


@pytest.fixture
def leave(monkeypatch, tiny):
    """Run the command line while the readers of these streams have left; return the exit code."""

    def leave(*argv: str, streams: tuple[str, ...] = ("stdout",)) -> int:
        pipes = {name: broken_pipe() for name in streams}
        with monkeypatch.context() as patch:
            for name, pipe in pipes.items():
                patch.setattr(sys, name, pipe)
            code = main.main([*argv, *([] if "--merge" in argv else [f"--model={tiny}"])])
            for pipe in pipes.values():
                pipe.close()  # as Python does at the end: what is left must not raise
        return code

    return leave


WAYS = [
    *(["--format", name] for name in ("text", "json", "jsonl", "csv", "tsv", "markdown", "latex")),
    *(["--tokens"], ["--words"], ["--cite"], ["--show"], ["--verbose"], ["--stride=4,8"]),
]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("streams", [("stdout",), ("stdout", "stderr")], ids=len)
def test_a_gate_fails_without_a_reader(leave, way, streams):
    """It was 0: `score.py … --fail-above 1 | true` let everything pass."""
    assert leave("a.txt", "--fail-above=1", *way, streams=streams) == 1
    assert leave("a.txt", "--quiet", "--fail-above=1e9", *way, streams=streams) == 0


@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")], ids="+".join)
def test_what_is_refused_is_so_without_a_reader(leave, streams):
    Path("bad.txt").write_bytes(b"\xff\xfe\xfd")
    assert leave("a.txt", "bad.txt", streams=streams) == 2
    assert leave("bad.txt", streams=streams) == 2
    assert leave("nowhere.txt", streams=streams) == 2
    assert leave("a.txt", "--stride=none", streams=streams) == 2


def test_a_margin_is_missed_without_a_reader(leave, tmp_path):
    other = save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())
    assert leave("a.txt", f"--reference={other}", "--margin=1e-9") == 1


def test_a_result_that_differs_does_so_without_a_reader(call, leave):
    call("a.txt", "--output=r.json")
    assert leave("a.txt", "--verify=r.json") == 0
    written = json.loads(Path("r.json").read_text())
    written["corpus"]["perplexity"] += 1
    Path("r.json").write_text(json.dumps(written))
    assert leave("a.txt", "--verify=r.json") == 1


def test_parts_are_merged_without_a_reader(call, leave):
    for number in (1, 2):
        call("a.txt", "a.txt", f"--part={number}/2", f"--output={number}.json")
    assert leave("--merge", "1.json", "2.json", "--fail-above=1") == 1


@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")], ids="+".join)
def test_files_are_written_without_a_reader(leave, streams):
    """Of the report alone as well, and the picture."""
    assert leave("a.txt", "--output=g.csv", "--html=r.html", streams=streams) == 0
    assert "perplexity" in Path("g.csv").read_text()
    assert "<html" in Path("r.html").read_text()
    Path("r.html").unlink()
    assert leave("a.txt", "--html=r.html", streams=streams) == 0
    assert leave("a.txt", "--stride=4,8", "--plot=p.png", streams=streams) == 0
    assert Path("r.html").exists() and Path("p.png").exists()


def test_a_report_is_written_where_standard_output_is_closed(tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["a.txt", "--html=r.html", f"--model={tiny}"]) == 0
    assert "<html" in Path("r.html").read_text()
    assert main.main(["a.txt", f"--model={tiny}"]) == 2


def test_texts_in_colour_are_left_out_where_standard_output_is_closed(tiny, monkeypatch):
    """It was a crash, after the report was written."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["a.txt", "--show", "--html=r.html", f"--model={tiny}"]) == 0
    assert "<html" in Path("r.html").read_text()


@pytest.mark.parametrize("edit, code", [(0, 0), (1, 1)])
def test_a_result_is_verified_where_standard_output_is_closed(call, tiny, monkeypatch, edit, code):
    call("a.txt", "--output=r.json")
    written = json.loads(Path("r.json").read_text())
    written["corpus"]["perplexity"] += edit
    Path("r.json").write_text(json.dumps(written))
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["a.txt", "--verify=r.json", f"--model={tiny}"]) == code


def test_what_is_found_is_printed_or_refused(tiny, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["a.txt", "--find=66.08", f"--model={tiny}"]) == 2
    assert "--find prints what it finds" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--help"], ["--help", "all"], ["--version"]], ids=" ".join)
def test_help_ends_well_where_standard_output_is_closed(monkeypatch, argv):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as exit:
        main.main(argv)
    assert exit.value.code == 0


@pytest.mark.parametrize("argv", [["--help"], ["--help", "all"], ["--version"]], ids=" ".join)
def test_help_ends_well_without_a_reader(leave, argv):
    with pytest.raises(SystemExit) as exit:
        leave(*argv)
    assert exit.value.code == 0


def test_a_disk_that_is_full_is_no_reader_that_left(monkeypatch, tiny, capsys):
    """Standard output that goes to a file, and cannot be written, is an error."""

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.stdout, "writelines", full)
    assert main.main(["a.txt", f"--model={tiny}"]) == 2
    assert "standard output: No space left on device" in capsys.readouterr().err


# ---- the program as a whole, without what takes long to import

FAKE = """
import os, sys
sys.path.insert(0, {root!r})
from perplexity_sliding import cli
sys.modules["perplexity_sliding.cli.main"] = sys

def run():
    {body}

sys.main = run
sys.exit(cli.start())
"""


def start(body: str, shell: str) -> int:
    script = FAKE.format(root=str(ROOT), body=body)
    command = f'set -o pipefail; "$0" -c "$1" {shell}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, script],
        capture_output=True,
        timeout=60,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
    ).returncode


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_libraries_print_last_does_not_make_the_exit_code_120(stream):
    """Python flushes its streams at the end, and where that fails, the exit code is 120."""
    body = f"print('x', file=sys.{stream}, end=''); return 1"
    assert start(body, "2>&1 | sleep 0") == 1


def test_a_crash_is_3_without_a_reader():
    assert start("raise RuntimeError('x' * 100_000)", "2>&1 | true") == 3


@pytest.mark.parametrize("shell", ["2>&-", "<&- >&- 2>&-", ">&-"])
def test_no_file_takes_the_number_of_a_closed_stream(shell):
    """What libraries print there stood in the first file that the run opened."""
    assert start("return 10 + os.open(os.devnull, os.O_RDONLY)", shell) > 12
