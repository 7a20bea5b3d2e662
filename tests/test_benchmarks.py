"""The benchmark at a tiny size: all contenders give one number, and the tables are of the results."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import run
import utilisation
from cases import PLAIN, ROOT, Setup, mixed_texts


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
    assert utilisation.count_operations(model, result, length=16) == expected
