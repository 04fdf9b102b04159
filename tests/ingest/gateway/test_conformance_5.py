"""Statements of MQTT 5.0 that neither one packet nor a transcript shows; see `docs/protocol.md`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ingest.protocol.connection import ServerConnection
from ingest.protocol.decoder import Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Will,
)
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubrecReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)
from mqlake.clock import ManualClock
from tests.ingest.gateway.harness import Client, running_gateway, until

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

pytestmark = pytest.mark.anyio

ALL_THAT_MAY_BE_MISSING = {
    "maximum_qos",
    "retain_available",
    "wildcard_subscription_available",
    "subscription_identifier_available",
    "shared_subscription_available",
}


@pytest.mark.clause("MQTT5-3.2.2-9", "MQTT5-3.2.2-12")
async def test_everything_optional_is_offered() -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        connack = await client.handshake("alice", will=Will("w", b"x", 2, retain=True))
        assert connack.reason_code is ConnackReasonCode.SUCCESS
        assert (
            not {name for name, value in connack.properties.items() if not value}
            & ALL_THAT_MAY_BE_MISSING
        )
        assert "maximum_qos" not in connack.properties


@pytest.mark.clause("MQTT5-3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0, 1])
async def test_response_information_is_for_those_who_ask(asked: int | None) -> None:
    async with running_gateway(response_topic_prefix="answers/") as harness:
        client = await Client.open(harness.port)
        properties = {} if asked is None else {"request_response_information": asked}
        connack = await client.handshake("alice", properties=properties)
        told = connack.properties.get("response_information")
        assert told == ("answers/alice/" if asked else None)


@pytest.mark.clause("MQTT5-3.1.2-29")
@pytest.mark.parametrize("wanted", [0, 1])
async def test_no_reason_is_told_to_a_client_that_wants_none(wanted: int) -> None:
    async with running_gateway() as harness:
        harness.gateway.publisher.is_refusing = "0 MiB free"
        client = await Client.connect(
            harness.port, "alice", properties={"request_problem_information": wanted}
        )
        client.send(Publish("a", b"", 1, packet_id=1), Publish("a", b"", 2, packet_id=2))
        puback = await client.expect(Puback)
        pubrec = await client.expect(Pubrec)
        assert puback.reason_code is PubackReasonCode.QUOTA_EXCEEDED
        assert pubrec.reason_code is PubrecReasonCode.QUOTA_EXCEEDED
        assert ("reason_string" in puback.properties) is bool(wanted)
        assert ("reason_string" in pubrec.properties) is bool(wanted)


@pytest.mark.clause("MQTT5-3.1.3-8")
@pytest.mark.parametrize("client_id", ["+/#", "$SYS/x", " ", "\ufeff", "x" * 65_000])
async def test_no_client_identifier_is_refused(client_id: str) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, client_id)
        await client.subscribe("a", 1)
        await client.publish("a", b"x", 1)
        assert await client.payloads(1) == [b"x"]


@pytest.mark.clause("MQTT5-3.1.4-1")
@pytest.mark.parametrize(
    ("data", "reason_code"),
    [
        (b"\x10\x0d\0\x04MQTT\x05\x03\0\0\0\0\0", ConnackReasonCode.MALFORMED_PACKET),
        (b"\x10\x0e\0\x04MQTT\x05\x02\0\0\0\0\0\0", ConnackReasonCode.MALFORMED_PACKET),
        (b"\x10\x10\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\0", ConnackReasonCode.PROTOCOL_ERROR),
    ],
    ids=["reserved flag", "a byte too many", "receive maximum 0"],
)
async def test_a_connect_of_another_form_is_refused(
    data: bytes, reason_code: ConnackReasonCode
) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        client.send_bytes(data)
        assert (await client.expect(Connack)).reason_code is reason_code
        assert await client.is_closed()


@pytest.mark.clause("MQTT5-3.1.4-6", "MQTT5-3.2.2-7")
async def test_what_follows_a_refused_connect_is_not_processed() -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        client.send(
            Connect("alice", properties={"authentication_method": "unknown"}),
            Publish("a", b"x", 1, packet_id=1),
            Subscribe(1, [Subscription("a")]),
            Pingreq(),
        )
        assert (await client.expect(Connack)).reason_code != 0
        assert await client.is_closed()
        assert harness.inbound() == []
        assert len(harness.gateway.subscriptions) == 0


@pytest.mark.clause("MQTT5-3.2.0-1", "MQTT5-3.2.0-2")
async def test_connack_comes_first_and_once() -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        client.send(
            Connect("alice"),
            Pingreq(),
            Subscribe(1, [Subscription("a")]),
            Publish("a", b"x", 1, packet_id=1),
        )
        kinds = [type(await client.receive()) for _ in range(5)]
        assert kinds[0] is Connack
        assert sorted(kind.__name__ for kind in kinds[1:]) == [
            Pingresp.__name__,
            Puback.__name__,
            Publish.__name__,
            Suback.__name__,
        ]
        await client.expect_nothing()


@pytest.mark.clause(
    "MQTT5-3.2.2-19",
    "MQTT5-3.2.2-20",
    "MQTT5-3.4.2-2",
    "MQTT5-3.4.2-3",
    "MQTT5-3.5.2-2",
    "MQTT5-3.5.2-3",
    "MQTT5-3.6.2-2",
    "MQTT5-3.6.2-3",
    "MQTT5-3.7.2-2",
    "MQTT5-3.7.2-3",
    "MQTT5-3.9.2-1",
    "MQTT5-3.9.2-2",
    "MQTT5-3.11.2-1",
    "MQTT5-3.11.2-2",
    "MQTT5-3.14.2-3",
    "MQTT5-3.14.2-4",
    "MQTT5-3.15.2-2",
    "MQTT5-3.15.2-3",
)
@pytest.mark.parametrize("name", ["reason_string", "user_property"])
@pytest.mark.parametrize(
    "packet",
    [
        Connack(reason_code=ConnackReasonCode.SERVER_BUSY),
        Puback(1, PubackReasonCode.QUOTA_EXCEEDED),
        Pubrec(1, PubrecReasonCode.QUOTA_EXCEEDED),
        Pubrel(1),
        Pubcomp(1),
        Suback(1, [SubackReasonCode.QUOTA_EXCEEDED]),
        Unsuback(1, [UnsubackReasonCode.NOT_AUTHORIZED]),
        Disconnect(DisconnectReasonCode.SERVER_BUSY),
        Auth(AuthReasonCode.CONTINUE_AUTHENTICATION, {"authentication_method": "m"}),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_words_for_people_give_way_to_the_maximum_packet_size(packet: Packet, name: str) -> None:
    words: Properties = {"reason_string": "why" * 10}
    if name == "user_property":
        words = {"user_property": [("name", "why" * 10)]}
    plain = getattr(packet, "properties", {})
    changes: Any = {"properties": {**plain, **words}}
    whole = replace(packet, **changes)
    size = len(encode(whole, 5))
    for most, expected in ((size, whole), (size - 1, packet)):
        protocol = ServerConnection(
            max_packet_bytes=10_000, receive_maximum=10, topic_alias_maximum=0
        )
        protocol.receive_data(encode(Connect("a", properties={"maximum_packet_size": most}), 5))
        protocol.next_packet()
        decoder = Decoder(5, role=Role.CLIENT)
        decoder.receive_data(protocol.encode(whole))
        assert decoder.next_packet() == expected


@pytest.mark.clause("MQTT5-4.2.0-1")
async def test_tcp_is_a_transport() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 2)
        await client.publish("a", bytes(range(256)) * 1000)
        assert await client.payloads(1) == [bytes(range(256)) * 1000]


@pytest.mark.clause("MQTT5-4.3.3-13")
async def test_an_expired_message_is_acknowledged_to_its_end() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.connect(harness.port, "alice")
        subscriber = await Client.connect(harness.port, "bob")
        await subscriber.subscribe("a", 2)
        harness.router.pause()
        client.send(Publish("a", b"x", 2, packet_id=1, properties={"message_expiry_interval": 1}))
        await client.expect(Pubrec)
        clock.advance(10)
        harness.router.resume()
        await until(lambda: harness.counters.dropped_expired == 1)
        client.send(Pubrel(1))
        assert await client.expect(Pubcomp) == Pubcomp(1)
        await subscriber.expect_nothing()


@pytest.mark.clause("MQTT5-4.6.0-5", "MQTT5-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_keep_their_order(qos: int) -> None:
    async with running_gateway() as harness:
        subscriber = await Client.connect(harness.port, "alice", properties={"receive_maximum": 3})
        await subscriber.subscribe("a/+", qos)
        publisher = await Client.connect(harness.port, "bob")
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


@pytest.mark.clause("MQTT5-4.12.0-6")
async def test_without_a_method_there_is_no_auth() -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        connack = await client.handshake("alice", username="al", password=b"secret")
        assert not {"authentication_method", "authentication_data"} & connack.properties.keys()
