"""A served model gives the numbers of transformers in every form that servers speak; those that lie, are
away or break down get no wrong number out, and the reason is said."""

import signal
import threading
from contextlib import ExitStack

import pytest
from fake_engines import FakeServer, running
from models import CONTEXT, make_model, make_tokenizer, random_text, save

from perplexity_sliding.engines import server as client

TEXTS = [random_text(70), random_text(9, 1), random_text(33, 2)]
FORMS = ("vllm", "openai", "sglang")
KEY = "sk-0123456789abcdef"
OF_MODEL = ("signature", "signature_short", "model_name", "probe", "num_forward_tokens")


@pytest.fixture(scope="module")
def servers(gpt2):
    """The address of a truthful server in each form."""
    with ExitStack() as stack:
        tokenizer = make_tokenizer()
        yield {
            form: stack.enter_context(running(FakeServer(gpt2, tokenizer, (form,))))
            for form in FORMS
        }


@pytest.fixture
def served(metric, tokenizer, servers):
    """Measure under one of them."""

    def measure(form="vllm", **arguments):
        given = {"predictions": TEXTS, "model_id": servers[form], "tokenizer": tokenizer}
        return metric.compute(**(given | arguments))

    return measure


@pytest.fixture
def both(metric, gpt2, tokenizer, served):
    """Measure under a server and in transformers."""

    def measure(form="vllm", **arguments):
        given = {"predictions": TEXTS, "model": gpt2, "tokenizer": tokenizer}
        return served(form, **arguments), metric.compute(**(given | arguments))

    return measure


@pytest.fixture
def measure(metric, tokenizer):
    """Measure under a server that is started for it."""

    def measure(server, texts=TEXTS[::2], settings=None, **arguments):
        with running(server) as address:
            return metric.compute(
                predictions=texts, model_id=address, tokenizer=tokenizer,
                model_kwargs=settings, **{"max_length": 9} | arguments,
            )  # fmt: skip

    return measure


@pytest.fixture
def expected(metric, gpt2, tokenizer):
    """The perplexity in transformers."""

    def measure(texts=TEXTS[::2], model=gpt2):
        result = metric.compute(
            predictions=texts, model=model, tokenizer=tokenizer, max_length=9, batch_size=2
        )
        return pytest.approx(result["perplexity"], rel=1e-6)

    return measure


def assert_same(value, expected, path="", abs=2e-6, rel=1e-6):
    """All numbers agree to `rel`, and everything else but what names the model is equal.

    A perplexity may be relatively as far off as the mean that it is made of: `abs` nats.
    """
    if isinstance(expected, dict) and isinstance(value, dict):
        assert value.keys() == expected.keys() | (value.keys() & set(OF_MODEL)), path
        for key in expected.keys() - set(OF_MODEL):
            assert_same(value[key], expected[key], f"{path}.{key}", abs, rel)
    elif isinstance(expected, list) and isinstance(value, list):
        assert len(value) == len(expected), path
        for number, pair in enumerate(zip(value, expected)):
            assert_same(*pair, f"{path}[{number}]", abs, rel)
    elif isinstance(expected, float) and isinstance(value, float):
        rel = max(abs, rel) if "perplexit" in path else rel
        assert value == pytest.approx(expected, rel=rel, abs=abs, nan_ok=True), path
    else:
        assert value == expected, path


@pytest.mark.parametrize("form", FORMS)
def test_every_protocol(both, form):
    by_server, expected = both(form, protocol="all", max_length=12)
    for of_server, of_model in zip(by_server["measurements"], expected["measurements"]):
        assert ("error" in of_server) == ("error" in of_model), of_server
        if "error" not in of_model:
            assert_same(of_server, of_model, of_model["protocol"])
    assert sum("error" not in row for row in by_server["measurements"]) >= 5


@pytest.mark.parametrize("start, stride", [(False, 1), ("once", 15), ("every", 3)])
def test_full_windows_to_the_last_target(both, start, stride):
    assert_same(*both(max_length=CONTEXT, add_start_token=start, stride=stride))


@pytest.mark.parametrize("form", FORMS)
def test_windows_that_a_server_cannot_read(served, form):
    with pytest.raises(ValueError, match=r"`max_length` must be at most 1[345]"):
        served(form, protocol="lm-eval", max_length=CONTEXT)


def test_tokens_ranks_and_alternatives(both):
    for columns in (True, ["rank"], ["top3"]):
        assert_same(*both(return_token_scores=columns, max_length=14))


