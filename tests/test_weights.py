"""The digest of weights that are not copied for it is that of weights that are."""

from types import SimpleNamespace

import pytest
import torch
from models import make_model

from perplexity_sliding.models import weights
from perplexity_sliding.models.module import named_modules
from perplexity_sliding.models.weights import weights_digest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROW = 16


class Numbers(torch.nn.Module):
    """Tensors of many kinds, some of which fill rows, and one of which is twice in it."""

    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        for name, dtype in (("whole", torch.float32), ("halves", torch.bfloat16)):
            values = torch.randn(3, ROW + 5, generator=draw).to(dtype)
            setattr(self, name, torch.nn.Parameter(values))
        self.turned = torch.nn.Parameter(torch.randn(ROW, 4, generator=draw).T)
        self.register_buffer("codes", torch.arange(-64, 64, dtype=torch.int8))
        self.register_buffer("places", torch.arange(2 * ROW))
        self.register_buffer("doubles", torch.randn(7, generator=draw, dtype=torch.float64))
        self.register_buffer("waves", torch.randn(5, generator=draw, dtype=torch.complex128))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("step", torch.tensor(3.0))
        self.register_buffer("nothing", torch.zeros(0))
        self.again = torch.nn.Linear(ROW + 5, 3, bias=False)
        self.again.weight = self.whole


@pytest.fixture
def far(monkeypatch):
    """Weights of a device that they are not copied from for nothing; a list of the copies."""
    copies = []
    read = weights._digest
    monkeypatch.setattr(weights, "ROW", ROW)
    monkeypatch.setattr(weights, "ROWS", 2)
    monkeypatch.setattr(weights, "FAR_DEVICES", (DEVICE,))
    monkeypatch.setattr(weights, "_digest", lambda modules: copies.append(1) or read(modules))
    weights._factors.cache_clear()
    yield copies
    weights._factors.cache_clear()


def near(model):
    return weights._digest(named_modules(model.cpu()))


def test_sums_are_those_of_whole_numbers(far):
    numbers = torch.tensor([2**63 - 1, -(2**63), -1, 0, 12345678901234567] * 9, device=DEVICE)
    factors = weights._factors(torch.device(DEVICE)).tolist()
    assert len(factors) == ROW and all(factor % 2 for factor in factors)
    expected = [
        sum(n * f for n, f in zip(numbers.tolist()[k : k + ROW], factors)) % 2**64
        for k in range(0, len(numbers), ROW)
    ]
    sums = torch.cat(list(weights._sums(numbers))).tolist()
    assert [value % 2**64 for value in sums] == expected


def test_the_digest_is_the_same_and_weights_are_copied_once(far):
    model = Numbers()
    expected = near(model)
    far.clear()
    model = model.to(DEVICE)
    for _ in range(3):
        assert weights_digest(named_modules(model)) == expected
    assert len(far) == 1


def last_bit(tensor):
    tensor.view(torch.int32)[2, 7] ^= 1


def exchange(tensor):
    tensor[0, 3], tensor[0, 4] = tensor[0, 4].clone(), tensor[0, 3].clone()


def exchange_rows(tensor):
    tensor[[0, 1]] = tensor[[1, 0]]


