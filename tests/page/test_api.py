"""The app as it is served: its functions, its tools, and visitors at the same time."""

import hashlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError

import pytest
import regex
from gradio_client import Client
from pages import PATIENT, STORY

import app
from space.page import launch_options, serves_tools
from space.service import Service


@pytest.fixture(scope="module")
def url(folders, hub):
    """The app with the bundled model, served on this machine."""
    page = app.create_app(folders["bundled"], endpoint=hub.endpoint)
    _, url, _ = page.launch(**launch_options(page), prevent_thread_lock=True, quiet=True)
    yield url
    page.close()


def test_the_api_has_two_functions_with_types_and_words(url):
    told = Client(url, httpx_kwargs=PATIENT, verbose=False).view_api(
        return_format="dict", print_info=False
    )
    named = told["named_endpoints"]
    assert set(named) == {"/score", "/compare"}
    parameters = {p["parameter_name"]: p for p in named["/score"]["parameters"]}
    assert list(parameters) == [
        *("text", "model", "window", "stride", "start_token", "protocol", "tokens"),
        *("context", "words"),
    ]
    for endpoint in named.values():
        for parameter in endpoint["parameters"]:
            assert parameter["label"] == parameter["parameter_name"]
            assert len(parameter["python_type"]["description"]) > 10
    assert "half of it by default" in parameters["stride"]["python_type"]["description"]
    assert parameters["text"]["python_type"]["type"] == "str"
    assert parameters["stride"]["parameter_has_default"]
    assert "perplexity of a text" in named["/score"]["description"]
    assert "Compare a model with a reference" in named["/compare"]["description"]


def test_the_api_gives_the_metrics_number(url, folders, metric):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY, stride=16, api_name="/score"
    )
    expected = metric.compute(predictions=[STORY], model_id=folders["bundled"], stride=16)
    assert result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
    assert result["num_windows"] == expected["num_windows"]
    assert (
        result["signature"].split("|protocol:")[1] == expected["signature"].split("|protocol:")[1]
    )


def test_the_api_gives_tokens_and_words_to_quote(url):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY, tokens=True, words=True, api_name="/score"
    )
    assert [row["word"] for row in result["words"]] == STORY.split()
    assert sum(row["nll_nats"] for row in result["tokens"]) == pytest.approx(result["total_nll"])
    assert STORY[result["tokens"][4]["start"] : result["tokens"][4]["end"]].strip()
    assert result["text_sha256"] == hashlib.sha256(STORY.encode()).hexdigest()
    assert result["text_sha256"] in result["sentence"]


def test_the_api_compares(url, folders):
    result = Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
        STORY * 3, tokens=True, api_name="/compare"
    )
    comparison, rows = result["comparison"], result["tokens"]
    assert result["signature"].startswith("model:demo_model-4bit|")
    assert comparison["reference_signature"].startswith("model:demo_model|")
    ratio = result["perplexity"] / comparison["reference_perplexity"]
    assert comparison["perplexity_ratio"]["ratio"] == pytest.approx(ratio, rel=1e-6)
    scored = [row for row in rows if row["nll"] is not None]
    assert len(scored) == result["num_tokens"]
    changes = [row["nll"] - row["reference_nll"] for row in scored]
    assert math.exp(sum(changes) / len(changes)) == pytest.approx(ratio, rel=1e-5)
    assert (STORY * 3)[rows[4]["start"] : rows[4]["end"]].strip()
    assert {"verdict", "summary", "same_top", "token_agreement", "worst_tokens"} <= set(comparison)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"text": ""}, "There is no text yet"),
        ({"text": "x", "model": "owner/absent"}, "no public model called owner/absent"),
        ({"text": "x", "stride": 0}, r"The stride must be between.* is 0\.$"),
        (
            {"text": "x", "protocol": "llama.cpp", "stride": 4},
            "llama.cpp has no `stride` to choose",
        ),
        (
            {"text": "x", "protocol": "lm-eval", "start_token": "every"},
            "has no `start_token` “every”",
        ),
        ({"text": "x", "model": None}, "must be the name of a model"),
        ({"text": "x", "protocol": ["sliding"]}, "`protocol` must be a name"),
        ({"text": "x", "start_token": ["once"]}, "`start_token` must be a name"),
        ({"text": "x", "window": {}}, "The window must be a whole number"),
        ({"text": ["x"]}, "There is no text yet"),
        ({"text": "x", "protocol": "gptq", "words": True}, "`words` must be left out"),
        ({"text": "x", "protocol": "gptq", "context": "y"}, "scores no text after a context"),
    ],
)
def test_the_api_refuses_with_a_sentence(url, arguments, said):
    with pytest.raises(Exception, match=said):
        Client(url, httpx_kwargs=PATIENT, verbose=False).predict(**arguments, api_name="/score")


def test_faults_reach_no_caller(url, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("a secret")

    monkeypatch.setattr(Service, "score", fail)
    with pytest.raises(Exception, match="Something went wrong on this page's side"):
        Client(url, httpx_kwargs=PATIENT, verbose=False).predict("x", api_name="/score")


def test_parallel_visitors_each_get_their_own_answer(url, folders, metric):
    texts = [f"Visitor {n} writes {n} lines. " * (3 + n) for n in range(8)]
    strides = [8, 16, 32, 64] * 2
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(
                lambda text, stride: Client(url, httpx_kwargs=PATIENT, verbose=False).predict(
                    text, stride=stride, api_name="/score"
                ),
                texts,
                strides,
            )
        )
    for text, stride, result in zip(texts, strides, results):
        expected = metric.compute(predictions=[text], model_id=folders["bundled"], stride=stride)
        assert result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
        assert result["num_tokens"] == expected["num_tokens"]
        assert f"|stride:{stride}|" in result["signature"]


def test_the_tools_of_the_mcp_server(url):
    pytest.importorskip("mcp", reason="the mcp package is not installed")
    import httpx

    tools = httpx.get(f"{url}gradio_api/mcp/schema").json()
    assert {tool["name"].rsplit("_", 1)[-1] for tool in tools} == {"score", "compare"}
    [score] = [tool for tool in tools if tool["name"].endswith("score")]
    call = {"name": score["name"], "arguments": {"text": "Some text."}}
    reply = httpx.post(
        f"{url}gradio_api/mcp/",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        headers={"Accept": "application/json, text/event-stream"},
        timeout=60,
    )
    [data] = regex.findall(r"data: (.*)", reply.text)
    [content] = json.loads(data)["result"]["content"]
    assert json.loads(content["text"])["perplexity"] > 1


@pytest.mark.parametrize("installed, served", [("1.27.1", True), ("2.0.0", False), (None, False)])
def test_tools_are_served_only_with_the_mcp_that_gradio_takes(monkeypatch, installed, served):
    """With another one, every call of a tool failed in the server's log."""

    def version(name):
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("space.page.version", version)
    assert serves_tools() is served
