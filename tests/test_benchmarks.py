"""The benchmark at a tiny size: everybody does the same work, and what is written is what was timed.

No time is asserted: a loaded machine may take any.
"""

import json
import math
import mmap
import multiprocessing
import re
import statistics
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import evaluate
import numpy as np
import pytest
import reference
import torch
import transformers

pytest.importorskip("matplotlib", reason="the benchmark draws its results")
sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import layers
import measure
import run
import shared
import table
import two_models
import utilisation
import whole_runs
from cases import ROOT, Contender, Setup, long_text, mixed_texts
from peers import guide_loop, stock_metric
from plain import PlainPasses, batches
from workloads import FreeModel, make_lines, make_text, make_tokenizer, read_lines

from perplexity_sliding.cli import main as command_line
from perplexity_sliding.cli.options import parse_arguments


@pytest.fixture(scope="module", autouse=True)
def heard_again():
    """What the benchmarks silence is heard again by the tests after them."""
    verbosity, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)
    transformers.utils.logging.enable_progress_bar()
    evaluate.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def setup():
    return Setup("tiny")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What a whole run at the tiny size writes."""
    folder = tmp_path_factory.mktemp("benchmark")
    files = [f"--output={folder / 'results.json'}", f"--plot={folder / 'plot.png'}"]
    run.main(
        [
            "--shape=tiny",
            "--repetitions=3",
            "--threads=1",
            *map("--skip={}".format, ("memory", "commands")),
            *files,
        ]
    )
    return json.loads((folder / "results.json").read_text()), (folder / "plot.png").read_bytes()


def test_every_contender_gives_our_number_for_the_same_windows(outcome):
    differences = {
        (case["name"], name): value
        for case in outcome[0]["cases"]
        for name, value in case["differences"].items()
    }
    compared = {name for _, name in differences}
    assert {"guide", "stock", "ours, by name"} <= compared
    assert max(differences.values()) < 1e-4


def test_harness_is_compared_too(outcome):
    pytest.importorskip("lm_eval", reason="the harness is left out where it isn't installed")
    assert {"lm-eval", "lm-eval, batch 16"} <= set(outcome[0]["cases"][3]["differences"])


def test_ratios_are_those_of_the_seconds(outcome):
    for case in outcome[0]["cases"]:
        seconds = case["seconds"]
        pairs = [own / plain for own, plain in zip(seconds["ours"], seconds["plain passes"])]
        assert len(pairs) == 3
        assert case["ratios"]["ours / plain passes"] == {
            "median": statistics.median(pairs),
            "low": min(pairs),
            "high": max(pairs),
        }


def test_bookkeeping_grows_to_what_was_asked(outcome):
    runs = outcome[0]["bookkeeping"]
    assert [point["texts"] for point in runs["short texts"]] == [12, 25, 50, 100]
    assert [point["tokens"] for point in runs["one text"]] == [10, 100, 1000, 10_000]
    assert all(point["share_of_plain"] > 0 for points in runs.values() for point in points)


def test_texts_are_counted_by_themselves(outcome):
    for row in outcome[0]["many texts"]:
        assert row["texts"] == 100 and row["seconds"] > 0


def test_whole_commands_are_timed_in_turns_behind_a_warm_up(tmp_path):
    """The time is the processor's, of the program that was started."""
    log = tmp_path / "log"
    program = "import sys; print(sys.argv[1], file=open(sys.argv[2], 'a')); sum(range(4_000_000))"
    runs = {name: [sys.executable, "-c", program, name, str(log)] for name in ("ours", "other")}
    timed = whole_runs.time_commands(runs, 2)
    assert log.read_text().split() == ["ours", "other"] * 3
    assert all(len(times) == 2 and min(times) > 0.01 for times in timed["seconds"].values())
    pairs = [ours / other for ours, other in zip(*timed["seconds"].values())]
    assert timed["ratios"]["ours / other"]["median"] == statistics.median(pairs)


