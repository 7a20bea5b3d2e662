"""A model that lives elsewhere and gives the log-probabilities of tokens, not logits.

A server of vLLM, SGLang or anybody who speaks OpenAI's legacy completions; or, by the same
interface, an engine in this process.  It stands beside the models whose logits are read, and is
asked for columns of scores in their place.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .model_digest import model_name
from .model_interface import LARGEST_LIMIT, ContextLimit, MadeUpText
from .model_loading import load_tokenizer
from .model_served_trial import (
    CANARY_LENGTH,
    Identity,
    Source,
    Trial,
    changed_model,
    differ,
    try_source,
)
from .model_server import Server, ServerError, ServerSettings
from .model_server_forms import FORMS, AnswerError, Form, Prompt, TokenValues
from .text_tokenization import check_tokenizer

# Tokens of the prompt by which the form of a server is found.
SHORT_PROMPT = 8


class ServedSource:
    """A server that is asked in one form.

    Attributes:
        served_name: which of its models answers.
    """

    def __init__(self, server: Server, form: Form, served_name: str) -> None:
        self.server, self.form, self.served_name = server, form, served_name

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
        body = self.form.body(self.served_name, prompts, num_likeliest, **sampling)
        return self.form.read(self.server.post(self.form.path, body), prompts, num_likeliest)

    def values_of_all(
        self, requests: Iterable[Sequence[Prompt]], num_likeliest: int
    ) -> Iterator[tuple[int, Sequence[TokenValues] | AnswerError]]:
        """Send requests, several in flight; yield (number, values or what is wrong) as they come."""
        sent: dict[int, Sequence[Prompt]] = {}

        def bodies() -> Iterator[tuple[int, str, dict]]:
            for number, prompts in enumerate(requests):
                sent[number] = prompts
                body = self.form.body(self.served_name, prompts, num_likeliest)
                yield number, self.form.path, body

        for number, reply in self.server.post_all(bodies()):
            try:
                yield number, self.form.read(reply, sent.pop(number), num_likeliest)
            except AnswerError as error:
                yield number, error

    def tokenize(self, text: str) -> list[int] | None:
        """Return the ids that the server cuts a text into; None where it does not say."""
        if not self.form.tokenizer_path:
            return None
        body = {"model": self.served_name, "prompt": text, "add_special_tokens": False}
        try:
            found = self.server.post(self.form.tokenizer_path, body)
        except ServerError:
            return None
        return found.get("tokens") if isinstance(found, dict) else None


class ServedModel:
    """A model that gives columns of scores; otherwise as `LanguageModel`.

    Attributes:
        source: where its values come from.
        limit: tokens of a window, and of those the most that are read.
        engine: the program that runs it, with its version, for the signature.
        dtype: what it computes in, where that is known.
        vocabulary_size: ids of the tokenizer; the server may have more.
        probe: mean nll of the made-up text in nats a token; after `prepare`.
    """

    variant = ""
    gives_logits = False
    prefixes_agree = True  # as the trial shows
    num_embeddings = None
    by_blocks = False
    device = torch.device("cpu")
    model = None

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        description: str,
        engine: str,
        limit: ContextLimit,
        dtype: str | None = None,
    ) -> None:
        self.source, self.tokenizer = source, tokenizer
        self.name, self.description, self.engine = name, description, engine
        self.limit, self.dtype = limit, dtype
        self.lock = threading.RLock()
        self.vocabulary_size = int(max(tokenizer.get_vocab().values())) + 1
        self.probe: float | None = None
        self._identity: Identity | None = None
        self._tried = 0  # tokens of the longest prompt that was tried

    @property
    def identity(self) -> Identity:
        """What the model said on trial; there after `prepare`."""
        return self._identity

    @property
    def revision(self) -> str:
        """What identifies the model, as far as asking it can: its loss on made-up tokens."""
        return f"measured({self.identity.mean:.3f})"

    def as_scored(self) -> AbstractContextManager:
        return nullcontext()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the model and keep connections to it."""
        with self.lock, self.source.connected():
            yield

    def prepare(self, length: int = 0, num_tokens: int = 0) -> None:
        """Try it, unless it is the model that was tried before; and at the length of the windows.

        Args:
            length: tokens in the longest window that is read; 0 before the plan.

        Raises:
            ValueError: it cannot be believed, or does not read such a window whole.
        """
        if not length:
            self._recognise()
        elif length + 1 > self._tried:
            self._try_length(length)

    def _recognise(self) -> None:
        """Try it, unless it is the model that was tried before."""
        if self._identity is not None and self._identity.is_of(self.source):
            return
        longest = self._longest_prompt
        self._identity = try_source(self.source, self.tokenizer, longest, self.description)
        self.probe = self._measure_probe()
        self._tried = len(self._identity.probe.ids)

    def _measure_probe(self) -> float:
        """Read the made-up text that other models are measured on, as far as the server reads it."""
        ids = MadeUpText.of(self.vocabulary_size, self.limit.length).ids
        if len(ids) == len(self._identity.probe.ids) or not self.source.form.forces:
            return self._identity.mean
        return float(self.source.values([Prompt(ids[:-1], ids[-1])])[0].nll.mean())

    def _try_length(self, length: int) -> None:
        """Try a prompt as long as the longest window: the probe, and more after it.

        Raises:
            ValueError: it reads no more than a part of it, or refuses it.
        """
        known = self._identity
        whole = length + 1 if self._longest_prompt is None else self._longest_prompt
        more = Trial(self.source, self.tokenizer, CANARY_LENGTH).make_up(length + 1, seed=6)
        ids = [*known.probe.ids, *more][: min(length + 1, whole)]
        forced = more[-1] if length + 1 > whole else None
        try:
            values = self.source.values([Prompt(ids, forced)])[0].nll
        except AnswerError as error:
            raise ValueError(
                f"{self.description} must read windows of {length} tokens. A prompt of so many was "
                f"sent; it answered with {error}. Pass a smaller `max_length`."
            ) from None
        if differ(values[: len(known.nll)], known.nll[: len(values)]):
            raise ValueError(
                f"{self.description} must give a token one value whatever follows it, but in a "
                f"prompt of {len(ids)} tokens the first {len(known.nll)} cost "
                f"{values[: len(known.nll)].mean():.4f} nats each, and by themselves "
                f"{known.mean:.4f}: it cuts long prompts short, or reads them in another way. "
                "Pass a smaller `max_length`."
            )
        self._tried = length + 1

    def tokenize(self, text: str) -> list[int] | None:
        """Return the ids that the engine cuts a text into; None where it does not say."""
        return self.source.tokenize(text)

    def read_in_parts(self, length: int, refusal: str) -> None:
        """Refuse: what a server's memory takes is its own affair."""
        raise MemoryError(refusal)

    @property
    def _longest_prompt(self) -> int | None:
        """Tokens that the server takes as a prompt."""
        readable = self.limit.readable
        return None if readable is None else readable + (not self.source.form.forces)

    def check_same(self) -> None:
        """Refuse a server that runs another model now than at the start.

        Raises:
            ValueError: it does.
        """
        if not self._identity.is_of(self.source):
            raise changed_model(self.description)

    def signature_fields(self) -> dict[str, object]:
        """What its scores of given tokens depend on, as far as it is known here."""
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {"model": self.name, "revision": self.revision, **dtype, "engine": self.engine}

    def modifications(self) -> list[str]:
        return []

    def check_identifiable(self, argument: str = "checkpoint") -> None:
        """Accept: the scores that are kept are told apart by the probe."""

    def shares_prefixes(self, prefix: np.ndarray, following: np.ndarray) -> bool:
        """Return False: what a server keeps of a context is its own affair."""
        return False


