"""`Routes` over a log in memory; the router's answers are given by hand, so every order occurs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from ingest.gateway.routing import routes as module
from ingest.gateway.routing.route_rounds import RouteRequest
from ingest.gateway.routing.routes import Routes, RouteSettings
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.contract import LogFull
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.records.messages import (
    INBOUND,
    ROUTES,
    Barrier,
    Route,
    barrier_key,
    decode_barrier_key,
    decode_route_key,
    route_headers,
)
from mqlake.records.shards import Run
from tests.ingest.gateway.harness import NAME, PARTITIONS, new_log, turns, until

pytestmark = pytest.mark.anyio

INCARNATION = "0123"
BEGAN_AT = 17
A, B, SHARED = (Route(NAME, "t", topic_filter) for topic_filter in ("a", "b", "$share/g/c"))


@dataclass
class Asked:
    """What has become of a request for routes."""

    request: RouteRequest

    @property
    def growing(self) -> list[int]:
        return self.request.starts

    @property
    def starts(self) -> list[int]:
        return self.request.counted.result()

    @property
    def events(self) -> list[str]:
        if not self.request.counted.done():
            return []
        if self.request.counted.exception() is not None:
            return ["failed"]
        return ["counted", "routed"] if self.request.routed.done() else ["counted"]


class ReadClock(ManualClock):
    """Counts how often somebody looks at it."""

    reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return super().monotonic()


@dataclass
class Bench:
    log: MemoryLog
    writer: MemoryLogWriter
    clock: ReadClock
    routes: Routes

    async def looked(self) -> None:
        """Wait until the routes have looked several times at what is open and what is unused."""
        reads = self.clock.reads
        await until(lambda: self.clock.reads >= reads + 20)

    def written(self) -> list[tuple[str, bytes | None]]:
        """Return what the log has of routes: filter and value."""
        return [
            (decode_route_key(record.key or b"").topic_filter, record.value)
            for record in self.log.records(ROUTES)
        ]

    def weight(self, members: int) -> bytes:
        """Return what the log has of a share group with so many members."""
        return b"%d round_robin %d" % (members, self.clock.now_ms())

    def barriers(self, partition: int = 0) -> list[Barrier]:
        return [
            decode_barrier_key(record.key or b"")
            for record in self.log.records(INBOUND)
            if record.partition == partition
        ]

    def rounds(self) -> int:
        return len(self.barriers(PARTITIONS - 1))

    def answer(self, round_: int | None = None, *partitions: int) -> None:
        """Be the router: send barriers back (the last round through all partitions)."""
        for partition in partitions or range(PARTITIONS):
            sent = [one for one in self.log.records(INBOUND) if one.partition == partition]
            record = sent[-1 if round_ is None else round_]
            self.routes.receive_barrier(record.key or b"", partition, record.offset)

    async def routed(self, route: Route) -> None:
        """Subscribe and bring it to its end."""
        asked = self.subscribe([route])
        await until(lambda: asked.events)
        self.answer()
        assert asked.events == ["counted", "routed"]

    def subscribe(self, routes: list[Route]) -> Asked:
        return Asked(self.routes.subscribe(routes))

    def announce(self, routes: list[Route]) -> Asked:
        return Asked(self.routes.announce(routes))


@contextlib.asynccontextmanager
async def bench(
    *,
    linger_seconds: float = 5.0,
    max_queued_records: int = 1000,
    stale: list[Route] | None = None,
    may_count: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Bench]:
    log = new_log()
    writer = MemoryLogWriter(log, max_queued_records=max_queued_records)
    clock = ReadClock()
    routes = Routes(
        Run(NAME, INCARNATION),
        writer,
        PARTITIONS,
        lambda: BEGAN_AT,
        settings=RouteSettings(linger_seconds=linger_seconds, barrier_timeout_seconds=10),
        clock=clock,
        may_count=may_count,
    )
    made = Bench(log, writer, clock, routes)
    starts = await routes.open(stale or [])
    assert starts == [0] * PARTITIONS
    task = asyncio.create_task(routes.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for unused routes and unanswered rounds at once, not once a second."""
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.005)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.005)


