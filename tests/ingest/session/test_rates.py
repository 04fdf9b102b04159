"""Rates, against implementations that remember every time and know nothing else."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session.limits.rates import SlidingWindowCounter, Strikes, TokenBucket

# Multiples of 1/64 are exact as floats and as fractions.
STEPS = st.lists(st.integers(0, 200).map(lambda n: Fraction(n, 64)), max_size=60)
WINDOWS = st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(10)])
TICK = Fraction(1, 64)


class Remembered:
    """Counts by looking at all that has happened."""

    def __init__(self, most: int, window: Fraction) -> None:
        self.most = most
        self.window = window
        self.times: list[Fraction] = []

    def estimate(self, now: Fraction) -> Fraction:
        begin = now // self.window * self.window
        this = sum(begin <= time < begin + self.window for time in self.times)
        before = sum(begin - self.window <= time < begin for time in self.times)
        return this + before * (1 - (now - begin) / self.window)

    def has_room(self, now: Fraction) -> bool:
        return self.estimate(now) + 1 <= self.most


@given(st.integers(1, 9), WINDOWS, STEPS, st.booleans())
def test_a_counter_says_what_a_list_of_times_says(
    most: int, window: Fraction, steps: list[Fraction], only_with_room: bool
) -> None:
    counter, model = SlidingWindowCounter(most, float(window)), Remembered(most, window)
    now = Fraction(1000)
    for step in steps:
        now += step
        wait = counter.wait(float(now))
        if abs(model.estimate(now) + 1 - most) > Fraction(1, 10**9):
            assert (wait == 0) == model.has_room(now)
        if wait:
            near = Fraction(wait)
            assert model.estimate(now + near) + 1 <= most + Fraction(1, 10**6)
            earlier = now
            while earlier < now + near - TICK:  # no sooner
                assert not model.has_room(earlier)
                earlier += near / 7
        if not only_with_room or not wait:
            counter.count(float(now))
            model.times.append(now)


@given(st.integers(1, 9), STEPS)
def test_whoever_waits_gets_no_more_than_the_rate(most: int, steps: list[Fraction]) -> None:
    counter = SlidingWindowCounter(most)
    now, times = 1000.0, []
    for step in steps:
        now += float(step)
        if not counter.wait(now):
            counter.count(now)
            times.append(now)
    for begin in times:  # evenly spread or not: never twice as many
        assert sum(begin <= time < begin + 1.0 for time in times) < 2 * most + 1


def test_a_steady_rate_has_room() -> None:
    counter = SlidingWindowCounter(10)
    for number in range(200):
        now = 5.0 + number / 8
        assert counter.wait(now) == 0.0, number
        counter.count(now)


def test_a_clock_that_goes_back_counts_on() -> None:
    counter = SlidingWindowCounter(1)
    counter.count(100.0)
    assert counter.wait(99.5) > 0.0
    bucket = TokenBucket(1.0, 1.0)
    assert bucket.take(1.0, 100.0) == 0.0
    assert bucket.take(1.0, 99.0) == 1.0


@given(
    st.integers(1, 50),
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90)), max_size=40),
)
def test_a_bucket_holds_what_flowed_in_and_was_not_taken(
    per_second: int, most: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(float(per_second), float(most))
    now = level = Fraction(0)
    level += most
    for ticks, amount in steps:
        for _ in range(ticks):  # the dumb way: drop by drop
            now += TICK
            level = min(level + per_second * TICK, Fraction(most))
        level -= amount
        owed = max(-level / per_second, Fraction(0))
        assert bucket.take(float(amount), float(now)) == pytest.approx(float(owed), abs=1e-9)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from("ab"), st.booleans()), max_size=60),
)
def test_who_does_it_too_often_is_found_and_begins_anew(
    most: int, steps: list[tuple[int, str, bool]]
) -> None:
    window = Fraction(1)
    strikes = Strikes(most, float(window))
    models = {name: Remembered(most, window) for name in "ab"}
    now = Fraction(1000)
    for ticks, name, notes in steps:
        now += ticks * TICK
        if not notes:
            continue
        model = models[name]
        is_out = not model.has_room(now)
        assert strikes.note(name, float(now)) == is_out
        if is_out:
            models[name] = Remembered(most, window)
        else:
            model.times.append(now)


def test_only_so_many_names_are_remembered() -> None:
    strikes = Strikes(1, 10.0, names=2)
    for name in "abc":
        assert not strikes.note(name, 1.0)
    assert not strikes.note("a", 1.0), "it was forgotten"
    assert strikes.note("c", 1.0)
