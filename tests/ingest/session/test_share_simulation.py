"""A share group loses nothing and doubles nothing in thousands of small worlds.

Each planted fault is found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from ingest.gateway.sending.outbox import Outbox
from ingest.session.groups import (
    share_acts,
    share_choices,
    share_membership,
    share_routes,
    share_table,
)
from ingest.session.groups.share_groups import GroupsOfShard
from ingest.session.groups.share_membership import (
    Announce,
    AskToBegin,
    AskToGo,
    GroupMembership,
    SaveMembership,
    Serve,
    WithdrawOwn,
)
from ingest.session.groups.share_records import MembershipState, ShareGap
from ingest.session.groups.share_table import GroupTable, Outlook
from ingest.session.shard.effects import AppendRecords
from tests.ingest.session import share_simulation
from tests.ingest.session.share_simulation import (
    ShareProcess,
    ShareWorld,
    frozen,
    make_schedule,
    search,
    with_lost_deliveries,
    with_stored_sessions,
)
from tests.ingest.session.simulation.search import explain
from tests.ingest.simulations import simulations_wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.groups.open_work import Position
    from ingest.session.groups.share_records import GroupKey
    from mqlake.records.shards import Run
    from tests.ingest.session.simulation.schedule import Schedule

CHUNKS: Final = 5
SCHEDULES: Final = simulations_wanted(500)
LOST: Final = simulations_wanted(150)
"""Schedules in which deliveries of a dead gateway are gone before it is settled."""
FREEZES: Final = simulations_wanted(60)
"""Schedules in which a machine is frozen, and its clocks with it."""
STORED: Final = simulations_wanted(250)
"""Schedules in which stored sessions are members and appends time out."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_a_promise(chunk: int) -> None:
    size = SCHEDULES // CHUNKS
    found = search(range(chunk * size, (chunk + 1) * size))
    assert found is None, explain(found[0], ShareWorld)


def test_deliveries_that_are_gone_at_a_settlement_break_no_promise() -> None:
    found = search(range(LOST), with_lost_deliveries)
    assert found is None, explain(found[0], ShareWorld)


def test_a_machine_that_was_frozen_breaks_no_promise() -> None:
    found = search(range(FREEZES), frozen)
    assert found is None, explain(found[0], ShareWorld)


def test_stored_sessions_and_appends_that_time_out_break_no_promise() -> None:
    found = search(range(STORED), with_stored_sessions)
    assert found is None, explain(found[0], ShareWorld)


@pytest.mark.parametrize(
    ("make", "said"), [(make_schedule, "acknowledged"), (with_stored_sessions, "PUBLISH")]
)
def test_a_schedule_is_the_same_each_time(make: Callable[[int], Schedule], said: str) -> None:
    transcripts: list[list[str]] = [[], []]
    for transcript in transcripts:
        ShareWorld(make(7), transcript).run()
    assert transcripts[0] == transcripts[1]
    assert any(said in line for line in transcripts[0])


Patch = pytest.MonkeyPatch


def begin_beside_who_goes(patch: Patch) -> None:
    """A membership begins beside one whose route is about to be withdrawn."""
    patch.setattr(share_table, "_GOING", frozenset())


def begin_beside_who_is_settled(patch: Patch) -> None:
    """A membership begins beside one whose gateway is dead and whose route is being withdrawn."""
    patch.setattr(share_table, "_GOING", frozenset({MembershipState.LEAVING}))


def go_at_once(patch: Patch) -> None:
    """A route is withdrawn though a membership that began beside it has none yet."""
    patch.setattr(GroupTable, "can_go", lambda *_: True)


def settle_without_reading(patch: Patch) -> None:
    """What a dead gateway was given since its last record is forgotten."""
    patch.setattr(share_acts, "_add_given", lambda *_: None)


def forget_what_is_gone_unread(patch: Patch) -> None:
    """Deliveries that the log has removed before they were read are not looked for."""
    patch.setattr(share_acts, "_add_gap", lambda *_: None)


def take_all_that_is_gone(patch: Patch) -> None:
    """What the dead gateway's deliveries may have been is read, whoever had it."""
    patch.setattr(share_simulation, "is_meant", lambda *_: True)


def take_what_an_earlier_route_brought(patch: Patch) -> None:
    """Lost deliveries to an earlier membership of the gateway are taken for the later one's."""
    patch.setattr(share_routes, "_last_presence", lambda states, _: range(len(states)))


