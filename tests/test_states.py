"""Reading on from a model's state, against one forward pass with the mask that it amounts to."""

import functools
import types

import pytest
import reference
import torch
import transformers
from models import ARCHITECTURES, CONTEXT, NEWEST, VOCABULARY, enliven, make_model

from perplexity_sliding.models.states import (
    attention_layers,
    can_drop_keys,
    find_carrier,
    find_reader,
)

RELATIVE = ("llama", "gemma2", "bloom", "granite", "cohere", "mixtral", "falcon")
RECURRENT = ("mamba", "rwkv")
# transformers 4.45 gives no state that these could go on from, or none in chunks.
NEW_STATES = ("gemma2", "mamba", "mixtral")
TABLES = ("gpt2", "opt", "gptj", "codegen")


def needs_its_state(name):
    if not NEWEST and name in NEW_STATES:
        pytest.skip("its state in this transformers cannot be gone on from")


def random_ids(num_tokens, num_texts=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 80, (num_texts, num_tokens), generator=generator)


def read_on(reader, ids, segment, memory, size):
    """Yield the logits (B, T, V) of the chunks of texts (B, N) read segment by segment."""
    for begin in range(0, ids.shape[1], segment):
        part = ids[:, begin : begin + segment]
        for first, end in reader.chunks(part.shape[1], size):
            yield reader.logits(part[:, first:end])
        reader.keep(memory)


def carried(model, ids, segment, memory, size):
    """Nlls (B, N - 1) of all tokens of texts (B, N) after their first."""
    reader = find_carrier(model, "model")
    assert not reader.alone or len(ids) == 1 or ids.shape[1] % size != 1
    logits = torch.cat(list(read_on(reader, ids, segment, memory, size)), 1)
    scores = logits[:, :-1].double().log_softmax(-1)
    return -scores.gather(2, ids[:, 1:, None])[..., 0]


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in TABLES])
def test_every_model_without_a_table_is_tried_here(name):
    assert name in RELATIVE + RECURRENT


@torch.inference_mode()
@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize(
    "segment, memory, size",
    [
        (8, 8, 8),
        (8, 5, 3),  # chunks within a segment see the keys of the chunks before
        (3, 12, 16),  # the memory fills over several segments
        (6, 0, 4),  # nothing is carried: disjoint windows
    ],
)
def test_attention_sees_its_segment_and_the_memory_before_it(
    name, segment, memory, size, monkeypatch
):
    needs_its_state(name)
    model, ids = make_model(name), random_ids(41)
    result = carried(model, ids, segment, memory, size)[0]
    if name == "bloom":  # it takes no mask of two dimensions, so its own is replaced
        pass_on_masks(monkeypatch)
    expected = reference.carried_nlls(model, ids[0].tolist(), segment, memory)
    assert result.tolist() == pytest.approx(expected, abs=1e-4)
    if memory:
        without = carried(model, ids, segment, memory - 1, size)[0]
        assert (result - without).abs().max() > 1e-2


def pass_on_masks(monkeypatch):
    """Let Bloom take a mask (1, 1, T, T); its ALiBi takes ones in two dimensions from it."""
    module = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    build = module.BloomModel.build_alibi_tensor
    ones = lambda mask: torch.ones(len(mask), mask.shape[-1], dtype=torch.long)  # noqa: E731
    monkeypatch.setattr(
        module.BloomModel,
        "build_alibi_tensor",
        lambda self, mask, *args, **kwargs: build(
            self, ones(mask) if mask.ndim == 4 else mask, *args, **kwargs
        ),
    )


@torch.inference_mode()
@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_recurrent_model_sees_everything(name, size):
    """However small the chunks, the scores are those of one pass over the whole text."""
    needs_its_state(name)
    model, ids = make_model(name), random_ids(3 * CONTEXT)
    expected = reference.nll(model, ids[0, :1].tolist(), ids[0, 1:].tolist())
    for segment, memory in ((10, 3), (64, 0)):
        result = carried(model, ids, segment, memory, size)[0]
        assert result.tolist() == pytest.approx(expected, abs=1e-4)


def mistral(window):
    """Every layer looks back `window` tokens only."""
    config = transformers.MistralConfig(
        vocab_size=80, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CONTEXT,
        sliding_window=window,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    enliven(model)
    return model


@torch.inference_mode()
@pytest.mark.skipif(not NEWEST, reason="older caches know no attention window")
@pytest.mark.parametrize("segment, memory, size", [(4, 0, 4), (8, 1, 8), (3, 4, 2), (5, 9, 5)])
def test_a_window_of_the_models_own_sees_what_is_kept(segment, memory, size):
    """And no more than the window reaches of that."""
    model, ids = mistral(6), random_ids(50)
    mask = lambda seen: reference.additive(seen, model.dtype)  # noqa: E731
    rows = torch.arange(49)
    seen = (rows[None] >= rows[:, None] // segment * segment - memory) & (
        rows[None] <= rows[:, None]
    )
    seen &= rows[None] > rows[:, None] - 6
    scores = model(ids[:, :-1], attention_mask=mask(seen)).logits.double().log_softmax(-1)
    expected = -scores.gather(2, ids[:, 1:, None])[0, :, 0]
    assert carried(model, ids, segment, memory, size)[0].tolist() == pytest.approx(
        expected.tolist(), abs=1e-4
    )


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "rwkv"])
def test_texts_side_by_side_are_read_as_each_alone(name):
    """The last chunk of RWKV is no single token, which it would mix with the other rows'."""
    model, ids = make_model(name), random_ids(30, num_texts=3)
    together = carried(model, ids, 7, 5, 7)
    alone = torch.cat([carried(model, text[None], 7, 5, 7) for text in ids])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "rwkv", "falcon"])
