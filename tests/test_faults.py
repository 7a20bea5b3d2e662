"""Bad and odd input: each has its defined outcome, a right number or an error that says what to do.

One table of arguments, texts, models and tokenizers.  A number is compared with the naive float64
loop of reference.py or a closed form; an error must be raised by the metric's own modules, never
from inside a library.  Below the table, the whole path is tried with random input and with models
that lie on several devices.
"""

import json
import math
import os
import re
import shutil
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import evaluate
import pandas
import pytest
import reference
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from models import (
    BOS,
    CONTEXT,
    EOS,
    FIRST_WORD,
    PAD,
    VOCABULARY,
    SlowTokenizer,
    make_byte_tokenizer,
    make_model,
    make_tokenizer,
    make_uniform_model,
    random_text,
    save,
    words,
)
from packaging.version import Version
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as token_models

ROOT = Path(__file__).resolve().parent.parent

# A word that the tokenizer does not know becomes w3.
UNKNOWN = FIRST_WORD
TEXT_IDS = [*range(10, 50)]
TEXT = words(TEXT_IDS)
ERRORS = (TypeError, ValueError, MemoryError)


class Tokens(NamedTuple):
    """The outcome is the naive loop's perplexity of texts with these token ids."""

    texts: list[list[int]]
    length: int = CONTEXT
    stride: int | None = None
    start: str = "once"


class Refused(NamedTuple):
    """The outcome is an error."""

    error: type[Exception]
    match: str


class Case(NamedTuple):
    """A row: its name, the arguments that differ from good ones, and the outcome.

    Arguments are made when the row's test runs, from a folder of the test's own.
    """

    name: str
    arguments: Callable[[str], dict]
    outcome: Tokens | Refused | float


# ---- the parts of rows


def given_as(name: str, value, outcome, label: str | None = None, **others) -> Case:
    """A row in which one argument is what matters."""
    label = label or f"{name}={value!r}"[:60]
    return Case(label, lambda folder: {name: value} | others, outcome)


def as_bytes(text: str) -> list[int]:
    """Ids under `make_byte_tokenizer`: GPT-2 writes byte b as its b-th printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {byte: byte for byte in printable} | {b: 256 + n for n, b in enumerate(others)}
    order = sorted(signs.values())
    return [FIRST_WORD + order.index(signs[byte]) for byte in text.encode("utf-8")]


def read_as_bytes(name: str, text: str) -> Case:
    """A row with a text whose tokens are its bytes, none of them lost or changed."""
    return Case(name, lambda folder: {"predictions": [text]} | byte_level(), Tokens([as_bytes(text)]))  # fmt: skip


def byte_level() -> dict:
    return {
        "model": make_model("gpt2", vocab_size=FIRST_WORD + 256),
        "tokenizer": make_byte_tokenizer(),
    }


def model_row(name: str, make: Callable[[], object], outcome, **others) -> Case:
    return Case(name, lambda folder: {"model": make()} | others, outcome)


def tokenizer_row(name: str, make: Callable[[], object], outcome, **others) -> Case:
    return Case(name, lambda folder: {"tokenizer": make()} | others, outcome)


def folder_row(name: str, write: Callable[[str], None], outcome, **others) -> Case:
    """A row with a checkpoint by name: `write` spoils the good one in the folder."""

    def arguments(folder: str) -> dict:
        save(folder, make_model("gpt2"), make_tokenizer())
        write(folder)
        return {"model_id": folder, "model": None, "tokenizer": None} | others

    return Case(name, arguments, outcome)


def untouched(folder: str) -> None:
    pass


def make_folder(folder: str) -> Path:
    Path(folder).mkdir()
    return Path(folder)


def without_tokenizer(architecture: str) -> Callable[[str], None]:
    def write(folder: str) -> None:
        shutil.rmtree(folder)
        make_model(architecture).save_pretrained(folder)

    return write


# ---- odd models


def gpt2_with(change: Callable[[torch.nn.Module], object], **config) -> torch.nn.Module:
    model = make_model("gpt2", **config)
    with torch.no_grad():
        change(model)
    return model


def gpt2_giving(change: Callable[[torch.Tensor], object]) -> torch.nn.Module:
    """A GPT-2 whose logits (B, T, V) are changed on their way out."""

    class Changed(transformers.GPT2LMHeadModel):
        def forward(self, input_ids, **kwargs):
            return types.SimpleNamespace(logits=change(super().forward(input_ids, **kwargs).logits))

    torch.manual_seed(0)
    return Changed(make_model("gpt2").config)


def half_precision(scale: float) -> torch.nn.Module:
    """A float16 GPT-2 whose logits grow with `scale`; from 65504 on they are infinite."""
    model = make_model("gpt2", tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return model.half()


def on_meta() -> torch.nn.Module:
    with torch.device("meta"):
        return transformers.GPT2LMHeadModel(make_model("gpt2").config)


def masked() -> torch.nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**TINY))


def encoder_decoder() -> torch.nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
        )
    )


def roberta() -> torch.nn.Module:
    config = transformers.RobertaConfig(
        **TINY, max_position_embeddings=18, pad_token_id=1, is_decoder=True
    )
    return transformers.RobertaForCausalLM(config)


def vision() -> torch.nn.Module:
    return transformers.ViTModel(transformers.ViTConfig(**TINY, image_size=8, patch_size=4))


TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


class NoForward(torch.nn.Module):
    """A module that is no language model: it has no forward pass at all."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 2))


