"""The metric as users of `evaluate` use it: loaded, fed, combined, interrupted, kept, documented."""

import doctest
import gc
import inspect
import json
import math
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import evaluate
import pytest
import transformers
from models import make_model, make_tokenizer, random_text, save

TEXTS = [random_text(length, seed=length) for length in (40, 7, 21)]


@pytest.fixture
def loaded_models(monkeypatch):
    """Weak references to the models that were loaded during the test."""
    models = []
    load = transformers.AutoModelForCausalLM.from_pretrained

    def counted(*args, **kwargs):
        result = load(*args, **kwargs)
        models.append(weakref.ref(result[0] if isinstance(result, tuple) else result))
        return result

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", counted)
    return models


# ---- feeding texts


def test_ways_to_hand_over_texts(metric, gpt2, tokenizer):
    arguments = {"model": gpt2, "tokenizer": tokenizer}
    expected = metric.compute(predictions=TEXTS, **arguments)
    assert metric.compute(predictions=tuple(TEXTS), **arguments) == expected
    assert metric.compute(predictions=(text for text in TEXTS), **arguments) == expected
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    assert metric.compute(predictions=dataset["text"], **arguments) == expected
    assert metric.compute(predictions=dataset[:]["text"], **arguments) == expected
    metric.add(prediction=TEXTS[0])
    metric.add(predictions=TEXTS[1])
    metric.add_batch(predictions=TEXTS[2:])
    assert len(metric) == 3
    assert metric.compute(**arguments) == expected
    metric.add_batch(predictions=dataset["text"])
    assert metric.compute(**arguments) == expected
    metric.add_batch(predictions=TEXTS[:2])
    assert metric.compute(predictions=TEXTS[2:], **arguments) == expected


# ---- added texts, callbacks and threads


@pytest.fixture
def compute(metric, gpt2, tokenizer):
    """`metric.compute` of good arguments, but for those given; None leaves one out."""

    def call(**arguments):
        arguments = {"predictions": TEXTS[:1], "model": gpt2, "tokenizer": tokenizer} | arguments
        return metric.compute(**{name: v for name, v in arguments.items() if v is not None})

    return call


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


def test_a_callback_may_compute_on_its_own_metric(compute, metric, tiny):
    """And add: what it adds is there for the next call."""
    settings = {"model": None, "tokenizer": None, "model_id": tiny, "batch_size": 1}
    expected = compute(predictions=["w5 w6", TEXTS[0]], **settings)
    inner = []

    def nested(progress):
        inner.append(compute(predictions=["w7 w8 w9"], **settings)["num_tokens"])
        metric.add(prediction="w5")

    metric.add(prediction="w5 w6")
    assert compute(callback=nested, **settings) == expected
    assert inner == [3] + [4] * (len(inner) - 1) and len(inner) > 1
    assert len(metric) == 1
    assert compute(predictions=None, **settings)["num_tokens"] == 1


def test_two_threads_in_one_metric(metric, gpt2, tokenizer):
    """The second one waits; each has the number of its own texts."""
    inside, may_go_on = threading.Event(), threading.Event()

    def wait(progress):
        inside.set()
        assert may_go_on.wait(60)

    arguments = {"model": gpt2, "tokenizer": tokenizer}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(metric.compute, predictions=[TEXTS[0]], callback=wait, **arguments)
        assert inside.wait(60)
        second = pool.submit(metric.compute, predictions=["w5 w6"], **arguments)
        may_go_on.set()
        assert first.result(60)["num_tokens"] == 40
        assert second.result(60)["num_tokens"] == 2


# ---- names of models


def test_a_folder_as_model_id(metric, folder, gpt2, tokenizer):
    by_name = metric.compute(predictions=TEXTS, model_id=folder)
    live = metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer)
    assert by_name["perplexities"] == pytest.approx(live["perplexities"], rel=1e-5)


