"""A killed run resumes where it stopped, and ends with the very same result."""

import copy
import os
import random
import signal
import sqlite3
import threading
import time
from functools import partial

import pytest
import torch
from models import make_model, random_text

from perplexity_sliding.scoring import checkpoint

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

TEXTS = [random_text(300, seed=1), random_text(40, seed=2), random_text(7, seed=3)]


class Killed(Exception):
    pass


class KillAfter:
    """A callback that ends the call after a number of batches."""

    def __init__(self, batches):
        self.batches = batches

    def __call__(self, progress):
        self.batches -= 1
        if self.batches < 0:
            raise Killed


@pytest.fixture
def arguments(gpt2, tokenizer):
    fixed = {"stride": 4, "batch_size": 2, "identify": True}
    return {"model": gpt2, "tokenizer": tokenizer} | fixed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


@pytest.mark.parametrize("batches", [0, 1, 5, 14])
def test_an_interrupted_run_ends_with_the_same_result(metric, arguments, path, batches):
    expected = metric.compute(predictions=TEXTS, return_token_scores=True, **arguments)
    with pytest.raises(Killed):
        metric.compute(predictions=TEXTS, checkpoint=path, callback=KillAfter(batches), **arguments)
    resumed = metric.compute(
        predictions=TEXTS, checkpoint=path, return_token_scores=True, **arguments
    )
    assert resumed == expected


def test_finished_windows_are_not_computed_again(metric, arguments, path):
    metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    progress = []
    again = metric.compute(
        predictions=TEXTS, checkpoint=path, callback=progress.append, **arguments
    )
    assert progress == []  # told after every batch, and there was none
    assert again == metric.compute(predictions=TEXTS, **arguments)


def test_texts_finished_before_count_in_another_company_and_order(metric, arguments, path):
    metric.compute(predictions=TEXTS[:2], checkpoint=path, **arguments)
    progress = []
    result = metric.compute(
        predictions=TEXTS[::-1], checkpoint=path, callback=progress.append, **arguments
    )
    assert len(progress) == 1  # the third text's
    assert result["total_nll"] == pytest.approx(
        metric.compute(predictions=TEXTS, **arguments)["total_nll"], rel=1e-6
    )


@pytest.mark.parametrize(
    "change",
    [
        {"stride": 5},
        {"max_length": 12},
        {"add_start_token": False},
        {"add_start_token": "every"},
        {"protocol": "lm-eval", "stride": None},
        {"model": make_model("gpt2", seed=9)},
        {"model": make_model("gpt2").to(torch.bfloat16)},
        {"predictions": [random_text(300, seed=5)]},
    ],
    ids=["stride", "window", "no start", "starts", "protocol", "model", "dtype", "text"],
)
def test_another_run_never_matches(metric, arguments, path, change):
    metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    changed = {"predictions": TEXTS} | arguments | change
    assert metric.compute(checkpoint=path, **changed) == metric.compute(**changed)


def another_programs_database(path):
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


