"""Callers of the served app: who leaves, who is one too many, and from which address."""

import asyncio
import ctypes
import gc
import json
import subprocess
import sys
import time
import weakref
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import evaluate
import pytest
from gradio_client import Client
from pages import PATIENT, STORY, visitor

from space import endpoints, listeners
from space.addresses import address
from space.jobs import Job
from space.limits import Limits
from space.models import BUNDLED
from space.page import build, launch_options
from space.service import Service


@pytest.fixture
def served(folders):
    """A service with a short line whose model reads bytes, and the address where it is served."""
    service = Service(folders["bytes"], Limits(waiting=4))
    page = build(service)
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    yield service, url
    page.close()


def ask(url, **headers):
    """Ask for a score as a program does that does not wait for it; return where the answer will be."""
    import httpx

    call = f"{url}gradio_api/call/score"
    data = [STORY, BUNDLED, None, None, "automatic", "sliding", False, "", False]
    asked = httpx.post(call, json={"data": data}, headers=headers, timeout=60)
    return f"{call}/{asked.json()['event_id']}"


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stream_over_which_nothing_will_come_is_ended(served):
    """It held one of a browser's six connections for as long as the page was open."""
    import httpx

    _, url = served
    page = Client(url, verbose=False)
    before = page.predict(STORY, api_name="/score")
    stream, session = f"{url}gradio_api/queue/data", {"session_hash": page.session_hash}
    told, end = [], time.monotonic() + 30
    with httpx.stream("GET", stream, params=session, timeout=30) as answer:
        for line in filter(None, answer.iter_lines()):
            told.append(json.loads(line.removeprefix("data: "))["msg"])
            assert time.monotonic() < end
    assert told[-1] == "close_stream"
    assert page.predict(STORY, api_name="/score") == before


def test_what_nobody_waits_for_is_not_computed(served, monkeypatch):
    """A hundred such requests kept the next visitor waiting for two minutes."""
    service, url = served
    monkeypatch.setattr(listeners, "PATIENCE", 3.0)
    with service.line.turn(Job(60)):  # nobody gets a turn
        for n in range(3):
            ask(url, **{"x-forwarded-for": f"9.9.9.{n}"})
        until(lambda: len(service.line) > 1)
        until(lambda: len(service.line) == 1)


def test_a_request_ends_when_its_caller_leaves(served, monkeypatch):
    import httpx

    service, url = served
    monkeypatch.setattr(listeners, "PATIENCE", 60.0)
    with service.line.turn(Job(60)):
        answer = ask(url)
        with httpx.stream("GET", answer, timeout=60):
            until(lambda: len(service.line) == 2)
            monkeypatch.setattr(listeners, "PATIENCE", 1.0)
            time.sleep(2)
            assert len(service.line) == 2  # somebody waits for it
        until(lambda: len(service.line) == 1)


def test_a_tool_call_ends_when_its_caller_leaves(served, monkeypatch):
    """Through MCP a client in the Space's own process listens, and would to the end."""
    pytest.importorskip("mcp", reason="the mcp package is not installed")
    import httpx

    service, url = served
    monkeypatch.setattr(listeners, "PATIENCE", 60.0)
    tools = httpx.get(f"{url}gradio_api/mcp/schema").json()
    [score] = [tool for tool in tools if tool["name"].endswith("score")]
    call = {"name": score["name"], "arguments": {"text": STORY}}
    request = {
        "json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        "headers": {"Accept": "application/json, text/event-stream"},
        "timeout": 60,
    }
    with service.line.turn(Job(60)):
        with httpx.stream("POST", f"{url}gradio_api/mcp/", **request):
            until(lambda: len(service.line) == 2)
            monkeypatch.setattr(listeners, "PATIENCE", 1.0)
            time.sleep(2)
            assert len(service.line) == 2  # somebody waits for it
        until(lambda: len(service.line) == 1)


def test_a_tool_call_has_a_key_of_its_own(monkeypatch):
    """Whatever the caller writes into the header; what is no call of a tool is left as it is."""
    headers = [(b"accept", b"*/*"), (b"X-Perplexity-Caller", b"mine")]
    scope = {"type": "http", "method": "POST", "path": "/gradio_api/mcp/", "headers": headers}
    seen = []

    async def app(scope, receive, send):
        told = dict(scope["headers"])
        key = told[listeners.CALLER.encode()].decode()
        served = SimpleNamespace(scope=scope)
        caller = {listeners.CALLER: key}
        watched = SimpleNamespace(session_hash="open", headers=caller, request=served)
        seen.append((key, counted.listens(key), listeners.watch(watched)))
        assert len(scope["headers"]) == 2 and told[b"accept"] == b"*/*"

    counted = listeners.Listeners(app)
    asyncio.run(counted(scope, None, None))
    [(key, listened, has_left)] = seen
    assert listened and key != "mine" and not counted.listens(key)
    counted._count("open", 1)  # the stream of the client in this process
    assert not has_left()
    monkeypatch.setattr(listeners, "PATIENCE", -1.0)
    assert has_left()
    other = {"method": "POST", "path": "/gradio_api/call/score", "headers": headers}
    assert listeners.mark_tool_call(other) is None and other["headers"] is headers


