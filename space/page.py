"""The interface: what stands where on the page, and which handler answers it."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from starlette.middleware import Middleware

from .endpoints import add_endpoint, make_compare, make_score
from .handlers import SCORE_OUTPUTS, Handlers, score_outputs, start_choice, to_share
from .hero_view import hero_view
from .intro_view import TITLE, intro_view
from .jobs import Job
from .listeners import Listeners
from .models import BUNDLED, ROUNDED, SUGGESTED
from .plan_view import sketch
from .service import STRIDES_SET, TOOLS_SET, Scored, Service
from .settings import Settings
from .status_view import status

HERE = Path(__file__).resolve().parent
HELLO = "This is the first sample. Change the text, the window or the stride."
# What the table of tools says of a click: which tool's settings.  Its result stands in the first tab.
CHOOSE_TOOL = """element.addEventListener("click", ({ target }) => {
  const row = target.closest("button, .ps-cut")?.closest("[data-protocol]");
  if (!row) return;
  const { protocol, window, stride } = row.dataset, tab = document.querySelector("#results [role=tab]");
  trigger("click", { protocol, window: Number(window), stride: Number(stride) });
  tab.click();
  tab.focus();
})"""
# As the page shows it: its first tab says when it is drawn that it was opened, perhaps after a click.
OPENED = """() => [document.querySelector("#results [aria-selected=true]").textContent.trim()]"""
ASKED = "(...values) => { window.perplexityAsked(...values); return []; }"
SCRIPTS = ("base.js", "text.js", "reader.js", "pairs.js", "hero.js", "save.js", "page.js")
# Everybody in the service's lines holds a thread, and clicks need some too.
THREADS = 100
UPLOADS_KEPT = (3600, 3600)  # seconds between clean-ups, and that a file may stay
RESULTS_KEPT = 3600  # seconds, for a visitor who makes files of them
# Gradio starts every request at once: the service has its own line, where one knows one's place.
COMPUTING = {"concurrency_id": "model", "concurrency_limit": None}
# As typed: gradio answers a number out of a slider's range with a fault, the handlers with a sentence.
RAW = {"preprocess": False}
QUIET = {"api_visibility": "private", "show_progress": "hidden"}
QUICK = QUIET | {"queue": False}


@dataclass(frozen=True)
class Controls:
    """What a visitor sets."""

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
    wanted: gr.State
    visits: gr.State
    remark: gr.HTML

    @property
    def request(self) -> list:
        """What every measurement needs."""
        settings = (self.model, self.window, self.stride, self.start, self.protocol)
        return [self.text, *settings, self.context]

    @property
    def scoring(self) -> list:
        """What a score needs: the words are looked at there alone."""
        return [*self.request, self.words]


@dataclass(frozen=True)
class Results:
    """What a visitor sees."""

    status: gr.HTML
    stop: gr.Button
    shared: gr.State
    make_files: gr.Button
    files: gr.Files
    picture: gr.HTML
    score: dict
    strides: list[gr.HTML]
    tools: gr.HTML
    compared: gr.HTML
    result_tab: gr.Tab
    strides_tab: gr.Tab
    tools_tab: gr.Tab
    compare_tab: gr.Tab
    other: gr.Dropdown


def build(service: Service) -> gr.Blocks:
    """Build the page, with the first sample scored already."""
    handlers = Handlers(service)
    settings = service.default_settings
    first = next(iter(handlers.samples.values()), "The cat sat on the mat.")
    scored = service.score(first, settings, Job(service.limits.seconds))
    with gr.Blocks(
        title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=UPLOADS_KEPT
    ) as page:
        # Before the page's own events, which would take their names.
        for function in (make_score(service), make_compare(service)):
            add_endpoint(page, function, **COMPUTING)
        view(intro_view())
        view(hero_view(scored.loaded))
        with gr.Row(elem_id="page"):
            with gr.Column(scale=4, min_width=320, elem_id="controls"):
                controls, line, stop = lay_out_controls(service, handlers, scored)
            with gr.Column(scale=8, min_width=480, elem_id="results"):
                results = lay_out_results(scored, line, stop)
        connect_settings(page, handlers, controls, results)
        connect_measurements(handlers, controls, results)
    return page.queue(max_size=THREADS, api_open=False)


def launch_options() -> dict:
    """How to launch the page: its looks, with nothing fetched from elsewhere, and its limits."""
    # Uvicorn believes forwarded addresses from any program on this machine, unless it is told otherwise.
    os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return {
        "theme": theme(),
        "head": f'<style>{style}</style><script>(() => {{ "use strict";\n{script}}})();</script>',
        "max_file_size": "2mb",
        "ssr_mode": False,
        "footer_links": ["api"],
        "max_threads": THREADS,
        "app_kwargs": {"middleware": [Middleware(Listeners)]},
        "mcp_server": importlib.util.find_spec("mcp") is not None,
    }


def theme() -> gr.themes.Base:
    """Fonts of the visitor's own system, and greys that are dark enough to read."""
    return gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
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


