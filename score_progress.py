"""The bar that is shown while a call runs."""

import sys

from huggingface_hub.utils import tqdm

# What `huggingface_hub.utils.disable_progress_bars` knows these bars by.
NAME = "perplexity_sliding"


def progress_bar(**settings: object) -> tqdm:
    """Return a bar as `tqdm` makes it, hidden where there is no terminal.

    `evaluate.logging.disable_progress_bar` hides it too; who has not imported evaluate has not called
    that, and importing it here would take longer than scoring a short text.
    """
    evaluate = sys.modules.get("evaluate")
    is_hidden = evaluate is not None and not evaluate.logging.is_progress_bar_enabled()
    hides = True if is_hidden else settings.pop("disable", None)
    return tqdm(name=NAME, **(settings | {"disable": hides}))
