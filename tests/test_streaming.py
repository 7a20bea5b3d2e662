"""Corpora in shards: the numbers of one piece, in memory that does not grow with the corpus."""

import csv
import json
import math
import os
import re
import threading
from pathlib import Path

import datasets
import pytest
import reference
import torch
from models import make_model, make_tokenizer, random_text

from perplexity_sliding.cli import main as score
from perplexity_sliding.cli import measuring, sharding, spooling
from perplexity_sliding.cli.reading import Text

LENGTHS = (50, 7, 40, 23, 3, 61, 18, 30)
TEXTS = [random_text(length, seed=length) for length in LENGTHS]
# Protocols that take each text on its own, with the stride where it is the caller's.
OPTIONS = {
    "sliding": [],
    "overlapping": ["--stride=3", "--max_length=12"],
    "unscored first tokens": ["--add_start_token=false"],
    "stock": ["--protocol=stock"],
    "lm-eval": ["--protocol=lm-eval"],
    "paloma": ["--protocol=paloma"],
    "wikitext": ["--detokenize=wikitext"],
    "word counts": ["--word_counts=" + ",".join(map(str, LENGTHS))],
}


@pytest.fixture
def run(capsys, tiny):
    """Run the command line; return its JSON after exit code 0."""

    def run(*argv: str) -> dict:
        code = score.main([*argv, f"--model_id={tiny}", "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out)

    return run


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{number}.txt" for number in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS):
        path.write_text(text, "utf-8")
    return [str(path) for path in paths]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"text": text, "number": number}) for number, text in enumerate(TEXTS)]
    (folder / "train.jsonl").write_text("\n".join(lines), "utf-8")
    return f"--dataset={folder}::train:text"


@pytest.fixture
def scored(monkeypatch):
    """The names of the texts of each shard, in order."""
    shards = []
    plain = measuring.Scoring.score_shard
    monkeypatch.setattr(
        measuring.Scoring,
        "score_shard",
        lambda self, texts: shards.append([t.name for t in texts]) or plain(self, texts),
    )
    return shards


def assert_same_numbers(report: dict, expected: dict) -> None:
    """Equal but for what it cost."""
    cost = {"seconds", "tokens_per_second", "peak_memory_bytes"}
    report, expected = ({k: v for k, v in r.items() if k not in cost} for r in (report, expected))
    assert report == expected


def assert_same(result: dict, expected: dict) -> None:
    """Equal to rounding, key by key; what JSON has no number for, as infinity, is null."""
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, list):
            nulls = [place for place, number in enumerate(value) if number is None]
            assert nulls == [place for place, number in enumerate(result[name]) if number is None]
            numbers = [number for number in result[name] if number is not None]
            value = [number for number in value if number is not None]
            assert numbers == pytest.approx(value, rel=1e-6), name
        else:
            same = value if isinstance(value, str | None) else pytest.approx(value, rel=1e-6)
            assert result[name] == same, name


# ---- shards


@pytest.mark.parametrize(
    ("lengths", "limit", "expected"),
    [
        ([], 10, []),
        ([4, 4, 4, 4], 8, [[4, 4], [4, 4]]),
        ([4, 4, 4, 4], math.inf, [[4, 4, 4, 4]]),
        # a text is never cut
        ([3, 20, 3, 3], 8, [[3], [20], [3, 3]]),
        # texts without characters take no room
        ([8, 0, 0, 1], 8, [[8, 0, 0], [1]]),
        ([5, 5], 1, [[5], [5]]),
    ],
)
def test_shards(lengths, limit, expected):
    texts = [Text("", "a" * length) for length in lengths]
    shards = sharding.cut_into_shards(texts, limit)
    assert [[len(text.text) for text in shard] for shard in shards] == expected


def test_a_shard_has_no_more_texts_than_its_room(monkeypatch):
    """Short ones take more room than their characters; where all are needed, all are there."""
    monkeypatch.setattr(sharding, "MOST_TEXTS", 3)
    texts = [Text("", "a")] * 7
    assert [len(shard) for shard in sharding.cut_into_shards(texts, 100)] == [3, 3, 1]
    assert [len(shard) for shard in sharding.cut_into_shards(texts, math.inf)] == [7]


def test_no_more_is_read_than_a_shard_and_the_text_after_it():
    read = []
    texts = (read.append(number) or Text("", "aaaa") for number in range(1000))
    shards = sharding.cut_into_shards(texts, 8)
    next(shards)
    assert len(read) == 3
    next(shards)
    assert len(read) == 5


# ---- the same numbers


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("characters", [1, 200])
def test_shards_give_the_numbers_of_one_piece(run, scored, dataset, options, characters):
    expected = run(dataset, *options)
    assert len(scored) == 1, "it fits in the default shard"
    scored.clear()
    result = run(dataset, *options, f"--shard_characters={characters}")
    assert len(scored) == len(TEXTS) if characters == 1 else 1 < len(scored) < len(TEXTS)
    assert_same(result["corpus"], expected["corpus"])