def test_words_as_plain_sums(both):
    by_server, expected = both(words=True, word_correction=None)
    for words, of_model in zip(by_server["word_scores"], expected["word_scores"]):
        assert_same(words["surprisal"], of_model["surprisal"], "surprisal")
        assert words["entropy"] == [None] * len(words["words"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"words": True}, "`word_correction` must be None"),
        ({"return_token_scores": ["entropy"]}, "entropy of a prediction requires the logits"),
        (
            {"carry": True, "stride": 4},
            "`carry` must be left out with .*: it does not run in this process",
        ),
        ({"device": "cpu"}, "`device` must be left out"),
        ({"dtype": "bfloat16"}, "`dtype` must be left out"),
        ({"model_kwargs": {"revision": "main"}}, "got 'revision'"),
        ({"model_kwargs": {"requests_in_flight": 0}}, "at least 1, got 0"),
        ({"model_kwargs": {"served_name": "other"}}, "lists 'served'.* got 'other'"),
        ({"reference": "without adapter"}, "with an adapter, got ServedModel without"),
        ({"return_token_scores": ["rank"], "max_length": 16}, "not say the rank"),
    ],
)
def test_what_a_server_cannot_give(served, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        served(**arguments)


def test_tokenizer_is_found_by_the_root(metric, gpt2, tmp_path):
    tokenizer = make_tokenizer()
    root = save(tmp_path / "folder", gpt2, tokenizer)
    with running(FakeServer(gpt2, tokenizer, root=root)) as address:
        by_server = metric.compute(predictions=TEXTS, model_id=address)
    assert by_server["max_length"] == CONTEXT
    assert_same(by_server, metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer))
    elsewhere = running(FakeServer(gpt2, tokenizer, root="/data/on/another"))
    with elsewhere as address, pytest.raises(ValueError, match="`tokenizer` must be given"):
        metric.compute(predictions=TEXTS, model_id=address)


def test_batch_size_and_requests_in_flight_change_nothing(served):
    results = [
        served(max_length=10, batch_size=size, model_kwargs={"requests_in_flight": flying})
        for size, flying in ((1, 1), (3, 4), (16, 16))
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("address", ["http://user:pass@host/v1", "https://host/v1?key=1"])
def test_addresses_with_secrets(metric, tokenizer, address):
    with pytest.raises(ValueError, match="without user, password or parameters"):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)


def test_columns_that_a_server_cannot_fill(call, tiny, gpt2, tokenizer, tmp_path):
    """On the terminal, and in the report there is no divergence."""
    text, report = tmp_path / "text.txt", tmp_path / "report.html"
    text.write_text(random_text(300), "utf-8")
    with running(FakeServer(gpt2, tokenizer)) as address:
        arguments = [f"--tokenizer={tiny}", f"--reference={tiny}", "--max-length=15"]
        ran = call(text, *arguments, f"--html={report}", model=address)
    assert ran.code == 0, ran.err
    assert "same top" in ran.out and "KL" not in ran.out
    shown = report.read_text("utf-8")
    assert "Right next token" in shown and "KL divergence<small>" not in shown


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
    (ShiftedLeft, "sglang", "values are at the wrong tokens"),
    (OtherIds, "vllm", r"whose id is \d+, values of"),
    (Processed, "vllm", "probability 0 or 1 to 1 of 15 random tokens"),
    (StaleCache, "vllm", "differ in a second request.*--no-enable-prefix-caching"),
    (AddingStart, "openai", "it adds one itself"),
]


@pytest.mark.parametrize(("liar", "form", "reason"), LIARS)
def test_no_lying_server_gets_a_number_out(measure, gpt2, tokenizer, liar, form, reason):
    with pytest.raises(ValueError, match=reason):
        measure(liar(gpt2, tokenizer, (form,)))


# --- another model, or other answers, in the middle of a run ---------------------------------------

TRIAL = 8  # requests before the first window
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


class Spoiled(After):
    """Puts a value of its own among those of the texts."""

    def other(self, path, body, honest):
        for choice in honest[1]["choices"]:
            if choice["index"] == 1:
                next(iter(choice["prompt_logprobs"][3].values()))["logprob"] = float("nan")
        return honest


def test_values_that_are_none_name_the_window(measure, gpt2, tokenizer):
    server = Spoiled(gpt2, tokenizer)
    where = r"for token 3 .*window over tokens \d+ to \d+ of the text at position 0"
    with pytest.raises(ValueError, match=where):
        measure(server, LONG, batch_size=2)


class Missing(After):
    def other(self, path, body, honest):
        return 200, {"choices": honest[1]["choices"][1:]}