def give_nobodys_to_the_dead(patch: Patch) -> None:
    """What came when the route had been withdrawn counts as given."""
    narrowed = share_choices.Chosen.narrowed
    patch.setattr(
        share_choices.Chosen, "narrowed", lambda chosen, end: (narrowed(chosen, end)[0], end)
    )


def let_the_dead_speak(patch: Patch) -> None:
    """Records of a gateway count that was settled."""
    patch.setattr(share_table, "_OVER", frozenset())


def forget_what_is_gone(patch: Patch) -> None:
    """A record of a membership counts whose work was taken over."""
    remove = GroupTable._remove

    def without_fence(table: GroupTable, *args: Any) -> None:
        remove(table, *args)
        table._gone.clear()

    patch.setattr(GroupTable, "_remove", without_fence)


def tell_before_it_is_written(patch: Patch) -> None:
    """Who takes over is told, and the shard does not say so."""

    async def assign(groups: GroupsOfShard, left: Any, assignee_id: str) -> None:
        assignee = groups.table.get(left.group, assignee_id)
        if assignee is not None:
            await share_acts.tell_to_take_over(assignee, left)

    patch.setattr(share_acts, "assign", assign)


def bury_what_is_told(patch: Patch) -> None:
    """What has left is void before the record of another membership has it."""
    tell = share_acts.tell_to_take_over
    records: list[Any] = []

    async def assign(groups: GroupsOfShard, left: Any, assignee_id: str) -> None:
        assignee = groups.table.get(left.group, assignee_id)
        if assignee is not None:
            await tell(assignee, left)
            records.append(groups.tombstone(left.membership_id, left.group))
            await AppendRecords([records[-1]])

    patch.setattr(share_acts, "assign", assign)


def leave_the_rest(patch: Patch) -> None:
    """What was begun to be settled is not finished when its gateway is there again."""
    patch.setattr(GroupTable, "is_settling", lambda *_: False)


def share_a_route(patch: Patch) -> None:
    """A membership begins while an earlier one of its gateway is settled: they have one route."""
    outlook = share_table._outlook

    def look(group: Any, membership: Any) -> Outlook | None:
        others = {
            membership_id: one
            for membership_id, one in group.memberships.items()
            if one.gateway != membership.gateway or membership_id == membership.membership_id
        }
        return outlook(replace(group, memberships=others), membership)

    patch.setattr(share_table, "_outlook", look)


def tell_nobody_that_it_is_lost(patch: Patch) -> None:
    """A gateway that was settled is not told."""
    patch.setattr(GroupsOfShard, "_tell_lost", lambda *_: None)


def _belong(patch: Patch, without: str) -> None:
    """Be a membership that leaves out a step."""

    async def belong(membership: GroupMembership, now_ms: Callable[[], int]) -> None:
        begin = await AskToBegin()
        if begin.starts is not None:
            membership.begin(begin.starts)
            if without != "saying that it begins":
                await SaveMembership()
            await Announce()
        else:
            membership.given = None if begin.given is None else list(begin.given)
            starts = await Announce()
            membership.begin(starts)
            if begin.given is not None and without != "the gap":
                gap = ShareGap(list(begin.given), list(starts), begin.since_ms or now_ms())
                if not gap.is_empty:
                    membership.gaps.append(gap)
        membership.state = MembershipState.LIVE
        if without != "saying that it is live":
            await SaveMembership()
        await Serve()
        membership.state = MembershipState.LEAVING
        if without != "asking to go":
            await AskToGo()
        if without != "withdrawing":
            await WithdrawOwn()
        membership.state = MembershipState.LEFT
        await SaveMembership()

    patch.setattr(share_membership, "belong", belong)
    patch.setattr(share_simulation, "belong", belong)


def read_no_gap(patch: Patch) -> None:
    """The first membership does not read what nobody was given."""
    _belong(patch, "the gap")


def serve_before_it_is_said(patch: Patch) -> None:
    """Members are served before the log says that the membership is live."""
    _belong(patch, "saying that it is live")


def leave_without_asking(patch: Patch) -> None:
    """A membership withdraws its route whoever needs it."""
    _belong(patch, "asking to go")


def leave_with_a_route(patch: Patch) -> None:
    """A membership says that it has left while the router gives to it."""
    _belong(patch, "withdrawing")


