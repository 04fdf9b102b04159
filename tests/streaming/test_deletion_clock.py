"""A calendar that is set, or wrong at a start, deletes little."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import EVENTS
from rules.actions.contract import NewRecord
from streaming.tables.deletion_clock import FILE, DeletionClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TEN_YEARS_MS = 3_652 * DAY_MS

pytestmark = pytest.mark.promise


class Machine:
    """Its clocks; the lake starts on it anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.boot = "first"
        self.booted = 0.0
        self.events: list[dict[str, Any]] = []
        self.refuses = False
        self.lake = self.start()

    def append(self, records: Sequence[NewRecord]) -> None:
        if self.refuses:
            raise LogError("no answer", definite=False)
        for record in records:
            assert record.log_topic == EVENTS
            self.events.append(json.loads(record.value or b""))

    def start(self) -> DeletionClock:
        self.lake = DeletionClock(
            self.clock,
            self.folder / FILE,
            self.append,
            self.boot,
            lambda: self.clock.monotonic() - self.booted,
        )
        return self.lake

    def reboot(self, off_ms: int) -> DeletionClock:
        """Be off for so long: by the calendar, no other clock knows."""
        self.boot += "'"
        self.booted = self.clock.monotonic()
        self.clock.step_calendar(off_ms)
        return self.start()

    def behind_ms(self) -> int:
        return self.clock.now_ms() - self.lake.now_ms()

    def pass_hours(self, hours: int) -> None:
        for _ in range(hours):
            self.clock.advance(3600)
            self.lake.now_ms()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_is_the_calendar_as_long_as_that_goes_on_as_time_does(machine: Machine) -> None:
    for _ in range(100):
        machine.clock.advance(6 * 3600)
        assert machine.behind_ms() == 0
    machine.start()
    assert machine.behind_ms() == 0
    assert (machine.events, machine.lake.trouble()) == ([], "")


def test_days_in_which_the_lake_was_away_count(machine: Machine) -> None:
    machine.lake.now_ms()
    machine.clock.advance(30 * 86_400)
    machine.start()
    assert machine.behind_ms() == 0


def test_a_step_forward_deletes_nothing(machine: Machine) -> None:
    machine.pass_hours(1)
    before = machine.lake.now_ms()
    machine.clock.step_calendar(TEN_YEARS_MS)
    assert machine.lake.now_ms() == before
    assert machine.lake.now_ms() == before
    (event,) = machine.events
    assert event["event"] == "history.clock_ahead"
    assert "so much time has not passed: deletes as of 2020-09-13T13:26" in event["reason"]
    assert machine.lake.trouble() == event["reason"]
    machine.start()
    assert machine.lake.now_ms() == before
    machine.pass_hours(24)
    assert machine.lake.now_ms() - before == 2 * DAY_MS, "a day too many in a day"
    machine.clock.step_calendar(-TEN_YEARS_MS)
    assert (machine.behind_ms(), machine.lake.trouble()) == (0, "")


def test_a_machine_that_starts_in_another_year_deletes_a_day(machine: Machine) -> None:
    before = machine.lake.now_ms()
    lake = machine.reboot(TEN_YEARS_MS)
    assert lake.now_ms() - before == DAY_MS
    machine.start()
    assert machine.lake.now_ms() - before == DAY_MS, "a day for each boot, not for each start"


def test_a_machine_that_was_off_catches_up(machine: Machine) -> None:
    machine.lake.now_ms()
    machine.reboot(31 * DAY_MS)
    assert machine.behind_ms() == 30 * DAY_MS
    machine.pass_hours(15 * 24)
    assert machine.behind_ms() == 15 * DAY_MS
    machine.pass_hours(15 * 24)
    assert machine.behind_ms() == 0
    assert len(machine.events) == 1


def test_a_machine_that_was_off_for_a_night_is_not_behind(machine: Machine) -> None:
    machine.lake.now_ms()
    machine.reboot(DAY_MS // 2)
    assert (machine.behind_ms(), machine.events) == (0, [])


def test_of_a_damaged_file_its_own_time_counts(machine: Machine) -> None:
    machine.lake.now_ms()
    file = machine.folder / FILE
    for text in ("", "[]", '{"at_ms": null}'):
        file.write_text(text, encoding="utf-8")
        written_ms = round(file.stat().st_mtime * 1000)
        machine.clock.step_calendar(written_ms - machine.clock.now_ms() + TEN_YEARS_MS)
        assert machine.start().now_ms() - written_ms == DAY_MS


def test_an_event_that_is_lost_holds_nothing_up(machine: Machine) -> None:
    machine.refuses = True
    machine.clock.step_calendar(TEN_YEARS_MS)
    assert machine.behind_ms() > DAY_MS
