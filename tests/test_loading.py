"""What is loaded, when it is loaded again, and how many tokens it takes."""

import os
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from models import (
    VOCABULARY,
    make_model,
    make_tokenizer,
    random_text,
    save,
)

from perplexity_sliding import PerplexitySliding
from perplexity_sliding.models import loading
from perplexity_sliding.models.loading import context_limit
from perplexity_sliding.plan.windows import ContextLimit

TEXTS = [random_text(40), random_text(7, seed=1)]
TINY = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
VISION = TINY | {"image_size": 32, "patch_size": 8}  # 16 patches


# ---- how many tokens a model takes


def gemma3():
    text = TINY | {
        "vocab_size": VOCABULARY,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
    }
    config = transformers.Gemma3Config(
        text_config=text, vision_config=VISION, mm_tokens_per_image=4
    )
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.skipif(not hasattr(transformers, "Gemma3Config"), reason="this has no Gemma 3")
def test_the_window_of_a_multimodal_model_is_its_language_parts(metric):
    """Its vision tower has a table of positions as well, of 16 patches."""
    model = gemma3().eval()
    assert context_limit(model, make_tokenizer()) == ContextLimit(512, None)
    result = metric.compute(
        predictions=[random_text(60)], model=model, tokenizer=make_tokenizer(), max_length=40
    )
    assert "|window:40|" in result["signature"]


class RelativePositions(torch.nn.Module):
    """A model with a table of distances between tokens, under a name like that of positions."""

    def __init__(self, reach=4):
        super().__init__()
        self.reach = reach
        self.embed = torch.nn.Embedding(VOCABULARY, VOCABULARY)
        self.rel_pos_emb = torch.nn.Embedding(reach, 1)

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids):
        places = torch.arange(input_ids.shape[1])
        distance = places[:, None] - places
        weight = self.rel_pos_emb(distance.clamp(0, self.reach - 1))[..., 0].exp()  # (T, T)
        hidden = (weight * (distance >= 0)) @ self.embed(input_ids)
        return types.SimpleNamespace(logits=hidden)


def test_a_table_of_relative_positions_is_no_limit(metric):
    torch.manual_seed(0)
    model = RelativePositions()
    assert context_limit(model, make_tokenizer()) == ContextLimit(None, None)
    arguments = {"predictions": TEXTS, "model": model, "tokenizer": make_tokenizer()}
    assert metric.compute(max_length=20, **arguments)["num_tokens"] == 47


@pytest.mark.parametrize(
    "family, padding, kept", [("Bert", 0, 0), ("Roberta", 1, 2), ("Roberta", 3, 4)]
)
def test_entries_that_a_table_keeps_for_itself_do_not_count(family, padding, kept):
    """RoBERTa's positions begin behind that of the padding token, whichever id that has."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        max_position_embeddings=20,
        is_decoder=True,
        pad_token_id=padding,
        **TINY,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert context_limit(model, make_tokenizer()).table == 20 - kept


# ---- when a model is loaded again


def test_retrained_weights_in_a_subfolder(metric, tmp_path):
    repository = str(tmp_path / "repository")
    save(f"{repository}/inner", make_model("gpt2"), make_tokenizer())
    arguments = {
        "predictions": TEXTS,
        "model_id": repository,
        "model_kwargs": {"subfolder": "inner"},
    }
    before = metric.compute(**arguments)
    time.sleep(0.02)  # past the resolution of file times
    make_model("gpt2", seed=7).save_pretrained(f"{repository}/inner")
    after = metric.compute(**arguments)
    expected = metric.compute(
        predictions=TEXTS, model=make_model("gpt2", seed=7), tokenizer=make_tokenizer()
    )
    assert after["perplexity"] == expected["perplexity"] != before["perplexity"]


def test_a_configuration_that_is_changed_between_calls(metric, folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    arguments = {"predictions": TEXTS, "model_id": folder, "model_kwargs": {"config": config}}
    before = metric.compute(**arguments)
    config.layer_norm_epsilon = 0.5
    after = metric.compute(**arguments)
    expected = metric.compute(
        predictions=TEXTS,
        model=make_model("gpt2", layer_norm_epsilon=0.5),
        tokenizer=make_tokenizer(),
    )
    assert after["perplexity"] == expected["perplexity"]
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)


def test_a_limit_of_the_tokenizer_that_is_set_between_calls(metric, tmp_path):
    """BLOOM has no limit of its own."""
    folder = save(tmp_path / "bloom", make_model("bloom"), make_tokenizer())
    tokenizer = make_tokenizer()
    found = []
    for length in (16, 64):
        tokenizer.model_max_length = length
        given = {"predictions": TEXTS, "model_id": folder, "tokenizer": tokenizer}
        found.append(metric.compute(**given)["max_length"])
    assert found == [16, 64]


# ---- threads


def test_models_are_loaded_in_threads(folder):
    """transformers exchanges functions while it loads: tied weights were missing, and for good."""

    def perplexity(_=None):
        own = PerplexitySliding()
        return own.compute(predictions=TEXTS, model_id=folder)["perplexity"]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(perplexity, range(8)))
    assert together == [perplexity()] * 8


# ---- adapters


@pytest.fixture
def adapted(tmp_path, folder):
    """A folder with a LoRA adapter of the model in `folder`, and that model with it."""
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
    model = peft.get_peft_model(base, config, autocast_adapter_dtype=False).eval()
    model.save_pretrained(tmp_path / "adapter")
    return str(tmp_path / "adapter"), model


@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out")
def test_a_folder_that_holds_an_adapter(metric, folder, adapted):
    """It is put over the model that it names; the tokenizer is that model's."""
    path, model = adapted
    assert sorted(os.listdir(path)) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = metric.compute(predictions=TEXTS, model_id=path)
    live = metric.compute(predictions=TEXTS, model=model, tokenizer=make_tokenizer())
    without = metric.compute(predictions=TEXTS, model_id=folder)
    assert loaded["perplexity"] == pytest.approx(live["perplexity"], rel=1e-5)
    assert loaded["perplexity"] != pytest.approx(without["perplexity"], rel=1e-3)
    time.sleep(0.02)
    make_model("gpt2", seed=7).save_pretrained(folder)
    retrained = metric.compute(predictions=TEXTS, model_id=path)
    assert retrained["perplexity"] != pytest.approx(loaded["perplexity"], rel=1e-3)


