"""An HTTP server that answers in JSON: several requests in flight, each tried again where it fails.

A pool of threads sends the requests; each thread has a connection of its own.  An answer is bounded
in size and in time, so that a server can neither fill the memory nor keep a run waiting for ever.
"""

import json
import logging
import os
import random
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

# The states of HTTP of a server that is busy or broken for the moment.
TRANSIENT = {408, 429, 500, 502, 503, 504}
# Seconds before the second try, doubled with each further one, and the longest pause.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
# Seconds of all pauses before a server that has never given a value is given up.
FIRST_CONTACT_S = 2.0
# Seconds to open a connection.
CONNECT_S = 10.0
# Most bytes of a description, such as the list of models.
LONGEST_DESCRIPTION = 2**24
# Compressions that httpx reads in bounded steps: 64 kB at a time, 1,032 times as much at most.
ENCODINGS = {"", "identity", "gzip", "deflate"}
# Characters of an answer that an error shows.
SHOWN = 300
# Fewest characters of a key that are hidden: an answer that is cut may end within the key.
KEY_START = 8
# The environment variable that vLLM's own server reads its key from.
KEY_VARIABLE = "VLLM_API_KEY"


class ServerSettings(NamedTuple):
    """How requests are sent: `model_kwargs` of a served model.

    Attributes:
        served_name: which of the served models; None where there is one.
        api_key_variable: the environment variable with the key, if the server wants one.
        requests_in_flight: requests that wait for an answer at a time.
        timeout: seconds in which an answer must have come to its end.
        retries: tries after the first one; ten take two and a half minutes, longer than a restart.
    """

    served_name: str | None = None
    api_key_variable: str = KEY_VARIABLE
    requests_in_flight: int = 8
    timeout: float = 600.0
    retries: int = 10


class Server:
    """A server, while `connected`.

    Args:
        address: such as http://host:8000/v1; the last part may be left out.

    Attributes:
        has_answered: whether it has given values once, so that it is worth waiting for.

    Raises:
        ValueError: the key cannot be sent.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        self.root = address.rstrip("/").removesuffix("/v1")
        self.settings = settings
        self.has_answered = False
        self._key = read_key(settings.api_key_variable)
        self._pool: ConnectionPool | None = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep connections open for the time of the context; leaving it breaks off what is in flight.

        This is the one exit of all errors, and none has the key in it.
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
        """Return what lies at a path.

        Raises:
            ServerError: the server refuses, or cannot be reached.
        """
        return self._open_pool.submit(
            self._request, "GET", path, None, LONGEST_DESCRIPTION
        ).result()

    def post(self, path: str, body: dict, most_bytes: int = LONGEST_DESCRIPTION) -> object:
        """Send one request and return the answer, of `most_bytes` bytes at most; as `get`."""
        return self._open_pool.submit(self._request, "POST", path, body, most_bytes).result()

    def post_all(
        self, requests: Iterable[tuple[Hashable, str, dict, int]]
    ) -> Iterator[tuple[Any, object]]:
        """Send (key, path, body, most bytes) each, several in flight; yield (key, answer) as they come."""
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
        """Replace the key in a text, also where the text was cut within the key."""
        if self._key is None:
            return text
        for key in dict.fromkeys([self._key, repr(self._key)[1:-1], json.dumps(self._key)[1:-1]]):
            for length in range(len(key), min(len(key), KEY_START) - 1, -1):
                text = text.replace(key[:length], "***")
        return text

    def _hide_in(self, error: BaseException | None) -> None:
        """Replace the key in an error and in those that caused it."""
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
        """Send a request until there is an answer to it, waiting longer from try to try."""
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
            is_new = not self.has_answered and status in (None, 500)  # others say: later
            if (is_new and waited > FIRST_CONTACT_S) or len(failures) > self.settings.retries:
                raise ServerError(self._explain(path, failures), status)
            logger.info(
                self.hidden(f"{self.root}{path}: {failures[-1]}; trying again in {pause:.1f} s")
            )
            self._open_pool.sleep(pause)

    def _explain(self, path: str, failures: list[str]) -> Wording:
        """Say how the tries failed: the first failure, and the last where it is another."""
        times = "once" if len(failures) == 1 else f"{len(failures)} times"
        reasons = failures[0]
        if failures[-1] != failures[0]:
            reasons += f"; and at last: {failures[-1]}"
        advice = (
            "Raise `retries` in `model_kwargs` where it needs longer to come back, or `timeout` "
            "where its answers need longer."
            if self.has_answered
            else "Check the address and that it runs."
        )
        return Wording(
            f"The server at {self.root} could not answer ({path}), tried {times}: {reasons}. "
            f"{advice}"
        )

    def _read(self, reply: "Reply", path: str) -> object:
        """Return the JSON of an answer.

        Raises:
            ServerError: it is an error, or no JSON.
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
        """Name the variable of the key where a server wants one, or another."""
        if status not in (401, 403):
            return ""
        variable = self.settings.api_key_variable
        if self._key is None:
            return f". Put the server's key into the environment variable {variable}."
        return f". Check the key in the environment variable {variable}."


