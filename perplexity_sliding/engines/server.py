"""A server with an API for log-probabilities: its requests, and the model, tokenizer and API behind it."""

import json
import os
import random
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError, Wording
from ..models.identity import model_name, probe_text
from ..models.interface import LARGEST_LIMIT
from ..models.loading import TOKENIZER_FILES, check_exists, load_tokenizer
from ..plan.windows import ContextLimit
from .served import ServedModel
from .server_apis import (
    LOGPROBS_APIS,
    AnswerError,
    LogprobsAPI,
    Prompt,
    ServerError,
    TokenValues,
)

# HTTP status codes of temporary failures.
TRANSIENT = {408, 429, 500, 502, 503, 504}
# Seconds before the first retry, doubled with each further one, and the longest pause.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
# Retries for a server that has never returned a value: two seconds.
FIRST_CONTACT_RETRIES = 2
# Seconds to open a connection.
CONNECT_S = 10.0
# Characters of an answer that an error shows.
SHOWN = 300
# Tokens of the prompt that tests the APIs of a server.
SHORT_PROMPT = 8
# vLLM's environment variable for the key.
KEY_VARIABLE = "VLLM_API_KEY"


class ServerSettings(NamedTuple):
    """How requests are sent: `model_kwargs` of a served model.

    Attributes:
        served_name: name of the model on the server; None for the only one.
        api_key_variable: the environment variable with the key, if the server requires one.
        requests_in_flight: number of concurrent requests.
        timeout: seconds until an answer must begin.
        retries: number of retries; ten take two and a half minutes, longer than a restart.
    """

    served_name: str | None = None
    api_key_variable: str = KEY_VARIABLE
    requests_in_flight: int = 8
    timeout: float = 600.0
    retries: int = 10


def check_settings(model_kwargs: dict) -> ServerSettings:
    """Check `model_kwargs` of a served model.

    Raises:
        ValueError: one of them is unknown or invalid.
    """
    unknown = sorted(set(model_kwargs) - set(ServerSettings._fields))
    if unknown:
        raise ValueError(
            Wording(
                "`model_kwargs` of a served model must contain only "
                f"{', '.join(ServerSettings._fields)}, got {unknown[0]!r}. The server's own options "
                "control how the model is loaded."
            )
        )
    settings = ServerSettings(**model_kwargs)
    if not isinstance(settings.served_name, str | None):
        got = repr(settings.served_name)
        raise ArgumentError("served_name", "be the name of a served model", got=got)
    variable = settings.api_key_variable
    if not isinstance(variable, str) or not variable.isidentifier():
        raise ArgumentError(
            "api_key_variable",
            "be the name of an environment variable",
            advice="The value is not shown, as it may be the key. Pass the name of the variable.",
        )
    for name, low in (("requests_in_flight", 1), ("retries", 0)):
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ArgumentError(name, f"be a whole number of at least {low}", got=repr(value))
    if not isinstance(settings.timeout, int | float) or not settings.timeout > 0:
        raise ArgumentError("timeout", "be a number of seconds above 0", got=repr(settings.timeout))
    return settings


