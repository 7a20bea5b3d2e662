"""How windows reach the model: batches, the vocabulary head, memory, and a model left as it was."""

import sys
import types
import warnings
from contextlib import contextmanager

import pytest
import reference
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from models import (
    ARCHITECTURES,
    BOS,
    CONTEXT,
    VOCABULARY,
    SlowTokenizer,
    make_model,
    make_tokenizer,
    make_uniform_model,
    random_text,
)
from torch.utils._python_dispatch import TorchDispatchMode

from perplexity_sliding.scoring import passes
from perplexity_sliding.scoring.passes import batches
from perplexity_sliding.scoring.runner import Session

TEXTS = [random_text(length, seed=length) for length in (45, 16, 30, 5, 2)]
IDS = [[int(word[1:]) for word in text.split()] for text in TEXTS]


def naive_nlls(model, stride=8, length=CONTEXT) -> list[float]:
    plans = [reference.sliding(len(ids), length, stride, "once") for ids in IDS]
    return [
        value
        for ids, plan in zip(IDS, plans)
        for _, value in sorted(reference.window_nlls(model, ids, plan, BOS).items())
    ]


def nlls(result) -> list[float]:
    return [value for scores in result["token_scores"] for value in scores["nll"]]


# ---- batches


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=200),
    room=st.integers(1, 1000),
    padding=st.integers(0, 300),
)
def test_batches_hold_every_window_once_and_keep_to_their_room(lengths, room, padding):
    groups = batches(range(len(lengths)), lengths, room, padding)
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        group_lengths = [lengths[number] for number in group]
        assert len(group_lengths) * max(group_lengths) <= room or len(group_lengths) == 1
        assert len(group_lengths) * max(group_lengths) - sum(group_lengths) <= padding
    ordered = [lengths[number] for group in groups for number in group]
    assert ordered == sorted(lengths, reverse=True), "longest first"


@pytest.mark.parametrize(
    ("lengths", "room", "padding", "expected"),
    [
        ([8, 8, 8, 8], 16, 9, [[0, 1], [2, 3]]),
        # short windows share the room of long ones
        ([2, 8, 2, 2, 2], 8, 9, [[1], [0, 2, 3, 4]]),
        # a window that is larger than the room runs alone
        ([20, 3, 3], 8, 9, [[0], [1, 2]]),
        # one that would be padded too far begins a batch
        ([8, 6, 5, 4, 4], 99, 5, [[0, 1, 2], [3, 4]]),
        ([8, 6, 5, 4, 4], 99, 4, [[0, 1], [2, 3, 4]]),
    ],
)
def test_batches(lengths, room, padding, expected):
    assert batches(range(len(lengths)), lengths, room, padding) == expected


class BelowTheModel(TorchDispatchMode):
    """Sees what torch computes while texts are scored, below the model: a hook would be code in it."""

    @contextmanager
    def while_scoring(self):
        """Watch, but not while the model is tried, where a mode counts as code of the caller's own."""
        score_share = Session._score_share

        def watched(session, *args):
            with self:
                score_share(session, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "_score_share", watched)
            yield self

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        self.see(function.overloadpacket, args, output)
        return output


class BatchSizes(BelowTheModel):
    """Lists the shapes (windows, tokens) of what the embedding of the tokens reads."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def see(self, function, args, output):
        if function == torch.ops.aten.embedding and args[0].shape[0] == VOCABULARY:
            self.shapes.append(tuple(args[1].shape))


def test_batch_size_counts_whole_windows(metric, tokenizer):
    """No forward pass reads more tokens than `batch_size` windows do; short texts share passes."""
    arguments = {"model": make_model("gpt2"), "tokenizer": tokenizer, "add_start_token": False}
    long = {"predictions": [random_text(CONTEXT + 1, seed) for seed in range(7)], "batch_size": 3}
    short = {"predictions": [random_text(5, seed) for seed in range(8)], "batch_size": 2}
    for call, shapes in (
        (long | {"stride": CONTEXT}, [(3, 16), (3, 16), (1, 16)]),
        (short, [(8, 4)]),
    ):
        metric.compute(**call, **arguments)  # checks the model
        with BatchSizes().while_scoring() as sizes:
            metric.compute(**call, **arguments)
        assert sizes.shapes == shapes


# ---- only the rows that are scored


class RowsOfLogits(BelowTheModel):
    """Counts the rows that products give logits for."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def see(self, function, args, output):
        products = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.linear)
        if function in products and output.shape[-1] == VOCABULARY:
            self.total += output[..., 0].numel()


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - {"opt", "rwkv"}))
def test_only_scored_rows_go_through_the_vocabulary_head(metric, architecture):
    model = make_model(architecture)
    arguments = {"predictions": TEXTS, "model": model, "tokenizer": make_tokenizer()}
    arguments |= {"max_length": CONTEXT, "stride": 2}
    result = metric.compute(**arguments)  # finds out how the model works
    with RowsOfLogits().while_scoring() as counted:
        assert metric.compute(**arguments) == result
    assert result["num_forward_tokens"] > 2 * result["num_tokens"]
    assert counted.total == result["num_tokens"]


