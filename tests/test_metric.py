"""The numbers: the metric against slow loops, closed forms and the formulas of other tools.

All references are in reference.py or here; they share nothing with the metric.
"""

import math
import warnings

import pytest
import reference
import torch
from models import (
    ARCHITECTURES,
    BOS,
    CONTEXT,
    EOS,
    VOCABULARY,
    SlowTokenizer,
    make_byte_tokenizer,
    make_model,
    make_tokenizer,
    make_uniform_model,
    random_text,
    words,
)

from perplexity_sliding.protocols import PROTOCOLS
from perplexity_sliding.scoring import passes

# Long enough for several windows of CONTEXT, exactly one, one more than that, and the shortest.
TEXTS = [random_text(length, seed=length) for length in (45, CONTEXT, CONTEXT + 1, 5, 2)]


def ids_of(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def naive(model, texts, length, stride, start) -> list[dict[int, float]]:
    """Nlls of each text's scored tokens, by place in the text."""
    return [
        reference.window_nlls(
            model, ids, reference.sliding(len(ids), length, stride, start), start_id=BOS
        )
        for ids in map(ids_of, texts)
    ]


def assert_equal_to(result: dict, nlls: list[dict[int, float]]) -> None:
    """Compare all numbers that are sums of nlls, to 1e-6 of their size."""
    total = math.fsum(value for nlls_of_text in nlls for value in nlls_of_text.values())
    count = sum(map(len, nlls))
    perplexities = [math.exp(reference.mean(nlls_of_text.values())) for nlls_of_text in nlls]
    assert result["num_tokens"] == count
    assert result["total_nll"] == pytest.approx(total, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(total / count), rel=2e-6)
    assert result["perplexities"] == pytest.approx(perplexities, rel=5e-6)
    assert result["mean_perplexity"] == pytest.approx(reference.mean(perplexities), rel=5e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("length", "stride", "start"), [(16, 5, "once"), (16, 16, "none"), (12, 4, "every")]
)
def test_every_architecture_equals_the_naive_loop(metric, architecture, length, stride, start):
    model = make_model(architecture)
    expected = naive(model, TEXTS, length, stride, start)
    result = metric.compute(
        predictions=TEXTS,
        model=model,
        tokenizer=make_tokenizer(),
        max_length=length,
        stride=stride,
        add_start_token={"none": False}.get(start, start),
        return_token_scores=True,
    )
    assert_equal_to(result, expected)
    spread = [value for nlls_of_text in expected for value in nlls_of_text.values()]
    assert max(spread) - min(spread) > 1, "nlls too much alike to notice a wrong one"
    for text, scores, nlls_of_text in zip(TEXTS, result["token_scores"], expected):
        plan = reference.sliding(len(ids_of(text)), length, stride, start)
        for place, (value, context) in enumerate(zip(scores["nll"], scores["context_length"])):
            if place in nlls_of_text:
                assert value == pytest.approx(nlls_of_text[place], rel=2e-5, abs=2e-5)
                assert context == len(plan[place])
            else:
                assert (value, context) == (None, 0)


@pytest.mark.parametrize("start", ["none", "once", "every"])
def test_every_stride_equals_the_naive_loop(metric, gpt2, tokenizer, start):
    length = 6
    for stride in range(1, length + (start != "every")):
        result = metric.compute(
            predictions=TEXTS,
            model=gpt2,
            tokenizer=tokenizer,
            max_length=length,
            stride=stride,
            add_start_token={"none": False}.get(start, start),
        )
        assert_equal_to(result, naive(gpt2, TEXTS, length, stride, start))


# ---- what must not matter


@pytest.mark.parametrize("architecture", ["gpt2", "opt", "llama", "mamba", "mixtral", "bloom"])
def test_company_order_batch_and_padding_do_not_matter(metric, architecture):
    model = make_model(architecture)

    def scores(texts, side="right", **kwargs):
        tokenizer = make_tokenizer(padding_side=side)
        result = metric.compute(
            predictions=texts, model=model, tokenizer=tokenizer, max_length=16, stride=7, **kwargs
        )
        return dict(zip(texts, result["perplexities"]))

    alone = {text: scores([text])[text] for text in TEXTS}
    for batch_size in (1, 2, 3, 5, 16):
        assert scores(TEXTS, batch_size=batch_size) == pytest.approx(alone, rel=1e-5)
    assert scores(TEXTS[::-1]) == pytest.approx(alone, rel=1e-5)
    assert scores(TEXTS, side="left") == pytest.approx(alone, rel=1e-5)
    assert scores([*TEXTS[2:], random_text(60, 9), *TEXTS[:2]])[TEXTS[0]] == pytest.approx(
        alone[TEXTS[0]], rel=1e-5
    )


@pytest.mark.parametrize("logits_memory", [1, 12 * VOCABULARY * 3, 12 * VOCABULARY * 40])
@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "mamba"])
def test_how_many_logits_exist_at_a_time_does_not_matter(
    metric, architecture, logits_memory, monkeypatch
):
    monkeypatch.setattr(passes, "LOGITS_MEMORY", logits_memory)
    arguments = {"predictions": TEXTS, "model": make_model(architecture), "max_length": 16}
    whole = metric.compute(**arguments, tokenizer=make_tokenizer())
    parts = metric.compute(**arguments, tokenizer=make_tokenizer(), return_token_scores=["top1"])
    assert parts["perplexities"] == pytest.approx(whole["perplexities"], rel=1e-6)


