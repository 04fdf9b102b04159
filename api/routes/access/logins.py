"""Logins: sessions of the API, listed and ended by administrators."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from api.access.callers import Caller
from api.entrance.authentication import (
    CurrentCaller,
    authenticator_of,
    for_tenants,
    needs,
    tell_access,
)
from api.jobs.jobs import to_time
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import ChangeAccess, KnownAccess
from mqlake.records.access import LoginSession, Role, SubjectKind

router = APIRouter(tags=["access"], responses={503: {"model": ProblemDetails}})

_ADMIN: Final = {**needs("admin"), **for_tenants()}
"""Administrators of some tenants are shown, and end, sessions for these alone."""

SessionId = Annotated[str, Path(alias="id", description="identifier of a session", max_length=64)]


class LoginSessionView(BaseModel):
    id: str
    name: str = Field(description="`api-token`, `key:<id>`, or the account's name")
    kind: SubjectKind
    role: Role
    created_at: datetime | None
    expires_at: datetime | None
    current: bool = Field(description="the session of this request")


@router.get("/sessions", openapi_extra=_ADMIN)
def get_sessions(
    request: Request,
    caller: CurrentCaller,
    _access: KnownAccess,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[LoginSessionView]:
    """List sessions of the API.

    Valid ones are listed by identifier; those of MQTT are in `/clients`.
    """
    (after,) = read_cursor(cursor, 1)
    found = [
        _view(session_id, session, whose, caller)
        for session_id, session, whose in authenticator_of(request).callers.logged_in()
        if session_id > after and caller.is_over(whose.tenants)
    ]
    return to_page(found[: limit + 1], limit, lambda one: (one.id,))


@router.delete(
    "/sessions/{id:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=_ADMIN,
    responses={404: {"model": ProblemDetails}},
)
def delete_session(
    request: Request,
    caller: CurrentCaller,
    _access: KnownAccess,
    changes: ChangeAccess,
    session_id: SessionId,
) -> None:
    """End a session of the API.

    Its cookie is refused at once; its live streams end within a second.
    """
    for known_id, _, whose in authenticator_of(request).callers.logged_in():
        if known_id == session_id and caller.is_over(whose.tenants):
            break
    else:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no session {session_id!r}")
    changes.close_session(session_id)
    tell_access(request, caller, "session ended", session=session_id, of=whose.name)


def _view(
    session_id: str, session: LoginSession, whose: Caller, caller: Caller
) -> LoginSessionView:
    return LoginSessionView(
        id=session_id,
        name=whose.name,
        kind=whose.kind,
        role=whose.role,
        created_at=to_time(session.created_at),
        expires_at=to_time(session.expires_at),
        current=session_id == caller.session_id,
    )