def test_models_without_a_reachable_body_compute_few_rows_too(metric):
    """OPT reaches into its body, so rows are asked for by index: `logits_to_keep`."""
    model = make_model("opt")
    arguments = {"predictions": [TEXTS[0]], "model": model, "tokenizer": make_tokenizer()}
    result = metric.compute(stride=2, batch_size=2, **arguments)
    with RowsOfLogits().while_scoring() as counted:
        metric.compute(stride=2, batch_size=2, **arguments)
    assert 0 < counted.total < result["num_forward_tokens"] / 2


class OldForward(transformers.GPT2LMHeadModel):
    """A forward from before `logits_to_keep`, over a body that is no `base_model`."""

    @property
    def base_model(self):
        return self

    def forward(self, input_ids, attention_mask=None):
        hidden = self.transformer(input_ids, attention_mask=attention_mask).last_hidden_state
        return types.SimpleNamespace(logits=self.lm_head(hidden))


class PlainModule(torch.nn.Module):
    """No transformers model at all: token ids in, `.logits` out, no configuration."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, 8)
        self.mix = torch.nn.GRU(8, 16, batch_first=True)
        self.head = torch.nn.Linear(16, VOCABULARY)
        torch.nn.init.normal_(self.head.weight, std=2)

    def forward(self, input_ids):
        return types.SimpleNamespace(logits=self.head(self.mix(self.embed(input_ids))[0]))


class ScaledLogits(transformers.LlamaForCausalLM):
    """Does more to its logits than its head does, in a forward of its own."""

    def forward(self, input_ids, **kwargs):
        output = super().forward(input_ids, **kwargs)
        output.logits = 1.7 * output.logits.tanh() + torch.arange(VOCABULARY) / 50
        return output


def old_forward():
    model = OldForward(make_model("gpt2").config)
    model.load_state_dict(make_model("gpt2").state_dict())
    return model


def like_llama(model_class):
    model = model_class(make_model("llama").config)
    model.load_state_dict(make_model("llama").state_dict())
    return model


@pytest.mark.parametrize("logits_memory", [1, 2**20])
@pytest.mark.parametrize(
    "build",
    [
        old_forward,
        pytest.param(PlainModule),
        lambda: like_llama(ScaledLogits),
        lambda: make_model("mixtral", output_router_logits=True),
        lambda: make_model("llama", output_hidden_states=True, output_attentions=True),
    ],
    ids=["old", "plain", "scaled", "router logits", "hidden states"],
)
def test_unusual_models_equal_the_naive_loop(metric, build, logits_memory, monkeypatch):
    monkeypatch.setattr(passes, "LOGITS_MEMORY", logits_memory)
    model = build().eval()
    result = metric.compute(
        predictions=TEXTS,
        model=model,
        tokenizer=make_tokenizer(),
        max_length=CONTEXT,
        stride=8,
        return_token_scores=True,
    )
    assert nlls(result) == pytest.approx(naive_nlls(model), rel=2e-5, abs=2e-5)


# ---- out of memory


class Cramped:
    """Stands in for a small accelerator: more than `room` windows don't fit."""

    def __init__(self, model, room, error):
        self.room, self.error = room, error
        model.transformer.register_forward_pre_hook(self)

    def __call__(self, module, args):
        if args[0].shape[0] > self.room:
            raise self.error


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("MPS backend out of memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_batches_shrink_when_memory_runs_out(metric, tokenizer, monkeypatch, error):
    """And are lowered where no traceback holds the activations of the batch any more."""
    handled, warn = [], warnings.warn
    monkeypatch.setattr(
        warnings, "warn", lambda *args, **kw: handled.append(sys.exc_info()[1]) or warn(*args, **kw)
    )
    arguments = {"predictions": TEXTS, "tokenizer": tokenizer, "stride": 4}
    expected = metric.compute(model=make_model("gpt2"), **arguments)
    model = make_model("gpt2")
    Cramped(model, room=2, error=error)
    with pytest.warns(
        UserWarning, match=r"Out of memory with \d+ windows of 15 tokens.*batch_size"
    ):
        result = metric.compute(model=model, **arguments)
    assert result["perplexities"] == pytest.approx(expected["perplexities"], rel=1e-6)
    assert handled and not any(handled)


class NoRoom(BelowTheModel):
    """No window fits."""

    def see(self, function, args, output):
        if function == torch.ops.aten.embedding:
            raise OUT_OF_MEMORY[0]


DOES_NOT_FIT = r"One window of 15 tokens does not fit.*reduce `max_length`"


def test_a_single_window_that_does_not_fit(metric, tokenizer):
    """Where memory is gone by the time that texts are scored."""
    arguments = {"model": make_model("gpt2"), "tokenizer": tokenizer}
    metric.compute(predictions=TEXTS, **arguments)  # tries the model
    metric.add_batch(predictions=TEXTS)
    with (
        NoRoom().while_scoring(),
        pytest.warns(UserWarning, match=r"Out of memory with \d+ windows"),
        pytest.raises(MemoryError, match=DOES_NOT_FIT),
    ):
        metric.compute(**arguments)
    assert len(metric) == len(TEXTS)


@pytest.mark.parametrize(
    "error, said",
    [(RuntimeError("other"), "other"), (NotImplementedError(), "NotImplementedError")],
)
def test_other_errors_are_not_taken_for_it(metric, tokenizer, error, said):
    model = make_model("gpt2")
    Cramped(model, room=2, error=error)
    with pytest.raises(ValueError, match=rf"`model` failed on .* windows of .*: {said}\."):
        metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)