def test_models_in_bfloat16_lose_no_more_than_their_own_rounding(metric, tokenizer):
    exact = make_model("llama")
    rounded = make_model("llama").to(torch.bfloat16)
    truth = naive(exact, TEXTS, 16, 8, "once")
    reference_nlls = naive(rounded, TEXTS, 16, 8, "once")
    result = metric.compute(
        predictions=TEXTS,
        model=rounded,
        tokenizer=tokenizer,
        max_length=16,
        stride=8,
        return_token_scores=True,
    )
    errors, reference_errors = [], []
    for nlls_of_text, loop, scores in zip(truth, reference_nlls, result["token_scores"]):
        errors += [abs(scores["nll"][place] - value) for place, value in nlls_of_text.items()]
        reference_errors += [abs(loop[place] - value) for place, value in nlls_of_text.items()]
    assert reference.mean(errors) <= reference.mean(reference_errors) * 1.1 + 1e-3
    assert max(errors) <= max(reference_errors) * 1.5 + 1e-2
    # Nlls in bfloat16 would come in steps of 2 ** -6 from 4 nats on.
    fractions = {math.modf(n * 64)[0] for s in result["token_scores"] for n in s["nll"]}
    assert len(fractions) > 10


# ---- closed forms


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_uniform_model_has_the_size_of_its_vocabulary_as_perplexity(metric, protocol):
    texts = [random_text(50, 1), random_text(40, 2)]
    result = metric.compute(
        predictions=texts, model=make_uniform_model(), tokenizer=make_tokenizer(), protocol=protocol
    )
    assert result["perplexity"] == pytest.approx(VOCABULARY, rel=1e-6)
    assert result["perplexities"] == pytest.approx([VOCABULARY] * len(result["perplexities"]))
    assert result["mean_perplexity"] == pytest.approx(VOCABULARY, rel=1e-6)
    assert result["total_nll"] == pytest.approx(result["num_tokens"] * math.log(VOCABULARY))


def test_units_of_a_uniform_model(metric):
    """Known in closed form: every token costs log2(vocabulary) bits."""
    texts = ["w10 w11  w12", "w20\nw21"]  # 12 and 7 characters; 3 and 2 words
    result = metric.compute(
        predictions=texts, model=make_uniform_model(), tokenizer=make_tokenizer()
    )
    bits = 5 * math.log2(VOCABULARY)
    assert result["bits_per_byte"] == pytest.approx(bits / 19, rel=1e-6)
    assert result["bits_per_character"] == pytest.approx(bits / 19, rel=1e-6)
    assert result["word_perplexity"] == pytest.approx(VOCABULARY, rel=1e-6)
    assert "adjusted_perplexity" not in result


def test_bytes_and_characters_are_those_of_the_text(metric):
    text = "né 漢字 🙂"  # 7 characters in 15 bytes, one token a byte
    tokenizer = make_byte_tokenizer()
    result = metric.compute(
        predictions=[text], model=make_uniform_model(vocab_size=len(tokenizer)), tokenizer=tokenizer
    )
    assert result["num_tokens"] == 15
    assert result["bits_per_byte"] == pytest.approx(math.log2(len(tokenizer)), rel=1e-6)
    assert result["bits_per_character"] == pytest.approx(
        math.log2(len(tokenizer)) * 15 / 7, rel=1e-6
    )


