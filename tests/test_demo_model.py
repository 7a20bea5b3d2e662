"""The demo model looks back: what its window holds is easier to read a second time.

The texts are not among its training books; `portrait.txt` is from the book that was held out.
"""

import pytest


@pytest.fixture(scope="module")
def read(root):
    """Score texts with the demo model and every token's surprisal."""
    from perplexity_sliding import PerplexitySliding

    def read(texts, **arguments):
        return PerplexitySliding().compute(
            predictions=texts,
            model_id=str(root / "demo_model"),
            return_token_scores=True,
            **arguments,
        )

    return read


@pytest.fixture(scope="module")
def passages(root):
    """Passages of about 40 tokens from the book that was held out."""
    words = (root / "samples/portrait.txt").read_text("utf-8").split()
    return [" ".join(words[first : first + 30]) for first in range(0, len(words) - 30, 30)]


def nats_of(scores, start, end):
    """The nats of the tokens between two characters of a text."""
    return sum(
        nll
        for (first, last), nll in zip(scores["offsets"], scores["nll"], strict=True)
        if first < end and last > start
    )


def nats_of_each(text, word, scores):
    """The nats of a word at each place where the text has it."""
    starts = [i for i in range(len(text)) if text.startswith(word, i)]
    return [nats_of(scores, start, start + len(word)) for start in starts]


def test_passage_costs_far_less_the_second_time(read, passages):
    scores = read([f"{passage} {passage}" for passage in passages])["token_scores"]
    first = second = 0.0
    for passage, scored in zip(passages, scores, strict=True):
        first += nats_of(scored, 0, len(passage))
        second += nats_of(scored, len(passage), 2 * len(passage) + 1)
    assert second < 0.3 * first


def test_passage_costs_as_much_again_once_the_first_time_is_out_of_the_window(read, passages):
    """What makes the second time cheap is the context, not the passages themselves."""
    passage = passages[0]
    scored = read([f"{passage} {passage}"], max_length=16, stride=8)["token_scores"][0]
    first = nats_of(scored, 0, len(passage))
    assert nats_of(scored, len(passage), 2 * len(passage) + 1) > 0.8 * first


def test_third_cat_that_sat_is_expected(read):
    text = "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat."
    *_, third = nats_of_each(text, "sat", read([text])["token_scores"][0])
    assert third < 1


@pytest.mark.parametrize("surname", ["Quirk", "Brandlewick", "Ombersley", "Vexley", "Tharkov"])
def test_invented_surname_is_remembered(read, surname):
    text = (
        f"“Good evening, Mr. {surname},” said the landlord. “I did not look for you, Mr. {surname}, on "
        f"such a night.” But Mr. {surname} shook his head."
    )
    first, _, third = nats_of_each(text, surname, read([text])["token_scores"][0])
    assert third < 0.4 * first


def test_longest_window_gains_over_32_tokens_where_names_return(read, root):
    text = (root / "samples/gate.txt").read_text("utf-8")
    longest, short = (read([text], max_length=length)["perplexity"] for length in (None, 32))
    assert longest < 0.94 * short


def test_looking_back_costs_little_of_what_it_knows_of_english(read, root):
    """These passages are harder than the rest of their book, which takes 1.7 bits per byte."""
    text = (root / "samples/portrait.txt").read_text("utf-8")
    assert read([text])["bits_per_byte"] < 1.8


def test_stays_small(root):
    assert (root / "demo_model/model.safetensors").stat().st_size <= 10e6