# ---- ranks and alternatives


def test_nlls_are_the_same_to_the_bit_whatever_else_is_asked(metric, gpt2, tokenizer):
    given = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer}
    plain, asked = (
        metric.compute(**given, return_token_scores=columns) for columns in (True, ["entropy"])
    )
    assert nlls(asked) == nlls(plain)


def test_ranks_and_alternatives_are_those_of_the_logits(metric, gpt2, tokenizer):
    text, ids = TEXTS[0], IDS[0]
    result = metric.compute(
        predictions=[text],
        model=gpt2,
        tokenizer=tokenizer,
        stride=5,
        return_token_scores=[f"top{VOCABULARY + 5}"],
    )
    (scores,) = result["token_scores"]
    for place, context in reference.sliding(len(ids), CONTEXT, 5, "once").items():
        fed = [BOS if at == reference.START else ids[at] for at in context]
        with torch.inference_mode():
            logits = gpt2(torch.tensor([fed])).logits[0, -1].double()
        order = logits.argsort(descending=True).tolist()
        costs = (-logits.log_softmax(0)).tolist()
        assert scores["rank"][place] == order.index(ids[place]) + 1
        top_ids = [
            tokenizer.convert_tokens_to_ids(name) for name, _ in scores["alternatives"][place]
        ]
        assert top_ids == order  # there are no more
        assert [cost for _, cost in scores["alternatives"][place]] == pytest.approx(
            [costs[number] for number in order], rel=1e-5
        )


def test_tokens_that_are_equally_likely_share_the_best_rank(metric, tokenizer):
    result = metric.compute(
        predictions=TEXTS,
        model=make_uniform_model(),
        tokenizer=tokenizer,
        return_token_scores=["top1"],
    )
    assert {rank for scores in result["token_scores"] for rank in scores["rank"]} == {1}


