"""Web pages that may open a WebSocket: a browser says of which origin a page is, others nothing.

A page of any site may ask its visitor's browser for a WebSocket to the visitor's own machine, and
the browser asks no one. Nor does a name in the Host header say much: its owner lets it lead to any
address (DNS rebinding). So without a list only pages of the very host that was asked for may
connect, and only where that is an address, or `localhost`.
"""

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

ALL_ORIGINS: Final = "*"
"""In a list of origins: pages of any site."""

_LOOPBACK: Final = "localhost"


def is_welcome(origin: str | None, host: str, listed: Collection[str]) -> bool:
    """Tell whether a page may connect.

    Args:
        origin: The request's Origin header; None: it has none, so it comes from no browser.
        host: Its Host header.
        listed: Origins that may connect, as browsers write them; empty: the listener's own host.
    """
    if origin is None or ALL_ORIGINS in listed:
        return True
    if listed:
        return origin in listed
    page = _machine(origin)
    return page is not None and page == _machine(f"//{host}")


def _machine(url: str) -> str | None:
    """Return which machine a URL names by itself; None for a name that leads anywhere."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # an address in brackets that is none
        return None
    if host == _LOOPBACK:
        return _LOOPBACK
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return _LOOPBACK if address.is_loopback else str(address)
