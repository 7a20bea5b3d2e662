"""Engines in the test process, with a tiny model of transformers behind them.

`FakeServer` tells the truth in vLLM's, OpenAI's and SGLang's forms, as their documentation has them;
its subclasses in test_served.py lie, each in one way.  `FakeLLM` is what `vllm.LLM` is.
"""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace

import torch

LOCK = threading.Lock()


@torch.inference_mode()
def distributions(model, ids):
    """Log-probabilities (T, V) after each token of a prompt."""
    with LOCK:
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def ranked(before, token, number):
    """(Log-probability, rank) of a token and of the likeliest, by id, from log-probabilities (V,)."""
    named = [token, *before.topk(number or 0).indices.tolist()]
    return {t: (before[t].item(), 1 + int((before > before[t]).sum())) for t in named}


class FakeServer:
    """What a server answers, without the HTTP around it.

    Args:
        forms: which of "vllm", "openai" and "sglang" it speaks.
        length: tokens that it takes together with its answer.

    Attributes:
        asked: (path, body, headers) of every request.
    """

    def __init__(self, model, tokenizer, forms=("vllm",), length=None, root=None):
        self.model, self.tokenizer, self.forms = model, tokenizer, forms
        self.length = length or model.config.max_position_embeddings
        self.root = root
        self.asked = []

    def get(self, path):
        if path == "/v1/models":
            card = {"id": "served", "object": "model", "max_model_len": self.length}
            card["root"] = self.root or "served"
            return 200, {"data": [card]}
        if path == "/version" and "vllm" in self.forms:
            return 200, {"version": "1.2.3"}
        return 404, {"detail": "Not Found"}

    def post(self, path, body):
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/generate" and "sglang" in self.forms:
            return self.generate(body)
        return 404, {"detail": "Not Found"}

    # --- the model ---------------------------------------------------------------------------------

    def values(self, ids, body):
        """The log-probability of each token of a prompt, None for the first; and what it is one of."""
        after = distributions(self.model, ids)
        return [None, *(after[i - 1, ids[i]].item() for i in range(1, len(ids)))], after

    # --- vLLM and OpenAI ---------------------------------------------------------------------------

    def complete(self, body):
        if body["model"] != "served":
            return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
        prompts = body["prompt"]
        room = self.length - body["max_tokens"]
        longest = max(map(len, prompts))
        if longest > room:
            return 400, {"error": {"message": f"{longest} tokens are more than {room}."}}
        choices = [{"index": k, **self.choice(ids, body)} for k, ids in enumerate(prompts)]
        return 200, {"object": "text_completion", "choices": choices[::-1]}  # any order is allowed

    def choice(self, ids, body):
        values, after = self.values(ids, body)
        answer = body.get("allowed_token_ids", [int(after[-1].argmax())])[0]
        choice = {"text": self.tokenizer.decode([answer]), "logprobs": None}
        if "vllm" in self.forms and body.get("prompt_logprobs") is not None:
            rows = zip(values, [None, *after], ids)
            choice["prompt_logprobs"] = [self.entry(*row, body["prompt_logprobs"]) for row in rows]
        if body.get("echo") and "openai" in self.forms:
            choice["logprobs"] = self.echo(ids, values, after, answer, body)
        elif body.get("logprobs") is not None:
            tops = self.named_top(after[-1], max(1, body["logprobs"]))
            choice["logprobs"] = {
                "tokens": [f"token_id:{answer}"],
                "token_logprobs": [after[-1, answer].item()],
                "top_logprobs": [{**tops, f"token_id:{answer}": after[-1, answer].item()}],
            }
        return choice

    def entry(self, value, before, token, number):
        if value is None:
            return None
        found = ranked(before, token, number)
        found[token] = value, found[token][1]  # a liar's may be another
        return {str(t): {"logprob": v, "rank": rank} for t, (v, rank) in found.items()}

    def echo(self, ids, values, after, answer, body):
        tokens = [*ids, answer][: len(ids) + body["max_tokens"]]
        values = [*values, after[-1, answer].item()][: len(tokens)]
        tops = [None, *(self.named_top(row, body["logprobs"]) for row in after)][: len(tokens)]
        named = [f"token_id:{token}" for token in tokens]
        return {"tokens": named, "token_logprobs": values, "top_logprobs": tops}

    def named_top(self, row, number):
        tops = row.topk(number)
        return {f"token_id:{t}": v for t, v in zip(tops.indices.tolist(), tops.values.tolist())}

    # --- SGLang ------------------------------------------------------------------------------------

    def generate(self, body):
        if max(map(len, body["input_ids"])) >= self.length:
            return 400, {"error": {"message": "The input is longer than the context length."}}
        return 200, [self.sglang_answer(ids, body) for ids in body["input_ids"]]

    def sglang_answer(self, ids, body):
        values, after = self.values(ids, body)
        entries = [[v, t, None] for v, t in zip(values, ids)]
        answer = {"input_token_logprobs": entries}
        if body["top_logprobs_num"]:
            tops = (row.topk(body["top_logprobs_num"]) for row in after[:-1])
            pairs = [zip(top.values.tolist(), top.indices.tolist()) for top in tops]
            answer["input_top_logprobs"] = [None, *([[v, t, None] for v, t in p] for p in pairs)]
        return {"text": "", "meta_info": answer}


