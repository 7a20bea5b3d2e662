"""The command line's curves: what is printed and drawn is what the metric gives."""

import re

import pytest
from models import random_text


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "long.txt", tmp_path / "short.txt"]
    paths[0].write_text(random_text(90), "utf-8")
    paths[1].write_text(random_text(8, seed=1), "utf-8")  # shorter than the longest context
    return paths


def test_one_command_draws_perplexity_against_context(call, files, tmp_path):
    path = tmp_path / "curve.png"
    result = call(
        *files, "--context-lengths=doubling", "--positions=0,8,90", f"--plot={path}", "-q"
    )
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert any(line.split()[:2] == ["context", "tokens"] for line in lines)
    assert any(line.startswith("tokens from") for line in lines)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_holds_the_curves_of_all_texts(call, files):
    result = call(*files, "--context-lengths=8,16", "--positions=doubling", "--json", "--quiet")
    printed = result.json
    lengths = [row["context_length"] for row in printed["corpus"]["by_context_length"]]
    assert lengths == [8, 16]
    assert printed["corpus"]["by_position"][0]["num_texts"] == 2
    # Each file by itself has the windows of the whole, and no curve, which the short one has not.
    assert all("by_context_length" not in row for row in printed["files"])
    assert all("|window:16|stride:4|" in row["signature"] for row in printed["files"])
    counts = [row["num_tokens"] for row in printed["files"]]
    assert sum(counts) == printed["corpus"]["num_tokens"]


def test_longppl_is_said(call, files):
    rule = '{"short_context": 4, "stride": 2, "gain": 0.1, "largest_nll": 9}'
    result = call(files[0], f"--key-tokens={rule}", "--quiet")
    assert re.search(r"LongPPL: \d+\.\d{4} over \d+ key tokens\.", result.out)


def test_longppl_stands_wherever_the_perplexity_does(call, files):
    rule = '--key-tokens={"short_context": 4, "stride": 2, "gain": 0.1, "largest_nll": 9}'
    corpus = call(files[0], rule, "--json", "--quiet").json["corpus"]
    low, high = corpus["longppl_interval"]
    said = f"LongPPL: {corpus['longppl']:.4f} over {corpus['num_key_tokens']} key tokens."
    bounds = f"{low:.2f} – {high:.2f}"
    for option in ("--format=text", "--format=markdown", "--format=latex", "--cite"):
        out = call(files[0], rule, option, "--quiet").out
        assert said in out
        assert bounds in out.replace("--", "–")
    assert corpus["longppl_signature"] in call(files[0], rule, "--cite", "--quiet").out


def test_longppl_without_key_tokens_is_said_too(call, files):
    rule = '--key-tokens={"short_context": 4, "stride": 2, "gain": 1000}'
    assert call(files[0], rule, "--json", "--quiet").json["corpus"]["num_key_tokens"] == 0
    for option in ("--format=text", "--format=markdown", "--cite"):
        assert "LongPPL: none" in call(files[0], rule, option, "--quiet").out


@pytest.mark.parametrize("option", ["--key-tokens=longppl", "--positions=0,3"])
def test_numbers_of_all_texts_that_rows_have_no_column_for(call, files, option):
    (warning,) = call(files[0], option, "--format=csv").warnings
    assert option.partition("=")[0] in warning
    assert "--format json" in warning
    assert not call(files[0], option, "--format=json").warnings


def test_refusals(call, files):
    for arguments, message in (
        (
            ["--context-lengths=8", "--stride=4,8"],
            "--context-lengths and several protocols, windows or strides",
        ),
        (
            ["--positions=0,9", "--protocol=all"],
            "--positions and several protocols, windows or strides",
        ),
        (["--context-lengths=1"], "must be at least 2, got 1"),
        (["--carry"], "positions are a table of 16 entries"),
    ):
        result = call(*files, *arguments, "--quiet")
        assert result.code == 2
        assert message in result.err
