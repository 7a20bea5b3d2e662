"""Find the snippets of the README and of docs/, run them like a reader, and compare the output.

Python blocks run in a namespace of their own, with the repository as working directory; shell
blocks run in bash there, those of R where it is installed with lme4.  A `text` block that follows is
what they print, as far as it isn't left out with "..."; numbers may differ in their fourth digit, as
they do between machines.  A block that cannot be run has a comment right before it:
<!-- not run: the reason -->.  tests/test_readme.py runs them all, docs/renew.py writes what they print.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perplexity_sliding.cli import main as score  # noqa: E402

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = ("python", "py")
SHELL = ("bash", "sh", "shell")
SHELL_SIGNS = set("*?$`<>&;|~")
SHOWN = ("text", "yaml", "bibtex")
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+?) -->\n+)?"
    r"^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?")
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class NotInstalled(Exception):
    """A requirement of a block is missing."""


class Block(NamedTuple):
    """A fenced block: its position, its code, and the output shown."""

    page: str
    line: int
    language: str
    body: str
    reason: str | None
    output: str | None


def parse(markdown: str, page: str = "README.md") -> list[Block]:
    matches = list(BLOCK.finditer(markdown))
    blocks = []
    for match, after in zip(matches, [*matches[1:], None]):
        follows = after is not None and not markdown[match.end() : after.start()].strip()
        shown = follows and after["language"] == "text"
        line = markdown.count("\n", 0, match.start("fence")) + 1
        output = after["body"] if shown else None
        blocks.append(Block(page, line, match["language"], match["body"], match["reason"], output))
    return blocks


def runnable(markdown: str, page: str = "README.md") -> list[Block]:
    return [b for b in parse(markdown, page) if b.language not in SHOWN and b.reason is None]


def same(expected: str, printed: str) -> bool:
    """Whether a text matches the one shown: word by word, decimal numbers to 0.1 %.

    "..." stands for anything.
    """
    if doctest.OutputChecker().check_output(expected, printed, LENIENT):
        return True
    match = re.fullmatch(pattern_of(expected), printed, re.DOTALL)
    numbers = zip(NUMBER.findall(expected), match.groups() if match else ())
    return match is not None and all(
        abs(float(a) - float(b)) <= 1e-3 * abs(float(b)) for a, b in numbers
    )


def pattern_of(expected: str) -> str:
    """A regular expression for the text shown, with a group for every number."""
    pieces = re.split(rf"({NUMBER.pattern}|\.\.\.|\s+)", expected.strip())
    signs = [
        f"({NUMBER.pattern})"
        if NUMBER.fullmatch(piece)
        else {"...": ".*?", "": ""}.get(piece, r"\s+" if piece.isspace() else re.escape(piece))
        for piece in pieces
    ]
    return rf"\s*{''.join(signs)}\s*"


class Checker(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        return same(want, got)


def run_examples(block: Block) -> None:
    """Run a block with prompts, followed by its output."""
    test = doctest.DocTestParser().get_doctest(block.body, {}, "README", block.page, block.line)
    failures = []
    doctest.DocTestRunner(Checker(), optionflags=LENIENT).run(test, out=failures.append)
    assert not failures, "".join(failures)


def run_python(block: Block) -> str:
    printed = io.StringIO()
    code = compile(block.body, f"{block.page}, line {block.line}", "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    return printed.getvalue()


def run_shell(block: Block) -> str:
    assert "pytest" not in block.body, "the tests don't run themselves: mark the block"
    return "".join(map(run_line, block.body.replace("\\\n", "").splitlines()))


def run_r(block: Block) -> str:
    r = ["Rscript", "--vanilla", "-e"]
    if (
        not shutil.which("Rscript")
        or subprocess.run([*r, "library(lme4)"], capture_output=True).returncode
    ):
        raise NotInstalled("R with lme4 is not installed")
    return subprocess.run([*r, block.body], capture_output=True, text=True, check=True).stdout


def run_line(line: str) -> str:
    """Return the output of a line of a shell block.

    The program's lines are run in this process, by the words that a shell would make of them: its
    imports take most of the time of a start.  What follows behind a pipe is left to the shell.
    """
    command, _, behind = line.partition(" | ")
    if not command.startswith("python score.py ") or set(command) & SHELL_SIGNS:
        return run_in_shell(line)
    output = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(output):
        assert score.main(shlex.split(command)[2:]) == 0, command
    printed = output.buffer.getvalue().decode()
    return run_in_shell(behind, printed) if behind else printed


def run_in_shell(command: str, given: str = "") -> str:
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        input=given,
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_by(block: Block) -> str | None:
    """Run a block; return its output, or None if it has prompts and checks itself.

    Raises:
        AssertionError: it fails, or its language is neither run nor marked as not to be.
        NotInstalled: what it needs is not there.
    """
    assert block.language in [*PYTHON, *SHELL, "r"], (
        f"a block of {block.language or 'no'} language is neither run nor marked as not to be"
    )
    if block.language in PYTHON and ">>>" in block.body:
        run_examples(block)
        return None
    runs = dict.fromkeys(PYTHON, run_python) | dict.fromkeys(SHELL, run_shell) | {"r": run_r}
    return runs[block.language](block)
