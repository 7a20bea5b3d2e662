"""Words: their tokens, and the space between them booked on the word that it closes.

Scores are held against forward passes of their own, and against the packages that publish such
scores, wordsprobability and minicons.
"""

import math
import re
import warnings

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import BOS, CONTEXT, make_byte_tokenizer, make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from perplexity_sliding.plan.tokenization import ScoredPart, TokenizedText
from perplexity_sliding.results.words import (
    Vocabulary,
    assign_tokens,
    check_words,
    classify_vocabulary,
    find_words,
    space_terms,
    split_words,
    sum_words,
    word_offsets,
)
from perplexity_sliding.scoring.measures import Block, Entropy, Rank, SetMass


def close(value):
    return pytest.approx(value, rel=1e-5, abs=1e-6)


# --- the vocabulary -------------------------------------------------------------------------------


def make_decoding(tokens, decoder, unknown=None):
    """A tokenizer of which only the decoder matters."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=unknown or tokens[0]))
    backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


# tokens, their decoder, and those that begin and that end with white space
BYTE_LEVEL = (
    ["<eos>", "a", "Ġa", "Ġ", "Ċ", "Ċa", ".Ċ", "ĉ", "ĠĠ", ".", "Ã", "Âł", "  "],
    decoders.ByteLevel(),
    ["Ġa", "Ġ", "Ċ", "Ċa", "ĉ", "ĠĠ", "Âł", "  "],
    ["Ġ", "Ċ", ".Ċ", "ĉ", "ĠĠ", "Âł", "  "],
)
SENTENCEPIECE = (
    ["<eos>", "a", "▁a", "▁", "<0x0A>", "<0x41>", "▁▁", "."],
    decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    ),
    ["▁a", "▁", "<0x0A>", "▁▁"],
    ["▁", "<0x0A>", "▁▁"],
)
END_MARKS = (
    ["<eos>", "a", "b", "a</w>", ".</w>"],
    decoders.BPEDecoder("</w>"),
    [],
    ["a</w>", ".</w>"],
)
CONTINUATION_MARKS = (
    ["<eos>", "a", "##a", "b", "中"],
    decoders.WordPiece("##", cleanup=False),
    ["<eos>", "a", "b", "中"],
    [],
)
WHOLE_WORDS = (["<eos>", "a", "b"], None, [], ["<eos>", "a", "b"])


@pytest.mark.parametrize(
    "tokens, decoder, begins, ends",
    [BYTE_LEVEL, SENTENCEPIECE, END_MARKS, CONTINUATION_MARKS, WHOLE_WORDS],
    ids=["bytes", "sentencepiece", "end marks", "continuation marks", "whole words"],
)
def test_white_space_is_told_by_what_tokens_stand_for(tokens, decoder, begins, ends):
    tokenizer = make_decoding(tokens, decoder)
    vocabulary = classify_vocabulary(tokenizer, len(tokens) + 3, "pimentel")  # padded, as models do
    assert [t for t, begin in zip(tokens, vocabulary.begins) if begin] == begins
    assert [t for t, end in zip(tokens, vocabulary.ends) if end] == ends
    closes = [t for t, closing in zip(tokens, vocabulary.closes) if closing]
    assert closes == ["<eos>", *(t for t in begins if t != "<eos>")]
    assert len(vocabulary.begins) == len(tokens) + 3 and not vocabulary.begins[-3:].any()


# --- words in a text ------------------------------------------------------------------------------


def test_words_by_white_space_and_given():
    text = " The old,\n\tman's\u00a0hat \u3000 “x”"
    words = [text[first:end] for first, end in split_words(text)]
    assert words == text.split() == ["The", "old,", "man's", "hat", "“x”"]
    text, words = "New York, isn't it  ? ", ["New York", ",", "is", "n't", "it", "?"]
    assert [text[first:end] for first, end in find_words(text, words)] == words


@pytest.mark.parametrize(
    "words, message",
    [
        (["New", "Yor"], "got their end: at character 7 stands 'k'"),
        (["New", "Paris"], "got 'Paris': at character 4 stands 'York'"),
        (["New", "", "York"], "got '': at character 4 stands"),
    ],
)
def test_words_that_are_not_the_text_s(words, message):
    with pytest.raises(ValueError, match=f"`words` must be .*{message}"):
        find_words("New York", words)


@pytest.mark.parametrize(
    "text, tokens, words",
    [
        ("The old", [(0, 3), (3, 7)], [(0, 1), (1, 2)]),
        ("The old", [(0, 3), (4, 7)], [(0, 1), (1, 2)]),  # trimmed offsets
        ("The old", [(-1, -1), (0, 3), (3, 7)], [(1, 2), (2, 3)]),  # an added start token
        ("The old", [(0, 2), (2, 3), (3, 5), (5, 7)], [(0, 2), (2, 4)]),
        ("The  old", [(0, 3), (3, 4), (4, 8)], [(0, 1), (1, 3)]),  # a space of its own
        ("The\n\nold", [(0, 3), (3, 5), (5, 8)], [(0, 1), (1, 3)]),
        ("  old", [(0, 1), (1, 5)], [(0, 2)]),  # at the start
        ("old \n", [(0, 3), (3, 4), (4, 5)], [(0, 1)]),  # at the end it is no word's
        ("old.\nShe", [(0, 3), (3, 5), (5, 8)], [(0, 2), (2, 3)]),  # a token that ends in one
        ("New York", [(0, 8)], [None, None]),  # one token for two words
        ("a b c", [(0, 3), (3, 5)], [None, None, (1, 2)]),
        ("é x", [(0, 1), (0, 1), (1, 3)], [(0, 2), (2, 3)]),  # two bytes of a character
    ],
)
def test_assign_tokens(text, tokens, words):
    assert assign_tokens(text, np.array(tokens), split_words(text)) == words


# --- the correction -------------------------------------------------------------------------------


@st.composite
def scored_texts(draw):
    """Words, the tokens that they are cut into, and made-up scores."""
    pieces = st.lists(st.sampled_from(["a", "bc", "."]), min_size=1, max_size=3)
    words = draw(st.lists(st.tuples(st.sampled_from([" ", "\n", "  "]), pieces), min_size=1))
    tokens = []
    for number, (space, parts) in enumerate(words):
        own = [*space[:-1], (space[-1] if number or draw(st.booleans()) else "") + parts[0]]
        tokens += own + parts[1:]
    ends = np.cumsum([len(token) for token in tokens])
    offsets = np.stack([ends - [len(token) for token in tokens], ends], 1)
    numbers = st.lists(
        st.floats(0.01, 20), min_size=3 * (len(tokens) + 1), max_size=3 * (len(tokens) + 1)
    )
    return "".join(tokens), tokens, offsets, np.array(draw(numbers)).reshape(3, -1)


def vocabulary_of(tokens):
    return Vocabulary(
        begins=np.array([token[0].isspace() for token in tokens]),
        ends=np.array([token[-1].isspace() for token in tokens]),
        special=np.array([token == "<eos>" for token in tokens]),
        closes=np.array([]),
    )


def sum_scored(text, ids, offsets, vocabulary, nll, boundary, interior) -> dict:
    terms = space_terms(text, ids, offsets, vocabulary, boundary, interior, "pimentel")
    columns = {"nll": nll, "entropy": nll, "context_length": np.zeros(len(nll))}
    return sum_words(assign_tokens(text, offsets, split_words(text)), columns, *terms)


@given(scored_texts())
def test_surprisals_telescope(scored):
    """Σ s(w) = Σ nll + E(N) - Z(0): what one word is charged the next is given back."""
    text, tokens, offsets, (nll, boundary, interior) = scored
    words = sum_scored(
        text, np.arange(len(tokens)), offsets, vocabulary_of(tokens), nll, boundary, interior
    )
    first = boundary[0] if tokens[0][0].isspace() else interior[0]
    assert math.fsum(words["nll"]) == pytest.approx(math.fsum(nll[:-1]))
    assert math.fsum(words["surprisal"]) == pytest.approx(
        math.fsum([*nll[:-1], boundary[-1], -first])
    )


TINY = ["<eos>", "Ġ", "Ċ", "Ġa", "a", "b", ".Ċ", "Ġb"]
SOLID = ["Ġa", "a", "b", ".Ċ", "Ġb"]


def tiny_row(prefix):
    """Probabilities of the next token after a prefix, each its own."""
    seed = [TINY.index(token) for token in prefix]
    return np.random.default_rng([17, *seed]).dirichlet(np.full(len(TINY), 0.7))


def begins(token):
    return token[0] in "ĠĊ"


def surprisal_of(prefix, word, vocabulary):
    """The surprisal of the last word of prefix + word, from the rows of a whole text."""
    tokens = [*prefix, *word]
    rows = np.array([tiny_row(tokens[:place]) for place in range(len(tokens) + 1)])
    ids = np.array([TINY.index(token) for token in tokens])
    text = "".join(tokens).replace("Ġ", " ").replace("Ċ", "\n")
    ends = np.cumsum([len(token) for token in tokens])
    offsets = np.stack([ends - [len(token) for token in tokens], ends], 1)
    boundary, interior = (
        -np.log(rows[:, chosen].sum(1)) for chosen in (vocabulary.closes, ~vocabulary.begins)
    )
    nll = -np.log(rows[np.arange(len(ids)), ids])
    return sum_scored(text, ids, offsets, vocabulary, nll, boundary, interior)["surprisal"][-1]


def continuations(prefix, longest, begins_with_space):
    """Sequences of tokens after a prefix: ("word", tokens) for whole words, and what is left.

    ("open", …) has not ended after `longest` tokens; ("none", …) ends the text without a word.
    """
    waiting = [[token] for token in TINY if begins(token) == begins_with_space or token == "<eos>"]
    while waiting:
        tokens = waiting.pop()
        if tokens[-1] == "<eos>":
            yield "none", tokens
            continue
        has_word = any(token in SOLID for token in tokens)
        if has_word:
            yield "word", tokens
        if tokens[-1] == ".Ċ":
            continue  # it holds the white space that ends it
        if len(tokens) == longest:
            yield "open", tokens
            continue
        following = [t for t in TINY if not (has_word and (begins(t) or t == "<eos>"))]
        waiting += [[*tokens, token] for token in following]


@pytest.mark.parametrize(
    "prefix, with_space",
    [
        (["a"], True),
        (["a", "Ġb", "a"], True),
        (["a", ".Ċ"], False),
        (["a", ".Ċ"], True),
        ([], False),
    ],
)
def test_all_words_sum_to_one(prefix, with_space):
    """Σ exp(-s(w)) over all words of up to 3 tokens + P(none, or a longer one) = 1."""
    vocabulary = classify_vocabulary(
        make_decoding(TINY, decoders.ByteLevel()), len(TINY), "pimentel"
    )
    first = tiny_row(prefix)
    opening = vocabulary.closes if with_space else ~vocabulary.begins
    if with_space and prefix[-1:] == [".Ċ"]:
        assert opening[TINY.index("<eos>")]  # the text may end here as well
    mass = first[opening].sum()
    total = words = 0.0
    for kind, tokens in continuations(prefix, 3, with_space):
        if kind == "word":
            words += math.exp(-surprisal_of(prefix, tokens, vocabulary))
            continue
        probability = math.prod(
            tiny_row([*prefix, *tokens[:place]])[TINY.index(token)]
            for place, token in enumerate(tokens)
        )
        if kind == "open" and any(token in SOLID for token in tokens):
            last = tiny_row([*prefix, *tokens])
            probability *= 1 - last[vocabulary.closes].sum()
        total += probability / mass
    assert 0.3 < words < 1
    assert words + total == pytest.approx(1, abs=1e-12)


# --- what is measured of a row --------------------------------------------------------------------


@pytest.fixture
def block():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, 97, generator=generator) * 8
    logits[:, 5] = -torch.inf  # a token that cannot be
    return Block(logits, torch.randint(97, (40,), generator=generator))


def test_entropy_and_rank(block):
    p = block.logits.double().softmax(1)
    entropy = -(p * p.log().clamp(min=-1e9)).sum(1)
    measured = Entropy()([block])["entropy"].double()
    torch.testing.assert_close(measured, entropy, rtol=2e-6, atol=1e-6)
    ranks = [1 + int((row > row[target]).sum()) for row, target in zip(p, block.targets)]
    assert Rank()([block])["rank"].tolist() == ranks


@pytest.mark.parametrize("ids", [(0,), (3, 90, 5), tuple(range(97))])
def test_mass_of_a_set(block, ids):
    """Also where it is far below what a float32 probability can be."""
    block.logits[0, list(ids)] -= 200 if len(ids) < 97 else 0
    expected = -(block.logits.double().log_softmax(1)[:, list(ids)]).logsumexp(1)
    measured = SetMass("boundary", ids)([block])["boundary"]
    torch.testing.assert_close(measured.double(), expected, rtol=1e-5, atol=2e-6)
    assert SetMass("boundary", ())([block])["boundary"].tolist() == [math.inf] * 40


# --- the metric -----------------------------------------------------------------------------------


def make_spelling_tokenizer():
    """Byte-level: letters, and spaces with and without the letter after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<bos>", "<eos>", *alphabet, "Ġa", "Ġb", "ab"]
    backend = Tokenizer(
        models.BPE(
            {token: number for number, token in enumerate(tokens)},
            merges=[("Ġ", "a"), ("Ġ", "b"), ("a", "b")],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")


@pytest.fixture(scope="module")
def spelling():
    return make_spelling_tokenizer()


@pytest.fixture(scope="module")
def speller():
    return make_model("gpt2", vocab_size=261).double()


TEXT = "ab a baab\nb  ab, aab\tb a b ab ba. abba bab a"


def words_of(metric, model, tokenizer, texts, **kwargs):
    return metric.compute(
        predictions=texts, model=model, tokenizer=tokenizer, **({"words": True} | kwargs)
    )["word_scores"]


def ids_with_space(spelling):
    """Ids whose token begins with white space, and the end of the text."""
    named = spelling.convert_ids_to_tokens(range(261))
    return [n for n, token in enumerate(named) if token[0] in "ĠĊĉčċČĜĝĞğ"] + [1]


@pytest.mark.parametrize("stride", [1, 5, CONTEXT])
def test_words_of_a_text_longer_than_the_window(metric, speller, spelling, stride):
    """Each term from a forward pass of its own, with the context that its window gives it."""
    kwargs = {"model": speller, "tokenizer": spelling, "words": True, "stride": stride}
    result = metric.compute(predictions=[TEXT], return_token_scores=["entropy"], **kwargs)
    [scores], [tokens] = result["word_scores"], result["token_scores"]
    ids = spelling(TEXT)["input_ids"]
    lengths = [*tokens["context_length"], None]
    spaces = ids_with_space(spelling)
    solid = [n for n in range(261) if n not in spaces] + [1]

    def row(place):
        length = lengths[place]
        context = [BOS, *ids[:place]][-length:]
        return reference.log_probs(speller, context)[-1]

    words = assign_tokens(TEXT, np.array(tokens["offsets"]), split_words(TEXT))
    assert scores["words"] == TEXT.split()
    for number, (first, end) in enumerate(words[:-1]):
        nll = -sum(row(place)[ids[place]].item() for place in range(first, end))
        boundary = -row(end)[spaces].logsumexp(0).item()
        opening = -row(first)[spaces if number else solid].logsumexp(0).item()
        assert scores["nll"][number] == close(nll)
        assert scores["space_nll"][number] == close(boundary)
        assert scores["surprisal"][number] == close(nll + boundary - opening)
        assert scores["num_tokens"][number] == end - first
        assert scores["context_length"][number] == lengths[first]
        p = row(first).exp()
        assert scores["entropy"][number] == close(-(p * p.log()).sum().item())
        assert scores["entropy"][number] == tokens["entropy"][first]
    total = math.fsum(scores["surprisal"])
    opening = -row(0)[solid].logsumexp(0).item()
    assert total == close(result["total_nll"] + scores["space_nll"][-1] - opening)


@pytest.mark.parametrize("num_tokens", [CONTEXT, CONTEXT + 3])
@pytest.mark.parametrize("stride", [4, CONTEXT])
def test_the_end_of_a_text_sees_its_window(metric, speller, spelling, num_tokens, stride):
    """What follows the last token sees what a token there would see."""
    text = "a" + " a" * (num_tokens - 1)
    kwargs = {"model": speller, "tokenizer": spelling, "stride": stride}
    [scores] = words_of(metric, texts=[text], **kwargs)
    longer = metric.compute(predictions=[text + " b"], return_token_scores=True, **kwargs)
    [tokens] = longer["token_scores"]
    context = [BOS, *spelling(text)["input_ids"]][-tokens["context_length"][-1] :]
    [*_, row] = reference.log_probs(speller, context)
    assert scores["space_nll"][-1] == close(-row[ids_with_space(spelling)].logsumexp(0).item())


def test_words_change_no_other_number(metric, speller, spelling):
    kwargs = {"predictions": [TEXT, "ab a"], "model": speller, "tokenizer": spelling, "stride": 5}
    plain, with_words = metric.compute(**kwargs), metric.compute(words=True, **kwargs)
    for name in plain.keys() - {"signature", "signature_short", "num_forward_tokens"}:
        same = plain[name] is None or isinstance(plain[name], str)
        assert with_words[name] == (plain[name] if same else close(plain[name])), name
    assert with_words["num_forward_tokens"] <= plain["num_forward_tokens"] + 2 * CONTEXT
    assert "|word_scores:whitespace/pimentel|" in with_words["signature"]


def test_given_words_and_spans(metric, speller, spelling):
    """A comma of its own: between it and its word is no space, so nothing moves there."""
    [plain] = words_of(metric, speller, spelling, ["ab, a b"], word_correction=None)
    assert plain["surprisal"] == plain["nll"]
    [whole] = words_of(metric, speller, spelling, ["ab, a b"])
    assert plain["nll"] == close(whole["nll"])
    [given] = words_of(metric, speller, spelling, ["ab, a b"], words=[["ab", ",", "a", "b"]])
    spans = [[(0, 2), (2, 3), (4, 5), (6, 7)]]
    [spanned] = words_of(metric, speller, spelling, ["ab, a b"], words=spans)
    assert given == spanned
    assert given["words"] == ["ab", ",", "a", "b"]
    assert given["space_nll"][0] == 0
    assert sum(given["surprisal"][:2]) == close(whole["surprisal"][0])
    assert given["surprisal"][2:] == close(whole["surprisal"][1:])


def test_without_spaces_words_are_plain_sums(metric, speller, spelling):
    """Chinese: the borders of given words are no event in the text."""
    text, spans = "我喜欢猫", [[(0, 1), (1, 3), (3, 4)]]
    [scores] = words_of(metric, speller, spelling, [text], words=spans)
    assert scores["num_tokens"] == [3, 6, 3]
    assert scores["space_nll"][:2] == [0, 0]
    assert scores["surprisal"][1] == scores["nll"][1]


def test_a_space_that_only_the_decoder_puts_opens_no_word():
    """Where every token begins with one once decoded, the text says whether there is any."""
    everywhere = vocabulary_of([" a", " b", " c"])
    ids, offsets = np.arange(3), np.array([(0, 1), (1, 2), (3, 4)])
    closing, opening = space_terms(
        "ab c", ids, offsets, everywhere, np.ones(4), np.full(4, 7.0), None
    )
    assert closing.tolist() == [1, 0, 1, 1]
    assert opening.tolist() == [0, 0, 1, 1]


def test_a_special_token_closes_the_word_before_it():
    """As the end of the text does: nothing of the word can follow."""
    vocabulary = vocabulary_of(["a", "<eos>", "b"])
    ids, offsets = np.arange(3), np.array([(0, 1), (1, 6), (6, 7)])
    closing, _ = space_terms(
        "a<eos>b", ids, offsets, vocabulary, np.ones(4), np.zeros(4), "pimentel"
    )
    assert closing.tolist() == [0, 1, 0, 1]


def test_added_tokens_and_characters_before_an_edge_are_no_word_s():
    """The text begins after the tokens that were put before it, whatever offsets these were given."""
    offsets = np.array([(0, 0), (0, 2), (2, 6)])
    added = np.array([True, False, False])
    part = ScoredPart(((2, 3),), ((4, 6),), ("cd",))
    stream = TokenizedText(np.array([0, 1, 2]), offsets, added, part=part)
    assert word_offsets(stream).tolist() == [[-1, -1], [0, 2], [4, 6]]
    assert stream.offsets.tolist() == [[0, 0], [0, 2], [2, 6]]
    vocabulary = vocabulary_of(["<bos>", "ab", "cdef"])
    _, opening = space_terms(
        "abcdef", stream.ids, word_offsets(stream), vocabulary, np.zeros(4), np.ones(4), "pimentel"
    )
    assert opening.tolist() == [1, 1, 0, 0]


def test_a_token_for_two_words_is_reported(metric, speller, spelling):
    with pytest.warns(UserWarning, match="across the edge of a word in the texts at position 1;"):
        scores = words_of(
            metric, speller, spelling, ["a b", "ab a"], words=[[(0, 1)], [(0, 1), (1, 2), (3, 4)]]
        )
    assert scores[1]["surprisal"][:2] == scores[1]["nll"][:2] == [None, None]
    assert scores[1]["surprisal"][2] is not None
    # nor has a first word that nothing precedes
    [scores] = words_of(metric, speller, spelling, ["ab a b"], add_start_token=False)
    assert scores["nll"][0] is None and scores["surprisal"][0] is None
    assert None not in scores["surprisal"][1:]


def test_words_after_a_context(metric, speller, spelling):
    """The words of a text do not depend on how much of what stands before is called context.

    Given spans count from where the text begins.
    """
    kwargs = {"model": speller, "tokenizer": spelling, "stride": 5}
    [whole] = words_of(metric, texts=[TEXT], **kwargs)
    cut = TEXT.index(" aab")
    spans = [(first, end) for first, end in split_words(TEXT) if first > cut]
    moved = [(first - cut, end - cut) for first, end in spans]
    contexts = {"texts": [TEXT[cut:]], "contexts": TEXT[:cut]}
    marked = {"texts": [TEXT], "score_spans": [[(cut, len(TEXT))]]}
    [after] = words_of(metric, **contexts, **kwargs)
    first = whole["words"].index("aab")
    for name in ("words", "offsets", "num_tokens", "context_length"):
        assert after[name] == whole[name][first:], name
    for name in ("nll", "surprisal", "space_nll", "entropy"):
        assert after[name] == close(whole[name][first:]), name
    for parts, words in ((contexts, [moved]), (marked, [spans]), (marked, True)):
        assert words_of(metric, words=words, **parts, **kwargs) == [after], parts
    [span] = words_of(
        metric, texts=[TEXT], score_spans=[[(0, cut), (cut + 4, len(TEXT))]], **kwargs
    )
    assert span["words"] == [word for word in whole["words"] if word != "aab"]
    assert span["surprisal"] == close(
        [s for word, s in zip(whole["words"], whole["surprisal"]) if word != "aab"]
    )


@pytest.mark.parametrize(
    "texts, arguments",
    [
        (["The lamp"], {"contexts": "It was.\n\n", "boundary": "joint"}),
        (["The lamp"], {"contexts": "It was. ", "boundary": "separate"}),
        (["It was.\nThe lamp"], {"score_spans": [[(0, 2), (8, 16)]]}),
    ],
)
def test_white_space_that_is_context_belongs_to_no_word(metric, texts, arguments):
    """It is not scored: with it, the word would have no surprisal."""
    of_bytes = {"model": make_model("gpt2", vocab_size=259), "tokenizer": make_byte_tokenizer()}
    asked = {"words": True, "return_token_scores": True} | of_bytes | arguments
    result = metric.compute(predictions=texts, **asked)
    [words], [tokens] = result["word_scores"], result["token_scores"]
    assert words["words"][-2:] == ["The", "lamp"]
    first = [end for _, end in tokens["offsets"]].index(words["offsets"][-2][0] + 1)
    assert words["num_tokens"][-2:] == [3, 5]
    assert words["context_length"][-2] == tokens["context_length"][first] > 5
    nlls = sum(tokens["nll"][first : first + 3]), sum(tokens["nll"][first + 3 :])
    assert words["nll"][-2:] == close(nlls)
    assert None not in words["surprisal"][-2:]


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("我喜欢在下雨的时候读书。猫睡在窗边。", True),
        ("我 喜欢 在 下雨 的 时候 读书 。", False),
        ("雨の日に本を読むのが好きです。", True),
        ("ฉันชอบอ่านหนังสือเมื่อฝนตก", True),
        ("ฉัน ชอบ อ่าน หนังสือ เมื่อ ฝน ตก", False),
        ("나는 비가 올 때 책을 읽는 것을 좋아한다.", False),
        ("The word 猫 means cat, and 北京 is a city.", False),
    ],
)
def test_a_sentence_without_spaces_is_no_word(text, is_whole):
    """It had 810 bits."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_words(True, ["w1", text])
    found = [str(w.message) for w in said if "written without" in str(w.message)]
    assert len(found) == is_whole and all("texts at position 1" in one for one in found)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"words": "spaces"}, "`words` must be True, or a list"),
        ({"words": [["w3"]]}, "a list of words or spans for each text, 2"),
        ({"words": [["w3", "w4"], ["w5"]]}, "at position 1: "),
        ({"words": [[(0, 2)], [(0, 99)]]}, "within the 5 characters of the text at position 1"),
        ({"words": True, "protocol": "gptq", "max_length": 2}, "left out .* joins the texts"),
    ],
)
def test_arguments(metric, gpt2, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=["w3 w4", "w5 w6"], model=gpt2, tokenizer=tokenizer, **arguments)


# --- against the packages that publish such scores -------------------------------------------------


@pytest.fixture(scope="module")
def novelist(root):
    """The bundled model, without other white space than spaces before tokens: the packages know no other.

    Its tokenizer puts no space before a text.
    """
    folder = root / "demo_model"
    tokenizer = AutoTokenizer.from_pretrained(folder, add_prefix_space=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    tokens = tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))
    texts = [tokenizer.convert_tokens_to_string([token]) for token in tokens]
    other_spaces = [
        text[:1].isspace() != token.startswith("Ġ") or any(map(str.isspace, text[1:]))
        for token, text in zip(tokens, texts)
    ]
    model.lm_head.bias = torch.nn.Parameter(-1e4 * torch.tensor(other_spaces))
    return model, tokenizer


@pytest.fixture(scope="module")
def sentences(root, novelist) -> list[str]:
    """Thirty sentences that fit the model's window, without newlines in them."""
    story = " ".join((root / "samples" / "story.txt").read_text("utf-8").split())
    parts = re.split(r"(?<=[.!?]) (?=[A-Z“])", story)
    _, tokenizer = novelist
    return [part for part in parts if len(tokenizer(part).input_ids) < 120][:30]