@contextmanager
def running(server):
    """Let a server answer; yields its address, such as http://127.0.0.1:4711/v1.

    An answer is a status and what becomes JSON, or None for a connection that drops.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 2  # seconds that a connection may be idle
        disable_nagle_algorithm = True  # else a body waits 40 ms for the receipt of its head

        def do_GET(self):
            self.answer(*server.get(self.path))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append((self.path, body, dict(self.headers)))
            reply = server.post(self.path, body)
            if reply is None:  # the connection drops in the middle of an answer
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.close_connection = True
                return
            self.answer(*reply)

        def answer(self, status, content):
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = False  # to be waited for: torch aborts a process that ends beneath it
    httpd.handle_error = lambda *args: None  # a client that went away
    thread = threading.Thread(
        target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/v1"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


# --- vLLM in this process ----------------------------------------------------------------------------


@dataclass
class FakeSamplingParams:
    """The fields of `vllm.SamplingParams` that are used; others are refused, as there."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16
    prompt_logprobs: int | None = None
    logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    detokenize: bool = True


class FakeLLM:
    """A `vllm.LLM` as far as it is asked, on top of a model of transformers; it tells the truth."""

    def __init__(self, model, tokenizer, name="org/name"):
        self.model, self.tokenizer = model, tokenizer
        config = SimpleNamespace(
            model=name,
            max_model_len=model.config.max_position_embeddings,
            dtype=torch.float32,
        )
        self.llm_engine = SimpleNamespace(model_config=config)
        self.busy = threading.Lock()

    def generate(self, prompts, params, use_tqdm=True):
        assert self.busy.acquire(blocking=False), "the engine is no good to two callers at once"
        try:
            return [self.answer(p["prompt_token_ids"], of) for p, of in zip(prompts, params)]
        finally:
            self.busy.release()

    def answer(self, ids, params):
        if len(ids) + params.max_tokens > self.llm_engine.model_config.max_model_len:
            raise ValueError(f"The decoder prompt (length {len(ids)}) is too long.")
        after = self.distributions(ids)
        number = params.prompt_logprobs
        of_prompt = [None, *(self.entry(*pair, number) for pair in zip(after, ids[1:]))]
        answer = (params.allowed_token_ids or [int(after[-1].argmax())])[0]
        of_answer = [self.entry(after[-1], answer, params.logprobs)]
        output = SimpleNamespace(
            token_ids=[answer], logprobs=None if params.logprobs is None else of_answer
        )
        return SimpleNamespace(
            prompt_token_ids=ids,
            prompt_logprobs=None if number is None else of_prompt,
            outputs=[output],
        )

    def distributions(self, ids):
        return distributions(self.model, ids)

    def entry(self, before, token, number):
        found = ranked(before, token, number)
        return {t: SimpleNamespace(logprob=v, rank=rank) for t, (v, rank) in found.items()}


def fake_vllm():
    package = ModuleType("vllm")
    package.__version__, package.SamplingParams = "1.2.3", FakeSamplingParams
    return package
