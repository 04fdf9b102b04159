import pytest

from mqlake.processes.latency import BOUNDS_MS, CLASSES, Latencies, added_up, percentile, since


def counted(*latencies: float) -> list[int]:
    found = Latencies()
    for ms in latencies:
        found.add(ms)
    return found.counts


def test_bounds_rise() -> None:
    assert list(BOUNDS_MS) == sorted(set(BOUNDS_MS))
    assert len(BOUNDS_MS) + 1 == CLASSES


def test_a_latency_counts_in_the_class_that_it_is_the_bound_of() -> None:
    found = Latencies()
    found.add(2.0, 3)
    found.add(2.1)
    found.add(-4.0)
    at = BOUNDS_MS.index(2.0)
    assert (found.counts[at], found.counts[at + 1], found.counts[0]) == (3, 1, 1)
    assert found.sum_ms == pytest.approx(8.1)


def test_percentiles_lie_within_their_class() -> None:
    counts = counted(*[1.4] * 90, *[9.0] * 10)
    p50, p99 = percentile(counts, 0.5), percentile(counts, 0.99)
    assert p50 is not None
    assert p99 is not None
    assert 1.25 < p50 <= 1.5
    assert 8.0 < p99 <= 10.0
    assert percentile(counts, 1.0) == 10.0


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([0] * CLASSES, 0.5) is None


def test_what_is_above_all_bounds_counts_as_the_last() -> None:
    assert percentile(counted(1e9), 0.5) == BOUNDS_MS[-1]


def test_counts_add_up_and_others_are_left_out() -> None:
    one = counted(1.0, 2.0)
    assert sum(added_up([one, one, [1, 2, 3]])) == 4
    assert added_up([]) == [0] * CLASSES


def test_what_was_counted_since_is_never_negative() -> None:
    assert since([3, 2], [1, 5]) == [2, 0]
