"""One client on a socket: the handshake, keep alive, takeover, the will, the end."""

import asyncio
import socket

import pytest

from ingest.gateway.listeners.arrivals import PLACE_BYTES
from ingest.protocol.decoder import Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Will,
)
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
)
from tests.ingest.gateway.harness import PARTITIONS, Client, running_gateway, turns, until

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


@LEVELS
async def test_a_client_is_welcomed(level: int) -> None:
    async with running_gateway(topic_alias_maximum=7, receive_maximum=9) as harness:
        client = await Client.open(harness.port, level)
        connack = await client.handshake("alice", clean_start=True, keep_alive=60)
        assert not connack.session_present
        if level == 5:
            assert connack.properties == {
                "receive_maximum": 9,
                "maximum_packet_size": 1024 * 1024,
                "topic_alias_maximum": 7,
            }
        client.send(Pingreq())
        await client.expect(Pingresp)
        assert harness.gateway.status.figures()["clients"] == 1
        await client.disconnect()
        assert harness.gateway.status.figures()["clients"] == 0


async def test_a_session_that_was_to_last_longer_than_allowed_is_told_how_long() -> None:
    async with running_gateway(max_session_expiry_interval=60) as harness:
        client = await Client.open(harness.port)
        connack = await client.handshake("alice", properties={"session_expiry_interval": 100})
        assert connack.properties["session_expiry_interval"] == 60
        await client.disconnect(Disconnect(properties={"session_expiry_interval": 5}))
        assert len(harness.gateway.sessions) == 1


async def test_a_keep_alive_that_is_too_long_is_replaced() -> None:
    async with running_gateway(max_keep_alive_seconds=60) as harness:
        for asked, told in ((61, 60), (0, 60), (60, None)):
            client = await Client.open(harness.port)
            connack = await client.handshake("alice", keep_alive=asked)
            assert connack.properties.get("server_keep_alive") == told


async def test_response_information_is_given_to_who_asks_for_it() -> None:
    async with running_gateway(response_topic_prefix="answers/") as harness:
        client = await Client.open(harness.port)
        connack = await client.handshake("alice", properties={"request_response_information": 1})
        assert connack.properties["response_information"] == "answers/alice/"
        client = await Client.open(harness.port)
        assert "response_information" not in (await client.handshake("alice")).properties


async def test_a_full_gateway_with_a_neighbour_sends_clients_there() -> None:
    async with running_gateway(max_connections=1, server_reference="other:1883") as harness:
        await Client.connect(harness.port, "first")
        client = await Client.open(harness.port)
        connack = await client.handshake("second")
        assert connack.reason_code is ConnackReasonCode.USE_ANOTHER_SERVER
        assert connack.properties["server_reference"] == "other:1883"


