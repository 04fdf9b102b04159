"""Plans as streaming queries: Spark takes them, and they yield what the batch yields.

The streams are files of a relation's rows, one for each micro-batch, out of order within what the
watermark allows.
"""

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from rules.language.compiler import compile_rule
from rules.language.plan import AT_COLUMN, EVENT_TIME, HOPS, ROW_COLUMN, Plan, StatefulStream
from tests.rules.language.evaluation import Message, relate

pytestmark = [
    pytest.mark.campaign("tests/streaming/test_stateful_query.py compares a stream with a batch"),
    pytest.mark.spark,
]

AGGREGATES = """
    count(*) AS n, count(payload.x) AS nx, count_if(payload.x > 3) AS c3, sum(payload.x) AS s,
    avg(payload.y) AS a, min(payload.x) AS lo, max(payload.y) AS hi, min(clientid) AS c,
    first(payload.x) AS f, last(payload) AS l, delta(payload.y) AS d, median(payload.x) AS med,
    percentile(payload.y, 0.9) AS p, count(DISTINCT payload.x) AS k,
    collect_list(float(payload.x), 3) AS l3, any(payload.x > 3) AS any, every(payload.x > 3) AS all,
    sum(payload.x) FILTER (WHERE qos = 1) AS s1, approx_count_distinct(clientid) AS k2,
    collect_list(payload.y) AS l2
"""
RULES = {
    "tumble": f"""
        SELECT clientid, {AGGREGATES}, window_start FROM 'a/#'
        WHERE is_num(payload.x) OR is_null(payload.x)
        GROUP BY clientid, tumble(payload.ts, '10 seconds')""",
    "session": """
        SELECT count(*) AS n, last(payload.x) AS x, window_start, window_end FROM 'a/#'
        WHERE clientid = 'c-1' GROUP BY session(timestamp, '1 second')""",
    "hop of joined": """
        SELECT m.name AS name, sum(payload.x * m.factor) AS s, window_end FROM 'a/#'
        JOIN machines AS m ON m.id = payload.k
        GROUP BY m.name, hop(timestamp, '10 seconds', '5 seconds') HAVING count(*) > 1""",
    "left join": """
        SELECT a.payload.x AS x, b.payload.x AS y, b.topic AS t FROM 'a/1' AS a
        LEFT JOIN 'a/2' AS b ON a.payload.k = b.payload.k AND b.payload.ts
        BETWEEN a.payload.ts AND a.payload.ts + INTERVAL '1 second'""",
}
MACHINES = [{"id": 1, "name": "one", "factor": 2.5}, {"id": 2, "name": "two", "factor": 0.1}]
BEGIN_MS = 1_000_000
LAST_MS = 2_000_000
"""Then come messages that close what is open: a batch later, so there are two."""


@pytest.fixture(scope="module", autouse=True)
def _settings(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )


def made(chance: random.Random) -> list[Message]:
    """Make messages of half a minute, each up to a second out of order, and two last ones."""
    messages = []
    for _ in range(150):
        at = BEGIN_MS + chance.randrange(0, 30_000, 100)
        kinds: list[dict[str, Any]] = [
            {"x": chance.randrange(9), "y": chance.randrange(90) / 10, "k": 1},
            {"x": chance.random(), "y": "2.5", "k": 2},
            {"y": chance.choice([None, "off", [1]]), "k": chance.randrange(4)},
        ]
        messages.append(
            Message(
                topic=f"a/{chance.randrange(1, 3)}",
                clientid=f"c-{chance.randrange(3)}",
                qos=chance.randrange(2),
                timestamp=at,
                payload=json.dumps({**chance.choice(kinds), "ts": at}).encode(),
            )
        )
    messages.sort(key=lambda one: one.timestamp + chance.randrange(1_000))
    for at in (LAST_MS, LAST_MS + 60_000):
        last = Message(timestamp=at, payload=json.dumps({"ts": at}).encode())
        messages += [replace(last, topic=topic) for topic in ("a/1", "a/2")]
    return [replace(one, publish_received_at=one.timestamp) for one in messages]


@pytest.mark.parametrize("sql", RULES.values(), ids=RULES)
def test_stream_yields_what_the_batch_yields(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    plan = compile_rule(sql).plan
    assert plan is not None
    relate(spark, plan, made(random.Random(8)), {"machines": MACHINES})
    expected = closed(spark.sql(plan.query).collect())
    assert len(expected) > 5
    for stream in plan.streams:
        as_stream(spark, stream, tmp_path)
    assert closed(streamed(spark, plan, tmp_path)) == expected


def closed(rows: list[Row]) -> list[Row]:
    return sorted(row for row in rows if row[AT_COLUMN].timestamp() < LAST_MS / 1_000)


def as_stream(spark: SparkSession, stream: StatefulStream, folder: Path) -> None:
    """Replace a relation by a stream of its rows, one file after the other."""
    rows = spark.table(stream.name)
    found = rows.collect()
    listed = [(*row, number // 75) for number, row in enumerate(found[:-2])]
    listed += [(*row, 100 + number) for number, row in enumerate(found[-2:])]
    schema = StructType([*rows.schema.fields, StructField("batch", IntegerType())])
    written = folder / f"{stream.name}-written"
    spark.createDataFrame(listed, schema).write.partitionBy("batch").parquet(str(written))
    read = folder / stream.name
    for batch in written.glob("batch=*"):
        number = int(batch.name.removeprefix("batch="))
        (file,) = batch.glob("*.parquet")
        target = read / f"{number}.parquet"
        read.mkdir(exist_ok=True)
        file.rename(target)
        # The source takes files in the order of their times.
        os.utime(target, (1_000_000 + number, 1_000_000 + number))
    source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(read))
    lateness = f"{stream.lateness_ms} milliseconds"
    # What is not deterministic keeps Spark from filtering rows before the watermark sees them.
    kept = source.withWatermark(EVENT_TIME, lateness).where("spark_partition_id() >= 0")
    kept.createOrReplaceTempView(stream.name)


def streamed(spark: SparkSession, plan: Plan, folder: Path) -> list[Row]:
    query = (
        spark.sql(plan.query)
        .writeStream.format("memory")
        .queryName("found")
        .outputMode("append")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    return spark.table("found").select(ROW_COLUMN, AT_COLUMN, HOPS).collect()