RULE = '{"short_context": 4, "stride": 2, "gain": 0.01, "largest_nll": 9}'
LONG_CONTEXTS = {
    # no token of the texts of 3 and 7 sees so many
    "lengths of context": ["--context-lengths=4,8,16", "--stride=2"],
    "places": ["--positions=0,2,9,70"],
    "places that double": ["--positions=doubling", "--max-length=8"],
    "key tokens": [f"--key-tokens={RULE}"],
    "all of it": ["--context-lengths=8,12", "--positions=doubling", f"--key-tokens={RULE}"],
}


@pytest.mark.parametrize("options", LONG_CONTEXTS.values(), ids=LONG_CONTEXTS)
@pytest.mark.parametrize("characters", [1, 200])
def test_shards_give_the_curves_of_one_piece(run, scored, dataset, options, characters):
    """Down to intervals, paired ratios, and the texts that a shard has too short a one of."""
    expected = run(dataset, *options)["corpus"]
    assert len(scored) == 1
    scored.clear()
    result = run(dataset, *options, f"--shard-characters={characters}")["corpus"]
    assert len(scored) > 1
    added = {"by_context_length", "by_position", "in_context_score", "longppl", "longppls"}
    assert added & expected.keys()
    assert_same(reference.flat(result), reference.flat(expected))


def test_an_evaluator_is_loaded_once_for_all_shards(run, dataset, tiny, monkeypatch):
    from perplexity_sliding.engines import sources as model_source

    loaded = []
    plain = model_source.ModelSource.open
    monkeypatch.setattr(
        model_source.ModelSource, "open", lambda self: loaded.append(self.role) or plain(self)
    )
    run(dataset, f"--key-tokens={RULE}", f"--evaluator={tiny}", "--shard-characters=1")
    assert len(loaded) == len(set(loaded)) == 2


def test_no_shard_has_a_text_as_long_as_the_longest_context(call, tmp_path):
    (tmp_path / "a.csv").write_text("text\nw5 w6 w7\nw8 w9\n")
    options = ["--context-lengths=4,16", "--shard-characters=1", "--add-start-token=false"]
    outcome = call(tmp_path / "a.csv", *options)
    assert outcome.code == 2
    said = "--context-lengths must be at most the length of the longest text, got 16 for texts of at most 3"
    assert said in " ".join(outcome.err.split())


FORMATS = ["text", "json", "jsonl", "csv", "tsv", "markdown", "latex", "parquet"]
UNITS = {
    "texts": [],
    "tokens": ["--tokens"],
    "words": ["--words"],
    "alternatives": ["--num-alternatives=2"],
}


