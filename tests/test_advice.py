"""A long run on a processor that multiplies bfloat16 is told so, once; others hear nothing."""

import argparse
from types import SimpleNamespace

import pytest
import torch

from perplexity_sliding.cli import advice
from perplexity_sliding.cli.progress import Progress

FLAGS = "model name\t: Some CPU\nflags\t\t: fpu avx2 {}\n"


@pytest.fixture
def on_processor(tmp_path, monkeypatch):
    """Describe a processor without an accelerator, as Linux would."""

    def on_processor(flag: str) -> None:
        (tmp_path / "cpuinfo").write_text(FLAGS.format(flag))
        monkeypatch.setattr(advice, "DESCRIPTION", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    return on_processor


def arguments(**changes) -> argparse.Namespace:
    given = {"model_id": "gpt2", "dtype": None, "device": None} | changes
    return argparse.Namespace(**given)


@pytest.mark.parametrize(
    "flag, multiplies",
    [("avx512_bf16", True), ("amx_bf16", True), ("bf16", True), ("avx512f", False), ("", False)],
)
def test_it_is_said_where_the_processor_multiplies_bfloat16(on_processor, flag, multiplies):
    on_processor(flag)
    assert (advice.of_long_runs(arguments()) == advice.HALF) is multiplies


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32"},
        {"device": "cuda"},
        {"model_id": "http://host/v1"},
        {"model_id": "a.gguf"},
    ],
)
def test_nothing_is_said_where_it_was_chosen_or_is_elsewhere(on_processor, changes):
    on_processor("amx_bf16")
    assert advice.of_long_runs(arguments(**changes)) is None


def test_nothing_is_said_with_an_accelerator(on_processor, monkeypatch):
    on_processor("amx_bf16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert advice.of_long_runs(arguments()) is None
    assert advice.of_long_runs(arguments(device="cpu")) == advice.HALF


@pytest.mark.parametrize("total, said", [(3000, 1), (1200, 1), (300, 0)])
def test_long_runs_alone_are_told_and_once(capsys, total, said):
    """A batch a second, so that `total` batches take as many seconds."""
    now = [0.0]
    progress = Progress("Scoring", hidden=False, clock=lambda: now[0], advice=lambda: "A hint.")
    progress.begin_part(1)
    for second in range(100):
        now[0] = float(second)
        progress(SimpleNamespace(done=second, total=total, perplexity=20.0))
    assert capsys.readouterr().err.count("A hint.") == said
