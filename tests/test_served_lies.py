"""Servers that lie, each in one way: none gets a number out, and the reason is said."""

import signal
import threading
import time

import numpy as np
import pytest
import torch
from fake_engines import FakeServer, running
from models import make_model, random_text

TEXTS = [random_text(70), random_text(33, 2)]


class GeneratedOnly(FakeServer):
    """As llama.cpp's server: `echo` is taken, and the answer's own token is all there is."""

    def complete(self, body):
        status, reply = super().complete(body)
        for choice in reply["choices"]:
            found = choice.get("logprobs") or {}
            choice["logprobs"] = {name: values[-1:] for name, values in found.items()}
        return status, reply


class ShiftedLeft(FakeServer):
    """Values stand one token too early: the last is that of the answer."""

    def values(self, ids, body):
        values, after = super().values(ids, body)
        return [None, *values[2:], after[-1].max().item()], after


class ShiftedRight(FakeServer):
    """Values stand one token too late."""

    def values(self, ids, body):
        values, after = super().values(ids, body)
        return [None, -1.0, *values[1:-1]], after


class OtherIds(FakeServer):
    """Ids are read as text and cut into tokens again: other ones."""

    def choice(self, ids, body):
        return super().choice([(token + 1) % 80 for token in ids], body)


class OtherWords(FakeServer):
    """The ids are taken, but mean other words."""

    def text_of(self, token):
        return super().text_of((token + 1) % 80)


class ScaledByTemperature(FakeServer):
    def distributions(self, ids, body):
        after = super().distributions(ids, body)
        return (after / body["temperature"]).log_softmax(-1)


class Processed(FakeServer):
    """vLLM's --logprobs-mode processed_logprobs: the token that is forced is sure."""

    def choice(self, ids, body):
        choice = super().choice(ids, body)
        if "allowed_token_ids" in body:
            choice["logprobs"]["token_logprobs"] = [0.0]
        return choice


class CutByTopP(FakeServer):
    def values(self, ids, body):
        values, after = super().values(ids, body)
        return [v if v is None or v > -6 else -9999.0 for v in values], after


class Overflowing(FakeServer):
    """The model's outputs are not numbers, and every value is vLLM's for minus infinity."""

    def values(self, ids, body):
        values, after = super().values(ids, body)
        return [None, *(-9999.0 for _ in values[1:])], after


class Truncating(FakeServer):
    """Long prompts lose their beginning without a word."""

    def choice(self, ids, body):
        return super().choice(ids[-6:], body)


class TruncatingLongOnes(FakeServer):
    """Prompts that fill the model are read without their beginning; as many values come back."""

    def values(self, ids, body):
        if len(ids) < 15:
            return super().values(ids, body)
        values, after = super().values(ids[4:], body)
        return [None, -5.0, -5.0, -5.0, -5.0, *values[1:]], torch.cat([after[:4], after])


class StaleCache(FakeServer):
    """Prompts that begin as an earlier one get the values of another: a cache gone stale."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = set()

    def values(self, ids, body):
        values, after = super().values(ids, body)
        known, start = tuple(ids[:4]) in self.seen, tuple(ids[:4])
        self.seen.add(start)
        return ([None] + [v - 1.0 for v in values[1:4]] + values[4:] if known else values), after


class OrderMatters(FakeServer):
    """The first prompt of a batch gets what the batch leaves it."""

    def complete(self, body):
        self.company = len(body["prompt"])
        return super().complete(body)

    def distributions(self, ids, body):
        return super().distributions(ids, body) * (1 + 0.1 * (self.company > 1))


class Reordered(FakeServer):
    """Several prompts are answered in another order, numbered as if they were not."""

    def ordered(self, choices):
        for number, choice in enumerate(reversed(choices)):
            choice["index"] = number
        return choices


class Mixed(FakeServer):
    """From the fourth on, prompts of a request are answered by another model."""

    def complete(self, body):
        self.number = 0
        return super().complete(body)

    def distributions(self, ids, body):
        self.number += 1
        return super().distributions(ids, body) * (1 + 0.1 * (self.number > 3))


class AddingStart(FakeServer):
    """A start token is put before prompts that have none, and not shown."""

    def values(self, ids, body):
        start = self.tokenizer.bos_token_id
        if ids[0] == start:
            return super().values(ids, body)
        values, after = super().values([start, *ids][: self.length], body)
        values = [None, *values[2:]]
        return [*values, values[-1]][: len(ids)], after[1:]


class Floor(FakeServer):
    """Tokens that are not among the likeliest get a value that is none."""

    def values(self, ids, body):
        values, after = super().values(ids, body)
        return [v if v is None or v > -4 else -100.0 for v in values], after


class Cumulative(FakeServer):
    """Each value is the sum of those so far."""

    def values(self, ids, body):
        values, after = super().values(ids, body)
        return [None, *np.cumsum(values[1:]).tolist()], after


class NumbersAsText(FakeServer):
    """The choices are numbered by strings, and "10" stands before "2"; that is no lie."""

    def ordered(self, choices):
        return sorted(({**c, "index": str(c["index"])} for c in choices), key=lambda c: c["index"])


class OtherParts(FakeServer):
    """An answer of the right size, whose parts are of another kind."""

    def entry(self, value, before, token, number):
        return None if value is None else {str(token): value}


class Neighbouring(FakeServer):
    """Values are those of the next position: of the token after it was read."""

    def values(self, ids, body):
        _, after = super().values(ids, body)
        return [None, *(after[i, ids[i]].item() for i in range(1, len(ids)))], after


class NamingByText(FakeServer):
    """Tokens are named by their texts, as OpenAI's form has it; that is no lie."""

    def complete(self, body):
        status, reply = super().complete(body)
        for choice in reply.get("choices", ()):
            found = choice["logprobs"] or {"tokens": []}
            found["tokens"] = [self.by_text(name) for name in found["tokens"]]
            found["top_logprobs"] = None
        return status, reply

    def by_text(self, name):
        return self.text_of(int(name.removeprefix("token_id:")))


