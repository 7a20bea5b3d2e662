"""Two models on texts after contexts, on spans, and on chats: paired over the scored tokens alone."""

import itertools
import math

import numpy as np
import pytest
import reference
import torch
from models import BOS, CONTEXT, make_byte_tokenizer, make_model, make_tokenizer, random_text
from test_parts import CHAT, PLAIN_TEMPLATE

CONTEXTS = [random_text(length, seed=length) for length in range(4, 30, 2)]
TEXTS = [" " + random_text(length, seed=7 * length) for length in range(30, 4, -2)]
SPANS = [[(3, 9), (20, len(text))] for text in TEXTS]
CHATS = [CHAT, CHAT[:2], [{"role": "system", "content": "w40"}, *CHAT[2:]]]
PARTS = {
    "contexts": {"predictions": TEXTS, "contexts": CONTEXTS},
    "spans": {"predictions": TEXTS, "score_spans": SPANS},
    "chats": {"predictions": CHATS},
    "lm-eval": {
        "predictions": [text[:30] for text in TEXTS],
        "contexts": CONTEXTS,
        "protocol": "lm-eval",
    },
}


@pytest.fixture(scope="module")
def other():
    return make_model("gpt2", spread=0.33)


@pytest.fixture
def compute(metric, gpt2):
    tokenizer = make_tokenizer(chat_template=PLAIN_TEMPLATE)
    return lambda **kwargs: metric.compute(**({"model": gpt2, "tokenizer": tokenizer} | kwargs))


@pytest.mark.filterwarnings("ignore:A token spans the edge")
@pytest.mark.parametrize("kind", PARTS)
def test_both_are_scored_as_each_alone(compute, other, kind):
    """The rest of the result is that of a single run, and the reference's numbers of another."""
    both = compute(**PARTS[kind], reference=other, return_token_scores=True)
    alone = compute(**PARTS[kind], return_token_scores=True)
    of_other = compute(**PARTS[kind], model=other, return_token_scores=True)
    comparison = both["comparison"]
    assert both["perplexity"] == alone["perplexity"]
    assert both["num_context_tokens"] == alone["num_context_tokens"]
    assert comparison["reference_perplexity"] == of_other["perplexity"]
    assert comparison["reference_signature"] == of_other["signature"]
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(
        alone["perplexity"] / of_other["perplexity"]
    )
    for paired, expected in zip(both["token_scores"], of_other["token_scores"]):
        assert paired["reference_nll"] == expected["nll"]


def rows_after(model, context, text) -> torch.Tensor:
    """Log-probabilities (N, V) that predict each token of a text, all in one window."""
    ids = [int(word[1:]) for word in (context + text).split()]
    return reference.log_probs(model, ids[:-1])[-len(text.split()) :]


def test_divergence_is_of_the_scored_rows(compute, gpt2, other):
    """KL, agreement and right tokens, from a plain loop in float64 over the answers' rows."""
    contexts = [random_text(6, seed=n) for n in range(12)]
    texts = [" " + random_text(4, seed=50 + n) for n in range(12)]
    kwargs = {"predictions": texts, "contexts": contexts, "add_start_token": False}
    comparison = compute(**kwargs, reference=other)["comparison"]
    q, p = (
        torch.cat([rows_after(model, *pair) for pair in zip(contexts, texts)])
        for model in (gpt2, other)
    )
    kl = (p.exp() * (p - q)).sum(-1)
    assert comparison["kl"] == pytest.approx(kl.mean().item(), rel=1e-4)
    same = (p.argmax(-1) == q.argmax(-1)).double().mean().item()
    assert comparison["same_top"] == pytest.approx(same)
    ids = torch.tensor([int(word[1:]) for text in texts for word in text.split()])
    right = (q.argmax(-1) == ids).double().mean().item()
    assert comparison["accuracy"] == pytest.approx(right)
    assert comparison["worst_tokens"][0]["kl"] == pytest.approx(kl.max().item(), rel=1e-4)


@pytest.mark.filterwarnings("ignore:A token spans the edge")
def test_contexts_are_compared_by_bytes(compute):
    """Words against bytes: of the answers' bytes alone, as each model scores them by itself."""
    byte_model, byte_tokenizer = make_model("gpt2", vocab_size=300), make_byte_tokenizer()
    of_bytes = {"reference": {"model": byte_model, "tokenizer": byte_tokenizer}}
    comparison = compute(**PARTS["contexts"], **of_bytes)["comparison"]
    words = compute(**PARTS["contexts"])
    single = compute(**PARTS["contexts"], model=byte_model, tokenizer=byte_tokenizer)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert comparison["compared"] == "bytes"
    assert comparison["num_compared_bytes"] == num_bytes
    bits, reference_bits = (
        result["total_nll"] / num_bytes / math.log(2) for result in (words, single)
    )
    assert comparison["bits_per_byte"] == pytest.approx(bits)
    assert comparison["reference_bits_per_byte"] == pytest.approx(reference_bits)


