"""The command line as a program: help, what it refuses and how soon, models, streams, interruptions."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from models import make_model, make_tokenizer, random_text

from perplexity_sliding.cli import helping, main, messages, options, values
from perplexity_sliding.cli.progress import Progress
from perplexity_sliding.errors import ArgumentError, TextsError

ROOT = Path(__file__).resolve().parent.parent
TWO_SCREENS = 48  # lines


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(random_text(50), "utf-8")
    return tmp_path


def start(*argv: str, shell: str = "") -> subprocess.CompletedProcess:
    """Run the program in a process of its own, with redirections of a shell."""
    command = " ".join([sys.executable, str(ROOT / "score.py"), *argv, shell])
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, env=os.environ
    )


WAITING = """
import os, sys
import {package}
assert "torch" not in sys.modules
{run}
print(os.environ["OMP_WAIT_POLICY"])
"""
RUNS = {
    "perplexity_sliding.cli as cli": (
        "sys.modules['perplexity_sliding.cli.main'] = sys; sys.main = lambda: 0; cli.start()"
    ),
    "space": "",
}


@pytest.mark.parametrize("package", RUNS)
@pytest.mark.parametrize("given", [None, "active"])
def test_threads_wait_asleep_unless_told_otherwise(package, given, monkeypatch):
    """In time for torch, which reads it once."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    script = WAITING.format(package=package, run=RUNS[package])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"{given or 'passive'}\n", done.stderr


# ---- help


def test_the_help_fits_two_screens_and_80_columns_with_examples(capsys):
    with pytest.raises(SystemExit) as exit:
        main.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert exit.value.code == 0
    assert len(lines) <= TWO_SCREENS
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  score.py ") for line in lines) >= 5


@pytest.mark.parametrize("group", ["texts", "measure", "models", "reference", "run", "output"])
def test_a_group_of_options_is_explained_whole(capsys, group):
    with pytest.raises(SystemExit):
        main.main(["--help", group])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for name in options.named_groups()[group]:
        names = {"model_id": "model", "files": "FILE"}
        shown = names.get(name, name).replace("_", "-")
        assert f" --{shown}" in printed or f" {shown}" in printed


