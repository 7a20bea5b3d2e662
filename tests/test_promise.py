"""The promise of signature and probe, attacked: other numbers show in one of them.

Each attack changes what a model computes where the first 256 tokens of a single pass do not show it.
"""

import copy
import functools

import accelerate
import pytest
import reference
import torch
import transformers
from models import NEWEST, VOCABULARY, make_model, random_text

from perplexity_sliding.digests import same_probe, same_probes
from perplexity_sliding.models.interface import ProbeText
from perplexity_sliding.models.logits import BodyThenHead
from perplexity_sliding.models.module import library_code

MODELING = transformers.models.llama.modeling_llama
TEXT = random_text(700)


def long_llama(**config):
    return make_model("llama", max_position_embeddings=1024, **config)


def long_mistral():
    settings = long_llama().config.to_dict()
    settings.pop("model_type")
    torch.manual_seed(0)
    return transformers.MistralForCausalLM(
        transformers.MistralConfig(**settings | {"sliding_window": None})
    ).eval()


@pytest.fixture
def score(metric, tokenizer):
    def score(model, texts=(TEXT,), **arguments):
        return metric.compute(
            predictions=list(texts), model=model, tokenizer=tokenizer, **arguments
        )

    return score


def tell_apart(one, other):
    """Whether signature or probes show that two results are of other computations."""
    return one["signature"] != other["signature"] or not same_probes(one, other)


def far_mask(plain):
    """Let tokens from the 300th on see the last 32 alone."""

    def attention(query, key, value, attn_mask=None, is_causal=False, **kwargs):
        length = query.shape[-2]
        places = torch.arange(length)
        sees = places[None] <= places[:, None]
        sees &= (places[:, None] < 300) | (places[None] > places[:, None] - 32)
        return plain(query, key, value, attn_mask=sees, **kwargs)

    return attention


def far_rotation(plain):
    """Group positions behind the 300th, as Self-Extend does."""

    def rotate(query, key, cos, sin, *args, **kwargs):
        places = torch.arange(cos.shape[1])
        places[300:] = 300 + (places[300:] - 300) // 8
        return plain(query, key, cos[:, places], sin[:, places], *args, **kwargs)

    return rotate


FUNCTIONS = {
    "attention": (torch.nn.functional, "scaled_dot_product_attention", far_mask),
    "rotation": (MODELING, "apply_rotary_pos_emb", far_rotation),
}


@pytest.mark.parametrize("place, name, change", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_that_act_behind_the_first_tokens(score, monkeypatch, place, name, change):
    before = score(long_llama())
    monkeypatch.setattr(place, name, change(getattr(place, name)))
    after = score(long_llama())
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-3)
    assert tell_apart(before, after)


@pytest.mark.skipif(not NEWEST, reason="the mask was made elsewhere")
def test_a_mask_that_acts_behind_the_first_tokens(score, monkeypatch):
    plain = MODELING.create_causal_mask

    def mask(*args, **kwargs):
        length = (kwargs.get("inputs_embeds", kwargs.get("input_embeds"))).shape[1]
        places = torch.arange(length)
        sees = places[None] <= places[:, None]
        sees &= (places[:, None] < 300) | (places[None] > places[:, None] - 32)
        return sees[None, None]

    before = score(long_llama())
    monkeypatch.setattr(MODELING, "create_causal_mask", mask)
    after = score(long_llama())
    assert plain is not mask
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-3)
    assert tell_apart(before, after)


def own_configuration(module, **changes):
    """Give a module a copy of its configuration with other settings."""
    module.config = copy.deepcopy(module.config)
    for name, value in changes.items():
        setattr(module.config, name, value)


@pytest.mark.skipif(not NEWEST, reason="masks were made of other settings")
def test_a_sliding_window_in_a_submodules_own_configuration(score):
    plain, changed = long_mistral(), long_mistral()
    own_configuration(changed.model, sliding_window=300)
    before, after = score(plain), score(changed)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-5)
    assert before["signature"] != after["signature"]


def longrope(factor):
    return {
        "rope_type": "longrope",
        "factor": 2.0,
        "long_factor": [factor] * 8,
        "short_factor": [1.0] * 8,
        "original_max_position_embeddings": 300,
        "rope_theta": 10000.0,
    }