class Parameterless(torch.nn.Module):
    """A language model that is no transformer and has no weights: all tokens are equally likely."""

    def forward(self, input_ids):
        return types.SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCABULARY))


class FailsLater(transformers.GPT2LMHeadModel):
    """A model with a bug of its own, in windows longer than the probe."""

    def forward(self, input_ids, **kwargs):
        if input_ids.shape[1] > 8:
            raise RuntimeError("shape mismatch in layer 3")
        return super().forward(input_ids, **kwargs)


# ---- odd tokenizers


def without_unknown():
    """A tokenizer that has no token for unknown words, and leaves them out."""
    backend = Tokenizer(token_models.BPE({"<bos>": BOS, "a": 3, "b": 4}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>")


def truncating():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(max_length=4)
    return tokenizer


def padding():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_padding(pad_id=PAD, pad_token="<pad>", length=64)
    return tokenizer


def with_a_new_start_token():
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "w5"
    return tokenizer


def with_a_start_token_beyond():
    tokenizer = make_tokenizer(bos=False)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    return tokenizer


# ---- the table

INF = math.inf
ARGUMENTS = [
    given_as("predictions", [], Refused(ValueError, "`predictions` must have at least one text")),
    given_as("predictions", pandas.DataFrame({"text": ["w5 w6"]}), Refused(TypeError, "`predictions` must be a list of strings, got a DataFrame"), "a data frame"),
    given_as("predictions", pandas.Series(["w5 w6", "w7"]), Tokens([[5, 6], [7]]), "a column of a data frame"),
    given_as("protocol", ["slidin"], Refused(ValueError, r"`protocol` must be one of 'sliding', .*got 'slidin'")),
    given_as("device", "meta", Refused(ValueError, "`device` must be left out with `model`")),
    given_as("predictions", 7, Refused(TypeError, r"`predictions` must be a list of strings, got int")),
    given_as("predictions", ["w5", None, "w6", 3], Refused(TypeError, r"only strings, got NoneType, int at positions 1, 3")),
    given_as("predictions", ["w5", "", "w6 w7", "  "], Refused(ValueError, r"at least 1 token each, got shorter texts at positions 1, 3")),
    given_as("dtype", "float16", Refused(ValueError, r"`dtype` must be left out with `model`.*got 'float16'")),
    given_as("model_id", "gpt2", Refused(ValueError, r"Exactly one of `model_id` and `model` must be given.*got both")),
    folder_row("device='tpu9' by name", untouched, Refused(ValueError, r"`device` must be a device of this machine.* got 'tpu9'"), device="tpu9"),
    folder_row("device='cuda:99' by name", untouched, Refused(ValueError, r"`device` must be a device of this machine.* got 'cuda:99'"), device="cuda:99"),
    folder_row("dtype='float8' by name", untouched, Refused(ValueError, r"`dtype` must be 'auto', 'float32', .* got 'float8'"), dtype="float8"),
    given_as("model_id", "", Refused(TypeError, r"`model_id` must be the name of a model .* got ''"), "model_id='' by itself", model=None, tokenizer=None),
    folder_row("no such argument of from_pretrained", untouched, Refused(ValueError, "`model_id`=.* could not be loaded.*no_such"), model_kwargs={"no_such": 1}),
    *[
        given_as(argument, value, Refused(ValueError, rf"`{argument}` must be left out with protocol='{re.escape(protocol)}'.* has no such"), f"{argument} with {protocol}", protocol=protocol)
        for protocol, argument, value in [
            ("lm-eval", "stride", 4), ("stock", "stride", 4), ("gptq", "add_start_token", "every"), ("megatron", "add_start_token", False),
        ]
    ],
    given_as("add_start_token", "every", Refused(ValueError, "`add_start_token` must be one of True, False, got 'every'"), "add_start_token='every' with stock", protocol="stock"),
    Case("neither a name nor a model", lambda folder: {"model": None, "tokenizer": None}, Refused(ValueError, "Exactly one of `model_id` and `model` must be given.*got neither")),
    Case("a model without its tokenizer", lambda folder: {"tokenizer": None}, Refused(ValueError, "`tokenizer` must be given with `model`, got None")),
    folder_row("model_kwargs=['revision'] by name", untouched, Refused(TypeError, r"`model_kwargs` must be a dict .*\['revision'\]"), model_kwargs=["revision"]),
    folder_row("device and device_map", untouched, Refused(ValueError, "`device` must be left out if `model_kwargs` contains 'device_map'"), device="cpu", model_kwargs={"device_map": "cpu"}),
]  # fmt: skip

TEXTS = [
    given_as("predictions", ["w5 \ud800"], Refused(ValueError, "valid Unicode.*position 0"), "lone surrogate"),
    read_as_bytes("surrogate pair's character", "\U0001f600"),
    read_as_bytes("NUL", "a\0b\0\0"),
    read_as_bytes("combining marks", "e\u0301 " + "z" + "\u0335" * 40),
    read_as_bytes("CRLF", "one\r\ntwo\r\n\r\nthree\r"),
    read_as_bytes("white space only, where it is tokens", " \n\t\u00a0\u3000"),
    given_as("predictions", ["w5", "w5 w6", "w7"], Refused(ValueError, "at least 2 tokens each, got shorter texts at positions 0, 2.*add_start_token`"), "single tokens without a start", add_start_token=False),
    given_as("predictions", ["w5", "<bos>"], Refused(ValueError, "at least 1 token each, got shorter texts at position 1"), "the start token alone"),
    given_as("predictions", ["<bos> w5 w6"], Tokens([[5, 6]]), "start token written out"),
    given_as("predictions", ["w5 <eos> w6 <bos> <pad> w7"], Tokens([[5, EOS, 6, BOS, PAD, 7]]), "special tokens inside the text"),
    given_as("predictions", ["a" * 10**7 + " w7"], Tokens([[UNKNOWN, 7]]), "10 MB without a space, then a word"),
]  # fmt: skip

CAUSAL = "must be a causal language model"
MODELS = [
    model_row("a model's name in the place of a model", lambda: "gpt2", Refused(TypeError, "`model` must be a loaded model, got the name 'gpt2'.*`model_id`")),
    model_row("a module that is no language model", NoForward, Refused(ValueError, CAUSAL)),
    model_row("a body without a head", lambda: make_model("gpt2").transformer, Refused(ValueError, CAUSAL)),
    model_row("a classifier", lambda: transformers.GPT2ForSequenceClassification(make_model("gpt2").config), Refused(ValueError, "`model` must.*logits.*shape")),
    model_row("masked", masked, Refused(ValueError, CAUSAL + ".*changes with the tokens after")),
    model_row("encoder-decoder", encoder_decoder, Refused(ValueError, "causal.*encoder-decoder architecture 't5'")),
    model_row("looking ahead", lambda: gpt2_giving(lambda logits: logits + 0.01 * logits.roll(-1, 1)), Refused(ValueError, "changes with the tokens after")),
    model_row("on the meta device", on_meta, Refused(ValueError, "`model` must.*meta")),
    model_row("NaN in one layer", lambda: gpt2_with(lambda m: m.transformer.h[1].mlp.c_fc.weight.fill_(math.nan)), Refused(ValueError, "NaN for the text at position 0")),
    model_row("NaN for one token", lambda: gpt2_with(lambda m: m.transformer.wte.weight[12].fill_(math.nan), tie_word_embeddings=False), Refused(ValueError, "NaN for the text at position 0, in its tokens")),
    model_row("float16 overflow to NaN", lambda: half_precision(3e4), Refused(ValueError, "NaN for the text.*dtype='float32'")),
    model_row("an impossible token", lambda: gpt2_giving(lambda logits: logits.index_fill(2, torch.tensor([20]), -INF)), INF),
    model_row("logits beyond exp", lambda: gpt2_with(lambda m: m.transformer.ln_f.weight.fill_(1e5)), INF),
    model_row("logits of the last token only", lambda: gpt2_giving(lambda logits: logits[:, -1]), Refused(ValueError, "`model` must.*logits.*shape")),
    model_row("logits of one token less", lambda: gpt2_giving(lambda logits: logits[:, 1:]), Refused(ValueError, "`model` must.*logits.*shape")),
    model_row("one logit", lambda: gpt2_giving(lambda logits: logits[..., :1]), Refused(ValueError, "`tokenizer` must return token ids below 1")),
    model_row("fewer logits than embeddings", lambda: gpt2_giving(lambda logits: logits[..., :40]), Refused(ValueError, "`tokenizer` must return token ids below 40.* got 49")),
    model_row("no weights and no configuration", Parameterless, float(VOCABULARY), max_length=CONTEXT),
    model_row("more logits than tokens", lambda: make_uniform_model(vocab_size=VOCABULARY + 48), VOCABULARY + 48.0),
    model_row("failing in longer windows", lambda: FailsLater(make_model("gpt2").config), Refused(ValueError, "`model`.*shape mismatch in layer 3")),
    model_row("ids beyond the embeddings", lambda: make_model("gpt2", vocab_size=50), Refused(ValueError, r"`tokenizer` must return token ids below 50.* got 79"), predictions=["w49 w48", "w5 w50", "w79"]),
    *[model_row(f"{name} in a window of its table", lambda name=name: make_model(name), Tokens([TEXT_IDS])) for name in ("opt", "gptj", "codegen")],
    *[model_row(f"{name} past its table", lambda name=name: make_model(name), Refused(ValueError, "`max_length` must be between 2 and 16, .* got 17"), max_length=17) for name in ("opt", "gptj", "codegen")],
    # RoBERTa's positions begin after its padding id: 18 entries are for 16 tokens.
    model_row("roberta in a window of its table", roberta, Tokens([TEXT_IDS])),
    model_row("roberta past its table", roberta, Refused(ValueError, "`max_length` must be between 2 and 16, .* got 17"), max_length=17),
    *[model_row(f"{name} in a longer window than it states", lambda name=name: make_model(name), Tokens([TEXT_IDS], length=41), max_length=41) for name in ("llama", "bloom", "mamba")],
    folder_row("encoder-decoder, by name", lambda folder: encoder_decoder().save_pretrained(folder), Refused(ValueError, "`model_id`=.*must be a causal .*encoder-decoder.*'t5'")),
    folder_row("without a language head, by name", lambda folder: vision().save_pretrained(folder), Refused(ValueError, "`model_id`=.* could not be loaded")),
    Case("an empty folder", lambda folder: {"model_id": str(make_folder(folder)), "model": None, "tokenizer": None}, Refused(ValueError, "`model_id`=.*could not be loaded")),
    # Transformers makes tokenizers without a vocabulary up for some architectures.
    *[folder_row(f"{name} without a tokenizer", without_tokenizer(name), Refused(ValueError, "The tokenizer of `model_id`=.* could not be loaded")) for name in ("llama", "gpt2")],
    folder_row("without a tokenizer, but passed one", without_tokenizer("gpt2"), Tokens([TEXT_IDS]), tokenizer=make_tokenizer()),
    folder_row("weights missing", lambda folder: edit_config(folder, n_layer=3), Refused(ValueError, "must have all weights.*12 are missing")),
    folder_row("weights of another shape", lambda folder: edit_config(folder, n_embd=64), Refused(ValueError, "`model_id`=.*(could not be loaded|must have all weights)")),
    folder_row("weights cut short", lambda folder: cut(f"{folder}/model.safetensors"), Refused(ValueError, "`model_id`=.* could not be loaded")),
    folder_row("an unknown architecture", lambda folder: edit_config(folder, model_type="gpt99"), Refused(ValueError, "`model_id`=.* could not be loaded")),
    folder_row("a tokenizer cut short", lambda folder: cut(f"{folder}/tokenizer.json"), Refused(ValueError, "The tokenizer of `model_id`=.* could not be loaded")),
]  # fmt: skip

TOKENIZERS = [
    tokenizer_row("a tokenizer's name in the place of one", lambda: "gpt2", Refused(TypeError, "`tokenizer` must be a transformers tokenizer, got str")),
    tokenizer_row("slow", SlowTokenizer, Tokens([TEXT_IDS])),
    tokenizer_row("without special tokens", lambda: make_tokenizer(bos=False, eos=False, pad=False), Tokens([TEXT_IDS], start="none")),
    tokenizer_row("truncating", truncating, Tokens([TEXT_IDS])),
    tokenizer_row("padding", padding, Tokens([TEXT_IDS, [5]]), predictions=[TEXT, "w5"]),
    tokenizer_row("adding a start token by itself", lambda: make_tokenizer(adds_bos=True), Tokens([TEXT_IDS], start="every")),
    tokenizer_row("another start token set later", with_a_new_start_token, Refused(ValueError, "at least 1 token"), predictions=["w5"]),
    tokenizer_row("no token for unknown words", without_unknown, Refused(ValueError, "at least 1 token each, got shorter texts at position 1"), predictions=["a b", "c d"]),
    *[tokenizer_row(f"no start token with {protocol}", lambda: make_tokenizer(bos=False, eos=False), Refused(ValueError, f"`tokenizer` must have a start token .*'{protocol}'"), protocol=protocol) for protocol in ("lm-eval", "paloma")],
    tokenizer_row("a start token beyond the embeddings", with_a_start_token_beyond, Refused(ValueError, "`tokenizer` must return token ids below 80.* got 80")),
]  # fmt: skip

CASES = [*ARGUMENTS, *TEXTS, *MODELS, *TOKENIZERS]


def edit_config(folder: str, **changes) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path: str) -> None:
    """Leave the first half of a file, as an interrupted download does."""
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)


