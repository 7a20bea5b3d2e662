"""Every snippet of the README and of docs/, run as a reader would run it.

Python blocks run in a namespace of their own, with the repository as working directory; shell
blocks run in bash there, those of R where it is installed with lme4.  A `text` block that follows is what they print, as far as it isn't left
out with "..."; numbers may differ in their fourth digit, as they do between machines.  A block that
cannot be run has a comment right before it: <!-- not run: the reason -->.
"""

import contextlib
import doctest
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from perplexity_sliding.protocols import PROTOCOLS

from cli import main as score
from cli.options import parse_arguments

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
sys.path.insert(0, str(ROOT / "docs"))
from protocol_table import protocol_table, replace_table  # noqa: E402

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


class Block(NamedTuple):
    """A fenced block: where it is, what it says, and what is shown as its output."""

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
    """Whether a text is as shown: word by word, numbers with a decimal point to 0.1 %.

    "..." stands for anything.
    """
    if doctest.OutputChecker().check_output(expected, printed, LENIENT):
        return True
    match = re.fullmatch(pattern_of(expected), printed, re.DOTALL)
    numbers = zip(NUMBER.findall(expected), match.groups() if match else ())
    return match is not None and all(
        float(a) == pytest.approx(float(b), rel=1e-3) for a, b in numbers
    )


def pattern_of(expected: str) -> str:
    """A regular expression for texts as shown, with a group for every number."""
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
    """Run a block with prompts; what follows them is its output."""
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
        pytest.skip("R with lme4 is not installed")
    return subprocess.run([*r, block.body], capture_output=True, text=True, check=True).stdout


def run_line(line: str) -> str:
    """What a line of a shell block prints.

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


def run(block: Block) -> None:
    assert block.language in [*PYTHON, *SHELL, "r"], (
        f"a block of {block.language or 'no'} language is neither run nor marked as not to be"
    )
    if block.language in PYTHON and ">>>" in block.body:
        run_examples(block)
        return
    runs = dict.fromkeys(PYTHON, run_python) | dict.fromkeys(SHELL, run_shell) | {"r": run_r}
    printed = runs[block.language](block)
    if block.output is not None:
        assert same(block.output, printed), f"shown:\n{block.output}\nprinted:\n{printed}"


BLOCKS = [block for page in PAGES for block in runnable(page.read_text("utf-8"), page.name)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page} line {block.line}")
def test_snippet(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    run(block)


def test_the_readme_has_snippets_of_both_kinds():
    languages = {block.language for block in BLOCKS if block.page == README.name}
    assert languages & set(PYTHON)
    assert languages & set(SHELL)


# ---- tables


def test_the_table_of_protocols_is_that_of_the_rows():
    page = README.read_text("utf-8")
    table = protocol_table(PROTOCOLS.values())
    assert replace_table(page, table) == page, "run: python docs/protocol_table.py"
    assert table.count("\n") == len(PROTOCOLS) + 2


def test_a_protocol_with_new_attributes_has_its_line():
    new = replace(PROTOCOLS["gptq"], name="new", source="a tool", stride=7, max_length=9)
    line = protocol_table([new]).splitlines()[-1]
    assert line.startswith("| `new` | a tool | ≤ 9 | ≤ 7 | ")


def test_the_tables_of_arguments_and_results_are_complete(metric):
    page = README.read_text("utf-8") + (ROOT / "docs" / "python.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", page, re.M))))
    arguments = set(inspect.signature(metric._compute).parameters)
    assert arguments - named == set()
    results = metric.inputs_description.split("Returns:")[1].split("Raises:")[0]
    keys = re.findall(r"^        (\w+(?:, \w+)*)(?: \([^)]*\))?: ", results, re.M)
    assert {key for line in keys for key in line.split(", ")} - named == set()


def test_what_pipelines_run_is_what_the_command_line_takes():
    """The steps of the GitHub Action and the pre-commit hook: YAML, with options that there are."""
    shown = [b for page in PAGES for b in parse(page.read_text("utf-8")) if b.language == "yaml"]
    parsed = "\n".join(str(yaml.safe_load(block.body)) for block in shown)
    commands = re.findall(r"perplexity-sliding (\S*\.txt .+?)(?=\\n|')", parsed)
    given = [parse_arguments(shlex.split(command)) for command in commands]
    assert [(args.margin, args.fail_above) for args in given] == [(0.01, None), (None, 40)]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


# ---- that the above can fail

SAMPLE = """\
Text.

```python
print("one", 2.5001)
```
which prints
```python
print(1)
```

```text
1
```
<!-- not run: it needs the moon -->
```sh
exit 3
```

````python
>>> 1 + 1
2
````

```yaml
a: b
```
"""


def test_blocks_are_found():
    blocks = parse(SAMPLE)
    assert [(b.line, b.language) for b in blocks] == [
        (3, "python"), (7, "python"), (11, "text"), (15, "sh"), (19, "python"), (24, "yaml"),
    ]  # fmt: skip
    assert [b.output for b in blocks] == [None, "1\n", None, None, None, None]
    assert [b.reason for b in blocks] == [None, None, None, "it needs the moon", None, None]
    assert [b.line for b in runnable(SAMPLE)] == [3, 7, 19]
    for block in runnable(SAMPLE):
        run(block)


@pytest.mark.parametrize(
    ("markdown", "error", "message"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError, None),
        ("```python\nprint(2)\n```\n```text\n3\n```\n", AssertionError, "shown"),
        ("```python\n>>> 1 + 1\n3\n```\n", AssertionError, "Expected"),
        ("```sh\nfalse | cat\n```\n", AssertionError, None),
        ("```sh\necho 2.51\n```\n\n```text\n2.5\n```\n", AssertionError, "shown"),
        ("```sh\npython -m pytest\n```\n", AssertionError, "mark the block"),
        ("```\nsomething\n```\n", AssertionError, "neither run nor marked"),
    ],
)
def test_snippets_fail_that_should(markdown, error, message):
    (block,) = runnable(markdown)
    with pytest.raises(error, match=message):
        run(block)


@pytest.mark.parametrize(
    ("expected", "printed", "alike"),
    [
        ("perplexity 12.341\n", "perplexity 12.340\n", True),
        ("perplexity 12.341\n", "perplexity 12.441\n", False),
        ("12 tokens\n", "13 tokens\n", False),
        ("{'a': 1.5, ...}\n", "{'a': 1.5, 'b': [1, 2]}\n", True),
        ("a  b\n", "a b\n", True),
        ("a 1.5\n", "b 1.5\n", False),
        ("a 1.5001\n...\nb 2.5\n", "a 1.5\nc 9\nd 7.7\nb 2.5001\n", True),
        ("a 1.5\n...\nb 2.5\n", "a 1.5\nc 9\nb 2.6\n", False),
        ("a 1.5001\n...\n", "a 1.5\n", True),
        ("a 1.5001\nb\n...\n", "a 1.5\nc 1\n", False),
    ],
)
def test_what_counts_as_the_same_output(expected, printed, alike):
    assert same(expected, printed) == alike
