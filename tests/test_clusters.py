"""The example of docs/clusters.md with Ray Data, on a local cluster of two workers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from models import random_text, save
from test_readme import parse

ROOT = Path(__file__).resolve().parent.parent
NUM_TEXTS = 23
# Two workers take a CPU and what they think is a GPU each; others read the file.
CLUSTER = "ray.init(num_cpus=3, num_gpus=2, include_dashboard=False)\n"


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
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
    }
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    expected = metric.compute(predictions=texts, model_id=str(tmp_path / "model"))
    for key in ("perplexities", "perplexity", "perplexity_interval", "total_nll"):
        assert result[key] == pytest.approx(expected[key], rel=1e-6), key
    assert result["signature"] == expected["signature"]


def test_the_slurm_script_names_its_shell():
    """sbatch refuses a script without it."""
    page = (ROOT / "docs" / "clusters.md").read_text("utf-8")
    (script,) = [b.body for b in parse(page) if "#SBATCH" in b.body]
    assert script.startswith("#!/bin/bash\n#SBATCH")