def naive_perplexity(model, tokens: Tokens, start_id: int = BOS) -> float:
    stride = tokens.stride or max(1, tokens.length // 2)
    return reference.sliding_perplexity(
        model.eval(), tokens.texts, tokens.length, stride, tokens.start, start_id
    )


def floats(value):
    """All floats in a result, however deep."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from floats(item)


def is_ours(error: BaseException) -> bool:
    """Whether the engine raised it, and not a library below it."""
    return Path(raised_by(error)).is_relative_to(ROOT / "perplexity_sliding")


def raised_by(error: BaseException) -> str:
    """The file of the frame that raised an error."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: case.name.encode("unicode_escape").decode()
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_every_fault_has_its_defined_outcome(metric, tmp_path, case):
    arguments = {"model": make_model("gpt2"), "tokenizer": make_tokenizer()}
    arguments |= case.arguments(str(tmp_path / "model"))
    arguments = {name: v for name, v in arguments.items() if v is not None or name not in ("model", "tokenizer")}  # fmt: skip
    if isinstance(case.outcome, Refused):
        added = [] if "predictions" in arguments else [TEXT]
        if added:
            metric.add_batch(predictions=added)
        with pytest.raises(ERRORS, match="(?s)" + case.outcome.match) as raised:
            metric.compute(**arguments)
        assert len(metric) == len(added), "what was added is kept"
        assert isinstance(raised.value, case.outcome.error)
        assert is_ours(raised.value)
        return
    result = metric.compute(**{"predictions": [TEXT]} | arguments)
    assert not any(math.isnan(number) for number in floats(result))
    expected = case.outcome
    if isinstance(expected, Tokens):
        expected = naive_perplexity(arguments.get("model") or make_model("gpt2"), expected)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-4)


