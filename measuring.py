"""From texts to scored windows: what is read, how it is planned, and the scoring of it all.

The order of work between the three layers, which know nothing of each other.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import evaluate
import numpy as np

from .arguments import check_stride, positions
from .checkpoint import Checkpoint, text_hash
from .distributed import Processes
from .loading import ContextLimit, resolve_max_length
from .results import TextScores, exp
from .scoring import Row, Scorer, TokenColumns
from .tokenization import (
    TokenizedText,
    concatenate,
    prepends_start_token,
    resolve_start,
    start_token_id,
    tokenize,
    without_start_token,
)
from .windows import Protocol, Window, guide_weights, plan_windows, resolve_stride


def read(tokenizer, texts, rule, separator, with_offsets) -> tuple[list[str], list[TokenizedText]]:
    """Tokenize the texts, each on its own or joined; return what was joined, and its tokens."""
    separator = rule.join if separator is None else separator
    if separator == "tokens" and rule.join == "tokens":
        parts = tokenize(tokenizer, texts, rule.encoding, with_offsets)
        return ["".join(texts)], [concatenate(parts, texts)]
    if separator is not None:
        texts = [separator.join(texts)]
    return texts, tokenize(tokenizer, texts, rule.encoding, with_offsets)


@dataclass(frozen=True)
class Plan:
    """A protocol with its numbers filled in for one model."""

    protocol: Protocol
    max_length: int
    stride: int
    start: str
    start_id: int | None

    def windows(self, text: TokenizedText) -> list[Window]:
        return list(
            plan_windows(len(text), self.max_length, self.stride, self.start, self.protocol.name)
        )

    def without_doubled_start(self, text: TokenizedText) -> TokenizedText:
        if self.protocol.name != "sliding" or self.start_id is None:
            return text  # other tools score a start token that the text itself begins with
        return without_start_token(text, self.start_id)


def make_plan(
    tokenizer,
    limit: ContextLimit,
    rule: Protocol,
    streams: list[TokenizedText],
    max_length: int | None,
    stride: int | None,
    add_start_token: bool | str,
) -> Plan:
    """Fill in what the protocol leaves to the model and to the caller."""
    start = choose_start(tokenizer, rule, add_start_token)
    start_id = start_token_id(tokenizer, rule.start_is) if start != "none" else None
    if start != "none" and start_id is None:
        raise ValueError(
            f"`tokenizer` must have a start token ({rule.start_is}) with protocol={rule.name!r}, "
            "got one without."
        )
    longest = max(len(stream) for stream in streams)
    max_length = resolve_max_length(limit, max_length, rule.max_length, longest)
    stride = resolve_stride(rule, stride, max_length)
    check_stride(stride, max_length, start)
    return Plan(rule, int(max_length), int(stride), start, start_id)


def choose_start(tokenizer, rule: Protocol, add_start_token: bool | str) -> str:
    """Where the start token stands: the user's choice where the protocol leaves it."""
    if rule.start == "chosen":
        start = resolve_start(tokenizer, add_start_token)
        # With one window to a text, "every" is "once".
        return "once" if rule.last == "cut" and start == "every" else start
    if rule.start == "replace" and not prepends_start_token(tokenizer):
        return "none"
    return rule.start


@dataclass(frozen=True)
class Progress:
    """How far a compute has come, as `callback` is told after every batch.

    Attributes:
        done, total: tokens that went and that have to go through the model, in this process.
        perplexity: of the tokens scored so far, longest windows first.
    """

    done: int
    total: int
    perplexity: float