def lay_out_controls(service: Service, handlers: Handlers, scored: Scored):
    """Text, model and the two handles; return the controls, the status line and Stop."""
    settings = scored.settings
    # What was wrong with a link, where it is seen first.
    remark = gr.HTML(visible=False, elem_id="remark")
    text = gr.Textbox(
        scored.text,
        label="Text",
        lines=6,
        max_lines=6,
        placeholder="Write or paste a text. Ctrl+Enter scores it.",
    )
    with gr.Row():
        sample = gr.Dropdown(
            list(handlers.samples),
            label="Or begin with a sample",
            container=False,
            scale=3,
            min_width=170,
        )
        upload = gr.UploadButton(
            "Upload .txt",
            file_types=[".txt"],
            scale=1,
            min_width=110,
            size="sm",
            elem_id="upload",
        )
    model = model_choice("Model (pick one, or type owner/name from the Hub)", BUNDLED)
    with gr.Row():
        window, stride = window_sliders(settings)
    with gr.Row():
        score = gr.Button("Score", variant="primary", elem_id="score", scale=3, min_width=120)
        stop = gr.Button(
            "Stop", variant="stop", interactive=False, elem_id="stop", scale=1, min_width=80
        )
    picture = view(sketch(settings.window, settings.stride))
    line = view(status(HELLO), elem_id="status")
    with gr.Accordion("More settings: context, start token, protocol", open=False):
        context = gr.Textbox(
            label="Context",
            info="Read before the text, and not scored. Nothing comes between the two, so begin the "
            "text with a space.",
            lines=2,
            max_lines=4,
        )
        start = start_choice(settings.protocol, settings.start)
        start.label = "Start token"
        start.info = (
            "A marker for the start of the text, so that the first token can be scored too."
        )
        protocol = gr.Dropdown(
            list(service.protocols),
            value=settings.protocol,
            label="Protocol",
            info="Cut the text into windows as another tool does, to get its number.",
        )
    # Switched by the page's script, with the choice beside the text.
    words = gr.Checkbox(label="Score words", elem_id="words")
    adopted = gr.State(BUNDLED)  # whose window the sliders show
    wanted = gr.State(settings.stride)  # what the visitor chose; a narrow window shortens it
    visits = gr.State(0)  # counted up by a link, or a tool of the table, that is to be scored
    controls = Controls(
        text,
        sample,
        upload,
        model,
        window,
        stride,
        picture,
        start,
        protocol,
        context,
        words,
        score,
        adopted,
        wanted,
        visits,
        remark,
    )
    return controls, line, stop


def view(value: str = "", elem_id: str | None = None, js_on_load: str | None = None) -> gr.HTML:
    """A place for one of the views, which bring their own looks."""
    return gr.HTML(
        value, elem_id=elem_id, js_on_load=js_on_load, apply_default_css=False, padding=False
    )


def model_choice(label: str, value: str | None, *more: tuple[str, str]) -> gr.Dropdown:
    return gr.Dropdown(
        [(f"{BUNDLED} (bundled)", BUNDLED), *more, *SUGGESTED],
        value=value,
        label=label,
        allow_custom_value=True,
    )


def window_sliders(settings: Settings) -> tuple[gr.Slider, gr.Slider]:
    window = gr.Slider(
        2,
        settings.window,
        value=settings.window,
        step=1,
        label="Window",
        min_width=140,
        buttons=[],  # "reset" would go past the present limits
    )
    stride = gr.Slider(
        1,
        settings.window,
        value=settings.stride,
        step=1,
        label="Stride",
        min_width=140,
        buttons=[],
    )
    return window, stride


