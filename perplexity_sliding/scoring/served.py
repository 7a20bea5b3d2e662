"""The scorer of a model that gives the values of tokens: passes in, columns of scores out.

As `passes.Scorer`, but a pass is a prompt in a request.  Beside the passes each request has a short
prompt with known values, by which an answer of another model is detected.
"""

from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np

from ..engines.served import ServedModel
from ..engines.server_apis import AnswerError, Prompt, TokenValues
from ..engines.server_probe import MOST_SPREAD, changed_model, differ
from ..models.interface import ScoredModel
from ..plan.measurement import Columns
from .measures import Alternatives, Measure
from .passes import Row

# Columns that a served model gives, and the names of others in errors.
SERVED_COLUMNS = ("nll", "rank", "top_ids", "top_nll", "top")
NEEDS_LOGITS = {
    "entropy": "The entropy of a prediction",
    "tail": "`boundary`='healed'",
    "kl": "KL divergence",
}


class PassError(ValueError):
    """A pass got no scores.

    Attributes:
        number: of the pass.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


def check_served(description: str, measures: Sequence[Measure]) -> None:
    """Refuse what needs all logits, which a served model does not give.

    Raises:
        ValueError: one of the measures does.
    """
    for measure in measures:
        for column in measure.columns:
            if column not in SERVED_COLUMNS:
                raise ValueError(
                    f"{NEEDS_LOGITS.get(column, column)} needs the logits of all tokens, but "
                    f"{description} gives log-probabilities of single ones. Load the model itself, "
                    "or leave it out."
                )


class ServedScorer:
    """Scores of passes under a served model.

    Args:
        model: examined.
        measures: what to measure of each target.
        batch_size: windows in one request.
        batch_tokens: tokens in one request; a longer pass is sent alone.

    Raises:
        ValueError: a measure needs logits.
    """

    models: Sequence[ScoredModel] = ()  # an engine reads each prompt by itself

    def __init__(
        self, model: ServedModel, measures: Sequence[Measure], batch_size: int, batch_tokens: int
    ) -> None:
        check_served(model.description, measures)
        self.model = model
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.columns = [name for measure in measures for name in measure.columns]
        tops = [measure.number for measure in measures if isinstance(measure, Alternatives)]
        self.num_likeliest = max(tops, default=int("top" in self.columns))
        self.num_top = max(tops, default=0)

    def score(
        self,
        row_of: Callable[[int], Row],
        lengths: Sequence[int],
        finished: Container[int] = (),
    ) -> Iterator[tuple[list[int], list[Columns]]]:
        """Score passes, longest first; yield after every answer.  As `Scorer.score`.

        Raises:
            PassError: the server gave no scores for a pass, or what are none.
            ServerError: it gave no answer.
            ValueError: it is another model than at the start.
        """
        source, canary = self.model.source, self.model.identity.canary
        groups = self._groups(row_of, lengths, finished)

        def requests() -> Iterator[list[Prompt]]:
            for group in groups:
                prompts = [self._prompt(row_of(number)) for number in group]
                yield [canary._replace(forced=prompts[0].forced), *prompts]

        for number, answer in source.values_of_all(requests(), self.num_likeliest):
            group = groups[number]
            if isinstance(answer, AnswerError):
                raise PassError(
                    f"{self.model.description} answered with {answer}.",
                    group[max(0, (answer.place or 0) - 1)],
                )
            self._check_canary(answer[0])
            yield (
                group,
                [self._columns(values, row_of(n), n) for values, n in zip(answer[1:], group)],
            )
        self.model.check_same()

    def _groups(
        self,
        row_of: Callable[[int], Row],
        lengths: Sequence[int],
        finished: Container[int],
    ) -> list[list[int]]:
        """Group passes into requests, longest first; forced tokens of one request are the same."""
        groups: list[list[int]] = []
        common: object = None
        tokens = 0
        for number in np.argsort(-np.asarray(lengths), kind="stable").tolist():
            if number in finished:
                continue
            forced = self._prompt(row_of(number)).forced if self._is_full(lengths[number]) else None
            tokens += lengths[number]
            fits = tokens <= self.batch_tokens and groups and len(groups[-1]) < self.batch_size
            if fits and forced == common:
                groups[-1].append(number)
            else:
                groups.append([number])
                common, tokens = forced, lengths[number]
        return groups

    def _is_full(self, length: int) -> bool:
        """Return whether a pass fills the model, so that its last target cannot be read as well."""
        readable = self.model.limit.readable
        return self.model.source.api.forces and length == readable

    def _prompt(self, row: Row) -> Prompt:
        """Turn a pass into a prompt: what it reads, and the last target."""
        ids, last = row.inputs.tolist(), int(row.targets[-1])
        if row.scored[-1] < len(ids) - 1:
            return Prompt(ids)
        return Prompt(ids, last) if self._is_full(len(ids)) else Prompt([*ids, last])

    def _check_canary(self, values: TokenValues) -> None:
        """Refuse an answer of another model than the one that was tried."""
        expected = self.model.identity.canary_nll
        if differ(values.nll[: len(expected)], expected):
            self.model.check_same()
            worst = np.abs(values.nll[: len(expected)] - expected).max()
            if not worst <= 10 * MOST_SPREAD:
                raise changed_model(self.model.description)

    def _columns(self, values: TokenValues, row: Row, number: int) -> Columns:
        """Take the scores of a pass's targets out of the values of its tokens.

        Raises:
            PassError: the answer lacks a column.
        """
        columns: Columns = {"nll": values.nll[row.scored]}
        if "rank" in self.columns:
            columns["rank"] = self._ranks(values, number)[row.scored]
        if "top" in self.columns:
            columns["top"] = np.array([top[0][0] for top in values.top])[row.scored]
        if self.num_top:
            tops = np.array([top[: self.num_top] for top in values.top])[row.scored]  # (R, K, 2)
            columns["top_ids"], columns["top_nll"] = tops[..., 0].astype(np.int64), -tops[..., 1]
        return columns

    def _ranks(self, values: TokenValues, number: int) -> np.ndarray:
        if (values.rank == 0).any():
            raise PassError(
                f"{self.model.description} does not say the rank of every token"
                + (
                    ", as it does not for the last token of a window that fills it. Pass "
                    f"max_length={(self.model.limit.length or 0) - 1}."
                    if self.model.source.api.gives_ranks
                    else ". Leave ranks and `num_alternatives` out."
                ),
                number,
            )
        return values.rank
