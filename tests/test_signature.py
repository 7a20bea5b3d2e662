"""The signature: equal ones mean equal numbers, and whatever changes the numbers changes it."""

import copy
import functools
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import tokenizers
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs
from models import (
    BOS,
    NEWEST,
    VOCABULARY,
    SlowTokenizer,
    make_byte_tokenizer,
    make_model,
    make_tokenizer,
    random_text,
    save,
)
from tokenizers import normalizers

from perplexity_sliding.digests import TextsDigest, probe_tolerance, same_probe
from perplexity_sliding.models import language_model as model_module
from perplexity_sliding.models.digest import examine, model_revision
from perplexity_sliding.models.interface import ProbeText
from perplexity_sliding.models.module import named_modules, number_format
from perplexity_sliding.models.states import why_not_in_parts
from perplexity_sliding.models.weights import weights_digest
from perplexity_sliding.plan.tokenizer_digest import tokenizer_digest

TEXTS = [random_text(60), random_text(33, seed=1)]


def fields(result):
    return dict(pair.split(":", 1) for pair in result["signature"].split("|"))


def numbers(result):
    """All of a result but how it is called."""
    names = ("signature", "signature_short", "model")
    return {name: value for name, value in result.items() if name not in names}


@pytest.fixture
def measure(metric, tokenizer, gpt2):
    """Compute with a tiny model, some settings changed."""

    def run(**changes):
        kwargs = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer, "stride": 4}
        kwargs |= changes
        if "model_id" in kwargs:
            del kwargs["model"]
            if kwargs["tokenizer"] is tokenizer:
                del kwargs["tokenizer"]
        return metric.compute(**kwargs)

    return run


def test_equal_signatures_mean_equal_numbers(measure):
    """Another instance of everything, built in the same way, in another batch."""
    first = measure()
    second = measure(model=make_model("gpt2"), tokenizer=make_tokenizer())
    assert second["signature"] == first["signature"]
    assert second["signature_short"] == first["signature_short"]
    assert numbers(second) == numbers(first)
    in_small_batches = measure(batch_size=1)
    assert in_small_batches["signature"] == first["signature"]
    assert in_small_batches["perplexity"] == pytest.approx(first["perplexity"], rel=1e-6)


def test_the_texts_are_not_part_of_it(measure):
    assert measure(predictions=[random_text(9)])["signature"] == measure()["signature"]


def test_signature_says_what_was_measured(measure, tokenizer):
    result = measure(max_length=12, stride=5)
    signature_fields = fields(result)
    assert re.fullmatch(r"[0-9a-f]{12}\.[0-9a-f]{12}", signature_fields.pop("revision"))
    assert re.fullmatch(r"[0-9a-f]{12}", signature_fields.pop("tokenizer"))
    assert signature_fields.pop("version")
    expected = {
        "model": "GPT2LMHeadModel",
        "protocol": "sliding",
        "window": "12",
        "stride": "5",
        "start": f"once({tokenizer.bos_token_id})",
        "dtype": "float32",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    assert expected.items() <= signature_fields.items()
    assert re.fullmatch(r"ppl\|sliding\|L12\|S5\|[0-9a-f]{12}", result["signature_short"])


def one_weight_changed():
    model = make_model("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 5] += 0.5
    return model


def one_layer_norm_epsilon_changed():
    model = make_model("gpt2", layer_norm_epsilon=1e-3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), make_model("gpt2").parameters())
    )
    return model


CHANGES = {
    "one weight": (lambda: {"model": one_weight_changed()}, {"revision"}),
    "one value of the configuration": (
        lambda: {"model": one_layer_norm_epsilon_changed()},
        {"revision"},
    ),
    "the tokenizer's vocabulary": (
        lambda: {"tokenizer": make_tokenizer(vocabulary=70)},
        {"tokenizer"},
    ),
    "how the tokenizer starts": (
        lambda: {"tokenizer": make_tokenizer(adds_bos=True)},
        {"tokenizer", "start"},
    ),
    "the start token": (
        lambda: {"tokenizer": make_tokenizer(bos_token="w40")},
        {"tokenizer", "start"},
    ),
    "the window": (lambda: {"max_length": 12}, {"window"}),
    "the stride": (lambda: {"stride": 3}, {"stride"}),
    "no start token": (lambda: {"add_start_token": False}, {"start"}),
    "a start token in every window": (lambda: {"add_start_token": "every"}, {"start"}),
    "the protocol": (lambda: {"protocol": "megatron"}, {"protocol", "start", "join"}),
    "the dtype": (lambda: {"model": make_model("gpt2").bfloat16()}, {"revision", "dtype"}),
}


@pytest.mark.parametrize("change, changed_fields", CHANGES.values(), ids=CHANGES)
def test_each_ingredient_changes_it(measure, change, changed_fields):
    before, after = measure(), measure(**change())
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-7)
    assert after["signature"] != before["signature"]
    assert after["signature_short"] != before["signature_short"]
    pairs = zip(fields(before).items(), fields(after).items())
    assert {old[0] for old, new in pairs if old != new} == changed_fields