async def test_opening_withdraws_what_an_earlier_run_left() -> None:
    async with bench(stale=[A, SHARED, B]) as b:
        assert b.written() == [("a", None), ("b", None)]
        assert b.barriers() == [Barrier(NAME, INCARNATION, 0, 1)]
        assert not b.routes.is_answered
        b.answer()
        assert b.routes.is_answered


async def test_a_subscription_counts_with_the_log_and_is_routed_with_the_router() -> None:
    async with bench() as b:
        b.answer()
        asked = b.subscribe([A])
        await until(lambda: asked.events)
        assert asked.events == ["counted"]
        assert asked.starts == [1] * PARTITIONS
        assert b.written() == [("a", b"1")]
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 1, -1, 1), "it names the route"
        b.answer(1, 0, 1)
        assert asked.events == ["counted"], "one partition is still to come"
        b.answer(1, 2)
        assert asked.events == ["counted", "routed"]
        assert b.routes.oldest_wait_seconds == 0


async def test_a_filter_that_is_routed_is_counted_from_barriers_of_its_own() -> None:
    async with bench() as b:
        await b.routed(A)
        assert b.routes.are_routed([A])
        asked = b.subscribe([A, A])
        await until(lambda: asked.events)
        assert b.rounds() == 3
        assert b.written() == [("a", b"1")], "the router has it already"
        b.answer()
        assert asked.events == ["counted", "routed"]


async def test_subscriptions_that_arrive_together_share_a_round() -> None:
    async with bench() as b:
        requests = [b.subscribe([Route(NAME, "t", f"f/{number}")]) for number in range(100)]
        await until(lambda: all(asked.events for asked in requests))
        assert b.rounds() == 2
        b.answer()
        assert all(asked.events == ["counted", "routed"] for asked in requests)


async def test_the_next_round_is_written_before_the_last_is_back() -> None:
    async with bench() as b:
        first = b.subscribe([A])
        await until(lambda: first.events)
        second = b.subscribe([B])
        await until(lambda: second.events)
        assert b.rounds() == 3
        b.answer(1)
        assert first.events == ["counted", "routed"]
        assert second.events == ["counted"]
        b.answer(2)
        assert second.events == ["counted", "routed"]


async def test_a_later_rounds_answer_stands_for_the_earlier_ones() -> None:
    async with bench() as b:
        first = b.subscribe([A])
        await until(lambda: first.events)
        second = b.subscribe([B])
        await until(lambda: second.events)
        b.answer(2)
        assert first.events == second.events == ["counted", "routed"]


def _place(log: MemoryLog, key: bytes) -> int:
    """Return the offset of a record in `mqlake.inbound`."""
    return next(record.offset for record in log.records(INBOUND) if record.key == key)


def _publish(b: Bench, key: bytes) -> None:
    """Append a message as `Publisher` does."""
    if b.routes.is_due:
        b.routes.flush()
    b.writer.append(INBOUND, key, b"", [], lambda *_: None, partition=0)


async def test_a_message_that_comes_after_is_behind_the_barriers() -> None:
    """Also in the same turn of the loop, and for each of several."""
    async with bench() as b:
        requests = []
        for number in range(5):
            requests.append(b.subscribe([Route(NAME, "t", f"f/{number}")]))
            _publish(b, b"t/%d" % number)
        assert not b.routes.is_due
        await until(lambda: all(asked.events for asked in requests))
        for number, asked in enumerate(requests):
            assert asked.starts[0] == _place(b.log, b"t/%d" % number) - 1
        assert [one.route_number for one in b.barriers(1)] == [0, 1, 2, 3, 4, 5]


