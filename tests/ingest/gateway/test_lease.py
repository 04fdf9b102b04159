"""A lease goes by the log's time where our own clock has stood still."""

from __future__ import annotations

import pytest

from ingest.gateway.log.lease import Lease
from mqlake.clock import ManualClock

SECONDS = 10


class Machine:
    """A gateway's lease, its clock, and the log's, which goes on while the machine is frozen."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lost = 0
        self.asked = 0
        self.lease = Lease(self.clock, SECONDS, self._lose)
        self.lease.on_doubt = self._ask
        self.log_ahead_ms = 123_456
        self.beat()

    def _lose(self) -> None:
        self.lost += 1

    def _ask(self) -> None:
        self.asked += 1

    def log_ms(self) -> int:
        return self.clock.now_ms() + self.log_ahead_ms

    def freeze(self, seconds: float) -> None:
        """Stop a guest: its calendar stands still, too."""
        self.log_ahead_ms += round(seconds * 1000)

    def suspend(self, seconds: float) -> None:
        """Stop a machine whose calendar is right when it goes on."""
        self.clock.step_calendar(round(seconds * 1000))

    def set_calendar(self, seconds: float) -> None:
        self.clock.step_calendar(round(seconds * 1000))
        self.log_ahead_ms -= round(seconds * 1000)

    def beat(self, *, out_seconds: float = 0.0, back_seconds: float = 0.0) -> None:
        """Let a heartbeat go to the log and come back."""
        said_at = self.clock.monotonic()
        self.clock.advance(out_seconds)
        at_ms = self.log_ms()
        self.clock.advance(back_seconds)
        self.lease.renew(said_at, at_ms)


@pytest.mark.parametrize("seconds", [11.0, 13.0, 30.0, 86_400.0])
def test_a_frozen_machine_has_lost_its_lease_when_its_heartbeat_comes_back(seconds: float) -> None:
    machine = Machine()
    machine.freeze(seconds)
    assert machine.lease.holds()  # nobody can know
    machine.beat()
    assert not machine.lease.holds()
    assert not machine.lease.is_sure()
    assert (machine.lost, machine.lease.silences) == (1, 1)
    machine.lease.confirm()
    machine.lease.assure()
    machine.clock.advance(0.5)
    machine.beat()
    assert machine.lease.may_deliver()
    assert machine.lost == 1


def test_a_short_freeze_costs_certainty_of_the_shards_and_not_the_sessions() -> None:
    machine = Machine()
    machine.freeze(4)
    machine.beat()
    assert machine.lease.holds()
    assert not machine.lease.is_sure()


@pytest.mark.parametrize("seconds", [11.0, 13.0])
def test_a_heartbeat_that_is_read_late_hides_no_freeze(seconds: float) -> None:
    """What is not seen as time that stood still has passed as time that we have waited."""
    for back in (0.0, 1.0, 5.0, 9.4, 9.9):
        machine = Machine()
        machine.freeze(seconds)
        machine.beat(back_seconds=back)
        assert not machine.lease.holds(), back


def test_a_slow_log_is_no_freeze() -> None:
    machine = Machine()
    for out, back in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 0.1), (0.0, 1.2), (0.001, 0.0)):
        machine.clock.advance(0.1)
        machine.beat(out_seconds=out, back_seconds=back)
        assert machine.lease.holds()
        assert machine.lease.is_sure()
    assert machine.lease.silences == 0


def test_clocks_that_differ_in_rate_are_no_freeze() -> None:
    machine = Machine()
    for _ in range(10_000):
        machine.clock.advance(0.5)
        machine.log_ahead_ms += 2  # four in a thousand
        machine.beat(back_seconds=0.01)
    assert machine.lease.may_deliver()
    assert (machine.lease.silences, machine.lease.doubts) == (0, 0)


def test_a_step_of_the_logs_clock_costs_one_question() -> None:
    machine = Machine()
    for step, lost in ((3_600_000, 1), (-3_600_000, 1), (-20_000, 1), (20_000, 2)):
        machine.log_ahead_ms += step
        for _ in range(3):
            machine.clock.advance(0.5)
            machine.beat()
            if not machine.lease.holds():
                machine.lease.confirm()
        assert machine.lost == lost, step


def test_any_record_of_the_log_raises_doubt_until_a_later_heartbeat_is_back() -> None:
    machine = Machine()
    lease = machine.lease
    said_at, at_ms = machine.clock.monotonic(), machine.log_ms()
    machine.freeze(5)
    machine.clock.advance(0.01)
    lease.heard_log(machine.log_ms())
    assert [lease.holds(), lease.may_deliver(), lease.is_certain()] == [False] * 3
    assert not lease.is_lost()
    assert (machine.asked, machine.lost) == (1, 0)
    lease.heard_log(machine.log_ms())
    assert machine.asked == 1
    lease.renew(said_at, at_ms)  # one from before the freeze, read now: it tells nothing
    assert lease.is_in_doubt
    machine.beat()
    assert lease.holds()
    assert (lease.doubts, machine.lost) == (1, 0)


def test_records_of_brokers_whose_clocks_differ_a_little_raise_no_doubt() -> None:
    machine = Machine()
    for ahead_ms in (-60_000, -1_400, 1_400):
        machine.lease.heard_log(machine.log_ms() + ahead_ms)
    assert machine.lease.may_deliver()


@pytest.mark.parametrize("seconds", [2.0, 13.0, 86_400.0])
def test_a_machine_that_was_suspended_is_in_doubt_before_it_hears_anything(seconds: float) -> None:
    machine = Machine()
    lease = machine.lease
    machine.clock.advance(0.4)
    assert lease.holds()
    machine.suspend(seconds)
    assert [lease.holds(), lease.may_deliver(), lease.is_certain()] == [False] * 3
    assert (machine.asked, lease.doubts, machine.lost) == (1, 1, 0)
    machine.beat()
    assert lease.holds() == (seconds < SECONDS)
    assert machine.lost == (seconds > SECONDS)


def test_a_calendar_that_is_set_costs_one_heartbeat_or_nothing() -> None:
    machine = Machine()
    for step, doubts in ((3_600.0, 1), (-7_200.0, 1), (1.0, 1), (1.0, 1), (2.0, 2)):
        machine.clock.advance(0.1)
        machine.set_calendar(step)
        assert machine.lease.holds() == (step < 2)
        machine.beat()
        assert machine.lease.may_deliver()
        assert (machine.lease.doubts, machine.lost) == (doubts, 0)
