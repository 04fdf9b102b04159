"""Handshakes and frames of WebSocket that are made to cost, or to break something."""

import os
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connect, Disconnect, Publish
from ingest.protocol.reason_codes import DisconnectReasonCode
from tests.ingest.gateway.harness import Client, free_port, until
from tests.ingest.gateway.listeners.websocket_client import WebSocketClient
from tests.ingest.hostile.town import PASSWORD, Town, town

pytestmark = pytest.mark.anyio

MASK = b"\0\0\0\0"
MOST = 100_000
"""Bytes of a packet."""
SECONDS = 2.0
"""From the socket to CONNECT: so long it waits for the rest of what is none."""
CONNECT = encode(Connect("hostile", 5, username="ann", password=PASSWORD), 5)


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    listeners = [{"kind": "ws", "port": free_port()}]
    folder = tmp_path_factory.mktemp("town")
    limits: dict[str, Any] = {"max_packet_bytes": MOST, "connect_timeout_seconds": SECONDS}
    async with town(folder, listeners=listeners, **limits) as found:
        yield found


def port_of(place: Town) -> int:
    listener: Any = place.harness.gateway.settings.listeners[0]
    port: int = listener.port
    return port


async def is_over(place: Town, before: int) -> None:
    """See that the gateway has let go of a connection, and is well."""
    await until(lambda: len(place.harness.gateway.connections) <= before)
    await place.is_well()