async def test_those_who_subscribe_while_the_log_writes_a_round_share_the_next() -> None:
    async with bench() as b:
        b.log.delay_reports()
        for turn in range(5):
            for number in range(50):
                b.routes.subscribe([Route(NAME, "t", f"f/{turn}/{number}")])
            await turns(1)
        assert b.rounds() == 2
        assert b.routes.is_due
        b.log.release_reports()
        await until(lambda: len(b.written()) == 250)
        await until(lambda: not b.writer.queued())
        assert b.rounds() == 3
        assert not b.routes.is_due


async def test_a_message_does_not_wait_until_the_log_has_written_a_round() -> None:
    async with bench() as b:
        b.log.delay_reports()
        b.subscribe([A])
        await turns()
        asked = b.subscribe([B])
        await turns()
        assert b.rounds() == 2
        _publish(b, b"t/b")
        await turns()
        assert b.rounds() == 3
        b.log.release_reports()
        await until(lambda: asked.events)
        assert asked.starts[0] == _place(b.log, b"t/b") - 1


async def test_a_round_that_a_message_found_no_room_for_is_completed_without_it() -> None:
    async with bench(max_queued_records=PARTITIONS + 2) as b:
        b.log.hold_reports()
        first = b.subscribe([A])
        await turns()
        second = b.subscribe([B])
        with pytest.raises(LogFull):
            _publish(b, b"t/b")
        b.log.release_reports()
        await until(lambda: first.events and second.events)
        assert b.rounds() == 3


async def test_a_full_log_keeps_messages_behind_the_barriers() -> None:
    async with bench(max_queued_records=2) as b:
        asked = b.subscribe([A])
        with pytest.raises(LogFull):  # it has room for the route and one barrier
            _publish(b, b"t/a")
        assert b.routes.is_due
        other = b.subscribe([B])  # goes with the next round
        while b.routes.is_due:
            with contextlib.suppress(LogFull):
                b.routes.flush()
            await turns(1)
        _publish(b, b"t/a")
        await until(lambda: asked.events and other.events)
        await until(lambda: not b.writer.queued())
        assert max(asked.starts[0], other.starts[0]) < _place(b.log, b"t/a")
        assert b.rounds() == 3


async def test_a_barrier_names_what_the_router_may_not_have() -> None:
    async with bench() as b:
        await b.routed(A)
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 1, -1, 1)
        b.routes.subscribe([A])
        await until(lambda: b.rounds() == 3)
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 2, -1, 0), "it has A"
        b.routes.subscribe([B])
        await until(lambda: b.rounds() == 4)
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 3, 0, 2)
        b.routes.subscribe([B])
        await until(lambda: b.rounds() == 5)
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 4, 1, 0), "the log has B"
        headers = [record.headers for record in b.log.records(ROUTES)]
        assert headers == [route_headers(INCARNATION, number, BEGAN_AT) for number in (1, 2)]


async def test_a_later_barrier_tells_where_an_earlier_one_is_before() -> None:
    """The router gave the earlier one up: what it delivers behind the later one counts for both."""
    async with bench() as b:
        b.log.hold_reports()
        first = b.subscribe([A])
        await turns()
        b.routes.receive_barrier(barrier_key(Barrier(NAME, INCARNATION, 2, 0, 0)), 1, 9)
        assert first.growing[1] == 9
        b.log.release_reports()
        await until(lambda: first.events)
        assert first.starts == [1] * PARTITIONS


async def test_whoever_announces_counts_from_barriers_behind_its_route() -> None:
    async with bench() as b:
        asked = b.announce([A])
        await until(lambda: asked.events)
        assert b.written() == [("a", b"1")]
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 2, 0, 0)
        assert asked.starts == [2] * PARTITIONS
        b.answer()
        assert asked.events == ["counted", "routed"]


async def test_whoever_announces_a_withdrawal_waits_until_the_router_has_it() -> None:
    async with bench() as b:
        await b.routed(SHARED)
        b.routes.unsubscribe(SHARED)
        asked = b.announce([])
        await until(lambda: asked.events)
        assert b.written()[-1] == (SHARED.topic_filter, None)
        assert b.barriers()[-1].routes_offset == 1
        b.answer()
        assert asked.events == ["counted", "routed"]


