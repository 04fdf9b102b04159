"""Authentication before a request's body is read, and limits on the time that a body takes.

The framework reads a body before it asks who sends it. A stranger could so have any number of
bodies kept, and requests that never end.
"""

import asyncio
import time
from collections import Counter
from http import HTTPStatus
from typing import Any, Final

import h11
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.entrance.authentication import bearer_token, identify
from api.web.problems import Problem, problem_response
from mqlake.security.networks import network_of

HEAD_SECONDS: Final = 10.0
"""For a request's line and headers."""
BODY_SECONDS: Final = 30.0
"""From one part of a body to the next, of a caller who is known."""
LOGIN_SECONDS: Final = 10.0
UNREAD_SECONDS: Final = 30.0
"""For what is on its way of an answer: some 64 KiB, and what the operating system keeps."""
MAX_CONNECTIONS: Final = 1_000
"""Most connections of all clients; one of the address that has most makes room for another."""
MAX_LOGIN_BYTES: Final = 64 * 1024
"""For the body of a login: whose it is, it says itself."""

_CLOSE: Final = {"Connection": "close"}
"""Headers of an answer to a request whose body is not read."""


class Entrance:
    """Middleware for requests with a body.

    Args:
        app: Answers the others.
        prefix: Prefix of the API's paths; elsewhere no body is read.
    """

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app = app
        self._prefix = f"{prefix}/"
        self._login = f"{prefix}/login"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        if headers is None or not _has_body(headers) or not scope["path"].startswith(self._prefix):
            await self._app(scope, receive, send)
            return
        is_login = scope["path"] == self._login
        if not is_login:
            connection = HTTPConnection(scope)
            try:
                identify(connection, bearer_token(connection))
            except Problem as problem:
                answer = problem_response(
                    problem.status,
                    problem.detail,
                    {**(problem.headers or {}), **_CLOSE},
                    problem.code,
                )
                await answer(scope, receive, send)
                return
        body = _Body(receive, is_login=is_login)
        await self._app(scope, body.receive, body.sender(scope, send))


class _Body:
    """A body while it comes; a problem that ends it early is the answer in any case."""

    def __init__(self, receive: Receive, *, is_login: bool) -> None:
        self._receive = receive
        self._is_login = is_login
        self._ends_at = asyncio.get_running_loop().time() + LOGIN_SECONDS
        self._left = MAX_LOGIN_BYTES
        self._is_whole = False
        self._problem: Problem | None = None

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        loop = asyncio.get_running_loop()
        until = self._ends_at if self._is_login else loop.time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(until):
                message = await self._receive()
        except TimeoutError:
            return self._end(HTTPStatus.REQUEST_TIMEOUT, "the body of the request does not come")
        if self._is_login:
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                reason = f"the body of a login has at most {MAX_LOGIN_BYTES} bytes"
                return self._end(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        self._is_whole = not message.get("more_body", False)
        return message

    def sender(self, scope: Scope, send: Send) -> Send:
        """Return a function that sends answers, or the problem in their place."""
        is_answered = False

        async def send_or_refuse(message: Message) -> None:
            nonlocal is_answered
            if self._problem is None:
                await send(message)
            elif not is_answered:
                is_answered = True
                problem = self._problem
                answer = problem_response(problem.status, problem.detail, _CLOSE, problem.code)
                await answer(scope, self._receive, send)

        return send_or_refuse

    def _end(self, status: HTTPStatus, reason: str) -> Message:
        self._is_whole = True
        self._problem = Problem(status, reason)
        return {"type": "http.disconnect"}


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


class TimedProtocol(H11Protocol):
    """A connection of uvicorn's that is cut when the other side takes too long.

    That is: to send the head of a request, or to read an answer.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head: asyncio.TimerHandle | None = None
        self._silent_since = 0.0
        self._unread: asyncio.TimerHandle | None = None
        self._network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._network = network_of(self.client[0]) if self.client else ""
        self._start()
        if len(self.connections) > MAX_CONNECTIONS:
            self._first_to_go().transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._head is None and self.conn.trailing_data[0]:
            self._start()  # a further request has begun

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_SECONDS, self._cut)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_unread()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop()
        self._stop_unread()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._silent_since = time.monotonic()
        super().on_response_complete()

    def _first_to_go(self) -> "TimedProtocol":
        """Return the connection that makes room for this one: of the address that has most.

        Of those it is the one that has asked nothing for longest. If all of them wait for answers
        it is this one, if it is of that address, else the oldest.
        """
        found = [one for one in self.connections if isinstance(one, TimedProtocol)]
        counts = Counter(one._network for one in found)
        most = max(counts, key=lambda network: (counts[network], network == self._network))
        those = [one for one in found if one._network == most]
        idle = [one for one in those if one.conn.their_state is h11.IDLE]
        if not idle and most == self._network:
            return self
        return min(idle or those, key=lambda one: one._silent_since)

    def _start(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._cut)
        self._silent_since = time.monotonic()

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut(self) -> None:
        self._head = self._unread = None
        self.transport.abort()
