"""Logging in and out; keys and accounts."""

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Self

from fastapi import APIRouter, Path, Request, Response
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from api.access.callers import Caller, of_account
from api.access.changes import ALL_TOPICS
from api.access.tokens import SESSION_PREFIX, Secret
from api.audit.trail import begin_attempt, known_as
from api.authentication import (
    COOKIE,
    CurrentCaller,
    audited,
    authenticator_of,
    counting_login,
    for_tenants,
    for_topics,
    needs,
)
from api.dependencies import ChangeAccess, KnownAccess, Passwords, Settings
from api.jobs import to_time
from api.operations import open_to
from api.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.problems import Problem, ProblemDetails
from api.settings import PREFIX
from mqlake.access_records import Account, ApiKey, Role, SubjectKind
from mqlake.errors import InvalidTopic
from mqlake.tenants import TenantName
from mqlake.topics import split_shared, validate_topic_filter

_logger = logging.getLogger(__name__)

# Who logs in is not known yet; the other routes are for those who are.
public = APIRouter(tags=["access"])
router = APIRouter(tags=["access"], responses={503: {"model": ProblemDetails}})

_OWN: Final = {**for_topics(), **for_tenants()}
"""About who asks alone."""
_ADMIN: Final = {**needs("admin"), **for_tenants()}
"""Administrators of some tenants are shown, and change, what is for these."""

MIN_PASSWORD_CHARACTERS: Final = 8
MAX_PASSWORD_CHARACTERS: Final = 256
MAX_TOPIC_FILTERS: Final = 100
MAX_TENANTS: Final = 100
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Beyond them a time in another zone is none of the calendar's."""

AccountName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$", description="of the account")
]
NamePath = Annotated[str, Path(alias="name", description="of an account", max_length=64)]
KeyId = Annotated[str, Path(alias="id", description="identifier of a key", max_length=64)]
Password = Annotated[
    SecretStr,
    Field(min_length=MIN_PASSWORD_CHARACTERS, max_length=MAX_PASSWORD_CHARACTERS),
]


def _topic_filter(text: str) -> str:
    try:
        validate_topic_filter(text)
    except InvalidTopic as exc:
        raise ValueError(str(exc)) from exc
    if split_shared(text).share_name:
        raise ValueError("expected a filter that is not one of a shared subscription")
    return text


TopicFilter = Annotated[str, AfterValidator(_topic_filter)]


class LoginRequest(BaseModel):
    """A user name with its password, or a token."""

    model_config = ConfigDict(extra="forbid")

    username: str | None = Field(default=None, max_length=64, description="name of an account")
    password: SecretStr | None = Field(default=None, max_length=MAX_PASSWORD_CHARACTERS)
    token: SecretStr | None = Field(
        default=None, max_length=256, description="an API key, or the token of <data-dir>/api-token"
    )

    @model_validator(mode="after")
    def _either(self) -> "LoginRequest":
        by_password = self.username is not None and self.password is not None
        if by_password == (self.token is not None) or (
            not by_password and (self.username, self.password) != (None, None)
        ):
            raise ValueError("expected username and password, or token")
        return self


class SessionView(BaseModel):
    name: str = Field(description="`api-token`, `key:<id>`, or the account's name")
    role: Role
    kind: SubjectKind
    csrf_token: str | None = Field(
        description="send it as X-CSRF-Token; null for who has not come by a cookie"
    )
    expires_at: datetime | None = Field(description="when the session or the key ends")
    topic_filters: list[str] | None = Field(
        description="of what one may read and publish; null: of all topics, and more than topics"
    )
    tenants: list[str] | None = Field(
        description="of whose one may ask; null: of all, and of what is of none"
    )


class OperationsView(BaseModel):
    operations: list[str] = Field(
        description="`GET /clients`: method and path; each may still refuse a tenant or topic"
    )


