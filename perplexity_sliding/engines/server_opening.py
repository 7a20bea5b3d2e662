"""Opening a model behind an address: what is served, with which tokenizer, and how it is asked."""

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

# Tokens of the prompt by which the form of a server is found.
SHORT_PROMPT = 8
# Most bytes of a token's id in a list; a text has at most as many tokens as bytes.
BYTES_OF_AN_ID = 16


class ServedModelInfo(NamedTuple):
    """What a server says of a model.

    Attributes:
        name: under which it is served.
        root: its name on the Hub or its folder; None where the server does not say.
        length: tokens that it takes; None where the server does not say.
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
    """Open a model behind an address, and find out how it is asked.

    Args:
        tokenizer: that of the served model; by default it is loaded by the name that the server
            gives as the model's root.
        model_kwargs: fields of `ServerSettings`.

    Raises:
        ServerError: there is no such server.
        ValueError: it does not give the log-probabilities of a prompt, or its tokenizer is unknown.
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
    """Refuse an address with a password or parameters in it, which would be shown.

    Args:
        argument: what an error calls it.
    """
    parts = urlsplit(address)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ArgumentError(
            argument,
            "be an address such as 'http://host:8000/v1', without user, password or parameters",
            advice=f"Put a key into the environment variable {settings.api_key_variable}.",
        )


def check_settings(model_kwargs: dict) -> ServerSettings:
    """Check `model_kwargs` of a served model.

    Raises:
        ValueError: one of them means nothing there.
    """
    unknown = sorted(set(model_kwargs) - set(ServerSettings._fields))
    if unknown:
        raise ValueError(
            Wording(
                f"`model_kwargs` of a served model must hold {', '.join(ServerSettings._fields)}, "
                f"got {unknown[0]!r}. How the model is loaded is said to the server."
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
            advice="What was given is not shown: it may be the key itself, which the variable holds.",
        )
    for name, low in (("requests_in_flight", 1), ("retries", 0)):
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ArgumentError(name, f"be a whole number from {low} on", got=repr(value))
    if not isinstance(settings.timeout, int | float) or not settings.timeout > 0:
        raise ArgumentError("timeout", "be a number of seconds above 0", got=repr(settings.timeout))
    return settings


def find_served_model(server: Server, description: str) -> ServedModelInfo:
    """Find the served model that is meant.

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
            f"{description} serves {', '.join(map(repr, described)) or 'no model'}: name one of "
            f"them by model_kwargs={{'served_name': …}}, got {named!r}."
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
    """Load the tokenizer of the model that a server names as its root.

    Raises:
        ValueError: it names none, or one that is not here.
    """
    root = info.root or info.name
    if os.path.isabs(root) and not os.path.isdir(root):
        raise ArgumentError(
            "tokenizer",
            f"be given for {description}: the server's model lies in {root!r}, which is not on "
            "this machine",
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
    """Find the form in which a server gives the values of a prompt.

    Raises:
        ValueError: there is none; it says what came back to each.
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
                raise  # no form will help
            failures.append(f"{api.name}: {error}")
            continue
        return source
    raise ValueError(
        Wording(
            f"{description} must give the log-probability of every token of a prompt, and does so "
            f"in none of the known forms. {len(prompt.ids)} token ids were sent in each: "
            f"{'; '.join(failures)}. vLLM and SGLang do; llama.cpp's server does not: pass the "
            "GGUF file itself as `model_id`."
        )
    )


def engine_of(server: Server, api: LogprobsAPI) -> str:
    """Name the program behind a server, with its version where it says so."""
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
    """Find how many tokens a window may have, and how many of them a request reads."""
    length = info.length
    if length is None:
        stated = getattr(tokenizer, "model_max_length", LARGEST_LIMIT)
        return ContextLimit(int(stated) if 0 < stated < LARGEST_LIMIT else None, None)
    # One place is the answer's.  A token that is forced is the answer; others are read.
    return ContextLimit(length, None, length - 1 if api.forces else length - 1 - api.num_new)


class ServedSource:
    """A server that is asked in one form.

    Attributes:
        served_name: which of its models answers.
    """

    def __init__(self, server: Server, api: LogprobsAPI, served_name: str) -> None:
        self.server, self.api, self.served_name = server, api, served_name

    def connected(self) -> AbstractContextManager:
        """Keep connections for the time of the context."""
        return self.server.connected()

    def values(
        self, prompts: Sequence[Prompt], num_likeliest: int = 0, **sampling: float
    ) -> list[TokenValues]:
        """Ask for the values of prompts in one request.

        Raises:
            AnswerError: the answer does not hold them.
            ServerError: there is none.
        """
        body = self.api.body(self.served_name, prompts, num_likeliest, **sampling)
        most_bytes = self.api.most_bytes(prompts, num_likeliest)
        reply = self.server.post(self.api.path, body, most_bytes)
        return self._read(reply, prompts, num_likeliest)

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Send requests, several in flight; yield (number, values or what is wrong) as they come."""
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
            AnswerError: it does not hold what was asked for, or has parts of another kind.
        """
        try:
            values = self.api.read(reply, prompts, num_likeliest)
        except AnswerError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise AnswerError(f"parts of another kind ({error}): {shown(reply)}") from None
        self.server.has_answered = True
        return values

    def generating(self) -> "ServedSource":
        """Return the same server, asked to generate a token after each prompt."""
        return ServedSource(self.server, self.api.generating, self.served_name)

    def tokenize(self, text: str) -> list[int] | None:
        """Return the ids that the server cuts a text into; None where it does not say."""
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
