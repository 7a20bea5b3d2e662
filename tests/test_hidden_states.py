"""A reference that runs first and leaves its hidden states in a file: the same numbers, and no others."""

import errno
import math
import os
import random
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch
from models import VOCABULARY, make_byte_tokenizer, make_model, random_text, save

from perplexity_sliding.scoring.hidden_states import PAGE_BYTES, StatesFile, allocate, drop_body

TEXTS = [random_text(length, seed=length) for length in range(20, 30)]


@pytest.fixture
def compare(metric, gpt2, tokenizer, tmp_path):
    """Compute beside a saved reference; by default with the file `states`."""
    reference_id = save(tmp_path / "reference", make_model("gpt2", spread=0.33), tokenizer)

    def compute(states=None, model_id=reference_id, **kwargs):
        of_reference = {"model_id": model_id, "states": states, "dtype": kwargs.pop("dtype", None)}
        arguments = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer}
        return metric.compute(**(arguments | {"reference": of_reference} | kwargs))

    compute.model_id = reference_id
    return compute


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "states"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_result_is_that_of_both_at_once(compare, path, dtype):
    settings = {"dtype": dtype, "stride": [8, 4], "return_token_scores": True}
    both = compare(**settings)
    assert compare(**settings, states=path) == both
    assert compare(**settings, states=path) == both, "with what is there already"


def test_a_reference_that_changes_while_it_runs_is_read_as_beside_the_model(
    compare, path, tmp_path, tokenizer
):
    """Frequencies that one window had stretched stayed so for the next that was recorded."""
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    grows = make_model("llama", rope_scaling=dynamic, max_position_embeddings=8)
    settings = {"model_id": save(tmp_path / "grows", grows, tokenizer), "max_length": 16}
    texts = [random_text(length, seed=length) for length in (12, 5, 16, 9)]
    settings |= {"predictions": texts, "batch_size": 1}
    assert compare(**settings, states=path) == compare(**settings)


def test_spans_under_growing_frequencies_are_recorded_in_whole_windows(
    compare, path, tmp_path, tokenizer
):
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    grows = [
        make_model("llama", seed=seed, rope_scaling=dynamic, max_position_embeddings=8)
        for seed in (1, 2)
    ]
    settings = {"model": grows[0], "model_id": save(tmp_path / "grows", grows[1], tokenizer)}
    settings |= {"predictions": [random_text(30)], "score_spans": [[(2, 9), (30, 40)]]}
    both = compare(max_length=16, **settings)
    assert compare(max_length=16, **settings, states=path) == both


def test_progress_goes_through_both_models(compare, path):
    """First the reference, of which there is no perplexity, then the model; then the model alone."""
    told = []
    settings = {"batch_size": 1, "states": path, "callback": told.append}
    result = compare(**settings)
    cost, half = result["num_forward_tokens"], len(told) // 2
    assert {one.total for one in told} == {2 * cost}
    assert [one.done for one in told] == sorted({one.done for one in told})
    assert told[half - 1].done == cost and told[-1].done == 2 * cost
    assert all(math.isnan(one.perplexity) for one in told[:half])
    assert all(one.perplexity > 1 for one in told[half:])
    del told[:]
    compare(**settings)
    assert len(told) == half and told[-1].done == told[-1].total == cost


def test_progress_goes_on_where_a_run_was_stopped(compare, path):
    told = []

    def stop(progress):
        told.append(progress)
        if len(told) == 3:
            raise KeyboardInterrupt

    settings = {"batch_size": 1, "states": path}
    with pytest.raises(KeyboardInterrupt):
        compare(**settings, callback=stop)
    resumed = []
    assert compare(**settings, callback=resumed.append) == compare(batch_size=1)
    assert resumed[0].done > told[-1].done
    assert resumed[-1].done == resumed[-1].total == told[-1].total


