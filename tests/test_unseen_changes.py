"""Changes of a live model's code that a comparison of its parts does not show: reading again does.

Every call reads the beginning of the probe text, and probes a model again that reads it otherwise.
"""

import functools
import importlib
import math
import types

import pytest
import torch
import transformers
from models import VOCABULARY, make_byte_tokenizer, make_model, make_tokenizer, random_text
from test_live_models import adapted, check_seen, parts_with

from perplexity_sliding.models.digest import model_revision
from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.models.logits import CPU_PADDING

LLAMA = "transformers.models.llama.modeling_llama"


@pytest.fixture(params=["with the texts", "alone"])
def measure(metric, tokenizer, request):
    """Measure with short passes, or with longer ones than the beginning is read along with."""

    def measure(model):
        texts = [random_text(60), random_text(33, seed=1)]
        if request.param == "alone":
            return metric.compute(
                predictions=[random_text(CPU_PADDING + 4)],
                model=model,
                tokenizer=tokenizer,
                max_length=CPU_PADDING + 2,
            )
        return metric.compute(predictions=texts, model=model, tokenizer=tokenizer, stride=4)

    return measure


class Settings(dict):
    """Settings that own code reads; `factor` is 1 at first."""

    def __init__(self):
        super().__init__(factor=1.0)


def long_llama(**settings):
    return make_model("llama", max_position_embeddings=64, **settings)


def a_property(patch, settings):
    def scaled(layer):
        return lambda values: settings["factor"] * layer._modules["act_fn"](values)

    layers = importlib.import_module(LLAMA).LlamaMLP
    patch.setattr(layers, "act_fn", property(scaled), raising=False)


def a_class(patch, settings):
    modeling = importlib.import_module(LLAMA)
    plain = modeling.BaseModelOutputWithPast

    class Output(plain):
        def __init__(self, last_hidden_state=None, **others):
            super().__init__(last_hidden_state=settings["factor"] * last_hidden_state, **others)

    patch.setattr(modeling, "BaseModelOutputWithPast", Output)


def replace_rotation(make):
    """Put a function in the place of one that rotates half of a head."""

    def install(patch, settings):
        modeling = importlib.import_module(LLAMA)
        patch.setattr(modeling, "rotate_half", make(modeling.rotate_half, settings))

    return install


def autograd_function(plain, settings):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_, values):
            return settings["factor"] * plain(values)

    return Scaled.apply


def operator(plain, settings):
    @torch.library.custom_op("perplexity_sliding_tests::rotated", mutates_args=())
    def rotated(values: torch.Tensor) -> torch.Tensor:
        return settings["factor"] * plain(values)

    return rotated


def from_a_file_like_a_module_of_python(plain, settings):
    own = {"__name__": "operator", "plain": plain, "settings": settings}
    exec("def rotated(values):\n    return settings['factor'] * plain(values)", own)
    return own["rotated"]


def forged(plain, settings):
    class Rotated:
        def __call__(self, values):
            return settings["factor"] * plain(values)

    Rotated.__module__ = "torch.nn.functional"
    return Rotated()


def of_parameters(patch, settings):
    def multiply(parameter, other):
        return settings["factor"] * torch.mul(parameter, other)

    patch.setattr(torch.nn.Parameter, "__mul__", multiply, raising=False)


def within_torch(patch, settings):
    plain = torch._C._nn.silu
    patch.setattr(torch._C._nn, "silu", lambda *values: settings["factor"] * plain(*values))


FORMS = {
    "a property": a_property,
    "a class": a_class,
    "an autograd function": replace_rotation(autograd_function),
    "an operator": replace_rotation(operator),
    "a file named like a module of Python": replace_rotation(from_a_file_like_a_module_of_python),
    "a class that says to be torch's": replace_rotation(forged),
    "a method of parameters": of_parameters,
    "a function within torch": within_torch,
}


@pytest.mark.parametrize("install", FORMS.values(), ids=FORMS)
def test_own_code_reads_a_setting_that_changes(measure, monkeypatch, install):
    settings = Settings()
    install(monkeypatch, settings)
    model = long_llama()
    before = measure(model)
    settings["factor"] = 1.5
    check_seen(before, measure(model))


def test_a_tensor_of_a_partial_changes_in_place(measure, monkeypatch):
    factors = torch.ones(1)
    modeling = importlib.import_module(LLAMA)
    monkeypatch.setattr(modeling, "rotate_half", functools.partial(torch.mul, factors))
    model = long_llama()
    before = measure(model)
    factors.fill_(-3.0)
    check_seen(before, measure(model))