@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out", "ignore:.*save_embedding_layers")
def test_an_adapter_with_tokens_of_its_own(metric, folder, tmp_path):
    """Its base gets rows for them, as in peft."""
    peft = pytest.importorskip("peft")
    base, tokenizer = transformers.AutoModelForCausalLM.from_pretrained(folder), make_tokenizer()
    tokenizer.add_tokens(["<user>", "<bot>"])
    base.resize_token_embeddings(len(tokenizer))
    torch.nn.init.normal_(base.get_input_embeddings().weight[-2:].detach())
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
    model = peft.get_peft_model(base, config, autocast_adapter_dtype=False).eval()
    adapter = save(tmp_path / "adapter", model, tokenizer)
    texts = [f"<user> {TEXTS[1]} <bot> {TEXTS[0]}"]
    named = metric.compute(predictions=texts, model_id=adapter)
    live = metric.compute(predictions=texts, model=model, tokenizer=tokenizer)
    assert named["num_tokens"] == live["num_tokens"] == 49
    assert named["perplexity"] == pytest.approx(live["perplexity"], rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out")
def test_an_adapter_of_an_incomplete_model(metric, folder, adapted):
    """The base's report is lost in transformers 5: each load had other random weights."""
    path, _ = adapted
    weights = safetensors.torch.load_file(Path(folder, "model.safetensors"))
    kept = {name: weight for name, weight in weights.items() if "h.1.mlp" not in name}
    assert len(kept) < len(weights)
    safetensors.torch.save_file(kept, Path(folder, "model.safetensors"), {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"4 are missing .*first: transformer\.h\.1\.mlp\.c_fc\.bias"
    ):
        metric.compute(predictions=TEXTS, model_id=path)


def test_an_adapter_where_peft_is_missing(metric, adapted, monkeypatch):
    monkeypatch.setattr(loading, "is_peft_available", lambda: False)
    with pytest.raises(ValueError, match=r"`model_id`=.* an adapter.*pip install peft"):
        metric.compute(predictions=TEXTS, model_id=adapted[0])


# ---- what is no folder

PLACES = [
    ("no/such/folder", "no folder '.*no/such/folder'. Pass the folder"),
    ("model.safetensors", "the file '.*model.safetensors'. Pass the folder"),
]  # fmt: skip


@pytest.mark.parametrize("name, message", PLACES, ids=[name for name, _ in PLACES])
def test_what_is_no_folder_is_told_apart(metric, tmp_path, name, message):
    if "/" not in name:
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(
        ValueError, match=f"`model_id` must be a folder or a name on the Hub.*{message}"
    ):
        metric.compute(predictions=TEXTS, model_id=str(tmp_path / name))


def test_weights_that_are_written_in_place_are_loaded_again(metric, folder):
    """Open weights are those of the file: they changed under the digest of the former."""
    path = Path(folder, "model.safetensors")
    weights = safetensors.torch.load_file(path)
    first = metric.compute(predictions=["w5 w6 w7"], model_id=folder)
    changed = safetensors.torch.save(
        {name: 2 * weight for name, weight in weights.items()}, {"format": "pt"}
    )
    with path.open("r+b") as file:
        file.write(changed)
    second = metric.compute(predictions=["w5 w6 w7"], model_id=folder)
    assert second["signature"] != first["signature"]


def test_a_configuration_is_named_by_its_folder(metric, folder, tmp_path):
    """It ended in an AttributeError."""
    expected = metric.compute(predictions=["w5 w6 w7"], model_id=folder)
    transformers.AutoConfig.from_pretrained(folder).save_pretrained(tmp_path / "config")
    kwargs = {"config": str(tmp_path / "config")}
    result = metric.compute(predictions=["w5 w6 w7"], model_id=folder, model_kwargs=kwargs)
    assert result["total_nll"] == expected["total_nll"]


def test_a_table_of_sines_is_a_limit(metric, tokenizer):
    """CTRL's is neither an embedding nor named like others: an IndexError."""
    config = transformers.CTRLConfig(
        vocab_size=len(tokenizer), n_positions=16, n_embd=32, dff=32, n_layer=2, n_head=2
    )
    model = transformers.CTRLLMHeadModel(config)
    given = {"predictions": [random_text(30)], "model": model, "tokenizer": tokenizer}
    assert metric.compute(max_length=16, **given)["num_tokens"] == 30
    with pytest.raises(ValueError, match=r"`max_length` must be between 2 and 16, .* got 17"):
        metric.compute(max_length=17, **given)