def test_separator(measure):
    """Joined texts are another text."""
    before = measure()
    after = measure(separator="\n\n")
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def test_word_counts(measure):
    """They decide the perplexity per word."""
    before, after = measure(), measure(word_counts=[20, 10])
    assert after["word_perplexity"] != pytest.approx(before["word_perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def test_special_tokens_split_or_not(measure):
    """`split_special_tokens` reads a special token that stands in the text as ordinary text."""
    kwargs = {"predictions": ["one <eos> two"], "model": make_model("gpt2", vocab_size=259)}
    before = measure(tokenizer=make_byte_tokenizer(), **kwargs)
    after = measure(tokenizer=make_byte_tokenizer(split_special_tokens=True), **kwargs)
    assert after["num_tokens"] == before["num_tokens"] + len("<eos>") - 1
    assert after["signature"] != before["signature"]


class Lowercasing(SlowTokenizer):
    """A tokenizer in plain Python with a setting."""

    def __init__(self, lowercase=True, **kwargs):
        self.lowercase = lowercase
        super().__init__(lowercase=lowercase, **kwargs)

    def _tokenize(self, text, **kwargs):
        return super()._tokenize(text.lower() if self.lowercase else text)


def test_settings_of_a_slow_tokenizer(measure):
    texts = [TEXTS[0].upper()]
    before = measure(predictions=texts, tokenizer=Lowercasing())
    after = measure(predictions=texts, tokenizer=Lowercasing(lowercase=False))
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def merging(folder, *merges):
    """A tokenizer in plain Python that joins pieces in this order."""
    pieces = [*"qzj", "q@@", "z@@", "qz@@", "zj"]
    (folder / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    (folder / "merges.txt").write_text("".join(f"{merge} 1\n" for merge in merges))
    return transformers.PhobertTokenizer(str(folder / "vocab.txt"), str(folder / "merges.txt"))


def test_merges_of_a_slow_tokenizer(measure, tmp_path):
    """The probe text contains no such word."""
    merges = ["q z", "z j</w>"]
    one, again, other = (merging(tmp_path, *order) for order in (merges, merges, merges[::-1]))
    before, same, after = (
        measure(predictions=["qzj qzj"], tokenizer=tokenizer) for tokenizer in (one, again, other)
    )
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"] == same["signature"]


class Pieces(SlowTokenizer):
    """A tokenizer with a SentencePiece model, whose scores are not in its vocabulary."""

    def __init__(self, scores):
        super().__init__()
        self.sp_model = SimpleNamespace(serialized_model_proto=lambda: scores)


def test_the_sentencepiece_model_of_a_slow_tokenizer():
    one, again, other = (tokenizer_digest(Pieces(scores)) for scores in (b"one", b"one", b"other"))
    assert one == again != other


def test_the_sentencepiece_model_of_a_part_of_a_slow_tokenizer(tmp_path):
    """That of BERT's for Japanese, which is in its tokenizer of subwords, was not digested."""
    digests = []
    for scores in (b"one", b"one", b"other"):
        tokenizer = wordpieces(tmp_path)
        tokenizer.wordpiece_tokenizer.sp_model = Pieces(scores).sp_model
        digests.append(tokenizer_digest(tokenizer))
    assert digests[0] == digests[1] != digests[2]


def wordpieces(folder):
    """A tokenizer in plain Python that leaves its work to objects of transformers in it."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[X_SEP]", "a", "##a", "##b"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    return transformers.ProphetNetTokenizer(str(folder / "vocab.txt"))


def test_helpers_of_a_slow_tokenizer(tmp_path):
    """Settings of theirs act on words that the probe text has not."""
    tokenizer = wordpieces(tmp_path)
    digests = [tokenizer_digest(tokenizer)]
    tokenizer("a word that is remembered")
    assert tokenizer_digest(tokenizer) == tokenizer_digest(wordpieces(tmp_path)) == digests[0]
    tokenizer.wordpiece_tokenizer.max_input_chars_per_word = 3000
    digests.append(tokenizer_digest(tokenizer))
    tokenizer.basic_tokenizer.never_split = {"AAB"}
    digests.append(tokenizer_digest(tokenizer))
    assert len(set(digests)) == 3


def test_the_padding_token_of_a_slow_tokenizer(tmp_path):
    """It is not split, wherever it is: 0.36 nats a token under one signature."""
    tokenizer = wordpieces(tmp_path)
    tokens, digest = tokenizer.tokenize("AB"), tokenizer_digest(tokenizer)
    tokenizer.pad_token = "AB"
    assert tokenizer.tokenize("AB") != tokens
    assert tokenizer_digest(tokenizer) != digest


def test_an_added_token_under_two_ids(tmp_path):
    """The last of the two counts."""
    digests = []
    for numbers in ((80, 81), (81, 80)):
        tokenizer = SlowTokenizer()
        tokens = {number: transformers.AddedToken("y") for number in numbers}
        tokenizer._added_tokens_decoder |= tokens
        tokenizer._added_tokens_encoder["y"] = numbers[-1]
        digests.append(tokenizer_digest(tokenizer))
    assert digests[0] != digests[1]


def test_a_setting_of_a_number_type_of_numpy(tmp_path):
    tokenizer = wordpieces(tmp_path)
    tokenizer.basic_tokenizer.longest = np.int64(12)
    digest = tokenizer_digest(tokenizer)
    tokenizer.basic_tokenizer.longest = np.int64(15)
    assert tokenizer_digest(tokenizer) != digest


def test_a_slow_tokenizer_that_is_saved_and_loaded(tmp_path):
    tokenizer = wordpieces(tmp_path)
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = transformers.ProphetNetTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer_digest(loaded) == tokenizer_digest(tokenizer)


def with_an_added_token(**flags):
    tokenizer = SlowTokenizer()
    tokenizer.add_tokens([transformers.AddedToken("y", **flags)])
    return tokenizer


def with_special_tokens_split():
    tokenizer = with_an_added_token()
    tokenizer.split_special_tokens = True
    return tokenizer


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: with_an_added_token(single_word=True), "w5y w6"),
        (with_special_tokens_split, "w5<eos> w6"),
    ],
)
def test_how_a_slow_tokenizer_finds_its_added_tokens(measure, make, text):
    arguments = {"predictions": [text], "model": make_model("gpt2", vocab_size=VOCABULARY + 1)}
    before = measure(tokenizer=with_an_added_token(), **arguments)
    after = measure(tokenizer=make(), **arguments)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def test_the_padding_token_of_roberta():
    """Its positions begin behind that id; other models only train with it."""
    roberta, llama = (
        {examine(make_model(name, pad_token_id=number)).line() for number in (1, 2)}
        for name in ("roberta", "llama")
    )
    assert (len(roberta), len(llama)) == (2, 1)


def test_buffers_that_are_not_saved(measure):
    """Rotary frequencies, say, that a context extension patches in place."""
    model = make_model("llama")
    before = measure(model=model)
    patched = copy.deepcopy(model)
    patched.model.rotary_emb.inv_freq.mul_(0.25)
    after = measure(model=patched)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def test_weights_that_are_offloaded(measure):
    """They are on "meta" where they can't be seen, but two models are still two."""
    accelerate = pytest.importorskip("accelerate")
    one, other = (
        measure(model=accelerate.cpu_offload(make_model("gpt2", seed=seed), "cpu"))
        for seed in (0, 1)
    )
    assert one["perplexity"] != pytest.approx(other["perplexity"], rel=1e-4)
    assert one["signature"] != other["signature"]


def test_weights_that_are_assigned_to_an_offloaded_model(measure):
    """The next pass replaces them: 4,461 under the signature of the model with 4,229."""
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(make_model("gpt2"), "cpu")
    before = measure(model=model)
    model.load_state_dict(make_model("gpt2", seed=1).state_dict(), assign=True)
    assert measure(model=model) == before


def test_attention_implementation(measure, tmp_path, tokenizer):
    """In half precision each rounds in its own way."""
    folder = save(tmp_path / "tiny", make_model("gpt2"), tokenizer)
    texts = [random_text(300)]
    eager, sdpa = (
        measure(
            predictions=texts,
            model_id=folder,
            dtype="bfloat16",
            model_kwargs={"attn_implementation": implementation},
        )
        for implementation in ("eager", "sdpa")
    )
    assert eager["perplexity"] != pytest.approx(sdpa["perplexity"], rel=1e-5)
    assert eager["signature"] != sdpa["signature"]


def test_padding_token_does_not_matter(measure):
    """Causal models are often given one for training; nothing here is padded with it."""
    tokenizer = make_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    before, after = measure(), measure(tokenizer=tokenizer)
    assert numbers(after) == numbers(before)
    assert after["signature"] == before["signature"]


def test_padding_and_truncation_set_by_others_do_not_matter(measure):
    before = measure()
    tokenizer = make_tokenizer(padding_side="left")
    tokenizer("w5 w6", truncation=True, max_length=1, padding="max_length")
    after = measure(tokenizer=tokenizer)
    assert after["signature"] == before["signature"]
    assert numbers(after) == numbers(before)


def test_a_folder_and_its_model_passed_live(measure, tmp_path, tokenizer):
    """The same content has the same revision, however it came."""
    folder = save(tmp_path / "somewhere" / "tiny", make_model("gpt2"), tokenizer)
    from_folder = measure(model_id=folder)
    live = measure(model=make_model("gpt2"))
    assert fields(from_folder)["revision"] == fields(live)["revision"]
    assert fields(from_folder)["tokenizer"] == fields(live)["tokenizer"]
    assert fields(from_folder)["model"] == "tiny"
    assert numbers(from_folder) == numbers(live)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert measure(model=loaded)["signature"] == from_folder["signature"]


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_read_from_a_file_has_lists_for_tuples(tmp_path):
    """Mamba 2 hands one on to its layers."""
    model = make_model("mamba2")
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert examine(loaded).line() == examine(model).line()


def test_another_folder_has_the_same_signature(measure, tmp_path, tokenizer):
    """Nothing in it says where on a machine the model lies."""
    model = make_model("gpt2")
    here = save(tmp_path / "here" / "tiny", model, tokenizer)
    there = save(tmp_path / "there" / "deeper" / "tiny", model, tokenizer)
    first, second = measure(model_id=here), measure(model_id=there + "/")
    assert first["signature"] == second["signature"]
    assert str(tmp_path) not in first["signature"]


def test_a_folder_that_is_gone(measure, tmp_path, tokenizer):
    """A live model keeps the path that it was loaded from; the signature must not show it."""
    folder = save(tmp_path / "tiny", make_model("gpt2"), tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    before = measure(model=model)["signature"]
    shutil.rmtree(folder)
    assert measure(model=model)["signature"] == before
    assert str(tmp_path) not in before


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path, tokenizer, offline):
    """A cache folder as the Hub's client leaves it, with two models in one commit."""
    repository = tmp_path / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    save(snapshot, make_model("gpt2"), tokenizer)
    save(snapshot / "later", make_model("gpt2", seed=1), tokenizer)
    return {"cache_dir": str(tmp_path), "local_files_only": True}


def test_a_model_of_the_hub_has_its_commit(measure, hub_cache):
    result = measure(model_id="someone/tiny", model_kwargs=hub_cache)
    assert fields(result)["model"] == "someone/tiny"
    commit, configuration = fields(result)["revision"].split(".")
    assert commit == COMMIT[:12]
    assert configuration == fields(measure())["revision"].split(".")[1]
    assert numbers(result) == numbers(measure())


def test_other_weights_of_one_commit(measure, hub_cache, tmp_path):
    """Some repositories hold weights in two formats, and not the same ones."""
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / COMMIT
    torch.save(make_model("gpt2", seed=1).state_dict(), snapshot / "pytorch_model.bin")
    before = measure(model_id="someone/tiny", model_kwargs=hub_cache)
    after = measure(model_id="someone/tiny", model_kwargs=hub_cache | {"use_safetensors": False})
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def test_other_dtypes_of_one_commit():
    """The parts of a model can be loaded in several: 1.3 nats a token under one signature."""

    def revision(*halved):
        model = make_model("gpt2")
        for n in halved:
            model.transformer.h[n].bfloat16()
        return model_revision(model, COMMIT)

    assert len({revision(), revision(0), revision(1)}) == 3
    assert revision(0) == revision(0)
    assert model_revision(make_model("gpt2").bfloat16(), COMMIT) == revision(), "said elsewhere"


def test_two_models_of_one_commit(measure, hub_cache):
    first = measure(model_id="someone/tiny", model_kwargs=hub_cache)
    second = measure(model_id="someone/tiny", model_kwargs=hub_cache | {"subfolder": "later"})
    assert second["perplexity"] != pytest.approx(first["perplexity"], rel=1e-4)
    assert second["signature"] != first["signature"]


# ---- the same number under another signature


def test_what_has_no_part_in_the_number_does_not_matter(measure):
    """Settings for generation and training."""
    before = measure()
    model = make_model("gpt2", attn_pdrop=0.3, embd_pdrop=0.3, resid_pdrop=0.3)
    model.config.pad_token_id = model.config.eos_token_id = 5
    model.config.use_cache = False
    model.config.max_length = 99
    model.config.id2label = {0: "good", 1: "bad"}
    model.config.initializer_range = 0.5
    model.train()
    after = measure(model=model)
    assert after["perplexity"] == before["perplexity"]
    assert after["signature"] == before["signature"]


def test_a_layer_that_is_compiled(measure):
    """Tables of torch's compiler have numbers as keys: an AttributeError."""
    model = make_model("gpt2")
    model.transformer.h[1] = torch.compile(model.transformer.h[1], backend="eager")
    assert measure(model=model)["perplexity"] == pytest.approx(measure()["perplexity"], rel=1e-6)


def test_a_compiled_model_is_the_model(measure):
    before = measure()
    after = measure(model=torch.compile(make_model("gpt2")))
    assert after["perplexity"] == pytest.approx(before["perplexity"], rel=1e-6)
    assert after["signature"] == before["signature"]


@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, torch.optim.swa_utils.AveragedModel])
def test_a_wrapped_model_is_the_model(measure, wrap):
    """The wrapper of averaged weights has no vocabulary, and was probed with another text."""
    before, after = measure(), measure(model=wrap(make_model("gpt2")))
    assert after["perplexity"] == before["perplexity"]
    assert (after["signature"], after["probe"]) == (before["signature"], before["probe"])


def test_a_model_with_a_compiled_forward_is_the_model(measure, tmp_path):
    """As transformers' guide on speed compiles it, in place."""
    model = make_model("gpt2")
    model.forward = torch.compile(model.forward, backend="eager")
    before, after = measure(), measure(model=model, checkpoint=tmp_path / "run.sqlite")
    assert after["perplexity"] == pytest.approx(before["perplexity"], rel=1e-6)
    assert after["signature"] == before["signature"]


@pytest.mark.parametrize("kind", ["dynamic", *(["longrope"] if NEWEST else [])])
def test_frequencies_that_grow_while_running_are_not_part_of_it(measure, kind):
    scaling = {"rope_type": kind, "factor": 2.0}
    if kind == "longrope":
        scaling |= {
            "long_factor": [3.0] * 8,
            "short_factor": [1.0] * 8,
            "original_max_position_embeddings": 8,
        }
    model = make_model("llama", rope_scaling=scaling)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    with torch.inference_mode():
        model(torch.arange(40)[None])
    assert not torch.equal(model.model.rotary_emb.inv_freq, frequencies), "nothing has grown"
    fresh = measure(model=make_model("llama", rope_scaling=scaling))
    assert measure(model=model)["signature"] == fresh["signature"]


# ---- another number under the same signature


def steer(module, arguments, output):
    return output + torch.linspace(-3, 3, output.shape[-1])


class Steered(transformers.GPT2LMHeadModel):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.roll(1, -1)
        return output


def steered():
    torch.manual_seed(0)
    model = Steered(make_model("gpt2").config)
    model.load_state_dict(make_model("gpt2").state_dict())
    return model


def hooked():
    model = make_model("gpt2")
    model.transformer.h[0].mlp.register_forward_hook(steer)
    return model


def patched():
    model = make_model("gpt2")
    original = model.transformer.h[0].mlp.forward
    model.transformer.h[0].mlp.forward = lambda hidden: 2 * original(hidden)
    return model


def with_another_method():
    model = make_model("falcon")
    attention = model.transformer.h[0].self_attention
    original = attention._split_heads
    attention._split_heads = lambda fused: original(3 * fused)
    return model


def with_another_activation():
    model = make_model("gpt2")
    for block in model.transformer.h:
        block.mlp.act = torch.nn.ReLU()
    return model


def with_another_activation_function():
    model = make_model("gpt2")
    for block in model.transformer.h:
        del block.mlp.act
        block.mlp.act = torch.nn.functional.relu
    return model


def with_another_number_in_a_module():
    model = make_model("llama")
    model.model.norm.variance_epsilon = 0.5
    return model


MODIFIED = {
    "a hook": (hooked, True),
    "another forward": (patched, True),
    "another method": (with_another_method, True),
    "a subclass": (steered, True),
    "another activation": (with_another_activation, False),
    "another activation function": (with_another_activation_function, False),
    "another number in a module": (with_another_number_in_a_module, False),
}


@pytest.mark.parametrize("make, is_said", MODIFIED.values(), ids=MODIFIED)
def test_a_changed_model_has_another_signature(measure, make, is_said):
    changed = make()
    plain = make_model(changed.config.model_type)
    before, after = measure(model=plain), measure(model=changed)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]
    assert fields(after)["model"].endswith("+modified") == is_said


