"""Slow loris: whoever does not get on with CONNECT is cut in time, whatever trickles in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connect
from tests.ingest.gateway.harness import DEADLINE_SECONDS, free_port, until
from tests.ingest.gateway.listeners.tls import Authority
from tests.ingest.hostile.test_websocket import ALL, frame
from tests.ingest.hostile.town import PASSWORD, Town, town
from tests.pace import within

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SECONDS = 1.0
"""From the socket to CONNECT: those that do not dawdle must log in within it."""
CONNECT = encode(Connect("slow", 5, username="ann", password=PASSWORD), 5)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(trustme.CA(), tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> AsyncIterator[Town]:
    tls = authority.settings()
    listeners = [
        {"kind": "tls", "port": free_port(), **tls},
        {"kind": "ws", "port": free_port()},
        {"kind": "wss", "port": free_port(), **tls},
        {"kind": "tcp", "port": free_port(), "proxy_protocol": True},
    ]
    folder: Path = tmp_path_factory.mktemp("town")
    async with town(folder, listeners=listeners, connect_timeout_seconds=within(SECONDS)) as found:
        yield found


async def opened(
    place: Town, kind: str, authority: Authority, *, encrypts: bool = True
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    ports: dict[str, int] = {"tcp": place.port}
    settings: Any = place.harness.gateway.settings
    for one in settings.listeners:
        ports["proxy" if one.proxy_protocol else one.kind] = one.port
    context: ssl.SSLContext | None = None
    if kind in {"tls", "wss"} and encrypts:
        context = authority.client_context()
    return await asyncio.open_connection("127.0.0.1", ports[kind], ssl=context)


async def is_cut(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        try:
            while await reader.read(65_536):
                pass
        except (ConnectionError, ssl.SSLError):
            pass


async def is_rid_of_them(place: Town) -> None:
    await until(lambda: len(place.harness.gateway.connections) == 1)
    await place.is_well()


UPGRADED = ALL + b"\r\n"
PARTS: dict[str, dict[str, bytes]] = {
    "tcp": {
        "nothing": b"",
        "one byte": CONNECT[:1],
        "a length without an end": b"\x10\x80\x80",
        "half": CONNECT[:20],
        "all but one byte": CONNECT[:-1],
    },
    "tls": {
        "nothing": b"",
        "one byte": CONNECT[:1],
        "half": CONNECT[:20],
        "all but one byte": CONNECT[:-1],
    },
    "ws": {
        "nothing": b"",
        "one byte": b"G",
        "half of the request": ALL[:60],
        "a request without an end": ALL,
        "the request alone": UPGRADED,
        "half of a frame's head": UPGRADED + b"\x82",
        "half of a frame": UPGRADED + frame(0x82, CONNECT[:10], len(CONNECT)),
        "half of CONNECT": UPGRADED + frame(0x82, CONNECT[:10]),
        "pings": UPGRADED + frame(0x89) * 10,
        "empty fragments": UPGRADED + frame(0x02) + frame(0x00) * 10,
    },
    "wss": {
        "nothing": b"",
        "half of the request": ALL[:60],
        "the request alone": UPGRADED,
        "half of CONNECT": UPGRADED + frame(0x82, CONNECT[:10]),
    },
    "proxy": {
        "nothing": b"",
        "half of version 1": b"PROXY TCP4 192.0.2.1",
        "half of version 2": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x01",
        "the header alone": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    },
}


@pytest.mark.parametrize("kind", PARTS)
async def test_who_stops_is_cut(place: Town, authority: Authority, kind: str) -> None:
    """All at once, for each takes its time."""
    stopping = {name: await opened(place, kind, authority) for name in PARTS[kind]}
    for name, (_, writer) in stopping.items():
        writer.write(PARTS[kind][name])
    for reader, writer in stopping.values():
        await is_cut(reader)
        writer.transport.abort()
    await is_rid_of_them(place)


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss", "proxy"])
async def test_who_trickles_is_cut_all_the_same(
    place: Town, authority: Authority, kind: str
) -> None:
    """A byte now and then does not begin the time anew."""
    reader, writer = await opened(place, kind, authority)
    slow = {"ws": ALL, "wss": ALL, "proxy": b"PROXY TCP4 " + b"1" * 90}.get(kind, CONNECT)
    pace = place.harness.gateway.settings.connect_timeout_seconds / 10

    async def trickle() -> None:
        for byte in slow:
            writer.write(bytes((byte,)))
            await asyncio.sleep(pace)  # of the attack

    trickling = asyncio.create_task(trickle())
    await is_cut(reader)
    assert not trickling.done(), "it would have come to its end"
    trickling.cancel()
    writer.transport.abort()
    await is_rid_of_them(place)


@pytest.mark.parametrize("kind", ["tls", "wss"])
async def test_who_stops_in_the_handshake_of_tls_is_cut(
    place: Town, authority: Authority, kind: str
) -> None:
    stopping = []
    for part in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"):
        stopping.append(await opened(place, kind, authority, encrypts=False))
        stopping[-1][1].write(part)
    for reader, writer in stopping:
        await is_cut(reader)
        writer.transport.abort()
    await is_rid_of_them(place)


@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_two_hundred_at_once_keep_nobody_out(
    place: Town, authority: Authority, kind: str
) -> None:
    opened_ones = [await opened(place, kind, authority) for _ in range(200)]
    for number, (_, writer) in enumerate(opened_ones):
        writer.write((ALL if kind == "ws" else CONNECT)[: number % 20])
    client = await place.connect("bob")
    await client.expect_nothing()
    await client.disconnect()
    for reader, writer in opened_ones:
        await is_cut(reader)
        writer.transport.abort()
    await is_rid_of_them(place)
