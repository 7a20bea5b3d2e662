"""From scores of tokens to scores of words: the tokens of each word, and the space between words.

Tokens that carry the space before them make the sum over a word's tokens pay for the wrong space:
the one that opens the word instead of the one that closes it, and such "probabilities" of all
words add up to more than 1.  The repair moves each space to the word that it closes (Pimentel and
Meister, 2024, arXiv 2406.14561; Oh and Schuler, 2024, arXiv 2406.10851)::

    surprisal(w) = Σ nll(x[a..b-1]) + E(b) - Z(a)          word w = tokens a to b - 1

    E(i) = -log P(x[i] begins with white space, or ends the text | row i)
    Z(a) = E(a) where x[a] begins with white space, else
           -log P(x[a] does not begin with white space | row a)

Both terms at a border come from the row that predicts its first token, so they cancel in the sum
over words.  White space is recognised in the text of a token, newlines and tabs included, also at the
token's end.  Numbers are nats.
"""

import itertools
import re
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import check_spans_of
from ..errors import ArgumentError, name_positions
from ..models.interface import ScoredModel
from ..plan.measurement import Columns, Measurement, scatter_to_tokens
from ..plan.tokenization import Range, TokenizedText, check_fast, special_ids, vocabulary_texts
from ..plan.windows import Window
from ..scoring.measures import Entropy, Measure, SetMass

# Number of tokens of a tokenizer, and the texts of all.
_TEXTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
SPACE = re.compile(r"\s*")
# Packages whose numbers are reproduced, and the correction that each applies; they know no white space
# but the sign of a space in front of a token.
PACKAGES = {"wordsprobability": "pimentel", "minicons": "oh"}
# Scripts without spaces between words, and the mean length in characters above which the strings
# between spaces are not single words: Chinese and Japanese; Thai, Lao, Khmer, Burmese, Tibetan.
UNSPACED = {
    re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"): 3,
    re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"): 8,
}

