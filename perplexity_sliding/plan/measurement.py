"""From settings to measurements: the texts as a protocol reads them, and the windows over them.

A measurement connects windows (integers), scores (arrays) and results (floats).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import Setting, check_supported
from ..errors import ArgumentError, TextsError, Wording
from ..protocols import Protocol, Start, detokenize_wikitext
from .parts import Parts, border_windows, read_parts, windows_of_part
from .tokenization import (
    TokenizedText,
    concatenate,
    prepends_start_token,
    start_token_id,
    tokenize,
    without_start_token,
)
from .windows import UNLIMITED_WINDOW, ContextLimit, Plan, Window, num_scored

# Scores of a pass by name: arrays with one value, or one row of values, per target.
Columns = dict[str, np.ndarray]
# Characters of a text from which on the bytes of its tokens are counted: an interval within a text is
# one of its parts, and shorter texts have none.
LONG_TEXT = 500


@dataclass(frozen=True)
class Measurement:
    """One protocol, window and stride over the texts.

    Attributes:
        setting, plan: the settings as given, and as used.
        texts: the texts as scored, separate or joined.
        streams: their tokens.
        windows, borders: over each stream; over the token after each scored range, for words.
        parts: the scored parts of the texts; None for whole texts.
        members: the texts of each stream, if those of several texts are joined token by token; else None.
        own_windows: the window of the model alone and of its reference; empty without a reference.
    """

    setting: Setting
    plan: Plan
    texts: list[str]
    streams: list[TokenizedText]
    windows: list[list[Window]]
    borders: list[list[Window]]
    parts: Parts | None = None
    members: list[list[str]] | None = None
    own_windows: Sequence[int | None] = ()

    def nlls_to_average(self, columns: Columns) -> np.ndarray:
        """Return the nlls of a window's targets to take all sums and averages over (R,), in nats."""
        return columns["nll"]

    @cached_property
    def longest_pass(self) -> int:
        """Tokens of the longest forward pass; with a carried state, at most those of a window."""
        windows = chain.from_iterable(chain(self.windows, self.borders))
        longest = max((window.num_inputs + window.behind for window in windows), default=0)
        return longest if self.plan.carries == "nothing" else min(longest, self.plan.max_length)

    @property
    def cut_models(self) -> list[int]:
        """The numbers of the models that have other scores in longer windows of their own."""
        window = self.plan.max_length
        longer = [n for n, own in enumerate(self.own_windows) if own is None or own > window]
        is_cut = longer and any(  # a text does not fit into a single window
            len(windows) > 1
            or windows[0].begin > 0  # the beginning of a context is dropped
            or (stream.part is None and windows[0].end < len(stream))  # the end of a text is
            for stream, windows in zip(self.streams, self.windows)
            if windows
        )
        return longer if is_cut else []

    def signature_fields(self) -> dict[str, object]:
        plan, join = self.plan, self.plan.protocol.join
        return {
            "protocol": plan.protocol.name,
            "window": plan.max_length,
            "stride": plan.stride,
            **({} if plan.carries == "nothing" else {"carry": plan.carries}),
            "start": plan.start if plan.start_id is None else f"{plan.start}({plan.start_id})",
            "join": join if join in (None, "tokens") else repr(join),
            **({} if self.parts is None else self.parts.fields()),
            **self.setting.signature_fields(),
        }


# --- scores by token ------------------------------------------------------------------------------


def scatter_to_tokens(windows: Sequence[Window], values: Sequence, over: list | np.ndarray) -> None:
    """Write the values of windows' targets, one a target, into an array over a text's tokens (N,).

    A token that several windows score gets the value with the most context, that of its first window.
    """
    for window, of_window in zip(reversed(windows), reversed(values), strict=True):
        over[window.first : window.end] = of_window


def nlls_by_token(
    measurement: Measurement, scores: Sequence[Sequence[Columns]]
) -> list[np.ndarray]:
    """Return the nll of each token of each text in nats (N,), NaN where unscored."""
    of_texts = [np.full(len(stream), np.nan) for stream in measurement.streams]
    for windows, columns_of, nlls in zip(measurement.windows, scores, of_texts):
        scatter_to_tokens(windows, list(map(measurement.nlls_to_average, columns_of)), nlls)
    return of_texts


def contexts_by_token(measurement: Measurement) -> list[np.ndarray]:
    of_texts = [np.zeros(len(stream), dtype=np.int64) for stream in measurement.streams]
    for windows, seen in zip(measurement.windows, of_texts):
        scatter_to_tokens(windows, [window.context_lengths() for window in windows], seen)
    return of_texts


# --- texts ----------------------------------------------------------------------------------------


