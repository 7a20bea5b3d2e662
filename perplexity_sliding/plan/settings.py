"""From settings to measurements: fill in defaults of a protocol, and plan its windows."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice

from transformers import PreTrainedTokenizerBase

from ..arguments import Setting
from ..errors import ArgumentError, TextsError, Wording
from ..protocols import Protocol, Start
from ..wikitext import DETOKENIZERS, find_lost_spaces
from .measurement import Measurement
from .parts import Parts, border_windows, read_parts, windows_of_part
from .tokenization import (
    TokenizedText,
    concatenate,
    prepends_start_token,
    resolve_start,
    start_token_id,
    tokenize,
    without_start_token,
)
from .windows import UNLIMITED_WINDOW, ContextLimit, Plan, Window, num_scored

# Characters of a text from which on the bytes of its tokens are counted: an interval within a text is
# one of its parts, and shorter texts have none.
LONG_TEXT = 500


class Corpus:
    """The texts as read by protocols: separate or joined, in several encodings.

    Args:
        with_offsets: keep the characters of each token, if the tokenizer returns offsets.
        parts: the scored parts of the texts; None for whole texts.
        detokenizer: the conversion of the texts before they are read; see `compute`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: list[str],
        with_offsets: bool,
        parts: Parts | None = None,
        detokenizer: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.texts = texts
        self.detokenizer = detokenizer
        self.with_offsets = with_offsets
        self.parts = None if parts is None else parts.formatted_by(tokenizer)
        self._readings: dict[tuple, tuple[list[str], list[TokenizedText]]] = {}
        self._streams: dict[tuple, list[TokenizedText]] = {}
        self._wordings: dict[Callable, list[str]] = {}

    def detokenize_for(self, protocol: Protocol) -> Callable[[str], str] | None:
        """Return the conversion of the texts, by the rules of the protocol's tool if it has any."""
        if self.detokenizer is None:
            return None
        return protocol.detokenize or DETOKENIZERS[self.detokenizer]

    def name_detokenizer(self, protocol: Protocol) -> str | None:
        """Return the name of that conversion in the signature: the tool's function, or ours."""
        own = protocol.detokenize
        return own.__name__ if own and self.detokenizer else self.detokenizer

    def wordings(self, protocol: Protocol) -> list[str]:
        """Return the texts as the protocol reads them: detokenized, if that is asked for."""
        convert = self.detokenize_for(protocol)
        if convert is None:
            return self.texts
        if convert not in self._wordings:
            self._wordings[convert] = list(map(convert, self.texts))
            lost = () if protocol.detokenize else map(find_lost_spaces, self.texts)
            if line := next(filter(None, lost), None):
                warnings.warn(
                    f"Lines such as {line!r:.60} are not converted: WikiText's form has a space at both "
                    "ends of a line. Use the original texts, or add these spaces.",
                    stacklevel=2,
                )
        return self._wordings[convert]

    def count_words(self, protocol: Protocol) -> list[int] | None:
        """Count the words of the texts before they are detokenized; None if they are not."""
        return None if self.detokenizer is None else list(map(protocol.count_words, self.texts))

    def read(
        self, protocol: Protocol, with_offsets: bool = False
    ) -> tuple[list[str], list[TokenizedText]]:
        """Return the texts, or the joined text, and their tokens."""
        length = (max if protocol.join is None else sum)(map(len, self.texts))
        with_offsets = with_offsets or self.with_offsets or length >= LONG_TEXT
        reading = (protocol.encoding, protocol.texts_joined, protocol.pairs, protocol.join)
        key = (*reading, self.detokenize_for(protocol), with_offsets)
        if key not in self._readings:
            self._readings[key] = self._read(protocol, with_offsets)
        return self._readings[key]

    def _read(
        self, protocol: Protocol, with_offsets: bool
    ) -> tuple[list[str], list[TokenizedText]]:
        texts = self.wordings(protocol)
        if self.parts is not None:
            return read_parts(self.parts, self.tokenizer, texts, protocol)
        members = self.members(protocol)
        if members is None and protocol.join is not None:
            texts = [protocol.join.join(texts)]
        key = (*texts, protocol.encoding, with_offsets)
        if key not in self._streams:  # protocols differ in how they join what they tokenize alike
            self._streams[key] = tokenize(self.tokenizer, texts, protocol.encoding, with_offsets)
        streams = self._streams[key]
        if members is None:
            return texts, streams
        parts = iter(streams)
        joined = [concatenate(list(islice(parts, len(of))), of) for of in members]
        return ["".join(of) for of in members], joined

    def members(self, protocol: Protocol) -> list[list[str]] | None:
        """Return the texts of each stream if their tokens are joined; see `Measurement`."""
        if self.parts is not None or protocol.join != "tokens":
            return None
        texts, at_once = self.wordings(protocol), protocol.texts_joined or len(self.texts)
        return [texts[first : first + at_once] for first in range(0, len(texts), at_once)]


