"""HTTP client for JSON APIs, with concurrent requests and retries.

A pool of threads sends the requests; each thread has its own connection.  Answers are limited in
size and time, so that a server can neither exhaust the memory nor block a run.
"""

import html
import json
import logging
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import httpx

from ..errors import Wording
from .server_apis import ServerError

logger = logging.getLogger("evaluate.perplexity_sliding")

# HTTP status codes of temporary failures.
TRANSIENT = {408, 429, 500, 502, 503, 504}
# Seconds before the first retry, doubled with each further one, and the longest pause.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
# Total seconds of retries for a server that has never returned a value.
FIRST_CONTACT_S = 2.0
# Seconds to open a connection.
CONNECT_S = 10.0
# Maximum size of a description, such as the list of models, in bytes.
LONGEST_DESCRIPTION = 2**24
# Encodings that httpx decompresses in bounded steps: 64 kB at a time, at most 1,032 times as much.
ENCODINGS = {"", "identity", "gzip", "deflate"}
# Characters of an answer that an error shows.
SHOWN = 300
# Prefixes of a key of at least this length are hidden, since a truncated answer may end within it.
KEY_START = 8
# vLLM's environment variable for the key.
KEY_VARIABLE = "VLLM_API_KEY"


class ServerSettings(NamedTuple):
    """How requests are sent: `model_kwargs` of a served model.

    Attributes:
        served_name: name of the model on the server; None for the only one.
        api_key_variable: the environment variable with the key, if the server requires one.
        requests_in_flight: number of concurrent requests.
        timeout: seconds until an answer must be complete.
        retries: number of retries; ten take two and a half minutes, longer than a restart.
    """

    served_name: str | None = None
    api_key_variable: str = KEY_VARIABLE
    requests_in_flight: int = 8
    timeout: float = 600.0
    retries: int = 10


