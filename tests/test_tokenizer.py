"""What a tokenizer is refused for: no number that it leads to could be repeated."""

import json
import math
import random
import threading
from types import MappingProxyType

import pytest
import transformers
from models import SlowTokenizer, make_tokenizer, random_text, save
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers import models as token_models
from transformers import PreTrainedTokenizerFast

from perplexity_sliding.plan import tokenizer_digest as tokenizer_digest_module
from perplexity_sliding.plan.tokenization import tokens_of, untrimmed, vocabulary_texts
from perplexity_sliding.plan.tokenizer_digest import check_tokenizer, tokenizer_digest

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_pairing(**kwargs):
    """Byte-pair encoding with a few merges."""
    merges = [("i", "n"), ("t", "h"), ("c", "o"), ("e", "r"), ("in", "g")]
    tokens = ["<unk>", *LETTERS, *(first + second for first, second in merges)]
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(token_models.BPE(ids, merges=merges, unk_token="<unk>", **kwargs))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def make_unigram():
    pieces = [("<unk>", 0.0), *((letter, -5.0) for letter in LETTERS), ("in", -6.0)]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(token_models.Unigram(pieces, 0)))


class Sampling(SlowTokenizer):
    """Says that it samples, as slow tokenizers of sentencepiece do."""

    sp_model_kwargs = MappingProxyType({"enable_sampling": True, "alpha": 0.1})


class Careless(SlowTokenizer):
    """Drops a letter now and then, and says nothing."""

    def _tokenize(self, text, **kwargs):
        return [letter for letter in text if random.random() < 0.9]


def test_what_does_not_draw_is_accepted():
    for tokenizer in (make_pairing(), make_pairing(dropout=0.0), make_unigram(), SlowTokenizer()):
        check_tokenizer(tokenizer)


@pytest.mark.parametrize("of_reference", [False, True])
def test_dropout_is_refused(metric, gpt2, tokenizer, of_reference):
    """However small: a text of that size would nearly always be cut alike."""
    dropping = make_pairing(dropout=1e-6)
    arguments = {"model": gpt2, "tokenizer": dropping}
    if of_reference:
        reference = {"model": gpt2, "tokenizer": dropping}
        arguments = {"model": gpt2, "tokenizer": tokenizer, "reference": reference}
    with pytest.raises(
        ValueError, match=r"^`.*tokenizer.*` must be deterministic.*model.dropout`=1e-06"
    ):
        metric.compute(predictions=["win"], **arguments)


def test_dropout_of_a_model_s_own_tokenizer_is_refused(metric, gpt2, tmp_path):
    folder = save(tmp_path, gpt2, make_pairing(dropout=0.1))
    with pytest.raises(
        ValueError, match=r"The tokenizer of `model_id`='.*' must be deterministic.*`=0.1"
    ):
        metric.compute(predictions=["win"], model_id=folder)


def test_sampling_of_unigrams_is_refused():
    tokenizer = make_unigram()
    if not hasattr(tokenizer.backend_tokenizer.model, "alpha"):
        pytest.skip("these tokenizers do not sample unigrams")
    tokenizer.backend_tokenizer.model.alpha = 0.1
    with pytest.raises(ValueError, match=r"model.alpha`=0.1: it samples"):
        check_tokenizer(tokenizer)
    with pytest.raises(ValueError, match="`sp_model_kwargs` with enable_sampling"):
        check_tokenizer(Sampling())


def test_whatever_else_cuts_one_text_in_two_ways_is_refused():
    with pytest.raises(ValueError, match="a Careless that encoded one text in two ways"):
        check_tokenizer(Careless())


class Part:
    """A part of a tokenizer in Python; none of it is run."""

    def pre_tokenize(self, text):
        pass

    def normalize(self, text):
        pass

    def decode_chain(self, tokens):
        return tokens


