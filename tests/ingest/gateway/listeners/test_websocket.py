"""MQTT over WebSocket on real sockets."""

import asyncio
import random
import struct
from typing import Any, cast

import pytest
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    TextMessage,
)

from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Publish
from ingest.protocol.reason_codes import DisconnectReasonCode
from tests.ingest.gateway.harness import (
    DEADLINE_SECONDS,
    Client,
    free_port,
    running_gateway,
    turns,
    until,
)
from tests.ingest.gateway.listeners.tls import Authority
from tests.ingest.gateway.listeners.websocket_client import WebSocketClient

pytestmark = pytest.mark.anyio

CONNECT = encode(Connect("alice", 5), 5)
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def listening(**settings: Any) -> tuple[int, dict[str, Any]]:
    """Return a free port and the settings of a gateway with a WebSocket listener there."""
    port = free_port()
    return port, {"listeners": ({"kind": "ws", "port": port} | settings,)}


@pytest.mark.parametrize("level", [3, 4, 5])
async def test_messages_pass_in_both_directions(level: int) -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        alice = (await WebSocketClient.connect(port)).mqtt(level)
        await alice.handshake("alice")
        await alice.subscribe("a/#", 2)
        bob = await Client.connect(harness.port, "bob")
        for qos in (0, 1, 2):
            await bob.publish(f"a/{qos}", b"to alice", qos)
        assert await alice.payloads(3) == [b"to alice"] * 3
        await bob.subscribe("b", 2)
        await alice.publish("b", b"to bob", 2)
        assert (await bob.message()).payload == b"to bob"
        if level == 5:
            await alice.disconnect()


@pytest.mark.clause("MQTT5-6.0.0-2", "MQTT311-6.0.0-2")
async def test_packets_are_not_bound_to_frames() -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.connect(port)
        for byte in CONNECT:
            client.send(BytesMessage(bytes((byte,))))
        alice = client.mqtt()
        assert (await alice.expect(Connack)).reason_code == 0
        several = encode(Pingreq(), 5) * 3 + encode(Disconnect(), 5)[:1]
        client.send(BytesMessage(several))  # three packets and the beginning of one
        for _ in range(3):
            await alice.expect(Pingresp)
        client.send(BytesMessage(encode(Disconnect(), 5)[1:]))
        assert await alice.is_closed()


async def test_a_message_may_be_fragmented_with_a_ping_in_between() -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.connect(port)
        client.send(BytesMessage(CONNECT[:5], message_finished=False))
        client.send(Ping(b"still here?"))
        client.send(BytesMessage(b"", message_finished=False))
        client.send(BytesMessage(CONNECT[5:], message_finished=True))
        assert await client.receive() == Pong(b"still here?")
        assert (await client.mqtt().expect(Connack)).reason_code == 0


async def test_bytes_may_come_one_by_one() -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        answer = asyncio.create_task(client.request())
        await turns()
        assert isinstance(await answer, AcceptConnection)
        for byte in client.frame(BytesMessage(CONNECT)):
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
            await turns(2)
        assert (await client.mqtt().expect(Connack)).reason_code == 0


async def test_request_may_come_in_pieces_and_the_first_frame_with_it() -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        request = (
            b"GET /mqtt HTTP/1.1\r\nHost: a\r\n"
            b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: chat, mqtt\r\n\r\n"
        )
        mask = b"\x01\x02\x03\x04"
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(CONNECT))
        frame = bytes((0x82, 0x80 | len(CONNECT))) + mask + masked
        for position in range(0, len(request) - 10, 7):
            client.writer.write(request[position : position + 7])
            await turns()
            sent = position + 7
        client.writer.write(request[sent:] + frame)
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-protocol: mqtt\r\n" in head.lower()
        assert (await client.reader.readexactly(2))[0] == 0x82
        assert (await client.reader.readexactly(1)) == b"\x20"  # CONNACK


@pytest.mark.clause("MQTT5-6.0.0-1", "MQTT311-6.0.0-1")
async def test_a_text_frame_ends_the_connection() -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.connect(port)
        await client.mqtt().handshake("alice")
        client.send(TextMessage("hello"))
        await client.expect_close(1003)
        await until(lambda: not harness.gateway.connections)


