"""Much of everything: topics, properties, filters, retained messages, connections.

What is too much is refused with the right answer, what is not is served; neither costs others.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.protocol.encoder import encode
from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.log.memory import MemoryLogWriter
from mqlake.records.messages import GATEWAYS
from mqlake.records.tenants import KeptTenant, TenantLimits, encode_tenant, tenant_key
from tests.ingest.gateway.harness import Client, free_port, until
from tests.ingest.hostile.town import PASSWORD, Town, ask, limits, refused, town

pytestmark = pytest.mark.anyio

MOST = 200_000
"""Bytes of a packet."""
LEVELS = 16
SUBSCRIPTIONS = 50
RETAINED = 20
EXCEEDED = 0x97
each_version = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    most = limits(subscriptions=SUBSCRIPTIONS, session_bytes=60_000, user_connections=300)
    settings = {"max_packet_bytes": MOST, "max_topic_levels": LEVELS, **most}
    listeners = [{"kind": "tcp", "port": free_port(), "max_connections": 20}]
    folder = tmp_path_factory.mktemp("town")
    async with town(folder, listeners=listeners, **settings) as found:
        quota = TenantLimits(retained_messages=RETAINED, retained_bytes=100_000)
        tenant = KeptTenant(limits=quota, created_at=0, at=0, by="olga")
        writer = MemoryLogWriter(found.harness.log)
        key = tenant_key("default")
        writer.append(GATEWAYS, key, encode_tenant(tenant), [], lambda *_: None, partition=0)
        shared = found.harness.gateway.shared_limits
        await until(lambda: shared.is_limited("retained_bytes", "default", None))
        yield found


def code_of(answer: Any) -> int:
    return int(answer.reason_code)


# Topics and properties

LONG = {
    "17 levels": "/".join("a" * (LEVELS + 1)),
    "only slashes": "/" * LEVELS,
    "30,000 levels": "a/" * 30_000 + "a",
    "32,767 slashes": "/" * 32_767,
}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("name", LONG)
async def test_a_topic_with_too_many_levels_is_refused(place: Town, name: str, qos: int) -> None:
    client = await place.connect()
    client.send(Publish(LONG[name], b"", qos, packet_id=1))
    answer = await client.receive()
    assert code_of(answer) == DisconnectReasonCode.TOPIC_NAME_INVALID, answer
    await client.expect_nothing()
    await place.is_well()


@each_version
@pytest.mark.parametrize("name", LONG)
async def test_so_is_a_filter(place: Town, name: str, level: int) -> None:
    client = await place.connect(level=level)
    refusal = 0x8F if level == 5 else 0x80
    assert await ask(client, LONG[name], "ok") == [refusal, 0]
    await place.is_well()


@each_version
@pytest.mark.parametrize("name", LONG)
async def test_so_is_a_will(place: Town, name: str, level: int) -> None:
    connect = Connect(
        "w", level, username="ann", password=PASSWORD, will=Will(LONG[name], b"x", 0, False)
    )
    await refused(place.port, connect, ConnackReasonCode.TOPIC_NAME_INVALID)
    await place.is_well()


@pytest.mark.parametrize("size", [65_535, 65_000, 40_000])
@pytest.mark.parametrize("letter", ["a", "ü", "€", "😀"])
async def test_a_long_topic_of_few_levels_is_a_topic(place: Town, size: int, letter: str) -> None:
    client = await place.connect()
    topic_name = letter * (size // len(letter.encode()))
    await client.publish(topic_name, b"", 1)
    code = (await ask(client, topic_name))[0]
    assert code == (EXCEEDED if size > 60_000 - 100 else 0), "by the bytes of a session"
    await place.is_well()


PROPERTIES: dict[str, Any] = {
    "1,000 user properties": {"user_property": [("k", "v")] * 1_000},
    "a long user property": {"user_property": [("k" * 65_535, "v" * 65_535)]},
    "a long content type": {"content_type": "x" * 65_535},
    "long correlation data": {"correlation_data": bytes(65_535)},
    "a long response topic": {"response_topic": "r" * 65_535},
    "the longest expiry": {"message_expiry_interval": 2**32 - 1},
    "all of them": {
        "content_type": "x" * 30_000,
        "correlation_data": bytes(30_000),
        "response_topic": "r" * 30_000,
        "user_property": [("k" * 100, "v" * 100)] * 300,
    },
}


@pytest.mark.parametrize("name", PROPERTIES)
async def test_properties_come_through_up_to_the_largest_packet(place: Town, name: str) -> None:
    publisher, subscriber = await place.connect(), await place.connect("bob")
    await subscriber.subscribe("properties", 1)
    await publisher.publish("properties", b"x", 1, properties=PROPERTIES[name])
    got = await subscriber.message()
    assert {key: got.properties.get(key) for key in PROPERTIES[name] if "expiry" not in key} == {
        key: value for key, value in PROPERTIES[name].items() if "expiry" not in key
    }
    await place.is_well()


@pytest.mark.parametrize("count", [1_001, 25_000])
async def test_more_user_properties_than_1000_are_refused(place: Town, count: int) -> None:
    client = await place.connect()
    client.send(Publish("a", b"", 1, packet_id=1, properties={"user_property": [("", "")] * count}))
    answer = await client.receive()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code is DisconnectReasonCode.QUOTA_EXCEEDED
    await place.is_well()


TOO_LARGE: dict[str, bytes] = {
    "payload": encode(Publish("a", bytes(MOST)), 5),
    "properties": encode(
        Publish("a", b"", properties={"user_property": [("k", "v" * 60_000)] * 4}), 5
    ),
    "filters": encode(Subscribe(1, [Subscription("f" * 60_000, 0)] * 4), 5),
    "a length of 256 MB": b"\x30\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_packet_that_is_too_large_is_refused_by_its_length(place: Town, name: str) -> None:
    client = await place.connect()
    client.send_bytes(TOO_LARGE[name])
    answer = await client.receive()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code is DisconnectReasonCode.PACKET_TOO_LARGE
    await place.is_well()


# Subscribe bombs


@each_version
@pytest.mark.parametrize("per_packet", [1, 7, 200])
async def test_filters_beyond_the_limit_are_refused_one_by_one(
    place: Town, level: int, per_packet: int
) -> None:
    client = await place.connect(level=level)
    names = [f"bomb/{number}/+" for number in range(200)]
    codes: list[int] = []
    for begin in range(0, len(names), per_packet):
        codes += await ask(client, *names[begin : begin + per_packet])
    refusal = EXCEEDED if level == 5 else 0x80
    assert codes == [0] * SUBSCRIPTIONS + [refusal] * (200 - SUBSCRIPTIONS)
    await place.is_well()


SHAPES: dict[str, list[str]] = {
    "wildcards at each level": ["/".join(f"{n:016b}").replace("0", "+") for n in range(60)],
    "all of it": [f"bomb/{number}/#" for number in range(60)],
    "share groups": [f"$share/g{number}/#" for number in range(60)],
    "one group, many filters": [f"$share/g/bomb/{number}/#" for number in range(60)],
    "one filter, many groups": [f"$share/{number}/bomb" for number in range(60)],
    "long ones": [f"{number:050}" for number in range(60)],
}


@pytest.mark.parametrize("name", SHAPES)
async def test_filters_of_every_shape_count(place: Town, name: str) -> None:
    client = await place.connect()
    codes = await ask(client, *SHAPES[name])
    assert codes == [0] * SUBSCRIPTIONS + [EXCEEDED] * 10
    await place.is_well()


@pytest.mark.parametrize("rounds", [50, 300])
async def test_subscribing_and_unsubscribing_leaves_nothing(place: Town, rounds: int) -> None:
    client = await place.connect()
    before = len(place.harness.gateway.subscriptions)
    for number in range(rounds):
        assert await ask(client, f"churn/{number}") == [0]
        client.send(Unsubscribe(1, [f"churn/{number}"]))
        await client.expect(Unsuback)
    assert len(place.harness.gateway.subscriptions) == before
    await place.is_well()


@pytest.mark.parametrize("size", [100, 1_000, 7_000])
async def test_a_session_holds_no_more_bytes_than_it_may(place: Town, size: int) -> None:
    client = await place.connect()
    codes = await ask(client, *(f"{number:0{size}}" for number in range(20)))
    fitting = min(20, 60_000 // size)
    assert codes == [0] * fitting + [EXCEEDED] * (20 - fitting)
    await place.is_well()


# Retained bombs


@each_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_topics_beyond_those_that_may_be_retained(place: Town, level: int, qos: int) -> None:
    client = await place.connect(level=level)
    counters = place.harness.counters
    before = counters.dropped_retained_full
    for number in range(2 * RETAINED):
        packet_id: Any = {"packet_id": number + 1} if qos else {}
        client.send(Publish(f"r/{level}/{qos}/{number}", b"x", qos, True, **packet_id))
    codes = [code_of(await client.receive()) for _ in range(2 * RETAINED if qos else 0)]
    await client.expect_nothing()
    await until(lambda: counters.dropped_retained_full >= before + RETAINED)
    if level == 5 and qos:
        assert codes.count(EXCEEDED) == counters.dropped_retained_full - before
    else:
        assert not any(codes), "3.x has no words for it"
    await until(lambda: place.harness.gateway.retained.usage("default")[0] <= RETAINED)
    await place.is_well()


@pytest.mark.parametrize("size", [60_000, 100_001, 150_000])
async def test_bytes_beyond_those_that_may_be_retained(place: Town, size: int) -> None:
    client = await place.connect()
    codes = []
    for number in range(3):
        client.send(Publish(f"large/{size}/{number}", bytes(size), 1, True, packet_id=1))
        codes.append(code_of(await client.expect(Puback)))
    assert codes[1:] == [EXCEEDED] * 2
    assert place.harness.gateway.retained.usage("default")[1] <= 100_000
    await place.is_well()


@pytest.mark.parametrize("retain", [True, False])
async def test_wills_are_no_way_around(place: Town, retain: bool) -> None:
    await gone(place)
    for number in range(2 * RETAINED):
        will = Will(f"wills/{retain}/{number}", b"x", 1, retain)
        (await place.connect(will=will)).cut()
    await until(lambda: len(place.harness.gateway.connections) == 1)
    await place.harness.delivered()
    assert place.harness.gateway.retained.usage("default")[0] <= RETAINED
    await place.is_well()


# Floods


async def knock(port: int, number: int) -> int:
    """Connect; return the reason code, -1 when the socket is closed without one."""
    client = await Client.open(port)
    client.send(Connect(f"flood-{number}", 5, username="ann", password=PASSWORD))
    try:
        answer = await client.receive()
    except (ConnectionError, AssertionError):
        return -1
    return int(answer.reason_code) if isinstance(answer, Connack) else -1


async def gone(place: Town) -> None:
    for connection in place.harness.connections():
        if connection.client_id != "healthy" and connection.transport is not None:
            connection.transport.abort()
    await until(lambda: len(place.harness.gateway.connections) == 1)


async def test_a_listener_takes_as_many_as_it_may(place: Town) -> None:
    await gone(place)
    listener: Any = place.harness.gateway.settings.listeners[0]
    codes = await asyncio.gather(*(knock(listener.port, number) for number in range(100)))
    assert (codes.count(0), codes.count(-1)) == (20, 80)
    await place.is_well()
    await gone(place)


async def test_a_user_has_as_many_as_he_may_and_others_come_in(place: Town) -> None:
    await gone(place)
    codes = await asyncio.gather(*(knock(place.port, number) for number in range(500)))
    assert codes.count(0) == 300
    assert codes.count(EXCEEDED) == 200
    await place.connect("bob")
    await place.is_well()
    await gone(place)


@pytest.mark.parametrize("name", ["open and close", "connect and cut", "the same client"])
async def test_many_who_come_and_go_leave_nothing(place: Town, name: str) -> None:
    for number in range(200):
        client = await Client.open(place.port)
        if name != "open and close":
            client_id = "same" if name == "the same client" else f"go-{number}"
            client.send(Connect(client_id, 5, username="ann", password=PASSWORD))
            if name == "connect and cut":
                await client.expect(Connack)
        if name != "the same client":
            client.cut()
    await gone(place)
    assert place.harness.gateway.sessions.connected_count == 1
    await place.is_well()