def plan_measurement(
    corpus: Corpus, limit: ContextLimit, setting: Setting, with_borders: bool = False
) -> Measurement:
    """Resolve the defaults of a setting, and plan its windows.

    Args:
        limit: the model's limit.

    Raises:
        ValueError: the model or the protocol does not allow a window or stride, or a text has
            nothing to score.
    """
    protocol = setting.protocol
    # These checks do not depend on the texts, so they precede the tokenization.
    plan = make_plan(
        corpus.tokenizer,
        limit,
        setting,
        lambda: max(len(stream) for stream in corpus.read(protocol)[1]),
    )
    texts, streams = corpus.read(protocol)
    streams = without_start_tokens(corpus.tokenizer, plan, texts, streams)
    windows_of = cache(plan.windows)  # equal for texts of equal length
    windows = [
        windows_of(len(stream)) if stream.part is None else windows_of_part(plan, stream)
        for stream in streams
    ]
    if corpus.parts is None and any(
        num_scored(of_stream) < len(stream) for of_stream, stream in zip(windows, streams)
    ):
        # offsets are needed to count the bytes and characters of the scored tokens
        _, streams = corpus.read(protocol, with_offsets=True)
        streams = without_start_tokens(corpus.tokenizer, plan, texts, streams)
    check_readable(limit, plan, windows)
    borders = [border_windows(plan, stream) if with_borders else [] for stream in streams]
    members = corpus.members(protocol)
    measurement = Measurement(
        setting, plan, texts, streams, windows, borders, corpus.parts, members
    )
    check_scorable(measurement)
    return measurement


def check_readable(limit: ContextLimit, plan: Plan, windows: Sequence[Sequence[Window]]) -> None:
    """Check that a server can read all tokens of the windows.

    Raises:
        ValueError: a window reads more tokens than the server accepts in addition to its answer.
    """
    length = max((window.num_inputs for of_text in windows for window in of_text), default=0)
    if limit.readable is not None and length > limit.readable:
        fitting = plan.max_length - (length - limit.readable)
        raise ArgumentError(
            "max_length",
            f"be at most {fitting} with `protocol={plan.protocol.name!r}` and "
            f"`stride={plan.stride}`",
            got=str(plan.max_length),
            why=(
                f"its windows read {length} tokens, but the server's limit of {limit.length} includes "
                "its answer"
            ),
            advice="Reduce it.",
        )


def without_start_tokens(
    tokenizer: PreTrainedTokenizerBase, plan: Plan, texts: list[str], streams: list[TokenizedText]
) -> list[TokenizedText]:
    """Drop written start tokens if the protocol adds its own."""
    if not plan.protocol.drops_written_start or plan.start_id is None:
        return streams
    return [
        without_start_token(tokenizer, plan.start_id, text, stream)
        for text, stream in zip(texts, streams)
    ]


