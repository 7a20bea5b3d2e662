"""The bar that is shown while a call runs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm

_HIDDEN: list[bool] = []  # one entry for each context of `bars_hidden`


def progress_bar(**settings: object) -> tqdm:
    """Return a bar as `tqdm` makes it, hidden where there is no terminal.

    `evaluate.logging.disable_progress_bar` hides it too; who has not imported evaluate has not called
    that, and importing it here would take longer than scoring a short text.
    """
    evaluate = sys.modules.get("evaluate")
    off = evaluate is not None and not evaluate.logging.is_progress_bar_enabled()
    hides = True if _HIDDEN or off else settings.get("disable")
    return tqdm(**(settings | {"disable": hides}))


@contextmanager
def bars_hidden() -> Iterator[None]:
    """Show no bars for the time of the context: the caller shows one of its own."""
    _HIDDEN.append(True)
    try:
        yield
    finally:
        _HIDDEN.pop()
