"""Which characters a token stands for: white space is among them, whatever the tokenizer's offsets say."""

import math

import numpy as np
import pytest
import reference
from models import (
    BOS,
    CONTEXT,
    SlowTokenizer,
    make_byte_tokenizer,
    make_model,
    make_tokenizer,
)
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers import models as token_models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from perplexity_sliding.plan.tokenization import prepends_start_token, tokenize
from perplexity_sliding.results.report import measure_span

CODE = "def f(x):\n    if x:\n        return  x + 1\n\n\n    return None\n\n" * 2
PROSE = "He left.  She stayed.   Nobody said  a word to them that day.\n\n  The end came.  "
MARKS = "cafe\u0301  \u0301 \U0001f642\U0001f642  nai\u0308ve \u4e2d\u6587  \u00a0 x "
TEXTS = [CODE, PROSE, MARKS]
START, END = ("<|endoftext|>", 0), ("<|endoftext|>", 0)


def byte_level(trims):
    return processors.ByteLevel(trim_offsets=trims)


def in_sequence(trims):
    start = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[START])
    return processors.Sequence([byte_level(trims), start])


def as_roberta(trims):
    return processors.RobertaProcessing(END, START, trim_offsets=trims, add_prefix_space=False)


PROCESSORS = [byte_level, in_sequence, as_roberta]


@pytest.fixture(scope="module")
def model():
    return make_model("gpt2", vocab_size=4096, n_positions=128).double()


def make_demo_tokenizer(root, post_processor):
    """The bundled tokenizer with another post-processor."""
    tokenizer = AutoTokenizer.from_pretrained(str(root / "demo_model"))
    tokenizer.backend_tokenizer.post_processor = post_processor
    return tokenizer


def without_names(value):
    """A result without what names the tokenizer."""
    if isinstance(value, dict):
        return {key: without_names(v) for key, v in value.items() if "signature" not in key}
    return [without_names(v) for v in value] if isinstance(value, list) else value


@pytest.fixture
def with_both(metric, model, root):
    """Compute with a tokenizer that counts white space and one that trims it; the results are one."""

    def compute(make_processor=byte_level, **kwargs):
        results = []
        for trims in (False, True):
            tokenizer = make_demo_tokenizer(root, make_processor(trims))
            arguments = {"predictions": TEXTS, "model": model, "max_length": CONTEXT} | kwargs
            results.append(metric.compute(tokenizer=tokenizer, **arguments))
            trimming = f'"trim_offsets":{str(trims).lower()}'
            assert trimming in tokenizer.backend_tokenizer.to_str()  # it is left as it was
        first, second = map(without_names, results)
        assert first == second
        return results[1]

    return compute


@pytest.mark.parametrize("make_processor", PROCESSORS)
def test_every_protocol(with_both, make_processor):
    result = with_both(make_processor, protocol="all", return_token_scores=True)
    assert len([entry for entry in result["measurements"] if "error" not in entry]) > 12


@pytest.mark.parametrize("start", [True, False, "every"])
def test_every_start(with_both, start):
    with_both(add_start_token=start, return_token_scores=True, stride=5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"words": True},
        {"words": True, "word_correction": "oh", "add_start_token": False},
        {"contexts": "x:  "},
        {"contexts": ["  \n", "He  ", " \u0301 "], "words": True},
        {"contexts": " a ", "boundary": "separate"},
        {"contexts": ["", "x:  ", "y"], "protocol": "lm-eval", "max_length": 128},
        {"score_spans": [[(10, 17), (20, 40)], [(8, 10), (12, 30)], [(4, 9)]], "words": True},
    ],
)
@pytest.mark.filterwarnings("ignore:A token spans the edge")
def test_words_and_parts(with_both, arguments):
    with_both(in_sequence, return_token_scores=True, **arguments)


