"""The interface: the layout of the page, and the handlers of its components."""

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import gradio as gr
from packaging.requirements import Requirement
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

from perplexity_sliding.views.assets import SCRIPTS as PIECES
from perplexity_sliding.views.assets import STYLE, joined

from .endpoints import add_endpoint, make_compare, make_score
from .faults import Faults, PageBlocks
from .handlers import SCORE_OUTPUTS, Handlers, score_outputs, start_choice, to_share
from .intro_view import TITLE, intro_view
from .jobs import Job
from .links import MODELS, STRIDES, TOOLS
from .listeners import Listeners
from .models import BUNDLED, ROUNDED, SUGGESTED
from .plan_view import sketch
from .samples import samples
from .service import STRIDES_SET, Scored, Service
from .settings import Settings, fingerprint
from .status_view import status
from .token_view import steps

HERE = Path(__file__).resolve().parent
ROUNDS = HERE / "game_rounds.json"
HELLO = "Click into the text and change it."
# The tool that was clicked in the table; its result is shown in the first tab.
CHOOSE_TOOL = """element.addEventListener("click", ({ target }) => {
  const row = target.closest("button, .ps-cut")?.closest("[data-protocol]");
  if (!row) return;
  const { protocol, window, stride } = row.dataset, tab = document.querySelector("#results [role=tab]");
  trigger("click", { protocol, window: Number(window), stride: Number(stride) });
  tab.click();
  tab.focus();
})"""
OPENED = """() => [document.querySelector("#results [role=tab][aria-selected=true]")?.textContent.trim()]"""
# Requests may arrive in another order than they were made in.
PRESSED = "() => [performance.now()]"
# An open tab asks for what it shows; one that was left meanwhile, on a slow line, asks for nothing.
SEEN = f"(seen, pressed, ...others) => [...({OPENED})(), ...({PRESSED})(), ...others]"
STRIDE_WITHIN = "(window, wanted) => window === null ? wanted : Math.max(1, Math.min(wanted, Math.trunc(window)))"
STRIDE_WANTED = "(stride, wanted) => stride ?? wanted"
# Content of the drawer for sharing: the open comparison and its settings.
SHOWN = "(shown, mark, ...kept) => [...window.perplexityShown(), ...kept]"
SHOW_DRAWER = "() => { document.getElementById('share').classList.remove('ps-waits'); return []; }"
OPEN_LINKED = "(comparison) => { window.perplexityOpen(comparison); return []; }"
# The name of the sample that the text is, however it came there.
SAMPLE_OF = "(text) => ({})[window.perplexityMark(text ?? '')] ?? ''"
ASKED = "(...values) => { window.perplexityAsked(...values); return []; }"
OWN_TEXT = ""  # the choice of a text that is no sample
SCRIPTS = ("editor.js", "drawers.js", "save.js", "game.js", "page.js", "answers.js")
# Each request in the service's queues occupies a thread, and clicks need some too.
THREADS = 100
UPLOADS_KEPT = (3600, 3600)  # seconds between clean-ups, and that a file may stay
RESULTS_KEPT = 3600  # seconds, for a visitor who makes files of them
# Gradio starts every request at once: the service has its own queue, which reports the place.
COMPUTING = {"concurrency_id": "model", "concurrency_limit": None}
# As typed: gradio answers a number out of a slider's range with a fault, the handlers with a sentence.
RAW = {"preprocess": False}
QUIET = {"api_visibility": "private", "show_progress": "hidden"}
QUICK = QUIET | {"queue": False}
# Gradio ignores what is chosen while its answer to the choice before is on its way.
LATEST = {"trigger_mode": "always_last"}


@dataclass(frozen=True)
class Controls:
    """Inputs."""

    text: gr.Textbox
    sample: gr.Dropdown
    upload: gr.UploadButton
    model: gr.Dropdown
    window: gr.Slider
    stride: gr.Slider
    sketch: gr.HTML
    start: gr.Radio
    protocol: gr.Dropdown
    context: gr.Textbox
    words: gr.Checkbox
    score: gr.Button
    adopted: gr.State
    wanted: gr.Number
    visits: gr.State
    remark: gr.HTML

    @property
    def request(self) -> list:
        """Inputs of all measurements."""
        settings = (self.model, self.window, self.stride, self.start, self.protocol)
        return [self.text, *settings, self.context]

    @property
    def scoring(self) -> list:
        """Inputs of a score, the only view with words."""
        return [*self.request, self.words]


