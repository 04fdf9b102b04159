"""The order in which parts of share groups come and go, and their records."""

import json

import pytest

from ingest.session.open_work import OpenWork
from ingest.session.share_parts import (
    Gap,
    GroupKey,
    Outlook,
    PartRecord,
    PartState,
    ShareTable,
    decode_part,
    decode_part_key,
    encode_part,
    key_of_part,
    part_key,
)
from mqlake.errors import InvalidRecord

GROUP = GroupKey("t", "$share/g/a/#")


class Log:
    """What gateways write, in its order."""

    def __init__(self) -> None:
        self.table = ShareTable()

    def write(
        self,
        part_id: str,
        state: str,
        starts: list[int] | None = None,
        *,
        takes: tuple[str, ...] = (),
        took: tuple[str, ...] = (),
    ) -> None:
        record = PartRecord(part_id, GROUP, "gateway-1", "run", PartState(state))
        record.starts = starts
        record.takes, record.took = list(takes), list(took)
        self.table.apply(part_key(record), encode_part(record))

    def forget(self, part_id: str) -> None:
        self.table.apply(key_of_part(part_id, GROUP), None)

    def outlook(self, part_id: str) -> Outlook | None:
        return self.table.outlook(GROUP, part_id)

    def ids(self) -> list[str]:
        return [one.part_id for one in self.table]


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_part_survives_its_record() -> None:
    part = PartRecord("0a", GROUP, "gateway-1", "run", PartState.LIVE, 7, 8, [1, 2], [3, 4])
    part.open = OpenWork([(0, 5)])
    part.gaps = [Gap([1, 1], [2, 2], 99)]
    part.takes, part.took, part.at_ms = ["0b"], ["0c"], 12
    assert decode_part(part_key(part), encode_part(part)) == part
    assert decode_part_key(part_key(part)) == ("0a", GROUP)


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
        decode_part(key_of_part("0a", GROUP), value)
    with pytest.raises(InvalidRecord):
        decode_part_key(b"h/0a")


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
    assert [one.part_id for one in log.table.left(GROUP)] == ["a"]


def test_who_leaves_waits_for_those_that_joined_before(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.write("b", "joining")
    log.write("a", "leaving", [1, 1])
    assert log.table.others_to_wait_for(GROUP, "a") == ["b"]


def test_of_two_that_ask_for_a_part_the_first_gets_it(log: Log) -> None:
    log.write("x", "left", [1, 1])
    log.write("a", "live", [1, 1])
    log.write("b", "live", [1, 1], takes=("x",))
    log.write("a", "live", [1, 1], takes=("x",))
    assert log.table.taker(GROUP, "x") == "b"
    log.write("b", "left", [1, 1])
    assert log.table.taker(GROUP, "x") == "a"


def test_a_part_that_was_taken_is_void(log: Log) -> None:
    log.write("x", "left", [1, 1])
    log.write("a", "live", [1, 1], took=("x",))
    assert log.ids() == ["a"]
    log.forget("x")
    log.forget("a")
    assert log.ids() == []
    assert not log.table.is_present(GROUP)


def test_who_was_settled_by_another_says_nothing_more(log: Log) -> None:
    log.write("a", "live", [1, 1])
    log.write("a", "left", [1, 1])
    log.write("a", "live", [1, 1])
    assert not log.table.is_present(GROUP)
