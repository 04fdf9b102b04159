"""Order, duplicates and holes."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.brokers.chains import Chains, Hole, RecentIds
from ingest.federation.envelope import ChainKey, SiteMessage

KEY = ChainKey(1, 1, "a")


def message(sequence: int, after: int, *, key: ChainKey = KEY, since: float = 0.0) -> SiteMessage:
    return SiteMessage(key, sequence, after, 0, 0, b"", 1, False, since=since)


def chains(**limits: float) -> Chains:
    settings = {"ask_seconds": 0.1, "again_seconds": 1.0, "patience_seconds": 10.0} | limits
    most = int(settings.pop("most", 100))
    return Chains(most, most_waiting=int(settings.pop("most_waiting", 100)), **settings)


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
def test_any_order_of_coming_is_delivered_once_in_order(order: list[int], again: list[int]) -> None:
    marks = chains()
    delivered: list[int] = []
    for sequence in [*order, *again]:
        one = message(sequence, sequence - 1)
        if not marks.has_seen(one):
            delivered += [m.sequence for m in marks.admit(one, 2, 0.0, -10.0)]
    assert delivered == list(range(1, 9))
    assert marks.waiting == 0


def test_a_chain_begins_where_its_site_began_to_want_it() -> None:
    marks = chains()
    late = SiteMessage(KEY, 7, 4, 5_000, 0, b"", 1, False, since=100.0)
    assert marks.admit(late, 2, 100.0, 96.0) == [late]  # the one before was published at 95


def test_a_hole_is_asked_for_again_and_given_up() -> None:
    marks = chains()
    marks.admit(message(1, 0), 2, 0.0, -1.0)
    assert marks.admit(message(5, 3), 2, 0.0, -1.0) == []
    assert list(marks.holes(0.05)) == []
    assert list(marks.holes(0.1)) == [Hole(KEY, 1, 3, source=2, times_asked=0)]
    assert list(marks.holes(0.5)) == []
    assert list(marks.holes(1.1)) == [Hole(KEY, 1, 3, source=2, times_asked=1)]
    marks.hurry(KEY)
    assert list(marks.holes(1.2)) == [Hole(KEY, 1, 3, source=2, times_asked=2)]
    assert [one.sequence for one in marks.give_up(10.0)] == [5]
    assert marks.given_up == 1
    assert marks.has_seen(message(3, 1))


def test_the_beginning_is_not_waited_for_when_nobody_has_it() -> None:
    marks = chains()
    assert marks.admit(message(5, 3, since=50.0), 2, 50.0, 0.0) == []
    assert marks.lack(KEY, 2) == []  # asked for when the hole was another one
    assert [one.sequence for one in marks.lack(KEY, 3)] == [5]
    assert marks.given_up == 0


def test_a_hole_in_a_known_chain_is_waited_for_though_nobody_has_it() -> None:
    marks = chains()
    marks.admit(message(1, 0), 2, 0.0, -1.0)
    marks.admit(message(5, 3), 2, 0.0, -1.0)
    assert marks.lack(KEY, 3) == []
    assert [one.sequence for one in marks.admit(message(3, 1), 2, 0.0, -1.0)] == [3, 5]


def test_the_quietest_chain_is_forgotten_and_counted() -> None:
    marks = chains(most=2)
    for number in range(3):
        key = ChainKey(1, 1, str(number))
        marks.admit(message(1, 0, key=key), 2, 0.0, -1.0)
    assert len(marks) == 2
    assert marks.forgotten == 1
    assert not marks.has_seen(message(1, 0, key=ChainKey(1, 1, "0")))


def test_too_many_that_wait_go_on_above_the_oldest_hole() -> None:
    marks = chains(most_waiting=3)
    marks.admit(message(1, 0), 2, 0.0, -1.0)
    delivered = [
        one.sequence
        for sequence in range(3, 8)
        for one in marks.admit(message(sequence, sequence - 1), 2, 0.0, -1.0)
    ]
    assert delivered == [3, 4, 5, 6, 7]
    assert marks.given_up == 1


def test_marks_of_a_former_run_count() -> None:
    marks = chains()
    marks.load([(KEY, 5)])
    assert marks.has_seen(message(5, 4))
    assert [one.sequence for one in marks.admit(message(6, 5), 2, 0.0, 0.0)] == [6]
    assert marks.changed == {KEY: 6}


def test_recent_identifiers_overflow_and_are_counted() -> None:
    marks = RecentIds(2)
    for sequence in (3, 1, 2):
        assert marks.admit(message(sequence, 0), 2, 0.0, 0.0)
    assert marks.overflowed == 1
    assert not marks.has_seen(message(3, 0))
    assert marks.has_seen(message(1, 0))
