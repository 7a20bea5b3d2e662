"""The command line as a program: options, refusals, exit codes, streams, and the files that it writes."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from models import make_model, make_tokenizer, random_text
from transformers import AutoModelForCausalLM

from perplexity_sliding import cli
from perplexity_sliding.cli import main, options
from perplexity_sliding.cli.messages import Progress


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(random_text(50, seed=50), "utf-8")
    return tmp_path


# ---- options


EAGER = {"attn_implementation": "eager"}
OPTIONS = {
    "--max_length 8": {"max_length": 8},
    "--stride 3": {"stride": 3},
    "--add_start_token false": {"add_start_token": False},
    "--add-start-token EVERY": {"add_start_token": "every"},
    "--protocol lm-eval": {"protocol": "lm-eval"},
    "--dtype bfloat16": {"dtype": "bfloat16"},
    "--batch_size 1": {"batch_size": 1},
    '--model_kwargs {"attn_implementation":"eager"}': {"model_kwargs": EAGER},
}


@pytest.mark.parametrize(("argv", "arguments"), OPTIONS.items(), ids=OPTIONS)
def test_an_option_is_an_argument_of_the_metric(call, metric, tiny, argv, arguments):
    Path("b.txt").write_text(random_text(40, seed=40))
    result = call("a.txt", "b.txt", *argv.split(" "), "--json").json["corpus"]
    texts = [Path(name).read_text() for name in ("a.txt", "b.txt")]
    expected = metric.compute(predictions=texts, model_id=tiny, **arguments)
    for key in ("perplexity", "total_nll", "signature", "perplexity_interval", "texts_digest"):
        assert result[key] == expected[key]


def test_help_names_every_option_within_80_columns(capsys, root):
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, shown.splitlines())) <= 80
    names = ["--model" if name == "model_id" else options.spelled(name) for name in options.ALL]
    assert [name for name in names if f"{name} " not in shown.replace("\n", " ")] == []
    page = (root / "docs" / "command-line.md").read_text("utf-8")
    known = (0, main.ABOVE_LIMIT, main.BAD_INPUT, main.CRASHED, main.INTERRUPTED, main.TERMINATED)
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    assert [int(code) for row in rows for code in row.split(", ")] == list(known)
    assert all(re.search(rf"\b{code}\b", options.EXIT_CODES) for code in known)


# ---- refusals

REFUSED = {
    "unknown option": (["--strid=3"], "--strid=3 (did you mean --stride?). See score.py --help"),
    "an empty variable": (["--html="], "--html must not be empty"),
    "stride no number": (["--stride=few"], "--stride: invalid numbers value: 'few'"),
    "stride too large": (["--stride=17"], "--stride must be between 1 and --max-length 16"),
    "misspelt protocol": (["--protocol=lm-evil"], "--protocol must be one of 'sliding'"),
    "bad JSON": (["--model_kwargs={a}"], 'the value is not a JSON object such as {"a": 1}: Expect'),
    "no such encoding": (["--encoding=utf-9"], "a.txt is not utf-9 text: unknown encoding"),
    "files and dataset": (["--dataset=a:b:c:d"], "--dataset cannot be combined with FILE."),
    "tokens of two": (["--stride=4,2", "--tokens"], "--tokens cannot be combined with several"),
    "settings of --find": (["--find=9", "--stride=4"], "--find cannot be combined with --stride."),
    "a sentence as a table": (["--cite", "-o=a.csv"], "--cite cannot be combined with --format."),
    "margin of nothing": (["--margin=0.1"], "--margin must be left out without --reference"),
    "output nowhere": (["--output=no/a.csv"], "--output must be a file in a writable folder"),
    "output of no kind": (["--output=a.xyz"], "--output must end in .txt, .md"),
    "output over a text": (["--output=a.txt"], "--output must not be one of the files to read"),
    "a column of a text": (["--id-column=id"], "--id-column requires a table, a name that ends in"),
    "two labels": (["--label=a,b"], "--label must have a name for each model"),
    "another's interval": (["--columns=tokens,interval"], "--columns interval must follow perpl"),
    "no figure": (["--find=few"], "--find must be a number such as '29.41'"),
}


@pytest.mark.parametrize(("argv", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(call, argv, message):
    outcome = call("a.txt", *argv)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("score.py: error: ") and message in outcome.err


NO_MODELS = {
    "./nowhere": "./nowhere: there is no such folder.",
    "weights.gguf": "there is none at 'weights.gguf'",
    "bare/model.safetensors": "--model must be a folder or a name on the Hub, got the file",
    "bare": "bare is a folder without config.json.",
    "run/checkpoint-?": "run/checkpoint-9",
    "no/checkpoint-?": "--model no/checkpoint-?: no folder and no .gguf file matches.",
}


@pytest.mark.parametrize(("model", "message"), NO_MODELS.items(), ids=NO_MODELS)
def test_each_thing_that_is_no_model_has_its_own_sentence(call, model, message):
    for name in (
        "run/checkpoint-10/config.json",
        "run/checkpoint-9/config.json",
        "bare/model.safetensors",
    ):
        os.makedirs(os.path.dirname(name))
        Path(name).write_text("{}")
    outcome = call("a.txt", model=model)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err


def test_mistakes_are_told_before_slow_imports(root):
    """In a process of its own: none of the libraries that take seconds is imported."""
    early = ["a.txt --stride=0", "a.txt --protocol=gtpq", "nowhere.txt", "a.txt --model=./nowhere"]
    source = (
        "import sys; from perplexity_sliding.cli.main import main\n"
        f"print([main(argv.split()) for argv in {early!r}])\n"
        "print({'torch', 'transformers', 'numpy', 'datasets', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{[2] * len(early)}\nset()\n", done.stderr


# ---- models


def test_a_tokenizer_that_is_missing_can_be_named(call, tiny, offline):
    make_model("gpt2").save_pretrained("bare")
    refused = call("a.txt", model="bare")
    assert refused.code == 2 and "--tokenizer" in refused.err
    named = call("a.txt", f"--tokenizer={tiny}", "--json", model="bare").json["corpus"]
    whole = call("a.txt", "--json").json["corpus"]
    assert named["perplexity"] == pytest.approx(whole["perplexity"])


def test_a_model_is_compared_with_itself_without_its_adapter(call, tiny):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), config)
    adapted.save_pretrained("adapter")
    make_tokenizer().save_pretrained("adapter")
    [result] = call("a.txt", "--json", "--reference=without adapter", model="adapter").json[
        "models"
    ]
    below = call("a.txt", "--json").json["corpus"]["perplexity"]
    assert result["comparison"]["reference_perplexity"] == pytest.approx(below, rel=1e-5)
    assert result["perplexity"] != pytest.approx(below, rel=1e-3)


# ---- exit codes


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("too short"), 2, "error: too short"),
        (OSError(28, "No space left on device", "a.csv"), 2, "error: a.csv: No space left"),
        (RuntimeError("out of step"), 3, "crashed: out of step. This is a bug"),
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
    assert code == 130 or "Traceback" in call("a.txt", "--debug").err or code == 2


def test_fail_above_is_a_gate_for_each_measurement(call):
    perplexities = {
        row["stride"]: row["perplexity"]
        for row in call("a.txt", "--stride=8,2", "--json").json["measurements"]
    }
    limit = sum(perplexities.values()) / 2
    worse = max(perplexities, key=perplexities.get)
    outcome = call("a.txt", "--stride=8,2", f"--fail-above={limit}")
    assert outcome.code == 1
    assert f"perplexity {perplexities[worse]:.8g} of stride {worse} is above" in outcome.err
    assert call("a.txt", "--fail-above=1e9").code == 0


def test_a_terminated_run_says_how_to_go_on_and_goes_on(call, monkeypatch, capsys, tiny):
    """As job schedulers end what has had its time: the same command computes only what is missing."""
    plain, before = main.measure, signal.getsignal(signal.SIGTERM)
    argv = ["a.txt", "--checkpoint=run.sqlite"]

    def terminated(*given):
        plain(*given)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(main, "measure", terminated)
    monkeypatch.setattr(sys, "argv", ["score.py", *argv, f"--model={tiny}"])
    assert cli.start() == 143
    printed = capsys.readouterr()
    assert printed.out == "" and "Run the same command again to resume from run.sq" in printed.err
    signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr(main, "measure", plain)
    resumed = call(*argv)
    assert resumed.out == call("a.txt").out
    assert re.search(r"resuming: the checkpoint has (\d+) of \1 tokens", resumed.err)
    assert "resuming" not in call(*argv, "--quiet").err


# ---- streams


def test_it_runs_in_a_notebook(monkeypatch, tiny):
    """Where standard output cannot be configured."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "argv", ["score.py", "a.txt", f"--model={tiny}", "--show", "--quiet"])
    assert cli.start() == 0
    assert "perplexity" in sys.stdout.getvalue()