@dataclass(frozen=True)
class Results:
    """Outputs."""

    status: gr.HTML
    stop: gr.Button
    shared: gr.State
    share: gr.Button
    drawer: gr.HTML
    files: gr.Files
    score: dict
    strides: list[gr.HTML]
    tools: gr.HTML
    compared: gr.HTML
    kept: dict[str, gr.State]
    linked: gr.Textbox
    result_tab: gr.Tab
    strides_tab: gr.Tab
    tools_tab: gr.Tab
    compare_tab: gr.Tab
    other: gr.Dropdown


def build(service: Service) -> gr.Blocks:
    """Build the page, with the first sample scored already."""
    first = next(iter(samples().values()), "The cat sat on the mat.")
    scored = service.score(first, service.default_settings, Job(service.limits.seconds))
    handlers = Handlers(service, to_share(scored))
    with PageBlocks(
        title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=UPLOADS_KEPT
    ) as page:
        # Before the page's own events, which would take their names.
        for function in (make_score(service), make_compare(service)):
            add_endpoint(page, function, **COMPUTING)
        view(intro_view())
        controls, results = lay_out(service, handlers, scored)
        connect_settings(page, handlers, controls, results)
        connect_measurements(handlers, controls, results)
    return page.queue(max_size=THREADS, api_open=False)


def launch_options() -> dict:
    """Return the launch options of the page: its style, served locally, and its limits."""
    # Uvicorn believes forwarded addresses from any program on this machine, unless it is told otherwise.
    os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
    style = typeface() + joined((STYLE, HERE / "page.css", HERE / "game.css"))
    script = joined((*PIECES, *(HERE / name for name in SCRIPTS)))
    return {
        "theme": theme(),
        "head": f'<style>:root {{ --ps-title: "{TITLE}" }}\n{style}</style><script>(() => {{ "use strict";\n{script}}})();</script>',
        "max_file_size": "2mb",
        "ssr_mode": False,
        "footer_links": ["api"],
        "max_threads": THREADS,
        "app_kwargs": {
            "middleware": [Middleware(Faults), Middleware(Listeners)],
            "routes": [Route(f"/{ROUNDS.name}", send_rounds)],
        },
        "mcp_server": serves_tools(),
    }


async def send_rounds(request: Request) -> FileResponse:
    """Send the rounds of the game, which is first played some time after the page is there."""
    return FileResponse(ROUNDS, media_type="application/json")


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


def theme() -> gr.themes.Base:
    """Set the page's typeface, and greys that are dark enough to read."""
    return gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="slate",
        font=["Inter", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    ).set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        block_title_text_color="*neutral_700",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
    )


def lay_out(service: Service, handlers: Handlers, scored: Scored) -> tuple[Controls, Results]:
    """Lay out the two views, their drawers and the status line."""
    parts = {"remark": gr.HTML(visible=False, elem_id="remark")}  # error in a link
    filled = dict(zip(SCORE_OUTPUTS, score_outputs(scored)))
    with gr.Tabs(elem_id="results"):
        with gr.Tab("Your text") as result_tab:
            parts |= lay_out_bar(handlers)
            with gr.Row(elem_id="page"):
                with gr.Column(scale=8, min_width=320, elem_id="writing"):
                    parts["text"] = gr.Textbox(
                        scored.text,
                        label="Text",
                        lines=12,
                        max_lines=12,
                        autoscroll=False,
                        elem_id="text",
                        placeholder="Write or paste a text.",
                    )
                    text_view = view(filled["text"])
                with gr.Column(scale=4, min_width=300, elem_id="aside"):
                    score_view = view(filled["score"])
                    with gr.Row(elem_id="sizes"):
                        parts |= window_fields(scored.settings)
                    view(steps(), elem_id="steps")
                    with gr.Row(elem_id="run"):
                        parts["score"] = gr.Button("Score", variant="primary", elem_id="score")
                        stop = gr.Button("Stop", variant="stop", interactive=False, elem_id="stop")
        compare = lay_out_compare()
    line = view(status(HELLO), elem_id="status")
    with gr.Column(elem_id="settings", elem_classes="ps-drawer"):
        view(drawer_head("Settings"))
        parts |= lay_out_settings(service, scored.settings)
    with gr.Column(elem_id="share", elem_classes="ps-drawer"):
        view(drawer_head("Share"))
        shared = lay_out_share()
    # Switched by the page's script, with the choice beside the text.
    parts["words"] = gr.Checkbox(label="Score words", elem_id="words")
    parts["adopted"] = gr.State(BUNDLED)  # model whose limits the fields have
    # The stride before a small window reduced it; restored with a larger window.
    parts["wanted"] = gr.Number(scored.settings.stride, visible=False)
    parts["visits"] = gr.State(0)  # counted up by a link, or a tool of the table, to be scored
    views = {"score": score_view, "text": text_view}
    # Empty until the first result, and an hour later.
    scored_kept, *compared_kept = (gr.State(time_to_live=RESULTS_KEPT) for _ in range(4))
    return Controls(**parts), Results(
        status=line,
        stop=stop,
        shared=scored_kept,
        score=views,
        result_tab=result_tab,
        kept=dict(zip((MODELS, STRIDES, TOOLS), compared_kept)),
        linked=gr.Textbox(visible=False),  # the comparison that a link opens
        **shared,
        **compare,
    )