@pytest.mark.parametrize("failing", [1, 2, 5, 8])
@pytest.mark.usefixtures("quick")
async def test_what_is_announced_is_tried_until_the_log_takes_it(failing: int) -> None:
    async with bench() as b:
        b.log.fail_next(LogError("no", definite=True), count=failing)
        asked = b.announce([A])
        await until(lambda: asked.events)
        assert b.written()[-1] == ("a", b"1")
        assert b.barriers()[-1].routes_offset == len(b.written()) - 1
        b.answer()
        assert asked.events == ["counted", "routed"]


@pytest.mark.usefixtures("quick")
async def test_a_route_that_the_router_may_have_given_up_is_asked_for_by_its_offset() -> None:
    async with bench() as b:
        b.log.hold_reports(ROUTES)
        asked = b.subscribe([A])
        await until(lambda: b.rounds() == 2)
        b.clock.advance(module.PASSED_SECONDS * 2)
        b.log.release_reports()
        await until(lambda: b.rounds() == 3)
        await b.looked()
        assert b.rounds() == 3, "once"
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 2, 0, 0)
        b.answer()
        assert asked.events == ["counted", "routed"]
        assert asked.starts == [1] * PARTITIONS


async def test_a_second_subscriber_counts_from_later_barriers_than_the_first() -> None:
    async with bench() as b:
        first = b.subscribe([A])
        await until(lambda: first.events)
        assert not b.routes.are_routed([A])
        second = b.subscribe([A])
        assert second.events == [], "the barriers that are in the log were sent before it came"
        await until(lambda: second.events)
        assert all(a < b for a, b in zip(first.starts, second.starts, strict=True))
        b.answer()
        assert second.events == ["counted", "routed"]
        assert b.rounds() == 3


async def test_a_subscriber_of_several_filters_waits_for_the_latest_round() -> None:
    async with bench() as b:
        first = b.subscribe([A])
        await until(lambda: first.events)
        both = b.subscribe([B, A])
        await until(lambda: both.events)
        b.answer(1)
        assert both.events == ["counted"]
        b.answer(2)
        assert both.events == ["counted", "routed"]


async def test_the_router_may_answer_before_the_log_acknowledges() -> None:
    async with bench() as b:
        b.log.hold_reports()
        asked = b.subscribe([A])
        await turns()
        round_one = barrier_key(Barrier(NAME, INCARNATION, 1, -1, 1))
        for partition in range(PARTITIONS):
            b.routes.receive_barrier(round_one, partition, 7 + partition)
        assert asked.growing == [7, 8, 9], "what is behind the barriers counts from now on"
        assert asked.events == []
        b.log.release_reports()
        await until(lambda: len(asked.events) == 2)
        assert asked.events == ["counted", "routed"]
        assert asked.starts == asked.growing == [1] * PARTITIONS
        assert b.routes.are_routed([A])


async def test_answers_to_another_run_or_gateway_are_nothing_to_us() -> None:
    async with bench() as b:
        for barrier in (Barrier(NAME, "other", 0, -1), Barrier("other", INCARNATION, 0, -1)):
            for partition in range(PARTITIONS):
                b.routes.receive_barrier(barrier_key(barrier), partition, 5)
        b.routes.receive_barrier(b"\0barrier/nonsense", 0, 6)
        assert not b.routes.is_answered


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.usefixtures("quick")
async def test_a_route_that_cannot_be_written_fails_its_request_and_is_announced_again(
    definite: bool,
) -> None:
    async with bench() as b:
        b.answer()
        b.log.fail_next(LogError("no", definite=definite))
        asked = b.subscribe([A])
        await until(lambda: asked.events)
        assert asked.events == ["failed"]
        await until(lambda: b.rounds() == 3)
        assert b.written()[-1] == ("a", b"1")
        b.answer()
        assert asked.events == ["failed"]
        assert b.routes.are_routed([A]), "the round after it has announced the filter"