def test_a_bar_shows_the_reference(compare, path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    compare(states=path)
    shown = capsys.readouterr().err
    assert shown.index("Reference: 100%") < shown.index("Scoring: 100%")


@pytest.mark.parametrize("name", ["llama", "opt", "gemma2", "mamba", "cohere"])
def test_architectures(metric, gpt2, tokenizer, tmp_path, path, name):
    """Heads of all kinds give from the file what they give beside the model."""
    reference_id = save(tmp_path / name, make_model(name), tokenizer)
    arguments = {"predictions": TEXTS[:3], "model": gpt2, "tokenizer": tokenizer}
    stored = metric.compute(**arguments, reference={"model_id": reference_id, "states": path})
    assert stored == metric.compute(**arguments, reference=reference_id)


def test_models_by_name_are_never_in_memory_together(metric, gpt2, tokenizer, tmp_path, path):
    names = {
        name: save(tmp_path / name, make_model("gpt2", seed), tokenizer)
        for seed, name in enumerate(("model", "reference"))
    }
    arguments = {"predictions": TEXTS, "model_id": names["model"]}
    together = metric.compute(**arguments, reference=names["reference"])
    apart = metric.compute(**arguments, reference={"model_id": names["reference"], "states": path})
    assert apart == together


@pytest.fixture
def stored(compare, path) -> bytearray:
    """The file of a finished run."""
    compare(states=path)
    return bytearray(path.read_bytes())


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """Numbers of the passes whose states are computed, and not taken from the file."""
    numbers = []
    keep = StatesFile._keep

    def counted(self, of_batch, batch):
        numbers.extend(of_batch)
        keep(self, of_batch, batch)

    monkeypatch.setattr(StatesFile, "_keep", counted)
    return numbers


def test_a_killed_run_goes_on(compare, path, stored, computed):
    """What is in the file is not computed again, and what is missing is."""
    killed = bytearray(stored)
    killed[PAGE_BYTES + 8 : PAGE_BYTES + 24] = bytes(16)  # two passes are not there yet
    path.write_bytes(killed)
    compare(states=path)
    assert sorted(computed) == [1, 2]
    assert path.read_bytes() == stored


@pytest.mark.parametrize("size", [0, 10, PAGE_BYTES, PAGE_BYTES + 100])
def test_a_file_that_was_killed_before_its_header_is_begun_anew(compare, path, stored, size):
    path.write_bytes(bytes(size))
    compare(states=path)
    assert path.read_bytes() == stored


@pytest.mark.parametrize("damage", ["a bit", "zeros", "a swap", "cut"])
def test_damaged_passes_are_computed_again(compare, path, stored, computed, caplog, damage):
    """A reference whose states are others gives another divergence."""
    expected, data = compare(), bytearray(stored)
    if damage == "a bit":
        data[-1] ^= 1
    elif damage == "zeros":
        data[-1000:] = bytes(1000)
    elif damage == "a swap":
        data[-256:-128], data[-128:] = data[-128:], data[-256:-128]
    else:
        del data[-1000:]
    path.write_bytes(data)
    with caplog.at_level("WARNING", "evaluate"):
        assert compare(states=path) == expected
    assert 0 < len(computed) < 5
    assert f"is damaged in {len(computed)} of " in caplog.text
    assert path.read_bytes() == stored


def test_every_byte_of_states_and_digests_is_guarded(compare, path, stored, computed):
    generator = random.Random(0)
    for place in generator.sample(range(PAGE_BYTES, len(stored)), 8):
        data = bytearray(stored)
        data[place] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        compare(states=path)
        assert path.read_bytes() == stored, place


def test_what_changes_while_it_is_read_is_refused(compare, path, stored):
    def spoil(progress):
        path.write_bytes(stored[:-1000] + bytes(1000))

    with pytest.raises(ValueError, match=r"was changed while it was read\."):
        compare(states=path, callback=spoil, batch_size=1)


def test_there_is_room_for_all_or_none_is_taken(compare, path):
    """A full disk is told before the reference runs, and no file is left; a limit stands for one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=r"too large.*`reference\['states'\]` needs .* GiB"
        ) as raised:
            compare(states=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert raised.value.filename == str(path)
    assert not path.exists()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system has no call for it")
def test_the_room_is_taken_and_not_just_promised(path):
    """A file with a hole ends a program by SIGBUS where the disk is full."""
    with open(path, "wb") as file:
        allocate(file.fileno(), 2**20)
    assert path.stat().st_size == 2**20 <= path.stat().st_blocks * 512


def test_a_disk_that_fills_up_keeps_what_is_there(compare, path, stored, monkeypatch):
    path.write_bytes(stored[:-1000])

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: `reference\['states'\]` needs"):
        compare(states=path)
    assert path.read_bytes() == stored[:-1000]


@pytest.mark.parametrize("missing", [AttributeError, OSError(errno.EOPNOTSUPP, "no such call")])
def test_disks_that_take_no_room_beforehand(compare, path, stored, monkeypatch, missing):
    def refuse(*args):
        raise missing

    path.unlink()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    compare(states=path)
    assert path.read_bytes() == stored


@pytest.mark.parametrize(
    "change, message",
    [
        ({"predictions": TEXTS[:-1]}, "was made for another text, window or stride"),
        ({"stride": 4}, "was made for another text, window or stride"),
        ({"dtype": "bfloat16"}, "was made for another reference model"),
    ],
)
def test_something_else_is_refused(compare, path, change, message):
    compare(states=path)
    with pytest.raises(ValueError, match=message):
        compare(states=path, **change)


def test_another_model_is_refused(compare, path, tmp_path, tokenizer):
    compare(states=path)
    other = save(tmp_path / "other", make_model("gpt2", seed=5), tokenizer)
    with pytest.raises(ValueError, match="was made for another reference model"):
        compare(states=path, model_id=other)


def test_states_of_code_that_was_replaced_are_refused_without_it(compare, path, monkeypatch):
    """No digest covers a function of torch; the measured probe does."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "layer_norm", lambda hidden, *_: hidden)
        compare(states=path)
    with pytest.raises(ValueError, match=r"another reference model, by its nll of the probe text"):
        compare(states=path)


def test_with_a_checkpoint(compare, path, tmp_path):
    expected = compare()
    for _ in range(2):
        with_both = compare(states=path, checkpoint=tmp_path / "run.sqlite")
        assert with_both == expected


def test_a_file_that_something_was_added_to_is_refused(compare, path, stored):
    path.write_bytes(stored + b"more")
    size = len(stored)
    with pytest.raises(ValueError, match=rf"must have {size} bytes, got {size + 4}: something was"):
        compare(states=path)


def test_a_folder_is_no_file(compare, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"`reference\['states'\]` must be a file on a disk, got the folder .* in it\.",
    ):
        compare(states=tmp_path)


def test_a_device_is_no_file_and_stays(compare, path):
    """A device has no room to take, and what cannot take it was removed: with root's rights, /dev/null."""
    path.symlink_to(os.devnull)
    with pytest.raises(
        ValueError, match=r"`reference\['states'\]` must be a file on a disk, got the"
    ):
        compare(states=path)
    assert path.is_symlink()


def test_files_of_something_else_are_left_alone(compare, path):
    path.write_text("not states")
    with pytest.raises(ValueError, match="got a file of another kind"):
        compare(states=path)
    assert path.read_text() == "not states"


def test_the_next_candidate_takes_the_states_of_the_last(compare, path):
    compare(states=path)
    before = path.read_bytes()
    candidate = make_model("llama")
    expected = compare(model=candidate)
    assert compare(model=candidate, states=path) == expected
    assert path.read_bytes() == before


def test_what_cannot_be_done(compare, path, tokenizer):
    live = {"model": make_model("gpt2"), "states": path}
    with pytest.raises(ValueError, match=r"`reference\['states'\]` must be left out with a live"):
        compare(reference=live)
    with pytest.raises(
        TypeError, match=r"`reference\['states'\]` must be the path of a file, got 3"
    ):
        compare(states=3)
    with pytest.raises(
        ValueError, match=r"`reference\['states'\]` must be left out with `distributed`"
    ):
        compare(states=path, distributed=True)
    reads_bytes = {"model_id": compare.model_id, "tokenizer": make_byte_tokenizer()}
    with pytest.raises(ValueError, match="requires models that read the same tokens"):
        compare(reference=reads_bytes | {"states": path})


def test_the_body_is_freed():
    """Only the head's weights stay, the embeddings among them where they are tied."""
    for name, tied in (("gpt2", True), ("llama", False)):
        model = make_model(name)
        size = sum(p.numel() for p in model.parameters())
        drop_body(model, model.base_model)
        kept = [p for p in model.parameters() if not p.is_meta]
        assert sum(p.numel() for p in kept) == VOCABULARY * 32 < size, (name, tied)