def half_of_it_damaged(path):
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:100] + b"\x7f" * (half - 100) + data[half:])


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda path: path.write_text("Call me Ishmael. " * 100), "file is not a database"),
        (another_programs_database, "it is a database of another program"),
        (half_of_it_damaged, ".*malformed"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(metric, arguments, path, spoil, reason):
    metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    spoil(path)
    spoiled = path.read_bytes()
    with pytest.raises(ValueError, match=rf"`checkpoint`=.*run\.sqlite' cannot be used: {reason}"):
        metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    assert path.read_bytes() == spoiled


def test_a_flipped_bit_never_gives_a_wrong_number(metric, arguments, path):
    """The scores of that row are computed again, or one sentence names the file."""
    text = {"predictions": [TEXTS[1]]}
    expected = metric.compute(checkpoint=path, **text, **arguments)["total_nll"]
    data, same = path.read_bytes(), 0
    for place in range(97, len(data), 397):
        spoiled = bytearray(data)
        spoiled[place] ^= 1 << place % 8
        path.write_bytes(spoiled)
        try:
            total = metric.compute(checkpoint=path, **text, **arguments)["total_nll"]
            assert total == pytest.approx(expected, rel=1e-6)
            same += 1
        except ValueError as error:
            assert "run.sqlite' cannot be used" in str(error)
    assert same > 5


def test_alternatives_are_kept_too(metric, arguments, path):
    progress = []
    for number, told in ((2, 1), (2, 0), (3, 1)):  # another number of them is scored anew
        asked = arguments | {"return_token_scores": [f"top{number}"]}
        progress.clear()
        result = metric.compute(
            predictions=TEXTS, checkpoint=path, callback=progress.append, **asked
        )
        assert (result, bool(progress)) == (metric.compute(predictions=TEXTS, **asked), bool(told))


# ---- models that only their numbers tell apart


@pytest.mark.parametrize("role", ["model", "reference"])
def test_windows_of_another_length_where_that_matters(metric, arguments, path, role):
    """A short window is not read out of a longer one, though short ones alone agree."""
    growing = make_model(
        "llama", max_position_embeddings=16, rope_scaling={"rope_type": "dynamic", "factor": 2.0}
    )
    arguments |= {"model": make_model("llama", max_position_embeddings=64), role: growing}
    arguments["batch_size"] = 1
    for length in (40, 30, 12):
        arguments |= {role: copy.deepcopy(growing), "max_length": length}
        result = metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
        assert result == metric.compute(predictions=TEXTS, **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_does_not_make_another_model(metric, arguments, path, dtype):
    """Other batches round otherwise, and so does other attention code."""
    arguments["model"] = make_model("gpt2", attn_implementation="eager").to(dtype)
    metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    progress = []
    arguments |= {"callback": progress.append, "batch_size": 1}
    metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    assert progress == []


def test_models_of_one_signature_are_told_apart_by_their_probes(metric, arguments, path):
    """Code that was replaced is in no signature."""
    metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    changed = copy.deepcopy(arguments["model"])
    changed.lm_head.register_forward_hook(lambda module, args, output: output * 1.1)
    arguments |= {"model": changed}
    result = metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    assert result == metric.compute(predictions=TEXTS, **arguments)


# ---- a file that cannot be used


@pytest.mark.parametrize("moment", [False, True])
def test_a_file_that_another_run_has(metric, arguments, path, monkeypatch, moment):
    expected = metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    monkeypatch.setattr(checkpoint, "WAIT_S", 60 if moment else 0.01)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    if moment:
        threading.Timer(0.3, other.execute, ["ROLLBACK"]).start()
        assert metric.compute(predictions=TEXTS, checkpoint=path, **arguments) == expected
    else:
        with pytest.raises(ValueError, match=r"locked\. Where another run has it locked, wait for"):
            metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    other.close()


def test_a_disk_that_is_full(metric, arguments, path, monkeypatch):
    """One sentence; what was saved resumes."""
    arguments |= {"batch_size": 1, "stride": 1}
    expected = metric.compute(predictions=TEXTS, **arguments)
    saves = []
    save = checkpoint.Checkpoint.save

    def fill_disk(self, scores):
        saves.append(scores)
        if len(saves) == 4:
            self.connection.execute("PRAGMA max_page_count = 4")
        save(self, scores)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "save", fill_disk)
        with pytest.raises(ValueError, match=r"run\.sqlite' cannot be used: .*full"):
            metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
    progress = []
    resumed = metric.compute(
        predictions=TEXTS, checkpoint=path, callback=progress.append, **arguments
    )
    assert resumed == expected
    assert len(progress) < expected["num_windows"]


# A run in a process of its own.  Forked, so that twenty of them need not load torch twenty times.


def report_batch(tell: int, progress) -> None:
    os.write(tell, b".")


def start_run(metric, path, arguments) -> int:
    """Start a call in a child process; return its process number."""
    child = os.fork()
    if child:
        return child
    try:
        metric.compute(predictions=TEXTS, checkpoint=path, **arguments)
        os._exit(0)
    finally:
        os._exit(1)


def num_finished(path) -> int:
    if not path.exists():
        return 0
    with sqlite3.connect(path) as connection:
        table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'scores'").fetchone()
        return connection.execute("SELECT count(*) FROM scores").fetchone()[0] if table else 0


@needs_fork
def test_killed_twenty_times_at_random_a_run_loses_nothing(metric, arguments, path):
    arguments |= {"stride": 1, "batch_size": 1}
    expected = metric.compute(predictions=TEXTS, **arguments)
    generator = random.Random(0)
    finished = [0]
    for _ in range(20):
        told, tell = os.pipe()
        callback = partial(report_batch, tell)
        child = start_run(metric, path, {**arguments, "callback": callback})
        os.close(tell)
        for _ in range(generator.randrange(1, 16)):  # counted: a loaded machine is slow to begin
            os.read(told, 1)
        time.sleep(generator.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        finished.append(num_finished(path))
    assert finished == sorted(finished)
    assert len(set(finished)) > 3, "the kills did not fall into the scoring"
    progress = []
    resumed = metric.compute(
        predictions=TEXTS, checkpoint=path, callback=progress.append, **arguments
    )
    assert resumed == expected
    assert len(progress) == expected["num_windows"] - finished[-1]  # one window a batch


@needs_fork
def test_two_processes_on_one_file_do_not_corrupt_it(metric, arguments, path):
    arguments |= {"stride": 1, "batch_size": 1}
    children = [start_run(metric, path, arguments) for _ in range(2)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    expected = metric.compute(predictions=TEXTS, **arguments)
    assert num_finished(path) == expected["num_windows"]
    assert metric.compute(predictions=TEXTS, checkpoint=path, **arguments) == expected
