"""What the records of a shard say of its share groups, in their order."""

import pytest

from ingest.session.groups.share_records import (
    GroupKey,
    MemberRecord,
    MembershipRecord,
    MembershipState,
    encode_member,
    encode_membership,
)
from ingest.session.groups.share_table import FENCE_MS, GroupTable, Outlook
from mqlake.records.shards import Run, Stamp

GROUP = GroupKey("t", "$share/g/a/#")
BY_GATEWAY = Stamp("i", 0, None)
OWNER = 10


class Log:
    """What gateways and the owner write, in its order."""

    def __init__(self) -> None:
        self.table = GroupTable()
        self._number = 0

    def write(
        self,
        membership_id: str,
        state: str,
        starts: list[int] | None = None,
        *,
        taken_over: tuple[str, ...] = (),
        owner: int | None = None,
        run: Run | None = None,
        number: int | None = None,
    ) -> bool:
        gateway, incarnation = run or Run(f"gateway-{membership_id}", "run")
        self._number = self._number + 1 if number is None else number
        record = MembershipRecord(
            membership_id,
            GROUP,
            gateway,
            incarnation,
            MembershipState(state),
            self._number,
            starts=starts,
        )
        record.taken_over = list(taken_over)
        return self.table.apply_membership(
            membership_id, GROUP, encode_membership(record), Stamp("i", 0, owner), OWNER, 0
        )

    def forget(self, membership_id: str, owner: int | None = OWNER) -> bool:
        return self.table.apply_membership(
            membership_id, GROUP, None, Stamp("i", 0, owner), OWNER, 0
        )

    def member(self, client_id: str, epoch: int, *, is_one: bool = True, at_ms: int = 0) -> bool:
        value = encode_member(MemberRecord([(0, epoch)])) if is_one else None
        stamp = Stamp("i", epoch, None)
        return self.table.apply_member(GROUP, client_id, value, stamp, OWNER, at_ms)

    def membership(self, membership_id: str) -> MembershipRecord:
        membership = self.table.get(GROUP, membership_id)
        assert membership is not None
        return membership

    def outlook(self, membership_id: str) -> Outlook | None:
        return self.table.outlook(self.membership(membership_id))

    def ids(self) -> list[str]:
        return [one.membership_id for one in self.table.memberships(GROUP)]


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_part_need_not_wait(log: Log) -> None:
    log.write("a", "joining")
    assert log.outlook("a") == Outlook(None)


def test_a_part_begins_beside_a_live_one(log: Log) -> None:
    log.write("a", "live", [3, 4])
    log.write("b", "joining")
    assert log.outlook("b") == Outlook([3, 4])


def test_who_joins_later_waits_for_the_first(log: Log) -> None:
    log.write("a", "joining")
    log.write("b", "joining")
    assert log.outlook("a") == Outlook(None)
    assert log.outlook("b") is None
    log.write("a", "live", [1, 1])
    assert log.outlook("b") == Outlook([1, 1])


