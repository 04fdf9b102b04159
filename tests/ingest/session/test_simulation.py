"""The order of sessions holds in thousands of small worlds, and each planted fault is found.

This is a sample; a change of that order is tried with more of each kind:
`MQLAKE_SIMULATIONS=20000 bin/test tests/ingest/session/test_simulation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.ingest.session.simulation.families import (
    change_owners,
    crash_at_each_event,
    fall_behind_and_crash,
    keep_on_disk,
    lose_the_answer,
    move_while_messages_come,
    outlast_a_stranger,
    stand_still_while_publishing,
    take_over_twice,
    wait_while_cut_off,
)
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.planted import (
    MUTANTS,
    know_the_standstill_late,
    notice_no_standstill,
)
from tests.ingest.session.simulation.schedule import (
    frozen,
    make_schedule,
    on_one_machine,
    with_slow_clients,
    with_strangers,
)
from tests.ingest.session.simulation.search import around, explain, search
from tests.ingest.session.simulation.world import World
from tests.ingest.simulations import simulations_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.ingest.session.simulation.invariants import Violation

    Family = Callable[[], Iterator[Violation | None]]

Patch = pytest.MonkeyPatch

CHUNKS: Final = 3
SCHEDULES: Final = simulations_wanted(900)
STRANGERS: Final = simulations_wanted(250)
"""Schedules in which other users come, too."""
CHUNK: Final = 250
SLOW: Final = simulations_wanted(60)
"""Schedules in which more comes than clients take."""
FREEZES: Final = simulations_wanted(100)
"""Schedules in which a machine is frozen, and its clocks with it."""
ENDINGS: Final = simulations_wanted(100)
"""Schedules in which gateways see that another one has ended."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_a_promise(chunk: int) -> None:
    size = SCHEDULES // CHUNKS
    found = search(range(chunk * size, (chunk + 1) * size))
    assert found is None, explain(make_schedule(found[0]))


@pytest.mark.parametrize("chunk", range(STRANGERS // CHUNK))
def test_no_stranger_gets_a_session(chunk: int) -> None:
    found = search(range(chunk * CHUNK, (chunk + 1) * CHUNK), with_strangers)
    assert found is None, explain(with_strangers(found[0]))


def test_a_machine_that_was_frozen_breaks_no_promise() -> None:
    found = search(range(FREEZES), frozen)
    assert found is None, explain(frozen(found[0]))


@pytest.mark.parametrize("plant", [notice_no_standstill, know_the_standstill_late])
def test_a_gateway_that_does_not_notice_a_freeze_is_found(
    monkeypatch: Patch, plant: Callable[[Patch], None]
) -> None:
    plant(monkeypatch)
    assert search(range(400), frozen) is not None


def test_who_has_ended_is_not_waited_for_and_breaks_nothing() -> None:
    found = search(range(ENDINGS), on_one_machine)
    assert found is None, explain(on_one_machine(found[0]))


@pytest.mark.parametrize("chunk", range(2))
def test_who_is_slow_misses_nothing_and_gets_nothing_twice(chunk: int) -> None:
    size = SLOW // 2
    found = search(range(chunk * size, (chunk + 1) * size), with_slow_clients)
    assert found is None, explain(with_slow_clients(found[0]))


def test_a_stranger_is_refused_whatever_compaction_leaves() -> None:
    assert not [found for found in outlast_a_stranger() if found is not None]


def test_what_a_gateway_has_on_disk_is_what_it_knows() -> None:
    assert not [found for found in keep_on_disk() if found is not None]


def test_a_message_that_comes_when_its_gateway_goes_on_is_stored_once() -> None:
    assert not [found for found in stand_still_while_publishing() if found is not None]


def test_a_message_is_stored_twice_if_its_gateway_is_settled_before_it_can_come(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(Process, "is_spent", Process.is_dead)
    found = [found for found in stand_still_while_publishing() if found is not None]
    assert {one.name for one in found} == {"exactly once"}


def test_a_clean_session_has_one_holder_while_its_shard_changes_its_owner() -> None:
    assert not [found for found in change_owners() if found is not None]


WORLDS: Final = [
    crash_at_each_event,
    move_while_messages_come,
    fall_behind_and_crash,
    lose_the_answer,
]


@pytest.mark.parametrize("world", WORLDS)
def test_exchanges_are_finished_elsewhere(world: Family) -> None:
    assert not [found for found in world() if found is not None]


def test_who_waits_at_a_gateway_that_is_cut_off_is_served_once() -> None:
    assert not [found for found in wait_while_cut_off() if found is not None]


def test_what_a_dead_gateway_may_have_sent_goes_out_with_dup() -> None:
    assert not [found for found in take_over_twice() if found is not None]


def test_a_schedule_is_the_same_each_time() -> None:
    transcripts: list[list[str]] = [[], []]
    for transcript in transcripts:
        World(make_schedule(7), transcript).run()
    assert transcripts[0] == transcripts[1]


AROUND: Final = 60


@pytest.mark.parametrize(("plant", "where"), MUTANTS, ids=[one.__name__ for one, _ in MUTANTS])
def test_a_planted_fault_is_found(
    monkeypatch: Patch,
    plant: Callable[[Patch], None],
    where: int | Family,
) -> None:
    plant(monkeypatch)
    if isinstance(where, int):
        assert search(around(where, AROUND)) is not None
    else:
        assert any(found is not None for found in where())
