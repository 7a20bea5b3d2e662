"""The steps of the command line: check, read, measure, show; and the exit code."""

import argparse
import json
import os
import sys
import warnings
from itertools import chain
from pathlib import Path

from . import output, rows, stored
from .comparing import AXES, label
from .measuring import Report, load_metric, measure, merge
from .messages import Progress, describe, harmless, in_options, say, show_traceback, to_stdout
from .options import parse_arguments, was_started_by_torchrun
from .reading import check_outputs, open_texts

# Exit codes; 128 plus the number of a signal that ended the run.
ABOVE_LIMIT, BAD_INPUT, CRASHED, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143


class Terminated(KeyboardInterrupt):
    """The run received SIGTERM, which job schedulers send before they kill."""


def terminate(*_: object) -> None:
    """Handle SIGTERM like Ctrl-C: close files, and explain how to resume."""
    raise Terminated


def run(args: argparse.Namespace) -> int:
    if args.merge:
        check_outputs(args, args.files)
        args.takes_bundled_model = False  # the parts name their model
        return deliver(merge(args), args)
    for name in filter(None, [*args.models, args.reference]):  # before slow imports
        path = Path(name).expanduser()
        if name.startswith((".", "/", "~")) and not path.exists():
            raise ValueError(f"{name}: there is no such folder.")
        marks = ("config.json", "adapter_config.json", "*.gguf")
        if path.is_dir() and not args.model_kwargs and not any(map(any, map(path.glob, marks))):
            advice = "Pass one written by save_pretrained, such as a checkpoint inside it."
            raise ValueError(f"{name} is a folder without config.json. {advice}")
    if args.find:
        from .searching import search

        return search(args)
    progress = Progress("Comparing" if args.reference else "Scoring", args.hides_progress)
    try:
        progress.status("Reading")
        if args.takes_each_file:
            files = [open_texts(args, [file]) for file in args.files]
        else:
            texts = open_texts(args, args.files)
            files = [chain([next(texts)], texts)]  # report an unreadable file before slow imports
        progress.status("Loading the libraries")
        compute = load_metric(args)
        progress.status(f"Loading {os.path.basename(args.model_id.rstrip('/'))}")
        report = measure(compute, files, args, progress)
    finally:
        progress.close()
    if args.distributed and not is_first():  # the first process of torchrun writes
        return verdict(report, args)[0]
    if args.stored:
        repeated = json.loads("".join(output.render(report, args)))
        said, is_verified = stored.compare(rows.finite(args.stored), repeated)
        to_stdout([said])
        return 0 if is_verified else ABOVE_LIMIT
    return deliver(report, args)


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def deliver(report: Report, args: argparse.Namespace) -> int:
    """Print, then write the files, which may fail; return the exit code."""
    code, said = verdict(report, args)
    if args.show:
        output.print_texts(report.shown)
    if args.output is None:
        pieces = output.render(report, args)
        to_stdout(map(harmless, pieces) if sys.stdout.isatty() else pieces)
    for path, write in ((args.output, output.write), (args.html, output.write_html)):
        written = write(report, args) if path else None
        said += [written] if written and not args.hides_progress else []
    for sentence in said:
        say(sentence)
    return code


def verdict(report: Report, args: argparse.Namespace) -> tuple[int, list[str]]:
    """Return the exit code, and the reasons if it is not 0: an error, or an exceeded limit."""
    if report.num_refused:
        refused = [row for row in chain(report.texts, report.measurements) if "error" in row]
        name, error = refused[0].get("name", ""), refused[0]["error"]
        more = f" ({len(refused) - 1:,} more could not be scored)" if refused[1:] else ""
        name = f"{name}: " if name and name not in error else ""
        return BAD_INPUT, [f"error: {name}{error}{more}"]
    missed, limit = [], args.fail_above
    for result in report.results:
        # an undefined perplexity counts as above
        if limit is not None and not result["perplexity"] <= limit:
            sizes = {AXES[size]: f"{size} {result[AXES[size]]}" for size in ("window", "stride")}
            named = label(result | sizes, [AXES[axis] for axis in args.axes])
            named = f" of {named}" if args.axes else ""
            missed.append(
                f"perplexity {result['perplexity']:.8g}{named} is above --fail-above {limit:.8g}"
            )
        comparison = result.get("comparison", {})
        if not comparison.get("within_margin", True):
            why = ": there is too little text to tell" * comparison["verdict"].startswith("too")
            missed.append(
                f"{result['name']} is not within --margin {args.margin:g} at 95 % confidence{why}"
            )
    return ABOVE_LIMIT if missed else 0, missed


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if hasattr(sys.stdout, "reconfigure"):  # not in a notebook
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    args = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *_: say(f"warning: {in_options(text)}")
            args = parse_arguments(argv)
            return run(args)
    except KeyboardInterrupt as error:
        advice = "Nothing was stored; with --checkpoint FILE, the same command can resume."
        if args and args.checkpoint:
            advice = f"Run the same command again to resume from {args.checkpoint}."
        if is_first():
            say(f"interrupted. {advice}")
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError) as error:
        if "--debug" in argv:
            show_traceback(error)
        # the first process of torchrun has the same error, and prints it for all
        is_same = was_started_by_torchrun() if args is None else getattr(error, "is_shared", False)
        if is_first() or not is_same:
            say(f"error: {describe(error)}")
        return BAD_INPUT
    except Exception as error:
        show_traceback(error)
        say(f"crashed: {describe(error)}. This is a bug: please report the lines above.")
        return CRASHED
