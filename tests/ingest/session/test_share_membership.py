"""What a part takes over, and what it says of that."""

from ingest.session.open_work import OpenWork
from ingest.session.share_membership import GroupPart
from ingest.session.share_parts import GroupKey, PartRecord, PartState, ShareGap
from mqlake.shard_records import Run

GROUP = GroupKey("t", "$share/g/a/#")


def live_part() -> GroupPart:
    part = GroupPart(GROUP, Run("gateway-1", "run"), "0a")
    part.begin([5, 5])
    part.state = PartState.LIVE
    return part


def left_part() -> PartRecord:
    left = PartRecord("0b", GROUP, "gateway-2", "run", PartState.LEFT, given=[9, 3])
    left.open = OpenWork([(0, 7), (0, 8)])
    left.gaps = [ShareGap([1, 1], [2, 2], 99)]
    return left


def test_what_another_has_left_is_taken_over_once() -> None:
    part = live_part()
    assert part.take_over(left_part())
    assert set(part.unread) == {(0, 7), (0, 8)}
    assert part.gaps == [ShareGap([1, 1], [2, 2], 99)]
    assert part.given == [9, 5]
    part.unread.clear()
    assert not part.take_over(left_part()), "the owner has told it again"
    assert not part.unread
    part.forget_taken(["0b"])
    assert part.took == []
    assert not part.take_over(left_part()), "an answer that was late"


def test_only_a_live_part_takes_over() -> None:
    for state in (PartState.JOINING, PartState.LEAVING, PartState.LEFT):
        part = live_part()
        part.state = state
        assert not part.take_over(left_part())
    part = live_part()
    part.is_lost = True
    assert not part.take_over(left_part())


def test_records_are_counted_and_keep_what_they_said() -> None:
    part = live_part()
    part.gaps = [ShareGap([1, 1], [2, 2], 99)]
    first = part.record(OpenWork([(0, 7)]), 3, [2, 5], 12)
    part.gaps[0].start[0] = 2
    second = part.record(OpenWork(), 4, [2, 6], 13)
    assert (first.number, second.number) == (1, 2)
    assert first.gaps == [ShareGap([1, 1], [2, 2], 99)]
    assert (first.next, first.at_ms, first.run) == (3, 12, Run("gateway-1", "run"))
