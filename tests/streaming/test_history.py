"""What the history takes for a message is what everybody takes for one."""

import itertools
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from mqlake.errors import InvalidRecord
from mqlake.records.messages import decode_message, is_message
from streaming.log.sources import header_byte
from streaming.tables.history import messages

if TYPE_CHECKING:
    from mqlake.records.versions import Headers

pytestmark = pytest.mark.spark

KEYS = (
    None,
    b"",
    b"/",
    b"default/a",
    b"default/",
    b"no slash",
    b"\0barrier/gateway-1/1/2/3",
    b"\0rules/7",
    b"\0",
    b"a/\0",
    b"\xff/a",
    b"default/\xed\xa0\x80",
    "ä/€𝄞".encode(),
)
MQTT = (
    None,
    b"",
    b"\x01",
    b"\x01\x05\x00",
    b"\x02\x05\x00",
    b"\x03\x05\x00",
    b"\x04\x05\x00",
    b"\x05\x05\x00",
    b"\x01\x05\x0d",
    b"\x01\x05\x00\x00",
)
RECORDS = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
    "partition INT, offset BIGINT, timestamp TIMESTAMP"
)


def test_all_agree_on_what_a_message_is(spark: SparkSession) -> None:
    origin: Headers = [("id", bytes(16)), ("client_id", b"c"), ("origin", b"site/gateway")]
    cases: list[tuple[bytes | None, Headers]] = [
        (key, [*origin, *([] if mqtt is None else [("mqtt", mqtt)])])
        for key, mqtt in itertools.product(KEYS, MQTT)
    ]
    cases.append((b"default/a", []))
    rows = [
        (
            None if key is None else bytearray(key),
            None,
            [(name, bytearray(value)) for name, value in headers],
            0,
            number,
            None,
        )
        for number, (key, headers) in enumerate(cases)
    ]
    taken = messages(spark.createDataFrame(rows, RECORDS)).select("log_offset").collect()
    expected = [
        number for number, (key, headers) in enumerate(cases) if is_message(key, dict(headers))
    ]
    assert sorted(row["log_offset"] for row in taken) == expected
    assert len(expected) == 25
    for number, (key, headers) in enumerate(cases):
        try:
            decode_message(key or b"", b"", headers, 0)
        except InvalidRecord:
            assert number not in expected
        else:
            assert number in expected


def test_a_byte_of_a_header_is_a_number_or_null(spark: SparkSession) -> None:
    values = (b"\x01\x05\xff", b"\x01\x05\x00", b"\x01\x05", b"", None)
    cases = [[("mqtt", value)] for value in values]
    cases += [[], [("other", b"\x01\x05\x07")], [("mqtt", b"\x01\x02\x03"), ("mqtt", b"   ")]]
    rows = [
        ([(name, value and bytearray(value)) for name, value in headers], number)
        for number, headers in enumerate(cases)
    ]
    schema = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, number INT"
    found = spark.createDataFrame(rows, schema).orderBy("number").select(header_byte("mqtt", 3))
    assert [row[0] for row in found.collect()] == [255, 0, None, None, None, None, None, 3]
