"""A server with an API for log-probabilities: its requests, and the model, tokenizer and API behind it."""

import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from transformers import PreTrainedTokenizerBase

from ..arguments import Number
from ..errors import ArgumentError
from ..models.identity import model_name, probe_text
from ..models.interface import LARGEST_LIMIT
from ..models.loading import TOKENIZER_FILES, check_exists, load_tokenizer
from ..plan.windows import ContextLimit
from .served import APIS, AnswerError, LogprobsAPI, Prompt, ServedModel, ServerError, TokenValues

# The environment variable with the key, if the server requires one.
KEY_VARIABLE = "VLLM_API_KEY"
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


class ServerSettings(NamedTuple):
    """How requests are sent: `model_kwargs` of a served model.

    Attributes:
        served_name: name of the model on the server; None for the only one.
        requests_in_flight: number of concurrent requests.
        timeout: seconds until an answer must begin.
        retries: number of retries; ten take two and a half minutes, longer than a restart.
    """

    served_name: str | None = None
    requests_in_flight: int = 8
    timeout: float = 600.0
    retries: int = 10


class Server:
    """A server, which is a source of values; use it while `connected`.

    Attributes:
        api: its API; set by `open_served`, as is the next.
        served_name: name of the model on the server.
        has_answered: whether it has ever returned values, so that waiting for it makes sense.
    """

    api: LogprobsAPI
    served_name = ""
    has_answered = False
    _client: httpx.Client | None = None

    def __init__(self, address: str, settings: ServerSettings) -> None:
        self.root = address.rstrip("/").removesuffix("/v1")
        self.settings = settings
        self._key = os.environ.get(KEY_VARIABLE, "").strip()

    @contextmanager
    def connected(self) -> Iterator[None]:
        if self._client is not None:
            yield
            return
        timeout = self.settings.timeout
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_S)),
            limits=httpx.Limits(),
        )
        try:
            yield
        finally:
            self._client.close()
            self._client = None

    def request(self, method: str, path: str, body: dict | None = None) -> Any:
        """Send a request, and again after temporary failures; return the answer's JSON."""
        assert self._client is not None, "enter connected() first"
        failures: list[str] = []
        while True:
            status = None
            try:
                reply = self._client.request(method, self.root + path, json=body)
            except httpx.ReadTimeout:
                failures.append(f"no answer within {self.settings.timeout:g} s")
            except httpx.TransportError as error:
                failures.append(str(error) or type(error).__name__)
            else:
                if reply.is_success:
                    break
                status = reply.status_code
                said = reply.text.replace(self._key or "\0", "***")[:SHOWN]  # it may repeat the key
                failures.append(f"status {status}, {said!r}")
                if status not in TRANSIENT:
                    break
            most = self.settings.retries
            if not self.has_answered and status in (None, 500):  # others ask to retry
                most = min(most, FIRST_CONTACT_RETRIES)
            if len(failures) > most:
                last = f"; finally: {failures[-1]}" if failures[-1] != failures[0] else ""
                advice = "Check the address, and that the server is running."
                if self.has_answered:
                    advice = "For a longer wait, increase `retries` or `timeout` in `model_kwargs`."
                raise ServerError(
                    f"The server at {self.root} did not respond ({path}, attempts: {len(failures)}): "
                    f"{failures[0]}{last}. {advice}",
                    status,
                )
            pause = FIRST_WAIT_S * 2 ** (len(failures) - 1) * random.uniform(0.75, 1.25)
            time.sleep(min(pause, LONGEST_WAIT_S))
        if status is not None:
            problem = f"The server at {self.root} refused a request ({path}): {failures[-1]}."
            if status in (401, 403):
                problem += f" The key is taken from the environment variable {KEY_VARIABLE}"
                problem += "." if self._key else ", which is not set."
            raise ServerError(problem, status)
        try:
            return reply.json()
        except ValueError:
            said = reply.text[:SHOWN]
            raise ServerError(
                f"The server at {self.root} must answer in JSON, got {said!r} ({path})."
            ) from None

    def values(self, prompts: Sequence[Prompt], num_likeliest: int = 0) -> list[TokenValues]:
        body = self.api.body(self.served_name, prompts, num_likeliest)
        reply = self.request("POST", self.api.path, body)
        values = self.api.read(reply, prompts, num_likeliest)
        self.has_answered = True
        return values

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        answers: SimpleQueue = SimpleQueue()

        def ask(number: int, prompts: Sequence[Prompt]) -> None:
            try:
                answers.put((number, self.values(prompts, num_likeliest)))
            except Exception as error:
                answers.put((number, error))

        numbered, num_running = enumerate(requests), 0
        while True:
            for asked in islice(numbered, self.settings.requests_in_flight - num_running):
                # daemons, for which Ctrl-C does not wait
                Thread(target=ask, args=asked, daemon=True).start()
                num_running += 1
            if not num_running:
                return
            number, answer = answers.get()
            num_running -= 1
            if isinstance(answer, Exception) and not isinstance(answer, AnswerError):
                raise answer
            yield number, answer