@pytest.mark.parametrize(
    "name, part",
    [
        ("normalizer", normalizers.Normalizer.custom(Part())),
        ("pre_tokenizer", pre_tokenizers.PreTokenizer.custom(Part())),
        ("decoder", decoders.Decoder.custom(Part())),
    ],
)
def test_a_part_in_python_is_named(metric, gpt2, name, part):
    tokenizer = make_tokenizer()
    setattr(tokenizer.backend_tokenizer, name, part)
    message = f"^`tokenizer` must .* got a {name.replace('_', '-')} in Python"
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=[random_text(5)], model=gpt2, tokenizer=tokenizer)


def test_a_table_of_a_tokenizer_in_python_is_digested(tmp_path):
    """That of the emoji of GPT-NeoX Japanese was not: 0.15 nats under equal signatures."""
    bytes_ = [f"<|byte{number}|>" for number in range(256)]
    words = ["<|endoftext|>", *bytes_, *"abc", "<SP>", "<|emoji1|>", "<|emoji2|>"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    digests = []
    for number in (1, 2, 1):
        emoji = {
            "emoji": {"\U0001f600": f"<|emoji{number}|>"},
            "emoji_inv": dict.fromkeys(words, "x"),
        }
        (tmp_path / "emoji.json").write_text(json.dumps(emoji))
        files = (str(tmp_path / name) for name in ("vocab.txt", "emoji.json"))
        digests.append(tokenizer_digest(transformers.GPTNeoXJapaneseTokenizer(*files)))
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def reloaded(folder, tokenizer, **changes):
    """Save a tokenizer, change entries of its model, and load it again."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    written = json.loads(path.read_text())
    for key, change in changes.items():
        written["model"][key] = change(written["model"][key])
    path.write_text(json.dumps(written))
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_unused_ids_have_no_text(tmp_path):
    """The ids behind the number of tokens were left out."""
    loaded = reloaded(
        tmp_path,
        make_tokenizer(),
        vocab=lambda ids: {w: n for w, n in ids.items() if n < 6 or n % 2},
    )
    end = 1 + max(loaded.get_vocab().values())
    assert len(loaded) < end - 10
    texts = vocabulary_texts(loaded)
    assert len(texts) == end
    for token, number in loaded.get_vocab().items():
        assert texts[number].strip() == token
    assert texts[8] == ""


def test_of_two_words_with_one_id_the_same_is_read_each_time(tmp_path):
    """The library returns a random one: four processes, four numbers."""
    names = [f"x{number}" for number in range(20)]
    loaded = [
        reloaded(tmp_path, make_tokenizer(), vocab=lambda ids: ids | dict.fromkeys(names, 7))
        for _ in range(6)
    ]
    assert len({tokenizer.convert_ids_to_tokens(7) for tokenizer in loaded}) > 1
    assert {tuple(tokens_of(tokenizer, [7, 8])) for tokenizer in loaded} == {("w7", "w8")}


def test_an_added_token_is_what_it_was_written_as(metric, gpt2, tmp_path):
    """Once it was added both ways, tokenizers 0.23 returns it as normalised; saved and loaded not."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    for normalized in (True, False):
        tokenizer.add_tokens([transformers.AddedToken("<bos>", normalized=normalized)])
    tokenizer.save_pretrained(tmp_path)
    both = [tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path)]
    bos = tokenizer.bos_token_id
    assert [tokens_of(each, [bos]) for each in both] == [["<bos>"], ["<bos>"]]
    one, other = (
        metric.compute(predictions=["<bos>" + random_text(9)], model=gpt2, tokenizer=each)
        for each in both
    )
    assert one["num_tokens"] == other["num_tokens"] == 9
    assert one["total_nll"] == other["total_nll"]


def test_a_digest_is_the_same_whichever_word_of_an_id_is_written(tmp_path):
    """The library wrote a random one: each process had another digest."""
    loaded = [  # with ids of words that do not merge
        reloaded(tmp_path, make_pairing(), vocab=lambda ids: ids | {"x1": 1, "x2": ids["ing"]})
        for _ in range(6)
    ]
    assert len({each.backend_tokenizer.to_str() for each in loaded}) > 1
    assert len({tokenizer_digest(each) for each in loaded}) == 1
    other = reloaded(tmp_path, make_pairing(), merges=lambda merges: merges[1:])
    assert tokenizer_digest(other) != tokenizer_digest(make_pairing())