def drawer_head(title: str) -> str:
    """Write the head of a drawer, with the button that closes it."""
    return (
        f'<div class="ps-view ps-drawer-head"><h2>{title}</h2>'
        f'<button type="button" class="ps-button" data-close aria-label="Close {title.lower()}">✕'
        "</button></div>"
    )


def lay_out_bar(handlers: Handlers) -> dict:
    """Lay out samples, upload, model and the button for the settings."""
    with gr.Row(elem_id="bar"):
        names = list(handlers.samples)
        sample = gr.Dropdown(
            [("Your own text", OWN_TEXT), *names],
            value=names[0] if names else OWN_TEXT,
            label="Sample",
            container=False,
            scale=3,
            min_width=160,
            elem_id="samples",
        )
        upload = gr.UploadButton(
            "Upload .txt", file_types=[".txt"], scale=1, min_width=96, size="sm", elem_id="upload"
        )
        model = model_choice(
            "Model (pick one, or type owner/name from the Hub)",
            BUNDLED,
            container=False,
            scale=3,
            min_width=200,
            elem_id="model",
        )
        view(
            '<div class="ps-view"><button type="button" class="ps-button" data-open="settings">Settings'
            "</button></div>",
            elem_id="open-settings",
        )
    return {"sample": sample, "upload": upload, "model": model}


def lay_out_settings(service: Service, settings: Settings) -> dict:
    """Lay out the settings that are rarely changed."""
    context = gr.Textbox(
        label="Context",
        info="Read before the text, and not scored. Nothing comes between the two, so begin the "
        "text with a space.",
        lines=3,
        max_lines=6,
    )
    start = start_choice(settings.protocol, settings.start)
    start.label = "Start token"
    start.info = "A marker for the start of the text, so that the first token can be scored too."
    protocol = gr.Dropdown(
        list(service.protocols),
        value=settings.protocol,
        label="Protocol",
        info="Cut the text into windows as another tool does, to get its number.",
    )
    picture = view(sketch(settings.window, settings.stride))
    return {"context": context, "start": start, "protocol": protocol, "sketch": picture}


def lay_out_compare() -> dict:
    """Lay out the comparisons: with another model, another stride or another tool."""
    with gr.Tab("Other models") as compare_tab:
        rounded = (f"{BUNDLED}, rounded to 4 bits", ROUNDED)
        other = model_choice("Compare it with", ROUNDED, rounded)
        compared = view()
    with gr.Tab("Other strides") as strides_tab:
        gain, trade_off = view(), view()
    with gr.Tab("Other tools") as tools_tab:
        tools = view(js_on_load=CHOOSE_TOOL)
    return {
        "strides": [gain, trade_off],
        "tools": tools,
        "compared": compared,
        "strides_tab": strides_tab,
        "tools_tab": tools_tab,
        "compare_tab": compare_tab,
        "other": other,
    }


def lay_out_share() -> dict:
    """Lay out the drawer for sharing; the script presses the button when it opens."""
    return {
        "share": gr.Button("Share", elem_id="make-share"),
        "drawer": view(),
        "files": gr.Files(label="Files", visible=False, interactive=False),
    }


def view(value: str = "", elem_id: str | None = None, js_on_load: str | None = None) -> gr.HTML:
    """Create the container of a view, which has its own style."""
    return gr.HTML(
        value, elem_id=elem_id, js_on_load=js_on_load, apply_default_css=False, padding=False
    )


def model_choice(label: str, value: str | None, *more: tuple[str, str], **options) -> gr.Dropdown:
    """Lay out a choice of models that accepts any name."""
    return gr.Dropdown(
        [(f"{BUNDLED} (bundled)", BUNDLED), *more, *SUGGESTED],
        value=value,
        label=label,
        allow_custom_value=True,
        **options,
    )