def test_a_checkpoint_keeps_what_was_finished(measure, expected, gpt2, tokenizer, tmp_path):
    server = Missing(gpt2, tokenizer)
    server.number = TRIAL + 20
    arguments = {"checkpoint": tmp_path / "run.sqlite", "batch_size": 2}
    with pytest.raises(ValueError, match="answers to"):
        measure(server, LONG, ONE_BY_ONE, **arguments)
    server.number, asked = 10**9, len(server.asked)
    done = measure(server, LONG, ONE_BY_ONE, **arguments)
    assert done["perplexity"] == expected(LONG)
    assert len(server.asked) - asked < done["num_windows"] / 2


class Restarted(After):
    """Another model answers from some request on."""

    def other(self, path, body, honest):
        self.model = OTHER
        return FakeServer.post(self, path, body)


@pytest.mark.parametrize("number", [4, TRIAL + 9])
def test_another_model_in_the_middle_of_a_run(measure, expected, gpt2, tokenizer, number, tmp_path):
    server = Restarted(gpt2, tokenizer)
    server.number = number
    arguments = {"checkpoint": tmp_path / "run.sqlite", "batch_size": 2}
    reason = r"another model|values of the same tokens differ|at the wrong tokens"
    with pytest.raises(ValueError, match=reason):
        measure(server, LONG, ONE_BY_ONE, **arguments)
    again = measure(server, LONG, ONE_BY_ONE, **arguments)
    assert again["perplexity"] == expected(LONG, OTHER)


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
    server = Weary(gpt2, tokenizer)
    assert measure(server)["perplexity"] == expected()
    # with a seed, vLLM's engine for CPUs ends at a prompt that overflows a step
    assert not any("seed" in body for _, body, _ in server.asked)


def test_a_wrong_address_is_given_up(metric, tokenizer):
    with running(FakeServer(None, tokenizer, length=9)) as address:
        pass
    with pytest.raises(ValueError, match=r"refused.* Check the address, and that the server is"):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)


class Ending(After):
    """Its engine ends in the middle of a run, and it does not come back."""

    def other(self, path, body, honest):
        failure = 500, {"error": {"message": "EngineCore encountered an issue"}}
        return failure if self.count == self.number else None


def test_the_first_failure_is_shown_and_a_restart_waited_for(measure, gpt2, tokenizer, monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.001)
    reason = r"attempts: 11.*EngineCore encountered an issue.*; finally: .* `retries`"
    with pytest.raises(ValueError, match=reason):
        measure(Ending(gpt2, tokenizer), LONG, ONE_BY_ONE, batch_size=2)


class Sleepy(After):
    """Stops answering, until it is woken."""

    def __init__(self, *args):
        super().__init__(*args)
        self.woken, self.asleep, self.overslept = threading.Event(), threading.Event(), False

    def other(self, path, body, honest):
        self.asleep.set()
        self.overslept |= not self.woken.wait(20)
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


def test_an_interrupt_ends_the_run_and_leaves_no_thread(metric, gpt2, tokenizer, interruptible):
    """Ctrl-C while requests wait for an answer."""

    def own_threads():
        return [thread for thread in threading.enumerate() if not thread.daemon]

    server, before = Sleepy(gpt2, tokenizer), own_threads()

    def interrupt():
        server.asleep.wait(20)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with running(server) as address:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            metric.compute(
                predictions=LONG, model_id=address, tokenizer=tokenizer, max_length=9, batch_size=2
            )
        server.woken.set()
    assert not server.overslept, "the run waited for the answers"
    assert own_threads() == before


# --- names and keys ---------------------------------------------------------------------


class Listing(FakeServer):
    """Serves several models."""

    def get(self, path):
        return 200, {"data": [{"id": n, "max_model_len": self.length} for n in ("served", "b")]}


def test_one_of_several_models(measure, expected, gpt2, tokenizer):
    server = Listing(gpt2, tokenizer)
    with pytest.raises(ValueError, match="lists 'served', 'b': pass one as `served_n"):
        measure(server)
    assert measure(server, settings={"served_name": "served"})["perplexity"] == expected()


def test_the_key_is_sent_and_never_shown(measure, gpt2, tokenizer, monkeypatch):
    server = FakeServer(gpt2, tokenizer)
    monkeypatch.setenv("VLLM_API_KEY", f" {KEY}\n")
    measure(server)
    assert {headers["Authorization"] for _, _, headers in server.asked} == {f"Bearer {KEY}"}
    monkeypatch.setattr(server, "post", lambda path, body: (401, {"error": f"wrong key {KEY}"}))
    with pytest.raises(ValueError, match=r"401, .*wrong key \*\*\*.* VLLM_API_KEY\.") as refused:
        measure(server)
    assert KEY not in repr(refused.value)
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(ValueError, match="environment variable VLLM_API_KEY, which is not set"):
        measure(server)
