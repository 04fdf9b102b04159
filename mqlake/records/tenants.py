"""Tenants: records of `mqlake.gateways` that the API writes and every gateway follows.

A tenant has a namespace of its own: client identifiers, sessions, subscriptions, retained messages,
rules, tables. A gateway's own tenant (`tenant` of its settings) needs no record.
"""

import json
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from mqlake.errors import MqlakeError
from mqlake.records.messages import TENANT_KEY_PREFIX
from mqlake.records.models import decode_model
from mqlake.records.versions import RECORD_VERSION
from mqlake.security.operator_files import parse_operator_file

DEFAULT_TENANT: Final = "default"
TENANT_PATTERN: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
"""A part of keys of the log and a value of tables: no slash, one spelling, a label of DNS."""

TenantName: TypeAlias = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]


class TenantsError(MqlakeError):
    """A file of tenants that cannot be used."""


RATES: Final = ("messages", "deliveries", "bytes", "filters", "connects")
"""Kinds of limits that are of a second."""
RETAINED: Final = ("retained_messages", "retained_bytes")
STOCKS: Final = ("connections", "subscriptions", "session_bytes", "queued_bytes", *RETAINED)
"""Kinds of limits of resources that stay taken until they are given back."""


class TenantLimits(BaseModel):
    """Limits for all clients of a tenant, at all gateways together; 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    messages_per_second: int = Field(default=0, ge=0, description="messages published")
    deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="cost of these messages: 1 for each, and 1 for each client that receives it",
    )
    bytes_per_second: int = Field(
        default=0, ge=0, description="bytes sent by clients, at least 1024"
    )
    filters_per_second: int = Field(
        default=0, ge=0, description="topic filters in SUBSCRIBE and UNSUBSCRIBE"
    )
    connects_per_second: int = Field(
        default=0, ge=0, description="clients let in; more are refused with 0x9F"
    )
    connections: int = Field(default=0, ge=0, description="more are refused with 0x97")
    subscriptions: int = Field(
        default=0, ge=0, description="of all sessions, connected or not; more are refused"
    )
    session_bytes: int = Field(
        default=0,
        ge=0,
        description="topic filters and wills of connected clients; more are refused with 0x97",
    )
    queued_bytes: int = Field(
        default=0,
        ge=0,
        description="payloads queued for all clients of the tenant; at the limit, messages that "
        "would be queued wait in the log, those of sessions that are not stored are dropped",
    )
    retained_messages: int = Field(
        default=0,
        ge=0,
        description="topics with a retained message; messages for more topics are refused",
    )
    retained_bytes: int = Field(
        default=0, ge=0, description="payloads, topic names and properties of retained messages"
    )
    rules: int = Field(default=0, ge=0, description="running or not; the API refuses more")
    rule_tables: int = Field(
        default=0,
        ge=0,
        description="that the tenant's rules write, those of deleted rules included; the API "
        "refuses rules that write more",
    )
    rule_ms_per_second: int = Field(
        default=0,
        ge=0,
        description="processor time for evaluating rules, over a minute; 1000 is one processor; "
        "beyond it the costliest rule is paused",
    )


def limits_in(source: object, prefix: str = "") -> dict[str, int]:
    """Return the limits that settings have, by kind; those that are 0, or not there, left out.

    Args:
        source: Has fields such as `messages_per_second` and `connections`.
        prefix: Prefix of their names.
    """
    names = {kind: f"{prefix}{kind}_per_second" for kind in RATES}
    names |= {kind: f"{prefix}{kind}" for kind in STOCKS}
    found = {kind: getattr(source, name, 0) for kind, name in names.items()}
    return {kind: limit for kind, limit in found.items() if limit}


NO_LIMITS: Final = TenantLimits()


class Tenant(BaseModel):
    """Settings of a tenant, by an operator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Literal["active", "suspended"] = "active"
    """Clients of a suspended tenant are refused, and connected ones are disconnected."""
    description: str = Field(default="", max_length=200)
    limits: TenantLimits = NO_LIMITS


class KeptTenant(Tenant):
    """A tenant in `mqlake.gateways`."""

    created_at: int
    """UTC epoch in milliseconds; as `at`."""
    at: int
    """When it was changed last."""
    by: str
    """The caller of the API that changed it last."""


class TenantsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tenants: dict[TenantName, Tenant] = {}


def tenant_key(name: str) -> bytes:
    return TENANT_KEY_PREFIX + name.encode()


def tenant_of(key: bytes) -> str | None:
    """Undo `tenant_key`; None for the key of something else."""
    if not key.startswith(TENANT_KEY_PREFIX):
        return None
    return key.removeprefix(TENANT_KEY_PREFIX).decode(errors="replace")


def encode_tenant(tenant: KeptTenant) -> bytes:
    limits = tenant.limits.model_dump(exclude_defaults=True)  # gateways of before know not all
    value = {"v": RECORD_VERSION, **tenant.model_dump(mode="json"), "limits": limits}
    return json.dumps(value).encode()


def decode_tenant(value: bytes) -> KeptTenant:
    """Undo `encode_tenant`.

    Raises:
        InvalidRecord: Not JSON, another version, or no tenant.
    """
    return decode_model(KeptTenant, value, "tenant")


def parse_tenants(text: str) -> dict[str, Tenant]:
    """Return the tenants in the text of a file, by name.

    Raises:
        TenantsError: It is no TOML, or a tenant is none; says which.
    """
    return parse_operator_file(text, TenantsFile, TenantsError, "").tenants


def qualified(prefix: str, username: str) -> str:
    """Return the name that a user has everywhere: of one of `acme` it begins with `acme/`.

    Args:
        prefix: Prefix of the tenant; empty for a gateway's own, whose users have bare names.
        username: May begin with it already.
    """
    return username if username.startswith(prefix) else prefix + username