class NewPassword(BaseModel):
    model_config = ConfigDict(extra="forbid")

    old_password: SecretStr = Field(max_length=MAX_PASSWORD_CHARACTERS)
    new_password: Password


Tenants = Annotated[
    list[TenantName] | None,
    Field(
        min_length=1,
        max_length=MAX_TENANTS,
        description="of whose it may ask, and of nothing that is of no tenant; null: of all, or of "
        "those that whoever makes it is for",
    ),
]


class _ForTopics(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Role
    topic_filters: list[TopicFilter] | None = Field(
        default=None,
        max_length=MAX_TOPIC_FILTERS,
        description="whoever has it may read and publish what these match, and ask for nothing "
        "else; null: all topics. Not for the role admin",
    )
    tenants: Tenants = None

    @model_validator(mode="after")
    def _is_no_administrators(self) -> Self:
        if self.role == "admin" and self.topic_filters is not None:
            raise ValueError(ALL_TOPICS)
        return self


class NewKey(_ForTopics):
    description: str = Field(min_length=1, max_length=200, description="what it is for")
    expires_at: Annotated[AwareDatetime, Field(gt=_EARLIEST, lt=_LATEST)] | None = Field(
        default=None, description="null: it never does"
    )


class KeyView(BaseModel):
    id: str
    description: str
    role: Role
    topic_filters: list[str] | None = Field(description="that it is for; null: all topics")
    tenants: list[str] | None = Field(description="that it is for; null: all")
    created_at: datetime | None
    created_by: str
    expires_at: datetime | None
    expired: bool


class CreatedKey(KeyView):
    key: str = Field(description="the key itself: it is shown now and never again")


class NewAccount(_ForTopics):
    name: AccountName
    password: Password | None = Field(
        default=None, description="null: it logs in at the identity provider alone"
    )


class ChangedAccount(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Role | None = Field(default=None, description="null: as it is")
    password: Password | None = Field(default=None, description="null: as it is")
    topic_filters: list[TopicFilter] | None = Field(
        default=None,
        max_length=MAX_TOPIC_FILTERS,
        description="left out: as they are; null: all topics",
    )
    tenants: Tenants = None


class AccountView(BaseModel):
    name: str
    role: Role
    topic_filters: list[str] | None = Field(description="that it is for; null: all topics")
    tenants: list[str] | None = Field(description="that it is for; null: all")
    created_at: datetime | None
    created_by: str
    password_changed_at: datetime | None


@public.post(
    "/login",
    responses={code: {"model": ProblemDetails} for code in (401, 422, 429, 503)},
    openapi_extra=audited(),
)
async def post_login(
    request: Request,
    response: Response,
    access: KnownAccess,
    changes: ChangeAccess,
    passwords: Passwords,
    settings: Settings,
    login: LoginRequest,
) -> SessionView:
    """Open a session: a cookie that scripts cannot read, and a token that they send beside it."""
    with counting_login(authenticator_of(request), request, login.username or ""):
        means = "token" if login.username is None else "password"
        await begin_attempt(request, login.username or "", None, means)
        caller = await _known(request, access, changes, passwords, login)
    known_as(request, caller.name, caller.role)
    return _session(await open_session(request, response, changes, settings, caller))


@router.get("/session", openapi_extra=_OWN)
def get_session(caller: CurrentCaller) -> SessionView:
    """Show who asks."""
    return _session(caller)


@router.get("/session/operations", openapi_extra=_OWN)
def get_session_operations(request: Request, caller: CurrentCaller) -> OperationsView:
    """List what who asks may ask for: by role, tenants and topics."""
    return OperationsView(operations=open_to(caller, request.app.openapi(), PREFIX))


@router.post(
    "/logout",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra={**needs("viewer"), **audited(), **_OWN},
)
def post_logout(
    request: Request, response: Response, changes: ChangeAccess, caller: CurrentCaller
) -> None:
    """End the session; without one nothing happens."""
    if caller.session_id is not None:
        changes.close_session(caller.session_id)
        _log(request, caller, "logout")
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


@router.post(
    "/session/password",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra={**needs("viewer"), **audited(), **_OWN},
    responses={code: {"model": ProblemDetails} for code in (401, 409)},
)
async def post_password(
    request: Request,
    changes: ChangeAccess,
    passwords: Passwords,
    caller: CurrentCaller,
    asked: NewPassword,
) -> None:
    """Change one's own password; all sessions of the account end, this one too."""
    if caller.kind != "account":
        raise Problem(HTTPStatus.CONFLICT, f"{caller.name} has no password")
    with counting_login(authenticator_of(request), request, caller.name):
        await _check_password(passwords, changes, caller.name, asked.old_password)
    await asyncio.to_thread(
        changes.change_account, caller.name, None, asked.new_password.get_secret_value(), caller
    )
    _log(request, caller, "password changed")


@router.get("/keys", openapi_extra=_ADMIN)
def get_keys(
    caller: CurrentCaller, access: KnownAccess, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[KeyView]:
    """List keys by identifier, also those that have expired."""
    (after,) = read_cursor(cursor, 1)
    found = [
        _key(key_id, key)
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
    """Make a key. Only the answer ever shows it: the log has a hash."""
    expires_at = None if new.expires_at is None else round(new.expires_at.timestamp() * 1000)
    key_id, text, key = changes.create_key(
        new.role,
        new.description,
        expires_at,
        caller,
        _fixed(new.topic_filters),
        _fixed(new.tenants),
    )
    _log(request, caller, "key made", key=key_id, role=new.role)
    return CreatedKey(**_key(key_id, key).model_dump(), key=text)


@router.get("/keys/{id}", openapi_extra=_ADMIN, responses={404: {"model": ProblemDetails}})
def get_key(caller: CurrentCaller, access: KnownAccess, key_id: KeyId) -> KeyView:
    key = access.key(key_id)
    if key is None or not caller.is_over(key.tenants):
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no key {key_id!r}")
    return _key(key_id, key)


@router.delete(
    "/keys/{id}",
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
    """Revoke a key: from now on it lets nobody in; its live streams end within a second."""
    changes.delete_key(key_id, caller)
    _log(request, caller, "key revoked", key=key_id)


@router.get("/accounts", openapi_extra=_ADMIN)
def get_accounts(
    caller: CurrentCaller, access: KnownAccess, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[AccountView]:
    """List accounts by name."""
    (after,) = read_cursor(cursor, 1)
    found = [
        _account(name, account)
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
    """Make an account: somebody may log in with this name."""
    account = changes.create_account(
        new.name,
        new.role,
        None if new.password is None else new.password.get_secret_value(),
        caller,
        _fixed(new.topic_filters),
        _fixed(new.tenants),
    )
    _log(request, caller, "account made", account=new.name, role=new.role)
    return _account(new.name, account)


@router.get("/accounts/{name}", openapi_extra=_ADMIN, responses={404: {"model": ProblemDetails}})
def get_account(caller: CurrentCaller, access: KnownAccess, name: NamePath) -> AccountView:
    account = access.account(name)
    if account is None or not caller.is_over(account.tenants):
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no account {name!r}")
    return _account(name, account)


@router.put("/accounts/{name}", openapi_extra=_ADMIN, responses={404: {"model": ProblemDetails}})
def put_account(
    request: Request,
    _access: KnownAccess,
    changes: ChangeAccess,
    caller: CurrentCaller,
    name: NamePath,
    changed: ChangedAccount,
) -> AccountView:
    """Give an account another role, other topics or tenants, at once; or another password.

    Another password ends its sessions, other topics and tenants its live streams.
    """
    said = changed.model_fields_set
    password = None if changed.password is None else changed.password.get_secret_value()
    account = changes.change_account(
        name,
        changed.role,
        password,
        caller,
        _fixed(changed.topic_filters) if "topic_filters" in said else "same",
        _fixed(changed.tenants) if "tenants" in said else "same",
    )
    _log(request, caller, "account changed", account=name, role=account.role)
    return _account(name, account)


@router.delete(
    "/accounts/{name}",
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
    """Delete an account; its sessions end."""
    changes.delete_account(name, caller)
    _log(request, caller, "account deleted", account=name)


async def open_session(
    request: Request, response: Response, changes: ChangeAccess, settings: Settings, caller: Caller
) -> Caller:
    """Open the session of somebody who has shown who he is; its cookie is the answer's."""
    lifetime_seconds = settings.session_hours * 3600.0
    secret = await asyncio.to_thread(changes.open_session, caller, lifetime_seconds)
    _log(request, caller, "login")
    opened = authenticator_of(request).callers.by_session(secret.text(SESSION_PREFIX))
    assert opened is not None
    _set_cookie(request, response, secret, round(lifetime_seconds))
    return opened


async def _known(
    request: Request,
    access: KnownAccess,
    changes: ChangeAccess,
    passwords: Passwords,
    login: LoginRequest,
) -> Caller:
    """Return who logs in.

    Raises:
        Problem: What is shown is wrong.
    """
    callers = authenticator_of(request).callers
    if login.token is not None:
        caller = callers.by_token(login.token.get_secret_value())
        if caller is None:
            raise wrong("the token is not one that counts")
        return caller
    assert login.username is not None
    assert login.password is not None
    await _check_password(passwords, changes, login.username, login.password)
    account = access.account(login.username)
    if account is None:
        raise wrong("user name or password are wrong")  # deleted this moment
    return of_account(login.username, account)


async def _check_password(
    passwords: Passwords, changes: ChangeAccess, name: str, password: SecretStr
) -> None:
    is_right = await passwords.run(partial(changes.accepts, name, password.get_secret_value()))
    if not is_right:
        raise wrong("user name or password are wrong")


def wrong(detail: str) -> Problem:
    return Problem(HTTPStatus.UNAUTHORIZED, detail, code="wrong_credentials")


def _set_cookie(request: Request, response: Response, secret: Secret, seconds: int) -> None:
    response.set_cookie(
        COOKIE,
        secret.text(SESSION_PREFIX),
        max_age=seconds,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _session(caller: Caller) -> SessionView:
    return SessionView(
        name=caller.name,
        role=caller.role,
        kind=caller.kind,
        csrf_token=caller.csrf_token,
        expires_at=to_time(caller.expires_at),
        topic_filters=_listed(caller.topic_filters),
        tenants=_listed(caller.tenants),
    )


def _fixed(asked: list[str] | None) -> tuple[str, ...] | None:
    return None if asked is None else tuple(asked)


def _listed(found: tuple[str, ...] | None) -> list[str] | None:
    return None if found is None else list(found)


def _key(key_id: str, key: ApiKey) -> KeyView:
    expires_at = to_time(key.expires_at)
    return KeyView(
        id=key_id,
        description=key.description,
        role=key.role,
        topic_filters=_listed(key.topic_filters),
        tenants=_listed(key.tenants),
        created_at=to_time(key.created_at),
        created_by=key.created_by,
        expires_at=expires_at,
        expired=expires_at is not None and expires_at <= datetime.now(expires_at.tzinfo),
    )


def _account(name: str, account: Account) -> AccountView:
    return AccountView(
        name=name,
        role=account.role,
        topic_filters=_listed(account.topic_filters),
        tenants=_listed(account.tenants),
        created_at=to_time(account.created_at),
        created_by=account.created_by,
        password_changed_at=to_time(account.password_changed_at),
    )


def _log(request: Request, caller: Caller, what: str, **fields: object) -> None:
    """Note who has changed what of who may come in."""
    said = {"caller": caller.name, "request_id": request.scope["mqlake.request_id"], **fields}
    _logger.info(what, extra={"fields": said})