@pytest.mark.clause("MQTT5-6.0.0-4", "MQTT311-6.0.0-4")
async def test_the_subprotocol_is_mqtt() -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        answer = await client.request(subprotocols=("mqttv3.1", "soap", "mqtt"))
        assert isinstance(answer, AcceptConnection)
        assert answer.subprotocol == "mqtt"


@pytest.mark.parametrize("subprotocols", [(), ("soap",), ("MQTT",)])
async def test_without_the_subprotocol_a_client_is_refused(subprotocols: tuple[str, ...]) -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        answer = await client.request(subprotocols=subprotocols)
        assert isinstance(answer, RejectConnection)
        assert answer.status_code == 400
        assert await client.rejection() == "the WebSocket sub-protocol mqtt is required\n"


@pytest.mark.parametrize(("level", "reason_code"), [(3, 0), (4, 0x01), (5, 0x84)])
async def test_the_older_subprotocol_is_for_3_1_alone(level: int, reason_code: int) -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        answer = await client.request(subprotocols=("mqttv3.1",))
        assert isinstance(answer, AcceptConnection)
        assert answer.subprotocol == "mqttv3.1"
        assert await connack_code(client, level) == reason_code


async def connack_code(client: WebSocketClient, level: int) -> int:
    """Return the last byte that every version's CONNACK has."""
    client.send(BytesMessage(encode(Connect("alice", level), level)))
    event = await client.receive()
    assert isinstance(event, BytesMessage)
    assert event.data[0] == 0x20
    return event.data[3]


async def test_the_older_subprotocol_is_refused_where_3_1_is() -> None:
    port, settings = listening(versions=("3.1.1", "5.0"))
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        answer = await client.request(subprotocols=("mqttv3.1",))
        assert isinstance(answer, RejectConnection)


@pytest.mark.parametrize(
    ("configured", "asked", "status"),
    [
        ("/mqtt", "/mqtt", 101),
        ("/mqtt", "/mqtt?token=1", 101),
        ("/mqtt", "/", 404),
        ("/mqtt", "/mqtt/", 404),
        ("/a/b", "/a/b", 101),
        ("/", "/", 101),
        ("*", "/whatever", 101),
    ],
)
async def test_path_is_as_configured(configured: str, asked: str, status: int) -> None:
    port, settings = listening(path=configured)
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        answer = await client.request(asked)
        assert status == (101 if isinstance(answer, AcceptConnection) else answer.status_code)


@pytest.mark.parametrize(
    ("origins", "origin", "is_welcome"),
    [
        ((), b"https://anywhere.example", False),
        ((), b"https://mqtt.example.org", False),  # the name of the request, wherever it leads
        ((), None, True),
        (("*",), b"https://anywhere.example", True),
        (("https://example.org",), b"https://example.org", True),
        (("https://example.org",), None, True),  # no browser
        (("https://example.org",), b"https://example.org.evil.example", False),
        (("https://example.org",), b"null", False),
    ],
)
async def test_pages_of_other_origins_are_refused(
    origins: tuple[str, ...], origin: bytes | None, is_welcome: bool
) -> None:
    port, settings = listening(origins=origins)
    async with running_gateway(**settings):
        client = await WebSocketClient.open(port)
        headers = () if origin is None else ((b"Origin", origin),)
        answer = await client.request(headers=headers)
        if is_welcome:
            assert isinstance(answer, AcceptConnection)
        else:
            assert isinstance(answer, RejectConnection)
            assert answer.status_code == 403


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /mqtt HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET /mqtt HTTP/1.0\r\n\r\n", b"400"),
        (b"POST /mqtt HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", b"400"),
        (
            REQUEST.replace(b"Version: 13", b"Version: 12"),
            b"426",
        ),
        (b"GET /mqtt HTTP/1.1\r\nHost: \xff\r\n\r\n", b"400"),
        (b"\x10\x0c\x00\x04MQTT\r\n\r\n", b"400"),
        (b"\r\n\r\n\0\r\nQUIT\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nCookie: " + b"x" * 20_000, b""),
    ],
    ids=["no upgrade", "1.0", "post", "version", "host", "mqtt", "proxy", "too long"],
)
async def test_what_is_no_handshake_is_answered_and_closed(request_: bytes, status: bytes) -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.open(port)
        client.writer.write(request_)
        if not status:
            client.writer.write_eof()
        answer = await read_to_end(client)
        assert answer[9:12] == status
        assert not status or b"\r\nconnection: close\r\n" in answer.lower()
        assert harness.gateway.status.health()[0]