@pytest.mark.skipif(not NEWEST, reason="frequencies were computed of other settings")
def test_long_factors_in_a_submodules_own_configuration(score):
    plain, changed = (long_llama(rope_scaling=longrope(3.0)) for _ in range(2))
    own_configuration(changed.model.rotary_emb, rope_parameters=longrope(8.0))
    before, after = score(plain), score(changed)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert before["signature"] != after["signature"]


def test_an_equal_copy_of_the_configuration_is_no_other_model(score):
    plain, copied = long_llama(), long_llama()
    own_configuration(copied.model)
    assert score(copied)["signature"] == score(plain)["signature"]


def many_rows(rows):
    """Rotate in another way in batches of more than three rows: some rows, or all."""

    def change(plain):
        def rotate(query, key, cos, sin, *args, **kwargs):
            rotated = plain(query, key, cos, sin, *args, **kwargs)
            if len(query) > 3:
                rotated[0][rows] *= 1.5
            return rotated

        return rotate

    return change


@pytest.mark.parametrize("rows", [slice(None), slice(1), slice(3, None)])
def test_code_that_acts_on_many_rows(score, monkeypatch, rows):
    texts = [random_text(40, seed) for seed in range(12)]
    change = many_rows(rows)(MODELING.apply_rotary_pos_emb)
    monkeypatch.setattr(MODELING, "apply_rotary_pos_emb", change)
    with pytest.raises(ValueError, match="must treat the rows of a batch independently"):
        score(make_model("llama"), texts)


def huge(model):
    """Make the logits of a model as large as half a million."""
    with torch.no_grad():
        model.model.norm.weight.mul_(1e5)
    return model


@pytest.mark.parametrize(("share", "is_caught"), [(0, False), (2e-6, True)])
def test_code_that_acts_on_many_rows_of_huge_logits(score, share, is_caught):
    """Rounding is a share of the largest logit, and what is more than that is seen in these too."""
    model = huge(make_model("llama"))
    model.model.norm.register_forward_hook(
        lambda _, args, hidden: hidden * (1 + share * (len(hidden) > 3))
    )
    texts = [random_text(15, seed) for seed in range(12)]
    if is_caught:
        with pytest.raises(ValueError, match="must treat the rows of a batch independently"):
            score(model, texts)
    else:
        assert score(model, texts)["perplexity"] == float("inf")  # beyond exp


def test_large_logits_of_usual_nlls_round_by_their_size(score):
    """One bit of a logit of a million is 0.06 nats, hundreds of times what a usual nll rounds by."""
    model = make_model("llama")

    def nudge(module, args, logits):
        logits = logits + 1e6
        up = torch.arange(logits.shape[-1]) % 2 * (len(logits) > 3)
        return torch.where(up > 0, torch.nextafter(logits, logits + 1), logits)

    model.lm_head.register_forward_hook(nudge)
    assert score(model, [random_text(15, seed) for seed in range(12)])["mean_perplexity"] < 1e5


def test_a_function_replaced_behind_a_model_that_was_scored(score, monkeypatch):
    model = long_llama()
    before = score(model)
    plain = torch.nn.functional.silu
    monkeypatch.setattr(torch.nn.functional, "silu", lambda hidden, **_: 1.05 * plain(hidden))
    after = score(model)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert tell_apart(before, after)


@pytest.mark.skipif(not NEWEST, reason="there was no such table")
def test_a_mask_registered_behind_a_model_that_was_scored(score, monkeypatch):
    table = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    model = long_llama(attn_implementation="eager")
    before = score(model)
    plain = table["eager"]

    def mask(*args, **kwargs):
        made = plain(*args, **kwargs).clone()
        made[..., 20:, 0] = torch.finfo(made.dtype).min
        return made

    monkeypatch.setitem(type(table)._global_mapping, "eager", mask)
    after = score(model)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-5)
    assert tell_apart(before, after)


