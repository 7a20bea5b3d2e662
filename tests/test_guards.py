"""A model scores as its plain forward passes do, or is refused; and is given back as it was."""

import copy
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import evaluate
import pytest
import reference
import torch
import transformers
from models import (
    BOS,
    CONTEXT,
    NEWEST,
    PAD,
    VOCABULARY,
    enliven,
    make_model,
    make_tokenizer,
    random_text,
)

from perplexity_sliding.engines.sources import in_use_together
from perplexity_sliding.models import probes
from perplexity_sliding.models.logits import BodyThenHead
from perplexity_sliding.models.probes import leaks, state_kept, with_other_end
from perplexity_sliding.models.states import why_not_in_parts

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import architectures

LONG = 64
TEXTS = [random_text(150, seed=1), random_text(9, seed=2), random_text(40, seed=3)]


def ids_of(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def naive_perplexity(model, text, length, stride) -> float:
    """One plain forward pass a window, in float64 from the logits on."""
    return reference.sliding_perplexity(model, [ids_of(text)], length, stride, start_id=BOS)


# ---- rotary embeddings that depend on the length of a pass

ROTARY = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "long_factor": [1.0 + n for n in range(8)],
        "short_factor": [1.0] * 8,
        "original_max_position_embeddings": 16,
    },
}


class Fresh:
    """A model without a memory: every forward pass is the first."""

    def __init__(self, model):
        self.model = model

    def __call__(self, **kwargs):
        return copy.deepcopy(self.model)(**kwargs)


def rotary(kind, **config):
    return make_model(
        "llama",
        rope_scaling=dict(ROTARY[kind]),
        max_position_embeddings=LONG if kind == "longrope" else CONTEXT,
        **config,
    )


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.filterwarnings("ignore:.*past the 16 tokens")
def test_growing_frequencies_do_not_mix_texts(metric, kind):
    """The same score in any company, order and history; the model is given back as it came."""
    model = rotary(kind)
    expected = [naive_perplexity(Fresh(model), text, 40, 20) for text in TEXTS]
    with torch.inference_mode():
        model(torch.arange(60)[None])  # somebody has read a longer text with it
    buffers = {name: buffer.tolist() for name, buffer in model.named_buffers()}
    arguments = {"model": model, "tokenizer": make_tokenizer(), "max_length": 40, "stride": 20}
    results = []
    for texts, batch_size in (*(([text], 16) for text in TEXTS), (TEXTS, 16), (TEXTS[::-1], 2)):
        results.append(metric.compute(predictions=texts, batch_size=batch_size, **arguments))
        assert {name: b.tolist() for name, b in model.named_buffers()} == buffers
    *alone, together, backwards = results
    assert [result["perplexity"] for result in alone] == pytest.approx(expected, rel=1e-5)
    assert together["perplexities"] == pytest.approx(expected, rel=1e-5)
    assert backwards["perplexities"] == pytest.approx(expected[::-1], rel=1e-5)
    assert len({result["signature"] for result in results}) == 1


@pytest.mark.skipif(not NEWEST, reason="one kind of frequencies for all layers")
@pytest.mark.filterwarnings("ignore:.*past the 16 tokens")
def test_frequencies_that_grow_in_one_kind_of_layers_do_not_mix_texts(metric):
    model = make_model("olmo3")
    expected = [naive_perplexity(Fresh(model), text, 40, 20) for text in TEXTS]
    given = {"model": model, "tokenizer": make_tokenizer(), "max_length": 40, "stride": 20}
    assert metric.compute(predictions=TEXTS, **given)["perplexities"] == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.filterwarnings("ignore:.*past the 16 tokens")
def test_growing_frequencies_and_lists_of_windows(metric, kind):
    """Windows of several lengths are not merged where a shorter one is no prefix of a longer one."""
    arguments = {"predictions": TEXTS, "model": rotary(kind), "tokenizer": make_tokenizer()}
    merged = metric.compute(max_length=[12, 40], stride=6, **arguments)["measurements"]
    for length, one in zip((12, 40), merged):
        single = metric.compute(max_length=length, stride=6, **arguments)
        assert one["perplexities"] == pytest.approx(single["perplexities"], rel=1e-5)
    assert merged[0]["perplexity"] != pytest.approx(merged[1]["perplexity"], rel=1e-3)


# ---- what a short probe does not see


