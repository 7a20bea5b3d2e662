"""Event handlers of the page: from the components' values to their new values."""

import contextlib
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gradio as gr

from .addresses import address
from .compare_view import compare_view
from .faults import log_fault
from .gain_view import gain_view
from .jobs import Job, Jobs, OverBudget, Shown, Stopped, follow
from .limits import FAULT, Refused
from .links import (
    CONTEXT,
    MODELS,
    STRIDES,
    TEXT,
    TOOLS,
    has_text,
    link,
    read_comparison,
    read_link,
    unpack,
)
from .listeners import watch
from .models import BUNDLED
from .plan_view import sketch
from .protocols import START_CHOICES, guide, usual_stride
from .samples import read_upload, samples
from .score_view import score_view
from .service import Scored, Service
from .settings import CHOSEN, Settings
from .share_view import share_button, share_view
from .sharing import write_files
from .status_view import alert, progress, status
from .sweep_view import protocol_view, trade_off_view
from .takeaway import Takeaway, of_models, of_score, of_strides, of_tools
from .token_view import text_view

START_NAMES = {
    "automatic": "automatic",
    "once": "once, before the text",
    "every": "in every window",
    "none": "none",
}
TURNED_AWAY = (
    "This request was turned away before it began: too many are waiting, or a setting is out of its "
    "range. Check window and stride, and try again in a moment."
)
AGAIN = "Leave this tab and open it again to start over."  # where a comparison was stopped
FORGOTTEN = "This result is not kept any more: score the text again, and share it then."
FILES_KEPT = 3600  # seconds
# What is scored again by itself: so many characters read, those read twice counted twice.
QUICK_CHARACTERS = 40_000
# The same where window or stride was moved, which is done in order to see the number.
MOVED_CHARACTERS = 10 * QUICK_CHARACTERS
# Seconds in which it says nothing of its progress: the browser would draw each line in the same time.
MOMENT = 1.0
BEGUN = status("Asked."), gr.Button(interactive=True)  # status line and Stop


class RefusedView(str):
    """Placeholder of a view whose request was refused, so that it is requested again."""

    __slots__ = ()