# --- the vocabulary --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """The role of each token at the borders of words, by its text.

    Attributes:
        begins: whether the text of the token begins with white space (V,).
        ends: whether it ends in white space (V,); so do tokens that mark the end of a word.
        closes: whether it is the end-of-text token (V,).
        special: whether it is a special token of any kind (V,).
        refunded: ids of the tokens that may begin a text, those that a package counts twice twice.
    """

    begins: np.ndarray
    ends: np.ndarray
    closes: np.ndarray
    special: np.ndarray
    refunded: np.ndarray

    def boundary_ids(self, correction: str | None) -> np.ndarray:
        """Return ids of the tokens that close the word before them.

        "oh" counts tokens with white space alone, "pimentel" the end of the text as well.
        """
        closing = self.begins | self.closes if correction == "pimentel" else self.begins
        return np.flatnonzero(closing)


def classify_vocabulary(
    tokenizer: PreTrainedTokenizerBase, size: int, texts: Sequence[str] | None = None
) -> Vocabulary:
    """Classify the tokens of a vocabulary.

    Args:
        size: V, the number of logits; larger than the tokenizer's vocabulary if the model pads it
            with tokens without text.
        texts: texts of the tokens, if known.
    """
    texts = vocabulary_texts(tokenizer) if texts is None else texts
    texts = [*texts, *[""] * size][:size]
    numbers = np.arange(size)
    begins = np.array([text[:1].isspace() for text in texts], dtype=bool)
    return Vocabulary(
        begins=begins,
        ends=np.array([text[-1:].isspace() for text in texts], dtype=bool),
        closes=numbers == tokenizer.eos_token_id,
        special=np.isin(numbers, list(special_ids(tokenizer))),
        refunded=np.flatnonzero(~begins),
    )


def as_the_package(
    vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase, package: str
) -> Vocabulary:
    """Return the role of each token in a package of `PACKAGES`.

    wordsprobability adds the end of the text to the tokens that may begin one a second time, and leaves
    those out that were added to the tokenizer.  minicons counts added tokens that take the space before
    them.
    """
    sign = tokenizer.convert_ids_to_tokens(tokenizer(" ", add_special_tokens=False).input_ids[0])[0]
    known = {number: token for token, number in tokenizer.get_vocab().items()}
    size = len(vocabulary.begins)
    begins = np.array([known.get(n, "").startswith(sign) for n in range(size)], dtype=bool)
    if package == "minicons":
        for number, token in tokenizer.added_tokens_decoder.items():
            begins[number] |= token.lstrip
    own = np.flatnonzero(~begins[: tokenizer.vocab_size])
    refunded = np.append(own, tokenizer.eos_token_id)
    return replace(vocabulary, begins=begins, ends=np.zeros_like(begins), refunded=refunded)


# --- words in a text -------------------------------------------------------------------------------


def check_words(words: object, texts: Sequence[str]) -> list[list[tuple[int, int]]] | None:
    """Return the characters of the words of each text; None to split at white space."""
    if words is True or (isinstance(words, str) and words == "whitespace"):
        warn_of_unspaced(texts)
        return None
    if isinstance(words, str) or not isinstance(words, Sequence) or len(words) != len(texts):
        raise ArgumentError(
            "words",
            f"be True, 'whitespace', or a list of words or spans for each text, {len(texts)}",
            got=f"{words!r:.80}",
        )
    checked = []
    for number, (of_text, text) in enumerate(zip(words, texts)):
        if isinstance(of_text, list | tuple) and all(isinstance(word, str) for word in of_text):
            try:
                checked.append(find_words(text, of_text))
            except ArgumentError as error:
                raise error.at([number]) from None
        else:
            checked.append(check_spans_of("words", of_text, text, number))
    return checked


def warn_of_unspaced(texts: Sequence[str]) -> None:
    """Warn of texts in scripts without spaces, whose sentences would count as words."""
    found = [number for number, text in enumerate(texts) if is_unspaced(text)]
    if found:
        warnings.warn(
            f"Words are taken from between white space, but the texts at {name_positions(found)} "
            "are written without: whole sentences count as words. Give the words or regions of "
            "each text instead (in Python a list for each, on the command line --words-column).",
            stacklevel=2,
        )


def is_unspaced(text: str) -> bool:
    """Check whether the pieces between white space are longer than words of their script."""
    if text.isascii():
        return False
    for script, longest in UNSPACED.items():
        lengths = (
            [len(script.findall(word)) for word in text.split()] if script.search(text) else []
        )
        own = [length for length in lengths if length]
        if sum(own) > longest * len(own):
            return True
    return False


def split_words(text: str) -> list[Range]:
    """Split a text at white space, into half-open ranges of characters."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def find_words(text: str, words: Iterable[str]) -> list[Range]:
    """Find given words in a text that consists of them and of white space.

    Raises:
        ValueError: they do not.
    """
    spans, place = [], 0
    for word in words:
        first = next(SPACE.finditer(text, place)).end()
        if not word.strip() or not text.startswith(word, first):
            raise ArgumentError(
                "words",
                "be the words of the text in their order",
                got=repr(word),
                why=f"at character {first} stands {text[first : first + 20]!r}",
                advice="Give spans of characters to leave parts of a text out.",
            )
        place = first + len(word)
        spans.append((first, place))
    if text[place:].strip():
        raise ArgumentError(
            "words",
            "be all words of the text",
            got=f"{len(spans)}",
            why=f"after the last one comes {text[place : place + 20]!r}",
            advice="Give spans of characters to leave parts of a text out.",
        )
    return spans


def assign_tokens(
    text: str, offsets: np.ndarray, spans: Sequence[Range], begins: Collection[int] = ()
) -> list[Range | None]:
    """Find the tokens of each word, as half-open ranges (first, end).

    White space that is a separate token belongs to the next word, unless it is context.

    Args:
        offsets: characters of each token (N, 2); a token without text, such as a start token, has
            (-1, -1).
        spans: characters of each word.
        begins: tokens with which scored parts begin.

    Returns:
        for each word its tokens, or None if a token spans the edge of the word.
    """
    starts = [first for first, _ in spans]
    tokens: list[list[int]] = [[] for _ in spans]
    crossed = [False] * len(spans)
    stripped = [_without_space(text, *pair) for pair in offsets.tolist()]
    for number, (first, end) in enumerate(stripped):
        if first == end:
            continue
        word = bisect_right(starts, first) - 1
        if word >= 0 and first < spans[word][1]:
            tokens[word].append(number)
            crossed[word] |= end > spans[word][1]
        for later in range(word + 1, bisect_right(starts, end - 1)):
            crossed[later] = True
    return [
        None
        if is_crossed or not members
        else (_with_space_before(offsets, stripped, members[0], begins), members[-1] + 1)
        for is_crossed, members in zip(crossed, tokens)
    ]


def _without_space(text: str, first: int, end: int) -> Range:
    """Return the characters of a token without the white space at its ends; empty if none remain."""
    stripped = text[max(first, 0) : max(end, 0)].strip()
    if not stripped:
        return first, first
    first += text[first:end].index(stripped[0])
    return first, first + len(stripped)


def _with_space_before(
    offsets: np.ndarray, stripped: list[Range], first: int, begins: Collection[int]
) -> int:
    """Find the first of the white-space tokens before a token."""
    while (
        first > 0
        and first not in begins
        and stripped[first - 1][0] == stripped[first - 1][1]
        and offsets[first - 1][0] >= 0
    ):
        first -= 1
    return first


