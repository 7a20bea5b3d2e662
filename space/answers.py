"""What the page is told of a score: plain values, from which its script draws."""

import functools
import itertools
import math
import re
from collections.abc import Sequence

from scipy.special import stdtrit

from perplexity_sliding.views.text import (
    count,
    in_bits,
    most_surprising,
    number,
    odds,
    piece_colour,
    piece_columns,
    text_segments,
    token_data,
    utf16_length,
    word_pieces,
)

from .landmarks import KEYS, LANGUAGE, NEAR, Landmark, is_foreign, verdict
from .models import BUNDLED, ROUNDED
from .protocols import guide
from .samples import FOLDER
from .service import Scored

ENDLESS = 1e9  # JSON has no infinity
CONFIDENCE = 0.975  # two-sided 95 %
WORD = re.compile(r"[^\W\d_]{2,}(?:[’'][a-z]+)*")
LETTERS = re.compile(r"[^\W\d_]+")
ENGLISH = ("gate", "list", "news", "opening", "portrait", "rhyme", "story", "technical")  # samples
LONGEST_WORD = 40  # characters before a piece that may begin its word
FOREIGN = "It has read English only; this looks like another language."
UNKNOWN = "Full of what it has never met: it has read old novels only."
UNEXPECTED = "Words that it did not expect together."
SHORT = "Too few words to compare."
EMPTY = 100  # times its lower end is the upper one of an interval that says nothing
BROKEN = 2.5  # tokens of a word, on average, in a text of words that the model does not know
FEWEST_KEYS = 40  # tokens of a text that may be called as surprising as random keys


def score_answer(scored: Scored, landmarks: Sequence[Landmark]) -> dict:
    """Return everything that the page shows of a score."""
    result, settings = scored.result, scored.settings
    interval = interval_of(scored)
    said = verdict(result["perplexity"], interval, landmarks)
    is_vague = interval is None or interval[1] > EMPTY * interval[0]
    is_vague = is_vague and averages_tokens(scored)
    is_placed, reads = True, reads_english(scored)
    if reads and is_foreign(scored.text) and math.isfinite(result["perplexity"]):
        known = dict(landmarks).get(LANGUAGE, math.inf)
        is_placed = result["perplexity"] * math.exp(NEAR) > known
        said = FOREIGN if is_placed else f"{FOREIGN} So its number says little."
    elif KEYS in said and result["num_tokens"] < FEWEST_KEYS:
        num_words = len(LETTERS.findall(scored.text))
        is_broken = result["num_tokens"] > BROKEN * num_words
        said = UNKNOWN if reads and is_broken else UNEXPECTED
    elif is_vague:
        said = SHORT
    return {
        "perplexity": _finite(result["perplexity"]),
        "interval": interval and [_finite(end) for end in interval],
        "vague": is_vague,  # whether the number says little
        "verdict": said,
        "placed": is_placed,  # whether its place on the scale says what the verdict does
        "landmarks": [[mark.name, _finite(mark.perplexity)] for mark in landmarks],
        "worst": worst_word(scored),
        "settings": {
            "model": settings.model,
            "window": settings.window,
            "stride": settings.stride,
            "longest": scored.loaded.window,
            "vocabulary": len(scored.loaded.tokenizer),
        },
        "recipe": " · ".join(recipe(scored)),
        "numbers": numbers(scored),
        "notes": result["notes"],
        "text": text_data(scored),
    }


def reads_english(scored: Scored) -> bool:
    """Return whether the model is the bundled one, which has read English novels alone."""
    return scored.settings.model in (BUNDLED, ROUNDED)


def text_data(scored: Scored) -> dict:
    """Return the text in pieces with their colours, what is told of each token, and the windows."""
    segments, text = text_segments(scored)
    pieces = [text[segment.start : segment.end] for segment in segments]
    nll = scored.tokens["nll"]
    colours = [piece_colour(nll, segment, piece) for segment, piece in zip(segments, pieces)]
    data = token_data(scored, segments)
    pairs = [pair for word in word_pieces(segments, text) for pair in itertools.pairwise(word)]
    return data | {
        # pieces that go on with the word of the one before, or come after the space that begins it
        "joins": [b for a, b in pairs if b == a + 1 and "\n" not in pieces[a]],
        "alternatives": data["alternatives"] and expected_words(scored, data["alternatives"]),
        "pieces": {"text": text, **piece_columns(pieces, colours)},
        "before": utf16_length(scored.settings.context),
        "slides": guide(scored.settings.protocol).slides,
        "starts": scored.settings.arguments().get("add_start_token") == "every",
        "stride": scored.settings.stride,
        "averaged": averages_tokens(scored),
    }


def expected_words(scored: Scored, alternatives: Sequence) -> list:
    """Return what was expected at each token in words, with its probabilities."""
    starts = [offset[0] if offset else 0 for offset in scored.tokens["offsets"]]
    return [
        tops and [[as_word(piece, scored.whole, at), share] for piece, share in tops]
        for at, tops in zip(starts, alternatives)
    ]