class Feeding(torch.nn.Module):
    """In the place of the last feed-forward layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        return self.inner(self.mixed(hidden))


class Dilated(Feeding):
    """A causal convolution that reads the token 20 places before."""

    def mixed(self, hidden):
        before = torch.zeros_like(hidden)
        before[:, 20:] = hidden[:, :-20]
        return hidden + before


class Capacity(Feeding):
    """An expert that takes the first 24 tokens of each text, as it has no room for more."""

    def mixed(self, hidden):
        places = torch.arange(hidden.shape[1])[:, None]
        return torch.where(places < 24, hidden, 0.0)


@pytest.mark.parametrize("kind", [Dilated, Capacity])
@pytest.mark.parametrize("stride", [64, 16])
def test_a_layer_that_reads_far_back_runs_over_all_rows(metric, kind, stride):
    model = make_model("gpt2", n_positions=LONG)
    model.transformer.h[-1].mlp = kind(model.transformer.h[-1].mlp)
    arguments = {"model": model, "tokenizer": make_tokenizer(), "stride": stride}
    result = metric.compute(predictions=TEXTS, **arguments)
    expected = [naive_perplexity(model, text, LONG, stride) for text in TEXTS]
    assert result["perplexities"] == pytest.approx(expected, rel=1e-5)


class Echoing(transformers.GPT2LMHeadModel):
    """Adds to each token's logits those of a token before, after its head."""

    def forward(self, input_ids=None, **kwargs):
        output = super().forward(input_ids, **kwargs)
        echo = torch.zeros_like(output.logits)
        echo[:, self.distance :] = output.logits[:, : -self.distance]
        output.logits = output.logits + echo
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distance", [1, 5, 30])
def test_a_head_that_reads_other_rows_runs_over_all_of_them(metric, distance, dtype):
    model = Echoing(make_model("gpt2", n_positions=LONG).config).eval()
    model.load_state_dict(make_model("gpt2", n_positions=LONG).state_dict())
    model.distance = distance
    result = metric.compute(predictions=TEXTS, model=model.to(dtype), tokenizer=make_tokenizer())
    expected = [naive_perplexity(model, text, LONG, LONG // 2) for text in TEXTS]
    accuracy = 1e-5 if dtype == torch.float32 else 0.05
    assert result["perplexities"] == pytest.approx(expected, rel=accuracy)


def mix_rows(module, arguments, logits):
    mixed = logits.clone()
    mixed[:, 30:] += logits[:, :-30]
    return mixed


class MixingHead(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, hidden):
        return mix_rows(self, hidden, self.linear(hidden))


def with_a_hook(model):
    model.lm_head.register_forward_hook(mix_rows)


def with_a_head_of_its_own(model):
    model.lm_head = MixingHead(model.lm_head)


def with_another_forward(model):
    plain = model.lm_head.forward
    model.lm_head.forward = lambda hidden: mix_rows(None, None, plain(hidden))


@pytest.mark.parametrize("change", [with_a_hook, with_a_head_of_its_own, with_another_forward])
def test_changes_behind_the_body_run_over_all_rows(metric, change):
    model = make_model("gpt2", n_positions=LONG, tie_word_embeddings=False)
    change(model)
    result = metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())
    expected = [naive_perplexity(model, text, LONG, LONG // 2) for text in TEXTS]
    assert result["perplexities"] == pytest.approx(expected, rel=1e-5)


def test_windows_as_short_as_the_probe_need_no_trial_of_their_own(metric):
    model = make_model("gpt2")
    shapes = []
    watched = model.transformer.wte.register_forward_pre_hook(
        lambda module, arguments: shapes.append(tuple(arguments[0].shape))
    )
    metric.compute(
        predictions=[random_text(10)], model=model, tokenizer=make_tokenizer(), max_length=10
    )
    watched.remove()
    *probes, scored = shapes
    assert scored == (3, 9), (
        "both windows, with the start token or the first token before them, and the probe's beginning"
    )
    assert set(probes) == {(1, 3), (1, 5), (2, 12), (1, 15)}, (
        "for positions, for the rest, the probe"
    )


# ---- code of somebody's own in the forward runs, whatever triggers it


def remap(ids):
    """Token 7, which no made-up text need hold, is read as token 50."""
    return torch.where(ids == 7, 50, ids)


def remap_by_name(module, arguments, kwargs):
    """A hook that finds the ids where transformers passes them: by the name of the argument."""
    if "input_ids" in kwargs:
        kwargs = kwargs | {"input_ids": remap(kwargs["input_ids"])}
    return arguments, kwargs


class Remapping(transformers.GPT2LMHeadModel):
    def forward(self, input_ids=None, **kwargs):
        return super().forward(remap(input_ids), **kwargs)


def remapping():
    model = Remapping(make_model("gpt2", n_positions=LONG).config).eval()
    model.load_state_dict(make_model("gpt2", n_positions=LONG).state_dict())
    return model


def from_a_repository_of_its_own():
    model = remapping()
    model.__class__ = type(
        "Remapping", (Remapping,), {"__module__": "transformers_modules.somebody.model"}
    )
    return model


def with_a_hook_before():
    model = make_model("gpt2", n_positions=LONG)
    model.register_forward_pre_hook(remap_by_name, with_kwargs=True)
    return model


def with_a_hook_on_the_body():
    model = make_model("llama", max_position_embeddings=LONG)
    model.model.register_forward_pre_hook(remap_by_name, with_kwargs=True)
    return model


def with_a_forward_of_its_own():
    model = make_model("gpt2", n_positions=LONG)
    plain = model.forward
    model.forward = lambda input_ids, **kwargs: plain(remap(input_ids), **kwargs)
    return model


OWN_CODE = [remapping, from_a_repository_of_its_own, with_a_hook_before, with_a_hook_on_the_body, with_a_forward_of_its_own]  # fmt: skip


@pytest.fixture
def plain_probes(metric, monkeypatch):
    """No text that is made up to look at a model holds token 7."""
    made_up = probes.probe_ids
    monkeypatch.setattr(probes, "probe_ids", lambda *args, **kw: made_up(*args, **kw) % 5 + 20)


@pytest.mark.parametrize("make", OWN_CODE)
def test_code_in_the_forward_that_acts_on_rare_tokens(metric, make, plain_probes):
    model = make()
    result = metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())
    expected = [naive_perplexity(model, text, LONG, LONG // 2) for text in TEXTS]
    assert result["perplexities"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif(transformers.__version__.startswith("4."), reason="contexts are not shared")
def test_contexts_are_not_shared_where_code_may_act_on_rare_tokens(metric, plain_probes):
    texts = [f"w5 w{n}" for n in range(10, 30)]
    arguments = {"predictions": texts, "tokenizer": make_tokenizer()}
    arguments["contexts"] = random_text(30) + " "
    plain = make_model("gpt2", n_positions=LONG)
    shared, apart = (metric.compute(model=m, **arguments) for m in (plain, remapping()))
    assert apart["num_forward_tokens"] == shared["num_forward_tokens"] + 19 * 30


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_of_all_modules_that_acts_on_rare_tokens(metric, plain_probes, when):
    model = make_model("gpt2", n_positions=LONG)

    def before(module, arguments):
        return (remap(arguments[0]),) if module is model.transformer.wte else None

    def after(module, arguments, kwargs, output):
        if module is model:
            ids = kwargs["input_ids"]
            output.logits[remap(ids) != ids] *= 0.5

    hooks = torch.nn.modules.module
    if when == "before":
        handle = hooks.register_module_forward_pre_hook(before)
    else:
        handle = hooks.register_module_forward_hook(after, with_kwargs=True)
    try:
        result = metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())
        expected = [naive_perplexity(model, text, LONG, LONG // 2) for text in TEXTS]
    finally:
        handle.remove()
    plain = [naive_perplexity(model, text, LONG, LONG // 2) for text in TEXTS]
    assert result["perplexities"] == pytest.approx(expected, rel=1e-5) != plain
    assert "+modified|" in result["signature"]


class Looking(transformers.GPT2LMHeadModel):
    """Sees the token `ahead` places on, from a length on that is longer than any short probe."""

    ahead, from_length = 1, 30

    def forward(self, input_ids=None, **kwargs):
        output = super().forward(input_ids, **kwargs)
        if input_ids is not None and input_ids.shape[1] >= self.from_length:
            output.logits = output.logits + 0.5 * output.logits.roll(-self.ahead, 1)
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ahead, from_length", [(1, 30), (15, 30), (1, 0), (2, 0)])
def test_a_model_that_looks_a_little_ahead(metric, ahead, from_length, dtype):
    """By one token or by many, in every pass or only in long ones."""
    model = Looking(make_model("gpt2", n_positions=LONG).config).eval().to(dtype)
    model.ahead, model.from_length = ahead, from_length
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_bidirectional_models_in_any_precision(metric, dtype, spread):
    """Rounding is no excuse: the same shapes round the same way twice."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        is_decoder=False,
    )
    torch.manual_seed(0)
    model = transformers.BertLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=spread)
    with pytest.raises(ValueError, match=r"must be a causal language model.*masked or bidir"):
        metric.compute(
            predictions=TEXTS, model=model.to(dtype), tokenizer=make_tokenizer(), max_length=32
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mamba"])
def test_causal_models_in_half_precision_are_not_refused(metric, dtype, architecture):
    model = make_model(architecture).to(dtype)
    result = metric.compute(
        predictions=TEXTS, model=model, tokenizer=make_tokenizer(), stride=8, max_length=16
    )
    expected = [naive_perplexity(model, text, 16, 8) for text in TEXTS]
    assert result["perplexities"] == pytest.approx(expected, rel=0.05)


def test_a_part_that_is_random(metric):
    class Random(transformers.GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + 0.1 * torch.randn_like(output.logits)
            return output

    model = Random(make_model("gpt2").config).eval()
    with pytest.raises(ValueError, match=r"must be deterministic.*is random"):
        metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())


def test_other_rows_of_a_batch(metric):
    """A model whose rows see each other is refused."""

    class Mixing(transformers.GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + 0.3 * output.logits.sum(0, keepdim=True)
            return output

    model = Mixing(make_model("gpt2", n_positions=LONG).config).eval()
    with pytest.raises(ValueError, match="change with the other rows"):
        metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())


# ---- architectures at large

SAMPLE = ("gpt_neo", "gpt_neox", "xglm", "reformer", "big_bird", "qwen3_moe", "jamba", "recurrent_gemma", "xlnet", "phi3", "nemotron", "olmo2")  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.filterwarnings("ignore")
def test_architectures_agree_or_are_refused(metric, name):
    """A sample of benchmarks/architectures.py, which goes through all of them."""
    if name not in architectures.architectures():
        pytest.skip(f"this transformers has no {name}")
    outcome = architectures.compare(name, metric)
    if outcome.kind == "not built" and transformers.__version__.startswith("4."):
        pytest.skip(f"this transformers does not run {name} here: {outcome.detail}")
    assert outcome.kind in ("agrees", "refused"), outcome


# ---- what was found out about a model holds while it stays as it is


def test_findings_do_not_outlive_a_change_of_weights(metric):
    """A mask in the weights opens: the model looks ahead from then on."""

    class Gated(transformers.GPT2LMHeadModel):
        def __init__(self, config):
            super().__init__(config)
            self.gate = torch.nn.Parameter(torch.zeros(1))

        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + self.gate * output.logits.roll(-1, 1)
            return output

    model = Gated(make_model("gpt2").config).eval()
    arguments = {"predictions": TEXTS, "model": model, "tokenizer": make_tokenizer()}
    metric.compute(**arguments)
    with torch.no_grad():
        model.gate.fill_(1.0)
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(**arguments)


def test_findings_do_not_outlive_a_change_of_the_configuration(metric):
    class Switched(transformers.GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            if getattr(self.config, "sees_all", False):
                output.logits = output.logits + output.logits.roll(-1, 1)
            return output

    model = Switched(make_model("gpt2").config).eval()
    arguments = {"predictions": TEXTS, "model": model, "tokenizer": make_tokenizer()}
    metric.compute(**arguments)
    model.config.sees_all = True
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(**arguments)


def test_another_replaced_forward_is_looked_at_again(metric):
    """Whatever address it comes to lie at."""
    model = make_model("gpt2", n_positions=LONG)
    arguments = {"predictions": TEXTS, "model": model, "tokenizer": make_tokenizer()}
    plain = type(model.transformer.h[-1].mlp).forward

    def harmless(layer):
        return lambda hidden: plain(layer, hidden)

    def looking(layer):
        return lambda hidden: plain(layer, hidden) + hidden.roll(-1, 1)

    layer = model.transformer.h[-1].mlp
    for _ in range(20):
        layer.forward = harmless(layer)
        metric.compute(**arguments)
        del layer.forward
        layer.forward = looking(layer)
        with pytest.raises(ValueError, match="must be a causal language model"):
            metric.compute(**arguments)
        del layer.forward


def test_the_way_that_was_taken_is_logged(metric, caplog):
    logger = evaluate.logging.get_logger("evaluate")
    evaluate.logging.set_verbosity_info()
    logger.propagate = True
    try:
        with caplog.at_level(logging.INFO, logger="evaluate"):
            metric.compute(predictions=TEXTS, model=make_model("gpt2"), tokenizer=make_tokenizer())
    finally:
        evaluate.logging.set_verbosity_warning()
        logger.propagate = False
    assert "`model`: logits by" in caplog.text


# ---- threads


def two_heads():
    """Two models that share a body."""
    one, other = make_model("gpt2"), make_model("gpt2", tie_word_embeddings=False)
    other.transformer = one.transformer
    return one, other


@pytest.mark.parametrize("make", [lambda: [make_model("gpt2")] * 2, two_heads])
def test_two_threads_on_one_model(root, tmp_path, make):
    """Two metrics, one live model: both get the numbers that they get alone."""
    models, tokenizer = make(), make_tokenizer()
    metrics = [
        evaluate.load(str(root / "perplexity_sliding.py"), cache_dir=str(tmp_path / name))
        for name in "ab"
    ]
    texts = [[TEXTS[0]], [TEXTS[2], TEXTS[1]]]
    arguments = {"tokenizer": tokenizer, "stride": 2, "batch_size": 1}
    expected = [
        one.compute(predictions=of_one, model=model, **arguments)["perplexities"]
        for one, of_one, model in zip(metrics, texts, models)
    ]
    barrier = threading.Barrier(2)

    def hammer(number):
        barrier.wait(60)
        return [
            metrics[number].compute(predictions=texts[number], model=models[number], **arguments)[
                "perplexities"
            ]
            for _ in range(12)
        ]

    with ThreadPoolExecutor(2) as pool:
        for number, results in enumerate(pool.map(hammer, range(2))):
            for result in results:
                assert result == pytest.approx(expected[number], rel=1e-7)
    assert not any("forward" in vars(module) for model in models for module in model.modules())


# ---- each guard by itself


def test_windows_that_only_the_short_look_sees(metric):
    """No pass is longer than that look's."""
    model = Looking(make_model("gpt2", n_positions=LONG).config).eval()
    model.from_length = 0
    arguments = {"model": model, "tokenizer": make_tokenizer(), "max_length": 10}
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(predictions=TEXTS, **arguments)


class Grouped(torch.nn.Module):
    """Rounds otherwise with another second row, and sees later tokens by a multiple of that."""

    def __init__(self, leak):
        super().__init__()
        self.leak = leak
        self.embedding = torch.nn.Embedding(VOCABULARY, 4)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, ids):
        rounding, later = (row.double().sum().item() % 7 - 3 for row in (ids[1], ids[0, 6:]))
        logits = torch.arange(VOCABULARY) / 10 + 1e-4 * torch.arange(1, 13)[:, None].sin()
        shift = (rounding + self.leak * later) * torch.linspace(-1e-4, 1e-4, VOCABULARY)
        return SimpleNamespace(logits=(logits + shift).expand(2, -1, -1))


@pytest.mark.parametrize("leak, expected", [(0.5, False), (50.0, True)])
def test_leaks_are_told_from_rounding_among_experts(leak, expected):
    model = Grouped(leak)
    ids = torch.stack([torch.arange(3, 15), torch.arange(30, 42)])
    logits, moved = (model(one).logits for one in (ids, with_other_end(ids, VOCABULARY)))
    assert leaks(model, ids, logits, moved, "X") == expected


def test_what_a_forward_writes_into_a_buffer_is_undone():
    """In place: the buffer stays the same object."""
    model = torch.nn.BatchNorm1d(2)
    with state_kept(model):
        model.running_mean.add_(1.0)
    assert model.running_mean.tolist() == [0.0, 0.0]


def test_a_single_token_without_a_number_is_refused(metric):
    model = make_model("gpt2", n_positions=LONG, tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight[40] = torch.nan

    def one_row(module, arguments, logits):  # all others are as if the weight were 0
        logits = logits.clone()
        logits[..., :5, 40] = torch.where(logits[..., :5, 40].isnan(), 0.0, logits[..., :5, 40])
        logits[..., 6:, 40] = 0.0
        return logits

    model.lm_head.register_forward_hook(one_row)
    with pytest.raises(ValueError, match="The model gave NaN for the text at position 0"):
        metric.compute(predictions=TEXTS[:1], model=model, tokenizer=make_tokenizer())


def test_models_are_locked_in_one_order():
    """Two threads that compare the same two models, each the other way round."""
    entered = []

    class Fake:
        def __init__(self):
            self.lock = threading.RLock()

        @contextmanager
        def in_use(self):
            entered.append(self)
            yield

    models = [Fake(), Fake()]
    for pair in (models, models[::-1]):
        with in_use_together(pair):
            pass
    assert entered[:2] == entered[2:]


# ---- architectures that are known


def test_a_known_architecture_that_looks_ahead(metric, monkeypatch):
    """By what nothing of the model shows: attention without its mask."""
    functional, plain = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention

    def unmasked(query, key, value, attn_mask=None, is_causal=False, **kwargs):
        return plain(query, key, value, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", unmasked)
    model = make_model("llama", max_position_embeddings=LONG)
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())


@pytest.mark.parametrize("window, most", [(None, 16 + 255 + 599), (300, 99_999)])
def test_a_known_architecture_is_looked_at_with_few_tokens(metric, monkeypatch, window, most):
    """And one with local layers by passes as long as those that are scored."""
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024,
        sliding_window=window,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    read, states, plain_logits = [], BodyThenHead.states, probes.plain_logits

    def of_head(self, ids, *args):
        read.append(ids.numel())
        return states(self, ids, *args)

    def of_model(model, ids, name):
        read.append(ids.numel())
        return plain_logits(model, ids, name)

    monkeypatch.setattr(BodyThenHead, "states", of_head)
    monkeypatch.setattr(probes, "plain_logits", of_model)
    arguments = {"predictions": [random_text(700)], "tokenizer": make_tokenizer()}
    metric.compute(model=model, max_length=600, **arguments)
    first, _ = sum(read), read.clear()
    metric.compute(model=model, max_length=600, **arguments)
    assert (first - sum(read) > 2 * 600) == (window is not None)
    assert first - sum(read) <= most


@pytest.mark.parametrize("compiled", ["scripted", "traced"])
def test_torchscript_is_refused_in_a_sentence(metric, compiled):
    """A second call failed within our own look at the modules' state."""
    model = make_model("gpt2")
    if compiled == "scripted":
        model.transformer.wte = torch.jit.script(model.transformer.wte)
    else:
        inputs = torch.randn(1, 4, model.config.n_embd)
        model.transformer.h[0].mlp = torch.jit.trace(model.transformer.h[0].mlp, inputs)
    with pytest.raises(
        ValueError, match=r"`model` must .*, got TorchScript\. Pass the model as it"
    ):
        metric.compute(predictions=["w5 w6"], model=model, tokenizer=make_tokenizer())


class Merging(torch.nn.Linear):
    """Merges its adapter in evaluation, as loralib's layers do."""

    def __init__(self, plain):
        super().__init__(plain.in_features, plain.out_features, bias=False)
        self.weight = plain.weight
        self.register_buffer("delta", torch.full_like(plain.weight, 0.25))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.is_merged == mode:
            self.weight.data += -self.delta if mode else self.delta
            self.is_merged = not mode
        return self


def test_weights_that_are_merged_in_evaluation_are_not_when_training_goes_on(metric, tokenizer):
    """The flag alone was set again: a merged adapter has no gradient."""
    model = make_model("llama").train()
    layer = model.model.layers[0].mlp
    layer.up_proj = Merging(layer.up_proj)
    layer.down_proj.eval()
    weight = layer.up_proj.weight.clone()
    metric.compute(predictions=["w5 w6 w7"], model=model, tokenizer=tokenizer)
    assert not layer.up_proj.is_merged
    assert torch.allclose(layer.up_proj.weight, weight)
    assert model.training and layer.up_proj.training and not layer.down_proj.training


def test_weights_that_are_divided_in_evaluation_are_not_when_training_goes_on(metric, tokenizer):
    """Saved then, the model was another one."""
    model = make_model("rwkv", num_hidden_layers=4, rescale_every=1).train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    given = {"predictions": ["w5 w6 w7"], "tokenizer": tokenizer}
    in_training = metric.compute(model=model, **given)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert metric.compute(model=model.eval(), **given) == in_training


def test_a_head_that_cannot_be_made_is_another_s_work(metric, tokenizer, monkeypatch):
    """As for a vocabulary head of torchao, whose tensors have no `new_empty`."""

    def fail(*args):
        raise NotImplementedError("new_empty")

    model = make_model("llama").to(torch.bfloat16)
    given = {"predictions": [random_text(30)], "tokenizer": tokenizer}
    expected = metric.compute(model=copy.deepcopy(model), **given)["perplexity"]
    for name in ("AlignedProduct", "BodyThenHead"):
        monkeypatch.setattr(f"perplexity_sliding.models.logits.{name}.__init__", fail)
    assert metric.compute(model=model, **given)["perplexity"] == pytest.approx(expected, rel=0.01)


def test_a_table_that_a_pass_shortens_is_refused(metric, tokenizer):
    """Scores depended on the batch, and the caller's weights changed."""
    model = make_model("gpt2")
    model.transformer.wte.max_norm = 1.0
    with pytest.raises(ValueError, match=r"an embedding has a `max_norm`.* set `max_norm` to None"):
        metric.compute(predictions=["w5 w6 w7"], model=model, tokenizer=tokenizer)


def check_batches(metric, tokenizer, model, texts, max_length, most):
    """Check that texts have the same perplexities together as alone."""
    together, alone = (
        metric.compute(
            predictions=texts,
            model=model.eval(),
            tokenizer=tokenizer,
            max_length=max_length,
            batch_size=size,
        )
        for size in (most, 1)
    )
    assert together["perplexities"] == pytest.approx(alone["perplexities"], rel=1e-5)


@pytest.mark.skipif(
    not hasattr(transformers, "GlmMoeDsaConfig"), reason="this transformers has no such model"
)
def test_layers_that_select_keys_read_no_padding(metric, tokenizer):
    """An indexer breaks ties otherwise beside padding: 0.07 nats a token by the size of a batch."""
    config = transformers.GlmMoeDsaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, moe_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=8,
        kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, head_dim=8,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
        first_k_dense_replace=1, index_n_heads=2, index_head_dim=16, index_topk=8,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    enliven(model)
    texts = [random_text(length, seed=5) for length in (70, 9, 31, 150, 23, 47, 12, 90)]
    check_batches(metric, tokenizer, model, texts, max_length=32, most=16)
    assert why_not_in_parts(model).startswith("which keys its layers attend to"), (
        "chunks of a pass have other ties"
    )


@pytest.mark.parametrize("family", ["XLM", "Flaubert"])
def test_tokens_for_padding_that_are_counted_in_a_row(metric, tokenizer, family):
    """Those of a text masked its end, or in a batch the padding: 2,432 or 2,726 by its size."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY, emb_dim=32, n_layers=2, n_heads=2, causal=True, asm=False,
        max_position_embeddings=64, pad_index=PAD, bos_index=0, eos_index=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}WithLMHeadModel")(config).eval()
    enliven(model)
    words = [f"w{20 + n}" for n in range(20)]
    texts = [
        " ".join([*words[:place], *["<pad>"] * n, *words[place:]]) for place, n in ((3, 1), (4, 3))
    ]
    result = metric.compute(
        predictions=texts, model=model, tokenizer=tokenizer, max_length=64, batch_size=8
    )
    for text, perplexity in zip(texts, result["perplexities"]):
        ids = [BOS, *tokenizer(text, add_special_tokens=False).input_ids]
        with torch.inference_mode():
            logits = model(torch.tensor([ids[:-1]])).logits[0].double()
        naive = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).exp().item()
        assert perplexity == pytest.approx(naive, rel=1e-5)


@pytest.mark.skipif(not hasattr(transformers, "BltConfig"), reason="there was no such model")
def test_patches_that_the_end_of_a_pass_closes(metric, tokenizer):
    """With a limited length: 2,644.97 nats, or 2,645.36 after one of the texts had been scored."""
    size = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    size |= {"intermediate_size": 48, "vocab_size": VOCABULARY}
    wide = {"hidden_size_global": 64, "cross_attn_k": 2}
    config = transformers.BltConfig(
        vocab_size=VOCABULARY, patching_threshold=3.6, max_patch_length=4, cross_attn_k=2,
        max_position_embeddings=1024, local_attention_window_len=512,
        encoder_hash_byte_group_vocab=200, encoder_hash_byte_group_size=[2, 3],
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=1,
        patcher_config=size | {"sliding_window": 512}, encoder_config=size | wide,
        decoder_config=size | wide, global_config=size | {"hidden_size": 64},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BltForCausalLM(config).eval()
    enliven(model)
    texts = [random_text(n, seed=n) for n in (42, 63, 45, 57, 59, 64, 32, 60, 52)]
    check_batches(metric, tokenizer, model, texts, max_length=80, most=16)
    given = {"model": model, "tokenizer": tokenizer, "max_length": 80}
    for text in texts:
        ids = torch.tensor([[BOS, *tokenizer(text, add_special_tokens=False).input_ids]])
        with torch.inference_mode():
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0].double()
        naive = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        assert metric.compute(predictions=[text], **given)["total_nll"] == pytest.approx(naive)


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_further_outputs_are_switched_off_for_the_time_of_a_call(metric, tokenizer, name):
    """Falcon with its attention attended to later tokens."""
    model = make_model("falcon")
    expected = metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)
    settings = vars(model.config)
    stored = f"_{name}" if f"_{name}" in settings else name
    settings[stored] = True
    result = metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)
    assert settings[stored] is True
    assert result["total_nll"] == expected["total_nll"]
    assert result["signature"] == expected["signature"]


def test_routers_of_adapters_that_have_not_run_are_refused(metric, tokenizer, tmp_path):
    """Every call subtracted the general adapters from the others once more: 5.72, 5.90, 5.83."""
    peft = pytest.importorskip("peft")
    arrow = peft.tuners.lora
    if not hasattr(arrow, "create_arrow_model"):
        pytest.skip("this peft has no Arrow")
    base, paths = make_model("llama", max_position_embeddings=64), []
    for number in range(3):
        lora = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="gaussian")
        adapter = peft.get_peft_model(copy.deepcopy(base), lora)
        enliven(adapter, seed=number)
        paths.append(str(tmp_path / f"{number}"))
        adapter.save_pretrained(paths[-1])
    config = arrow.ArrowConfig(use_gks=True, rng_seed=1, top_k=2)
    model = arrow.create_arrow_model(base, paths[:2], config, general_adapter_paths=paths[2:])
    with pytest.raises(
        ValueError, match=r"`model` must have run once with its adapters.*Run the model on any text"
    ):
        metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)
    ids = torch.tensor([[BOS, *ids_of(TEXTS[1])]])
    with torch.no_grad():
        model(input_ids=ids)
        logits = model(input_ids=ids).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    for _ in range(2):
        result = metric.compute(predictions=TEXTS[1:2], model=model, tokenizer=tokenizer)
        assert result["total_nll"] == pytest.approx(expected, rel=1e-5)


def test_weights_that_the_first_pass_truncates_are_refused(metric, tokenizer, tmp_path):
    """KaSA's base, where it is loaded later: the first call digested other weights than it scored."""
    peft = pytest.importorskip("peft")
    if not hasattr(peft, "KasaConfig"):
        pytest.skip("this peft has no KaSA")
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], kasa_config=peft.KasaConfig())
    peft.get_peft_model(make_model("llama"), lora).save_pretrained(tmp_path)
    model = peft.PeftModel.from_pretrained(make_model("llama"), tmp_path, low_cpu_mem_usage=True)
    with pytest.raises(ValueError, match=r"`model` must have run once.*KaSA truncates the base"):
        metric.compute(predictions=TEXTS, model=model.eval(), tokenizer=tokenizer)
    with torch.no_grad():
        model(input_ids=torch.tensor([[BOS]]))
    one, again = (
        metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer) for _ in range(2)
    )
    assert one["signature"] == again["signature"] and one["total_nll"] == again["total_nll"]


def test_adapters_that_sample_are_refused(metric, tokenizer):
    """Noise can be of rare tokens only, which no probe reads: 11.08 and 11.16 nats in two calls."""
    peft = pytest.importorskip("peft")
    if not hasattr(peft, "PveraConfig"):
        pytest.skip("this peft has no PVeRA")
    config = peft.PveraConfig(r=2, target_modules=["q_proj"], sample_at_inference=True)
    model = peft.get_peft_model(make_model("llama"), config).eval()
    with pytest.raises(ValueError, match=r"'default' with `sample_at_inference`.* Load it with"):
        metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)
    with model.disable_adapter():
        metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)


def test_adapters_that_the_next_pass_unmerges_are_refused(metric, tokenizer):
    """The first call changed the weights that the second one digested."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(make_model("llama"), lora).eval()
    model.merge_adapter()
    with (
        model.disable_adapter(),
        pytest.raises(ValueError, match=r"merged and disabled.* Call unmerge_adapter"),
    ):
        metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)
    assert metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)["num_tokens"]


def make_doge(seed, size, kv_heads, kept):
    """Make a model that attends to a choice of as many tokens as are kept."""
    config = transformers.DogeConfig(
        vocab_size=VOCABULARY, hidden_size=size, intermediate_size=size, num_hidden_layers=2,
        num_attention_heads=2 * kv_heads, num_key_value_heads=kv_heads, keep_window_size=kept,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    enliven(model, seed=2)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.A.normal_()
    return model


needs_doge = pytest.mark.skipif(
    not hasattr(transformers, "DogeConfig"), reason="this transformers has no Doge"
)


@needs_doge
def test_attention_to_a_choice_of_tokens_reads_no_padding(metric, tokenizer):
    """Words that repeat tie: 0.02 nats a token by the size of a batch, or a refusal."""
    model = make_doge(seed=0, size=32, kv_heads=1, kept=12)
    lengths = (40, 31, 25, 47, 30, 28)
    texts = [random_text(length, seed=1, vocabulary=9) for length in lengths]  # of six words
    check_batches(metric, tokenizer, model, texts, max_length=64, most=3)


@needs_doge
def test_attention_to_a_choice_of_tokens_reads_passes_alone(metric, tokenizer):
    """Equal words tie up to rounding, which depends on the batch: single tokens changed by 0.3 nats."""
    model = make_doge(seed=1, size=64, kv_heads=2, kept=12)
    texts = [random_text(length, seed=length, vocabulary=9) for length in (150, 150, 200, 150)]
    for carry in (False, True):
        given = {"predictions": texts, "model": model, "tokenizer": tokenizer, "carry": carry}
        alone, together = (
            metric.compute(max_length=40, stride=8, batch_size=size, **given) for size in (1, 4)
        )
        assert together["perplexities"] == alone["perplexities"]
