"""Loading by name through the real Hub loader of evaluate, from a server that plays the Hub."""

import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

PREFIX = "/spaces/user/perplexity_sliding/resolve/main/"

# Run away from the repository, in a process that knows the Hub under another address.
SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
import evaluate
from models import make_tokenizer, make_uniform_model, random_text

metric = evaluate.load("user/perplexity_sliding")
result = metric.compute(
    predictions=[random_text(50), random_text(7)],
    model=make_uniform_model(),
    tokenizer=make_tokenizer(),
    stride=4,
)
print(json.dumps({{"result": result, "module": type(metric).__module__}}))
"""


class Hub(SimpleHTTPRequestHandler):
    """The files of one Space, and nothing else."""

    requested: list[str]

    def translate_path(self, path):
        name = path.split("?")[0].removeprefix(PREFIX)
        known = path.startswith(PREFIX) and "/" not in name
        return os.path.join(self.directory, name if known else "no such file")

    def end_headers(self):
        self.send_header("ETag", '"0123456789abcdef"')
        self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()

    def log_message(self, *args):
        self.requested.append(self.path)


@pytest.fixture
def hub(root):
    requested = []
    handler = type("Handler", (Hub,), {"requested": requested})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requested
    server.shutdown()
    server.server_close()


def test_the_metric_loads_by_name_with_all_its_parts(hub, root, tmp_path):
    address, requested = hub
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(tests=str(root / "tests"))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["result"]["perplexity"] == pytest.approx(80, rel=1e-6)
    assert answer["result"]["num_tokens"] == 57
    # what was imported came from there, not from the folder of the tests
    assert answer["module"].startswith("evaluate_modules.")
    fetched = {line.split("/")[-1].split()[0] for line in requested}
    assert {"perplexity_sliding.py", *siblings(root)} <= fetched


def siblings(root) -> list[str]:
    """Every module that the metric or another of its modules imports."""
    imported, waiting = set(), ["perplexity_sliding.py"]
    while waiting:
        source = (root / waiting.pop()).read_text(encoding="utf-8")
        for line in source.splitlines():
            words = line.split()
            if words[:1] == ["from"] and words[1].startswith(".") and len(words[1]) > 1:
                name = words[1].removeprefix(".") + ".py"
                if name not in imported:
                    imported.add(name)
                    waiting.append(name)
    return sorted(imported)


def test_the_main_file_names_every_part_itself(root):
    """evaluate copies what the main file imports, and doesn't look into that."""
    main = (root / "perplexity_sliding.py").read_text(encoding="utf-8").splitlines()
    for name in siblings(root):
        module = name.removesuffix(".py")
        assert any(line.startswith(f"from .{module} import") for line in main), module
    for line in main:
        if line.startswith("from ."):
            assert "#" not in line, "evaluate takes a comment there for an address to download"