# ---- left as found


def state_of(model) -> dict:
    return {
        "training": {name: module.training for name, module in model.named_modules()},
        "forwards": {
            name: module.__dict__.get("forward") for name, module in model.named_modules()
        },
        "parameters": {
            name: (p.dtype, p.device, p.requires_grad, id(p), p.grad)
            for name, p in model.named_parameters()
        },
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "config": model.config.to_dict(),
    }


def assert_same(before: dict, after: dict) -> None:
    weights, later = before.pop("weights"), after.pop("weights")
    assert before == after
    assert weights.keys() == later.keys()
    assert all(torch.equal(weights[name], later[name]) for name in weights)


@pytest.mark.parametrize("architecture", ["gpt2", "opt", "mamba"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_passed_model_is_left_as_it_was_found(metric, tokenizer, architecture, fails):
    model = make_model(architecture).train().to(torch.bfloat16)
    children = list(model.modules())
    children[-1].eval()  # a mixture: some parts frozen, some training
    children[len(children) // 2].eval()
    next(model.parameters()).requires_grad_(False)
    before = state_of(model)
    arguments = {"model": model, "tokenizer": tokenizer, "max_length": CONTEXT}
    if fails:
        with pytest.raises(KeyError, match="stop"):
            metric.compute(predictions=TEXTS, callback=stop, **arguments)
        with pytest.raises(ValueError, match="stride"):
            metric.compute(predictions=TEXTS, stride=99, **arguments)
    else:
        metric.compute(predictions=TEXTS, **arguments)
    assert_same(before, state_of(model))
    assert torch.is_grad_enabled()


def stop(progress):
    raise KeyError("stop")


def test_a_forward_that_others_put_on_the_body_stays(metric, tokenizer, gpt2):
    """accelerate hooks modules so; it is called, and it is there afterwards."""
    model = make_model("gpt2")
    calls = []
    plain = model.transformer.forward

    def hooked(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    model.transformer.forward = hooked
    arguments = {"predictions": TEXTS, "tokenizer": tokenizer}
    result = metric.compute(model=model, **arguments)
    assert calls
    assert model.transformer.forward is hooked
    expected = metric.compute(model=gpt2, **arguments)["total_nll"]
    assert result["total_nll"] == pytest.approx(expected, rel=1e-6)


def test_dropout_is_off_while_computing(metric, tokenizer, gpt2):
    model = make_model("gpt2", resid_pdrop=0.9, embd_pdrop=0.9, attn_pdrop=0.9).train()
    arguments = {"predictions": TEXTS, "tokenizer": tokenizer}
    noisy = metric.compute(model=model, **arguments)
    assert noisy["total_nll"] == metric.compute(model=gpt2, **arguments)["total_nll"]


def padded_and_truncated():
    tokenizer = make_tokenizer(padding_side="left", truncation_side="left")
    tokenizer.backend_tokenizer.enable_padding(length=7, pad_id=2, pad_token="<pad>")
    tokenizer.backend_tokenizer.enable_truncation(max_length=5, stride=1)
    return tokenizer


@pytest.mark.parametrize(
    "build",
    [
        make_tokenizer,
        padded_and_truncated,
        lambda: make_tokenizer(pad=False),
        lambda: make_tokenizer(adds_bos=True, adds_eos=True),
        SlowTokenizer,
    ],
    ids=["plain", "padding and truncation on", "no padding token", "adds tokens", "slow"],
)
def test_a_passed_tokenizer_is_left_as_it_was_found(metric, gpt2, build):
    tokenizer = build()

    def state():
        backend = getattr(tokenizer, "backend_tokenizer", None)
        return {
            "backend": backend.to_str() if hasattr(backend, "to_str") else None,
            "special": dict(tokenizer.special_tokens_map),
            "sides": (tokenizer.padding_side, tokenizer.truncation_side),
            "limit": tokenizer.model_max_length,
            "vocabulary": tokenizer.get_vocab(),
        }

    before = state()
    result = metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer)
    assert result["num_tokens"] == sum(map(len, IDS))
    assert state() == before
    with pytest.raises(ValueError, match="stride"):
        metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer, stride=99)
    assert state() == before
