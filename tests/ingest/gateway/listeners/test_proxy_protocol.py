import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.gateway.listeners.proxy_protocol import (
    SIGNATURE,
    V2_MAX_BYTES,
    ProxyHeader,
    ProxyProtocolError,
    parse_proxy_header,
)


def v2(
    block: bytes = b"", *, command: int = 0x21, family: int = 0x11, length: int | None = None
) -> bytes:
    size = len(block) if length is None else length
    return SIGNATURE + struct.pack("!BBH", command, family, size) + block


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!BH", kind, len(value)) + value


def ssl_tlv(client: int, verify: int, common_name: bytes) -> bytes:
    return tlv(0x20, struct.pack("!BI", client, verify) + tlv(0x21, b"TLSv1.3") + common_name)


IPV4 = bytes((192, 0, 2, 7, 10, 0, 0, 1)) + struct.pack("!HH", 50123, 1883)
IPV6 = (
    ipaddress.ip_address("2001:db8::7").packed
    + ipaddress.ip_address("::1").packed
    + struct.pack("!HH", 50123, 1883)
)
UNIX = b"/run/proxy.sock".ljust(108, b"\0") + b"/run/mqtt.sock".ljust(108, b"\0")
COMMON_NAME = tlv(0x22, b"press-7")

HEADERS = {
    "v1 IPv4": (b"PROXY TCP4 192.0.2.7 10.0.0.1 50123 1883\r\n", ("192.0.2.7", 50123)),
    "v1 IPv6": (b"PROXY TCP6 2001:db8::7 ::1 65535 0\r\n", ("2001:db8::7", 65535)),
    "v1 longest IPv6": (
        b"PROXY TCP6 " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n",
        ("ffff:" * 7 + "ffff", 65535),
    ),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1 unknown and more": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "v1 as long as may be": (b"PROXY UNKNOWN ".ljust(105, b"x") + b"\r\n", None),
    "v2 IPv4": (v2(IPV4), ("192.0.2.7", 50123)),
    "v2 IPv4, datagram": (v2(IPV4, family=0x12), ("192.0.2.7", 50123)),
    "v2 IPv6": (v2(IPV6, family=0x21), ("2001:db8::7", 50123)),
    "v2 Unix socket": (v2(UNIX, family=0x31), None),
    "v2 unspecified": (v2(b"", family=0x00), None),
    "v2 unspecified, with what is to be ignored": (v2(b"\x01\xff\xff", family=0x00), None),
    "v2 local": (v2(b"", command=0x20, family=0x00), None),
    "v2 local with an address to be ignored": (v2(IPV4, command=0x20), None),
    "v2 local with an unknown family": (v2(b"xyz", command=0x20, family=0xFF), None),
    "v2 with fields": (v2(IPV4 + tlv(0x04, b"\0\0") + tlv(0xEE, b"?")), ("192.0.2.7", 50123)),
    "v2 longest": (
        v2(IPV4 + tlv(0x04, bytes(V2_MAX_BYTES - 16 - 12 - 3))),
        ("192.0.2.7", 50123),
    ),
}


@pytest.mark.parametrize(("data", "client"), HEADERS.values(), ids=HEADERS.keys())
def test_header_names_the_client(data: bytes, client: tuple[str, int] | None) -> None:
    assert parse_proxy_header(data + b"\x10more") == ProxyHeader(len(data), client)


@pytest.mark.parametrize("data", [data for data, _ in HEADERS.values()], ids=HEADERS.keys())
def test_every_beginning_of_a_header_waits_for_more(data: bytes) -> None:
    assert all(parse_proxy_header(data[:size]) is None for size in range(len(data)))
    assert parse_proxy_header(data) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT",  # CONNECT itself
        b"\x16\x03\x01",  # a TLS handshake
        b"GET /mqtt HTTP/1.1\r\n",
        b"PROXX",
        b"proxy TCP4 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY TCP5 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2 3\r\n",
        b"PROXY TCP4  192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.07 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 01 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 65536\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 x\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\xff\r\n",
        b"PROXY UNKNOWN".ljust(107, b" "),
        SIGNATURE[:-1] + b"X",
        v2(IPV4, command=0x11),
        v2(IPV4, command=0x22),
        v2(IPV4[:-1]),
        v2(IPV6[:-1], family=0x21),
        v2(UNIX[:-1], family=0x31),
        v2(IPV4, family=0x41),
        v2(IPV4, family=0x13),
        v2(IPV4 + b"\x04"),
        v2(IPV4 + b"\x04\x00\x02x"),
        v2(IPV4 + tlv(0x02, b"\xff")),
        v2(IPV4 + tlv(0x20, b"\x01")),
        v2(IPV4 + tlv(0x20, struct.pack("!BI", 7, 0) + b"\x22\x00\x05x")),
        v2(length=V2_MAX_BYTES - 16 + 1),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyProtocolError):
        parse_proxy_header(data)


def test_too_long_a_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProxyProtocolError, match="65551 bytes, expected 4096 at most"):
        parse_proxy_header(v2(length=65535))


def test_host_name_that_the_client_asked_for_is_passed_on() -> None:
    header = parse_proxy_header(v2(IPV4 + tlv(0x02, b"mqtt.example.org")))
    assert header is not None
    assert header.server_name == "mqtt.example.org"


@pytest.mark.parametrize(
    ("client", "verify", "name"),
    [
        (0x07, 0, "press-7"),  # by TLS, with a certificate in this connection
        (0x05, 0, "press-7"),  # or in its session
        (0x07, 18, None),  # which the proxy could not verify
        (0x01, 0, None),  # there was none
    ],
)
def test_name_in_a_certificate_counts_when_the_proxy_has_verified_it(
    client: int, verify: int, name: str | None
) -> None:
    header = parse_proxy_header(v2(IPV4 + ssl_tlv(client, verify, COMMON_NAME)))
    assert header is not None
    assert header.certificate_common_name == name


@given(st.sampled_from([data for data, _ in HEADERS.values()]), st.data())
def test_mutated_headers_are_read_or_refused(data: bytes, draw: st.DataObject) -> None:
    mutated = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        mutated[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        header = parse_proxy_header(bytes(mutated))
    except ProxyProtocolError:
        return
    assert header is None or header.size <= len(mutated)
