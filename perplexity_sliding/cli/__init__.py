"""The command line of the metric.

main is the order of work; options is what can be asked for; sharding cuts corpora that are larger
than memory; tables and plots show what was measured; wikitext turns that corpus' form into prose.
Everything is computed by the metric in perplexity_sliding.py, through its public interface.
"""

import os
import traceback

from .streams import fill_gaps, settle, to_stderr


def start() -> int:
    """Import the command line and run it; return the exit code.

    Python's own for what nobody catches is 1, which here means that a limit is not kept.
    """
    # Torch reads it when it is imported.  Its threads wait for each other awake: a small model took two
    # to ten times as long beside another program on the same cores.
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
