"""Measure the cost of a server's requests: alone, by this metric, and by lm-evaluation-harness.

    python -m vllm.entrypoints.openai.api_server --model demo_model --dtype float32 \
        --max-model-len 64 --enforce-eager --port 8011 &
    python benchmarks/served.py http://127.0.0.1:8011/v1

Needs `pip install lm_eval[api]`.
"""

import argparse
import json
import math
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import httpx
from measure import ratio, time_in_turns
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from perplexity_sliding import PerplexitySliding  # noqa: E402
from perplexity_sliding.engines.server import Server, ServerSettings  # noqa: E402

DEMO = str(ROOT / "demo_model")
IN_FLIGHT = ServerSettings().requests_in_flight
LENGTH = (
    64  # tokens of the server's window: one place is the answer's, and lm-eval leaves out another
)
ALONE, REPETITIONS = "the requests alone", 5


def recorded(run) -> list[tuple[str, bytes]]:
    """Run; return the addresses and bodies of all POST requests."""
    sent, send = [], Server.request

    def recording(server, method, path, body=None):
        if method == "POST":
            sent.append((server.root + path, json.dumps(body).encode()))
        return send(server, method, path, body)

    with mock.patch.object(Server, "request", recording):
        run()
    return sent


def post_all(requests: list[tuple[str, bytes]]) -> None:
    """Send requests like the metric, and discard the answers."""
    headers = {"Content-Type": "application/json"}
    with (
        httpx.Client(timeout=600, headers=headers) as client,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        for reply in pool.map(lambda sent: client.post(sent[0], content=sent[1]), requests):
            reply.raise_for_status()


def harness(address: str, texts: list[str], name: str):
    """Return a function that scores the texts with lm-evaluation-harness's local-completions."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    settings = {"tokenizer": DEMO, "tokenizer_backend": "huggingface", "max_length": LENGTH}
    settings |= {"batch_size": 16, "num_concurrent": IN_FLIGHT}
    model = LocalCompletionsAPI(base_url=f"{address}/completions", model=name, **settings)
    asked = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    return lambda: -math.fsum(model.loglikelihood_rolling(asked, disable_tqdm=True))


def print_times(texts: list[str], address: str, repetitions: int = REPETITIONS) -> None:
    """Print tokens per second, and times relative to the requests alone."""
    metric, tokenizer = PerplexitySliding(), AutoTokenizer.from_pretrained(DEMO)
    arguments = {"model_id": address, "tokenizer": tokenizer, "max_length": LENGTH - 2}

    def ours() -> dict:
        return metric.compute(predictions=texts, protocol="lm-eval", **arguments)

    result = ours()  # the server is tried once
    requests = recorded(ours)
    name = httpx.get(f"{address}/models").json()["data"][0]["id"]
    by_lm_eval = harness(address, texts, name)
    print(f"total nll: {result['total_nll']:.4f}; by local-completions {by_lm_eval():.4f}")
    runs = {ALONE: lambda: post_all(requests), "ours": ours, "local-completions": by_lm_eval}
    with mock.patch("measure.now", time.perf_counter):  # the server's time counts
        seconds = time_in_turns(runs, repetitions)
    for contender, times in seconds.items():
        speed = statistics.median(result["num_forward_tokens"] / t for t in times)
        beside = ratio(seconds, [contender], [ALONE])
        print(
            f"{contender}: {speed:,.0f} tokens a second; {beside['median']:.2f} "
            f"({beside['low']:.2f} to {beside['high']:.2f}) of the time of the requests alone"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("address")
    paths = sorted((ROOT / "samples").glob("*.txt"))
    print_times([path.read_text("utf-8") for path in paths], parser.parse_args().address)
