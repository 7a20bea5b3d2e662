"""--cite says how texts were laid out and what was compared, for every kind of run."""

import io
import json
import re
from pathlib import Path

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import citing
from perplexity_sliding.cli.values import without_secrets


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a.txt", "b.txt")):
        Path(name).write_text(random_text(100, seed), "utf-8")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "other"
    return save(folder, make_model("gpt2", seed=4), make_tokenizer())


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "in 2 texts (scored separately), "),
        (["--separator=\\n"], "in one text (joined by newlines), "),
        (["--separator=; "], "(joined by '; ')"),
        (["--protocol=transformers-docs"], "(joined by blank lines)"),
        (["--protocol=run-clm"], "(with their token ids joined)"),
        (["--detokenize=wikitext"], "detokenised from WikiText's form by wikitext"),
    ],
    ids=str,
)
def test_the_layout_is_named(call, argv, said):
    outcome = call("a.txt", "b.txt", "--cite", *argv)
    assert outcome.code == 0, outcome.err
    assert said in outcome.out.splitlines()[0]


@pytest.mark.parametrize("files", [[], ["-"]])
def test_standard_input_is_named(call, monkeypatch, files):
    """The sentence said "in -"."""
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"w7 w8 w9")))
    monkeypatch.setattr("sys.stdin", stream)
    assert " tokens in standard input, " in call(*files, "--cite").out


@pytest.mark.parametrize(
    "name, location",
    [
        ("http://host:8000/v1", "http://host:8000/v1 (a server)"),
        ("model.gguf", "model.gguf (a file)"),
        (".", ". (a folder)"),
        ("org/name", "https://huggingface.co/org/name"),
    ],
)
def test_the_place_of_a_model(name, location):
    """A server and a GGUF file had an address on the Hub."""
    Path("model.gguf").touch()
    result = {"signature": "model:name|revision:r|tokenizer:t"}
    assert citing.place_of(result, name) == f"{location}, revision r"


def test_contexts_and_what_stands_between_are_named(call):
    rows = [{"prompt": random_text(4, n), "text": random_text(20, n + 9)} for n in range(3)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ("--context-column=prompt", "--context-separator= ", "--boundary=separate")
    sentence = call("rows.jsonl", "--cite", *argv).out.splitlines()[0]
    expected = "its context from the column prompt, boundary separate, separated by spaces"
    assert expected in sentence


def test_the_share_that_is_scored_is_cited(call):
    """A protocol that cuts long texts gave the number of a beginning as that of the text."""
    assert " tokens in a.txt" in call("a.txt", "--cite").out
    share = call("a.txt", "--protocol=stock", "--json").json["corpus"]["scored_share"]
    assert share < 0.9
    assert (
        f" tokens ({100 * share:.2g} % of all) in a.txt"
        in call("a.txt", "--protocol=stock", "--cite").out
    )


def test_a_comparison_is_cited_with_its_reference(call, other):
    result = call("a.txt", f"--reference={other}", "--json").json["models"][0]
    cited = call("a.txt", f"--reference={other}", "--cite").out
    assert f"Compared with {other}: {result['comparison']['summary'][:40]}" in cited
    assert f"\nReference:  {other} (a folder), revision " in cited
    assert result["comparison"]["reference_signature"] in cited


def test_a_smaller_window_is_cited_with_each_reference(call, other, tmp_path):
    short = save(tmp_path / "short", make_model("gpt2", seed=1, n_positions=8), make_tokenizer())
    argv = ("a.txt", f"--model={short}", f"--reference={other}")
    cited = call(*argv, "--cite").out
    said = "in the smaller of their windows (alone, the model reads 8 tokens, the reference 16): "
    assert f"Compared with {other} {said}" in cited
    for row in call(*argv, "--json").json["models"]:
        assert f"\n            {row['comparison']['reference_signature']}\n" in cited


def test_several_protocols_are_cited_with_their_paired_change(call):
    argv = ("a.txt", "--stride=2,16")
    _, row = call(*argv, "--json").json["measurements"]
    cited = call(*argv, "--cite").out
    ratio = row["ratio_to_first"]
    change = "{:+.2f} % ({:+.2f} to {:+.2f})".format(
        *(100 * (value - 1) for value in (ratio["ratio"], *ratio["interval"]))
    ).replace("-", "−")
    assert f"Paired change against 2: {change}, p = {ratio['pvalue']:.4f}." in cited
    assert cited.count("Paired change") == 1


@pytest.mark.parametrize("more", [[], ["--protocol=sliding,lm-eval", "--columns=text"]])
def test_several_models_are_cited_by_name(call, tiny, other, more):
    cited = call("a.txt", "b.txt", f"--model={other}", "--cite", *more, model=tiny).out
    for name, folder in (("tiny", tiny), ("other", other)):
        assert cited.count(f"The perplexity of {name} is ") == (4 if more else 1)
        assert f"\nModel:      {folder} (a folder), revision " in cited
    assert ("tokens in b.txt" in cited) is bool(more)
    named = "other" if cited.startswith("The perplexity of other") else "tiny"
    assert len(re.findall(f"Paired change against {named}: ", cited)) == (4 if more else 1)


def test_the_entry_of_bibtex_has_author_and_address(call):
    entry = call("a.txt", "--cite").out.split("@software{")[1].split("\n}")[0]
    assert {"author", "title", "year", "version", "url"} <= set(
        re.findall(r"^  (\w+) =", entry, re.M)
    )


SECRETS = [
    ["--model-kwargs", '{"token": "hf_secret", "revision": "main"}'],
    ['--model-kwargs={"token": "hf_secret", "revision": "main"}'],
]


@pytest.mark.parametrize("argv", SECRETS, ids=" ".join)
def test_the_command_is_published_without_secrets(call, argv):
    """A token of the Hub stood in the entry for a paper, and in the report."""
    cited = call("a.txt", *argv, "--cite").out
    assert "secret" not in cited and re.search(r"Command: .*-kwargs.*main", cited)
    assert call("a.txt", *argv, "--html=r.html").code == 0
    report = Path("r.html").read_text("utf-8")
    assert "secret" not in report and "main" in report


def test_settings_whose_names_contain_key_are_published():
    """`key_mapping`, which renames weights, was missing from the command, and from what --verify repeats."""
    given = {
        "key_mapping": {"^absent": "present", r"attn\.key": "attn.k_proj"},
        "num_key_value_heads": 1,
        "api_key_variable": "K",
    }
    assert without_secrets(given | {"api_key": "secret", "key": 1, "keys": [1]}) == given
    assert without_secrets(given | {"access_key_id": "secret", "apiKeyValue": "secret"}) == given


@pytest.mark.parametrize("given", ['{"token": "hf_secret"', '["key:secret"]'])
def test_json_with_a_secret_is_not_shown(call, given):
    outcome = call("a.txt", f"--model-kwargs={given}")
    assert outcome.code == 2
    assert "--model-kwargs: the value" in outcome.err and "secret" not in outcome.err
