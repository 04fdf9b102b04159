"""Sessions survive their gateway: killed, started again, or left for another one."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest

from ingest.gateway.history.catching_up import CatchingUp
from ingest.gateway.log.lease import SILENT_SECONDS
from ingest.gateway.peers.peers import GRACE_SECONDS
from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
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
    Will,
)
from ingest.protocol.properties import Properties
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    PubackReasonCode,
    PubrecReasonCode,
)
from mqlake.clock import ManualClock
from mqlake.errors import LogError, OperationalError
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import (
    HEADER_SOURCE,
    INBOUND,
    SESSIONS,
    Source,
    delivery_topic,
    encode_source,
    message_key,
)
from mqlake.records.sessions import decode_session, encode_session, session_key
from mqlake.records.shards import shard_of, stamp_headers
from tests.ingest.gateway.harness import (
    PARTITIONS,
    SHARDS,
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    stored_session,
    until,
)

pytestmark = pytest.mark.anyio

NEVER: Properties = {"session_expiry_interval": 0xFFFF_FFFF}
FIRST, SECOND = "gateway-1", "gateway-2"
LEASE_SECONDS = 10.0


class Serving:
    """A gateway that runs until it is closed."""

    def __init__(self, stack: contextlib.AsyncExitStack, harness: Harness) -> None:
        self._stack = stack
        self.harness = harness

    async def close(self) -> None:
        await self._stack.aclose()


async def serve_until_asked(log: MemoryLog, router: MemoryRouter, clock: ManualClock) -> Serving:
    stack = contextlib.AsyncExitStack()
    harness = await stack.enter_async_context(running_gateway(log=log, router=router, clock=clock))
    return Serving(stack, harness)


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[tuple[MemoryLog, MemoryRouter]]:
    """A log and a router that outlive the gateways."""
    log = new_log(FIRST, SECOND)
    router = MemoryRouter(log)
    await router.start()
    try:
        yield log, router
    finally:
        await router.close()


async def resume(harness: Harness, level: int = 5, **fields: object) -> tuple[Client, Connack]:
    client = await Client.open(harness.port, level)
    fields.setdefault("properties", NEVER if level == 5 else {})
    return client, await client.handshake("alice", clean_start=False, **fields)


@contextlib.contextmanager
def reading_nothing(harness: Harness) -> Iterator[None]:
    """Have a gateway read nothing of the log."""
    for reader in harness.readers:
        reader.pause()
    try:
        yield
    finally:
        for reader in harness.readers:
            reader.resume()


@contextlib.contextmanager
def paused(harness: Harness) -> Iterator[None]:
    """Have a gateway neither speak, nor read, nor notice time, as a process that was stopped."""
    with reading_nothing(harness):
        harness.log.hold_reports_of(harness.writer)
        try:
            yield
        finally:
            harness.log.release_reports()


async def seconds_pass(clock: ManualClock, *living: Harness) -> None:
    """Let a second pass in which the living hear each other."""
    clock.advance(1)
    for one in living:
        one.process.send_heartbeat()
    await until(lambda: all(one.gateway.peers.is_heard for one in living))
    for one in living:
        one.gateway.shards.tick()


async def publish(harness: Harness, *payloads: bytes, qos: int = 1) -> None:
    publisher = await Client.connect(harness.port, "publisher")
    for payload in payloads:
        await publisher.publish("a/b", payload, qos)
    await publisher.disconnect()
    await harness.delivered()


async def die_out(
    clock: ManualClock, *living: Harness, seconds: float = LEASE_SECONDS + GRACE_SECONDS
) -> None:
    """Let the time pass after which who has said nothing is dead; the living hear each other."""
    for _ in range(round(seconds) + 1):
        await seconds_pass(clock, *living)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_session_survives_its_gateway(killed: bool) -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/#", 1, identifier=7)
            await publish(harness, b"1", b"2")
            first = await client.expect(Publish)
            await client.expect(Publish)
            client.send(Puback(first.packet_id))
            await client.expect_nothing()
            if killed:
                await harness.saved()
                await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            await publish(harness, b"3")
            client, connack = await resume(harness)
            assert connack.session_present
            again = await client.expect(Publish)
            assert (again.payload, again.dup, again.packet_id) == (b"2", True, 2)
            assert again.properties == {"subscription_identifier": [7]}
            assert (await client.expect(Publish)).payload == b"3"
            await client.expect_nothing()


async def test_what_the_log_removed_before_the_gateway_read_it_comes_after_all() -> None:
    """A client of a gateway that is too far behind gets it as if it had been away."""
    async with site() as (log, router), running_gateway(log=log, router=router) as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/#", 1)
        await publish(harness, b"1")
        assert await client.payloads(1) == [b"1"]
        router.pause()
        publisher = await Client.connect(harness.port, "publisher")
        for payload in (b"2", b"3"):
            await publisher.publish("a/b", payload, 1)
        log_topic = delivery_topic(FIRST)
        for gone, record in zip((True, False), harness.inbound()[-2:], strict=True):
            source = Source(record.partition, record.offset, record.timestamp_ms)
            headers = [*record.headers, (HEADER_SOURCE, encode_source(source))]
            harness.deliver(record.key or b"", record.value or b"", headers)
            if gone:
                log.remove_before(log_topic, 0, log.partitions(log_topic)[0].end)
        assert await client.payloads(2) == [b"2", b"3"]
        router.resume()
        await publish(harness, b"4")
        assert await client.payloads(1) == [b"4"]
        await client.expect_nothing()


@pytest.mark.parametrize("is_acknowledged", [True, False], ids=["all had", "one in flight"])
async def test_a_session_that_knows_more_than_the_log_goes_on_and_is_told(
    is_acknowledged: bool,
) -> None:
    """The log has lost its end: its offsets are given to other messages now."""
    async with site() as (log, router), running_gateway(log=log, router=router) as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/#", 1)
        await publish(harness, *(b"%d" % number for number in range(50)))
        for _ in range(50):
            message = await client.expect(Publish)
            if is_acknowledged or message.payload != b"49":
                client.send(Puback(message.packet_id))
        await client.expect_nothing()
    for entry in log.partitions(INBOUND):
        entry.records.clear()
        entry.begin = entry.end = 0
    router = MemoryRouter(log)
    await router.start()
    try:
        async with running_gateway(log=log, router=router) as harness:
            client, connack = await resume(harness)
            assert connack.session_present
            await publish(harness, b"new")
            assert await client.payloads(1) == [b"new"]
            await client.expect_nothing()
            assert harness.counters.dropped_unreadable == 1 + (not is_acknowledged)
    finally:
        await router.close()


async def test_messages_of_the_time_without_any_gateway_come() -> None:
    """Another gateway of the site takes messages while nobody holds the session."""
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", 1)
            await harness.saved()
            await harness.kill()
        async with running_gateway(log=log, router=router, name=SECOND) as other:
            await publish(other, b"1", b"2")
        async with running_gateway(log=log, router=router) as harness:
            client, connack = await resume(harness)
            assert connack.session_present
            assert await client.payloads(2) == [b"1", b"2"]
            await client.expect_nothing()


async def test_a_client_takes_its_session_to_another_gateway() -> None:
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        old, _ = await resume(first)
        await old.subscribe("a/b", 1)
        await publish(second, b"1")
        sent = await old.expect(Publish)
        new = await Client.open(second.port)
        connack = await new.handshake("alice", clean_start=False, properties=NEVER)
        assert connack.session_present
        await old.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        again = await new.expect(Publish)
        assert (again.payload, again.dup, again.packet_id) == (b"1", True, sent.packet_id)
        new.send(Puback(again.packet_id))
        await publish(first, b"2")
        assert await new.payloads(1) == [b"2"]
        await new.expect_nothing()
        assert first.gateway.sessions.connected_count == 0


async def test_a_client_without_a_session_is_taken_over_too() -> None:
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        await until(lambda: first.gateway.peers.are_there and second.gateway.peers.are_there)
        old = await Client.connect(first.port, "alice")
        new = await Client.connect(second.port, "alice")
        await old.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        await new.expect_nothing()


async def test_many_takeovers_at_once_leave_one_connection() -> None:
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        clients = []
        for number in range(20):
            client = await Client.open((first, second)[number % 2].port)
            client.send(Connect("alice", 5, clean_start=False, properties=NEVER))
            clients.append(client)
        sessions = (first.gateway.sessions, second.gateway.sessions)
        await until(lambda: sorted(one.is_idle for one in sessions) == [False, True])
        await until(lambda: sum(one.connected_count for one in sessions) == 1)
        await first.delivered()
        assert sum(one.connected_count for one in sessions) == 1


@pytest.mark.parametrize(
    ("is_seen", "seconds"),
    [(True, SILENT_SECONDS), (False, LEASE_SECONDS + GRACE_SECONDS)],
    ids=["on this machine", "elsewhere"],
)
async def test_the_session_of_a_gateway_that_has_died_is_found(
    is_seen: bool, seconds: float
) -> None:
    clock = ManualClock()
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
    ):
        async with running_gateway(log=log, router=router, name=FIRST, clock=clock) as first:
            await until(lambda: second.gateway.peers.are_there)
            client, _ = await resume(first)
            await client.subscribe("a/b", 1)
            await publish(first, b"1")
            await client.expect(Publish)
            await first.saved()
            await first.kill()
            if not is_seen:
                first.host.hide()
        new = await Client.open(second.port)
        new.send(Connect("alice", 5, clean_start=False, properties=NEVER))
        await die_out(clock, second, seconds=seconds)
        assert (await new.expect(Connack)).session_present
        assert (await new.message()).dup


async def test_the_will_of_a_dead_gateway_is_published_once() -> None:
    clock = ManualClock()
    async with site() as (log, router):
        async with (
            running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
            running_gateway(log=log, router=router, name="gateway-3", clock=clock) as third,
        ):
            async with running_gateway(log=log, router=router, name=FIRST, clock=clock) as first:
                await until(lambda: second.gateway.peers.are_there)
                await Client.connect(first.port, "alice", will=Will("will", b"gone", 1))
                await first.saved()
                await first.kill()
            await second.delivered()
            assert second.inbound() == []
            await die_out(clock, second, third)
            await until(second.inbound)
            await second.delivered()
            await third.delivered()
            assert [record.value for record in second.inbound()] == [b"gone"]
        async with running_gateway(log=log, router=router, name=FIRST, clock=clock) as first:
            await first.delivered()
            assert len(first.inbound()) == 1


async def test_nobody_is_dead_because_the_log_was_away() -> None:
    clock = ManualClock()
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST, clock=clock) as first,
        running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
    ):
        both = (first.gateway, second.gateway)
        await until(lambda: all(one.peers.are_there for one in both))
        client, _ = await resume(first)
        await first.saved()
        log.hold_reports()
        clock.advance(10 * LEASE_SECONDS)
        assert all(one.peers.are_there for one in both)
        log.release_reports()
        await until(lambda: all(one.peers.is_heard for one in both))
        assert all(one.peers.are_there for one in both)
        await until(lambda: all(one.lease.holds() for one in both))
        await client.expect_nothing()
        await until(lambda: (one := stored_session(first, second)) is not None and one.connected)


async def test_what_another_wrote_of_our_session_does_not_count_and_is_written_again() -> None:
    """A gateway that held the session once was paused, and goes on writing."""
    async with site() as (log, router), running_gateway(log=log, router=router) as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await harness.saved()
        before = stored_session(harness)
        assert before is not None
        shard = shard_of("default", "alice", len(log.partitions(SESSIONS)))
        stale = replace(before, connected=False, disconnected_at_ms=1, subscriptions=[])
        key, headers = session_key("default", "alice"), stamp_headers("before", 0)
        log.store(SESSIONS, key, encode_session(stale), headers, 0, shard)
        await until(lambda: log.partitions(SESSIONS)[shard].records[-1].headers != headers)
        last = next(
            one for one in reversed(log.partitions(SESSIONS)[shard].records) if one.key == key
        )
        assert last.value is not None
        assert decode_session(last.value).connected
        await publish(harness, b"1")
        assert await client.payloads(1) == [b"1"]


async def test_a_gateway_that_was_paused_for_less_than_its_lease_loses_nothing() -> None:
    clock = ManualClock()
    will = Will("will", b"gone", 1)
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
        running_gateway(log=log, router=router, name=FIRST, clock=clock) as first,
    ):
        await until(lambda: second.gateway.peers.are_there and first.gateway.shards.is_settled)
        client, _ = await resume(first, will=will)
        await client.subscribe("a/b", 1)
        with paused(first):
            for _ in range(9):
                await seconds_pass(clock, second)
            assert set(second.gateway.shards.owned) == set(range(SHARDS))
        await until(lambda: first.gateway.shards.is_settled)
        await publish(second, b"1")
        assert await client.payloads(1) == [b"1"]
        await client.expect_nothing()
        assert [record.value for record in second.inbound()] == [b"1"]


async def test_a_gateway_that_was_deaf_for_longer_than_its_lease_lets_go_of_what_others_took() -> (
    None
):
    clock = ManualClock()
    will = Will("will", b"gone", 1)
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
        running_gateway(log=log, router=router, name=FIRST, clock=clock) as first,
    ):
        await until(lambda: second.gateway.peers.are_there and first.gateway.shards.is_settled)
        client, _ = await resume(first, will=will)
        await client.subscribe("a/b", 1)
        await first.saved()
        with paused(first):
            for _ in range(13):
                await seconds_pass(clock, second)
            await until(second.inbound)
            await publish(second, b"1")
        await client.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        assert [record.value for record in second.inbound()] == [b"gone", b"1"]
        client, connack = await resume(first)
        assert connack.session_present
        assert await client.payloads(1) == [b"1"]
        await client.expect_nothing()


async def test_a_second_gateway_of_a_name_refuses_to_start() -> None:
    async with site() as (log, router), running_gateway(log=log, router=router) as harness:
        with pytest.raises(OperationalError, match="another gateway named gateway-1 is running"):
            async with running_gateway(log=log, router=router):
                pass
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/b", 1)
        await publish(harness, b"1")
        assert await client.payloads(1) == [b"1"]


async def test_a_gateway_ends_when_another_has_its_name() -> None:
    """It was paused for longer than its lease, and somebody has started another meanwhile."""
    clock = ManualClock()
    async with site() as (log, router):
        with contextlib.suppress(OperationalError):
            async with running_gateway(log=log, router=router, clock=clock) as first:
                client, _ = await resume(first)
                with paused(first):
                    starting = asyncio.create_task(serve_until_asked(log, router, clock))
                    while not starting.done() and clock.monotonic() < 60:
                        clock.advance(1)
                        await asyncio.sleep(0.05)
                    second = await starting
                try:
                    await client.expect_disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN)
                    with pytest.raises(OperationalError, match="has started"):
                        await first.task
                    _, connack = await resume(second.harness)
                    assert connack.session_present
                finally:
                    await second.close()


async def test_a_gateway_whose_store_fails_ends_and_its_next_run_knows_everything() -> None:
    async with site() as (log, router):
        with contextlib.suppress(OperationalError):
            async with running_gateway(log=log, router=router) as harness:
                client, _ = await resume(harness)
                await client.subscribe("a/b", 1)
                await harness.saved()

                def fail(_sql: str, _values: object = ()) -> int:
                    raise OperationalError("the gateway's store: database or disk is full")

                harness.gateway.database.write = fail  # type: ignore[method-assign, assignment]
                other = await Client.open(harness.port)
                other.send(Connect("bob", 5, clean_start=False, properties=NEVER))
                with pytest.raises(OperationalError, match="disk is full"):
                    await harness.task
                harness.host.kill()
        async with running_gateway(log=log, router=router) as harness:
            await publish(harness, b"1")
            client, connack = await resume(harness)
            assert connack.session_present
            assert await client.payloads(1) == [b"1"]


async def test_a_store_that_fails_in_a_tick_ends_the_gateway_like_any_other_failure() -> None:
    async with site() as (log, router):
        with contextlib.suppress(OperationalError):
            async with running_gateway(log=log, router=router) as harness:
                client, _ = await resume(harness)

                def fail() -> None:
                    raise OperationalError("the gateway's store: database or disk is full")

                harness.gateway.retained.purge = fail  # type: ignore[method-assign]
                await client.expect_disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN)
                with pytest.raises(OperationalError, match="disk is full"):
                    await harness.task


async def test_a_gateway_that_ends_keeps_no_client_that_connects_just_then() -> None:
    async with site() as (log, router):
        with contextlib.suppress(OperationalError):
            # None is cut because its time for CONNECT is over.
            async with running_gateway(
                log=log, router=router, connect_timeout_seconds=300
            ) as harness:
                await Client.connect(harness.port, "alice")
                late = [socket.create_connection(("127.0.0.1", harness.port)) for _ in range(3)]
                harness.gateway.ending.fail(OperationalError("the store is full"))
                with pytest.raises(OperationalError, match="the store is full"):
                    await harness.task
                await until(lambda: not harness.gateway.connections)
                for one in late:
                    one.close()


async def test_a_delayed_will_waits_for_its_time_after_a_crash() -> None:
    clock = ManualClock()
    will = Will("will", b"gone", 1, properties={"will_delay_interval": 10})
    async with site() as (log, router):
        async with running_gateway(log=log, router=router, clock=clock) as harness:
            await resume(harness, will=will)
            await harness.saved()
            await harness.kill()
        async with running_gateway(log=log, router=router, clock=clock) as harness:
            clock.advance(9)
            harness.gateway.shards.tick()
            await harness.delivered()
            assert harness.inbound() == []
            clock.advance(1)
            await until(harness.inbound)
            assert [record.value for record in harness.inbound()] == [b"gone"]


async def test_a_session_expires_while_everything_is_down() -> None:
    clock = ManualClock()
    async with site() as (log, router):
        async with running_gateway(log=log, router=router, clock=clock) as harness:
            client, _ = await resume(harness, properties={"session_expiry_interval": 60})
            await client.disconnect()
        clock.advance(61)
        async with running_gateway(log=log, router=router, clock=clock) as harness:
            _, connack = await resume(harness)
            assert not connack.session_present
            await until(lambda: len(harness.gateway.sessions) == 1)


async def test_qos_2_to_a_client_is_exactly_once_across_a_crash() -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", 2)
            await publish(harness, b"1", b"2", b"3", qos=2)
            received = [await client.expect(Publish) for _ in range(3)]
            client.send(Pubrec(received[0].packet_id), Pubrec(received[1].packet_id))
            await client.expect(Pubrel)
            await client.expect(Pubrel)
            client.send(Pubcomp(received[0].packet_id))
            await client.expect_nothing()
            await harness.saved()
            await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client, connack = await resume(harness)
            assert connack.session_present
            assert await client.expect(Pubrel) == Pubrel(received[1].packet_id)
            again = await client.expect(Publish)
            assert (again.payload, again.packet_id, again.dup) == (
                b"3",
                received[2].packet_id,
                True,
            )
            await client.expect_nothing()


@pytest.mark.parametrize("is_appended", [False, True])
async def test_qos_2_from_a_client_is_exactly_once_across_a_crash(is_appended: bool) -> None:
    """The crash comes after the log has the message and before anybody knows, or just before."""
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            if not is_appended:
                harness.gateway.publisher.publish = lambda *_: None  # type: ignore[method-assign]
            client.send(Publish("a/b", b"once", 2, packet_id=7))
            if is_appended:
                await until(harness.inbound)
            else:
                await until(lambda: harness.counters.messages_received)
                await harness.saved()
            await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client, connack = await resume(harness)
            assert connack.session_present
            client.send(Publish("a/b", b"once", 2, dup=True, packet_id=7))
            assert await client.expect(Pubrec) == Pubrec(7)
            client.send(Pubrel(7))
            assert await client.expect(Pubcomp) == Pubcomp(7)
            client.send(Publish("a/b", b"twice", 2, packet_id=7))
            assert await client.expect(Pubrec) == Pubrec(7)
            assert [record.value for record in harness.inbound()] == [b"once", b"twice"]


async def test_an_old_message_under_the_same_identifier_is_not_taken_for_a_new_one() -> None:
    """The old one was published at another gateway, and this one has not heard how far that was."""
    async with site() as (log, router), running_gateway(log=log, router=router, name=FIRST) as one:
        async with running_gateway(log=log, router=router, name=SECOND) as other:
            client, _ = await resume(one)
            client.send(Publish("a/b", b"old", 2, packet_id=7))
            await client.expect(Pubrec)
            client.send(Pubrel(7))
            await client.expect(Pubcomp)
            client, _ = await resume(other)
            other.gateway.publisher.publish = lambda *_: None  # type: ignore[method-assign]
            client.send(Publish("a/b", b"new", 2, packet_id=7))
            await until(lambda: other.counters.messages_received)
            await other.saved()
            await other.kill()
        async with running_gateway(log=log, router=router, name=SECOND) as other:
            client, connack = await resume(other)
            assert connack.session_present
            client.send(Publish("a/b", b"new", 2, dup=True, packet_id=7))
            assert await client.expect(Pubrec) == Pubrec(7)
            assert [record.value for record in other.inbound()] == [b"old", b"new"]


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_qos_2_message_that_the_log_did_not_answer_for_is_looked_for(
    is_there: bool, level: int
) -> None:
    error = LogError("timed out", definite=False)
    async with running_gateway() as harness:
        client, _ = await resume(harness, level)
        if is_there:
            await harness.saved()
            log_fails(harness, error)
        else:
            harness.gateway.publisher.publish = lambda *rest: rest[-1](-1, -1, error)  # type: ignore[method-assign]
        client.send(Publish("a/b", b"once", 2, packet_id=7))
        if is_there:
            assert await client.expect(Pubrec) == Pubrec(7)
            client.send(Publish("a/b", b"once", 2, dup=True, packet_id=7))
            assert await client.expect(Pubrec) == Pubrec(7)
            assert len(harness.inbound()) == 1
        elif level == 5:
            answer = await client.expect(Pubrec)
            assert answer.reason_code is PubrecReasonCode.QUOTA_EXCEEDED
        else:
            assert await client.is_closed()


def log_fails(harness: Harness, error: LogError) -> None:
    """Have the log take the next message of a client, and not say so."""
    publish = harness.gateway.publisher.publish

    def publish_once(*arguments: object) -> None:
        harness.gateway.publisher.publish = publish  # type: ignore[method-assign]
        harness.log.fail_next(error, log_topic=INBOUND)
        publish(*arguments)  # type: ignore[arg-type]

    harness.gateway.publisher.publish = publish_once  # type: ignore[method-assign, assignment]


async def test_what_was_acknowledged_long_ago_does_not_come_again_after_a_crash() -> None:
    """The marks of the gateway move the cursor of a session that has been idle."""
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", 1)
            await publish(harness, b"1")
            await client.message()
            await client.expect_nothing()
            await harness.saved()
            await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.expect_nothing()


async def test_a_crash_while_a_session_comes_back_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", 1)
            await client.disconnect()
            await publish(harness, b"1", b"2")

            async def never(*_: object) -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr(CatchingUp, "read", never)
            _, connack = await resume(harness)
            assert connack.session_present
            other = await Client.connect(harness.port, "other")
            await other.subscribe("a/b", 0)
            await publish(harness, b"3")
            await harness.saved()
            await harness.kill()
            monkeypatch.undo()
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            assert await client.payloads(3) == [b"1", b"2", b"3"]


async def test_retained_messages_survive_the_gateway() -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            publisher = await Client.connect(harness.port, "publisher")
            for topic, payload in (("a/1", b"x"), ("a/2", b"y"), ("a/1", b"z"), ("a/3", b"x")):
                await publisher.publish(topic, payload, 1, retain=True)
            await publisher.publish("a/3", b"", 1, retain=True)
            await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client = await Client.connect(harness.port, "bob")
            await client.subscribe("a/+", 1)
            assert await client.payloads(2) == [b"z", b"y"]
            await client.expect_nothing()


@pytest.mark.parametrize("window", [1000, 20])
async def test_resumes_while_messages_flow_lose_and_double_nothing(window: int) -> None:
    """With a small window most of what was read still waits when the client goes again."""
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, max_inflight_messages=window) as harness,
    ):
        publisher = await Client.connect(harness.port, "publisher")
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        received: list[bytes] = []
        sent = 0
        for round_ in range(10):
            for _ in range(50):
                sent += 1
                publisher.send(Publish("a/b", b"%d" % sent, 1, packet_id=sent))
            received.extend(await client.payloads(20))
            if round_ % 2:
                client.send(Disconnect())
                await client.expect_end()
            else:
                await client.expect_answered()
                client.cut()
            client, _ = await resume(harness)
        while len(received) < sent:
            received.append((await client.message()).payload)
        assert received == [b"%d" % number for number in range(1, sent + 1)]
        await client.expect_nothing()


async def test_what_another_gateway_has_acknowledged_before_is_not_for_a_new_subscriber() -> None:
    """Also when the filter is routed here already, for somebody else."""
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        early = await Client.connect(first.port, "early")
        await early.subscribe("a/b", 1)
        router.pause()
        publisher = await Client.connect(second.port, "publisher")
        await publisher.publish("a/b", b"before", 1)
        late = await Client.connect(first.port, "late")
        await late.subscribe("a/b", 1)  # the filter is routed: it need not wait for the router
        await publisher.publish("a/b", b"after", 1)
        router.resume()
        assert await late.payloads(1) == [b"after"]
        assert await early.payloads(2) == [b"before", b"after"]


async def take_all(client: Client, is_enough: Callable[[list[Publish]], bool]) -> list[Publish]:
    """Take messages and end their exchanges, those of an earlier connection too."""
    taken: list[Publish] = []
    while not is_enough(taken):
        packet = await client.receive()
        if isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
            continue
        assert isinstance(packet, Publish), packet
        taken.append(packet)
        client.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
    return taken


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_what_is_retained_goes_on_at_another_gateway_where_it_stopped(
    killed: bool, qos: int
) -> None:
    few: Properties = {**NEVER, "receive_maximum": 2}
    topics = [f"a/{number:03}" for number in range(30)]
    async with site() as (log, router):
        async with running_gateway(log=log, router=router, lease_seconds=2) as harness:
            shard_of = harness.writer.partition_of
            # Those that come last: shard by shard.
            changed = sorted(
                topics,
                key=lambda one: (shard_of(message_key("default", one), PARTITIONS), one),
            )[-5:]
            publisher = await Client.connect(harness.port, "publisher")
            for topic in topics:
                await publisher.publish(topic, b"old", qos, retain=True)
            await harness.delivered()
            client, _ = await resume(harness, properties=few)
            client.send(Subscribe(1, [Subscription("a/#", qos)]))
            await client.expect(Suback)
            taken = await take_all(client, lambda taken: len(taken) == 10)
            assert all(message.retain for message in taken)
            await harness.saved()
            if killed:
                await harness.kill()
        async with running_gateway(log=log, router=router, name=SECOND, lease_seconds=2) as harness:
            publisher = await Client.connect(harness.port, "publisher")
            for topic in changed:
                await publisher.publish(topic, b"new", qos, retain=True)
            await harness.delivered()
            client, connack = await resume(harness, properties=few)
            assert connack.session_present
            taken += await take_all(
                client,
                lambda more: (
                    sum(one.payload == b"new" for one in more) == 5
                    and len({one.topic_name for one in taken + more}) == 30
                ),
            )
            seen: set[tuple[str, bytes]] = set()
            for message in taken:  # what was on its way comes again, and says so
                assert message.dup or (message.topic_name, message.payload) not in seen
                seen.add((message.topic_name, message.payload))
            assert seen == {(topic, b"new" if topic in changed else b"old") for topic in topics}
            await client.expect_answered()
            await harness.saved()
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness, properties=few)
            client.send(Pingreq())
            while not isinstance(packet := await client.receive(), Pingresp):
                assert isinstance(packet, Pubrel)


async def test_what_was_asked_before_another_silence_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        lease, renewal = harness.gateway.lease, harness.gateway.renewal
        answered: list[Callable[[], None]] = []
        monkeypatch.setattr(harness.gateway.sessions, "confirm", answered.append)
        for asked in (1, 2):
            clock.advance(2 * LEASE_SECONDS)
            assert not lease.holds()
            lease.renew(clock.monotonic(), clock.now_ms())
            if asked == 2:
                answered[0]()  # by an owner that has settled this gateway since
                assert not lease.holds()
            renewal.tick()
            assert len(answered) == asked
        answered[1]()
        assert lease.holds()


async def test_a_gateway_that_was_frozen_answers_when_its_sessions_are_confirmed() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.open(harness.port)
        await client.handshake("alice", properties={"session_expiry_interval": 600})
        lease = harness.gateway.lease
        asked: list[bool] = []
        confirm = harness.gateway.sessions.confirm

        def ask(on_confirmed: Callable[[], None]) -> None:
            asked.append(lease.holds())
            confirm(on_confirmed)

        harness.gateway.sessions.confirm = ask  # type: ignore[method-assign]
        harness.log.now_ms = lambda: clock.now_ms() + 13_000  # the log's clock has gone on
        assert lease.may_deliver()  # and nothing here tells
        client.send(Subscribe(1, [Subscription("a", 1)]))
        await client.expect(Suback)
        assert asked == [False]
        assert (lease.silences, lease.doubts) == (1, 1)
        client.send(Publish("a", b"1", 0))
        assert await client.payloads(1) == [b"1"]


@pytest.mark.parametrize("what", ["suspended", "not heard of"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publisher_has_no_answer_while_others_may_have_its_session(
    what: str, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its will may have been published: it is not served behind that."""
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.open(harness.port)
        await client.handshake("alice", will=Will("will", b"", 0))
        lease = harness.gateway.lease
        answered: list[Callable[[], None]] = []
        monkeypatch.setattr(harness.gateway.sessions, "confirm", answered.append)
        if what == "suspended":
            clock.step_calendar(13_000)  # the log's has gone on, and ours has not
        else:
            clock.advance(2 * LEASE_SECONDS)
        client.send(Publish("a", b"1", qos, packet_id=1), Publish("a", b"2", qos, packet_id=2))

        def are_stored() -> bool:
            return {one.value for one in harness.log.records(INBOUND)} >= {b"1", b"2"}

        await until(lambda: are_stored() and answered)
        await client.expect_nothing()
        assert not lease.holds()
        answered[-1]()
        for packet_id in (1, 2):
            if qos == 1:
                assert (await client.expect(Puback)).packet_id == packet_id
            else:
                assert (await client.expect(Pubrec)).packet_id == packet_id


async def test_a_publisher_hears_at_once_that_the_log_does_not_take_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log that is away for longer than the lease is not to be waited for."""
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.connect(harness.port, "alice")
        monkeypatch.setattr(harness.gateway.sessions, "confirm", lambda _: None)
        clock.advance(2 * LEASE_SECONDS)
        harness.log.fail_next(LogError("away", definite=True), log_topic=INBOUND)
        client.send(Publish("a", b"1", 1, packet_id=1))
        assert (await client.expect(Puback)).reason_code is PubackReasonCode.QUOTA_EXCEEDED
