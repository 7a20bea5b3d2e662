"""Identification of callers by their address.

It shares the machine fairly and protects nothing else.
"""

import ipaddress
import os

import gradio as gr


def address(request: gr.Request) -> str | None:
    """Return the address of a visitor; None if unknown.

    On a Space, every connection comes from the proxies in front of it.  Each of them adds to the end
    of the header where the request came from, so the last public address there is the visitor's:
    what a visitor writes into the header stands before it.  Elsewhere nothing in a header is believed.
    """
    client = getattr(request, "client", None)
    peer = client.host if client else None
    if os.environ.get("SPACE_ID"):
        told = request.headers.get("x-forwarded-for", "").split(",")
        public = [hop.strip() for hop in told if is_public(hop.strip())]
        return public[-1] if public else peer
    return peer


def is_public(hop: str) -> bool:
    """Return whether an address is public, and not a proxy's in a private network."""
    try:
        return ipaddress.ip_address(hop).is_global
    except ValueError:
        return False