async def read_to_end(client: WebSocketClient) -> bytes:
    async with asyncio.timeout(DEADLINE_SECONDS):
        try:
            return await client.reader.read(-1)
        except ConnectionResetError:
            return b""


async def test_who_says_nothing_is_cut() -> None:
    port, settings = listening()
    async with running_gateway(connect_timeout_seconds=0.05, **settings) as harness:
        client = await WebSocketClient.open(port)
        client.writer.write(b"GET /mqtt HTTP/1.1\r\n")
        assert await read_to_end(client) == b""
        assert not len(harness.gateway.arrivals)


async def test_who_is_in_the_handshake_does_not_delay_the_end() -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.open(port)
        client.writer.write(b"GET /mqtt HTTP/1.1\r\n")
        await until(lambda: len(harness.gateway.arrivals))
    assert await read_to_end(client) == b""


async def test_pings_are_answered_and_closing_is_polite() -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.connect(port)
        await client.mqtt().handshake("alice")
        client.send(Ping(b"1"))
        assert await client.receive() == Pong(b"1")
        client.send(CloseConnection(1001, "bye"))
        await client.expect_close(1001)
        await until(lambda: not harness.gateway.connections)


async def test_the_gateway_closes_politely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.gateway.listeners.websocket.CLOSE_TIMEOUT_SECONDS", 30.0)
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.connect(port)
        alice = client.mqtt()
        await alice.handshake("alice")
        client.send(BytesMessage(b"\x00\x00"))
        assert (await alice.expect(Disconnect)).reason_code == DisconnectReasonCode.MALFORMED_PACKET
        event = await client.receive()
        assert isinstance(event, CloseConnection)
        assert event.code == 1000
        assert harness.gateway.connections  # the socket is open until the client has answered
        client.send(event.response())
        assert await client.receive() is None
        await until(lambda: not harness.gateway.connections)


async def test_a_client_that_does_not_answer_a_close_is_cut() -> None:
    port, settings = listening()
    async with running_gateway(**settings):
        client = await WebSocketClient.connect(port)
        client.send(BytesMessage(encode(Pingreq(), 4)))  # no CONNECT
        await client.expect_close(1000)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x82\x01\x00", 1002),  # not masked
        (b"\xc2\x80\x01\x02\x03\x04", 1002),  # a reserved bit
        (b"\x83\x80\x01\x02\x03\x04", 1002),  # an unknown opcode
        (b"\x80\x80\x01\x02\x03\x04", 1002),  # continues nothing
        (b"\x09\x80\x01\x02\x03\x04", 1002),  # a ping in fragments
        (b"\x89\xfe\x00\x7e\x01\x02\x03\x04", 1002),  # a ping of 126 bytes
        (b"\x88\x81\x00\x00\x00\x00\x01", 1002),  # half a code
        (b"\x81\x81\x00\x00\x00\x00\xff", 1007),  # text that is none
    ],
)
async def test_malformed_frames_end_the_connection(frame: bytes, code: int) -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.connect(port)
        await client.mqtt().handshake("alice")
        client.writer.write(frame)
        await client.expect_close(code)
        await until(lambda: not harness.gateway.connections)
        assert harness.gateway.status.health()[0]


async def test_a_frame_that_claims_to_be_huge_is_bounded_by_the_largest_packet() -> None:
    port, settings = listening()
    async with running_gateway(max_packet_bytes=100_000, **settings):
        client = await WebSocketClient.connect(port)
        alice = client.mqtt()
        await alice.handshake("alice")
        header = b"\x82\xff" + struct.pack("!Q", 2**62) + b"\0\0\0\0"
        client.writer.write(header + encode(Publish("a", bytes(200_000)), 5))
        disconnect = await alice.expect(Disconnect)
        assert disconnect.reason_code == DisconnectReasonCode.PACKET_TOO_LARGE


async def test_many_packets_in_one_frame_may_be_more_than_the_largest_packet() -> None:
    port, settings = listening()
    async with running_gateway(max_packet_bytes=100_000, **settings) as harness:
        client = await WebSocketClient.connect(port)
        alice = client.mqtt()
        await alice.handshake("alice")
        client.send(BytesMessage(encode(Publish("a", bytes(90_000)), 5) * 20))
        await alice.expect_nothing()
        assert len(harness.inbound()) == 20