MODELING = transformers.models.llama.modeling_llama


def without_norm(self, hidden):
    return self.weight * hidden


@pytest.mark.parametrize(
    "function", [without_norm, functools.wraps(MODELING.LlamaRMSNorm.forward)(without_norm)]
)
def test_a_method_that_is_replaced_in_the_library(measure, monkeypatch, function):
    """As packages of faster layers do it."""
    before = measure(model=make_model("llama"))
    monkeypatch.setattr(MODELING.LlamaRMSNorm, "forward", function)
    after = measure(model=make_model("llama"))
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert fields(after)["model"] == fields(before)["model"] + "+modified"


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return 1.1 * result if function is torch.nn.functional.silu else result


def replaced(place, name, change):
    """Patch a function where the library finds it."""

    def patch(monkeypatch):
        monkeypatch.setattr(place, name, change(getattr(place, name)))

    return patch


BEHIND = {
    "a function of the model's": replaced(
        MODELING, "apply_rotary_pos_emb", lambda _: lambda query, key, *_, **__: (query, key)
    ),
    "a function of torch's": replaced(
        torch.nn.functional, "silu", lambda _: lambda hidden, inplace=False: hidden.relu()
    ),
    "attention as plug-ins replace it": replaced(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda plain: lambda query, *args, **kwargs: plain(1.5 * query, *args, **kwargs),
    ),
    "linear layers": replaced(
        torch.nn.functional, "linear", lambda plain: lambda x, *args: 1.01 * plain(x, *args)
    ),
    "a mode": lambda monkeypatch: Doubling().__enter__(),
}


