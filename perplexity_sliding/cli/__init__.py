"""The command line of the metric.

main runs the steps; options defines the options; sharding splits corpora larger than memory; tables
and plots display the results.  All numbers are computed by `compute` of the package.
"""

import os
import traceback

from .messages import fill_gaps, settle, to_stderr


def start() -> int:
    """Import the command line and run it; return the exit code.

    An uncaught exception must not exit with Python's 1, which means that a limit is exceeded.
    """
    # Torch reads this at import.  By default its threads spin while they wait: a small model took two
    # to ten times as long when another program used the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    fill_gaps()
    try:
        from .main import main

        return main()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        _tell(error)
        return 3
    finally:
        settle()


def _tell(error: BaseException) -> None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        to_stderr(f"error: the package {name} is missing: pip install {name}\n")
    else:
        to_stderr("".join(traceback.format_exception(error)))
