"""Versions of records: which are read, and how a record gets another one."""

import pytest

from mqlake.errors import InvalidRecord, NewerRecord
from mqlake.records.messages import HEADER_ID, mqtt_header
from mqlake.records.progress import MarksRecord, decode_marks, encode_marks
from mqlake.records.versions import (
    HEADER_MQTT,
    OLDEST_READ,
    RECORD_VERSION,
    VERSION_HEADER,
    check_version,
    in_version,
)


def test_a_release_reads_its_version_all_before_and_the_next() -> None:
    for version in range(1, RECORD_VERSION + 2):
        check_version(version, "session")


def test_a_record_of_the_first_version_is_read_for_as_long_as_the_log_is_there() -> None:
    assert OLDEST_READ == 1
    assert decode_marks(b'{"v":1,"incarnation":"run","marks":[1,2]}') == MarksRecord("run", [1, 2])


@pytest.mark.parametrize("found", [0, None, "1", True, 1.0])
def test_a_version_that_is_none_is_refused(found: object) -> None:
    with pytest.raises(
        InvalidRecord, match=r"session is of version .*, expected 1 to 4"
    ) as refused:
        check_version(found, "session")
    assert not isinstance(refused.value, NewerRecord)


def test_a_version_of_a_later_release_is_told_apart() -> None:
    with pytest.raises(NewerRecord, match="session is of version 5, expected 1 to 4: a later"):
        check_version(5, "session")


def test_a_record_of_the_next_version_is_read_and_what_it_adds_is_passed_over() -> None:
    value, _ = in_version(encode_marks(MarksRecord("run", [1, 2])), [], 4)
    assert value is not None
    assert decode_marks(value[:-1] + b',"added":[true]}') == MarksRecord("run", [1, 2])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'{"v":3,"id":"x"}', b'{"v":4,"id":"x"}'),
        (b'{"v": 3, "id": "x"}', b'{"v":4, "id": "x"}'),
        (b'{"v":3}', b'{"v":4}'),
        (b'{"v":33,"id":"x"}', b'{"v":33,"id":"x"}'),
        (b"3", b"3"),
        (None, None),
    ],
)
def test_the_version_in_a_value_is_changed(value: bytes | None, said: bytes | None) -> None:
    headers = [VERSION_HEADER]
    assert in_version(value, headers, 4) == (said, [("v", b"4")])
    assert headers == [("v", b"3")]


def test_of_a_message_only_the_header_is_changed() -> None:
    headers = [(HEADER_MQTT, mqtt_header(5, 1, retain=True, dup=False)), (HEADER_ID, b"\x01")]
    value, said = in_version(b'{"v":2}', headers, 3)
    assert value == b'{"v":2}'
    assert said == [(HEADER_MQTT, bytes((3, 5, 0b101))), (HEADER_ID, b"\x01")]
