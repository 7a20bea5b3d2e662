"""Compare a vLLM server with transformers, and measure the cost of its requests.

    python -m vllm.entrypoints.openai.api_server --model demo_model --dtype float32 \
        --max-model-len 64 --enforce-eager --port 8011 &
    python benchmarks/served.py http://127.0.0.1:8011/v1
    python benchmarks/served.py live     # a vllm.LLM in this process

Prints how far every protocol is from transformers, and, for a server, the time of the same requests
sent and not read, of the metric, and of lm-evaluation-harness's local-completions, in turns.
"""

import argparse
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import evaluate
import httpx
import torch
from measure import ratio, spread, time_in_turns
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perplexity_sliding import PerplexitySliding
from perplexity_sliding.engines.server import Server, ServerSettings
from perplexity_sliding.protocols import PROTOCOLS

ROOT = Path(__file__).resolve().parent.parent
DEMO = str(ROOT / "demo_model")
IN_FLIGHT = ServerSettings().requests_in_flight
# Windows that vLLM reads whole: one place is the answer's.  lm-eval leaves out another.
LENGTH, OF_LM_EVAL = 63, 62
REPETITIONS = 5


def open_engine(where: str) -> dict[str, object]:
    """Return the arguments that select the model."""
    if where != "live":
        return {"model_id": where}
    from vllm import LLM

    return {"model": LLM(model=DEMO, dtype="float32", max_model_len=LENGTH + 1, enforce_eager=True)}


def print_protocols(metric, texts: list[str], engine: dict, tokenizer: object) -> None:
    """Print the differences of the perplexities from those of transformers."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    print("| protocol | transformers | vLLM | relative difference |\n| --- | --- | --- | --- |")
    full = {"protocol": "sliding", "max_length": LENGTH + 1}
    settings = [{"protocol": name, "max_length": LENGTH} for name in PROTOCOLS]
    for setting in [full, *settings]:
        arguments = {"predictions": texts, "tokenizer": tokenizer} | setting
        expected = metric.compute(model=model, **arguments)["perplexity"]
        found = metric.compute(**engine, **arguments)["perplexity"]
        name = f"`{setting['protocol']}`, windows of {setting['max_length']}"
        print(f"| {name} | {expected:.6f} | {found:.6f} | {abs(found / expected - 1):.0e} |")


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

    model = LocalCompletionsAPI(
        base_url=f"{address}/completions",
        model=name,
        tokenizer=DEMO,
        tokenizer_backend="huggingface",
        max_length=LENGTH + 1,
        batch_size=16,
        num_concurrent=IN_FLIGHT,
    )
    asked = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    return lambda: -math.fsum(model.loglikelihood_rolling(asked, disable_tqdm=True))


def print_times(metric, texts: list[str], address: str, tokenizer: object) -> None:
    """Print tokens per second, and times relative to the requests alone."""

    def ours() -> dict:
        return metric.compute(
            predictions=texts,
            model_id=address,
            tokenizer=tokenizer,
            protocol="lm-eval",
            max_length=OF_LM_EVAL,
        )

    result = ours()  # the server is tried once
    requests = recorded(ours)
    name = httpx.get(f"{address}/models").json()["data"][0]["id"]
    by_lm_eval = harness(address, texts, name)
    print(f"total nll: {result['total_nll']:.4f}; by local-completions {by_lm_eval():.4f}")
    runs = {
        "the requests alone": lambda: post_all(requests),
        "ours": ours,
        "local-completions": by_lm_eval,
    }
    with mock.patch("measure.now", time.perf_counter):  # the server's time counts
        seconds = time_in_turns(runs, REPETITIONS)
    for contender, times in seconds.items():
        speed = spread([result["num_forward_tokens"] / t for t in times])
        beside = ratio(seconds, [contender], ["the requests alone"])
        print(
            f"{contender}: {speed['median']:,.0f} tokens a second; {beside['median']:.2f} "
            f"({beside['low']:.2f} to {beside['high']:.2f}) of the time of the requests alone"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("where", help='the address of the server, or "live"')
    where = parser.parse_args().where
    evaluate.logging.disable_progress_bar()
    metric, tokenizer = PerplexitySliding(), AutoTokenizer.from_pretrained(DEMO)
    texts = [(ROOT / "samples" / f"{name}.txt").read_text("utf-8") for name in ("story", "note")]
    print_protocols(metric, texts, open_engine(where), tokenizer)
    if where != "live":
        texts = [path.read_text("utf-8") for path in sorted((ROOT / "samples").glob("*.txt"))]
        print_times(metric, texts, where, tokenizer)


if __name__ == "__main__":
    main()
