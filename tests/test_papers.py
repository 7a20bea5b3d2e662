"""Tables for a paper: LaTeX that compiles as it is, Markdown, minus signs, reasons for empty cells."""

import re
from pathlib import Path

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import papers
from perplexity_sliding.cli.tables import Table


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(random_text(150), "utf-8")
    Path("b.txt").write_text(random_text(12, 1), "utf-8")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "other"
    return save(folder, make_model("gpt2", seed=4), make_tokenizer())


COMMANDS = [
    ["a.txt", "b.txt"],
    ["a.txt", "--stride=8,4,2"],
    ["a.txt", "--protocol=all"],
    ["a.txt", "b.txt", "--protocol=sliding,gptq", "--columns=text"],
    ["a.txt", "--context-lengths=4,8,16"],
    ["a.txt", "b.txt", "--words"],
]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_latex_has_as_many_cells_as_columns(call, argv):
    """In an environment with a caption, rules of booktabs and nothing that LaTeX would obey."""
    written = call(*argv, "--format=latex").out
    tables = re.findall(r"\\begin{table}.*?\\end{table}", written, re.DOTALL)
    assert tables
    for table in tables:
        (columns,) = re.findall(r"\\begin{tabular}{([lr]+)}", table)
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1
        for row in rows:
            assert len(re.split(r"(?<!\\)&", row)) == len(columns)
        assert [table.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [
            1
        ] * 3
    assert not re.search(r"(?<!\\)[$#_^~]", re.sub("(?m)^%.*", "", written))
    assert written.count("{") - written.count(r"\{") == written.count("}") - written.count(r"\}")


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("format", ["latex", "markdown"])
def test_no_cell_is_blank(call, argv, format):
    written = call(*argv, f"--format={format}").out
    rows = [line for line in written.splitlines() if line.startswith(("|", "    ")) and "&" in line]
    rows += [line for line in written.splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        cells = re.split(r"(?<!\\)[|&]", row.removesuffix(r"\\").strip("|"))
        assert all(cell.strip() for cell in cells), row
    dash = "--" if format == "latex" else "–"
    lone = any(re.search(rf"[|&] +{dash} +[|&\\]", row) for row in rows)
    assert lone is any(f"{dash} {word} " in written for word in ("under", "in", "b.txt,"))


def test_the_window_the_model_and_the_signature_are_in_the_caption(call):
    result = call("a.txt", "--max-length=12", "--stride=5", "--json").json["corpus"]
    for name in ("markdown", "latex"):
        written = call("a.txt", "--max-length=12", "--stride=5", f"--format={name}").out
        assert "model tiny, windows of 12 tokens, stride 5, protocol sliding" in written
        plain = re.sub(r"\\ensuremath{\|}|\\\|", "|", written)
        assert f"Signature: {result['signature_short']}." in plain


def test_several_signatures_are_comments(call):
    argv = ("a.txt", "--stride=8,4")
    short = [row["signature_short"] for row in call(*argv, "--json").json["measurements"]]
    latex = call(*argv, "--format=latex").out.splitlines()
    assert latex[:2] == [f"% 8: {short[0]}", f"% 4: {short[1]}"]
    assert f"<!-- 4: {short[1]} -->" in call(*argv, "--format=markdown").out
    assert "windows of 16 tokens, protocol sliding" in "\n".join(latex)


def test_minus_signs_and_pvalues(call):
    argv = ("a.txt", "--stride=2,16")
    _, row = call(*argv, "--json").json["measurements"]
    ratio = row["ratio_to_first"]
    for name, minus in (("markdown", "−"), ("latex", r"\(-\)")):
        written = call(*argv, f"--format={name}").out
        changes = [100 * (value - 1) for value in (ratio["ratio"], *ratio["interval"])]
        assert min(changes) < 0
        shown = [f"{change:+.2f}".replace("-", minus) for change in changes]
        percent = r"\%" if name == "latex" else "%"
        assert "{} {} ({} to {})".format(shown[0], percent, *shown[1:]) in written
        assert f"{ratio['pvalue']:.4f}" in written


def test_pvalues_of_comparisons(call, other):
    ratio = call("a.txt", f"--reference={other}", "--json").json["models"][0]["comparison"][
        "perplexity_ratio"
    ]
    written = call("a.txt", f"--reference={other}", "--format=markdown").out
    expected = "< 0.0001" if ratio["pvalue"] < 1e-4 else f"{ratio['pvalue']:.4f}"
    head, _, reference, model = (line.split(" | ") for line in written.splitlines()[:4])
    place = [title.strip() for title in head].index("p")
    assert (reference[place].strip(), model[place].strip().replace("\\", "")) == ("–", expected)


def test_a_row_without_numbers_has_its_reason_below(call):
    written = call("a.txt", "b.txt", "--protocol=sliding,gptq", "--columns=text", "--format=latex")
    assert written.code == 2
    assert re.search(r"^    gptq & \d+\.\d\d & -- \\\\$", written.out, re.M)
    assert "at least 16 tokens" in written.out


def test_names_with_hyphens_keep_them():
    table = Table(["model", "x"], [["-1-best", "-1.5"], ["checkpoint-9", "1e-5"]], ("model",))
    written = papers.to_markdown(table)
    assert "| -1-best " in written and "| −1.5 |" in written
    assert "checkpoint-9" in written and "1e-5" in written
