"""An HTTP server that answers in JSON: asked several things at once, and again where it fails."""

import logging
import os
import random
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import NamedTuple

import anyio
import httpx
from anyio.from_thread import start_blocking_portal

from .model_server_forms import ServerError

logger = logging.getLogger("evaluate.perplexity_sliding")

# What a server says when it is busy or broken for the moment.
TRANSIENT = {408, 429, 500, 502, 503, 504}
# Seconds before the second try, doubled with each further one, and the most that are waited.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
# Characters of an answer that an error shows.
SHOWN = 300
# Where vLLM's own server has its key from.
KEY_VARIABLE = "VLLM_API_KEY"


class ServerSettings(NamedTuple):
    """How a server is asked: `model_kwargs` of a served model.

    Attributes:
        served_name: which of the served models; None where there is one.
        api_key_variable: the environment variable that holds the key, if the server wants one.
        requests_in_flight: requests that wait for an answer at a time.
        timeout: seconds to wait for an answer.
        retries: tries after the first one.
    """

    served_name: str | None = None
    api_key_variable: str = KEY_VARIABLE
    requests_in_flight: int = 8
    timeout: float = 600.0
    retries: int = 6


class Server:
    """A server, while `connected`.

    Args:
        address: such as http://host:8000/v1; the last part may be left out.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        self.root = address.rstrip("/").removesuffix("/v1")
        self.settings = settings
        self._key = os.environ.get(settings.api_key_variable)
        self._client: httpx.AsyncClient | None = None
        self._portal = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep connections open for the time of the context; leaving it by an error breaks them off."""
        if self._client is not None:
            yield
            return
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        limits = httpx.Limits(max_connections=self.settings.requests_in_flight)
        client = httpx.AsyncClient(
            headers=headers, limits=limits, timeout=httpx.Timeout(self.settings.timeout, connect=10)
        )
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
            self._client, self._portal = client, portal
            try:
                yield
            finally:
                self._client = self._portal = None

    def get(self, path: str) -> object:
        """Return what lies at a path.

        Raises:
            ServerError: the server refuses, or cannot be reached.
        """
        return self._portal.call(self._ask, "GET", path, None)

    def post(self, path: str, body: dict) -> object:
        """Send one request and return the answer; as `get`."""
        return self._portal.call(self._ask, "POST", path, body)

    def post_all(
        self, requests: Iterable[tuple[Hashable, str, dict]]
    ) -> Iterator[tuple[Hashable, object]]:
        """Send (key, path, body) each, several in flight; yield (key, answer) as they come."""
        running: dict[Future, Hashable] = {}
        try:
            for key, path, body in requests:
                running[self._portal.start_task_soon(self._ask, "POST", path, body)] = key
                if len(running) >= self.settings.requests_in_flight:
                    yield from answered(running)
            while running:
                yield from answered(running)
        finally:
            for future in running:
                future.cancel()

    async def _ask(self, method: str, path: str, body: dict | None) -> object:
        """Send a request until there is an answer to it, waiting longer from try to try."""
        for tries in range(self.settings.retries + 1):
            last = tries == self.settings.retries
            try:
                reply = await self._client.request(method, self.root + path, json=body)
            except httpx.TransportError as error:
                failure, pause = str(error) or type(error).__name__, None
                if last:
                    raise ServerError(
                        self._hidden(
                            f"The server at {self.root} could not be asked ({path}), {tries + 1} "
                            "times: "
                            f"{failure}. Check the address and that it runs, or raise `timeout` in "
                            "`model_kwargs`."
                        )
                    ) from None
            else:
                if reply.status_code not in TRANSIENT or last:
                    return self._read(reply, path)
                failure = f"status {reply.status_code}"
                pause = seconds_asked_for(reply)
            pause = pause or FIRST_WAIT_S * 2**tries * random.uniform(0.75, 1.25)
            logger.info(f"{self.root}{path}: {failure}; trying again in {pause:.1f} s")
            await anyio.sleep(min(pause, LONGEST_WAIT_S))
        raise AssertionError("the last try returns or raises")

    def _read(self, reply: httpx.Response, path: str) -> object:
        """Return the JSON of an answer.

        Raises:
            ServerError: it is an error, or no JSON.
        """
        if not reply.is_success:
            raise ServerError(
                self._hidden(
                    f"The server at {self.root} refused a request ({path}): status "
                    f"{reply.status_code}, {sentence_of(reply)}"
                ),
                reply.status_code,
            )
        try:
            return reply.json()
        except ValueError:
            raise ServerError(
                self._hidden(
                    f"The server at {self.root} must answer in JSON, got {reply.text[:SHOWN]!r} "
                    f"({path})."
                ),
                reply.status_code,
            ) from None

    def _hidden(self, message: str) -> str:
        """Take the key out of a message: some servers repeat it."""
        return message.replace(self._key, "***") if self._key else message


def answered(running: dict[Future, Hashable]) -> Iterator[tuple[Hashable, object]]:
    """Wait for the first answers, and take them out."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def seconds_asked_for(reply: httpx.Response) -> float | None:
    """Return how long a busy server asks to be left alone."""
    try:
        seconds = float(reply.headers.get("retry-after", ""))
    except ValueError:  # a date, or nothing
        return None
    return seconds if seconds >= 0 else None  # nor what is no number


def sentence_of(reply: httpx.Response) -> str:
    """Return the sentence in an answer that is an error."""
    try:
        found = reply.json()
    except ValueError:
        return repr(reply.text[:SHOWN])
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return repr(str(found)[:SHOWN])
