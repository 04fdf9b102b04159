"""Topics with more levels than a gateway takes."""

import pytest

from ingest.protocol.packets import (
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from ingest.protocol.reason_codes import (
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubrecReasonCode,
    SubackReasonCode,
)
from tests.ingest.gateway.harness import Client, running_gateway

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])
OLD = pytest.mark.parametrize("level", [3, 4], ids=["3.1", "3.1.1"])
MOST = "/".join(["a"] * 128)
MORE = MOST + "/a"


@LEVELS
async def test_a_filter_with_more_levels_is_refused_and_the_others_are_granted(level: int) -> None:
    refused = SubackReasonCode.TOPIC_FILTER_INVALID if level == 5 else 0x80
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Subscribe(1, [Subscription(MORE, 1), Subscription(MOST, 1)]))
        assert (await client.expect(Suback)).reason_codes == [refused, 1]
        await client.publish(MOST, b"heard")
        assert (await client.message()).payload == b"heard"


async def test_levels_of_a_shared_filter_are_those_behind_the_name() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(
            Subscribe(1, [Subscription(f"$share/g/{MORE}", 1), Subscription(f"$share/g/{MOST}", 1)])
        )
        codes = (await client.expect(Suback)).reason_codes
        assert codes == [SubackReasonCode.TOPIC_FILTER_INVALID, 1]


async def test_the_limit_is_a_setting() -> None:
    async with running_gateway(max_topic_levels=2) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Subscribe(1, [Subscription("a/b/c", 0), Subscription("a/#", 0)]))
        codes = (await client.expect(Suback)).reason_codes
        assert codes == [SubackReasonCode.TOPIC_FILTER_INVALID, 0]


async def test_a_message_with_more_levels_is_answered_with_its_code() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish(MORE, b"x", 1, packet_id=1), Publish(MORE, b"x", 2, packet_id=2))
        puback = await client.expect(Puback)
        assert puback.reason_code == PubackReasonCode.TOPIC_NAME_INVALID
        pubrec = await client.expect(Pubrec)
        assert pubrec.reason_code == PubrecReasonCode.TOPIC_NAME_INVALID
        await client.publish("a", b"x", 1)
        assert harness.counters.messages_stored == 1


async def test_a_qos_0_message_with_more_levels_ends_the_connection() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish(MORE, b"x"))
        disconnect = await client.expect(Disconnect)
        assert disconnect.reason_code == DisconnectReasonCode.TOPIC_NAME_INVALID


@OLD
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_older_client_that_publishes_it_is_cut_off(level: int, qos: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Publish(MORE, b"x", qos, packet_id=1 if qos else 0))
        assert await client.receive() is None
        assert harness.counters.messages_stored == 0


@LEVELS
async def test_a_will_with_more_levels_is_refused_with_its_connection(level: int) -> None:
    codes = ConnackReasonCode
    refused = codes.TOPIC_NAME_INVALID if level == 5 else codes.NOT_AUTHORIZED
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        connack = await client.handshake("alice", will=Will(MORE, b"gone"))
        assert connack.reason_code == refused
