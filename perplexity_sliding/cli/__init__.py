"""The command line of the metric.

main runs the steps; options defines the options; reading gives the texts; measuring calls `compute`
of the package, which computes all numbers; output and tables display them.
"""

import os
import signal
import sys

from .messages import describe, say, settle, show_traceback


def start() -> int:
    """Import the command line and run it; return the exit code.

    An uncaught exception must not exit with Python's 1, which means that a limit is exceeded.
    """
    # Torch reads this at import.  By default its threads spin while they wait: a small model took two
    # to ten times as long when another program used the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name in ("stdout", "stderr"):  # None where a shell has closed them
        setattr(sys, name, getattr(sys, name) or open(os.devnull, "w"))  # noqa: SIM115
    try:
        from .main import main, terminate

        signal.signal(signal.SIGTERM, terminate)
        return main()
    except ModuleNotFoundError as error:
        say(f"error: {describe(error)}")
        return 3
    except Exception as error:
        show_traceback(error)
        return 3
    finally:
        settle()
