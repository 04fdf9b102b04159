"""Settings of the process that runs actions; `conf/rules.toml` lists them with their defaults."""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.settings import (
    LogSettings,
    PostgresSettings,
    ProcessSettings,
    SettingsGroup,
    TracingSettings,
)
from mqlake.tenants import DEFAULT_TENANT, TENANT_PATTERN, TenantName
from rules.actions.webhook import server_of
from rules.templates import SECRET_NAME


class HttpSettings(SettingsGroup):
    """What the action `http` may reach."""

    allow_internal_addresses: bool = Field(
        default=False, description="whether requests may go to addresses that are not public"
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(), description="networks that are not public and may be reached all the same"
    )
    ca_certificates: Path | None = Field(
        default=None, description="PEM file of authorities to trust beside the machine's own"
    )


class ForTenants(SettingsGroup):
    """Something that rules name; one whose name begins with a tenant is that tenant's alone."""

    tenants: tuple[TenantName | Literal["*"], ...] = Field(
        default=(DEFAULT_TENANT,),
        min_length=1,
        description='tenants whose rules may name it; "*": all; not of <tenant>/<name>',
    )


class PostgresConnection(ForTenants, PostgresSettings):
    """A database for the action `sql`."""


class KafkaConnection(ForTenants):
    """A cluster for the action `log`."""

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: str = Field(min_length=1)
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str = ""
    password: SecretStr | None = None
    password_file: Path | None = None
    ca_certificates: Path | None = None


def _server(text: str) -> str:
    server = server_of(text)
    if server is None or urlsplit(text)[2:] not in (("", "", ""), ("/", "", "")):
        raise ValueError(f"{text!r} is no server, write https://host[:port]")
    return server


class SecretSettings(ForTenants):
    """A secret for the action `http`."""

    value: SecretStr = Field(default=SecretStr(""), description="the secret itself")
    file: Path | None = Field(default=None, description="its file, read at each request")
    servers: tuple[Annotated[str, AfterValidator(_server)], ...] = Field(
        min_length=1, description="servers that it may be sent to, https://host[:port]"
    )

    @model_validator(mode="after")
    def _one_source(self) -> "SecretSettings":
        if bool(self.value.get_secret_value()) == (self.file is not None):
            raise ValueError("expected either value or file")
        return self


Connection = Annotated[PostgresConnection | KafkaConnection, Field(discriminator="kind")]

_OWNER: Final = TENANT_PATTERN.strip("^$")
OwnedSecretName = Annotated[str, Field(pattern=rf"^({_OWNER}/)?{SECRET_NAME}$")]
"""A secret's name, with that of its tenant and a slash before it when it is that tenant's."""
Named = TypeVar("Named", bound=ForTenants)


def _owned(found: dict[str, Named]) -> dict[str, Named]:
    for name, one in found.items():
        if "/" in name and "tenants" in one.model_fields_set:
            raise ValueError(f"{name} is its tenant's alone: it has no tenants")
    return found


def find_for(tenant: str, name: str, known: Mapping[str, Named]) -> tuple[str, Named] | None:
    """Return what a tenant's rules mean by a name, and its full name: their own goes first.

    None for one that is another tenant's as for one that is not there: nobody learns what others
    have.
    """
    full = f"{tenant}/{name}"
    if full in known:
        return full, known[full]
    shared = known.get(name)
    is_for = shared is not None and not {tenant, "*"}.isdisjoint(shared.tenants)
    return (name, shared) if shared is not None and is_for else None


class RulesSettings(ProcessSettings):
    """One runner of actions."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_RULES_")

    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    name: str = Field(
        default="rules",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="unique among the runners of a log: one of them works, others stand by",
    )
    site: str = Field(default="local", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    datacenter: int = Field(default=0, ge=0, le=255, description="part of message identifiers")

    max_queued_outputs: int = Field(
        default=1_000,
        ge=10,
        le=100_000,
        description="outputs in memory for one action; one that has more reads them itself later",
    )
    max_queued_bytes: int = Field(
        default=4 * 1024 * 1024, ge=64 * 1024, description="likewise, their rows together"
    )
    patience_seconds: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="how long an output may take before its action no longer counts for where the "
        "process stands, and keeps its own place",
    )
    behind_readers: int = Field(
        default=2, ge=1, le=16, description="actions that read what they missed, at the same time"
    )
    checkpoint_seconds: float = Field(default=1.0, ge=0.1, le=60)
    drain_seconds: float = Field(
        default=5.0, ge=0, le=300, description="how long the end waits for what is under way"
    )

    http: HttpSettings = HttpSettings()
    connections: Annotated[dict[str, Connection], AfterValidator(_owned)] = Field(
        default_factory=dict, description="databases and clusters that actions name"
    )
    secrets: Annotated[dict[OwnedSecretName, SecretSettings], AfterValidator(_owned)] = Field(
        default_factory=dict, description="secrets that the action http names"
    )
