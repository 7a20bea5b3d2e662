"""Every snippet of the README and of docs/, run as a reader would run it (docs/snippets.py)."""

import inspect
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from perplexity_sliding.cli.options import parse_arguments
from perplexity_sliding.protocols import PROTOCOLS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
from protocol_table import protocol_table, replace_table  # noqa: E402
from snippets import PAGES, PYTHON, README, SHELL, NotInstalled, parse, printed_by, runnable, same  # noqa: E402


def run(block):
    try:
        printed = printed_by(block)
    except NotInstalled as missing:
        pytest.skip(str(missing))
    if printed is not None and block.output is not None:
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
    page = (ROOT / "docs" / "protocols.md").read_text("utf-8")
    table = protocol_table(PROTOCOLS.values())
    assert replace_table(page, table) == page, "run: python docs/protocol_table.py"
    assert table.count("\n") == len(PROTOCOLS) + 2


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


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the Hub make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(
            r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text("utf-8")
        ):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name}: {target}"
            if anchor and linked.suffix == ".md":
                assert anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


# ---- that the above can fail


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
