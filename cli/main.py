"""The order of work: check, read, measure, show; and the exit code.

Texts come from files, from a pipe or from a dataset; the model is the bundled one unless `--model`
names another.
"""

import argparse
import math
import os
import sys
import traceback
import warnings
from itertools import chain

from .checks import check_model, check_writable
from .measuring import Report, as_list, load_metric, measure
from .messages import describe, program_name, say, show_warning
from .options import parse_arguments
from .output import show
from .progress import Progress
from .reading import open_texts

REFUSALS = (ValueError, TypeError)
BAD_INPUT, ABOVE_LIMIT, INTERRUPTED = 2, 1, 130


def run(args: argparse.Namespace) -> int:
    """Do what the command line says; return the exit code."""
    for name in args.models:
        check_model(name)
    if args.reference_model_id:
        check_model(args.reference_model_id, "--reference")
    check_writable("--output", args.output)
    check_writable("--checkpoint", args.checkpoint)
    plots = check_plot(args.plot)
    progress = Progress(title(args), args.hides_progress)
    try:
        progress.status("Reading")
        texts = open_texts(args)
        texts = chain([next(texts)], texts)  # what cannot be read shows before the imports
        progress.status("Loading the libraries")
        metric = load_metric(args)
        progress.status(f"Loading {os.path.basename(args.model_id.rstrip('/'))}")
        report = measure(metric, texts, args, progress)
    finally:
        progress.close()
    if args.distributed and os.environ.get("RANK", "0") != "0":
        return exit_code(report, args)  # the first process of the torchrun prints
    show(report, args, metric)
    if plots and report.corpus is not None:
        plots.draw_curves(report.corpus, args.plot)
    elif plots:
        plots.draw(report.compared, report.measurements, args.plot)
    return exit_code(report, args)


def title(args: argparse.Namespace) -> str:
    """What the bar is named by."""
    if args.reference_model_id:
        return "Comparing"
    given = {"stride": args.stride, "window": args.max_length, "protocol": args.protocol}
    named = [
        f"{name} {', '.join(map(str, as_list(value)))}" for name, value in given.items() if value
    ]
    return "Scoring" + (f", {'; '.join(named)}" if named else "")


def exit_code(report: Report, args: argparse.Namespace) -> int:
    """What the shell is told; a gate that is not met is also said."""
    if report.num_refused:
        return BAD_INPUT
    perplexities = [result["perplexity"] for result in report.results]
    worst = math.nan if any(map(math.isnan, perplexities)) else max(perplexities)
    if args.fail_above is not None and not worst <= args.fail_above:
        say(f"perplexity {worst:.2f} is above --fail-above {args.fail_above:g}")
        return ABOVE_LIMIT
    if args.margin is not None:
        return within_margin(report, args)
    return 0


def within_margin(report: Report, args: argparse.Namespace) -> int:
    """The exit code for --margin; what is not surely within it is said."""
    code = 0
    for row in report.results:
        if not row["comparison"]["within_margin"]:
            say(f"{row['name']} is not surely within --margin {args.margin:g}")
            code = ABOVE_LIMIT
    return code


def check_plot(path: str | None):
    """Import what draws, and refuse a file that can't be written, before anything is computed."""
    if path is None:
        return None
    try:
        from . import plots
    except ImportError:
        raise ValueError("--plot needs the package matplotlib: pip install matplotlib.") from None
    plots.check_path(path)
    return plots


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    args = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            args = parse_arguments(argv, program_name())
            if sys.stdout is None and args.output is None:
                raise ValueError("Standard output is closed: pass --output FILE.")
            return run(args)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        say(how_to_go_on(args))
        return INTERRUPTED
    except (*REFUSALS, OSError, MemoryError) as error:
        if "--debug" in argv:
            traceback.print_exc()
        if not is_told_by_another_process(error, args):
            say(f"error: {describe(error)}")
        return BAD_INPUT


def is_told_by_another_process(error: Exception, args: argparse.Namespace | None) -> bool:
    """Whether the first process of a torchrun has the same error, and prints it for all.

    The metric marks errors that it raises in every process; a bad command line is bad in each.
    """
    return os.environ.get("RANK", "0") != "0" and (
        "TORCHELASTIC_RUN_ID" in os.environ if args is None else getattr(error, "is_shared", False)
    )


def how_to_go_on(args: argparse.Namespace | None) -> str:
    """What someone who pressed Ctrl-C wants to know."""
    if args is not None and args.checkpoint:
        return f"interrupted. The same command goes on from {args.checkpoint}."
    return "interrupted. Nothing was kept; with --checkpoint FILE the same command would go on."