def test_the_commands_on_an_article_give_one_number(tmp_path, capsys, monkeypatch):
    commands = whole_runs.article_commands(str(tmp_path), "tiny", 64, 16)
    _, script, *options = commands[whole_runs.ARTICLE]
    assert script == "score.py" and command_line.main([*options, "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    _, _, program, *arguments = commands[whole_runs.GUIDE]
    monkeypatch.setattr(sys, "argv", ["-c", *arguments])
    exec(program, {})
    printed = float(capsys.readouterr().out)
    assert score["files"][0]["perplexity"] == pytest.approx(printed, rel=1e-5)


def test_the_command_on_a_note_is_one_that_is_taken():
    script, note = whole_runs.SCORE.split()
    assert (ROOT / script).exists() and parse_arguments([note]).files == [note]


def test_measurements_in_one_call_read_fewer_tokens(outcome):
    strides, protocols = outcome[0]["shared passes"]
    read = strides["forward_tokens"]
    assert read["the finest alone"] <= read["together"] < read["one by one"]
    assert protocols["forward_tokens"]["together"] < protocols["forward_tokens"]["one by one"]
    for case in (strides, protocols):
        assert all(len(seconds) == 3 for seconds in case["seconds"].values())


def test_many_lengths_cost_what_the_longest_does(outcome):
    """4, 8, ..., 32 tokens, each less the last one."""
    (case,) = outcome[0]["many lengths"]
    assert case["forward_tokens"] == {
        "together": 31,
        "the longest alone": 31,
        "one by one": sum(range(4, 33, 4)) - 8,
    }


def test_a_shared_context_is_read_once(outcome):
    """30 texts of 4 tokens after 20: closed forms, but for the last token, which nothing follows."""
    (case,) = outcome[0]["shared context"]
    assert case["forward_tokens"] == {"together": 19 + 30 * (1 + 4 - 1), "apart": 30 * (20 + 4 - 1)}
    assert {"together / apart"} <= set(case["ratios"])


def test_two_models_are_timed_beside_two_single_runs(outcome):
    both, divergence = outcome[0]["two models"]
    for turn, together in enumerate(both["seconds"]["both at once"]):
        alone = sum(both["seconds"][name][turn] for name in both["seconds"] if "alone" in name)
        ratio = both["ratios"]["both at once / one after the other"]
        assert ratio["low"] <= together / alone <= ratio["high"]
    assert len(divergence["ratios"]) == 2


def test_other_numbers_stop_the_run():
    runs = {"a": lambda: {"total_nll": 1.0}, "b": lambda: 1.001}
    with pytest.raises(SystemExit, match="not the same number"):
        shared.measure("name", runs, 1, number="total_nll")


def test_what_llama_cpp_holds_of_logits():
    """By hand: 3 windows of 8 tokens, of which 3 are scored; 5 ids take 6 entries and 4 more."""
    held = two_models.llama_cpp_bytes(num_windows=3, length=8, vocabulary=5)
    assert held == {"file": 20 + 3 * 8 * 4 + 3 * 3 * 2 * 10, "memory": 3 * 2 * 10 + 4 * 5 * 4}


def test_plot_is_drawn(outcome):
    assert outcome[1].startswith(b"\x89PNG")


def test_a_contender_with_another_number_stops_the_run(setup):
    case = long_text(setup, part=2, num_windows=2)
    case.contenders = {"wrong": Contender(lambda: 1.001, lambda: 1.0)}
    with pytest.raises(SystemExit, match=r"not the same number.*wrong"):
        run.run_case(case, repetitions=1)


def test_contenders_begin_in_turn():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = measure.time_in_turns(runs, repetitions=3)
    assert "".join(order) == "abcbcacab"
    assert [len(own) for own in seconds.values()] == [3, 3, 3]


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_plain_passes_runs_the_required_windows_and_no_more(setup, batch_tokens):
    """Tokens through the body (padding aside) and rows through the head, counted by hooks."""
    plain = mixed_texts(setup, 12, folder=None).plain
    rows, shapes = [], []
    watched = setup.model.base_model.register_forward_hook(
        lambda module, inputs, output: shapes.append(tuple(inputs[0].shape))
    )
    product = torch.nn.functional.linear

    def counting(hidden, weight):
        rows.append(len(hidden))
        return product(hidden, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plain.torch.nn.functional.linear", counting)
        # The body of GPT-2 has no linear modules: whatever is counted is the head's.
        plain.run(plain.windows, batch_tokens, block_rows=7)
    watched.remove()
    assert max(rows) <= 7
    assert sum(rows) == sum(window.num_targets for window in plain.windows)
    assert sum(count for count, _ in shapes) == len(plain.windows)
    needed = sum(window.num_inputs for window in plain.windows)
    padded = sum(count * length for count, length in shapes)
    assert padded == needed if batch_tokens == 1 else padded >= needed


def test_plain_passes_plans_the_windows_that_the_metric_runs(setup):
    case = long_text(setup, part=8, num_windows=3)
    text = make_text(setup.context + 2 * (setup.context // 8), setup.vocabulary)
    result = setup.ours([text], stride=setup.context // 8)
    assert len(case.plain.windows) == result["num_windows"]
    assert sum(w.num_inputs for w in case.plain.windows) == result["num_forward_tokens"]
    assert sum(w.num_targets for w in case.plain.windows) == result["num_tokens"]


def test_batches_hold_every_window_once():
    windows = [SimpleNamespace(num_inputs=length) for length in (9, 5, 5, 4, 2, 1)]
    groups = batches(windows, 10)
    assert list(chain.from_iterable(groups)) == windows
    assert [len(group) for group in groups] == [1, 2, 2, 1]


@pytest.mark.parametrize(("number", "step"), [(100, 1), (2000, 2)])
def test_search_keeps_what_is_fastest_for_windows_of_all_lengths(setup, number, step, monkeypatch):
    """A few short windows fit into any batch, and say nothing of batches."""
    windows = [SimpleNamespace(num_inputs=length % 9 + 1) for length in range(number)]
    plain = PlainPasses(setup.model, windows)
    tried = []

    def seconds(windows, batch_tokens, block_rows):
        tried.append((windows, batch_tokens))
        return abs(batch_tokens - 256) + abs(block_rows - 512)

    monkeypatch.setattr(plain, "_seconds", seconds)
    assert plain.search() == (256, 512) == plain.settings
    assert all(windows == plain.windows[::step] for windows, _ in tried)
    sizes = {batch_tokens for _, batch_tokens in tried} - {1, 256, 512}
    assert sizes == ({4096} if number == 100 else {1024, 2048, 4096}), "the same batches once"


def test_guide_loop_is_the_mean_of_window_means(setup):
    """A window at a time in float64: 40 tokens at L = 32, S = 16 are windows 0-31 and 16-39."""
    text = make_text(40, setup.vocabulary)
    ids = setup.tokenizer(text)["input_ids"]
    losses = [
        np.mean(reference.nll(setup.model, ids[a:b], ids[b:c]))
        for a, b, c in [(0, 1, 32), (16, 32, 40)]
    ]
    loop = guide_loop(setup.model, setup.tokenizer, text, max_length=32, stride=16)
    assert loop == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)


def test_stock_algorithm_does_not_count_padding(setup):
    """Each text alone, without padding, gives the mean of all together."""
    texts = [make_text(length, setup.vocabulary, seed=length) for length in (3, 20, 9)]
    folder = setup.folder()
    together = stock_metric(folder, setup.tokenizer, texts, batch_size=2)
    alone = [stock_metric(folder, setup.tokenizer, [text]) for text in texts]
    assert together == pytest.approx(np.mean(alone), rel=1e-5)


def test_free_model_is_scored(metric):
    """As any model of somebody's own: its whole forward runs."""
    arguments = {"model": FreeModel(vocabulary=8, context=16), "tokenizer": make_tokenizer(8)}
    result = metric.compute(predictions=[make_text(40, 8)], stride=4, **arguments)
    assert result["num_tokens"] == 40
    assert result["num_forward_tokens"] > 100


def test_lines_are_as_many_and_as_long_as_asked(tmp_path):
    lengths = [len(text.split()) for text in make_lines(300, 50, scale=0.5, longest=60)]
    assert len(lengths) == 300 and min(lengths) >= 2 and max(lengths) == 60
    (tmp_path / "wiki").write_text(" = A title = \n\n seven words stand in this very line \n x \n")
    read = read_lines(str(tmp_path), number=10, vocabulary=50, scale=1, longest=5)
    assert sorted(len(text.split()) for text in read) == [2, 4, 5]
    ends = read_lines(str(tmp_path), number=2, vocabulary=50, scale=2, longest=50)
    assert sorted(len(text.split()) for text in ends) == [2, 14], "the shortest and the longest"


def test_tokenizer_gives_one_token_a_word():
    tokenizer = make_tokenizer(50)
    assert len(tokenizer(make_text(37, 50))["input_ids"]) == 37
    assert tokenizer.bos_token_id == 49


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_sees_what_was_freed_again():
    def allocate():
        # 64 MiB, gone when this returns; from the system, as the allocator may have some left over.
        with mmap.mmap(-1, 2**26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            for page in range(0, 2**26, mmap.PAGESIZE):
                memory[page] = 1

    def measure_alone():
        told.send(measure.peak_memory(allocate))

    # In a copy of this process that has one thread: here a server of other tests may free memory.
    fork = multiprocessing.get_context("fork")
    peak, told = fork.Pipe(duplex=False)
    fork.Process(target=measure_alone, daemon=True).start()
    assert peak.poll(60) and peak.recv() == pytest.approx(2**26, rel=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_logits_stay_within_their_memory():
    """2,048 rows of 128,256 logits would take 1,002 MiB; a block of them and the loss have 128."""
    large = Setup("large vocabulary")
    text = make_text(2 * large.context, large.vocabulary)
    arguments = {"stride": large.context, "logits_memory": 2**27}
    large.ours([text], **arguments)  # warm-up
    peaks = (measure.peak_memory(lambda: large.ours([text], **arguments)) for _ in range(8))
    assert any(peak < 2**27 for peak in peaks)  # another thread may take some meanwhile


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_apart_reads_what_the_process_prints(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print('noise'); print('{\"peak_bytes\": %s}' % sys.argv[1])")
    assert measure.peak_memory_apart(script, "12") == 12
    script.write_text("raise MemoryError")
    assert measure.peak_memory_apart(script, "12") is None


def test_parts_are_timed_one_by_one(capsys, monkeypatch):
    # Traced and run, but not translated to machine code, which takes half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    layers.main(["--shape=tiny", "--repetitions=1", "--threads=1"])
    printed = capsys.readouterr().out
    assert all(group.__doc__ in printed for group in (layers.body, layers.head, layers.loss))
    assert printed.count("1.00   (1.00 to 1.00)") >= 5, "each part's first way over itself"


def test_utilisation_counts_what_the_windows_require(capsys):
    """Counted by hand for a model of two layers."""
    utilisation.main(
        [
            "--shape=tiny",
            "--device=cpu",
            "--length=16",
            "--windows=3",
            "--part=2",
            "--matrix-size=64",
        ]
    )
    assert "tiny, L = 16, S = L/2: " in capsys.readouterr().out
    model = utilisation.make_llama("tiny", length=16, device=torch.device("cpu"))
    # A layer: queries and output 32 x 32 each, keys and values 32 x 16 each, three of 32 x 64.
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    attention = 4 * 32 * 16 / 2  # scores and weighted values, half of the 16 keys
    result = {"num_forward_tokens": 100, "num_tokens": 60}
    expected = 100 * 2 * (2 * layer + attention) + 60 * 2 * 32 * 300
    assert utilisation.operations(model, result, length=16) == expected


def test_published_tables_are_of_the_published_results():
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert table.rows_at_a_glance(results) in readme
    speed = (ROOT / "docs" / "speed.md").read_text()
    assert table.speed_table(results) in speed
    assert table.shared_table(results) in speed
    details = (ROOT / "benchmarks" / "README.md").read_text()
    assert table.memory_table(results) in details
    assert table.bookkeeping_table(results) in details
    assert table.many_texts_table(results) in details
    assert table.ways_table(results, "two models") in details
    for part in ("shared context", "many lengths"):
        assert table.shared_table(results, part) in details


def test_a_server_is_timed_beside_the_harness(capsys, monkeypatch):
    """lm-evaluation-harness needs its extra "api" for it."""
    import served
    from fake_engines import FakeServer, running

    monkeypatch.setattr(served, "REPETITIONS", 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(served.DEMO).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(served.DEMO)
    server = FakeServer(model, tokenizer, forms=("vllm", "openai"))
    text = (ROOT / "samples" / "note.txt").read_text("utf-8")[:600]
    with running(server) as address:
        served.print_times(served.PerplexitySliding(), [text], address, tokenizer)
    printed = capsys.readouterr().out
    ours, by_lm_eval = re.search(
        r"total nll: ([\d.]+); by local-completions ([\d.]+)", printed
    ).groups()
    assert float(ours) == pytest.approx(float(by_lm_eval), rel=1e-5)
    for contender in ("the requests alone", "ours", "local-completions"):
        assert f"{contender}: " in printed
