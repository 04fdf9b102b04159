"""Facts about a connection through `get_extra_info`, whichever way it came.

Each way is a lossless stream of bytes in order, in both directions; plain TCP is enough, and the
gateway opens no connection of MQTT to another server. [MQTT5-4.2.0-1] [MQTT311-7.1.1-1]
[MQTT311-7.0.0-1] [MQTT311-7.0.0-2]

Beside the names that asyncio knows:

    peername                         the client's address; behind a proxy the one the proxy sent
    proxy_peername                   the proxy's own, when the listener expects one
    sni                              host name that the client asked for in TLS, or None
    client_certificate_subject       RFC 4514 text such as `CN=press-7,O=Example`, or None
    client_certificate_common_name   the only one, or None; behind a proxy the one that the proxy
                                     has verified
    client_certificate_fields        of its subject, `("organizationName", "Example")`, or None
    client_certificate_names         its alternative names, `("URI", "spiffe://…")`, or None
    client_certificate_not_after     when it ends, in seconds UTC, or None
    websocket_path                   target of the client's request, with its query
    websocket_subprotocol            `mqtt` or `mqttv3.1`
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

Facts = dict[str, Any]

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 4514, section 3."""

_ESCAPES: Final = str.maketrans(
    {character: f"\\{character}" for character in '"+,;<>\\='} | {"\0": "\\00"}
)


class TransportWithFacts:
    """A transport that knows more of its connection; all calls go straight through."""

    __slots__ = (
        "_facts",
        "_transport",
        "abort",
        "can_write_eof",
        "close",
        "get_write_buffer_size",
        "is_closing",
        "pause_reading",
        "resume_reading",
        "set_protocol",
        "set_write_buffer_limits",
        "write",
        "write_eof",
        "writelines",
    )

    def __init__(self, transport: asyncio.Transport, facts: Facts) -> None:
        self._transport = transport
        self._facts = facts
        # The transport's own methods: a write costs the same as without this object.
        self.abort = transport.abort
        self.can_write_eof = transport.can_write_eof
        self.close = transport.close
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol
        self.set_write_buffer_limits = transport.set_write_buffer_limits
        self.write = transport.write
        self.write_eof = transport.write_eof
        self.writelines = transport.writelines

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self._facts:
            return self._facts[name]
        return self._transport.get_extra_info(name, default)


class ProtocolMaker(asyncio.Protocol):
    """Makes the connection's protocol when the transport is there, and steps aside.

    Args:
        make: Makes the protocol.
        facts: Known before; those of TLS are added.
    """

    __slots__ = ("_facts", "_make")

    def __init__(self, make: Callable[[], asyncio.Protocol], facts: Facts) -> None:
        self._make = make
        self._facts = facts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        below = cast("asyncio.Transport", transport)
        above = self._make()
        ssl_object = below.get_extra_info("ssl_object")
        if ssl_object is not None:
            # The proxy's statement about its own TLS is about another connection than this one.
            self._facts["sni"] = getattr(ssl_object, "sni", None)
            self._facts |= certificate_facts(below.get_extra_info("peercert"))
        below.set_protocol(above)
        if self._facts:
            below = cast("asyncio.Transport", TransportWithFacts(below, self._facts))
        above.connection_made(below)


def certificate_facts(certificate: dict[str, Any] | None) -> Facts:
    """Return the facts of a verified client certificate, given as `getpeercert` has it."""
    certificate = certificate or {}
    subject = certificate.get("subject", ())
    names = [pair for relative_name in subject for pair in relative_name]
    common_names = [value for kind, value in names if kind == "commonName"]
    return {
        "client_certificate_subject": _to_rfc4514(subject) or None,
        # Of several, either might be meant.
        "client_certificate_common_name": common_names[0] if len(common_names) == 1 else None,
        "client_certificate_fields": names or None,
        "client_certificate_names": certificate.get("subjectAltName") or None,
        "client_certificate_not_after": _seconds(certificate.get("notAfter")),
    }


def _seconds(time: str | None) -> int | None:
    return None if time is None else ssl.cert_time_to_seconds(time)


def _to_rfc4514(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escape(value)}" for kind, value in names)
        for names in reversed(subject)
    )


def _escape(value: str) -> str:
    escaped = value.translate(_ESCAPES)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if value.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
