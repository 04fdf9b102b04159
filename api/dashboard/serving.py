"""Serves the dashboard's files as they lie in `static/`: there is nothing to build.

They hold no data of any system, so everybody may have them; their requests to the API need a login.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from gzip import compress
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from api.clients.presence import Presence
from api.web.problems import Problem
from api.wiring.dependencies import Heard, Settings
from mqlake.errors import OperationalError
from mqlake.processes.status import read_state

router = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/"
INDEX: Final = "index.html"
_STATIC: Final = Path(__file__).parent / "static"
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_COMPRESSION_LEVEL: Final = 6
_CACHING: Final = "no-cache"
"""A browser keeps the files and asks whether they are still the same: names have no versions."""

_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
"""Host of a source of the policy, which knows no addresses of IPv6."""
_EVERYWHERE: Final = frozenset({"*", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class File:
    """One file, ready to be sent."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """Return the files by their paths below `static/`."""
    return {
        path.relative_to(_STATIC).as_posix(): _read(path)
        for path in sorted(_STATIC.rglob("*"))
        if path.suffix in _MEDIA_TYPES
    }


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(
        content=content,
        compressed=compress(content, _COMPRESSION_LEVEL, mtime=0),
        media_type=_MEDIA_TYPES[path.suffix],
        etag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    )


def policy(more_connections: Iterable[str] = ()) -> str:
    """Return the Content-Security-Policy.

    Args:
        more_connections: Sources that the pages may connect to, beside the API itself.
    """
    parts = {**_POLICY, "connect-src": " ".join((_POLICY["connect-src"], *more_connections))}
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def websocket_sources(
    gateways: Iterable[Presence], host: str, entrances: Iterable[str] = ()
) -> list[str]:
    """Return gateways' addresses for MQTT over WebSocket, as sources of the policy.

    Args:
        gateways: Their last heartbeats.
        host: Host of the page: a gateway that listens on all addresses is reached there.
        entrances: Addresses of a balancer.
    """
    found = set()
    urls = [url for gateway in gateways for url in gateway.heartbeat.listeners]
    for url in (*urls, *entrances):
        address = urlsplit(url)
        if address.scheme in ("ws", "wss"):
            name = host if address.hostname in _EVERYWHERE else address.hostname or ""
            if _HOST.fullmatch(name):
                found.add(f"{address.scheme}://{name}:{address.port}")
    return sorted(found)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route(PATH.rstrip("/"), methods=["GET", "HEAD"])
def get_start() -> RedirectResponse:
    return RedirectResponse(PATH, HTTPStatus.TEMPORARY_REDIRECT)


@router.api_route(PATH, methods=["GET", "HEAD"])
def get_index(request: Request, gateways: Heard, settings: Settings) -> Response:
    try:
        entrances = read_state(settings.data_dir).entrances
    except OperationalError:
        entrances = ()
    sources = websocket_sources(gateways.all(), request.url.hostname or "", entrances)
    return _send(request, files()[INDEX], policy(sources))


@router.api_route(PATH + "{path:segments}", methods=["GET", "HEAD"])
def get_file(request: Request, path: str) -> Response:
    found = files().get(path)
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"the dashboard has no file {path!r}")
    return _send(request, found, policy())


def _send(request: Request, file: File, security_policy: str) -> Response:
    headers = {
        "Cache-Control": _CACHING,
        "Content-Security-Policy": security_policy,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if file.etag in request.headers.get("If-None-Match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    content = file.content
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        content = file.compressed
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type=file.media_type, headers=headers)
