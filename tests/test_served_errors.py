"""A server that is away, breaks down, answers without end, or repeats the key."""

import gzip
import html
import json
import logging
import random
import re
import time
import traceback
from urllib.parse import quote

import pytest
from fake_engines import FakeServer, running
from models import random_text

from perplexity_sliding.engines.server import ConnectionPool, Server, ServerSettings
from perplexity_sliding.engines.server_apis import ServerError

TEXTS = [random_text(70)]
KEY = "sk-" + "".join(random.Random(0).choices("abcdefgh0123456789", k=40))


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between tries, which are not waited."""
    found = []
    monkeypatch.setattr(ConnectionPool, "sleep", lambda self, seconds: found.append(seconds))
    return found


@pytest.fixture
def measure(metric, tokenizer):
    """Measure under a server."""

    def measure(server, **settings):
        with running(server) as address:
            arguments = {"model_id": address, "tokenizer": tokenizer, "model_kwargs": settings}
            return metric.compute(predictions=TEXTS, max_length=9, **arguments)

    return measure


def written(error: BaseException) -> str:
    """All that a user might see of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


# --- a server that is away ------------------------------------------------------------------------


def test_a_wrong_address_is_given_up_at_once(metric, tokenizer, pauses, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0] + sum(pauses))
    with running(FakeServer(None, tokenizer, length=9)) as address:
        pass
    with pytest.raises(
        ServerError, match=r"refused.* Check the address, and that the server is running"
    ):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)
    assert 0 < sum(pauses) <= 2


class Ending(FakeServer):
    """Its engine ends in the middle of a run, and it does not come back."""

    def post(self, path, body):
        if len(self.asked) == 12:
            return 500, {"error": {"message": "EngineCore encountered an issue"}}
        return super().post(path, body) if len(self.asked) < 12 else None


def test_the_first_failure_is_shown_and_a_restart_waited_for(measure, gpt2, tokenizer, pauses):
    server = Ending(gpt2, tokenizer)
    with pytest.raises(ServerError, match=r"EngineCore encountered an issue.* `retries`") as caught:
        measure(server, requests_in_flight=1)
    assert "11 times" in str(caught.value) and "finally" in str(caught.value)
    assert sum(pauses) > 113  # seconds in which vLLM came back


def test_a_missing_key_is_named(measure, gpt2, tokenizer, monkeypatch):
    server = FakeServer(gpt2, tokenizer)
    monkeypatch.setattr(server, "get", lambda path: (401, {"error": "Unauthorized"}))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(ServerError, match=r"Set the environment variable VLLM_API_KEY"):
        measure(server)
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with pytest.raises(ServerError, match=r"Check the key .* VLLM_API_KEY"):
        measure(server)


@pytest.mark.parametrize(
    "address", ["localhost:8000/v1", "10.0.0.7/v1", "gpu-3.lan:80", "LOCALHOST"]
)
def test_an_address_without_http(metric, address):
    with pytest.raises(ValueError, match=rf"`model_id` must begin with http://.*{address}"):
        metric.compute(predictions=TEXTS, model_id=address)


@pytest.mark.parametrize("address", ["localhost:8000/v1/", "localhost:8000/v1/completions"])
def test_an_address_without_http_on_the_command_line(call, tmp_path, address):
    (tmp_path / "a.txt").write_text(TEXTS[0])
    ran = call(tmp_path / "a.txt", model=address)
    assert ran.code == 2 and f"Write http://{address}." in ran.err


@pytest.mark.parametrize("root", ["demo-model-of-the-server", "models/demo", "./demo", "a/b/c"])
def test_a_folder_of_the_server_is_looked_up_once(metric, gpt2, tokenizer, monkeypatch, root):
    import huggingface_hub.hf_api

    api = huggingface_hub.hf_api.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    monkeypatch.setattr("perplexity_sliding.engines.server_opening.load_tokenizer", pytest.fail)
    with (
        running(FakeServer(gpt2, tokenizer, root=root)) as address,
        pytest.raises(ValueError, match=f"`tokenizer` must be given .*{re.escape(root)}"),
    ):
        metric.compute(predictions=TEXTS, model_id=address)


