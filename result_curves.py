"""How far back a model looks: perplexity by length of context, and by place in the text.

By context, the same tokens are scored with windows of several lengths that slide by the same
stride.  A shorter window is the head of a longer one that begins at the same token, so all of them
cost what the longest costs::

    begin              c0      c1          longest
    |------------------##------##----------##          # the new tokens of a window of each length
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .model_interface import UNLIMITED_WINDOW, ContextLimit
from .plan import contexts_by_token, nlls_by_token
from .plan_settings import Corpus, plan_measurement
from .request_checks import Setting, check_choice, check_knob, check_whole_number
from .result_report import Report
from .result_totals import nll_interval, perplexity_interval
from .result_uncertainty import Blocks, Estimate, as_ratio, estimate_ratio, exp

# Times that "doubling" halves the longest context, unless the stride sets an end before.
MOST_HALVINGS = 3

# The in-context learning score of Olsson et al. (In-context Learning and Induction Heads, 2022):
# the loss of the 500th token less that of the 50th.
EARLY_TOKEN, LATE_TOKEN = 50, 500

# --- what is asked and planned --------------------------------------------------------------------


@dataclass(frozen=True)
class LongContext:
    """What a call asks about long contexts.

    Attributes:
        context_lengths: windows to compare, "doubling", or None.
        positions: edges of bins of places in the text, "doubling", or None.
        carry: read every text once and carry the model's state on.
    """

    context_lengths: list[int] | str | None
    positions: list[int] | str | None
    carry: bool


def check_long_context(
    context_lengths: object,
    positions: object,
    carry: object,
    settings: Sequence[Setting],
    gives_list: bool,
) -> LongContext:
    """Check what a call asks about long contexts, and that it asks for one measurement."""
    lengths = _check_ascending("context_lengths", context_lengths, 2)
    edges = _check_ascending("positions", positions, 0, fewest=2)
    check_choice("carry", carry, (True, False))
    asked = {"context_lengths": lengths is not None, "positions": edges is not None, "carry": carry}
    for name in (name for name, is_asked in asked.items() if is_asked):
        if gives_list:
            raise ValueError(
                f"`{name}` must be left out where `protocol`, `max_length` or `stride` is a list. "
                "Make a call for each."
            )
        if name != "positions":
            check_knob(name, settings[0].protocol)
    if isinstance(lengths, list) and settings[0].max_length not in (None, lengths[-1]):
        raise ValueError(
            f"`max_length` must be left out with `context_lengths`, whose longest is the window, "
            f"got {settings[0].max_length} and {lengths[-1]}."
        )
    if carry and lengths is not None:
        raise ValueError(
            "`carry` must be False with `context_lengths`: what is carried has no length to vary."
        )
    if carry and settings[0].add_start_token == "every":
        raise ValueError(
            "`add_start_token` must not be 'every' with `carry`, which reads every text once, got "
            "'every'. Pass 'once'."
        )
    return LongContext(lengths, edges, carry)


def _check_ascending(
    name: str, values: object, low: int, fewest: int = 1
) -> list[int] | str | None:
    """Return whole numbers without doubles, in ascending order; "doubling" and None stay."""
    if values is None or (isinstance(values, str) and values == "doubling"):
        return values
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(
            f"`{name}` must be 'doubling' or a list of at least {fewest} whole numbers from {low} "
            f"on, got {values!r}."
        )
    values = list(values)
    for value in values:
        check_whole_number(name, value, low)
    if len(set(values)) < fewest:
        raise ValueError(
            f"`{name}` must be 'doubling' or a list of at least {fewest} different whole numbers "
            f"from {low} on, got {values!r}."
        )
    return sorted({int(value) for value in values})


def expand_settings(
    corpus: Corpus,
    limit: ContextLimit,
    settings: list[Setting],
    long_context: LongContext,
) -> list[Setting]:
    """List the settings to measure: one for each length of context, the longest first, one stride.

    Raises:
        ValueError: as when the longest is measured.
    """
    setting, context_lengths = settings[0], long_context.context_lengths
    if long_context.carry and setting.max_length is None and limit.length is None:
        return [replace(setting, max_length=UNLIMITED_WINDOW)]  # what is carried has no limit
    if context_lengths is None:
        return settings
    if context_lengths == "doubling":
        planned = plan_measurement(corpus, limit, setting)
        longest_text = max(len(stream) for stream in planned.streams)
        longest = max(2, min(planned.plan.max_length, longest_text))
        context_lengths = doubling_lengths(longest, setting.stride)
    stride = setting.stride or max(1, min(context_lengths) // 2)
    lengths = sorted(set(context_lengths), reverse=True)
    return [replace(setting, max_length=length, stride=stride) for length in lengths]


def doubling_lengths(longest: int, stride: int | None) -> list[int]:
    """List a length and its halves, ascending: down to an eighth, or while two strides fit in.

    Args:
        longest: the window, at least 2.
    """
    lengths = [longest]
    while lengths[-1] // 2 >= 2 * (stride or 1) and (stride or len(lengths) <= MOST_HALVINGS):
        lengths.append(lengths[-1] // 2)
    return lengths[::-1]


def doubling_edges(longest: int) -> list[int]:
    """List edges 0, 1, 2, 4, … of bins of places, the last at or past the longest text's end."""
    edges = [0, 1]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    return edges


