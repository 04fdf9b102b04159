"""Authentication and authorisation: by bearer token, API key or the session of a login.

`needs` says at a route which role it wants. Where nothing is said, a viewer may GET, and an editor
may do the rest.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from math import ceil
from typing import Annotated, Any, Final, cast
from urllib.parse import urlsplit

from fastapi import Depends, Request, WebSocket
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from api.access.authenticator import ApiAuthenticator
from api.access.callers import Caller
from api.access.limits import RateLimiter
from api.access.logins import WrongCredentials
from api.audit.trail import begin_attempt
from api.web.problems import Problem
from api.wiring.dependencies import services_of
from mqlake.errors import OperationalError
from mqlake.records.access import Role
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.security.networks import network_of

_logger = logging.getLogger(__name__)

COOKIE: Final = "mqlake_session"
"""Cookie of a session, if the API is asked without TLS."""
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""By TLS: browsers take such a name from this host alone, and by TLS alone."""
CSRF_HEADER: Final = "X-CSRF-Token"
SUBPROTOCOL: Final = "mqlake.v1"
"""Subprotocol of the API's WebSockets."""
BEARER_SUBPROTOCOL: Final = "bearer."
"""Followed by a token: where a browser's WebSocket, which sends no headers, can put one."""

ROLE_FIELD: Final = "x-role"
"""Field of an operation in the OpenAPI document: the role that it needs."""
AUDITED_FIELD: Final = "x-audited"
"""Field, too: requests for the operation are rows of the table `audit_log`."""
TOPICS_FIELD: Final = "x-topics"
"""Field, too: it is open to callers with rights to some topics alone."""
TENANTS_FIELD: Final = "x-tenants"
"""Field, too: it is open to callers for some tenants alone."""
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="an API key, or the token in <data-dir>/api-token",
)
_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="session",
    description=f"of POST /login, over https with the name {SECURE_COOKIE}; requests that change "
    f"something also need {CSRF_HEADER}",
)


def needs(role: Role) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose method does not tell its role."""
    return {ROLE_FIELD: role}


def is_by_tls(connection: HTTPConnection) -> bool:
    return connection.scope["scheme"] in ("https", "wss")


def cookie_of(connection: HTTPConnection) -> str:
    """Return the name that the cookie of a session has on a connection."""
    return SECURE_COOKIE if is_by_tls(connection) else COOKIE


def role_for(method: str, extra: dict[str, Any] | None) -> Role:
    """Return the role that an operation wants."""
    said = (extra or {}).get(ROLE_FIELD)
    return cast("Role", said) if said else ("viewer" if method.upper() in _READING else "editor")


def audited(*, is_audited: bool = True) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that is audited, or not, against method and role."""
    return {AUDITED_FIELD: is_audited}


def for_topics() -> dict[str, Any]:
    """Return the `openapi_extra` of a route that gives callers only data of their topics."""
    return {TOPICS_FIELD: True}


