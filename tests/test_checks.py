"""What is refused, with which words; and that nothing is lost or left behind by it."""

import json
import os
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import evaluate
import numpy as np
import pytest
import torch
import transformers
from models import (
    CONTEXT,
    VOCABULARY,
    make_model,
    make_tokenizer,
    random_text,
    save,
)

TEXT = random_text(40)


@pytest.fixture
def compute(metric, gpt2, tokenizer):
    """`metric.compute` of good arguments, but for those given; None leaves one out."""

    def call(**arguments):
        arguments = {"predictions": [TEXT], "model": gpt2, "tokenizer": tokenizer} | arguments
        return metric.compute(**{name: v for name, v in arguments.items() if v is not None})

    return call


def leftovers(tmp_path) -> list[str]:
    """Files in the metric's cache, but for the empty locks that evaluate leaves at every call."""
    return [path.name for path in (tmp_path / "cache").rglob("*.*") if path.suffix != ".lock"]


# ---- texts


def test_no_texts(metric, gpt2, tokenizer):
    with pytest.raises(ValueError, match=r"`predictions` must be given: .*add_batch"):
        metric.compute(model=gpt2, tokenizer=tokenizer)


def test_single_tokens_without_a_start_token(compute):
    with pytest.raises(
        ValueError,
        match=r"at least 2 tokens, got shorter ones at positions 0, 2.*add_start_token`",
    ):
        compute(predictions=["w5", "w5 w6", "w7"], add_start_token=False)


def test_single_tokens_where_there_is_no_start_token(compute):
    """The advice is one that helps."""
    with (
        pytest.warns(UserWarning),
        pytest.raises(ValueError, match="at least 2 tokens") as raised,
    ):
        compute(predictions=["w5"], tokenizer=make_tokenizer(bos=False))
    assert "add_start_token=True" not in str(raised.value)


def test_a_start_token_alone_is_no_text(compute):
    with pytest.raises(ValueError, match=r"at least 1 token, got shorter ones at position 1"):
        compute(predictions=["w5", "<bos>"])


@pytest.mark.parametrize("text", [None, 3, ["w5"]])
def test_what_is_added_is_checked_at_once(metric, text):
    with pytest.raises(TypeError, match="strings only, got"):
        metric.add(prediction=text)
    with pytest.raises(TypeError, match="strings only, got"):
        metric.add_batch(predictions=["w5", text])
    with pytest.raises(TypeError, match="got one str"):
        metric.add_batch(predictions="one text")
    assert len(metric) == 0


# ---- arguments


def test_unknown_arguments(compute, metric):
    metric.add_batch(predictions=[TEXT])
    with pytest.raises(TypeError, match="strid"):
        compute(predictions=None, strid=8)
    assert len(metric) == 1  # refused before the texts were touched
    assert compute(predictions=None)["num_tokens"] == 40


