"""Any number of processes gives the result of one, in every process; and none is left waiting."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys

import evaluate
import pytest
from core.distributed import Processes, share_out
from models import make_model, make_tokenizer, random_text

pytest.importorskip("accelerate")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

# Of ragged lengths: the windows don't divide evenly.
TEXTS = [random_text(length, seed=length) for length in (150, 3, 41, 7, 90)]
ARGUMENTS = {"stride": 4, "batch_size": 2, "max_length": 16}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work(rank, count, port, path, cache, texts, behave, results):
    """One process of a group, as torchrun would describe it to it."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    metric = evaluate.load(path, cache_dir=f"{cache}/{rank}")
    try:
        result = metric.compute(
            predictions=texts,
            model=make_model("gpt2"),
            tokenizer=make_tokenizer(),
            distributed=True,
            callback=behave and (lambda progress: behave(rank, progress, cache)),
            return_token_scores=True,
            **ARGUMENTS,
        )
    except Exception as error:
        result = repr(error)
    results.put((rank, result))


def run_group(root, tmp_path, count, texts=TEXTS, behave=None, wait=120):
    """Run a group of processes; return what each one that lived gave."""
    context = multiprocessing.get_context("fork")
    results, port = context.Queue(), free_port()
    path = str(root / "perplexity_sliding.py")
    group = [
        context.Process(
            target=work, args=(rank, count, port, path, tmp_path, texts, behave, results)
        )
        for rank in range(count)
    ]
    for process in group:
        process.start()
    living = count - (behave is kill_rank_one)
    outcomes = dict(results.get(timeout=wait) for _ in range(living))
    for process in group:
        process.join(timeout=wait)
        assert process.exitcode is not None, "a process hangs"
    return outcomes


def report_share(rank, progress, folder):
    (folder / f"done-{rank}").write_text(str(progress.done))


def raise_in_rank_one(rank, progress, folder):
    if rank == 1:
        raise ValueError("something is wrong with this share")


def kill_rank_one(rank, progress, folder):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def expected(metric, gpt2, tokenizer):
    return metric.compute(
        predictions=TEXTS, model=gpt2, tokenizer=tokenizer, return_token_scores=True, **ARGUMENTS
    )


def assert_same(result, expected):
    assert result.keys() == expected.keys(), result
    for name in ("perplexity", "total_nll", "word_perplexity", "perplexities"):
        assert result[name] == pytest.approx(expected[name], rel=1e-6)
    for name in ("num_tokens", "num_windows", "num_forward_tokens", "signature"):
        assert result[name] == expected[name]
    for ours, theirs in zip(result["token_scores"], expected["token_scores"]):
        assert ours["nll"] == pytest.approx(theirs["nll"], rel=1e-5)


@needs_fork
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_process_returns_the_result_of_one(root, tmp_path, expected, count):
    outcomes = run_group(root, tmp_path, count)
    assert sorted(outcomes) == list(range(count))
    for result in outcomes.values():
        assert_same(result, expected)


@needs_fork
def test_the_work_is_divided(root, tmp_path, expected):
    outcomes = run_group(root, tmp_path, 3, behave=report_share)
    done = [int((tmp_path / f"done-{rank}").read_text()) for rank in range(3)]
    assert sum(done) == expected["num_forward_tokens"]
    assert max(done) - min(done) <= ARGUMENTS["max_length"]
    assert len(outcomes) == 3


@needs_fork
def test_fewer_windows_than_processes(root, tmp_path, metric, gpt2, tokenizer):
    texts = [random_text(5)]
    outcomes = run_group(root, tmp_path, 3, texts)
    expected = metric.compute(predictions=texts, model=gpt2, tokenizer=tokenizer, **ARGUMENTS)
    assert {result["perplexity"] for result in outcomes.values()} == {expected["perplexity"]}


@needs_fork
def test_an_error_in_one_process_is_raised_in_all(root, tmp_path):
    outcomes = run_group(root, tmp_path, 3, behave=raise_in_rank_one)
    assert [str(outcomes[rank]) for rank in range(3)] == [
        "ValueError('something is wrong with this share')"
    ] * 3


@needs_fork
def test_a_process_that_dies_ends_the_others(root, tmp_path):
    outcomes = run_group(root, tmp_path, 2, behave=kill_rank_one)
    assert list(outcomes) == [0]
    assert "Error" in outcomes[0], "a result without the other's share"


@pytest.mark.parametrize(
    "costs, parts",
    [([5, 1, 1, 1, 1, 1], 2), (list(range(100)), 7), ([3], 4), ([], 3), ([2] * 12, 5)],
)
def test_work_is_shared_out_evenly(costs, parts):
    shares = share_out(costs, parts)
    assert sorted(place for share in shares for place in share) == list(range(len(costs)))
    loads = [sum(costs[place] for place in share) for share in shares]
    # Whoever has most would have no more without its last piece than who has least.
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_a_single_process_needs_no_group():
    alone = Processes(distributed=False)
    assert alone.share([3, 1, 2]) == [0, 2, 1]
    assert alone.gather([1, 2], None) == [1, 2]
    with pytest.raises(ValueError, match="alone"):
        alone.gather([], ValueError("alone"))


def test_torchrun_on_the_command_line(root, tmp_path):
    """Two processes, one output; the model is made here, as small as any."""
    from models import make_byte_tokenizer, save

    model = save(tmp_path / "model", make_model("gpt2", vocab_size=300), make_byte_tokenizer())
    text = tmp_path / "text.txt"
    text.write_text("The windows are shared out between the processes. " * 5)
    arguments = [str(root / "score.py"), str(text), "--model_id", model, "--json", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run = [*torchrun, "--master-port", str(free_port()), *arguments]
    shared = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    assert shared.returncode == 0, shared.stderr
    alone = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    ours, theirs = json.loads(shared.stdout), json.loads(alone.stdout)
    assert ours["corpus"]["perplexity"] == pytest.approx(theirs["corpus"]["perplexity"], rel=1e-6)