def window_fields(settings: Settings) -> dict:
    """Lay out window and stride as numbers; their handles are on the text."""
    shown = {"step": 1, "min_width": 100, "buttons": []}  # "reset" would go past the present limits
    return {
        "window": gr.Slider(
            2, settings.window, value=settings.window, label="Window", elem_id="window", **shown
        ),
        "stride": gr.Slider(
            1, settings.window, value=settings.stride, label="Stride", elem_id="stride", **shown
        ),
    }


def connect_settings(
    page: gr.Blocks, handlers: Handlers, controls: Controls, results: Results
) -> None:
    """Connect controls that change other controls."""
    c, status_line = controls, results.status
    latest = QUICK | RAW | LATEST
    c.sample.input(handlers.choose_sample, c.sample, c.text, **QUICK, **LATEST)
    names = {fingerprint(text): name for name, text in handlers.samples.items()}
    c.text.change(None, c.text, c.sample, js=SAMPLE_OF.format(json.dumps(names)), **QUICK)
    c.upload.upload(handlers.upload, c.upload, [c.text, status_line], **QUICK)
    # In the browser alone: an answer that comes late would undo what was typed after it was asked for.
    sizes = [
        c.window.input(None, [c.window, c.wanted], c.stride, js=STRIDE_WITHIN, **QUICK),
        c.stride.input(None, [c.stride, c.wanted], c.wanted, js=STRIDE_WANTED, **QUICK),
    ]
    # In the browser alone: results that are not of the present choice are dimmed.  The first to follow a
    # change: what stands after a measurement waits until that is done.
    gr.on([part.change for part in c.request], None, c.request, None, js=ASKED, **QUICK)
    moves = [
        *(
            size.then(handlers.draw, [c.window, c.stride, c.protocol], c.sketch, **latest)
            for size in sizes
        ),
        c.protocol.input(
            handlers.choose_protocol,
            [c.protocol, c.window, c.start],
            [c.stride, c.start, c.sketch, c.wanted],
            **latest,
        ),
    ]
    views = [results.score[name] for name in SCORE_OUTPUTS]
    # `change` of the texts: their `input` is of typed letters only, not of what is pasted or deleted.
    changes = [
        (change, handlers.rescore) for change in (c.text.change, c.context.change, c.start.input)
    ]
    changes += [(move.then, handlers.rescore_moved) for move in moves]
    for changed, rescore in changes:
        shown = changed(
            rescore,
            c.scoring,
            [status_line, results.shared, *views],
            **LATEST,
            **RAW,
            **COMPUTING,
            **QUIET,
        )
        # It may have replaced a request that somebody had just made, and Stop stands there for that.
        shown.then(handlers.idle, None, results.stop, **QUICK, **LATEST)
    # Only the script has these: the fragment of the address, and the state before a reload.
    behind, kept = (gr.Textbox(visible=False) for _ in range(2))
    controls_set = [c.model, c.window, c.stride, c.start, c.protocol, c.sketch]
    arrived = page.load(
        handlers.arrive,
        [behind, kept, c.visits],
        [
            c.text,
            c.context,
            *controls_set,
            status_line,
            c.visits,
            c.remark,
            results.other,
            results.linked,
        ],
        js="(behind, kept, visits) => [location.hash, window.perplexityKept, visits]",
        concurrency_limit=None,
        **QUIET,  # in the queue: else the page isn't told that a state changed
    )
    gr.on([c.text.input, c.score.click], lambda: gr.HTML(visible=False), None, c.remark, **QUICK)
    arrived.then(lambda name: name, c.model, c.adopted, **QUICK)
    arrived.then(lambda stride: stride, c.stride, c.wanted, **QUICK, **RAW)


def run_and_show(
    handlers: Handlers,
    started,
    run: Callable,
    inputs: list,
    line: gr.HTML,
    outputs: list,
    trigger_mode: str,
):
    """Show a handler's progress in the status line, and fill the outputs at the end.

    Apart, because with every line gradio compares the whole content of all outputs of the handler that
    runs: that of a long text stopped the page for seconds.

    Returns:
        the events of running and of showing.
    """
    made = gr.State(time_to_live=RESULTS_KEPT)
    ran = started(
        handlers.making(run),
        inputs,
        [line, made],
        trigger_mode=trigger_mode,
        **RAW,
        **COMPUTING,
        **QUIET,
    )
    shown = ran.success(
        handlers.showing(len(outputs)),
        made,
        [made, line, *outputs],
        **LATEST,
        **QUIET,  # in the queue: what it sends arrives in the order in which it was sent
        concurrency_limit=None,
    )
    return ran, shown


