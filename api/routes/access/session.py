"""Logging in and out, and the rights of the caller."""

import asyncio
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from api.access.callers import Caller
from api.access.logins import Logins, need_password
from api.access.views import LoginRequest, NewPassword, OperationsView, SessionView, view_session
from api.audit.trail import begin_attempt, known_as
from api.entrance.authentication import (
    CurrentCaller,
    audited,
    authenticator_of,
    cookie_of,
    counting_login,
    for_tenants,
    for_topics,
    is_by_tls,
    needs,
    tell_access,
)
from api.entrance.operations import open_to
from api.settings import PREFIX
from api.web.problems import ProblemDetails
from api.wiring.dependencies import ChangeAccess, KnownAccess, LoggingIn

# A caller who logs in is not known yet; the other routes are for known ones.
public = APIRouter(tags=["access"])
router = APIRouter(tags=["access"], responses={503: {"model": ProblemDetails}})

_OWN: Final = {**for_topics(), **for_tenants()}
"""About the caller alone."""


@public.post(
    "/login",
    responses={code: {"model": ProblemDetails} for code in (401, 422, 429, 503)},
    openapi_extra=audited(),
)
async def post_login(
    request: Request,
    response: Response,
    _access: KnownAccess,
    logins: LoggingIn,
    login: LoginRequest,
) -> SessionView:
    """Log in.

    The session is a cookie that scripts cannot read; the answer has the CSRF token to send with it.
    """
    with counting_login(authenticator_of(request), request, login.username or ""):
        means = "token" if login.username is None else "password"
        await begin_attempt(request, login.username or "", None, means, None)
        caller = await _known(logins, login)
    known_as(request, caller.name, caller.role, caller.tenants)
    return view_session(await open_session(request, response, logins, caller))


@router.get("/session", openapi_extra=_OWN)
def get_session(caller: CurrentCaller) -> SessionView:
    """Show the caller."""
    return view_session(caller)


@router.get("/session/operations", openapi_extra=_OWN)
def get_session_operations(request: Request, caller: CurrentCaller) -> OperationsView:
    """List the caller's operations.

    Role, tenants and topics decide which are open.
    """
    return OperationsView(operations=open_to(caller, request.app.openapi(), PREFIX))


@router.post(
    "/logout",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra={**needs("viewer"), **audited(), **_OWN},
)
def post_logout(
    request: Request, response: Response, changes: ChangeAccess, caller: CurrentCaller
) -> None:
    """Log out.

    Without a session nothing happens.
    """
    if caller.session_id is not None:
        changes.close_session(caller.session_id)
        tell_access(request, caller, "logout")
    response.delete_cookie(
        cookie_of(request),
        path="/",
        secure=is_by_tls(request),
        httponly=True,
        samesite="strict",
    )


@router.post(
    "/session/password",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra={**needs("viewer"), **audited(), **_OWN},
    responses={code: {"model": ProblemDetails} for code in (401, 409)},
)
async def post_password(
    request: Request,
    changes: ChangeAccess,
    logins: LoggingIn,
    caller: CurrentCaller,
    asked: NewPassword,
) -> None:
    """Change the caller's password.

    All sessions of the account end, this one too.
    """
    need_password(caller)
    with counting_login(authenticator_of(request), request, caller.name):
        await logins.by_password(caller.name, asked.old_password.get_secret_value())
    await asyncio.to_thread(
        changes.change_account, caller.name, None, asked.new_password.get_secret_value(), caller
    )
    tell_access(request, caller, "password changed")


async def open_session(
    request: Request, response: Response, logins: Logins, caller: Caller
) -> Caller:
    """Open the session of an authenticated caller; its cookie is the answer's."""
    cookie, opened = await logins.open(caller)
    tell_access(request, caller, "login")
    response.set_cookie(
        cookie_of(request),
        cookie,
        max_age=round(logins.lifetime_seconds),
        path="/",
        secure=is_by_tls(request),
        httponly=True,
        samesite="strict",
    )
    return opened


async def _known(logins: Logins, login: LoginRequest) -> Caller:
    if login.token is not None:
        return logins.by_token(login.token.get_secret_value())
    assert login.username is not None
    assert login.password is not None
    return await logins.by_password(login.username, login.password.get_secret_value())