CHANGES = {
    "a number's last bit": lambda model: last_bit(model.whole),
    "two numbers": lambda model: exchange(model.whole),
    "two rows": lambda model: exchange_rows(model.halves),
    "the sign of a zero": lambda model: model.step.mul_(0).neg_(),
    "the last number of a row that is not full": lambda model: model.halves[-1, -1].add_(1),
    "a number that is turned": lambda model: model.turned[1, 2].add_(1e-7),
    "a code": lambda model: model.codes[100].add_(1),
    "a place": lambda model: model.places[-1].add_(2**40),
    "a double": lambda model: model.doubles[3].add_(1e-15),
    "an imaginary part": lambda model: model.waves.imag[4].add_(1e-15),
    "a flag": lambda model: model.flags[1].logical_not_(),
    "a shape": lambda model: setattr(model.halves, "data", model.halves.data.T.contiguous()),
    "a dtype": lambda model: setattr(model.halves, "data", model.halves.data.float()),
    "a tensor more": lambda model: model.register_buffer("more", model.nothing.clone()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(far, change):
    model = Numbers().to(DEVICE)
    with torch.no_grad():
        model.step.zero_()
        weights_digest(named_modules(model))
        change(model)
    seen = weights_digest(named_modules(model))
    assert len(far) == 2
    assert seen == near(model)


def test_steps_of_a_fused_optimizer_are_seen(far):
    """They leave the versions of the weights as they are."""
    model = make_model("gpt2").to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    digests = []
    for _ in range(3):
        digests.append(weights_digest(named_modules(model)))
        model(torch.arange(8, device=DEVICE)[None]).logits.square().sum().backward()
        optimizer.step()
    assert len(set(digests)) == len(far) == 3


def test_weights_in_two_places(far, monkeypatch):
    """Those of the CPU are read at every call; those of the other one are summed up."""
    monkeypatch.setattr(weights, "FAR_DEVICES", ("cuda", "meta"))
    monkeypatch.setattr(weights, "_lies_far", lambda module: True)
    model = make_model("gpt2")
    first = weights_digest(named_modules(model))
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.bias[3] += 1
    assert first != weights_digest(named_modules(model)) == near(model)


def test_weights_that_cannot_be_summed_up_are_copied(far, monkeypatch):
    def refuse(tensor):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = Numbers()
    expected = near(model)
    monkeypatch.setattr(weights, "_sums", refuse)
    far.clear()
    for _ in range(2):
        assert weights_digest(named_modules(model.to(DEVICE))) == expected
    assert len(far) == 2


def test_the_same_bytes_of_another_type_or_shape_are_other_weights():
    model = torch.nn.Module()
    digests = set()
    numbers = torch.arange(4, dtype=torch.float32)
    for kept in (numbers, numbers.view(torch.int32), numbers.view(2, 2)):
        model.register_buffer("kept", kept)
        digests.add(weights_digest(named_modules(model)))
    assert len(digests) == 3


def test_a_weight_that_stands_in_for_another_is_seen():
    """Its second name was not digested."""
    norm = torch.nn.LayerNorm(4)
    norm.bias = norm.weight
    before = weights_digest(named_modules(norm))
    norm.bias = None
    assert weights_digest(named_modules(norm)) != before


class Biased(torch.nn.Module):
    """A module of one's own with a table that is not saved, under a name of tables that are written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bias_cache", torch.zeros(4), persistent=False)


def test_a_table_of_a_module_of_ones_own_is_digested_whatever_its_name():
    module = Biased()
    before = weights_digest(named_modules(module))
    module.bias_cache[3] = 1.0
    assert weights_digest(named_modules(module)) != before


def digest_with(tensor, **scales):
    module = torch.nn.Module()
    module.register_buffer("kept", tensor)
    for name, value in scales.items():
        setattr(module, name, value)
    return weights_digest(named_modules(module))


@pytest.mark.parametrize(
    "of",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda numbers: torch.complex(numbers, numbers).conj(),
        lambda numbers: torch.complex(numbers, numbers).conj().imag,
    ],
    ids=["sparse", "rows", "conjugate", "negative"],
)
def test_tensors_that_are_not_stored_as_they_are(of):
    """They ended in an error of torch."""
    numbers = torch.arange(6.0).view(2, 3)
    before, after = (
        digest_with(of(numbers)),
        digest_with(of(numbers.index_fill(1, torch.tensor(1), 9.0))),
    )
    assert before != after
    assert digest_with(of(numbers)) == before


def test_scales_that_a_first_pass_moves_stay_in_the_digest():
    """As those of bitsandbytes in 8 bits: a live model had another digest from its second call on."""
    codes, scales = torch.arange(6, dtype=torch.int8), torch.tensor([2.0])
    codes.SCB = scales
    before = digest_with(codes)
    codes.SCB = None
    assert digest_with(codes, state=SimpleNamespace(SCB=scales)) == before
    assert digest_with(codes, state=SimpleNamespace(SCB=2 * scales)) != before


def test_the_order_of_parameters_is_not_digested():
    """PEFT moves one of an experts' two behind the other in its first pass: totals were refused."""
    layers = [torch.nn.Module(), torch.nn.Module()]
    for layer, names in zip(layers, ("ab", "ba")):
        for name in names:
            layer.register_parameter(name, torch.nn.Parameter(torch.full((2,), float(ord(name)))))
    assert len({weights_digest(named_modules(layer)) for layer in layers}) == 1


def test_codes_that_a_layer_keeps_are_digested():
    """bitsandbytes multiplies by its own in 8 bits, whatever the weight became: 20,731 for 91,020."""
    codes, scales = torch.arange(6, dtype=torch.int8), torch.tensor([2.0])
    kept = {"CB": codes.clone(), "SCB": scales}
    codes.SCB = None
    before = digest_with(codes, state=SimpleNamespace(**kept))
    first = torch.arange(6, dtype=torch.int8)
    first.CB, first.SCB = kept.values()  # before its first pass
    first.neg_()
    assert digest_with(first) == before
    codes.data = -codes
    codes.SCB = None
    assert digest_with(codes, state=SimpleNamespace(**kept)) == before
    trained = SimpleNamespace(**kept, has_fp16_weights=True)  # they are converted again
    assert digest_with(codes, state=trained) != before
    kept["CB"] = codes
    assert digest_with(codes, state=SimpleNamespace(**kept)) != before


def test_scales_that_a_layer_keeps_are_digested():
    """bitsandbytes takes its own in 4 bits for a weight that was assigned: 94,827 or 77,267."""

    def state(number):
        return SimpleNamespace(as_dict=lambda packed: {"absmax": torch.tensor([number])})

    def digest(of_weight, of_layer):
        weight = torch.arange(6, dtype=torch.uint8)
        layer = torch.nn.Module()
        layer.register_buffer("weight", weight)
        weight.quant_state, layer.quant_state = of_weight, of_layer
        return weights_digest(named_modules(layer))

    assigned = digest(None, state(2.0))
    assert digest(state(2.0), state(2.0)) == assigned, "after the next pass"
    assert digest(None, state(4.0)) != assigned


@pytest.fixture
def one_process(tmp_path):
    """A group of this process alone."""
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_weights_in_shards_are_digested_as_a_whole(one_process, metric, tokenizer):
    """They ended in an error of torch."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    model = make_model("llama")
    given = {"predictions": ["w5 w6 w7"], "tokenizer": tokenizer}
    whole = metric.compute(model=model, **given)["perplexity"]
    layer = model.model.layers[0].mlp
    before = weights_digest(named_modules(layer))
    tensor.parallel.parallelize_module(
        layer,
        one_process,
        {
            "up_proj": tensor.parallel.ColwiseParallel(),
            "down_proj": tensor.parallel.RowwiseParallel(),
        },
    )
    assert isinstance(layer.up_proj.weight, tensor.DTensor)
    assert weights_digest(named_modules(layer)) == before
    assert metric.compute(model=model, **given)["perplexity"] == pytest.approx(whole)
    with torch.no_grad():
        layer.up_proj.weight.mul_(2)
    assert weights_digest(named_modules(layer)) != before


def test_a_model_that_frees_its_weights_between_passes_is_refused(one_process, metric, tokenizer):
    """Of two processes with halves of its weights, each ended as its memory was read."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = fsdp.FullyShardedDataParallel(make_model("llama"), device_id=torch.device("cpu"))
    for one in (model, torch.nn.Sequential(model)):
        with pytest.raises(ValueError, match="`model` must be without FSDP 1"):
            metric.compute(predictions=["w5 w6 w7"], model=one, tokenizer=tokenizer)


def test_a_model_sharded_in_one_process_scores_as_the_whole_one(one_process, metric, tokenizer):
    """FSDP 2 makes its buffers in its first pass; made in inference mode, they protected themselves from it."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP 2")
    model = make_model("llama")
    given = {"predictions": ["w5 w6 w7"], "tokenizer": tokenizer}
    whole = metric.compute(model=model, **given)["perplexity"]
    fsdp.fully_shard(model.model.layers[0], mesh=one_process)
    fsdp.fully_shard(model, mesh=one_process)
    assert metric.compute(model=model, **given)["perplexity"] == pytest.approx(whole, rel=1e-5)
    ids = torch.arange(5)[None]
    model(input_ids=ids, labels=ids).loss.backward()  # the training goes on


def test_what_inference_mode_forbids_is_refused(metric, tokenizer):
    model = make_model("llama")
    model.register_forward_hook(lambda module, given, output: output.logits._version)
    with pytest.raises(
        ValueError, match="performs an operation that torch's inference mode forbids"
    ):
        metric.compute(predictions=["w5 w6 w7"], model=model, tokenizer=tokenizer)