@pytest.fixture
def mixed(tmp_path, monkeypatch) -> list[str]:
    """A file, and tables with other columns than each other, empty rows and such as fail."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": text, "kind": number} for number, text in enumerate(TEXTS)]
    rows[2]["kind"], rows[5]["kind"] = "odd", None
    rows[3]["text"], rows[6]["text"] = "", "w5"
    Path("a.txt").write_text(random_text(33, seed=1))
    Path("b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("c.csv").write_text("label,text\n=1+1,w5 w6\n,w7 w8\n")
    return ["a.txt", "b.jsonl", "c.csv"]


def rounded(printed: str) -> str:
    """What was printed, with five digits of each number, and without what it cost."""
    printed = re.sub(r'"(seconds|tokens_per_second|peak_memory_bytes)": [\d.]+', "", printed)
    return re.sub(r"\d+\.\d+(?:e-\d+)?", lambda number: f"{float(number[0]):.4g}", printed)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("unit", UNITS)
def test_shards_print_what_one_piece_does(call, mixed, scored, monkeypatch, form, unit):
    """In every format; on the disk as in memory."""
    argv = [*mixed, *UNITS[unit], "--add-start-token=false", f"--format={form}"]
    if form == "parquet":
        argv[-1] = "--output=out.parquet"
    printed = []
    for more in ("--shard-characters=1M", "--shard-characters=60"):
        outcome = call(*argv, more)
        assert outcome.code == 2 and "at least 2 tokens" in outcome.err
        if form == "parquet":
            rows = pytest.importorskip("pyarrow.parquet").read_table("out.parquet").to_pylist()
            outcome.out = "\n".join(map(str, rows))
        printed.append(rounded(outcome.out))
        monkeypatch.setattr(spooling, "IN_MEMORY_BYTES", 10)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) > (0 if form == "json" else 3)
    assert len(scored) > 4


def test_a_spool_is_a_list_on_the_disk(monkeypatch):
    monkeypatch.setattr(spooling, "IN_MEMORY_BYTES", 100)
    spool, items = spooling.Spool(), [{"number": n, "text": "ä" * n} for n in range(100)]
    assert not spool and list(spool) == []
    for item in items:
        spool.append(item)
    assert len(spool) == 100
    assert list(zip(spool, spool)) == list(zip(items, items)), "two go through it at once"
    more, seen = [*items, *range(70)], []
    for item in spool:
        seen.append(item)
        if len(seen) == len(spool) < len(more):
            spool.append(more[len(spool)])
    assert seen == list(spool) == more, "what is appended meanwhile comes too"


def test_tokens_are_scored_in_smaller_shards(call, dataset, scored, monkeypatch):
    """Their rows take more room than the texts; what is asked for by name is obeyed."""
    monkeypatch.setattr(measuring, "SHARD_CHARACTERS", 2000)
    for argv, more in (([], False), (["--tokens"], True), (["--words"], True)):
        scored.clear()
        assert call(dataset, *argv).code == 0
        assert (len(scored) > 1) is more
    scored.clear()
    call(dataset, "--tokens", "--shard-characters=1M")
    assert len(scored) == 1


def test_word_counts_must_be_as_many_as_the_texts(call, dataset, scored):
    outcome = call(dataset, "--word-counts=1,2,3", "--shard-characters=1")
    assert outcome.code == 2 and scored == []
    assert "--word-counts must have one number per text, got 3 for 8 texts." in outcome.err


def test_files_have_rows_of_their_own(run, scored, files):
    expected = run(*files)
    scored.clear()
    result = run(*files, "--shard_characters=200")
    assert len(scored) > 1
    assert [row["name"] for row in result["files"]] == files
    for row, whole in zip(result["files"], expected["files"]):
        assert_same(row, whole)
    assert_same(result["corpus"], expected["corpus"])


def test_a_single_text_is_never_cut(run, scored, files):
    """And has its interval from its own parts, as always."""
    argv = [files[0], "--max_length=12"]  # four windows
    expected = run(*argv)
    assert_same_numbers(run(*argv, "--shard_characters=1"), expected)
    assert expected["corpus"]["perplexity_interval"] is not None
    assert scored == [[files[0]], [files[0]]]


def test_infinite_perplexities_stay_infinite(tmp_path, files, capsys):
    model = make_model("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(1e5)
    model.save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    argv = [*files, f"--model_id={tmp_path / 'model'}", "--json"]
    outcomes = []
    for more in ([], ["--shard_characters=1"]):
        assert score.main([*argv, *more]) == 0
        outcomes.append(json.loads(capsys.readouterr().out)["corpus"])
    assert outcomes[0]["perplexity"] is None  # JSON has no infinity
    assert_same(outcomes[1], outcomes[0])


@pytest.mark.parametrize("refused", [0, len(TEXTS)], ids=["first", "last"])
def test_a_shard_of_a_single_text_that_is_refused_costs_no_other(tmp_path, call, refused):
    """Of a single token here, which nothing predicts."""
    texts = [*TEXTS[:refused], "w5", *TEXTS[refused:]]
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
    options = ("--shard_characters=1", "--add_start_token=false", "--format=csv")
    outcome = call(table, *options)
    assert outcome.code == 2
    rows = list(csv.DictReader(outcome.out.splitlines()))
    assert "at least 2 tokens" in rows.pop(refused)["error"]
    assert [int(row["num_tokens"]) for row in rows] == [length - 1 for length in LENGTHS]
    (row,) = call(table, *options[:2], "--json").json["refused_rows"]
    assert row["row"] == refused and "at least 2 tokens" in row["error"]


# ---- what needs all texts at once


@pytest.mark.parametrize(
    "options",
    [
        ["--protocol=gptq"],
        ["--protocol=transformers-docs"],
        ["--separator=\\n"],
        ["--stride=8,4"],
        ["--context-lengths=doubling"],
        ["--protocol=sliding,stock"],
    ],
    ids=lambda options: options[0].lstrip("-"),
)
def test_all_texts_are_read_at_once_where_they_must(run, dataset, options):
    assert_same_numbers(run(dataset, *options, "--shard_characters=1"), run(dataset, *options))


def test_protocols_that_take_each_text_on_its_own(metric, tiny):
    """The rows say so truly."""
    for name, protocol in metric.protocols.items():
        result = metric.compute(predictions=TEXTS, model_id=tiny, protocol=name, max_length=8)
        each = len(result["perplexities"]) == len(TEXTS)
        assert each == protocol.scores_each_text, name


# ---- refusals


def refuse(capsys, *argv: str) -> str:
    assert score.main(list(argv)) == 2
    return capsys.readouterr().err


def test_a_shard_has_at_least_one_character(capsys, files):
    error = refuse(capsys, *files, "--shard_characters=0")
    assert "--shard-characters: must be at least 1, got 0" in error


def test_a_file_that_is_not_there_shows_before_the_first_is_scored(capsys, files, scored):
    assert "nowhere.txt" in refuse(capsys, *files, "nowhere.txt", "--shard_characters=1")
    assert scored == []


def test_a_named_pipe_is_read_once(run, files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[TEXTS[0]], daemon=True)
    writer.start()
    assert run(str(tmp_path / "pipe"))["corpus"] == run(files[0])["corpus"]
    writer.join()


def test_a_dataset_without_rows(capsys, monkeypatch):
    """Most that are empty are refused by `datasets`; not all of them by all of its versions."""
    features = datasets.Features({"text": datasets.Value("string")})
    empty = datasets.Dataset.from_dict({"text": []}, features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: empty)
    assert "--dataset=a::train:text has no rows" in refuse(capsys, "--dataset=a::train:text")
