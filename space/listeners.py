"""Whether anybody still waits for the answer to a request.

Gradio computes on when a caller has gone, or never fetched the answer at all: the streams over which
answers are sent are counted here, so that such a request can be stopped.  A stream over which no answer
is to come is ended.  Gradio also keeps a copy of the page for every session there ever was, and makes
one of every call of a program: here, all but the last used ones are forgotten.
"""

import asyncio
import ctypes
import gc
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from urllib.parse import parse_qs

import gradio as gr
from gradio.context import LocalContext
from gradio.server_messages import ProcessCompletedMessage

PATIENCE = 5.0  # seconds that a caller may take to begin to listen, or to come back
IDLE = 2.0  # seconds between looks at whether an answer is still to come over a stream
# As the last answer of nobody's request: behind it, gradio ends a stream, and the page knows.
LAST = ProcessCompletedMessage(event_id="none", output={}, success=True)
SCOPE_KEY = "perplexity.listeners"
BY_EVENT = re.compile(r"/call/(?:v2/)?[^/]+/([^/]+)/?$")
TRIM_EVERY = 1.0  # seconds
COLLECT_EVERY = 30.0  # seconds: it takes half of one
MMAP_THRESHOLD, LARGE_ARRAY = -3, 4 * 2**20  # M_MMAP_THRESHOLD of mallopt; bytes
SESSIONS_KEPT = 100  # last used sessions without a pending request
# A tool that is called through MCP is run by a client in this process, which never leaves: the header
# tells whose call it is.
TOOL_CALL = re.compile(r"/gradio_api/mcp(?:/http)?/?$")
CALLER = "x-perplexity-caller"


class Listeners:
    """Count open streams of answers, as a middleware of the served app."""

    def __init__(self, app: Callable):
        self._app = app
        self._lock = threading.Lock()
        self._open: Counter[Hashable] = Counter()
        self._answered: set[str] = set()  # calls of programs, each a session of its own
        self._trimmed = self._collected = time.monotonic()
        map_large_arrays()

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        scope[SCOPE_KEY] = self
        key = stream_key(scope) or mark_tool_call(scope)
        if key is None:
            await self._app(scope, receive, send)
            return self._forget_idle(scope["app"]) if scope["method"] == "POST" else None
        self._count(key, 1)
        session = stream_session(scope)
        ending = asyncio.create_task(end_when_idle(scope["app"], session)) if session else None
        try:
            return await self._app(scope, receive, send)
        finally:
            self._count(key, -1)
            if ending is not None:
                ending.cancel()
            if by_event(scope):
                self._answered.add(key)
            if "app" in scope:  # which the served app puts there
                self._forget_idle(scope["app"])

    def _forget_idle(self, app: gr.routes.App) -> None:
        """Forget the sessions that wait for nothing: of pages all but the last used, of programs all."""
        sessions, queue = app.state_holder.session_data, app.get_blocks()._queue
        running = {event.session_hash for event in list(queue.event_ids_to_events.values())}
        idle = [  # the last used one last
            session
            for session in list(sessions)
            if session not in running and not self.listens(session)
        ]
        pages = [session for session in idle if session not in self._answered]
        forgotten = [*pages[:-SESSIONS_KEPT], *self._answered.intersection(idle)]
        for session in forgotten:
            sessions.pop(session, None)
            app.state_holder.time_last_used.pop(session, None)
            queue.pending_messages_per_session.pop(session, None)
            queue.pending_event_ids_session.pop(session, None)
        self._answered.intersection_update(sessions)
        if forgotten and time.monotonic() - self._trimmed > TRIM_EVERY:
            self._trimmed = time.monotonic()
            collect = self._trimmed - self._collected > COLLECT_EVERY
            if collect:
                self._collected = self._trimmed
            threading.Thread(target=give_back_memory, args=[collect], daemon=True).start()

    def _count(self, key: Hashable, change: int) -> None:
        with self._lock:
            self._open[key] += change
            if not self._open[key]:
                del self._open[key]

    def listens(self, key: Hashable) -> bool:
        """Return whether a stream is open for a session or an event."""
        return key in self._open


def map_large_arrays() -> None:
    """Make glibc map large arrays one by one, so that a freed array returns its memory at once.

    Its own threshold grows with the arrays that are freed, up to 32 MiB. Their space then stays in the
    pools of threads, in pieces: 80 MB more after 2,000 requests than after 200.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_option is not None:
        set_option(MMAP_THRESHOLD, LARGE_ARRAY)


def give_back_memory(collect: bool) -> None:
    """Give memory that nothing needs back to the system.

    What a request frees, glibc keeps in the pools of its threads: tens of megabytes.

    Args:
        collect: free first what refers to itself. Python looks for such things the more rarely the
            more it holds.
    """
    if collect:
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def stream_key(scope: dict) -> str | None:
    """Return the session or the event whose answers a request streams; None for other requests."""
    return by_event(scope) or stream_session(scope)


def by_event(scope: dict) -> str | None:
    """Return the event whose answer a request streams; None for other requests."""
    found = BY_EVENT.search(scope["path"]) if scope["method"] == "GET" else None
    return found[1] if found else None


def stream_session(scope: dict) -> str | None:
    """Return the session whose answers a request streams; None for other requests."""
    if scope["method"] != "GET" or not scope["path"].rstrip("/").endswith("/queue/data"):
        return None
    session = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash")
    return session[0] if session else None


async def end_when_idle(app: gr.routes.App, session: str) -> None:
    """End a page's stream once no request of the page is left to be answered.

    Where a page opens one just as the one before brings the last answer, gradio keeps it open for as
    long as the page: one of the six connections that a browser has for all tabs.
    """
    queue = app.get_blocks()._queue
    while True:
        await asyncio.sleep(IDLE)
        is_idle = queue.pending_event_ids_session.get(session) == set()
        if is_idle and session in queue.pending_messages_per_session:
            await queue.pending_messages_per_session[session].put(LAST)


def mark_tool_call(scope: dict) -> str | None:
    """Put a key of its own into the headers of a request through MCP; None for other requests."""
    if scope["method"] != "POST" or not TOOL_CALL.search(scope["path"]):
        return None
    key = secrets.token_hex(16)
    sent = [pair for pair in scope["headers"] if pair[0].decode("latin-1").lower() != CALLER]
    scope["headers"] = [*sent, (CALLER.encode(), key.encode())]
    return key


def watch(request: gr.Request) -> Callable[[], bool]:
    """Return a function that checks whether the client of a request has left.

    To be called on the thread of the request.  Where the app is served without the middleware,
    nobody ever seems to leave.
    """
    served = getattr(request, "request", None)
    listeners = served.scope.get(SCOPE_KEY) if served else None
    if listeners is None:
        return lambda: False
    caller = request.headers.get(CALLER)
    keys = {caller} if caller else {request.session_hash, LocalContext.event_id.get(None)} - {None}
    heard = time.monotonic()

    def has_left() -> bool:
        nonlocal heard
        if any(map(listeners.listens, keys)):
            heard = time.monotonic()
        return time.monotonic() - heard > PATIENCE

    return has_left
