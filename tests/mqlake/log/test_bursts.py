"""Records of a busy writer wait for others; those of one that is not busy do not."""

from typing import Any, cast

import pytest

from mqlake.errors import LogError
from mqlake.log.bursts import (
    BUSY_RECORDS,
    BUSY_SECONDS,
    FEW_TICKS,
    MOST_TICKS,
    PROBE_BURSTS,
    REST_RECORDS,
    TICK_SECONDS,
    Bursts,
)
from mqlake.log.contract import LogFull
from tests.cases import case
from tests.mqlake.event_loop import SteppedLoop

TOO_LARGE = LogError("too large", definite=True)


class Log:
    """Takes records of one argument, as far as it has room."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.sent: list[tuple[float, int]] = []
        self.room = 1_000_000
        self.refuses: set[int] = set()
        self.reports: list[tuple[int, LogError]] = []
        self.breaks: int | None = None
        self.bursts = Bursts(cast("Any", self.loop), self._send, self._report)
        self._number = 0

    def append(self) -> int:
        """Append as a writer does; return the record's number."""
        self._number += 1
        if self.bursts.is_busy:
            self.bursts.hold(self._number)
        else:
            self._send(self._number)
            self.bursts.count()
        return self._number

    def append_all(self, records: int, per_second: float) -> None:
        for _ in range(records):
            self.append()
            self.loop.advance(1 / per_second)

    def numbers(self) -> list[int]:
        return [number for _, number in self.sent]

    def _send(self, number: int) -> None:
        if number == self.breaks:
            raise TypeError
        if number in self.refuses:
            raise TOO_LARGE
        if not self.room:
            raise LogFull("full")
        self.room -= 1
        self.sent.append((self.loop.now, number))

    def _report(self, record: tuple[int], error: LogError) -> None:
        self.reports.append((record[0], error))


@pytest.fixture
def log() -> Log:
    return Log()


def make_busy(log: Log) -> None:
    log.append_all(2 * BUSY_RECORDS, 1_000_000)
    log.loop.advance(MOST_TICKS * TICK_SECONDS)
    assert log.bursts.is_busy


@pytest.mark.parametrize("per_second", [1, 200, 500, 700])
def test_at_low_rates_each_record_is_sent_at_once_and_no_timer_runs(
    log: Log, per_second: float
) -> None:
    for _ in range(3 * BUSY_RECORDS):
        number = log.append()
        assert log.sent[-1] == (log.loop.now, number)
        assert not log.loop.timers
        log.loop.advance(1 / per_second)


@pytest.mark.parametrize("per_second", [800, 1_000, 1_400])
def test_of_some_records_one_is_held_for_two_ticks(log: Log, per_second: float) -> None:
    log.append_all(3 * BUSY_RECORDS, per_second)
    begin, first = log.loop.now, len(log.sent)
    log.append_all(1000, per_second)
    log.loop.advance(FEW_TICKS * TICK_SECONDS)
    assert log.numbers() == list(range(1, 3 * BUSY_RECORDS + 1001))
    late = [
        at - (begin + (number - 3 * BUSY_RECORDS - 1) / per_second)
        for at, number in log.sent[first:]
        if number > 3 * BUSY_RECORDS
    ]
    assert max(late) <= FEW_TICKS * TICK_SECONDS + 1e-6
    bursts = len({at for at, _ in log.sent[first:]})
    # Some go earlier, as a tick has brought no record
    assert bursts <= 1.2 * 1000 / per_second / (FEW_TICKS * TICK_SECONDS)


@pytest.mark.parametrize("per_second", [2_000, 10_000, 100_000])
def test_of_many_records_one_is_held_for_few_ticks_and_all_go_in_order(
    log: Log, per_second: float
) -> None:
    make_busy(log)
    begin, first = log.loop.now, len(log.sent)
    log.append_all(1000, per_second)
    log.loop.advance(MOST_TICKS * TICK_SECONDS)
    assert log.numbers() == list(range(1, first + 1001))
    for place, (at, _) in enumerate(log.sent[first:]):
        late = at - (begin + place / per_second)
        assert -1e-6 <= late <= MOST_TICKS * TICK_SECONDS + 1e-6
    bursts = len({at for at, _ in log.sent[first:]})
    assert bursts <= 1000 / per_second / (MOST_TICKS * TICK_SECONDS) + 2


