"""Totals: what adds up over shards, what does not, and how they get from process to process."""

import gc
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import make_model, random_text, save
from test_readme import parse
from test_results import text

from perplexity_sliding.protocols import PROTOCOLS
from perplexity_sliding.results.totals import Aggregation, Totals
from perplexity_sliding.scoring.runner import without_collecting

TEXTS = [random_text(length, length) for length in (40, 57, 64, 33, 120, 70)]
JOINING = [name for name, row in PROTOCOLS.items() if not row.scores_each_text]
ROOT = Path(__file__).resolve().parent.parent
NUM_TEXTS = 23
# Two workers take a CPU and what they think is a GPU each; others read the file.
CLUSTER = "ray.init(num_cpus=3, num_gpus=2, include_dashboard=False)\n"


@pytest.fixture
def measure(metric, tokenizer):
    """Compute the result and its totals with a tiny model in float64."""
    model = make_model("gpt2").double()

    def compute(texts, **arguments):
        return metric.compute(
            predictions=texts, model=model, tokenizer=tokenizer, return_totals=True, **arguments
        )

    return compute


# ---- adding


def test_long_contexts_add_up_only_where_the_totals_do(measure):
    """Joined texts were added, and those of a model whose code had changed."""

    def halves(**arguments):
        parts = (TEXTS[:3], TEXTS[3:])
        return [
            measure(part, context_lengths=[4, 8], **arguments)["long_context_totals"]
            for part in parts
        ]

    added = sum(halves()).result()["by_context_length"]
    whole = measure(TEXTS, context_lengths=[4, 8])["by_context_length"]
    assert [row["nll"] for row in added] == pytest.approx([row["nll"] for row in whole])
    (one, _), (_, other) = halves(), halves(stride=1)
    with pytest.raises(ValueError, match=r"differ in stride \("):
        one + other


def test_what_does_not_add_up_is_refused_by_name(measure):
    one, other = (measure(TEXTS[:2], stride=stride)["totals"] for stride in (2, 4))
    with pytest.raises(ValueError, match=r"differ in stride \(2 and 4\)\.$"):
        one + other
    for number in (1, None, "totals"):
        with pytest.raises(TypeError, match="unsupported operand"):
            one + number


@pytest.mark.parametrize("protocol", JOINING)
def test_totals_of_joined_texts_are_not_added(measure, protocol):
    """Two halves cut windows elsewhere than the whole does, under the same signature."""
    halves = [measure(part, protocol=protocol)["totals"] for part in (TEXTS[:3], TEXTS[3:])]
    with pytest.raises(ValueError, match=r"added .* in one call"):
        sum(halves)


def test_whole_streams_of_joined_texts_add_up(measure):
    """run_clm.py joins every thousand texts: behind such a stream the next begins anew."""
    texts = [random_text(9, seed) for seed in range(1100)]
    whole = measure(texts, protocol="run-clm")
    first, rest = (measure(p, protocol="run-clm")["totals"] for p in (texts[:1000], texts[1000:]))
    assert (first + rest).result()["total_nll"] == pytest.approx(whole["total_nll"], rel=1e-12)
    assert (first + rest).result()["texts_digest"] == whole["texts_digest"]
    with pytest.raises(ValueError, match=r"after a multiple of 1,000 texts .* got 100"):
        rest + first


def test_parts_in_the_order_of_the_corpus_are_the_corpus(metric, measure, gpt2, tokenizer):
    """To the last bit, as all sums are kept for each text."""
    whole = metric.compute(
        predictions=TEXTS, model=gpt2, tokenizer=tokenizer, return_totals="texts"
    )
    each = whole["text_totals"]
    numbers = [0, 2, 4, 1, 3, 5]
    digests = [totals.texts_digest.value for totals in each]
    order = [numbers.index(number) for number in range(6)]
    added = sum(each[number] for number in numbers).take(order, digests)
    assert added.result() == whole["totals"].result()


