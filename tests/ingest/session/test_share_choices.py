"""Routes and notes tell which messages a gateway was given for a group; else that nobody knows."""

import json
from typing import Any

import pytest

from ingest.session.groups import share_acts, share_routes
from ingest.session.groups.open_work import OpenWork
from ingest.session.groups.share_choices import Chosen, decode_chosen
from ingest.session.groups.share_records import (
    GroupKey,
    MemberRecord,
    MembershipRecord,
    encode_member,
)
from ingest.session.groups.share_routes import (
    LOG_KEEPS_MS,
    ROUTER_KEEPS_MS,
    ROUTER_KEEPS_STATES,
    UNREAD_MS,
    RoutesThen,
)
from ingest.session.groups.share_table import GroupTable
from mqlake.errors import InvalidRecord
from mqlake.records.progress import MarksRecord
from mqlake.records.shards import Stamp
from mqlake.topics.sharing import ShareStrategy, ShareWeight, choose_gateway

GROUP = GroupKey("t", "$share/g/a/#")
FILTER = GROUP.topic_filter
ONE = ShareWeight(1)
NOW_MS = 10**12


class Site:
    """Routes and notes of one partition, each a second after the one before."""

    def __init__(self, began_ms_ago: int = 60_000) -> None:
        self.then = RoutesThen(NOW_MS)
        self.at_ms = NOW_MS - began_ms_ago
        self.routes = 0
        self.written_ms = 0

    def route(self, gateway: str, members: int = 1, group: GroupKey = GROUP) -> None:
        self.at_ms += 1_000
        weight = ShareWeight(members) if members else None
        self.then.add_route(group, gateway, weight, self.routes, self.at_ms)
        self.routes += 1

    def note(self, offset: int, routes: int | None = None, *, late_ms: int = 0) -> None:
        """Have the router put routes in force: all that there are, or up to one."""
        last = self.routes - 1 if routes is None else routes
        self.then.add_note(0, offset, last, self.at_ms + late_ms)

    def chosen(self, gateway: str, start: int, end: int) -> Chosen:
        return self.then.chosen(GROUP, gateway, [start], [end], self.written_ms)

    def names(self, gateway: str, start: int, end: int) -> list[str]:
        """Return who had the group for each message of a range; `?` where that is not known."""
        chosen = self.chosen(gateway, start, end)
        found = [chosen.weights(0, offset) for offset in range(start, end)]
        return ["?" if one is None else "".join(sorted(one)) for one in found]


def test_a_group_is_as_the_routes_in_force_say_at_each_place() -> None:
    site = Site()
    site.route("b")
    site.note(10)
    site.route("c")
    site.note(13)
    site.route("c", 0)
    site.note(16, 1)  # the withdrawal is not in force yet
    site.note(18)
    assert site.names("b", 11, 20) == ["b", "b", "bc", "bc", "bc", "bc", "bc", "b", "b"]
    assert site.names("c", 11, 20) == ["", "", "bc", "bc", "bc", "bc", "bc", "", ""]


def test_other_groups_and_withdrawals_of_nothing_change_nothing() -> None:
    site = Site()
    site.route("b")
    site.note(10)
    site.route("c", 0)
    site.route("c", group=GroupKey("t", "$share/other/a/#"))
    site.note(12)
    assert site.names("b", 10, 14) == ["b"] * 4


def test_an_earlier_route_of_the_name_was_another_memberships() -> None:
    site = Site()
    site.route("b")
    site.route("c")
    site.note(10)
    site.route("b", 0)
    site.note(12)
    site.route("b")
    site.note(14)
    assert site.names("b", 10, 16) == ["", "", "", "", "bc", "bc"]


def test_what_is_given_is_what_the_router_chooses() -> None:
    site = Site()
    site.route("b", 2)
    site.route("c")
    site.note(0)
    chosen = site.chosen("b", 0, 300)
    chosen.in_flight.add(0, 7)
    weights = {"b": ShareWeight(2), "c": ONE}
    expected = [
        offset
        for offset in range(300)
        if offset != 7 and choose_gateway(FILTER, weights, "a/1", "p", 0, offset) == "b"
    ]
    assert 150 < len(expected) < 250
    assert [o for o in range(300) if chosen.has(FILTER, "a/1", "p", 0, o)] == expected


