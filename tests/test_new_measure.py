"""A measure is a class and its name: one that is added works in Python without another edit."""

import pytest
import reference
from models import BOS, CONTEXT, make_model, make_tokenizer, random_text

from perplexity_sliding.scoring.measures import TOKEN_MEASURES, Measure


class Lead(Measure):
    """`lead`: nats by which the likeliest token leads the second (R,)."""

    columns = ("lead",)

    def __call__(self, blocks):
        first, second = blocks[0].logits.topk(2).values.T
        return {"lead": first - second}


def test_a_new_measure_reaches_token_scores_a_checkpoint_and_a_list(metric, monkeypatch, tmp_path):
    monkeypatch.setitem(TOKEN_MEASURES, "lead", Lead)
    model, text = make_model("gpt2"), random_text(40)
    arguments = {
        "predictions": [text],
        "model": model,
        "tokenizer": make_tokenizer(),
        "stride": [CONTEXT, 5],
        "return_token_scores": ["lead", "rank"],
        "checkpoint": str(tmp_path / "run.sqlite"),
    }
    _, entry = metric.compute(**arguments)["measurements"]
    [scores] = entry["token_scores"]
    ids = [int(word[1:]) for word in text.split()]
    plan = reference.sliding(len(ids), CONTEXT, 5, "once")
    for target, context in plan.items():
        fed = [BOS if place == reference.START else ids[place] for place in context]
        first, second = reference.log_probs(model, fed)[-1].topk(2).values.tolist()
        assert scores["lead"][target] == pytest.approx(first - second, abs=1e-4)
    assert metric.compute(**arguments)["measurements"][1]["token_scores"] == [scores]  # kept
