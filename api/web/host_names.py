"""Host names by which requests may ask for the API.

A page of any site may let a name of its own lead to this machine (DNS rebinding): then a browser
takes the API for a part of that site, and its scripts may send requests that need no login, and
try passwords. So where the API listens on this machine alone, it answers to addresses, `localhost`
and the names of its settings. Elsewhere, and behind a proxy, names are for others to check.
"""

from collections.abc import Collection
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.web.problems import problem_response
from mqlake.security.addresses import names_this_machine

_POLICY_VIOLATION: Final = 1008


class HostNames:
    """Middleware that refuses requests by a name that is not the API's.

    Args:
        app: Answers the others.
        names: Beside addresses and `localhost`; None: any name.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str] | None) -> None:
        self._app = app
        self._names = None if names is None else frozenset(one.lower() for one in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._names is None or scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if names_this_machine(host, self._names):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            reason = f"{host[:255]!r} is no name of this API: see host_names in conf/api.toml"
            await problem_response(HTTPStatus.MISDIRECTED_REQUEST, reason)(scope, receive, send)
