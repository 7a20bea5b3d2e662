"""What is happening, in one line that screen readers announce."""

from .jobs import Update
from .markup import escape


def status(sentence: str, share: float | None = None) -> str:
    bar = (
        ""
        if share is None
        else (f'<progress max="100" value="{100 * share:.0f}" aria-label="Tokens read"></progress>')
    )
    return f'<div class="ps-status" role="status"><p>{escape(sentence)}</p>{bar}</div>'


def progress(update: Update) -> str:
    return status(update.sentence, update.share)


def alert(sentence: str) -> str:
    """A refusal, announced at once."""
    return f'<div class="ps-status" role="alert"><p class="ps-alert">{escape(sentence)}</p></div>'