# --- reports --------------------------------------------------------------------------------------


def report_curves(
    reports: Sequence[Report], long_context: LongContext, num_forward_tokens: int
) -> dict:
    """Build the keys of a result that answer what was asked; the first report is the result's."""
    result: dict[str, object] = {}
    if long_context.context_lengths is not None:
        result["by_context_length"] = report_contexts(reports)
        result["num_forward_tokens"] = num_forward_tokens
    if long_context.positions is not None:
        result |= report_positions(reports[0], long_context.positions)
    return result


def report_contexts(reports: Sequence[Report]) -> list[dict]:
    """Report the perplexity of the same tokens by length of context, shortest first.

    Raises:
        ValueError: no text is as long as the longest context.
    """
    ascending = reports[::-1]
    plan = ascending[-1].measurement.plan
    nlls = [nlls_by_token(report.measurement, report.scores) for report in ascending]
    contexts = contexts_by_token(ascending[-1].measurement)
    if not any((seen >= plan.max_length - plan.stride).any() for seen in contexts):
        longest = max(len(seen) for seen in contexts)
        raise ValueError(
            f"`context_lengths` must hold lengths that a text reaches, got {plan.max_length} for "
            f"texts of at most {longest} tokens. Pass shorter ones, or longer texts."
        )
    lengths = [report.measurement.plan.max_length for report in ascending]
    return summarize_contexts(lengths, nlls, contexts, plan.stride)


def report_positions(report: Report, positions: list[int] | str) -> dict:
    """Build the keys `by_position` and `in_context_score` of a result."""
    nlls = nlls_by_token(report.measurement, report.scores)
    contexts = contexts_by_token(report.measurement)
    edges = positions
    if edges == "doubling":
        edges = doubling_edges(max(len(nll) for nll in nlls))
    return {
        "by_position": summarize_positions(edges, nlls, report.measurement.plan.max_length),
        "in_context_score": in_context_score(nlls, contexts),
    }


# --- floats: no model, no text --------------------------------------------------------------------