def as_word(piece: str, text: str, at: int) -> str:
    """Write what was expected at a character as a word: after its beginning, and open where it may go on.

    No tokenizer says whether a piece is whole: words of the samples are, other letters may go on.
    Where no letter came, what would have gone on with the word before it begins with an ellipsis.
    """
    has_case = piece[:1].lower() != piece[:1].upper()  # else words may stand without spaces
    before = text[max(0, at - LONGEST_WORD) : at] if has_case else ""
    if not text[at : at + 1].isalpha() and before[-1:].isalpha():
        return f"…{piece}"
    word = re.search(r"[^\W\d_]*$", before)[0] + piece.strip()
    is_whole = word.lower() in known_words() or not (word.isascii() and word.isalpha())
    return (word if is_whole else f"{word}…") or piece


@functools.cache
def known_words() -> frozenset[str]:
    texts = ((FOLDER / f"{stem}.txt").read_text(encoding="utf-8") for stem in ENGLISH)
    return frozenset({"a", "i", "o"}.union(*(WORD.findall(text.lower()) for text in texts)))


def averages_tokens(scored: Scored) -> bool:
    """Return whether the perplexity is that of the mean over tokens, each counted once.

    Some tools average in another way, or count a token many times.
    """
    perplexity = scored.result["perplexity"]
    own = [nll for nll in scored.tokens["nll"] if nll is not None]
    if not own or not math.isfinite(perplexity):
        return False
    return math.isclose(math.log(perplexity), math.fsum(own) / len(own), abs_tol=1e-5)


def interval_of(scored: Scored) -> Sequence[float] | None:
    """Return the 95 % interval of the perplexity; None if there can be none.

    That of the metric, from parts of the text; where it has too few parts, that of Student's t over
    its tokens, which treats them as independent and is wide for a few words, as it should be.
    """
    if scored.result["perplexity_interval"] is not None:
        return scored.result["perplexity_interval"]
    own = [nll for nll in scored.tokens["nll"] if nll is not None]
    if len(own) < 2 or not averages_tokens(scored):
        return None
    mean = math.fsum(own) / len(own)
    variance = math.fsum((nll - mean) ** 2 for nll in own) / (len(own) - 1)
    margin = float(stdtrit(len(own) - 1, CONFIDENCE)) * math.sqrt(variance / len(own))
    return [math.exp(max(0.0, mean - margin)), math.exp(min(mean + margin, 700.0))]


def worst_word(scored: Scored) -> dict | None:
    """Return the word of the least chance, as it is coloured, and what was expected instead."""
    words = most_surprising([scored], len(scored.tokens["tokens"]))
    worst = max(words, key=lambda word: word.nll, default=None)
    return worst and {
        "word": worst.word,
        "piece": worst.piece,
        "bits": in_bits(worst.nll),
        "odds": odds(worst.nll),
        "expected": expected_instead(scored, worst.begin),
    }


def expected_instead(scored: Scored, piece: int) -> str | None:
    """Return the likeliest word in the place of the one that a piece begins.

    A guess that goes on with the word before it, such as “These” after “The”, is none, nor are
    punctuation and what may be a part of a word.
    """
    segments, text = text_segments(scored)
    place = segments[piece]
    tops = scored.tokens["alternatives"][place.first] if place.first == place.last else None
    before = text[: place.start][-1:]
    is_joined = before.lower() != before.upper()  # its word goes on until a space
    words = [
        as_word(guess, text, place.start)
        for guess, _ in tops or []
        if any(map(str.isalpha, guess)) and not (is_joined and not guess[0].isspace())
    ]
    return next((word for word in words if not word.endswith("…")), None)


def recipe(scored: Scored) -> list[str]:
    """Write the settings of the number, without which it cannot be cited."""
    settings = scored.settings
    begins = [bool(window["start_token"]) for window in scored.tokens["windows"]]
    start = "no start token"
    if any(begins):
        start = "start token in every window" if begins[1:2] == [True] else "start token once"
    stride = [] if settings.stride is None else [f"stride {settings.stride:,}"]
    context = [f"after {count(scored.num_context_tokens, 'token')} of context"] * bool(
        settings.context
    )
    return [
        f"protocol {settings.protocol}",
        f"window {settings.window:,}",
        *stride,
        start,
        *context,
    ]


def numbers(scored: Scored) -> list[tuple[str, str, str]]:
    """List other measures: name, value and what it is."""
    result = scored.result
    length = len(scored.tokens["tokens"])
    own = length - scored.num_context_tokens
    again = ", some of them several times" * (result["num_tokens"] > own)
    window = f"of up to {count(scored.settings.window, 'token')}"
    rows = [
        ("Perplexity", number(result["perplexity"]), "per token"),
        ("Tokens scored", f"{result['num_tokens']:,}", f"of {own:,} in the text{again}"),
        ("Windows", f"{result['num_windows']:,}", window),
        ("Read", f"{result['num_forward_tokens'] / max(1, length):.1f} ×", "the text: the cost"),
        (
            "Bits per token",
            number(result["total_nll"] / math.log(2) / result["num_tokens"]),
            "mean surprise of a token",
        ),
        ("Bits per byte", number(result["bits_per_byte"]), "comparable between tokenizers"),
        ("Word perplexity", number(result["word_perplexity"]), "per word instead of token"),
    ]
    if result.get("tool_stderr") is not None:
        error = number(result["tool_stderr"])
        rows.append(("The tool's own ±", error, "as if tokens were independent"))
    return rows


def _finite(value: float) -> float:
    return min(value, ENDLESS)