class Server:
    """A server; use it while `connected`.

    Args:
        address: such as http://host:8000/v1; the last part may be left out.

    Attributes:
        threads: send concurrent requests; None while it is not connected.
        has_answered: whether it has ever returned values, so that waiting for it makes sense.

    Raises:
        ValueError: the key is not valid in an HTTP header.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        self.root = address.rstrip("/").removesuffix("/v1")
        self.settings = settings
        self.has_answered = False
        self.threads: ThreadPoolExecutor | None = None
        variable = settings.api_key_variable
        self._key = os.environ.get(variable, "").strip() or None
        if self._key and not all("!" <= character <= "~" for character in self._key):
            raise ValueError(
                f"The key in the environment variable {variable} must consist of printable ASCII "
                "characters without spaces. Its value is not shown."
            )

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep connections open within the context; leaving it aborts running requests."""
        if self.threads is not None:
            yield
            return
        number, timeout = self.settings.requests_in_flight, self.settings.timeout
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self.threads = ThreadPoolExecutor(number, "server")
        with httpx.Client(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_S)),
            limits=httpx.Limits(max_connections=number),
        ) as self._client:
            try:
                yield
            finally:
                self._closed.set()
                for each in self._sockets:
                    with suppress(OSError):  # it is closed already
                        socket.socket.shutdown(each, socket.SHUT_RDWR)
                self.threads.shutdown(cancel_futures=True)
                self.threads = None

    def request(self, method: str, path: str, body: dict | None = None) -> Any:
        """Send a request, and again after temporary failures; return the answer's JSON.

        Raises:
            ServerError: the server refuses the request, or does not respond.
        """
        failures: list[str] = []
        while True:
            status, asked_pause = None, None
            try:
                reply = self._client.request(
                    method, self.root + path, json=body, extensions={"trace": self._note_socket}
                )
            except httpx.ReadTimeout:
                failures.append(f"no answer within {self.settings.timeout:g} s")
            except httpx.TransportError as error:
                failures.append(str(error) or type(error).__name__)
            else:
                status, text = reply.status_code, reply.text
                if self._key is not None:  # a server may repeat it
                    text = text.replace(self._key, "***")
                if status not in TRANSIENT:
                    return self._read(status, text, path)
                asked_pause = reply.headers.get("retry-after", "")
                failures.append(f"status {status}, {error_message(text)}")
            most = self.settings.retries
            if not self.has_answered and status in (None, 500):  # others ask to retry
                most = min(most, FIRST_CONTACT_RETRIES)
            if len(failures) > most or self._closed.is_set():
                raise ServerError(self._explain(path, failures), status)
            pause = FIRST_WAIT_S * 2 ** (len(failures) - 1) * random.uniform(0.75, 1.25)
            if asked_pause and asked_pause.isdecimal():  # not a date
                pause = int(asked_pause)
            self._closed.wait(min(pause, LONGEST_WAIT_S))

    def _note_socket(self, event: str, info: dict) -> None:
        """Note the socket of a new connection, to abort it; httpx calls this."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.append(info["return_value"].get_extra_info("socket"))

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

    def _read(self, status: int, text: str, path: str) -> Any:
        if not 200 <= status < 300:
            advice, variable = "", self.settings.api_key_variable
            if status in (401, 403):
                advice = f". Check the key in the environment variable {variable}."
                if self._key is None:
                    advice = f". Set the environment variable {variable} to the server's key."
            raise ServerError(
                f"The server at {self.root} refused a request ({path}): status {status}, "
                f"{error_message(text)}{advice}",
                status,
            )
        try:
            return json.loads(text)
        except ValueError:
            raise ServerError(
                f"The server at {self.root} must answer in JSON, got {text[:SHOWN]!r} ({path}).",
                status,
            ) from None


def error_message(text: str) -> str:
    """Return the message in an error response."""
    try:
        found = json.loads(text)
    except ValueError:
        return repr(text[:SHOWN])
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return repr(str(found)[:SHOWN])


class ServedSource:
    """A server with its API.

    Attributes:
        served_name: name of the model on the server.
    """

    def __init__(self, server: Server, api: LogprobsAPI, served_name: str) -> None:
        self.server, self.api, self.served_name = server, api, served_name

    def connected(self) -> AbstractContextManager:
        return self.server.connected()

    def values(self, prompts: Sequence[Prompt], num_likeliest: int = 0) -> list[TokenValues]:
        body = self.api.body(self.served_name, prompts, num_likeliest)
        values = self.api.read(
            self.server.request("POST", self.api.path, body), prompts, num_likeliest
        )
        self.server.has_answered = True
        return values

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        threads = self.server.threads
        if threads is None:
            raise RuntimeError(f"{self.server.root} is not connected: enter connected() first.")
        running: dict[Future, int] = {}

        def answered() -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                try:
                    yield number, future.result()
                except AnswerError as error:
                    yield number, error

        for number, prompts in enumerate(requests):
            running[threads.submit(self.values, prompts, num_likeliest)] = number
            if len(running) >= self.server.settings.requests_in_flight:
                yield from answered()
        while running:
            yield from answered()

    def tokenize(self, text: str) -> list[int] | None:
        if not self.api.tokenizer_path:
            return None
        body = {"model": self.served_name, "prompt": text, "add_special_tokens": False}
        try:
            found = self.server.request("POST", self.api.tokenizer_path, body)
        except ServerError:
            return None
        return found.get("tokens") if isinstance(found, dict) else None


# --- opening --------------------------------------------------------------------------------------


def open_served(
    address: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    model_kwargs: dict | None = None,
    tokenizer_kwargs: dict | None = None,
    argument: str = "model_id",
) -> ServedModel:
    """Open a served model, and find the API of its server.

    Args:
        tokenizer: tokenizer of the served model; loaded by the name of the model's root by default.
        model_kwargs: fields of `ServerSettings`.

    Raises:
        ServerError: the server does not respond.
        ValueError: it does not return the log-probabilities of a prompt, or its tokenizer is unknown.
    """
    settings = check_settings(model_kwargs or {})
    parts = urlsplit(address)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ArgumentError(
            argument,
            "be an address such as 'http://host:8000/v1', without user, password or parameters",
            advice=f"Set the environment variable {settings.api_key_variable} to the key.",
        )
    server = Server(address, settings)
    description = f"`{argument}`={address!r}"
    with server.connected():
        name, about = find_served_model(server, description)
        length = about.get("max_model_len")
        if tokenizer is None:
            tokenizer = tokenizer_of(about.get("root") or name, tokenizer_kwargs or {}, description)
        source = find_source(server, name, tokenizer, length, description)
        engine = engine_of(server, source.api)
    if length is None:
        stated = getattr(tokenizer, "model_max_length", LARGEST_LIMIT)
        limit = ContextLimit(int(stated) if 0 < stated < LARGEST_LIMIT else None, None)
    else:
        # One position is reserved for the answer.  A forced token is the answer; others are read.
        num_read = 0 if source.api.forces else source.api.num_new
        limit = ContextLimit(length, None, length - 1 - num_read)
    return ServedModel(source, tokenizer, model_name(name, {}), description, engine, limit)


def find_served_model(server: Server, description: str) -> tuple[str, dict]:
    """Find the served model by its name, or the only one.

    Returns:
        its name, and what the server says of it: `root` and `max_model_len`, if anything.

    Raises:
        ValueError: there is none of that name, or there are several and none is named.
    """
    named = server.settings.served_name
    try:
        listed = server.request("GET", "/v1/models")
    except ServerError as error:
        if error.status not in (404, 405) or named is None:
            raise
        return named, {}
    entries = listed.get("data") if isinstance(listed, dict) else None
    described = {str(e["id"]): e for e in entries or () if isinstance(e, dict) and "id" in e}
    if not described and named is None:
        raise ValueError(
            Wording(
                f"{description} lists no model. If it serves one, pass its name as `served_name` in "
                "`model_kwargs`."
            )
        )
    if named is None and len(described) == 1:
        named = next(iter(described))
    if described and named not in described:
        got = "" if named is None else f", got {named!r}"
        raise ValueError(
            Wording(
                f"{description} serves {', '.join(map(repr, described))}: pass one of these names as "
                f"`served_name` in `model_kwargs`{got}."
            )
        )
    return str(named), described.get(str(named), {})


def tokenizer_of(root: str, tokenizer_kwargs: dict, description: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer by the name of the model's root.

    Raises:
        ValueError: the name is unknown, or a folder that does not exist here.
    """
    if os.path.isabs(root) and not os.path.isdir(root):
        raise ArgumentError(
            "tokenizer",
            f"be given for {description}: the server's model is in {root!r}, which is not on this "
            "machine",
            advice="Pass a name or a folder.",
        )
    try:
        check_exists(root, tokenizer_kwargs, "tokenizer", TOKENIZER_FILES)
        return load_tokenizer(root, tokenizer_kwargs, {}, "tokenizer")
    except ValueError as error:
        raise ValueError(
            Wording(
                f"`tokenizer` must be given for {description}, whose model is {root!r}: {error}"
            )
        ) from error