class Handlers:
    """The event handlers of the page.

    Those that compute are generators: the first of the values they yield is the status line, the
    others are the views; `gr.skip()` leaves a component as it is.

    Args:
        opening: what the page shows as it opens.
    """

    def __init__(self, service: Service, opening: Scored):
        self.service = service
        self.opening = opening
        self.jobs = Jobs(service.limits.seconds)
        self.samples = samples()
        self._files = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._measuring: dict[str, list] = {}  # measurement in progress for a visitor's tab

    # Quick ones

    def begin(self, request: gr.Request, pressed: float = 0.0):
        """Start a visitor's request: stop the earlier one, enable the Stop button."""
        self.jobs.new(request.session_hash, pressed)
        return BEGUN

    def idle(self, request: gr.Request):
        """End a request: disable the Stop button, unless a newer request runs."""
        return (
            gr.skip() if self.jobs.is_busy(request.session_hash) else gr.Button(interactive=False)
        )

    def turned_away(self, request: gr.Request):
        """Report a request that was refused before it reached a handler, and be idle."""
        self.jobs.forget(request.session_hash)
        return alert(TURNED_AWAY), gr.Button(interactive=False)

    def ask_words(self, words: bool, shared: Scored | None, asked: int):
        """Count the requests for words, which are scored when they are first looked at."""
        are_there = shared is not None and "word_scores" in shared.result
        return asked + (words and not are_there)

    def ask_model(self, name: str, adopted: str, asked: int):
        """Count the requests for a model other than that of the sliders."""
        return gr.skip() if name == adopted else asked + 1

    def asking(self, tab: str, but: Sequence[str]) -> Callable:
        """Make a handler that announces the requests of an open tab, except for results that it shows or measures.

        Its answer begins with when it was asked for.

        Args:
            but: see `measured_of`.
        """

        def ask(
            request: gr.Request,
            seen: str,
            pressed: float,
            opened: str,
            shown: list | None,
            *values,
        ):
            visitor, wanted = request.session_hash, measured_of(tab, values, but)
            known = wanted in (shown, self._measuring.get(visitor))
            is_open = seen == opened == tab
            if not is_open or known or not self.jobs.is_newest(visitor, pressed):
                return [gr.skip()] * 3
            self.jobs.new(visitor, pressed)
            return pressed, *BEGUN

        return ask

    def noting(self, tab: str, run: Callable, but: Sequence[str]) -> Callable:
        """Make a handler that also yields the settings of its views, and records them while it runs.

        It yields nothing where the visitor pressed something since the tab was opened: its request, which
        comes late, would replace theirs.

        Args:
            but: see `measured_of`.
        """

        def run_and_note(request: gr.Request, asked: float, *values) -> Iterator:
            visitor, wanted = request.session_hash, measured_of(tab, values, but)
            if not self.jobs.is_newest(visitor, asked):
                return
            self._measuring[visitor] = wanted
            try:
                for line, first, *views in run(request, *values):
                    done = isinstance(first, str) and not isinstance(first, RefusedView)
                    yield line, first, *views, wanted if done else gr.skip()
            finally:
                if self._measuring.get(visitor) is wanted:  # and not a newer measurement
                    del self._measuring[visitor]

        return run_and_note

    def making(self, run: Callable) -> Callable:
        """Make a handler that yields its status line, and finally its output.

        Until then it leaves alone what is there: that may be of a newer request, which overtook it.
        """

        def run_and_make(request: gr.Request, *values) -> Iterator:
            for line, *views in run(request, *values):
                if any(view != gr.skip() for view in views):
                    yield gr.skip(), [line, *views]
                else:
                    yield line, gr.skip() if line == gr.skip() else None

        return run_and_make

    def showing(self, width: int) -> Callable:
        """Make a handler that fills `width` views with what was made, and keeps only its status line.

        A request that was overtaken may end just then and show it first.  Lines of progress are still
        on their way then, and the request itself, which ends behind them, says the last line again.
        """

        def show(made: list | None):
            if made is None:
                return gr.skip()
            line, *views = made
            return [line], line, *(views or [gr.skip()] * width)

        return show

    def stop(self, request: gr.Request) -> None:
        """End the visitor's request; its own line says so at once."""
        self.jobs.stop(request.session_hash)

    def choose_sample(self, name: str):
        return self.samples.get(name, gr.skip())

    def upload(self, path: str):
        """Load a file into the text box, or report the reason."""
        try:
            text = read_upload(path, self.service.limits)
        except Refused as refusal:
            return gr.skip(), alert(str(refusal))
        return text, status("The file is in the text box. Press Score.")

    def draw(self, window: float, stride: float, protocol: str):
        """Draw the effect of window and stride."""
        return sketch(*typed_sliders(window, stride), protocol)

    def choose_protocol(self, protocol: str, window: float, start: str):
        """Offer only the settings of the protocol's tool, and start with its usual stride."""
        known = guide(protocol)
        window, _ = typed_sliders(window, window)
        stride = usual_stride(protocol, window)
        return (
            gr.Slider(interactive=known.stride, visible=known.stride, value=stride),
            start_choice(protocol, start),
            sketch(window, stride, protocol),
            stride,
        )

    def take_tool(self, chosen: gr.EventData, model: str, visits: int):
        """Set the settings of the tool chosen among all, to be scored."""
        if chosen.protocol not in self.service.protocols:
            return tuple([gr.skip()] * 7)
        window, _ = typed_sliders(chosen.window, None)
        stride = whole(chosen.stride) or usual_stride(chosen.protocol, window)
        settings = Settings(model, window, stride, protocol=chosen.protocol)
        return (
            window,
            *self._stride_controls(settings),
            settings.protocol,
            sketch(window, stride, settings.protocol),
            stride,
            visits + 1,
        )

    def arrive(self, request: gr.Request, behind: str, kept: str, visits: int):
        """Read text and settings from the visitor's link.

        Args:
            behind: what stands behind the # of the address.
            kept: what the visitor's browser kept of this page when it was loaded anew, as JSON.
            visits: counted up where the link is to be scored by itself.
        """
        default, limits = self.service.default_settings, self.service.limits
        query = read_kept_settings(kept) or request.query_params
        linked, remarks = read_link(query, BUNDLED, self.service.protocols)
        compare, other, refused = read_comparison(request.query_params)
        remarks += refused
        read = {}
        try:
            read = unpack(behind, limits)
        except Refused as refusal:
            remarks.append(str(refusal))
        read |= read_kept(kept)
        remark = gr.HTML(alert(" ".join(remarks)), visible=True) if remarks else gr.skip()
        if linked is None and not read and compare is None:
            return *[gr.skip()] * 10, remark, gr.skip(), gr.skip()
        linked = linked or Settings(BUNDLED)
        # The limit of another model is not known before it is loaded.
        longest = default.window if linked.model == BUNDLED else limits.window
        settings = linked.for_model(longest, clip=True)
        remarks += clipped_words(linked, settings)
        remark = gr.HTML(alert(" ".join(remarks)), visible=True) if remarks else gr.skip()
        settings = replace(settings, context=read.get(CONTEXT, ""))
        asks = was_pressed(kept) or self._is_quick(read.get(TEXT), settings)
        waits = bool(kept) and not asks
        line = "Your text is back." if kept else "Scoring what the link asks for."
        if waits:
            line = "Your text is back. Press Score."
        return (
            read.get(TEXT, gr.skip()),
            settings.context,
            settings.model,
            gr.Slider(value=settings.window, maximum=longest),
            *self._stride_controls(settings, maximum=longest),
            settings.protocol,
            sketch(settings.window, settings.stride, settings.protocol),
            status(line),
            visits if waits else visits + 1,
            remark,
            other or gr.skip(),
            gr.skip() if waits or compare is None else compare,
        )

    def share(
        self,
        request: gr.Request,
        shown: str,
        mark: str,
        scored: Scored | None,
        *compared: Takeaway | None,
    ):
        """Fill the drawer with the result shown, and write its files; or report the reason.

        Args:
            shown: `MODELS`, `STRIDES` or `TOOLS`; anything else for the score.
            mark: what the shown view is a result of.
            scored: what is kept for the visitor; None at first, and again after a while.
            compared: what is kept of the three comparisons.
        """
        kept = dict(zip((MODELS, STRIDES, TOOLS), compared, strict=True))
        taken = kept[shown] if shown in kept else of_score(scored or self.opening)
        if taken is None or taken.mark != mark:
            return alert(FORGOTTEN), gr.Files(visible=False)
        self._drop_old_files()
        folder = self._folder(request)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return share_view(taken), gr.Files(write_files(taken.files, folder), visible=True)

    # Those that compute

    def adopt_model(
        self, request: gr.Request, name: str, stride: float, protocol: str, adopted: str
    ) -> Iterator:
        """Fetch a model and adapt the fields to it; restore the previous model if it is refused."""

        def controls(loaded):
            settings = Settings(name, loaded.window, protocol=protocol).for_model(loaded.window)
            shown = settings.stride or typed_sliders(loaded.window, stride)[1]
            return (
                loaded.name,
                gr.Slider(value=loaded.window, maximum=loaded.window),
                gr.Slider(value=shown, maximum=loaded.window),
                sketch(loaded.window, shown, protocol),
            )

        def done(loaded):
            return f"{loaded.name} is ready. It reads up to {loaded.window:,} tokens at once."

        yield from self._run(
            request,
            lambda job: self.service.load(name or "", job),
            controls,
            4,
            done,
            refused=lambda sentence: (adopted, *[gr.skip()] * 3),
        )

    def score(self, request: gr.Request, text: str, *chosen) -> Iterator:
        settings = chosen_settings(*chosen)
        yield from self._run(
            request,
            # The sliders may still be those of another model.
            lambda job: self.service.score(text, settings, job, clip=True),
            lambda scored: (
                *used_sliders(scored, settings),
                to_share(scored),
                *score_outputs(scored),
            ),
            3 + len(SCORE_OUTPUTS),
            scored_words,
        )

    def rescore_moved(self, request: gr.Request, text: str, *chosen) -> Iterator:
        """Score again after window or stride was moved: see `rescore`."""
        yield from self.rescore(request, text, *chosen, most=MOVED_CHARACTERS)

    def rescore(
        self, request: gr.Request, text: str, *chosen, most: int = QUICK_CHARACTERS
    ) -> Iterator:
        """Score short inputs again automatically, without changing the sliders.

        The rest waits for the button; the page shows that its result is an old one.

        Args:
            most: characters that may be read, see `_is_quick`.
        """
        model, *sizes, start, protocol, context, words = chosen
        sizes = typed_sliders(*sizes)  # numbers that are still being typed
        settings = chosen_settings(model, *sizes, start, protocol, context, words)
        if not self._is_quick(text, settings, most):
            yield [gr.skip()] * (2 + len(SCORE_OUTPUTS))
            return
        yield from self._run(
            request,
            lambda job: self.service.score(text, settings, job, clip=True),
            lambda scored: (to_share(scored), *score_outputs(scored)),
            1 + len(SCORE_OUTPUTS),
            scored_words,
            silent=MOMENT,
        )

    def _is_quick(self, text: str, settings: Settings, most: int = QUICK_CHARACTERS) -> bool:
        window = settings.window or 1
        work = (len(text or "") + len(settings.context)) * window / (settings.stride or window)
        at_hand = settings.model in self.service.shelf.names
        return bool((text or "").strip()) and at_hand and work <= most

    def trade_off(self, request: gr.Request, text: str, *chosen) -> Iterator:
        settings = chosen_settings(*chosen)
        yield from self._run(
            request,
            lambda job: self.service.trade_off(text, settings, job),
            lambda trade_off: shared(
                of_strides(trade_off, settings), gain_view(trade_off), trade_off_view(trade_off)
            ),
            3,
            refused=lambda sentence: (RefusedView(alert(sentence)), "", None),
        )

    def every_protocol(self, request: gr.Request, text: str, *chosen) -> Iterator:
        settings = chosen_settings(*chosen)
        yield from self._run(
            request,
            lambda job: self.service.every_protocol(text, settings, job),
            lambda sweep: shared(of_tools(sweep) if sweep.scored else None, protocol_view(sweep)),
            2,
            refused=lambda sentence: (RefusedView(alert(sentence)), None),
        )

    def compare(self, request: gr.Request, other: str, text: str, *chosen) -> Iterator:
        """Compare another model with the page's, which is the reference."""
        settings = chosen_settings(*chosen)
        reference = settings.model
        settings = replace(settings, model=(other or "").strip())
        yield from self._run(
            request,
            lambda job: self.service.compare(text, settings, reference, job, clip=True),
            lambda compared: shared(of_models(compared), compare_view(compared)),
            2,
            refused=lambda sentence: (RefusedView(alert(sentence)), None),
        )

    def _run(
        self,
        request: gr.Request,
        work: Callable[[Job], object],
        render: Callable[[object], tuple],
        width: int = 1,
        done: Callable[[object], str] = lambda result: "Done.",
        refused: Callable[[str], tuple] | None = None,
        silent: float = 0.0,
    ) -> Iterator:
        """Run some work for a visitor; yield the status line and `width` rendered values.

        Args:
            refused: what the views say of a refusal, or of being stopped; None where they keep what they show.
            silent: seconds before the first line of progress.
        """
        job = self.jobs.take(request.session_hash, address(request), watch(request))
        for shown in self._steps(job, work, render, width, done, refused, silent):
            # The newer request of the same visitor has the page to itself.
            yield [gr.skip()] * (1 + width) if job.superseded else shown

    def _steps(
        self,
        job: Job,
        work: Callable[[Job], object],
        render: Callable[[object], tuple],
        width: int,
        done: Callable[[object], str],
        refused: Callable[[str], tuple] | None,
        silent: float,
    ) -> Iterator:
        """Yield the outputs of `_run` for a job that is not replaced."""
        unchanged = [gr.skip()] * width
        try:
            for told in follow(job, work, silent):
                if not isinstance(told, Shown):
                    yield progress(told), *unchanged
                else:
                    yield status(done(told.result)), *render(told.result)
        except Stopped as stopped:
            again = f"{stopped} {AGAIN}"
            yield status(str(stopped)), *(unchanged if refused is None else refused(again))
        except (Refused, OverBudget) as refusal:
            said = str(refusal)
            yield alert(said), *(unchanged if refused is None else refused(said))
        except Exception as error:
            log_fault(error)
            yield alert(FAULT), *unchanged

    def _folder(self, request: gr.Request) -> Path:
        """Return the folder of a visitor's files, named by a digest: the page chose its own name."""
        return Path(self._files.name) / hashlib.sha256(request.session_hash.encode()).hexdigest()

    def _drop_old_files(self) -> None:
        """Delete the files that were made over an hour ago: gradio serves copies of its own."""
        for folder in Path(self._files.name).iterdir():
            with contextlib.suppress(FileNotFoundError):  # another visitor's request was first
                if time.time() - folder.stat().st_mtime > FILES_KEPT:
                    shutil.rmtree(folder, ignore_errors=True)

    def _stride_controls(self, settings: Settings, **limits):
        known = guide(settings.protocol)
        stride = settings.stride or usual_stride(settings.protocol, settings.window)
        return (
            gr.Slider(value=stride, interactive=known.stride, visible=known.stride, **limits),
            start_choice(settings.protocol, settings.start),
        )


