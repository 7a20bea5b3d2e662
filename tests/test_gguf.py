"""GGUF files under llama.cpp, in this process: the numbers of transformers, and what rounding costs."""

import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from perplexity_sliding.engines.gguf import check_vocabulary

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo_model"
TEXTS = [(ROOT / "samples" / "story.txt").read_text("utf-8")[:4000], "A note. It is short."]
# Fields of llama_context_params: keys and values in F32, which flash attention does not keep.
IN_SINGLE_PRECISION = {"type_k": 0, "type_v": 0, "flash_attn_type": 0}
installed = all(importlib.util.find_spec(name) for name in ("llama_cpp", "gguf"))
needs_llama_cpp = pytest.mark.skipif(
    not installed,
    reason="llama-cpp-python or gguf is not installed: pip install llama-cpp-python gguf",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The bundled model as GGUF files: F32 by the tests' own converter, the others by llama.cpp."""
    import llama_cpp

    folder = tmp_path_factory.mktemp("gguf")
    full = str(folder / "demo-F32.gguf")
    convert(str(DEMO), full)
    paths = {"F32": full}
    for kind in ("Q8_0", "Q4_K_M"):
        paths[kind] = str(folder / f"demo-{kind}.gguf")
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        params.nthread = 1
        status = llama_cpp.llama_model_quantize(full.encode(), paths[kind].encode(), params)
        assert status == 0
    return paths


def convert(folder, path):
    converter = runpy.run_path(str(ROOT / "tests" / "llama_cpp" / "convert_gguf.py"))
    converter["convert"](folder, path)


@pytest.fixture(scope="module")
def demo():
    return (
        transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval(),
        transformers.AutoTokenizer.from_pretrained(DEMO),
    )


@needs_llama_cpp
@pytest.mark.parametrize("protocol", ["sliding", "lm-eval", "llama.cpp", "stock"])
def test_numbers_of_transformers(metric, files, demo, protocol):
    model, tokenizer = demo
    arguments = {"predictions": TEXTS, "tokenizer": tokenizer, "protocol": protocol}
    arguments["return_token_scores"] = True
    expected = metric.compute(model=model, **arguments)
    # llama.cpp keeps keys and values in half precision unless it is told otherwise.
    for settings, nats in ((None, 2e-2), (IN_SINGLE_PRECISION, 1e-4)):
        gguf = metric.compute(model_id=files["F32"], model_kwargs=settings, **arguments)
        assert gguf["perplexity"] == pytest.approx(expected["perplexity"], rel=nats / 100)
        for of_file, of_model in zip(gguf["token_scores"], expected["token_scores"]):
            pairs = [(a, b) for a, b in zip(of_file["nll"], of_model["nll"]) if a is not None]
            assert np.abs(np.subtract(*zip(*pairs))).max() < nats


@needs_llama_cpp
@pytest.mark.filterwarnings("error")
def test_own_tokenizer_cuts_the_texts_alike(metric, files, demo):
    texts = [*TEXTS, "naïve 'quotes' — 1,024 <|endoftext|> 日本語\n\n  spaces"]
    given = metric.compute(predictions=texts, model_id=files["F32"], tokenizer=demo[1])
    own = metric.compute(predictions=texts, model_id=files["F32"])
    assert own["perplexity"] == given["perplexity"]


@needs_llama_cpp
def test_probe_is_that_of_transformers(metric, files, demo):
    arguments = {"predictions": TEXTS[1:], "tokenizer": demo[1], "identify": True}
    gguf = metric.compute(model_id=files["F32"], **arguments)
    expected = metric.compute(model=demo[0], **arguments)
    assert gguf["probe"] == pytest.approx(expected["probe"], abs=2e-3)


@needs_llama_cpp
def test_what_rounding_costs(metric, files, demo):
    """KL divergence and verdict against the original, and it grows as bits go."""
    model, tokenizer = demo
    kl = {}
    for kind, path in files.items():
        result = metric.compute(
            predictions=TEXTS, model_id=path, tokenizer=tokenizer, reference=model
        )
        kl[kind] = result["comparison"]["kl"]
        assert f"gguf-{kind}" in result["signature"]
    assert kl["F32"] < 1e-6 < kl["Q8_0"] < kl["Q4_K_M"] < 0.1


@needs_llama_cpp
def test_words_and_entropy(metric, files, demo):
    model, tokenizer = demo
    arguments = {"predictions": TEXTS[1:], "tokenizer": tokenizer, "words": True}
    arguments["return_token_scores"] = ["rank", "entropy"]
    gguf = metric.compute(model_id=files["F32"], **arguments)
    expected = metric.compute(model=model, **arguments)
    for name in ("surprisal", "entropy"):
        values = [result["word_scores"][0][name] for result in (gguf, expected)]
        assert values[0] == pytest.approx(values[1], abs=5e-3)


@needs_llama_cpp
def test_batches_and_other_windows_change_nothing(metric, files, demo):
    arguments = {"predictions": TEXTS, "model_id": files["Q4_K_M"], "tokenizer": demo[1]}
    one, other = (metric.compute(batch_size=size, **arguments)["total_nll"] for size in (1, 16))
    assert one == pytest.approx(other, rel=1e-9)


@needs_llama_cpp
def test_long_windows_are_read_in_parts(metric, tmp_path):
    """More tokens than llama.cpp decodes at a time, scored rows in several of the parts."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    config = transformers.AutoConfig.from_pretrained(DEMO, max_position_embeddings=1300)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "long")
    tokenizer.save_pretrained(tmp_path / "long")
    convert(str(tmp_path / "long"), str(tmp_path / "long.gguf"))
    text = (ROOT / "samples" / "story.txt").read_text("utf-8")[:6000]
    arguments = {"predictions": [text], "tokenizer": tokenizer, "stride": 1200}
    gguf = metric.compute(model_id=str(tmp_path / "long.gguf"), **arguments)
    expected = metric.compute(model=model, **arguments)
    assert gguf["total_nll"] == pytest.approx(expected["total_nll"], rel=1e-4)


@needs_llama_cpp
def test_settings_that_llama_cpp_lacks(metric, files, demo):
    arguments = {"predictions": TEXTS, "model_id": files["F32"], "tokenizer": demo[1]}
    with pytest.raises(ValueError, match=r"settings of llama.cpp.* got 'gpu_layers'"):
        metric.compute(model_kwargs={"gpu_layers": 3}, **arguments)


@needs_llama_cpp
def test_rotary_positions_go_on(metric, files, demo):
    result = metric.compute(
        predictions=TEXTS[1:], model_id=files["F32"], tokenizer=demo[1], max_length=129
    )
    assert result["max_length"] == 129


class Tokens:
    """A model of which only its tokens are asked for."""

    def __init__(self, file, given, added=None):
        self.file = file
        self.tokenizer = self
        self.get_vocab, self.get_added_vocab = (lambda: given), (lambda: added or {})

    def tokens(self):
        return self.file


def test_tokens_are_compared_by_id():
    """Padding is of one side alone; special tokens and spaces may be spelled otherwise."""
    file = {0: "<s>", 1: "\u2581a", 2: "b"}
    same = {"<bos>": 0, " a": 1, "b": 2, "[PAD]": 3}
    check_vocabulary(Tokens(file, same, {"<bos>": 0}), "m.gguf")
    check_vocabulary(Tokens({}, same), "m.gguf")  # a file without a vocabulary
    with pytest.raises(ValueError, match=r"for 2 of 3 ids: 1 is '\u2581a' in the file and 'b' in"):
        check_vocabulary(Tokens(file, {"<s>": 0, "b": 1, "a": 2}), "m.gguf")


@needs_llama_cpp
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kept", [100, -1000])
def test_damaged_file(metric, files, tmp_path, demo, given, kept):
    """Cut short anywhere, its own name is in the error, whoever makes the tokenizer."""
    (tmp_path / "bad.gguf").write_bytes(Path(files["F32"]).read_bytes()[:kept])
    tokenizer = {"tokenizer": demo[1]} if given else {}
    with pytest.raises(ValueError, match=r"bad\.gguf' could not be loaded by llama\.cpp"):
        metric.compute(predictions=TEXTS, model_id=str(tmp_path / "bad.gguf"), **tokenizer)


def test_a_file_that_is_missing(metric, tmp_path):
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"there is none at '.*m-00002-of-00002\.gguf'"):
        metric.compute(predictions=TEXTS, model_id=str(tmp_path / "m-00001-of-00002.gguf"))


def test_package_is_named_where_it_is_missing(metric, tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    from perplexity_sliding.engines.gguf import load_library

    load_library.cache_clear()
    with pytest.raises(ValueError, match="pip install llama-cpp-python"):
        metric.compute(predictions=TEXTS, model_id=str(tmp_path / "model.gguf"))
