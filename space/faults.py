"""Unexpected errors: callers get a sentence, the log gets the place in the code.

What a visitor wrote never goes into the log, and messages of exceptions quote it: gradio's own does so
with all arguments of a call that has too few of them.
"""

import logging
import traceback

import gradio as gr
from starlette.responses import JSONResponse

from .limits import FAULT

logger = logging.getLogger(__name__)


def log_fault(error: BaseException) -> None:
    """Log the class of an error and of its causes, and the lines of code; never the message."""
    parts = []
    while error is not None:
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"{type(error).__name__} at\n{frames}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    logger.error("A request failed: %s", "after ".join(parts))


class PageBlocks(gr.Blocks):
    """A page that logs errors without the visitor's text, and closes idle connections."""

    def get_config_file(self) -> dict:
        """Describe the page to the browser, without a heartbeat.

        Over HTTP/1.1 a browser has six connections to one address, for all tabs: each open tab would hold
        one of them, and the sixth tab would never be drawn.
        """
        return super().get_config_file() | {"connect_heartbeat": False}

    def validate_inputs(self, block_fn, inputs: list) -> None:
        """Refuse a call with missing arguments, and name them."""
        if len(inputs) < len(block_fn.inputs):
            raise gr.Error(too_few(block_fn, len(inputs)), print_exception=False)

    async def process_api(self, *args, **kwargs) -> dict:
        """Answer a request; gradio would print the error message."""
        try:
            return await super().process_api(*args, **kwargs)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            log_fault(error)
            raise gr.Error(FAULT, print_exception=False) from None


def too_few(block_fn, given: int) -> str:
    """List the required arguments of a call."""
    names = ", ".join(component.label or "?" for component in block_fn.inputs)
    return (
        f"{block_fn.api_name} takes {len(block_fn.inputs)} arguments, in this order: {names}; "
        f"{given} came. Send all of them, or call /call/v2/{block_fn.api_name} with an object of those "
        "that you name."
    )


class Faults:
    """Answer a request that could not be read with a sentence, as a middleware of the served app."""

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope: dict, receive, send) -> None:
        begun = False

        async def send_and_note(message: dict) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception as error:
            if scope["type"] != "http" or begun:
                raise
            await answer_fault(error)(scope, receive, send)


def answer_fault(error: Exception) -> JSONResponse:
    """Return the answer to a request that failed before it reached the page."""
    if isinstance(error, TypeError) and "argument" in str(error):  # gradio's, of /call/v2
        return JSONResponse({"detail": str(error)}, 400)
    log_fault(error)
    return JSONResponse({"detail": FAULT}, 500)