@pytest.mark.skipif(not NEWEST, reason="there was no such table")
def test_a_table_replaced_behind_a_model_that_was_scored(score, monkeypatch):
    model = long_llama()
    before = score(model)
    table = copy.deepcopy(MODELING.ALL_ATTENTION_FUNCTIONS)
    plain = table["sdpa"]
    table["sdpa"] = lambda module, query, *args, **kwargs: plain(
        module, 1.5 * query, *args, **kwargs
    )
    monkeypatch.setattr(MODELING, "ALL_ATTENTION_FUNCTIONS", table)
    after = score(model)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert tell_apart(before, after)


def test_a_kernel_set_where_there_was_none(monkeypatch):
    """As plug-ins do it; the model runs it from then on."""
    kinds = frozenset(type(module) for module in make_model("rwkv").modules())
    before = library_code(kinds)
    assert library_code(kinds) is before
    modeling = transformers.models.rwkv.modeling_rwkv
    monkeypatch.setattr(modeling, "rwkv_cuda_kernel", lambda *args: args)
    assert library_code(kinds) is not before


def test_a_number_of_own_code_in_a_model_that_was_scored(score):
    model, factor = long_llama(), [1.0]
    model.model.layers[0].mlp.register_forward_hook(lambda *args: args[2] * factor[0])
    before = score(model)
    factor[0] = 1.5
    after = score(model)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert tell_apart(before, after)


class Stronger(accelerate.hooks.ModelHook):
    """What accelerate runs after a forward: the output times a number."""

    factor = 1.0

    def post_forward(self, module, output):
        return output * self.factor


def with_a_hook_of_accelerate(model, hook):
    """The hook is one of two, as where weights are offloaded as well."""
    accelerate.hooks.add_hook_to_module(model.model.layers[0].mlp, accelerate.hooks.ModelHook())
    accelerate.hooks.add_hook_to_module(model.model.layers[0].mlp, hook, append=True)
    return model


def with_a_tensor(model, number):
    model.model.norm.variance_epsilon = number
    return model


def mamba_2(limits):
    model = make_model("mamba2")
    model.backbone.layers[0].mixer.time_step_limit = limits
    return model


def stronger(graph, inputs):
    """Compile a part of a model to one with an output of twice the size."""
    return lambda *values: tuple(2 * output for output in graph(*values))


def celu(blocks, alpha):
    """Give blocks of GPT-2 an activation of torch's with a number of its own."""
    for block in blocks:
        del block.mlp.act
        block.mlp.act = functools.partial(torch.nn.functional.celu, alpha=alpha)


def changed_in_place():
    """Models, and what changes a number in them that is no attribute of a module."""
    hook, epsilon, limits = Stronger(), torch.tensor(1e-6), [0.0, float("inf")]
    hooked = with_a_hook_of_accelerate(long_llama(), hook)
    mamba, gpt2 = mamba_2((0.0, float("inf"))), make_model("gpt2")
    mixer, blocks = mamba.backbone.layers[0].mixer, gpt2.transformer.h
    compiled, curved, roberta = long_llama(), make_model("gpt2"), make_model("roberta")
    layer, curves = compiled.model.layers[0].mlp, curved.transformer.h
    celu(curves, 1.0)
    return {
        "a number of a hook of accelerate": (hooked, lambda: setattr(hook, "factor", 2.0)),
        "a tensor": (with_a_tensor(long_llama(), epsilon), lambda: epsilon.add_(0.5)),
        "a list": (mamba_2(limits), lambda: limits.insert(1, 1e-3)),
        "a tuple": (mamba, lambda: setattr(mixer, "time_step_limit", (0.0, 1e-3))),
        "a layer that runs twice": (gpt2, lambda: blocks.append(blocks[0])),
        "a compiled layer": (compiled, lambda: layer.compile(backend=stronger)),
        "a number of a function of torch": (curved, lambda: celu(curves, 3.0)),
        "a token without position": (
            roberta,
            lambda: setattr(roberta.roberta.embeddings, "padding_idx", 1),
        ),
    }


@pytest.mark.parametrize("place", changed_in_place())
def test_what_is_changed_in_place_in_a_model_that_was_scored(score, place):
    model, change = changed_in_place()[place]
    before = score(model)
    change()
    after = score(model)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert tell_apart(before, after)


