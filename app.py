"""The Space: perplexity of a text, window by window, in the browser.

`python app.py` serves it on this machine, with the bundled model and no internet; `--port` and
`--host` choose where.  The functions
`score` and `compare` are also an API and, after `pip install "gradio[mcp]"`, MCP tools.
"""

import argparse
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    import gradio as gr
except ModuleNotFoundError as error:
    if error.name != "gradio":
        raise
    sys.exit("app.py: error: the page needs gradio: pip install gradio -c constraints.txt")

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


def is_private(host: str | None = None) -> bool:
    """Return whether only people at this machine see the page and may name its folders.

    Args:
        host: the address that the page is served at; None for gradio's own choice.
    """
    outside = ("SPACE_ID", "GRADIO_SERVER_NAME", "GRADIO_SHARE", "GRADIO_ROOT_PATH")
    if any(os.environ.get(name) for name in outside):
        return False
    return host is None or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Serve the page: perplexity of a text, window by window, in the browser.",
        epilog="Served to this machine alone, unless --host says otherwise. Folders of this machine can "
        "be named as models only then. Stop it with Ctrl+C.",
    )
    parser.add_argument(
        "--host",
        help="address to serve at: 0.0.0.0 for everybody who reaches this machine (default: 127.0.0.1, "
        "or $GRADIO_SERVER_NAME)",
    )
    parser.add_argument(
        "--port",
        type=port,
        help="port, 1 to 65535 (default: the first free one from 7860 on, or $GRADIO_SERVER_PORT)",
    )
    return parser.parse_args(arguments)


def port(typed: str) -> int:
    """Read the number of a port."""
    if not typed.isascii() or not typed.isdecimal() or not 1 <= int(typed) <= 65535:
        raise argparse.ArgumentTypeError(f"a number from 1 to 65535 is needed, not {typed!r}")
    return int(typed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the page until it is stopped."""
    chosen = read_arguments(arguments)
    page = create_app(local_folders=is_private(chosen.host))
    try:
        page.launch(server_name=chosen.host, server_port=chosen.port, **launch_options(page))
    except OSError as error:
        where = f"{chosen.host or 'this machine'}, port {chosen.port or '7860 and those after it'}"
        raise SystemExit(
            f"The page cannot be served at {where}: {error}. Choose another --port or --host."
        ) from None


if __name__ == "__main__":
    main()
