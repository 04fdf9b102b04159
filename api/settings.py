"""Settings of the API process (`mqlake api`); `conf/api.toml` shows every key."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.addresses import is_loopback
from mqlake.settings import ProcessSettings, SettingsGroup, TracingSettings
from mqlake.tls import TlsVersion
from mqlake.topics import DEFAULT_MAX_LEVELS, MAX_TOPIC_BYTES

PREFIX: Final = "/api/v1"
"""Of the paths of the API."""
_MAILBOX: Final = r"^[^\s@<>]+@[^\s@<>]+$"


class OidcSettings(SettingsGroup):
    """An identity provider (OpenID Connect) at which browsers may log in (docs/api.md)."""

    name: str = Field(
        default="single sign-on",
        min_length=1,
        description="Name of the provider on the login page.",
    )
    issuer: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/\S*)?$",
        description="Issuer, as the provider's tokens name it.",
        examples=["https://login.example.org/realms/plant"],
    )
    client_id: str = Field(
        min_length=1,
        description="Name of this API at the provider.",
        examples=["mqlake"],
    )
    client_secret: SecretStr | None = Field(
        default=None,
        description="Secret of this API at the provider, best given by the environment: "
        "MQLAKE_API_OIDC__CLIENT_SECRET. Without it PKCE alone proves who asks.",
        examples=["…"],
    )
    public_url: str = Field(
        pattern=r"^https?://[^\s/?#@]+/?$",
        description="URL at which browsers reach this API. Its redirect URI is "
        "<public_url>/api/v1/login/oidc/callback.",
        examples=["https://mqlake.example.org"],
    )
    scope: str = Field(
        default="openid",
        pattern=r"^openid( \S+)*$",
        description="Scope that is asked for.",
    )
    username_claim: str = Field(
        default="sub",
        min_length=1,
        description="Claim that names the account, which decides about rights; without an "
        "account nobody gets in. Not a claim that users may change themselves, as "
        "preferred_username often is.",
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of authorities to trust beside the machine's own.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="Networks in which the provider may be though they are not public, for "
        'example ["10.0.0.0/8"].',
    )
    timeout_seconds: float = Field(
        default=10.0,
        gt=0.0,
        le=60.0,
        description="Longest time of one answer.",
    )

    @model_validator(mode="after")
    def _nobody_reads_along(self) -> Self:
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("issuer: expected https://")
        return self


class WebhookSettings(SettingsGroup):
    """A web server that is told of alarms."""

    url: SecretStr = Field(
        description="URL that takes a POST with JSON. Some have a secret in it.",
        examples=["https://hooks.example.org/mqlake"],
    )
    token: SecretStr | None = Field(
        default=None,
        description="Token that is sent as `Authorization: Bearer`; best given by the environment.",
        examples=["…"],
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of further authorities for the server's certificate.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="Networks that are not public and where the server may be all the same.",
        examples=[["10.0.0.0/8"]],
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0.0, le=60.0, description="Longest wait for one answer."
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
    """Settings of notification by mail."""

    host: str = Field(
        min_length=1, description="Mail server (SMTP).", examples=["mail.example.org"]
    )
    port: int = Field(default=587, ge=1, le=65535, description="Port of the mail server.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description='TLS: "starttls", "tls" (from the first byte, mostly at port 465) or "none".',
    )
    username: str | None = Field(
        default=None,
        description="User name for the mail server. Without it nobody logs in.",
        examples=["mqlake"],
    )
    password: SecretStr | None = Field(
        default=None,
        description="Password of this user; best given by the environment.",
        examples=["…"],
    )
    sender: str = Field(
        pattern=_MAILBOX, description="Address in From.", examples=["mqlake@example.org"]
    )
    recipients: tuple[Annotated[str, Field(pattern=_MAILBOX)], ...] = Field(
        min_length=1,
        description="Addresses that get the mails.",
        examples=[["operators@example.org"]],
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of further authorities for the server's certificate.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0.0, le=60.0, description="Longest wait for one answer."
    )

    @model_validator(mode="after")
    def _nobody_reads_along(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password: set both, or none")
        if self.username and self.security == "none" and not is_loopback(self.host):
            raise ValueError("security: expected starttls or tls where a password is sent")
        return self


class AlarmSettings(SettingsGroup):
    """Receivers of alarms, and the alarms that they are told."""

    wait_seconds: float = Field(
        default=60.0,
        ge=0.0,
        le=86_400.0,
        description="Time before an alarm is told; one that is over by then is told to nobody.",
    )
    warnings: bool = Field(default=False, description="Whether warnings are told, too.")
    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None


class ApiSettings(ProcessSettings):
    """Settings of the API.

    Read by `bin/mqlake api --config conf/api.toml`. `bin/mqlake up` sets data_dir, token_file,
    heartbeat_file and log_file itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_API_")

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
        description="TCP port to listen on; `bin/mqlake up --api-port` wins.",
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file with the server's certificate, then its chain. Relative paths "
        "begin at the data directory. Changed files are read again within seconds. Without it "
        "the API speaks HTTP.",
        examples=[Path("/etc/mqlake/api.pem")],
    )
    key: Path | None = Field(
        default=None,
        description="PEM file with the certificate's private key.",
        examples=[Path("/etc/mqlake/api.key")],
    )
    key_password: SecretStr | None = Field(
        default=None,
        description="Password of the key, best given by the environment: MQLAKE_API_KEY_PASSWORD.",
        examples=["…"],
    )
    minimum_tls_version: TlsVersion = Field(
        default="1.2",
        description="Least version of TLS.",
    )
    hsts_seconds: int = Field(
        default=0,
        ge=0,
        le=63_072_000,
        description="For so long browsers come to this host name by TLS alone "
        "(Strict-Transport-Security); it holds for everything that is served there, on every "
        "port. 31536000 is a year. 0: browsers are not told.",
    )
    site: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Site, as of its gateways. <site>/api is the origin of messages that the "
        "API publishes.",
    )
    datacenter: int = Field(
        default=0,
        ge=0,
        le=255,
        description="Number that is part of the identifiers of these messages.",
    )
    data_dir: Path = Field(
        default=Path("data"),
        description="Data directory of the system.",
    )
    sql_max_rows: int = Field(
        default=1_000_000,
        ge=1,
        description="Most rows of a query's result.",
    )
    sql_max_bytes: int = Field(
        default=1_073_741_824,
        ge=1,
        description="Most bytes of a query's result, on disk, below data_dir.",
    )
    sql_max_seconds: float = Field(
        default=300.0,
        gt=0.0,
        le=3_600.0,
        description="Longest time that a query may take.",
    )
    sql_at_once: int = Field(
        default=2,
        ge=1,
        le=16,
        description="Queries that run at the same time; others wait 5 s, then get status 503.",
    )
    token_file: Path = Field(
        default=Path("data/api-token"),
        description="File with the bearer token of the administrator.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses of reverse proxies, separated by commas, whose X-Forwarded-For "
        "and X-Forwarded-Proto name the client and its protocol. Of other clients these "
        "headers do not count.",
    )
    host_names: tuple[str, ...] = Field(
        default=(),
        description="Names by which browsers ask for an API that listens on this machine alone and "
        'behind no such proxy, beside addresses, localhost and the name in public_url; "*": any. '
        "Others are answered 421: a page of any site could let a name of its own lead here.",
    )
    session_hours: float = Field(
        default=12.0,
        gt=0,
        le=720,
        description="How long a login lasts, in hours.",
    )
    requests_per_second: float = Field(
        default=500.0,
        gt=0,
        description="Requests of one key, account or token, over time. Each process of the "
        "API counts for itself.",
    )
    request_burst: float = Field(
        default=1000.0,
        ge=1,
        description="Requests at once, after a pause.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Largest body of a request.",
    )
    max_payload_bytes: int = Field(
        default=1024 * 1024,
        ge=0,
        le=4 * 1024 * 1024,
        description="Largest payload of a message to publish; as the gateways' max_packet_bytes.",
    )
    max_topic_levels: int = Field(
        default=DEFAULT_MAX_LEVELS,
        ge=1,
        le=MAX_TOPIC_BYTES + 1,
        description="Most levels of a topic to publish to; as the gateways' max_topic_levels.",
    )
    live_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="A live stream ends after so long; its reader then comes again.",
    )
    access_log: bool = Field(
        default=False,
        description="Whether each request is a line of the log, not only those that fail "
        "because of the API.",
    )

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key: set both, or none")
        if self.hsts_seconds and self.certificate is None:
            raise ValueError("hsts_seconds is set, certificate is not: browsers could not come")
        return self