# ---- protocols


def test_llama_cpp_puts_the_start_token_in_the_place_of_each_chunks_first(metric, gpt2):
    text = random_text(52, 4)
    ids = [BOS, *ids_of(text)]  # the tokenizer's own BOS is part of the first chunk
    plan = reference.llama_cpp(len(ids), CONTEXT, start=True)
    nlls = list(reference.window_nlls(gpt2, ids, plan, BOS).values())
    result = metric.compute(
        predictions=[text],
        model=gpt2,
        tokenizer=make_tokenizer(adds_bos=True),
        protocol="llama.cpp",
    )
    average = reference.mean(nlls)
    assert result["perplexity"] == pytest.approx(math.exp(average), rel=2e-6)
    variance = (reference.mean(n * n for n in nlls) - average**2) / (len(nlls) - 1)
    assert result["tool_stderr"] == pytest.approx(math.sqrt(variance) * math.exp(average), rel=1e-5)


def test_lm_eval_scores_a_start_token_that_the_tokenizer_adds(metric, gpt2):
    text = random_text(20, 4)
    ids = [BOS, *ids_of(text)]
    nlls = reference.window_nlls(gpt2, ids, reference.lm_eval(len(ids), CONTEXT), BOS)
    result = metric.compute(
        predictions=[text], model=gpt2, tokenizer=make_tokenizer(adds_bos=True), protocol="lm-eval"
    )
    assert result["num_tokens"] == 21
    assert result["total_nll"] == pytest.approx(math.fsum(nlls.values()), rel=1e-6)


@pytest.mark.parametrize(("protocol", "start_id"), [("lm-eval", EOS), ("paloma", EOS)])
def test_the_end_token_stands_in_for_a_start_token(metric, gpt2, protocol, start_id):
    text = random_text(20, 4)
    nlls = reference.window_nlls(gpt2, ids_of(text), reference.lm_eval(20, CONTEXT), start_id)
    result = metric.compute(
        predictions=[text], model=gpt2, tokenizer=make_tokenizer(bos=False), protocol=protocol
    )
    assert result["total_nll"] == pytest.approx(math.fsum(nlls.values()), rel=1e-6)


def test_mlx_lm_joins_tokens_not_texts(metric, gpt2):
    texts = [random_text(20, 1), random_text(30, 2)]
    ids = [token for text in texts for token in [BOS, *ids_of(text), EOS]]
    nlls = reference.window_nlls(gpt2, ids, reference.chunks(len(ids), CONTEXT))
    result = metric.compute(
        predictions=texts, model=gpt2, tokenizer=make_tokenizer(adds_bos=True), protocol="mlx-lm"
    )
    assert result["total_nll"] == pytest.approx(math.fsum(nlls.values()), rel=1e-6)
    deviations = torch.tensor(list(nlls.values()), dtype=torch.float64)
    assert result["tool_stderr"] == pytest.approx(
        result["perplexity"] * deviations.std().item() / math.sqrt(len(nlls)), rel=1e-5
    )


def test_perplexity_per_original_word(metric):
    result = metric.compute(
        predictions=[" w10 @-@ w11 , w12 \n", " w20 \n"],
        model=make_uniform_model(),
        tokenizer=make_tokenizer(),
        detokenizer="wikitext",
    )
    assert result["texts_as_read"] == [" w10-w11, w12\n", " w20\n"]
    expected = VOCABULARY ** (result["num_tokens"] / 6)
    assert result["adjusted_perplexity"] == pytest.approx(expected, rel=1e-6)


# ---- start tokens


def test_true_puts_the_start_token_where_the_tokenizer_puts_it(metric, gpt2):
    def perplexities(tokenizer, add_start_token):
        return metric.compute(
            predictions=TEXTS, model=gpt2, tokenizer=tokenizer, add_start_token=add_start_token
        )["perplexities"]

    plain, adding = make_tokenizer(), make_tokenizer(adds_bos=True)
    once, every = perplexities(plain, "once"), perplexities(plain, "every")
    assert once[0] != pytest.approx(every[0], rel=1e-3)
    assert perplexities(plain, True) == once
    # "never two": the tokenizer's own start token isn't counted on top
    assert perplexities(adding, True) == every
    assert perplexities(adding, "once") == once
    assert perplexities(adding, False) == perplexities(plain, False)


