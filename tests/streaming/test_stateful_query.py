"""The query of a stateful rule, on records in files, without a log: its rows, once, whatever
comes again; what is late; what fails; where it begins and ends. Compared with a batch query.

What the query writes to the log is kept by Kafka's own producer for tests.
"""

import base64
import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from api.rules import history, plans
from launcher.testing.systems import await_condition
from mqlake.clock import SystemClock
from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    HEADER_CHAIN,
    INBOUND,
    OUTPUTS,
    RULES,
    Message,
    message_headers,
)
from mqlake.records.outputs import (
    MAX_CHAIN,
    UNNAMED_RULE,
    DeadLetter,
    Output,
    decode_dead_letter,
    decode_output,
    encode_chain,
)
from mqlake.records.rules import (
    Activation,
    OffsetRange,
    Span,
    encode_activation,
    encode_decided,
    rules_barrier_key,
)
from rules.language.compiler import compile_rule
from rules.language.plan import HOPS, Plan, encode_plan
from rules.schemas.model import SchemaBody
from rules.schemas.registry import NO_SCHEMAS, Schemas
from rules.sql.confined import FUNCTIONS_OPTION, GivenRows, listed
from rules.sql.functions import RULE_FUNCTIONS
from streaming.jobs import stateful
from streaming.jvm.bridge import java_map
from streaming.log.checkpoints import watermark_ms
from streaming.log.sources import client_config
from streaming.rules.detections import detected
from streaming.rules.plans import SENDER, Relations, StatefulRun, output_rows
from streaming.settings.lake import LakeSettings
from tests.streaming.decoding import schemas

pytestmark = pytest.mark.spark

BEGIN = 1_700_000_000_000
RECORDS = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, "
    "partition INT, offset BIGINT, timestamp TIMESTAMP"
)
OUTPUT_PARTITIONS = 3