def test_a_function_changes_in_place(measure, monkeypatch):
    modeling = importlib.import_module(LLAMA)
    model = long_llama()
    before = measure(model)
    other = types.FunctionType((lambda x: 2 * x).__code__, {})
    monkeypatch.setattr(modeling.rotate_half, "__code__", other.__code__)
    check_seen(before, measure(model))


def test_a_kernel_is_registered(measure):
    model = long_llama()
    before = measure(model)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("silu", lambda values: 2 * values * torch.sigmoid(values), "CPU")
        check_seen(before, measure(model))
    finally:
        library._destroy()


def test_a_property_of_a_configuration(measure, monkeypatch):
    model = make_model("gemma2", max_position_embeddings=64)
    before = measure(model)
    monkeypatch.setattr(
        type(model.config), "final_logit_softcapping", property(lambda config: 0.5), raising=False
    )
    check_seen(before, measure(model))


def test_a_table_of_a_library(metric, tokenizer, monkeypatch):
    waves = pytest.importorskip("peft.tuners.waveft.wavelet")
    model = adapted("WaveFTConfig", n_frequency=50)()
    arguments = {"predictions": [random_text(30)], "model": model, "tokenizer": tokenizer}
    before = metric.compute(**arguments)
    tables = {
        name: [3 * number for number in filters] for name, filters in waves._WAVELET_COEFFS.items()
    }
    monkeypatch.setattr(waves, "_WAVELET_COEFFS", tables)
    check_seen(before, metric.compute(**arguments))


def test_a_function_of_a_variant(metric, tokenizer):
    model = adapted("LoraConfig", r=2, use_dora=True)()
    arguments = {"predictions": [random_text(30)], "model": model, "tokenizer": tokenizer}
    before = metric.compute(**arguments)
    for layer in parts_with(model, "lora_variant"):
        for variant in layer.lora_variant.values():
            variant.forward = lambda *args, result, **_: 2 * result
    check_seen(before, metric.compute(**arguments))


# ---- what is read again, and when


class Gain:
    """A factor on the activations behind a position, which nothing but a forward shows."""

    def __init__(self, patch, position):
        self.factor, plain = 1.0, torch._C._nn.silu

        def silu(values, *others):
            result = plain(values, *others)
            result[..., position:, :] *= self.factor
            return result

        patch.setattr(torch._C._nn, "silu", silu)


def compute(metric, model, length, **others):
    texts = [random_text(length)]
    return metric.compute(
        predictions=texts, model=model, tokenizer=make_tokenizer(), max_length=length, **others
    )


def test_a_share_of_the_tokens_is_read_again(metric, monkeypatch):
    """A change behind the beginning shows in a call of many tokens only."""
    gain = Gain(monkeypatch, position=40)
    model = make_model("llama", max_position_embeddings=1024)
    short, long = (compute(metric, model, length) for length in (100, 1000))
    gain.factor = 2.0
    after = compute(metric, model, 100)
    assert (after["probe"], after["perplexity"] != short["perplexity"]) == (short["probe"], True)
    check_seen(long, compute(metric, model, 1000))


def test_a_new_long_probe_does_not_hide_that_the_short_one_has_changed(metric, monkeypatch):
    gain = Gain(monkeypatch, position=0)
    model = make_model("llama", max_position_embeddings=1024)
    before = compute(metric, model, 100)
    gain.factor = 2.0
    after = compute(metric, model, 600)
    assert after["probe"] == compute(metric, model, 100)["probe"] != before["probe"]


def test_a_change_is_seen_by_a_reference_too(metric, tokenizer, monkeypatch):
    gain = Gain(monkeypatch, position=0)
    model, reference = (make_model(name, vocab_size=VOCABULARY) for name in ("llama", "gpt2"))
    arguments = {
        "predictions": [random_text(30)],
        "model": reference,
        "tokenizer": tokenizer,
        "reference": model,
    }
    before = metric.compute(**arguments)["comparison"]
    gain.factor = 2.0
    after = metric.compute(**arguments)["comparison"]
    assert after["reference_probe"] != before["reference_probe"]


def test_a_checkpoint_keeps_the_scores_of_the_model_before_apart(
    metric, tokenizer, monkeypatch, tmp_path
):
    gain = Gain(monkeypatch, position=0)
    model, texts = make_model("llama"), [random_text(30)]
    arguments = {"predictions": texts, "model": model, "tokenizer": tokenizer}
    before = metric.compute(**arguments, checkpoint=tmp_path / "scores")
    gain.factor = 2.0
    after = metric.compute(**arguments, checkpoint=tmp_path / "scores")
    check_seen(before, after)
    assert after == metric.compute(**arguments)