@pytest.mark.parametrize("choice", [True, "once", "every"])
def test_a_start_token_in_the_text_is_not_doubled(metric, gpt2, tokenizer, choice):
    text = random_text(30)
    arguments = {"model": gpt2, "tokenizer": tokenizer, "add_start_token": choice}
    plain = metric.compute(predictions=[text], **arguments)
    marked = metric.compute(predictions=["<bos> " + text], **arguments)
    assert marked["num_tokens"] == plain["num_tokens"] == 30
    assert marked["total_nll"] == pytest.approx(plain["total_nll"])


def test_without_a_start_token_the_first_token_is_not_scored(metric, gpt2):
    tokenizer = make_tokenizer(bos=False)
    with pytest.warns(UserWarning, match=r"has no start token \(bos_token\)"):
        result = metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silent = metric.compute(
            predictions=TEXTS, model=gpt2, tokenizer=tokenizer, add_start_token=False
        )
    assert result == silent
    assert_equal_to(result, naive(gpt2, TEXTS, CONTEXT, CONTEXT // 2, "none"))


# ---- tokenizers


@pytest.mark.parametrize(
    "tokenizer",
    [
        make_tokenizer(pad=False),
        make_tokenizer(padding_side="left"),
        make_tokenizer(adds_eos=True),
        make_tokenizer(model_max_length=4, truncation_side="left"),
        SlowTokenizer(),
    ],
    ids=["no padding token", "pads left", "adds an end token", "short limit", "slow"],
)
def test_tokenizers_that_do_things_of_their_own(metric, gpt2, tokenizer):
    """None of it reaches the text: no token is added to it, none is cut off."""
    result = metric.compute(
        predictions=TEXTS, model=gpt2, tokenizer=tokenizer, add_start_token="once"
    )
    assert_equal_to(result, naive(gpt2, TEXTS, CONTEXT, CONTEXT // 2, "once"))


# ---- windows by default


def window_of(result) -> str:
    fields = dict(field.split(":", 1) for field in result["signature"].split("|"))
    return fields["window"], fields["stride"]


@pytest.mark.parametrize(
    ("architecture", "config", "expected"),
    [
        ("gpt2", {}, ("16", "8")),
        ("gpt2", {"n_positions": 9}, ("9", "4")),
        ("llama", {"max_position_embeddings": 2}, ("2", "1")),
        ("opt", {"max_position_embeddings": 12}, ("12", "6")),
        ("bloom", {"seq_length": 14}, ("14", "7")),
        # nothing in the configuration, and the tokenizer's 1e30 is no limit
        ("mamba", {}, ("2048", "1024")),
    ],
)
def test_the_window_is_the_models_limit_and_the_stride_half_of_it(
    metric, architecture, config, expected
):
    model = make_model(architecture, **config)
    result = metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())
    assert window_of(result) == expected


def test_the_tokenizers_limit_counts_where_the_model_has_none(metric):
    tokenizer = make_tokenizer(model_max_length=11)
    result = metric.compute(predictions=TEXTS, model=make_model("mamba"), tokenizer=tokenizer)
    assert window_of(result) == ("11", "5")


def test_a_rotary_model_past_its_limit_is_only_warned_about(metric):
    model = make_model("llama")
    with pytest.warns(
        UserWarning, match=r"`max_length`=20 exceeds the model.s stated limit of 16 tokens"
    ):
        result = metric.compute(
            predictions=TEXTS, model=model, tokenizer=make_tokenizer(), max_length=20
        )
    assert_equal_to(result, naive(model, TEXTS, 20, 10, "once"))


# ---- extremes


def test_the_smallest_of_everything(metric, gpt2, tokenizer):
    for max_length, stride in ((2, 1), (2, 2)):
        result = metric.compute(
            predictions=TEXTS,
            model=gpt2,
            tokenizer=tokenizer,
            max_length=max_length,
            stride=stride,
            batch_size=1,
            add_start_token="once",
        )
        assert_equal_to(result, naive(gpt2, TEXTS, max_length, stride, "once"))
    alone = metric.compute(predictions=["w7"], model=gpt2, tokenizer=tokenizer)
    assert alone["perplexity"] == pytest.approx(
        math.exp(reference.nll(gpt2, [BOS], [7])[0]), rel=1e-6
    )
    assert words([7]) == "w7"