def test_who_waits_for_the_answer_is_not_held_for_the_longest_time(log: Log) -> None:
    make_busy(log)
    before = len(log.sent)
    for _ in range(50):
        log.append()
    assert len(log.sent) == before
    log.loop.advance(2 * TICK_SECONDS)
    assert len(log.sent) == before + 50


def test_publishers_that_wait_for_their_answers_are_not_held_up_but_by_probes(log: Log) -> None:
    make_busy(log)
    waiting, answer_seconds, rounds = 50, 0.003, 10 * PROBE_BURSTS
    begin = log.loop.now
    for _ in range(rounds):
        before = len(log.sent)
        for _ in range(waiting):
            log.append()
        log.loop.advance(0)
        while len(log.sent) < before + waiting:
            log.loop.advance(TICK_SECONDS / 4)
        log.loop.advance(answer_seconds)
    took = log.loop.now - begin
    assert took < rounds * answer_seconds + (rounds / PROBE_BURSTS + 2) * 3 * TICK_SECONDS


def test_a_burst_grows_with_the_rate(log: Log) -> None:
    make_busy(log)
    log.append_all(1000, 3_000)
    first = len(log.sent)
    log.append_all(20_000, 30_000)
    late = log.sent[first + 10_000 :]
    bursts = len({at for at, _ in late})
    assert len(late) / bursts > 0.8 * 30_000 * MOST_TICKS * TICK_SECONDS


def test_a_writer_that_is_given_less_is_not_busy_any_more_and_is_again(log: Log) -> None:
    make_busy(log)
    before = len(log.sent)
    log.append_all(3 * REST_RECORDS, 0.7 * REST_RECORDS / BUSY_SECONDS)
    assert not log.bursts.is_busy
    assert not log.loop.timers
    assert len(log.sent) == before + 3 * REST_RECORDS
    make_busy(log)
    assert len(log.loop.timers) == 1


def test_a_short_burst_after_a_long_rest_makes_no_writer_busy(log: Log) -> None:
    log.append_all(BUSY_RECORDS - 1, 100_000)
    log.loop.advance(60)
    log.append()
    assert not log.bursts.is_busy


def test_records_that_do_not_fit_wait_in_their_order_and_others_are_refused(log: Log) -> None:
    make_busy(log)
    before, log.room = len(log.sent), 3
    numbers = [log.append() for _ in range(10)]
    log.loop.advance(5 * TICK_SECONDS)
    assert log.numbers()[before:] == numbers[:3]
    with pytest.raises(LogFull, match="7 records wait"):
        log.append()
    log.loop.advance(10)
    assert log.bursts.is_busy  # none may overtake those that are held
    log.room = 100
    log.loop.advance(5 * TICK_SECONDS)
    assert log.numbers()[before:] == numbers
    assert not log.reports


def test_a_record_that_can_never_be_sent_is_reported_and_others_go_on(log: Log) -> None:
    make_busy(log)
    before = len(log.sent)
    refused = log.append() + 1
    log.refuses = {refused}
    log.append()
    log.append()
    log.bursts.release()
    assert log.reports == [(refused, TOO_LARGE)]
    assert log.numbers()[before:] == [refused - 1, refused + 1]


def test_after_the_end_nothing_is_held_and_no_timer_goes_on(log: Log) -> None:
    make_busy(log)
    held = [log.append(), log.append()]
    log.bursts.close(TOO_LARGE)
    assert log.reports == [(number, TOO_LARGE) for number in held]
    log.loop.advance(1)
    assert not log.loop.timers
    assert not log.bursts.is_busy


def test_an_end_in_the_midst_of_many_records_is_the_end() -> None:
    for ticks in range(1, round(BUSY_SECONDS / TICK_SECONDS) + 1):
        log = Log()
        with case(f"after {ticks} ticks"):
            make_busy(log)
            log.append_all(round(ticks * TICK_SECONDS * 50_000), 50_000)
            log.bursts.close(TOO_LARGE)
            log.loop.advance(TICK_SECONDS)
            assert not log.bursts.is_busy
            assert not log.loop.timers


def test_a_record_that_breaks_the_client_library_keeps_no_other_from_being_sent(log: Log) -> None:
    make_busy(log)
    broken, later = log.append(), log.append()
    log.breaks = broken
    with pytest.raises(TypeError):
        log.bursts.release()
    log.bursts.release()
    assert log.numbers()[-1] == later