class Corpus:
    """The texts as read by protocols: separate or joined, in several encodings."""

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
        self.wordings = texts if detokenizer is None else list(map(detokenize_wikitext, texts))
        self.with_offsets = with_offsets
        self.parts = None if parts is None else parts.formatted_by(tokenizer)
        self._readings: dict[tuple, tuple[list[str], list[TokenizedText]]] = {}
        self._streams: dict[tuple, list[TokenizedText]] = {}

    def members(self, protocol: Protocol) -> list[list[str]] | None:
        if self.parts is not None or protocol.join != "tokens":
            return None
        texts, at_once = self.wordings, protocol.texts_joined or len(self.texts)
        return [texts[first : first + at_once] for first in range(0, len(texts), at_once)]

    def read(
        self, protocol: Protocol, with_offsets: bool = False
    ) -> tuple[list[str], list[TokenizedText]]:
        length = (max if protocol.join is None else sum)(map(len, self.texts))
        with_offsets = with_offsets or self.with_offsets or length >= LONG_TEXT
        reading = (protocol.encoding, protocol.texts_joined, protocol.pairs, protocol.join)
        key = (*reading, with_offsets)
        if key not in self._readings:
            texts, members = self.wordings, self.members(protocol)
            if self.parts is not None:
                self._readings[key] = read_parts(self.parts, self.tokenizer, texts, protocol)
            elif members is None:
                texts = texts if protocol.join is None else [protocol.join.join(texts)]
                self._readings[key] = texts, self._tokenize(texts, protocol, with_offsets)
            else:
                streams = iter(self._tokenize(texts, protocol, with_offsets))
                joined = [concatenate(list(islice(streams, len(of))), of) for of in members]
                self._readings[key] = ["".join(of) for of in members], joined
        return self._readings[key]

    def _tokenize(
        self, texts: list[str], protocol: Protocol, with_offsets: bool
    ) -> list[TokenizedText]:
        key = (*texts, protocol.encoding, with_offsets)
        if key not in self._streams:  # protocols differ in how they join what they tokenize alike
            self._streams[key] = tokenize(self.tokenizer, texts, protocol.encoding, with_offsets)
        return self._streams[key]


# --- windows --------------------------------------------------------------------------------------


def plan_settings(
    corpus: Corpus,
    limit: ContextLimit,
    settings: Sequence[Setting],
    keeps_refusals: bool,
    with_borders: bool = False,
) -> dict[Setting, Measurement | ValueError]:
    """Plan a measurement for each setting.

    Args:
        keeps_refusals: return the error of a refused setting in its place, unless all are refused.
        with_borders: also plan windows over the tokens after the scored ones, for words.
    """
    planned: dict[Setting, Measurement | ValueError] = {}
    for setting in settings:
        protocol, parts = setting.protocol, corpus.parts
        try:
            setting.check()
            if parts is not None and protocol.pairs != "by characters":
                if protocol.pairs is None or parts.contexts is None:
                    raise ArgumentError(
                        "protocol",
                        "be one that scores such parts of texts",
                        got=repr(protocol.name),
                        advice="Pass `protocol='sliding'`.",
                    )
                if parts.boundary != "joint":
                    check_supported("boundary", protocol)
            if with_borders and not protocol.scores_each_text:
                raise ArgumentError(
                    "words",
                    f"be left out with `protocol={protocol.name!r}`, which joins the texts",
                    advice="Pass `protocol='sliding'`.",
                )
            planned[setting] = plan_measurement(corpus, limit, setting, with_borders)
        except ValueError as error:
            if not keeps_refusals:
                raise
            planned[setting] = error
    refusals = [error for error in planned.values() if isinstance(error, ValueError)]
    if len(refusals) == len(planned):
        raise refusals[0]
    return planned


def plan_measurement(
    corpus: Corpus, limit: ContextLimit, setting: Setting, with_borders: bool = False
) -> Measurement:
    protocol, tokenizer = setting.protocol, corpus.tokenizer

    def read(with_offsets: bool = False) -> tuple[list[str], list[TokenizedText]]:
        texts, streams = corpus.read(protocol, with_offsets)
        if plan.start_id is None or not protocol.drops_written_start:
            return texts, streams
        pairs = zip(texts, streams)
        return texts, [without_start_token(tokenizer, plan.start_id, *pair) for pair in pairs]

    # The plan does not depend on the texts, so it precedes the tokenization.
    plan = resolve_plan(corpus, limit, setting)
    texts, streams = read()
    windows_of = cache(plan.windows)  # equal for texts of equal length
    windows = [
        windows_of(len(stream)) if stream.part is None else windows_of_part(plan, stream)
        for stream in streams
    ]
    is_whole = all(num_scored(of) == len(stream) for of, stream in zip(windows, streams))
    if corpus.parts is None and not is_whole:
        # offsets are needed to count the bytes and characters of the scored tokens
        _, streams = read(with_offsets=True)
    read_at_most = max((w.num_inputs for of_text in windows for w in of_text), default=0)
    if limit.readable is not None and read_at_most > limit.readable:
        fitting = plan.max_length - (read_at_most - limit.readable)
        raise ArgumentError(
            "max_length",
            f"be at most {fitting} with `protocol={protocol.name!r}` and `stride={plan.stride}`",
            got=str(plan.max_length),
            why=f"its windows read {read_at_most} tokens, but the server's limit of {limit.length} "
            "includes its answer",
        )
    borders = [border_windows(plan, stream) if with_borders else [] for stream in streams]
    members = corpus.members(protocol)
    measurement = Measurement(
        setting, plan, texts, streams, windows, borders, corpus.parts, members
    )
    check_scorable(measurement)
    return measurement


