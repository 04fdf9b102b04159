"""Records of share groups."""

import json

import pytest

from ingest.session.groups.open_work import OpenWork
from ingest.session.groups.share_choices import Chosen
from ingest.session.groups.share_records import (
    GroupKey,
    MemberRecord,
    MembershipRecord,
    MembershipState,
    ShareGap,
    decode_member,
    decode_member_key,
    decode_membership,
    decode_membership_key,
    encode_member,
    encode_membership,
    member_key,
    membership_key,
)
from mqlake.errors import InvalidRecord
from mqlake.topics.sharing import ShareWeight

GROUP = GroupKey("t", "$share/g/a/#")


def test_a_part_survives_its_record() -> None:
    membership = MembershipRecord(
        "0a", GROUP, "gateway-1", "run", MembershipState.LIVE, 7, 8, [1, 2], [3, 4]
    )
    membership.open = OpenWork([(0, 5)])
    chosen = Chosen("gateway-1", [{"gateway-1": ShareWeight(2)}], [[(1, 0), (2, 1)], [(3, -1)]])
    chosen.in_flight.add(0, 3)
    membership.gaps = [ShareGap([1, 1], [2, 2], 99), ShareGap([1, 3], [5, 5], 98, chosen)]
    membership.taken_over, membership.assignee = ["0c"], "0b"
    membership.asks, membership.at_ms = 3, 12
    membership.delivered = [4, 6]
    assert decode_membership("0a", GROUP, encode_membership(membership)) == membership
    rest = membership_key(membership).decode().removeprefix("h/")
    assert decode_membership_key(rest) == ("0a", GROUP)


def test_a_record_of_before_has_no_choices() -> None:
    membership = MembershipRecord("0a", GROUP, "gateway-1", "run")
    membership.gaps = [ShareGap([1], [2], 99)]
    value = encode_membership(membership)
    assert b"chosen" not in value
    assert decode_membership("0a", GROUP, value) == membership


@pytest.mark.parametrize("chosen", [[], [{}], [{"gateway": "g"}], 5])
def test_choices_that_cannot_be_read_are_refused(chosen: object) -> None:
    membership = MembershipRecord("0a", GROUP, "gateway-1", "run")
    membership.gaps = [ShareGap([1], [2], 99)]
    found = json.loads(encode_membership(membership)) | {"chosen": chosen}
    with pytest.raises(InvalidRecord):
        decode_membership("0a", GROUP, json.dumps(found).encode())


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"v":2}',
        json.dumps({"v": 1, "gateway": "g", "incarnation": "i", "state": "odd"}).encode(),
    ],
)
def test_what_is_no_part_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_membership("0a", GROUP, value)
    with pytest.raises(InvalidRecord):
        decode_membership_key("0a")


@pytest.mark.parametrize("client_id", ["c", "with/slash", "", "$share/g/a"])
def test_a_member_survives_its_record(client_id: str) -> None:
    key = member_key(GROUP, client_id).decode().removeprefix("m/")
    assert decode_member_key(key) == (GROUP, client_id)
    for record in (
        MemberRecord(),
        MemberRecord([(0, 7), (2, 1)], [65_535, 1]),
        MemberRecord([(0, 7)], [3], known_packet_id=0),
    ):
        assert decode_member(encode_member(record)) == record
    assert decode_member(b'{"v":1,"in_flight":[[0,7]]}') == MemberRecord([(0, 7)])


@pytest.mark.parametrize(
    ("packet_ids", "known", "later", "unknown"),
    [
        ([4, 5, 6], 4, [], [(0, 1), (0, 2)]),
        ([4, 5, 6], 4, [(0, 2)], [(0, 1)]),
        ([4, 5, 6], 6, [(0, 2)], []),
        ([65_534, 65_535, 1], 65_534, [], [(0, 1), (0, 2)]),
        ([1, 2, 3], 0, [], [(0, 0), (0, 1), (0, 2)]),
        ([4, 5, 6], None, [], []),
        ([], 0, [], []),
    ],
)
def test_what_was_noted_behind_the_progress_is_unknown_to_the_next_gateway(
    packet_ids: list[int],
    known: int | None,
    later: list[tuple[int, int]],
    unknown: list[tuple[int, int]],
) -> None:
    before = MemberRecord([(0, 0), (0, 1), (0, 2)], packet_ids)
    assert before.unknown_to(MemberRecord(later, known_packet_id=known)) == unknown


@pytest.mark.parametrize("value", [b"", b"[]", b'{"v":2}', b'{"v":1,"in_flight":[1]}'])
def test_what_is_no_member_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_member(value)
    with pytest.raises(InvalidRecord):
        decode_member_key("t/$share/g/a")
