"""A reader takes a stream of many records in batches, and few records at once."""

from __future__ import annotations

from mqlake.log.kafka_reader import PACED_PER_SECOND, WINDOW_SECONDS, Pace

SECONDS = 0.02


def rests(pace: Pace, per_second: float, seconds: float, *, is_full: bool = False) -> list[float]:
    """Return when a reader rests while so many records come, one after the other."""
    now, until, waits, count = 10.0, 10.0 + seconds, [], 1
    while now < until:
        rest = pace.after_batch(now, count, is_full=is_full)
        if rest:
            waits.append(now - 10.0)
        count = max(1, round(rest * per_second))
        now += max(rest, 1 / per_second)
    return waits


def test_a_stream_is_taken_in_batches_soon_after_it_has_begun() -> None:
    waits = rests(Pace(SECONDS), 2 * PACED_PER_SECOND, 4.0)
    assert waits[0] < 3 * WINDOW_SECONDS
    assert 0.8 < len(waits) * SECONDS / (4.0 - waits[0]) <= 1.01


def test_few_records_are_taken_as_they_come() -> None:
    assert not rests(Pace(SECONDS), PACED_PER_SECOND / 2, 4.0)


def test_the_first_record_after_a_stream_does_not_wait() -> None:
    pace = Pace(SECONDS)
    assert rests(pace, 2 * PACED_PER_SECOND, 2.0)
    assert pace.after_batch(13.0, 1, is_full=False) == 0.0


def test_who_is_behind_does_not_rest() -> None:
    assert not rests(Pace(SECONDS), 2 * PACED_PER_SECOND, 4.0, is_full=True)


def test_a_reader_that_is_not_to_be_paced_is_not() -> None:
    assert not rests(Pace(0.0), 2 * PACED_PER_SECOND, 4.0)