def test_the_state_stays_as_large_as_it_is(name):
    """Memory is flat: what is kept after a thousand tokens is what was kept after thirty."""
    reader = find_carrier(make_model(name), "model")
    kept = []
    for _ in read_on(reader, random_ids(1000), 16, 8, 16):
        kept.append(state_bytes(reader.state))
    assert max(kept) == max(kept[:4])


def state_bytes(state):
    if isinstance(state, torch.Tensor):
        return state.untyped_storage().nbytes()
    if isinstance(state, list | tuple):
        return sum(map(state_bytes, state))
    return sum(state_bytes([layer.keys, layer.values]) for layer in attention_layers(state))


@torch.inference_mode()
@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_positions_is_refused(name):
    with pytest.raises(
        ValueError, match=r"`carry` must be left out with X: .* a table of 16 entries"
    ):
        find_carrier(make_model(name), "X")


@torch.inference_mode()
def test_frequencies_that_depend_on_the_length_are_refused():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = make_model("llama", rope_scaling=scaling)
    with pytest.raises(ValueError, match="rotary frequencies depend on the length of the pass"):
        find_carrier(model, "X")


@torch.inference_mode()
@pytest.mark.skipif(not NEWEST, reason="one kind of frequencies for all layers")
def test_frequencies_of_one_kind_of_layers_that_depend_on_the_length_are_refused():
    with pytest.raises(ValueError, match="rotary frequencies depend on the length of the pass"):
        find_carrier(make_model("olmo3"), "X")


@torch.inference_mode()
@pytest.mark.skipif(not NEWEST, reason="there was no such model")
def test_chunks_at_set_places_are_refused():
    """Without the keys before them, those that were kept are taken for the start of the text."""
    with pytest.raises(ValueError, match="depends on a token's position in the text, counted by"):
        find_carrier(make_model("llama4", attn_temperature_tuning=False), "X")


@torch.inference_mode()
@pytest.mark.skipif(not NEWEST, reason="there was no such model")
def test_attention_that_is_scaled_by_the_place_is_refused():
    with pytest.raises(ValueError, match="depends on a token's position in the text, counted by"):
        find_carrier(make_model("llama4", layer_types=["full_attention"] * 2), "X")


def test_keys_of_an_indexer_are_not_dropped():
    assert can_drop_keys(types.SimpleNamespace(keys=torch.zeros(1)))
    assert not can_drop_keys(types.SimpleNamespace(indexer_keys=torch.zeros(1)))
    assert not can_drop_keys(types.SimpleNamespace(idx_keys=torch.zeros(1)))
    assert not can_drop_keys(types.SimpleNamespace(compressed_kv={"compressor": None}))


@torch.inference_mode()
def test_a_model_whose_state_does_not_go_on_is_refused():
    """The state is returned, but the next chunk begins anew."""
    model = make_model("rwkv")
    forward = model.forward
    model.forward = types.MethodType(
        lambda self, input_ids, state=None, use_cache=None: forward(input_ids, use_cache=True),
        model,
    )
    with pytest.raises(ValueError, match="its logits differ when it continues from the state"):
        find_carrier(model, "X")


@torch.inference_mode()
@pytest.mark.skipif(not NEWEST, reason="its cache kept all keys")
def test_a_cache_that_drops_keys_of_which_its_passes_attend_to_all_is_refused():
    """Beyond the window only, which the short test does not reach: 5 nats a token."""
    config = transformers.MoshiConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, ffn_dim=48, sliding_window=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MoshiForCausalLM(config).eval()
    with pytest.raises(ValueError, match="its logits differ when it continues from the state"):
        find_carrier(model, "X")


@pytest.mark.skipif(not NEWEST, reason="its state in this transformers cannot be gone on from")
@pytest.mark.parametrize("failing", [False, True])
def test_chunks_beyond_the_windows_of_layers_are_tried(monkeypatch, failing):
    """Where memory suffices for it."""
    lengths, model = [], make_model("mixtral", sliding_window=7)
    forward = type(model).forward

    @functools.wraps(forward)
    def counting(self, input_ids, **kwargs):
        lengths.append(input_ids.shape[1])
        if failing and lengths[-1] > 11:
            raise MemoryError
        return forward(self, input_ids, **kwargs)

    monkeypatch.setattr(type(model), "forward", counting)
    with torch.inference_mode():
        assert find_reader(model) is not None
    assert max(lengths) == 18


@torch.inference_mode()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_give_what_one_pass_gives(name):
    """Every architecture's long pass can be read in parts, also with positions from a table."""
    if name != "mixtral":
        needs_its_state(name)
    model, ids = make_model(name), random_ids(CONTEXT)
    reader = find_reader(model)
    reader.begin()
    parts = [reader.logits(ids[:, a:b]) for a, b in reader.chunks(CONTEXT, 6)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, atol=1e-4, rtol=1e-4)