class Reply(NamedTuple):
    """An answer that was read to its end.

    Attributes:
        status: of HTTP.
        headers: of HTTP.
        content: decompressed.
    """

    status: int
    headers: httpx.Headers
    content: bytes | bytearray

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")


class ConnectionPool:
    """Threads that send requests, each over a connection of its own.

    Args:
        key: of the server; None for none.
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
        """Call a function in one of the threads."""
        return self._threads.submit(call, *arguments)

    def send(self, method: str, address: str, body: dict | None, most_bytes: int) -> Reply:
        """Send a request over the connection of this thread.

        Raises:
            httpx.TransportError: there is no answer, or not to its end within the time.
            ServerError: the answer is larger, or compressed in another way than it may be.
        """
        if not hasattr(self._of_thread, "connection"):
            connection = Connection(self._headers, self._timeout, self._certificates, self._closed)
            self._connections.append(connection)
            self._of_thread.connection = connection
        return self._of_thread.connection.send(method, address, body, most_bytes)

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends.

        Raises:
            ServerError: it does.
        """
        if self._closed.wait(seconds):
            raise ServerError("The run was ended.")

    def close(self) -> None:
        """Break off what is in flight, and end the threads."""
        self._closed.set()
        for connection in list(self._connections):
            connection.shut_down()
        self._threads.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.client.close()


class Connection:
    """A connection that another thread can break off.

    Args:
        timeout: seconds for a whole answer.
        certificates: the context of SSL.
        closed: set where nothing is to be sent any more.
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
        # The limits of httpx count from byte to byte: a slow server would never reach them.
        watch = threading.Timer(self._timeout, self._time_out)
        watch.daemon = True
        watch.start()
        try:
            return self._exchange(method, address, body, most_bytes)
        except httpx.TransportError as error:
            is_late = isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout)
            if is_late or self._timed_out.is_set():
                raise httpx.ReadTimeout(f"no whole answer within {self._timeout:g} s") from None
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
                    f"The server must answer in {encoding} where it says so, got other bytes.",
                    reply.status_code,
                ) from None
            return Reply(reply.status_code, reply.headers, content)

    def _note_socket(self, event: str, info: dict) -> None:
        """Keep the socket of a connection that was opened; httpx calls this."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._timed_out.is_set() or self._closed.is_set():
                self.shut_down()

    def _time_out(self) -> None:
        self._timed_out.set()
        self.shut_down()

    def shut_down(self) -> None:
        """End the request in flight: the thread that waits for it gets an error at once."""
        if self._socket is None:
            return
        # Not the method of an SSL socket, which takes its state from under the thread that reads.
        with suppress(OSError):  # it is closed already
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
    """Read a server's key from an environment variable, without the line end of a secret file.

    Raises:
        ValueError: no header of HTTP can hold it.
    """
    key = os.environ.get(variable, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise ValueError(
            f"The key in the environment variable {variable} must be of printable ASCII characters "
            "without spaces. It is not shown."
        )
    return key or None


def answered(running: dict[Future, Hashable]) -> Iterator[tuple[Hashable, object]]:
    """Wait for the first answers, and take them out."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def retry_after(reply: Reply) -> float | None:
    """Return how many seconds a busy server asks to be left alone."""
    try:
        seconds = float(reply.headers.get("retry-after", ""))
    except ValueError:  # a date, or nothing
        return None
    return seconds if seconds >= 0 else None  # nor what is no number


def error_message(reply: Reply) -> str:
    """Return the sentence in an answer that is an error."""
    try:
        found = json.loads(reply.content)
    except (ValueError, RecursionError):
        return repr(reply.text[:SHOWN])
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return repr(str(found)[:SHOWN])
