"""Bytes, characters and words that a result is divided by: of what was scored, as the tool counts."""

import math
import re

import pytest
from models import SlowTokenizer, make_model, random_text

WIKITEXT = [
    " \n = Actors = \n \n The actors ' guild 's co @-@ stars ( 1 @,@ 000 % ) said , \" yes . \" \n",
    ' \n = Ships = \n \n The ships ( 1 @.@ 5 m ) sailed ; " why ? " \n \n = = End = = \n \n So . \n',
]


@pytest.fixture
def measure(metric, tokenizer):
    """Compute with a tiny model in float64, unless other arguments are given."""
    model = make_model("gpt2").double()

    def compute(texts, **arguments):
        arguments = {"model": model, "tokenizer": tokenizer} | arguments
        return metric.compute(predictions=texts, **arguments)

    return compute


PER_UNIT = ("bits_per_byte", "bits_per_character", "word_perplexity")


def per_unit(result):
    return {name: result[name] for name in PER_UNIT}


# ---- tokens that are not scored

UNSCORED = {
    "no start token": {"add_start_token": False},
    "stock": {"protocol": "stock", "max_length": 8},
    "transformers-docs": {"protocol": "transformers-docs"},
    "llama.cpp": {"protocol": "llama.cpp"},
    "gptq": {"protocol": "gptq", "max_length": 6},
    "exllamav2": {"protocol": "exllamav2", "max_length": 6},
    "megatron": {"protocol": "megatron"},
}


