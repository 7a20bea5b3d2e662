"""A server on this machine that plays the Hugging Face Hub: models and Spaces, and their files."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Space:
    """Files of a Space by commit, and commits by branch or tag."""

    token: str | None
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)


class FakeHub:
    """Serves repositories by name, and remembers what it was asked for.

    Attributes:
        asked: paths of all requests.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._spaces: dict[str, Space] = {}
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

        self._handler = Handler
        self._listen(0)

    def _listen(self, port: int) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Refuse new connections."""
        self.close()
        try:
            yield
        finally:
            self._listen(self._server.server_port)

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

    def add_space(
        self, name: str, files: dict[str, bytes], tag: str | None = None, token: str | None = None
    ) -> str:
        """Publish files as the newest commit of a Space, and return the commit.

        Args:
            token: what a request must bring, where the Space is private.
        """
        space = self._spaces.setdefault(name, Space(token))
        contents = [part for file, data in sorted(files.items()) for part in (file.encode(), data)]
        commit = hashlib.sha1(b"\0".join(contents)).hexdigest()
        space.commits[commit] = files
        space.references |= {name: commit for name in ("main", tag) if name}
        return commit

    def answer(self, request: BaseHTTPRequestHandler, with_body: bool) -> None:
        path = request.path.split("?")[0]
        self.asked.append(path)
        place = re.fullmatch(r"(?:/api)?/spaces/([\w-]+/[\w-]+)/(\w+)/([\w.-]+)(?:/(.*))?", path)
        if place:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            status, body, headers = self._find_in_space(*place.groups(), token)
        else:
            status, body, headers = self._find(path)
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if with_body:
            request.wfile.write(body)

    def _find_in_space(
        self, name: str, what: str, revision: str, file: str | None, token: str
    ) -> tuple[int, bytes, dict[str, str]]:
        space = self._spaces.get(name)
        if space is None or space.token not in (None, token):
            return 401, b"{}", {"X-Error-Code": "RepoNotFound"}
        commit = space.references.get(revision, revision)
        if commit not in space.commits:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        files = space.commits[commit]
        if what == "revision":
            siblings = [{"rfilename": path} for path in files]
            return _json({"id": name, "sha": commit, "siblings": siblings})
        if what == "tree":
            return _json(
                [
                    {"type": "file", "path": path, "size": len(data), "oid": _digest(data)}
                    for path, data in files.items()
                ]
            )
        if file not in files:
            return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
        data = files[file]
        return 200, data, {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": commit}

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


def _json(answer: object) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(answer).encode(), {"Content-Type": "application/json"}


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