def test_without_the_middleware_nobody_seems_to_leave():
    assert not listeners.watch(visitor())()


def test_too_many_requests_are_turned_away_with_a_sentence(served, monkeypatch):
    service, url = served
    # On a busy machine a client may begin to listen late, and would seem to have left.
    monkeypatch.setattr(listeners, "PATIENCE", 120.0)
    with service.line.turn(Job(60)):
        callers = [Client(url, httpx_kwargs=PATIENT, verbose=False) for _ in range(6)]
        jobs = [caller.submit("Some text.", api_name="/score") for caller in callers]
        refused, waiting = futures.wait(jobs, timeout=60, return_when=futures.FIRST_COMPLETED)
        while len(waiting) > 4:
            done, waiting = futures.wait(waiting, 60, return_when=futures.FIRST_COMPLETED)
            refused |= done
    assert all("no room" in str(job.exception(timeout=60)) for job in refused)
    assert all(job.result(timeout=60)["num_tokens"] == 10 for job in waiting)


@pytest.mark.parametrize(
    "space, forwarded, expected",
    [
        (None, "9.9.9.9", "10.1.1.1"),  # nobody vouches for it
        ("user/space", "9.9.9.9", "9.9.9.9"),
        ("user/space", "6.6.6.6, 9.9.9.9, 10.0.0.7", "9.9.9.9"),  # forged, seen, a proxy
        ("user/space", "6.6.6.6,2001:4860::8", "2001:4860::8"),
        ("user/space", "nonsense, 127.0.0.1", "10.1.1.1"),
        ("user/space", "", "10.1.1.1"),
    ],
)
def test_forwarded_addresses_are_believed_from_the_proxy_of_a_space(
    monkeypatch, space, forwarded, expected
):
    monkeypatch.delenv("SPACE_ID", raising=False)
    if space:
        monkeypatch.setenv("SPACE_ID", space)
    request = SimpleNamespace(
        client=SimpleNamespace(host="10.1.1.1"), headers={"x-forwarded-for": forwarded}
    )
    assert address(request) == expected


def test_a_program_of_this_machine_cannot_choose_its_address(served, monkeypatch):
    """Uvicorn takes what such a program forwards for the address of the connection."""
    _, url = served
    seen = []
    monkeypatch.setattr(endpoints, "address", lambda request: seen.append(address(request)))
    headers = {"x-forwarded-for": "9.9.9.9"}
    Client(url, httpx_kwargs=PATIENT, verbose=False, headers=headers).predict(
        "Some text.", api_name="/score"
    )
    assert seen == ["127.0.0.1"]


def test_sessions_that_are_over_are_forgotten(folders, monkeypatch):
    """A third of a megabyte stayed with every call, for good: gradio copies its page for each session."""
    import httpx

    monkeypatch.setattr(listeners, "SESSIONS_KEPT", 3)
    page = build(Service(folders["bytes"], Limits()))
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    sessions, queue = page.state_holder.session_data, page._queue
    try:
        for _ in range(3):
            assert "complete" in httpx.get(ask(url), timeout=60).text
        assert len(sessions) <= 1  # the last one goes with the next request
        [begin] = [id for id, fn in page.fns.items() if fn.name == "begin"][:1]
        for n in range(8):  # a visitor, who may come back to what is kept
            told = {"data": [0], "fn_index": begin, "session_hash": f"visitor {n}"}
            httpx.post(f"{url}gradio_api/run/predict", json=told, timeout=60).raise_for_status()
        until(lambda: list(sessions) == [f"visitor {n}" for n in (5, 6, 7)])
        assert not queue.pending_messages_per_session and not queue.pending_event_ids_session
        assert set(page.state_holder.time_last_used) == set(sessions)
        # The page opens no connection that stays: a browser has six for all of its tabs.
        assert httpx.get(f"{url}config").json()["connect_heartbeat"] is False
    finally:
        page.close()