def frame(first: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """Return a masked frame; of a length that it may not have."""
    size = len(payload) if length is None else length
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65_536:
        head = bytes((first, 0xFE)) + struct.pack("!H", size)
    else:
        head = bytes((first, 0xFF)) + struct.pack("!Q", size)
    return head + MASK + payload


SQUEEZED = zlib.compress(bytes(50_000_000), 9)[2:-4]
FRAMES: dict[str, bytes] = {
    "50 MB squeezed": frame(0xC2, SQUEEZED[:60_000]),
    "squeezed, in text": frame(0xC1, SQUEEZED[:60_000]),
    "squeezed, in a fragment": frame(0x42, SQUEEZED[:60_000]),
    "squeezed, a ping": frame(0xC9, b"x"),
    "squeezed, a close": frame(0xC8, b"\x03\xe8"),
    "squeezed, empty": frame(0xC2),
    "second reserved bit": frame(0xA2, b"x"),
    "third reserved bit": frame(0x92, b"x"),
    "all reserved bits": frame(0xF2, b"x"),
    "text": frame(0x81, b"hello"),
    "text that is none": frame(0x81, b"\xff\xfe"),
    "continues nothing": frame(0x80, b"x"),
    "continues nothing, not to its end": frame(0x00, b"x"),
    "begins anew in fragments": frame(0x02, b"\x10") + frame(0x82, b"x"),
    "a ping in fragments": frame(0x09, b"x"),
    "a close in fragments": frame(0x08, b"\x03\xe8"),
    "a ping of 126 bytes": frame(0x89, b"x" * 126),
    "a pong of 126 bytes": frame(0x8A, b"x" * 126),
    "a close of 126 bytes": frame(0x88, b"\x03\xe8" + b"x" * 124),
    "a close of one byte": frame(0x88, b"\x03"),
    "a close with no UTF-8": frame(0x88, b"\x03\xe8\xff\xfe"),
    "a close with a code that is none": frame(0x88, struct.pack("!H", 1004)),
    "a close with code 0": frame(0x88, b"\0\0"),
    "a close with code 65535": frame(0x88, b"\xff\xff"),
    **{f"opcode {code}": frame(0x80 | code, b"x") for code in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "not masked": b"\x82\x02\xc0\x00",
    "not masked, long": b"\x82\x7e\x00\x80" + b"\xc0\x00" * 64,
    "a length beyond 2^63": b"\x82\xff" + b"\xff" * 8 + MASK,
    "a long form for a short length": b"\x82\xfe\x00\x02" + MASK + b"\xc0\x00",
    "the longest form for a short length": b"\x82\xff" + struct.pack("!Q", 2) + MASK + b"\xc0\x00",
}


@pytest.mark.parametrize("is_let_in", [True, False])
@pytest.mark.parametrize("name", FRAMES)
async def test_a_frame_that_is_none_ends_its_connection(
    place: Town, name: str, is_let_in: bool
) -> None:
    before = len(place.harness.gateway.connections)
    client = await WebSocketClient.connect(port_of(place))
    if is_let_in:
        await client.mqtt().handshake("hostile", username="ann", password=PASSWORD)
    client.writer.write(FRAMES[name])
    await is_over(place, before)


CLAIMS = [2**16, 2**31, 2**32, 2**62]


@pytest.mark.parametrize("size", CLAIMS)
async def test_a_length_that_is_claimed_takes_no_memory(place: Town, size: int) -> None:
    """The packet within is looked at, not the frame: it is refused by its own length."""
    before = len(place.harness.gateway.connections)
    client = await WebSocketClient.connect(port_of(place))
    mqtt = client.mqtt()
    await mqtt.handshake("hostile", username="ann", password=PASSWORD)
    client.writer.write(frame(0x82, encode(Publish("a", bytes(2 * MOST)), 5), size))
    answer = await mqtt.receive()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code is DisconnectReasonCode.PACKET_TOO_LARGE
    client.writer.transport.abort()
    await is_over(place, before)


@pytest.mark.parametrize("count", [100, 5_000])
@pytest.mark.parametrize("opcode", [0x89, 0x8A, 0x00], ids=["pings", "pongs", "fragments"])
async def test_many_small_frames_cost_nobody_else(place: Town, opcode: int, count: int) -> None:
    before = len(place.harness.gateway.connections)
    client = await WebSocketClient.connect(port_of(place))
    mqtt = client.mqtt()
    await mqtt.handshake("hostile", username="ann", password=PASSWORD)
    begin = frame(0x02) if opcode == 0 else b""
    client.writer.write(begin + frame(opcode) * count)
    for _ in range(3):
        await place.is_well()
    client.writer.transport.abort()
    await is_over(place, before)


GET = b"GET /mqtt HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"
UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
MQTT = b"Sec-WebSocket-Protocol: mqtt\r\n"
ALL = GET + HOST + UPGRADE + KEY + MQTT
HANDSHAKES: dict[str, bytes] = {
    "another method": ALL.replace(b"GET", b"POST", 1) + b"\r\n",
    "HTTP/1.0": ALL.replace(b"HTTP/1.1", b"HTTP/1.0", 1) + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another path": ALL.replace(b"/mqtt", b"/", 1) + b"\r\n",
    "a path beyond": ALL.replace(b"/mqtt", b"/mqtt/../api", 1) + b"\r\n",
    "no host": GET + UPGRADE + KEY + MQTT + b"\r\n",
    "no upgrade": GET + HOST + KEY + MQTT + b"\r\n",
    "another upgrade": ALL.replace(b"websocket", b"h2c", 1) + b"\r\n",
    "no key": GET + HOST + UPGRADE + b"Sec-WebSocket-Version: 13\r\n" + MQTT + b"\r\n",
    "a short key": ALL.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"AA==", 1) + b"\r\n",
    "version 8": ALL.replace(b"Version: 13", b"Version: 8", 1) + b"\r\n",
    "no subprotocol": GET + HOST + UPGRADE + KEY + b"\r\n",
    "another subprotocol": ALL.replace(b"Protocol: mqtt", b"Protocol: amqp", 1) + b"\r\n",
    "a page of another origin": ALL + b"Origin: https://evil.example\r\n\r\n",
    "no origin of a page": ALL + b"Origin: null\r\n\r\n",
    "a host that looks alike": ALL + b"Origin: http://localhost.evil.example\r\n\r\n",
    "two hosts": ALL + b"Host: evil.example\r\n\r\n",
    "a header without a name": ALL + b": x\r\n\r\n",
    "a header with U+0000": ALL + b"X: \0\r\n\r\n",
    "a header without a colon": ALL + b"X\r\n\r\n",
    "a header of 200 kB": ALL + b"X: " + b"x" * 200_000 + b"\r\n\r\n",
    "5,000 headers": ALL + b"X: x\r\n" * 5_000 + b"\r\n",
    "a path of 200 kB": ALL.replace(b"/mqtt", b"/" + b"x" * 200_000, 1) + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "MQTT without WebSocket": CONNECT,
    "a body with a length": ALL + b"Content-Length: 1000000000\r\n\r\n",
    "a body in pieces": ALL + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    "noise": os.urandom(2_000),
}
WELL = {"a body with a length", "a body in pieces", "two hosts"}
"""May be let in: what comes behind is a frame, or none, and ends the connection then."""


@pytest.mark.parametrize("name", HANDSHAKES)
async def test_a_handshake_that_is_none_opens_nothing(place: Town, name: str) -> None:
    before = len(place.harness.gateway.connections)
    client = await Client.open(port_of(place))
    client.send_bytes(HANDSHAKES[name])
    if name in WELL:
        client.send_bytes(b"\x82\x02\xc0\x00")
    try:
        answer = await client.reader.read(65_536)
    except ConnectionResetError:  # it was closed with most of it unread
        answer = b""
    assert name in WELL or not answer.startswith(b"HTTP/1.1 101"), answer
    client.cut()
    await is_over(place, before)


@pytest.mark.parametrize(
    "offer",
    [
        "permessage-deflate",
        "permessage-deflate; server_max_window_bits=8",
        "permessage-deflate; client_max_window_bits",
        "x-webkit-deflate-frame",
        "permessage-bzip2",
        "permessage-deflate, permessage-deflate" * 100,
        "permessage-deflate;;",
    ],
)
async def test_nothing_that_is_squeezed_is_agreed_on(place: Town, offer: str) -> None:
    """A listener that unpacks nothing cannot be made to unpack much."""
    before = len(place.harness.gateway.connections)
    client = await Client.open(port_of(place))
    client.send_bytes(ALL + f"Sec-WebSocket-Extensions: {offer}\r\n\r\n".encode())
    answer = await client.reader.read(65_536)
    assert b"xtensions" not in answer
    client.send_bytes(frame(0xC2, SQUEEZED[:60_000]))
    await is_over(place, before)