@pytest.mark.parametrize("patch", BEHIND.values(), ids=BEHIND)
def test_what_no_signature_shows_is_measured(measure, monkeypatch, patch):
    """The list of such places never ends: the probe is another number."""
    before, again = (measure(model=make_model("llama")) for _ in range(2))
    assert again["probe"] == before["probe"]
    mode = patch(monkeypatch)
    try:
        after = measure(model=make_model("llama"))
    finally:
        if mode is not None:
            mode.__exit__(None, None, None)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    if NEWEST:  # before, attention that is replaced was seen
        assert after["signature"] == before["signature"]
    assert not same_probe(after["probe"], before["probe"], before["signature"])


def test_the_probe_is_the_mean_nll_of_a_made_up_text(measure):
    """And tells no more of the texts than the signature does."""
    model = make_model("llama", max_position_embeddings=400)
    result, other = measure(model=model), measure(model=model, predictions=TEXTS[1:], batch_size=1)
    assert other["probe"] == result["probe"]
    ids = ProbeText.of(VOCABULARY, 400).ids
    assert len(ids) == 256 and max(ids) < VOCABULARY and len(set(ids)) > 60
    expected = reference.mean(reference.row_nlls(model, ids))
    assert result["probe"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_probe_in_half_precision_is_that_of_the_model(measure, dtype):
    """Within what it may differ by between machines."""
    whole, half = measure(model=make_model("gpt2")), measure(model=make_model("gpt2").to(dtype))
    assert same_probe(half["probe"], whole["probe"], half["signature"])


class OwnNorm(MODELING.LlamaRMSNorm):
    """A layer of somebody's own, which inherits how it computes."""


def test_what_is_replaced_in_the_library_under_a_class_of_ones_own(measure, monkeypatch):
    def model():
        model = make_model("llama")
        for module in model.modules():
            if isinstance(module, MODELING.LlamaRMSNorm):
                module.__class__ = OwnNorm
        return model

    before = measure(model=model())
    monkeypatch.setattr(MODELING.LlamaRMSNorm, "forward", without_norm)
    after = measure(model=model())
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert fields(after)["model"] == fields(before)["model"] + "+modified"


@pytest.mark.skipif(not NEWEST, reason="there was no place to register one")
def test_attention_of_ones_own(measure, monkeypatch):
    """Registered under the name that the configuration asks for."""
    registered = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    plain = registered["sdpa"]
    results = []
    for factor in (1.0, 2.0, 3.0):
        if factor > 1:
            own = lambda module, query, *args, factor=factor, **kwargs: plain(  # noqa: E731
                module, factor * query, *args, **kwargs
            )
            monkeypatch.setitem(registered, "sdpa", own)
        results.append(measure(model=make_model("llama")))
    assert fields(results[1])["model"].endswith("+modified")
    assert len({round(result["probe"], 3) for result in results}) == 3
    assert len({round(result["perplexity"], 3) for result in results}) == 3


class Scaling(torch.nn.Module):
    """An activation whose strength may stand in many places."""

    temperature = 1.0
    factor = 1.0

    def __init__(self, **kept):
        super().__init__()
        self._factor = 1.0
        self.steps = [1.0]
        self.settings = SimpleNamespace(factor=1.0)
        self.vector = torch.tensor(1.0)
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, hidden):
        kept = self._factor * self.steps[0] * self.settings.factor * self.vector
        return hidden.relu() * kept * self.factor / self.temperature


