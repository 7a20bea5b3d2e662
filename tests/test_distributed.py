"""Any number of processes gives the result of one, in every process; and none is left waiting."""

import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from datetime import date

import evaluate
import pytest
import torch
from models import make_byte_tokenizer, make_model, make_tokenizer, random_text, save

from perplexity_sliding.scoring.distributed import Processes

PartialState = pytest.importorskip("accelerate").PartialState
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

# Of ragged lengths: the windows don't divide evenly.
TEXTS = [random_text(length, seed=length) for length in (150, 3, 41, 7, 90)]
ARGUMENTS = {"stride": 4, "batch_size": 2, "max_length": 16}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work(rank, count, port, path, cache, calls, results):
    """One process of a group, as torchrun would describe it to it: make calls of compute."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    PartialState._reset_state()  # what an earlier test had found out of the process we forked from
    metric = evaluate.load(path, cache_dir=f"{cache}/{rank}")
    outcomes = []
    for call in calls:
        arguments = {"model": make_model("gpt2"), "tokenizer": make_tokenizer()} | ARGUMENTS
        arguments |= {"predictions": TEXTS, "distributed": True} | call(rank, cache)
        try:
            outcomes.append(metric.compute(**{k: v for k, v in arguments.items() if v is not None}))
        except Exception as error:
            outcomes.append(repr(error))
    results.put((rank, outcomes))


def run_calls(root, tmp_path, count, calls, living=None, wait=120):
    """Run a group of processes; return what the calls of each one that lived gave."""
    context = multiprocessing.get_context("fork")
    results, port = context.Queue(), free_port()
    path = str(root / "perplexity_sliding.py")
    group = [
        context.Process(target=work, args=(rank, count, port, path, tmp_path, calls, results))
        for rank in range(count)
    ]
    for process in group:
        process.start()
    outcomes = dict(results.get(timeout=wait) for _ in range(living or count))
    for process in group:
        process.join(timeout=wait)
        assert process.exitcode is not None, "a process hangs"
    return outcomes


def shard(rank, cache):
    """Make a model of whose weights each process holds a half."""
    torch.distributed.init_process_group("gloo")
    model, mesh = make_model("llama"), torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
    return {"model": torch.distributed.fsdp.fully_shard(model, mesh=mesh), "distributed": None}


def run_group(root, tmp_path, count, texts=TEXTS, behave=None):
    """Run a group of processes that make one call; return what each one that lived gave."""

    def call(rank, cache):
        callback = behave and (lambda progress: behave(rank, progress, cache))
        return {"predictions": texts, "callback": callback, "return_token_scores": True}

    living = count - (behave is kill_rank_one)
    outcomes = run_calls(root, tmp_path, count, [call], living)
    return {rank: results[0] for rank, results in outcomes.items()}


def report_share(rank, progress, folder):
    (folder / f"done-{rank}").write_text(str(progress.done))


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
def test_a_model_in_shards_scores_as_the_whole_one(root, tmp_path, metric, tokenizer):
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this torch has no FSDP 2")
    given = {"predictions": TEXTS, "tokenizer": tokenizer} | ARGUMENTS
    whole = metric.compute(model=make_model("llama"), **given)
    outcomes = run_calls(root, tmp_path, 2, [shard])
    for [result] in outcomes.values():
        assert result["total_nll"] == pytest.approx(whole["total_nll"])
        assert result["signature"] == outcomes[0][0]["signature"]


@needs_fork
@pytest.mark.parametrize("count", [1, 3])
def test_every_process_does_its_share_and_returns_the_result_of_one(
    root, tmp_path, expected, count
):
    outcomes = run_group(root, tmp_path, count, behave=report_share)
    assert sorted(outcomes) == list(range(count))
    for result in outcomes.values():
        assert_same(result, expected)
    done = [int((tmp_path / f"done-{rank}").read_text()) for rank in range(count)]
    assert sum(done) == expected["num_forward_tokens"]
    assert max(done) - min(done) <= ARGUMENTS["max_length"]


MEASURED = {
    "fewer windows than processes": lambda: {"predictions": [random_text(5)]},
    "strides": lambda: {"stride": [8, 4]},
    "windows": lambda: {"max_length": [16, 8], "stride": None},
    "protocols": lambda: {"protocol": ["sliding", "lm-eval", "yarn"], "stride": None},
    "a reference": lambda: {"reference": make_model("gpt2", seed=1)},
    "bytes": lambda: {"reference": {"model": make_model("gpt2", seed=1, vocab_size=300), "tokenizer": make_byte_tokenizer()}},
    "contexts": lambda: {"contexts": [random_text(9, seed=n) + " " for n in range(3)]},
    "words": lambda: {"words": True},
    "lengths of context": lambda: {"context_lengths": [4, 8, 16], "stride": 2, "max_length": None},
    "chats": lambda: {"tokenizer": None} | chats_written(),
    "a carried state": lambda: {"carry": True, "model": make_model("mamba")},
}  # fmt: skip


@needs_fork
def test_whatever_is_measured_it_is_the_result_of_one_process(root, tmp_path, metric):
    texts = {"predictions": TEXTS[1:4]}
    calls = [lambda rank, cache, make=make: texts | make() for make in MEASURED.values()]
    outcomes = run_calls(root, tmp_path, 2, calls)
    for number, (name, make) in enumerate(MEASURED.items()):
        arguments = {"model": make_model("gpt2"), "tokenizer": make_tokenizer()} | ARGUMENTS
        arguments = {key: value for key, value in (arguments | make()).items() if value is not None}
        expected = metric.compute(**(texts | arguments))
        for results in outcomes.values():
            assert_alike(results[number], expected, name)


def assert_alike(value, expected, where: str) -> None:
    """Equal numbers, up to rounding, at every place of two results."""
    if isinstance(expected, dict):
        assert isinstance(value, dict) and value.keys() == expected.keys(), f"{where}: {value}"
        for key in expected:
            assert_alike(value[key], expected[key], f"{where}, {key}")
    elif isinstance(expected, list):
        assert len(value) == len(expected), where
        for item, expected_item in zip(value, expected):
            assert_alike(item, expected_item, where)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-6), where
    else:
        assert value == expected, where


@needs_fork
def test_an_error_in_one_process_is_announced_and_raised_in_all(root, tmp_path):
    """The others learn of it only after their shares, which may take hours."""

    def fail_and_log(rank, progress, folder):
        if rank == 1:
            log = logging.FileHandler(folder / "log")
            logging.getLogger("evaluate.perplexity_sliding").addHandler(log)
            raise ValueError("something is wrong.")

    outcomes = run_group(root, tmp_path, 2, behave=fail_and_log)
    assert set(map(str, outcomes.values())) == {"ValueError('something is wrong.')"}
    said = (tmp_path / "log").read_text()
    assert said.startswith("Process 1 of 2 failed: something is wrong. The call ends once")


@needs_fork
def test_a_process_that_dies_ends_the_others(root, tmp_path):
    outcomes = run_group(root, tmp_path, 2, behave=kill_rank_one)
    assert list(outcomes) == [0]
    assert "Error" in outcomes[0], "a result without the other's share"


# ---- processes that were not given the same


def chats_written(by_template="", by_code=""):
    """Chats with something before them, such as the time; the `date` of a message is no JSON."""
    template = by_template + "{% for m in messages %}{{ m.content + ' w3 ' }}{% endfor %}"
    tokenizer = make_tokenizer(chat_template=template)
    write = tokenizer.apply_chat_template
    tokenizer.apply_chat_template = lambda *args, **kwargs: [
        by_code + text for text in write(*args, **kwargs)
    ]
    chat = [
        {"role": "user", "content": "w5", "date": date(2026, 1, 1)},
        {"role": "assistant", "content": "w7 w8"},
    ]
    return {"predictions": [chat], "tokenizer": tokenizer}


OTHERS = {
    "texts": (lambda rank, cache: {"predictions": TEXTS[rank:]}, "The texts, contexts, scored spans"),
    "stride": (lambda rank, cache: {"stride": 4 + rank}, "The model, settings and tokens must be"),
    "contexts": (lambda rank, cache: {"contexts": f"w{rank} w2 "}, "The texts, contexts, scored spans"),
    "what a template writes": (lambda rank, cache: chats_written(by_code=f"w{10 + rank} "), "The model, settings and tokens must"),
}  # fmt: skip


def same_call(rank, cache):
    return {}


@needs_fork
def test_other_texts_or_settings_are_refused_in_each_process(root, tmp_path, expected):
    """As when everybody has split the texts beforehand.  The call after them is in step again."""
    calls = [*(call for call, _ in OTHERS.values()), same_call]
    for *refused, result in run_calls(root, tmp_path, 2, calls).values():
        for said, (_, message) in zip(refused, OTHERS.values()):
            assert said.startswith("ValueError(") and message in said, said
            assert "those of process 1 differ from those of process 0" in said
            assert "every process" in said, "what to do"
        assert result["perplexities"] == pytest.approx(expected["perplexities"], rel=1e-6)


FAILURES = {
    "an argument": (lambda rank, cache: {"stride": 99 if rank else 4}, "`stride` must be between 1"),
    "the model": (lambda rank, cache: {"model": None, "tokenizer": None, "model_id": str(cache / "nothing")} if rank else {}, "got no folder"),
    "the checkpoint": (lambda rank, cache: {"checkpoint": str(cache / "no" / "such") if rank else None}, "cannot be used"),
    "no text": (lambda rank, cache: {"predictions": None} if rank else {}, "must be given: a list of at"),
}  # fmt: skip


@needs_fork
def test_an_error_before_the_scoring_ends_all_and_the_next_call_is_in_step(
    root, tmp_path, expected
):
    """Else a process that goes on to the next text would exchange its windows with this one's."""
    calls = [*(call for call, _ in FAILURES.values()), same_call]
    outcomes = run_calls(root, tmp_path, 2, calls)
    for place, (_, message) in enumerate(FAILURES.values()):
        assert outcomes[0][place] == outcomes[1][place]
        assert message in outcomes[0][place]
    for *_, result in outcomes.values():
        assert result["perplexities"] == pytest.approx(expected["perplexities"], rel=1e-6)


