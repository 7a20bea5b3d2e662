"""The drawer that shares a result: link, picture, message and citation."""

from perplexity_sliding.views.markup import escape, payload

from .links import has_text
from .takeaway import Takeaway


def share_view(taken: Takeaway) -> str:
    """Write the drawer; the script draws the picture and copies to the clipboard."""
    return (
        f'<div class="ps-view" data-view="share" data-of="{escape(taken.mark)}" '
        f"data-payload={payload({'picture': taken.picture})}><h3>Link</h3>{_link(taken.address)}"
        f'<h3>Picture</h3><img class="ps-picture-card" alt="{escape(taken.friend)}">'
        '<p class="ps-actions"><button type="button" class="ps-button" data-save="png">Save as PNG</button>'
        '<button type="button" class="ps-button" data-save="svg">Save as SVG</button></p>'
        f"<h3>For a friend</h3>{_copied(taken.friend, 'sentence', 'ps-friend')}"
        '<details class="ps-more" data-keep="papers"><summary>For a paper</summary>'
        f"<h3>Sentence</h3>{_copied(taken.paper, 'sentence for a paper')}"
        "<p>A signature names the model, its exact weights, the windows and the versions; equal signatures, "
        f"probes and texts give equal numbers.</p>{''.join(map(_code, taken.signatures))}"
        f"<p>SHA-256 of the text, as <code>sha256sum</code> prints it for the file:</p>"
        f"{''.join(_code(f'{digest}  {name}.txt') for name, digest in taken.texts.items())}"
        f"<h3>BibTeX</h3>{_copied(taken.bibtex, 'BibTeX')}<h3>Python</h3>{_copied(taken.python, 'Python')}"
        f"<h3>Shell</h3>{_copied(taken.shell, 'shell commands')}</details></div>"
    )


def share_button(address: str) -> str:
    """Write the button from a comparison to the drawer, with the comparison's address."""
    return (
        f'<div class="ps-view ps-share" data-address="{escape(address)}">'
        '<button type="button" class="ps-button" data-open="share">Share</button></div>'
    )


def _link(address: str) -> str:
    said = (
        "The link scores the text when it is opened."
        if has_text(address)
        else "The text is too long for a link: paste it into the page that the link opens."
    )
    return (
        f'<div class="ps-copy"><a class="ps-link" data-text href="{escape(address)}" target="_blank" '
        f'rel="noopener">{escape(address)}</a>{_copy("link")}</div><p class="ps-note">{said}</p>'
    )


def _copied(words: str, name: str, kind: str = "") -> str:
    return f'<div class="ps-copy {kind}"><code data-text>{escape(words)}</code>{_copy(name)}</div>'


def _copy(name: str) -> str:
    return f'<button type="button" class="ps-button" data-copy aria-label="Copy the {name}">Copy</button>'


def _code(words: str) -> str:
    return f'<p class="ps-signature"><code>{escape(words)}</code></p>'
