"""A server on this machine that plays the Hugging Face Hub: descriptions of models, and files."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves repositories by name, and remembers what it was asked for.

    Attributes:
        asked: paths of all requests.
        gates: events by name of a repository; its weights are sent half, and the rest after the event.
    """

    def __init__(self):
        self.asked: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self._repositories: dict[str, tuple[dict, dict[str, bytes]]] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a file waits 40 ms for the receipt of its head

            def do_GET(self):
                hub.answer(self, with_body=True)

            def do_HEAD(self):
                hub.answer(self, with_body=False)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, bytes] | str | Path, **description) -> str:
        """Publish files, or those of a folder; `description` replaces what the Hub would say."""
        if not isinstance(files, dict):
            files = {path.name: path.read_bytes() for path in Path(files).iterdir()}
        stated = None
        if "config" not in description:
            config = json.loads(files["config.json"])
            stated = {key: config[key] for key in ("architectures", "model_type") if key in config}
        self._repositories[name] = (
            {
                "id": name,
                "sha": COMMIT,
                "private": False,
                "gated": False,
                "disabled": False,
                "tags": ["transformers", "safetensors"],
                "config": stated,
                "siblings": [
                    {"rfilename": file, "size": len(data)} for file, data in files.items()
                ],
            }
            | description,
            files,
        )
        return name

    def answer(self, request: BaseHTTPRequestHandler, with_body: bool) -> None:
        path = request.path.split("?")[0]
        self.asked.append(path)
        status, body, headers = self._find(path)
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if not with_body:
            return
        half = len(body) // 2
        request.wfile.write(body[:half])
        for name, gate in self.gates.items():
            if path.startswith(f"/{name}/") and path.endswith(".safetensors"):
                gate.wait(60)
        request.wfile.write(body[half:])

    def _find(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        for name, (description, files) in self._repositories.items():
            if path == f"/api/models/{name}":
                if description.get("status") == 500:
                    return 500, b"{}", {}
                return 200, json.dumps(description).encode(), {"Content-Type": "application/json"}
            prefix = f"/{name}/resolve/{COMMIT}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in files:
                etag = f'"{abs(hash(path)):x}"'
                data = files[path.removeprefix(prefix)]
                return 200, data, {"ETag": etag, "X-Repo-Commit": COMMIT}
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