@pytest.mark.parametrize("of_reference", [False, True])
def test_words_that_merge_by_one_id_are_refused(metric, gpt2, tokenizer, tmp_path, of_reference):
    """Folders that differed in what merges had one signature and probe, and 167.35 or 149.52 nats."""
    merging = reloaded(tmp_path, make_pairing(), vocab=lambda ids: ids | {"é": ids["t"]})
    arguments = {"model": gpt2, "tokenizer": merging}
    if of_reference:
        reference = {"model": gpt2, "tokenizer": merging}
        arguments = {"model": gpt2, "tokenizer": tokenizer, "reference": reference}
    named = r"`reference\['tokenizer'\]`" if of_reference else "`tokenizer`"
    with pytest.raises(
        ValueError, match=f"{named} must tell .* 't' and 'é' with one id, which merge"
    ):
        metric.compute(predictions=["the thing"], **arguments)


def test_an_empty_end_token_is_not_none(tmp_path):
    """Its id is that of the unknown token, which then ends words: 19.31 or 19.47 nats, of one signature."""
    none, empty = (
        PreTrainedTokenizerFast(
            tokenizer_object=make_pairing().backend_tokenizer, unk_token="t", eos_token=token
        )
        for token in (None, "")
    )
    assert (none.eos_token_id, empty.eos_token_id) == (None, none.unk_token_id)
    assert tokenizer_digest(none) != tokenizer_digest(empty)


def test_a_digest_waits_for_threads_that_encode():
    """They change the tokenizer's settings meanwhile: 3 of 60 calls had another signature."""
    tokenizer = make_tokenizer(adds_bos=True)
    before, found = tokenizer_digest(tokenizer), []
    thread = threading.Thread(target=lambda: found.append(tokenizer_digest(tokenizer)))
    with untrimmed(tokenizer):
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()
        thread.start()
        thread.join(0.3)
        assert not found
    thread.join()
    assert found == [before]


def with_added(folder, *added, normalizer=None, **config):
    """Save and load a tokenizer whose tokenizer.json lists these settings of added tokens."""
    tokenizer = make_pairing()
    tokenizer.backend_tokenizer.normalizer = normalizer or normalizers.Prepend("z")
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    written = json.loads(path.read_text())
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    written["added_tokens"] += [usual | token for token in added]
    path.write_text(json.dumps(written))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    "once, now, config",
    [
        ({"special": True}, {}, {"split_special_tokens": True}),
        ({}, {"normalized": True}, {}),  # matters to tokenizers 0.20
        ({"normalized": True}, {}, {}),
    ],
    ids=["special", "not normalised", "normalised"],
)
def test_what_an_added_token_once_was_is_digested(tmp_path, once, now, config):
    """The library acts on it and does not save it: 383.41 or 367.48 nats, of one signature."""
    token = {"id": 32, "content": "qq"}
    before = with_added(tmp_path, token | once, token | now, **config)
    never = with_added(tmp_path, token | now, **config)
    assert before.backend_tokenizer.to_str() == never.backend_tokenizer.to_str()
    differ = before("xqqx zqq").input_ids != never("xqqx zqq").input_ids
    assert (tokenizer_digest(before) != tokenizer_digest(never)) == differ
    assert differ or "special" not in once


@pytest.fixture
def few_tokens(monkeypatch):
    """Leave out the tokens of the vocabulary, of which the digest tries some in a large one."""
    monkeypatch.setattr(tokenizer_digest_module, "PROBE_TOKENS", 1)


@pytest.mark.usefixtures("few_tokens")
def test_that_an_added_letter_once_was_special_is_digested(tmp_path):
    """Alone it has the id that it has within the vocabulary; only a merge shows that it is split."""
    token = {"id": 7, "content": "g"}
    split = {"split_special_tokens": True, "normalizer": normalizers.Lowercase()}
    before = with_added(tmp_path, token | {"special": True}, token, **split)
    never = with_added(tmp_path, token, **split)
    assert before.backend_tokenizer.to_str() == never.backend_tokenizer.to_str()
    assert before("king").input_ids != never("king").input_ids
    assert tokenizer_digest(before) != tokenizer_digest(never)