# ---- errors that depend on several arguments


@pytest.fixture
def compute(metric, gpt2, tokenizer):
    """`metric.compute` of good arguments, but for those given; None leaves one out."""

    def call(**arguments):
        arguments = {"predictions": [TEXT], "model": gpt2, "tokenizer": tokenizer} | arguments
        return metric.compute(**{name: v for name, v in arguments.items() if v is not None})

    return call


def test_no_texts(compute):
    with pytest.raises(ValueError, match=r"`predictions` must be given: .*add_batch"):
        compute(predictions=None)


def test_a_start_token_in_every_window_leaves_less_room_for_the_stride(compute):
    message = r"`stride` must be between 1 and max_length-1=15 .* got 16.*add_start_token='once'"
    with pytest.raises(ValueError, match=message):
        compute(stride=16, add_start_token="every")
    with pytest.raises(ValueError, match=message):
        compute(stride=16, tokenizer=make_tokenizer(adds_bos=True))
    assert compute(stride=15, add_start_token="every")["num_tokens"] == 40
    assert compute(stride=16, add_start_token="once")["num_tokens"] == 40


@pytest.mark.parametrize(
    ("protocol", "least"), [("gptq", 16), ("exllamav2", 16), ("run-clm", 16), ("llama.cpp", 32)]
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


def test_the_second_half_of_a_window_begins_with_a_token_that_is_not_scored(compute):
    """As llama-perplexity counts: of a window of 2 tokens it would divide by nothing."""
    message = r"`max_length` must be at least 3 with protocol='llama.cpp', got 2: the second half"
    with pytest.raises(ValueError, match=message):
        compute(protocol="llama.cpp", max_length=2)
    result = compute(predictions=[random_text(9)], protocol="llama.cpp", max_length=3)
    assert (result["num_tokens"], result["num_windows"]) == (3, 3)


def never_given(tokenizer, text):
    """The tokenizer, which fails a test where it is given a text."""

    def __call__(self, texts, **kwargs):
        assert text not in texts, "the corpus is tokenized before it is refused"
        return original(self, texts, **kwargs)

    original = type(tokenizer).__call__
    tokenizer.__class__ = type("Watched", (type(tokenizer),), {"__call__": __call__})
    return tokenizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint": "no/such/folder/file"}, "`checkpoint`=.* cannot be used"),
        ({"stride": 17}, "`stride` must be between"),
        ({"max_length": 17}, "position table"),
        ({"protocol": "stock", "stride": 4}, "no such setting"),
        ({"protocol": ["lm-eval"], "add_start_token": False}, "no such setting"),
        ({"carry": True}, "its positions are a table|before 4.56"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_what_no_text_could_change(compute, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        compute(tokenizer=never_given(tokenizer, TEXT), **arguments)


def test_what_the_model_and_the_tokenizer_cannot_do(compute, tokenizer):
    with pytest.raises(ValueError, match="changes with the tokens after"):
        compute(model=masked(), tokenizer=never_given(tokenizer, TEXT))
    with pytest.raises(ValueError, match="`tokenizer` must be a fast tokenizer"):
        compute(tokenizer=never_given(SlowTokenizer(), TEXT), words=True)
    bare = never_given(make_tokenizer(bos=False, eos=False), TEXT)
    with pytest.raises(ValueError, match="`tokenizer` must have a start token"):
        compute(tokenizer=bare, protocol="lm-eval")


def test_a_model_without_a_limit_needs_one_past_2048_tokens(compute):
    model = make_model("mamba", num_hidden_layers=1)
    arguments = {"model": model, "add_start_token": False}
    assert compute(predictions=[random_text(2048)], **arguments)["num_windows"] == 1
    message = r"`max_length` must be given: .*states no limit .* 2049 tokens"
    with pytest.raises(ValueError, match=message):
        compute(predictions=[TEXT, random_text(2049)], **arguments)
    result = compute(predictions=[random_text(2049)], max_length=2048, **arguments)
    assert result["num_tokens"] == 2048


def test_lengths_of_context_past_the_table_are_at_fault_themselves(metric, gpt2, tokenizer):
    arguments = {"predictions": ["w5 w6 w7"], "model": gpt2, "tokenizer": tokenizer}
    with pytest.raises(ValueError) as refused:
        metric.compute(**arguments, context_lengths=[8, 2000])
    assert str(refused.value).startswith("`context_lengths` must be between 2 and 16, the size")
    assert refused.value.wording.argument == "context_lengths"
    with pytest.raises(ValueError, match="`max_length` must be between 2 and 16"):
        metric.compute(**arguments, context_lengths="doubling", max_length=2000)


# ---- the whole path with random input

MODEL = make_model("gpt2")
BYTES_MODEL = make_model("gpt2", vocab_size=FIRST_WORD + 256)


@pytest.fixture(scope="module")
def shared_metric(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    return evaluate.load(str(root / "perplexity_sliding.py"), cache_dir=str(folder))


@st.composite
def settings_of_a_call(draw) -> tuple[Tokens, dict]:
    """Token ids of texts with a window, a stride and a start token that go together."""
    length = draw(st.integers(2, CONTEXT))
    start = draw(st.sampled_from(["none", "once", "every"]))
    stride = draw(st.integers(1, length - (start == "every")))
    fewest = 2 if start == "none" else 1
    ids = st.lists(st.integers(FIRST_WORD, VOCABULARY - 1), min_size=fewest, max_size=40)
    texts = draw(st.lists(ids, min_size=1, max_size=4))
    running = {
        "batch_size": draw(st.integers(1, 5)),
    }
    return Tokens(texts, length, stride, start), running


@settings(max_examples=60)
@given(drawn=settings_of_a_call())
def test_any_settings_give_the_naive_loops_number(shared_metric, drawn):
    tokens, running = drawn
    result = shared_metric.compute(
        predictions=[words(ids) for ids in tokens.texts],
        model=MODEL,
        tokenizer=make_tokenizer(),
        max_length=tokens.length,
        stride=tokens.stride,
        add_start_token=False if tokens.start == "none" else tokens.start,
        **running,
    )
    assert result["perplexity"] == pytest.approx(naive_perplexity(MODEL, tokens), rel=1e-5)
    for perplexity, ids in zip(result["perplexities"], tokens.texts):
        alone = naive_perplexity(MODEL, tokens._replace(texts=[ids]))
        assert perplexity == pytest.approx(alone, rel=1e-5)


@settings(max_examples=60)
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=3), stride=st.integers(1, CONTEXT))
def test_any_text_is_scored_byte_by_byte_or_refused(shared_metric, texts, stride):
    """Whatever Unicode there is: `st.text` draws no surrogates, and all else."""
    arguments = {"predictions": texts, "model": BYTES_MODEL, "tokenizer": make_byte_tokenizer()}
    if "" in texts:
        with pytest.raises(
            ValueError, match="at least 1 token each, got shorter texts at position"
        ):
            shared_metric.compute(stride=stride, **arguments)
        return
    result = shared_metric.compute(stride=stride, **arguments)
    tokens = Tokens([as_bytes(text) for text in texts], stride=stride)
    assert result["perplexity"] == pytest.approx(naive_perplexity(BYTES_MODEL, tokens), rel=1e-5)


# ---- models larger than a device


@pytest.mark.parametrize("placement", ["cpu_offload", "disk_offload"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "opt"])
def test_an_offloaded_model_gives_the_same_numbers(metric, tmp_path, placement, architecture):
    accelerate = pytest.importorskip("accelerate")
    arguments = {"predictions": [TEXT, "w5 w6"], "tokenizer": make_tokenizer(), "stride": 3}
    expected = metric.compute(model=make_model(architecture), **arguments)
    model = make_model(architecture)
    if placement == "cpu_offload":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, str(tmp_path / "weights"), execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    refuse_to_be_moved(model)
    result = metric.compute(model=model, **arguments)
    assert result["signature"] == expected["signature"]
    assert result["perplexities"] == pytest.approx(expected["perplexities"], rel=1e-6)
    assert all(parameter.is_meta for parameter in model.parameters()), "left as it was found"


@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}, "auto", "layers on disk"])
def test_a_device_map_gives_the_same_numbers(metric, tiny, tmp_path, monkeypatch, device_map):
    pytest.importorskip("accelerate")
    arguments = {"predictions": [TEXT, "w5 w6"], "stride": 3}
    expected = metric.compute(model_id=tiny, device="cpu", **arguments)
    if Version(transformers.__version__) >= Version(
        "5"
    ):  # before, accelerate moves it there itself
        monkeypatch.setattr(transformers.GPT2LMHeadModel, "to", not_to_be_moved)
    model_kwargs = {"device_map": device_map}
    if device_map == "layers on disk":
        parts = ("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head")
        on_cpu = dict.fromkeys((*parts, "transformer.h.0"), "cpu")
        model_kwargs = {
            "device_map": on_cpu | {"transformer.h.1": "disk"},
            "offload_folder": str(tmp_path / "offloaded"),
        }
    result = metric.compute(model_id=tiny, model_kwargs=model_kwargs, **arguments)
    assert result["perplexities"] == pytest.approx(expected["perplexities"], rel=1e-6)
    assert result["num_tokens"] == 42


def refuse_to_be_moved(model: torch.nn.Module) -> None:
    model.to = lambda *args, **kwargs: not_to_be_moved(model)


def not_to_be_moved(*args, **kwargs):
    raise AssertionError("a dispatched model must stay where it is")
