"""When a reader waits for more records to come together."""

from mqlake.log.kafka_reader import PACED_AFTER, Pace

SECONDS = 0.01


def stream(pace: Pace, batches: int, *, is_full: bool = False) -> list[float]:
    """Return the rests after batches that come a millisecond after the rest before."""
    rests, now = [], 100.0
    for _ in range(batches):
        now += SECONDS / 10
        rests.append(pace.after_batch(now, is_full=is_full))
        now += rests[-1]
    return rests


def test_what_comes_now_and_then_does_not_wait() -> None:
    pace = Pace(SECONDS)
    for second in range(PACED_AFTER * 3):
        assert pace.after_batch(100.0 + second, is_full=False) == 0
        assert pace.after_batch(100.0 + second + SECONDS / 2, is_full=False) == 0


def test_a_stream_is_paced_after_a_while_until_it_ends() -> None:
    pace = Pace(SECONDS)
    rests = stream(pace, PACED_AFTER + 10)
    assert rests == [0.0] * (PACED_AFTER + 1) + [SECONDS] * 9
    assert pace.after_batch(200.0, is_full=False) == 0
    assert pace.after_batch(200.0 + SECONDS / 2, is_full=False) == 0


def test_who_is_behind_does_not_wait() -> None:
    assert not any(stream(Pace(SECONDS), PACED_AFTER * 2, is_full=True))


def test_without_a_pace_nothing_waits() -> None:
    assert not any(stream(Pace(0.0), PACED_AFTER * 2))