@pytest.mark.usefixtures("quick")
async def test_a_barrier_that_cannot_be_written_fails_its_requests() -> None:
    async with bench() as b:
        b.answer()
        b.log.hold_reports(INBOUND)
        first = b.subscribe([A])
        await until(lambda: b.written())
        b.log.fail_next(LogError("no", definite=True), count=PARTITIONS)
        second = b.subscribe([A])
        b.routes.flush()  # as before a message
        b.log.release_reports()
        await until(lambda: second.events)
        assert first.events == ["failed"]
        assert second.events == ["counted"]
        b.answer()
        assert second.events == ["counted"], "its route has to be announced anew"
        await until(lambda: b.rounds() == 3)
        b.answer()
        assert second.events == ["counted", "routed"]


@pytest.mark.usefixtures("quick")
async def test_a_failed_filter_without_subscribers_is_withdrawn_in_the_end() -> None:
    async with bench(linger_seconds=1) as b:
        b.answer()
        b.log.fail_next(LogError("no", definite=False))
        asked = b.subscribe([A])
        await until(lambda: asked.events)
        b.routes.unsubscribe(A)
        await until(lambda: b.rounds() == 3)
        b.answer()
        b.clock.advance(2)
        await until(lambda: b.written()[-1] == ("a", None))
        assert len(b.routes) == 0


async def test_a_full_log_delays_a_round_and_fails_nobody() -> None:
    async with bench(max_queued_records=2) as b:
        b.answer()
        many = [Route(NAME, "t", f"f/{number}") for number in range(20)]
        asked = b.subscribe(many)
        await until(lambda: asked.events)
        assert asked.events == ["counted"]
        assert len(b.written()) == 20
        b.answer()
        assert asked.events == ["counted", "routed"]


@pytest.mark.usefixtures("quick")
async def test_an_unanswered_round_is_asked_for_again_once_per_timeout() -> None:
    async with bench() as b:
        asked = b.subscribe([A])
        await until(lambda: asked.events)
        assert b.rounds() == 2
        b.clock.advance(9)
        assert b.routes.oldest_wait_seconds == 9
        b.clock.advance(2)
        await until(lambda: b.rounds() == 3)
        assert b.barriers()[-1] == Barrier(NAME, INCARNATION, 2, 0)
        b.clock.advance(8)
        await turns(20)
        assert b.rounds() == 3
        b.clock.advance(2)
        await until(lambda: b.rounds() == 4)
        b.answer(3)
        assert asked.events == ["counted", "routed"]
        assert b.routes.oldest_wait_seconds == 0
        b.answer(1)  # the first answer comes after all
        assert asked.events == ["counted", "routed"]


@pytest.mark.usefixtures("quick")
async def test_an_unused_filter_lingers() -> None:
    async with bench(linger_seconds=5) as b:
        await b.routed(A)
        b.routes.unsubscribe(A)
        b.clock.advance(4)
        assert b.routes.are_routed([A]), "the router has it still"
        b.routes.subscribe([A])
        b.routes.unsubscribe(A)
        b.clock.advance(4)
        await b.looked()
        assert len(b.routes) == 1
        b.clock.advance(1)
        await until(lambda: b.written()[-1] == ("a", None))
        assert len(b.routes) == 0
        rounds = b.rounds()
        assert not b.routes.are_routed([A])
        b.routes.subscribe([A])
        await until(lambda: b.rounds() == rounds + 1)


async def test_unused_filters_go_however_busy_the_gateway_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 3600)
    async with bench(linger_seconds=0) as b:
        for number in range(20):
            route = Route(NAME, "t", f"f/{number}")
            await b.routed(route)
            b.routes.unsubscribe(route)
        assert len(b.routes) <= 2
        assert ("f/0", None) in b.written()