class Work:
    """The windows of all texts, pooled and numbered through.

    Attributes:
        windows: (number of the text, window) of each place.
        costs: tokens that each window reads.
    """

    def __init__(self, streams: list[TokenizedText], plan: Plan):
        self.streams = [plan.without_doubled_start(stream) for stream in streams]
        self.start = np.array([] if plan.start_id is None else [plan.start_id], dtype=np.int64)
        self.per_text = [plan.windows(stream) for stream in self.streams]
        self.windows = [(n, window) for n, own in enumerate(self.per_text) for window in own]
        self.costs = [window.num_inputs for _, window in self.windows]

    def row(self, place: int) -> Row:
        """The token ids of a window, as the scorer wants them."""
        number, window = self.windows[place]
        ids = self.streams[number].ids
        inputs = ids[window.begin : window.end - 1]
        if window.start_token:
            inputs = np.concatenate([self.start, inputs])
        return Row(inputs, ids[window.first : window.end])

    def by_text(self, scores: dict[int, TokenColumns]) -> list[list[TokenColumns]]:
        """Sort scores by place into the windows of each text."""
        places = iter(range(len(self.windows)))
        return [[scores[next(places)] for _ in own] for own in self.per_text]


def check_scorable(work: Work, plan: Plan) -> None:
    """Refuse texts in which there is nothing to score, naming all of them."""
    rule = plan.protocol
    barren = [number for number, own in enumerate(work.per_text) if len(own) < rule.min_windows]
    if not barren:
        return
    if rule.last == "dropped":
        raise ValueError(
            f"`predictions` must have at least {rule.min_windows * plan.max_length} tokens with "
            f"protocol={rule.name!r}, which drops what does not fill a window of {plan.max_length}, "
            f"got {len(work.streams[0])}. Pass a smaller `max_length` or more text."
        )
    need = "1 token"
    advice = ""
    if plan.start == "none":
        need = "2 tokens"
        advice = ", or give single tokens a start token (`add_start_token`, if there is one)"
    raise ValueError(
        f"`predictions` must hold texts of at least {need}, got shorter ones at "
        f"{positions(barren)}. Remove them{advice}."
    )


def check_ids(work: Work, size: int) -> None:
    """Refuse token ids that the model has no embedding or no logit for."""
    largest = [int(stream.ids.max(initial=0)) for stream in work.streams]
    beyond = [number for number, token in enumerate(largest) if token >= size]
    if beyond or work.start.max(initial=0) >= size:
        where = f"in the texts at {positions(beyond)}" if beyond else "as its start token"
        raise ValueError(
            f"`tokenizer` must give token ids below {size}, the size of the model's "
            f"vocabulary, got {max([*work.start.tolist(), *largest])} {where}. It belongs to another "
            "model."
        )


def score_windows(
    scorer: Scorer,
    work: Work,
    checkpoint: Checkpoint | None,
    processes: Processes,
    callback: Callable[[Progress], None] | None,
) -> list[list[TokenColumns]]:
    """Score all windows: those not in the checkpoint, shared out between the processes."""
    known = {} if checkpoint is None else load_finished(checkpoint, work)
    scores, error = {}, None
    try:
        score_share(scorer, work, processes, known, checkpoint, callback, scores)
    except Exception as raised:
        error = raised
    return work.by_text(known | dict(processes.gather(list(scores.items()), error)))


def load_finished(checkpoint: Checkpoint, work: Work) -> dict[int, TokenColumns]:
    """The scores that an earlier run left, by place."""
    finished = [checkpoint.load(text_hash(stream.ids)) for stream in work.streams]
    return {
        place: TokenColumns(finished[number][window])
        for place, (number, window) in enumerate(work.windows)
        if window in finished[number]
    }


def score_share(scorer, work, processes, known, checkpoint, callback, scores) -> None:
    """Score this process's windows into `scores`, longest first, and show how it goes."""
    mine = processes.share(work.costs)
    costs = [work.costs[place] for place in mine]
    finished = {n for n, place in enumerate(mine) if place in known}
    estimate = RunningEstimate(sum(costs))
    for n in finished:
        estimate.add(known[mine[n]].nll, costs[n])
    with evaluate.logging.tqdm(
        total=estimate.total,
        initial=estimate.done,
        unit="token",
        desc="Scoring",
        disable=True if processes.rank else None,
    ) as bar:
        for numbers, batch in scorer.score(lambda n: work.row(mine[n]), costs, finished):
            for n, columns in zip(numbers, batch):
                check_numbers(columns.nll, *work.windows[mine[n]])
                scores[mine[n]] = columns
                estimate.add(columns.nll, costs[n])
            if checkpoint is not None:
                save_finished(checkpoint, work, [mine[n] for n in numbers], batch)
            bar.set_postfix(perplexity=f"{estimate.perplexity:.2f}", refresh=False)
            bar.update(sum(costs[n] for n in numbers))
            if callback is not None:
                callback(Progress(estimate.done, estimate.total, estimate.perplexity))