def connect_measurements(handlers: Handlers, controls: Controls, results: Results) -> None:
    """Connect the buttons that compute: start, run in the queue, become idle."""
    c, r = controls, results
    pressed = gr.Number(visible=False)  # milliseconds of the page

    def on(trigger, run, inputs, outputs):
        begun = trigger(handlers.begin, pressed, [r.status, r.stop], js=PRESSED, **QUICK)
        return on_begun(begun.then, run, inputs, outputs)

    def on_begun(begun, run, inputs, outputs):
        # "multiple": a request that replaces a running one is sent while that one still ends.
        ran, shown = run_and_show(handlers, begun, run, inputs, r.status, outputs, "multiple")
        ran.failure(handlers.turned_away, None, [r.status, r.stop], **QUICK)
        shown.then(handlers.idle, None, r.stop, **QUICK, **LATEST)
        shown.then(lambda name: name, c.model, c.adopted, **QUICK)
        return shown

    # A name may be typed, so `input` is needed, which fires too when the field is only left.
    asked = gr.State(0)
    c.model.input(
        handlers.ask_model,
        [c.model, c.adopted, asked],
        asked,
        **QUIET,
        **LATEST,
        concurrency_limit=None,
    )
    adopted = on(
        asked.change,
        handlers.adopt_model,
        [c.model, c.stride, c.protocol, c.adopted],
        [c.model, c.window, c.stride, c.sketch],
    )
    adopted.then(lambda stride: stride, c.stride, c.wanted, **QUICK, **RAW)
    views = [r.score[name] for name in SCORE_OUTPUTS]
    asked_words = gr.State(0)
    c.words.input(
        handlers.ask_words,
        [c.words, r.shared, asked_words],
        asked_words,
        **QUIET,
        **LATEST,
        concurrency_limit=None,
    )
    scorings = gr.State(0)
    for asks in (c.score.click, c.text.submit, c.visits.change, asked_words.change):
        shown = on(asks, handlers.score, c.scoring, [c.window, c.stride, r.shared, *views])
        shown.then(lambda done: done + 1, scorings, scorings, **QUIET, concurrency_limit=None)
    r.tools.click(
        handlers.take_tool,
        [c.model, c.visits],
        [c.window, c.stride, c.start, c.protocol, c.sketch, c.wanted, c.visits],
        **QUIET,  # in the queue: else the page isn't told that a state changed
        concurrency_limit=None,
    )
    # A link's comparison is opened once its text is scored: opened before, it would stop that.
    scorings.change(None, r.linked, None, js=OPEN_LINKED, **QUICK)
    shown_now = [gr.Textbox(visible=False) for _ in range(2)]
    kept = [r.shared, *r.kept.values()]
    filled = r.share.click(
        handlers.share, [*shown_now, *kept], [r.drawer, r.files], js=SHOWN, **QUICK
    )
    filled.then(None, None, None, js=SHOW_DRAWER, **QUICK)
    both = [r.other, *c.request]
    opened, seen = gr.State(""), gr.Textbox(visible=False)
    gr.on(
        [tab.select for tab in (r.result_tab, r.strides_tab, r.tools_tab, r.compare_tab)],
        lambda name: name,
        seen,
        opened,
        js=OPENED,
        **LATEST,
        **QUIET,
        concurrency_limit=None,
    )
    # What is opened, or open when the text is scored, measures, unless it shows or measures just that.
    for tab, run, but, inputs, outputs, triggers in (
        (
            r.strides_tab,
            handlers.trade_off,
            STRIDES_SET,
            c.request,
            [*r.strides, r.kept[STRIDES]],
            [],
        ),
        (r.tools_tab, handlers.every_protocol, (), c.request, [r.tools, r.kept[TOOLS]], []),
        (r.compare_tab, handlers.compare, (), both, [r.compared, r.kept[MODELS]], [r.other.input]),
    ):
        name, shown, asked = tab.label, gr.State(), gr.State(0)
        gr.on(
            [opened.change, scorings.change, *triggers],
            handlers.asking(name, but),
            [seen, pressed, opened, shown, *inputs],
            [asked, r.status, r.stop],
            js=SEEN,
            **QUIET,
            **RAW,
            concurrency_limit=None,
        )
        measure = handlers.noting(name, run, but)
        on_begun(asked.change, measure, [asked, *inputs], [*outputs, shown])
    r.stop.click(handlers.stop, None, None, **QUICK)