class Server:
    """A server; use it while `connected`.

    Args:
        address: such as http://host:8000/v1; the last part may be left out.

    Attributes:
        has_answered: whether it has ever returned values, so that waiting for it makes sense.

    Raises:
        ValueError: the key is not valid in an HTTP header.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        self.root = address.rstrip("/").removesuffix("/v1")
        self.settings = settings
        self.has_answered = False
        self._key = read_key(settings.api_key_variable)
        self._pool: ConnectionPool | None = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep connections open within the context; leaving it aborts running requests.

        All errors pass here, and the key is removed from them.
        """
        if self._pool is not None:
            yield
            return
        self._pool = ConnectionPool(self.settings, self._key)
        try:
            yield
        except Exception as error:
            self._hide_in(error)
            raise
        finally:
            self._pool.close()
            self._pool = None

    @property
    def _open_pool(self) -> "ConnectionPool":
        if self._pool is None:
            raise RuntimeError(f"{self.root} is not connected: enter connected() first.")
        return self._pool

    def get(self, path: str) -> object:
        """Send a GET request and return the answer.

        Raises:
            ServerError: the server refuses the request, or does not respond.
        """
        return self._open_pool.submit(
            self._request, "GET", path, None, LONGEST_DESCRIPTION
        ).result()

    def post(self, path: str, body: dict, most_bytes: int = LONGEST_DESCRIPTION) -> object:
        """Send a POST request and return the answer of at most `most_bytes` bytes; see `get`."""
        return self._open_pool.submit(self._request, "POST", path, body, most_bytes).result()

    def post_all(
        self, requests: Iterable[tuple[Hashable, str, dict, int]]
    ) -> Iterator[tuple[Any, object]]:
        """Send (key, path, body, most bytes) concurrently; yield (key, answer) as they arrive."""
        running: dict[Future, Hashable] = {}
        try:
            for key, path, body, most_bytes in requests:
                future = self._open_pool.submit(self._request, "POST", path, body, most_bytes)
                running[future] = key
                if len(running) >= self.settings.requests_in_flight:
                    yield from answered(running)
            while running:
                yield from answered(running)
        finally:
            for future in running:
                future.cancel()

    def hidden(self, text: str) -> str:
        """Replace the key in a text, and its beginnings, as a text may be truncated within the key."""
        if self._key is None:
            return text
        escaped = [pattern_of(character) for character in re.sub(r"\\+", r"\\", self._key)]
        for length in range(len(escaped), min(len(escaped), KEY_START) - 1, -1):
            text = re.sub("".join(escaped[:length]), "***", text)
        return text

    def _hide_in(self, error: BaseException | None) -> None:
        """Replace the key in an error and its causes."""
        while error is not None:
            error.args = tuple(self._hidden_part(part) for part in error.args)
            error = error.__cause__ or error.__context__

    def _hidden_part(self, part: object) -> object:
        if isinstance(part, Wording):
            parts: dict[str, Any]
            parts = {name: self._hidden_part(value) for name, value in vars(part).items()}
            return Wording(**parts)
        return self.hidden(part) if isinstance(part, str) else part

    def _request(self, method: str, path: str, body: dict | None, most_bytes: int) -> object:
        """Send a request, and retry it with increasing pauses."""
        failures: list[str] = []
        started = time.monotonic()
        while True:
            try:
                reply = self._open_pool.send(method, self.root + path, body, most_bytes)
            except httpx.LocalProtocolError as error:
                raise ServerError(f"The request for {path} cannot be sent: {error}.") from None
            except httpx.TransportError as error:
                failures.append(str(error) or type(error).__name__)
                status, asked_pause = None, None
            else:
                if reply.status not in TRANSIENT:
                    return self._read(reply, path)
                failures.append(f"status {reply.status}, {error_message(reply)}")
                status, asked_pause = reply.status, retry_after(reply)
            pause = FIRST_WAIT_S * 2 ** (len(failures) - 1) * random.uniform(0.75, 1.25)
            pause = min(asked_pause or pause, LONGEST_WAIT_S)
            waited = time.monotonic() - started + pause
            is_new = not self.has_answered and status in (None, 500)  # others ask to retry
            if (is_new and waited > FIRST_CONTACT_S) or len(failures) > self.settings.retries:
                raise ServerError(self._explain(path, failures), status)
            logger.info(
                self.hidden(f"{self.root}{path}: {failures[-1]}; trying again in {pause:.1f} s")
            )
            self._open_pool.sleep(pause)

    def _explain(self, path: str, failures: list[str]) -> Wording:
        """Return the message of a failed request: the first failure, and the last if it differs."""
        times = "once" if len(failures) == 1 else f"{len(failures)} times"
        reasons = failures[0]
        if failures[-1] != failures[0]:
            reasons += f"; finally: {failures[-1]}"
        advice = (
            "Increase `retries` in `model_kwargs` if it takes longer to restart, or `timeout` if its "
            "answers take longer."
            if self.has_answered
            else "Check the address, and that the server is running."
        )
        return Wording(
            f"The server at {self.root} did not respond ({path}), tried {times}: {reasons}. "
            f"{advice}"
        )

    def _read(self, reply: "Reply", path: str) -> object:
        """Return the JSON of an answer.

        Raises:
            ServerError: it is an error, or not JSON.
        """
        if not 200 <= reply.status < 300:
            raise ServerError(
                f"The server at {self.root} refused a request ({path}): status {reply.status}, "
                f"{error_message(reply)}{self._advice_on_key(reply.status)}",
                reply.status,
            )
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            raise ServerError(
                f"The server at {self.root} must answer in JSON, got {reply.text[:SHOWN]!r} "
                f"({path}).",
                reply.status,
            ) from None

    def _advice_on_key(self, status: int) -> str:
        """Return advice on the key if the server refused it."""
        if status not in (401, 403):
            return ""
        variable = self.settings.api_key_variable
        if self._key is None:
            return f". Set the environment variable {variable} to the server's key."
        return f". Check the key in the environment variable {variable}."


class Reply(NamedTuple):
    """A complete HTTP response, decompressed."""

    status: int
    headers: httpx.Headers
    content: bytes | bytearray

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")


