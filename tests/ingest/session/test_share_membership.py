"""What a membership takes over, and what it says of that."""

from ingest.session.groups.open_work import OpenWork
from ingest.session.groups.share_membership import GroupMembership
from ingest.session.groups.share_records import (
    GroupKey,
    MembershipRecord,
    MembershipState,
    ShareGap,
)
from mqlake.records.shards import Run

GROUP = GroupKey("t", "$share/g/a/#")


def live_membership() -> GroupMembership:
    membership = GroupMembership(GROUP, Run("gateway-1", "run"), "0a")
    membership.begin([5, 5])
    membership.state = MembershipState.LIVE
    return membership


def left_membership() -> MembershipRecord:
    left = MembershipRecord("0b", GROUP, "gateway-2", "run", MembershipState.LEFT, given=[9, 3])
    left.open = OpenWork([(0, 7), (0, 8)])
    left.gaps = [ShareGap([1, 1], [2, 2], 99)]
    return left


def test_what_another_has_left_is_taken_over_once() -> None:
    membership = live_membership()
    assert membership.take_over(left_membership())
    assert set(membership.unread) == {(0, 7), (0, 8)}
    assert membership.gaps == [ShareGap([1, 1], [2, 2], 99)]
    assert membership.given == [9, 5]
    membership.unread.clear()
    assert not membership.take_over(left_membership()), "the owner has told it again"
    assert not membership.unread
    membership.forget_taken_over(["0b"])
    assert membership.taken_over == []
    assert not membership.take_over(left_membership()), "an answer that was late"


def test_only_a_live_part_takes_over() -> None:
    for state in (MembershipState.JOINING, MembershipState.LEAVING, MembershipState.LEFT):
        membership = live_membership()
        membership.state = state
        assert not membership.take_over(left_membership())
    membership = live_membership()
    membership.is_lost = True
    assert not membership.take_over(left_membership())


def test_records_are_counted_and_keep_what_they_said() -> None:
    membership = live_membership()
    membership.gaps = [ShareGap([1, 1], [2, 2], 99)]
    first = membership.record(OpenWork([(0, 7)]), 3, [2, 5], 12)
    membership.gaps[0].start[0] = 2
    second = membership.record(OpenWork(), 4, [2, 6], 13)
    assert (first.number, second.number) == (1, 2)
    assert first.gaps == [ShareGap([1, 1], [2, 2], 99)]
    assert (first.next, first.at_ms, first.run) == (3, 12, Run("gateway-1", "run"))
