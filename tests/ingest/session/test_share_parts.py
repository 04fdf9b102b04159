"""Records of share groups."""

import json

import pytest

from ingest.session.open_work import OpenWork
from ingest.session.share_parts import (
    Gap,
    GroupKey,
    PartRecord,
    PartState,
    decode_member,
    decode_member_key,
    decode_part,
    decode_part_key,
    encode_member,
    encode_part,
    member_key,
    part_key,
)
from mqlake.errors import InvalidRecord

GROUP = GroupKey("t", "$share/g/a/#")


def test_a_part_survives_its_record() -> None:
    part = PartRecord("0a", GROUP, "gateway-1", "run", PartState.LIVE, 7, 8, [1, 2], [3, 4])
    part.open = OpenWork([(0, 5)])
    part.gaps = [Gap([1, 1], [2, 2], 99)]
    part.took, part.taker, part.asks, part.at_ms = ["0c"], "0b", 3, 12
    assert decode_part("0a", GROUP, encode_part(part)) == part
    assert decode_part_key(part_key(part).decode().removeprefix("h/")) == ("0a", GROUP)


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
        decode_part("0a", GROUP, value)
    with pytest.raises(InvalidRecord):
        decode_part_key("0a")


@pytest.mark.parametrize("client_id", ["c", "with/slash", "", "$share/g/a"])
def test_a_member_survives_its_record(client_id: str) -> None:
    key = member_key(GROUP, client_id).decode().removeprefix("m/")
    assert decode_member_key(key) == (GROUP, client_id)
    assert decode_member(encode_member([(0, 7), (2, 1)])) == [(0, 7), (2, 1)]


@pytest.mark.parametrize("value", [b"", b"[]", b'{"v":2}', b'{"v":1,"in_flight":[1]}'])
def test_what_is_no_member_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_member(value)
    with pytest.raises(InvalidRecord):
        decode_member_key("t/$share/g/a")
