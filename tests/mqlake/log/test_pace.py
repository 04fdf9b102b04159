"""When a reader waits for more records to come together."""

from collections.abc import Iterator
from itertools import islice

from mqlake.log.kafka_reader import HURRIED_SECONDS, PACED_AFTER, Pace

SECONDS = 0.025
BURST = 6


def batches(
    pace: Pace, *, is_full: bool = False, at: float = 100.0
) -> Iterator[tuple[float, float]]:
    """Yield when each batch of a stream comes, and the rest after it.

    The log has something anew for 6 ms of every 20, each millisecond.
    """
    while True:
        rest = pace.after_batch(at, is_full=is_full)
        yield at, rest
        at += rest + 0.001
        if (at - 100.0) % 0.02 >= BURST / 1000:
            at = 100.0 + ((at - 100.0) // 0.02 + 1) * 0.02


def rests(pace: Pace, count: int, *, is_full: bool = False) -> list[float]:
    return [rest for _, rest in islice(batches(pace, is_full=is_full), count)]


def test_what_comes_now_and_then_does_not_wait() -> None:
    pace = Pace(SECONDS)
    for second in range(PACED_AFTER * 3):
        for millisecond in range(BURST):
            assert pace.after_batch(100.0 + second + millisecond / 1000, is_full=False) == 0


def test_a_stream_is_paced_after_a_while() -> None:
    pace = Pace(SECONDS)
    found = list(islice(batches(pace), 300))
    assert not any(rest for _, rest in found[:PACED_AFTER])
    assert max(rest for _, rest in found) <= SECONDS
    seconds = found[-1][0] - found[99][0]
    assert 200 * SECONDS * 0.9 <= seconds <= 200 * SECONDS * 1.1


def test_a_stream_that_is_over_is_not_paced_any_more() -> None:
    pace = Pace(SECONDS)
    assert any(rests(pace, 100))
    assert pace.after_batch(200.0, is_full=False) == 0
    assert pace.after_batch(200.0 + SECONDS / 2, is_full=False) == 0


def test_nothing_waits_while_somebody_waits_for_it() -> None:
    pace = Pace(SECONDS)
    stream = batches(pace)
    at, _ = list(islice(stream, 100))[-1]
    pace.hurry(at)
    until = at + HURRIED_SECONDS
    hurried = []
    for at, rest in stream:
        if at >= until:
            break
        hurried.append(rest)
    assert len(hurried) > PACED_AFTER
    assert not any(hurried)
    assert any(rest for _, rest in islice(stream, PACED_AFTER))


def test_who_is_behind_does_not_wait() -> None:
    assert not any(rests(Pace(SECONDS), PACED_AFTER * 5, is_full=True))


def test_without_a_pace_nothing_waits() -> None:
    assert not any(rests(Pace(0.0), PACED_AFTER * 5))
