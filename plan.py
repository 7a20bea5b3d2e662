"""What is measured: a protocol with its numbers for one model, over one reading of the texts.

Joins what the three layers know: windows (integers), scores (arrays) and results (floats).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from .model_loading import ContextLimit, resolve_max_length
from .plan_windows import Plan, Window, num_scored
from .protocols import Protocol
from .request_checks import Setting, TextsError, check_setting, check_stride, name_positions
from .score_passes import Columns
from .text_parts import Parts, border_windows, windows_of_part
from .text_tokenization import (
    TokenizedText,
    choose_start,
    concatenate,
    start_token_id,
    tokenize,
    without_start_token,
)


class Corpus:
    """The texts as protocols read them: each on its own or joined, encoded in one way or another.

    Args:
        with_offsets: keep the characters of each token, where the tokenizer says.
        parts: which parts of the texts are scored; None for all of each.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: list[str],
        with_offsets: bool,
        parts: Parts | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.texts = texts
        self.with_offsets = with_offsets
        self.parts = parts
        self._readings: dict[tuple, tuple[list[str], list[TokenizedText]]] = {}

    def read(
        self, protocol: Protocol, separator: str | None, with_offsets: bool = False
    ) -> tuple[list[str], list[TokenizedText]]:
        """Return the texts, or the one that they are joined to, and their tokens."""
        joint = protocol.join if separator is None else separator
        with_offsets = with_offsets or self.with_offsets
        given = joint is not None and separator is not None
        encoding = (protocol.encoding, protocol.texts_joined, protocol.pairs)
        key = (*encoding, joint, given, with_offsets)
        if key not in self._readings:
            self._readings[key] = self._read(protocol, separator, with_offsets)
        return self._readings[key]

    def _read(
        self, protocol: Protocol, separator: str | None, with_offsets: bool
    ) -> tuple[list[str], list[TokenizedText]]:
        texts = self.texts
        if self.parts is not None:
            return self.parts.read(self.tokenizer, texts, protocol)
        if separator is None and protocol.join == "tokens":
            parts = tokenize(self.tokenizer, texts, protocol.encoding, with_offsets)
            at_once = protocol.texts_joined or len(texts)
            groups = [slice(n, n + at_once) for n in range(0, len(texts), at_once)]
            streams = [concatenate(parts[group], texts[group]) for group in groups]
            return ["".join(texts[group]) for group in groups], streams
        joint = protocol.join if separator is None else separator
        if joint is not None:
            texts = [joint.join(texts)]
        return texts, tokenize(self.tokenizer, texts, protocol.encoding, with_offsets)


@dataclass(frozen=True)
class Measurement:
    """One protocol, window and stride over the texts.

    Attributes:
        texts: the texts as scored, each on its own or joined.
        streams: their tokens.
        windows: the windows over each stream.
        borders: windows over the token after each scored range, where words are scored.
        parts: which parts of the texts are scored; None for all of each.
    """

    plan: Plan
    separator: str | None
    texts: list[str]
    streams: list[TokenizedText]
    windows: list[list[Window]]
    borders: list[list[Window]]
    parts: Parts | None = None

    @property
    def stream_texts(self) -> int | None:
        """How many texts make up a stream; None for all of them."""
        if self.separator is not None:
            return None
        return 1 if self.plan.protocol.scores_each_text else self.plan.protocol.texts_joined


def plan_measurement(
    corpus: Corpus,
    limit: ContextLimit,
    setting: Setting,
    with_borders: bool = False,
) -> Measurement:
    """Fill in what the protocol leaves to the model and to the caller, and plan the windows.

    Args:
        limit: tokens that the model takes.

    Raises:
        ValueError: a window or stride that the model or the protocol does not allow, or texts in
            which there is nothing to score.
    """
    protocol, separator = setting.protocol, setting.separator
    # Before the texts are tokenized: what is refused here does not depend on them.
    plan = make_plan(
        corpus.tokenizer,
        limit,
        setting,
        lambda: max(len(stream) for stream in corpus.read(protocol, separator)[1]),
    )
    texts, streams = corpus.read(protocol, separator)
    streams = without_start_tokens(corpus.tokenizer, plan, texts, streams)
    windows = [
        plan.windows(len(stream)) if stream.part is None else windows_of_part(plan, stream)
        for stream in streams
    ]
    if corpus.parts is None and any(
        num_scored(of_stream) < len(stream) for of_stream, stream in zip(windows, streams)
    ):
        # bytes and characters of the scored tokens alone are counted
        _, streams = corpus.read(protocol, separator, with_offsets=True)
        streams = without_start_tokens(corpus.tokenizer, plan, texts, streams)
    check_readable(limit, plan, windows)
    borders = [border_windows(plan, stream) if with_borders else [] for stream in streams]
    measurement = Measurement(plan, separator, texts, streams, windows, borders, corpus.parts)
    check_scorable(measurement)
    return measurement


def check_readable(limit: ContextLimit, plan: Plan, windows: Sequence[Sequence[Window]]) -> None:
    """Refuse windows of which a server cannot read all tokens.

    Raises:
        ValueError: one reads more tokens than the server takes beside its answer.
    """
    length = max((window.num_inputs for of_text in windows for window in of_text), default=0)
    if limit.readable is not None and length > limit.readable:
        raise ValueError(
            f"`max_length` must be at most {limit.readable} with protocol={plan.protocol.name!r} and "
            f"stride={plan.stride}, got {plan.max_length}: its windows read {length} tokens, and the "
            f"server takes {limit.length} together with its answer. Lower it."
        )