def test_the_configuration_name_is_a_model(root, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    by_name = evaluate.load(str(root / "perplexity_sliding.py"), "checkpoint", cache_dir="cache")
    expected = by_name.compute(predictions=TEXTS, model_id=folder)
    result = by_name.compute(predictions=TEXTS)
    assert result == expected
    # an argument goes before it
    other = save(tmp_path / "other", make_model("gpt2", seed=1), make_tokenizer())
    assert by_name.compute(predictions=TEXTS, model_id=other) != expected
    live = by_name.compute(
        predictions=TEXTS, model=make_model("gpt2", seed=1), tokenizer=make_tokenizer()
    )
    assert live["perplexity"] != expected["perplexity"]


def test_a_model_named_by_its_whole_path_gets_no_files(root, tmp_path, folder, loaded_models):
    metric = evaluate.load(str(root / "perplexity_sliding.py"), folder, cache_dir=str(tmp_path))
    before = sorted(os.listdir(folder))
    metric.add_batch(predictions=TEXTS)
    assert sorted(os.listdir(folder)) == before
    metric.compute()
    metric.compute(predictions=TEXTS)
    assert len(loaded_models) == 1
    assert sorted(os.listdir(folder)) == before


def test_a_path_as_model_id(metric, folder):
    given = {"predictions": TEXTS[:1], "model_id": folder}
    by_name = metric.compute(**given)["perplexity"]
    paths = {"model_id": Path(folder), "reference": Path(folder)}
    assert metric.compute(**(given | paths))["perplexity"] == by_name


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        ({"predictions": datasets.Dataset.from_dict({"text": TEXTS})}, TypeError, "predictions=table\\['text'\\]"),
        ({"model": "gpt2"}, TypeError, "got the name 'gpt2'. Pass it as `model_id`"),
        ({"model": Path("gpt2")}, TypeError, "got the name 'gpt2'. Pass it as `model_id`"),
        ({"data": TEXTS}, TypeError, "Did you mean `predictions`"),
        ({"zzz": 1}, TypeError, "The texts are `predictions`, the model `model_id`"),
        ({"load_in_8bit": True}, TypeError, r"'quantization_config': BitsAndBytesConfig"),
        ({"trust_remote_code": True}, TypeError, r"Pass it as model_kwargs=\{'trust_remote_code': …\}"),
    ],
)  # fmt: skip
def test_mistakes_lead_on(metric, arguments, error, advice):
    with pytest.raises(error, match=advice):
        metric.compute(**({"predictions": TEXTS} | arguments))


def test_mistakes_of_loading_lead_on(metric, folder):
    settings = Path(folder, "config.json")
    own = json.loads(settings.read_text()) | {
        "auto_map": {"AutoConfig": "own.Config"},
        "model_type": "own",
    }
    settings.write_text(json.dumps(own))
    with pytest.raises(
        ValueError, match="To run the code in its repository, pass it in `model_kwargs`"
    ):
        metric.compute(predictions=TEXTS, model_id=folder)
    settings.unlink()
    Path(folder, "tiny.gguf").touch()
    with pytest.raises(
        ValueError,
        match=r"Pass '.*tiny\.gguf'",
    ):
        metric.compute(predictions=TEXTS, model_id=folder)


# ---- the loaded model is kept


def test_the_model_is_kept_for_the_next_compute(metric, folder, loaded_models):
    first = metric.compute(predictions=TEXTS, model_id=folder)
    second = metric.compute(predictions=TEXTS, model_id=folder, stride=4, protocol="sliding")
    assert first["num_tokens"] == second["num_tokens"]
    assert len(loaded_models) == 1
    metric.compute(predictions=TEXTS, model_id=folder, dtype="bfloat16")
    assert len(loaded_models) == 2
    gc.collect()
    assert loaded_models[0]() is None, "only the last one is kept"


def test_a_folder_that_changed_is_loaded_anew(metric, folder, loaded_models):
    before = metric.compute(predictions=TEXTS, model_id=folder)
    time.sleep(0.02)  # past the resolution of file times
    make_model("gpt2", seed=7).save_pretrained(folder)
    after = metric.compute(predictions=TEXTS, model_id=folder)
    assert len(loaded_models) == 2
    assert after["perplexity"] != before["perplexity"]
    assert after["signature"] != before["signature"]


def test_the_model_goes_with_the_metric(root, tmp_path, folder, loaded_models):
    own = evaluate.load(str(root / "perplexity_sliding.py"), cache_dir=str(tmp_path / "own"))
    own.compute(predictions=TEXTS, model_id=folder)
    gc.collect()
    assert loaded_models[0]() is not None
    del own
    gc.collect()
    assert loaded_models[0]() is None


def test_a_passed_model_is_not_kept(metric, tokenizer):
    model = make_model("gpt2")
    metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


# ---- progress


def test_the_callback_is_told_how_far_it_is(metric, gpt2, tokenizer):
    steps = []
    result = metric.compute(
        predictions=TEXTS, model=gpt2, tokenizer=tokenizer, batch_size=1, callback=steps.append
    )
    assert len(steps) > 2
    assert [step.done for step in steps] == sorted({step.done for step in steps})
    assert {step.total for step in steps} == {result["num_forward_tokens"]}
    assert steps[-1].done == steps[-1].total
    assert steps[-1].perplexity == pytest.approx(result["perplexity"], rel=1e-6)
    assert steps[0].perplexity != steps[-1].perplexity


