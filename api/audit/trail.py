"""Each request for a change is a record of the log, which has it before the answer is sent.

The authentication notes the caller (`begin_attempt`); the middleware adds the result.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.audit.states import masked_request, state_at
from api.audit.tenants import Subject, Tenants, tenant_in, tenants_now, tenants_of_change
from api.settings import PREFIX
from api.web.segments import plain
from api.wiring.dependencies import services_of
from mqlake.records.access import Role
from mqlake.records.audit import AuditRecord
from mqlake.records.tenants import DEFAULT_TENANT

_ATTEMPT: Final = "mqlake.attempt"
"""In the scope of a request."""
_SERVER_ERROR: Final = 500


@dataclass(slots=True)
class _Attempt:
    """A request for a change, before it is answered."""

    caller: str
    role: Role | None
    credential: str
    asked: Any
    before: Any
    caller_tenants: Tenants
    tenants_before: Tenants


async def begin_attempt(
    request: Request, caller: str, role: Role | None, credential: str, tenants: Tenants
) -> None:
    """Note a request for a change, and the state before it.

    Args:
        request: Its body is read again if the operation has described it.
        caller: Name of the caller; of a login, the name that it claims.
        role: None: he has not shown it yet.
        credential: Its kind: token, key, session or password.
        tenants: Tenants of the caller; None: all, or he is not known yet.
    """
    route = request.scope["route"]
    fields = route.dependant.body_params
    asked = None
    if fields:
        asked = masked_request(fields[0].field_info.annotation, await request.body())
    before = _state(request.scope)
    attempt = _Attempt(caller, role, credential, asked, before, tenants, None)
    attempt.tenants_before = _tenants(request.scope, attempt)
    request.scope[_ATTEMPT] = attempt


def known_as(request: Request, caller: str, role: Role, tenants: Tenants) -> None:
    """Note the caller, role and tenants that a login has proved."""
    attempt: _Attempt = request.scope[_ATTEMPT]
    attempt.caller, attempt.role, attempt.caller_tenants = caller, role, tenants
    attempt.tenants_before = tenants


class AuditTrail:
    """Middleware for all requests.

    Args:
        app: Answers them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_told = False

        async def tell(status: int) -> None:
            nonlocal is_told
            attempt: _Attempt | None = scope.get(_ATTEMPT)
            if attempt is None or is_told:
                return
            is_told = True
            audit_log = services_of(HTTPConnection(scope)).audit_log
            record = _record(scope, attempt, status, audit_log.now_ms())
            await asyncio.to_thread(audit_log.write, record)

        async def send_when_told(message: Message) -> None:
            if message["type"] == "http.response.start":
                await tell(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_when_told)
        except Exception:
            await tell(_SERVER_ERROR)
            raise


def _record(scope: Scope, attempt: _Attempt, status: int, now_ms: int) -> AuditRecord:
    query = scope["query_string"].decode(errors="replace")
    path = plain(scope["path"]).removeprefix(PREFIX)
    client = scope.get("client")
    return AuditRecord(
        ts=now_ms,
        tenant=_tenant(scope) or DEFAULT_TENANT,
        tenants=tenants_of_change(attempt.tenants_before, _tenants(scope, attempt)),
        caller=attempt.caller,
        role=attempt.role,
        credential=attempt.credential,
        address="" if client is None else client[0],
        agent=Headers(scope=scope).get("user-agent", ""),
        request_id=scope.get("mqlake.request_id", ""),
        operation=f"{scope['method']} {_operation(scope)}",
        target=f"{path}?{query}" if query else path,
        status=status,
        asked=attempt.asked,
        before=attempt.before,
        after=_state(scope),
    )


def _operation(scope: Scope) -> str:
    """Return the path that the operation has in the OpenAPI document, without the prefix."""
    path: str = scope["route"].path_format
    return path.removeprefix(PREFIX)


def _state(scope: Scope) -> Any:
    services = services_of(HTTPConnection(scope))
    tenant = _tenant(scope) or DEFAULT_TENANT
    return state_at(_operation(scope), services, scope["path_params"], tenant)


def _tenants(scope: Scope, attempt: _Attempt) -> Tenants:
    subject = Subject(
        path=_operation(scope),
        parameters=scope["path_params"],
        tenant=_tenant(scope),
        asked=attempt.asked,
        caller=attempt.caller,
        caller_tenants=attempt.caller_tenants,
    )
    return tenants_now(services_of(HTTPConnection(scope)), subject)


def _tenant(scope: Scope) -> str | None:
    """Return the tenant that is asked for; None: the operation lacks such a parameter."""
    if all(one.name != "tenant" for one in scope["route"].dependant.query_params):
        return None
    return tenant_in(scope["query_string"].decode(errors="replace"))