def test_totals_of_each_text_are_those_of_a_call_of_its_own(metric, measure, gpt2, tokenizer):
    contexts = ["w1 w2 ", "w3 ", "", "w4 w5 w6 ", "w7 ", ""]
    asked = {"model": gpt2, "tokenizer": tokenizer, "return_totals": "texts"}
    each = metric.compute(predictions=TEXTS, contexts=contexts, **asked)["text_totals"]
    for words, context, totals in zip(TEXTS, contexts, each):
        alone = metric.compute(predictions=[words], contexts=[context], **asked)["totals"]
        assert totals.counts == alone.counts
        assert totals.texts_digest == alone.texts_digest
        assert totals.result()["perplexity"] == pytest.approx(alone.result()["perplexity"])


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_and_is_put_back(enabled):
    """After an error too."""
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="refused"), without_collecting():
            assert not gc.isenabled()
            raise ValueError("refused")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


# ---- from process to process


def test_json_holds_every_digit(measure):
    totals = measure(TEXTS, detokenizer="wikitext")["totals"]
    written = totals.to_json()
    assert Totals.from_json(written).result() == totals.result()
    assert Totals.from_json(written).to_json() == written
    assert (Totals.from_json(written) + totals).result() == (totals + totals).result()
    totals = Totals.of([text([1.0, np.inf])], Aggregation())
    assert Totals.from_json(totals.to_json()).result()["total_nll"] == np.inf


@pytest.mark.parametrize("written", ['{"kind": "totals', "[1]", "{}"])
def test_what_is_no_totals_is_refused(written):
    with pytest.raises(ValueError, match=r"must hold 'totals .*Was it cut short"):
        Totals.from_json(written)


def test_a_fresh_process_loads_a_pickle(loaded, measure, gpt2, tokenizer, tmp_path):
    """Of the package, and of the metric that evaluate loaded."""
    of_evaluate = type(loaded)(cache_dir=str(tmp_path / "cache")).compute(
        predictions=TEXTS, model=gpt2, tokenizer=tokenizer, return_totals=True
    )
    assert type(of_evaluate["totals"]) is Totals
    for number, result in enumerate((of_evaluate, measure(TEXTS))):
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(pickle.dumps(result))
        program = (
            "import pickle, sys; totals = pickle.load(open(sys.argv[1], 'rb'))['totals'];"
            "print(repr(sum([totals, totals]).result()['total_nll']))"
        )
        command = [sys.executable, "-W", "error", "-c", program, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        assert float(done.stdout) == pytest.approx(2 * result["total_nll"], rel=1e-12)


# ---- on a cluster


def example():
    """The page's block, for a small cluster and small batches."""
    page = (ROOT / "docs" / "clusters.md").read_text("utf-8")
    (block,) = [b.body for b in parse(page) if b.language == "python" and "import ray" in b.body]
    for given, small in (
        ("batch_size=1000, concurrency=8", "batch_size=5, concurrency=2"),
        ('model_id="NAME"', 'model_id="model"'),
        ("\n\nclass Scorer", f"\n{CLUSTER}\n\nclass Scorer"),
    ):
        assert block.count(given) == 1, given
        block = block.replace(given, small)
    return block + "import json\nprint(json.dumps(result))\n"


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "ray[data]"'
)
def test_ray_data_adds_up_to_one_run(metric, gpt2, tokenizer, tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = [random_text(5 + 3 * number, number) for number in range(NUM_TEXTS)]
    save(tmp_path / "model", gpt2, tokenizer)
    # in groups of rows, so that there are several blocks to be kept in order
    table = pyarrow.table({"text": texts, "other": list(range(NUM_TEXTS))})
    pyarrow.parquet.write_table(table, tmp_path / "corpus.parquet", row_group_size=4)
    (tmp_path / "example.py").write_text(example())
    ray = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ray
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "example.py"], timeout=600, **run)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    expected = metric.compute(predictions=texts, model_id=str(tmp_path / "model"))
    for key in ("perplexities", "perplexity", "perplexity_interval", "total_nll"):
        assert result[key] == pytest.approx(expected[key], rel=1e-6), key
    assert result["signature"] == expected["signature"]
