"""Around every request: its identifier, the headers that all answers have, a line in the log."""

import logging
import re
import secrets
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.web.problems import problem_response
from api.web.prometheus import RequestMetrics
from api.web.segments import plain

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
        hsts_seconds: For how long browsers are to come by TLS alone; 0: the header is not sent.
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
        is_usable = _REQUEST_ID.fullmatch(given) is not None
        scope["mqlake.request_id"] = given if is_usable else secrets.token_hex(8)
        answer = _Answer(scope, receive, send, self._headers)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            _logger.exception("request failed", extra={"fields": _fields(scope, _SERVER_ERROR)})
            if answer.status or scope["type"] == "websocket":
                answer.status = answer.status or _SERVER_ERROR
                raise
            mistake = problem_response(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "an unexpected error; the API's log has the details",
            )
            await mistake(scope, receive, answer.send)
        else:
            if _logger.isEnabledFor(self._level):
                fields = _fields(scope, answer.status)
                fields["ms"] = round((time.monotonic() - answer.asked_at) * 1000, 1)
                _logger.log(self._level, "request", extra={"fields": fields})
        finally:
            taken = (answer.answered_at or time.monotonic()) - answer.asked_at
            self._metrics.add(scope, answer.status, taken)


class _Answer:
    """Answer to a client; its beginning gets the headers that all answers have.

    Attributes:
        asked_at: Monotonic seconds.
        answered_at: When it began; 0: not yet.
        status: 0: it has not begun.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers = headers
        self._is_over = False
        self.asked_at = time.monotonic()
        self.answered_at = 0.0
        self.status = 0

    async def send(self, message: Message) -> None:
        if self._is_over:
            return
        self.answered_at = self.answered_at or time.monotonic()
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            if _is_too_large(self.status, headers):
                await _TOO_LARGE(self._scope, self._receive, self.send)
                self._is_over = True
                return
            headers[REQUEST_ID_HEADER] = self._scope["mqlake.request_id"]
            for name, value in self._headers.items():
                headers.setdefault(name, value)
        await self._send(message)


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
        "path": plain(scope["path"]),
        "status": status,
    }