# --- a server whose engine ends ------------------------------------------------------------------


class EndingAtSeeds(FakeServer):
    """As vLLM on a CPU: a prompt that overflows a step, with a seed, ends the engine."""

    step = 20

    def complete(self, body):
        if "seed" in body and sum(map(len, body["prompt"])) > self.step:
            return 500, {"error": {"message": "EngineCore encountered an issue"}}
        return super().complete(body)


@pytest.mark.parametrize("form", ["vllm", "openai"])
def test_no_seed_is_sent(metric, measure, gpt2, tokenizer, form):
    found = measure(EndingAtSeeds(gpt2, tokenizer, (form,)), retries=0)
    expected = metric.compute(predictions=TEXTS, max_length=9, model=gpt2, tokenizer=tokenizer)
    assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)


# --- answers without end --------------------------------------------------------------------------


def whole(data: bytes, encoding: str = "identity"):
    """An answer with these bytes."""

    def write(handler):
        handler.send_response(200)
        handler.send_header("Content-Encoding", encoding)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return write


def endless(handler):
    """A gigabyte."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(10**9))
    handler.end_headers()
    for _ in range(10**3):
        handler.wfile.write(b" " * 10**6)


def slow_body(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "200")
    handler.end_headers()
    for _ in range(200):
        time.sleep(0.05)
        handler.wfile.write(b" ")


def slow_head(handler):
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 200:
        time.sleep(0.05)
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()


# 200 MB of blanks
BOMB = gzip.compress(b" " * 2 * 10**8)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (endless, r"at most [\d,]+ bytes"),
        (whole(BOMB, "gzip"), r"at most [\d,]+ bytes"),
        (whole(BOMB, "gzip, gzip"), "must answer in gzip, deflate or uncompressed"),
        (whole(BOMB, "br"), "must answer in gzip, deflate or uncompressed"),
        (whole(b"no gzip", "gzip"), "must encode its answer in gzip as declared"),
        (whole(b"[" * 200_000), "must answer in JSON"),
        (whole(b"\xff\xfe"), "must answer in JSON"),
        (slow_body, "no complete answer within 0.3 s"),
        (slow_head, "no complete answer within 0.3 s"),
    ],
)
def test_answers_without_end(tokenizer, answer, reason):
    server = FakeServer(None, tokenizer, length=9)
    server.post = lambda path, body: answer
    settings = ServerSettings(timeout=0.3 if answer in (slow_body, slow_head) else 60, retries=0)
    with running(server) as address:
        to_ask = Server(address, settings)
        with to_ask.connected(), pytest.raises(ServerError, match=reason):
            to_ask.post("/v1/completions", {}, 2**20)


class LongAnswers(FakeServer):
    """As much as an honest server may answer: a long text for every token and the likeliest."""

    def text_of(self, token):
        return "\x07" * 60  # six bytes each in JSON


def test_honest_answers_are_within_the_bound(metric, gpt2, tokenizer):
    with running(LongAnswers(gpt2, tokenizer)) as address:
        server = Server(address, ServerSettings())
        from perplexity_sliding.engines.server_apis import LOGPROBS_APIS, Prompt

        api = LOGPROBS_APIS[0]
        prompts = [Prompt(list(range(3, 18)))] * 300
        body = api.body("served", prompts, 5)
        with server.connected():
            reply = server.post(api.path, body, api.most_bytes(prompts, 5))
    assert len(json.dumps(reply)) > 2**20


def test_numbers_that_no_float_has(measure, gpt2, tokenizer):
    class Huge(FakeServer):
        def values(self, ids, body):
            values, after = super().values(ids, body)
            return [v and -(10**400) for v in values], after

    with pytest.raises(ValueError, match=r"an unexpected format|impossible"):
        measure(Huge(gpt2, tokenizer))


# --- the key --------------------------------------------------------------------------------------


def test_a_key_with_its_line_end(measure, gpt2, tokenizer, monkeypatch):
    server = FakeServer(gpt2, tokenizer)
    monkeypatch.setenv("VLLM_API_KEY", f" {KEY}\r\n")
    measure(server)
    assert {headers["Authorization"] for _, _, headers in server.asked} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    "key", [f"{KEY[:20]}\n{KEY[20:]}", f"{KEY} {KEY}", f"{KEY}ä", f"{KEY}\0"[:-1] + "\x01"]
)
def test_a_key_that_no_header_holds(measure, gpt2, tokenizer, monkeypatch, key):
    server = FakeServer(gpt2, tokenizer)
    monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(ValueError, match="VLLM_API_KEY must consist of printable ASCII") as caught:
        measure(server)
    assert KEY[:8] not in written(caught.value)
    assert server.asked == []


@pytest.mark.parametrize("given", [KEY, "", 5, None])
def test_a_key_in_the_place_of_its_variable(measure, tokenizer, given):
    with pytest.raises(ValueError, match="`api_key_variable` must be the name") as caught:
        measure(FakeServer(None, tokenizer, length=9), api_key_variable=given)
    assert KEY[:8] not in written(caught.value)


def test_a_name_that_is_none(measure, tokenizer):
    with pytest.raises(ValueError, match=r"`served_name` must be the name .* got 5"):
        measure(FakeServer(None, tokenizer, length=9), served_name=5)


class Echoing(FakeServer):
    """It repeats the head of a request in its answers: as an error, a value, a name."""

    where, before = "error", ""

    def echo_of(self):
        return f"{self.before}Bearer {KEY}"

    def get(self, path):
        if self.where == "names":
            return 200, {"data": [{"id": self.echo_of()}, {"id": "other"}]}
        if self.where == "root":
            return 200, {"data": [{"id": "served", "root": self.echo_of()}]}
        if self.where == "version" and path == "/version":
            return 200, {"version": self.echo_of()}
        return super().get(path)

    def post(self, path, body):
        if self.where == "error":
            return 400, {"error": {"message": self.echo_of()}}
        if self.where == "busy":
            return 500, {"error": {"message": self.echo_of()}}
        if self.where == "text":
            return whole(self.echo_of().encode())
        status, reply = super().post(path, body)
        if self.where == "value" and path == "/v1/completions":
            for choice in reply["choices"]:
                choice["prompt_logprobs"][1] = self.echo_of()
        return status, reply


@pytest.mark.parametrize("length", [0, 180, 280, 285])
@pytest.mark.parametrize("where", ["error", "busy", "text", "value", "names", "root"])
def test_a_key_that_is_repeated(
    metric, gpt2, tokenizer, monkeypatch, caplog, pauses, where, length
):
    """Also where what is shown of an answer ends within the key."""
    caplog.set_level(logging.DEBUG, "evaluate.perplexity_sliding")
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    server = Echoing(gpt2, tokenizer)
    server.where, server.before = where, "x" * length
    given = {} if where == "root" else {"tokenizer": tokenizer}
    with running(server) as address, pytest.raises(ValueError) as caught:
        metric.compute(predictions=TEXTS, model_id=address, max_length=9, **given)
    assert KEY[:8] not in written(caught.value) + caplog.text


def json_twice(text: str) -> str:
    return json.dumps(json.dumps(text))


@pytest.mark.parametrize("escape", [str, json.dumps, json_twice, html.escape, quote])
@pytest.mark.parametrize("key", ["a\\b\"c'd<e>/f%-quoted", "a'b-quoted", "\\\\\\a-quoted"])
def test_a_key_that_is_written_with_escapes(measure, gpt2, tokenizer, monkeypatch, key, escape):
    """A gateway that quoted the request's head in a string of JSON revealed such a key."""
    monkeypatch.setenv("VLLM_API_KEY", key)
    server = Echoing(gpt2, tokenizer)
    server.echo_of = lambda: escape(f"Bearer {key}")
    with pytest.raises(ValueError) as caught:
        measure(server, retries=0)
    assert "Bearer" in str(caught.value) and "quoted" not in written(caught.value)


def test_a_key_in_the_version_or_the_name(measure, gpt2, tokenizer, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    server = Echoing(gpt2, tokenizer)
    server.where = "version"
    assert KEY[:8] not in json.dumps(measure(server))
