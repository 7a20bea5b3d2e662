"""What somebody's own code and values are described by: equal ones alike, any other one otherwise."""

import functools
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
import xxhash
from models import BOS, make_model, random_text

from perplexity_sliding.digests import as_json
from perplexity_sliding.models import language_model, logits
from perplexity_sliding.models.digest import examine, model_revision
from perplexity_sliding.models.module import must_read_alone, precision, quantisation
from perplexity_sliding.models.probes import state_kept
from perplexity_sliding.models.settings import OBJECTS_DEEP, attributes_of, differs_from_class
from perplexity_sliding.models.weights import digest_tensors, plain_tensors


def holding(value):
    return lambda text: text[:value]


class Module(torch.nn.Module):
    scale = 2.0
    gate = None

    def cut(self):
        pass


@pytest.mark.parametrize(
    "name, value, differs",
    [
        ("scale", 2.0, False),
        ("scale", 3.0, True),
        ("gate", 1, True),
        ("other", 1, True),
        ("cut", holding(1), False),  # a method that is replaced is told elsewhere
    ],
)
def test_an_attribute_that_differs_from_its_class_s(name, value, differs):
    module = Module()
    vars(module)[name] = value
    assert differs_from_class(module, name) == differs


@pytest.mark.parametrize(
    "dtypes, coarsest",
    [
        ([torch.float32], torch.float32),
        ([torch.float64], torch.float32),  # logits are no finer
        ([torch.float32, torch.float16], torch.float16),
        ([torch.float16, torch.bfloat16], torch.bfloat16),
    ],
)
def test_the_coarsest_dtype_decides_what_may_be_rounding(dtypes, coarsest):
    assert precision(torch.nn.ModuleList(torch.nn.Linear(1, 1).to(d) for d in dtypes)) == coarsest


class Quantised:
    """Codes and a scale, as in a tensor subclass; the codes are such a tensor themselves."""

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None


def test_the_tensors_that_make_up_a_quantised_one():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    found = [
        part
        for part in plain_tensors(Quantised(Quantised(one, two), three))
        if part.is_floating_point()
    ]
    assert found == [one, two, three]
    # as bitsandbytes has it in four bits, and in eight
    packed_state = {"absmax": two, "shape": (1,)}
    state = SimpleNamespace(as_dict=lambda packed: {True: packed_state, False: {}}[packed])
    coded = torch.ones(1)
    coded.quant_state = state
    assert [len(tensor) for tensor in plain_tensors(coded)] == [1, 2]
    coded = torch.ones(1)
    coded.SCB = three
    assert [len(tensor) for tensor in plain_tensors(coded)] == [1, 3]


@pytest.mark.parametrize("value, other", [(1, 2), (1.0, 2.0), ("a", "b"), (1, True)])
def test_a_setting_that_changes_while_a_model_is_looked_at_is_given_back(value, other):
    model = torch.nn.Linear(2, 2)
    model.setting = value
    with state_kept(model):
        model.setting = other
    assert model.setting is value


class ReadsPadding(torch.nn.Module):
    """Looks for a padding token in the text, as Gemma 4 does in the place of images."""

    def forward(self, ids):
        return ids == self.config.pad_token_id


@pytest.mark.parametrize("module, has_effect", [(ReadsPadding, True), (torch.nn.Identity, False)])
def test_a_padding_token_counts_where_code_reads_it(module, has_effect):
    model = make_model("gpt2")
    model.reader = module()
    before = model_revision(model, None)
    model.config.pad_token_id = 5
    assert (model_revision(model, None) != before) == has_effect


class ReadsTemperature(torch.nn.Module):
    """Has a setting of its own, a private one, and one that no class of its kind leaves open."""

    scale = 2.0

    def __init__(self):
        super().__init__()
        self.temperature, self._shift, self._unread = 1.0, 1.0, 1.0
        self.scale = None

    @property
    def shift(self):
        return [self._shift for _ in range(1)]

    def forward(self, logits):
        return logits / (self.temperature * self.config.top_p) + self.shift[0]


@pytest.mark.parametrize(
    "owner, name, value, has_effect",
    [
        ("reader", "temperature", 2.0, True),
        ("reader", "_shift", 2.0, True),
        ("reader", "_unread", 2.0, False),
        ("reader", "scale", 2.0, True),
        ("reader", "hidden_dropout", 0.5, False),
        ("reader", "token_dropout", True, True),
        ("config", "temperature", 0.5, True),
        ("config", "top_p", 0.5, True),
        ("config", "top_k", 5, True),
        ("config", "max_length", 5, False),
        ("config", "hidden_dropout", 0.5, False),
        ("config", "token_dropout", True, True),
        ("config", "tables", {"dtype": 1, "max_length": 2}, True),
    ],
)
def test_which_settings_are_digested(owner, name, value, has_effect):
    """Settings of routers were left out for their names, as those of generation are."""
    model = make_model("gpt2")
    model.reader = ReadsTemperature()
    revisions = []
    for each in ({"dtype": 0, "max_length": 2} if name == "tables" else None, value):
        if each is not None:
            setattr(getattr(model, owner), name, each)
        revisions.append(model_revision(model, None))
    assert (revisions[0] != revisions[1]) == has_effect


