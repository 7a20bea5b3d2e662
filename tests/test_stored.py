"""Results of earlier runs: a stored one comes out again; corpora in shards and parts have the numbers of one."""

import json
import re
from pathlib import Path

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import main, measuring

# What says how the work was done, and not what came of it.
EFFORT = {"seconds", "tokens_per_second"}


# ---- verifying


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
    assert re.fullmatch(r"\d\d fields are the same, up to rounding\nverified\n", outcome.out)


def test_comparisons_and_tables_come_out_again(call, store, text, tmp_path, capsys):
    other = save(tmp_path / "other", make_model("gpt2", seed=3), make_tokenizer())
    table = tmp_path / "table.jsonl"
    rows = [{"before": "w3 ", "sentence": random_text(20, n)} for n in range(3)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for argv, file in (
        ([text, "--protocol=all"], text),
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
    assert outcome.out.count("versions") == outcome.out.count("torch 0.") == 1
    assert outcome.out.count("dtype bfloat16 and float32") == 1


def test_another_model_differs(call, store, text, folder, capsys):
    path = store(text, model=folder)
    save(folder, make_model("gpt2", seed=9), make_tokenizer())
    assert main.main(["--verify", str(path), str(text)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("perplexity (and ")
    assert "signature (and 1 more)  differs: revision" in printed


def test_a_result_from_python_needs_its_settings(call, text, metric, tiny, tmp_path):
    result = metric.compute(predictions=[text.read_text()], model_id=tiny, stride=3)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert call("--verify", path, text, "--stride=3").code == 0
    outcome = call("--verify", path, text)
    assert outcome.code == 1 and "signature  differs: stride 3 and 8" in outcome.out


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
    assert outcome.code == 2 and f"--verify={path} must be" in outcome.err
    assert "--format json" in outcome.err


# ---- shards


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A table of 20 rows, one of them empty, and two files."""
    monkeypatch.chdir(tmp_path)
    texts = [random_text(20 + 7 * number, number) for number in range(20)]
    texts[5] = ""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "a.txt").write_text(random_text(150, 30))
    (tmp_path / "b.txt").write_text(random_text(90, 31))
    return ["rows.jsonl", "a.txt", "b.txt"]


@pytest.fixture
def score_parts(call):
    def score_parts(*argv, parts=3):
        names = [f"part{number}.json" for number in range(1, parts + 1)]
        for number, name in enumerate(names, 1):
            outcome = call(*argv, f"--part={number}/{parts}", "-o", name)
            assert outcome.code in (0, 2), outcome.err
        return names

    return score_parts


def numbers_of(outcome):
    return {name: value for name, value in outcome.json.items() if name not in EFFORT}


def same(one, other):
    """Whether results are equal, up to the rounding of forward passes in other company."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == (pytest.approx(other, rel=1e-6) if isinstance(other, float) else other)


OPTIONS = {
    "sliding": [],
    "overlapping": ["--stride=3", "--max_length=12"],
    "unscored first tokens": ["--add_start_token=false"],
    "stock": ["--protocol=stock"],
    "lm-eval, WikiText": ["--protocol=lm-eval", "--detokenize=wikitext"],
    "contexts": ["--context-lengths=4,8"],
}


@pytest.mark.parametrize("argv", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("characters", [1, 400])
def test_shards_give_the_numbers_of_one_piece(call, monkeypatch, corpus, argv, characters):
    whole = call(*corpus, *argv, "--json")
    assert whole.code == 0, whole.err
    monkeypatch.setattr(measuring, "SHARD_CHARACTERS", characters)
    assert same(numbers_of(call(*corpus, *argv, "--json")), numbers_of(whole))


def test_no_more_is_read_than_a_shard_and_the_text_after_it(call, monkeypatch, corpus):
    shards, plain = [], measuring.Scoring.score_shard
    monkeypatch.setattr(
        measuring.Scoring, "score_shard", lambda self, texts: shards.append(texts) or plain(self, texts)
    )  # fmt: skip
    monkeypatch.setattr(measuring, "SHARD_CHARACTERS", 600)
    assert call(*corpus, "--words").code == 0
    sizes = [[len(text.text) for text in shard] for shard in shards]
    assert len(shards) > 9 and all(len(of) == 1 or sum(of) <= 60 for of in sizes)
    del shards[:]
    assert call(*corpus, "--protocol=gptq").code == 0
    assert len(shards) == 1, "joined texts are one stream"


@pytest.mark.parametrize("place", [0, 20])
def test_a_text_that_is_refused_costs_no_other(call, monkeypatch, corpus, place):
    lines = Path("rows.jsonl").read_text().splitlines()
    lines.insert(place, '{"text": " "}')
    Path("rows.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(measuring, "SHARD_CHARACTERS", 1)
    outcome = call(*corpus, "--add-start-token=false", "--json")
    assert outcome.code == 2 and len(outcome.json["refused_rows"]) == 1
    assert outcome.json["refused_rows"][0]["row"] == place
    assert outcome.json["corpus"]["num_texts"] == 21


# ---- parts


@pytest.mark.parametrize("argv", [*OPTIONS.values()][:-1], ids=[*OPTIONS][:-1])
def test_parts_merge_to_one_run(call, corpus, score_parts, argv):
    names = score_parts(*corpus, *argv)
    whole = call(*corpus, *argv, "--json")
    merged = call("--merge", *reversed(names), "--json")
    assert merged.code == whole.code == 0
    assert same(numbers_of(merged), numbers_of(whole))
    shown = call("--merge", *names, "--format=markdown")
    assert shown.out == call(*corpus, *argv, "--format=markdown").out
    assert call("--merge", *names, "--fail-above=5").code == 1


def test_rows_of_merged_parts_have_the_columns_of_one_run(call, corpus, score_parts):
    """A file that is refused too; but rows of tables are not kept."""
    Path("c.txt").write_bytes(b"\xff\xfebroken\xff")
    files = ("a.txt", "b.txt", "c.txt")
    merged = call("--merge", *score_parts(*files), "--format=csv")
    whole = call(*files, "--format=csv")
    assert (merged.code, merged.out, merged.err) == (2, whole.out, whole.err)
    outcome = call("--merge", *score_parts(*corpus), "--format=csv")
    assert (outcome.code, "parts do not store those of tables" in outcome.err) == (2, True)


SPOILED = {
    "missing": (lambda n: n[:1] + n[2:], "every part once, got 1/3, 3/3"),
    "twice": (lambda n: [*n, n[1]], "every part once, got 1/3, 2/3, 2/3, 3/3"),
    "none": (lambda n: n[1:1], "--merge and --columns text require FILE"),
    "a text": (lambda n: [*n[:2], "a.txt"], "a.txt is not a part of a run"),
    "of other settings": (lambda n: [*n[:2], "stride.json"], ": signature "),
    "of other texts": (lambda n: [*n[:2], "texts.json"], ": digest "),
    "written over": (
        lambda n: [*n, "--output", n[0]],
        "--output must not be one of the files to read",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_parts_that_do_not_belong_together_are_refused(call, corpus, score_parts, spoil, message):
    names = score_parts("a.txt", "b.txt")
    call("a.txt", "b.txt", "--part=2/3", "--stride=4", "-o", "stride.json")
    call("b.txt", "a.txt", "--part=3/3", "-o", "texts.json")
    before = Path(names[0]).read_text()
    outcome = call("--merge", *spoil(names))
    assert outcome.code == 2 and message in outcome.err
    assert Path(names[0]).read_text() == before


REFUSED = {
    "": "requires --output FILE",
    "-o a.csv": "requires --output FILE, a .json",
    "-o p.json --context-lengths 4,8": "cannot be combined with --context-lengths",
    "-o p.json --stride 4,8": "cannot be combined with several protocols",
    "-o p.json --protocol run-clm": "which joins the texts",
    "--merge -o p.json": "cannot be combined with --part",
}


@pytest.mark.parametrize(("argv", "message"), REFUSED.items(), ids=REFUSED)
def test_what_does_not_go_with_parts(call, corpus, argv, message):
    outcome = call("a.txt", "--part=1/2", *argv.split())
    assert outcome.code == 2 and message in outcome.err
    assert not Path("p.json").exists()
    assert "cannot be combined with --stride" in call("a.txt", "--merge", "--stride=4").err


def test_contexts_that_are_null_in_one_part_are_those_of_the_corpus(call, tmp_path, monkeypatch):
    """That part had another signature, and was refused."""
    path = tmp_path / "rows.jsonl"
    rows = [{"context": None if n % 2 else "w7 ", "text": random_text(20, n)} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [str(path), "--context-column=context"]
    names = [str(tmp_path / f"part{number}.json") for number in (1, 2)]
    for number, name in enumerate(names, 1):
        assert call(*argv, f"--part={number}/2", "-o", name).code == 0
    whole = call(*argv, "--json").json["corpus"]
    assert call("--merge", *names, "--json").json["corpus"]["texts_digest"] == whole["texts_digest"]