def quotable(value: str, label: str) -> gr.Textbox:
    """Words to copy, with a button that does so."""
    return gr.Textbox(value, label=label, interactive=False, lines=2, max_lines=8, buttons=["copy"])


def lay_out_results(scored: Scored, line: gr.HTML, stop: gr.Button) -> Results:
    values = dict(zip(SCORE_OUTPUTS, score_outputs(scored)))
    views = {}
    with gr.Tabs():
        with gr.Tab("Result") as result_tab:
            views["score"] = view(values["score"])
            views["text"] = view(values["text"])
        with gr.Tab("Why context helps") as strides_tab:
            gain = view()
            trade_off = view()
        with gr.Tab("Tools") as tools_tab:
            protocols = view(js_on_load=CHOOSE_TOOL)
        with gr.Tab("Compare") as compare_tab:
            gr.Markdown(
                "What does another model change, such as a quantised or a fine-tuned copy? It is compared "
                "with the model chosen on the left."
            )
            rounded = (f"{BUNDLED}, its weights rounded to 4 bits", ROUNDED)
            other = model_choice("Compare it with", ROUNDED, rounded)
            compared = view()
        with gr.Tab("Cite and share", elem_id="cite"):
            views["cite"] = view(values["cite"])
            views["sentence"] = quotable(values["sentence"], "In a paper")
            views["bibtex"] = quotable(values["bibtex"], "BibTeX")
            views["python"] = gr.Code(
                values["python"], language="python", label="Python", interactive=False
            )
            views["shell"] = gr.Code(
                values["shell"], language="shell", label="Shell", interactive=False
            )
            make_files = gr.Button("Make files: text, tables as CSV and JSON, a picture")
            picture = view()
            files = gr.Files(label="Files", visible=False, interactive=False)
    return Results(
        line,
        stop,
        gr.State(to_share(scored), time_to_live=RESULTS_KEPT),
        make_files,
        files,
        picture,
        views,
        [gain, trade_off],
        protocols,
        compared,
        result_tab,
        strides_tab,
        tools_tab,
        compare_tab,
        other,
    )


def connect_settings(
    page: gr.Blocks, handlers: Handlers, controls: Controls, results: Results
) -> None:
    """Controls that change other controls."""
    c, status_line = controls, results.status
    latest = QUICK | RAW | {"trigger_mode": "always_last"}
    # A choice, not `input`: that fires too when the list is only left, and would replace a text.
    c.sample.select(handlers.choose_sample, c.sample, c.text, **QUICK)
    c.text.change(
        handlers.name_sample, [c.sample, c.text], c.sample, trigger_mode="always_last", **QUICK
    )
    c.upload.upload(handlers.upload, c.upload, [c.text, status_line], **QUICK)
    moves = [
        c.window.input(
            handlers.move_window, [c.window, c.wanted, c.protocol], [c.stride, c.sketch], **latest
        ),
        c.stride.input(
            handlers.move_stride, [c.window, c.stride, c.protocol], [c.sketch, c.wanted], **latest
        ),
        c.protocol.input(
            handlers.choose_protocol,
            [c.protocol, c.window, c.start],
            [c.stride, c.start, c.sketch, c.wanted],
            **RAW,
            **QUICK,
        ),
    ]
    views = [results.score[name] for name in SCORE_OUTPUTS]
    # `change` of the texts: their `input` is of typed letters only, not of what is pasted or deleted.
    changes = (c.text.change, c.context.change, c.start.input, *(move.then for move in moves))
    for changed in changes:
        _, shown = run_and_show(
            handlers,
            changed,
            handlers.rescore,
            c.scoring,
            status_line,
            [results.shared, *views],
            "always_last",
        )
        shown.then(put_files_away, None, [results.files, results.picture], **QUICK)
        # It may have replaced a request that somebody had just made, and Stop stands there for that.
        shown.then(handlers.idle, None, results.stop, **QUICK)
    # What only the script sees: the # of the address, and what it kept over a reload.
    behind, kept = (gr.Textbox(visible=False) for _ in range(2))
    controls_set = [c.model, c.window, c.stride, c.start, c.protocol, c.sketch]
    arrived = page.load(
        handlers.arrive,
        [behind, kept, c.visits],
        [c.text, c.context, *controls_set, status_line, c.visits, c.remark],
        js="(behind, kept, visits) => [location.hash, window.perplexityKept, visits]",
        concurrency_limit=None,
        **QUIET,  # in the queue: else the page isn't told that a state changed
    )
    gr.on([c.text.input, c.score.click], lambda: gr.HTML(visible=False), None, c.remark, **QUICK)
    arrived.then(lambda name: name, c.model, c.adopted, **QUICK)
    arrived.then(lambda stride: stride, c.stride, c.wanted, **QUICK, **RAW)
    page.unload(handlers.leave)
    # In the browser alone: results that are not of the present choice are dimmed.
    gr.on([part.change for part in c.request], None, c.request, None, js=ASKED, **QUICK)


