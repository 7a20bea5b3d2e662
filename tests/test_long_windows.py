"""A single window larger than memory is read in parts, for the scores of the whole."""

import pytest
import torch
from models import NEWEST, forget, make_model, random_text

LENGTH = 64
TEXTS = [random_text(100), random_text(30, seed=1)]
ROTARY = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def cramp(model, most_tokens):
    """Let forward passes of more tokens run out of memory, as on a small accelerator."""

    def refuse(embeddings, args):
        if args[0].numel() > most_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    model.get_input_embeddings().register_forward_pre_hook(refuse)


def build(name, **config):
    """A model that takes 64 tokens, more than any model is tried with in any case."""
    stated = {"gpt2": "n_positions", "rwkv": "context_length", "bloom": None, "mamba": None}
    limit = stated.get(name, "max_position_embeddings")
    return make_model(name, **config, **({limit: LENGTH} if limit else {}))


def measure(metric, tokenizer, model):
    result = metric.compute(
        predictions=TEXTS, model=model, tokenizer=tokenizer, max_length=LENGTH, stride=16,
        return_token_scores=True,
    )  # fmt: skip
    nlls = [nll for text in result["token_scores"] for nll in text["nll"]]
    return nlls, result["num_forward_tokens"]


# Keys from a table of positions and rotated ones, an attention window, ALiBi, states.
NAMES = ["gpt2", "opt", "llama", "gemma2", "bloom", "mamba", "rwkv"]


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_whole_window(metric, tokenizer, name):
    if not NEWEST and name in ("gemma2", "mamba"):
        pytest.skip("its state in this transformers cannot be gone on from")
    expected, cost = measure(metric, tokenizer, build(name))
    model = build(name)
    cramp(model, most_tokens=48)
    with pytest.warns(
        UserWarning, match=r"One window of 63 tokens does not fit.* in chunks of \d+"
    ):
        scores, cost_in_parts = measure(metric, tokenizer, model)
    assert scores == pytest.approx(expected, abs=1e-4)
    assert cost_in_parts == cost


def adapted():
    """A model with an adapter that moves its scores."""
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"])
    model = peft.get_peft_model(build("llama"), settings)
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def test_a_model_without_its_adapter_reads_in_parts_too(metric, tokenizer):
    def compare(model):
        got = metric.compute(
            predictions=TEXTS, model=model, tokenizer=tokenizer, max_length=LENGTH, stride=16,
            reference="without adapter",
        )  # fmt: skip
        return [got["perplexity"], *(got["comparison"][n] for n in ("reference_perplexity", "kl"))]

    expected = compare(adapted())
    model = adapted()
    cramp(model, most_tokens=48)
    with pytest.warns(UserWarning, match="in chunks of"):
        assert compare(model) == pytest.approx(expected, rel=1e-4)
    assert expected[2] > 1e-4


def test_it_is_remembered(metric, tokenizer, recwarn):
    """The next call reads in parts at once."""
    model = build("llama")
    cramp(model, most_tokens=48)
    first, _ = measure(metric, tokenizer, model)
    recwarn.clear()
    assert measure(metric, tokenizer, model)[0] == first
    assert not [warning for warning in recwarn if "does not fit" in str(warning.message)]


def with_a_forward_of_its_own():
    model = build("rwkv")
    plain = model.forward
    model.forward = lambda *args, **kwargs: plain(*args, **kwargs)
    return model


@pytest.mark.parametrize(
    "make, reason",
    [
        (
            lambda: build("llama", rope_scaling=ROTARY),
            "its rotary frequencies depend on the length",
        ),
        (with_a_forward_of_its_own, "custom code in its forward may depend on complete passes"),
        (lambda: forget(build("gpt2")), "its logits differ when it continues from the state"),
    ],
)
def test_elsewhere_the_error_says_why_not(metric, tokenizer, make, reason):
    model = make()
    cramp(model, most_tokens=48)
    with pytest.raises(
        MemoryError, match=f"of 63 tokens does not fit.* cannot be read in chunks: {reason}"
    ):
        measure(metric, tokenizer, model)


def test_a_part_must_fit_too(metric, tokenizer):
    model = build("llama")
    metric.compute(predictions=["w3 w4"], model=model, tokenizer=tokenizer)  # tries the model

    def refuse_single_rows(embeddings, args):  # not the two by which parts are tried
        if len(args[0]) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    model.get_input_embeddings().register_forward_pre_hook(refuse_single_rows)
    with pytest.raises(MemoryError, match=r"One window of 63 tokens does not fit.*`max_length`"):
        measure(metric, tokenizer, model)
