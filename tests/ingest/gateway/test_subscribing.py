import pytest

from ingest.gateway.clients.subscribing import UNREACHED
from ingest.protocol.packets import (
    Connack,
    Connect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)
from mqlake.errors import LogError
from mqlake.records.federation import encode_reach
from mqlake.records.messages import GATEWAYS, HEADER_REACH, REACH_KEY, ROUTES, SESSIONS
from tests.ingest.gateway.harness import (
    PARTITIONS,
    Client,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])
GRANTED = [SubackReasonCode(qos) for qos in range(3)]


@LEVELS
async def test_several_filters_are_granted_in_their_order(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        filters = [Subscription("a", 2), Subscription("b/+", 0), Subscription("$share/g/c/#", 1)]
        client.send(Subscribe(9, filters))
        assert await client.expect(Suback) == Suback(9, [GRANTED[2], GRANTED[0], GRANTED[1]])
        assert len(harness.gateway.subscriptions) == 3


async def test_suback_waits_for_the_router() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.router.pause_routes()
        client.send(Subscribe(1, [Subscription("a", 1)]))
        await client.expect_nothing()
        await until(lambda: harness.gateway.routes.oldest_wait_seconds > 0)
        harness.router.resume_routes()
        await client.expect(Suback)


async def test_suback_waits_for_other_sites_if_that_is_set() -> None:
    async with running_gateway(suback_sites_seconds=60) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Subscribe(1, [Subscription("a", 1)]))
        await client.expect_nothing()
        (route,) = [one for one in harness.log.records(ROUTES) if one.key == b"gateway-1/default/a"]
        assert (HEADER_REACH, b"") in route.headers
        for said in (b"{}", encode_reach(route.offset - 1), encode_reach(route.offset)):
            await client.expect_nothing()
            harness.log.store(GATEWAYS, REACH_KEY, said, [], 1, 0)
        assert await client.expect(Suback) == Suback(1, [GRANTED[1]])
        # Who knows of it already is not asked again.
        client.send(Subscribe(2, [Subscription("a", 2)]))
        assert await client.expect(Suback) == Suback(2, [GRANTED[2]])


async def test_suback_says_when_other_sites_may_not_know(caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway(suback_sites_seconds=0.01) as harness:
        client = await Client.connect(harness.port, "alice")
        for packet_id in (1, 2):
            client.send(Subscribe(packet_id, [Subscription("a", 1)]))
            suback = await client.expect(Suback)
            assert suback.reason_codes == [GRANTED[1]]
            assert suback.properties == {"reason_string": UNREACHED}
    assert caplog.messages.count("other sites do not confirm a subscription") == 1


async def test_a_filter_subscribed_again_at_once_waits_for_the_router_too() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.router.pause_routes()
        client.send(Subscribe(1, [Subscription("a", 1)]), Subscribe(2, [Subscription("a", 2)]))
        await client.expect_nothing()
        harness.router.resume_routes()
        assert await client.expect(Suback) == Suback(1, [GRANTED[1]])
        assert await client.expect(Suback) == Suback(2, [GRANTED[2]])


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("", "a#", "#/a", "a+/b", "a/#/b"),
        *("$share/g", "$share//a", "$share/g/", "$share/+/a", "$share/g/a\n$share/v/b"),
    ],
)
@LEVELS
async def test_a_malformed_filter_ends_the_connection(level: int, topic_filter: str) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Subscribe(1, [Subscription("good", 1), Subscription(topic_filter, 1)]))
        await client.expect_disconnect(DisconnectReasonCode.TOPIC_FILTER_INVALID)
        assert len(harness.gateway.subscriptions) == 0
        assert len(harness.log.records(ROUTES)) == PARTITIONS, "those of retained messages"


async def test_a_malformed_filter_in_unsubscribe_ends_the_connection() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Unsubscribe(1, ["a/#/b"]))
        await client.expect_disconnect(DisconnectReasonCode.TOPIC_FILTER_INVALID)


@LEVELS
async def test_publish_right_behind_subscribe_is_delivered_to_its_own_connection(
    level: int,
) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, level)
        client.send(
            Connect("alice", level),
            Subscribe(1, [Subscription("a/+", 1)]),
            *(Publish(f"a/{number}", b"%d" % number) for number in range(50)),
        )
        await client.expect(Connack)
        packets = [await client.receive() for _ in range(51)]
        # Messages may come before SUBACK. (5.0: 3.8.4)
        assert sum(isinstance(packet, Suback) for packet in packets) == 1
        payloads = [packet.payload for packet in packets if isinstance(packet, Publish)]
        assert sorted(int(payload) for payload in payloads) == list(range(50))