@pytest.mark.usefixtures("quick")
async def test_member_counts_of_a_share_group_are_written() -> None:
    async with bench() as b:
        await b.routed(SHARED)
        name = SHARED.topic_filter
        b.routes.subscribe([SHARED])
        await until(lambda: b.written()[-1] == (name, b.weight(2)))
        last = b.subscribe([SHARED])
        await until(lambda: last.events)
        b.routes.unsubscribe(SHARED)
        b.routes.unsubscribe(SHARED)
        await until(lambda: b.written()[-1] == (name, b.weight(1)))
        rounds = b.rounds()
        b.routes.unsubscribe(SHARED)
        await until(lambda: b.written()[-1] == (name, None))
        await until(lambda: b.rounds() == rounds + 1)  # in force where its barriers stand


@pytest.mark.usefixtures("quick")
async def test_members_are_counted_when_nobody_else_has_withdrawn_the_route() -> None:
    is_known = [True]
    async with bench(may_count=lambda: is_known[0]) as b:
        await b.routed(SHARED)
        is_known[0] = False
        asked = b.subscribe([SHARED])
        b.routes.subscribe([A])
        await until(lambda: asked.events)
        assert b.written()[-1] == ("a", b"1")
        is_known[0] = True
        await until(lambda: b.written()[-1] == (SHARED.topic_filter, b.weight(2)))
        b.routes.note_withdrawn(SHARED)
        b.routes.unsubscribe(SHARED)
        b.routes.subscribe([B])
        await until(lambda: b.written()[-1] == ("b", b"1"))
        b.routes.renew(SHARED)
        await until(lambda: b.written()[-1] == (SHARED.topic_filter, b.weight(1)))
        assert b.written().count((SHARED.topic_filter, b.weight(1))) == 2


async def test_members_of_a_plain_filter_are_the_gateways_own_business() -> None:
    async with bench() as b:
        await b.routed(A)
        b.routes.subscribe([A])
        b.routes.unsubscribe(A)
        await b.routed(B)
        assert b.written() == [("a", b"1"), ("b", b"1")]


async def test_a_share_group_without_members_is_withdrawn_at_once() -> None:
    """It must not linger: the router would give it messages that other gateways' members miss."""
    async with bench(linger_seconds=3600) as b:
        await b.routed(SHARED)
        b.routes.unsubscribe(SHARED)
        await until(lambda: b.written()[-1] == (SHARED.topic_filter, None))
        assert len(b.routes) == 0
        rounds = b.rounds()
        asked = b.subscribe([SHARED])
        await until(lambda: asked.events)
        assert b.rounds() == rounds + 1
        assert b.written()[-1] == (SHARED.topic_filter, b.weight(1))
        b.answer()
        assert asked.events == ["counted", "routed"]


@pytest.mark.usefixtures("quick")
async def test_a_share_group_that_failed_is_not_announced_without_members() -> None:
    async with bench() as b:
        b.answer()
        b.log.fail_next(LogError("no", definite=False))
        asked = b.subscribe([SHARED])
        await until(lambda: asked.events)
        b.routes.unsubscribe(SHARED)
        await until(lambda: b.written()[-1] == (SHARED.topic_filter, None))
        assert len(b.routes) == 0


async def test_a_member_may_leave_and_come_back_while_its_round_is_under_way() -> None:
    async with bench() as b:
        first = b.subscribe([SHARED])
        await until(lambda: first.events)
        b.routes.unsubscribe(SHARED)
        second = b.subscribe([SHARED])
        await until(lambda: second.events)
        b.answer(1)
        assert first.events == second.events == ["counted"], "the route was withdrawn since"
        b.answer(2)
        assert first.events == second.events == ["counted", "routed"]
        b.routes.subscribe([SHARED])


async def test_closing_withdraws_all_routes_but_those_of_share_groups() -> None:
    async with bench() as b:
        await b.routed(A)
        await b.routed(SHARED)
        await b.routes.close()
        assert b.written()[-2:] == [(SHARED.topic_filter, b.weight(1)), ("a", None)]


async def test_closing_reports_that_the_log_did_not_take_it() -> None:
    async with bench() as b:
        await b.routed(A)
        b.log.fail_next(LogError("no", definite=True))
        with pytest.raises(LogError):
            await b.routes.close()
