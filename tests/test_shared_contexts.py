"""A context that many texts share is read once, for the same numbers."""

import pytest
import torch
from models import (
    ARCHITECTURES,
    NEWEST,
    forget,
    make_model,
    make_tokenizer,
    random_text,
)

from perplexity_sliding.plan.windows import Pass, SharedPrefix, find_shared_prefixes
from perplexity_sliding.scoring.passes import Scorer
from perplexity_sliding.scoring.runner import LEAST_SAVING

CONTEXT_TOKENS = 30
TEXTS = [random_text(3 + n % 4, seed=n) for n in range(20)]
# Their recurrent states are kept in another form, which is not copied.
READ_APART = {"mamba", "rwkv"}
if not NEWEST:
    READ_APART.add("gemma2")  # its cache was of a fixed size


def roomy(name):
    """A model of a context of 64 tokens."""
    limits = {"n_positions", "n_ctx", "max_position_embeddings"}
    settings = {key: 64 for key in ARCHITECTURES[name][1] if key in limits}
    return make_model(name, **settings)


def shared_and_apart(metric, model, texts=TEXTS, contexts=None, **kwargs):
    """The result of all texts in one call, and the results of each in its own."""
    if contexts is None:
        contexts = [random_text(CONTEXT_TOKENS) + " "] * len(texts)
    kwargs = {"model": model, "tokenizer": make_tokenizer(), "max_length": 48} | kwargs
    together = metric.compute(predictions=texts, contexts=contexts, **kwargs)
    apart = [
        metric.compute(predictions=[text], contexts=context, **kwargs)
        for text, context in zip(texts, contexts)
    ]
    return together, apart


def assert_same_scores(together, apart):
    assert together["perplexities"] == pytest.approx([one["perplexity"] for one in apart], rel=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(metric, name):
    """Start token and context once, but for the last token: its row predicts each text."""
    together, apart = shared_and_apart(metric, roomy(name))
    assert_same_scores(together, apart)
    cost = sum(one["num_forward_tokens"] for one in apart)
    assert cost == sum(CONTEXT_TOKENS + len(text.split()) for text in TEXTS)
    saved = 0 if name in READ_APART else (len(TEXTS) - 1) * CONTEXT_TOKENS
    assert together["num_forward_tokens"] == cost - saved


def test_several_contexts_and_texts_beyond_the_window(metric):
    """Windows that begin in the same context share what they read of it."""
    texts = [" " + random_text(60, seed=n) for n in range(24)]
    contexts = [random_text(CONTEXT_TOKENS, seed=n % 2) for n in range(24)]
    together, apart = shared_and_apart(metric, roomy("llama"), texts, contexts, stride=10)
    assert_same_scores(together, apart)
    # Windows over [start] + text begin every 10 tokens; all but one
    # of twelve are spared what they share.  The third windows share too little to save enough.
    prefixes = [CONTEXT_TOKENS, CONTEXT_TOKENS - 10]
    saved = [11 * prefix for prefix in prefixes if 11 * prefix >= LEAST_SAVING]
    cost = sum(one["num_forward_tokens"] for one in apart)
    assert cost - together["num_forward_tokens"] == 2 * sum(saved)


def test_words_and_ranks_after_a_shared_context(metric):
    model = roomy("gpt2")
    together, apart = shared_and_apart(
        metric, model, words=True, return_token_scores=["rank", "top2"]
    )
    assert together["num_forward_tokens"] < sum(one["num_forward_tokens"] for one in apart)
    for number, one in enumerate(apart):
        [words], [tokens] = one["word_scores"], one["token_scores"]
        ours = together["word_scores"][number]
        assert ours["surprisal"] == pytest.approx(words["surprisal"], rel=1e-5, abs=1e-5)
        assert together["token_scores"][number]["rank"] == tokens["rank"]


def test_a_small_saving_is_not_worth_it(metric):
    texts = TEXTS[: 1 + LEAST_SAVING // CONTEXT_TOKENS]
    together, apart = shared_and_apart(metric, roomy("gpt2"), texts)
    assert together["num_forward_tokens"] == sum(one["num_forward_tokens"] for one in apart)
    together, apart = shared_and_apart(metric, roomy("gpt2"), TEXTS[: len(texts) + 1])
    assert together["num_forward_tokens"] < sum(one["num_forward_tokens"] for one in apart)


def test_below_float32_contexts_are_read_apart(metric):
    """Another order of sums rounds visibly there."""
    together, apart = shared_and_apart(metric, roomy("gpt2").bfloat16())
    assert together["num_forward_tokens"] == sum(one["num_forward_tokens"] for one in apart)
    assert together["perplexities"] == [one["perplexity"] for one in apart]


@pytest.mark.parametrize("num_tokens", [range(1, 99), range(2, 99), [1]])
def test_a_model_whose_cache_gives_other_scores_reads_apart(metric, num_tokens):
    """The probe compares what goes on from the cache, by one token and by several."""
    texts = ["w7", *TEXTS]
    together, apart = shared_and_apart(metric, forget(roomy("gpt2"), num_tokens), texts)
    assert_same_scores(together, apart)
    assert together["num_forward_tokens"] == sum(one["num_forward_tokens"] for one in apart)


def test_a_killed_run_goes_on(metric, tmp_path):
    """What is finished is not read again, and the rest shares the context still."""
    model, steps = roomy("gpt2"), []
    kwargs = {
        "predictions": TEXTS,
        "contexts": random_text(CONTEXT_TOKENS) + " ",
        "model": model,
        "tokenizer": make_tokenizer(),
        "batch_size": 1,
        "max_length": 48,
    }
    whole = metric.compute(callback=steps.append, **kwargs)
    assert len(steps) > 2 and steps[-1].done == steps[-1].total == whole["num_forward_tokens"]

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        metric.compute(checkpoint=tmp_path / "c", callback=stop, **kwargs)
    resumed = metric.compute(checkpoint=tmp_path / "c", **kwargs)
    assert resumed["perplexities"] == pytest.approx(whole["perplexities"], rel=1e-6)
    assert resumed["num_forward_tokens"] == whole["num_forward_tokens"]


def test_out_of_memory_halves_the_batch(metric, monkeypatch):
    model, launches = roomy("gpt2"), []
    launch = Scorer._launch

    def tight(self, numbers, rows, kept):
        launches.append(len(numbers))
        if kept is not None and len(numbers) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(self, numbers, rows, kept)

    monkeypatch.setattr(Scorer, "_launch", tight)
    with pytest.warns(UserWarning, match="Out of memory with"):
        together = metric.compute(
            predictions=TEXTS,
            contexts=random_text(CONTEXT_TOKENS) + " ",
            model=model,
            tokenizer=make_tokenizer(),
            max_length=48,
        )
    assert max(launches) > 3
    _, apart = shared_and_apart(metric, model)
    assert_same_scores(together, apart)


def test_find_shared_prefixes():
    passes = [Pass(stream, 0, 9, None, ((5, 9),)) for stream in range(6)]
    prefixes = [[1, 2, 3], [1, 2, 3], [1, 2], [], [1, 2, 3], []]
    groups = find_shared_prefixes(passes, lambda one: prefixes[one.stream], least=6)
    assert groups == [SharedPrefix((0, 1, 4), 3)]
    assert find_shared_prefixes(passes, lambda one: prefixes[one.stream], least=7) == []
