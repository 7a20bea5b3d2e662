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
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import check_spans_of
from ..errors import ArgumentError, name_positions
from ..models.interface import ScoredModel
from ..plan.measurement import Columns, Measurement, scatter_to_tokens
from ..plan.tokenization import Range, TokenizedText, check_fast, special_ids, vocabulary_texts
from ..scoring.measures import Entropy, Measure, SetMass

# Number of tokens of a tokenizer, and the texts of all.
_TEXTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
SPACE = re.compile(r"\s*")
# Scripts without spaces between words, and the mean length in characters above which the strings
# between spaces are not single words: Chinese and Japanese; Thai, Lao, Khmer, Burmese, Tibetan.
UNSPACED = {
    re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"): 3,
    re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"): 8,
}

# --- the vocabulary --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """The role of each token at the borders of words.

    Attributes:
        begins: whether the text of the token begins with white space (V,).
        ends: whether it ends in white space (V,); so do tokens that mark the end of a word.
        special: whether it is a special token of any kind (V,).
        closes: whether it closes the word before it (V,).
    """

    begins: np.ndarray
    ends: np.ndarray
    special: np.ndarray
    closes: np.ndarray


def classify_vocabulary(
    tokenizer: PreTrainedTokenizerBase, size: int, correction: str | None
) -> Vocabulary:
    """Classify the tokens of a vocabulary by their texts, up to the number of logits, V."""
    num_known, texts = _TEXTS.get(tokenizer, (0, []))
    if num_known != len(tokenizer):  # new, or with other tokens added
        texts = vocabulary_texts(tokenizer)
        _TEXTS[tokenizer] = len(tokenizer), texts
    texts = [*texts, *[""] * size][:size]  # models pad the vocabulary
    begins = np.array([text[:1].isspace() for text in texts], dtype=bool)
    ids = np.arange(size)
    ends_text = ids == tokenizer.eos_token_id
    return Vocabulary(
        begins=begins,
        ends=np.array([text[-1:].isspace() for text in texts], dtype=bool),
        special=np.isin(ids, list(special_ids(tokenizer))),
        closes=begins | ends_text if correction == "pimentel" else begins,  # "oh": spaces alone
    )


# --- words in a text -------------------------------------------------------------------------------


def check_words(words: object, texts: Sequence[str]) -> list[list[tuple[int, int]]] | None:
    """Return the characters of the words of each text; None to split at white space."""
    if words is True:
        unspaced = [number for number, text in enumerate(texts) if is_unspaced(text)]
        if unspaced:
            warnings.warn(
                "Words are taken from between white space, but the texts at "
                f"{name_positions(unspaced)} are written without: whole sentences count as words. "
                "Give the words or regions of each text instead (in Python a list for each, on the "
                "command line --words-column).",
                stacklevel=2,
            )
        return None
    if isinstance(words, str) or not isinstance(words, Sequence) or len(words) != len(texts):
        raise ArgumentError(
            "words",
            f"be True, or a list of words or spans for each text, {len(texts)}",
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


def is_unspaced(text: str) -> bool:
    for script, longest in UNSPACED.items():
        if not text.isascii() and script.search(text):
            lengths = [len(own) for word in text.split() if (own := script.findall(word))]
            if sum(lengths) > longest * len(lengths):
                return True
    return False


def split_words(text: str) -> list[Range]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def find_words(text: str, words: Iterable[str]) -> list[Range]:
    """Find given words in a text, which must consist of them and of white space."""
    spans, place = [], 0
    for word in [*words, None]:  # None is the end of the text
        first = next(SPACE.finditer(text, place)).end()
        if word is None and first == len(text):
            break
        if word is None or not word.strip() or not text.startswith(word, first):
            raise ArgumentError(
                "words",
                "be all words of the text in their order",
                got="their end" if word is None else repr(word),
                why=f"at character {first} stands {text[first : first + 20]!r}",
                advice="Give spans of characters to leave parts of a text out.",
            )
        place = first + len(word)
        spans.append((first, place))
    return spans


def assign_tokens(
    text: str, offsets: np.ndarray, spans: Sequence[Range], begins: Collection[int] = ()
) -> list[Range | None]:
    """Find the tokens of each word, half-open (first, end), or None if a token spans the word's edge.

    White space that is a separate token belongs to the next word, unless it is context.

    Args:
        offsets: characters of each token (N, 2); a token without text, such as a start token, has
            (-1, -1).
        spans: characters of each word.
        begins: tokens with which scored parts begin.
    """
    texts = [text[max(first, 0) : max(end, 0)] for first, end in offsets.tolist()]
    is_space = np.array([not own.strip() for own in texts], dtype=bool) & (offsets[:, 0] >= 0)
    solid = np.flatnonzero([bool(own.strip()) for own in texts])
    firsts = [offsets[n, 0] + len(texts[n]) - len(texts[n].lstrip()) for n in solid]
    ends = [first + len(texts[n].strip()) for n, first in zip(solid, firsts)]
    tokens: list[Range | None] = []
    for start, stop in spans:
        low, high = bisect_right(ends, start), bisect_left(firsts, stop)
        if low >= high or firsts[low] < start or ends[high - 1] > stop:
            tokens.append(None)
            continue
        first = int(solid[low])
        while first > 0 and first not in begins and is_space[first - 1]:
            first -= 1
        tokens.append((first, int(solid[high - 1]) + 1))
    return tokens


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


# --- scores ----------------------------------------------------------------------------------------


def space_terms(
    text: str,
    ids: np.ndarray,
    offsets: np.ndarray,
    vocabulary: Vocabulary,
    boundary: np.ndarray,
    interior: np.ndarray,
    correction: str | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute what the space costs a word that ends at a border, and refunds one that begins there.

    A border is before each token of a text, and after the last (N + 1,).  A word's end costs nothing
    where its last token has the white space, and where no white space follows: such borders, between
    given words, are no event in the text.

    Args:
        ids, offsets: the tokens (N,), and their characters as in `assign_tokens` (N, 2).
        boundary, interior: E, and -log P(no white space first), of the row that predicts the token
            after each border; NaN where it was not read.
        correction: unless it is "pimentel", there is no refund if no earlier word paid.
    """
    reached = np.append(0, np.maximum.accumulate(offsets[:, 1].clip(0))).tolist()
    # Some decoders put a space between any two words, also where the text has none.
    spaced = [any(map(str.isspace, text[a:b])) for a, b in itertools.pairwise(reached)]
    at_start = np.append(True, np.cumsum(offsets[:, 0] >= 0) == 0)
    opens = vocabulary.begins[ids] & (np.array(spaced, dtype=bool) | at_start[:-1])
    opens = np.append(opens | vocabulary.special[ids], True)  # so does the end of the text
    passed = np.append(False, vocabulary.ends[ids])
    costs = np.where(opens, boundary, 0.0)
    unpaid = np.where(opens, boundary, interior) if correction == "pimentel" else 0.0
    return np.where(passed, 0.0, costs), np.where(at_start | passed, unpaid, costs)