def scaling_class(number):
    """A class that was written anew, with another number."""
    return type("Scaling", (Scaling,), {"factor": number})()


def closure(number):
    return lambda hidden: number * hidden.relu()


def default(number):
    def activation(hidden, factor=number):
        return factor * hidden.relu()

    return activation


def decorated(number):
    plain = torch.nn.functional.relu
    return functools.wraps(plain)(lambda hidden: number * plain(hidden))


ACTIVATIONS = {
    "a partial function": lambda number: functools.partial(torch.nn.functional.celu, alpha=number),
    "a closure": closure,
    "a default": default,
    "a wrapper": decorated,
    "a method": lambda number: Scaling(factor=number).forward,
    "a number of a module": lambda number: Scaling(factor=number),
    "a private number": lambda number: Scaling(_factor=number),
    "a number with a name that generation has too": lambda number: Scaling(temperature=number),
    "a list": lambda number: Scaling(steps=[number]),
    "an object": lambda number: Scaling(settings=SimpleNamespace(factor=number)),
    "a tensor that is no buffer": lambda number: Scaling(vector=torch.tensor(number)),
    "a number of a class": scaling_class,
}


@pytest.mark.parametrize("make", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_numbers_inside_of_what_was_put_into_a_model(measure, make):
    """Another number there is another probe; the same one, made again, is the same."""

    def result(number):
        model = make_model("gpt2")
        for block in model.transformer.h:
            del block.mlp.act
            block.mlp.act = make(number)
        return measure(model=model)

    before, again, after = result(1.0), result(1.0), result(2.0)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert not same_probe(after["probe"], before["probe"], before["signature"])
    assert (again["signature"], again["probe"]) == (before["signature"], before["probe"])


def test_a_tuple_in_a_layer_of_torch():
    """Here how far a convolution looks back."""
    model = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3))
    before = examine(model).line()
    model[0].dilation = (2,)
    assert examine(model).line() != before


def test_a_hook_of_all_modules(measure):
    before = measure()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert fields(measure())["model"] == fields(before)["model"] + "+modified"
    finally:
        handle.remove()


def test_hooks_of_the_libraries_own_are_no_modification(measure):
    """Training with gradient checkpoints leaves one behind."""
    model = make_model("gpt2")
    model.enable_input_require_grads()
    assert model.get_input_embeddings()._forward_hooks, "there is none"
    assert measure(model=model)["signature"] == measure()["signature"]


