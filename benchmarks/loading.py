"""Count the requests of `evaluate.load` by name, and time them beside an older layout.

    python benchmarks/loading.py [FOLDER ...]

A server on this machine plays the Hub and answers each request after 80 ms. Each folder is a clone
of the project, of which the Space is made; this one where none is named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from fake_hub import FakeHub  # noqa: E402

SPACE = "user/perplexity_sliding"
DELAY = 0.08  # seconds
# The libraries are imported before the clock starts.
PROGRAM = f"""
import time
import datasets, evaluate, torch, transformers, scipy.stats
start = time.perf_counter()
evaluate.load({SPACE!r})
print(time.perf_counter() - start)
"""


def load(hub: FakeHub, home: str) -> dict:
    """Load the metric in a new process; return its requests and seconds."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home}
    hub.asked.clear()
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return {"requests": len(hub.asked), "seconds": float(done.stdout.splitlines()[-1])}


def measure(folder: Path) -> dict[str, dict]:
    """Load a Space from a clone for the first time, and again."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=folder, capture_output=True, text=True, check=True
    )
    files = {name: (folder / name).read_bytes() for name in tracked.stdout.splitlines()}
    hub = FakeHub(DELAY)
    hub.add_space(SPACE, files)
    with tempfile.TemporaryDirectory() as home:
        result = {"first load": load(hub, home), "later load": load(hub, home)}
    hub.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT], metavar="FOLDER")
    for folder in parser.parse_args().folders:
        print(json.dumps({"folder": folder.resolve().name} | measure(folder)))


if __name__ == "__main__":
    main()