def for_tenants(*, is_open: bool = True) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose parameter `tenant` does not tell its tenant.

    Args:
        is_open: It gives callers for some tenants only data of these.
    """
    return {TENANTS_FIELD: is_open}


def is_for_tenants(extra: dict[str, Any] | None, *, names_one: bool) -> bool:
    """Tell whether an operation is open to callers for some tenants alone.

    Args:
        extra: The `openapi_extra` of its route.
        names_one: It has the parameter `tenant`.
    """
    return bool((extra or {}).get(TENANTS_FIELD, names_one))


def is_audited(method: str, extra: dict[str, Any] | None) -> bool:
    """Tell whether each request for an operation is a row of the table `audit_log`."""
    said = (extra or {}).get(AUDITED_FIELD)
    if said is not None:
        return bool(said)
    return method.upper() not in _READING and role_for(method, extra) != "viewer"


def identify(connection: HTTPConnection, token: str | None) -> Caller:
    """Return the caller: by the token if there is one, else by the cookie.

    Raises:
        Problem: The caller is unknown, or the keys cannot be looked up yet.
    """
    authenticator = authenticator_of(connection)
    try:
        caller = authenticator.identify(token, connection.cookies.get(cookie_of(connection)))
    except OperationalError as exc:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(exc), {"Retry-After": "1"}) from exc
    if caller is not None:
        return caller
    limit(authenticator.failures, network_of(address_of(connection)))
    sent = "" if token is None else "this system does not know this token or key (any more): "
    raise Problem(
        HTTPStatus.UNAUTHORIZED,
        f"{sent}send an API key, or the token in <data-dir>/api-token, as: "
        "Authorization: Bearer <token>; or log in",
        {"WWW-Authenticate": "Bearer"},
    )


@contextmanager
def counting_login(
    authenticator: ApiAuthenticator, connection: HTTPConnection, name: str
) -> Iterator[None]:
    """Refuse a login after too many that failed; one that goes well does not count.

    It counts before the password is looked at: however many come at once, no more are.
    """
    address = address_of(connection)
    network = network_of(address)
    pair = f"{network} {name}"
    limit(authenticator.login_addresses, network)
    try:
        limit(authenticator.logins, pair)
    except Problem:
        authenticator.login_addresses.give_back(network)
        raise
    is_wrong = False
    try:
        yield
    except WrongCredentials:
        is_wrong = True
        raise
    finally:
        if is_wrong:
            fields = {"address": address, "name": name}
            _logger.warning("login failed", extra={"fields": fields})
        else:
            authenticator.logins.give_back(pair)
            authenticator.login_addresses.give_back(network)


def tell_access(request: Request, caller: Caller, what: str, **fields: object) -> None:
    """Log a login or logout, or a change of keys, accounts or sessions."""
    said = {"caller": caller.name, "request_id": request.scope["mqlake.request_id"], **fields}
    _logger.info(what, extra={"fields": said})


def limit(limiter: RateLimiter, name: str, amount: float = 1.0) -> None:
    """Take from a bucket.

    Raises:
        Problem: 429 when there is too little in it.
    """
    wait = limiter.take(name, amount)
    if wait:
        seconds = ceil(wait)
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"too many requests: wait {seconds} s",
            {"Retry-After": str(seconds)},
        )


def address_of(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client is not None else ""


def authenticator_of(connection: HTTPConnection) -> ApiAuthenticator:
    return services_of(connection).access.authenticator


async def authorize(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    _session: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    """Let a request through whose caller is known, may do this, and does not do it too often."""
    token = None if credentials is None else credentials.credentials
    caller = identify(request, token)
    request.scope["mqlake.caller"] = caller.name  # for the line in the log
    extra = getattr(request.scope.get("route"), "openapi_extra", None)
    if is_audited(request.method, extra):
        means = "session" if caller.session_id is not None else caller.kind
        await begin_attempt(request, caller.name, caller.role, means, caller.tenants)
    if caller.session_id is not None and request.method not in _READING:
        _check_csrf(request, caller)
    role = role_for(request.method, extra)
    if not caller.may(role):
        raise Problem(
            HTTPStatus.FORBIDDEN, f"this needs the role {role}; {caller.name} is {caller.role}"
        )
    if caller.topic_filters is not None and not (extra or {}).get(TOPICS_FIELD):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"{caller.name} is for some topics alone, and this is about more than topics",
        )
    if caller.tenants is not None:
        _check_tenants(request, caller, extra)
    limit(authenticator_of(request).requests, caller.name)
    return caller


CurrentCaller = Annotated[Caller, Depends(authorize)]


def _check_tenants(request: Request, caller: Caller, extra: dict[str, Any] | None) -> None:
    parameters = request.scope["route"].dependant.query_params
    names_one = any(one.alias == "tenant" for one in parameters)
    if not is_for_tenants(extra, names_one=names_one):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"{caller.name} is for some tenants alone, and this is about more than these",
        )
    if names_one:
        for tenant in request.query_params.getlist("tenant") or [DEFAULT_TENANT]:
            check_tenant(caller, tenant)


def check_tenant(caller: Caller, tenant: str) -> None:
    """Let a caller ask for the data of a tenant.

    Raises:
        Problem: It is not his.
    """
    if not caller.is_of(tenant):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"{caller.name} is for some tenants alone, and {tenant!r} is none of them: name one "
            "as tenant",
        )


def authorize_websocket(socket: WebSocket) -> Caller:
    """Return the caller of a WebSocket: by header, subprotocol, or cookie from our own pages.

    Raises:
        Problem: The caller is unknown, or the request is from a foreign page.
    """
    caller = identify(socket, _websocket_token(socket))
    socket.scope["mqlake.caller"] = caller.name
    # A browser sends our cookie from any page of this site, and lets that page read answers.
    if caller.session_id is not None and not _is_own_origin(socket):
        raise Problem(HTTPStatus.FORBIDDEN, "another site's page", code="csrf")
    limit(authenticator_of(socket).requests, caller.name)
    return caller


def bearer_token(connection: HTTPConnection) -> str | None:
    """Return the bearer token in the header Authorization."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _websocket_token(socket: WebSocket) -> str | None:
    token = bearer_token(socket)
    if token is not None:
        return token
    for offered in socket.scope.get("subprotocols", ()):
        if offered.startswith(BEARER_SUBPROTOCOL):
            return cast("str", offered.removeprefix(BEARER_SUBPROTOCOL))
    return None


def _is_own_origin(socket: WebSocket) -> bool:
    origin = socket.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == socket.headers.get("host")


def _check_csrf(request: Request, caller: Caller) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    known = caller.csrf_token or ""
    if not secrets.compare_digest(given.encode(), known.encode()):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"send the csrf_token of GET /session as {CSRF_HEADER}",
            code="csrf",
        )
