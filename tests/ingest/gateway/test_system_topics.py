import re

import pytest

from ingest.gateway.retained.system_topics import COUNTS, GAUGES, PREFIX, RATES, WINDOWS
from ingest.protocol.packets import Puback, Publish, Suback, Subscribe, Subscription
from ingest.protocol.reason_codes import PubackReasonCode
from mqlake.clock import ManualClock
from mqlake.records.messages import ROUTES
from tests.ingest.gateway.harness import Client, Harness, running_gateway, turns, until

pytestmark = pytest.mark.anyio

ALSO = {"version", "uptime", "clients/maximum", "messages/stored", "store/messages/count"}
ALSO |= {"overload/level", "overload/step"}
NAMES = {*ALSO, *COUNTS, *GAUGES} | {f"{rate}/{window}" for rate in RATES for window in WINDOWS}


async def values(client: Client, topic_filter: str, **options: int) -> dict[str, str]:
    """Subscribe and return what comes at once, by topic name below the prefix."""
    await client.subscribe(topic_filter, **options)
    await turns()
    messages = [await client.message() for _ in NAMES] if topic_filter == "$SYS/#" else []
    if not messages:
        messages.append(await client.message())
    await client.expect_nothing()
    assert all(message.retain for message in messages)
    return {
        message.topic_name.removeprefix(PREFIX): message.payload.decode() for message in messages
    }


async def live(client: Client, name: str) -> str:
    """Return the next change of a value."""
    while True:
        message = await client.message()
        assert not message.retain
        if message.topic_name == PREFIX + name:
            return message.payload.decode()


def routes(harness: Harness) -> list[bytes]:
    return [record.key or b"" for record in harness.log.records(ROUTES)]


@pytest.mark.parametrize("level", [3, 4, 5])
async def test_a_new_subscriber_gets_all_values_at_once(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        found = await values(client, "$SYS/#")
        assert found.keys() == NAMES
        assert found.pop("version").startswith("mqlake version ")
        assert re.fullmatch(r"\d+ seconds", found.pop("uptime"))
        for name, value in found.items():
            assert re.fullmatch(r"\d+\.\d\d" if name.startswith("load/") else r"\d+", value), name
        assert int(found["heap/current"]) > 1_000_000


async def test_no_route_and_no_round_is_needed() -> None:
    async with running_gateway() as harness:
        harness.router.pause()
        client = await Client.connect(harness.port, "alice")
        assert await values(client, PREFIX + "uptime") == {"uptime": "0 seconds"}
        await client.unsubscribe(PREFIX + "uptime")
        await client.disconnect()
        assert not any(b"$SYS" in key for key in routes(harness))


async def test_values_and_other_retained_messages_come_for_one_subscribe() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.publish("a", b"kept", 1, retain=True)
        filters = [Subscription("a", 1), Subscription(PREFIX + "+"), Subscription("b", 0)]
        for packet_id in (7, 8):  # routed by the first already when the second comes
            client.send(Subscribe(packet_id, filters))
            assert (await client.expect(Suback)).packet_id == packet_id
            topics = {(await client.message()).topic_name for _ in range(3)}
            assert topics == {"a", PREFIX + "version", PREFIX + "uptime"}


async def test_changes_are_published_in_the_interval() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, sys_interval_seconds=30) as harness:
        client = await Client.connect(harness.port, "alice")
        await values(client, "$SYS/#")
        clock.advance(29)
        other = await Client.connect(harness.port, "bob")
        await other.subscribe("x")
        await harness.delivered()
        await client.expect_nothing()
        clock.advance(1)
        seen: dict[str, str] = {}
        while f"{sorted(RATES)[-1]}/15min" not in seen:
            message = await client.message()
            seen[message.topic_name.removeprefix(PREFIX)] = message.payload.decode()
            assert not message.retain
        assert seen["uptime"] == "30 seconds"
        assert seen["clients/connected"] == seen["clients/total"] == seen["clients/maximum"] == "2"
        assert seen["subscriptions/count"] == "2"
        assert "version" not in seen
        assert "shared_subscriptions/count" not in seen  # it is what it was
        # Two connections in 30 s are four a minute; a part of that by the age of the window.
        assert seen["load/connections/1min"] == "1.57"
        assert seen["load/connections/15min"] == "0.13"
        assert seen["load/sockets/1min"] == "1.57"