def test_a_token_that_was_special_between_two_digests(tmp_path):
    """The second was the first, kept for an equal state: 153.34 or 293.51 nats."""
    tokenizer = with_added(tmp_path, split_special_tokens=True)
    tokenizer.add_tokens([transformers.AddedToken("qq", normalized=False)])
    before, ids = tokenizer_digest(tokenizer), tokenizer("xqqx").input_ids
    for special in (True, False):
        token = transformers.AddedToken("qq", normalized=False, special=special)
        tokenizer.add_tokens([token], special_tokens=special)
    differ = tokenizer("xqqx").input_ids != ids
    assert (tokenizer_digest(tokenizer) != before) == differ


@pytest.mark.usefixtures("few_tokens")
def test_that_an_added_token_once_was_normalised_is_digested(tmp_path):
    """tokenizers 0.20 goes on recognising it in any case: 359.62 or 384.68 nats, of one signature."""
    token, lower = {"id": 32, "content": "qq"}, {"normalizer": normalizers.Lowercase()}
    before = with_added(tmp_path, token | {"normalized": True}, token, **lower)
    never = with_added(tmp_path, token, **lower)
    differ = before("xQQx").input_ids != never("xQQx").input_ids
    assert (tokenizer_digest(before) != tokenizer_digest(never)) == differ


@pytest.mark.parametrize("contents", [["qq"], ["qq", "ing"]])
def test_an_added_token_with_the_id_of_another_is_refused(metric, gpt2, tmp_path, contents):
    """The library gives it one by the number of words, which a vocabulary with gaps has in use."""
    loaded = reloaded(tmp_path, make_pairing(), vocab=lambda ids: ids | {"ing": 32})
    loaded.add_tokens(contents)
    assert loaded.convert_tokens_to_ids(["qq", "ing"]) == [32, 32]
    with pytest.raises(
        ValueError, match="got 'ing' and 'qq' with one id, at least one of them added"
    ):
        metric.compute(predictions=["xqqx"], model=gpt2, tokenizer=loaded)


def test_an_added_token_with_the_id_of_two_words_is_refused(metric, gpt2, tmp_path):
    """Which of the two were added cannot be seen."""
    loaded = reloaded(tmp_path, make_pairing(), vocab=lambda ids: ids | {"x1": ids["ing"]})
    loaded.add_tokens(["x1", "ing"])
    with pytest.raises(
        ValueError, match="got 'ing' and 'x1' with one id, at least one of them added"
    ):
        metric.compute(predictions=["xqqx"], model=gpt2, tokenizer=loaded)


def test_added_tokens_that_are_normalised_alike_are_refused(metric, gpt2):
    """The library takes one of them at random: 252.97 or 265.48 nats, of one folder."""
    tokenizer = make_pairing()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([transformers.AddedToken(word, normalized=True) for word in ("Qq", "QQ")])
    with pytest.raises(
        ValueError, match="got 'QQ' and 'Qq', added tokens with one normalised form"
    ):
        metric.compute(predictions=["xqqx"], model=gpt2, tokenizer=tokenizer)


@pytest.mark.parametrize("score", [math.inf, -math.inf, math.nan])
def test_a_score_that_is_not_finite_is_refused(metric, gpt2, score):
    """Folders that differed in it had one signature: 347.56, 341.23 or 335.01 nats."""
    pieces = [("<unk>", 0.0), *((letter, -5.0) for letter in LETTERS), ("in", score)]
    tokenizer = make_unigram()
    tokenizer.backend_tokenizer.model = token_models.Unigram(pieces, 0)
    with pytest.raises(ValueError, match="`tokenizer` must have a finite score for each piece"):
        metric.compute(predictions=["in it"], model=gpt2, tokenizer=tokenizer)
