"""How many identifiers are to be remembered: the highest rate times the longest outage."""

from ingest.federation.brokers.cache_need import CacheNeed


def test_rate_and_outage_are_the_highest_that_there_were() -> None:
    need = CacheNeed(15.0)
    there = {2: True, 3: True}
    need.look(0, there, 0.0)
    assert need.identifiers == 0
    need.look(1_000, there, 10.0)
    assert (need.rate, need.identifiers) == (100.0, 1_500)
    need.look(1_010, {2: True, 3: False}, 20.0)
    need.look(1_020, {2: False, 3: False}, 30.0)
    need.look(1_030, {2: True, 3: False}, 80.0)
    need.look(1_040, there, 90.0)
    assert (need.rate, need.outage_seconds, need.identifiers) == (100.0, 60.0, 6_000)


def test_each_absence_counts_by_itself() -> None:
    need = CacheNeed(1.0)
    for at in range(0, 100, 10):
        need.look(0, {2: at % 20 == 0}, float(at))
    assert need.outage_seconds == 1.0


def test_a_neighbour_that_is_none_any_more_is_not_away() -> None:
    need = CacheNeed(1.0)
    need.look(0, {2: False}, 0.0)
    need.look(0, {}, 5.0)
    need.look(0, {}, 50.0)
    assert need.outage_seconds == 1.0