def plan_settings(
    corpus: Corpus,
    limit: ContextLimit,
    settings: Sequence[Setting],
    keeps_refusals: bool,
    with_borders: bool = False,
) -> dict[Setting, Measurement | ValueError]:
    """Plan a measurement for each setting.

    Args:
        limit: the model's limit.
        keeps_refusals: return the error of a refused setting in its place, unless all are refused.
        with_borders: also plan windows over the tokens after the scored ones.

    Raises:
        ValueError: a setting is refused.
    """
    planned: dict[Setting, Measurement | ValueError] = {}
    for setting in settings:
        try:
            setting.check()
            check_parts_setting(setting.protocol, corpus.parts)
            if with_borders:
                check_words_setting(setting)
            planned[setting] = plan_measurement(corpus, limit, setting, with_borders)
        except ValueError as error:
            if not keeps_refusals:
                raise
            planned[setting] = error
    refusals = [error for error in planned.values() if isinstance(error, ValueError)]
    if len(refusals) == len(planned):
        raise refusals[0]
    return planned


def check_parts_setting(protocol: Protocol, parts: Parts | None) -> None:
    """Check that the protocol's tool scores parts of texts."""
    if parts is None or protocol.pairs == "by characters":
        return
    if protocol.pairs is None or parts.contexts is None:
        raise ArgumentError(
            "protocol",
            f"be one that scores {parts.describe()}",
            got=f"{protocol.name!r}, whose tool cannot score them",
            advice="Pass `protocol='sliding'`.",
        )
    if parts.boundary != "joint":
        raise ArgumentError(
            "boundary",
            f"be left out with `protocol={protocol.name!r}`, which has no such setting",
            got=repr(parts.boundary),
        )


def check_words_setting(setting: Setting) -> None:
    """Check that texts whose words are scored are not joined."""
    if not setting.protocol.scores_each_text:
        raise ArgumentError(
            "words",
            f"be left out with `protocol={setting.protocol.name!r}`, which joins the texts",
            advice="Pass `protocol='sliding'`.",
        )


def make_plan(
    tokenizer: PreTrainedTokenizerBase,
    limit: ContextLimit,
    setting: Setting,
    longest: Callable[[], int],
) -> Plan:
    """Resolve a protocol's settings for a model.

    Args:
        longest: counts the tokens of the longest text; called only if the window is unlimited.
    """
    protocol = setting.protocol
    start = choose_start(tokenizer, protocol, setting.add_start_token)
    start_id = start_token_id(tokenizer, protocol.start_is) if start != "none" else None
    if start != "none" and start_id is None:
        raise ArgumentError(
            "tokenizer",
            f"have a start token ({protocol.start_is}) with `protocol={protocol.name!r}`",
            got="one without it",
        )
    cap = window_cap(tokenizer, limit, protocol)
    max_length = resolve_max_length(limit, setting, cap, longest)
    if protocol.scores == "second half" and max_length < 3:
        raise ArgumentError(
            setting.window_argument,
            f"be at least 3 with `protocol={protocol.name!r}`",
            got=str(max_length),
            why="the second half of a window is scored, except for its first token",
        )
    stride = setting.stride
    if stride is None:
        stride = protocol.usual_stride(max_length, start == "every")
    starts_each = start == "every"
    if not 1 <= stride <= max_length - starts_each:
        most = f"`max_length={max_length}`"
        advice = "A larger stride would skip tokens."
        if starts_each:
            most = f"max_length-1={max_length - 1} if every window begins with a start token"
            advice = "Reduce it, or pass `add_start_token='once'`."
        raise ArgumentError("stride", f"be between 1 and {most}", got=str(stride), advice=advice)
    return Plan(protocol, int(max_length), int(stride), start, start_id)


def choose_start(
    tokenizer: PreTrainedTokenizerBase, protocol: Protocol, add_start_token: bool | str
) -> Start:
    """Return the position of the start token: the user's choice if the protocol allows it."""
    if protocol.start == "chosen":
        start = resolve_start(tokenizer, add_start_token)
        # With one window per text, "every" equals "once".
        return "once" if protocol.last == "cut" and start == "every" else start
    if protocol.start == "replace" and not prepends_start_token(tokenizer):
        return "none"
    if protocol.start == "every if any":
        return "none" if start_token_id(tokenizer, protocol.start_is) is None else "every"
    return protocol.start


