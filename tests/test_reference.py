"""Two models on the same texts through the metric: against single runs, float64 and themselves."""

import itertools
import math

import numpy as np
import pytest
import reference
import torch
from models import (
    ARCHITECTURES,
    BOS,
    CONTEXT,
    VOCABULARY,
    SlowTokenizer,
    make_byte_tokenizer,
    make_model,
    make_tokenizer,
    make_uniform_model,
    random_text,
    save,
)
from test_parts import CHAT, PLAIN_TEMPLATE

from perplexity_sliding.engines.sources import same_vocabulary
from perplexity_sliding.scoring import passes

TEXTS = [random_text(length, seed=length) for length in range(20, 36)]


@pytest.fixture(scope="module")
def other():
    """Much like the model `gpt2`, but not the same."""
    return make_model("gpt2", spread=0.33)


@pytest.fixture(scope="module")
def of_bytes():
    return {"model": make_model("gpt2", vocab_size=300), "tokenizer": make_byte_tokenizer()}


@pytest.fixture
def compare(metric, gpt2, tokenizer):
    """Compute with texts, model and tokenizer that are there unless others are given."""

    def compute(**kwargs):
        arguments = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer} | kwargs
        return metric.compute(**arguments)

    return compute


def naive_rows(model, text, stride=CONTEXT // 2) -> torch.Tensor:
    """Log-probabilities (N, V) that predict each token of a text, in float64, one by one."""
    ids = [int(word[1:]) for word in text.split()]
    plan = reference.sliding(len(ids), CONTEXT, stride, "once")
    rows = []
    for target in sorted(plan):
        context = [BOS if place == reference.START else ids[place] for place in plan[target]]
        rows.append(reference.log_probs(model, context)[-1])
    return torch.stack(rows)


# ---- against single runs and float64


def test_every_token_in_float64(compare, gpt2, other, tokenizer):
    result = compare(predictions=TEXTS[:3], reference=other, return_token_scores=True)
    divergences, agreements = [], []
    for text, scores in zip(TEXTS, result["token_scores"]):
        log_q, log_p = naive_rows(gpt2, text), naive_rows(other, text)
        kl = (log_p.exp() * (log_p - log_q)).sum(1)
        assert scores["kl"] == pytest.approx(kl.tolist(), rel=1e-3)
        for name, rows in (("top", log_q), ("reference_top", log_p)):
            assert scores[name] == [tokenizer.decode([n]) for n in rows.argmax(1)], name
        divergences += kl.tolist()
        agreements += torch.minimum(log_p.exp(), log_q.exp()).sum(1).tolist()
    comparison = result["comparison"]
    assert comparison["kl"] == pytest.approx(np.mean(divergences), rel=1e-4)
    assert comparison["kl_percentiles"]["100"] == pytest.approx(max(divergences), rel=1e-3)
    assert comparison["token_agreement"] == pytest.approx(np.mean(agreements), rel=1e-6)
    worst = comparison["worst_tokens"]
    assert [token["kl"] for token in worst] == sorted((t["kl"] for t in worst), reverse=True)
    for token in worst:
        scores = result["token_scores"][token["text"]]
        assert scores["kl"][token["position"]] == token["kl"]
        assert scores["offsets"][token["position"]] == token["offset"]
        assert scores["tokens"][token["position"]] == token["token"]


class Changed(torch.nn.Module):
    """A model with nothing but a forward: its logits come window by window, and may be changed."""

    def __init__(self, model, change=None):
        super().__init__()
        self.inner, self.config, self.change = model, model.config, change

    def forward(self, ids):
        output = self.inner(ids)
        if self.change is not None:
            output.logits = self.change(output.logits)
        return output


def suppress(logits):
    return logits.index_fill(-1, torch.tensor([1, 2]), -math.inf)


def overflow(logits):
    """On long texts."""
    return torch.where(torch.arange(logits.shape[1])[:, None] < 14, logits, math.nan)


@pytest.mark.parametrize("plain", ["model", "reference", "both"])
def test_models_whose_blocks_are_cut_differently(compare, gpt2, other, plain, monkeypatch):
    expected = compare(reference=other)["comparison"]
    monkeypatch.setattr(passes, "LOGITS_MEMORY", 80 * 24 * 7)
    got = compare(
        model=Changed(gpt2) if plain != "reference" else gpt2,
        reference=Changed(other) if plain != "model" else other,
    )["comparison"]
    assert got["kl"] == pytest.approx(expected["kl"], rel=1e-5)
    assert got["reference_perplexity"] == pytest.approx(expected["reference_perplexity"], rel=1e-6)
    assert got["same_top"] == expected["same_top"]


# ---- a model against itself


@pytest.mark.parametrize("is_copy", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_weights(compare, name, is_copy):
    """Also of the very same object, whose logits must not overwrite each other."""
    model = make_model(name)
    second = make_model(name) if is_copy else model
    comparison = compare(predictions=TEXTS[:3], model=model, reference=second)["comparison"]
    assert comparison["perplexity_ratio"]["ratio"] == 1
    assert comparison["kl"] == comparison["kl_reverse"] == 0
    assert comparison["kl_percentiles"]["100"] == 0
    assert comparison["token_agreement"] == comparison["same_top"] == 1
    assert comparison["right_to_wrong"] == comparison["wrong_to_right"] == 0
    assert comparison["rms_delta_p"] == 0
    assert (comparison["verdict"] == "the same") == (not is_copy)


def test_a_ratio_under_every_protocol(metric, compare, other):
    """It is that of two single runs, however the protocol averages."""
    texts = [random_text(60, seed) for seed in range(3)]
    both = compare(predictions=texts, reference=other, protocol="all")["measurements"]
    alone = compare(predictions=texts, model=other, protocol="all")["measurements"]
    assert sum("error" not in entry for entry in both) > 8
    for entry, single in zip(both, alone, strict=True):
        assert entry.get("error") == single.get("error")
        if "error" in entry:
            continue
        comparison = entry["comparison"]
        assert comparison["reference_perplexity"] == single["perplexity"], entry["protocol"]
        ratio = entry["perplexity"] / single["perplexity"]
        assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(ratio, rel=1e-9)


# ---- vocabularies


def test_padding_of_the_vocabulary(compare, other):
    expected = compare(reference=other)["comparison"]
    padded = Changed(other, lambda logits: torch.nn.functional.pad(logits, (0, 16), value=-30.0))
    got = compare(reference=padded)["comparison"]
    assert got["kl"] == pytest.approx(expected["kl"], rel=1e-4)
    padded.change = lambda logits: torch.nn.functional.pad(logits, (0, 16))
    with pytest.raises(ValueError, match=r"`reference` must have the vocabulary of the model"):
        compare(reference=padded)


def test_vocabularies():
    assert same_vocabulary(make_tokenizer(), make_tokenizer(adds_bos=True))
    assert not same_vocabulary(make_tokenizer(), make_tokenizer(vocabulary=VOCABULARY - 5))
    assert not same_vocabulary(make_tokenizer(), make_byte_tokenizer())
    fine_tuned = make_tokenizer()
    fine_tuned.add_special_tokens({"additional_special_tokens": ["w5", "<tool>"]})  # w5 was there
    assert same_vocabulary(make_tokenizer(), fine_tuned)
    assert same_vocabulary(fine_tuned, make_tokenizer())


# ---- other tokenizers


def test_other_tokenizers_are_compared_by_bytes(compare, of_bytes):
    """Words against single bytes, in bits per byte of the text that both score."""
    both = compare(margin=0.05, reference=of_bytes)
    comparison = both["comparison"]
    words, single_bytes = compare(), compare(**of_bytes)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert comparison["compared"] == "bytes"
    assert comparison["num_compared_bytes"] == num_bytes
    bits, of_bytes = (
        result["total_nll"] / math.log(2) / num_bytes for result in (words, single_bytes)
    )
    assert comparison["bits_per_byte"] == pytest.approx(bits)
    assert comparison["reference_bits_per_byte"] == pytest.approx(of_bytes)
    assert comparison["bits_per_byte_change"] == pytest.approx(bits - of_bytes)
    ratio = comparison["byte_perplexity_ratio"]
    assert ratio["ratio"] == pytest.approx(2 ** (bits - of_bytes))
    assert ratio["interval"][0] < ratio["ratio"] < ratio["interval"][1]
    assert comparison["verdict"] == "better" and comparison["within_margin"] is True
    assert "kl" not in comparison
    assert {name: value for name, value in both.items() if name != "comparison"} == words


def test_pieces_that_both_models_cut_are_listed(compare, of_bytes):
    """Words begin and end where bytes do, so a piece is a word, or the spaces before it."""
    both = compare(return_token_scores=True, reference=of_bytes)
    apart = compare(return_token_scores=True, **of_bytes)
    for text, pieces, own, single in zip(
        TEXTS, both["piece_scores"], both["token_scores"], apart["token_scores"]
    ):
        assert [0, *(end for _, end in pieces["offsets"])][-1] == len(text)
        ends = [end for _, end in own["offsets"]]
        assert [end for _, end in pieces["offsets"]] == ends
        assert pieces["nll"] == pytest.approx(own["nll"])
        for (begin, end), nll in zip(pieces["offsets"], pieces["reference_nll"]):
            inside = [begin <= first and last <= end for first, last in single["offsets"]]
            expected = sum(v for v, counts in zip(single["nll"], inside) if counts)
            assert nll == pytest.approx(expected)
    assert "piece_scores" not in compare(reference=of_bytes)


def test_tokenizers_without_offsets_cannot_be_compared_by_bytes(compare, of_bytes):
    with pytest.raises(ValueError, match="requires token offsets: pass fast tokenizers for both"):
        compare(tokenizer=SlowTokenizer(), reference=of_bytes)


def test_another_start_token_is_refused(compare, other):
    starts_with_pad = make_tokenizer(bos=False)
    starts_with_pad.bos_token = "<pad>"
    with pytest.raises(ValueError, match=r"must have the start token of the model, got once \(2\)"):
        compare(reference={"model": other, "tokenizer": starts_with_pad})
    compare(reference={"model": other, "tokenizer": starts_with_pad}, add_start_token=False)


def test_the_smaller_context_counts(compare, gpt2):
    result = compare(reference=make_model("gpt2", n_positions=8), return_token_scores=True)
    assert max(max(scores["context_length"]) for scores in result["token_scores"]) == 7


# ---- infinity and NaN


def test_tokens_that_a_model_suppresses(compare, gpt2, other):
    result = compare(model=Changed(gpt2, suppress), reference=Changed(other, suppress))
    comparison = result["comparison"]
    assert 0 < comparison["kl"] < math.inf and comparison["num_infinite_kl"] == 0
    result = compare(model=Changed(gpt2, suppress), reference=other)
    comparison = result["comparison"]
    assert comparison["kl"] == math.inf and comparison["kl_reverse"] < math.inf
    assert comparison["num_infinite_kl"] == result["num_tokens"]
    assert math.isfinite(comparison["perplexity_ratio"]["ratio"])


def test_a_reference_that_gives_nan(compare, other):
    with pytest.raises(ValueError, match="The reference model gave NaN for the text at position"):
        compare(reference=Changed(other, overflow))


# ---- by name, adapters, checkpoints, arguments


def test_references_by_name(metric, compare, other, tokenizer, gpt2, tmp_path):
    model_id = save(tmp_path / "model", gpt2, tokenizer)
    reference_id = save(tmp_path / "reference", other, tokenizer)
    live = compare(reference=other)["comparison"]
    named = compare(model=None, tokenizer=None, model_id=model_id, reference=reference_id)
    assert named["comparison"]["kl"] == live["kl"]
    assert named["comparison"]["reference_perplexity"] == live["reference_perplexity"]
    half = compare(reference={"model_id": reference_id, "dtype": "bfloat16"})["comparison"]
    assert "|dtype:bfloat16|" in half["reference_signature"]
    assert half["kl"] == pytest.approx(live["kl"], rel=0.5) and half["kl"] != live["kl"]


@pytest.mark.parametrize(
    "trained",
    [{}, {"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [5, 6, 7]}],
    ids=str,
)
def test_a_model_without_its_adapter(compare, trained):
    """And without copies of whole layers that are trained beside it."""
    peft = pytest.importorskip("peft")
    if not trained.keys() <= peft.LoraConfig.__dataclass_fields__.keys():
        pytest.skip("this peft trains no single tokens")
    base = make_model("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, **trained)
    adapted = peft.get_peft_model(make_model("llama"), config).eval()
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
            parameter.requires_grad = "lora_A" in name
    before = {name: parameter.requires_grad for name, parameter in adapted.named_parameters()}
    got = compare(model=adapted, reference="without adapter")
    alone, of_base = compare(model=adapted), compare(model=base)
    comparison = got["comparison"]
    assert (
        got["perplexity"] == alone["perplexity"] != pytest.approx(of_base["perplexity"], rel=1e-3)
    )
    assert comparison["reference_perplexity"] == pytest.approx(of_base["perplexity"], rel=1e-6)
    expected = compare(model=adapted, reference=base)["comparison"]
    assert comparison["kl"] == pytest.approx(expected["kl"], rel=1e-4) and expected["kl"] > 0
    assert "without adapter|" in comparison["reference_signature"]
    assert "|adapters:none|" in comparison["reference_signature"]
    assert "|adapters:default" in got["signature"]
    assert {n: p.requires_grad for n, p in adapted.named_parameters()} == before


def test_a_model_without_an_adapter_of_its_own_is_refused(compare):
    with pytest.raises(ValueError, match="with an adapter, got GPT2LMHeadModel without"):
        compare(reference="without adapter")
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    adapted = peft.get_peft_model(make_model("gpt2"), config)
    adapted.merge_adapter()
    with pytest.raises(ValueError, match="it is merged into the weights"):
        compare(model=adapted, reference="without adapter")


def test_checkpoint(compare, other, tmp_path):
    """A second call takes all scores from the file, and another reference none of them."""
    path = str(tmp_path / "scores.sqlite")
    first = compare(reference=other, checkpoint=path)
    batches = []
    again = compare(reference=other, checkpoint=path, callback=batches.append)
    assert again == first
    assert not batches
    uniform = compare(reference=make_uniform_model(), checkpoint=path)["comparison"]
    assert uniform["reference_perplexity"] == pytest.approx(VOCABULARY)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"margin": 0.01}, "`margin` must be left out without `reference`"),
        ({"reference": {"dtype": "float32"}}, "one of model_id and model, .* got dtype"),
        ({"reference": {"model_id": "x", "model": 3}}, "one of model_id and model"),
        ({"reference": 3}, "`reference` must be the name of a model .* got 3"),
        ({"reference": {"model": 3}}, "must be a loaded torch model or a vllm.LLM, got int"),
        (
            {"reference": {"model": make_model("gpt2"), "dtype": "float32"}},
            r"`reference\['dtype'\]` must be left out with `reference`",
        ),
        ({"reference": "x", "margin": "1 %"}, "`margin` must be a number"),
        ({"reference": "x", "margin": 1}, "`margin` must be a number of at least 0 and below 1"),
        ({"reference": make_model("gpt2"), "words": True}, "`words` must be left out with `ref"),
    ],
)
def test_arguments(compare, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        compare(**arguments)


# ---- texts after contexts, spans, chats: paired over the scored tokens alone

CONTEXTS = [random_text(length, seed=length) for length in range(4, 30, 2)]
ANSWERS = [" " + random_text(length, seed=7 * length) for length in range(30, 4, -2)]
SPANS = [[(3, 9), (20, len(text))] for text in ANSWERS]
CHATS = [CHAT, CHAT[:2], [{"role": "system", "content": "w40"}, *CHAT[2:]]]
PARTS = {
    "whole texts": {"predictions": TEXTS},
    "contexts": {"predictions": ANSWERS, "contexts": CONTEXTS},
    "spans": {"predictions": ANSWERS, "score_spans": SPANS},
    "chats": {"predictions": CHATS},
    "lm-eval": {
        "predictions": [text[:30] for text in ANSWERS],
        "contexts": CONTEXTS,
        "protocol": "lm-eval",
    },
}


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
    comparison = both.pop("comparison")
    token_scores = (result["token_scores"] for result in (both, alone, of_other))
    for scores, expected, others in zip(*token_scores):
        assert scores.pop("reference_nll") == others["nll"]
        for name in ("kl", "top", "reference_top"):
            assert len(scores.pop(name)) == len(expected["nll"])
        assert scores == expected
    assert both == alone
    for name in ("perplexity", "perplexity_interval", "perplexities", "signature"):
        assert comparison[f"reference_{name}"] == of_other[name]
    ratio = alone["perplexity"] / of_other["perplexity"]
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(ratio)


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


def test_a_span_after_white_space_that_has_no_token_is_compared(compute, of_bytes):
    """Words have no token for it, bytes have one, which is not scored."""
    spans = {"predictions": ["w1 w2 w3"], "score_spans": [[(3, 5)]]}
    both = compute(**spans, return_token_scores=True, reference=of_bytes)
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


# ---- memory


def test_logits_of_both_stay_within_their_memory(compare, monkeypatch):
    """At a vocabulary of 128k no tensor is larger than its share, and no more is held at once."""
    size, logits_memory = 128_256, 2**24
    models = [make_model("gpt2", seed, vocab_size=size) for seed in range(2)]
    text = random_text(200, seed=3)
    monkeypatch.setattr(passes, "LOGITS_MEMORY", logits_memory)
    arguments = {"model": models[0], "reference": models[1]}
    compare(predictions=[text], **arguments)  # what examining takes is another matter
    with torch.profiler.profile(profile_memory=True) as profiled:
        compare(predictions=[text], **arguments)
    events = profiled.profiler.kineto_results.events()
    held = itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]")
    assert size * 4 < max(held) <= logits_memory + 2**21  # and the activations