def test_every_option_stands_in_the_overview(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    printed = capsys.readouterr().out
    for action in options.make_parser()._actions:
        assert any(name in printed for name in [*action.option_strings, action.metavar or ""])


def test_the_version_is_that_of_the_metric(capsys, metric):
    with pytest.raises(SystemExit):
        main.main(["--version"])
    module = sys.modules[type(metric).__module__]
    assert capsys.readouterr().out == f"perplexity-sliding {module.__version__}\n"


# ---- refusals before the imports

EARLY = {
    "stride 0": ["a.txt", "--stride=0"],
    "stride past the window": ["a.txt", "--stride=64", "--max-length=32"],
    "misspelt option": ["a.txt", "--protocl=gptq"],
    "misspelt protocol": ["a.txt", "--protocol=sliding,gtpq"],
    "no file": ["nowhere.txt"],
    "no folder": ["a.txt", "--model=./nowhere"],
    "bad JSON": ["a.txt", "--model-kwargs={"],
    "output nowhere": ["a.txt", "--output=nowhere/a.csv"],
    "output of no kind": ["a.txt", "--output=a.xyz"],
    "size": ["a.txt", "--logits-memory=much"],
    "together": ["a.txt", "--dataset=a:b:c:d"],
    "a column of a text": ["a.txt", "--id-column=id"],
    "no such column": ["items.csv", "--text-column=txet"],
    "a row too long": ["long.csv"],
    "output over a text": ["a.txt", "--output=a.txt"],
    "states nowhere": ["a.txt", "--reference=gpt2", "--reference-states=nowhere/states"],
    "margin of the whole": ["a.txt", "--reference=gpt2", "--margin=1"],
    "no tokenizer": ["a.txt", "--tokenizer=./nowhere"],
    "no evaluator": ["a.txt", "--key-tokens=longppl", "--evaluator=./nowhere"],
    "an edge of nothing": ["a.txt", "--boundary=healed"],
    "a sentence as a table": ["a.txt", "--cite", "--format=csv"],
}


def test_what_can_be_told_at_once_is_told_before_the_imports():
    """In a process of its own: none of the libraries that take seconds is imported."""
    Path("items.csv").write_text("item,text\n1,w5 w6\n")
    Path("long.csv").write_text("item,text\n1,w5, w6\n")
    source = (
        "import json, sys; from perplexity_sliding.cli.main import main\n"
        "codes = [main(argv) for argv in json.loads(sys.argv[1])]\n"
        "print(codes, [n for n in ('torch', 'datasets', 'evaluate', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps(list(EARLY.values()))],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == f"{[2] * len(EARLY)} []\n", done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(EARLY)
    assert all(line.startswith("score.py: error: ") for line in said)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--stride=0"], "--stride: must be at least 1, got 0"),
        (["--strid=3"], "(did you mean --stride?)"),
        (["--modl=x"], "(did you mean --model?)"),
        (["--protocol=gtpq"], "--protocol=gtpq is not known. Did you mean gptq?"),
        (["--protocol=all,gptq"], "--protocol=all cannot be combined with other protocols"),
        (["--stride=64", "--max_length=32"], "--stride must be between 1 and --max-length=32, got"),
        (["--logits-memory=much"], "'much' must be a size such as 500K, 64M or 2G"),
        (["--encoding=utf9"], "'utf9' must be an encoding of Python"),
        (["--fail-above=0"], "--fail-above: must be above 0, got 0"),
        (["--output=a.xyz"], "--output must end in one of .txt, .json, .jsonl, .csv, .tsv, .md, "),
        (["--cite", "--format=csv"], "--cite requires --format text, got csv: it is a sentence."),
        (["--cite", "--tokens"], "--cite and --tokens or --words cannot be combined"),
        (["--id-column=id"], "--id-column requires a table, but a.txt is read as a text"),
        (
            ["--context-column=c"],
            "Use a file whose name ends in .csv, .tsv, .jsonl, .ndjson, .json, .parquet",
        ),
        (
            ["--output=a.txt"],
            "--output must not be one of the texts, got 'a.txt'. Use another file",
        ),
        (["--evaluator=gpt2"], "--evaluator requires --key-tokens"),
        (["--tokenizer=./nowhere"], "--tokenizer ./nowhere: there is no such folder."),
    ],
)
def test_a_bad_option_is_told_in_one_line(call, argv, message):
    outcome = call("a.txt", *argv)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_several_processes_do_not_share_what_can_be_read_once(call):
    """The first process took the text, and the others said that there was none."""
    os.mkfifo("pipe")
    for argv, shown in (
        (["-"], "standard input"),
        ([], "standard input"),
        (["pipe"], "the pipe pipe"),
    ):
        outcome = call(*argv, "--distributed")
        assert outcome.code == 2
        assert f"that every process of torchrun can read, got {shown}. Write" in outcome.err


@pytest.mark.parametrize("other", ["checkpoint", "html", "reference-states"])
def test_two_things_are_not_written_to_one_file(call, other):
    """The scores stood in place of the checkpoint, whose windows were lost."""
    os.symlink("a.html", "b.html")
    reference = ["--reference=demo"] * (other == "reference-states")
    argv = ["--format=csv", "--output=a.html", f"--{other}=b.html", *reference]
    assert (
        f"--output and --{other} must be different files, got 'b.html' for both."
        in call("a.txt", *argv).err
    )
    assert not os.path.exists("a.html")


def test_files_may_stand_between_options(call):
    shutil.copy("a.txt", "b.txt")
    rows = call("a.txt", "--stride=8", "b.txt", "--json").json["files"]
    assert [row["name"] for row in rows] == ["a.txt", "b.txt"]


def test_an_output_in_the_folder_that_is_read_is_not_read_as_a_text(call):
    os.mkdir("texts")
    shutil.copy("a.txt", "texts")
    assert call("texts", "--output=texts/scores.csv").code == 0
    before = Path("texts/scores.csv").read_text()
    assert "--output must not be one of the texts" in call("texts", "--output=texts/scores.csv").err
    assert Path("texts/scores.csv").read_text() == before


def test_the_bundled_model_is_called_what_it_is(capsys):
    """Beside the number, where a reader of it looks."""
    assert main.main(["a.txt", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert "Model: the bundled demo; choose another with --model" in printed.out.replace("\n", " ")
    assert printed.err == ""


def test_a_dataset_names_its_column_itself(call):
    error = call("--dataset=a:b:c:d", "--text-column=t").err
    assert "--dataset and --text-column cannot be combined" in error


# ---- values


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("64M", 1024, 2**26),
        ("64MiB", 1024, 2**26),
        ("1.5g", 1024, 3 * 2**29),
        ("512", 1024, 512),
        ("10M", 1000, 10**7),
        ("2k", 1000, 2000),
    ],
)
def test_sizes(text, unit, number):
    assert values.size(unit)(text) == number


