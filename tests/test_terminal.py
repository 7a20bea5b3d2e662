"""What a person at a terminal sees, and that pipes see none of it."""

import os
import re
import sys
from pathlib import Path

import pytest
from wcwidth import wcswidth

COLOURS = re.compile(r"\x1b\[[\d;]*m")
TEXT = "w3 w4 w5 w6 w7 w8 " * 20
ESCAPE = "\x1b[31mred\u202e"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(TEXT, "utf-8")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def at_terminal(monkeypatch, call):
    """Run the command line with standard output on a terminal."""

    def at_terminal(*argv: str):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        return call(*argv, "--quiet").out

    return at_terminal


def words(text: str) -> list[str]:
    return COLOURS.sub("", text).split()


@pytest.mark.parametrize(
    "argv", [["a.txt"], ["a.txt", "--stride=16,8"], ["a.txt", "b.txt", "--verbose"]]
)
def test_a_terminal_has_colours_and_the_words_of_a_pipe(call, at_terminal, argv):
    Path("b.txt").write_text(TEXT[:90], "utf-8")
    piped, shown = call(*argv, "--quiet").out, at_terminal(*argv)
    assert "\x1b" not in piped
    assert COLOURS.search(shown)
    assert words(shown) == words(piped)


def test_the_signature_can_be_copied(call, at_terminal):
    """It is one line, however long."""
    piped, shown = call("a.txt", "--verbose", "--quiet").out, at_terminal("a.txt", "--verbose")
    assert len(piped.splitlines()[-1]) > 80
    assert COLOURS.sub("", shown).splitlines()[-1] == piped.splitlines()[-1]


def test_models_beside_each_other(call, at_terminal, tiny):
    argv = ["a.txt", f"--reference={tiny}"]
    piped = call(*argv, "--quiet").out
    assert words(at_terminal(*argv)) == words(piped)


def test_there_are_no_colours_where_none_are_wanted(at_terminal, monkeypatch):
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert not re.search(r"\x1b\[[\d;]*3\d", at_terminal("a.txt")), name


def test_all_fits_into_80_columns(at_terminal):
    name = "a rather long name of a file in which there is a text.txt"
    os.rename("a.txt", name)
    Path("bad.txt").write_bytes(b"caf\xe9!")
    for argv in (["bad.txt"], ["--protocol=all"]):
        shown = COLOURS.sub("", at_terminal(name, *argv))
        lines = shown.split("\n\n")[0].splitlines()
        assert max(map(wcswidth, lines)) <= 80
        assert "text.txt" in shown or "protocol" in shown


def test_what_could_not_be_scored_is_said_in_red(at_terminal):
    Path("bad.txt").write_bytes(b"caf\xe9!")
    shown = at_terminal("a.txt", "bad.txt")
    assert re.search(r"\x1b\[31mbad\.txt: .*not UTF-8", shown)


def test_names_cannot_change_colours(at_terminal):
    """Neither those of files nor what stands in the texts."""
    os.rename("a.txt", f"{ESCAPE}.txt")
    for more in ([], ["--tokens"], ["--words"]):
        shown = at_terminal(f"{ESCAPE}.txt", *more)
        assert "\x1b[31mred" not in shown and "\u202e" not in shown


def test_neither_can_the_names_of_rows_that_are_refused(at_terminal):
    Path("a.csv").write_text(f"id,text\n{ESCAPE},w3\nb,{TEXT}\n", "utf-8")
    shown = at_terminal("a.csv", "--id-column=id", "--add-start-token=false")
    assert "u202e: " in shown, "the row is named"
    assert "\x1b[31mred" not in shown and "\u202e" not in shown


def test_markup_stays_what_it_is(at_terminal):
    os.rename("a.txt", "[red]a[link=x].txt")
    assert "[red]a[link=x].txt" in at_terminal("[red]a[link=x].txt")


def test_who_tries_it_out_is_told_what_it_measures(capsys, monkeypatch, root):
    """Once, beside the number of the bundled model; a pipe gets what it always got."""
    from perplexity_sliding.cli import main

    note = str(root / "samples" / "note.txt")
    command = [note, "--quiet", "--max-length", "32"]  # shorter than the text
    assert main.main(command) == 0
    assert "windows of" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main.main(command) == 0
    shown = " ".join(words(capsys.readouterr().out))
    assert (
        shown.count("the number of equally likely tokens that would leave the model as uncertain")
        == 1
    )
    assert "windows of 32 tokens that move by a stride of 16" in shown
    assert shown.count("ower is better") == 1
    assert "Hidden columns" not in shown
