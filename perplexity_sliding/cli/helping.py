"""--help: an overview of two screens of 24 lines, and a detailed list for each group of options."""

import argparse
import textwrap

from .streams import to_stdout

# Common options, on the first screen.
OFTEN = ("model_id", "protocol", "stride", "format", "output", "fail_above", "cite")
LINES = 80

INTRODUCTION = """\
usage: {program} [FILE ...] [options]

Compute the perplexity of texts of any length under a language model. The model
reads at most one window of tokens at a time; the window slides by a stride, and
each token is scored once. Lower is better.

  {program} samples/story.txt                 a text, a table, a folder, or -
  {program} samples --model openai-community/gpt2 --stride 256
  {program} story.txt --protocol all          compare all protocols
  {program} story.txt --stride 64,32,16       compare strides
  {program} story.txt --model me/4bit --reference me/full --margin 0.01
  {program} reviews.csv --id-column id --output scores.csv
  {program} items.csv --words --context-column context -o words.csv
"""
EXIT_CODES = """\
exit codes: 0 success; 1 above --fail-above, or not within --margin; 2 bad input
(see stderr); 3 crash; 130, 143 interrupted. Details: docs/command-line.md
"""


class HelpAction(argparse.Action):
    """Print the overview, or one group of options."""

    def __init__(self, option_strings, dest, groups, **settings):
        super().__init__(
            option_strings, dest, nargs="?", choices=[*groups, "all"], metavar="GROUP", **settings
        )
        self.groups = groups

    def __call__(self, parser, namespace, value, option_string=None):
        if value is None:
            shown = overview(parser, self.groups)
        elif value == "all":
            groups = self.groups.items()
            shown = "\n".join(of_group(parser, title, names) for title, names in groups) + "\n"
        else:
            shown = of_group(parser, value, self.groups[value])
        to_stdout([shown])
        parser.exit()


def overview(parser: argparse.ArgumentParser, groups: dict[str, list[str]]) -> str:
    """Return the purpose, the common options with their help, and the names of the others by group."""
    often = described(parser, list(OFTEN))
    listed = [
        textwrap.fill(
            ", ".join(spelled(parser, name) for name in names if name not in OFTEN),
            LINES,
            initial_indent=f"  {title:<10}",
            subsequent_indent=" " * 12,
            break_on_hyphens=False,
            break_long_words=False,
        )
        for title, names in groups.items()
    ]
    parts = [
        INTRODUCTION.format(program=parser.prog),
        f"common options:\n{often}",
        f"other options by group ({parser.prog} --help GROUP, or --help all, explains them):\n"
        + "\n".join(listed)
        + "\n",
        EXIT_CODES,
    ]
    return "\n".join(parts)


def of_group(parser: argparse.ArgumentParser, title: str, names: list[str]) -> str:
    return f"{title}:\n{described(parser, names)}"


def described(parser: argparse.ArgumentParser, names: list[str]) -> str:
    """List the options with their help, one per line if it fits."""
    formatter = parser.formatter_class(parser.prog)
    formatter.start_section(None)
    formatter.add_arguments([action_of(parser, name) for name in names])
    formatter.end_section()
    return formatter.format_help()


def action_of(parser: argparse.ArgumentParser, name: str) -> argparse.Action:
    return next(action for action in parser._actions if action.dest == name)


def spelled(parser: argparse.ArgumentParser, name: str) -> str:
    """Return the first long name of an option."""
    names = action_of(parser, name).option_strings or [action_of(parser, name).metavar]
    return next((option for option in names if option.startswith("--")), names[0])
