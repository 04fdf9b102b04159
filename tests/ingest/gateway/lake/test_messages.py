import random
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.lake.exchange import END, ERROR, MAX_PAGE_BYTES, MESSAGES_OPERATION, HistoryPage
from ingest.gateway.lake.messages import (
    MAX_WILDCARD_CONDITIONS,
    topics_condition,
)
from ingest.gateway.lake.worker import Worker
from mqlake.errors import InvalidRecord
from mqlake.records.messages import LogRecord, Message, decode_message, message_headers, message_key
from mqlake.tables.catalogue import MESSAGES
from mqlake.topics.matching import filter_matches
from tests.ingest.gateway.lake.tables import append

START_US = 1_700_000_000_123_000


def a_row(partition: int, offset: int, topic: str = "a/b", **more: Any) -> dict[str, Any]:
    return {
        "id": f"{offset:032x}",
        "tenant": "default",
        "topic": topic,
        "payload": b"%d" % offset,
        "qos": 1,
        "retain": False,
        "dup": False,
        "client_id": "c1",
        "protocol_level": 4,
        "origin": "local/gateway-1",
        "ts": START_US + offset * 1000,
        "log_partition": partition,
        "log_offset": offset,
        **more,
    }


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def read(
    worker: Worker,
    ranges: Mapping[int, tuple[int, int]],
    filters: Collection[str] = ("#",),
    *,
    tenant: str = "default",
    limit: int = 10_000,
    not_before_ms: int | None = None,
) -> HistoryPage:
    arguments = (tenant, ranges, filters, limit, not_before_ms)
    *frames, (kind, page) = worker.answer(MESSAGES_OPERATION, arguments)
    assert kind == END
    assert isinstance(page, HistoryPage)
    return page._replace(records=[record for _, records in frames for record in records])


def positions(page: HistoryPage) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in page.records]


def test_a_row_comes_back_as_the_record_it_was(tmp_path: Path, worker: Worker) -> None:
    message = Message(
        tenant="default",
        topic_name="a/ü",
        payload=b"\0\xff",
        qos=2,
        retain=True,
        message_id=bytes(range(16)),
        client_id="ç1",
        received_at_ms=1_700_000_000_123,
        origin="local/gateway-1",
        dup=True,
        protocol_level=5,
        username="üser",
        properties={"content_type": "text/plain", "user_property": [("a", "b")]},
    )
    row = a_row(
        1,
        7,
        "a/ü",
        id=bytes(range(16)).hex(),
        payload=b"\0\xff",
        qos=2,
        retain=True,
        dup=True,
        client_id="ç1",
        protocol_level=5,
        username="üser",
        properties='{"content_type":"text/plain","user_property":[["a","b"]]}',
        ts=START_US,
    )
    append(tmp_path, MESSAGES, [row, a_row(1, 8, "b", client_id=None, id=None, origin=None)])
    (record, other) = read(worker, {1: (0, 9)}).records
    key = message_key("default", "a/ü")
    headers = dict(message_headers(message))
    assert record._replace(headers=[]) == LogRecord(1, 7, 1_700_000_000_123, key, b"\0\xff", [])
    assert dict(record.headers) == headers
    decoded = decode_message(key, record.value, record.headers, record.timestamp_ms)
    assert decoded == message
    # What had not all headers of a message is refused as it would have been then.
    with pytest.raises(InvalidRecord):
        decode_message(b"default/b", other.value, other.headers, 0)


def test_rows_come_in_order_and_from_the_ranges_only(tmp_path: Path, worker: Worker) -> None:
    rows = [a_row(partition, offset) for partition in range(3) for offset in range(20)]
    random.Random(1).shuffle(rows)
    for start in range(0, len(rows), 10):
        append(tmp_path, MESSAGES, rows[start : start + 10])
    page = read(worker, {2: (3, 5), 0: (18, 20)})
    assert positions(page) == [(0, 18), (0, 19), (2, 3), (2, 4)]
    assert page.next_offsets == {2: 5, 0: 20}
    assert not page.has_more


def test_where_the_table_ends_the_log_goes_on(tmp_path: Path, worker: Worker) -> None:
    append(tmp_path, MESSAGES, [a_row(0, 5), a_row(0, 6), a_row(1, 2, "other")])
    page = read(worker, {0: (4, 10), 1: (0, 3), 2: (8, 9)}, ["a/+"])
    assert positions(page) == [(0, 5), (0, 6)]
    assert page.next_offsets == {0: 7, 1: 3, 2: 8}
    # What another has appended meanwhile is there at once.
    append(tmp_path, MESSAGES, [a_row(0, 7), a_row(2, 9)])
    page = read(worker, {0: (7, 10), 2: (8, 9)}, ["a/+"])
    assert positions(page) == [(0, 7)]
    assert page.next_offsets == {0: 8, 2: 9}


def test_without_a_table_everything_is_left_to_the_log(tmp_path: Path, worker: Worker) -> None:
    assert read(worker, {0: (4, 10)}) == HistoryPage([], {0: 4}, has_more=False)
    append(tmp_path, MESSAGES, [a_row(0, 5)])
    assert positions(read(worker, {0: (4, 10)})) == [(0, 5)]


