"""What pins a number down: signature, digest of the text, link."""

from perplexity_sliding.views.markup import escape, number, payload

from .card import card
from .links import has_text, link
from .service import Scored
from .sharing import digest


def cite_view(scored: Scored) -> str:
    address, context = link(scored.settings, scored.text), scored.settings.context
    read = "this text, its context" if context else "this text"
    carried = f"{read} and these settings" if has_text(address) else "these settings"
    opened = (
        "Opened, it scores by itself."
        if has_text(address)
        else "The text is too long for a link: whoever opens it pastes the text there."
    )
    before = f"<p>And of the context before it:</p>{_code(digest(context))}" if context else ""
    return (
        f'<div class="ps-view" data-of="{escape(scored.settings.mark(scored.text))}">'
        f'<p><a class="ps-link" href="{escape(address)}" target="_blank" rel="noopener">A link to '
        f"this page with {carried}</a>. {opened}</p>"
        "<p>Quote the number with its signature: it names the model, its exact "
        "weights, the windows and the versions. Equal signatures and texts give equal numbers.</p>"
        f"{_code(scored.result['signature'])}"
        "<p>SHA-256 of the text, as <code>sha256sum text.txt</code> prints it for the file text.txt:</p>"
        f"{_code(digest(scored.text))}{before}</div>"
    )


def _code(words: str) -> str:
    return f'<p class="ps-signature"><code>{escape(words)}</code></p>'


def picture_view(scored: Scored) -> str:
    """Show the card; the script saves it as pixels, in the visitor's own fonts."""
    of = f"{scored.loaded.name}, perplexity {number(scored.result['perplexity'])}"
    return (
        f'<div class="ps-view" data-view="picture" data-payload={payload({"card": card(scored)})}>'
        f'<img class="ps-picture-card" alt="Card: {escape(of)}">'
        '<p><button type="button" class="ps-button">Save as PNG</button> '
        '<button type="button" class="ps-button">Save as SVG</button></p></div>'
    )
