"""What pins a number down: signature, digest of the text, link."""

from .links import has_text, link
from .markup import escape
from .service import Scored
from .sharing import digest


def cite_view(scored: Scored) -> str:
    address = link(scored.settings, scored.text)
    carried = "with this text and these settings" if has_text(address) else "with these settings"
    without = "" if has_text(address) else " (without the text, which is too long for a link)"
    return (
        '<div class="ps-view"><p>Quote the number with its signature: it names the model, its exact '
        "weights, the windows and the versions. Equal signatures and texts give equal numbers.</p>"
        f'<p class="ps-signature"><code>{escape(scored.result["signature"])}</code></p>'
        "<p>SHA-256 of the text, as <code>sha256sum text.txt</code> prints it for the file below:</p>"
        f'<p class="ps-signature"><code>{digest(scored.text)}</code></p>'
        f'<p><a class="ps-link" href="{escape(address)}" target="_blank" rel="noopener">A link to '
        f"this page {carried}</a>{without}. Opened, it scores by itself.</p></div>"
    )