@needs_fork
def test_each_process_may_have_a_checkpoint_of_its_own(root, tmp_path, expected):
    """As on several machines."""

    def own_file(rank, cache):
        return {"checkpoint": str(cache / f"own-{rank}.sqlite")}

    def counted(rank, cache):
        def callback(progress):
            (cache / f"ran-{rank}").write_text("")

        return own_file(rank, cache) | {"callback": callback}

    outcomes = run_calls(root, tmp_path, 2, [own_file, counted])
    for _, again in outcomes.values():
        assert again["perplexities"] == pytest.approx(expected["perplexities"], rel=1e-6)
    assert not list(tmp_path.glob("ran-*")), "windows that were known ran again"


@pytest.mark.parametrize(
    "costs, parts",
    [([5, 1, 1, 1, 1, 1], 2), (list(range(100)), 7), ([3], 4), ([], 3), ([2] * 12, 5)],
)
def test_work_is_shared_out_evenly(costs, parts):
    shares = []
    for rank in range(parts):
        processes = Processes(distributed=False)
        processes.rank, processes.count = rank, parts
        shares.append(processes.share(costs))
    assert sorted(place for share in shares for place in share) == list(range(len(costs)))
    loads = [sum(costs[place] for place in share) for share in shares]
    # Whoever has most would have no more without its last piece than who has least.
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_a_single_process_needs_no_group():
    alone = Processes(distributed=False)
    assert alone.share([3, 1, 2]) == [0, 2, 1]
    assert alone.exchange([1, 2]) == [[1, 2]]