class NeighbouringByText(NamingByText, Neighbouring):
    pass


LIARS = [
    (Neighbouring, "openai", "belong to the neighbouring position"),
    (NeighbouringByText, "openai", "belong to the neighbouring position"),
    (Neighbouring, "sglang", "belong to the neighbouring position"),
    (Neighbouring, "vllm", "as the only answer allowed"),
    (Mixed, "openai", "values of a prompt differ in a batch"),
    (AddingStart, "vllm", "it adds one itself"),
    (AddingStart, "openai", "it adds one itself"),
    (Floor, "vllm", r"same log-probability, -100\.0000|values are at the wrong tokens"),
    (Floor, "openai", r"same log-probability, -100\.0000|values are at the wrong tokens"),
    (Cumulative, "openai", "cumulative sums"),
    (OtherParts, "vllm", "an unexpected format"),
    (GeneratedOnly, "openai", "values of [01] tokens to 8"),
    (ShiftedLeft, "vllm", "values are at the wrong tokens"),
    (ShiftedLeft, "openai", "values are at the wrong tokens"),
    (ShiftedRight, "vllm", "values are at the wrong tokens"),
    (ShiftedRight, "sglang", "values are at the wrong tokens"),
    (OtherIds, "vllm", r"whose id is \d+, values of"),
    (OtherIds, "openai", r"whose id is \d+, values of"),
    (OtherWords, "vllm", "its vocabulary differs from the tokenizer's"),
    (ScaledByTemperature, "vllm", "depend on the sampling of the answer"),
    (ScaledByTemperature, "openai", "depend on the sampling of the answer"),
    (Processed, "vllm", "as the only answer allowed 0.0000"),
    (CutByTopP, "vllm", r"probability 0 to \d+ of \d+ random tokens, so .* top-p"),
    (Overflowing, "vllm", r"probability 0 to all of \d+ random tokens: .* overflow"),
    (Overflowing, "openai", r"probability 0 to all of \d+ random tokens: .* overflow"),
    (Truncating, "vllm", "values of 6 tokens to 8"),
    (TruncatingLongOnes, "vllm", "cannot be believed|truncates long prompts"),
    (StaleCache, "vllm", "the values of the same tokens differ|differ in a batch"),
    (OrderMatters, "vllm", "differ in a batch"),
    (Reordered, "vllm", r"whose id is \d+, values of|values of \d+ tokens"),
    (Reordered, "openai", r"whose id is \d+, values of|values of \d+ tokens"),
]


@pytest.mark.parametrize(("liar", "form", "reason"), LIARS)
def test_no_lying_server_gets_a_number_out(metric, gpt2, tokenizer, liar, form, reason):
    server = liar(gpt2, tokenizer, (form,))
    with running(server) as address, pytest.raises(ValueError, match=reason):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer, max_length=12)


def test_numbers_of_answers_may_be_text(metric, gpt2, tokenizer):
    texts, arguments = [random_text(200)], {"tokenizer": tokenizer, "max_length": 9}
    with running(NumbersAsText(gpt2, tokenizer, ("openai",))) as address:
        found = metric.compute(predictions=texts, model_id=address, **arguments)
    expected = metric.compute(predictions=texts, model=gpt2, **arguments)
    assert found["total_nll"] == pytest.approx(expected["total_nll"], rel=1e-6)