def broken_pipe():
    """Return a stream to a reader that has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", encoding="utf-8")


@pytest.mark.parametrize("way", ["--format=text", "--format=csv", "--show"])
def test_readers_that_leave_change_neither_files_nor_exit_code(call, monkeypatch, tiny, way):
    """It was 0: `score.py … --fail-above 1 | true` let everything pass."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, broken_pipe())
    assert main.main(["a.txt", "--fail-above=1", way, f"--model={tiny}"]) == 1
    assert main.main(["a.txt", "--output=a.json", f"--model={tiny}"]) == 0
    assert Path("a.json").stat().st_size > 0
    for stream in (sys.stdout, sys.stderr):
        stream.close()  # as Python does at the end: what is left must not raise


ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.mark.parametrize("more", [[], ["--format=latex"], ["--tokens"]])
def test_names_cannot_move_the_cursor(call, more):
    shutil.copy("a.txt", f"a{ESCAPE}.txt")
    Path(f"bad{ESCAPE}.txt").write_bytes(b"caf\xe9")
    outcome = call(f"a{ESCAPE}.txt", f"bad{ESCAPE}.txt", *more)
    assert not set("\x1b\x07\x9b\u202e") & set(outcome.out + outcome.err)
    assert "owned" in outcome.out


# ---- progress


def test_a_log_has_a_line_a_minute_with_the_time_left(capsys, monkeypatch):
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    progress = Progress("Scoring", hidden=False)
    for clock.now, done in ((30, 10), (70, 25), (90, 30), (140, 40)):
        progress(SimpleNamespace(done=done, total=100, perplexity=8.125))
    assert capsys.readouterr().err.splitlines() == [
        "score.py: Scoring: 25% after 1 min, 4 min left, perplexity 8.12",
        "score.py: Scoring: 40% after 2 min, 3 min left, perplexity 8.12",
    ]