def test_the_devices_of_max_memory_are_numbers():
    memory = values.json_object('{"max_memory": {"0": "1GiB", "cpu": "2GiB"}, "a": {"0": 1}}')
    assert memory == {"max_memory": {0: "1GiB", "cpu": "2GiB"}, "a": {"0": 1}}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`max_length` must be 2.", "--max-length must be 2."),
        ("Pass it as `tokenizer`.", "Pass it as --tokenizer."),
        (
            "Reduce it, or pass `add_start_token='once'`.",
            "Reduce it, or pass --add-start-token once.",
        ),
        ("load it with `dtype='float32'`.", "load it with --dtype float32."),
        ("Pass `context_separator=' '`.", "Pass --context-separator ' '."),
        ("`words` must be left out.", "--words must be left out."),
        ("in all processes with `distributed=True`.", "in all processes with --distributed."),
        ("Name it by `reference['dtype']`.", "Name it by --reference-dtype."),
        ("`hidden_size` is no option, `", "`hidden_size` is no option, `"),
    ],
)
def test_errors_name_options_instead_of_arguments(message, shown):
    assert messages.in_options(message) == shown


def test_an_error_is_said_by_its_parts():
    error = ArgumentError(
        "stride", "be at most `max_length=8`", got="9", why="`carry`", advice="Pass `words=True`."
    )
    assert str(error) == "`stride` must be at most max_length=8, got 9: `carry`. Pass words=True."
    said = "--stride must be at most --max-length 8, got 9: --carry. Pass --words."
    assert messages.describe(error) == said
    assert messages.describe(pickle.loads(pickle.dumps(error))) == said
    assert messages.in_options(error, advice="") == said.removesuffix(" Pass --words.")


def test_positions_of_texts_are_a_part_of_an_error():
    error = TextsError("predictions", "hold a token", got="none", positions=[0, 2])
    assert str(error) == "`predictions` must hold a token, got none at positions 0, 2."
    assert messages.in_options(error, positions=()) == "the input must hold a token, got none."


# ---- models


def test_a_tokenizer_that_is_missing_can_be_named(call, tiny, offline):
    make_model("gpt2").save_pretrained("bare")
    refused = call("a.txt", model="bare")
    assert refused.code == 2 and "--tokenizer" in refused.err
    named = call("a.txt", f"--tokenizer={tiny}", "--json", model="bare").json["corpus"]
    whole = call("a.txt", "--json").json["corpus"]
    assert named["perplexity"] == pytest.approx(whole["perplexity"])
    assert "--tokenizer nowhere could not be loaded" in call("a.txt", "--tokenizer=nowhere").err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nowhere", "--model ./nowhere: there is no such folder."),
        ("weights.gguf", "--model weights.gguf: there is no such file."),
        ("bare/model.safetensors", "is a file. Pass the folder with the weights"),
        ("empty", "--model empty is a folder without config.json."),
        ("run", "Pass one of run/checkpoint-9, run/checkpoint-10."),
        ("nameless", "is an adapter whose configuration names no base model"),
    ],
)  # fmt: skip
def test_each_thing_that_is_no_model_has_its_own_sentence(call, model, message):
    os.mkdir("empty")
    os.mkdir("bare")
    for folder in ("run/checkpoint-10", "run/checkpoint-9", "nameless"):
        os.makedirs(folder)
        Path(folder, "config.json").write_text("{}")
    Path("nameless/adapter_config.json").write_text("{}")
    Path("bare/model.safetensors").write_bytes(b"")
    pytest.importorskip("peft")
    outcome = call("a.txt", model=model)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err


