"""From columns of token scores to the scores of words, as a call returns them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arguments import positions
from .language_model import LanguageModel
from .measurement import Measurement
from .measures import Entropy, Measure, SetMass
from .parts import check_fast
from .scoring import Columns
from .tokenization import Range, TokenizedText
from .windows import Window
from .words import (
    TokenBorders,
    Vocabulary,
    assign_tokens,
    classify_vocabulary,
    closing_terms,
    number_or_none,
    opening_terms,
    split_words,
    sum_words,
)


@dataclass(frozen=True)
class WordScoring:
    """How words are scored.

    Attributes:
        spans: for each text the characters of its words; None splits it at white space.
        correction: whose repair of the space between words: "pimentel", "oh" or None.
    """

    spans: Sequence[Sequence[Range]] | None
    correction: str | None
    vocabulary: Vocabulary

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        spans: Sequence[Sequence[Range]] | None,
        correction: str | None,
    ) -> "WordScoring":
        """Get ready to score words under a model.

        Raises:
            ValueError: the tokenizer does not tell the characters of its tokens.
        """
        check_fast(model.tokenizer)
        vocabulary = classify_vocabulary(model.tokenizer, model.vocabulary_size)
        return cls(spans, correction, vocabulary)

    def measures(self) -> list[Measure]:
        """What is to be measured of each token."""
        boundary = self.vocabulary.boundary_ids(self.correction)
        interior = self.vocabulary.interior_ids()
        return [
            SetMass("boundary", tuple(boundary.tolist())),
            SetMass("interior", tuple(interior.tolist())),
            Entropy(),
        ]

    def fields(self) -> dict[str, str]:
        """What of it belongs into the signature."""
        split = "whitespace" if self.spans is None else "given"
        return {"word_scores": f"{split}/{self.correction or 'uncorrected'}"}

    def of_measurement(
        self,
        measurement: Measurement,
        scores: Sequence[Sequence[Columns]],
        borders: Sequence[Sequence[Columns]],
    ) -> list[dict[str, list]]:
        """The words of each text and their scores."""
        results = []
        torn = []
        for number, (text, stream) in enumerate(zip(measurement.texts, measurement.streams)):
            spans = self._words_of(measurement, number)
            tokens = TokenArrays.of(
                len(stream),
                zip(measurement.windows[number], scores[number]),
                zip(measurement.borders[number], borders[number]),
            )
            words = assign_tokens(text, word_offsets(stream), spans)
            results.append(self._score(text, stream, spans, words, tokens))
            if None in words:
                torn.append(number)
        if torn:
            warnings.warn(
                "A token reaches across the edge of a word in the texts at "
                f"{positions(torn)}; such words have no score.",
                stacklevel=2,
            )
        return results

    def _words_of(self, measurement: Measurement, number: int) -> list[Range]:
        """The characters of a text's words, in the text as it is read."""
        text, part = measurement.texts[number], measurement.streams[number].part
        whole = ((0, len(text)),) if part is None else part.spans
        if self.spans is None:
            return [
                (begin + first, begin + end)
                for begin, stop in whole
                for first, end in split_words(text[begin:stop])
            ]
        after_context = measurement.parts is not None and measurement.parts.contexts is not None
        begin = whole[0][0] if after_context else 0
        return [(begin + first, begin + end) for first, end in self.spans[number]]

    def _score(
        self,
        text: str,
        stream: TokenizedText,
        spans: Sequence[Range],
        words: Sequence[Range | None],
        tokens: "TokenArrays",
    ) -> dict[str, list]:
        borders = TokenBorders.of(text, stream.ids, word_offsets(stream), self.vocabulary)
        closing = closing_terms(borders, tokens.boundary)
        opening = opening_terms(borders, tokens.boundary, tokens.interior, self.correction)
        nll, surprisal = sum_words(words, tokens.nll, closing, opening)
        begins = [None if word is None else word[0] for word in words]
        return {
            "words": [text[first:end] for first, end in spans],
            "offsets": [list(span) for span in spans],
            "nll": nll,
            "surprisal": nll if self.correction is None else surprisal,
            "boundary": [
                None if word is None else number_or_none(closing[word[1]]) for word in words
            ],
            "entropy": [
                None if begin is None else number_or_none(tokens.entropy[begin]) for begin in begins
            ],
            "num_tokens": [0 if word is None else word[1] - word[0] for word in words],
            "context_length": [
                0 if begin is None else int(tokens.context_length[begin]) for begin in begins
            ],
        }


@dataclass(frozen=True)
class TokenArrays:
    """Scores of a text's tokens, and of the border after the last (N + 1,); NaN where unscored."""

    nll: np.ndarray
    boundary: np.ndarray
    interior: np.ndarray
    entropy: np.ndarray
    context_length: np.ndarray

    @classmethod
    def of(cls, num_tokens: int, scored, borders) -> "TokenArrays":
        """Lay the columns of windows out over the text.

        Args:
            scored, borders: (window, its columns) pairs; of borders only what says whether a word
                ends there.
        """
        arrays = cls(
            *(np.full(num_tokens + 1, np.nan) for _ in range(4)),
            np.zeros(num_tokens + 1, dtype=np.int64),
        )
        for window, columns in borders:
            arrays._lay(window, columns, ("boundary", "interior"))
        for window, columns in scored:
            arrays._lay(window, columns, ("nll", "boundary", "interior", "entropy"))
            places = np.arange(window.first, window.end)
            arrays.context_length[places] = window.context_length(places)
        return arrays

    def _lay(self, window: Window, columns: Columns, names: Sequence[str]) -> None:
        for name in names:
            getattr(self, name)[window.first : window.end] = columns[name]


def word_offsets(stream: TokenizedText) -> np.ndarray:
    """The characters of each token (N, 2), as the words of a text want them.

    A special token that the tokenizer added has none, (-1, -1); of a token across the edge of the
    scored part the characters before the edge are left out.
    """
    offsets = stream.offsets.copy()
    if stream.num_added:
        offsets[offsets[:, 0] == offsets[:, 1]] = -1
    if stream.part is not None:
        for (first, _), tail in zip(stream.part.targets, stream.part.tails):
            offsets[first, 0] += len(tail)
    return offsets