async def test_publish_behind_a_subscription_that_needs_no_round_is_delivered() -> None:
    async with running_gateway() as harness:
        first = await Client.connect(harness.port, "first")
        await first.subscribe("a")
        second = await Client.connect(harness.port, "second")
        second.send(Subscribe(1, [Subscription("a")]), Publish("a", b"x"))
        await second.expect(Suback)
        assert await second.payloads(1) == [b"x"]
        assert await first.payloads(1) == [b"x"]


async def test_a_message_from_before_a_subscription_is_not_delivered_to_it() -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    async with running_gateway(log=log, router=router) as harness:
        first = await Client.connect(harness.port, "first")
        await first.subscribe("a")
        router.pause()
        await first.publish("a", b"early", 1)
        second = await Client.connect(harness.port, "second")
        await second.subscribe("a")
        await first.publish("a", b"late", 1)
        router.resume()
        assert await first.payloads(2) == [b"early", b"late"]
        assert await second.payloads(1) == [b"late"]
        await second.expect_nothing()
    await router.close()


async def test_a_subscription_is_replaced_without_a_gap() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 2, identifier=1)
        await client.subscribe("a", 0, identifier=2)
        assert len(harness.gateway.subscriptions) == 1
        assert len(harness.log.records(ROUTES)) == PARTITIONS + 1
        await client.publish("a", b"x")
        message = await client.message()
        assert message.qos == 0
        assert message.properties["subscription_identifier"] == [2]
        await client.expect_nothing()


async def test_a_filter_twice_in_one_subscribe_is_one_subscription() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Subscribe(1, [Subscription("a", 0), Subscription("a", 1)]))
        assert await client.expect(Suback) == Suback(1, GRANTED[:2])
        client.send(Publish("a", b"x", 1, packet_id=5))
        assert [type(await client.receive()) for _ in range(2)]
        assert len(harness.gateway.subscriptions) == 1


@LEVELS
async def test_unsubscribe_ends_delivery(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        await client.subscribe("a", 1)
        client.send(Unsubscribe(7, ["a", "never"]))
        codes = [UnsubackReasonCode.SUCCESS, UnsubackReasonCode.NO_SUBSCRIPTION_EXISTED]
        assert await client.expect(Unsuback) == Unsuback(7, codes if level == 5 else [])
        await client.publish("a", b"x", 1)
        await client.expect_nothing()
        assert len(harness.gateway.subscriptions) == 0


async def test_subscriptions_whose_routes_the_log_refuses_fail() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("held", 1)
        harness.log.fail_next(LogError("no", definite=True), log_topic=ROUTES)
        client.send(Subscribe(5, [Subscription("held", 2), Subscription("new", 1)]))
        expected = Suback(5, [GRANTED[2], SubackReasonCode.UNSPECIFIED_ERROR])
        assert await client.expect(Suback) == expected
        assert len(harness.gateway.subscriptions) == 1
        await client.subscribe("new", 1)
        await client.publish("new", b"x")
        assert await client.payloads(1) == [b"x"]


async def test_a_client_that_leaves_before_its_subscription_counts_leaves_nothing() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("b")
        harness.log.hold_reports()
        client.send(Subscribe(2, [Subscription("a", 1)]))
        await until(lambda: harness.writer.queued())
        # A held connection is not read, so its end is seen only when another takes over.
        other = await Client.connect(harness.port, "alice")
        harness.log.release_reports()
        await until(lambda: harness.gateway.routes.oldest_wait_seconds == 0)
        await other.subscribe("a")
        assert len(harness.gateway.subscriptions) == 1


@pytest.mark.parametrize("failing", [False, True])
async def test_a_client_that_leaves_before_its_subscription_fails_leaves_nothing(
    failing: bool,
) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.log.hold_reports()
        client.send(Subscribe(2, [Subscription("$share/g/a", 1)]))
        await until(lambda: harness.writer.queued())
        other = await Client.connect(harness.port, "alice")
        if failing:
            harness.log.fail_next(LogError("no", definite=True), log_topic=SESSIONS)
        harness.log.release_reports()
        await until(lambda: len(harness.gateway.routes) == PARTITIONS)
        assert len(harness.gateway.subscriptions) == 0
        await other.subscribe("b")


@LEVELS
async def test_a_refused_topic_filter_gets_its_code_and_the_others_theirs(level: int) -> None:
    async with running_gateway(refused_topic_filters=("no/#",)) as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Subscribe(1, [Subscription("no/#", 2), Subscription("no/1", 1)]))
        assert await client.expect(Suback) == Suback(
            1, [SubackReasonCode.UNSPECIFIED_ERROR, SubackReasonCode.GRANTED_QOS_1]
        )
        client.send(Subscribe(2, [Subscription("no/#", 2)]))
        assert await client.expect(Suback) == Suback(2, [SubackReasonCode.UNSPECIFIED_ERROR])
        await client.publish("no/2", b"unheard")
        await client.publish("no/1", b"heard")
        assert (await client.message()).payload == b"heard"
