"""The page: one document of its own, served beside gradio's queue and API, which compute for it.

Gradio's own document would fetch eighty files and draw the page from them; this one is complete as
it arrives, with its first result in it.
"""

import base64
import gzip
import html
import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import gradio as gr
from packaging.requirements import Requirement
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from perplexity_sliding.views.report import SCRIPTS, STYLE, joined

from .answers import score_answer
from .endpoints import add_endpoint, make_compare, make_score, page_calls
from .jobs import Job
from .models import BUNDLED, ROUNDED, SUGGESTED
from .protocols import START_CHOICES, guide
from .samples import FOLDER, samples
from .service import Service
from .tools_view import headline

HERE = Path(__file__).resolve().parent
ROUNDS, PREVIEW = HERE / "duel.json", HERE / "preview.png"
TITLE = "How surprised is a language model by your words?"
OPENING = "The old man sat down by the fire, took off his hat, and opened his laptop."
# A visitor of the page that asks for something waits in gradio's queue.  Beside the one that
# computes, a few may download a model.
MACHINE = {"concurrency_id": "machine", "concurrency_limit": 4}
SESSIONS_KEPT = 100  # by gradio: each request of the page is one


def build(service: Service) -> gr.Blocks:
    """Build what computes for the page and for programs."""
    with gr.Blocks(title=TITLE, analytics_enabled=False) as blocks:
        for function in (make_score(service), make_compare(service)):
            add_endpoint(blocks, function, **MACHINE)
        calls = {
            name: gr.api(run, api_name=f"page_{name}", api_visibility="private", **MACHINE)["id"]
            for name, run in page_calls(service).items()
        }
    blocks.page_data = page_data(service, calls)
    return blocks.queue(max_size=service.limits.waiting, api_open=False)


def page_data(service: Service, calls: dict[str, int]) -> dict:
    """Return what the page knows as it arrives: its choices, and the first text with its score.

    All numbers are measured here, with the model in use.
    """
    job = Job(service.limits.seconds)
    opening = service.score(OPENING, service.default_settings, job)
    return {
        "calls": calls,
        "title": TITLE,
        "opening": score_answer(opening, service.landmarks(BUNDLED, job)),
        "teasers": teasers(service, job),
        "samples": samples(),
        "models": [BUNDLED, ROUNDED, *SUGGESTED],
        "other": ROUNDED,
        "starts": list(START_CHOICES),
        "protocols": {
            name: {"tool": known.tool, "idea": known.idea, "stride": known.stride}
            for name in service.protocols
            for known in [guide(name)]
        },
        "limits": {"characters": service.limits.characters},
    }


def teasers(service: Service, job: Job) -> dict[str, str]:
    """Answer the page's questions for a sample, in a line each; of models for a longer one, as takes more."""
    sample, longer = (
        (FOLDER / f"{stem}.txt").read_text(encoding="utf-8") for stem in ("opening", "story")
    )
    settings = service.default_settings
    tools = service.every_protocol(sample, settings, job)
    short, *_, long = service.memory(sample, settings, job).by_context
    plain, rounded = (
        service.score(longer, replace(settings, model=model), job).result
        for model in (BUNDLED, ROUNDED)
    )
    return {
        "memory": f"In a longer text, perplexity is {_change(long, short)} with {long['context_length']} tokens in sight "
        f"than with {short['context_length']}",
        "tools": f"No. For one longer text, {headline(tools)}",
        "models": f"In a long text, perplexity is {_change(rounded, plain)} with weights rounded to 4 bits",
    }


def _change(result: dict, reference: dict) -> str:
    change = result["perplexity"] / reference["perplexity"] - 1
    return f"{abs(change):.0%} {'lower' if change < 0 else 'higher'}".replace("%", " %")


def launch_options(blocks: gr.Blocks) -> dict:
    """Return the launch options of the page."""
    # Uvicorn believes forwarded addresses from any program on this machine, unless it is told otherwise.
    os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
    files = StaticFiles(directory=FOLDER)
    routes = [
        Route("/", send_page(blocks.page_data)),
        Route("/duel.json", lambda request: FileResponse(ROUNDS)),
        Route("/preview.png", lambda request: FileResponse(PREVIEW)),
        Mount("/samples", files),
    ]
    return {
        "ssr_mode": False,
        "state_session_capacity": SESSIONS_KEPT,
        "app_kwargs": {"routes": routes},
        "mcp_server": serves_tools(),
    }


def send_page(data: dict) -> Callable[[Request], Response]:
    """Make the answer to who opens the page: all of it in one compressed file."""
    document = write_page(data)

    def send(request: Request) -> Response:
        named = os.environ.get("SPACE_HOST")
        address = f"https://{named}/" if named else str(request.base_url)
        content = document.replace("{{address}}", html.escape(address)).encode()
        headers = {"Vary": "Accept-Encoding", "Cache-Control": "no-cache"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers = gzip.compress(content, 6), headers | {"Content-Encoding": "gzip"}
        return Response(content, media_type="text/html", headers=headers)

    return send


def write_page(data: dict) -> str:
    """Write the document, with its style, typeface, scripts and data in it; `{{address}}` is left."""
    style = typeface() + joined((STYLE, HERE / "page.css"))
    own = ("ask.js", "editor.js", "page.js", "share.js", "duel.js")
    script = joined((*SCRIPTS, *(HERE / name for name in own)))
    opening = data["opening"]
    rounded = format(opening["perplexity"], ".1e")  # a sentence does not deserve more figures
    packed = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    filled = {
        "title": html.escape(TITLE),
        "style": style,
        "script": f'(() => {{ "use strict";\n{script}}})();',
        "data": packed,
        "text": html.escape(opening["text"]["pieces"]["text"]),
        "perplexity": f"<small>about </small>{float(rounded):,.0f}",
        "verdict": html.escape(opening["verdict"]),
    } | {question: html.escape(words) for question, words in data["teasers"].items()}
    document = (HERE / "page.html").read_text(encoding="utf-8")
    for name, value in filled.items():
        document = document.replace(f"{{{{{name}}}}}", value)
    return document


def typeface() -> str:
    """Write the rule for the page's typeface, with the file in it: nothing moves as it arrives."""
    file = base64.b64encode((HERE / "fonts" / "inter.woff2").read_bytes()).decode()
    return (
        '@font-face { font-family: Inter; font-weight: 100 900; font-display: block; src: url("data:'
        f'font/woff2;base64,{file}") format("woff2"); }}\n'
    )


def serves_tools() -> bool:
    """Return whether `gradio[mcp]` is installed: another version of `mcp` would fail while it is served."""
    wanted = [Requirement(line) for line in requires("gradio")]
    try:
        installed = version("mcp")
    except PackageNotFoundError:
        return False
    return all(one.specifier.contains(installed) for one in wanted if one.name == "mcp")