def test_a_request_leaves_no_metric(served):
    """Each held a copy of the documentation, until a full collection: 115 kB for each request."""
    import httpx

    def metrics():
        return sum(issubclass(type(one), evaluate.Metric) for one in gc.get_objects())

    _, url = served
    assert "complete" in httpx.get(ask(url), timeout=60).text  # the first loads the metric
    gc.collect()
    before = metrics()
    gc.disable()
    try:
        for _ in range(4):
            assert "complete" in httpx.get(ask(url), timeout=60).text
        until(lambda: metrics() <= before)
    finally:
        gc.enable()


def test_who_waits_is_not_forgotten(served, monkeypatch):
    """However many others come."""
    import httpx

    monkeypatch.setattr(listeners, "SESSIONS_KEPT", 1)
    _, url = served
    calls = [ask(url) for _ in range(3)]
    with futures.ThreadPoolExecutor() as pool:
        told = list(pool.map(lambda call: httpx.get(call, timeout=60).text, calls))
    assert all("complete" in one for one in told)


@pytest.mark.parametrize("form", ["call", "call/v2"])
def test_a_call_with_too_few_arguments_gets_a_sentence(served, capfd, caplog, form):
    """It got "null", and the log all that was written."""
    import httpx

    _, url = served
    if form == "call":
        asked = httpx.post(f"{url}gradio_api/call/score", json={"data": ["My own secret."]})
        said = httpx.get(f"{url}gradio_api/call/score/{asked.json()['event_id']}", timeout=60).text
        assert "score takes 9 arguments" in said and "text, model, window" in said
    else:
        asked = httpx.post(f"{url}gradio_api/call/v2/score", json={"My own secret.": 1})
        assert asked.status_code == 400 and "argument" in asked.json()["detail"]
    assert "secret" not in "".join(capfd.readouterr()) + caplog.text


def test_what_a_visitor_wrote_is_not_logged(served, capfd, caplog, monkeypatch):
    """Faults quote it; gradio prints those of its own."""

    def fail(text, *rest, **options):
        raise KeyError(text) from ValueError(text)

    import httpx

    service, url = served
    monkeypatch.setattr(service, "score", fail)
    assert "went wrong" in httpx.get(ask(url), timeout=60).text
    [page] = fns_of(url, "choose_protocol")
    told = {"data": [{"a": STORY}, [STORY], 3], "fn_index": page, "session_hash": "mine"}
    answer = httpx.post(f"{url}gradio_api/run/predict", json=told, timeout=60)
    assert answer.status_code == 500
    logged = "".join(capfd.readouterr()) + caplog.text
    assert STORY[:40] not in logged
    assert "KeyError" in caplog.text and "ValueError" in caplog.text and "in fail" in caplog.text


def fns_of(url, name):
    import httpx

    config = httpx.get(f"{url}config").json()
    return [one["id"] for one in config["dependencies"] if one["api_name"] == name]


def test_memory_that_nothing_needs_is_given_back():
    """What refers to itself waited for one of the rare full collections."""

    class Left:
        pass

    left = Left()
    left.itself = left
    seen = weakref.ref(left)
    gc.disable()
    try:
        del left
        assert seen() is not None
        listeners.give_back_memory(collect=True)
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("every, collects", [(3600.0, False), (-1.0, True)])
def test_a_served_call_gives_memory_back(served, monkeypatch, every, collects):
    """Collecting stops the server for half a second, so most calls only give back what is free."""
    import httpx

    _, url = served
    collected = []
    monkeypatch.setattr(listeners, "give_back_memory", collected.append)
    monkeypatch.setattr(listeners, "TRIM_EVERY", -1.0)
    monkeypatch.setattr(listeners, "COLLECT_EVERY", every)
    for _ in range(2):
        assert "complete" in httpx.get(ask(url), timeout=60).text
    until(lambda: collected)
    assert set(collected) == {collects}


LARGE_ARRAYS = """
import ctypes, sys
import numpy as np
from space.listeners import Listeners

class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd".split()] + [
        ("others", ctypes.c_size_t * 5)]

read = ctypes.CDLL(None).mallinfo2
read.restype = Memory
Listeners(None)
freed = np.ones(20 * 2**20, np.uint8)
del freed  # which would raise the threshold to its size
before = read().hblkhd
kept = np.ones(8 * 2**20, np.uint8)
sys.exit(read().hblkhd - before < kept.nbytes)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library has no mallinfo2"
)
def test_large_arrays_are_mapped_one_by_one():
    """In a pool of malloc their space stayed, in pieces, when they were freed."""
    folder = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", LARGE_ARRAYS], check=True, cwd=folder)