def test_a_checkpoint_refuses_a_hook_of_ones_own_in_accelerate(score, tmp_path):
    model = with_a_hook_of_accelerate(make_model("llama"), Stronger())
    with pytest.raises(ValueError, match="`checkpoint` must be left out with a model whose code"):
        score(model, [random_text(12)], checkpoint=str(tmp_path / "run.sqlite"))


def test_a_checkpoint_tells_apart_what_acts_behind_the_first_tokens(score, monkeypatch, tmp_path):
    """Its file then has the scores of two models, each found again."""
    path = str(tmp_path / "run.sqlite")
    results = [score(long_llama(), checkpoint=path)]
    monkeypatch.setattr(
        MODELING, "apply_rotary_pos_emb", far_rotation(MODELING.apply_rotary_pos_emb)
    )
    results += [score(long_llama(), checkpoint=path) for _ in range(2)]
    assert results[1]["perplexity"] != pytest.approx(results[0]["perplexity"], rel=1e-3)
    assert results[2] == results[1]


def test_the_long_probe_is_the_mean_nll_of_a_long_made_up_text(score):
    result = score(long_llama())
    ids = ProbeText.of(VOCABULARY, None, 701).ids
    nlls = [None, *reference.row_nlls(long_llama(), ids)]
    expected = [[512, sum(nlls[256:512]) / 256], [701, sum(nlls[445:701]) / 256]]
    assert [stop for stop, _ in result["long_probe"]] == [512, 701]
    for (_, nll), (_, of_reference) in zip(result["long_probe"], expected):
        assert nll == pytest.approx(of_reference, abs=1e-5)


@pytest.fixture
def passes(monkeypatch):
    """Record the shapes of the passes over which texts and made-up texts are read."""
    shapes, plain = [], BodyThenHead.states

    def states(self, ids, *args):
        shapes.append(tuple(ids.shape))
        return plain(self, ids, *args)

    monkeypatch.setattr(BodyThenHead, "states", states)
    return shapes


def test_short_passes_have_no_long_probe_and_cost_no_pass(score, passes):
    model = long_llama()
    assert score(model, [random_text(200)])["long_probe"] is None
    assert passes == [(1, 255), (1, 200)]
    passes.clear()
    assert score(model, [random_text(180, 1)])["long_probe"] is None
    assert passes == [(1, 16), (1, 180)], "the beginning of the probe text, and the text"


def test_a_long_probe_is_read_once_for_all_shorter_passes(score, passes):
    model = long_llama()
    first = score(model)
    assert passes == [(1, 255), (1, 700), (1, 700)]
    passes.clear()
    shorter = score(model, [random_text(600)])
    assert passes == [(1, 600 // 32), (1, 600)], "the beginning of the probe text, and the text"
    assert shorter["long_probe"][0] == first["long_probe"][0]
    alone = score(long_llama(), [random_text(600)])
    for pair, of_alone in zip(shorter["long_probe"], alone["long_probe"], strict=True):
        assert pair == pytest.approx(of_alone, abs=1e-6)


def test_the_rows_of_a_larger_batch_are_tried_once(score, passes):
    model, texts = long_llama(), [random_text(100, seed) for seed in range(5)]
    score(model, texts)
    assert passes == [(1, 255), (5, 100), (1, 100), (1, 100)]
    passes.clear()
    score(model, texts[:4])
    assert passes == [(1, 16), (4, 100)]


def test_totals_of_passes_of_other_lengths_add_up_to_those_of_one_call(score):
    """And are refused where what they share is of another computation."""
    texts = [TEXT, random_text(600, 1), random_text(90, 2)]
    whole = score(long_llama(), texts)
    results = [score(long_llama(), [text], return_totals=True) for text in texts]
    for order in ([0, 1, 2], [2, 1, 0]):
        summed = sum(results[number]["totals"] for number in order).result()
        assert [stop for stop, _ in summed["long_probe"]] == [512, 701]
        assert same_probes(summed, whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODELING, "apply_rotary_pos_emb", far_rotation(MODELING.apply_rotary_pos_emb))
        other = score(long_llama(), texts[1:2], return_totals=True)
    assert same_probe(other["probe"], whole["probe"], whole["signature"])
    with pytest.raises(ValueError, match="Totals can be added only"):
        results[0]["totals"] + other["totals"]
