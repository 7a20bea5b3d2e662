"""What a signature says of a model and a tokenizer, and what `identify` sees."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
import transformers
from models import make_model, random_text, save
from tokenizers import Tokenizer, normalizers, processors
from tokenizers import models as token_models

from perplexity_sliding import compute
from perplexity_sliding.models.identity import (
    LIVE,
    check_tokenizer,
    model_revision,
    probe_text,
    tokenizer_digest,
)

TEXT = random_text(40)


def fields_of(result) -> dict[str, str]:
    return dict(field.split(":", 1) for field in result["signature"].split("|"))


def measure(folder=None, **arguments) -> dict:
    return compute([TEXT], **({"model_id": folder} if folder else {}), **arguments)


# ---- named models


@pytest.fixture(scope="module")
def of_tiny(tiny):
    return fields_of(measure(tiny))


def test_a_copy_of_a_folder_has_the_same_signature(tiny, folder):
    assert measure(folder)["signature"].split("|")[1:] == measure(tiny)["signature"].split("|")[1:]


def test_a_model_that_is_loaded_and_saved_again_has_the_same_identity(tiny, of_tiny, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    again = fields_of(measure(save(tmp_path / "again", model, tokenizer)))
    assert again == of_tiny | {"model": "again"}


def test_one_changed_weight_is_another_revision(folder, of_tiny):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.bias[3] += 1e-3
    model.save_pretrained(folder)
    changed = fields_of(measure(folder))
    assert changed["revision"] != of_tiny["revision"]
    assert changed == of_tiny | {"model": "checkpoint", "revision": changed["revision"]}


def test_an_edited_configuration_is_another_revision(folder, of_tiny):
    path = Path(folder, "config.json")
    settings = json.loads(path.read_text()) | {"scale_attn_by_inverse_layer_idx": True}
    path.write_text(json.dumps(settings))
    weights, configuration = fields_of(measure(folder))["revision"].split(".")
    assert weights == of_tiny["revision"].split(".")[0]
    assert configuration != of_tiny["revision"].split(".")[1]


def test_where_a_model_lies_and_which_version_saved_it_is_no_part_of_its_configuration():
    model = make_model("llama")
    revision = model_revision(model)
    model.config._name_or_path = "elsewhere"
    model.config.transformers_version = "4.45.0"
    model.config.use_cache = False
    assert model_revision(model) == revision


@pytest.mark.parametrize(
    "arguments, field",
    [
        ({"dtype": "bfloat16"}, "dtype"),
        ({"model_kwargs": {"attn_implementation": "eager"}}, "attention"),
        ({"stride": 4}, "stride"),
        ({"max_length": 8}, "window"),
        ({"add_start_token": False}, "start"),
        ({"protocol": "stock", "stride": None}, "protocol"),
        ({"detokenizer": "wikitext"}, "detokenizer"),
    ],
)
def test_each_setting_is_in_the_signature(tiny, of_tiny, arguments, field):
    result = measure(tiny, **arguments)
    assert fields_of(result).get(field) != of_tiny.get(field)
    assert "probe" not in result


def test_autocast_and_products_of_fewer_bits_are_said(gpt2, tokenizer):
    with torch.autocast("cpu", torch.bfloat16):
        result = compute([TEXT], model=gpt2, tokenizer=tokenizer)
    assert fields_of(result)["dtype"] == "float32+autocast(cpu,bfloat16)"
    torch.set_float32_matmul_precision("high")
    try:
        result = compute([TEXT], model=gpt2, tokenizer=tokenizer)
        assert fields_of(result)["dtype"] == "float32+matmul(high)"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_model_of_the_hub_has_its_commit(tiny, tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    place = tmp_path / "models--org--small"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    save(place / "snapshots" / commit, model, tokenizer)
    cache = {"cache_dir": str(tmp_path)}
    result = measure("org/small", model_kwargs=cache)
    assert fields_of(result)["revision"].startswith(f"{commit[:12]}.")
    assert fields_of(result)["model"] == "org/small"


# ---- adapters


@pytest.fixture
def adapted():
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    return peft.get_peft_model(make_model("llama"), settings)


def test_the_active_adapters_are_named(adapted, tokenizer):
    arguments = {"model": adapted, "tokenizer": tokenizer}
    active = measure(**arguments)
    with adapted.disable_adapter():
        disabled = measure(**arguments)
    adapted.merge_adapter()
    merged = measure(**arguments)
    assert [fields_of(r)["adapters"] for r in (active, disabled, merged)] == [
        "default",
        "none",
        "default",
    ]
    assert merged["perplexity"] == pytest.approx(active["perplexity"], rel=1e-4)
    assert disabled["perplexity"] != pytest.approx(active["perplexity"], rel=1e-3)


def test_the_weights_of_an_adapter_are_part_of_the_revision(adapted):
    revision = model_revision(adapted)
    with torch.no_grad():
        next(p for name, p in adapted.named_parameters() if "lora_B" in name)[0, 0] += 0.01
    assert model_revision(adapted) != revision


# ---- live models


def test_a_live_model_is_called_live(gpt2, tokenizer):
    result = measure(model=gpt2, tokenizer=tokenizer)
    assert fields_of(result)["revision"] == fields_of(result)["tokenizer"] == LIVE
    assert "|live|" in result["signature_short"]
    assert "probe" not in result


def test_identify_gives_a_live_model_the_identity_of_its_files(tiny, gpt2, tokenizer):
    named = measure(tiny, identify=True)
    live = measure(model=gpt2, tokenizer=tokenizer, identify=True)
    names = ("revision", "tokenizer")
    assert [fields_of(live)[n] for n in names] == [fields_of(named)[n] for n in names]
    assert live["probe"] == pytest.approx(named["probe"], abs=1e-6)
    assert "live" not in live["signature_short"]


def test_identify_sees_a_trained_step(tokenizer):
    model = make_model("llama")
    before = measure(model=model, tokenizer=tokenizer, identify=True)
    ids = torch.tensor([probe_text(80, None, 12)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    after = measure(model=model, tokenizer=tokenizer, identify=True)
    assert fields_of(after)["revision"] != fields_of(before)["revision"]
    assert after["probe"] != pytest.approx(before["probe"], abs=1e-3)
    assert model.training and model.model.layers[0].training


def test_the_probe_is_the_mean_nll_of_a_made_up_text(gpt2, tokenizer):
    ids = torch.tensor(probe_text(80, 16))
    with torch.no_grad():
        logits = gpt2(ids[None]).logits[0].double()
    nlls = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
    result = measure(model=gpt2, tokenizer=tokenizer, identify=True)
    assert result["probe"] == pytest.approx(nlls.mean().item(), abs=1e-6)
    assert probe_text(80, None) == [*probe_text(80, None, 100), *probe_text(80, None)[100:]]


def test_both_models_of_a_comparison_are_identified(tokenizer):
    models = {"model": make_model("gpt2"), "reference": make_model("gpt2", seed=1)}
    result = measure(**models, tokenizer=tokenizer, identify=True)
    assert math.isfinite(result["comparison"]["reference_probe"])
    assert "live" not in result["comparison"]["reference_signature"]
    assert "reference_probe" not in measure(**models, tokenizer=tokenizer)["comparison"]


def test_a_model_that_is_kept_open_forgets_that_it_was_identified(metric, tiny):
    given = {"predictions": [TEXT], "model_id": tiny}
    assert "probe" in metric.compute(**given, identify=True)
    assert "probe" not in metric.compute(**given)


def test_wrappers_do_not_count(tokenizer):
    model = make_model("llama")
    signature = measure(model=model, tokenizer=tokenizer, identify=True)["signature"]
    wrapped = torch.nn.DataParallel(model)
    assert measure(model=wrapped, tokenizer=tokenizer, identify=True)["signature"] == signature
    compiled = torch.compile(model, backend="eager")
    assert measure(model=compiled, tokenizer=tokenizer, identify=True)["signature"] == signature


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_grow_while_running_are_no_part_of_it(kind):
    factors = {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8} if kind == "longrope" else {}
    model = make_model("llama", rope_scaling={"rope_type": kind, "factor": 4.0, **factors})
    revision = model_revision(model)
    with torch.inference_mode():
        model(torch.arange(60)[None])
    assert model_revision(model) == revision


# ---- tokenizers


def test_a_tokenizer_that_is_saved_and_loaded_has_the_same_digest(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_digest(loaded) == tokenizer_digest(tokenizer)
    loaded(["w3 w4"], padding=True, truncation=True, max_length=4)
    loaded.padding_side = "left"
    assert tokenizer_digest(loaded) == tokenizer_digest(tokenizer)


def renumbered(tokenizer):
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    words = state["model"]["vocab"]
    words["w5"], words["w6"] = words["w6"], words["w5"]
    backend = Tokenizer.from_str(json.dumps(state))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>")


def changed_in_place(name, value):
    def change(tokenizer):
        setattr(tokenizer.backend_tokenizer, name, value)
        return tokenizer

    return change


def with_added_token(tokenizer):
    tokenizer.add_tokens(["w1 w2"])
    return tokenizer


def with_template(tokenizer):
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return tokenizer


STARTS = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])


@pytest.mark.parametrize(
    "change",
    [
        renumbered,
        with_added_token,
        with_template,
        changed_in_place("normalizer", normalizers.Lowercase()),
        changed_in_place("post_processor", STARTS),
    ],
)
def test_a_changed_tokenizer_has_another_digest(tokenizer, change):
    before = tokenizer_digest(tokenizer)
    assert tokenizer_digest(change(copy.deepcopy(tokenizer))) != before


def dropping(dropout):
    letters = {letter: number for number, letter in enumerate("<abcdefghijklmnopqrstuvwxyz")}
    pairs = [("t", "h"), ("i", "n"), ("c", "o"), ("e", "r")]
    words = letters | {a + b: len(letters) + n for n, (a, b) in enumerate(pairs)}
    model = token_models.BPE(words, merges=pairs, unk_token="<", dropout=dropout)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))


def test_a_tokenizer_that_samples_is_refused(gpt2, tokenizer):
    check_tokenizer(dropping(None))
    for arguments, name in (
        ({"model": gpt2, "tokenizer": dropping(0.2)}, "tokenizer"),
        (
            {"model": gpt2, "tokenizer": tokenizer}
            | {"reference": {"model": gpt2, "tokenizer": dropping(0.2)}},
            r"reference\['tokenizer'\]",
        ),
    ):
        with pytest.raises(ValueError, match=rf"`{name}` must be deterministic.*dropout"):
            measure(**arguments)


def test_a_folder_whose_tokenizer_samples_is_refused(gpt2, tmp_path):
    folder = save(tmp_path, gpt2, dropping(0.2))
    with pytest.raises(ValueError, match=r"The tokenizer of `model_id`='.*' must be deterministic"):
        measure(folder)