def test_an_adapter_needs_peft(call, monkeypatch):
    os.mkdir("adapter")
    Path("adapter/adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
    monkeypatch.setattr("perplexity_sliding.cli.checks.find_spec", lambda name: None)
    assert "which requires peft: pip install peft." in call("a.txt", model="adapter").err


def test_the_folder_of_an_adapter_is_a_model(call, tiny):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["c_attn"]))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    adapted.save_pretrained("adapter")
    make_tokenizer().save_pretrained("adapter")
    merged = adapted.merge_and_unload()
    merged.save_pretrained("merged")
    make_tokenizer().save_pretrained("merged")
    by_adapter = call("a.txt", "--json", model="adapter").json["corpus"]["perplexity"]
    assert by_adapter == pytest.approx(
        call("a.txt", "--json", model="merged").json["corpus"]["perplexity"], rel=1e-5
    )
    below = call("a.txt", "--json").json["corpus"]["perplexity"]
    assert by_adapter != pytest.approx(below, rel=1e-3)
    paired = call("a.txt", "--json", "--reference=without adapter", model="adapter").json
    [comparison] = [result["comparison"] for result in paired["models"]]
    assert comparison["reference_perplexity"] == pytest.approx(below, rel=1e-5)
    refused = call("a.txt", "--reference=without adapter", "--reference-dtype=float16")
    assert "--reference-dtype cannot be combined with --reference 'without adapter'" in refused.err
    assert "requires a model with an adapter" in call("a.txt", "--reference=without adapter").err


# ---- streams, interruptions, errors of the program


@pytest.mark.parametrize(
    ("argv", "shell", "code", "said"),
    [
        ([], "<&-", 2, "There is nothing to score"),
        (["-"], "<&-", 2, "Standard input is closed: pass a FILE."),
        (["a.txt"], ">&-", 2, "Standard output is closed: pass --output FILE."),
    ],
)
def test_closed_streams_are_no_traceback(argv, shell, code, said):
    done = start(*argv, shell=shell)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_with_an_output_nobody_needs_standard_output(tiny):
    done = start("a.txt", f"--model={tiny}", "--output=a.json", shell=">&- 2>&-")
    assert done.returncode == 0
    assert json.loads(Path("a.json").read_text())["corpus"]["num_tokens"] == 50