def save_finished(
    checkpoint: Checkpoint, work: Work, places: list[int], batch: list[TokenColumns]
) -> None:
    windows = [work.windows[place] for place in places]
    checkpoint.save(
        (text_hash(work.streams[number].ids), window, columns.nll)
        for (number, window), columns in zip(windows, batch)
    )


class RunningEstimate:
    """Perplexity of the tokens scored so far, and how many tokens went through the model."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.nll_sum, self.num_scored = 0.0, 0

    def add(self, nll: np.ndarray, cost: int) -> None:
        self.nll_sum += float(nll.sum(dtype=np.float64))
        self.num_scored += len(nll)
        self.done += cost

    @property
    def perplexity(self) -> float:
        return exp(self.nll_sum / self.num_scored)


def check_numbers(nll: np.ndarray, number: int, window: Window) -> None:
    """Refuse NaN, naming the text; infinity is a result."""
    if np.isnan(nll).any():
        raise ValueError(
            f"The model gave NaN for the text at position {number}, in its tokens {window.first} to "
            f"{window.end - 1}. Its weights hold NaN, or it overflows in its dtype: load it with "
            "dtype='float32'."
        )


def text_scores(
    texts: list[str],
    work: Work,
    scores: list[list[TokenColumns]],
    word_counts: list[int] | None,
) -> list[TextScores]:
    """Hand the scores of the texts, with the units in them, over to results.py."""
    if word_counts is None:
        # lm-evaluation-harness counts words so, the empty ones at the ends included.
        word_counts = [len(re.split(r"\s+", text)) for text in texts]
    elif len(texts) < len(word_counts):
        word_counts = [sum(word_counts)]  # the texts were joined
    return [
        TextScores(
            window_nlls=[columns.nll for columns in own],
            first_targets=[window.first for window in windows],
            guide_weights=guide_weights(windows),
            stream_length=len(stream),
            num_tokens=num_own_tokens(stream, windows),
            num_bytes=len(text.encode("utf-8")),
            num_characters=len(text),
            num_words=count,
        )
        for text, stream, windows, own, count in zip(
            texts, work.streams, work.per_text, scores, word_counts
        )
    ]


def num_own_tokens(stream: TokenizedText, windows: list[Window]) -> int:
    """Tokens that stand for the text: without special ones added to it, unless these count."""
    all_scored = sum(window.num_targets for window in windows) == len(stream)
    return len(stream) - (0 if all_scored else stream.num_added)


def token_scores(
    tokenizer, stream: TokenizedText, windows: list[Window], scores: list[TokenColumns]
) -> dict[str, list]:
    """List every token of a text with its score, `None` where it has none."""
    offsets = [None] * len(stream) if stream.offsets is None else stream.offsets.tolist()
    columns = {
        "tokens": tokenizer.convert_ids_to_tokens(stream.ids.tolist()),
        "offsets": offsets,
        "nll": [None] * len(stream),
        "context_length": [0] * len(stream),
    }
    with_alternatives = scores[0].rank is not None
    if with_alternatives:
        columns |= {"rank": [None] * len(stream), "alternatives": [None] * len(stream)}
    for window, own in zip(windows, scores):
        scored = slice(window.first, window.end)
        columns["nll"][scored] = own.nll.tolist()
        columns["context_length"][scored] = map(
            window.context_length, range(window.first, window.end)
        )
        if with_alternatives:
            columns["rank"][scored] = own.rank.tolist()
            columns["alternatives"][scored] = [
                [[tokenizer.decode([top]), nll] for top, nll in zip(ids, nlls)]
                for ids, nlls in zip(own.top_ids.tolist(), own.top_nll.tolist())
            ]
    return columns | {"windows": [window._asdict() for window in windows]}
