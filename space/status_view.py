"""The status line; screen readers announce its start and end."""

from perplexity_sliding.views.markup import escape

from .jobs import Update


def status(sentence: str, share: float | None = None) -> str:
    """Show a sentence; one with a share changes often, and is not read out each time."""
    if share is None:
        return f'<div class="ps-status" role="status"><p>{escape(sentence)}</p></div>'
    return (
        f'<div class="ps-status"><p>{escape(sentence)}</p><progress max="100" '
        f'value="{100 * share:.0f}" aria-label="Tokens read"></progress></div>'
    )


def progress(update: Update) -> str:
    return status(update.sentence, update.share)


def alert(sentence: str) -> str:
    """Show a refusal, announced at once."""
    return f'<div class="ps-status" role="alert"><p class="ps-alert">{escape(sentence)}</p></div>'
