"""Accounts: people log in with them."""

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request

from api.access.views import AccountView, ChangedAccount, NewAccount, fixed, view_account
from api.entrance.authentication import CurrentCaller, for_tenants, needs, tell_access
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.web.problems import ProblemDetails
from api.wiring.dependencies import ChangeAccess, KnownAccess

router = APIRouter(tags=["access"], responses={503: {"model": ProblemDetails}})

_ADMIN: Final = {**needs("admin"), **for_tenants()}
"""Administrators of some tenants are shown, and change, accounts for these alone."""

NamePath = Annotated[str, Path(alias="name", description="name of an account", max_length=64)]


@router.get("/accounts", openapi_extra=_ADMIN)
def get_accounts(
    caller: CurrentCaller, access: KnownAccess, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[AccountView]:
    """List accounts by name."""
    (after,) = read_cursor(cursor, 1)
    found = [
        view_account(name, account)
        for name, account in access.accounts()
        if name > after and caller.is_over(account.tenants)
    ]
    return to_page(found[: limit + 1], limit, lambda one: (one.name,))


@router.post(
    "/accounts",
    status_code=HTTPStatus.CREATED,
    openapi_extra=_ADMIN,
    responses={409: {"model": ProblemDetails}},
)
def post_account(
    request: Request,
    _access: KnownAccess,
    changes: ChangeAccess,
    caller: CurrentCaller,
    new: NewAccount,
) -> AccountView:
    """Create an account."""
    account = changes.create_account(
        new.name,
        new.role,
        None if new.password is None else new.password.get_secret_value(),
        caller,
        fixed(new.topic_filters),
        fixed(new.tenants),
    )
    tell_access(request, caller, "account made", account=new.name, role=new.role)
    return view_account(new.name, account)


@router.get(
    "/accounts/{name:segment}", openapi_extra=_ADMIN, responses={404: {"model": ProblemDetails}}
)
def get_account(
    caller: CurrentCaller, _access: KnownAccess, changes: ChangeAccess, name: NamePath
) -> AccountView:
    """Show an account."""
    return view_account(name, changes.find_account(name, caller))


@router.put(
    "/accounts/{name:segment}", openapi_extra=_ADMIN, responses={404: {"model": ProblemDetails}}
)
def put_account(
    request: Request,
    _access: KnownAccess,
    changes: ChangeAccess,
    caller: CurrentCaller,
    name: NamePath,
    changed: ChangedAccount,
) -> AccountView:
    """Change an account.

    The change applies at once. A new password ends the account's sessions, new topics or tenants
    end its live streams.
    """
    said = changed.model_fields_set
    password = None if changed.password is None else changed.password.get_secret_value()
    account = changes.change_account(
        name,
        changed.role,
        password,
        caller,
        fixed(changed.topic_filters) if "topic_filters" in said else "same",
        fixed(changed.tenants) if "tenants" in said else "same",
    )
    tell_access(request, caller, "account changed", account=name, role=account.role)
    return view_account(name, account)


@router.delete(
    "/accounts/{name:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=_ADMIN,
    responses={404: {"model": ProblemDetails}},
)
def delete_account(
    request: Request,
    _access: KnownAccess,
    changes: ChangeAccess,
    caller: CurrentCaller,
    name: NamePath,
) -> None:
    """Delete an account and its sessions."""
    changes.delete_account(name, caller)
    tell_access(request, caller, "account deleted", account=name)
