"""A stored result comes out again, or it is said what does not."""

import json
from types import SimpleNamespace

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import main, stored
from perplexity_sliding.cli.options import parse_arguments
from perplexity_sliding.protocols import PROTOCOLS


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(random_text(40))
    return path


@pytest.fixture
def store(call, tmp_path):
    """Write the result of a run to a file."""

    def store(*argv, **more):
        path = tmp_path / "result.json"
        outcome = call(*argv, "--format=json", f"--output={path}", **more)
        assert outcome.code == 0, outcome.err
        return path

    return store


def edited(path, holder="corpus", **changes):
    written = json.loads(path.read_text())
    result = written[holder] if holder == "corpus" else written[holder][0]
    result |= changes
    path.write_text(json.dumps(written))
    return path


def test_a_result_comes_out_again(call, store, text):
    """With the window and the stride that it was measured at."""
    path = store(text, "--max-length=12", "--stride=5")
    outcome = call("--verify", path, text)
    assert outcome.code == 0, outcome.out
    lines = outcome.out.splitlines()
    named = [line.split()[0] for line in lines if line.endswith("the same")]
    assert named == [part for part in stored.PARTS if part in named] and len(named) >= 5
    assert any(line.startswith("others        the same: ") for line in lines)
    assert "seconds" in outcome.out.split("not compared")[1]
    assert lines[-1] == "verified"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_of_each_protocol_comes_out_again(call, store, protocol, tmp_path):
    texts = [tmp_path / f"{number}.txt" for number in range(30)]
    for number, path in enumerate(texts):
        path.write_text(random_text(40, seed=number))
    path = store(*texts, f"--protocol={protocol}")
    assert call("--verify", path, *texts).out.endswith("\nverified\n")


def test_comparisons_and_tables_come_out_again(call, store, text, tmp_path, capsys):
    other = save(tmp_path / "other", make_model("gpt2", seed=3), make_tokenizer())
    table = tmp_path / "table.jsonl"
    rows = [{"before": "w3 ", "sentence": random_text(20, n)} for n in range(3)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for argv, file in (
        ([text, "--protocol=lm-eval,sliding", f"--model={other}"], text),
        ([text, f"--reference={other}", "--reference-dtype=bfloat16"], text),
        ([table, "--text-column=sentence", "--context-column=before", "--words"], table),
        ([text, "--add-start-token=false", r"--separator=\n", "--detokenize=wikitext"], text),
    ):
        path = store(*argv)
        assert main.main(["--verify", str(path), str(file)]) == 0, capsys.readouterr().out


CHANGES = {
    "a perplexity": {"perplexity": 19.5},
    "none": {"perplexity": None},
    "a text": {"texts_digest": "0123456789ab"},
    "a count": {"num_tokens": 41},
    "no number": {"total_nll": "many"},
    "another key": {"a_new_number": 3},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_an_edit_of_a_field_is_said(call, store, text, changes):
    outcome = call("--verify", edited(store(text), **changes), text)
    [name] = changes
    lines = [line for line in outcome.out.splitlines() if "differs" in line or "repeated" in line]
    assert (outcome.code, len(lines)) == (1, 1)
    assert name in lines[0] and outcome.out.endswith("\nnot verified\n")


def test_the_tolerance_is_that_of_rounding(call, store, text):
    path = store(text)
    number = json.loads(path.read_text())["corpus"]["perplexity"]
    assert call("--verify", edited(path, perplexity=number * (1 + 1e-6)), text).code == 0
    assert call("--verify", edited(path, perplexity=number * (1 + 1e-3)), text).code == 1


def test_each_difference_is_said_once(call, store, text):
    """Of several results with one cause, and of a number that stands in several places."""
    path = store(text, "--stride=4,8")
    written = json.loads(path.read_text())
    for row in written["measurements"]:
        row["signature"] = row["signature"].replace("|dtype:float32", "|dtype:bfloat16")
        row["signature"] = row["signature"].replace("|torch:", "|torch:0.")
    path.write_text(json.dumps(written))
    outcome = call("--verify", path, text)
    assert outcome.code == 1
    assert outcome.out.count("versions") == 1 and outcome.out.count("torch 0.") == 1
    assert outcome.out.count("dtype bfloat16 and float32") == 2, "at each result's signature"


def test_other_versions_are_named_where_the_numbers_agree(call, store, text):
    path = store(text)
    signature = json.loads(path.read_text())["corpus"]["signature"]
    edited(path, signature=signature.replace("|torch:", "|torch:0."), probe=3.25)
    result = json.loads(path.read_text())
    if "probe" in call(text, "--format=json").json["corpus"]:
        result["corpus"].pop("probe")
        path.write_text(json.dumps(result))
    outcome = call("--verify", path, text)
    assert outcome.code == 0, outcome.out
    assert "versions      other ones: torch 0." in outcome.out


def test_another_model_differs(call, store, text, folder, capsys):
    path = store(text, model=folder)
    save(folder, make_model("gpt2", seed=9), make_tokenizer())
    assert main.main(["--verify", str(path), str(text)]) == 1
    printed = capsys.readouterr().out
    assert "perplexity    differs: " in printed and "signature     differs: revision" in printed


def test_a_model_that_is_not_here_is_asked_for(call, store, text, folder, tmp_path, capsys):
    path = store(text, model=folder)
    tmp_path.joinpath("checkpoint").rename(tmp_path / "moved")
    assert main.main(["--verify", str(path), str(text)]) == 2
    assert "which does not exist here: pass its path as --model." in capsys.readouterr().err
    assert call("--verify", path, text, model=tmp_path / "moved").code in (0, 1)


def test_the_commit_of_a_model_of_the_hub_is_loaded(monkeypatch, tmp_path):
    result = {"model": "org/name", "signature": "ppl|revision:abcdef12", "texts_digest": "0"}
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"corpus": result, "options": {"model_id": ["org/name"]}}))
    commits = [SimpleNamespace(commit_id=name) for name in ("0123", "abcdef1234567")]
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_commits", lambda *_: commits)
    args = parse_arguments(["--verify", str(path), "a.txt"])
    assert (args.models, args.model_kwargs) == (["org/name"], {"revision": "abcdef1234567"})


def test_a_result_from_python_needs_its_settings(call, text, metric, tiny, tmp_path):
    result = metric.compute(predictions=[text.read_text()], model_id=tiny, stride=3)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert call("--verify", path, text, "--stride=3").code == 0
    outcome = call("--verify", path, text)
    assert outcome.code == 1 and "signature     differs: stride 3 and 8" in outcome.out


def test_secrets_are_not_stored(call, store, text):
    path = store(text, '--model-kwargs={"token": "hf_x", "attn_implementation": "eager"}')
    assert "hf_x" not in path.read_text()
    options = json.loads(path.read_text())["options"]
    assert options["model_kwargs"] == {"attn_implementation": "eager"}


@pytest.mark.parametrize("content", ["{", "[1]", '{"corpus": {"perplexity": 3}}'])
def test_what_is_no_result_is_refused(call, text, tmp_path, content):
    path = tmp_path / "result.json"
    path.write_text(content)
    outcome = call("--verify", path, text)
    assert outcome.code == 2 and f"--verify={path} " in outcome.err


@pytest.mark.parametrize("option", ["--format=csv", "-oa.json", "--show", "--find=9.1", "--merge"])
def test_what_verifying_does_not_do_is_refused(call, store, text, option):
    outcome = call("--verify", store(text), text, option)
    assert outcome.code == 2 and "cannot be combined" in outcome.err
