"""Requests and responses of the API about keys, accounts and its own sessions."""

from datetime import UTC, datetime
from typing import Annotated, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from api.access.callers import Caller
from api.access.changes import ALL_TOPICS
from api.jobs.jobs import to_time
from mqlake.errors import InvalidTopic
from mqlake.records.access import Account, ApiKey, Role, SubjectKind
from mqlake.records.tenants import TenantName
from mqlake.topics.names import split_shared, validate_topic_filter

MIN_PASSWORD_CHARACTERS: Final = 8
MAX_PASSWORD_CHARACTERS: Final = 256
MAX_KEY_DESCRIPTION_CHARACTERS: Final = 200
MAX_TOPIC_FILTERS: Final = 100
MAX_TENANTS: Final = 100
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Beyond them a time in another zone is none of the calendar's."""

ACCOUNT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._@\-]{0,63}"
"""Pattern, also for forms of browsers, where a sign that ends a range is escaped."""
AccountName = Annotated[str, Field(pattern=f"^{ACCOUNT_NAME}$", description="name of the account")]
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
        default=None, max_length=256, description="an API key, or the token in <data-dir>/api-token"
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
        description="to send as X-CSRF-Token; null for callers without a cookie"
    )
    expires_at: datetime | None = Field(description="when the session or the key ends")
    topic_filters: list[str] | None = Field(
        description="that the caller may read and publish; null: all topics, and not only topics"
    )
    tenants: list[str] | None = Field(
        description="that the caller may access; null: all, and operations outside tenants"
    )


class OperationsView(BaseModel):
    operations: list[str] = Field(
        description="method and path, as `GET /clients`; each may still refuse a tenant or topic"
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
        description="that it may access, and nothing outside tenants; null: all, or those of its "
        "maker",
    ),
]


class _ForTopics(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Role
    topic_filters: list[TopicFilter] | None = Field(
        default=None,
        max_length=MAX_TOPIC_FILTERS,
        description="topics that it may read and publish, and nothing else; null: all. Not for the "
        "role admin",
    )
    tenants: Tenants = None

    @model_validator(mode="after")
    def _is_no_administrators(self) -> Self:
        if self.role == "admin" and self.topic_filters is not None:
            raise ValueError(ALL_TOPICS)
        return self


class NewKey(_ForTopics):
    description: str = Field(
        min_length=1, max_length=MAX_KEY_DESCRIPTION_CHARACTERS, description="its purpose"
    )
    expires_at: Annotated[AwareDatetime, Field(gt=_EARLIEST, lt=_LATEST)] | None = Field(
        default=None, description="null: never"
    )


class KeyView(BaseModel):
    id: str
    description: str
    role: Role
    topic_filters: list[str] | None = Field(description="that it is limited to; null: all topics")
    tenants: list[str] | None = Field(description="that it is limited to; null: all")
    created_at: datetime | None
    created_by: str
    expires_at: datetime | None
    expired: bool


class CreatedKey(KeyView):
    key: str = Field(description="the key itself; it is not shown again")


class NewAccount(_ForTopics):
    name: AccountName
    password: Password | None = Field(
        default=None, description="null: it logs in only at the identity provider"
    )


class ChangedAccount(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Role | None = Field(default=None, description="null: unchanged")
    password: Password | None = Field(default=None, description="null: unchanged")
    topic_filters: list[TopicFilter] | None = Field(
        default=None,
        max_length=MAX_TOPIC_FILTERS,
        description="omitted: unchanged; null: all topics",
    )
    tenants: Tenants = None


class AccountView(BaseModel):
    name: str
    role: Role
    topic_filters: list[str] | None = Field(description="that it is limited to; null: all topics")
    tenants: list[str] | None = Field(description="that it is limited to; null: all")
    created_at: datetime | None
    created_by: str
    password_changed_at: datetime | None


def view_session(caller: Caller) -> SessionView:
    return SessionView(
        name=caller.name,
        role=caller.role,
        kind=caller.kind,
        csrf_token=caller.csrf_token,
        expires_at=to_time(caller.expires_at),
        topic_filters=_listed(caller.topic_filters),
        tenants=_listed(caller.tenants),
    )


def fixed(asked: list[str] | None) -> tuple[str, ...] | None:
    return None if asked is None else tuple(asked)


def _listed(found: tuple[str, ...] | None) -> list[str] | None:
    return None if found is None else list(found)


def view_key(key_id: str, key: ApiKey) -> KeyView:
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


def view_account(name: str, account: Account) -> AccountView:
    return AccountView(
        name=name,
        role=account.role,
        topic_filters=_listed(account.topic_filters),
        tenants=_listed(account.tenants),
        created_at=to_time(account.created_at),
        created_by=account.created_by,
        password_changed_at=to_time(account.password_changed_at),
    )