def test_a_span_after_white_space_that_has_no_token_is_compared(compute):
    """Words have no token for it, bytes have one, which is not scored."""
    byte_model, byte_tokenizer = make_model("gpt2", vocab_size=300), make_byte_tokenizer()
    of_bytes = {"reference": {"model": byte_model, "tokenizer": byte_tokenizer}}
    both = compute(
        predictions=["w1 w2 w3"], score_spans=[[(3, 5)]], return_token_scores=True, **of_bytes
    )
    assert both["comparison"]["num_compared_bytes"] == 2
    assert both["piece_scores"][0]["offsets"] == [[3, 5]]


@pytest.mark.parametrize("template", [None, "<bos>{{ messages[0]['content'] }}", PLAIN_TEMPLATE])
def test_the_reference_reads_the_chats_that_the_model_reads(compute, template):
    """A base model has no template, or another; the ends of turns are no bytes of an answer."""
    byte_model = make_model("gpt2", vocab_size=300)
    byte_tokenizer = make_byte_tokenizer(chat_template=template)
    of_bytes = {"reference": {"model": byte_model, "tokenizer": byte_tokenizer}}
    both = compute(predictions=CHATS, return_token_scores=True, **of_bytes)
    written = make_tokenizer(chat_template=PLAIN_TEMPLATE)
    texts = [written.apply_chat_template(chat, tokenize=False) for chat in CHATS]
    answers = ["w7 w8 w9", "w11", "w7 w8 w9", "w11"]
    found = [
        text[begin:end].strip()
        for text, pieces in zip(texts, both["piece_scores"])
        for begin, end in pieces["offsets"]
    ]
    assert found == " ".join(answers).split()
    encoded = byte_tokenizer(texts[1], return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    plan = reference.sliding(len(ids), CONTEXT, CONTEXT // 2, "once")
    expected = reference.window_nlls(byte_model, ids, plan, BOS)
    begin = texts[1].index("w7")
    of_word = [nll for n, nll in expected.items() if begin <= offsets[n][0] < begin + 2]
    [first, *_] = both["piece_scores"][1]["reference_nll"]
    assert len(of_word) == 2 and first == pytest.approx(sum(of_word), rel=1e-4)


@pytest.mark.parametrize("kind", ["contexts", "chats"])
def test_a_fine_tune_against_its_base(compute, gpt2, kind):
    """LoRA, switched off for the reference, is the base model by itself."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], fan_in_fan_out=True
    )
    adapted = peft.get_peft_model(make_model("gpt2"), config)
    for name, parameter in adapted.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    kwargs = PARTS[kind] | {"model": adapted}
    got = compute(**kwargs, reference="without adapter")["comparison"]
    base, tuned = compute(**PARTS[kind])["perplexity"], compute(**kwargs)["perplexity"]
    assert got["reference_perplexity"] == pytest.approx(base, rel=1e-6)
    assert got["perplexity_ratio"]["ratio"] == pytest.approx(tuned / base, rel=1e-5)
    assert base != pytest.approx(tuned, rel=1e-3)


def test_intervals_take_texts_as_independent(compute, other):
    comparison = compute(**PARTS["contexts"], reference=other)["comparison"]
    assert comparison["interval_sample"] == f"{len(TEXTS)} texts"
    low, high = comparison["perplexity_ratio"]["interval"]
    assert low < comparison["perplexity_ratio"]["ratio"] < high
    groups = comparison["by_tokens_seen"]
    assert sum(group["num_tokens"] for group in groups) == sum(len(text.split()) for text in TEXTS)


def test_the_order_of_texts_and_batches_do_not_matter(compute, other):
    pairs = list(zip(TEXTS, CONTEXTS))[::-1]
    reversed_ = {"predictions": [t for t, _ in pairs], "contexts": [c for _, c in pairs]}
    ratios = [
        compute(**parts, reference=other, batch_size=size)["comparison"]["kl"]
        for parts, size in itertools.product((PARTS["contexts"], reversed_), (1, 5))
    ]
    assert np.ptp(ratios) < 1e-6 * ratios[0]


def test_what_has_no_counterpart_is_refused(compute, other):
    arguments = PARTS["contexts"] | {"reference": other}
    with pytest.raises(ValueError, match="`words` must be left out with a reference"):
        compute(**arguments, words=True)