def test_tokens_may_be_named_by_their_texts(metric, gpt2, tokenizer, recwarn):
    with running(NamingByText(gpt2, tokenizer, ("openai",))) as address:
        arguments = {"predictions": TEXTS, "tokenizer": tokenizer, "max_length": 9}
        found = metric.compute(model_id=address, **arguments)
    expected = metric.compute(model=gpt2, **arguments)
    assert found["total_nll"] == pytest.approx(expected["total_nll"], rel=1e-6)
    assert not [warning for warning in recwarn if "generates" in str(warning.message)]


class Nameless(NamingByText):
    """It does not say which tokens it is about."""

    def by_text(self, name):
        return None


def test_generated_tokens_without_names_are_warned_of(metric, gpt2, tokenizer):
    with (
        running(Nameless(gpt2, tokenizer, ("openai",))) as address,
        pytest.warns(UserWarning, match="cannot be excluded"),
    ):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer, max_length=9)


def test_long_prompts_that_are_cut_short(metric, tokenizer):
    """In windows longer than the made-up text as well."""
    model = make_model("gpt2", n_positions=320)

    class Server(FakeServer):
        def values(self, ids, body):
            if len(ids) < 300:
                return super().values(ids, body)
            values, after = super().values(ids[40:], body)
            return [None] + [-5.0] * 40 + values[1:], torch.cat([after[:40], after])

    with (
        running(Server(model, tokenizer)) as address,
        pytest.raises(ValueError, match="truncates long"),
    ):
        metric.compute(predictions=[random_text(900)], model_id=address, tokenizer=tokenizer)


class After(FakeServer):
    """Tells the truth in its first answers, and then something else."""

    number = 40

    def post(self, path, body):
        self.count = getattr(self, "count", 0) + 1
        return self.honest(path, body) if self.count < self.number else self.other(path, body)

    def honest(self, path, body):
        return super().post(path, body)


def spoiled(place, value):
    """A server that puts a value of its own among those of the texts."""

    class Server(After):
        def other(self, path, body):
            status, reply = self.honest(path, body)
            entries = reply["choices"][0]["prompt_logprobs"]
            for choice in reply["choices"]:
                if choice["index"] == 1:
                    entries = choice["prompt_logprobs"]
                    next(iter(entries[place].values()))["logprob"] = value
            return status, reply

    return Server


@pytest.mark.parametrize("value", [float("nan"), None, "x", 0.5])
def test_values_that_are_none_name_the_window(metric, gpt2, tokenizer, value):
    with (
        running(spoiled(3, value)(gpt2, tokenizer)) as address,
        pytest.raises(
            ValueError,
            match=r"for token 3 .*window over tokens \d+ to \d+ of the text at position 0",
        ),
    ):
        metric.compute(
            predictions=[random_text(400)],
            model_id=address,
            tokenizer=tokenizer,
            max_length=9,
            batch_size=2,
        )


class Missing(After):
    def other(self, path, body):
        status, reply = self.honest(path, body)
        return status, {"choices": reply["choices"][1:]}


class NoMoreJson(After):
    def other(self, path, body):
        return 200, "nothing"


@pytest.mark.parametrize(
    ("liar", "reason"), [(Missing, "choices numbered"), (NoMoreJson, "no `choices` but 'nothing'")]
)
def test_answers_that_are_missing(metric, gpt2, tokenizer, liar, reason):
    with running(liar(gpt2, tokenizer)) as address, pytest.raises(ValueError, match=reason):
        metric.compute(
            predictions=[random_text(400)],
            model_id=address,
            tokenizer=tokenizer,
            max_length=9,
            batch_size=2,
        )


class Restarted(After):
    """Another model answers from some request on."""

    def other(self, path, body):
        self.model = OTHER
        return self.honest(path, body)


OTHER = make_model("gpt2", seed=5)


