"""Processes that have imported what the metric needs, and nothing of the metric itself.

To import torch and its like takes seconds.  One process does it, and splits for each program that it
is sent: a line of JSON with `source`, `folder`, and `path`, entries for the head of `sys.path`.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Outcome:
    """What a program left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        """Its last line."""
        assert self.code == 0, self.err
        return json.loads(self.out.splitlines()[-1])


class FreshPython:
    """Runs programs, each as if Python had just been started in a folder."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def run(self, source: str, folder: str | Path, path: list[str | Path] = ()) -> Outcome:
        program = {"source": source, "folder": str(folder), "path": list(map(str, path))}
        print(json.dumps(program), file=self._process.stdin, flush=True)
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=60)


def serve() -> None:
    """Run each program that standard input brings, and print what came of it."""
    # Nothing of the repository, of which this file is a part.
    sys.path.pop(0)
    import datasets  # noqa: F401
    import evaluate  # noqa: F401
    import torch  # noqa: F401
    from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: F401

    for line in sys.stdin:
        program = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                become(program, out.fileno(), err.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0), err.seek(0)
            print(json.dumps({"code": code, "out": out.read(), "err": err.read()}), flush=True)


def become(program: dict, out: int, err: int) -> None:
    """Run a program as `__main__` in this process, and end."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(program["folder"])
    # `python FILE`, as processes that the program starts find it again
    file = Path(tempfile.mkdtemp(), "program.py")
    file.write_text(program["source"], "utf-8")
    sys.argv = [str(file)]
    sys.path[:0] = program["path"]
    code = 1
    try:
        runpy.run_path(str(file), run_name="__main__")
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
