"""The windows over a text, in words."""

from .markup import count, escape
from .protocols import guide
from .service import Scored


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


def sketch(window: int, stride: int | None, protocol: str = "sliding") -> str:
    """What window and stride mean for any long text; for another tool's protocol, its idea."""
    if protocol != "sliding":
        idea = escape(guide(protocol).idea)
        return f'<p class="ps-view ps-sketch"><b>{escape(protocol)}.</b> {idea}</p>'
    stride = stride or window
    # A window of w places reads w - 1 tokens and scores the one after; without overlap it reads all.
    read = window if stride == window else window - 1
    return (
        f'<p class="ps-view ps-sketch">After the first window, every token has at least '
        f"<b>{count(max(1, window - stride), 'token')}</b> of context, and the model reads the text "
        f"about <b>{read / stride:.1f} times</b> over.</p>"
    )
