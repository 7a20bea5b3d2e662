"""Open a served model: find the model, its tokenizer and the API of the server."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from urllib.parse import urlsplit

from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError, Wording
from ..models.digest import model_name
from ..models.interface import LARGEST_LIMIT
from ..models.loading import TOKENIZER_FILES, check_exists, load_tokenizer
from ..plan.windows import ContextLimit
from .served import ServedModel
from .server import LONGEST_DESCRIPTION, Server, ServerSettings
from .server_apis import (
    LOGPROBS_APIS,
    AnswerError,
    LogprobsAPI,
    Prompt,
    ServerError,
    TokenValues,
    shown,
)
from .server_probe import ServerProbe

# Tokens of the prompt that tests the APIs of a server.
SHORT_PROMPT = 8
# Maximum size of a token id in a list; a text has at most as many tokens as bytes.
BYTES_OF_AN_ID = 16


class ServedModelInfo(NamedTuple):
    """Information from a server about a model.

    Attributes:
        name: its name on the server.
        root: its name on the Hub or its folder; None if unknown.
        length: its limit in tokens; None if unknown.
    """

    name: str
    root: str | None
    length: int | None


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
    check_address(address, settings, argument)
    server = Server(address, settings)
    description = f"`{argument}`={address!r}"
    with server.connected():
        info = find_served_model(server, description)
        if tokenizer is None:
            tokenizer = tokenizer_of(info, tokenizer_kwargs or {}, description)
        source = find_source(server, info, tokenizer, description)
        engine = server.hidden(engine_of(server, source.api))
        limit = limit_of(info, source.api, tokenizer)
    name = model_name(server.hidden(info.name), {})
    return ServedModel(source, tokenizer, name, description, engine, limit)


def check_address(address: str, settings: ServerSettings, argument: str) -> None:
    """Refuse an address with a password or parameters, which errors would show.

    Args:
        argument: name of the argument, for errors.
    """
    parts = urlsplit(address)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ArgumentError(
            argument,
            "be an address such as 'http://host:8000/v1', without user, password or parameters",
            advice=f"Set the environment variable {settings.api_key_variable} to the key.",
        )


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
    name, variable = settings.served_name, settings.api_key_variable
    if not isinstance(name, str | None):
        raise ArgumentError("served_name", "be the name of a served model", got=repr(name))
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


def find_served_model(server: Server, description: str) -> ServedModelInfo:
    """Find the served model by its name, or the only one.

    Raises:
        ValueError: there is none of that name, or there are several and none is named.
    """
    named = server.settings.served_name
    try:
        listed = server.get("/v1/models")
    except ServerError as error:
        if error.status not in (404, 405) or named is None:
            raise
        return ServedModelInfo(named, None, None)
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        entries = []
    described = {str(e["id"]): e for e in entries if isinstance(e, dict) and "id" in e}
    if named is None and len(described) == 1:
        named = next(iter(described))
    if named not in described:
        raise ValueError(
            f"{description} serves {', '.join(map(repr, described)) or 'no model'}: pass one of them "
            f"as model_kwargs={{'served_name': …}}, got {named!r}."
        )
    root, length = described[named].get("root"), described[named].get("max_model_len")
    return ServedModelInfo(
        named,
        root if isinstance(root, str) else None,
        length if isinstance(length, int) and length > 1 else None,
    )


def tokenizer_of(
    info: ServedModelInfo, tokenizer_kwargs: dict, description: str
) -> PreTrainedTokenizerBase:
    """Load the tokenizer by the name of the model's root.

    Raises:
        ValueError: the name is unknown, or a folder that does not exist here.
    """
    root = info.root or info.name
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
    server: Server, info: ServedModelInfo, tokenizer: PreTrainedTokenizerBase, description: str
) -> "ServedSource":
    """Find the API by which a server returns the values of a prompt.

    Raises:
        ValueError: there is none; it lists the answers in each.
    """
    failures = []
    for api in LOGPROBS_APIS:
        source = ServedSource(server, api, info.name)
        prompt = ServerProbe(
            source, tokenizer, min(SHORT_PROMPT, info.length or SHORT_PROMPT)
        ).probe
        try:
            source.values([prompt])
        except (AnswerError, ServerError) as error:
            if isinstance(error, ServerError) and error.status in (None, 401, 403):
                raise  # no other API will help
            failures.append(f"{api.name}: {error}")
            continue
        return source
    raise ValueError(
        Wording(
            f"{description} must return the log-probability of every token of a prompt, but does so "
            f"with none of the supported APIs. {len(prompt.ids)} token ids were sent to each: "
            f"{'; '.join(failures)}. vLLM and SGLang do; llama.cpp's server does not: pass the "
            "GGUF file itself as `model_id`."
        )
    )


def engine_of(server: Server, api: LogprobsAPI) -> str:
    """Return the name of a server's program, with its version if known."""
    for path in ("/version", "/get_server_info"):
        try:
            found = server.get(path)
        except ServerError:
            continue
        if isinstance(found, dict) and isinstance(found.get("version"), str):
            return f"{api.name} {found['version']}"
    return api.name


