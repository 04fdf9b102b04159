"""Around every request: its identifier, the headers that all answers have, a line in the log."""

import logging
import re
import secrets
import time
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem_response
from api.prometheus import RequestMetrics

_logger = logging.getLogger(__name__)

REQUEST_ID_HEADER: Final = "X-Request-ID"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SERVER_ERROR: Final = 500

SECURITY_HEADERS: Final[dict[str, str]] = {
    "Cache-Control": "no-store",
    # Answers of the API are data; nothing in them is ever to be run or shown in a frame.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Defaults; a route may set others."""


class RequestContext:
    """Middleware for all requests.

    Args:
        app: Answers them.
        is_logging: Write a line for each, not only for those that fail because of us.
        metrics: Counts them.
        hsts_seconds: For how long browsers are to come by TLS alone; 0: they are not told.
    """

    def __init__(
        self, app: ASGIApp, *, is_logging: bool, metrics: RequestMetrics, hsts_seconds: int = 0
    ) -> None:
        self._app = app
        self._headers = dict(SECURITY_HEADERS)
        if hsts_seconds:
            self._headers["Strict-Transport-Security"] = f"max-age={hsts_seconds}"
        self._level = logging.INFO if is_logging else logging.DEBUG
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["mqlake.request_id"] = request_id
        started_at = time.monotonic()
        status = 0
        answered_at = 0.0
        is_answered = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, answered_at, is_answered
            if is_answered:
                return
            answered_at = answered_at or time.monotonic()
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                headers = MutableHeaders(scope=message)
                if _is_too_large(status, headers):
                    await _TOO_LARGE(scope, receive, send_with_headers)
                    is_answered = True
                    return
                headers[REQUEST_ID_HEADER] = request_id
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            _logger.exception("request failed", extra={"fields": _fields(scope, _SERVER_ERROR)})
            if status or scope["type"] == "websocket":
                status = status or _SERVER_ERROR
                raise
            answer = problem_response(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "an unexpected error; the API's log has the details",
            )
            await answer(scope, receive, send_with_headers)
        else:
            if _logger.isEnabledFor(self._level):
                fields = _fields(scope, status)
                fields["ms"] = round((time.monotonic() - started_at) * 1000, 1)
                _logger.log(self._level, "request", extra={"fields": fields})
        finally:
            taken = (answered_at or time.monotonic()) - started_at
            self._metrics.add(scope, status, taken)


_TOO_LARGE: Final = problem_response(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body of the request is larger than is taken here"
)


def _is_too_large(status: int, headers: Headers) -> bool:
    """Tell whether the framework answers, in words of its own, that a body is beyond its limit."""
    is_text = headers.get("content-type", "").startswith("text/plain")
    return status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and is_text


def _fields(scope: Scope, status: int) -> dict[str, object]:
    return {
        "request_id": scope["mqlake.request_id"],
        "caller": scope.get("mqlake.caller", ""),
        "method": scope.get("method", "WebSocket"),
        "path": scope["path"],
        "status": status,
    }
