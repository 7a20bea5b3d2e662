"""The windows over a text, in words."""

from .markup import count, escape
from .protocols import guide
from .service import Scored


def plan_words(scored: Scored) -> str:
    """The plan in words, from what was really run."""
    tokens, windows = scored.tokens, scored.tokens["windows"]
    length = len(tokens["tokens"])
    read = scored.result["num_forward_tokens"]
    texts, have = ("Context and text", "have") if scored.settings.context else ("The text", "has")
    words = (
        f"{texts} {have} {count(length, 'token')}, and the model reads {'it' if length == 1 else 'them'} in "
        f"{count(len(windows), 'window')} of up to {count(scored.settings.window, 'token')}. "
        f"In all it reads {count(read, 'token')}, {read / max(1, length):.1f} × {texts.lower()}."
    )
    later = [tokens["context_length"][w["first"]] for w in windows[1:]]
    if later:
        words += (
            f" After the first window, every scored token has at least "
            f"{count(min(later), 'token')} of context before it."
        )
    unscored = tokens["nll"].count(None) - scored.num_context_tokens
    if unscored:
        words += (
            f" {count(unscored, 'token')} {'is' if unscored == 1 else 'are'} not scored at all."
        )
    return words


def sketch(window: int, stride: int | None, protocol: str = "sliding") -> str:
    """What window and stride mean for any long text; for another tool's protocol, its idea."""
    if not guide(protocol).slides:
        idea = escape(guide(protocol).idea)
        return f'<p class="ps-view ps-sketch"><b>{escape(protocol)}.</b> {idea}</p>'
    stride = stride or window
    # Windows without overlap also score the token after their last, from its row.
    least, most = (1, window) if stride == window else (window - stride, window - 1)
    # A window of w places reads w - 1 tokens and scores the one after; without overlap it reads all.
    read = window if stride == window else window - 1
    between = f"{least:,} to {most:,} tokens" if least < most else count(least, "token")
    more = (
        f" Stride {window:,} leaves more: windows that do not overlap also score the token after them."
        if stride == window - 1
        else ""
    )
    return (
        f'<p class="ps-view ps-sketch">After the first window, every token has <b>{between}</b> of '
        f"context, and the model reads the text about <b>{read / stride:.1f} times</b> over.{more}</p>"
    )