async def test_retain_as_published_keeps_the_flag_of_changes() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe(PREFIX + "uptime", 1, retain_as_published=True, identifier=9)
        for seconds in (b"0 seconds", b"10 seconds"):
            message = await client.message()
            assert (message.payload, message.retain, message.qos) == (seconds, True, 0)
            assert message.properties == {"subscription_identifier": [9]}
            clock.advance(10)


async def test_retain_handling_is_respected() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$SYS/#", retain_handling=2)
        await client.expect_nothing()
        await client.subscribe("$SYS/#", retain_handling=1)  # not new
        await client.expect_nothing()
        await client.unsubscribe("$SYS/#")
        await client.subscribe(PREFIX + "version", retain_handling=1)
        await client.message()


@pytest.mark.clause("MQTT5-4.7.2-1", "MQTT311-4.7.2-1")
@pytest.mark.parametrize("topic_filter", ["#", "+/broker/#", "+/broker/uptime", "/$SYS/#"])
async def test_a_leading_wildcard_matches_none_of_them(topic_filter: str) -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.connect(harness.port, "alice")
        watcher = await Client.connect(harness.port, "bob")
        await client.subscribe(topic_filter)
        await harness.rounds_are_over()
        await client.expect_nothing()
        await watcher.subscribe(PREFIX + "uptime", retain_handling=2)
        clock.advance(10)
        assert await live(watcher, "uptime") == "10 seconds"
        await client.expect_nothing()


async def test_interval_zero_means_none() -> None:
    async with running_gateway(sys_interval_seconds=0) as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$SYS/#")
        await client.expect_nothing()


@pytest.mark.parametrize("topic_name", ["$SYS", "$SYS/broker/uptime", "$SYS/mine"])
async def test_nobody_else_publishes_there(topic_name: str) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$SYS/#", retain_handling=2)
        client.send(Publish(topic_name, b"x", 1, packet_id=1))
        assert (await client.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        assert harness.inbound() == []
        await client.publish("$SYSTEM", b"x", 1)  # another tree


async def test_clients_and_messages_are_counted() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, lease_seconds=300) as harness:
        offline = await Client.connect(
            harness.port, "bob", properties={"session_expiry_interval": 100}
        )
        await offline.subscribe("a", 1)
        await offline.disconnect()
        client = await Client.connect(harness.port, "alice")
        await client.publish("a", b"12345", 1, retain=True)
        await client.subscribe("$share/g/a")
        await harness.delivered()
        clock.advance(10)
        await client.subscribe(PREFIX + "uptime", retain_handling=2)
        assert await live(client, "uptime") == "10 seconds"
        watcher = await Client.connect(harness.port, "carol")
        found = await values(watcher, "$SYS/#")
        assert found["clients/connected"] == found["clients/active"] == "1"
        assert found["clients/disconnected"] == found["clients/inactive"] == "1"
        assert found["clients/total"] == "2"
        assert found["clients/expired"] == "0"
        assert found["publish/messages/received"] == "1"
        assert found["publish/bytes/received"] == "5"
        assert found["retained messages/count"] == "1"
        stored = {found["messages/stored"], found["store/messages/count"]}
        assert stored == {"1"}  # bob's is in the log
        assert found["subscriptions/count"] == "1"  # those of clients that are here
        assert found["shared_subscriptions/count"] == "1"
        # CONNECT, SUBSCRIBE, DISCONNECT; CONNECT, PUBLISH, 2 SUBSCRIBE, the last at the same time
        assert int(found["messages/received"]) in (6, 7)
        assert int(found["bytes/received"]) > 60
        await watcher.unsubscribe("$SYS/#")
        clock.advance(100)
        await until(lambda: harness.counters.sessions_expired)
        clock.advance(10)
        await watcher.subscribe(PREFIX + "clients/expired", retain_handling=2)
        assert await live(watcher, "clients/expired") == "1"


async def test_slow_subscribers_get_their_values_in_pages() -> None:
    async with running_gateway() as harness:
        topics = harness.gateway.system_topics
        names: list[str] = []
        position = None
        while True:
            page = topics.page("default", "$SYS/#", position, 10)
            names += [message.topic_name for message in page.messages]
            position = page.position
            if position is None:
                break
        assert names == sorted(PREFIX + name for name in NAMES)