# --- scores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenBorders:
    """The border before each token of a text, and after the last (N + 1,).

    Attributes:
        opens: the token begins with white space, is a special one, or ends the text.
        passed: the token before it ends in white space already.
        at_start: it is at the start of the text.
    """

    opens: np.ndarray
    passed: np.ndarray
    at_start: np.ndarray

    @classmethod
    def of(
        cls, text: str, ids: np.ndarray, offsets: np.ndarray, vocabulary: Vocabulary
    ) -> "TokenBorders":
        """Find the borders of a text's tokens.

        Args:
            ids: token ids (N,).
            offsets: as in `assign_tokens` (N, 2).
        """
        ends = np.append(0, np.maximum.accumulate(offsets[:, 1].clip(0)))
        # Some decoders put a space between any two words, also where the text has none.
        spaced = [any(map(str.isspace, text[a:b])) for a, b in itertools.pairwise(ends.tolist())]
        at_start = np.append(True, np.cumsum(offsets[:, 0] >= 0) == 0)
        opens = vocabulary.begins[ids] & (np.array(spaced) | at_start[:-1])
        return cls(
            opens=np.append(opens | vocabulary.special[ids], True),
            passed=np.append(False, vocabulary.ends[ids]),
            at_start=at_start,
        )


def closing_terms(borders: TokenBorders, boundary: np.ndarray) -> np.ndarray:
    """Compute the cost of a word's end, by the border where it ends (N + 1,).

    0 where its last token has the white space, and where no white space follows: such borders, between
    given words, are no event in the text.

    Args:
        boundary: E (N + 1,).
    """
    return np.where(borders.opens & ~borders.passed, boundary, 0.0)


def opening_terms(
    borders: TokenBorders, boundary: np.ndarray, interior: np.ndarray, correction: str | None
) -> np.ndarray:
    """Compute the refund for a word's beginning, by the border where it begins (N + 1,).

    Args:
        boundary: E (N + 1,).
        interior: -log P(no white space first) of the row that predicts each token (N + 1,).
        correction: with "oh", there is no refund if no earlier word paid.
    """
    unpaid = borders.at_start | borders.passed
    first = np.where(borders.opens, boundary, interior) if correction == "pimentel" else 0.0
    return np.where(unpaid, first, np.where(borders.opens, boundary, 0.0))


def sum_words(
    tokens: Sequence[Range | None], nll: np.ndarray, closing: np.ndarray, opening: np.ndarray
) -> tuple[list[float | None], list[float | None]]:
    """Sum each word's nll and its surprisal; None if a part of it has no score.

    Args:
        tokens: tokens of each word, from `assign_tokens`.
        nll: of each token (N,); NaN where it has no score.
        closing, opening: the terms at each border (N + 1,); NaN where that row was not read.
    """
    sums, surprisals = [], []
    for span in tokens:
        total = surprisal = np.nan
        if span is not None:
            first, end = span
            total = nll[first:end].sum(dtype=np.float64)
            surprisal = total + closing[end] - opening[first]
        sums.append(number_or_none(total))
        surprisals.append(number_or_none(surprisal))
    return sums, surprisals


def number_or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# --- scores of a call -----------------------------------------------------------------------------