def summarize_contexts(
    context_lengths: Sequence[int],
    nlls: Sequence[Sequence[np.ndarray]],
    contexts: Sequence[np.ndarray],
    stride: int,
) -> list[dict]:
    """Estimate the perplexity of the same tokens by length of context.

    The tokens are those that the longest context can serve: they see between `longest - stride` and
    `longest - 1` tokens under it, and as many less under a shorter one as it is shorter.

    Args:
        context_lengths: window lengths, ascending.
        nlls: for each length and each text the nlls of its tokens in nats (N,), NaN where unscored.
        contexts: for each text how many tokens each of its tokens sees under the longest (N,).
        stride: tokens from one window to the next.

    Returns:
        for each length a dict; all but the longest with the ratio of its perplexity to the
        longest's, paired token by token.
    """
    longest = context_lengths[-1]
    served = [np.flatnonzero(seen >= longest - stride) for seen in contexts]
    texts = np.repeat(np.arange(len(served)), [len(places) for places in served])
    places = np.concatenate(served)
    columns = [
        np.concatenate([nll[tokens] for nll, tokens in zip(of_texts, served)]) for of_texts in nlls
    ]
    blocks = Blocks.of(
        [len(seen) for seen in contexts], texts, places, [np.ones(len(places)), *columns]
    )
    clusters = blocks.clusters(longest)
    tokens, *sums = clusters.sums.T
    summaries = []
    for length, nll in zip(context_lengths, sums):
        estimate = estimate_ratio(nll, tokens)
        summaries.append({"context_length": length, **as_perplexity(estimate, len(places))})
        if length != longest:
            difference = estimate_ratio(nll - sums[-1], tokens)
            summaries[-1]["ratio_to_longest"] = as_ratio(difference, clusters.sample)
    return summaries


def summarize_positions(
    edges: Sequence[int], nlls: Sequence[np.ndarray], block_tokens: int
) -> list[dict]:
    """Estimate the mean nll by place in the text, and of all tokens up to there.

    Args:
        edges: first places of the bins, ascending, and one past the last; 0 is a text's first token.
        nlls: for each text the nlls of its tokens in nats (N,), NaN where unscored.
        block_tokens: fewest tokens in a cluster.

    Returns:
        for each bin with a scored token a dict: `first` and `last` place, `nll` and its `interval`,
        `cumulative_nll` of all tokens from the first edge to `last`, `num_tokens`, `num_texts`.
    """
    scored = [np.flatnonzero(~np.isnan(nll)) for nll in nlls]
    texts = np.repeat(np.arange(len(scored)), [len(places) for places in scored])
    places = np.concatenate(scored)
    values = np.concatenate([nll[tokens] for nll, tokens in zip(nlls, scored)])
    lengths = [len(nll) for nll in nlls]
    summaries, total, count = [], 0.0, 0
    for first, end in itertools.pairwise(edges):
        inside = (places >= first) & (places < end)
        if not inside.any():
            continue
        total, count = total + float(values[inside].sum()), count + int(inside.sum())
        columns = [np.ones(inside.sum()), values[inside]]
        blocks = Blocks.of(lengths, texts[inside], places[inside], columns)
        tokens, nll = blocks.clusters(block_tokens).sums.T
        estimate = estimate_ratio(nll, tokens)
        summaries.append(
            {
                "first": int(first),
                "last": int(places[inside].max()),
                "nll": estimate.value,
                "interval": nll_interval(estimate),
                "cumulative_nll": total / count,
                "num_tokens": int(inside.sum()),
                "num_texts": len(np.unique(texts[inside])),
            }
        )
    return summaries


def in_context_score(nlls: Sequence[np.ndarray], contexts: Sequence[np.ndarray]) -> dict | None:
    """Estimate how much better the 500th token of a text is predicted than the 50th, in nats.

    The mean over texts in which both are scored with all tokens before them in sight; None where
    there is no such text.  Negative where the model learns from the context.

    Args:
        nlls: for each text the nlls of its tokens in nats (N,), NaN where unscored.
        contexts: for each text how many tokens each of its tokens sees (N,).
    """
    early, late = EARLY_TOKEN - 1, LATE_TOKEN - 1
    differences = np.array(
        [
            nll[late] - nll[early]
            for nll, seen in zip(nlls, contexts)
            if len(nll) > late and seen[late] >= late and not np.isnan(nll[[early, late]]).any()
        ]
    )
    if not len(differences):
        return None
    estimate = estimate_ratio(differences, np.ones(len(differences)))
    return {
        "nll_difference": estimate.value,
        "interval": None if estimate.interval is None else list(estimate.interval),
        "num_texts": len(differences),
    }


def as_perplexity(estimate: Estimate, num_tokens: int) -> dict:
    """Describe a mean nll, with its perplexity."""
    return {
        "perplexity": exp(estimate.value),
        "interval": perplexity_interval(estimate),
        "nll": estimate.value,
        "num_tokens": num_tokens,
    }
