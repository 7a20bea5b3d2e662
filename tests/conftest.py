"""What all tests share: a metric of one's own, the command line, and a few tiny models."""

import atexit
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# evaluate reads these on import: nothing of the tests is left in the user's cache.
_cache = tempfile.mkdtemp(prefix="perplexity-sliding-tests-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
os.environ["HF_MODULES_CACHE"] = os.path.join(_cache, "modules")
os.environ["HF_METRICS_CACHE"] = os.path.join(_cache, "metrics")
# Threads only cost time with models this small; this reaches the programs that the tests start too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each worker's pages have ports of their own: where another takes the port between gradio's look
# and its start, a page with an MCP server tries the next one in vain, for minutes.
_worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
os.environ["GRADIO_SERVER_PORT"] = str(7860 + 100 * int(_worker))

# What takes seconds to import is imported in the fixtures: the process that hands the tests out to
# others needs none of it.
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=200)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def loaded():
    """The metric as `evaluate.load` gives it, which reads and copies all sources each time."""
    import evaluate

    return evaluate.load(str(ROOT / "perplexity_sliding.py"))


@pytest.fixture
def metric(tmp_path):
    """A metric of the test's own, which keeps its files in `tmp_path / "cache"`."""
    from perplexity_sliding import PerplexitySliding

    return PerplexitySliding(cache_dir=str(tmp_path / "cache"))


@dataclass
class Outcome:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if ": warning: " in line]


@pytest.fixture
def call(capsys, tiny):
    """Run the command line with the tiny model in this process, whatever comes of it."""
    from perplexity_sliding.cli.main import main

    def call(*argv: object, model: str | None = None) -> Outcome:
        model = [] if "--merge" in argv else [f"--model={model or tiny}"]
        code = main([*map(str, argv), *model])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def gpt2():
    """A tiny GPT-2 with a context of 16 tokens.  Not to be changed."""
    from models import make_model

    return make_model("gpt2")


@pytest.fixture
def tokenizer():
    """A tokenizer with a start token that it doesn't put there by itself."""
    from models import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    """A folder with a tiny GPT-2 of context 16 and a tokenizer whose tokens are words.  Not to be changed."""
    from models import make_model, make_tokenizer, save

    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save(folder, make_model("gpt2"), make_tokenizer())


@pytest.fixture
def folder(tiny, tmp_path):
    """A folder with the tiny model of the test's own."""
    return str(shutil.copytree(tiny, tmp_path / "checkpoint"))


@pytest.fixture
def offline(monkeypatch):
    """The Hub is not asked: without a network its client tries again for a minute."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
