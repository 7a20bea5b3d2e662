"""Servers that lie, are away or break down: none gets a wrong number out, and the reason is said."""

import signal
import threading
import time

import pytest
from fake_engines import FakeServer, running
from models import make_model, random_text

from perplexity_sliding.engines import server as client

TEXTS = [random_text(70), random_text(33, 2)]
KEY = "sk-0123456789abcdef"


@pytest.fixture
def measure(metric, tokenizer):
    """Measure under a server."""

    def measure(server, texts=TEXTS, settings=None, **arguments):
        with running(server) as address:
            return metric.compute(
                predictions=texts, model_id=address, tokenizer=tokenizer,
                model_kwargs=settings, **{"max_length": 9} | arguments,
            )  # fmt: skip

    return measure


@pytest.fixture
def expected(metric, gpt2, tokenizer):
    """Measure in transformers."""

    def measure(texts=TEXTS, model=gpt2):
        return metric.compute(
            predictions=texts, model=model, tokenizer=tokenizer, max_length=9, batch_size=2
        )

    return measure


# --- lies -----------------------------------------------------------------------------------------


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
        return [None, *(-9999.0 for _ in values[1:])], after - 9999.0


class Truncating(FakeServer):
    """Long prompts lose their beginning without a word."""

    def choice(self, ids, body):
        return super().choice(ids[-6:], body)


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
    """Prompts of a batch get other values than alone."""

    def complete(self, body):
        self.company = len(body["prompt"])
        return super().complete(body)

    def distributions(self, ids, body):
        return super().distributions(ids, body) * (1 + 0.1 * (self.company == 2))


class AddingStart(FakeServer):
    """A start token is put before prompts that have none, and not shown."""

    def values(self, ids, body):
        start = self.tokenizer.bos_token_id
        if ids[0] == start:
            return super().values(ids, body)
        values, after = super().values([start, *ids][: self.length], body)
        values = [None, *values[2:]]
        return [*values, values[-1]][: len(ids)], after[1:]


LIARS = [
    (GeneratedOnly, "openai", "values of [01] tokens to 8"),
    (ShiftedLeft, "vllm", "values are at the wrong tokens"),
    (ShiftedLeft, "openai", "values are at the wrong tokens"),
    (ShiftedRight, "sglang", "values are at the wrong tokens"),
    (OtherIds, "vllm", r"whose id is \d+, values of"),
    (Processed, "vllm", "probability 0 or 1 to 1 of 15 random tokens"),
    (CutByTopP, "vllm", r"probability 0 or 1 to \d+ of 15 random tokens"),
    (Overflowing, "vllm", r"probability 0 to all of \d+ random tokens: .* overflow"),
    (Truncating, "vllm", "values of 6 tokens to 8"),
    (StaleCache, "vllm", "differ in a second request.*--no-enable-prefix-caching"),
    (StaleCache, "sglang", "differ in a second request.*--disable-radix-cache"),
    (OrderMatters, "vllm", "differ in a second request"),
    (AddingStart, "vllm", "it adds one itself"),
    (AddingStart, "openai", "it adds one itself"),
]


@pytest.mark.parametrize(("liar", "form", "reason"), LIARS)
def test_no_lying_server_gets_a_number_out(measure, gpt2, tokenizer, liar, form, reason):
    with pytest.raises(ValueError, match=reason):
        measure(liar(gpt2, tokenizer, (form,)))


# --- another model, or other answers, in the middle of a run ---------------------------------------

TRIAL = 9  # requests before the first window
ONE_BY_ONE = {"requests_in_flight": 1}
LONG = [random_text(400)]
OTHER = make_model("gpt2", seed=5)


class After(FakeServer):
    """Tells the truth in its first answers, and then something else."""

    number, count = TRIAL + 3, 0

    def post(self, path, body):
        self.count += 1
        honest = super().post(path, body)
        return honest if self.count < self.number else self.other(path, body, honest)


def spoiled(value):
    """A server that puts a value of its own among those of the texts."""

    class Server(After):
        def other(self, path, body, honest):
            for choice in honest[1]["choices"]:
                if choice["index"] == 1:
                    next(iter(choice["prompt_logprobs"][3].values()))["logprob"] = value
            return honest

    return Server


