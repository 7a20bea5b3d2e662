"""The metric against the tools themselves, where they can be imported, and else against their loops.

The loops are written from the tools' definitions, one after the other as a reader of the tool would
meet them: they share nothing with the package.  The model is tiny and random, of
float64, with weights so large that two protocols never agree by chance.
"""

import itertools
import math
import re

import numpy as np
import pytest
import reference
import torch
from models import CONTEXT, make_byte_tokenizer, make_model, make_tokenizer, random_text

import perplexity_sliding
from perplexity_sliding.plan.windows import plan_windows
from perplexity_sliding.protocols import PROTOCOLS, detokenize_wikitext

TOKENIZERS = {"BOS": {}, "EOS only": {"bos": False}, "adds BOS": {"adds_bos": True}}


def compute(texts, model, tokenizer, protocol="sliding", **settings):
    given = {"model": model, "tokenizer": tokenizer, "protocol": protocol}
    return perplexity_sliding.compute(texts, **given, **settings)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    return make_model(request.param).double()


def close(value):
    return pytest.approx(value, rel=1e-5)


# --- lm-evaluation-harness itself -----------------------------------------------------------------

DOCUMENTS = [
    random_text(5),  # shorter than a window
    random_text(CONTEXT),  # exactly one
    random_text(CONTEXT + 1),  # the last window scores one token, with full context
    random_text(4 * CONTEXT - 1),
    random_text(157),
    "Fünf  Wörter,\n\n  “tokens” 語 ",  # words with empty ones at the end, bytes beyond characters
    "x",
]


def harness(model, tokenizer, **kwargs):
    """The harness's own wrapper around a live model."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    return huggingface.HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=3, device="cpu", **kwargs
    )


def rolling(harness_model, texts):
    """What its task runner does: one `loglikelihood_rolling` request a document."""
    from lm_eval.api.instance import Instance

    requests = [
        Instance("loglikelihood_rolling", doc={}, arguments=(text,), idx=number)
        for number, text in enumerate(texts)
    ]
    return harness_model.loglikelihood_rolling(requests, disable_tqdm=True)


def harness_results(loglikelihoods, texts):
    """Its wikitext task's `process_results` and the aggregations of its registry."""
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity

    words = [(ll, len(re.split(r"\s+", text))) for ll, text in zip(loglikelihoods, texts)]
    octets = [(ll, len(text.encode("utf-8"))) for ll, text in zip(loglikelihoods, texts)]
    return {
        "word_perplexity": weighted_perplexity(words),
        "bits_per_byte": bits_per_byte(octets),
    }


def text_nlls(result):
    """Σ nll of each text, from its token scores."""
    return [sum(nll for nll in own["nll"] if nll is not None) for own in result["token_scores"]]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("max_length", [None, 7])
def test_lm_eval(model, kind, max_length):
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    theirs = rolling(harness(model, tokenizer, max_length=max_length), DOCUMENTS)
    ours = compute(
        DOCUMENTS, model, tokenizer, "lm-eval", max_length=max_length, return_token_scores=True
    )
    assert text_nlls(ours) == close([-ll for ll in theirs])
    assert ours["total_nll"] == close(-sum(theirs))
    expected = harness_results(theirs, DOCUMENTS)
    assert {name: ours[name] for name in expected} == close(expected)


def test_lm_eval_scores_a_doubled_start_token(tokenizer):
    """A tokenizer that adds BOS gets a second one from the harness, and the added one is scored."""
    adding = make_tokenizer(**TOKENIZERS["adds BOS"])
    model = make_model("gpt2").double()
    text = random_text(50)
    by_default, without = (
        rolling(harness(model, adding, add_bos_token=choice), [text])[0] for choice in (None, False)
    )
    result = compute([text], model, adding, "lm-eval")
    assert result["num_tokens"] == 51
    assert result["total_nll"] == close(-by_default)
    # The harness's own way out is the encoding of a tokenizer that adds nothing.
    result = compute([text], model, tokenizer, "lm-eval")
    assert result["num_tokens"] == 50
    assert result["total_nll"] == close(-without)
    assert without != pytest.approx(by_default, rel=1e-2)


def test_lm_eval_adds_no_start_token_to_a_text_that_has_one():
    tokenizer = make_tokenizer(**TOKENIZERS["adds BOS"])
    model = make_model("gpt2").double()
    texts = ["<bos> " + random_text(40), random_text(40)]
    theirs = rolling(harness(model, tokenizer), texts)
    result = compute(texts, model, tokenizer, "lm-eval", return_token_scores=True)
    assert text_nlls(result) == close([-ll for ll in theirs])