def test_carried_states_are_no_way_around(metric, monkeypatch):
    gain = Gain(monkeypatch, position=0)
    model = make_model("llama")
    arguments = {"stride": 4, "carry": True}
    before = compute(metric, model, 16, **arguments)
    gain.factor = 2.0
    check_seen(before, compute(metric, model, 16, **arguments))


def test_a_model_that_looks_ahead_from_now_on_is_refused(measure, monkeypatch):
    settings = {"shift": 0}
    plain = torch._C._nn.silu

    def silu(values, *others):
        return plain(values.roll(-settings["shift"], -2), *others)

    monkeypatch.setattr(torch._C._nn, "silu", silu)
    model = long_llama()
    measure(model)
    settings["shift"] = 1
    with pytest.raises(
        ValueError, match="its prediction for a token changes with the tokens after it"
    ):
        measure(model)


def test_a_vocabulary_of_another_size_ends_the_call_but_not_the_next(measure, monkeypatch):
    gain, look = Gain(monkeypatch, position=0), LanguageModel._look
    model = long_llama()
    measure(model)
    gain.factor = 2.0
    with monkeypatch.context() as patch:
        patch.setattr(
            LanguageModel,
            "_look",
            lambda self, state: look(self, state)._replace(vocabulary_size=VOCABULARY + 1),
        )
        with pytest.raises(
            ValueError, match=r"^`model` must answer as in earlier calls.*Call again"
        ):
            measure(model)
    measure(model)


# ---- tokenizers


def shifted(ids, by):
    """Add to token ids, of one text or of several."""
    return [shifted(row, by) for row in ids] if isinstance(ids, list) else (ids + by) % VOCABULARY


def replaced_method(kind, put):
    """Put something in the place of a method that encodes, in a class of transformers."""

    def install(patch, settings):
        name = "_batch_encode_plus" if "_batch_encode_plus" in vars(kind) else "_encode_plus"
        plain = getattr(kind, name)

        def encode(tokenizer, *args, **kwargs):
            encoding = plain(tokenizer, *args, **kwargs)
            encoding["input_ids"] = shifted(encoding["input_ids"], settings["by"])
            return encoding

        patch.setattr(kind, name, put(encode))

    return install


class Descriptor:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return self if instance is None else functools.partial(self.function, instance)


def batch_encoding(patch, settings):
    kind = transformers.BatchEncoding
    plain = kind.__getitem__

    def get(encoding, name):
        value = plain(encoding, name)
        return shifted(value, settings["by"]) if name == "input_ids" else value

    patch.setattr(kind, "__getitem__", get)


FAST = transformers.PreTrainedTokenizerFast
ENCODERS = {
    "a property": replaced_method(
        FAST, lambda encode: property(lambda self: functools.partial(encode, self))
    ),
    "a descriptor": replaced_method(FAST, Descriptor),
    "its results": batch_encoding,
}


@pytest.mark.parametrize("install", ENCODERS.values(), ids=ENCODERS)
def test_code_of_a_fast_tokenizer(metric, monkeypatch, install):
    settings = {"by": 0}
    install(monkeypatch, settings)
    model, tokenizer = make_model("llama"), make_tokenizer()
    arguments = {"predictions": [random_text(30)], "model": model, "tokenizer": tokenizer}
    before = metric.compute(**arguments)
    settings["by"] = 1
    after = metric.compute(**arguments)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


class OtherOffsets(FAST):
    """A tokenizer whose tokens are the library's, and its places of them its own."""

    def _encode_plus(self, *args, **kwargs):
        return self._moved(super()._encode_plus(*args, **kwargs))

    def _batch_encode_plus(self, *args, **kwargs):
        return self._moved(super()._batch_encode_plus(*args, **kwargs))

    by = 0

    def _moved(self, encoding):
        if "offset_mapping" in encoding:
            places = encoding["offset_mapping"]
            encoding["offset_mapping"] = [
                [(max(0, first - self.by), end) for first, end in row] for row in places
            ]
        return encoding


def test_offsets_of_a_tokenizer_of_ones_own(metric):
    model, digests = make_model("llama"), []
    for by in (0, 1):
        tokenizer = OtherOffsets(tokenizer_object=make_tokenizer()._tokenizer)
        tokenizer.by = by
        result = metric.compute(predictions=["w5 w6"], model=model, tokenizer=tokenizer)
        digests.append(result["signature"])
    assert digests[0] != digests[1]