def test_autocast(measure):
    before = measure()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after = measure()
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-5)
    assert fields(after)["dtype"] == "float32+autocast(cpu,bfloat16)"


@pytest.mark.parametrize(
    "enabled, dtype", [(True, "autocast(cpu,bfloat16)"), (False, "autocast(cpu,off)")]
)
def test_autocast_of_accelerate(measure, enabled, dtype):
    """Around the forward: it was no part of the signature, and 2,130 for 4,491 under one probe."""
    before, settings = measure(), AutocastKwargs(enabled=enabled)
    AcceleratorState._reset_state(True)
    try:
        preparing = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=[settings])
        after = measure(model=preparing.prepare_model(make_model("gpt2")))
    finally:
        AcceleratorState._reset_state(True)
    assert (after["perplexity"] == pytest.approx(before["perplexity"], rel=1e-6)) != enabled
    assert fields(after)["dtype"] == f"float32+{dtype}"


def test_autocast_of_a_part(measure):
    """Which part it is makes 0.04 nats a token."""
    named = set()
    for n in range(2):
        model = make_model("gpt2")
        block = model.transformer.h[n]
        block.forward = torch.autocast("cpu", dtype=torch.bfloat16)(block.forward)
        named.add(fields(measure(model=model))["dtype"])
    assert named == {f"float32+autocast(cpu,bfloat16,transformer.h.{n})" for n in range(2)}


def test_autocast_of_accelerate_around_adapters(measure):
    """It casts in the forward of PEFT's wrapper, which was left out: 8.284 for 8.282 nats."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(make_model("llama"), config).eval()
    AcceleratorState._reset_state(True)
    try:
        prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare_model(model)
        result = measure(predictions=TEXTS[:1], model=prepared, max_length=80, stride=79)
    finally:
        AcceleratorState._reset_state(True)
    ids = torch.tensor([[BOS, *(int(word[1:]) for word in TEXTS[0].split())]])
    with torch.inference_mode():
        logits = prepared(input_ids=ids[:, :-1]).logits[0].double()
    naive = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    assert result["total_nll"] == pytest.approx(naive, rel=1e-5)
    assert "autocast(cpu,bfloat16)" in fields(result)["dtype"]


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda, "allow_fp16_bf16_reduction_math_sdp"), reason="older torch"
)
def test_sums_of_fewer_bits(measure):
    """Of attention, on a CPU too: 0.12 nats a token in bfloat16."""
    before = measure()
    products = torch.backends.cuda.matmul
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    products.allow_bf16_reduced_precision_reduction = False
    try:
        after = measure()
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
        products.allow_bf16_reduced_precision_reduction = True
    changed = "+sdp(reduced)+bf16_reduced_precision_reduction(False)"
    assert fields(after)["dtype"] == fields(before)["dtype"] + changed


def test_products_of_fewer_bits(measure):
    """As for training on a GPU; what they do depends on the device."""
    before = measure()
    torch.set_float32_matmul_precision("medium")
    try:
        assert fields(measure())["dtype"] == "float32+matmul(medium)"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert measure()["signature"] == before["signature"]


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="torch has one setting for all devices"
)
def test_products_of_fewer_bits_on_the_processor(measure):
    """Set by the newer API, where each kind of device has its own."""
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        assert fields(measure())["dtype"] == "float32+matmul(bf16)"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert fields(measure())["dtype"] == "float32"


@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out")
def test_adapters(measure):
    """Which of them is in use, and none where they are switched off."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
    torch.manual_seed(1)
    model = peft.get_peft_model(make_model("gpt2"), config, adapter_name="law")
    model.add_adapter("prose", config)
    named = {}
    for name in ("law", "prose"):
        model.set_adapter(name)
        named[name] = measure(model=model)
        assert fields(named[name])["adapters"] == name
    with model.disable_adapter():
        named["none"] = measure(model=model)
        assert fields(named["none"])["adapters"] == "none"
    assert len({result["signature"] for result in named.values()}) == 3
    assert named["none"]["perplexity"] == pytest.approx(measure()["perplexity"], rel=1e-6)
    assert len({round(result["perplexity"], 3) for result in named.values()}) == 3
    for layer in model.modules():
        if isinstance(vars(layer).get("scaling"), dict):
            layer.scaling["prose"] *= 2
    assert measure(model=model)["signature"] != named["prose"]["signature"]
    model.merge_adapter(["law"])
    assert fields(measure(model=model))["adapters"] == "prose+law"
    assert "adapters" not in fields(measure())


def test_quantised_weights(measure, tmp_path, tokenizer):
    """The same codes with other scales are another model."""
    pytest.importorskip("bitsandbytes")
    results = []
    for scale in (1.0, 2.0):
        model = make_model("llama", hidden_size=64, intermediate_size=64)
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(scale)
        folder = save(tmp_path / str(scale), model, tokenizer)
        settings = transformers.BitsAndBytesConfig(load_in_4bit=True)
        results.append(
            measure(model_id=folder, model_kwargs={"quantization_config": settings}, device="cpu")
        )
    one, other = results
    assert fields(one)["dtype"].startswith("bitsandbytes-4bit-fp4")
    assert one["perplexity"] != pytest.approx(other["perplexity"], rel=1e-4)
    assert fields(one)["revision"] != fields(other)["revision"]


def test_outliers_of_rows_that_are_not_scored(measure, tmp_path, tokenizer):
    """They, too, decide which columns are rounded: 8.15 for 8.27 nats."""
    pytest.importorskip("bitsandbytes")
    folder = save(tmp_path, make_model("llama", hidden_size=64, intermediate_size=64), tokenizer)
    settings = transformers.BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=1.0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=settings)
    ids = [BOS, *tokenizer(TEXTS[0], add_special_tokens=False).input_ids]
    result = measure(predictions=TEXTS[:1], model=model, max_length=16, stride=4)
    expected, done = [], 1
    for begin in range(0, len(ids), 4):
        end = min(begin + 16, len(ids))
        with torch.inference_mode():
            rows = model(torch.tensor([ids[begin : end - 1]])).logits[0].double().log_softmax(-1)
        expected += [-rows[n - begin - 1, ids[n]].item() for n in range(max(done, begin + 1), end)]
        done = end
        if end == len(ids):
            break
    assert result["total_nll"] == pytest.approx(sum(expected), rel=1e-6)
    assert why_not_in_parts(model).startswith("how its layers round or mask a token depends")