def without_start_tokens(
    tokenizer: PreTrainedTokenizerBase, plan: Plan, texts: list[str], streams: list[TokenizedText]
) -> list[TokenizedText]:
    """Drop written start tokens where the protocol takes them for its own."""
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
        limit: tokens that the model takes.
        keeps_refusals: return the error of a setting that is refused in its place, unless all are.
        with_borders: plan windows over the tokens that follow the scored ones as well.

    Raises:
        ValueError: a setting is refused.
    """
    planned: dict[Setting, Measurement | ValueError] = {}
    for setting in settings:
        try:
            check_setting(setting)
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
    """Refuse to score parts of texts where the protocol's tool does not."""
    if parts is None or protocol.pairs == "by characters":
        return
    if protocol.pairs is None or parts.contexts is None:
        raise ValueError(
            f"`protocol` must be one that scores {parts.describe()}, got {protocol.name!r}: "
            f"{protocol.source} does not. Pass protocol='sliding'."
        )
    if parts.boundary != "joint":
        raise ValueError(
            f"`boundary` must be left out with protocol={protocol.name!r}: {protocol.source} has no "
            f"such setting, got {parts.boundary!r}."
        )


def check_words_setting(setting: Setting) -> None:
    """Refuse to score words where the texts that they are in are joined."""
    protocol, separator = setting.protocol, setting.separator
    if not protocol.scores_each_text or separator is not None:
        name = f"protocol={protocol.name!r}" if separator is None else "`separator`"
        raise ValueError(
            f"`words` must be left out with {name}, which joins the texts. Pass protocol='sliding' "
            "without a separator."
        )


def make_plan(
    tokenizer: PreTrainedTokenizerBase,
    limit: ContextLimit,
    setting: Setting,
    longest: Callable[[], int],
) -> Plan:
    """Fill in a protocol's numbers for a model.

    Args:
        longest: counts the tokens of the longest text; asked only where nothing limits a window.
    """
    protocol = setting.protocol
    start = choose_start(tokenizer, protocol, setting.add_start_token)
    start_id = start_token_id(tokenizer, protocol.start_is) if start != "none" else None
    if start != "none" and start_id is None:
        raise ValueError(
            f"`tokenizer` must have a start token ({protocol.start_is}) with "
            f"protocol={protocol.name!r}, got one without."
        )
    cap = protocol.max_length
    if cap == "tokenizer or 1024":
        cap = trainer_block(tokenizer, limit)
    max_length = resolve_max_length(limit, setting.max_length, cap, longest)
    stride = setting.stride
    if stride is None:
        stride = protocol.usual_stride(max_length, start == "every")
    check_stride(stride, max_length, start)
    return Plan(protocol, int(max_length), int(stride), start, start_id)


def trainer_block(tokenizer: PreTrainedTokenizerBase, limit: ContextLimit) -> int:
    """Return the block of run_clm.py: what the tokenizer states, if the model takes so many."""
    length = limit.length or 1024
    stated = getattr(tokenizer, "model_max_length", None) or length + 1
    return min(1024, length) if stated > length else int(stated)


def check_scorable(measurement: Measurement) -> None:
    """Refuse texts in which there is nothing to score, naming all of them."""
    plan = measurement.plan
    protocol = plan.protocol
    unscorable = [
        number
        for number, windows in enumerate(measurement.windows)
        if len(windows) < (1 if measurement.streams[number].part else protocol.min_windows)
    ]
    if not unscorable:
        return
    if protocol.last in ("dropped", "popped"):
        fewest = protocol.min_windows * plan.max_length
        if protocol.last == "popped":
            fewest += plan.stride + 1
        raise ValueError(
            f"`predictions` must have at least {fewest} tokens with "
            f"protocol={protocol.name!r}, which drops what does not fill a window of "
            f"{plan.max_length}, got {len(measurement.streams[unscorable[0]])}. Pass a smaller "
            "`max_length` or more text."
        )
    need = "1 token"
    advice = ""
    if plan.start == "none":
        need = "2 tokens"
        advice = ", or give single tokens a start token (`add_start_token`, if there is one)"
    raise TextsError(
        f"`predictions` must hold texts of at least {need}, got shorter ones at "
        f"{name_positions(unscorable)}. Remove them{advice}.",
        unscorable,
    )


def nlls_by_token(
    measurement: Measurement, scores: Sequence[Sequence[Columns]]
) -> list[np.ndarray]:
    """Lay out the nll of each token of each text in nats (N,), NaN where it has none.

    Of several it has that with the most context.

    Args:
        scores: of the windows of each text.
    """
    of_texts = []
    for stream, windows, columns_of in zip(measurement.streams, measurement.windows, scores):
        nlls = np.full(len(stream), np.nan)
        for window, columns in zip(reversed(windows), reversed(columns_of)):
            nlls[window.first : window.end] = columns["nll"]
        of_texts.append(nlls)
    return of_texts


def contexts_by_token(measurement: Measurement) -> list[np.ndarray]:
    """Count the tokens that each prediction sees, for each text (N,), 0 where unscored."""
    of_texts = []
    for stream, windows in zip(measurement.streams, measurement.windows):
        seen = np.zeros(len(stream), dtype=np.int64)
        for window in reversed(windows):
            targets = np.arange(window.first, window.end)
            seen[targets] = window.context_length(targets)
        of_texts.append(seen)
    return of_texts
