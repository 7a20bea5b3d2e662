"""The stages of a call: what runs in which, and how often."""

import pytest
from models import VOCABULARY, make_model, random_text, save

from perplexity_sliding import api

TEXTS = [random_text(length, seed=length) for length in (40, 23)]
KEY_TOKENS = {"short_context": 4, "stride": 2, "gain": -99.0, "largest_nll": 99.0}


@pytest.fixture
def passes():
    """The tokens of every pass, of each of the models that are watched."""
    read = []

    def watch(model):
        # what observes a model from outside is no modification of it
        original = model.get_input_embeddings().forward
        model.get_input_embeddings().forward = lambda ids: (
            read.append(ids.tolist()) or original(ids)
        )
        return model

    watch.read = read
    return watch


def reads_text(ids, tokenizer):
    """Return whether one of the rows of a pass begins with tokens of a text."""
    heads = [tokenizer(text)["input_ids"][:4] for text in TEXTS]
    return any(row[n : n + 4] == head for row in ids for n in (0, 1) for head in heads)


@pytest.mark.parametrize("settings", [{}, {"key_tokens": KEY_TOKENS}, {"stride": [8, 4]}])
def test_texts_go_through_the_model_in_run_alone(metric, passes, tokenizer, monkeypatch, settings):
    model = passes(make_model("gpt2"))
    marks = []

    def marked(name):
        original = getattr(api, name)

        def stage(*arguments):
            marks.append(len(passes.read))
            result = original(*arguments)
            marks.append(len(passes.read))
            return result

        return stage

    monkeypatch.setattr(api, "run", marked("run"))
    metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer, **settings)
    began, ended = marks
    assert not any(reads_text(ids, tokenizer) for ids in passes.read[:began])
    assert any(reads_text(ids, tokenizer) for ids in passes.read[began:ended])
    assert len(passes.read) == ended


def test_a_model_that_finds_its_own_key_tokens_is_probed_once(metric, passes, tokenizer):
    """Code of the caller's own in it may act otherwise at every call: it is probed at every call."""
    model = passes(make_model("gpt2"))
    arguments = {"predictions": TEXTS, "model": model, "tokenizer": tokenizer}

    def compute(**settings):
        del passes.read[:]
        metric.compute(**arguments, **settings)
        return list(passes.read)

    compute()
    probes = [ids for ids in compute() if not reads_text(ids, tokenizer)]
    assert probes
    assert [ids for ids in compute(key_tokens=KEY_TOKENS) if ids in probes] == probes


def test_an_evaluator_beside_a_reference_that_runs_first(metric, gpt2, tokenizer, tmp_path):
    others = [
        save(tmp_path / name, make_model("gpt2", seed=seed), tokenizer)
        for seed, name in enumerate(("reference", "evaluator"), 5)
    ]

    def compute(states):
        return metric.compute(
            predictions=TEXTS,
            model=gpt2,
            tokenizer=tokenizer,
            reference={"model_id": others[0], "states": states},
            key_tokens=KEY_TOKENS | {"evaluator": others[1]},
        )

    both = compute(None)
    assert both["num_key_tokens"] > 0
    assert compute(str(tmp_path / "states")) == both


def test_a_model_is_refused_before_its_reference_runs_for_hours(metric, gpt2, tokenizer, tmp_path):
    import transformers

    ahead = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    reference = save(tmp_path / "reference", gpt2, tokenizer)
    with pytest.raises(ValueError, match="changes with the tokens after"):
        metric.compute(
            predictions=TEXTS,
            model=ahead,
            tokenizer=tokenizer,
            reference={"model_id": reference, "states": tmp_path / "states"},
        )
    assert not (tmp_path / "states").exists()


def test_scores_of_an_evaluator_that_nothing_identifies_are_not_kept(
    metric, gpt2, tokenizer, tmp_path
):
    hooked = make_model("gpt2", seed=3)
    hooked.transformer.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="`checkpoint` must be left out"):
        metric.compute(
            predictions=TEXTS,
            model=gpt2,
            tokenizer=tokenizer,
            key_tokens=KEY_TOKENS | {"evaluator": (hooked, tokenizer)},
            checkpoint=str(tmp_path / "run.sqlite"),
        )