@pytest.mark.parametrize("value", [float("nan"), None, "x", 0.5])
def test_values_that_are_none_name_the_window(measure, gpt2, tokenizer, value):
    where = r"for token 3 .*window over tokens \d+ to \d+ of the text at position 0"
    with pytest.raises(ValueError, match=where):
        measure(spoiled(value)(gpt2, tokenizer), LONG, batch_size=2)


class Missing(After):
    def other(self, path, body, honest):
        return 200, {"choices": honest[1]["choices"][1:]}


def test_a_checkpoint_keeps_what_was_finished(measure, expected, gpt2, tokenizer, tmp_path):
    server = Missing(gpt2, tokenizer)
    server.number = TRIAL + 20
    arguments = {"checkpoint": tmp_path / "run.sqlite", "batch_size": 2}
    with pytest.raises(ValueError, match="choices numbered"):
        measure(server, LONG, ONE_BY_ONE, **arguments)
    server.number, asked = 10**9, len(server.asked)
    done = measure(server, LONG, ONE_BY_ONE, **arguments)
    assert done["perplexity"] == pytest.approx(expected(LONG)["perplexity"], rel=1e-6)
    assert len(server.asked) - asked < done["num_windows"] / 2


class Restarted(After):
    """Another model answers from some request on."""

    def other(self, path, body, honest):
        self.model = OTHER
        return FakeServer.post(self, path, body)


@pytest.mark.parametrize("number", [4, TRIAL + 1, TRIAL + 9])
def test_another_model_in_the_middle_of_a_run(measure, expected, gpt2, tokenizer, number, tmp_path):
    server = Restarted(gpt2, tokenizer)
    server.number = number
    arguments = {"checkpoint": tmp_path / "run.sqlite", "batch_size": 2}
    reason = r"another model|values of the same tokens differ|at the wrong tokens"
    with pytest.raises(ValueError, match=reason):
        measure(server, LONG, ONE_BY_ONE, **arguments)
    again = measure(server, LONG, ONE_BY_ONE, **arguments)
    assert again["perplexity"] == pytest.approx(expected(LONG, OTHER)["perplexity"], rel=1e-6)


def test_another_model_has_another_signature(metric, gpt2, tokenizer):
    server = FakeServer(gpt2, tokenizer)
    with running(server) as address:
        first = metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
        server.model = OTHER
        second = metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
    assert first["signature"] != second["signature"]


# --- a server that is away ------------------------------------------------------------------------


class Weary(FakeServer):
    """Every third request fails in another way; None is a connection that drops."""

    failures, count = (429, 500, 503, 502, None), 0

    def post(self, path, body):
        self.count += 1
        if self.count % 3 == 0:
            failure = self.failures[self.count // 3 % len(self.failures)]
            return failure and (failure, {"error": "busy"})
        return super().post(path, body)


def test_failures_are_tried_again(measure, expected, gpt2, tokenizer, monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.001)
    served = measure(Weary(gpt2, tokenizer))
    assert served["perplexity"] == pytest.approx(expected()["perplexity"], rel=1e-6)


def test_a_wrong_address_is_given_up_soon(metric, tokenizer):
    with running(FakeServer(None, tokenizer, length=9)) as address:
        pass
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"refused.* Check the address, and that the server is"):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
    assert time.monotonic() - began < 5


class Ending(After):
    """Its engine ends in the middle of a run, and it does not come back."""

    def other(self, path, body, honest):
        failure = 500, {"error": {"message": "EngineCore encountered an issue"}}
        return failure if self.count == self.number else None


def test_the_first_failure_is_shown_and_a_restart_waited_for(measure, gpt2, tokenizer, monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.001)
    reason = r"tried 11 times: .*EngineCore encountered an issue.*; finally: .* `retries`"
    with pytest.raises(ValueError, match=reason):
        measure(Ending(gpt2, tokenizer), LONG, ONE_BY_ONE, batch_size=2)


def test_no_seed_is_sent(measure, gpt2, tokenizer):
    """With one, vLLM's engine for CPUs ends at a prompt that overflows a step."""
    for form in ("vllm", "openai"):
        server = FakeServer(gpt2, tokenizer, (form,))
        measure(server)
        assert not any("seed" in body for _, body, _ in server.asked)