# ---- under torchrun


SCRIPT = """
import json, os, subprocess, sys
from perplexity_sliding.cli.main import main

shared, refused, child = json.loads(sys.argv[1])
assert main(shared) == 0
if os.environ["RANK"] == "0":
    print("---", flush=True)
    subprocess.run([sys.executable, *child], check=True)
sys.exit(main(refused))
"""


@pytest.fixture(scope="module")
def torchrun(root, tmp_path_factory):
    """One run of two processes: two files; a program that one of them runs; a bad stride.

    Returns:
        the folder of the files and of the model, and the finished process.
    """
    folder = tmp_path_factory.mktemp("torchrun")
    model = save(folder / "model", make_model("gpt2", vocab_size=300), make_byte_tokenizer())
    (folder / "a.txt").write_text("The windows are shared out between the processes. " * 5)
    (folder / "b.txt").write_text("Each file is scored once. " * 4)
    options = ["--model", model, "--json", "--quiet"]
    shared = [str(folder / "a.txt"), str(folder / "b.txt"), *options]
    refused = [str(folder / "a.txt"), "--stride", "99", *options]
    child = [str(root / "score.py"), str(folder / "b.txt"), *options]
    (folder / "script.py").write_text(SCRIPT)
    run = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--master-port", str(free_port()), str(folder / "script.py")),
        json.dumps([shared, refused, child]),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    return folder, done


def test_torchrun_on_the_command_line(torchrun, call):
    """Two processes, two files, one output."""
    folder, done = torchrun
    alone = call(folder / "a.txt", folder / "b.txt", "--json", model=str(folder / "model")).json
    shared = json.loads(done.stdout.split("---")[0])
    assert shared["corpus"]["perplexity"] == pytest.approx(alone["corpus"]["perplexity"], rel=1e-6)
    assert [file["perplexity"] for file in shared["files"]] == pytest.approx(
        [file["perplexity"] for file in alone["files"]], rel=1e-6
    )


def test_a_refusal_under_torchrun_is_printed_once(torchrun):
    _, done = torchrun
    assert done.returncode != 0
    assert done.stderr.count("must be between 1 and --max-length 16, got 99") == 1


def test_a_program_that_a_process_of_torchrun_runs_is_not_one_of_its_processes(torchrun):
    """It would wait for a group that nobody else joins."""
    _, done = torchrun
    assert json.loads(done.stdout.split("---")[1])["corpus"]["num_tokens"] == 104
