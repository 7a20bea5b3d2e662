"""WikiText's word-level form to prose and back."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perplexity_sliding import wikitext

CASES = {
    "hyphen between words": (" a co @-@ star ", "a co-star"),
    "comma and point in numbers": (" 1 @,@ 000 or 3 @.@ 5 ", "1,000 or 3.5"),
    "marks beside unknown words": (" <unk> @-@ <unk> , 1 @,@ <unk> ", "<unk>-<unk>, 1,<unk>"),
    "end of a sentence": (" He left . She stayed ; why ? ", "He left. She stayed; why?"),
    "brackets": (" ( born 1950 ) [ sic ] ", "(born 1950) [sic]"),
    "quotation": (' " Yes , " she said , " no . " ', '"Yes," she said, "no."'),
    "single quotes": (" ' Yeah ' ", "'Yeah'"),
    "clitics": (" Robert 's friend didn 't K 'awiil ", "Robert's friend didn't K'awiil"),
    "possessive of a plural": (" the ships ' crews ", "the ships' crews"),
    "curly apostrophe": (" women ’ s rights ", "women’s rights"),
    "money and percent": (" $ 50 , £ 3 @.@ 5 , 7 % ", "$50, £3.5, 7%"),
    "units": (" 43 km / h ", "43 km/h"),
    "colon between numbers": (" at 7 : 30 : a start ", "at 7:30: a start"),
    "dash between numbers": (" 2000 – 05 , east – west ", "2000–05, east – west"),
    "title": (" = Robert <unk> = ", "= Robert <unk> ="),
    "heading": (" = = = Early life = = = ", "=== Early life ==="),
    "abbreviations": (" Mr. A. B. of the U.S. , No. 4 ", "Mr. A. B. of the U.S., No. 4"),
    "a name with a point": (" Amazon.com ranked it . ", "Amazon.com ranked it."),
    "hanging hyphen": (" 18- to 49 @-@ year @-@ olds ", "18- to 49-year-olds"),
}


@pytest.mark.parametrize(("line", "prose"), CASES.values(), ids=CASES)
def test_a_line_becomes_prose_and_comes_back(line, prose):
    assert wikitext.detokenize(line) == prose
    assert wikitext.tokenize(prose) == line


AMBIGUOUS = {
    "the point of Mr. would be taken for an abbreviation's": (" ask Mr . ", "ask Mr ."),
    "vitamin A at the end would be an initial": (" vitamin A . ", "vitamin A ."),
    "three points are one token": (" wait ... . ", "wait ... ."),
    "a mark that joins nothing": (" @-@ ", "@-@"),
}


@pytest.mark.parametrize(("line", "prose"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_gap_stays_open_where_it_could_not_be_found_again(line, prose):
    assert wikitext.detokenize(line) == prose
    assert wikitext.tokenize(prose) == line


@pytest.mark.parametrize("token", ["etc.", "well-known", "don't", "1,5", "(x"])
def test_a_line_with_a_token_that_would_be_taken_apart_stays_as_it_is(token):
    line = f" so {token} he said , "
    assert wikitext.detokenize(line) == line
    assert wikitext.tokenize(line) == line


def test_a_page_keeps_its_lines():
    page = " \n = Title = \n \n One , two . \n \n = = Part = = \n \n Three . \n"
    prose = "\n= Title =\n\nOne, two.\n\n== Part ==\n\nThree.\n"
    assert wikitext.detokenize(page) == prose
    assert wikitext.tokenize(prose) == page


def test_ordinary_prose_is_left_alone():
    prose = 'It is "late" , he said.\n\nWell - perhaps .\n'
    assert wikitext.detokenize(prose) == prose


WORDS = ["the", "Mr.", "Mr", "U.S.", "A", "No", "etc.", "<unk>", "12", "000", "1,000th", "18-", "x"]
MARKS = [*"\"'`.,:;!?()[]{}=-–—/%$£°′’“”#&+@|<>", "@-@", "@,@", "@.@", "...", "--", "'s", "'t"]


@given(st.lists(st.lists(st.sampled_from(WORDS + MARKS), max_size=12), max_size=4))
def test_words_and_marks_in_any_order_come_back(lines):
    text = "".join(f" {' '.join(tokens)} \n" if tokens else " \n" for tokens in lines)
    assert wikitext.tokenize(wikitext.detokenize(text)) == text


@given(st.lists(st.text(st.characters(exclude_characters="\n")), max_size=4))
def test_any_lines_that_begin_with_a_space_come_back(lines):
    text = "\n".join(f" {line}" for line in lines)
    assert wikitext.tokenize(wikitext.detokenize(text)) == text


def test_lines_that_lost_their_spaces_are_warned_of(metric, gpt2, tokenizer):
    def warnings_of(text):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metric.compute(
                predictions=[text], model=gpt2, tokenizer=tokenizer, detokenizer="wikitext"
            )
        return [str(each.message) for each in caught if "not converted" in str(each.message)]

    assert warnings_of(" A co @-@ star . \n A cat . \n") == []
    (said,) = warnings_of(" A cat . \nA co @-@ star .\n")
    assert said.startswith("Lines such as 'A co @-@ star .' are not converted")
