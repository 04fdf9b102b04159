"""Statements of MQTT 3.1.1 that neither a packet nor a transcript shows: `docs/protocol.md`."""

from pathlib import Path

import pytest

from ingest.protocol.encoder import encode
from ingest.protocol.packets import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from ingest.protocol.reason_codes import ConnackReasonCode
from tests.ingest.gateway.harness import Client, running_gateway

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4], ids=["3.1", "3.1.1"])


@pytest.mark.clause("MQTT311-3.1.0-1")
@pytest.mark.parametrize(
    "data",
    [encode(Publish("a", b"x"), 4), encode(Pingreq(), 4), b"\xe0\0", b"\0\0"],
    ids=["PUBLISH", "PINGREQ", "DISCONNECT", "reserved"],
)
async def test_what_comes_before_connect_ends_the_connection(data: bytes) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, 4)
        client.send_bytes(data + encode(Connect("alice", 4), 4))
        assert await client.is_closed()
        assert harness.inbound() == []


@pytest.mark.clause("MQTT311-3.1.4-1")
@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0d\0\x04MQTT\x04\x03\0\0\0\x01c",
        b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x01c\0",
        b"\x10\x0d\0\x04MQTT\x04\x1a\0\0\0\x01c",
        b"\x10\x0d\0\x04MQTT\x04\x42\0\0\0\x01c",
        b"\x11\x0d\0\x04MQTT\x04\x02\0\0\0\x01c",
    ],
    ids=["reserved flag", "a byte too many", "will QoS", "password alone", "fixed header"],
)
async def test_a_connect_of_another_form_gets_no_connack(data: bytes) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, 4)
        client.send_bytes(data)
        assert await client.is_closed()


@pytest.mark.clause("MQTT311-3.1.4-5")
@LEVELS
async def test_what_follows_a_refused_connect_is_not_processed(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        client.send(
            Connect("", level, clean_start=False),
            Publish("a", b"x", 1, packet_id=1),
            Subscribe(1, [Subscription("a")]),
            Pingreq(),
        )
        connack = await client.expect(Connack)
        assert connack.reason_code is ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert await client.is_closed()
        assert harness.inbound() == []
        assert len(harness.gateway.subscriptions) == 0


@pytest.mark.clause("MQTT311-3.2.0-1")
@LEVELS
async def test_connack_comes_first(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        client.send(
            Connect("alice", level),
            Pingreq(),
            Subscribe(1, [Subscription("a")]),
            Publish("a", b"x", 1, packet_id=1),
        )
        kinds = [type(await client.receive()) for _ in range(5)]
        assert kinds[0] is Connack
        assert set(kinds[1:]) == {Pingresp, Suback, Puback, Publish}


@pytest.mark.clause("MQTT311-3.3.5-2", "MQTT311-4.8.0-2")
@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_the_server_does_not_take_ends_the_connection(level: int, qos: int) -> None:
    async with running_gateway() as harness:
        harness.gateway.publisher.is_refusing = "0 MiB free"
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Publish("a", b"x", qos, packet_id=1))
        assert await client.is_closed()
        assert harness.inbound() == []


@pytest.mark.clause("MQTT311-4.6.0-5", "MQTT311-4.6.0-6")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_keep_their_order(level: int, qos: int) -> None:
    async with running_gateway() as harness:
        subscriber = await Client.connect(harness.port, "alice", level=level)
        await subscriber.subscribe("a/+", qos)
        publisher = await Client.connect(harness.port, "bob", level=level)
        publisher.send(
            *(
                Publish(f"a/{number % 2}", b"%d" % number, qos, packet_id=number + 1 if qos else 0)
                for number in range(60)
            )
        )
        received = [await subscriber.message() for _ in range(60)]
        for topic in ("a/0", "a/1"):
            numbers = [int(one.payload) for one in received if one.topic_name == topic]
            assert numbers == sorted(numbers)
            assert len(numbers) == 30


@pytest.mark.clause("MQTT311-4.7.1-2", "MQTT311-4.7.1-3", "MQTT311-4.7.3-1")
@LEVELS
@pytest.mark.parametrize("topic_filter", ["a#", "a/#/b", "##", "a+", "+a/b", "a/++", ""])
async def test_a_malformed_filter_ends_the_connection(level: int, topic_filter: str) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Subscribe(1, [Subscription(topic_filter)]))
        assert await client.is_closed()
        assert len(harness.gateway.subscriptions) == 0


@pytest.mark.clause("MQTT311-7.0.0-2", "MQTT311-7.1.1-1")
@LEVELS
async def test_tcp_is_a_transport(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        await client.subscribe("a", 2)
        await client.publish("a", bytes(range(256)) * 1000)
        assert await client.payloads(1) == [bytes(range(256)) * 1000]


@pytest.mark.clause("MQTT311-7.0.0-1")
def test_the_server_opens_no_connection_of_its_own() -> None:
    ingest = Path(__file__).parents[3] / "ingest"
    server = [*(ingest / "gateway").rglob("*.py"), *(ingest / "protocol").rglob("*.py")]
    assert len(server) > 50
    for path in server:
        if path.parent.name == "authentication":
            continue  # asks directories who clients are, and speaks no MQTT
        text = path.read_text(encoding="utf-8")
        assert not {"create_connection", "open_connection", "sock_connect"} & set(
            text.replace("(", " ").replace(".", " ").split()
        )