def test_tenants_do_not_see_each_other(tmp_path: Path, worker: Worker) -> None:
    append(tmp_path, MESSAGES, [a_row(0, 1), a_row(0, 2, tenant="o'ne")])
    assert positions(read(worker, {0: (0, 9)})) == [(0, 1)]
    page = read(worker, {0: (0, 9)}, tenant="o'ne")
    assert positions(page) == [(0, 2)]
    assert page.next_offsets == {0: 3}


def test_pages_together_hold_everything(tmp_path: Path, worker: Worker) -> None:
    rows = [a_row(partition, offset) for partition in range(3) for offset in range(10)]
    append(tmp_path, MESSAGES, rows)
    ends = {0: 10, 1: 10, 2: 12}
    at = dict.fromkeys(ends, 0)
    found: list[tuple[int, int]] = []
    for _ in range(100):
        page = read(worker, {p: (at[p], ends[p]) for p in ends}, limit=7)
        assert len(page.records) <= 7
        found.extend(positions(page))
        at = page.next_offsets
        if not page.has_more:
            break
    assert found == [(row["log_partition"], row["log_offset"]) for row in rows]
    assert at == {0: 10, 1: 10, 2: 10}


def test_a_page_ends_before_it_grows_large(tmp_path: Path, worker: Worker) -> None:
    third = bytes(MAX_PAGE_BYTES // 3 + 1)
    append(tmp_path, MESSAGES, [a_row(0, offset, payload=third) for offset in range(4)])
    page = read(worker, {0: (0, 4), 1: (0, 5)})
    assert positions(page) == [(0, 0), (0, 1), (0, 2)]
    assert page.has_more
    assert page.next_offsets == {0: 3, 1: 0}
    rest = read(worker, {0: (3, 4), 1: (0, 5)})
    assert positions(rest) == [(0, 3)]
    assert not rest.has_more


def test_messages_accepted_before_a_time_are_left_out(tmp_path: Path, worker: Worker) -> None:
    append(tmp_path, MESSAGES, [a_row(0, offset) for offset in range(5)])
    page = read(worker, {0: (0, 9)}, not_before_ms=START_US // 1000 + 3)
    assert positions(page) == [(0, 3), (0, 4)]


LEVELS = ["", "a", "b", "a.c", "a!", "$a", "ä", "x y", "l\nf", "it's", "\\d", "%", "_", "*"]
FILTERS = [
    "#",
    "+",
    "/",
    "+/+",
    "/+",
    "a/#",
    "a/+",
    "a/+/#",
    "+/a",
    "+/a/#",
    "a/+/b",
    "a.c/+",
    "a.c/#",
    "$a/#",
    "$a/+",
    "it's/#",
    "+/it's",
    "\\d/+/a",
    "+/\\d",
    "%/#",
    "+/%",
    "_/+",
    "+/*/#",
    "x y/+",
    "+/x y",
    "l\nf/+",
    "+/l\nf/#",
    "ä/+",
    "a",
    "it's",
    "a/b",
    "l\nf",
    "nothing/here",
]


def test_a_filter_finds_what_it_matches_and_no_more(tmp_path: Path, worker: Worker) -> None:
    topics = sorted(
        {"/".join(levels) for one in LEVELS for two in LEVELS for levels in ((one, two), (one,))}
        | {f"{one}/{two}/b" for one in LEVELS[:8] for two in LEVELS[:8]} - {""}
    )
    append(tmp_path, MESSAGES, [a_row(0, at, topic) for at, topic in enumerate(topics)])
    ranges = {0: (0, len(topics))}
    many = [f"{number}/+" for number in range(10)]
    for topic_filter, more in [(each, more) for each in FILTERS for more in ([], many)]:
        expected = [topic for topic in topics if filter_matches(topic_filter, topic)]
        page = read(worker, ranges, [topic_filter, *more])
        found = [(record.key or b"").decode().partition("/")[2] for record in page.records]
        assert found == expected, topic_filter
    page = read(worker, ranges, FILTERS)
    assert len(page.records) == sum(
        any(filter_matches(topic_filter, topic) for topic_filter in FILTERS) for topic in topics
    )


def test_very_many_filters_are_matched_after_the_query(tmp_path: Path, worker: Worker) -> None:
    filters = [f"+/{number}" for number in range(MAX_WILDCARD_CONDITIONS + 1)]
    assert topics_condition(filters) == "TRUE"
    assert topics_condition(filters[1:]) != "TRUE"
    exact = [f"t/{number}" for number in range(5000)]
    append(tmp_path, MESSAGES, [a_row(0, 0, "a/3"), a_row(0, 1, "a/x"), a_row(0, 2, "t/4999")])
    assert positions(read(worker, {0: (0, 9)}, filters)) == [(0, 0)]
    assert positions(read(worker, {0: (0, 9)}, filters[1:])) == [(0, 0)]
    assert positions(read(worker, {0: (0, 9)}, exact)) == [(0, 2)]


def test_a_table_that_cannot_be_read_is_an_error(tmp_path: Path, worker: Worker) -> None:
    append(tmp_path, MESSAGES, [a_row(0, 1)])
    for file in (tmp_path / "tables" / "messages").glob("*.parquet"):
        file.unlink()
    arguments = ("default", {0: (0, 9)}, ["#"], 10, None)
    *_, (kind, text) = worker.answer(MESSAGES_OPERATION, arguments)
    assert kind == ERROR
    assert re.match("table messages .* cannot be read", text)
