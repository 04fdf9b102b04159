"""What a trace and a replay ask Spark, through Spark Connect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from api.replay.order import Place, ReplayOrder, ordered_query
from api.replay.rows import MessageLimits, read_row, read_rows
from api.spark.connect import Row, SparkConnect, Statement
from api.sql.running import QueryLimits, QueryRunner
from api.tracing.tables import TraceTables
from mqlake.records.tenants import DEFAULT_TENANT
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables
from tests.api.sql.for_spark import NoFiles

pytestmark = pytest.mark.spark

TENANT = "tracing-tenant"
AT = 1_790_000_000_000
ID = "0032" + "0" * 27 + "7"
TOPIC = "plant/1"


def event(offset: int, name: str, at_ms: int, client_id: str, **fields: Any) -> str:
    value = {"event": name, "ts": at_ms, "tenant": TENANT, "client_id": client_id, **fields}
    text = json.dumps(value).replace("\\", "\\\\").replace("'", "\\'")
    topic_filter = f"'{fields['filter']}'" if "filter" in fields else "NULL"
    return (
        f"(timestamp_millis({at_ms}), '{name}', '{TENANT}', '{client_id}', 'gateway-1', NULL,"
        f" {topic_filter}, NULL, '{text}', 0, {offset})"
    )


class _Patient(SparkConnect):
    """Waits longer than a trace does: each kind of query takes many times as long at first."""

    def rows(
        self, query: Statement, timeout_seconds: float = 120.0, *, tenant: str = DEFAULT_TENANT
    ) -> list[Row]:
        return super().rows(query, timeout_seconds, tenant=tenant)


@pytest.fixture(scope="module")
def connect(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    query_dir: Path,
) -> Iterator[SparkConnect]:
    create_tables(spark, streaming_settings)
    opened = _Patient(query_dir)
    yield opened
    opened.close()


def test_of_events_those_are_found_that_say_who_was_there(
    spark: SparkSession, connect: SparkConnect
) -> None:
    rows = [
        event(10, "client.connected", AT - 90, "a", expiry=0, session_present=False),
        event(11, "session.subscribed", AT - 80, "a", filter="plant/+", qos=0),
        event(12, "session.subscribed", AT - 70, "a", filter="plant/+", qos=1),
        event(13, "session.subscribed", AT - 70, "b", filter="$share/gs/plant/#"),
        event(14, "session.subscribed", AT - 60, "c", filter="other/#", qos=1),
        event(15, "session.unsubscribed", AT - 50, "b", filter="$share/gs/plant/#"),
        event(16, "client.disconnected", AT - 40, "c"),
        event(17, "session.subscribed", AT + 10, "d", filter=TOPIC, qos=1),
        event(18, "session.subscribed", AT + 20, "d", filter=TOPIC, qos=2),
        event(19, "message.acked", AT + 30, "a", id=ID),
        event(20, "message.acked", AT + 30, "a", id="f" * 32),
        event(21, "client.disconnected", AT + 40, "a"),
    ]
    columns = "ts, event, tenant, client_id, gateway, reason, filter, qos, fields"
    spark.sql(f"INSERT INTO events ({columns}, log_partition, log_offset) VALUES {', '.join(rows)}")
    tables = TraceTables(connect, TENANT)
    last, found = tables.events(TOPIC, AT, None, ID)
    assert last >= 21
    assert [offset for offset, _ in found] == [10, 12, 13, 15, 17, 19]
    assert found[1][1]["filter"] == "plant/+"
    _, found = tables.events(TOPIC, AT, "c", ID)
    assert [offset for offset, _ in found] == [14, 16, 19]
    assert TraceTables(connect, "nobody").events(TOPIC, AT, None, ID)[1] == []


def test_messages_drops_and_dead_letters_are_found(
    spark: SparkSession, connect: SparkConnect
) -> None:
    write_messages(spark, 3)
    spark.sql(
        "INSERT INTO drops (ts, tenant, client_id, topic, qos, reason, count, gateway,"
        f" log_partition, log_offset) VALUES (timestamp_millis({AT + 5}), '{TENANT}', 'a',"
        f" '{TOPIC}', 1, 'queue_full', 3, 'gateway-1', 0, 30)"
    )
    tables = TraceTables(connect, TENANT)
    row = tables.message(f"{2:032x}", AT)
    assert row is not None
    assert (row["topic"], row["at_ms"], row["log_offset"]) == (TOPIC, AT + 2, 2)
    assert tables.message(f"{2:032x}", AT + 3_600_000) is None, "not of that time"
    (drop,) = tables.drops(TOPIC, AT)
    assert (drop["client_id"], drop["reason"], drop["count"]) == ("a", "queue_full", 3)
    assert tables.letters("mqlake.inbound", 0, 2) == []


def test_a_replay_reads_its_messages_in_order_and_from_its_place(
    spark: SparkSession, connect: SparkConnect, tmp_path: Path
) -> None:
    write_messages(spark, 5, first=100, topic="again/a")
    request = {
        "query": "SELECT * FROM messages WHERE topic = 'again/a'",
        "prefix": "x/",
        "client_id": None,
        "speed": None,
        "rate": 100,
        "limit": None,
        "keep_retain": False,
        "username": "ann",
    }
    order = ReplayOrder.from_request(TENANT, request)
    queries = QueryRunner(connect, NoFiles(), tmp_path / "results", at_once=1)
    limits = QueryLimits(rows=10, seconds=60, bytes=1 << 20)

    def read(before_ms: int, after: Place | None) -> list[int]:
        query = ordered_query(order, before_ms, after)
        with queries.run(query, "parquet", limits) as result:
            found = [read_row(row, order, MessageLimits(1_000, 128)) for row in read_rows(result)]
        assert {one.topic_name for one in found} <= {"x/again/a"}
        return [int(one.payload) for one in found]

    assert read(AT + 1_000, None) == [100, 101, 102, 103, 104]
    place = Place((AT + 101) * 1_000, 0, 101)
    assert read(AT + 1_000, place) == [102, 103, 104]
    assert read(AT + 102, place) == [102]
    queries.close()


def write_messages(spark: SparkSession, count: int, first: int = 0, topic: str = TOPIC) -> None:
    spark.sql(
        "INSERT INTO messages (id, tenant, topic, payload, qos, retain, dup, client_id, username,"
        " protocol_level, properties, origin, ts, log_partition, log_offset)"
        f" SELECT lower(lpad(hex(id), 32, '0')), '{TENANT}', '{topic}',"
        " encode(CAST(id AS STRING), 'utf-8'), CAST(1 AS TINYINT), false, false, 'c', NULL,"
        f" CAST(4 AS TINYINT), NULL, 'local/gateway-1', timestamp_millis({AT} + id), 0, id"
        f" FROM range({first}, {first + count})"
    )
