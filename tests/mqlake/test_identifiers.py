from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.clock import ManualClock
from mqlake.identifiers import EPOCH_MS, MessageIdentifiers, identifier_time, machine_number


def identifiers(clock: ManualClock, **more: int) -> MessageIdentifiers:
    return MessageIdentifiers(clock, **({"datacenter": 1, "machine": 2, "process": 3} | more))


def test_an_identifier_says_when_and_where_it_was_made() -> None:
    clock = ManualClock(now_ms=EPOCH_MS + 0x0102030405)
    made = identifiers(clock, datacenter=0xAB, machine=0xCDEF, process=0x123456).next()
    assert len(made) == 16
    assert made[:12].hex() == "000102030405" + "ab" + "cdef" + "123456"
    assert identifier_time(made) == datetime.fromtimestamp((EPOCH_MS + 0x0102030405) / 1000, tz=UTC)


def test_the_sequence_counts_on_within_a_millisecond() -> None:
    source = identifiers(ManualClock())
    numbers = [int.from_bytes(source.next()[12:], "big") for _ in range(10)]
    assert [(number - numbers[0]) % 2**32 for number in numbers] == list(range(10))


@given(st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=50))
def test_time_in_identifiers_never_goes_back_and_none_comes_twice(steps: list[int]) -> None:
    clock = ManualClock()
    source = identifiers(clock)
    made = []
    for step in steps:
        clock.step_calendar(step)
        made += [source.next(), source.next()]
    times = [identifier_time(identifier) for identifier in made]
    assert times == sorted(times)
    assert len(set(made)) == len(made)


@given(st.lists(st.integers(1, 5_000), min_size=2, max_size=20))
def test_identifiers_of_later_milliseconds_sort_after_earlier_ones(steps: list[int]) -> None:
    clock = ManualClock()
    source = identifiers(clock)
    made = []
    for step in steps:
        clock.step_calendar(step)
        made.append(source.next())
    assert made == sorted(made)


def test_a_restart_with_the_clock_set_back_repeats_none() -> None:
    clock = ManualClock()
    before = {identifiers(clock).next() for _ in range(20)}
    assert len(before) == 20  # each from a new object: the sequence starts at random


def test_the_caller_may_bring_its_reading_of_the_clock() -> None:
    source = identifiers(ManualClock())
    assert identifier_time(source.next(EPOCH_MS + 1000)).timestamp() * 1000 == EPOCH_MS + 1000


@pytest.mark.parametrize(
    ("field", "value"), [("datacenter", 256), ("datacenter", -1), ("machine", 65536)]
)
def test_numbers_that_do_not_fit_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        identifiers(ManualClock(), **{field: value})


def test_this_machine_has_a_number_that_stays() -> None:
    assert 0 <= machine_number() < 1 << 16
    assert machine_number() == machine_number()