@dataclass(frozen=True)
class WordScoring:
    """The settings by which words are scored.

    Attributes:
        spans: for each text the characters of its words; None splits it at white space.
        correction: the correction for the space between words: "pimentel", "oh", one of `PACKAGES`
            or None.
        with_borders: whether to measure the cost of the space after a word, and the entropy.
    """

    spans: Sequence[Sequence[Range]] | None
    correction: str | None
    vocabulary: Vocabulary
    with_borders: bool = True

    @classmethod
    def of(
        cls, model: ScoredModel, spans: Sequence[Sequence[Range]] | None, correction: str | None
    ) -> "WordScoring":
        """Prepare to score words under a model.

        Raises:
            ValueError: the tokenizer gives no offsets, or the model does not give the logits that a
                correction needs.
        """
        check_fast(model.tokenizer)
        if correction is not None and not model.gives_logits:
            raise ArgumentError(
                "word_correction",
                f"be None with {model.description}",
                got=repr(correction),
                why=(
                    "what the space after a word costs is a sum over the vocabulary, which needs "
                    "the logits of all tokens"
                ),
                advice="Pass `word_correction=None` for plain sums, or load the model itself.",
            )
        size, texts = _TEXTS.get(model.tokenizer, (0, []))
        if size != len(model.tokenizer):  # new, or with other tokens added
            size, texts = len(model.tokenizer), vocabulary_texts(model.tokenizer)
            _TEXTS[model.tokenizer] = size, texts
        vocabulary = classify_vocabulary(model.tokenizer, model.vocabulary_size, texts)
        if correction in PACKAGES:
            vocabulary = as_the_package(vocabulary, model.tokenizer, correction)
        return cls(spans, correction, vocabulary, model.gives_logits)

    @property
    def rule(self) -> str | None:
        """The correction without its package."""
        return PACKAGES.get(self.correction or "", self.correction)

    def measures(self) -> list[Measure]:
        """List the measures of each token."""
        if not self.with_borders:
            return []
        boundary = self.vocabulary.boundary_ids(self.rule)
        interior = self.vocabulary.refunded
        return [
            SetMass("boundary", tuple(boundary.tolist())),
            SetMass("interior", tuple(interior.tolist())),
            Entropy(),
        ]

    def fields(self) -> dict[str, str]:
        """Return the settings for the signature."""
        split = "whitespace" if self.spans is None else "given"
        return {"word_scores": f"{split}/{self.correction or 'uncorrected'}"}

    def of_measurement(
        self,
        measurement: Measurement,
        scores: Sequence[Sequence[Columns]],
        borders: Sequence[Sequence[Columns]],
    ) -> list[dict[str, list]]:
        """List the words of each text and their scores."""
        results = []
        crossing = []
        for number, (text, stream) in enumerate(zip(measurement.texts, measurement.streams)):
            spans = self._words_of(measurement, number)
            tokens = TokenArrays.of(
                len(stream),
                (measurement.windows[number], scores[number]),
                (measurement.borders[number], borders[number]),
            )
            begins = () if stream.part is None else [first for first, _ in stream.part.targets]
            words = assign_tokens(text, word_offsets(stream), spans, begins)
            results.append(self._score(text, stream, spans, words, tokens))
            if None in words:
                crossing.append(number)
        if crossing:
            warnings.warn(
                "A token reaches across the edge of a word in the texts at "
                f"{name_positions(crossing)}; such words have no score.",
                stacklevel=2,
            )
        return results

    def _words_of(self, measurement: Measurement, number: int) -> list[Range]:
        """List the characters of a text's words, in the text with its context."""
        text, part = measurement.texts[number], measurement.streams[number].part
        whole = ((0, len(text)),) if part is None else part.spans
        if self.spans is None:
            return [
                (begin + first, begin + end)
                for begin, stop in whole
                for first, end in split_words(text[begin:stop])
            ]
        begin = 0 if measurement.parts is None else measurement.parts.length_before(number)
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
        opening = opening_terms(borders, tokens.boundary, tokens.interior, self.rule)
        nll, surprisal = sum_words(words, tokens.nll, closing, opening)
        begins = [None if word is None else word[0] for word in words]
        return {
            "words": [text[first:end] for first, end in spans],
            "offsets": [list(span) for span in spans],
            "nll": nll,
            "surprisal": nll if self.correction is None else surprisal,
            "space_nll": [
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
    def of(
        cls,
        num_tokens: int,
        scored: tuple[Sequence[Window], Sequence[Columns]],
        borders: tuple[Sequence[Window], Sequence[Columns]],
    ) -> "TokenArrays":
        """Arrange the columns of windows over the text.

        Args:
            scored, borders: windows, and the columns of each; of borders only what says whether a
                word ends there.
        """
        nll, boundary, interior, entropy = np.full((4, num_tokens + 1), np.nan)
        counts = np.zeros(num_tokens + 1, dtype=np.int64)
        arrays = cls(nll, boundary, interior, entropy, counts)
        arrays._lay(*borders, ("boundary", "interior"))
        arrays._lay(*scored, ("nll", "boundary", "interior", "entropy"))
        windows, _ = scored
        scatter_to_tokens(windows, [w.context_lengths() for w in windows], arrays.context_length)
        return arrays

    def _lay(
        self, windows: Sequence[Window], columns: Sequence[Columns], names: Sequence[str]
    ) -> None:
        for name in names:
            if columns and name in columns[0]:
                scatter_to_tokens(
                    windows, [of_window[name] for of_window in columns], getattr(self, name)
                )


def word_offsets(stream: TokenizedText) -> np.ndarray:
    """Return the characters of each token (N, 2) by which words are assigned.

    A special token that the tokenizer added has none, (-1, -1); of a token across the edge of the
    scored part the characters before the edge are left out.
    """
    offsets = stream.known_offsets.copy()
    offsets[stream.added] = -1
    if stream.part is not None:
        for (first, _), tail in zip(stream.part.targets, stream.part.tails):
            offsets[first, 0] += len(tail)
    return offsets
