"""Settings of the API process (`mqlake api`); `conf/api.toml` shows every key."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.addresses import is_loopback
from mqlake.settings import ProcessSettings, SettingsGroup, TracingSettings
from mqlake.tls import TlsVersion
from mqlake.topics import DEFAULT_MAX_LEVELS, MAX_TOPIC_BYTES


class OidcSettings(SettingsGroup):
    """The identity provider at which browsers may log in (OpenID Connect)."""

    name: str = Field(default="single sign-on", min_length=1, description="for the login page")
    issuer: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/\S*)?$", description="as its tokens name it"
    )
    client_id: str = Field(min_length=1, description="as the provider knows this API")
    client_secret: SecretStr | None = Field(
        default=None, description="best given by the environment; None: a public client"
    )
    public_url: str = Field(
        pattern=r"^https?://[^\s/?#@]+/?$", description="at which browsers reach this API"
    )
    scope: str = Field(default="openid", pattern=r"^openid( \S+)*$", description="asked for")
    username_claim: str = Field(
        default="sub", min_length=1, description="that names the account; not what users may change"
    )
    ca_certificates: Path | None = Field(
        default=None, description="PEM file: further authorities for the provider's certificate"
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(), description="where the provider may be though they are not public"
    )
    timeout_seconds: float = Field(default=10.0, gt=0.0, le=60.0, description="of one answer")

    @model_validator(mode="after")
    def _nobody_reads_along(self) -> Self:
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("issuer: expected https://")
        return self


class ApiSettings(ProcessSettings):
    """Where the API listens and what it guards."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_API_")

    tracing: TracingSettings = TracingSettings()
    oidc: OidcSettings | None = None

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=1, le=65535, description="TCP port to listen on")
    certificate: Path | None = Field(
        default=None,
        description="PEM file: the server's certificate, then its chain; None: no TLS",
    )
    key: Path | None = Field(default=None, description="PEM file: the certificate's private key")
    key_password: SecretStr | None = Field(
        default=None, description="of the key; best given by the environment"
    )
    minimum_tls_version: TlsVersion = Field(default="1.2", description="older ones are refused")
    hsts_seconds: int = Field(
        default=0,
        ge=0,
        le=63_072_000,
        description="for so long browsers come to this host name by TLS alone "
        "(Strict-Transport-Security), whatever else it serves; 0: they are not told; with a "
        "certificate",
    )
    site: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="as of the site's gateways; part of the origin of what the API publishes",
    )
    datacenter: int = Field(default=0, ge=0, le=255, description="part of message identifiers")
    data_dir: Path = Field(default=Path("data"), description="data directory of the system")
    sql_max_rows: int = Field(default=1_000_000, ge=1, description="most rows of a query's result")
    sql_max_bytes: int = Field(
        default=1_073_741_824, ge=1, description="most bytes of a query's result, on disk"
    )
    sql_max_seconds: float = Field(
        default=300.0, gt=0.0, le=3_600.0, description="longest that a query may take"
    )
    sql_at_once: int = Field(
        default=2, ge=1, le=16, description="queries that run at the same time; others wait 5 s"
    )
    token_file: Path = Field(
        default=Path("data/api-token"), description="holds the bearer token of the administrator"
    )
    trusted_proxies: str = Field(
        default="", description="addresses of proxies that say whom they ask for, comma-separated"
    )
    session_hours: float = Field(
        default=12.0, gt=0, le=720, description="how long a login lasts, in hours"
    )
    requests_per_second: float = Field(
        default=500.0, gt=0, description="of one key, account or token, over time"
    )
    request_burst: float = Field(default=1000.0, ge=1, description="at once, after a pause")
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="larger requests are refused"
    )
    max_payload_bytes: int = Field(
        default=1024 * 1024, ge=0, le=4 * 1024 * 1024, description="of a message to publish"
    )
    max_topic_levels: int = Field(
        default=DEFAULT_MAX_LEVELS,
        ge=1,
        le=MAX_TOPIC_BYTES + 1,
        description="of a message to publish; as the gateways'",
    )
    live_seconds: float = Field(
        default=3600.0, gt=0, description="a live stream ends then; its reader comes again"
    )
    access_log: bool = Field(default=False, description="a line in the log for each request")

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key: set both, or none")
        if self.hsts_seconds and self.certificate is None:
            raise ValueError("hsts_seconds is set, certificate is not: browsers could not come")
        return self