def withdraw_what_an_earlier_run_has(patch: Patch) -> None:
    """A gateway that is back withdraws the route of a membership that is not settled."""
    begin = ShareProcess.__init__

    def withdraw(self: ShareProcess, world: ShareWorld, slot: int, me: Run, since: int) -> None:
        begin(self, world, slot, me, since)
        world.send_route(self, is_there=False)
        self.round(lambda _: None)

    patch.setattr(ShareProcess, "__init__", withdraw)


def take_what_was_for_an_earlier_run(patch: Patch) -> None:
    """A membership takes what comes by the route of one that is settled meanwhile."""
    patch.setattr(share_simulation, "NOT_KNOWN", 0)


def let_go_before_the_log_has_the_members_record(patch: Patch) -> None:
    """The membership's record leaves out what no record of the member has."""
    give = Outbox.give
    patch.setattr(Outbox, "give", lambda outbox, one, **_: give(outbox, one, is_written=True))


def leave_to_nobody_what_was_not_sent(patch: Patch) -> None:
    """What a session that moves was given and not sent goes to nobody."""
    patch.setattr(GroupTable, "unsent", lambda *_: [])


def leave_to_the_session_what_was_given_back(patch: Patch) -> None:
    """What it was not sent counts as its own, whoever has got it meanwhile."""
    in_flight = GroupTable.in_flight

    def of_all_runs(table: GroupTable, group: GroupKey, _: str) -> set[Position]:
        return set().union(*(in_flight(table, group, f"i{run}") for run in range(10)))

    patch.setattr(GroupTable, "in_flight", of_all_runs)


def settle_what_is_in_flight(patch: Patch) -> None:
    """What sessions have in flight counts as their dead gateway's."""
    patch.setattr(GroupTable, "in_flight", lambda *_: set())


def send_what_others_have_got(patch: Patch) -> None:
    """A gateway that was taken for dead goes on giving what its membership was settled with."""
    patch.setattr(Outbox, "leave_to_others", lambda *_: [])


MUTANTS: Final = [
    begin_beside_who_goes,
    begin_beside_who_is_settled,
    go_at_once,
    settle_without_reading,
    forget_what_is_gone_unread,
    take_all_that_is_gone,
    take_what_an_earlier_route_brought,
    give_nobodys_to_the_dead,
    let_the_dead_speak,
    forget_what_is_gone,
    tell_before_it_is_written,
    bury_what_is_told,
    leave_the_rest,
    share_a_route,
    tell_nobody_that_it_is_lost,
    read_no_gap,
    serve_before_it_is_said,
    leave_without_asking,
    leave_with_a_route,
    withdraw_what_an_earlier_run_has,
    take_what_was_for_an_earlier_run,
    let_go_before_the_log_has_the_members_record,
    leave_to_nobody_what_was_not_sent,
    leave_to_the_session_what_was_given_back,
    settle_what_is_in_flight,
    send_what_others_have_got,
]

OF_LOST_DELIVERIES: Final = (
    forget_what_is_gone_unread,
    take_all_that_is_gone,
    take_what_an_earlier_route_brought,
    give_nobodys_to_the_dead,
)
OF_STORED_SESSIONS: Final = (
    let_go_before_the_log_has_the_members_record,
    leave_to_nobody_what_was_not_sent,
    leave_to_the_session_what_was_given_back,
    settle_what_is_in_flight,
    send_what_others_have_got,
)

RARE: Final[dict[Callable[[Patch], None], range]] = {
    forget_what_is_gone: range(1_675, 1_685),
    give_nobodys_to_the_dead: range(135, 145),
    take_what_an_earlier_route_brought: range(2_137, 2_147),
    begin_beside_who_is_settled: range(20_910, 20_920),
    go_at_once: range(3_035, 3_045),
    leave_the_rest: range(3_565, 3_575),
    share_a_route: range(11_185, 11_195),
    tell_nobody_that_it_is_lost: range(1_725, 1_735),
    withdraw_what_an_earlier_run_has: range(17_355, 17_365),
    take_what_was_for_an_earlier_run: range(11_190, 11_200),
    leave_to_the_session_what_was_given_back: range(300, 310),
    send_what_others_have_got: range(1_620, 1_630),
}
"""Seeds with one that finds it: one schedule in hundreds or thousands does."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_fault_is_found(
    mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    make = with_lost_deliveries if mutant in OF_LOST_DELIVERIES else make_schedule
    if mutant in OF_STORED_SESSIONS:
        make = with_stored_sessions
    assert search(RARE.get(mutant, range(1_000, 3_000)), make) is not None, mutant.__doc__
