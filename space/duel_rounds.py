"""Create the rounds of the duel: ten hidden words of a passage, with six options each.

    python -m space.duel_rounds

reads the passages in `samples/portrait.txt` and `space/duel_passages.json`, and writes
`space/duel.json`.

The options of a gap are found without looking at the word that came.  The likeliest words after the
five words before the gap are dealt at random into hands of six, and the options are the hand with the
word that came.  As the hands do not depend on that word, the chance that an option came is its
conditional probability: p(option) / Σ p(options).  Neither the rarest nor the longest nor the oddest
option is the one that came more often than that.  In a language that the model never read it has
no likely words, and all words of the language's texts are dealt instead.

The model's probabilities are the metric's: each option is scored as a word after the text before it.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from perplexity_sliding import PerplexitySliding

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "demo_model"
NOVEL = ROOT / "samples" / "portrait.txt"
GERMAN = ROOT / "samples" / "deutsch.txt"
PASSAGES = Path(__file__).with_name("duel_passages.json")
ROUNDS = Path(__file__).with_name("duel.json")

GAPS = 10  # of a round
OPTIONS = 6
HANDS = 25
FEWEST_BEFORE = 12  # words before the first gap
WINDOW = 5  # words that the second round shows
APART = WINDOW + 1  # words from one gap to the next: the five before a gap show no other gap
BREADTH = 300  # most likely tokens, of which those before white space are selected
DIGITS = 4
# Words that grammar alone determines.
DULL = frozenset(
    re.findall(
        r"\w+",
        "the and that his her him had was for with not but she you they were which have from them all "
        "their one would there been when who what said could has this its did than into then some any "
        "are will now out more your very our "
        "der die das den dem des ein eine einen einem eines einer und war ist nicht mit von auf für sich "
        "sie wir ich ihm ihn ihr uns als dass daß aus bei nach vor über unter zum zur hat hatte haben",
    )
)
WORD = re.compile(r"[a-zäöüß]{3,}")


@dataclass(frozen=True)
class Gap:
    """A hidden word.

    Attributes:
        at: its first character in the passage.
        options: six words, in the order in which they are shown.
        answer: the index of the word that came.
    """

    at: int
    options: list[str]
    answer: int


class Proposer:
    """Propose the most likely next words of a single token.

    Args:
        folder: of the model and its tokenizer, whose tokens bring the space before a word.
    """

    def __init__(self, folder: str | Path = MODEL) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.texts = [self.tokenizer.decode([token]) for token in range(len(self.tokenizer))]
        self.unfit = torch.tensor(
            [not is_fit(text.removeprefix(" ")) or text[0] != " " for text in self.texts]
        )
        self.closes = torch.tensor([text[:1].isspace() for text in self.texts])

    @torch.no_grad()
    def propose(self, context: str, number: int) -> list[str]:
        """Return the likeliest words after a context, the likeliest first, without the dull ones.

        A word is as likely as its token with white space after it: parts of words are not.
        """
        read = self.tokenizer(context)["input_ids"]
        scores = self._next([read])[0].masked_fill(self.unfit, -torch.inf)
        scores, tokens = scores.topk(min(BREADTH, int((~self.unfit).sum())))
        after = self._next([[*read, token] for token in tokens.tolist()])
        scores = scores + torch.logsumexp(after[:, self.closes], dim=1)
        likeliest = tokens[scores.topk(min(number, len(scores))).indices].tolist()
        return [self.texts[token].strip() for token in likeliest]

    def _next(self, texts: Sequence[list[int]]) -> torch.Tensor:
        """Return log-probabilities of the token after each of equally long texts (texts, V)."""
        return torch.log_softmax(self.model(torch.tensor(texts)).logits[:, -1], dim=-1)


def is_fit(word: str) -> bool:
    """Return whether a word may be an option."""
    return bool(WORD.fullmatch(word)) and word not in DULL


def deal(words: Sequence[str], seed: str) -> list[list[str]]:
    """Divide words at random into groups of six."""
    shuffled = random.Random(seed).sample(words, len(words))
    hands = len(shuffled) // OPTIONS
    return [shuffled[OPTIONS * hand : OPTIONS * (hand + 1)] for hand in range(hands)]


def find_gaps(passage: str, propose: Callable[[str, int], Sequence[str]]) -> list[Gap]:
    """Find the gaps of two rounds in a passage, from its start, at least five words apart.

    Args:
        propose: returns words that may come after a context, `propose(context, number)`.
    """
    words = [match.span() for match in re.finditer(r"\S+", passage)]
    gaps, earliest = [], FEWEST_BEFORE
    for number, (first, end) in enumerate(words):
        word = passage[first:end].rstrip(".,;:!?")
        if number < earliest or not is_fit(word) or number + 1 == len(words):
            continue
        hands = deal(propose(last_words(passage[:first]), OPTIONS * HANDS), passage[:first])
        hand = next((hand for hand in hands if word in hand), None)
        if hand is not None:
            gaps.append(Gap(first, hand, hand.index(word)))
            earliest = number + APART
        if len(gaps) == 2 * GAPS:
            break
    return gaps


def last_words(text: str) -> str:
    """Return the last five words of a text."""
    return " ".join(text.split()[-WINDOW:])


def score_gaps(passage: str, gaps: Sequence[Gap], metric: PerplexitySliding) -> tuple[list, list]:
    """Score each option as the word after all of the text before it, and after five words.

    Returns:
        for each gap the surprisals of its options in nats, by the metric: with all of the text
        before it, as far as the model's window reaches, and with five words.
    """
    before = [passage[: gap.at].rstrip() for gap in gaps]
    both = [*before, *map(last_words, before)]
    options = [option for gap in gaps for option in gap.options]
    results = metric.compute(
        predictions=[f" {option}" for option in [*options, *options]],
        contexts=[context for context in both for _ in range(OPTIONS)],
        model_id=str(MODEL),
        protocol="lm-eval",  # each in the one window that ends with it, without a start token
        words=True,
    )
    scores = [round(of_text["surprisal"][0], DIGITS) for of_text in results["word_scores"]]
    gaps_scores = [scores[n : n + OPTIONS] for n in range(0, len(scores), OPTIONS)]
    return gaps_scores[: len(gaps)], gaps_scores[len(gaps) :]


def make_round(passage: dict, propose: Callable, metric: PerplexitySliding) -> dict:
    """Create a round from a passage, which ends with the sentence of its last gap.

    The first ten gaps are played with all of the text before them.  Where there are twenty, the
    others are played with five words, in an order of their own: in that of the text, the next gaps
    would reveal the ones before.

    Raises:
        ValueError: the passage has too few places for gaps.
    """
    text = passage["text"]
    gaps = find_gaps(text, propose)
    if len(gaps) < GAPS:
        raise ValueError(f"only {len(gaps)} of {GAPS} gaps in the passage {passage['title']!r}")
    gaps = gaps if len(gaps) == 2 * GAPS else gaps[:GAPS]
    end = re.compile(r"[.!?](?= |$)").search(text, gaps[-1].at).end()
    whole, five = score_gaps(text, gaps, metric)
    rows = [
        {"at": gap.at, "options": gap.options, "answer": gap.answer, "whole": one, "five": other}
        for gap, one, other in zip(gaps, whole, five, strict=True)
    ]
    more = rows[GAPS:]
    random.Random(text).shuffle(more)
    named = {"title": passage["title"], "language": passage["language"]}
    return named | {"text": text[:end], "gaps": rows[:GAPS], "more": more}


def read_passages() -> list[dict]:
    """Read all passages, in the order in which they come day by day: old and modern ones in turn."""
    modern = json.loads(PASSAGES.read_text("utf-8"))
    lines = [line for line in NOVEL.read_text("utf-8").splitlines() if line]
    old = [
        {
            "title": f"The Picture of Dorian Gray, 1891 ({number})",
            "language": "English",
            "text": line,
        }
        for number, line in enumerate(lines, 1)
    ]
    mixed = [passage for pair in zip(modern, old) for passage in pair]
    return mixed + old[len(modern) :]


def german_words() -> list[str]:
    """Return the words of the German texts that may be options."""
    texts = [passage["text"] for passage in read_passages() if passage["language"] == "German"]
    words = re.findall(r"\w+", " ".join([GERMAN.read_text("utf-8"), *texts]))
    return sorted({word for word in words if is_fit(word)})


def main() -> None:
    """Write the rounds, one passage a day."""
    proposer, metric, german = Proposer(), PerplexitySliding(), german_words()
    propose = {"English": proposer.propose, "German": lambda context, number: german}
    rounds = []
    for passage in read_passages():
        print(passage["title"], flush=True)
        try:
            rounds.append(make_round(passage, propose[passage["language"]], metric))
        except ValueError as reason:  # of a model that finds too few of the words likely
            print(f"left out: {reason}")
    ROUNDS.write_text(json.dumps(rounds, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