@pytest.mark.parametrize("number", range(22, 48, 5))
def test_another_model_in_the_middle_of_a_run(metric, gpt2, tokenizer, number, tmp_path):
    server = Restarted(gpt2, tokenizer)
    server.number = number
    path = tmp_path / "run.sqlite"
    arguments = {"predictions": [random_text(400)], "tokenizer": tokenizer, "max_length": 9}
    arguments |= {"model_kwargs": {"requests_in_flight": 1}, "batch_size": 2}
    with running(server) as address:
        with pytest.raises(ValueError, match=r"another model|values of the same tokens differ"):
            metric.compute(model_id=address, checkpoint=path, **arguments)
        again = metric.compute(model_id=address, checkpoint=path, **arguments)
    expected = metric.compute(
        predictions=arguments["predictions"],
        model=OTHER,
        tokenizer=tokenizer,
        max_length=9,
        batch_size=2,
    )
    assert again["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)


def test_another_model_has_another_signature(metric, gpt2, tokenizer):
    server = FakeServer(gpt2, tokenizer)
    with running(server) as address:
        first = metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
        server.model = OTHER
        second = metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
    assert first["signature"] != second["signature"]


class Weary(FakeServer):
    """Every third request fails in another way."""

    failures = (429, 500, 503, 502, None)

    def post(self, path, body):
        self.count = getattr(self, "count", 0) + 1
        if self.count % 3 == 0:
            failure = self.failures[self.count // 3 % len(self.failures)]
            return failure and (failure, {"error": "busy"})
        return super().post(path, body)


def test_failures_are_tried_again(metric, gpt2, tokenizer, monkeypatch):
    monkeypatch.setattr("perplexity_sliding.engines.server.FIRST_WAIT_S", 0.001)
    with running(Weary(gpt2, tokenizer)) as address:
        served = metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
    expected = metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer)
    assert served["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)


class Sleepy(After):
    """Stops answering, until it is woken."""

    def __init__(self, *args):
        super().__init__(*args)
        self.woken, self.asleep = threading.Event(), threading.Event()

    def other(self, path, body):
        self.asleep.set()
        self.woken.wait(20)
        return self.honest(path, body)


def test_time_outs_end_in_a_sentence(metric, gpt2, tokenizer):
    server = Sleepy(gpt2, tokenizer)
    settings = {"timeout": 0.2, "retries": 0}
    with running(server) as address:
        with pytest.raises(ValueError, match=r"no complete answer within 0\.2 s.* `timeout`"):
            metric.compute(
                predictions=[random_text(400)], model_id=address, tokenizer=tokenizer,
                max_length=9, batch_size=2, model_kwargs=settings,
            )  # fmt: skip
        server.woken.set()


def test_nobody_there(metric, tokenizer):
    with running(FakeServer(None, tokenizer, length=9)) as address:
        pass
    with pytest.raises(ValueError, match="Check the address, and that the server is running"):
        metric.compute(
            predictions=TEXTS, model_id=address, tokenizer=tokenizer, model_kwargs={"retries": 0}
        )


def own_threads():
    """Threads that a program waits for when it ends; those of the fake server are none."""
    return [thread for thread in threading.enumerate() if not thread.daemon]


@pytest.fixture
def interruptible():
    """Python as it is at a terminal: a shell has its jobs in the background ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def test_interrupts_end_at_once_and_leave_no_thread(metric, gpt2, tokenizer, interruptible):
    """Ctrl-C while requests wait for an answer."""
    import _thread

    server, before = Sleepy(gpt2, tokenizer), own_threads()
    with running(server) as address:
        over = threading.Event()

        def interrupt():
            """Again, as a person would, where Python drops one: inside a finalizer, say."""
            server.asleep.wait(20)
            while not over.is_set():
                _thread.interrupt_main()
                over.wait(4)

        threading.Thread(target=interrupt, daemon=True).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            metric.compute(
                predictions=[random_text(400)],
                model_id=address,
                tokenizer=tokenizer,
                max_length=9,
                batch_size=2,
            )
        over.set()
        seconds = time.monotonic() - started
        server.woken.set()
    assert seconds < 15  # the server would sleep for 20
    assert own_threads() == before


def test_checkpoint_keeps_what_was_finished(metric, gpt2, tokenizer, tmp_path):
    server = Missing(gpt2, tokenizer)
    arguments = {
        "predictions": [random_text(400)], "tokenizer": tokenizer, "max_length": 9,
        "checkpoint": tmp_path / "run.sqlite", "model_kwargs": {"requests_in_flight": 1},
        "batch_size": 2,
    }  # fmt: skip
    with running(server) as address:
        with pytest.raises(ValueError, match="choices numbered"):
            metric.compute(model_id=address, **arguments)
        server.number, asked = 10**9, len(server.asked)
        done = metric.compute(model_id=address, **arguments)
        resumed = len(server.asked) - asked
    del arguments["model_kwargs"], arguments["checkpoint"]
    expected = metric.compute(model=gpt2, **arguments)
    assert done["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
    assert resumed < done["num_windows"] / 2
    assert np.isfinite(done["perplexity"])
