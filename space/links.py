"""Links to the page that contain a text: compressed, after the #, which no server receives.

What is behind the # stays in the visitor's browser until the page's script hands it over.
"""

import base64
import binascii
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from .gate import NAME
from .limits import Limits, Refused, whole_characters
from .models import BUNDLED, ROUNDED
from .settings import Settings, check_settings

TEXT, CONTEXT = "text", "context"
MODELS, STRIDES, TOOLS = "models", "strides", "tools"  # tabs that a link can open
# Browsers and messengers cut longer links.
MOST_CHARACTERS = 4096


def link(settings: Settings, text: str, comparison: Mapping[str, str] | None = None) -> str:
    """Write the address of the page with these settings, and with text and context if they fit.

    Args:
        comparison: what to open, see `read_comparison`.
    """
    space = os.environ.get("SPACE_ID")
    # A Space is shown inside the Hub's page, and that one has the address to share.
    page = f"https://huggingface.co/spaces/{space}" if space else ""
    address = f"{page}{settings.link()}{'&' + urlencode(comparison) if comparison else ''}"
    whole = f"{address}#{TEXT}={pack(text)}"
    if settings.context:
        whole += f"&{CONTEXT}={pack(settings.context)}"
    return whole if len(whole) <= MOST_CHARACTERS else address


def has_text(address: str) -> bool:
    """Return whether a link carries its text."""
    return f"#{TEXT}=" in address


def pack(text: str) -> str:
    """Compress a text into letters, digits, - and _, which every link may have."""
    squeezed = zlib.compress(text.encode(), 9, wbits=-15)
    return base64.urlsafe_b64encode(squeezed).decode().rstrip("=")


def unpack(behind: str, limits: Limits) -> dict[str, str]:
    """Read `TEXT` and `CONTEXT` from the fragment of a link, if present.

    Raises:
        Refused: it was cut or changed, or a text is too long for the page.
    """
    parts = (part.partition("=") for part in (behind or "").removeprefix("#").split("&"))
    return {
        key: _unpack(packed, limits)
        for key, sign, packed in parts
        if sign and key in (TEXT, CONTEXT)
    }


def _unpack(packed: str, limits: Limits) -> str:
    most = 4 * limits.characters  # bytes, in UTF-8
    try:
        squeezed = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", True)
        opened = zlib.decompressobj(wbits=-15)
        data = opened.decompress(squeezed, most)  # however much was squeezed into it
        if not opened.eof:
            raise Refused("The text in the link is incomplete, or too long for this page.")
        return whole_characters(data.decode(), "text in the link")
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused("The text in the link is broken. Copy the whole link.") from None


def read_link(
    query: Mapping[str, str], model: str, protocols: Sequence[str]
) -> tuple[Settings | None, list[str]]:
    """Read settings from the query of a link.

    Args:
        model: the bundled one, which is no name on the Hub.

    Returns:
        settings, None where the link has none that make sense; and a sentence for each setting that
        makes none and is left out.
    """
    settings, taken, remarks = Settings(model), False, []
    for name in ("protocol", "model", "window", "stride", "start"):
        if name not in query:
            continue
        try:
            value = _read_value(name, query[name], model)
            settings = check_settings(replace(settings, **{name: value}), protocols)
            taken = True
        except Refused as refusal:
            remarks.append(f"{refusal} The link's {name} is ignored.")
    return (settings if taken else None), remarks


def read_comparison(query: Mapping[str, str]) -> tuple[str | None, str | None, list[str]]:
    """Read which comparison a link opens, and with which other model.

    Returns:
        `MODELS`, `STRIDES`, `TOOLS` or None; the other model or None; and a sentence for what makes
        no sense and is left out.
    """
    compare, other, remarks = query.get("compare"), query.get("other"), []
    if compare is not None and compare not in (MODELS, STRIDES, TOOLS):
        remarks.append("There is no such comparison. The link's compare is ignored.")
        compare = None
    if other is not None and not (other in (BUNDLED, ROUNDED) or NAME.fullmatch(other)):
        remarks.append("The other model in the link is not the name of a model and is ignored.")
        other = None
    return compare, other, remarks


def _read_value(name: str, value: str, model: str) -> str | int:
    if name == "model" and value != model and not NAME.fullmatch(value):
        raise Refused("The model in the link is not the name of a model.")
    if name not in ("window", "stride"):
        return value
    fewest = 2 if name == "window" else 1
    if not (value.isascii() and value.isdigit() and len(value) < 7 and int(value) >= fewest):
        raise Refused(f"The {name} in the link is not a number of tokens, at least {fewest}.")
    return int(value)
