"""Settings of the process that runs actions; `conf/rules.toml` lists them with their defaults."""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, Union
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.records.tenants import TENANT_PATTERN
from mqlake.settings import (
    LogDiskSettings,
    LogSettings,
    ProcessSettings,
    SettingsGroup,
    TopicLevels,
    TracingSettings,
)
from mqlake.topics.names import DEFAULT_MAX_LEVELS
from rules.actions import CONNECTION_KINDS
from rules.actions.connections import ForTenants
from rules.actions.webhook import server_of
from rules.templates import SECRET_NAME


class HttpSettings(SettingsGroup):
    """Servers that the action `http` may reach."""

    allow_internal_addresses: bool = Field(
        default=False,
        description="Whether requests may go to non-public addresses: this machine, private "
        "networks, the metadata services of clouds. Everyone who may write rules can then reach "
        "them.",
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description='Non-public networks that requests may go to, for example ["10.20.0.0/16", '
        '"::1/128"].',
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities to trust in addition to the system's.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )


def _server(text: str) -> str:
    server = server_of(text)
    if server is None or urlsplit(text)[2:] not in (("", "", ""), ("/", "", "")):
        raise ValueError(f"{text!r} is no server, write https://host[:port]")
    return server


class SecretSettings(ForTenants):
    """A secret for the action `http`."""

    value: SecretStr = Field(
        default=SecretStr(""),
        description="The secret: set this or file. From the environment: "
        "MQLAKE_RULES_SECRETS__HOOK__VALUE.",
        examples=["…"],
    )
    file: Path | None = Field(
        default=None,
        description="File with the secret, read at each request.",
        examples=[Path("/etc/mqlake/hook.token")],
    )
    servers: tuple[Annotated[str, AfterValidator(_server)], ...] = Field(
        min_length=1,
        description="Servers to which the secret may be sent, https://host[:port]. They prevent a "
        "rule from sending it elsewhere.",
        examples=[("https://hooks.example.org",)],
    )

    @model_validator(mode="after")
    def _one_source(self) -> "SecretSettings":
        if bool(self.value.get_secret_value()) == (self.file is not None):
            raise ValueError("expected either value or file")
        return self


if TYPE_CHECKING:
    Connection = ForTenants
else:
    Connection = Annotated[
        Union[tuple(kind.settings for kind in CONNECTION_KINDS)],  # noqa: UP007 - of any number
        Field(discriminator="kind"),
    ]

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
    """Return the setting that a tenant's rules name, and its full name: their own goes first.

    None for one that is another tenant's as for one that is not there: no tenant learns the names
    of others.
    """
    full = f"{tenant}/{name}"
    if full in known:
        return full, known[full]
    shared = known.get(name)
    is_for = shared is not None and not {tenant, "*"}.isdisjoint(shared.tenants)
    return (name, shared) if shared is not None and is_for else None


class RulesSettings(ProcessSettings):
    """Settings of the process that carries out the actions of rules.

    Read by `bin/mqlake rules-runner --config conf/rules.toml`. `bin/mqlake up` sets heartbeat_file,
    log_file, the log's servers and its disk itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_RULES_")

    log: LogSettings = LogSettings()
    log_disk: LogDiskSettings = LogDiskSettings()
    tracing: TracingSettings = TracingSettings()

    name: str = Field(
        default="rules",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Name of the runner, unique at its log: one runner is active, the others are "
        "on standby.",
    )
    site: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Site of the runner. The origin of messages that rules publish is "
        "<site>/<name>.",
    )
    datacenter: int = Field(
        default=0,
        ge=0,
        le=255,
        description="Number in every message identifier.",
    )

    max_queued_outputs: int = Field(
        default=1_000,
        ge=10,
        le=100_000,
        description="Maximum outputs in memory for one action. An action with more falls behind "
        "and reads the missed outputs from the log later.",
    )
    max_queued_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        description="Maximum bytes of their rows.",
    )
    patience_seconds: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="Time that an output may take before its action no longer delays the "
        "checkpoint of the process and gets its own.",
    )
    behind_readers: int = Field(
        default=2,
        ge=1,
        le=16,
        description="Maximum number of actions that read missed outputs at the same time.",
    )
    checkpoint_seconds: float = Field(
        default=1.0,
        ge=0.1,
        le=60,
        description="Interval between checkpoints. A crash may repeat actions since the last "
        "checkpoint, except messages that rules publish.",
    )
    drain_seconds: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="At shutdown, maximum time to wait for running actions.",
    )

    max_topic_levels: TopicLevels = Field(
        default=DEFAULT_MAX_LEVELS,
        description="Maximum levels of a topic that rules publish to; as the gateways' "
        "max_topic_levels.",
    )

    http: HttpSettings = HttpSettings()
    connections: Annotated[dict[str, Connection], AfterValidator(_owned)] = Field(
        default_factory=dict,
        description="Databases and clusters that actions use, so that rules contain no passwords.",
        examples=[kind.example for kind in CONNECTION_KINDS],
    )
    secrets: Annotated[dict[OwnedSecretName, SecretSettings], AfterValidator(_owned)] = Field(
        default_factory=dict,
        description="Secrets that the action http uses as ${$secret.<name>}.",
        examples=["hook"],
    )
