"""No subscription is lost and none comes back in thousands of worlds; planted faults are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from ingest.session.holder import Holder
from ingest.session.shard import acts, stored_subscriptions
from ingest.session.shard.effects import ShardRecord
from ingest.session.shard.stored_subscriptions import SubscriptionsOfShard
from mqlake.records.sessions import NEVER_EXPIRES, subscription_key
from mqlake.records.shards import stamp_headers
from tests.ingest.session.simulation.schedule import Fault, Schedule, Step
from tests.ingest.session.simulation.search import around, explain, run
from tests.ingest.session.subscription_simulation import (
    Filters,
    SubscribingWorld,
    frozen,
    make_schedule,
    search,
)
from tests.ingest.simulations import simulations_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqlake.records.shards import Key
    from tests.ingest.session.simulation.invariants import Violation

Patch = pytest.MonkeyPatch

CHUNKS: Final = 5
SCHEDULES: Final = simulations_wanted(500)
FREEZES: Final = simulations_wanted(60)
"""Schedules in which a machine is frozen, and its clocks with it."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: Patch) -> None:
    """Make each page, and each slice of what is removed, one record long."""
    monkeypatch.setattr(stored_subscriptions, "ROWS_AT_ONCE", 1)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_a_promise(chunk: int) -> None:
    size = SCHEDULES // CHUNKS
    found = search(range(chunk * size, (chunk + 1) * size))
    assert found is None, explain(make_schedule(found[0]), SubscribingWorld)


def test_a_machine_that_was_frozen_breaks_no_promise() -> None:
    found = search(range(FREEZES), frozen)
    assert found is None, explain(frozen(found[0]), SubscribingWorld)


def hand_over_what_has_ended(patch: Patch) -> None:
    """A client gets the subscriptions of its session before, too."""

    def every(
        self: SubscriptionsOfShard[Any], key: Key, _id: str, after: str = ""
    ) -> Iterator[Any]:
        yield from self._shard.store.subscriptions(key, after, 100)

    patch.setattr(SubscriptionsOfShard, "_rows", every)


def forget_a_page(patch: Patch) -> None:
    """The first page of a session is given to nobody."""
    pages = SubscriptionsOfShard.pages

    def but_the_first(self: SubscriptionsOfShard[Any], key: Key, session_id: str) -> Iterator[Any]:
        found = pages(self, key, session_id)
        next(found, None)
        yield from found

    patch.setattr(SubscriptionsOfShard, "pages", but_the_first)


def begin_without_all_pages(patch: Patch) -> None:
    """A session begins with those subscriptions whose page came last."""
    told = Holder.subscriptions_told

    def keep_the_last(self: Holder[Any], value: dict[str, Any]) -> None:
        told(self, value)
        claiming = self._numbered((value["tenant"], value["client_id"]), value["number"])
        if claiming is not None:
            last = value["subscriptions"][-1]
            claiming.subscriptions = {last["filter"]: last}

    granted = Holder.granted

    def begin(self: Holder[Any], value: dict[str, Any]) -> None:
        claiming = self._numbered((value["tenant"], value["client_id"]), value["number"])
        count = 0 if claiming is None else len(claiming.subscriptions)
        granted(self, {**value, "subscriptions": count})

    patch.setattr(Holder, "subscriptions_told", keep_the_last)
    patch.setattr(Holder, "granted", begin)


def take_late_records(patch: Patch) -> None:
    """A subscription counts whoever has written it."""
    patch.setattr(SubscriptionsOfShard, "_counts", lambda *_, **__: True)


def write_nothing_again(patch: Patch) -> None:
    """What does not count stays the last under its key."""
    patch.setattr(SubscriptionsOfShard, "_write_again", lambda *_: None)


def leave_what_has_ended(patch: Patch) -> None:
    """Nobody removes what is left of a session."""
    patch.setattr(SubscriptionsOfShard, "tick", lambda _: None)


def end_subscriptions_first(patch: Patch) -> None:
    """The subscriptions of a session are removed when its gateway is settled."""
    settled = acts._settled

    def settle(shard: Any, run: Any, key: Key, *more: Any) -> Any:
        rows = shard.store.subscriptions(key, "", 100)
        stamp = stamp_headers(shard.me.incarnation, 1 << 40, shard.owner_epoch)
        ends = [ShardRecord(subscription_key(*key, one), None, stamp) for one, _ in rows]
        return [*settled(shard, run, key, *more), *ends]

    patch.setattr(acts, "_settled", settle)


def answer_before_it_is_durable(patch: Patch) -> None:
    """SUBACK leaves when the record is handed to the log."""
    write = Filters.write

    def answer(self: Filters, name: str, report: Callable[[int], None]) -> None:
        report(0)
        write(self, name, lambda _: None)

    patch.setattr(Filters, "write", answer)


def crash_at_each_event() -> Iterator[Violation | None]:
    """Have a gateway die at each event while a client subscribes and moves on."""
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        *(Step(2_520 + 4 * number, "subscribe", 0, number % 3) for number in range(6)),
        Step(3_600, "connect", 0, 1, expiry=NEVER_EXPIRES),
        Step(15_000, "wait"),
    )
    for event in range(12, 60):
        for seed in range(1, 4):
            schedule = Schedule(seed, 2, 1, steps, (Fault(event, "crash", 0),))
            yield run(schedule, SubscribingWorld)


MUTANTS: Final[list[tuple[Callable[[Patch], None], int]]] = [
    (hand_over_what_has_ended, 246),
    (forget_a_page, 0),
    (begin_without_all_pages, 17),
    (take_late_records, 4_610),
    (write_nothing_again, 245),
    (leave_what_has_ended, 3),
    (end_subscriptions_first, 20),
]
"""Planted faults, and the first seed that finds each: it is looked for around that one."""

AROUND: Final = 60


@pytest.mark.parametrize(("plant", "seed"), MUTANTS, ids=[one.__name__ for one, _ in MUTANTS])
def test_a_planted_fault_is_found(
    monkeypatch: Patch, plant: Callable[[Patch], None], seed: int
) -> None:
    plant(monkeypatch)
    assert search(around(seed, AROUND)) is not None


def test_what_was_answered_outlives_a_crash_at_each_event() -> None:
    assert not [found for found in crash_at_each_event() if found is not None]


def test_an_answer_before_it_is_durable_is_found(monkeypatch: Patch) -> None:
    answer_before_it_is_durable(monkeypatch)
    found = [found for found in crash_at_each_event() if found is not None]
    assert {one.name for one in found} == {"nothing is missing"}
