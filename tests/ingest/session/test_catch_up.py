"""What somebody has missed: from where it is read, and where he goes live; as a property, too."""

import random
from bisect import bisect_left

import pytest

from ingest.session.client.catch_up import Missed, log_ranges, partition_count
from tests.cases import case
from tests.ingest.simulations import simulations_wanted

ALL = range(4)


def missed(cursor: list[int], ends: list[int], **fields: object) -> Missed:
    return Missed(cursor, ends, 100, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "is_old", "needs_table"),
    [
        ([5, 5], False, False),
        ([5, 5], True, False),
        ([6, 5], True, True),
        ([105, 5], False, False),
        ([105, 6], False, True),
        ([0, 106], False, True),
    ],
)
def test_what_is_long_or_old_is_read_from_the_table(
    ends: list[int], is_old: bool, needs_table: bool
) -> None:
    assert missed([5, 5], ends, is_old=is_old).needs_table is needs_table


def test_the_table_is_read_in_windows_that_grow_where_little_is_found() -> None:
    one = missed([0, 90], [100, 95], window=10)
    one.begin_table(ALL)
    ranges = one.table_ranges()
    assert ranges == {0: (0, 10), 1: (90, 95)}
    one.take_page(ranges, {0: 10, 1: 95}, has_more=False, is_sparse=True)
    assert one.table_ranges() == {0: (10, 30)}


def test_the_log_goes_on_where_the_table_ends() -> None:
    one = missed([0], [100])
    one.begin_table(ALL)
    ranges = one.table_ranges()
    one.take_page(ranges, {0: 60}, has_more=True, is_sparse=False)
    assert one.table_ranges() == {0: (60, 100)}, "it has more"
    one.take_page(one.table_ranges(), {0: 80}, has_more=False, is_sparse=False)
    assert one.table_ranges() == {}
    assert log_ranges([one], ALL) == {0: (80, 100)}


def test_partitions_that_came_while_somebody_was_away_are_read_from_their_beginning() -> None:
    one = missed([7], [9, 4, 0])
    assert log_ranges([one], ALL) == {0: (7, 9), 1: (0, 4)}
    assert missed([7], [100, 8]).needs_table
    one.begin_table(ALL)
    assert one.table_ranges() == {0: (7, 9), 1: (0, 4)}
    one.pass_by(2, 0)
    one.reach({0: 9, 1: 4})
    assert one.cursor == [9, 4, 1]
    assert not one.follow([9, 4, 3, 2]), "the router has come further in two of them"
    assert log_ranges([one], ALL) == {2: (1, 3), 3: (0, 2)}
    one.reach({2: 3, 3: 2})
    assert one.follow([9, 4, 3, 2])


def test_later_partitions_are_read_by_themselves() -> None:
    one = missed([7], [9, 4, 6, 1])
    assert partition_count([one, missed([0] * 5, [])]) == 5
    assert partition_count([]) == 0
    for partitions, left in (
        (range(1), {0: (7, 9)}),
        (range(1, 4), {1: (0, 4), 2: (0, 6), 3: (0, 1)}),
    ):
        one.begin_table(partitions)
        assert one.table_ranges() == log_ranges([one], partitions) == left


def test_several_are_read_for_together() -> None:
    first, second = missed([5, 0], [10, 9]), missed([7, 9], [20, 9])
    assert log_ranges([first, second], ALL) == {0: (5, 20), 1: (0, 9)}
    assert log_ranges([missed([9], [5])], ALL) == {}, "it has read further than it had to"


@pytest.mark.parametrize(
    ("lost", "begins_anywhere", "is_partial", "loses"),
    [
        ((0, 5), False, False, False),
        ((0, 6), False, False, True),
        ((0, 6), True, False, False),
        ((0, 6), True, True, True),
        ((3, 6), True, False, True),
    ],
)
def test_a_log_that_begins_later_is_a_loss_where_there_were_messages(
    lost: tuple[int, int], begins_anywhere: bool, is_partial: bool, loses: bool
) -> None:
    one = missed([9], [9], begins_anywhere=begins_anywhere, is_partial=is_partial)
    assert one.loses(*lost, 5) is loses


def test_whoever_has_overtaken_the_router_goes_live() -> None:
    one = missed([0, 0], [4, 4], is_old=True)
    one.reach({0: 4, 1: 9})
    assert not one.follow([6, 5])
    assert one.ends == [6, 9]
    assert not one.is_old, "the rest is new"
    one.reach({0: 6})
    assert one.follow([6, 5])
    assert one.cursor == [6, 9]


def test_each_message_comes_once_however_table_log_and_router_go_on() -> None:
    for seed in range(simulations_wanted(300)):
        with case(f"seed {seed}"):
            catch_up(seed)


def catch_up(seed: int) -> None:
    """The table is behind, pages end anywhere, reading the log fails now and then."""
    chance = random.Random(seed)
    partitions = range(chance.randint(1, 3))
    log = [[offset for offset in range(200) if chance.random() < 0.5] for _ in partitions]
    written = [chance.randint(0, 120) for _ in partitions]  # the table has what is before
    routed = [chance.randint(20, 150) for _ in partitions]
    start = [chance.randint(0, 100) for _ in partitions]
    one = Missed(
        list(start),
        [max(at, chance.randint(0, 150)) for at in start],
        chance.randint(0, 100),
        is_old=chance.random() < 0.5,
        window=chance.choice([5, 30, 2**63]),
    )
    got: list[list[int]] = [[] for _ in partitions]

    def read(partition: int, begin: int, end: int) -> list[int]:
        offsets = log[partition]
        return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]

    def take(partition: int, offsets: list[int]) -> None:
        got[partition] += [offset for offset in offsets if offset >= one.cursor[partition]]

    for _ in range(1000):
        if one.needs_table:
            one.begin_table(ALL)
            while ranges := one.table_ranges():
                next_offsets = {}
                has_more = False
                for partition, (begin, end) in ranges.items():
                    there = min(end, written[partition])
                    stop = (
                        there if chance.random() < 0.5 else chance.randint(begin, max(begin, there))
                    )
                    has_more = has_more or stop < there
                    next_offsets[partition] = max(begin, stop)
                for partition, stop in next_offsets.items():
                    take(partition, read(partition, ranges[partition][0], stop))
                one.take_page(
                    ranges, next_offsets, has_more=has_more, is_sparse=chance.random() < 0.3
                )
        reached = {}
        fails = chance.random() < 0.3
        for partition, (begin, end) in log_ranges([one], ALL).items():
            stop = chance.randint(begin, end) if fails else end
            take(partition, read(partition, begin, stop))
            reached[partition] = stop
        one.reach(reached)
        if fails:
            continue
        if one.follow(routed):
            break
        routed = [min(200, at + chance.randint(0, 10)) for at in routed]
    else:
        pytest.fail("it never goes live")
    for partition in partitions:
        assert one.cursor[partition] >= routed[partition]
        assert got[partition] == read(partition, start[partition], one.cursor[partition])