@pytest.mark.clause("MQTT5-3.14.2-2")
async def test_a_session_expiry_cannot_be_set_by_disconnect_alone() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Disconnect(properties={"session_expiry_interval": 5}))
        await client.expect_disconnect(DisconnectReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("level", [4, 5], ids=["3.1.1", "5.0"])
async def test_an_empty_client_id_is_replaced(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        connack = await client.handshake("")
        if level == 5:
            assert connack.properties["assigned_client_identifier"].startswith("auto-")
        other = await Client.connect(harness.port, "", level=level)
        await client.expect_nothing()
        await other.expect_nothing()
        assert harness.gateway.status.figures()["clients"] == 2


@pytest.mark.parametrize(("level", "clean_start"), [(3, True), (4, False)])
async def test_an_empty_client_id_is_refused_where_the_version_says_so(
    level: int, clean_start: bool
) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        connack = await client.handshake("", clean_start=clean_start)
        assert connack.reason_code is ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert await client.is_closed()
        assert harness.counters.connections_refused == 1


@pytest.mark.parametrize(
    ("fields", "reason_code"),
    [
        (
            {"properties": {"authentication_method": "SCRAM"}},
            ConnackReasonCode.BAD_AUTHENTICATION_METHOD,
        ),
        (
            {"will": Will("a", b"\xff", properties={"payload_format_indicator": 1})},
            ConnackReasonCode.PAYLOAD_FORMAT_INVALID,
        ),
        ({"will": Will("$SYS/a", b"")}, ConnackReasonCode.NOT_AUTHORIZED),
    ],
    ids=["authentication", "will that is no text", "will to $SYS"],
)
async def test_a_connect_that_asks_too_much_is_refused(
    fields: dict[str, object], reason_code: ConnackReasonCode
) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        connack = await client.handshake("alice", **fields)
        assert connack.reason_code is reason_code
        assert await client.is_closed()
        assert harness.inbound() == []


@LEVELS
async def test_a_full_gateway_says_so(level: int) -> None:
    async with running_gateway(max_connections=1) as harness:
        first = await Client.connect(harness.port, "first")
        second = await Client.open(harness.port, level)
        connack = await second.handshake("second")
        busy = ConnackReasonCode.SERVER_BUSY if level == 5 else ConnackReasonCode.SERVER_UNAVAILABLE
        assert connack.reason_code is busy
        assert await second.is_closed()
        await first.expect_nothing()
        second.close()
        await until(
            lambda: (
                not harness.gateway.connections.is_full and len(harness.gateway.connections) == 1
            )
        )
        await first.disconnect()
        await until(lambda: not harness.gateway.connections)
        await Client.connect(harness.port, "third")


async def test_a_silent_client_makes_room_in_a_full_gateway() -> None:
    async with running_gateway(max_connections=2) as harness:
        silent = [await Client.open(harness.port) for _ in range(2)]
        await until(lambda: len(harness.gateway.arrivals) == 2)
        first = await Client.connect(harness.port, "first")
        assert await silent[0].is_closed()
        second = await Client.connect(harness.port, "second")
        assert await silent[1].is_closed()
        third = await Client.open(harness.port)
        busy = ConnackReasonCode.SERVER_BUSY
        assert (await third.handshake("third")).reason_code is busy
        await first.expect_nothing()
        await second.expect_nothing()
        assert harness.gateway.counters.connections_refused == 3


async def test_packets_that_are_not_whole_are_counted_until_their_client_is_let_in() -> None:
    async with running_gateway() as harness:
        arrivals = harness.gateway.arrivals
        connect = encode(Connect("alice", username="a", password=bytes(60_000)), 5)
        client = await Client.open(harness.port)
        client.send_bytes(connect[:-1])
        await until(lambda: arrivals.bytes == PLACE_BYTES + len(connect) - 1)
        client.send_bytes(connect[-1:])
        assert (await client.expect(Connack)).reason_code is ConnackReasonCode.SUCCESS
        assert (len(arrivals), arrivals.bytes) == (0, 0)
        other = await Client.open(harness.port)
        other.send_bytes(connect[:-1])
        await until(lambda: len(arrivals) == 1)
        other.cut()
        await until(lambda: len(arrivals) == 0)
        assert arrivals.bytes == 0
        await client.expect_nothing()


@pytest.mark.parametrize(
    ("data", "level", "reason_code"),
    [
        (
            b"\x10\x0c\0\x04MQTT\x07\x02\0\x0a\0\0",
            5,
            ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ),
        (
            b"\x10\x0c\0\x04MQTT\x02\x02\0\x0a\0\0",
            4,
            ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ),
        (b"\x10\x0d\0\x04MQTT\x05\x03\0\x0a\0\0\0", 5, ConnackReasonCode.MALFORMED_PACKET),
        (b"\x10\x0d\0\x04MQTT\x05\x02\0\x0a\0\0\x05", 5, ConnackReasonCode.MALFORMED_PACKET),
        (
            # Receive Maximum 0
            b"\x10\x10\0\x04MQTT\x05\x02\0\x0a\x03\x21\0\0\0\0",
            5,
            ConnackReasonCode.PROTOCOL_ERROR,
        ),
        (b"\x10\xff\xff\xff\x7f\0\x04MQTT\x05", 5, ConnackReasonCode.PACKET_TOO_LARGE),
        (
            encode(Connect("a", properties={"user_property": [("", "")] * 101}), 5),
            5,
            ConnackReasonCode.QUOTA_EXCEEDED,
        ),
    ],
    ids=[
        "level 7",
        "level 2",
        "reserved flag",
        "cut short",
        "receive maximum 0",
        "huge",
        "101 user properties",
    ],
)
async def test_a_wrong_connect_is_answered_where_the_level_is_known(
    data: bytes, level: int, reason_code: ConnackReasonCode
) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        client.send_bytes(data)
        assert (await client.expect(Connack)).reason_code is reason_code
        assert await client.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        encode(Publish("a", b"x"), 4),
        encode(Pingreq(), 4),
        b"\x10\x0c\0\x04MQTT\x04\x03\0\x0a\0\0",
        b"\x10\xff\xff\xff\xff\x01",
        b"\x10\xff\xff\xff\x7f\0\4MQTT\4",
        b"\x10\x00",
    ],
    ids=["http", "tls", "publish", "pingreq", "3.1.1 flag", "length", "huge", "empty"],
)
async def test_what_is_no_connect_is_cut(data: bytes) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        client.send_bytes(data)
        assert await client.is_closed()
        await until(lambda: not harness.gateway.connections)
        assert harness.counters.connections_refused == 1