def check_scorable(measurement: Measurement) -> None:
    plan, protocol = measurement.plan, measurement.plan.protocol
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
    must, advice = "have at least 1 token each", "Remove them."
    if plan.start == "none":
        must = "have at least 2 tokens each"
        advice = "Remove them, or use a start token (`add_start_token`), if the tokenizer has one."
    raise TextsError("predictions", must, advice, got="shorter texts", positions=unscorable)


def resolve_plan(corpus: Corpus, limit: ContextLimit, setting: Setting) -> Plan:
    protocol, tokenizer = setting.protocol, corpus.tokenizer
    start = choose_start(tokenizer, protocol, setting.add_start_token)
    start_id = start_token_id(tokenizer, protocol.start_is) if start != "none" else None
    if start != "none" and start_id is None:
        must = f"have a start token ({protocol.start_is}) with `protocol={protocol.name!r}`"
        raise ArgumentError("tokenizer", must, got="one without it")
    max_length = resolve_max_length(corpus, limit, setting)
    if protocol.scores == "second half" and max_length < 3:
        raise ArgumentError(
            setting.window_argument,
            f"be at least 3 with `protocol={protocol.name!r}`",
            got=str(max_length),
            why="the second half of a window is scored, except for its first token",
        )
    stride, starts_each = setting.stride, start == "every"
    if stride is None:
        stride = protocol.usual_stride(max_length, starts_each)
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
    """Return the position of the start token: the user's choice if the protocol allows it.

    True means "every" if the tokenizer itself prepends a start token, because such models expect
    one in each window.  Without a start token it means "none", as in the stock metric.
    """
    if protocol.start == "replace" and not prepends_start_token(tokenizer):
        return "none"
    if protocol.start == "every if any":
        return "none" if start_token_id(tokenizer, protocol.start_is) is None else "every"
    if protocol.start != "chosen":
        return protocol.start
    if add_start_token is False:
        return "none"
    if tokenizer.bos_token_id is None:
        warnings.warn(
            Wording(
                "The tokenizer has no start token (bos_token), so the first tokens of the texts are "
                "not scored. Pass `add_start_token=False` to silence this warning."
            ),
            stacklevel=2,
        )
        return "none"
    # With one window per text, "every" equals "once".
    if add_start_token == "once" or protocol.last == "cut":
        return "once"
    return "every" if add_start_token == "every" or prepends_start_token(tokenizer) else "once"


def resolve_max_length(corpus: Corpus, limit: ContextLimit, setting: Setting) -> int:
    max_length = setting.max_length
    if max_length is None:
        own = own_window(corpus.tokenizer, limit, setting)
        if own is not None:
            return own
        longest = max(map(len, corpus.read(setting.protocol)[1]))
        if longest > UNLIMITED_WINDOW:
            raise ArgumentError(
                "max_length",
                f"be given: the model states no limit and a text has {longest} tokens",
                advice=f"Pass the window, for example `max_length={UNLIMITED_WINDOW}`.",
            )
        return UNLIMITED_WINDOW
    if limit.table is not None and max_length > limit.table:
        raise ArgumentError(
            setting.window_argument,
            f"be between 2 and {limit.table}, the size of the model's position table",
            got=str(max_length),
            advice="The window slides over longer texts; nothing is cut off.",
        )
    if limit.length is not None and max_length > limit.length:
        warnings.warn(
            Wording(
                f"`{setting.window_argument}`={max_length} exceeds the model's stated limit of "
                f"{limit.length} tokens; its perplexity may be far worse beyond it."
            ),
            stacklevel=2,
        )
    return max_length


def own_window(
    tokenizer: PreTrainedTokenizerBase, limit: ContextLimit, setting: Setting
) -> int | None:
    """Return the window in tokens; None if neither the caller, the protocol nor the model limits it."""
    if setting.max_length is not None:
        return setting.max_length
    cap = setting.protocol.max_length
    if cap == "tokenizer or 1024":
        # the block of run_clm.py: the tokenizer's stated limit, if the model takes it
        length = limit.length or 1024
        stated = getattr(tokenizer, "model_max_length", None) or length + 1
        cap = min(1024, length) if stated > length else int(stated)
    return min((length for length in (cap, limit.length) if length is not None), default=None)