class ConnectionPool:
    """Threads that send requests, each over its own connection.

    Args:
        key: the server's key, or None.
    """

    def __init__(self, settings: ServerSettings, key: str | None) -> None:
        self._timeout = settings.timeout
        self._headers = {"Accept-Encoding": "gzip, deflate"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._threads = ThreadPoolExecutor(settings.requests_in_flight, "server")
        self._of_thread = threading.local()
        self._connections: list[Connection] = []
        self._certificates = httpx.create_ssl_context()  # read once for all connections
        self._closed = threading.Event()

    def submit(self, call: Callable[..., object], *arguments: object) -> Future:
        """Call a function in a thread."""
        return self._threads.submit(call, *arguments)

    def send(self, method: str, address: str, body: dict | None, most_bytes: int) -> Reply:
        """Send a request over the connection of this thread.

        Raises:
            httpx.TransportError: there is no complete answer within the timeout.
            ServerError: the answer is too large, or has an unsupported encoding.
        """
        if not hasattr(self._of_thread, "connection"):
            connection = Connection(self._headers, self._timeout, self._certificates, self._closed)
            self._connections.append(connection)
            self._of_thread.connection = connection
        return self._of_thread.connection.send(method, address, body, most_bytes)

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends.

        Raises:
            ServerError: the run ends.
        """
        if self._closed.wait(seconds):
            raise ServerError("The run was aborted.")

    def close(self) -> None:
        """Abort running requests, and end the threads."""
        self._closed.set()
        for connection in list(self._connections):
            connection.shut_down()
        self._threads.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.client.close()


class Connection:
    """A connection that another thread can abort.

    Args:
        timeout: seconds until an answer must be complete.
        certificates: the SSL context.
        closed: set when the run ends.
    """

    def __init__(
        self,
        headers: dict[str, str],
        timeout: float,
        certificates: ssl.SSLContext,
        closed: threading.Event,
    ) -> None:
        self.client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_S)),
            limits=httpx.Limits(max_connections=1),
            verify=certificates,
        )
        self._timeout, self._closed = timeout, closed
        self._timed_out = threading.Event()
        self._socket: socket.socket | None = None

    def send(self, method: str, address: str, body: dict | None, most_bytes: int) -> Reply:
        """Send a request and read the answer; see `ConnectionPool.send`."""
        self._timed_out.clear()
        # The timeouts of httpx apply between bytes; a slow server would never reach them.
        watch = threading.Timer(self._timeout, self._time_out)
        watch.daemon = True
        watch.start()
        try:
            return self._exchange(method, address, body, most_bytes)
        except httpx.TransportError as error:
            is_late = isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout)
            if is_late or self._timed_out.is_set():
                raise httpx.ReadTimeout(f"no complete answer within {self._timeout:g} s") from None
            raise
        finally:
            watch.cancel()

    def _exchange(self, method: str, address: str, body: dict | None, most_bytes: int) -> Reply:
        traced = {"trace": self._note_socket}
        with self.client.stream(method, address, json=body, extensions=traced) as reply:
            encoding = reply.headers.get("content-encoding", "").lower()
            if encoding not in ENCODINGS:
                raise ServerError(
                    f"The server must answer in gzip, deflate or uncompressed, got {encoding!r}.",
                    reply.status_code,
                )
            try:
                content = read_bounded(reply, most_bytes)
            except httpx.DecodingError:
                raise ServerError(
                    f"The server must encode its answer in {encoding} as declared, got other bytes.",
                    reply.status_code,
                ) from None
            return Reply(reply.status_code, reply.headers, content)

    def _note_socket(self, event: str, info: dict) -> None:
        """Store the socket of a new connection; httpx calls this."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._timed_out.is_set() or self._closed.is_set():
                self.shut_down()

    def _time_out(self) -> None:
        self._timed_out.set()
        self.shut_down()

    def shut_down(self) -> None:
        """Abort the running request; the thread that waits for it gets an error at once."""
        if self._socket is None:
            return
        # The method of an SSL socket would remove its state while another thread reads.
        with suppress(OSError):  # it is already closed
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def read_bounded(reply: httpx.Response, most_bytes: int) -> bytearray:
    """Read an answer and decompress it.

    Raises:
        ServerError: it is larger than `most_bytes`.
    """
    content = bytearray()
    for chunk in reply.iter_bytes():
        content += chunk
        if len(content) > most_bytes:
            raise ServerError(
                f"The server must answer this request with at most {most_bytes:,} bytes, got more.",
                reply.status_code,
            )
    return content


def read_key(variable: str) -> str | None:
    """Read a server's key from an environment variable, without surrounding white space.

    Raises:
        ValueError: it is not valid in an HTTP header.
    """
    key = os.environ.get(variable, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise ValueError(
            f"The key in the environment variable {variable} must consist of printable ASCII "
            "characters without spaces. Its value is not shown."
        )
    return key or None


def pattern_of(character: str) -> str:
    """Return a pattern that matches a character of a key, however often a text escapes it."""
    code = f"{ord(character):02x}"
    written = (character, html.escape(character))
    return rf"\\*(?:{'|'.join(map(re.escape, written))}|(?i:u00{code}|%{code}))"


def answered(running: dict[Future, Hashable]) -> Iterator[tuple[Hashable, object]]:
    """Wait for the next answers, and remove them from `running`."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def retry_after(reply: Reply) -> float | None:
    """Return the seconds in the header Retry-After, if any."""
    try:
        seconds = float(reply.headers.get("retry-after", ""))
    except ValueError:  # a date, or nothing
        return None
    return seconds if seconds >= 0 else None  # NaN too


def error_message(reply: Reply) -> str:
    """Return the message in an error response."""
    try:
        found = json.loads(reply.content)
    except (ValueError, RecursionError):
        return repr(reply.text[:SHOWN])
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return repr(str(found)[:SHOWN])