def test_an_unscored_first_token_of_a_part_does_not_count(measure):
    """It counted as an average token of the part: 1.52 bits per byte for 1.49 of the whole text."""
    text = re.sub("w2", "é2", random_text(12))
    given = {"add_start_token": False, "return_token_scores": True}
    whole = measure([text], **given)
    assert whole["scored_share"] < 1
    for part in ({"score_spans": [[(0, len(text))]]}, {"contexts": [""]}):
        assert per_unit(measure([text], **given, **part)) == pytest.approx(per_unit(whole))
    # Of two spans the second is scored as a whole; its first token is charged with the space before it.
    pieces = re.findall(r"\s*\S+", text)
    edges = [sum(map(len, pieces[:number])) for number in (0, 3, 5, 9)]
    result = measure([text], score_spans=[[tuple(edges[:2]), tuple(edges[2:])]], **given)
    (scores,) = whole["token_scores"]
    scored = [*range(1, 3), *range(5, 9)]
    nll = math.fsum(scores["nll"][number] for number in scored)
    num_bytes = sum(len(pieces[number].encode()) for number in scored)
    assert result["total_nll"] == pytest.approx(nll)
    assert result["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes)
    assert result["bits_per_character"] == pytest.approx(
        nll / math.log(2) / sum(len(pieces[number]) for number in scored)
    )


@pytest.mark.parametrize("arguments", UNSCORED.values(), ids=UNSCORED)
def test_bytes_and_characters_are_those_of_the_scored_tokens(measure, arguments):
    """As nanochat's evaluate_bpb: each token has its bytes, and unscored ones do not count."""
    text = "  " + re.sub(" ", "  ", random_text(45), count=20) + " w7777é \n"
    result = measure([text], return_token_scores=True, **arguments)
    (scores,) = result["token_scores"]
    # each token with the space before it, the last one also with that behind
    pieces = re.findall(r"\s*\S+(?:\s*$)?", text)
    assert len(pieces) == len(scores["tokens"])
    scored = [(nll, p) for nll, p in zip(scores["nll"], pieces) if nll is not None]
    assert result["scored_share"] == len(scored) / len(pieces) < 1
    nll = math.fsum(nll for nll, _ in scored)
    num_bytes = sum(len(piece.encode()) for _, piece in scored)
    num_characters = sum(len(piece) for _, piece in scored)
    assert result["bits_per_byte"] == pytest.approx(nll / num_bytes / math.log(2))
    assert result["bits_per_character"] == pytest.approx(nll / num_characters / math.log(2))
    # Megatron-LM counts what stands between single spaces
    num_words = len(text.strip().split(" ")) if "megatron" in arguments.values() else 46
    per_word = nll / num_bytes * len(text.encode()) / num_words
    assert result["word_perplexity"] == pytest.approx(math.exp(per_word))


def test_asking_for_token_scores_changes_no_number(measure):
    texts = [random_text(30), random_text(9, 1)]
    for arguments in UNSCORED.values():
        plain = measure(texts[:1] * 2, **arguments)
        doubled = measure(texts[:1] * 2, return_token_scores=True, **arguments)
        assert {name: doubled[name] for name in plain} == plain


def test_special_tokens_that_are_scored_but_stand_for_nothing_do_not_count(measure, metric):
    """mlx-lm's rows run over the start tokens of the texts, and the end tokens."""
    from models import make_tokenizer

    texts = [random_text(10, seed) for seed in range(5)]
    result = measure(
        texts, tokenizer=make_tokenizer(adds_bos=True), protocol="mlx-lm", return_token_scores=True
    )
    (scores,) = result["token_scores"]
    nll = num_bytes = 0
    for token, value in zip(scores["tokens"], scores["nll"]):
        if value is not None and token not in ("<bos>", "<eos>"):
            nll += value
            num_bytes += len(token)
    # without separators, each text begins where the last ends, and spaces lie between its words
    joined = "".join(texts)
    spaces = sum(
        joined[begin - 1 : begin] == " " and value is not None
        for (begin, _), value in zip(scores["offsets"], scores["nll"])
    )
    assert None in scores["nll"]
    assert result["bits_per_byte"] == pytest.approx(nll / (num_bytes + spaces) / math.log(2))


def test_without_offsets_unscored_tokens_count_as_average_ones(measure):
    text = random_text(45)
    result = measure([text], tokenizer=SlowTokenizer(), protocol="gptq")
    per_byte = result["total_nll"] / result["num_tokens"] * 45 / len(text)
    assert result["bits_per_byte"] == pytest.approx(per_byte / math.log(2))


# ---- a start token in the text


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("choice", [True, "every"])
def test_a_written_start_token_is_no_part_of_the_text(measure, tokenizer, slow, choice):
    tokenizer = SlowTokenizer() if slow else tokenizer
    arguments = {"tokenizer": tokenizer, "add_start_token": choice, "stride": 5, "max_length": 12}
    text = random_text(40)
    written = measure([f"<bos> {text}"], **arguments)
    plain = measure([f" {text}"], **arguments)
    for name, value in plain.items():
        if "signature" not in name and name != "texts_digest":
            assert written[name] == value, name


def test_a_written_start_token_that_is_scored_is_text(measure):
    text = f"<bos> {random_text(20)}"
    result = measure([text], protocol="lm-eval")
    assert result["num_tokens"] == 21
    assert result["bits_per_byte"] == pytest.approx(result["total_nll"] / len(text) / math.log(2))


# ---- words


def test_a_line_end_is_no_word(measure):
    """But for lm-evaluation-harness, which counts the empty word behind it."""
    bare, ended = random_text(9), random_text(9) + "\n"
    for protocol, same in [
        ("sliding", True),
        ("stock", True),
        ("paloma", True),
        ("lm-eval", False),
    ]:
        results = [measure([text], protocol=protocol)["word_perplexity"] for text in (bare, ended)]
        assert (results[0] == results[1]) == same, protocol
        assert results[0] == pytest.approx(
            math.exp(measure([bare], protocol=protocol)["total_nll"] / 9)
        )


def test_lm_evals_wikitext_task(measure, metric):
    """Its page, its detokeniser, its words and bytes: the figures that it prints."""
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

    prose = [wikitext_detokenizer({"page": page}) for page in WIKITEXT]
    result = measure(WIKITEXT, protocol="lm-eval", detokenizer="wikitext", return_token_scores=True)
    assert result["texts_as_read"] == prose
    printed = [
        process_results({"page": page}, [-math.fsum(scores["nll"])])
        for page, scores in zip(WIKITEXT, result["token_scores"])
    ]
    theirs = weighted_perplexity([items["word_perplexity"] for items in printed])
    assert result["word_perplexity"] == pytest.approx(theirs)
    assert result["adjusted_perplexity"] == pytest.approx(theirs)
    num_bytes, num_original = (sum(len(t.encode()) for t in ts) for ts in (prose, WIKITEXT))
    assert result["bits_per_byte"] * num_bytes / num_original == pytest.approx(
        bits_per_byte([items["bits_per_byte"] for items in printed])
    )


# ---- several measurements, and shards


def test_a_list_has_the_paired_ratio_to_its_first(measure):
    texts = [random_text(40, seed) for seed in range(12)]
    entries = measure(texts, stride=[12, 5, 2], max_length=12, return_totals=True)["measurements"]
    assert "ratio_to_first" not in entries[0]
    for entry in entries[1:]:
        ratio = entry["ratio_to_first"]
        own = entry["perplexity"] / entries[0]["perplexity"]
        assert ratio["ratio"] == pytest.approx(own)
        assert ratio["sample"] == "12 texts"
        low, high = ratio["interval"]
        assert low < own < high
        assert 0 <= ratio["pvalue"] <= 1


@pytest.mark.parametrize("arguments", [{}, {"words": True}, {"stride": 16}], ids=str)
def test_each_text_costs_what_it_costs_alone(measure, arguments):
    texts = [random_text(length, length) for length in (50, 7, 40)]
    whole = measure(texts, return_totals="texts", **arguments)
    costs = [totals.result()["num_forward_tokens"] for totals in whole["text_totals"]]
    assert costs == [measure([text], **arguments)["num_forward_tokens"] for text in texts]
    assert sum(costs) == whole["num_forward_tokens"]
