"""Memory for each connection is bounded in both directions, and nobody pays for another."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ingest.gateway.clients.client_socket import FLUSH_BYTES
from ingest.gateway.clients.connection import ClientConnection
from ingest.protocol.encoder import encode
from ingest.protocol.packets import Pingreq, Pingresp, Puback, Publish
from ingest.protocol.reason_codes import PubackReasonCode
from tests.ingest.gateway.harness import (
    DEADLINE_SECONDS,
    Client,
    Harness,
    is_read,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio

BUFFER = 64 * 1024

READ_AT_ONCE = 256 * 1024
"""The most that the event loop reads from a socket in one go."""

REFUSED = encode(Publish("$SYS/x", b"", 1, packet_id=1), 5)
ANSWER_BYTES = 64
"""At most, of the answer to it: it comes with a reason string."""


def unsent(connection: ClientConnection) -> int:
    """Return how many bytes the gateway holds for a client's socket."""
    assert connection.transport is not None
    return connection.transport.get_write_buffer_size()


async def connect_stalled(port: int, client_id: str, *, keep_alive: int = 0) -> Client:
    """Connect a client that reads nothing more, and whose socket takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    client = Client(*await asyncio.open_connection(sock=sock), 5)
    await client.handshake(client_id, keep_alive=keep_alive)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def test_a_slow_subscriber_does_not_slow_a_fast_one() -> None:
    payload, count = bytes(20_000), 1_000
    async with running_gateway(max_write_buffer_bytes=BUFFER) as harness:
        fast = await Client.connect(harness.port, "fast")
        await fast.subscribe("a")
        slow = await Client.connect(harness.port, "slow")
        await slow.subscribe("a")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection = harness.connection("slow")
        publisher = await Client.connect(harness.port, "publisher")
        most = 0
        for number in range(count):
            await publisher.publish("a", b"%d " % number + payload)
            # Whatever the slow one has or has not: each comes before the next is published.
            assert (await fast.message()).payload.startswith(b"%d " % number)
            most = max(most, unsent(connection))
        assert not connection.is_writable
        assert most <= BUFFER + FLUSH_BYTES + 2 * len(payload)
        dropped = harness.counters.dropped_slow_client
        assert dropped > 100
        assert harness.counters.messages_sent == 2 * count - dropped
        await until(lambda: sum(event["count"] for event in drops(harness)) == dropped)
        told = {(one["client_id"], one["topic"], one["qos"]) for one in drops(harness)}
        assert told == {("slow", "a", 0)}
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = await slow.payloads(count - dropped)
        numbers = [int(one.split()[0]) for one in received]
        assert numbers == list(range(count - dropped))  # in order; the last ones were dropped


def drops(harness: Harness) -> list[dict[str, Any]]:
    events = harness.events("message.dropped")
    assert {event["reason"] for event in events} <= {"slow_client"}
    return events


async def send_until_paused(client: Client, connection: ClientConnection) -> int:
    """Send until the gateway reads no more; return how often."""
    sent = 0
    step = 1_000

    def is_paused() -> bool:
        nonlocal sent
        # What the client's own socket has not taken yet tells nothing.
        if client.writer.transport.get_write_buffer_size() == 0:
            client.send_bytes(REFUSED * step)
            sent += step
        return not is_read(connection)

    await until(is_paused)
    return sent


async def test_a_publisher_that_reads_no_answers_is_read_no_further() -> None:
    async with running_gateway(max_write_buffer_bytes=BUFFER) as harness:
        client = await connect_stalled(harness.port, "stalled")
        connection = harness.connection("stalled")
        sent = await send_until_paused(client, connection)
        bound = 2 * BUFFER + READ_AT_ONCE // len(REFUSED) * ANSWER_BYTES
        assert 2 * BUFFER < unsent(connection) < bound
        received = harness.counters.bytes_received
        client.send_bytes(REFUSED * 10_000)
        other = await Client.connect(harness.port, "other")
        await other.publish("a", b"", 1)
        assert harness.counters.bytes_received - received < 100  # the other's
        assert unsent(connection) < bound
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(sent + 10_000):
            answer = await client.expect(Puback)
            assert answer.reason_code is PubackReasonCode.NOT_AUTHORIZED
        await client.expect_nothing()
        assert unsent(connection) == 0


@pytest.mark.clause("MQTT5-3.1.2-22", "MQTT311-3.1.2-24")
async def test_a_client_that_reads_nothing_at_all_is_silent() -> None:
    async with running_gateway(max_write_buffer_bytes=BUFFER) as harness:
        client = await connect_stalled(harness.port, "stalled", keep_alive=1)
        connection = harness.connection("stalled")
        await send_until_paused(client, connection)
        await until(lambda: connection.session is None)  # 1.5 s
        assert len(harness.gateway.sessions) == 0
        client.cut()


async def test_a_slow_subscriber_is_still_heard() -> None:
    async with running_gateway(max_write_buffer_bytes=BUFFER) as harness:
        slow = await connect_stalled(harness.port, "slow")
        connection = harness.connection("slow")
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await slow.subscribe("a")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        publisher = await Client.connect(harness.port, "publisher")
        await fill(publisher, lambda: not connection.is_writable)
        before = harness.counters.packets_received
        slow.send(Pingreq())
        await until(lambda: harness.counters.packets_received > before)
        assert is_read(connection)
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while not isinstance(await slow.receive(), Pingresp):
            pass


async def fill(publisher: Client, is_full: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not is_full():
            await publisher.publish("a", bytes(50_000))
            await publisher.expect_nothing()
