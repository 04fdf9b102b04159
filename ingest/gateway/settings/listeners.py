"""Settings of listeners; `conf/gateway.toml` shows every key."""

import json
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, SecretStr, field_validator, model_validator

from ingest.protocol.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5_0
from mqlake.security.addresses import is_loopback
from mqlake.settings import SettingsGroup

Version: TypeAlias = Literal["3.1", "3.1.1", "5.0"]

Identity: TypeAlias = Literal["common_name", "dns", "email", "uri"]

PROTOCOL_LEVELS: Final[dict[Version, int]] = {
    "3.1": MQTT_3_1,
    "3.1.1": MQTT_3_1_1,
    "5.0": MQTT_5_0,
}


_THIS_MACHINE: Final = ("127.0.0.0/8", "::1")


class _Listener(SettingsGroup):
    """Settings of every listener."""

    name: str = Field(
        default="",
        pattern=r"^[a-z0-9_-]{0,63}$",
        description="Name in the log. Empty: the address.",
    )
    versions: tuple[Version, ...] = Field(
        default=("3.1", "3.1.1", "5.0"),
        min_length=1,
        description="MQTT versions to accept; clients of others are refused with CONNACK 1 (3.x) "
        "or 0x84 (5.0).",
    )
    max_connections: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of clients; connections beyond it are closed at once, unless "
        "one has not logged in: that is closed. Without it only the gateway's max_connections "
        "applies.",
        examples=[10_000],
    )
    connects_per_second: int = Field(
        default=0,
        ge=0,
        description="CONNECT packets per second; more are refused with 0x9F. 0: no limit, as for "
        "all rates.",
    )
    messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages per second that all clients of this listener publish; the burst is "
        "as large.",
    )
    deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of these messages: 1 for each, and 1 for each client that "
        "receives it.",
    )
    bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that all clients of this listener send, at least 1024; the "
        "burst is as large.",
    )
    filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second named by all clients of this listener; the burst is "
        "as large.",
    )
    subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of all clients of this listener; more are refused with 0x97.",
    )
    session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of topic filters and wills of all clients of this listener.",
    )
    proxy_protocol: bool = Field(
        default=False,
        description="Whether each connection starts with a PROXY protocol header, version 1 or 2. "
        "Its client address is trusted (also its host name and the client certificate's name).",
    )
    proxies: tuple[str, ...] = Field(
        default=(),
        description="Addresses and networks of the proxies that may connect to a listener with "
        'proxy_protocol, such as ["192.0.2.7", "10.1.0.0/16"]; others are refused. Empty: this '
        "machine's own, which a listener on other addresses than 127.0.0.1 has to say.",
    )
    authenticate_by: tuple[str, ...] = Field(
        default=(),
        description="As the gateway's authenticate_by, for this listener. Empty: the gateway's.",
    )
    use_identity_as_username: bool = Field(
        default=False,
        description="Whether the name in the client's certificate, verified here or by such a "
        "proxy, is its user name. No password is required, a client without a certificate is "
        "refused, and the connection ends when the certificate expires.",
    )
    use_identity_as_client_id: bool = Field(
        default=False,
        description="Whether that name is also the client identifier. A client with another "
        "identifier is refused with 0x85 (3.x: 2), a client without one gets it.",
    )
    identity: Identity = Field(
        default="common_name",
        description='Source of that name: the only "common_name" of the subject, or the only '
        "subject alternative name of the kind. A proxy sends only the common name.",
    )

    tenant: str = Field(
        default="",
        pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$",
        description="Default tenant of the clients (docs/tenants.md). Empty: the gateway's.",
    )
    tenant_in_username: bool = Field(
        default=False,
        description="Whether acme/ann is user ann of tenant acme. A user name without a slash "
        "sets no tenant.",
    )

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks of the proxies."""
        return tuple(ip_network(one) for one in self.proxies or _THIS_MACHINE)

    @field_validator("proxies")
    @classmethod
    def _proxies_are_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for one in proxies:
            try:
                ip_network(one)
            except ValueError as exc:
                raise ValueError(
                    f"{one!r} is neither an address, as 192.0.2.7, nor a network, as 10.1.0.0/16"
                ) from exc
        return proxies

    @model_validator(mode="after")
    def _proxies_are_known(self) -> Self:
        host = getattr(self, "host", None)
        if self.proxies and not self.proxy_protocol:
            raise ValueError("proxies is set, proxy_protocol is not")
        if self.proxy_protocol and not self.proxies and host is not None and not is_loopback(host):
            raise ValueError(
                f"proxy_protocol is set for a listener on {host!r}, proxies is empty: name the "
                'addresses of the proxies, ["127.0.0.1"] for one on this machine'
            )
        return self

    @model_validator(mode="after")
    def _identities_can_be_had(self) -> Self:
        shows_certificate = getattr(self, "client_certificates", "none") != "none"
        if self.use_identity_as_client_id and not self.use_identity_as_username:
            raise ValueError(
                "use_identity_as_client_id is set, use_identity_as_username is not: set it too"
            )
        if self.identity != "common_name" and not shows_certificate:
            raise ValueError(
                f"identity is {self.identity!r}, client_certificates is not set: "
                "a proxy tells the common name alone"
            )
        if self.use_identity_as_username and not (shows_certificate or self.proxy_protocol):
            raise ValueError(
                "use_identity_as_username is set, client_certificates (or proxy_protocol) is not"
            )
        chooses = self.tenant_in_username or bool(getattr(self, "tenant_server_names", ""))
        says = getattr(self, "tenant_certificate_field", "")
        if self.use_identity_as_username and chooses and not says:
            raise ValueError(
                "use_identity_as_username is set, so that a client could choose its tenant: set "
                "tenant_certificate_field, too"
            )
        return self


class _Network(_Listener):
    host: str = Field(
        default="127.0.0.1",
        description='Address, IPv4 or IPv6: "::" is all of IPv6, "0.0.0.0" all of IPv4, "" '
        "all of both.",
    )
    port: int = Field(
        ge=1,
        le=65535,
        description="TCP port.",
        examples=[1884],
    )


class _Tls(SettingsGroup):
    tenant_server_names: str = Field(
        default="",
        pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$",
        description='Domain such as "mqtt.example.org": a client that uses the TLS server name '
        "(SNI) acme.mqtt.example.org belongs to tenant acme. Empty: server names set no tenant.",
    )
    tenant_certificate_field: Literal["", "common_name", "organization", "organizational_unit"] = (
        Field(
            default="",
            description="Subject field of the client's certificate with the tenant; a client whose "
            "certificate lacks it is refused. Empty: certificates set no tenant.",
        )
    )
    certificate: Path = Field(
        description="PEM file with the server's certificate, then its chain. Reloaded on SIGHUP "
        "and POST /api/v1/gateways/<name>/reload, for new connections; if the files are not "
        "usable, the previous ones stay in use.",
        examples=[Path("/etc/mqlake/server.pem")],
    )
    key: Path = Field(
        description="PEM file with the certificate's private key; reloaded with the certificate.",
        examples=[Path("/etc/mqlake/server.key")],
    )
    key_password: SecretStr | None = Field(
        default=None,
        description="Password of an encrypted key.",
        examples=["…"],
    )
    client_certificates: Literal["none", "optional", "required"] = Field(
        default="none",
        description="Whether clients may or must send a certificate. A certificate not signed by "
        "the authorities in ca_certificates is refused in both cases.",
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file with the authorities that sign client certificates.",
        examples=[Path("/etc/mqlake/clients-ca.pem")],
    )
    revoked_certificates: Path | None = Field(
        default=None,
        description="PEM file with only certificate revocation lists (X509 CRL): one for each "
        "authority from those that sign clients up to the root. A client is refused if its "
        "certificate, or that of an authority above it, is in a list, or if one of these "
        "authorities has no currently valid list here. Reloaded with the certificate; connected "
        "clients stay connected.",
        examples=[Path("/etc/mqlake/clients-crl.pem")],
    )
    minimum_tls_version: Literal["1.2", "1.3"] = Field(
        default="1.2", description="Minimum TLS version."
    )

    @model_validator(mode="after")
    def _authorities_are_known(self) -> Self:
        if self.client_certificates != "none" and self.ca_certificates is None:
            raise ValueError(
                f"client_certificates is {self.client_certificates!r}, ca_certificates is missing"
            )
        if self.revoked_certificates is not None and self.client_certificates == "none":
            raise ValueError("revoked_certificates is set, client_certificates is not")
        if self.tenant_certificate_field and self.client_certificates == "none":
            raise ValueError("tenant_certificate_field is set, client_certificates is not")
        return self


class _WebSocket(SettingsGroup):
    path: str = Field(
        default="/mqtt",
        pattern=r"^(\*|/.*)$",
        description='Path of the URL; "*" for any.',
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description='Web origins whose pages may connect, for example ["https://example.org"]. '
        "Empty: pages from the host in the listener's URL, if that is an address or localhost. "
        '["*"]: pages of every site, which then have the rights of their reader. Clients that are '
        "not browsers send no origin and are not checked.",
    )


class TcpListener(_Network):
    """MQTT over TCP. This table shows the keys common to all kinds."""

    kind: Literal["tcp"] = "tcp"


class TlsListener(_Network, _Tls):
    """MQTT over TLS."""

    kind: Literal["tls"] = "tls"
    port: int = Field(
        default=8883,
        ge=1,
        le=65535,
        description="TCP port.",
    )


class WebSocketListener(_Network, _WebSocket):
    """MQTT over WebSocket."""

    kind: Literal["ws"] = "ws"
    port: int = Field(
        default=8083,
        ge=1,
        le=65535,
        description="TCP port.",
    )


class SecureWebSocketListener(_Network, _Tls, _WebSocket):
    """MQTT over Secure WebSocket, with the keys of tls and of ws."""

    kind: Literal["wss"] = "wss"
    port: int = Field(
        default=8084,
        ge=1,
        le=65535,
        description="TCP port.",
    )


class UnixListener(_Listener):
    """MQTT over a Unix socket."""

    kind: Literal["unix"] = "unix"
    file: Path = Field(
        description="Path of the socket; created at startup, removed at shutdown.",
        examples=[Path("/run/mqlake/mqtt.sock")],
    )
    mode: str = Field(
        default="0660",
        pattern=r"^0[0-7]{3}$",
        description="File mode of the socket, octal: who may connect.",
    )


ListenerSettings: TypeAlias = Annotated[
    TcpListener | TlsListener | WebSocketListener | SecureWebSocketListener | UnixListener,
    Field(discriminator="kind"),
]

TlsSettings: TypeAlias = TlsListener | SecureWebSocketListener
WebSocketSettings: TypeAlias = WebSocketListener | SecureWebSocketListener
NetworkSettings: TypeAlias = TcpListener | TlsListener | WebSocketListener | SecureWebSocketListener

_ALL_ADDRESSES: Final = {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound
_SCHEMES: Final = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}


def is_open(settings: ListenerSettings) -> bool:
    """Tell whether other machines reach a listener, and it asks for no certificate."""
    if isinstance(settings, UnixListener) or settings.host == "localhost":
        return False
    if getattr(settings, "client_certificates", "none") == "required":
        return False
    try:
        return not ip_address(settings.host).is_loopback
    except ValueError:  # all addresses, or a name that may lead to any
        return True


def address_of(settings: ListenerSettings, *, host: str | None = None) -> str:
    """Return the listener's address as a URL; with the PROXY protocol as `mqtt+proxy://…`.

    Args:
        settings: Settings of the listener.
        host: Host in a URL; without one that of the settings, `*` for all.
    """
    if isinstance(settings, UnixListener):
        return f"unix://{settings.file}"
    if host is None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host or "*"
    proxied = "+proxy" if settings.proxy_protocol else ""
    address = f"{_SCHEMES[settings.kind]}{proxied}://{host}:{settings.port}"
    if isinstance(settings, (WebSocketListener, SecureWebSocketListener)):
        address += "/" if settings.path == "*" else settings.path
    return address


def advertised(listeners: Iterable[ListenerSettings], host: str) -> dict[str, str]:
    """Return host and port of the first listener of each kind that clients can be sent to.

    Args:
        listeners: Listeners of a gateway.
        host: Host name for clients; empty: by the host of each, unless that is all addresses.
    """
    found: dict[str, str] = {}
    for settings in listeners:
        if isinstance(settings, UnixListener) or settings.kind in found:
            continue
        if settings.proxy_protocol and not host:
            continue  # clients come by the proxy, whose address only `host` can say
        own = "" if settings.host in _ALL_ADDRESSES else settings.host
        reached = host or (f"[{own}]" if ":" in own else own)
        if reached:
            found[settings.kind] = f"{reached}:{settings.port}"
    return found


def to_json(listeners: Iterable[ListenerSettings]) -> str:
    """Return listeners as the environment variable of a gateway takes them, passwords included."""
    return json.dumps([listener.model_dump() for listener in listeners], default=_to_text)


def _to_text(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