def find_source(
    server: Server,
    served_name: str,
    tokenizer: PreTrainedTokenizerBase,
    length: int | None,
    description: str,
) -> ServedSource:
    """Find the API by which a server returns the values of a prompt.

    Raises:
        ValueError: there is none; it lists the answers in each.
    """
    vocabulary_size = int(max(tokenizer.get_vocab().values())) + 1
    ids = probe_text(vocabulary_size, min(SHORT_PROMPT, length or SHORT_PROMPT))
    failures = []
    for api in LOGPROBS_APIS:
        source = ServedSource(server, api, served_name)
        try:
            source.values([Prompt(ids)])
        except (AnswerError, ServerError) as error:
            if isinstance(error, ServerError) and error.status in (None, 401, 403):
                raise  # no other API will help
            failures.append(f"{api.name}: {error}")
            continue
        return source
    raise ValueError(
        Wording(
            f"{description} must return the log-probability of every token of a prompt, but does so "
            f"with none of the supported APIs. {len(ids)} token ids were sent to each: "
            f"{'; '.join(failures)}. vLLM and SGLang do; llama.cpp's server does not: pass the "
            "GGUF file itself as `model_id`."
        )
    )


def engine_of(server: Server, api: LogprobsAPI) -> str:
    """Return the name of a server's program, with its version if known."""
    for path in ("/version", "/get_server_info"):
        with suppress(ServerError):
            found = server.request("GET", path)
            if isinstance(found, dict) and isinstance(found.get("version"), str):
                return f"{api.name} {found['version']}"
    return api.name