# ---- what a second look at findings of earlier calls must not keep


def test_masked_tokens_do_not_hide_the_others(metric, tokenizer, monkeypatch):
    """The mean of a probe with infinite nlls was infinite, whatever the code."""
    results = []
    for factor in (1.0, 2.0):
        modeling = importlib.import_module(LLAMA)
        plain = modeling.rotate_half
        model = make_model("llama")
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
        with torch.no_grad():
            model.lm_head.bias[40:45] = -math.inf
            model.lm_head.bias[45:50] = torch.finfo(torch.float32).min
        with monkeypatch.context() as patch:
            patch.setattr(modeling, "rotate_half", lambda x, f=factor, plain=plain: f * plain(x))
            results.append(
                metric.compute(predictions=["w5 w6 w7 w8 w9"], model=model, tokenizer=tokenizer)
            )
    check_seen(*results)


def test_shared_contexts_are_no_way_around_either(metric, tokenizer, monkeypatch):
    """The refusal of a model that looks ahead was taken for an architecture without a cache."""
    settings, plain = {"shift": 0}, torch._C._nn.silu

    def silu(values, *others):
        return plain(values.roll(-settings["shift"], -2), *others)

    monkeypatch.setattr(torch._C._nn, "silu", silu)
    model = make_model("llama", max_position_embeddings=512)
    arguments = {
        "predictions": [random_text(40, seed) for seed in range(4)],
        "contexts": [random_text(300, seed=5) + " "] * 4,
        "boundary": "joint",
        "model": model,
        "tokenizer": tokenizer,
    }
    metric.compute(**arguments)
    metric.compute(**arguments)
    settings["shift"] = 1
    with pytest.raises(ValueError, match="must be a causal language model"):
        metric.compute(**arguments)


def test_another_limit_has_a_probe_of_its_own(metric):
    """Bloom has no limit but the tokenizer's: the probe of the first call was that of all."""
    model, results = make_model("bloom"), []
    for limit in (8, 64, 8):
        tokenizer = make_tokenizer()
        tokenizer.model_max_length = limit
        arguments = {"predictions": [random_text(30)], "tokenizer": tokenizer, "max_length": 8}
        results.append(metric.compute(model=model, **arguments))
        assert (
            results[-1]["probe"] == metric.compute(model=make_model("bloom"), **arguments)["probe"]
        )
    assert results[0] == results[2]


class ByLength(transformers.models.llama.modeling_llama.LlamaMLP):
    """A layer whose settings say later that the length of the pass matters."""

    settings: dict

    def forward(self, x):
        return super().forward(x) * self.settings.get(x.shape[1] > 20, 1.0)


def by_length(settings):
    model = make_model("llama", max_position_embeddings=256)
    for layer in model.model.layers:
        own = ByLength(model.config)
        own.load_state_dict(layer.mlp.state_dict())
        object.__setattr__(own, "settings", settings)
        layer.mlp = own
    return model.eval()


def test_own_code_for_which_the_length_matters_later(metric, tokenizer):
    """It was probed again, and its passes read as parts of others as before."""
    settings = {}
    model = by_length(settings)
    arguments = {
        "predictions": [random_text(250), random_text(40, seed=1)],
        "tokenizer": tokenizer,
        "max_length": [16, 64],
        "stride": 16,
    }
    before = metric.compute(model=model, **arguments)
    settings[True] = 3.0
    after = metric.compute(model=model, **arguments)
    assert after == metric.compute(model=by_length(settings), **arguments)
    assert "passes:apart" not in before["signature"]
    assert "passes:apart" in after["signature"]