class Card(NamedTuple):
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
    server = Server(address, check_settings(model_kwargs or {}), argument)
    description = f"`{argument}`={address!r}"
    with server.connected():
        card = find_card(server, description)
        if tokenizer is None:
            tokenizer = tokenizer_of(card, tokenizer_kwargs or {}, description)
        check_tokenizer(tokenizer, "tokenizer")
        source = find_source(server, card, tokenizer, description)
        engine = engine_of(server, source.form)
        limit = limit_of(card, source.form, tokenizer)
    name = model_name(card.name, {})
    return ServedModel(source, tokenizer, name, description, engine, limit)


def check_settings(model_kwargs: dict) -> ServerSettings:
    """Check `model_kwargs` of a served model.

    Raises:
        ValueError: one of them means nothing there.
    """
    unknown = sorted(set(model_kwargs) - set(ServerSettings._fields))
    if unknown:
        raise ValueError(
            f"`model_kwargs` of a served model must hold {', '.join(ServerSettings._fields)}, got "
            f"{unknown[0]!r}. How the model is loaded is said to the server."
        )
    settings = ServerSettings(**model_kwargs)
    for name, low in (("requests_in_flight", 1), ("retries", 0)):
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ValueError(f"`{name}` must be a whole number from {low} on, got {value!r}.")
    if not isinstance(settings.timeout, int | float) or not settings.timeout > 0:
        raise ValueError(
            f"`timeout` must be a number of seconds above 0, got {settings.timeout!r}."
        )
    return settings


