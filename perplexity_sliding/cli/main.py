"""The steps of the command line: check, read, measure, show; and the exit code."""

import argparse
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from . import advice, formats, output, verifying
from .checks import check_model, check_path, check_spares_models, check_writable
from .measuring import Report, load_metric, measure, merge
from .messages import describe, program_name, say, show_traceback, show_warning
from .options import (
    TIDY,
    WITHOUT_ADAPTER,
    as_list,
    parse_arguments,
    was_started_by_torchrun,
    with_hyphens,
    written_files,
)
from .progress import Progress
from .reading import check_output, open_each, open_texts
from .streams import to_stdout
from .tables import AXES, SETTINGS, label, varying_settings

REFUSALS = (ValueError, TypeError)
# Exit codes; 128 plus the number of a signal that ended the run.
ABOVE_LIMIT, BAD_INPUT, CRASHED, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143


class Terminated(KeyboardInterrupt):
    """The run received SIGTERM, which job schedulers send before they kill."""


def run(args: argparse.Namespace) -> int:
    """Run the parsed command line; return the exit code."""
    if args.merge:
        for option, path in written_files(args).items():
            check_writable(option, path)
            check_output(option, path, list(filter(os.path.exists, args.files)), "parts")
        args.takes_bundled_model = False  # the parts name their model
        return deliver(merge(args), args)  # parts cannot be cited
    check_names(args)
    if args.find:
        from .searching import search

        return search(args)
    warn_of_numbers_without_columns(args)
    plots = check_plot(args.plot)
    showing = import_showing(args)
    progress = Progress(title(args), args.hides_progress, advice=lambda: advice.of_long_runs(args))
    try:
        progress.status("Reading")
        files = open_each(args) if args.takes_each_file else []
        if not files:
            texts = open_texts(args)
            files = [chain([next(texts)], texts)]  # report an unreadable file before slow imports
        progress.status("Loading the libraries")
        metric = load_metric(args)
        progress.status(f"Loading {os.path.basename(args.model_id.rstrip('/'))}")
        report = measure(metric, files, args, progress)
    finally:
        progress.close()
    if is_one_of_several(args):
        return verdict(report, args)[0]  # the first process of the torchrun writes
    if args.stored:
        return verify(report, args)
    return deliver(report, args, metric, plots, showing)


def deliver(report: Report, args: argparse.Namespace, metric=None, plots=None, showing=None) -> int:
    """Write the files, then print; return the exit code, which is determined first.

    Args:
        metric: provides the citation; None without --cite.
        plots, showing: the modules that draw and colour, if needed.

    Raises:
        Exception: a file cannot be written or drawn; the other files are written, and the numbers
            are printed.
    """
    code, missed = verdict(report, args)
    writers = {
        args.output: lambda: output.write(report, args, metric),
        args.html: lambda: showing.write_report(report, args, metric),
        args.plot: lambda: draw(plots, report, args),
    }
    written, failures = write_files([write for path, write in writers.items() if path])
    if args.show and sys.stdout is not None:
        showing.print_texts(report.shown)
    if args.output is None and sys.stdout is not None:
        to_stdout(output.printed(report, args, metric))
    for sentence in [*missed, *([] if args.hides_progress else written)]:
        say(sentence)
    for error in failures[1:]:
        say(f"error: {describe(error)}")
    if failures:
        raise failures[0]
    return code


def write_files(writers: Iterable[Callable[[], str | None]]) -> tuple[list[str], list[Exception]]:
    """Write one file after the other; return the messages and the errors.

    A closed pipe is not an error.
    """
    written, failures = [], []
    for write in writers:
        try:
            written.append(write())
        except BrokenPipeError:
            pass
        except Exception as error:  # whatever it is, it costs no other file
            failures.append(error)
    return list(filter(None, written)), failures


def draw(plots, report: Report, args: argparse.Namespace) -> None:
    """Draw the plot of --plot."""
    if report.corpus is not None:
        plots.draw_curves(report.corpus, args.plot)
    else:
        plots.draw(report.compared, report.measurements, args.plot, report.axes)


def verify(report: Report, args: argparse.Namespace) -> int:
    """Print whether the stored result was reproduced; return the exit code."""
    repeated = json.loads("".join(output.render(report, args, metric=None)))
    outcome = verifying.compare(formats.finite(args.stored), repeated)
    to_stdout([verifying.describe(outcome)])
    return 0 if outcome.is_verified else ABOVE_LIMIT


def check_names(args: argparse.Namespace) -> None:
    """Refuse models that cannot be loaded, and files that cannot be written."""
    given = (args.model_kwargs, args.tokenizer_kwargs, args.reference_model_kwargs)
    subfolders = [settings["subfolder"] for settings in given if (settings or {}).get("subfolder")]
    for name in args.models:
        check_model(name, subfolders=subfolders)
    for name, option in ((args.reference, "--reference"), (args.evaluator, "--evaluator")):
        if name and name != WITHOUT_ADAPTER:
            check_model(name, option, subfolders)
    if args.tokenizer:
        check_path(args.tokenizer, "--tokenizer")
    others = (args.reference, args.evaluator, args.tokenizer)
    models = [*args.models, *filter(None, others)]
    for option, path in written_files(args).items():
        check_writable(option, path)
        check_spares_models(option, path, models, subfolders)


def check_is_printed(args: argparse.Namespace) -> None:
    """Refuse a run without any output, except --verify, whose exit code is a result."""
    if sys.stdout is not None or args.output or args.html or args.plot or args.verify:
        return
    if args.find:
        raise ValueError("--find prints what it finds, but standard output is closed: open it.")
    raise ValueError("Standard output is closed: pass --output FILE.")