@LEVELS
async def test_a_second_connect_ends_the_connection(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Connect("alice", level))
        await client.expect_disconnect(DisconnectReasonCode.PROTOCOL_ERROR)


async def test_auth_without_a_method_ends_the_connection() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(
            Auth(AuthReasonCode.RE_AUTHENTICATE, {"authentication_method": "SCRAM"}),
        )
        await client.expect_disconnect(DisconnectReasonCode.PROTOCOL_ERROR)


async def test_a_packet_larger_than_told_ends_the_connection() -> None:
    async with running_gateway(max_packet_bytes=1024) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish("a", bytes(1100)))
        await client.expect_disconnect(DisconnectReasonCode.PACKET_TOO_LARGE)


async def test_a_connection_without_connect_is_cut_in_time() -> None:
    async with running_gateway(connect_timeout_seconds=0.05) as harness:
        client = await Client.open(harness.port)
        assert await client.is_closed()
        await until(lambda: not harness.gateway.connections)


async def test_a_connect_that_trickles_in_is_cut_in_time() -> None:
    async with running_gateway(connect_timeout_seconds=0.1) as harness:
        client = await Client.open(harness.port)
        end = asyncio.create_task(client.is_closed())
        for byte in encode(Connect("x" * 200), 5)[:-1]:
            client.send_bytes(bytes((byte,)))
            done, _ = await asyncio.wait([end], timeout=0.01)  # the pace, not a wait
            if done:
                break
        assert end.done(), "it would have had two seconds"
        assert end.result()


@pytest.mark.clause("MQTT5-3.1.2-22", "MQTT5-3.2.2-22", "MQTT311-3.1.2-24")
@LEVELS
async def test_a_silent_client_is_closed(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level, keep_alive=1)
        started = asyncio.get_running_loop().time()
        await client.expect_disconnect(DisconnectReasonCode.KEEP_ALIVE_TIMEOUT)
        assert asyncio.get_running_loop().time() - started > 1.4


async def test_a_client_without_keep_alive_may_be_silent() -> None:
    async with running_gateway(connect_timeout_seconds=0.02) as harness:
        client = await Client.connect(harness.port, "alice", keep_alive=0)
        other = await Client.open(harness.port)
        assert await other.is_closed()  # the time of a CONNECT has passed
        await client.expect_nothing()


