"""Settings of the API process (`mqlake api`); `conf/api.toml` shows every key."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.security.addresses import is_loopback
from mqlake.security.tls import TlsVersion
from mqlake.settings import (
    LogDiskSettings,
    LogSettings,
    ProcessSettings,
    SettingsGroup,
    TopicLevels,
    TracingSettings,
)
from mqlake.topics.names import DEFAULT_MAX_LEVELS

PREFIX: Final = "/api/v1"
"""Prefix of the paths of the API."""
_MAILBOX: Final = r"^[^\s@<>]+@[^\s@<>]+$"


class OidcSettings(SettingsGroup):
    """An identity provider (OpenID Connect) for logins in the browser (docs/api.md)."""

    name: str = Field(
        default="single sign-on",
        min_length=1,
        description="Name of the provider on the login page.",
    )
    issuer: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/\S*)?$",
        description="Issuer, as in the provider's tokens.",
        examples=["https://login.example.org/realms/plant"],
    )
    client_id: str = Field(
        min_length=1,
        description="Client identifier of this API at the provider.",
        examples=["mqlake"],
    )
    client_secret: SecretStr | None = Field(
        default=None,
        description="Client secret of this API at the provider, best set in the environment: "
        "MQLAKE_API_OIDC__CLIENT_SECRET. Without it only PKCE protects the login.",
        examples=["…"],
    )
    public_url: str = Field(
        pattern=r"^https?://[^\s/?#@]+/?$",
        description="URL at which browsers reach this API. The redirect URI is "
        "<public_url>/api/v1/login/oidc/callback.",
        examples=["https://mqlake.example.org"],
    )
    scope: str = Field(
        default="openid",
        pattern=r"^openid( \S+)*$",
        description="Scope to request.",
    )
    username_claim: str = Field(
        default="sub",
        min_length=1,
        description="Claim with the name of the account, which determines the rights; users "
        "without an account are refused. Do not use a claim that users can change themselves, as "
        "preferred_username often is.",
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities to trust in addition to the system's.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description='Non-public networks in which the provider may be, for example ["10.0.0.0/8"].',
    )
    timeout_seconds: float = Field(
        default=10.0,
        gt=0.0,
        le=60.0,
        description="Timeout for one response.",
    )

    @model_validator(mode="after")
    def _nobody_reads_along(self) -> Self:
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("issuer: expected https://")
        return self


class WebhookSettings(SettingsGroup):
    """A web server that receives alarms."""

    url: SecretStr = Field(
        description="URL that accepts a POST with JSON. It may contain a secret.",
        examples=["https://hooks.example.org/mqlake"],
    )
    token: SecretStr | None = Field(
        default=None,
        description="Token sent as `Authorization: Bearer`; best set in the environment.",
        examples=["…"],
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of additional certificate authorities for the server's certificate.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="Non-public networks in which the server may be.",
        examples=[["10.0.0.0/8"]],
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0.0, le=60.0, description="Timeout for one response."
    )

    @model_validator(mode="after")
    def _nobody_reads_along(self) -> Self:
        url = self.url.get_secret_value()
        parts = urlsplit(url)
        if not url.isascii() or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url: expected https://… or http://…")
        if self.token is not None and parts.scheme != "https" and not is_loopback(parts.hostname):
            raise ValueError("url: expected https:// where a token is sent")
        return self


class MailSettings(SettingsGroup):
    """Notification by mail."""

    host: str = Field(
        min_length=1, description="Mail server (SMTP).", examples=["mail.example.org"]
    )
    port: int = Field(default=587, ge=1, le=65535, description="Port of the mail server.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description='TLS: "starttls", "tls" (from the first byte, usually on port 465) or "none".',
    )
    username: str | None = Field(
        default=None,
        description="User name for the mail server. Without it there is no login.",
        examples=["mqlake"],
    )
    password: SecretStr | None = Field(
        default=None,
        description="Password of this user; best set in the environment.",
        examples=["…"],
    )
    sender: str = Field(
        pattern=_MAILBOX, description="Sender address (From).", examples=["mqlake@example.org"]
    )
    recipients: tuple[Annotated[str, Field(pattern=_MAILBOX)], ...] = Field(
        min_length=1,
        description="Addresses that receive the mails.",
        examples=[["operators@example.org"]],
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of additional certificate authorities for the server's certificate.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0.0, le=60.0, description="Timeout for one response."
    )

    @model_validator(mode="after")
    def _nobody_reads_along(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password: set both, or none")
        if self.username and self.security == "none" and not is_loopback(self.host):
            raise ValueError("security: expected starttls or tls where a password is sent")
        return self


class AlarmSettings(SettingsGroup):
    """Receivers of alarms, and which alarms they receive."""

    wait_seconds: float = Field(
        default=60.0,
        ge=0.0,
        le=86_400.0,
        description="Delay before an alarm is sent; an alarm that ends before is not sent.",
    )
    warnings: bool = Field(default=False, description="Whether warnings are sent, too.")
    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None


class ApiSettings(ProcessSettings):
    """Settings of the API.

    Read by `bin/mqlake api --config conf/api.toml`. `bin/mqlake up` sets data_dir, token_file,
    heartbeat_file, log_file, the log and its disk itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_API_")

    log: LogSettings = LogSettings()
    log_disk: LogDiskSettings = LogDiskSettings()
    tracing: TracingSettings = TracingSettings()
    oidc: OidcSettings | None = None
    alarms: AlarmSettings = AlarmSettings()

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on.",
    )
    port: int = Field(
        default=8080,
        ge=1,
        le=65535,
        description="TCP port to listen on; `bin/mqlake up --api-port` overrides it.",
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file with the server's certificate, then its chain. Relative paths start "
        "at the data directory. Changed files are reloaded within seconds. Without it the API "
        "uses HTTP.",
        examples=[Path("/etc/mqlake/api.pem")],
    )
    key: Path | None = Field(
        default=None,
        description="PEM file with the certificate's private key.",
        examples=[Path("/etc/mqlake/api.key")],
    )
    key_password: SecretStr | None = Field(
        default=None,
        description="Password of the key, best set in the environment: MQLAKE_API_KEY_PASSWORD.",
        examples=["…"],
    )
    minimum_tls_version: TlsVersion = Field(
        default="1.2",
        description="Minimum TLS version.",
    )
    hsts_seconds: int = Field(
        default=0,
        ge=0,
        le=63_072_000,
        description="Time for which browsers use only TLS for this host name "
        "(Strict-Transport-Security), on every port. 31536000 is a year. 0: the header is not "
        "sent.",
    )
    site: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Site, the same as for its gateways. The origin of messages that the API "
        "publishes is <site>/api.",
    )
    datacenter: int = Field(
        default=0,
        ge=0,
        le=255,
        description="Number in the identifiers of these messages.",
    )
    data_dir: Path = Field(
        default=Path("data"),
        description="Data directory of the system.",
    )
    sql_max_rows: int = Field(
        default=1_000_000,
        ge=1,
        description="Maximum rows of a query's result.",
    )
    sql_max_bytes: int = Field(
        default=1_073_741_824,
        ge=1,
        description="Maximum bytes of a query's result, on disk, below data_dir, and of all those "
        "of a caller that are not read to their end. A tenant may have twice as many, all four "
        "times.",
    )
    sql_max_seconds: float = Field(
        default=300.0,
        gt=0.0,
        le=3_600.0,
        description="Maximum duration of a query.",
    )
    sql_at_once: int = Field(
        default=2,
        ge=1,
        le=16,
        description="Maximum queries at the same time; others wait 5 s, then get status 503.",
    )
    token_file: Path = Field(
        default=Path("data/api-token"),
        description="File with the administrator's bearer token.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses of trusted reverse proxies, separated by commas. Only their "
        "X-Forwarded-For and X-Forwarded-Proto headers are used.",
    )
    host_names: tuple[str, ...] = Field(
        default=(),
        description="Host names that browsers may use for an API that listens on this machine "
        "only and without such a proxy, in addition to addresses, localhost and the name in "
        'public_url; "*": any. Other names get status 421, against DNS rebinding.',
    )
    session_hours: float = Field(
        default=12.0,
        gt=0,
        le=720,
        description="Duration of a login, in hours.",
    )
    requests_per_second: float = Field(
        default=500.0,
        gt=0,
        description="Maximum requests per second of one key, account or token. Each API process "
        "counts separately.",
    )
    request_burst: float = Field(
        default=1000.0,
        ge=1,
        description="Maximum requests at once, after a pause.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Maximum size of a request body.",
    )
    max_payload_bytes: int = Field(
        default=1024 * 1024,
        ge=0,
        le=4 * 1024 * 1024,
        description="Maximum payload of a published message; as the gateways' max_packet_bytes.",
    )
    max_topic_levels: TopicLevels = Field(
        default=DEFAULT_MAX_LEVELS,
        description="Maximum levels of a topic to publish or replay to; as the gateways' "
        "max_topic_levels.",
    )
    live_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="A live stream ends after this time; its reader then reconnects.",
    )
    access_log: bool = Field(
        default=False,
        description="Whether every request is logged, not only requests that fail because of the "
        "API.",
    )

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key: set both, or none")
        if self.hsts_seconds and self.certificate is None:
            raise ValueError("hsts_seconds is set, certificate is not: browsers could not come")
        return self
