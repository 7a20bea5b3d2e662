"""What is refused, with which words; and that nothing is lost or left behind by it."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import transformers
from models import VOCABULARY, SlowTokenizer, make_model, make_tokenizer, random_text

TEXT = random_text(40)


@pytest.fixture
def compute(metric, gpt2, tokenizer):
    """`metric.compute` of good arguments, but for those given; None leaves one out."""

    def call(**arguments):
        arguments = {"predictions": [TEXT], "model": gpt2, "tokenizer": tokenizer} | arguments
        return metric.compute(**{name: v for name, v in arguments.items() if v is not None})

    return call


def leftovers(tmp_path) -> list[str]:
    """Files in the metric's cache."""
    return [path.name for path in (tmp_path / "cache").rglob("*.*")]


# ---- texts


def test_no_texts(metric, gpt2, tokenizer):
    with pytest.raises(ValueError, match=r"`predictions` must be given: .*add_batch"):
        metric.compute(model=gpt2, tokenizer=tokenizer)


def test_single_tokens_where_there_is_no_start_token(compute):
    """The advice is one that helps."""
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="at least 2 tokens") as raised:
        compute(predictions=["w5"], tokenizer=make_tokenizer(bos=False))
    assert "add_start_token=True" not in str(raised.value)


@pytest.mark.parametrize("text", [None, 3, ["w5"]])
def test_what_is_added_is_checked_at_once(metric, text):
    with pytest.raises(TypeError, match="only strings, got"):
        metric.add(prediction=text)
    with pytest.raises(TypeError, match="only strings, got"):
        metric.add_batch(predictions=["w5", text])
    with pytest.raises(TypeError, match="got one str"):
        metric.add_batch(predictions="one text")
    assert len(metric) == 0


# ---- arguments


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


# ---- before the texts are tokenized


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
        ({"carry": True}, "its positions are a table"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_what_no_text_could_change(compute, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        compute(tokenizer=never_given(tokenizer, TEXT), **arguments)


def test_what_the_model_and_the_tokenizer_cannot_do(compute, tokenizer):
    ahead = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    with pytest.raises(ValueError, match="changes with the tokens after"):
        compute(model=ahead, tokenizer=never_given(tokenizer, TEXT))
    with pytest.raises(ValueError, match="`tokenizer` must be a fast tokenizer"):
        compute(tokenizer=never_given(SlowTokenizer(), TEXT), words=True)
    bare = never_given(make_tokenizer(bos=False, eos=False), TEXT)
    with pytest.raises(ValueError, match="`tokenizer` must have a start token"):
        compute(tokenizer=bare, protocol="lm-eval")


# ---- the model


def test_a_model_without_a_limit_needs_one_past_2048_tokens(compute):
    model = make_model("mamba", num_hidden_layers=1)
    arguments = {"model": model, "add_start_token": False}
    assert compute(predictions=[random_text(2048)], **arguments)["num_windows"] == 1
    message = r"`max_length` must be given: .*states no limit .* 2049 tokens, more than 2048"
    with pytest.raises(ValueError, match=message):
        compute(predictions=[TEXT, random_text(2049)], **arguments)
    result = compute(predictions=[random_text(2049)], max_length=2048, **arguments)
    assert result["num_tokens"] == 2048


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


def test_no_process_waits_for_another(compute, metric, tmp_path):
    """Texts stay in memory: no file, no lock of one, nothing that two processes could share."""
    metric.add(prediction="w5 w6")
    assert compute()["num_tokens"] == 42
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_callback_may_compute_on_its_own_metric(compute, metric, tiny):
    """And add: what it adds is there for the next call."""
    settings = {"model": None, "tokenizer": None, "model_id": tiny, "batch_size": 1}
    expected = compute(predictions=["w5 w6", TEXT], **settings)
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
        first = pool.submit(metric.compute, predictions=[TEXT], callback=wait, **arguments)
        assert inside.wait(60)
        second = pool.submit(metric.compute, predictions=["w5 w6"], **arguments)
        may_go_on.set()
        assert first.result(60)["num_tokens"] == 40
        assert second.result(60)["num_tokens"] == 2


def test_texts_of_two_threads_are_not_mixed(metric, gpt2, tokenizer):
    """But what one thread has added, another may compute."""
    arguments = {"model": gpt2, "tokenizer": tokenizer}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(metric.add_batch, predictions=[TEXT]).result(60)
        for call in (
            lambda: metric.compute(predictions=["w5 w6"], **arguments),
            lambda: metric.add_batch(predictions=["w5 w6"]),
            lambda: metric.add(prediction="w5 w6"),
        ):
            with pytest.raises(
                RuntimeError, match=r"Another thread has added.*Load one metric per thread"
            ):
                call()
        assert metric.compute(**arguments)["num_tokens"] == 40
        metric.add(prediction="w5 w6")
    assert metric.compute(**arguments)["num_tokens"] == 2


def test_whole_numbers_may_be_numpys(compute):
    plain = compute(max_length=8, stride=3, batch_size=2)
    assert compute(max_length=np.int64(8), stride=np.int32(3), batch_size=np.int8(2)) == plain


def test_the_callback_hears_that_the_model_is_looked_at(compute, metric):
    """If it has a method for what goes on before there are numbers."""

    heard = []

    class Callback:
        def status(self, message):
            heard.append(message)

        def __call__(self, progress):
            heard.append(progress.done)

    compute(callback=Callback())
    assert heard[0] == "Checking the model" and heard[-1] > 0


# ---- the argument at fault is the one that was given


def test_lengths_of_context_past_the_table_are_at_fault_themselves(metric, gpt2, tokenizer):
    arguments = {"predictions": ["w5 w6 w7"], "model": gpt2, "tokenizer": tokenizer}
    with pytest.raises(ValueError) as refused:
        metric.compute(**arguments, context_lengths=[8, 2000])
    assert str(refused.value).startswith("`context_lengths` must be between 2 and 16, the size")
    assert refused.value.wording.argument == "context_lengths"
    with pytest.raises(ValueError, match="`max_length` must be between 2 and 16"):
        metric.compute(**arguments, context_lengths="doubling", max_length=2000)