@pytest.mark.parametrize("make_processor", PROCESSORS)
def test_the_loss_of_white_space_counts(metric, model, root, make_processor):
    """All but the first token of each text, in a loop of its own."""
    tokenizer = make_demo_tokenizer(root, make_processor(True))
    result = metric.compute(
        predictions=TEXTS,
        model=model,
        tokenizer=tokenizer,
        max_length=CONTEXT,
        add_start_token=False,
    )
    nats = octets = 0
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        plan = reference.sliding(len(ids), CONTEXT, CONTEXT // 2, "none")
        nats += sum(reference.window_nlls(model, ids, plan, None).values())
        octets += len(text.encode()) - len(tokenizer.decode(ids[:1]).encode())
    assert result["bits_per_byte"] == pytest.approx(nats / octets / math.log(2))


# --- which tokens are added -----------------------------------------------------------------------


def make_unknowing_tokenizer(**kwargs):
    """Words of which the start token stands for all that it does not know."""
    ids = {"<unk>": BOS, "<eos>": 1, "w3": 3, "w4": 4}
    backend = Tokenizer(token_models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kwargs:
        backend.post_processor = processors.TemplateProcessing(
            special_tokens=[("<unk>", BOS), ("<eos>", 1)], **kwargs
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<unk>", eos_token="<eos>")


@pytest.mark.parametrize(
    "text, num_tokens, own",
    [
        ("new w3 w4 w3", 4, "new w3 w4 w3"),
        ("new <unk> w3", 3, "new <unk> w3"),  # the start token is written, but not at the head
        ("<unk> w3 w4 w3", 3, " w3 w4 w3"),
        (" <unk> new w3", 2, " new w3"),
    ],
)
def test_an_unknown_first_word_is_no_start_token(metric, gpt2, text, num_tokens, own):
    result = metric.compute(predictions=[text], model=gpt2, tokenizer=make_unknowing_tokenizer())
    known = [{"w3": 3, "w4": 4}.get(word, BOS) for word in text.split()]
    ids = [BOS, *known[-num_tokens:]]
    assert (result["num_tokens"], result["scored_share"]) == (num_tokens, 1.0)
    bits = result["total_nll"] / math.log(2)
    assert result["bits_per_character"] == pytest.approx(bits / len(own))
    assert result["total_nll"] == pytest.approx(sum(reference.row_nlls(gpt2, ids)), rel=1e-5)


@pytest.mark.parametrize(
    "template, prepends",
    [("<unk> $A", True), ("$A <eos>", False), ("$A <unk>", False), ("<unk> $A <eos>", True)],
)
def test_a_start_token_is_what_the_tokenizer_adds_in_front(template, prepends):
    tokenizer = make_unknowing_tokenizer(single=template)
    assert tokenizer("a")["input_ids"][0] == BOS  # unknown, or added
    assert prepends_start_token(tokenizer) == prepends
    [stream] = tokenize(tokenizer, ["a <unk> w3"], "default", with_offsets=True)
    before, after = template.split("$A")
    expected = [True] * bool(before) + [False] * 3 + [True] * bool(after)
    assert stream.added.tolist() == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_end_of_a_line_is_one_token_however_it_is_written(end):
    """The end-of-text token stands for it in fairseq's stream; `splitlines` knows more ends."""
    tokenizer = make_byte_tokenizer()
    streams = tokenize(tokenizer, [f"a{end}b", "a\x0bb\x85c\u2028d"], "lines", with_offsets=True)
    stream = streams[0]
    assert tokenizer.convert_ids_to_tokens(stream.ids) == ["a", "<eos>", "b", "<eos>"]
    assert stream.offsets[2].tolist() == [1 + len(end), 2 + len(end)]
    assert stream.added.tolist() == [False, True, False, True]
    assert streams[1].added.sum() == 1


class Adding(SlowTokenizer):
    """A slow tokenizer that puts two tokens before a text and one after it."""

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        return [BOS, 5, *token_ids_0, 1]


@pytest.mark.parametrize("text", ["w5", "w5 w6", ""])
def test_slow_tokenizers_say_what_they_add_too(text):
    [stream] = tokenize(Adding(), [text], "default", with_offsets=True)
    assert stream.offsets is None
    assert stream.added.tolist() == [True, True, *[False] * len(text.split()), True]


# --- other kinds of tokenizers --------------------------------------------------------------------


def make_sentencepiece(normalizes):
    """Pieces with byte fallback and a space before the first word, in either way of making them."""
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581\u2581", *"abcdefghijklmnopqrstuvwxyz.,():+0", "\u2581t", "he"]
    merges = [("\u2581", "\u2581"), ("\u2581", "t"), ("h", "e")]
    backend = Tokenizer(
        token_models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            *(merges,),
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    if normalizes:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def make_wordpiece():
    """Pieces of words that lose white space, case and accents, between two added tokens."""
    pieces = ["[CLS]", "[SEP]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz.,():+0"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(token_models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="[CLS]", eos_token="[SEP]", unk_token="[UNK]"
    )


KINDS = {
    "prepended": lambda: make_sentencepiece(normalizes=True),
    "metaspace": lambda: make_sentencepiece(normalizes=False),
    "wordpiece": make_wordpiece,
    "words": make_tokenizer,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*TEXTS, "\u4e2da", " x", "  \u0301a  "])
def test_bytes_are_neither_lost_nor_counted_twice(kind, text):
    """Those of every subset of the tokens add up to the text's; added tokens have none."""
    for encoding in ("plain", "default"):
        [stream] = tokenize(KINDS[kind](), [text], encoding, with_offsets=True)
        sizes = [
            measure_span(text, stream, np.arange(len(stream)) == place)
            for place in range(len(stream))
        ]
        everything = measure_span(text, stream, np.ones(len(stream), dtype=bool))
        assert everything == (len(text.encode()), len(text))
        assert tuple(np.sum(sizes, axis=0)) == everything
        assert all(sizes[place] == (0, 0) for place in np.flatnonzero(stream.added))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other_first", [False, True])
def test_comparisons_count_every_byte_and_every_loss(metric, kind, other_first):
    sides = [(make_model("gpt2", vocab_size=320), KINDS[kind]())]
    sides.append((make_model("gpt2", vocab_size=320, seed=1), make_byte_tokenizer()))
    (model, tokenizer), (other, other_tokenizer) = sides[:: -1 if other_first else 1]
    alone, other_alone = (
        metric.compute(predictions=TEXTS, model=m, tokenizer=t, add_start_token=True)
        for m, t in ((model, tokenizer), (other, other_tokenizer))
    )
    both = metric.compute(
        predictions=TEXTS,
        model=model,
        tokenizer=tokenizer,
        reference={"model": other, "tokenizer": other_tokenizer},
        return_token_scores=True,
    )
    assert both["comparison"]["num_compared_bytes"] == sum(len(text.encode()) for text in TEXTS)
    for name, single in (("nll", alone), ("reference_nll", other_alone)):
        total = sum(sum(pieces[name]) for pieces in both["piece_scores"])
        assert total == pytest.approx(single["total_nll"], rel=1e-6)


@pytest.mark.parametrize("spans", [[(0, 11)], [(0, 5), (5, 11)], [(0, 2), (3, 8), (8, 11)]])
def test_a_start_token_at_the_head_is_in_no_part(metric, gpt2, tokenizer, spans):
    """Its characters count no more than it is scored."""
    kwargs = {"model": gpt2, "tokenizer": tokenizer}
    expected = metric.compute(predictions=[" w3 w4"], **kwargs)
    result = metric.compute(predictions=["<bos> w3 w4 w5"], score_spans=[spans], **kwargs)
    for name in ("num_tokens", "total_nll", "bits_per_byte", "bits_per_character"):
        assert result[name] == pytest.approx(expected[name]), name


def test_many_texts_are_encoded_in_few_calls(root, monkeypatch):
    tokenizer = make_demo_tokenizer(root, in_sequence(True))
    encoded, call = [], type(tokenizer).__call__
    monkeypatch.setattr(
        type(tokenizer), "__call__", lambda *args, **kw: encoded.append(1) or call(*args, **kw)
    )
    texts = ["a", "<|endoftext|>b", "c"] * 500
    streams = tokenize(tokenizer, texts, "default once", with_offsets=True)
    assert len(encoded) == 2  # with added tokens, and without
    assert [len(stream) for stream in streams[:3]] == [len(stream) for stream in streams[-3:]]
