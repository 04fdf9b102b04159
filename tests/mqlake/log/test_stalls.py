"""When a partition counts as left aside."""

from mqlake.log.stalls import AGAIN_SECONDS, DOUBT_SECONDS, LOOKS, StallWatch


def looks(watch: StallWatch, begin: float, offsets: list[int], ends: list[int]) -> list[list[int]]:
    """Look at one partition until the watch is content, or so often; return what was found."""
    found = []
    now = begin
    for offset, end in zip(offsets, ends, strict=True):
        if not watch.is_due(now):
            break
        found.append(watch.look(now, {7: offset}, {7: end}))
        now += AGAIN_SECONDS
    return found


def test_nobody_looks_until_something_has_happened() -> None:
    watch = StallWatch()
    assert not watch.is_due(1e9)
    watch.doubt(100.0)
    assert not watch.is_due(100.0 + DOUBT_SECONDS - 0.1)
    assert watch.is_due(100.0 + DOUBT_SECONDS)


def test_whoever_has_caught_up_is_not_looked_at_again() -> None:
    watch = StallWatch()
    watch.doubt(0.0)
    assert watch.look(DOUBT_SECONDS, {7: 10, 8: 4}, {7: 10, 8: 4}) == []
    assert not watch.is_due(1e9)


def test_whoever_is_behind_and_reads_is_not_left_aside() -> None:
    watch = StallWatch()
    watch.doubt(0.0)
    assert looks(watch, DOUBT_SECONDS, [*range(20)], [30] * 20) == [[]] * 20


def test_whoever_stands_still_is_found_once() -> None:
    watch = StallWatch()
    watch.doubt(0.0)
    found = looks(watch, DOUBT_SECONDS, [10] * 20, [*range(11, 31)])
    assert found == [[]] * (LOOKS - 1) + [[7], []]
    watch.doubt(1_000.0)
    found = looks(watch, 1_000.0 + DOUBT_SECONDS, [10] * 5, [40] * 5)
    assert found == [[]], "there may be no record"
    watch.doubt(2_000.0)
    assert looks(watch, 2_000.0 + DOUBT_SECONDS, [20] * 9, [40] * 9)[LOOKS - 1] == [7]


def test_a_further_change_has_it_begin_anew() -> None:
    watch = StallWatch()
    watch.doubt(0.0)
    looks(watch, DOUBT_SECONDS, [10] * (LOOKS - 1), [20] * (LOOKS - 1))
    watch.doubt(50.0)
    assert not watch.is_due(50.0)
    assert looks(watch, 50.0 + DOUBT_SECONDS, [10] * LOOKS, [20] * LOOKS)[-1] == [7]


def test_a_log_that_does_not_say_where_it_ends_is_asked_again() -> None:
    watch = StallWatch()
    watch.doubt(0.0)
    watch.postpone(DOUBT_SECONDS)
    assert not watch.is_due(DOUBT_SECONDS)
    assert watch.is_due(DOUBT_SECONDS + AGAIN_SECONDS)
