"""Explanation of window and stride."""

from perplexity_sliding.views.markup import count, escape

from .protocols import guide


def sketch(window: int, stride: int | None, protocol: str = "sliding") -> str:
    """Explain window and stride for a long text, or a tool's protocol."""
    if not guide(protocol).slides:
        idea = escape(guide(protocol).idea)
        return f'<p class="ps-view ps-sketch"><b>{escape(protocol)}.</b> {idea}</p>'
    stride = stride or window
    # Windows without overlap also score the token after their last, from its row.
    least, most = (1, window) if stride == window else (window - stride, window - 1)
    between = f"{least:,} to {most:,} tokens" if least < most else count(least, "token")
    more = (
        f" Stride {window:,} leaves more: windows that do not overlap also score the token after them."
        if stride == window - 1
        else ""
    )
    return (
        f'<p class="ps-view ps-sketch">After the first window, every token has <b>{between}</b> of '
        f"context.{more}</p>"
    )