def test_unknown_arguments_are_named(compute, tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'strid'"):
        compute(strid=8)
    assert leftovers(tmp_path) == []


def test_a_start_token_in_every_window_leaves_less_room_for_the_stride(compute):
    message = r"`stride` must be between 1 and max_length-1=15 .* got 16.*add_start_token='once'"
    with pytest.raises(ValueError, match=message):
        compute(stride=16, add_start_token="every")
    with pytest.raises(ValueError, match=message):
        compute(stride=16, tokenizer=make_tokenizer(adds_bos=True))
    assert compute(stride=15, add_start_token="every")["num_tokens"] == 40
    assert compute(stride=16, add_start_token="once")["num_tokens"] == 40


@pytest.mark.parametrize(
    ("protocol", "argument", "value"),
    [
        ("lm-eval", "stride", 4),
        ("lm-eval", "add_start_token", False),
        ("lm-eval", "separator", "\n"),
        ("stock", "stride", 4),
        ("transformers-docs", "add_start_token", "once"),
        ("llama.cpp", "stride", 4),
        ("gptq", "add_start_token", "every"),
        ("exllamav2", "stride", 4),
        ("megatron", "add_start_token", False),
        ("mlx-lm", "separator", " "),
    ],
)
def test_what_a_tool_has_no_setting_for(compute, protocol, argument, value):
    message = rf"`{argument}` must be left out with protocol='{re.escape(protocol)}'.* has no such"
    with pytest.raises(ValueError, match=message):
        compute(protocol=protocol, **{argument: value})


def test_the_stock_metric_knows_no_places_for_the_start_token(compute):
    with pytest.raises(
        ValueError, match=r"`add_start_token` must be one of True, False, got 'every'"
    ):
        compute(protocol="stock", add_start_token="every")


@pytest.mark.parametrize(
    ("protocol", "least"), [("gptq", 16), ("exllamav2", 16), ("mlx-lm", 16), ("llama.cpp", 32)]
)
def test_too_little_text_for_protocols_that_drop_what_does_not_fill_a_window(
    compute, protocol, least
):
    message = rf"must have at least {least} tokens with protocol='{re.escape(protocol)}'.*got {least - 1}\."
    with pytest.raises(ValueError, match=message):
        compute(predictions=[random_text(least - 1)], protocol=protocol)
    assert (
        compute(predictions=[random_text(least)], protocol=protocol)["num_windows"] == least // 16
    )


def test_protocols_that_need_a_start_token(compute):
    bare = make_tokenizer(bos=False, eos=False)
    for protocol in ("lm-eval", "paloma"):
        with pytest.raises(
            ValueError, match=rf"`tokenizer` must have a start token .*'{protocol}'"
        ):
            compute(tokenizer=bare, protocol=protocol)


# ---- the model


def test_neither_name_nor_model(metric):
    with pytest.raises(ValueError, match=r"`model_id` or `model` must be given.*got neither"):
        metric.compute(predictions=[TEXT])


def test_a_model_without_its_tokenizer(metric, gpt2):
    with pytest.raises(ValueError, match=r"`tokenizer` must be given with `model`, got None"):
        metric.compute(predictions=[TEXT], model=gpt2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint.  Not to be changed."""
    return save(tmp_path_factory.mktemp("checkpoint"), make_model("gpt2"), make_tokenizer())


@pytest.mark.parametrize(
    ("argument", "twin"),
    [("device", {"device_map": "cpu"}), ("dtype", {"dtype": "float16"}), ("dtype", {"torch_dtype": "float16"})],
)  # fmt: skip
def test_what_is_said_twice(metric, folder, argument, twin):
    value = {"device": "cpu", "dtype": "float32"}[argument]
    with pytest.raises(
        ValueError,
        match=rf"`{argument}` must be left out when `model_kwargs` holds '{next(iter(twin))}'",
    ):
        metric.compute(predictions=[TEXT], model_id=folder, model_kwargs=twin, **{argument: value})


def test_a_folder_without_a_model(metric, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"`model_id`=.*could not be loaded"):
        metric.compute(predictions=[TEXT], model_id=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        pytest.param("gpt2"),
        # the worst: everything is one unknown token, and there is a number for it
        pytest.param("gemma2"),
    ],
)
def test_a_folder_without_a_tokenizer(metric, tmp_path, architecture):
    """Transformers makes tokenizers without a vocabulary up for some architectures."""
    folder = str(tmp_path / "bare")
    make_model(architecture).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"The tokenizer of `model_id`=.* could not be loaded"):
        metric.compute(predictions=[TEXT], model_id=folder)


def test_a_folder_without_a_tokenizer_beside_one_that_is_passed(metric, tmp_path, tokenizer):
    folder = str(tmp_path / "bare")
    make_model("gpt2").save_pretrained(folder)
    result = metric.compute(predictions=[TEXT], model_id=folder, tokenizer=tokenizer)
    assert result["num_tokens"] == 40


def edit_config(folder: str, **settings) -> None:
    path = f"{folder}/config.json"
    with open(path) as file:
        config = json.load(file)
    with open(path, "w") as file:
        json.dump(config | settings, file)


def test_weights_missing_from_a_checkpoint(metric, tmp_path):
    folder = save(tmp_path / "model", make_model("gpt2"), make_tokenizer())
    edit_config(folder, n_layer=3)
    with pytest.raises(
        ValueError, match=r"must hold all weights .* 12 are missing .*transformer\.h\.2\."
    ):
        metric.compute(predictions=[TEXT], model_id=folder)


def test_weights_of_another_shape_in_a_checkpoint(metric, tmp_path):
    folder = save(tmp_path / "model", make_model("gpt2"), make_tokenizer())
    edit_config(folder, n_positions=CONTEXT + 4)
    with pytest.raises(ValueError, match=r"`model_id`=.* could not be loaded"):
        metric.compute(predictions=[TEXT], model_id=folder)


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
        )
    )


def test_encoder_decoder_models(metric, tmp_path, compute):
    with pytest.raises(
        ValueError, match=r"`model` must be a causal \(decoder-only\).*encoder-decoder.*'t5'"
    ):
        compute(model=t5())
    with pytest.raises(ValueError, match=r"`model_id`=.*must be a causal .*encoder-decoder.*'t5'"):
        metric.compute(predictions=[TEXT], model_id=save(tmp_path / "t5", t5(), make_tokenizer()))


def test_masked_models(metric, tmp_path, compute):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))
    message = (
        r"must be a causal language model, but its prediction .* changes with the tokens after"
    )
    with pytest.raises(ValueError, match=r"`model` " + message):
        compute(model=model)
    folder = save(tmp_path / "bert", model, make_tokenizer())
    with pytest.raises(ValueError, match=r"`model_id`=.* " + message):
        metric.compute(predictions=[TEXT], model_id=folder)
    # the same architecture, told to look back only, is one
    model = transformers.BertLMHeadModel(transformers.BertConfig(**SMALL, is_decoder=True))
    assert compute(model=model)["num_tokens"] == 40


def test_models_without_a_language_head(metric, tmp_path):
    model = transformers.ViTModel(
        transformers.ViTConfig(**(SMALL | {"image_size": 8, "patch_size": 4}))
    )
    folder = save(tmp_path / "vit", model, make_tokenizer())
    with pytest.raises(ValueError, match=r"`model_id`=.* could not be loaded"):
        metric.compute(predictions=[TEXT], model_id=folder)


def test_models_that_look_ahead(compute):
    """A causal architecture whose mask was opened."""

    class Peeking(transformers.GPT2LMHeadModel):
        def forward(self, input_ids, **kwargs):
            output = super().forward(input_ids, **kwargs)
            output.logits = output.logits + 0.01 * output.logits.roll(-1, dims=1)
            return output

    model = Peeking(make_model("gpt2").config)
    with pytest.raises(ValueError, match=r"`model` must be a causal language model"):
        compute(model=model)


def test_token_ids_beyond_the_embedding_table(compute):
    model = make_model("gpt2", vocab_size=50)
    texts = ["w49 w48", "w5 w50", "w79"]
    message = r"`tokenizer` must give token ids below 50.* got 79 in the texts at positions 1, 2\."
    with pytest.raises(ValueError, match=message):
        compute(model=model, predictions=texts)
    assert compute(model=model, predictions=texts[:1])["num_tokens"] == 2


def test_a_start_token_beyond_the_embedding_table(compute):
    tokenizer = make_tokenizer(bos=False)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    assert tokenizer.bos_token_id == VOCABULARY
    with pytest.raises(ValueError, match=r"`tokenizer` must give token ids below 80.* got 80"):
        compute(tokenizer=tokenizer)


def test_position_tables_that_keep_entries_for_padding(compute):
    """RoBERTa's positions begin after its padding id: 18 entries are for 16 tokens."""
    model = transformers.RobertaForCausalLM(
        transformers.RobertaConfig(
            **SMALL, max_position_embeddings=18, pad_token_id=1, is_decoder=True
        )
    )
    assert compute(model=model)["num_tokens"] == 40
    with pytest.raises(ValueError, match=r"`max_length` must be between 2 and 16, .* got 17"):
        compute(model=model, max_length=17)


@pytest.mark.parametrize("architecture", ["opt", "gptj", "codegen"])
def test_other_position_tables_are_not_passed(compute, architecture):
    model = make_model(architecture)
    assert compute(model=model, max_length=16)["num_tokens"] == 40
    with pytest.raises(ValueError, match=r"`max_length` must be between 2 and 16, .* got 17"):
        compute(model=model, max_length=17)


@pytest.mark.parametrize("architecture", ["llama", "bloom", "mamba"])
def test_models_without_a_table_take_longer_windows(compute, architecture):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`max_length`=41 is past")
        result = compute(model=make_model(architecture), max_length=41)
    assert result["num_windows"] == 1


def test_a_model_without_a_limit_needs_one_past_2048_tokens(compute):
    model = make_model("mamba", num_hidden_layers=1)
    arguments = {"model": model, "add_start_token": False}
    assert compute(predictions=[random_text(2048)], **arguments)["num_windows"] == 1
    message = r"`max_length` must be given: .*states no limit .* 2049 tokens, more than 2048"
    with pytest.raises(ValueError, match=message):
        compute(predictions=[TEXT, random_text(2049)], **arguments)
    result = compute(predictions=[random_text(2049)], max_length=2048, **arguments)
    assert result["num_tokens"] == 2048


def test_nan_names_the_text(compute, metric, tmp_path):
    model = make_model("gpt2", tie_word_embeddings=False)
    with torch.no_grad():
        model.transformer.wte.weight[50] = torch.nan
    metric.add_batch(predictions=["w5 w6", "w7 w50 w8", "w9"])
    with pytest.raises(ValueError, match=r"NaN for the text at position 1, .*dtype='float32'"):
        compute(model=model, predictions=None)
    assert leftovers(tmp_path) == []
    assert compute(predictions=None)["num_tokens"] == 6


def test_nan_everywhere(compute):
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"NaN for the text at position 0"):
        compute(model=model)


# ---- nothing is lost, nothing is left


def test_texts_added_before_a_failure_are_computed_after_it(compute, metric, gpt2, tokenizer):
    texts = [random_text(length, length) for length in (20, 7, 30)]
    expected = compute(predictions=texts)["perplexities"]
    metric.add(prediction=texts[0])
    metric.add_batch(predictions=[texts[1]])
    for _ in range(2):  # it may fail again
        with pytest.raises(ValueError, match="stride"):
            compute(predictions=None, stride=99)
        assert len(metric) == 2
    metric.add(prediction=texts[2])
    assert len(metric) == 3
    assert compute(predictions=None)["perplexities"] == expected
    assert len(metric) == 0


def test_texts_given_to_a_compute_that_fails_are_not_added(compute, metric):
    metric.add(prediction=TEXT)
    with pytest.raises(ValueError, match="stride"):
        compute(predictions=["w5 w6 w7"], stride=99)
    assert len(metric) == 1
    result = compute(predictions=["w5 w6"])
    assert result["num_tokens"] == 42
    assert len(result["perplexities"]) == 2


def test_texts_that_cannot_be_scored_do_not_spoil_those_added(compute, metric):
    metric.add(prediction=TEXT)
    with pytest.raises(ValueError, match=r"got shorter ones at position 1"):
        compute(predictions=[""])
    with pytest.raises(TypeError, match="got one str"):
        compute(predictions="w5")
    assert compute(predictions=None)["num_tokens"] == 40


def test_failures_leave_no_files(compute, metric, tmp_path):
    for stride in (99, 17):
        with pytest.raises(ValueError, match="stride"):
            compute(stride=stride)
        assert leftovers(tmp_path) == []
    compute()
    assert leftovers(tmp_path) == []


def test_texts_kept_in_memory_survive_too(metric, gpt2, tokenizer):
    kept = type(metric)(keep_in_memory=True)
    kept.add_batch(predictions=[TEXT])
    with pytest.raises(ValueError, match="stride"):
        kept.compute(model=gpt2, tokenizer=tokenizer, stride=99)
    assert kept.compute(model=gpt2, tokenizer=tokenizer)["num_tokens"] == 40


def test_an_interrupted_call_leaves_the_files_of_others_alone(
    compute, metric, root, tmp_path, gpt2, tokenizer, monkeypatch
):
    """Another metric may have taken the name of the file by which the last call went."""
    compute()
    other = evaluate.load(str(root / "perplexity_sliding.py"), cache_dir=str(tmp_path / "cache"))
    other.add_batch(predictions=[TEXT])
    written = leftovers(tmp_path)
    assert written == [os.path.basename(other.cache_file_name)]

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(metric, "_finalize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compute()
    assert leftovers(tmp_path) == written
    assert other.compute(model=gpt2, tokenizer=tokenizer)["num_tokens"] == 40


@pytest.mark.parametrize("place", ["_finalize", "_init_writer"])
def test_texts_survive_where_evaluate_itself_fails(compute, metric, monkeypatch, place):
    """On a full disk, say."""
    metric.add(prediction=TEXT)
    if place == "_init_writer":  # of the texts that are put back after a call that failed
        with pytest.raises(ValueError, match="stride"):
            compute(predictions=None, stride=99)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(metric, place, fail)
        with pytest.raises(OSError, match="No space"):
            compute(predictions=None)
    assert len(metric) == 1
    assert compute(predictions=["w5 w6"])["num_tokens"] == 42


def test_two_threads_in_one_metric(metric, gpt2, tokenizer):
    """The second one is refused; the first has the number of its own texts."""
    inside, may_go_on = threading.Event(), threading.Event()

    def wait(progress):
        inside.set()
        assert may_go_on.wait(60)

    arguments = {"model": gpt2, "tokenizer": tokenizer}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(metric.compute, predictions=[TEXT], callback=wait, **arguments)
        assert inside.wait(60)
        for call in (
            lambda: metric.compute(predictions=["w5 w6"], **arguments),
            lambda: metric.add_batch(predictions=["w5 w6"]),
            lambda: metric.add(prediction="w5 w6"),
        ):
            with pytest.raises(RuntimeError, match=r"in use by another thread.*Load a metric for"):
                call()
        may_go_on.set()
        assert first.result(60)["num_tokens"] == 40
    assert metric.compute(predictions=["w5 w6"], **arguments)["num_tokens"] == 2


def test_texts_of_two_threads_are_not_mixed(metric, gpt2, tokenizer):
    """But what one thread has added, another may compute."""
    arguments = {"model": gpt2, "tokenizer": tokenizer}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(metric.add_batch, predictions=[TEXT]).result(60)
        with pytest.raises(RuntimeError, match="in use by another thread"):
            metric.compute(predictions=["w5 w6"], **arguments)
        assert metric.compute(**arguments)["num_tokens"] == 40
        metric.add(prediction="w5 w6")
    assert metric.compute(**arguments)["num_tokens"] == 2


def test_whole_numbers_may_be_numpys(compute):
    plain = compute(max_length=8, stride=3, batch_size=2)
    assert compute(max_length=np.int64(8), stride=np.int32(3), batch_size=np.int8(2)) == plain
    assert compute(max_length=8, stride=3, batch_size=2, logits_memory=np.int64(2**29)) == plain