def test_there_is_something_to_see_before_the_imports(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = []

    def load_metric(args):
        shown.append(capsys.readouterr().err)
        raise ValueError("enough")

    monkeypatch.setattr(main, "load_metric", load_metric)
    assert main.main(["a.txt"]) == 2
    assert "Loading the libraries …" in shown[0]


def test_debug_shows_the_traceback(call, monkeypatch):
    def broken(*args):
        raise TypeError("a mistake in the program")

    monkeypatch.setattr(main, "measure", broken)
    plain = call("a.txt")
    assert (plain.code, plain.err) == (2, "score.py: error: a mistake in the program\n")
    assert "Traceback" in call("a.txt", "--debug").err


# ---- exit codes


class PanicException(BaseException):
    """What pyo3 raises where Rust panics."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("too short"), 2, "error: too short"),
        (OSError(28, "No space left on device", "a.csv"), 2, "error: a.csv: No space left"),
        (RuntimeError("out of step"), 3, "crashed: out of step. This is a bug"),
        (RecursionError(), 3, "crashed: RecursionError. This is a bug"),
        (AssertionError("never"), 3, "crashed: never. This is a bug"),
        (PanicException("index 3"), 2, "error: the tokenizer failed on the input: index 3."),
        (KeyboardInterrupt(), 130, "interrupted. Nothing was stored"),
    ],
)
def test_only_a_gate_ends_in_exit_code_1(call, monkeypatch, error, code, said):
    def broken(*args):
        raise error

    monkeypatch.setattr(main, "measure", broken)
    outcome = call("a.txt")
    assert (outcome.code, outcome.out) == (code, "")
    assert said in outcome.err.splitlines()[-1]
    assert ("Traceback" in outcome.err) == (code == 3)


def test_what_python_itself_ends_by_is_left_to_it(call, monkeypatch):
    def leave(*args):
        raise SystemExit(7)

    monkeypatch.setattr(main, "measure", leave)
    with pytest.raises(SystemExit, match="7"):
        call("a.txt")


def test_exit_codes_are_documented(capsys):
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    known = (0, main.ABOVE_LIMIT, main.BAD_INPUT, main.CRASHED, main.INTERRUPTED, main.TERMINATED)
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    assert [int(code) for row in rows for code in row.split(", ")] == list(known)
    assert all(re.search(rf"\b{code}\b", helping.EXIT_CODES) for code in known)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            [],
            "interrupted. Nothing was stored; with --checkpoint FILE, the same command can resume.",
        ),
        (
            ["--checkpoint=run.sqlite"],
            "interrupted. Run the same command again to resume from run.sqlite.",
        ),
    ],
)
def test_a_terminated_run_says_how_to_go_on(call, monkeypatch, more, said):
    """As job schedulers end what has had its time."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(main, "measure", lambda *args: os.kill(os.getpid(), signal.SIGTERM))
    outcome = call("a.txt", *more)
    assert (outcome.code, outcome.err) == (128 + signal.SIGTERM, f"score.py: {said}\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_may_run_it(call):
    """Where no signals arrive."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call, "a.txt", "--quiet").result(60).code == 0


# ---- what a terminal would obey

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
VISIBLE = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.mark.parametrize("more", [[], ["--format=markdown"], ["--format=latex"], ["--tokens"]])
def test_names_cannot_move_the_cursor(call, more):
    shutil.copy("a.txt", f"a{ESCAPE}.txt")
    Path(f"bad{ESCAPE}.txt").write_bytes(b"caf\xe9")
    outcome = call(f"a{ESCAPE}.txt", f"bad{ESCAPE}.txt", *more)
    assert not set(ESCAPE) & set("\x1b\x07\x9b\u202e") & set(outcome.out + outcome.err)
    assert "owned" in outcome.out


def test_errors_and_tracebacks_cannot_either(call, monkeypatch):
    for argv in ([f"{ESCAPE}.txt"], ["a.txt", f"--tokenizer={ESCAPE}", "--debug"]):
        outcome = call(*argv)
        assert outcome.code == 2 and "\x1b" not in outcome.err and VISIBLE in outcome.err

    def crash(*args):
        raise RuntimeError(ESCAPE)

    monkeypatch.setattr(main, "measure", crash)
    assert "\x1b" not in call("a.txt").err


def test_data_is_escaped_for_a_terminal_alone(call, monkeypatch):
    """Another program gets what is there; JSON escapes what is below the space by itself."""
    os.rename("a.txt", f"a{ESCAPE}.txt")
    piped = call(f"a{ESCAPE}.txt", "--format=csv")
    assert f"a{ESCAPE}.txt" in piped.out
    call(f"a{ESCAPE}.txt", "--output=a.csv")
    assert f"a{ESCAPE}.txt" in Path("a.csv").read_text("utf-8")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = call(f"a{ESCAPE}.txt", "--format=csv").out
    assert VISIBLE in shown and "\x1b" not in shown


ASK = f"{sys.executable} -c 'from perplexity_sliding.cli.options import was_started_by_torchrun as was; print(was())'"
RUN_BY_PYTHON = f"import subprocess; subprocess.run({f'{ASK}; true'!r}, shell=True)"


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="seen on Linux alone")
@pytest.mark.parametrize(
    "command, expected",
    [
        (["bash", "-c", f"exec {ASK}"], True),
        (["bash", "-c", f"{ASK}; true"], True),  # torchrun --no-python
        ([sys.executable, "-c", RUN_BY_PYTHON], False),
    ],
    ids=["torchrun score.py", "torchrun with a shell script", "a program, through a shell"],
)
def test_processes_of_a_torchrun_are_told_from_their_programs(command, expected):
    torchrun = os.environ | {"TORCHELASTIC_RUN_ID": "none", "RANK": "1"}
    done = subprocess.run(command, cwd=ROOT, env=torchrun, capture_output=True, text=True)
    assert done.stdout == f"{expected}\n", done.stderr


def test_the_bar_is_named_by_what_it_measures():
    def title(*argv):
        return main.title(options.parse_arguments(["a.txt", *argv]))

    assert title() == "Scoring"
    assert title("--stride=8,4") == "Scoring, stride 8, 4"
    assert title("--protocol=gptq") == "Scoring, protocol gptq"
    assert Progress("x", hidden=True).on_terminal is False


def test_installed_it_calls_itself_by_its_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/perplexity-sliding"])
    assert messages.program_name() == "perplexity-sliding"
    monkeypatch.setattr(sys, "argv", ["/lib/perplexity_sliding/__main__.py"])
    assert messages.program_name() == "perplexity-sliding"
    monkeypatch.setattr(sys, "argv", ["score.py"])
    assert messages.program_name() == "score.py"


def test_a_run_that_was_interrupted_goes_on(call, monkeypatch, tiny):
    """What the message promises: the same command computes only what is missing."""
    plain = main.measure

    def interrupted(metric, texts, args, progress):
        plain(metric, texts, args, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "measure", interrupted)
    stopped = call("a.txt", "--checkpoint=run.sqlite")
    assert (stopped.code, stopped.out) == (130, "")
    assert "Run the same command again to resume from run.sqlite." in stopped.err
    monkeypatch.setattr(main, "measure", plain)
    shutil.copy("a.txt", "b.txt")
    assert call("a.txt", "--checkpoint=run.sqlite").out == call("a.txt").out