def shared(taken: Takeaway | None, first: str, *views: str) -> tuple:
    """Add the share button to the first view; return the views and the stored state."""
    button = "" if taken is None else share_button(taken.address)
    return button + first, *views, taken


def clipped_words(asked: Settings, used: Settings) -> list[str]:
    """List the numbers of a link that were reduced."""
    return [
        f"The link's {name} of {value:,} is more than fits: {getattr(used, name):,} is used."
        for name, value in (("window", asked.window), ("stride", asked.stride))
        if value is not None and getattr(used, name) is not None and value > getattr(used, name)
    ]


def chosen_settings(
    model: str,
    window: float,
    stride: float,
    start: str,
    protocol: str,
    context: str = "",
    words: bool = False,
) -> Settings:
    """Read settings from the components' values."""
    stride = whole(stride) if guide(protocol).stride else None
    name = (model or "").strip()
    return Settings(name, whole(window), stride, start, protocol, context or "", bool(words))


def measured_of(tab: str, values: Sequence, but: Sequence[str]) -> list:
    """Return the values of a request that affect a tab's measurement.

    Args:
        tab: its name.
        values: those of `Controls.request`, and before them what else the tab needs.
        but: names of settings that make none.
    """
    names = ("text", *CHOSEN, "context")
    before = len(values) - len(names)
    mattering = (value for name, value in zip(names, values[before:]) if name not in but)
    return [tab, *values[:before], *mattering]


