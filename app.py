"""The Space: perplexity of a text, window by window, in the browser.

`python app.py` serves it on this machine, with the bundled model and no internet.  The functions
`score` and `compare` are also an API and, where the `mcp` package is installed, MCP tools.
"""

from pathlib import Path

import gradio as gr

from space.limits import Limits
from space.page import build, launch_options
from space.service import Service

BUNDLED = Path(__file__).resolve().parent / "demo_model"


def create_app(
    bundled: str | Path = BUNDLED, limits: Limits | None = None, endpoint: str | None = None
) -> gr.Blocks:
    """Build the page.

    Args:
        bundled: folder of the bundled model.
        limits: what one visitor may ask for.
        endpoint: another Hub than huggingface.co.
    """
    return build(Service(bundled, limits, endpoint))


if __name__ == "__main__":
    create_app().launch(**launch_options())
