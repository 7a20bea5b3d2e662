"""--part and --merge: several runs over shares of a corpus give the result of one."""

import json
from pathlib import Path

import pytest
from models import random_text

PARTS = 8
# What says how the work was done, and not what came of it.
EFFORT = {"seconds", "tokens_per_second", "peak_memory_bytes"}


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
def score_parts(call, tmp_path):
    def score_parts(*argv, parts=PARTS):
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


def test_parts_merge_to_one_run(call, corpus, score_parts):
    names = score_parts(*corpus, "--stride=8")
    whole = call(*corpus, "--stride=8", "--json")
    merged = call("--merge", *reversed(names), "--json")
    assert merged.code == whole.code == 0
    assert same(numbers_of(merged), numbers_of(whole))
    assert len(merged.json["corpus"]["perplexities"]) == 21


@pytest.mark.parametrize("show", ["--format=text", "--format=markdown"])
def test_merged_parts_are_shown_as_one_run_is(call, corpus, score_parts, show):
    names = score_parts(*corpus, parts=2)
    merged = call("--merge", *names, show)
    assert (merged.code, merged.out) == (0, call(*corpus, show).out)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_rows_of_merged_parts_have_the_columns_of_one_run(call, corpus, score_parts, form):
    (Path("c.txt")).write_text("")  # its row has an error
    names = score_parts("a.txt", "b.txt", "c.txt", parts=2)
    merged = call("--merge", *names, f"--format={form}")
    whole = call("a.txt", "b.txt", "c.txt", f"--format={form}")
    assert (merged.code, merged.out) == (2, whole.out)


def test_a_gate_holds_for_merged_parts(call, corpus, score_parts):
    names = score_parts(*corpus, parts=2)
    assert call("--merge", *names, "--fail-above=5").code == 1


def test_other_averages_merge_too(call, corpus, score_parts):
    for protocol in ("stock", "lm-eval", "yarn"):
        names = score_parts(*corpus, f"--protocol={protocol}", parts=3)
        whole = call(*corpus, f"--protocol={protocol}", "--json")
        assert same(numbers_of(call("--merge", *names, "--json")), numbers_of(whole))


def test_prose_merges_per_original_byte(call, corpus, score_parts):
    names = score_parts(*corpus, "--detokenize=wikitext", parts=3)
    merged = call("--merge", *names, "--json").json["corpus"]
    whole = call(*corpus, "--detokenize=wikitext", "--json").json["corpus"]
    assert same(merged["bits_per_original_byte"], whole["bits_per_original_byte"])


def test_texts_that_are_refused_stay_refused(call, corpus, score_parts, tmp_path):
    """A file that is no text, and a row of a single token, which has nothing to score."""
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00broken\xff")
    (tmp_path / "rows.jsonl").open("a").write('{"text": "w1"}\n')
    argv = [*corpus, "c.txt", "--add-start-token=false"]
    names = score_parts(*argv, parts=3)
    whole, merged = call(*argv, "--json"), call("--merge", *names, "--json")
    assert (merged.code, merged.err) == (whole.code, whole.err)
    assert merged.code == 2
    assert same(numbers_of(merged), numbers_of(whole))


def test_a_part_is_not_written_over(call, corpus, score_parts):
    """The run would lack it from then on."""
    names = score_parts("a.txt", "b.txt", parts=2)
    before = Path(names[0]).read_text()
    outcome = call("--merge", *names, "--output", names[0])
    assert outcome.code == 2
    assert "--output must not be one of the parts, got " in outcome.err
    assert Path(names[0]).read_text() == before


def test_more_parts_than_texts(call, corpus, score_parts):
    names = score_parts("a.txt", "b.txt", parts=3)
    whole = call("a.txt", "b.txt", "--json")
    assert same(numbers_of(call("--merge", *names, "--json")), numbers_of(whole))
    assert call("--merge", *names, "--format=csv").out.count("\n") == 3