# --- opening --------------------------------------------------------------------------------------


def open_served(
    address: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    model_kwargs: dict | None = None,
    argument: str = "model_id",
) -> ServedModel:
    """Open a served model, and find the API of its server.

    Args:
        tokenizer: tokenizer of the served model; loaded by the name of the model's root by default.
        model_kwargs: fields of `ServerSettings`.
    """
    unknown = sorted(set(model_kwargs or ()) - set(ServerSettings._fields))
    if unknown:
        raise ArgumentError(
            "model_kwargs",
            f"contain only {', '.join(ServerSettings._fields)} with a server",
            got=repr(unknown[0]),
        )
    parts = urlsplit(address)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ArgumentError(
            argument,
            "be an address such as 'http://host:8000/v1', without user, password or parameters",
            advice=f"Set the environment variable {KEY_VARIABLE} to the key.",
        )
    settings = ServerSettings(**(model_kwargs or {}))
    for name, low in (("requests_in_flight", 1), ("retries", 0), ("timeout", 0)):
        Number(low).check(f"model_kwargs[{name!r}]", getattr(settings, name))
    server = Server(address, settings)
    description = f"`{argument}`={address!r}"
    with server.connected():
        server.served_name, about = find_served_model(server, description)
        if tokenizer is None:
            root = about.get("root") or server.served_name
            try:
                if os.path.isabs(root) and not os.path.isdir(root):
                    raise ValueError("there is no such folder on this machine.")
                check_exists(root, {}, "tokenizer", TOKENIZER_FILES)
                tokenizer = load_tokenizer(root, {}, "tokenizer")
            except ValueError as error:
                given = f"be given for {description}, whose model is {root!r}"
                raise ArgumentError("tokenizer", given, why=str(error)) from error
        length = about.get("max_model_len")
        server.api = find_api(server, tokenizer, length, description)
        engine = server.api.name
        with suppress(ServerError, LookupError, TypeError):
            engine = f"{server.api.name} {server.request('GET', '/version')['version']}"
    if length is None:
        stated = getattr(tokenizer, "model_max_length", LARGEST_LIMIT)
        limit = ContextLimit(int(stated) if 0 < stated < LARGEST_LIMIT else None, None)
    else:
        # One position is reserved for the answer.  A forced token is the answer; others are read.
        limit = ContextLimit(length, None, length - 1 - (not server.api.forces))
    name = model_name(server.served_name, {})
    return ServedModel(server, tokenizer, name, description, engine, limit)


def find_served_model(server: Server, description: str) -> tuple[str, dict]:
    listed, named = server.request("GET", "/v1/models"), server.settings.served_name
    described = {entry["id"]: entry for entry in listed["data"]}
    if named is None and len(described) == 1:
        [named] = described
    if named is None or named not in described:
        names = ", ".join(map(repr, described)) or "no model"
        raise ValueError(
            f"{description} lists {names}: pass one as `served_name` in `model_kwargs`, got {named!r}."
        )
    return named, described[named]


def find_api(
    server: Server, tokenizer: PreTrainedTokenizerBase, length: int | None, description: str
) -> LogprobsAPI:
    ids = probe_text(len(tokenizer), min(SHORT_PROMPT, length or SHORT_PROMPT))
    failures = []
    for server.api in APIS:
        try:
            server.values([Prompt(ids)])
            return server.api
        except (AnswerError, ServerError) as error:
            if isinstance(error, ServerError) and error.status in (None, 401, 403):
                raise  # no other API will help
            failures.append(f"{server.api.name}: {error}")
    raise ValueError(
        f"{description} must return the log-probability of every token of a prompt, as vLLM and SGLang "
        f"do, got for {len(ids)} token ids: {'; '.join(failures)}. Instead of llama.cpp's server, pass "
        "the GGUF file as `model_id`."
    )