@pytest.mark.parametrize(
    "arguments",
    [
        {"words": True},
        {"words": True, "score_spans": [[(0, 9)], [(3, 12), (20, 30)]]},
        {"protocol": "longlora", "max_length": 8, "stride": 2},
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_the_callback_is_told_the_perplexity_of_the_result(metric, gpt2, tokenizer, arguments):
    """Not of what is scored besides: the ends of words."""
    texts = ["w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12", random_text(40, seed=1)]
    steps = []
    result = metric.compute(
        predictions=texts, model=gpt2, tokenizer=tokenizer, callback=steps.append, **arguments
    )
    mean = result["total_nll"] / result["num_tokens"]
    assert math.log(steps[-1].perplexity) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("error", [RuntimeError("enough"), KeyboardInterrupt()])
def test_the_callback_can_end_it(metric, gpt2, tokenizer, tmp_path, error):
    calls = []

    def stop(progress):
        calls.append(progress)
        if len(calls) == 2:
            raise error

    metric.add_batch(predictions=TEXTS)
    arguments = {"model": gpt2, "tokenizer": tokenizer, "batch_size": 1}
    with pytest.raises(type(error)):
        metric.compute(callback=stop, **arguments)
    assert len(calls) == 2
    assert list((tmp_path / "cache").rglob("*.arrow")) == []
    assert len(metric) == 3
    assert metric.compute(**arguments)["num_tokens"] == 68


def test_processes_of_evaluate_are_refused(metric, tmp_path):
    """evaluate would gather the texts in one process, which computes alone."""
    with pytest.raises(ValueError, match=r"`num_process` must be 1, got 2.*`?distributed=True"):
        type(metric)(cache_dir=str(tmp_path), num_process=2, process_id=0, experiment_id="both")


@pytest.mark.parametrize("shown", [True, False])
def test_progress_is_evaluates(metric, gpt2, tokenizer, capsys, monkeypatch, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    if not shown:
        evaluate.logging.disable_progress_bar()
    try:
        metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer)
    finally:
        evaluate.logging.enable_progress_bar()
    assert ("Scoring" in capsys.readouterr().err) == shown


@pytest.mark.parametrize(
    ("lengths", "sample", "scope"),
    [
        ([9] * 4, "4 texts", "over texts"),  # too short to be divided
        ([100] * 9, "18 parts of 9 texts", "within these texts"),
        ([100] * 10, "10 texts", "over texts"),
        ([9] * 3, None, None),
    ],
)
def test_what_an_interval_is_over(metric, gpt2, tokenizer, lengths, sample, scope):
    """As the README and docs/uncertainty.md have it."""
    texts = [random_text(length, seed) for seed, length in enumerate(lengths)]
    result = metric.compute(predictions=texts, model=gpt2, tokenizer=tokenizer, max_length=8)
    assert (result["interval_sample"], result["interval_scope"]) == (sample, scope)


# ---- the rest of evaluate


def test_combine(root, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    path = str(root / "perplexity_sliding.py")
    ours = evaluate.load(path, "checkpoint", cache_dir=str(tmp_path / "a"))
    expected = ours.compute(predictions=TEXTS)
    word_count = WordCount(cache_dir=str(tmp_path / "b"))
    both = evaluate.combine([ours, word_count])
    result = both.compute(predictions=TEXTS)
    assert result == expected | {"words": 68}
    both.add_batch(predictions=TEXTS[:2])
    both.add(prediction=TEXTS[2])
    assert both.compute() == result
    ours.add_batch(predictions=TEXTS[:2], references=[3])  # of other metrics
    ours.add(prediction=TEXTS[2], reference="any")
    assert ours.compute(references=["any"]) == expected


class WordCount(evaluate.Metric):
    """A metric that has nothing to do with ours."""

    def _info(self):
        return evaluate.MetricInfo(
            description="",
            citation="",
            inputs_description="",
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions):
        return {"words": sum(len(text.split()) for text in predictions)}


def test_the_interface_of_the_stock_metric_is_kept(metric):
    """Same names, same defaults; the rest comes after them and has defaults."""
    parameters = inspect.signature(metric._compute).parameters
    first = {name: parameter.default for name, parameter in list(parameters.items())[:6]}
    assert first == {
        "predictions": inspect.Parameter.empty,
        "model_id": None,
        "batch_size": 16,
        "add_start_token": True,
        "device": None,
        "max_length": None,
    }
    assert all(p.default is not p.empty for name, p in parameters.items() if name != "predictions")


def test_every_argument_and_result_is_documented(metric, gpt2, tokenizer):
    described, returned = metric.inputs_description.split("Returns:")
    for name in inspect.signature(metric._compute).parameters:
        assert f"\n    {name}" in described, f"`{name}` is not in the docstring"
    result = metric.compute(
        predictions=[random_text(60)],
        model=gpt2,
        tokenizer=tokenizer,
        protocol="llama.cpp",
        return_token_scores=["top1"],
    )
    for name in result:
        assert name in returned, f"`{name}` is not in the docstring"


def test_the_examples_of_the_documentation(metric, root, monkeypatch):
    """As evaluate's own tests run them, from the repository's root."""
    monkeypatch.chdir(root)
    examples = doctest.DocTestParser().get_doctest(
        metric.inputs_description, {}, "perplexity_sliding", None, 0
    )
    printed = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(examples, out=printed.append)
    assert runner.summarize(verbose=False).attempted >= 6
    assert not printed, "".join(printed)


def test_no_warnings_where_nothing_is_wrong(metric, gpt2, tokenizer, recwarn):
    metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer)
    assert [str(warning.message) for warning in recwarn] == []