def test_who_comes_behind_the_last_that_leaves_waits_until_it_has(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.write("a", "leaving", [1, 1])
    log.write("b", "joining")
    assert log.outlook("b") is None
    log.write("a", "left", [1, 1])
    assert log.outlook("b") == Outlook(None)


def test_what_is_said_to_who_joins_does_not_change(log: Log) -> None:
    """It may have been told; who leaves waits for it."""
    log.write("a", "live", [1, 1])
    log.write("b", "joining")
    log.write("a", "leaving", [1, 1])
    assert log.outlook("b") == Outlook([1, 1])
    assert not log.table.can_go(log.membership("a"))
    log.write("b", "live", [1, 1])
    assert log.table.can_go(log.membership("a"))


def test_who_leaves_does_not_wait_for_those_that_come_later(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.write("a", "leaving", [1, 1])
    log.write("b", "joining")
    assert log.table.can_go(log.membership("a"))


def test_a_gateway_joins_again_when_its_earlier_run_is_settled(log: Log) -> None:
    """Both have one route: withdrawing that of the dead run would take that of the new one."""
    log.write("a", "live", [1, 1], run=Run("g", "old"))
    log.write("b", "joining", run=Run("g", "new"))
    assert log.outlook("b") is None
    log.write("a", "left", [1, 1], run=Run("g", "old"), owner=OWNER)
    assert log.outlook("b") == Outlook(None)


def test_a_dead_part_stands_until_who_begins_beside_it_has_a_route(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.write("b", "joining")
    log.write("a", "settling", [1, 1], owner=OWNER)
    log.write("c", "joining")
    assert not log.table.can_go(log.membership("a"))
    assert log.outlook("c") is None, "nobody begins beside one that is settled"
    log.write("b", "live", [1, 1])
    assert log.table.can_go(log.membership("a"))
    assert log.outlook("c") == Outlook([1, 1])


def test_what_was_begun_to_be_settled_is_listed_until_it_is_over(log: Log) -> None:
    run = Run("gateway-a", "run")
    log.write("a", "live", [1, 1])
    assert not log.table.is_settling(run)
    log.write("a", "settling", [1, 1], owner=OWNER)
    assert log.table.is_settling(run)
    assert not log.write("a", "live", [1, 1]), "of its gateway nothing counts any more"
    log.write("a", "left", [1, 1], owner=OWNER)
    assert not log.table.is_settling(run)


def test_a_part_that_was_taken_is_void(log: Log) -> None:
    log.write("x", "left", [1, 1])
    log.write("a", "live", [1, 1], taken_over=("x",))
    assert log.ids() == ["a"]
    assert log.table.over == {"x": GROUP}
    assert not log.write("x", "left", [1, 1])
    log.forget("x")
    assert not log.table.over
    log.forget("a")
    assert log.ids() == []
    assert not log.table.is_kept(GROUP)


def test_who_was_settled_says_nothing_more(log: Log) -> None:
    log.write("a", "live", [1, 1])
    assert log.write("a", "left", [1, 1], owner=OWNER)
    assert not log.write("a", "live", [1, 1])
    assert not log.table.is_kept(GROUP)
    log.forget("a")
    assert not log.write("a", "live", [1, 1])
    assert log.ids() == []


def test_an_earlier_owner_decides_nothing(log: Log) -> None:
    log.write("a", "live", [1, 1])
    assert not log.write("a", "left", [1, 1], owner=OWNER - 1)
    assert not log.forget("a", OWNER - 1)
    assert not log.forget("a", None)
    assert log.membership("a").state is MembershipState.LIVE


def test_what_is_written_again_does_not_count_over_something_newer(log: Log) -> None:
    log.write("a", "live", [1, 1], number=5)
    assert not log.write("a", "live", [1, 1], number=4, owner=OWNER)


def test_a_member_keeps_its_group_until_its_session_ends(log: Log) -> None:
    assert log.member("c", 3)
    assert log.table.is_kept(GROUP)
    assert log.table.in_flight(GROUP, "run") == {(0, 3)}
    assert log.member("c", 3, is_one=False)
    assert not log.table.is_kept(GROUP)
    assert not log.member("c", 2), "of an earlier holder"
    assert log.member("c", 4)


def test_what_a_session_had_in_flight_at_a_gateway_before_stays_its_own(log: Log) -> None:
    """It may be done with it elsewhere before the membership of the dead gateway is settled."""
    log.member("c", 3)
    log.member("c", 4)
    assert log.table.in_flight(GROUP, "run") == {(0, 3), (0, 4)}
    log.member("c", 5)
    assert log.table.in_flight(GROUP, "run") == {(0, 3), (0, 4), (0, 5)}
    log.member("c", 5, is_one=False)
    assert log.table.in_flight(GROUP, "run") == set(), "its session has ended: others get it"
    log.member("c", 6)
    log.member("c", 7, at_ms=FENCE_MS)
    assert log.table.in_flight(GROUP, "run") == {(0, 6), (0, 7)}
    log.member("c", 8, at_ms=2 * FENCE_MS)
    assert log.table.in_flight(GROUP, "run") == {(0, 7), (0, 8)}


def test_what_a_session_that_moved_does_not_know_of_is_left_to_others_once(log: Log) -> None:
    def write(epoch: int, record: MemberRecord, at_ms: int = 0) -> None:
        stamp = Stamp(f"i{epoch}", epoch, None)
        assert log.table.apply_member(GROUP, "c", encode_member(record), stamp, OWNER, at_ms)

    write(3, MemberRecord([(0, 1), (0, 2), (0, 3)], [7, 8, 9]))
    assert log.table.unsent(GROUP) == []
    write(4, MemberRecord([(0, 2)], [8], known_packet_id=8), at_ms=12)
    [left] = log.table.unsent(GROUP)
    assert (set(left.open), left.state, left.at_ms) == ({(0, 3)}, MembershipState.LEFT, 12)
    assert log.table.groups_with_unsent() == [GROUP]
    assert log.table.in_flight(GROUP, "i3") == {(0, 1), (0, 2), (0, 3)}
    assert log.table.in_flight(GROUP, "i4") == {(0, 1), (0, 2)}, "its membership may get it"
    write(4, MemberRecord([], [], known_packet_id=8))
    assert log.table.unsent(GROUP) == [left]
    assert not log.write(left.membership_id, "left", owner=OWNER - 1)
    assert log.table.unsent(GROUP) == [left], "an earlier owner's record does not count"
    log.write(left.membership_id, "left", owner=OWNER)
    assert log.table.unsent(GROUP) == []
    log.write("a", "live", [0], taken_over=(left.membership_id,))
    assert log.forget(left.membership_id)
    assert log.table.unsent(GROUP) == []
    write(5, MemberRecord([], [], known_packet_id=8))
    assert log.table.unsent(GROUP) == []


def test_what_was_given_back_is_its_new_memberships_though_its_run_had_it_before(log: Log) -> None:
    for epoch, record in ((3, MemberRecord([(0, 3)], [9])), (4, MemberRecord([], [], 8))):
        stamp = Stamp(f"i{epoch}", epoch, None)
        log.table.apply_member(GROUP, "c", encode_member(record), stamp, OWNER, 0)
    [left] = log.table.unsent(GROUP)
    value = encode_membership(left)
    log.table.apply_membership(left.membership_id, GROUP, value, Stamp("i", 0, OWNER), OWNER, 0)
    assert log.table.in_flight(GROUP, "i3") == {(0, 3)}
    log.write("a", "live", [0], taken_over=(left.membership_id,), run=Run("gateway-a", "i3"))
    assert log.table.in_flight(GROUP, "i3") == set()


def test_what_others_had_got_before_the_members_record_came_is_not_left_to_others_again(
    log: Log,
) -> None:
    """The gateway was taken for dead, and writes it when it goes on."""
    left = MembershipRecord("a", GROUP, "gateway-a", "i3", MembershipState.LEFT, 1)
    left.open.add(0, 3)
    by_owner = Stamp("i", 0, OWNER)
    assert log.table.apply_membership("a", GROUP, encode_membership(left), by_owner, OWNER, 0)
    log.write("b", "live", [0], taken_over=("a",))
    assert log.forget("a")
    for epoch, record in ((3, MemberRecord([(0, 3)], [9])), (4, MemberRecord([], [], 8))):
        stamp = Stamp(f"i{epoch}", epoch, None)
        log.table.apply_member(GROUP, "c", encode_member(record), stamp, OWNER, 0)
    assert log.table.unsent(GROUP) == []
    assert log.table.in_flight(GROUP, "run") == set(), "b's gateway may die"
    assert log.table.settled(GROUP, "a") == left
    log.table.prune(FENCE_MS + 1)
    assert log.table.settled(GROUP, "a") is None


def test_fences_are_forgotten(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.forget("a")
    log.member("c", 3)
    log.member("c", 3, is_one=False)
    log.table.prune(FENCE_MS)
    assert log.table.member(GROUP, "c") is not None
    log.table.prune(FENCE_MS + 1)
    assert log.table.member(GROUP, "c") is None
    assert log.table.groups() == []


def test_only_what_has_to_be_looked_after_is_listed(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.write("b", "live", [1, 1])
    run = Run("gateway-a", "run")
    assert set(log.table.runs()) == {run, Run("gateway-b", "run")}
    assert [one.membership_id for one in log.table.of_run(run)] == ["a"]
    assert log.table.groups_with_left() == []
    log.write("a", "left", [1, 1])
    assert log.table.runs() == [Run("gateway-b", "run")]
    assert log.table.groups_with_left() == [GROUP]
    log.forget("a")
    log.forget("b")
    assert log.table.runs() == []
    assert log.table.groups_with_left() == []
    assert log.table.groups() == []