@pytest.mark.parametrize(
    "values",
    [
        (torch.float32, torch.bfloat16),
        ({1: 2}, {1: 3}),
        ({"a": torch.nn.functional.relu}, {"a": torch.nn.functional.gelu}),
        (
            functools.partial(torch.nn.functional.gelu, approximate="none"),
            functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        ),
        (np.float32(0.5), np.float32(0.25)),
        (
            torch.nn.utils.parametrizations._OrthMaps.cayley,
            torch.nn.utils.parametrizations._OrthMaps.householder,
        ),
    ],
)
def test_settings_that_are_no_plain_numbers(values):
    """Those of numpy and members of enumerations were left out."""
    revisions = []
    for value in (*values, values[0]):
        model = make_model("gpt2")
        model.transformer.h[0].attn.extra = value
        revisions.append(model_revision(model, None))
    assert revisions[0] == revisions[2] != revisions[1]


# ---- settings in objects, hooks and modules beside the tree


def spectral(model, dim):
    layer = model.transformer.h[0].mlp.c_fc
    torch.manual_seed(0)
    torch.nn.utils.spectral_norm(layer, dim=dim)
    return next(iter(layer._forward_pre_hooks.values()))


def test_the_axis_of_a_normalised_weight():
    """It lies in a hook: 0.43 nats a token under one signature."""
    model, other = make_model("gpt2"), make_model("gpt2")
    hook = spectral(model, 0)
    revision = model_revision(model, None)
    model(input_ids=torch.tensor([[1, 2]]))  # which calculates the weight anew
    assert model_revision(model, None) == revision
    hook.dim = 1
    assert model_revision(model, None) != revision
    spectral(other, 1)
    assert "dim" in as_json(attributes_of(other.transformer.h[0].mlp.c_fc))


def test_the_type_in_which_a_layer_calculates():
    hooks = pytest.importorskip("accelerate.hooks")
    if not hasattr(hooks, "LayerwiseCastingHook"):
        pytest.skip("this accelerate has no such hook")
    revisions = set()
    for dtype in (torch.float32, torch.float16):
        model = make_model("gpt2")
        hook = hooks.LayerwiseCastingHook(torch.bfloat16, dtype, False)
        hooks.add_hook_to_module(model.transformer.wte, hook)
        revisions.add(model_revision(model, None))
    assert len(revisions) == 2


