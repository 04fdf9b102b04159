"""Links over TLS, and neighbours that are silent or stalled, or no federators."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from ingest.federation.sites.links import connection, connections
from ingest.federation.sites.links.link import NOT_YET
from ingest.federation.sites.links.words import Hello, encode_hello
from ingest.gateway.listeners import accepting
from ingest.gateway.listeners.arrivals import PLACE_BYTES
from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connack, Connect, Puback, Publish
from tests.ingest.federation.sites.harness import Site, are_linked, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def served(site: Site, *packets: bytes) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Listen in the place of a site, say these to whoever connects, and then nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"".join(packets))

    server = await asyncio.start_server(serve, "127.0.0.1", site.port)
    yield writers
    server.close()
    for one in writers:
        one.transport.abort()


def reason(site: Site) -> str:
    assert site.service is not None
    (link,) = site.service.links.values()
    return link.reason


async def test_links_go_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    a, b = Site(1), Site(2)
    files = {"certificate": tmp_path / "both.pem", "key": tmp_path / "both.pem"}
    b.link(a, connects=False, listen={"port": b.port, **files})
    a.link(b)
    (neighbour,) = a.settings.neighbors

    def believing(ca_certificates: Path | None) -> None:
        changes = {"uri": f"mqtts://127.0.0.1:{b.port}", "ca_certificates": ca_certificates}
        changed = neighbour.model_copy(update=changes)
        a.settings = a.settings.model_copy(update={"neighbors": (changed,)})

    believing(None)
    await b.start()
    await a.start()
    await until(lambda: "certificate" in reason(a))
    await a.stop()
    believing(tmp_path / "ca.pem")
    await a.start()
    await until(lambda: are_linked(a, b))
    await a.publish("f/x", b"1")
    await until(lambda: b.have([b"1"]))
    await a.stop()
    await b.stop()


async def test_a_neighbour_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.05)
    a, b = Site(1), Site(2)
    a.link(b)
    async with served(b):
        await a.start()
        await until(lambda: "no answer for 0.05 s" in reason(a))
        await a.stop()


async def test_a_neighbour_that_falls_silent_is_away() -> None:
    a, b = Site(1), Site(2)
    a.link(b, keep_alive_seconds=1)
    hello = encode_hello(Hello(2, ("f/#",)))
    said: list[Connack | Publish] = [Connack(), Publish("federator/control/2", hello)]
    async with served(b, *(encode(one, 5) for one in said)):
        await a.start()
        await until(lambda: are_linked(a))
        await until(lambda: "silent for" in reason(a))
        await a.stop()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ""),
        (encode(Publish("a", b""), 5), "unexpected Publish"),
        (encode(Connack(), 5) + encode(Connack(), 5), "unexpected Connack"),
    ],
)
async def test_who_is_no_federator_is_left(said: bytes, expected: str) -> None:
    a, b = Site(1), Site(2)
    a.link(b)
    async with served(b, said) as writers:
        await a.start()
        await until(lambda: len(writers) > 1)
        assert expected in reason(a)
        await a.stop()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode(Publish("federator/routing/f/x", b"forged"), 5),
        encode(Connect("c", 4, username="2", password=b"guess"), 4),
        encode(Connect("c", 5, username="1-2", password=b"1-2"), 5),
        encode(Connect("c", 5), 5),
    ],
)
async def test_a_stranger_is_not_let_in(said: bytes) -> None:
    a, b = Site(1), Site(2)
    a.link(b, connects=False)
    await a.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
    writer.write(said)
    async with asyncio.timeout(30):
        answer: Any = await reader.read()
    assert len(answer) < 10  # a refusal, or nothing
    assert a.messages() == []
    assert a.service is not None
    assert not a.service.connections.made
    writer.close()
    await writer.wait_closed()
    await a.stop()


def test_tries_that_reach_nobody_leave_nothing() -> None:
    """Loops differ in when they make the protocol of a connection: this one does so before."""

    async def scenario() -> None:
        a, b = Site(1), Site(2)
        a.link(b)
        await a.start()
        await until(lambda: reason(a) not in ("", NOT_YET))
        assert a.service is not None
        assert not a.service.connections.made
        await a.stop()

    uvloop.run(scenario())


async def a_listening_site(monkeypatch: pytest.MonkeyPatch, **listen: Any) -> Site:
    monkeypatch.setattr(connections, "MOST_BYTES", 4 * PLACE_BYTES)
    a, b = Site(1), Site(2)
    a.link(b, connects=False, listen={"port": a.port, **listen})
    await a.start()
    return a


def right_connect(**changes: Any) -> Connect:
    return Connect("c", 5, username="2", password=b"1-2", **changes)


@pytest.mark.parametrize(
    "said",
    [
        b"\x10" + bytes((0x80, 0x80, 0x10)) + bytes(10),  # 256 KiB are to come
        encode(right_connect(properties={"user_property": [("a", "b")] * 101}), 5),
    ],
    ids=["too large", "too many properties"],
)
async def test_a_stranger_makes_it_read_little(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await a_listening_site(monkeypatch)
    reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
    writer.write(said)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    await a.stop()


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "handshakes"])
async def test_of_silent_strangers_the_oldest_of_the_address_that_has_most_gives_way(
    is_encrypted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files: dict[str, Path] = {}
    monkeypatch.setattr(accepting, "HANDSHAKE_BYTES", PLACE_BYTES)
    if is_encrypted:
        issued = trustme.CA().issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
        files = {"certificate": tmp_path / "both.pem", "key": tmp_path / "both.pem"}
    a = await a_listening_site(monkeypatch, **files)
    assert a.service is not None
    arrivals = a.service.connections.arrivals
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for address in ("127.0.0.3", *["127.0.0.2"] * 5):
        before = len(opened)
        opened.append(await asyncio.open_connection("127.0.0.1", a.port, local_addr=(address, 0)))
        await until(lambda: len(arrivals) == min(before + 1, 4))  # noqa: B023
    async with asyncio.timeout(5):
        for reader, _ in opened[1:3]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert not any(reader.at_eof() for reader, _ in (opened[0], *opened[3:]))
    for _, writer in opened:
        writer.close()
    await until(lambda: not len(arrivals))
    await a.stop()


async def test_a_neighbour_that_was_let_in_has_no_part_in_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = await a_listening_site(monkeypatch)
    assert a.service is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
    writer.write(encode(right_connect(), 5))
    await until(lambda: len(a.service.connections.made) == 1)  # type: ignore[union-attr]
    (connection,) = a.service.connections.made
    await until(lambda: connection.is_open)
    assert not len(a.service.connections.arrivals)
    large = Publish("federator/routing/x", bytes(100_000), 1, packet_id=1)
    writer.write(encode(large, 5))  # of no site: acknowledged, as it cannot be read
    async with asyncio.timeout(5):
        said = b""
        while encode(Puback(1), 5) not in said:
            said += await reader.read(1_000)
    writer.close()
    await a.stop()