def test_the_way_to_another_site_has_its_part_while_nobody_else_does() -> None:
    site = Site()
    way = ShareWeight(1, ShareStrategy.LAST_RESORT)
    site.then.add_route(GROUP, "way", way, 0, site.at_ms)
    site.routes = 1
    site.note(0)
    site.route("b")
    site.note(5)
    chosen = site.chosen("b", 0, 10)
    assert [chosen.has(FILTER, "a", "p", 0, one) for one in range(10)] == [False] * 5 + [True] * 5


def test_before_the_first_note_nothing_is_known() -> None:
    site = Site()
    site.route("b")
    site.note(12)
    assert site.names("b", 10, 14) == ["?", "?", "b", "b"]
    chosen = site.chosen("b", 10, 14)
    assert chosen.has(FILTER, "a", "p", 0, 10) is None
    assert chosen.has(FILTER, "a", "p", 1, 10) is None  # of a partition that came later
    site.then.forget_notes_but_of([1])
    assert site.names("b", 10, 14) == ["?"] * 4


@pytest.mark.parametrize(("late_ms", "known"), [(ROUTER_KEEPS_MS, True), (-1, False)])
def test_a_router_that_came_too_late_may_have_forgotten_how_it_was(
    late_ms: int, known: bool
) -> None:
    site = Site(2 * ROUTER_KEEPS_MS)
    site.route("b")
    site.note(10)
    site.route("c")
    site.note(12, late_ms=late_ms if known else ROUTER_KEEPS_MS + 1)
    assert site.names("b", 10, 13) == ["b" if known else "?"] * 2 + ["bc"]


def test_what_the_router_repeats_it_has_given_out_when_it_said_so_last() -> None:
    site = Site(2 * ROUTER_KEEPS_MS)
    site.route("b")
    site.note(10)
    site.route("c")
    site.note(12)
    site.note(12, late_ms=ROUTER_KEEPS_MS + 1)
    site.note(12)
    assert site.names("b", 10, 13) == ["?", "?", "bc"]


def test_without_a_later_note_the_router_may_have_come_just_now() -> None:
    site = Site(ROUTER_KEEPS_MS + 60_000)
    site.route("b")
    site.note(10)
    assert site.names("b", 10, 12) == ["b", "b"]
    site.route("c")
    assert site.names("b", 10, 12) == ["?", "?"]


def test_a_router_that_comes_to_many_changes_at_once_knows_the_last_ones() -> None:
    site = Site()
    site.route("b")
    site.note(10)
    for number in range(ROUTER_KEEPS_STATES):
        site.route("c", 1 + number % 2)
    site.note(12, 1)
    site.note(13)
    assert site.names("b", 10, 14) == ["?", "?", "bc", "bc"]


def test_the_log_knows_no_route_that_was_replaced_long_ago() -> None:
    site = Site(LOG_KEEPS_MS + 10_000)
    site.route("b")
    site.note(10)
    site.route("c")  # more than that ago
    site.note(12)
    assert site.names("b", 10, 14) == ["?", "?", "bc", "bc"]


def test_a_record_holds_a_bounded_part_of_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_routes, "MOST_WEIGHTS", 4)
    site = Site()
    site.route("b")
    site.note(10)
    for offset in (11, 12, 13):
        site.route("c", offset)
        site.note(offset)
    assert site.names("b", 10, 14) == ["?", "?", "bc", "bc"]


def test_the_range_is_no_longer_than_the_route_was_there() -> None:
    site = Site()
    site.route("c")
    site.note(8)
    site.route("b")
    site.note(10)
    site.route("b", 0)
    site.note(15)

    def narrowed(start: int, end: int) -> tuple[list[int], list[int]]:
        return site.chosen("b", start, end).narrowed([end])

    assert narrowed(11, 13) == ([11], [13])
    assert narrowed(9, 20) == ([10], [15])
    assert narrowed(16, 20) == ([0], [0])
    assert narrowed(5, 8) == ([5], [8])  # not known: it may have been
    assert narrowed(8, 8) == ([0], [0])


