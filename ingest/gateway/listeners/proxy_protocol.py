"""The PROXY protocol, versions 1 and 2: the address of a proxy's client, before its first byte.

Specification: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt (2020/03/05). The header
comes in the clear, before TLS. It is believed, so only the proxy may be able to reach the port.
"""

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from mqlake.errors import MqlakeError

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
V1_PREFIX: Final = b"PROXY "
V1_MAX_BYTES: Final = 107
"""With the line's end; section 2.1."""
V2_MAX_BYTES: Final = 4096
"""Ours; the specification has 16 bits and asks for far less in practice (section 2.2)."""

_V2_FIXED: Final = struct.Struct("!12sBBH")
_VERSION: Final = 2
_LOCAL: Final = 0
_PROXY: Final = 1

_UNSPECIFIED: Final = 0
_ADDRESSES: Final = {1: struct.Struct("!4s4sHH"), 2: struct.Struct("!16s16sHH")}
"""Source and destination address, source and destination port, by address family."""
_UNIX: Final = 3
_UNIX_BYTES: Final = 216

_TLV: Final = struct.Struct("!BH")
_AUTHORITY: Final = 0x02
_SSL: Final = 0x20
_SSL_FIXED: Final = struct.Struct("!BI")
_SSL_COMMON_NAME: Final = 0x22
_SSL_HAS_CERTIFICATE: Final = 0x06
"""PP2_CLIENT_CERT_CONN or PP2_CLIENT_CERT_SESS."""


class ProxyProtocolError(MqlakeError):
    """The bytes before the first one of MQTT are no PROXY header; says how they differ."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """The proxy's facts about its client."""

    size: int
    """Bytes of the header; those behind it are the client's."""
    client: tuple[str, int] | None
    """Address and port; None when the proxy speaks for itself or does not say."""
    server_name: str | None = None
    """The host name that the client asked for (TLS server name indication)."""
    certificate_common_name: str | None = None
    """Common name of the client certificate that the proxy has verified."""


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Read a header from the first bytes of a connection.

    Returns:
        None when all of it is a header's beginning.

    Raises:
        ProxyProtocolError: It is no header, a malformed one, or too long.
    """
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _parse_v2(data)
    if data[: len(V1_PREFIX)] == V1_PREFIX[: len(data)]:
        return _parse_v1(data)
    raise ProxyProtocolError(f"expected a PROXY header, got {data[:16]!r}")


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_MAX_BYTES)
    if end < 0:
        if len(data) >= V1_MAX_BYTES:
            raise ProxyProtocolError(f"PROXY line longer than {V1_MAX_BYTES} bytes")
        return None
    try:
        _, protocol, *fields = data[:end].decode("ascii").split(" ")
        if protocol == "UNKNOWN":  # all that follows is to be ignored
            return ProxyHeader(end + 2, None)
        source, destination, source_port, destination_port = fields
        address_class = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}[protocol]
        address_class(destination)
        _port(destination_port)
        client = (str(address_class(source)), _port(source_port))
    except (KeyError, ValueError) as exc:
        raise ProxyProtocolError(f"malformed PROXY line {data[:end]!r}") from exc
    return ProxyHeader(end + 2, client)


def _port(text: str) -> int:
    """Read a port as section 2.1 writes it: decimal, 0 to 65535, no leading zeros."""
    port = int(text)
    if str(port) != text or not 0 <= port <= 65535:
        raise ValueError(f"{text!r} is no port")
    return port


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_FIXED.size:
        return None
    _, version_command, family_protocol, length = _V2_FIXED.unpack_from(data)
    version, command = divmod(version_command, 16)
    if version != _VERSION or command not in (_LOCAL, _PROXY):
        raise ProxyProtocolError(f"PROXY version and command are {version_command:#04x}")
    size = _V2_FIXED.size + length
    if size > V2_MAX_BYTES:
        raise ProxyProtocolError(f"PROXY header of {size} bytes, expected {V2_MAX_BYTES} at most")
    if len(data) < size:
        return None
    if command == _LOCAL:  # the proxy's own health check: the block says nothing
        return ProxyHeader(size, None)
    block = data[_V2_FIXED.size : size]
    family, protocol = divmod(family_protocol, 16)
    if protocol > 2:
        raise ProxyProtocolError(f"PROXY transport protocol is {protocol}, expected 0 to 2")
    client = None
    if family == _UNSPECIFIED or protocol == 0:
        return ProxyHeader(size, None)
    if family in _ADDRESSES:
        form = _ADDRESSES[family]
        if len(block) < form.size:
            raise ProxyProtocolError(f"PROXY addresses of {len(block)} bytes, expected {form.size}")
        source, _, port, _ = form.unpack_from(block)
        client = (str(ipaddress.ip_address(source)), port)
        tlvs = _tlvs(block[form.size :])
    elif family == _UNIX:
        if len(block) < _UNIX_BYTES:
            raise ProxyProtocolError(f"PROXY addresses of {len(block)} bytes, expected 216")
        tlvs = _tlvs(block[_UNIX_BYTES:])
    else:
        raise ProxyProtocolError(f"PROXY address family is {family}, expected 0 to 3")
    return ProxyHeader(
        size,
        client,
        server_name=_text(tlvs.get(_AUTHORITY)),
        certificate_common_name=_common_name(tlvs.get(_SSL)),
    )


def _tlvs(data: bytes) -> dict[int, bytes]:
    """Read type-length-value fields to the last byte."""
    found = {}
    position = 0
    while position < len(data):
        end = position + _TLV.size
        if end > len(data):
            raise ProxyProtocolError("PROXY field is cut off")
        kind, length = _TLV.unpack_from(data, position)
        position = end + length
        if position > len(data):
            raise ProxyProtocolError(f"PROXY field {kind:#04x} is cut off")
        found[kind] = data[end:position]
    return found


def _common_name(ssl_field: bytes | None) -> str | None:
    """Return the name in a client certificate, when there was one and the proxy verified it."""
    if ssl_field is None:
        return None
    if len(ssl_field) < _SSL_FIXED.size:
        raise ProxyProtocolError("PROXY field 0x20 is cut off")
    client, verify = _SSL_FIXED.unpack_from(ssl_field)
    name = _text(_tlvs(ssl_field[_SSL_FIXED.size :]).get(_SSL_COMMON_NAME))
    return name if client & _SSL_HAS_CERTIFICATE and verify == 0 else None


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as exc:
        raise ProxyProtocolError("PROXY field is not UTF-8") from exc
