"""Leases, silence and names of gateways, over a log in memory and by a manual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ingest.gateway.log.lease import SILENT_SECONDS, SURE_SECONDS, Lease
from ingest.gateway.peers.peers import GRACE_SECONDS, HeartbeatLog, Peers
from mqlake.clock import ManualClock
from mqlake.errors import OperationalError
from mqlake.log.contract import DELIVERY_SECONDS
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter
from mqlake.records.gateway_heartbeat import GatewayHeartbeat
from mqlake.records.messages import INBOUND
from mqlake.records.shards import Run
from tests.ingest.gateway.harness import FakeHost, new_log, until

pytestmark = pytest.mark.anyio

LEASE_SECONDS = 10.0
ONE, TWO = Run("one", "1"), Run("two", "1")


class Gateway:
    """What a gateway says and hears."""

    def __init__(self, log: MemoryLog, clock: ManualClock, run: Run) -> None:
        self.run = run
        self.clock = clock
        self.lost = 0
        self.superseded = 0
        self.host = FakeHost()
        self.lease = Lease(clock, LEASE_SECONDS, self._lose)
        self.reader = MemoryLogReader(log)
        self.writer = MemoryLogWriter(log, max_queued_records=1)
        self.peers = Peers(
            HeartbeatLog(self.writer, MemoryLogWriter(log), self.reader),
            run,
            clock,
            self.lease,
            self.host,
            lambda _version: None,
            self._fail,
        )

    def _lose(self) -> None:
        self.lost += 1

    def _fail(self, failure: OperationalError) -> None:
        assert "has started" in str(failure)
        self.superseded += 1

    def fill(self) -> None:
        """Have a message wait for the log: its writer takes no more in this turn of the loop."""
        self.writer.append(INBOUND, b"t/a", b"", [], lambda *_: None)

    async def send_heartbeat(self, state: str = "serving") -> None:
        """Say that it is there, until it has heard that."""
        self.peers.send_heartbeat(GatewayHeartbeat(state=state))
        await until(lambda: self.peers.is_heard)


@asynccontextmanager
async def gateways(*runs: Run) -> AsyncIterator[tuple[ManualClock, MemoryLog, list[Gateway]]]:
    clock = ManualClock()
    log = new_log()
    log.now_ms = clock.now_ms
    found = [Gateway(log, clock, run) for run in runs]
    for one in found:
        await one.peers.open()
        await one.send_heartbeat()
    for one in found:
        clock.advance(0.5)
        await one.send_heartbeat()
    yield clock, log, found
    for one in found:
        await one.peers.close()


async def test_a_gateway_is_heard_while_messages_fill_the_log() -> None:
    async with gateways(ONE, TWO) as (clock, _, (one, two)):
        clock.advance(SILENT_SECONDS - 0.5)
        one.fill()
        await one.send_heartbeat()
        await two.send_heartbeat()
        clock.advance(SILENT_SECONDS - 0.5)
        await two.send_heartbeat()
        assert one.lease.is_in_time()
        assert not two.peers.is_silent(ONE)


async def test_a_gateway_that_cannot_write_is_not_certain_to_be_heard() -> None:
    async with gateways(ONE) as (clock, _, (one,)):
        clock.advance(SILENT_SECONDS)
        one.fill()
        await one.send_heartbeat()
        assert one.lease.is_heard()
        assert not one.lease.is_certain()
        clock.advance(0.5)
        await one.send_heartbeat()
        assert one.lease.is_certain()


async def test_a_gateway_that_leaves_is_gone_although_messages_fill_the_log() -> None:
    async with gateways(ONE, TWO) as (_, __, (one, two)):
        one.fill()
        one.peers.leave()
        await until(lambda: two.peers.is_dead(ONE))


async def test_a_gateway_is_silent_before_it_is_dead() -> None:
    async with gateways(ONE, TWO) as (clock, _, (one, _two)):
        assert one.peers.owners() == ["one", "two"]
        for passed in range(1, 13):
            clock.advance(1)
            await one.send_heartbeat()
            assert one.peers.is_silent(TWO) == (passed >= SILENT_SECONDS)
            assert one.peers.is_dead(TWO) == (passed >= LEASE_SECONDS + GRACE_SECONDS)
        assert one.peers.owners() == ["one"]


async def test_what_a_dead_gateway_had_handed_over_may_come_until_it_is_given_up() -> None:
    async with gateways(ONE, TWO) as (clock, _, (one, _)):
        while not one.peers.is_dead(TWO):
            assert not one.peers.is_spent(TWO)
            clock.advance(0.5)
            await one.send_heartbeat()
        dead_at = clock.monotonic()
        while not one.peers.is_spent(TWO):
            clock.advance(0.5)
            await one.send_heartbeat()
        assert clock.monotonic() - dead_at == pytest.approx(DELIVERY_SECONDS, abs=0.5)


async def test_a_process_that_has_certainly_ended_is_dead_when_it_is_silent() -> None:
    async with gateways(ONE, TWO) as (clock, _, (one, two)):
        two.host.kill()
        for passed in range(1, 12):
            clock.advance(1)
            await one.send_heartbeat()
            assert one.peers.is_dead(TWO) == (passed >= SILENT_SECONDS)
            assert one.peers.is_spent(TWO) == (passed >= LEASE_SECONDS + GRACE_SECONDS)


async def test_nobody_is_silent_while_the_log_is() -> None:
    async with gateways(ONE, TWO) as (clock, _, (one, two)):
        two.host.kill()
        clock.advance(5)
        assert not one.peers.is_dead(TWO)


async def test_who_has_left_is_dead_at_once() -> None:
    async with gateways(ONE, TWO) as (_, _, (one, two)):
        two.peers.leave()
        await until(lambda: one.peers.is_dead(TWO))
        assert one.peers.owners() == ["one"]


async def test_who_does_not_serve_owns_nothing_unless_nobody_does() -> None:
    async with gateways(ONE, TWO) as (clock, _, (one, two)):
        clock.advance(0.5)
        await two.send_heartbeat("draining")
        await until(lambda: one.peers.owners() == ["one"])
        await one.send_heartbeat("draining")
        assert one.peers.owners() == ["one", "two"]


async def test_a_lease_is_lost_once_and_counts_from_when_the_word_was_said() -> None:
    async with gateways(ONE) as (clock, _, (one,)):
        one.reader.pause()
        clock.advance(0.5)
        one.peers.send_heartbeat(GatewayHeartbeat(state="serving"))  # said now, heard later
        clock.advance(LEASE_SECONDS - 0.5)
        assert not one.lease.holds()
        assert one.lost == 1
        one.reader.resume()
        await until(one.lease.is_in_time)
        assert not one.lease.holds()  # what others have done is not known
        one.lease.confirm()
        assert one.lease.holds()
        clock.advance(0.5)
        assert not one.lease.holds()
        assert one.lost == 2


async def test_a_clock_is_judged_by_the_word_that_came_fastest() -> None:
    async with gateways(ONE) as (clock, log, (one,)):
        now_ms = clock.now_ms
        for delay_ms in (0, 300, 20):
            log.now_ms = lambda ms=delay_ms: now_ms() - 4_000 + ms  # type: ignore[misc]
            clock.advance(0.5)
            await one.send_heartbeat()
        assert one.peers.clock_ahead_seconds == 4.0


async def test_only_who_was_heard_lately_is_certain_to_be_heard() -> None:
    async with gateways(ONE) as (clock, _, (one,)):
        assert one.lease.is_certain()
        clock.advance(SILENT_SECONDS / 2)
        assert one.lease.holds()
        assert not one.lease.is_certain()


async def test_who_may_have_been_silent_is_not_sure_before_it_knows_what_others_have_done() -> None:
    async with gateways(ONE) as (clock, _, (one,)):
        clock.advance(SURE_SECONDS - 0.1)
        assert one.lease.may_deliver()
        clock.advance(0.1)
        assert one.lease.holds()
        assert not one.lease.may_deliver()
        await one.send_heartbeat()
        assert one.lease.is_heard()
        assert not one.lease.may_deliver()
        one.lease.assure()
        assert one.lease.may_deliver()


async def test_a_silence_that_nobody_looked_at_counts() -> None:
    async with gateways(ONE) as (clock, _, (one,)):
        clock.advance(SURE_SECONDS)
        await one.send_heartbeat()
        assert not one.lease.is_sure()


async def test_a_name_is_taken_from_who_is_gone_with_a_higher_epoch() -> None:
    async with gateways(ONE) as (clock, log, (one,)):
        one.host.kill()
        again = Gateway(log, clock, Run("one", "2"))
        await again.peers.open()
        assert again.peers.gateway_epoch == one.peers.gateway_epoch + 1
        clock.advance(0.5)
        await again.send_heartbeat()
        await until(lambda: one.superseded)
        one.peers.send_heartbeat(GatewayHeartbeat(state="serving"))
        clock.advance(0.5)
        await again.send_heartbeat()
        assert not again.superseded
        await again.peers.close()


async def test_a_name_is_not_taken_from_a_gateway_that_sends_heartbeats() -> None:
    async with gateways(ONE) as (clock, log, (one,)):
        again = Gateway(log, clock, Run("one", "2"))

        async def send_heartbeat() -> None:
            clock.advance(0.5)
            await one.send_heartbeat()

        read = again.reader.read_compacted

        async def read_later(log_topic: str, _timeout_seconds: float = 0) -> object:
            found = await read(log_topic)
            await send_heartbeat()
            return found

        again.reader.read_compacted = read_later  # type: ignore[assignment, method-assign]
        with pytest.raises(OperationalError, match="another gateway named one is running"):
            await again.peers.open()