@pytest.mark.parametrize("max_length", [2, 5, 8])
@pytest.mark.parametrize("num_tokens", [1, 2, 4, 5, 6, 9, 10, 11, 31])
def test_lm_eval_windows(num_tokens, max_length):
    """Token by token the rows that the harness feeds and scores."""
    utils = pytest.importorskip("lm_eval.utils")
    ids = list(range(num_tokens))
    theirs = list(utils.get_rolling_token_windows(ids, "P", max_length, context_len=1))
    ours = plan_windows(
        num_tokens, max_length, max_length, start="once", protocol=PROTOCOLS["lm-eval"]
    )
    assert [
        (["P"] * w.start_token + ids[w.begin : w.end - 1], ids[w.first : w.end]) for w in ours
    ] == theirs


# --- loops, one for each tool ---------------------------------------------------------------------


def encode(tokenizer, text, special=False):
    return tokenizer(text, add_special_tokens=special)["input_ids"]


GUIDE_CASES = [
    # tokens, window, stride
    (2, 8, 4),  # a single target
    (7, 8, 4),  # shorter than a window
    (8, 8, 4),  # exactly one
    (9, 8, 4),  # one more
    (9, 8, 7),
    (12, 8, 4),  # the last window is full
    (13, 8, 4),
    (50, 8, 1),  # the weighted form gives every later window nothing
    (50, 8, 3),
    (50, 8, 7),
    (50, 8, 8),  # S = L: the first token of every later window is never scored
    (48, 8, 8),
    (50, 2, 1),
    (50, 2, 2),
    (200, 16, 8),
]


@pytest.mark.parametrize("num_tokens, max_length, stride", GUIDE_CASES)
def test_transformers_docs(model, tokenizer, num_tokens, max_length, stride):
    text = random_text(num_tokens)
    windows = reference.guide_loop(model, encode(tokenizer, text), max_length, stride)
    given, settings = ([text], model, tokenizer), {"max_length": max_length, "stride": stride}
    result = compute(*given, "transformers-docs", **settings)
    assert result["perplexity"] == close(math.exp(np.mean([loss for _, loss in windows])))
    assert result["num_windows"] == len(windows)

    weights = [labels - 1 for labels, _ in windows]
    losses = [loss * weight for weight, (_, loss) in zip(weights, windows)]
    result = compute(*given, "transformers-docs-weighted", **settings)
    assert result["perplexity"] == close(math.exp(sum(losses) / sum(weights)))


@pytest.mark.parametrize("protocol", ["transformers-docs", "transformers-docs-weighted"])
def test_transformers_docs_leaves_out_a_window_without_a_target(model, tokenizer, protocol):
    """At S = L a last window of one token has no target, and the guide's loop gives NaN."""
    text = random_text(17)
    windows = reference.guide_loop(model, encode(tokenizer, text), 8, 8)
    assert [labels for labels, _ in windows] == [8, 8, 1]
    assert math.isnan(windows[-1][1])
    result = compute([text], model, tokenizer, protocol, max_length=8, stride=8)
    assert result["perplexity"] == close(math.exp((windows[0][1] + windows[1][1]) / 2))