def test_outliers_of_other_texts(measure, tmp_path, tokenizer):
    """Columns in which any token of a batch has an outlier are not rounded: 0.26 nats of a text."""
    pytest.importorskip("bitsandbytes")
    folder = save(tmp_path, make_model("llama", hidden_size=64, intermediate_size=64), tokenizer)
    settings = transformers.BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=1.0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=settings)
    texts = [random_text(5 + 4 * (seed % 3), seed=seed) for seed in range(8)]
    result = measure(predictions=texts, model=model, max_length=16, stride=15, batch_size=4)
    alone = []
    for text in texts:
        ids = torch.tensor([[BOS, *tokenizer(text, add_special_tokens=False).input_ids]])
        with torch.inference_mode():
            logits = model(ids[:, :-1]).logits[0]
        alone.append(torch.nn.functional.cross_entropy(logits.double(), ids[0, 1:]).exp().item())
    assert result["perplexities"] == pytest.approx(alone, rel=1e-6)
    assert "passes" not in fields(result)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_weights_that_torch_has_quantised():
    """They are no parameters any more."""
    one, again, other = (
        torch.ao.quantization.quantize_dynamic(make_model("llama", seed=seed)) for seed in (0, 0, 1)
    )
    with torch.no_grad():
        other.model.embed_tokens.weight.copy_(one.model.embed_tokens.weight)
    assert number_format(one) == "torch.ao+float32"
    digests = [weights_digest(named_modules(model)) for model in (one, again, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_separator_of_the_name_of_nothing(measure):
    for name, other in (("None", {}), ("tokens", {"protocol": "mlx-lm"})):
        joined, plain = (
            measure(separator=name),
            measure(**({"stride": None} if other else {}), **other),
        )
        assert fields(joined)["join"] == repr(name) != fields(plain)["join"]


def test_the_detokenizer_is_named(measure):
    """Which the metric cannot see: its texts are prose by then."""
    before, after = measure(), measure(detokenizer="lm-eval")
    assert fields(after) == fields(before) | {"detokenizer": "lm-eval"}
    assert after["signature_short"] != before["signature_short"]
    with pytest.raises(TypeError, match="`detokenizer` must be a name for the signature, got <"):
        measure(detokenizer=str.lower)


# ---- tokenizers


class Spelling(transformers.PreTrainedTokenizerFast):
    """Python around a fast tokenizer."""

    def __call__(self, text, *args, **kwargs):
        text = [one.replace("w5", "w6") for one in text] if isinstance(text, list) else text
        return super().__call__(text, *args, **kwargs)


def subclassed():
    return Spelling(tokenizer_object=make_tokenizer().backend_tokenizer, bos_token="<bos>")


def without_fives(ids):
    return max(6, ids) if isinstance(ids, int) else [without_fives(one) for one in ids]


def replaced_method():
    tokenizer = make_tokenizer()
    name = "_encode_plus" if not hasattr(tokenizer, "_batch_encode_plus") else "_batch_encode_plus"
    plain = getattr(tokenizer, name)

    def encode(*args, **kwargs):
        encoded = plain(*args, **kwargs)
        return type(encoded)(encoded | {"input_ids": without_fives(encoded["input_ids"])})

    setattr(tokenizer, name, encode)
    return tokenizer


def another_normalizer():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("w5", "w6")
    return tokenizer


def with_an_added_word():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["w5 w6"])
    return tokenizer


EDITED = {
    "a subclass": subclassed,
    "a replaced method": replaced_method,
    "a normalizer": another_normalizer,
    "an added word": with_an_added_word,
}


@pytest.mark.parametrize("make", EDITED.values(), ids=EDITED)
def test_an_edited_tokenizer(measure, make):
    texts = ["w5 w6 w7 w5 w6"]
    arguments = {"predictions": texts, "model": make_model("gpt2", vocab_size=81)}
    before, after = measure(**arguments), measure(tokenizer=make(), **arguments)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert fields(after)["tokenizer"] != fields(before)["tokenizer"]


def test_a_slow_tokenizer_that_is_changed_later(measure):
    texts = [TEXTS[0].upper()]
    tokenizer = Lowercasing()
    before = measure(predictions=texts, tokenizer=tokenizer)
    tokenizer.lowercase = False
    after = measure(predictions=texts, tokenizer=tokenizer)
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert after["signature"] != before["signature"]


def test_a_method_of_tokenizers_that_is_replaced_in_the_library(measure, monkeypatch, tokenizer):
    """Behind one that has encoded before."""
    before = measure()
    names = ("_batch_encode_plus", "_encode_plus")  # the latter takes lists since transformers 5
    kinds = type(tokenizer).__mro__
    kind, name = next((kind, name) for name in names for kind in kinds if name in vars(kind))
    plain = getattr(kind, name)

    def encode(self, *args, **kwargs):
        named = {key: swapped(value) for key, value in kwargs.items()}
        return plain(self, *map(swapped, args), **named)

    def swapped(value):
        return [text.replace("w7", "w8") for text in value] if isinstance(value, list) else value

    monkeypatch.setattr(kind, name, encode)
    after = measure()
    assert after["perplexity"] != pytest.approx(before["perplexity"], rel=1e-4)
    assert fields(after)["tokenizer"] != fields(before)["tokenizer"]


def test_a_chat_template_does_not_matter(measure):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    assert measure(tokenizer=tokenizer)["signature"] == measure()["signature"]


# ---- the digest of the texts


def test_the_texts_have_a_digest_of_their_own(measure):
    """Of their content, their order and where one ends."""
    digest = measure()["texts_digest"]
    assert re.fullmatch(r"[0-9a-f]{12}", digest)
    assert measure(stride=3)["texts_digest"] == digest
    others = [TEXTS[::-1], TEXTS[:1], [" ".join(TEXTS)], [TEXTS[0] + " ", TEXTS[1]]]
    assert len({digest, *(measure(predictions=texts)["texts_digest"] for texts in others)}) == 5


def test_digests_of_parts_add_up():
    texts = ["one", "two", "", "two", "three \N{SNOWMAN}"]
    for cut in range(6):
        assert TextsDigest.of(texts[:cut]) + TextsDigest.of(texts[cut:]) == TextsDigest.of(texts)


def test_what_stands_between_contexts_and_texts(measure):
    """It is scored with the text, so the numbers are others."""
    arguments = {"contexts": "w7 w8", "return_totals": True}
    one, other = (measure(context_separator=separator, **arguments) for separator in (" ", "  w9 "))
    assert one["signature_short"] != other["signature_short"]
    with pytest.raises(ValueError, match="Totals can be added only"):
        one["totals"] + other["totals"]


def test_a_tokenizer_is_digested_once_a_call(measure, monkeypatch, tmp_path, tokenizer):
    """Anew in every call of a live model, which may have been changed; once of a loaded one."""
    digested, plain = [], model_module.tokenizer_digest

    def counting(tokenizer):
        digested.append(1)
        return plain(tokenizer)

    monkeypatch.setattr(model_module, "tokenizer_digest", counting)
    for _ in range(2):
        measure(stride=[4, 8])
    assert len(digested) == 2
    folder = save(tmp_path / "tiny", make_model("gpt2"), tokenizer)
    for _ in range(2):
        measure(model_id=folder, stride=[4, 8])
    assert len(digested) == 3
    own = Lowercasing()
    first = measure(model_id=folder, tokenizer=own)
    own.lowercase = False
    assert fields(measure(model_id=folder, tokenizer=own)) != fields(first)


@pytest.mark.parametrize(
    "kind, setting, values",
    [
        ("FourierFTConfig", "random_loc_seed", (1, 2)),
        ("FourierFTConfig", "scaling", (100.0, 150.0)),
        ("ShiraConfig", "random_seed", (1, 2)),
    ],
)
def test_settings_of_an_adapter(measure, kind, setting, values):
    """Weights were equal, and which entries they are for was in no digest: 0.3 nats by chance."""
    peft = pytest.importorskip("peft")
    make = getattr(peft, kind, None) or pytest.skip(f"this peft has no {kind}")
    results = []
    for value in (*values, values[0]):
        settings = {"n_frequency": 9} if kind == "FourierFTConfig" else {"r": 2}
        config = make(target_modules=["q_proj"], **settings, **{setting: value})
        model = peft.get_peft_model(make_model("llama"), config).eval()
        torch.manual_seed(0)
        for weight in (w for w in model.parameters() if w.requires_grad):
            weight.data = torch.randn_like(weight)
        results.append(measure(model=model))
        assert measure(model=model)["signature"] == results[-1]["signature"]
    one, other = results[:2]
    assert one["perplexity"] != pytest.approx(other["perplexity"], rel=1e-6)
    revisions = [result["signature"].split("|")[1] for result in results]
    assert revisions[0] == revisions[2] != revisions[1]


def word_pieces(vocabulary, lowercase=False):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if lowercase:
        backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_a_normalizer_that_is_changed_in_place(tmp_path):
    """Added tokens stay as it wrote them: 0.1 nats a token under one signature."""
    tokenizer = word_pieces({"[UNK]": 0, "a": 1}, lowercase=True)
    tokenizer.add_tokens(["Foozle"])
    tokenizer.backend_tokenizer.normalizer.lowercase = False
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.tokenize("a Foozle") != tokenizer.tokenize("a Foozle")
    assert tokenizer_digest(loaded) != tokenizer_digest(tokenizer)


def test_two_words_with_one_id(tmp_path):
    """The library writes and decodes one of them, at random: 0.9 nats a token under one signature."""
    digests = []
    for more in ({}, {"colour": 1}, {"colour": 2}, {"hue": 1}):
        word_pieces({"[UNK]": 0, "color": 1, "w": 2}).save_pretrained(tmp_path)
        path = tmp_path / "tokenizer.json"
        written = json.loads(path.read_text())
        written["model"]["vocab"] |= more
        path.write_text(json.dumps(written))
        loaded = [transformers.AutoTokenizer.from_pretrained(tmp_path) for _ in range(8)]
        assert all(set(more) <= tokenizer.get_vocab().keys() for tokenizer in loaded)
        digests.append({tokenizer_digest(tokenizer) for tokenizer in loaded})
    assert len(digests[0]) == 1
    assert len(set.union(*digests)) == sum(map(len, digests))


def test_small_numbers_that_are_flushed():
    """Which a global switch of torch does."""
    model = make_model("gpt2")
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor does not")
        assert number_format(model) == "float32+flush"
    finally:
        torch.set_flush_denormal(False)
    assert number_format(model) == "float32"
    assert probe_tolerance("model:x|dtype:float32+flush|") == probe_tolerance("dtype:float32|")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_default_dtype(dtype):
    """OPT counts positions in it: 0.19 nats a token under one signature."""
    model = make_model("gpt2")
    torch.set_default_dtype(dtype)
    try:
        assert number_format(model) == f"float32+default({str(dtype)[6:]})"
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_that_got_another_vocabulary_and_was_saved(tmp_path):
    model = make_model("gpt2")
    model.resize_token_embeddings(90)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model_revision(loaded, None) == model_revision(model, None)


def test_the_implementation_of_experts(measure):
    """They add in other precisions: 0.1 nats a token in bfloat16 under one signature."""
    model = make_model("mixtral")
    if not hasattr(model, "set_experts_implementation"):
        pytest.skip("this transformers has one implementation of experts")
    found = []
    for name in ("eager", "batched_mm"):
        model.set_experts_implementation(name)
        found.append(fields(measure(model=model)))
    assert [each["experts"] for each in found] == ["eager", "batched_mm"]
    assert "experts" not in fields(measure())