def test_a_function_of_ones_own_is_looked_at_by_long_passes(metric, tokenizer, monkeypatch):
    """An architecture is known by the library's code; with other code, the length may matter."""
    modeling = importlib.import_module(LLAMA)
    plain = modeling.apply_rotary_pos_emb

    def by_length(query, key, *others, **named):
        rotated, of_keys = plain(query, key, *others, **named)
        return rotated * (2.0 if query.shape[2] > 20 else 1.0), of_keys

    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", by_length)
    model = make_model("llama", max_position_embeddings=64)
    result = compute(metric, model, 60)
    assert "passes:apart" in result["signature"]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_growing_frequencies_have_one_signature(metric, tokenizer, kind):
    """Whether a call has texts that are long enough to show it or not: their parts are merged."""
    settings = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0}
    if kind == "longrope":
        settings |= {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
        settings["original_max_position_embeddings"] = 16
    model = make_model("llama", max_position_embeddings=16, rope_scaling=settings)
    arguments = {"model": model, "tokenizer": tokenizer, "max_length": 64}
    texts = [random_text(10), random_text(60, seed=1)]
    results = [metric.compute(predictions=[text], **arguments) for text in texts]
    whole = metric.compute(predictions=texts, **arguments, return_token_scores=True)
    assert {result["signature"] for result in results} == {whole["signature"]}
    assert "apart" not in whole["signature"]


def test_a_copied_cache_is_no_change(metric, tokenizer, monkeypatch):
    """Copying writes a name into a class, which was taken for a change of its code."""
    looks, look = [], LanguageModel._look
    monkeypatch.setattr(
        LanguageModel, "_look", lambda self, state: looks.append(1) or look(self, state)
    )
    model = make_model("llama", max_position_embeddings=512)
    for _ in range(2):
        metric.compute(
            predictions=[random_text(40, seed) for seed in range(4)],
            contexts=[random_text(300, seed=5) + " "] * 4,
            boundary="joint",
            model=model,
            tokenizer=tokenizer,
        )
    assert looks == [1]


class AfterEnds(torch.nn.Module):
    """A module that looks for the ends of texts."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, ids):
        return (ids == self.config.eos_token_id).float()


def test_an_end_of_text_that_a_module_looks_for():
    revisions = []
    for looks in (False, True):
        for number in (1, 2):
            model = make_model("llama", eos_token_id=number)
            if looks:
                model.after_ends = AfterEnds(model.config)
            revisions.append(model_revision(model, None))
    assert revisions[0] == revisions[1]
    assert len(set(revisions)) == 3


@pytest.mark.parametrize("role", ["padding", "extra"])
def test_a_token_that_becomes_special(metric, role):
    """One for padding changes nothing; any other changes what completes a token, and is digested."""
    model, results = make_model("llama", vocab_size=300), []
    for change in (False, True):
        tokenizer = make_byte_tokenizer()
        if change and role == "padding":
            tokenizer.pad_token = "Ġ"
        elif change:
            tokenizer.add_special_tokens({"cls_token": "Ġ"})
        results.append(
            metric.compute(
                predictions=["the cat sat on the mat"], model=model, tokenizer=tokenizer, words=True
            )
        )
    before, after = results
    assert (after["signature"] == before["signature"]) == (role == "padding")
    assert (after["word_scores"] == before["word_scores"]) == (role == "padding")


# ---- models that change themselves


@pytest.mark.parametrize("training", [False, True])
def test_rwkv_divides_its_weights_once(metric, tokenizer, training):
    """Its flag was restored after a pass, and its weights were divided again by the next one."""
    model = make_model("rwkv", num_hidden_layers=12, rescale_every=6).train(training)
    text = random_text(9, seed=3)
    arguments = {"predictions": [text], "model": model, "tokenizer": tokenizer}
    results = [metric.compute(**arguments) for _ in range(3)]
    ids = torch.tensor([[0, *tokenizer(text)["input_ids"]]])
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, use_cache=False).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    assert math.log(results[0]["perplexity"]) == pytest.approx(expected.item(), rel=1e-6)
    assert results[0] == results[1] == results[2]


def test_looking_for_tables_leaves_an_attention_that_short_texts_change(tokenizer):
    """BigBird reads a few tokens by full attention, and whatever follows."""
    config = transformers.BigBirdConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=512, is_decoder=True, block_size=4,
        num_random_blocks=1, attention_type="block_sparse",
    )  # fmt: skip
    model = transformers.BigBirdForCausalLM(config).eval()
    assert LanguageModel.adopt(model, tokenizer).limit.length == 512
    assert model.bert.attention_type == "block_sparse"


@pytest.mark.parametrize("number", [3, 5])
def test_virtual_tokens_are_no_positions(metric, tokenizer, number):
    """Three of them were as many as the tokens of the pass that looks for tables of positions."""
    peft = pytest.importorskip("peft")
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=number)
    model = peft.get_peft_model(make_model("llama", max_position_embeddings=64), config).eval()
    result = metric.compute(predictions=[random_text(30)], model=model, tokenizer=tokenizer)
    assert result["max_length"] == 64


def test_experts_in_half_precision_have_one_signature(metric, tokenizer):
    """Some lengths round tokens to other experts, and others do not: parts of a run are merged."""
    model = make_model("mixtral", max_position_embeddings=256).to(torch.bfloat16)
    signatures = {
        compute(metric, model, length)["signature"].replace(f"window:{length}", "")
        for length in (24, 40, 60, 80, 100, 128)
    }
    assert not any("apart" in signature for signature in signatures)