def limit_of(
    info: ServedModelInfo, api: LogprobsAPI, tokenizer: PreTrainedTokenizerBase
) -> ContextLimit:
    """Return the limits of a window and of the tokens that a request reads."""
    length = info.length
    if length is None:
        stated = getattr(tokenizer, "model_max_length", LARGEST_LIMIT)
        return ContextLimit(int(stated) if 0 < stated < LARGEST_LIMIT else None, None)
    # One position is reserved for the answer.  A forced token is the answer; others are read.
    return ContextLimit(length, None, length - 1 if api.forces else length - 1 - api.num_new)


class ServedSource:
    """A server with its API.

    Attributes:
        served_name: name of the model on the server.
    """

    def __init__(self, server: Server, api: LogprobsAPI, served_name: str) -> None:
        self.server, self.api, self.served_name = server, api, served_name

    def connected(self) -> AbstractContextManager:
        """Keep connections open within the context."""
        return self.server.connected()

    def values(
        self, prompts: Sequence[Prompt], num_likeliest: int = 0, **sampling: float
    ) -> list[TokenValues]:
        """Request the values of prompts.

        Raises:
            AnswerError: the answer does not contain them.
            ServerError: there is no answer.
        """
        body = self.api.body(self.served_name, prompts, num_likeliest, **sampling)
        most_bytes = self.api.most_bytes(prompts, num_likeliest)
        reply = self.server.post(self.api.path, body, most_bytes)
        return self._read(reply, prompts, num_likeliest)

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Send requests concurrently; yield (number, values or error) as answers arrive."""
        sent: dict[int, Sequence[Prompt]] = {}

        def bodies() -> Iterator[tuple[int, str, dict, int]]:
            for number, prompts in enumerate(requests):
                sent[number] = prompts
                body = self.api.body(self.served_name, prompts, num_likeliest)
                yield number, self.api.path, body, self.api.most_bytes(prompts, num_likeliest)

        for number, reply in self.server.post_all(bodies()):
            try:
                yield number, self._read(reply, sent.pop(number), num_likeliest)
            except AnswerError as error:
                yield number, error

    def _read(
        self, reply: object, prompts: Sequence[Prompt], num_likeliest: int
    ) -> list[TokenValues]:
        """Read an answer.

        Raises:
            AnswerError: it does not contain the requested values, or has another format.
        """
        try:
            values = self.api.read(reply, prompts, num_likeliest)
        except AnswerError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise AnswerError(f"an unexpected format ({error}): {shown(reply)}") from None
        self.server.has_answered = True
        return values

    def generating(self) -> "ServedSource":
        """Return the same server with requests that generate a token after each prompt."""
        return ServedSource(self.server, self.api.generating, self.served_name)

    def tokenize(self, text: str) -> list[int] | None:
        """Return the server's token ids of a text; None if unavailable."""
        if not self.api.tokenizer_path:
            return None
        body = {"model": self.served_name, "prompt": text, "add_special_tokens": False}
        most_bytes = LONGEST_DESCRIPTION + BYTES_OF_AN_ID * len(text.encode())
        try:
            found = self.server.post(self.api.tokenizer_path, body, most_bytes)
        except ServerError:
            return None
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return None
        return tokens
