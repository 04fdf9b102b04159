"""Keys: programs show them to be let in."""

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request

from api.access.views import CreatedKey, KeyView, NewKey, fixed, view_key
from api.entrance.authentication import CurrentCaller, for_tenants, needs, tell_access
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.web.problems import ProblemDetails
from api.wiring.dependencies import ChangeAccess, KnownAccess

router = APIRouter(tags=["access"], responses={503: {"model": ProblemDetails}})

_ADMIN: Final = {**needs("admin"), **for_tenants()}
"""Administrators of some tenants are shown, and change, keys for these alone."""

KeyId = Annotated[str, Path(alias="id", description="identifier of a key", max_length=64)]


@router.get("/keys", openapi_extra=_ADMIN)
def get_keys(
    caller: CurrentCaller, access: KnownAccess, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[KeyView]:
    """List keys by identifier.

    Expired keys are listed too.
    """
    (after,) = read_cursor(cursor, 1)
    found = [
        view_key(key_id, key)
        for key_id, key in access.all_keys()
        if key_id > after and caller.is_over(key.tenants)
    ]
    return to_page(found[: limit + 1], limit, lambda one: (one.id,))


@router.post("/keys", status_code=HTTPStatus.CREATED, openapi_extra=_ADMIN)
def post_key(
    request: Request,
    _access: KnownAccess,
    changes: ChangeAccess,
    caller: CurrentCaller,
    new: NewKey,
) -> CreatedKey:
    """Create a key.

    Only this answer shows it: the log has a hash.
    """
    expires_at = None if new.expires_at is None else round(new.expires_at.timestamp() * 1000)
    key_id, text, key = changes.create_key(
        new.role,
        new.description,
        expires_at,
        caller,
        fixed(new.topic_filters),
        fixed(new.tenants),
    )
    tell_access(request, caller, "key made", key=key_id, role=new.role)
    return CreatedKey(**view_key(key_id, key).model_dump(), key=text)


@router.get("/keys/{id:segment}", openapi_extra=_ADMIN, responses={404: {"model": ProblemDetails}})
def get_key(
    caller: CurrentCaller, _access: KnownAccess, changes: ChangeAccess, key_id: KeyId
) -> KeyView:
    """Show a key."""
    return view_key(key_id, changes.find_key(key_id, caller))


@router.delete(
    "/keys/{id:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=_ADMIN,
    responses={404: {"model": ProblemDetails}},
)
def delete_key(
    request: Request,
    _access: KnownAccess,
    changes: ChangeAccess,
    caller: CurrentCaller,
    key_id: KeyId,
) -> None:
    """Revoke a key.

    It is refused at once; its live streams end within a second.
    """
    changes.delete_key(key_id, caller)
    tell_access(request, caller, "key revoked", key=key_id)