async def test_a_write_of_mqtt_is_one_frame() -> None:
    port, settings = listening()
    async with running_gateway(**settings) as harness:
        client = await WebSocketClient.connect(port)
        alice = client.mqtt()
        await alice.handshake("alice")
        await alice.subscribe("a")
        bob = await Client.connect(harness.port, "bob")
        bob.send(*(Publish("a", b"%d" % number) for number in range(50)))
        received, frames = b"", 0
        whole = sum(len(encode(Publish("a", b"%d" % number), 5)) for number in range(50))
        while len(received) < whole:
            event = await client.receive()
            assert isinstance(event, BytesMessage)
            assert event.message_finished
            received += event.data
            frames += 1
        assert frames < 25


@pytest.mark.parametrize("kind", ["ws", "wss"])
async def test_a_client_that_does_not_read_holds_up_nobody_and_nothing_grows(
    kind: str, authority: Authority
) -> None:
    tls = authority.settings() if kind == "wss" else {}
    port, settings = listening(kind=kind, **tls)
    async with running_gateway(max_write_buffer_bytes=64 * 1024, **settings) as harness:
        context = authority.client_context() if kind == "wss" else None
        client = await WebSocketClient.connect(port, context=context)
        alice = client.mqtt()
        await alice.handshake("alice")
        await alice.subscribe("a")
        socket_transport = cast("asyncio.Transport", client.writer.transport)
        socket_transport.pause_reading()
        bob = await Client.connect(harness.port, "bob")
        await bob.subscribe("a")
        connection = harness.connection("alice")
        payload = bytes(50_000)
        while connection.is_writable:
            await bob.publish("a", payload)
            assert (await bob.message()).payload == payload
        assert connection.transport is not None
        size = connection.transport.get_write_buffer_size()
        for _ in range(100):
            await bob.publish("a", payload)
            await bob.message()
            client.send(Ping(bytes(100)))
        await turns(50)
        assert connection.transport.get_write_buffer_size() <= size
        socket_transport.resume_reading()
        while not connection.is_writable:
            assert isinstance(await client.receive(), BytesMessage)
        client.send(Ping(b"and now?"))
        while (await client.receive()) != Pong(b"and now?"):
            pass


async def test_a_client_is_not_read_while_the_gateway_holds_it() -> None:
    port, settings = listening()
    async with running_gateway(max_queued_records=10, **settings) as harness:
        client = await WebSocketClient.connect(port)
        alice = client.mqtt()
        await alice.handshake("alice")
        harness.log.hold_reports()
        client.send(BytesMessage(encode(Publish("a", bytes(1000)), 5) * 20))
        client.send(BytesMessage(encode(Publish("a", b"last"), 5)))
        await until(lambda: harness.counters.messages_received == 11)
        await turns()
        assert harness.counters.messages_received == 11, "and no further"
        harness.log.release_reports()
        await alice.expect_nothing()
        assert len(harness.inbound()) == 21


async def test_mutated_handshakes_and_frames_harm_nobody() -> None:
    port, settings = listening()
    mutate = random.Random(5)
    frames = (
        b"\x82\x83\0\0\0\0\x10\x0c\x00\x89\x80\0\0\0\0"
        b"\x01\x81\0\0\0\0a\x80\x81\0\0\0\0b\x88\x80\0\0\0\0"
    )
    async with running_gateway(connect_timeout_seconds=0.5, **settings) as harness:
        bystander = await Client.connect(harness.port, "bystander")
        for number in range(400):
            data = bytearray(REQUEST + frames)
            first = 0 if number % 2 else len(REQUEST)
            for _ in range(mutate.randint(1, 5)):
                data[mutate.randrange(first, len(data))] = mutate.randrange(256)
            client = await WebSocketClient.open(port)
            client.writer.write(data)
            client.writer.write_eof()
            await read_to_end(client)
            client.writer.close()
        await bystander.expect_nothing()
        await until(lambda: len(harness.gateway.connections) == 1)
        assert not len(harness.gateway.arrivals)
        assert harness.gateway.status.health()[0]