@LEVELS
async def test_a_client_id_is_taken_over(level: int) -> None:
    async with running_gateway() as harness:
        first = await Client.connect(harness.port, "alice", level=level)
        await first.subscribe("a", 1)
        second = await Client.connect(harness.port, "alice")
        await first.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        await second.subscribe("b", 1)
        await second.publish("b", b"x", 0)
        assert await second.payloads(1) == [b"x"]
        assert harness.gateway.status.figures()["clients"] == 1
        assert len(harness.gateway.subscriptions) == 1


async def test_a_takeover_fires_the_will_of_the_older_connection() -> None:
    async with running_gateway() as harness:
        await Client.connect(harness.port, "alice", will=Will("w", b"gone"))
        await Client.connect(harness.port, "alice", will=Will("w", b"again"))
        await until(lambda: harness.inbound())
        assert [record.value for record in harness.inbound()] == [b"gone"]


@LEVELS
async def test_a_will_is_fired_when_the_connection_is_cut(level: int) -> None:
    async with running_gateway() as harness:
        watcher = await Client.connect(harness.port, "watcher")
        await watcher.subscribe("wills/#", 2)
        client = await Client.connect(
            harness.port, "alice", level=level, will=Will("wills/alice", b"gone", 1)
        )
        client.cut()
        message = await watcher.message()
        assert (message.topic_name, message.payload, message.qos) == ("wills/alice", b"gone", 1)


@LEVELS
async def test_a_will_is_dropped_by_disconnect(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level, will=Will("w", b""))
        await client.disconnect()
        await until(lambda: not harness.gateway.connections)
        assert harness.inbound() == []


async def test_disconnect_with_will_fires_it() -> None:
    async with running_gateway() as harness:
        will = Will(
            "w", b"x", 2, properties={"will_delay_interval": 100, "content_type": "text/plain"}
        )
        client = await Client.connect(harness.port, "alice", will=will)
        await client.disconnect(Disconnect(DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
        await until(lambda: harness.inbound())
        headers = dict(harness.inbound()[0].headers)
        assert headers["properties"] == b'{"content_type":"text/plain"}'
        assert headers["client_id"] == b"alice"


async def test_a_protocol_error_fires_the_will() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=4, will=Will("w", b""))
        client.send_bytes(b"\xf0\x00")
        assert await client.is_closed()
        await until(lambda: harness.inbound())


async def test_nothing_is_kept_of_500_clients_that_came_and_went() -> None:
    async with running_gateway(route_linger_seconds=0) as harness:
        gateway = harness.gateway
        await turns()  # all that the gateway does has begun
        tasks = len(asyncio.all_tasks())
        for number in range(500):
            client = await Client.connect(harness.port, f"client-{number}", level=4 + number % 2)
            if number % 10 == 0:
                await client.subscribe(f"f/{number}", 1)
                await client.subscribe(f"$share/g/f/{number}", 1)
                await client.publish(f"f/{number}")
            if number % 3 == 0:
                client.cut()
            else:
                await client.disconnect()
        await until(lambda: not gateway.connections)
        await until(lambda: len(gateway.sessions) == 0)
        assert len(gateway.log_room) == 0
        assert len(gateway.subscriptions) == 0
        await until(lambda: len(gateway.routes) == PARTITIONS)  # those of retained messages
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_client_at_fault_may_go_on_sending_until_it_has_read_why() -> None:
    async with running_gateway() as harness:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", harness.port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, encode(Connect("alice"), 5))
            await loop.sock_sendall(client, b"\x36\x00")  # QoS 3
            await until(lambda: harness.counters.connections_opened == 1)
            await until(lambda: harness.gateway.sessions.connected_count == 0)
            # Bytes to a closed socket are answered by a reset, and then sending fails.
            for _ in range(20):
                await loop.sock_sendall(client, encode(Pingreq(), 5) * 1000)
            received = b""
            while data := await loop.sock_recv(client, 1000):
                received += data
        decoder = Decoder(5, role=Role.CLIENT)
        decoder.receive_data(received)
        assert isinstance(decoder.next_packet(), Connack)
        disconnect = decoder.next_packet()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code is DisconnectReasonCode.MALFORMED_PACKET
        await until(lambda: not harness.gateway.connections)