def warn_of_numbers_without_columns(args: argparse.Namespace) -> None:
    """Warn about results over all texts if the output has only one row per text."""
    has_rows_of_texts = args.format in TIDY and not (args.reference or args.models[1:])
    names = ("key_tokens", "context_lengths", "positions")
    asked = [f"--{with_hyphens(name)}" for name in names if getattr(args, name)]
    if has_rows_of_texts and asked:
        say(
            f"warning: --format {args.format} has no column for the result of {', '.join(asked)}, "
            "which covers all texts together. Use --format json."
        )


def title(args: argparse.Namespace) -> str:
    """Return the title of the progress bar."""
    if args.reference:
        return "Comparing"
    given = {"stride": args.stride, "window": args.max_length, "protocol": args.protocol}
    named = [
        f"{name} {', '.join(map(str, as_list(value)))}" for name, value in given.items() if value
    ]
    return "Scoring" + (f", {'; '.join(named)}" if named else "")


def verdict(report: Report, args: argparse.Namespace) -> tuple[int, list[str]]:
    """Return the exit code, and the reasons if it is not 0: an error, or an exceeded limit."""
    if report.num_refused:
        return BAD_INPUT, [f"error: {first_refusal(report)}"]
    missed = [*above_limit(report, args.fail_above), *beyond_margin(report, args.margin)]
    return ABOVE_LIMIT if missed else 0, missed


def first_refusal(report: Report) -> str:
    """Return the error of the first text or setting without a number, for those who see no table."""
    refused = (row for row in chain(report.texts, report.measurements) if "error" in row)
    first = next(refused)
    name, error = first.get("name", ""), first["error"]
    num_more = sum(1 for _ in refused)
    more = f" ({num_more:,} more could not be scored)" if num_more else ""
    return (f"{name}: " if name not in error else "") + error + more


def above_limit(report: Report, limit: float | None) -> list[str]:
    """List the results above --fail-above; an undefined perplexity counts as above."""
    if limit is None:
        return []
    return [
        f"perplexity {shown}{of_what(result, report)} is above --fail-above {shown_limit}"
        for result in report.results
        if not result["perplexity"] <= limit
        for shown, shown_limit in [told_apart(result["perplexity"], limit)]
    ]


def told_apart(number: float, limit: float) -> tuple[str, str]:
    """Format two different numbers with eight digits, or all if these are the same."""
    short = f"{number:.8g}", f"{limit:.8g}"
    return short if short[0] != short[1] else (repr(number), repr(limit))


def of_what(result: dict, report: Report) -> str:
    """Return a phrase that identifies one of several results."""
    if report.compared == "models":
        return f" of {result['name']}"
    if report.compared is None:
        return ""
    if report.compared == "grid":
        return f" of {label(result, [AXES[axis] for axis in report.axes])}"
    varying = varying_settings(report.measurements)
    return " at " + ", ".join(f"{SETTINGS[key]} {result[key]}" for key in varying)


def beyond_margin(report: Report, margin: float | None) -> list[str]:
    """List the models that are not within --margin."""
    if margin is None:
        return []
    return [
        f"{result['name']} is not within --margin {margin:g} at 95 % confidence"
        for result in report.results
        if not result["comparison"]["within_margin"]
    ]


def check_plot(path: str | None):
    """Import the plots, and refuse a file that cannot be drawn, before anything is computed."""
    if path is None:
        return None
    try:
        from . import plots
    except ImportError:
        raise ValueError("--plot requires matplotlib: pip install matplotlib.") from None
    plots.check_path(path)
    return plots


def import_showing(args: argparse.Namespace):
    """Import the slow module that colours texts, if it is needed."""
    if not (args.show or args.html):
        return None
    from . import showing

    return showing


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    args = None
    try:
        with warnings.catch_warnings(), terminable():
            warnings.showwarning = show_warning
            args = parse_arguments(argv, program_name())
            check_is_printed(args)
            return run(args)
    except KeyboardInterrupt as error:
        if not is_one_of_several(args):
            say(how_to_go_on(args))
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        say(f"error: the package {name} is missing: pip install {name}.")
        return BAD_INPUT
    except (*REFUSALS, OSError, MemoryError) as error:
        if "--debug" in argv:
            show_traceback(error)
        if not is_reported_by_another_process(error, args):
            say(f"error: {describe(error)}")
        return BAD_INPUT
    except Exception as error:
        show_traceback(error)
        say(f"crashed: {describe(error)}. This is a bug: please report the lines above.")
        return CRASHED
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by libraries written in Rust
            raise
        say(f"error: the tokenizer failed on the input: {describe(error)}.")
        return BAD_INPUT


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM end the run like Ctrl-C: close files, and explain how to resume."""

    def stop(*_: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # no other receives signals
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def is_one_of_several(args: argparse.Namespace | None) -> bool:
    """Return whether this is a process of torchrun, and not the first."""
    return args is not None and args.distributed and os.environ.get("RANK", "0") != "0"


def is_reported_by_another_process(error: Exception, args: argparse.Namespace | None) -> bool:
    """Return whether the first process of torchrun has the same error, and prints it for all.

    The metric marks errors that it raises in every process; an invalid command line is one in each.
    """
    return os.environ.get("RANK", "0") != "0" and (
        was_started_by_torchrun() if args is None else getattr(error, "is_shared", False)
    )


def how_to_go_on(args: argparse.Namespace | None) -> str:
    """Return a message on resuming an interrupted run."""
    if args is not None and args.checkpoint:
        return f"interrupted. Run the same command again to resume from {args.checkpoint}."
    return "interrupted. Nothing was stored; with --checkpoint FILE, the same command can resume."
