"""The garbage collector beside millions of objects, none of which is garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pause the garbage collector, where nothing but plans and results is made.

    What was made meanwhile is old to it afterwards: else it would go through all of that at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # else somebody froze objects, who means them to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