def test_what_was_given_out_long_before_the_gateway_wrote_has_been_read() -> None:
    site = Site(3 * UNREAD_MS)
    site.route("b")
    site.note(10)
    site.note(20, late_ms=UNREAD_MS)
    assert site.names("b", 5, 7) == ["?", "?"]
    site.written_ms = site.at_ms + 2 * UNREAD_MS
    assert site.names("b", 10, 12) == ["b", "b"]
    site.written_ms += 1
    assert site.names("b", 10, 12) == ["", ""]
    assert site.names("b", 5, 7) == ["", ""]
    assert site.names("b", 19, 21) == ["", "b"]


def test_it_survives_its_record() -> None:
    site = Site()
    site.route("b", 3)
    site.note(10)
    site.route("c")
    site.note(12)
    chosen = site.then.chosen(GROUP, "b", [5, 1], [20, 1], 0)
    chosen.in_flight = OpenWork([(0, 7)])
    found = decode_chosen(json.loads(json.dumps(chosen.encode())))
    assert found == chosen


def settled(left: MembershipRecord, marks: MarksRecord | None = None) -> Chosen | None:
    """Have a membership left whose deliveries up to offset 20 are gone; return its gap's."""
    site = Site()
    site.route("b")
    site.note(0)
    table = GroupTable()
    record = encode_member(MemberRecord([(0, 3), (0, 7), (0, 25)]))
    table.apply_member(GROUP, "client", record, Stamp("i", 0, None), 0, 0)
    share_acts._add_gap(table, left, share_acts.GoneDeliveries([20], site.then), marks)
    if not left.gaps:
        return None
    (gap,) = left.gaps
    assert left.given == gap.end == [20]
    chosen = gap.chosen
    assert chosen is not None
    assert chosen.begins == [[(gap.start[0], 1)]]
    return chosen


def test_what_a_session_has_in_flight_is_its_own() -> None:
    left = MembershipRecord("1", GROUP, "b", "i", starts=[1], given=[9], delivered=[5])
    chosen = settled(left)
    assert chosen is not None
    assert left.gaps[0].start == [5]
    assert list(chosen.in_flight) == [(0, 7)]
    assert not chosen.has(FILTER, "a", "p", 0, 7)
    assert chosen.has(FILTER, "a", "p", 0, 8)


@pytest.mark.parametrize(
    ("given", "delivered", "marks", "start"),
    [
        (None, None, None, 1),  # of an earlier release
        ([6], None, None, 6),
        ([9], [5], [11], 12),
        ([9], [15], [11], 15),
        ([9], [0], None, 1),
    ],
)
def test_the_range_begins_where_its_gateway_is_known_to_have_been(
    given: list[int] | None, delivered: list[int] | None, marks: list[int] | None, start: int
) -> None:
    left = MembershipRecord("1", GROUP, "b", "i", starts=[1], given=given, delivered=delivered)
    assert settled(left, None if marks is None else MarksRecord("i", marks)) is not None
    assert left.gaps[0].start == [start]


def test_without_anything_gone_there_is_no_gap() -> None:
    left = MembershipRecord("1", GROUP, "b", "i", starts=[1], given=[25], delivered=[25])
    assert settled(left) is None


@pytest.mark.parametrize(
    "malformed",
    [
        {"gateway": "g"},
        {"states": [{"g": "1 odd 0"}]},
        {"states": [], "begins": [[[0, 1]]]},
        {"begins": [[[0, -2]]]},
        {"begins": [[0]]},
        {"in_flight": {"0": "!"}},
    ],
)
def test_what_is_none_is_refused(malformed: dict[str, Any]) -> None:
    good: dict[str, Any] = Chosen("g", [{"g": ONE}], [[(0, 1)]]).encode()
    if "gateway" not in malformed:
        malformed = good | malformed
    with pytest.raises(InvalidRecord):
        decode_chosen(malformed)
