"""The benchmark at a tiny size: all contenders give one number, and the tables are of the results."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import run
import utilisation
from cases import PLAIN, ROOT, Setup, mixed_texts
from peers import guide_loop, stock_metric
from workloads import make_text


@pytest.fixture(scope="module")
def setup():
    threads = torch.get_num_threads()
    yield Setup("tiny")
    torch.set_num_threads(threads)


def test_all_contenders_give_our_number(setup, tmp_path, capsys):
    """`run_case` stops the run where one does not."""
    output = tmp_path / "results.json"
    run.main(["--shape=tiny", "--repetitions=1", "--threads=1", f"--output={output}"])
    results = json.loads(output.read_text())
    assert {"guide", "stock"} <= {name for case in results["cases"] for name in case["differences"]}
    for case in results["shared passes"]:
        assert case["forward_tokens"]["together"] < case["forward_tokens"]["one by one"]
    assert capsys.readouterr().out.count("ours / plain passes") == 4


def test_published_tables_are_of_the_published_results():
    results = json.loads(run.RESULTS.read_text())
    speed = (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert run.rows_at_a_glance(results) in (ROOT / "README.md").read_text("utf-8")
    assert run.speed_table(results) in speed and run.shared_table(results) in speed


def test_contenders_without_padding_and_with_masked_labels(setup):
    """The loops of others, against passes in float64 and against each text alone."""
    text = make_text(40, setup.vocabulary)
    ids = setup.tokenizer(text)["input_ids"]
    windows = [(0, 1, 32), (16, 32, 40)]  # L = 32, S = 16
    losses = [np.mean(reference.nll(setup.model, ids[a:b], ids[b:c])) for a, b, c in windows]
    loop = guide_loop(setup.model, setup.tokenizer, text, max_length=32, stride=16)
    assert loop == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    texts = [make_text(length, setup.vocabulary, seed=length) for length in (3, 20, 9)]
    alone = [stock_metric(setup.folder, setup.tokenizer, [each]) for each in texts]
    together = stock_metric(setup.folder, setup.tokenizer, texts, batch_size=2)
    assert together == pytest.approx(np.mean(alone), rel=1e-5)


def test_plain_passes_read_the_required_windows_and_no_more(setup):
    plain, shapes = mixed_texts(setup, 12).contenders[PLAIN].run, []
    watched = setup.model.base_model.register_forward_hook(
        lambda module, inputs, output: shapes.append(inputs[0].numel())
    )
    plain.run(plain.windows, batch_tokens=1, block_rows=7)
    watched.remove()
    assert sum(shapes) == sum(window.num_inputs for window in plain.windows)


def test_utilisation_counts_what_the_windows_require():
    """Counted by hand for a model of two layers."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 300}
    model = utilisation.make_llama(sizes, length=16, device=torch.device("cpu"))
    # A layer: queries and output 32 x 32 each, keys and values 32 x 16 each, three of 32 x 64.
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    attention = 4 * 32 * 16 / 2  # scores and weighted values, half of the 16 keys
    expected = 100 * 2 * (2 * layer + attention) + 60 * 2 * 32 * 300
    result = {"num_forward_tokens": 100, "num_tokens": 60}
    assert utilisation.operations(model, result, length=16) == expected


def test_a_server_is_timed_beside_the_harness(capsys):
    """lm-evaluation-harness needs its extra "api" for it."""
    pytest.importorskip("lm_eval.models.openai_completions")
    import served
    from fake_engines import FakeServer, running

    model = transformers.AutoModelForCausalLM.from_pretrained(served.DEMO).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(served.DEMO)
    text = (ROOT / "samples" / "note.txt").read_text("utf-8")[:600]
    with running(FakeServer(model, tokenizer, forms=("vllm", "openai"))) as address:
        served.print_times([text], address, repetitions=1)
    printed = re.search(r"nll: ([\d.]+); by local-completions ([\d.]+)", capsys.readouterr().out)
    ours, by_lm_eval = map(float, printed.groups())
    assert ours == pytest.approx(by_lm_eval, rel=1e-5)