def test_offloading_changes_no_revision(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = make_model("gpt2")
    revision = model_revision(model, None)
    assert model_revision(accelerate.cpu_offload(model), None) == revision


class State:
    """As that of bitsandbytes: settings, and what passes move there."""

    __module__ = "bitsandbytes.autograd"

    def __init__(self):
        self.threshold, self.is_training, self.CB = 0.0, True, None


def test_settings_in_an_object_of_a_library():
    """The threshold of bitsandbytes' layers: 0.05 nats a token under one signature."""
    model = make_model("gpt2")
    layer = model.transformer.h[0].mlp.act
    layer.state = State()
    revision = model_revision(model, None)
    layer.state.is_training, layer.state.CB = False, torch.ones(2)
    assert model_revision(model, None) == revision
    layer.state.threshold = 6.0
    assert model_revision(model, None) != revision


def test_a_list_in_an_object_that_is_changed_in_place(monkeypatch):
    """The object was the same, and the structure of the model was not read again."""
    monkeypatch.setattr(State, "__module__", "transformers.elsewhere")
    model = make_model("gpt2")
    state = model.transformer.h[0].mlp.act.state = State()
    state.kept = [1, {"a": 2}]
    revision = model_revision(model, None)
    assert examine(model).structure.is_comparable
    state.kept[1]["a"] = 3
    assert model_revision(model, None) != revision


class Holder:
    __module__ = "elsewhere"

    def __init__(self, value):
        self.value = value


def test_what_is_hidden_is_left_out():
    model = make_model("gpt2")
    layer = model.transformer.h[0].mlp.act
    layer.parents = [model, weakref.proxy(model)]
    layer.own, layer.near = Holder(1), [Holder(1)]
    layer.deep = layer_of = State()
    for _ in range(9):
        layer_of.inner = layer_of = State()
    assert attributes_of(layer).keys() & {"parents", "own", "near"} == set()
    assert as_json(attributes_of(layer)["deep"]).count("State") == OBJECTS_DEEP


def tuned(kind, settings, base=None):
    peft = pytest.importorskip("peft")
    if not hasattr(peft, kind):
        pytest.skip(f"this peft has no {kind}")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(base or make_model("gpt2"), config).eval()


def test_the_settings_of_prompts():
    """They lie in an object of PEFT's wrapper: 0.05 nats a token under one signature."""
    model = tuned("PrefixTuningConfig", {"num_virtual_tokens": 4})
    revision = model_revision(model, None)
    config = model.peft_config["default"]
    config.revision = config.base_model_name_or_path = "elsewhere"
    assert model_revision(model, None) == revision
    config.num_virtual_tokens = 2
    assert model_revision(model, None) != revision


def test_the_settings_of_a_mixture_of_adapters(tmp_path):
    """X-LoRA's: 0.8 nats a token under one signature."""
    settings = {"r": 2, "target_modules": ["q_proj"]}
    adapter = tuned("LoraConfig", settings, make_model("llama"))
    adapter.save_pretrained(tmp_path)
    base = make_model("llama")
    base.config.use_cache = False
    adapters = {"0": str(tmp_path), "1": str(tmp_path)}
    model = tuned("XLoraConfig", {"hidden_size": 32, "xlora_depth": 1, "adapters": adapters}, base)
    revisions = [model_revision(model, None)]
    model(input_ids=torch.tensor([[1, 2]]))
    assert model_revision(model, None) == revisions[0]
    model.base_model.set_global_scaling_weight(3.0)
    revisions.append(model_revision(model, None))
    model.base_model.set_topk_lora(1)
    revisions.append(model_revision(model, None))
    assert len(set(revisions)) == 3


def test_weights_that_layers_share_outside_of_the_model():
    """FRoD's projections: 0.12 nats a token under one signature."""
    settings = {"target_modules": ["v_proj"]}
    model = tuned("FrodConfig", settings, make_model("llama"))
    scored = model.get_base_model()
    revision = model_revision(scored, None)
    assert model_revision(scored, None) == revision
    [shared] = model.base_model.frod_V.values()
    with torch.no_grad():
        shared["default"][3] += 1
    assert model_revision(scored, None) != revision


class Int8Params(torch.nn.Parameter):
    __module__ = "bitsandbytes.nn.modules"


def test_quantised_weights_without_a_configuration_are_named():
    model = make_model("gpt2")
    assert quantisation(model) == []
    layer = model.transformer.h[0].mlp.c_fc
    layer.weight = Int8Params(layer.weight.detach())
    assert quantisation(model) == ["Int8Params"]


def test_how_settings_are_written():
    layer, inside = torch.nn.ReLU(), torch.nn.Tanh()
    state = State()
    state.name_or_path, state.hidden_dropout, state.moved = "elsewhere", 0.1, torch.ones(1)
    state.init_scale, state.kept = 2.0, [3, (None, torch.bfloat16)]
    vars(layer).update(
        number=np.float32(0.5), table={2: "b", 1: {3, 4}}, array=np.arange(3), kind=torch.nn.Tanh,
        code=functools.partial(torch.nn.functional.gelu, approximate="tanh"), state=state,
        # Without effect, or not digested.
        use_cache=True, max_seq_len_cached=5, _unread=5, padding_idx=3, hidden_dropout=0.5,
        tensor=torch.ones(2), meta=[torch.ones(2, device="meta")], of_model=[inside],
        objects=np.array([None]),
    )  # fmt: skip
    assert attributes_of(layer, {inside}) == {
        "inplace": False,
        "number": 0.5,
        "table": [("1", ["3", "4"]), ("2", "b")],
        "array": ["int64", (3,), xxhash.xxh3_128_hexdigest(np.arange(3).tobytes())],
        "kind": "Tanh",
        "code": ["gelu", [], [("'approximate'", "tanh")]],
        "state": ["State", {"threshold": 0.0, "kept": [3, [None, torch.bfloat16]]}],
    }


def test_tensors_and_layers_beside_the_tree_are_written_by_their_numbers():
    layer, shared = torch.nn.ReLU(), torch.nn.Linear(2, 2)
    vars(layer).update(shared=[shared], tensors=[torch.ones(2)])
    before = attributes_of(layer)
    assert before == attributes_of(layer) and before.keys() == {"inplace", "shared", "tensors"}
    with torch.no_grad():
        shared.weight[0, 0] += 1
    layer.tensors[0] += 1
    after = attributes_of(layer)
    assert before["shared"] != after["shared"] and before["tensors"] != after["tensors"]
    assert attributes_of(torch.nn.Dropout(0.5)) == {}


class Scaled(torch.Tensor):
    """A quantised tensor: codes, and how what it is multiplied by is rounded."""

    @staticmethod
    def __new__(cls, codes, rounding):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=codes.dtype)

    def __init__(self, codes, rounding):
        self.codes, self.act_quant_kwargs = codes, rounding

    def __tensor_flatten__(self):
        return ["codes"], {"rounding": self.act_quant_kwargs, "unnamed": object()}

    @classmethod
    def __tensor_unflatten__(cls, tensors, settings, *_):
        return cls(tensors["codes"], settings["rounding"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def plain(value):
            return value.codes if isinstance(value, Scaled) else value

        result = function(*map(plain, args), **(kwargs or {}))
        is_kept = function is torch.ops.aten.detach.default
        return Scaled(result, args[0].act_quant_kwargs) if is_kept else result


def test_settings_of_a_quantised_tensor():
    """torchao's were not: the codes are the same, and 0.2 nats a token between them."""
    codes, digests = torch.ones(2, 2), []
    for rounding in ("rows", "rows", "all"):
        digests.append(digest_tensors([("", p) for p in plain_tensors(Scaled(codes, rounding))]))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("granularity, alone", [("PerTensor", True), ("PerRow", False)])
def test_activations_that_are_rounded_to_one_scale(granularity, alone):
    """As torchao's PerTensor does: 0.56 nats between texts alone and in a batch."""
    rounding = SimpleNamespace(granularity=type(granularity, (), {})())
    layer = torch.nn.Linear(2, 2)
    layer.weight = torch.nn.Parameter(Scaled(torch.ones(2, 2), rounding), requires_grad=False)
    assert must_read_alone(layer) == alone


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_rounded_with_a_whole_batch_is_read_alone(metric, tokenizer, monkeypatch, alone):
    """Neither with other texts, nor with the beginning of the probe text."""
    monkeypatch.setattr(language_model, "is_known_architecture", lambda model: False)
    monkeypatch.setattr(language_model, "must_read_alone", lambda model: alone)
    texts, model = [random_text(9, seed=seed) for seed in range(5)], make_model("llama")
    metric.compute(predictions=texts[:1], model=model, tokenizer=tokenizer)
    read, rows = logits.BodyThenHead.__call__, []

    def counted(head, batch, *args):
        rows.append(len(batch.ids))
        return read(head, batch, *args)

    monkeypatch.setattr(logits.BodyThenHead, "__call__", counted)
    metric.compute(predictions=texts, model=model, tokenizer=tokenizer)
    assert len(rows) >= 2 and (max(rows) == 1) == alone


@pytest.mark.parametrize("package", ["hqq.core.quantize", "optimum.quanto.nn.qlinear"])
def test_settings_of_a_quantised_layer(monkeypatch, package):
    """Scales of HQQ lie in a dict: 0.4 nats a token under one signature."""
    layer = torch.nn.Linear(2, 2)
    kind = type("Layer", (torch.nn.Linear,), {"__module__": package})
    layer.__class__ = kind
    layer.meta = {"scale": torch.ones(2), "nbits": 4}
    before = attributes_of(layer)
    layer.meta["scale"][1] = 2
    assert attributes_of(layer) != before


def test_shadow_is_digested_with_its_second_network(metric, tokenizer):
    peft = pytest.importorskip("peft")
    if not hasattr(peft, "ShadowConfig"):
        pytest.skip("this peft has no Shadow")
    model = tuned("ShadowConfig", {"share_embeddings": False}, make_model("llama"))
    torch.manual_seed(0)
    for weight in model.parameters():
        weight.data = 0.3 * torch.randn_like(weight)
    text = random_text(9)
    results = []
    for _ in range(2):
        results.append(metric.compute(predictions=[text], model=model, tokenizer=tokenizer))
        ids = tokenizer(text)["input_ids"]
        expected = reference.mean(reference.row_nlls(model, [BOS, *ids]))
        assert results[-1]["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
        model.base_model.shadow_backbone["default"].embed_tokens.weight.data[ids] += 1
    assert results[0]["perplexity"] != pytest.approx(results[1]["perplexity"], rel=1e-3)
    assert results[0]["signature"].split("|")[1] != results[1]["signature"].split("|")[1]


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig"])
def test_prompts_that_lengthen_a_text_are_refused_with_the_cause(metric, tokenizer, kind):
    model = tuned(kind, {"num_virtual_tokens": 4}, make_model("llama"))
    with pytest.raises(
        ValueError, match=r"logits of the shape.*16, .*\(prompt tuning, p-tuning\) are"
    ):
        metric.compute(predictions=[random_text(9)], model=model, tokenizer=tokenizer)