def read_kept(kept: str) -> dict[str, str]:
    """Read `TEXT` and `CONTEXT` that a browser kept over a reload, if present."""
    values = _kept_values(kept)
    return {name: values[name] for name in (TEXT, CONTEXT) if isinstance(values.get(name), str)}


def read_kept_settings(kept: str) -> dict[str, str]:
    """Read the settings that a browser kept over a reload, as those of a link."""
    settings = _kept_values(kept).get("settings")
    values = settings if isinstance(settings, dict) else {}
    return {name: str(values[name]) for name in CHOSEN if name in values}


def was_pressed(kept: str) -> bool:
    """Return whether Score was pressed before a reload, while the server was gone."""
    return _kept_values(kept).get("pressed") is True


def _kept_values(kept: str) -> dict:
    try:
        values = json.loads(kept or "{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def whole(typed: object) -> int | None:
    """Return the whole number in a slider's field; None where there is none."""
    is_number = isinstance(typed, int | float) and math.isfinite(typed)
    return int(typed) if is_number else None


def typed_sliders(window: object, stride: object) -> tuple[int, int]:
    """Return a window and a stride that can be drawn, even for unfinished input."""
    window = max(2, whole(window) or 0)
    return window, min(max(1, whole(stride) or window), window)


def start_choice(protocol: str, start: str):
    """Offer the start-token choices that a protocol has."""
    starts = guide(protocol).starts
    return gr.Radio(
        choices=[(START_NAMES[name], name) for name in starts or START_CHOICES],
        value=start if start in starts else "automatic",
        interactive=bool(starts),
        visible=bool(starts),
    )


def used_sliders(scored: Scored, asked: Settings) -> tuple:
    """Set window and stride to the values used if they differ from the requested ones.

    Where it is as asked, another number may have been typed since.
    """
    used, longest = scored.settings, scored.loaded.window
    pairs = ((used.window, asked.window), (used.stride, asked.stride))
    return tuple(
        gr.Slider(maximum=longest, **({} if value in (None, typed) else {"value": value}))
        for value, typed in pairs
    )


def scored_words(scored: Scored) -> str:
    """Report that a text was scored, and whether its link lacks the text."""
    said = f"Scored with {scored.loaded.name}."
    if has_text(link(scored.settings, scored.text)):
        return said
    return f"{said} The text is too long for a link, so the address contains only the settings."


def to_share(scored: Scored) -> Scored:
    """Copy a result without the model, so that a visitor's page can keep it."""
    return replace(scored, loaded=replace(scored.loaded, model=None, tokenizer=None))


def score_outputs(scored: Scored) -> tuple[str, ...]:
    """Render the values of `SCORE_OUTPUTS`."""
    return tuple(render(scored) for render in SCORE_OUTPUTS.values())


SCORE_OUTPUTS = {"score": score_view, "text": text_view}