class Sleepy(After):
    """Stops answering, until it is woken."""

    def __init__(self, *args):
        super().__init__(*args)
        self.woken, self.asleep = threading.Event(), threading.Event()

    def other(self, path, body, honest):
        self.asleep.set()
        self.woken.wait(20)
        return honest


def test_time_outs_end_in_a_sentence(metric, gpt2, tokenizer):
    server, settings = Sleepy(gpt2, tokenizer), {"timeout": 0.2, "retries": 0}
    with running(server) as address:
        with pytest.raises(ValueError, match=r"no answer within 0\.2 s.* `timeout`"):
            metric.compute(
                predictions=LONG, model_id=address, tokenizer=tokenizer, max_length=9,
                model_kwargs=settings,
            )  # fmt: skip
        server.woken.set()


@pytest.fixture
def interruptible():
    """Python as it is at a terminal: a shell has its jobs in the background ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def test_interrupts_end_at_once_and_leave_no_thread(metric, gpt2, tokenizer, interruptible):
    """Ctrl-C while requests wait for an answer."""

    def own_threads():
        return [thread for thread in threading.enumerate() if not thread.daemon]

    server, before = Sleepy(gpt2, tokenizer), own_threads()

    def interrupt():
        server.asleep.wait(20)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with running(server) as address:
        threading.Thread(target=interrupt, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            metric.compute(
                predictions=LONG, model_id=address, tokenizer=tokenizer, max_length=9, batch_size=2
            )
        seconds = time.monotonic() - began
        server.woken.set()
    assert seconds < 15  # the server would sleep for 20
    assert own_threads() == before


# --- addresses, names and keys ---------------------------------------------------------------------


@pytest.mark.parametrize("address", ["localhost:8000/v1", "10.0.0.7/v1", "gpu-3.lan:80"])
def test_an_address_without_http(metric, address):
    with pytest.raises(ValueError, match=rf"`model_id` must begin with http://.*{address}"):
        metric.compute(predictions=TEXTS, model_id=address)


class Listing(FakeServer):
    """As `transformers serve` without a model in its cache."""

    names = ()

    def get(self, path):
        return 200, {"data": [{"id": name} for name in self.names]}


def test_models_that_a_server_lists(measure, gpt2, tokenizer):
    server = Listing(gpt2, tokenizer)
    reason = r"lists no model\. If it serves one, pass its name as `served_name` in `model_kwargs`"
    with pytest.raises(ValueError, match=reason):
        measure(server)
    measure(server, settings={"served_name": "served"})
    server.names = ("served", "other")
    with pytest.raises(ValueError, match=r"serves 'served', 'other': pass one .* `model_kwargs`\."):
        measure(server)
    measure(server, settings={"served_name": "served"})


def test_the_key_is_sent_and_its_variable_named(measure, gpt2, tokenizer, monkeypatch):
    server = FakeServer(gpt2, tokenizer)
    monkeypatch.setenv("VLLM_API_KEY", f" {KEY}\r\n")
    measure(server)
    assert {headers["Authorization"] for _, _, headers in server.asked} == {f"Bearer {KEY}"}
    monkeypatch.setattr(server, "post", lambda path, body: (401, {"error": f"wrong key {KEY}"}))
    reason = r"status 401, 'wrong key \*\*\*'\. Check the key .* VLLM_API_KEY"
    with pytest.raises(ValueError, match=reason) as caught:
        measure(server)
    assert KEY not in repr(caught.value)
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(ValueError, match="Set the environment variable VLLM_API_KEY"):
        measure(server)


def test_a_key_is_never_shown(measure, tokenizer, monkeypatch):
    """In the place of its variable, or with a line break."""
    with pytest.raises(ValueError, match="`api_key_variable` must be the name") as caught:
        measure(FakeServer(None, tokenizer, length=9), settings={"api_key_variable": KEY})
    assert KEY not in repr(caught.value)
    monkeypatch.setenv("VLLM_API_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(ValueError, match="VLLM_API_KEY must consist of printable ASCII") as caught:
        measure(FakeServer(None, tokenizer, length=9))
    assert KEY not in repr(caught.value)