class World:
    """A rule table and a log without a broker, in the JVM of Spark."""

    def __init__(self, spark: SparkSession, settings: LakeSettings) -> None:
        self.spark = spark
        self.config = client_config(settings)
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._servers = self.config["bootstrap.servers"]
        self.table = jvm.mqlake.rules.RuleTable()
        self.table.apply("c", encode_decided(1_000_000))
        kafka_map = java_map(spark, self.config)
        follower = self._make(
            "rules.RuleFollower",
            ["java.util.Map", "java.lang.String", "long", "boolean"],
            kafka_map,
            RULES,
            20_000,
            False,
        )
        self._field("log.LogFollower", "table").set(follower, self.table)
        self._field("rules.RuleFollower", "FOLLOWERS").get(None).put(
            f"runs of {RULES}@{self._servers}", follower
        )
        metrics = self._make(
            "rules.RuleMetrics", ["java.util.Map", "java.lang.String"], kafka_map, "mqlake.metrics"
        )
        self._field("rules.RuleMetrics", "STARTED").get(None).put(
            f"mqlake.metrics@{self._servers}", metrics
        )
        self._limits = self._make("log.LogLimits", ["java.util.Map"], kafka_map)
        self._field("log.LogLimits", "ALL").get(None).put(self._servers, self._limits)
        self._field("log.LogLimits", "partitions").get(self._limits).put(OUTPUTS, OUTPUT_PARTITIONS)
        self.clear()

    def clear(self) -> None:
        """Begin with an empty log."""
        jvm = self._jvm
        bytes_ = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
        self._producer = jvm.org.apache.kafka.clients.producer.MockProducer(
            True, None, bytes_(), bytes_()
        )
        for log_topic in (OUTPUTS, DEAD_LETTERS, EVENTS):
            self.limit(log_topic, 32 * 1024**2)
        text = "java.lang.String"
        sender = self._make(
            "log.LogSender",
            [
                text,
                "log.LogLimits",
                text,
                text,
                "log.Undelivered",
                "java.util.Set",
                "org.apache.kafka.clients.producer.Producer",
            ],
            SENDER,
            self._limits,
            EVENTS,
            None,
            None,
            jvm.java.util.HashSet(),
            self._producer,
        )
        entry = self._make(
            "log.LogSenders$Entry", [text, text, "log.LogSender"], "run", None, sender
        )
        self._field("log.LogSenders", "ALL").get(None).put(SENDER, entry)

    def limit(self, log_topic: str, most_bytes: int) -> None:
        """Say how large a record may be."""
        (constructor,) = self._class("log.LogLimits$Limit").getDeclaredConstructors()
        constructor.setAccessible(True)
        gateway: Any = self.spark.sparkContext._gateway
        values = gateway.new_array(self._jvm.java.lang.Object, 2)
        values[0] = most_bytes
        values[1] = 2**62  # it does not grow old
        limit = constructor.newInstance(values)
        self._field("log.LogLimits", "known").get(self._limits).put(log_topic, limit)

    def written(self, log_topic: str) -> list[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
        """Return key, value and headers of what was written, in order."""
        return [
            (
                record.key(),
                record.value(),
                [(one.key(), one.value()) for one in record.headers().toArray()],
            )
            for record in self._producer.history()
            if record.topic() == log_topic
        ]

    def outputs(self) -> list[Output]:
        return [decode_output(*record) for record in self.written(OUTPUTS)]

    def letters(self) -> list[DeadLetter]:
        return [decode_dead_letter(*record) for record in self.written(DEAD_LETTERS)]

    def counters(self, rule: str) -> dict[str, int]:
        counters = self._field("rules.RuleCounters", "ALL").get(None).get(f"default/{rule}")
        to_json = counters.getClass().getDeclaredMethod("toJson", None)
        to_json.setAccessible(True)
        found: dict[str, int] = json.loads(to_json.invoke(counters, None))
        return found

    def _class(self, name: str) -> Any:
        if name in ("long", "boolean"):
            return getattr(self._jvm.java.lang, name.capitalize()).TYPE
        full = name if name.startswith(("java.", "org.")) else f"mqlake.{name}"
        return self._jvm.java.lang.Class.forName(full)

    def _field(self, class_: str, name: str) -> Any:
        found = self._class(class_).getDeclaredField(name)
        found.setAccessible(True)
        return found

    def _make(self, class_: str, types: list[str], *arguments: Any) -> Any:
        gateway: Any = self.spark.sparkContext._gateway
        classes = gateway.new_array(self._jvm.java.lang.Class, len(types))
        values = gateway.new_array(self._jvm.java.lang.Object, len(types))
        for at, (type_, argument) in enumerate(zip(types, arguments, strict=True)):
            classes[at] = self._class(type_)
            values[at] = argument
        constructor = self._class(class_).getDeclaredConstructor(classes)
        constructor.setAccessible(True)
        return constructor.newInstance(values)


@pytest.fixture(scope="module")
def world(spark: SparkSession, streaming_settings: LakeSettings) -> World:
    stateful.count_task_time(spark)
    return World(spark, streaming_settings)


@dataclass
class Engine:
    """One run of a rule: records go in, outputs are in the world's log."""

    world: World
    settings: LakeSettings
    folder: Path
    rule: str
    sql: str
    change: int = 1
    starts: int = 0
    ends: int | None = None
    ended_at_ms: int | None = None
    schemas: Schemas = NO_SCHEMAS
    query: StreamingQuery | None = None
    offset: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = compile_rule(self.sql, schemas=self.schemas).plan
        assert plan is not None
        self.plan: Plan = plan
        self.inbox.mkdir(parents=True, exist_ok=True)
        self.activate()

    @property
    def inbox(self) -> Path:
        return self.folder / "records"

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.run.name

    @property
    def run(self) -> StatefulRun:
        range_ = OffsetRange((self.starts,), None if self.ends is None else (self.ends,))
        filters = self.plan.streams[0].filters
        span = Span(
            1,
            filters,
            None,
            (),
            None,
            {INBOUND: range_},
            plan=encode_plan(self.plan),
            change=self.change,
            ended_at_ms=self.ended_at_ms,
        )
        return StatefulRun("default", self.rule, span)

    def activate(self) -> None:
        activation = Activation(
            "default", self.rule, "running", 1, self.change, None, (self.run.span,), 1
        )
        self.world.table.apply(f"a/default/{self.rule}", encode_activation(activation))

    def start(self) -> None:
        session = stateful._session(self.world.spark, self.settings, self.run)
        records = session.readStream.schema(RECORDS).json(str(self.inbox))
        ticks = session.readStream.format("rate").options(**stateful._TICKS).load()
        relations = Relations(self.run, records, ticks, self.world.config, str(self.checkpoint), 1)

        def no_reference(_session: SparkSession, name: str) -> DataFrame:
            raise AssertionError(name)

        rows = output_rows(session, self.plan, relations, no_reference, detected)
        writer = (
            rows.writeStream.queryName(self.run.name)
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode("append")
            .trigger(processingTime="200 milliseconds")
        )
        writer._jwrite.foreachBatch(relations.writer(session))
        with stateful.tasks_of(session, self.run):
            self.query = writer.start()

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def publish(
        self,
        *payloads: Any,
        at_ms: int | None = None,
        key: bytes = b"default/w/1",
        chain: tuple[str, ...] = (),
    ) -> None:
        """Append messages, all in one batch, that have come through the rules of a chain.

        They arrive at `at_ms`; without it at the latest time that one of them has itself.
        """
        if at_ms is None:
            at_ms = max((_own_time(payload) for payload in payloads), default=BEGIN)
        lines = []
        for payload in payloads:
            value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            message = Message(
                "default", "w/1", value, 1, False, self.offset.to_bytes(16), "c", 0, "l/g"
            )
            headers = message_headers(message)
            if chain:
                headers.append((HEADER_CHAIN, encode_chain(chain)))
            lines.append(
                {
                    "key": _base64(key),
                    "value": _base64(value),
                    "headers": [
                        {"key": name, "value": _base64(header)} for name, header in headers
                    ],
                    "topic": INBOUND,
                    "partition": 0,
                    "offset": self.offset,
                    "timestamp": datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(),
                }
            )
            self.offset += 1
        self.records += lines
        name = f"{self.offset:08}"
        temporary = self.inbox / f".{name}"
        temporary.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        temporary.rename(self.inbox / f"{name}.json")

    def process(self) -> None:
        """Wait until all that was published is taken."""
        assert self.query is not None
        self.query.processAllAvailable()

    def rows(self) -> list[Any]:
        return [json.loads(one.row) for one in self.world.outputs() if one.rule == self.rule]

    def batch_rows(self) -> Counter[str]:
        """Return what the plan gives as a batch query over the same records."""
        spark = self.world.spark.newSession()
        for name, value in history.SESSION_SETTINGS.items():
            spark.conf.set(name, value)
        spark.conf.set(FUNCTIONS_OPTION, listed(RULE_FUNCTIONS))
        lines = [
            (record["offset"], bytearray(base64.b64decode(record["value"])), record["timestamp"])
            for record in self.records
            if record["key"] == _base64(b"default/w/1")
        ]
        frame = spark.createDataFrame(lines, "log_offset BIGINT, payload BINARY, at STRING")
        frame.selectExpr(
            "'00' AS id",
            "'default' AS tenant",
            "'w/1' AS topic",
            "payload",
            "1 AS qos",
            "false AS retain",
            "false AS dup",
            "'c' AS client_id",
            "NULL AS username",
            "4 AS protocol_level",
            "NULL AS properties",
            "'l/g' AS origin",
            "CAST(at AS TIMESTAMP) AS ts",
            "0 AS log_partition",
            "log_offset",
        ).createOrReplaceTempView("history")
        source = GivenRows(f"SELECT {history.MESSAGES_STORED.row} FROM history", ("history",))
        sources = {stream.name: source for stream in self.plan.streams}
        found = spark.sql(plans.rows(self.plan, sources, "default").text).collect()
        return Counter(row.row for row in found)


@pytest.fixture
def start(
    world: World, streaming_settings: LakeSettings, tmp_path: Path
) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(rule: str, sql: str, **more: Any) -> Engine:
        engines.append(Engine(world, streaming_settings, tmp_path / rule, rule, sql, **more))
        engines[-1].start()
        return engines[-1]

    world.clear()
    yield make
    for engine in engines:
        engine.stop()


LATENESS = "lateness => '20 seconds'"
WINDOWS = {
    "tumble": f"""SELECT payload.k AS k, count(*) AS n, sum(payload.v) AS s, avg(payload.v) AS a,
        min(payload.v) AS low, max(payload.v) AS high, window_start, window_end
        FROM "w/#" WHERE payload.v >= 0
        GROUP BY payload.k, tumble(payload.ts, '10 seconds', {LATENESS})""",
    "hop": f"""SELECT payload.k AS k, count(*) AS n, sum(payload.v) AS s, window_start
        FROM "w/#" GROUP BY payload.k, hop(payload.ts, '15 seconds', '5 seconds', {LATENESS})""",
    "session": f"""SELECT payload.k AS k, count(*) AS n, max(payload.v) AS high, window_start,
        window_end FROM "w/#" GROUP BY payload.k, session(payload.ts, '3 seconds', {LATENESS})
        HAVING count(*) > 1""",
}


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_on_messages_out_of_order_are_those_of_a_batch_query(
    window: str, start: Callable[..., Engine]
) -> None:
    chance = random.Random(window)
    engine = start(window, WINDOWS[window])
    at = BEGIN
    left = 340
    while left:
        # Where a batch ends is nobody's choice: what comes out may not depend on it.
        size = min(left, chance.choice((1, 9, 40, 90, 150)))
        left -= size
        batch = []
        for _ in range(size):
            at += chance.randrange(0, 500)
            # Up to 15 s late, which is less than is waited for.
            when = at - chance.choice((0, 0, chance.randrange(0, 15_000)))
            value = chance.randrange(-5, 100) / 4
            batch.append({"ts": when, "k": chance.choice("abcde"), "v": value})
        engine.publish(*batch, at_ms=at)
        engine.process()
    engine.publish({"ts": at + 300_000, "k": "z", "v": 1})
    engine.process()
    expected = engine.batch_rows()
    expected -= Counter(row for row in expected if json.loads(row)["k"] == "z")
    assert expected.total() > 30
    assert Counter(one.row.decode() for one in engine.world.outputs()) == expected
    assert not engine.world.letters()


def test_a_batch_that_comes_again_writes_the_same_in_the_same_place(
    start: Callable[..., Engine],
) -> None:
    engine = start("again", WINDOWS["tumble"])
    messages = [{"ts": BEGIN + 700 * n, "k": "ab"[n % 2], "v": n / 10} for n in range(40)]
    engine.publish(*messages, chain=("other",))
    engine.publish({"ts": BEGIN + 90_000, "k": "z", "v": 0})
    engine.process()
    engine.stop()
    first = engine.world.written(OUTPUTS)
    assert len(first) > 3
    rows = sorted((engine.checkpoint / "rows").iterdir())
    (kept,) = rows
    # Killed when the rows were written, and the batch was not noted yet.
    for commit in (engine.checkpoint / "commits").glob("*"):
        if commit.name.isdecimal() and int(commit.name) >= int(kept.name):
            commit.unlink()
            (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    engine.start()
    engine.process()
    again = engine.world.written(OUTPUTS)
    assert again[len(first) :] == first
    assert {output.chain for output in engine.world.outputs()} == {(UNNAMED_RULE,)}
    marks = [output.mark for output in engine.world.outputs()[: len(first)]]
    assert marks == sorted(set(marks))
    assert len({output.position.partition for output in engine.world.outputs()}) == 1


@pytest.mark.campaign("the other tests of this file run the same query")
def test_what_is_late_and_what_fails_is_told_and_disturbs_nothing(
    start: Callable[..., Engine],
) -> None:
    engine = start(
        "late",
        """SELECT count(*) AS n, window_end FROM "w/#" WHERE payload.ts IS NOT NULL
        GROUP BY tumble(payload.ts, '10 seconds', lateness => '1 seconds')""",
    )
    for payload in ({"ts": BEGIN}, {"ts": BEGIN + 8_000}, {"ts": "no time"}, {"x": 1}):
        engine.publish(payload)
    engine.publish({"ts": BEGIN + 25_000})
    engine.process()
    # Closed: who comes for that window now is late, who comes for the next one is not.
    engine.publish({"ts": BEGIN + 3_000}, {"ts": BEGIN + 23_500}, {"ts": BEGIN + 60_000})
    engine.process()
    assert [(row["n"], row["window_end"] - BEGIN) for row in engine.rows()] == [
        (2, 10_000),
        (2, 30_000),
    ]
    letters = engine.world.letters()
    assert [(one.stage, one.value) for one in letters] == [
        ("evaluate", b'{"ts": "no time"}'),
        ("late", b'{"ts": %d}' % (BEGIN + 3_000)),
    ]
    late = letters[1]
    assert (late.event_time_ms, late.watermark_ms) == (BEGIN + 3_000, BEGIN + 24_000)
    assert str(late.position) == f"i.{engine.run.name}.s0:0:5:0"
    counters = engine.world.counters("late")
    names = ("matched", "passed", "no_result", "failed", "late", "outputs")
    assert [counters[name] for name in names] == [8, 5, 1, 1, 1, 2]


def test_a_clock_that_is_ahead_makes_no_other_message_late(start: Callable[..., Engine]) -> None:
    engine = start(
        "ahead",
        """SELECT payload.k AS k, count(*) AS n, window_end FROM "w/#"
        GROUP BY payload.k, tumble(payload.ts, '10 seconds', lateness => '5 seconds')""",
    )
    ahead_ms = 540_000
    for second in range(0, 30, 2):
        at = BEGIN + 1_000 * second
        # The right clock's messages take 4 s, which is less than is waited for.
        engine.publish(
            {"ts": at + ahead_ms, "k": "ahead"}, {"ts": at - 4_000, "k": "right"}, at_ms=at
        )
        engine.process()
    assert not engine.world.letters()
    ends = [(row["k"], row["n"], row["window_end"] - BEGIN) for row in engine.rows()]
    assert ends == [("right", 2, 0), ("right", 5, 10_000), ("right", 5, 20_000)]
    # Windows of the time ahead end when it has come.
    engine.publish({"ts": BEGIN + ahead_ms + 15_000, "k": "right"})
    engine.process()
    assert [
        (row["n"], row["window_end"] - BEGIN) for row in engine.rows() if row["k"] == "ahead"
    ] == [(5, ahead_ms + 10_000)]


def test_an_output_that_the_log_does_not_take_is_a_dead_letter(
    start: Callable[..., Engine],
) -> None:
    engine = start(
        "large",
        """SELECT payload.k AS k, count(*) AS n FROM "w/#"
        GROUP BY payload.k, tumble(payload.ts, '10 seconds', lateness => '1 seconds')""",
    )
    engine.world.limit(OUTPUTS, 2000)
    engine.publish({"ts": BEGIN, "k": "x" * 3000}, {"ts": BEGIN + 11_000, "k": "short"})
    engine.publish({"ts": BEGIN + 60_000})
    engine.process()
    assert engine.rows() == [{"k": "short", "n": 1}]
    (letter,) = engine.world.letters()
    assert (letter.stage, letter.value) == ("evaluate", b"")
    assert letter.error.startswith("an output has 3")
    assert letter.error.endswith(f" bytes, {OUTPUTS} takes 2000")
    # What is late is told without its payload when there is no room for it.
    engine.world.limit(DEAD_LETTERS, 1000)
    engine.publish({"ts": BEGIN, "k": "x" * 3000})
    engine.process()
    late = engine.world.letters()[1]
    assert (late.stage, late.value) == ("late", b"")
    assert late.error.endswith(f" bytes is left out: {DEAD_LETTERS} takes 1000)")


@pytest.mark.campaign("the other tests of this file run the same query")
def test_what_is_decoded_by_a_schema_is_counted_and_what_is_not_is_told(
    start: Callable[..., Engine],
) -> None:
    known = schemas(celsius=SchemaBody(type="avro", source='"double"'))
    engine = start(
        "decoded",
        """SELECT count(*) AS n, max(payload) AS high, window_end FROM "w/#" DECODE 'celsius'
        GROUP BY tumble(timestamp, '10 seconds')""",
        schemas=known,
    )
    Engine(
        engine.world,
        engine.settings,
        engine.folder / "watch",
        "watch",
        "SELECT count(*) AS n FROM \"$events/rule_failed\" GROUP BY tumble(timestamp, '1 second')",
    )
    engine.publish(*(struct.pack("<d", value) for value in (20.5, 61.5)), b"\x01")
    engine.process()
    await_condition(lambda: bool(engine.rows()), "the window closes by the clock")
    assert [(row["n"], row["high"]) for row in engine.rows()] == [(2, 61.5)]
    (letter,) = engine.world.letters()
    assert (letter.stage, letter.value) == ("evaluate", b"\x01")
    assert "does not decode by schema celsius:1" in letter.error
    ((key, value, headers),) = engine.world.written(EVENTS)
    event = json.loads(value)
    assert (key, headers) == (b"default/c", [("chain", b"decoded")])
    assert (event["event"], event["rule"], event["count"]) == ("rule.failed", "decoded", 1)
    assert event["error"] == letter.error


def test_a_version_counts_from_its_first_offset_to_its_last(
    start: Callable[..., Engine],
) -> None:
    sql = WINDOWS["tumble"]
    engine = start("span", sql, starts=3)
    engine.publish(*({"ts": BEGIN + n, "k": n, "v": 1} for n in range(5)))
    engine.process()
    engine.ends, engine.ended_at_ms = 5, BEGIN
    engine.activate()
    engine.publish(None, key=rules_barrier_key(2))
    engine.publish({"ts": BEGIN + 1, "k": 9, "v": 1}, {"ts": BEGIN + 600_000, "k": 9, "v": 1})
    engine.process()
    assert not engine.rows(), "what is open at the end is dropped"
    assert engine.world.counters("span")["matched"] == 2


@pytest.mark.campaign("the other tests of this file run the same query")
def test_a_rule_pays_for_the_tasks_of_its_query_and_of_no_other(
    start: Callable[..., Engine],
) -> None:
    """Reading, sorting, keeping and writing, though the evaluation itself takes microseconds."""

    def spent(engine: Engine) -> int:
        return engine.world.counters(engine.rule)["evaluation_ns"]

    one, other = start("pays", WINDOWS["tumble"]), start("idles", WINDOWS["tumble"])
    for engine in (one, other):
        engine.publish({"ts": BEGIN, "k": 1, "v": 1})
        engine.process()
    await_condition(lambda: spent(one) > 0 < spent(other), "tasks are counted")
    other.stop()
    of_other, of_one = spent(other), spent(one)
    one.publish(*({"ts": BEGIN + n, "k": n, "v": 1} for n in range(200)))
    one.process()
    await_condition(lambda: spent(one) > of_one + 1_000_000, "a batch takes more than 1 ms")
    assert spent(other) == of_other


@pytest.mark.campaign("the other tests of this file run the same query")
def test_a_window_by_receipt_closes_without_messages(start: Callable[..., Engine]) -> None:
    engine = start(
        "receipt",
        """SELECT count(*) AS n, window_end FROM "w/#"
        GROUP BY topic, tumble(timestamp, '1 second', lateness => '1 second')
        HAVING topic = 'w/1'""",
    )
    now = SystemClock().now_ms()
    engine.publish(*({} for _ in range(7)), at_ms=now)
    await_condition(lambda: bool(engine.rows()), "the window")
    assert engine.rows() == [{"n": 7, "window_end": (now // 1000 + 1) * 1000}]
    (output,) = engine.world.outputs()
    assert output.received_at_ms == (now // 1000 + 1) * 1000
    assert (output.topic_name, output.client_id) == ("w/#", "")
    assert output.position.source == engine.run.name
    # The version ends: what is complete by then is told, what is later is not.
    engine.ended_at_ms = (now // 1000 + 2) * 1000
    engine.activate()
    engine.publish({}, at_ms=engine.ended_at_ms + 200)
    await_condition(
        lambda: watermark_ms(engine.checkpoint) > (engine.ended_at_ms or 0) + 1500,
        "time goes on",
    )
    assert len(engine.rows()) == 1


@pytest.mark.campaign("the other tests of this file run the same query")
def test_streams_are_joined_and_silence_is_told(start: Callable[..., Engine]) -> None:
    join = start(
        "join",
        """SELECT a.payload.n AS n, b.payload.m AS m FROM "w/+" AS a JOIN "w/#" AS b
        ON a.payload.n = b.payload.of WITHIN '10 minutes'""",
    )
    join.publish(*({"n": n} for n in range(4)), at_ms=SystemClock().now_ms(), chain=("x",))
    join.process()  # for as long as it takes: what came at its beginning would be late behind it
    join.publish(*({"of": n, "m": 10 * n} for n in range(2, 6)), at_ms=SystemClock().now_ms())
    await_condition(lambda: len(join.rows()) == 2, "pairs")
    assert sorted(row["m"] for row in join.rows()) == [20, 30]
    chains = {one.chain for one in join.world.outputs()}
    assert chains == {(UNNAMED_RULE,)}, "one of the two messages comes from a rule"
    join.stop()
    silent = start("silent", "SELECT topic, state FROM \"w/+\" WHERE absent('1 second')")
    silent.publish({}, at_ms=SystemClock().now_ms(), chain=("x", "y"))
    await_condition(lambda: bool(silent.rows()), "silence")
    assert silent.rows() == [{"topic": "w/1", "state": "absent"}]
    assert silent.world.outputs()[-1].chain == 2 * (UNNAMED_RULE,)


@pytest.mark.campaign("the other tests of this file run the same query")
def test_rules_with_memory_that_feed_each_other_are_stopped_and_say_so(
    start: Callable[..., Engine],
) -> None:
    engine = start("loop", WINDOWS["tumble"])
    others = tuple(f"r{n}" for n in range(MAX_CHAIN))
    engine.publish({"ts": BEGIN, "k": "a", "v": 1})
    engine.publish({"ts": BEGIN, "k": "a", "v": 1}, chain=others[:3])
    engine.publish({"ts": BEGIN, "k": "b", "v": 1}, chain=others[:-1])
    engine.publish({"ts": BEGIN, "k": "c", "v": 1}, chain=others)
    engine.publish({"ts": BEGIN, "k": "d", "v": 1}, chain=("other", "loop"))
    engine.publish({"ts": BEGIN, "k": "e", "v": 1})
    engine.publish({"ts": BEGIN + 90_000, "k": "z", "v": 0})
    engine.process()
    made = {json.loads(one.row)["k"]: one.chain for one in engine.world.outputs()}
    assert made == {"a": 3 * (UNNAMED_RULE,), "b": 15 * (UNNAMED_RULE,), "e": ()}
    errors = [letter.error for letter in engine.world.letters()]
    assert len(errors) == 2
    assert all("loop: the message has come through" in error for error in errors)
    # What this rule publishes of b is at the limit: no other rule takes it in.
    assert len((*made["b"], "loop")) == MAX_CHAIN


@pytest.mark.campaign("the other tests of this file run the same query")
def test_a_plan_of_an_earlier_compiler_goes_on(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = start("before", WINDOWS["tumble"])
    engine.stop()
    (stream,) = engine.plan.streams
    columns = tuple(column for column in stream.columns if column.name != HOPS)
    query = engine.plan.query.replace(f", max({HOPS}) AS {HOPS}", "").replace(f", {HOPS}", "")
    query = query.replace(f" AS {HOPS}", "").replace("`end`", "end")
    engine.plan = replace(engine.plan, streams=(replace(stream, columns=columns),), query=query)
    assert HOPS not in query
    engine.folder = tmp_path / "earlier"
    engine.inbox.mkdir(parents=True)
    engine.activate()
    engine.start()
    engine.publish({"ts": BEGIN, "k": "a", "v": 1}, {"ts": BEGIN + 90_000, "k": "z", "v": 0})
    engine.process()
    assert [row["k"] for row in engine.rows()] == ["a"]


def _own_time(payload: Any) -> int:
    time = payload.get("ts") if isinstance(payload, dict) else None
    return time if isinstance(time, int) else BEGIN


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
