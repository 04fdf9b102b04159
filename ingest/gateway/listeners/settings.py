"""What a listener may be told; `conf/gateway.toml` shows every key."""

import json
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, SecretStr, model_validator

from ingest.protocol.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5_0
from mqlake.settings import SettingsGroup

Version: TypeAlias = Literal["3.1", "3.1.1", "5.0"]

Identity: TypeAlias = Literal["common_name", "dns", "email", "uri"]

PROTOCOL_LEVELS: Final[dict[Version, int]] = {
    "3.1": MQTT_3_1,
    "3.1.1": MQTT_3_1_1,
    "5.0": MQTT_5_0,
}


class _Listener(SettingsGroup):
    """What every listener has."""

    name: str = Field(
        default="",
        pattern=r"^[a-z0-9_-]{0,63}$",
        description="for the log; its kind and address when empty",
    )
    versions: tuple[Version, ...] = Field(
        default=("3.1", "3.1.1", "5.0"),
        min_length=1,
        description="MQTT versions accepted; clients of others are refused with their version's "
        "code",
    )
    max_connections: int | None = Field(
        default=None,
        ge=1,
        description="further clients of this listener are refused; None for the gateway's limit "
        "alone",
    )
    connects_per_second: int = Field(
        default=0, ge=0, description="CONNECT packets that are looked at; others get 0x9F"
    )
    messages_per_second: int = Field(
        default=0, ge=0, description="that all of its clients publish; as many at once"
    )
    deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="what these cost: one for each, and one for each client that gets it",
    )
    bytes_per_second: int = Field(
        default=0, ge=0, description="that all of its clients send, at least 1024; as many at once"
    )
    filters_per_second: int = Field(
        default=0,
        ge=0,
        description="topic filters that all of its clients name; as many at once",
    )
    proxy_protocol: bool = Field(
        default=False,
        description="each connection begins with a PROXY protocol header, version 1 or 2; only for "
        "ports that nobody but the proxy can reach",
    )
    authenticate_by: tuple[str, ...] = Field(
        default=(), description="as the gateway's, for this listener; empty: the gateway's counts"
    )
    use_identity_as_username: bool = Field(
        default=False,
        description="the name in a client's verified certificate is its user name, no password is "
        "asked for, and without one it is refused",
    )
    use_identity_as_client_id: bool = Field(
        default=False,
        description="that name is the client identifier, too: one that names another is refused, "
        "one that names none gets it",
    )
    identity: Identity = Field(
        default="common_name",
        description="which name in a client's certificate that is: the common name of its "
        "subject, or its only DNS name, e-mail address or URI among the alternative names",
    )

    tenant: str = Field(
        default="",
        pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$",
        description="tenant of its clients, where nothing else says it; empty: the gateway's",
    )
    tenant_in_username: bool = Field(
        default=False,
        description="acme/ann is ann of the tenant acme; a user name without a slash says none",
    )

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
        description="address to listen on, IPv4 or IPv6; empty for all of both",
    )
    port: int = Field(ge=1, le=65535)


class _Tls(SettingsGroup):
    tenant_server_names: str = Field(
        default="",
        pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$",
        description="domain, mqtt.example.org: who asks for acme.mqtt.example.org in TLS (SNI) is "
        "of the tenant acme; empty: host names say none",
    )
    tenant_certificate_field: Literal["", "common_name", "organization", "organizational_unit"] = (
        Field(
            default="",
            description="field of the subject of a client's certificate that names its tenant; who "
            "shows one without it is refused; empty: certificates say none",
        )
    )
    certificate: Path = Field(description="PEM file: the server's certificate, then its chain")
    key: Path = Field(description="PEM file: the certificate's private key")
    key_password: SecretStr | None = Field(default=None, description="of an encrypted key")
    client_certificates: Literal["none", "optional", "required"] = Field(
        default="none",
        description="whether clients may or must show a certificate; a wrong one is always refused",
    )
    ca_certificates: Path | None = Field(
        default=None, description="PEM file: the authorities that sign client certificates"
    )
    revoked_certificates: Path | None = Field(
        default=None,
        description="PEM file: lists of the client certificates that the authorities have revoked, "
        "one of each authority that signs some; who shows one of them, or one whose authority has "
        "no list that is valid now, is refused",
    )
    minimum_tls_version: Literal["1.2", "1.3"] = "1.2"

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
        default="/mqtt", pattern=r"^(\*|/.*)$", description="of the URL; * for any path"
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description="web origins whose pages may connect, such as https://example.org; empty: "
        "those of the host that the listener is reached by, if it is an address or localhost; "
        "* for all; clients that are not browsers send none and are not asked",
    )


class TcpListener(_Network):
    kind: Literal["tcp"] = "tcp"


class TlsListener(_Network, _Tls):
    kind: Literal["tls"] = "tls"
    port: int = Field(default=8883, ge=1, le=65535)


class WebSocketListener(_Network, _WebSocket):
    kind: Literal["ws"] = "ws"
    port: int = Field(default=8083, ge=1, le=65535)


class SecureWebSocketListener(_Network, _Tls, _WebSocket):
    kind: Literal["wss"] = "wss"
    port: int = Field(default=8084, ge=1, le=65535)


class UnixListener(_Listener):
    kind: Literal["unix"] = "unix"
    file: Path = Field(description="of the socket; made at the start, removed at the end")
    mode: str = Field(
        default="0660", pattern=r"^0[0-7]{3}$", description="who may connect, octal, as for files"
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
    """Tell whether other machines reach a listener, and it asks nobody for a certificate."""
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
        settings: Of the listener.
        host: As it stands in a URL; without one that of the settings, `*` for all.
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
        listeners: Of a gateway.
        host: By which clients reach them; empty: by the host of each, unless that is all addresses.
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
