"""The windows over a text: as a picture of this very text, and as a sketch beside the sliders."""

from .markup import count, escape, payload
from .protocols import guide
from .service import Scored
from .token_view import segment_data, text_segments, window_data

SKETCH_WINDOWS = 4


def plan_view(scored: Scored) -> str:
    """The frame of the picture, which the page's script draws and moves."""
    windows = scored.tokens["windows"]
    segments, text = text_segments(scored)
    data = {
        "windows": window_data(scored),
        "segments": segment_data(segments),
        "pieces": [text[s.start : s.end] for s in segments],
        "length": len(scored.tokens["tokens"]),
    }
    return (
        f'<div class="ps-view" data-view="plan" data-payload="{payload(data)}">'
        f"<p>{plan_words(scored)}</p>{key()}"
        '<div class="ps-bars" role="img" aria-label="Each bar is a window over the text, from left '
        'to right. The windows are described one by one below."></div>'
        '<div class="ps-steps"><button type="button" class="ps-button" data-step="play">Play</button>'
        '<button type="button" class="ps-button" data-step="-1" aria-label="Window before">◀</button>'
        f'<input type="range" min="1" max="{len(windows)}" value="1" aria-label="Window">'
        '<button type="button" class="ps-button" data-step="1" aria-label="Next window">▶</button>'
        '</div><p class="ps-says" role="status"></p>'
        '<div class="ps-strip" tabindex="0" role="group" aria-label="The text around this window; '
        'pointing at a token goes to the window that scored it"></div></div>'
    )


def plan_words(scored: Scored) -> str:
    """The plan in words, from what was really run."""
    tokens, windows = scored.tokens, scored.tokens["windows"]
    length = len(tokens["tokens"])
    read = scored.result["num_forward_tokens"]
    words = (
        f"The text has {count(length, 'token')}, and the model reads them in "
        f"{count(len(windows), 'window')} of up to {count(scored.settings.window, 'token')}. "
        f"In all it reads {count(read, 'token')}, {read / max(1, length):.1f} × the text."
    )
    later = [tokens["context_length"][w["first"]] for w in windows[1:]]
    if later:
        words += (
            f" After the first window, every scored token has at least "
            f"{count(min(later), 'token')} of context before it."
        )
    unscored = tokens["nll"].count(None)
    if unscored:
        words += (
            f" {count(unscored, 'token')} {'is' if unscored == 1 else 'are'} not scored at all."
        )
    return words


def key() -> str:
    return (
        '<ul class="ps-key"><li><i class="ps-context"></i>context: read, not scored</li>'
        '<li><i class="ps-new"></i>scored in this window</li>'
        '<li><i class="ps-out"></i>out of sight</li></ul>'
    )


def sketch(window: int, stride: int | None, protocol: str = "sliding") -> str:
    """What window and stride do, for a text of a few windows, as bars; or the protocol in words."""
    idea = f"<p>{escape(guide(protocol).idea)}</p>"
    if protocol != "sliding":
        return f'<div class="ps-view ps-sketch"><p><b>{escape(protocol)}.</b></p>{idea}</div>'
    stride = stride or window
    span = window + (SKETCH_WINDOWS - 1) * stride
    bars = "".join(
        _bar(k * stride, window, stride if k else window, span) for k in range(SKETCH_WINDOWS)
    )
    least = max(1, window - stride)
    return (
        f'<div class="ps-view ps-sketch"><div role="img" aria-label="Four windows of {window} tokens, '
        f'{stride} apart">{bars}</div>{sketch_key()}<p>From the second window on, every token '
        f"has at least <b>{count(least, 'token')}</b> of context, and the model reads the text about "
        f"<b>{window / stride:.1f} times</b> over.</p></div>"
    )


def sketch_key() -> str:
    return (
        '<ul class="ps-key"><li><i class="ps-context"></i>context</li>'
        '<li><i class="ps-new"></i>scored here</li></ul>'
    )


def _bar(begin: int, window: int, scored: int, span: int) -> str:
    context = window - scored
    return (
        '<div class="ps-row">'
        f'<i class="ps-context" style="left:{begin / span:.2%};width:{context / span:.2%}"></i>'
        f'<i class="ps-new" style="left:{(begin + context) / span:.2%};width:{scored / span:.2%}"></i>'
        "</div>"
    )