def edited(path, **fields):
    part = json.loads(path.read_text())
    path.write_text(json.dumps(part | fields))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda n: n[:1] + n[2:], "every part once, but 2/3 is missing"),
        (lambda n: [*n, n[1]], "2/3 is given more than once"),
        (lambda n: n[1:1], "requires the files of all parts"),
        (lambda n: [*n[:2], "a.txt"], "a.txt is not a part of a run"),
    ],
)
def test_parts_that_miss_or_double_are_refused(call, corpus, score_parts, spoil, message):
    outcome = call("--merge", *spoil(score_parts("a.txt", "b.txt", parts=3)))
    assert (outcome.code, message in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (["a.txt", "b.txt", "--stride=4"], "the settings differ (signature"),
        (["b.txt", "a.txt"], "the texts differ (digest"),
        (["a.txt"], "the numbers of texts differ (num_texts 1 instead of 2)"),
    ],
)
def test_parts_of_other_runs_are_refused(call, corpus, score_parts, other, message):
    score_parts("a.txt", "b.txt", parts=2)
    call(*other, "--part=1/2", "-o", "other.json")
    outcome = call("--merge", "part2.json", "other.json")
    assert outcome.code == 2
    assert "other.json does not belong to part2.json" in outcome.err
    assert message in outcome.err


def test_parts_of_another_number_of_parts_are_refused(call, corpus, score_parts):
    score_parts("a.txt", "b.txt", parts=2)
    call("a.txt", "b.txt", "--part=3/3", "-o", "third.json")
    outcome = call("--merge", "part1.json", "part2.json", "third.json")
    assert "the numbers of parts differ (total 3 instead of 2)" in outcome.err


def test_damaged_parts_are_refused(call, corpus, score_parts, tmp_path):
    names = score_parts("a.txt", "b.txt", parts=2)
    edited(tmp_path / names[0], num_empty=7)
    outcome = call("--merge", *names)
    assert (outcome.code, "part1.json is damaged" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--part=0/3"], "such as 3/8, got '0/3'"),
        (["--part=4/3"], "such as 3/8, got '4/3'"),
        (["--part=3"], "such as 3/8, got '3'"),
        (["--part=1/2"], "requires --output FILE"),
        (["--part=1/2", "-o", "a.csv"], "stores totals as JSON, got --output 'a.csv'"),
        (["--part=1/2", "-o", "p.json", "--tokens"], "cannot be combined with --tokens"),
        (
            ["--part=1/2", "-o", "p.json", "--stride=4,8"],
            "cannot be combined with several measurements",
        ),
        (["--part=1/2", "-o", "p.json", "--protocol=gptq"], "which joins the texts"),
        (["--part=1/2", "-o", "p.json", "--protocol=run-clm"], "which joins the texts"),
        (["--part=1/2", "-o", "p.json", "--separator="], "cannot be combined with --separator"),
        (
            ["--part=1/2", "-o", "p.json", "--word-counts", "3"],
            "cannot be combined with --word-counts",
        ),
        (
            ["--merge", "--cite"],
            "cannot be combined with --cite: it names the checksum of every file",
        ),
        (["--merge", "--stride=4"], "cannot be combined with --stride"),
        (["--merge", "--part=1/2", "-o", "p.json"], "cannot be combined with --part"),
    ],
)
def test_what_does_not_go_with_parts(call, corpus, argv, message, tmp_path):
    outcome = call("a.txt", *argv)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "p.json").exists()


def test_rows_of_tables_are_not_kept(call, corpus, score_parts):
    names = score_parts(*corpus, parts=2)
    outcome = call("--merge", *names, "--format=csv")
    assert (outcome.code, "parts do not store the rows" in outcome.err) == (2, True)


def test_what_stands_between_contexts_and_texts_is_the_same_in_all_parts(call, tmp_path):
    """Merged, they would give the number of no run."""
    path = tmp_path / "rows.jsonl"
    rows = [{"context": "w7 w8", "text": random_text(20, n)} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = []
    for number, separator in enumerate([" ", "  w9 "], 1):
        names.append(str(tmp_path / f"part{number}.json"))
        argv = [str(path), "--context-column=context", f"--context-separator={separator}"]
        assert call(*argv, f"--part={number}/2", "-o", names[-1]).code == 0
    outcome = call("--merge", *names)
    assert outcome.code == 2
    assert "the settings differ" in outcome.err


def test_contexts_that_are_null_in_one_part_are_those_of_the_corpus(call, tmp_path):
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
    assert call(*argv, "--shard-characters=100", "--json").json["corpus"] == whole