def find_card(server: Server, description: str) -> Card:
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
        return Card(named, None, None)
    entries = listed.get("data") if isinstance(listed, dict) else None
    cards = {str(e["id"]): e for e in entries or () if isinstance(e, dict) and "id" in e}
    if named is None and len(cards) == 1:
        named = next(iter(cards))
    if named not in cards:
        raise ValueError(
            f"{description} serves {', '.join(map(repr, cards)) or 'no model'}: name one of them by "
            f"model_kwargs={{'served_name': …}}, got {named!r}."
        )
    root, length = cards[named].get("root"), cards[named].get("max_model_len")
    return Card(named, root if isinstance(root, str) else None, length and int(length))


def tokenizer_of(card: Card, tokenizer_kwargs: dict, description: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the model that a server names as its root.

    Raises:
        ValueError: it names none, or one that is not here.
    """
    root = card.root or card.name
    if os.path.isabs(root) and not os.path.isdir(root):
        raise ValueError(
            f"`tokenizer` must be given for {description}: the server's model lies in {root!r}, "
            "which is not on this machine. Pass a name or a folder."
        )
    try:
        return load_tokenizer(root, tokenizer_kwargs, {}, "tokenizer")
    except ValueError as error:
        raise ValueError(
            f"`tokenizer` must be given for {description}, whose model is {root!r}: {error}"
        ) from error


def find_source(
    server: Server, card: Card, tokenizer: PreTrainedTokenizerBase, description: str
) -> ServedSource:
    """Find the form in which a server gives the values of a prompt.

    Raises:
        ValueError: there is none; it says what came back to each.
    """
    failures = []
    for form in FORMS:
        source = ServedSource(server, form, card.name)
        prompt = Trial(source, tokenizer, min(SHORT_PROMPT, card.length or SHORT_PROMPT)).probe
        try:
            source.values([prompt])
        except (AnswerError, ServerError) as error:
            if isinstance(error, ServerError) and error.status in (None, 401, 403):
                raise  # no form will help
            failures.append(f"{form.name}: {error}")
            continue
        return source
    raise ValueError(
        f"{description} must give the log-probability of every token of a prompt, and does so in "
        f"none of the known forms. {len(prompt.ids)} token ids were sent in each: "
        + "; ".join(failures)
        + ". vLLM and SGLang do; llama.cpp's server does not: pass the GGUF file itself as "
        "`model_id`."
    )


def engine_of(server: Server, form: Form) -> str:
    """Name the program behind a server, with its version where it says so."""
    for path in ("/version", "/get_server_info"):
        try:
            found = server.get(path)
        except ServerError:
            continue
        if isinstance(found, dict) and isinstance(found.get("version"), str):
            return f"{form.name} {found['version']}"
    return form.name


def limit_of(card: Card, form: Form, tokenizer: PreTrainedTokenizerBase) -> ContextLimit:
    """Find how many tokens a window may have, and how many of them a request reads."""
    length = card.length
    if length is None:
        stated = getattr(tokenizer, "model_max_length", LARGEST_LIMIT)
        return ContextLimit(int(stated) if 0 < stated < LARGEST_LIMIT else None, None)
    # One place is the answer's.  A token that is forced is the answer; others are read.
    return ContextLimit(length, None, length - 1 if form.forces else length - 1 - form.num_new)