def run_and_show(
    handlers: Handlers,
    started,
    run: Callable,
    inputs: list,
    line: gr.HTML,
    outputs: list,
    trigger_mode: str,
):
    """Let a handler tell its progress in the status line, and fill the outputs when it is done.

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
    shown = ran.success(handlers.show, made, [line, *outputs], trigger_mode="always_last", **QUICK)
    return ran, shown


def put_files_away() -> tuple:
    """Files of an earlier result would stand beside the sentence of the present one."""
    return gr.Files(visible=False), ""


def connect_measurements(handlers: Handlers, controls: Controls, results: Results) -> None:
    """Buttons that compute: begin, run in the one line, and be idle again."""
    c, r = controls, results

    def on(trigger, run, inputs, outputs):
        begun = trigger(handlers.begin, None, [r.status, r.stop], **QUICK)
        # "multiple": a request that replaces a running one is sent while that one still ends.
        ran, shown = run_and_show(handlers, begun.then, run, inputs, r.status, outputs, "multiple")
        ran.failure(handlers.turned_away, None, [r.status, r.stop], **QUICK)
        shown.then(handlers.idle, None, r.stop, **QUICK)
        shown.then(lambda name: name, c.model, c.adopted, **QUICK)
        return shown

    # A name may be typed, so `input` is needed, which fires too when the field is only left.
    asked = gr.State(0)
    c.model.input(
        handlers.ask_model, [c.model, c.adopted, asked], asked, **QUIET, concurrency_limit=None
    )
    adopted = on(
        asked.change,
        handlers.adopt_model,
        [c.model, c.stride, c.protocol],
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
        concurrency_limit=None,
    )
    scorings = gr.State(0)
    for asks in (c.score.click, c.text.submit, c.visits.change, asked_words.change):
        shown = on(asks, handlers.score, c.scoring, [c.window, c.stride, r.shared, *views])
        shown.then(lambda done: done + 1, scorings, scorings, **QUIET, concurrency_limit=None)
        shown.then(put_files_away, None, [r.files, r.picture], **QUICK)
    r.tools.click(
        handlers.take_tool,
        [c.model, c.visits],
        [c.window, c.stride, c.start, c.protocol, c.sketch, c.wanted, c.visits],
        **QUIET,  # in the queue: else the page isn't told that a state changed
        concurrency_limit=None,
    )
    r.make_files.click(handlers.make_files, r.shared, [r.files, r.picture], **QUICK)
    both = [r.other, *c.request]
    opened, seen = gr.State(""), gr.Textbox(visible=False)
    gr.on(
        [tab.select for tab in (r.result_tab, r.strides_tab, r.tools_tab, r.compare_tab)],
        lambda name: name,
        seen,
        opened,
        js=OPENED,
        trigger_mode="always_last",
        **QUIET,
        concurrency_limit=None,
    )
    # What is opened, or open when the text is scored, measures, unless it shows or measures just that.
    for tab, run, but, inputs, outputs, triggers in (
        (r.strides_tab, handlers.trade_off, STRIDES_SET, c.request, r.strides, []),
        (r.tools_tab, handlers.every_protocol, TOOLS_SET, c.request, [r.tools], []),
        (r.compare_tab, handlers.compare, (), both, [r.compared], [r.other.input]),
    ):
        name, shown, asked = tab.label, gr.State(), gr.State(0)
        gr.on(
            [opened.change, scorings.change, *triggers],
            handlers.asking(name, but),
            [opened, shown, asked, *inputs],
            asked,
            **QUIET,
            **RAW,
            concurrency_limit=None,
        )
        on(asked.change, handlers.noting(name, run, but), inputs, [*outputs, shown])
    r.stop.click(handlers.stop, None, None, **QUICK)