def window_cap(
    tokenizer: PreTrainedTokenizerBase, limit: ContextLimit, protocol: Protocol
) -> int | None:
    """Return the protocol's own window in tokens, None for the model's limit."""
    if protocol.max_length == "tokenizer or 1024":
        # the block of run_clm.py: the tokenizer's stated limit, if the model takes it
        length = limit.length or 1024
        stated = getattr(tokenizer, "model_max_length", None) or length + 1
        return min(1024, length) if stated > length else int(stated)
    return protocol.max_length


def own_window(
    tokenizer: PreTrainedTokenizerBase, limit: ContextLimit, setting: Setting
) -> int | None:
    """Return the window of a setting under one model, in tokens.

    None if neither the caller, the protocol nor the model sets a limit.
    """
    if setting.max_length is not None:
        return setting.max_length
    cap = window_cap(tokenizer, limit, setting.protocol)
    return min((length for length in (cap, limit.length) if length is not None), default=None)


def resolve_max_length(
    limit: ContextLimit, setting: Setting, cap: int | None, longest: Callable[[], int]
) -> int:
    """Return the window in tokens: the given one, or the model's limit.

    Args:
        cap: the protocol's own window, which the model's limit may reduce; None for the limit.
        longest: counts the tokens of the longest text, without a start token.

    Raises:
        ValueError: the window exceeds the position table, or the limit is unknown and a text is
            longer than 2048 tokens.
    """
    max_length, argument = setting.max_length, setting.window_argument
    if max_length is None:
        if limit.length is not None:
            return min(limit.length, cap or limit.length)
        if cap is None and longest() > UNLIMITED_WINDOW:
            raise ArgumentError(
                "max_length",
                f"be given: the model states no limit and a text has {longest()} tokens, more "
                f"than {UNLIMITED_WINDOW}",
                advice=(f"Pass the window, for example `max_length={UNLIMITED_WINDOW}`."),
            )
        return cap or UNLIMITED_WINDOW
    if limit.table is not None and max_length > limit.table:
        raise ArgumentError(
            argument,
            f"be between 2 and {limit.table}, the size of the model's position table",
            got=str(max_length),
            advice="The window slides over longer texts; nothing is cut off.",
        )
    if limit.length is not None and max_length > limit.length:
        warnings.warn(
            Wording(
                f"`{argument}`={max_length} exceeds the model's stated limit of {limit.length} tokens; "
                "its perplexity may be far worse beyond it."
            ),
            stacklevel=2,
        )
    return max_length


def check_scorable(measurement: Measurement) -> None:
    """Check that each text has a token to score; the error lists all that do not."""
    plan = measurement.plan
    protocol = plan.protocol
    unscorable = [
        number
        for number, windows in enumerate(measurement.windows)
        if len(windows) < (1 if measurement.streams[number].part else protocol.min_windows)
        or not measurement.texts[number]  # whose only token is one that the tokenizer adds
    ]
    if not unscorable:
        return
    if protocol.last in ("dropped", "popped"):
        fewest = protocol.min_windows * plan.max_length
        if protocol.last == "popped":
            fewest += plan.stride + 1
        raise ArgumentError(
            "predictions",
            f"have at least {fewest} tokens with `protocol={protocol.name!r}`, which drops incomplete "
            f"windows of {plan.max_length}",
            got=str(len(measurement.streams[unscorable[0]])),
            advice="Reduce `max_length`, or pass more text.",
        )
    need = "1 token"
    advice = ""
    if plan.start == "none":
        need = "2 tokens"
        advice = ", or use a start token (`add_start_token`), if the tokenizer has one"
    raise TextsError(
        "predictions",
        f"have at least {need} each",
        got="shorter texts",
        positions=unscorable,
        advice=f"Remove them{advice}.",
    )