def test_transformers_docs_joins_with_an_empty_line():
    tokenizer, model = make_byte_tokenizer(), make_model("gpt2", vocab_size=259).double()
    texts = ["Once upon a time", "there was a token"]
    ids = encode(tokenizer, texts[0] + "\n\n" + texts[1])
    assert len(ids) == len(texts[0]) + 2 + len(texts[1])
    losses = [loss for _, loss in reference.guide_loop(model, ids, CONTEXT, CONTEXT // 2)]
    result = compute(texts, model, tokenizer, "transformers-docs")
    assert result["perplexity"] == close(math.exp(np.mean(losses)))


def test_transformers_docs_adds_special_tokens_once(model):
    tokenizer = make_tokenizer(adds_bos=True)
    texts = [random_text(30), random_text(40)]
    ids = encode(tokenizer, " ".join(texts), special=True)
    assert ids[0] == tokenizer.bos_token_id and len(ids) == 71
    losses = [loss for _, loss in reference.guide_loop(model, ids, CONTEXT, CONTEXT // 2)]
    result = compute(texts, model, tokenizer, "transformers-docs")
    assert result["perplexity"] == close(math.exp(np.mean(losses)))


def stock_perplexities(model, tokenizer, texts, max_length, add_start_token):
    """evaluate's own metric: every text cut to one window, its start token prepended."""
    add_start_token = add_start_token and tokenizer.bos_token is not None
    perplexities = []
    for text in texts:
        ids = encode(tokenizer, text)
        plan = reference.stock(len(ids), max_length, add_start_token)
        nlls = reference.window_nlls(model, ids, plan, tokenizer.bos_token_id)
        perplexities.append(math.exp(reference.mean(nlls.values())))
    return perplexities


STOCK_TEXTS = [random_text(length) for length in (2, 5, CONTEXT - 1, CONTEXT, CONTEXT + 1, 100)]
STOCK_STARTS = [
    ("BOS", True),
    ("BOS", False),
    ("EOS only", True),  # which is no start token to the stock metric
    ("EOS only", False),
    pytest.param("adds BOS", True),
    ("adds BOS", False),
]


@pytest.mark.parametrize("max_length", [CONTEXT, 6])
@pytest.mark.parametrize("kind, add_start_token", STOCK_STARTS)
@pytest.mark.filterwarnings("ignore:The tokenizer has no start token")
def test_stock(model, kind, max_length, add_start_token):
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    expected = stock_perplexities(model, tokenizer, STOCK_TEXTS, max_length, add_start_token)
    result = compute(
        STOCK_TEXTS,
        model,
        tokenizer,
        "stock",
        max_length=max_length,
        add_start_token=add_start_token,
    )
    assert result["perplexities"] == close(expected)
    assert result["mean_perplexity"] == close(np.mean(expected))
    assert result["perplexity"] == close(np.mean(expected))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("add_start_token", [True, False])
@pytest.mark.filterwarnings("ignore:The tokenizer has no start token")
def test_sliding_is_stock_where_a_text_fits(model, kind, add_start_token):
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    texts = [random_text(length) for length in (2, 5, CONTEXT - 1)]
    expected = stock_perplexities(model, tokenizer, texts, CONTEXT, add_start_token)
    result = compute(texts, model, tokenizer, add_start_token=add_start_token)
    assert result["perplexities"] == close(expected)
    assert result["mean_perplexity"] == close(np.mean(expected))


@pytest.mark.parametrize("overlap", [1, 3, 7, 8])
@pytest.mark.parametrize("num_tokens", [2, 4, 8, 9, 10, 17, 50])
def test_megatron(model, tokenizer, num_tokens, overlap):
    """Fixed windows of L + 1 tokens every `overlap`, all but the first scoring their last ones."""
    length, text = 8, random_text(num_tokens) + " w5 @-@ w6"
    ids = encode(tokenizer, detokenize_wikitext(text))
    nlls = reference.window_nlls(model, ids, reference.megatron(len(ids), length, overlap))
    targets, total = len(ids) - 1, sum(nlls.values())
    settings = {"max_length": length, "stride": overlap, "detokenizer": "wikitext"}
    result = compute([text], model, tokenizer, "megatron", **settings)
    assert result["num_tokens"] == targets
    assert result["total_nll"] == close(total)
    assert result["perplexity"] == close(math.exp(min(20, total / targets)))
    ratio = targets / (num_tokens + 3 - 1)
    assert result["adjusted_perplexity"] == close(math.exp(min(20, total / targets * ratio)))


def test_megatron_caps_the_exponent(tokenizer):
    model = make_model("gpt2").double()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 20)
    result = compute([random_text(60)], model, tokenizer, "megatron", max_length=8, stride=4)
    assert result["total_nll"] / result["num_tokens"] > 20
    assert result["perplexity"] == close(math.exp(20))


@pytest.mark.parametrize("kind", ["BOS", "adds BOS"])
@pytest.mark.parametrize("length", [6, 7, CONTEXT])
@pytest.mark.parametrize("num_tokens", [2 * CONTEXT, 75])
def test_llama_cpp(model, kind, length, num_tokens):
    """Disjoint chunks, BOS in the place of the first token, the second half scored."""
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    adds_bos = kind == "adds BOS"
    text = random_text(num_tokens)
    ids = encode(tokenizer, text, special=True)
    assert len(ids) == num_tokens + adds_bos
    plan = reference.llama_cpp(len(ids), length, adds_bos)
    nlls = np.array([*reference.window_nlls(model, ids, plan, tokenizer.bos_token_id).values()])
    variance = (np.mean(nlls**2) - np.mean(nlls) ** 2) / (len(nlls) - 1)
    result = compute([text], model, tokenizer, "llama.cpp", max_length=length)
    assert result["num_tokens"] == len(nlls)
    assert result["perplexity"] == close(math.exp(nlls.mean()))
    assert result["tool_stderr"] == close(math.sqrt(variance) * math.exp(nlls.mean()))


@pytest.mark.parametrize("kind", ["BOS", "adds BOS"])
@pytest.mark.parametrize("num_tokens", [8, 15, 16, 50])
def test_gptq(model, kind, num_tokens):
    """Disjoint chunks of L = S, the tail dropped; the mean of chunk means."""
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    length, text = 8, random_text(num_tokens)
    ids = encode(tokenizer, text, special=True)
    chunks = [ids[i * length : (i + 1) * length] for i in range(len(ids) // length)]
    losses = []
    with torch.no_grad():
        for chunk in torch.tensor(chunks):
            losses.append(model(chunk[None], labels=chunk[None]).loss.item())
    result = compute([text], model, tokenizer, "gptq", max_length=length)
    assert result["perplexity"] == close(math.exp(np.mean(losses)))
    assert result["num_windows"] == len(chunks)


@pytest.mark.parametrize("num_tokens", [1024, 1025, 1535, 1536, 2100])
def test_exllamav2(tokenizer, num_tokens):
    """Windows of L every 512 tokens, later ones scoring their last 512; the tail dropped."""
    length, stride = 1024, 512
    model = make_model("gpt2", n_positions=length)
    text = random_text(num_tokens)
    ids = encode(tokenizer, text)
    plan = reference.exllamav2(len(ids), length, stride)
    nlls = [*reference.window_nlls(model, ids, plan).values()]
    result = compute([text], model, tokenizer, "exllamav2")
    assert result["num_tokens"] == len(nlls)
    assert result["perplexity"] == close(math.exp(np.mean(nlls)))


@pytest.mark.parametrize("kind", ["BOS", "adds BOS"])
def test_mlx_lm(model, kind):
    """Documents encoded one by one, their tokens laid end to end in rows of L."""
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    length, texts = 8, [random_text(n) for n in (3, 20, 9)]
    texts.append("w5 w6 <eos>")  # which gets no second one
    ids = []
    for text in texts:
        ids += encode(tokenizer, text, special=True)
        ids += [tokenizer.eos_token_id] * (ids[-1] != tokenizer.eos_token_id)
    plan = reference.chunks(len(ids), length)
    nlls = np.array([*reference.window_nlls(model, ids, plan).values()])
    result = compute(texts, model, tokenizer, "mlx-lm", max_length=length)
    perplexity = math.exp(nlls.mean())
    assert result["perplexity"] == close(perplexity)
    assert result["tool_stderr"] == close(perplexity * nlls.std(ddof=1) / math.sqrt(len(nlls)))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("length", [CONTEXT, 7])
def test_paloma(model, kind, length):
    """The harness's windows with EOS as the prefix, whatever BOS there is, and nothing else added."""
    tokenizer = make_tokenizer(**TOKENIZERS[kind])
    totals = []
    for text in DOCUMENTS:
        ids = encode(tokenizer, text)
        plan = reference.lm_eval(len(ids), length)
        totals.append(sum(reference.window_nlls(model, ids, plan, tokenizer.eos_token_id).values()))
    result = compute(
        DOCUMENTS, model, tokenizer, "paloma", max_length=length, return_token_scores=True
    )
    assert text_nlls(result) == close(totals)
    count = sum(len(encode(tokenizer, text)) for text in DOCUMENTS)
    assert result["perplexity"] == close(math.exp(sum(totals) / count))
    octets = sum(len(text.encode("utf-8")) for text in DOCUMENTS)
    assert result["bits_per_byte"] == close(sum(totals) / octets / math.log(2))


def test_no_two_protocols_agree_by_chance():
    """What makes the comparisons above mean something: each protocol gives another number."""
    tokenizer, model = make_tokenizer(**TOKENIZERS["adds BOS"]), make_model("gpt2").double()
    texts = [random_text(120), random_text(85)]
    settings = {"stock": {"add_start_token": False}}
    # run-clm is mlx-lm but for its blocks' default length and for more than a thousand texts.
    results = [
        compute(texts, model, tokenizer, protocol, max_length=16, **settings.get(protocol, {}))
        for protocol in PROTOCOLS.keys() - {"run-clm"}
    ]
    ordered = sorted(result["perplexity"] for result in results)
    apart = [high / low - 1 for low, high in itertools.pairwise(ordered)]
    assert min(apart) > 1e-4
