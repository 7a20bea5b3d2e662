"""The Space: perplexity of a text, window by window, in the browser.

`python app.py` serves it on this machine, with the bundled model and no internet.  The functions
`score` and `compare` are also an API and, after `pip install "gradio[mcp]"`, MCP tools.
"""

import os
from pathlib import Path

import gradio as gr

from space.limits import Limits
from space.page import build, launch_options
from space.service import Service

BUNDLED = Path(__file__).resolve().parent / "demo_model"


def create_app(
    bundled: str | Path = BUNDLED,
    limits: Limits | None = None,
    endpoint: str | None = None,
    local_folders: bool = False,
) -> gr.Blocks:
    """Build the page.

    Args:
        bundled: folder of the bundled model.
        limits: what one visitor may ask for.
        endpoint: another Hub than huggingface.co.
        local_folders: whether a model may also be a folder of this machine.
    """
    return build(Service(bundled, limits, endpoint, local_folders))


def is_private() -> bool:
    """Return whether only people at this machine see the page and may name its folders."""
    outside = ("SPACE_ID", "GRADIO_SERVER_NAME", "GRADIO_SHARE", "GRADIO_ROOT_PATH")
    return not any(os.environ.get(name) for name in outside)


if __name__ == "__main__":
    create_app(local_folders=is_private()).launch(**launch_options())