def near(values):
    # A token's surprisal in float32 was seen 2.3e-5 nats from that in float64.
    return pytest.approx(values, abs=3e-5)


def test_wordsprobability(metric, novelist, sentences):
    main = pytest.importorskip("wordsprobability.main")
    from wordsprobability.models import MODELS, bow_lm

    _, tokenizer = novelist

    class Live(bow_lm.GPT2BaseModel):
        def _initialise_model(self):
            return novelist

    MODELS["live"] = Live
    frame = main._get_surprisal_per_word(sentences, "live", return_buggy_surprisals=True)
    own = words_of(metric, *novelist, sentences)
    of_texts = [theirs for _, theirs in frame.groupby("text_id")]
    for ours, theirs in zip(own, of_texts, strict=True):
        # it names words by their tokens, in which "’" is "âĢĻ"
        assert ours["words"] == [tokenizer.convert_tokens_to_string([w]) for w in theirs["word"]]
        # its set of tokens that may begin a text holds the end of the text twice
        assert ours["surprisal"][1:] == near(list(theirs["surprisal"])[1:])
        assert ours["nll"] == near(list(theirs["surprisal_buggy"]))


def test_minicons(metric, novelist, sentences):
    scorer = pytest.importorskip("minicons.scorer")
    model, tokenizer = novelist
    minicons = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    own = words_of(metric, *novelist, sentences, word_correction="oh")
    of_all = minicons.word_score_tokenized(
        sentences, tokenize_function=str.split, bow_correction=True, bos_token=True, surprisal=True
    )
    for ours, theirs in zip(own, of_all, strict=True):
        assert ours["words"] == [word for word, _ in theirs]
        assert ours["surprisal"] == near([surprisal for _, surprisal in theirs])
    contexts, texts = ["The old man", "She laughed"], ["was kind, and he said no.", "aloud."]
    conditional = minicons.conditional_score(
        contexts, texts, reduction=lambda scores: scores.sum().item(), bos_token=True
    )
    result = metric.compute(
        predictions=[f" {text}" for text in texts],
        contexts=contexts,
        model=model,
        tokenizer=tokenizer,
        return_token_scores=True,
    )
    own = [-sum(nll for nll in s["nll"] if nll is not None) for s in result["token_scores"]]
    assert own == pytest.approx(conditional, rel=1e-5)