def sum_words(
    tokens: Sequence[Range | None], columns: Columns, closing: np.ndarray, opening: np.ndarray
) -> dict[str, list]:
    """List the scores of words; None, or a count of 0, if a part of the word has no score.

    Args:
        tokens: tokens of each word, from `assign_tokens`.
        columns: of each token; NaN where it has no score.
        closing, opening: the terms at each border, from `space_terms`.
    """
    names = ("nll", "surprisal", "space_nll", "entropy", "num_tokens", "context_length")
    rows: list[tuple] = []
    for span in tokens:
        if span is None:
            rows.append((None, None, None, None, 0, 0))
            continue
        first, end = span
        nll = columns["nll"][first:end].sum(dtype=np.float64)
        surprisal = nll + closing[end] - opening[first]
        values = nll, surprisal, closing[end], columns["entropy"][first]
        numbers = [None if np.isnan(value) else float(value) for value in values]
        rows.append((*numbers, end - first, int(columns["context_length"][first])))
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


@dataclass(frozen=True)
class WordScoring:
    """The settings by which words are scored.

    Attributes:
        spans: for each text the characters of its words; None splits it at white space.
        correction: the correction for the space between words: "pimentel", "oh" or None.
        with_logits: whether the cost of the space after a word, and the entropy, can be measured.
    """

    spans: Sequence[Sequence[Range]] | None
    correction: str | None
    vocabulary: Vocabulary
    with_logits: bool

    @classmethod
    def of(
        cls, model: ScoredModel, spans: Sequence[Sequence[Range]] | None, correction: str | None
    ) -> "WordScoring":
        """Prepare to score words under a model."""
        check_fast(model.tokenizer)
        if correction is not None and not model.gives_logits:
            raise ArgumentError(
                "word_correction",
                f"be None with {model.description}",
                got=repr(correction),
                why="it is a sum over the vocabulary, which needs the logits of all tokens",
                advice="Pass `word_correction=None` for plain sums, or load the model itself.",
            )
        vocabulary = classify_vocabulary(model.tokenizer, model.vocabulary_size, correction)
        return cls(spans, correction, vocabulary, model.gives_logits)

    def measures(self) -> list[Measure]:
        if not self.with_logits:
            return []
        sets = {"boundary": self.vocabulary.closes, "interior": ~self.vocabulary.begins}
        masses = [SetMass(k, tuple(np.flatnonzero(ids).tolist())) for k, ids in sets.items()]
        return [*masses, Entropy()]

    def fields(self) -> dict[str, str]:
        split = "whitespace" if self.spans is None else "given"
        return {"word_scores": f"{split}/{self.correction or 'uncorrected'}"}

    def of_measurement(
        self,
        measurement: Measurement,
        scores: Sequence[Sequence[Columns]],
        borders: Sequence[Sequence[Columns]],
    ) -> list[dict[str, list]]:
        results, crossing = [], []
        for number, (text, stream) in enumerate(zip(measurement.texts, measurement.streams)):
            spans, offsets = self._find_spans(measurement, number), word_offsets(stream)
            begins = () if stream.part is None else [first for first, _ in stream.part.targets]
            tokens = assign_tokens(text, offsets, spans, begins)
            if None in tokens:
                crossing.append(number)
            columns = spread_columns(measurement, number, scores[number], borders[number])
            of_space = columns["boundary"], columns["interior"], self.correction
            terms = space_terms(text, stream.ids, offsets, self.vocabulary, *of_space)
            scored = sum_words(tokens, columns, *terms)
            if self.correction is None:
                scored["surprisal"] = scored["nll"]
            words = {"words": [text[first:end] for first, end in spans]}
            results.append(words | {"offsets": [list(span) for span in spans]} | scored)
        if crossing:
            warnings.warn(
                "A token reaches across the edge of a word in the texts at "
                f"{name_positions(crossing)}; such words have no score.",
                stacklevel=2,
            )
        return results

    def _find_spans(self, measurement: Measurement, number: int) -> list[Range]:
        """List the characters of a text's words, in the text with its context."""
        text, part = measurement.texts[number], measurement.streams[number].part
        if self.spans is not None:
            parts = measurement.parts
            begin = len(parts.contexts[number]) if parts and parts.contexts else 0
            return [(begin + first, begin + end) for first, end in self.spans[number]]
        return [
            (begin + first, begin + end)
            for begin, stop in (((0, len(text)),) if part is None else part.spans)
            for first, end in split_words(text[begin:stop])
        ]


def spread_columns(
    measurement: Measurement, number: int, scores: Sequence[Columns], borders: Sequence[Columns]
) -> Columns:
    """Spread scores of a text's windows and borders over its tokens and its end (N + 1,), else NaN."""
    size, windows = len(measurement.streams[number]) + 1, measurement.windows[number]
    space = ("boundary", "interior")
    spread = {name: np.full(size, np.nan) for name in ("nll", "entropy", *space)}
    for names, places, columns in (
        (space, measurement.borders[number], borders),
        (spread, windows, scores),
    ):
        for name in names:
            if columns and name in columns[0]:
                scatter_to_tokens(places, [of_window[name] for of_window in columns], spread[name])
    counts = np.zeros(size, dtype=np.int64)
    scatter_to_tokens(windows, [window.context_lengths() for window in windows], counts)
    return spread | {"context_length": counts}
