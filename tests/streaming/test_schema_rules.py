"""Rules that decode: live, on a made-up message, over history; dead letters run again."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from api.jobs.jobs import Job
from api.rules import dead_letters
from api.rules.checking import compiled
from api.rules.dead_letters import Wanted, list_query
from api.rules.dry_run import DryRunRange as Messages
from api.rules.dry_run import dry_run
from api.rules.materialised import Entry
from api.rules.rerun import RerunError, RerunOrder, rerun
from api.rules.rerun_log import Begin, Left
from api.rules.samples import make_sample
from api.rules.trial import Outcome, try_rule
from api.spark.connect import SparkConnect
from mqlake.records.messages import DEAD_LETTERS, OUTPUTS
from mqlake.records.outputs import DeadLetter, Output, decode_dead_letter, decode_output
from mqlake.records.rules import Activation, OffsetRange, Span
from rules.language.compiler import compile_rule
from rules.model import Rule
from rules.schemas.model import SchemaBody
from rules.schemas.registry import Schemas
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables
from tests.api.conftest import MemoryAppender
from tests.streaming.decoding import schema, schemas
from tests.streaming.rule_engine import Engine

pytestmark = pytest.mark.spark

TENANT = "decoding"
BOILER = {
    "type": "record",
    "name": "Boiler",
    "fields": [{"name": "celsius", "type": "double"}, {"name": "state", "type": "string"}],
}
SQL = "SELECT payload.celsius AS t, payload.state AS s FROM 'boiler/+' DECODE 'boiler'"
CALLED = """
SELECT schema_decode('boiler', payload) AS b, b.celsius AS celsius, upper(b.state) AS s
FROM 'boiler/+'
WHERE schema_decode('boiler', payload).celsius > 50
"""


def boiler(celsius: float, state: str = "on") -> bytes:
    return struct.pack("<d", celsius) + bytes((2 * len(state),)) + state.encode()


@pytest.fixture(scope="module")
def known() -> Schemas:
    return schemas(
        boiler=SchemaBody(type="avro", source=json.dumps(BOILER)),
        pump=SchemaBody(
            type="protobuf",
            source='syntax = "proto3"; message Pump { double bar = 1; }'
            " message Other { int32 n = 1; }",
        ),
    )


# Live


def activate(engine: Engine, sql: str, known: Schemas, rule: str = "r") -> None:
    made = compile_rule(sql, schemas=known)
    sources = {"mqlake.inbound": OffsetRange((0,))}
    engine.activate(Span(1, made.filters, made.expression, (), None, sources), rule=rule)


def rows(made: list[Output | DeadLetter]) -> list[Any]:
    return [json.loads(one.row) for one in made if isinstance(one, Output)]


def test_a_rule_decodes_what_comes(engine: Engine, known: Schemas) -> None:
    activate(engine, SQL, known)
    activate(engine, CALLED, known, "s")
    found = rows(engine.publish("boiler/1", boiler(61.5)))
    assert found == [
        {"t": 61.5, "s": "on"},
        {"b": {"celsius": 61.5, "state": "on"}, "celsius": 61.5, "s": "ON"},
    ]
    assert rows(engine.publish("boiler/1", boiler(20.0))) == [{"t": 20.0, "s": "on"}]


def test_what_does_not_decode_is_a_dead_letter_with_its_bytes(
    engine: Engine, known: Schemas
) -> None:
    activate(engine, SQL, known)
    activate(engine, "SELECT topic FROM 'boiler/+'", known, "s")
    letter, output = engine.publish("boiler/1", b"\x01\x02")
    assert isinstance(letter, DeadLetter)
    assert isinstance(output, Output)
    assert (letter.value, letter.stage) == (b"\x01\x02", "evaluate")
    assert "does not decode by schema boiler:1: the payload ends too early" in letter.error


@pytest.mark.parametrize(
    ("sql", "payload", "expected"),
    [
        ("SELECT schema_decode('pump', payload).bar AS x FROM 'p'", b"\x09" + bytes(8), 0.0),
        ("SELECT schema_decode('pump:1', payload, 'Other').n AS x FROM 'p'", b"\x08\x07", 7),
        ("SELECT payload.n AS x FROM 'p' DECODE 'pump', 'Other'", b"\x08\x07", 7),
        ("SELECT sparkplug_decode(payload).seq AS x FROM 'p'", b"\x18\x05", 5),
        ("SELECT payload.seq AS x FROM 'p' decode 'sparkplug_b'", b"\x18\x05", 5),
        ("SELECT schema_decode('pump', base64_decode(payload)).bar AS x FROM 'p'", b"", 0.0),
        ("SELECT json_decode(payload).a[1] AS x FROM 'p'", b'{"a": [3]}', 3),
        ("SELECT map_get('bar', payload) AS x FROM 'p' DECODE 'pump'", b"", 0.0),
        ("SELECT bin2hexstr(topic) AS x FROM 'p' DECODE 'pump'", b"\xff", "70"),
    ],
)  # fmt: skip
@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_ways_to_decode(
    engine: Engine, known: Schemas, sql: str, payload: bytes, expected: Any
) -> None:
    activate(engine, sql, known)
    assert rows(engine.publish("p", payload)) == [{"x": expected}]


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_foreach_goes_through_what_is_decoded(engine: Engine, known: Schemas) -> None:
    sql = "FOREACH sparkplug_decode(payload).metrics AS m DO m.name AS n, m.value AS v FROM 'p'"
    activate(engine, sql, known)
    metric = b"\x0a\x01a" + b"\x20\x03" + b"\x50\x07"
    payload = b"\x12" + bytes((len(metric),)) + metric
    assert rows(engine.publish("p", payload + payload)) == [{"n": "a", "v": 7}] * 2


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_two_versions_of_a_schema_are_told_apart(engine: Engine, known: Schemas) -> None:
    longer = {**BOILER, "fields": [{"name": "id", "type": "long"}, *BOILER["fields"]]}
    second = schema("boiler", SchemaBody(type="avro", source=json.dumps(longer)), 2)
    both = Schemas({"boiler": {1: known.versions("boiler")[0], 2: second}})
    activate(engine, SQL, both)
    activate(engine, SQL.replace("'boiler'", "'boiler:1'"), both, "s")
    made = engine.publish("boiler/1", b"\x02" + boiler(1.0))
    assert rows(made) == [{"t": 1.0, "s": "on"}]
    assert [type(one) for one in made] == [Output, DeadLetter]


# Through Spark Connect


@pytest.fixture(scope="module")
def connect(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    query_dir: Path,
) -> Iterator[SparkConnect]:
    create_tables(spark, streaming_settings)
    asked = SparkConnect(query_dir)
    asked.rows("SELECT count(*) FROM messages", 300)  # the first question takes longer
    yield asked
    asked.close()


def try_out(connect: SparkConnect, known: Schemas, sql: str, payload: bytes) -> Outcome:
    from base64 import b64encode

    context = {"topic": "boiler/1", "payload_base64": b64encode(payload).decode()}
    rule = compiled(sql, known)
    return try_rule(rule, make_sample(rule, context, "default", 1_700_000_000_000), connect)


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_a_rule_is_tried_on_bytes(connect: SparkConnect, known: Schemas) -> None:
    assert try_out(connect, known, CALLED, boiler(61.5)).outputs == (
        {"b": {"celsius": 61.5, "state": "on"}, "celsius": 61.5, "s": "ON"},
    )
    reason = try_out(connect, known, SQL + " WHERE payload.celsius > 50", boiler(1.5)).reason
    assert reason is not None
    assert reason.values == {"payload.celsius": 1.5}
    for sql in (SQL, CALLED):
        error = try_out(connect, known, sql, b"\x01").error
        assert error is not None
        assert error.startswith("the payload does not decode by schema boiler:1: ")


def insert(spark: SparkSession, payloads: list[bytes], first: int = 0) -> None:
    rows = ", ".join(f"({at}L, X'{payload.hex()}')" for at, payload in enumerate(payloads, first))
    spark.sql(
        f"INSERT INTO messages SELECT lpad(hex(o), 32, '0'), '{TENANT}', 'boiler/1', p,"
        " CAST(1 AS TINYINT), false, false, 'c', NULL, CAST(4 AS TINYINT), NULL,"
        f" 'local/gateway-1', timestamp_millis({1_700_000_000_000} + o), 3, o"
        f" FROM VALUES {rows} AS t(o, p)"
    )


def add_letters(spark: SparkSession, rule: str, letters: list[tuple[int, bytes, str]]) -> None:
    """Put dead letters into the table: offset, payload and error of each."""
    rows = ", ".join(f"({at}L, X'{payload.hex()}', '{error}')" for at, payload, error in letters)
    spark.sql(
        f"INSERT INTO dead_letters SELECT timestamp_millis({1_700_000_100_000} + o), '{TENANT}',"
        f" '{rule}', 1, 'evaluate', NULL, e, 'boiler/1', 'c', p, 'mqlake.inbound', 3, o, 0"
        f" FROM VALUES {rows} AS t(o, p, e)"
    )


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_history_is_decoded_and_what_fails_is_counted(
    spark: SparkSession, connect: SparkConnect, known: Schemas
) -> None:
    insert(spark, [boiler(61.5), boiler(20.0), b"\x01"], first=100)
    job = Job("1", "dry_run", TENANT, "r1", 0)
    found = dry_run(job, connect, compiled(CALLED, known), Messages(TENANT), None)
    assert [found[name] for name in ("matched", "passed", "no_result", "failed")] == [3, 1, 1, 1]
    assert "does not decode by schema boiler:1" in found["errors"][0]["error"]


# Dead letters


@dataclass
class MemoryRerunLog:
    """What is in the log of a `MemoryAppender`."""

    log: MemoryAppender
    asked: list[Begin] = field(default_factory=list)

    def ends(self) -> Begin:
        count = len(self.log.records)
        return Begin({0: count}, {0: count})

    def left(self, tenant: str, rule: str, begin: Begin) -> Left:
        self.asked.append(begin)
        left = Left()
        key = f"{tenant}/{rule}".encode()
        for record in self.log.records[begin.outputs[0] :]:
            if record.key == key and record.log_topic == OUTPUTS:
                position = decode_output(record.key, record.value, record.headers).position
                left.made[position.partition, position.offset] = None
            elif record.key == key and record.log_topic == DEAD_LETTERS:
                position = decode_dead_letter(record.key, record.value, record.headers).position
                left.marked[position.partition, position.offset] = None
        return left


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Reruns:
    """A rule's dead letters, run again as the API does; marks go into the table as they would."""

    spark: SparkSession
    connect: SparkConnect
    rule: str
    log: MemoryAppender = field(default_factory=MemoryAppender)
    begun: list[Begin] = field(default_factory=list)
    marked: int = 0

    def run(self, known: Schemas, sql: str = SQL, *, killed: bool = False, **wanted: Any) -> Any:
        entry = Entry(
            Rule(id=self.rule, tenant=TENANT, sql=sql, version=2, created_at=0, updated_at=0),
            Activation(TENANT, self.rule, "running", 2, 1),
        )
        order = RerunOrder(
            2, compiled(sql, known), Wanted(TENANT, self.rule, "evaluate", **wanted), 50_000
        )
        log = self.log
        append = log.append_all

        def append_all(log_topic: str, records: Any, *, what: str) -> list[int]:
            if killed and log_topic == DEAD_LETTERS:
                raise Killed
            offsets = append(log_topic, records, what=what)
            self.flush()
            return offsets

        log.append_all = append_all  # type: ignore[method-assign]
        try:
            return rerun(
                Job("j", "rerun", TENANT, self.rule, 0),
                order,
                self.connect,
                log,
                MemoryRerunLog(log),
                self.begun[-1] if self.begun else None,
                self.begun.append,
                lambda: entry,
            )
        finally:
            log.append_all = append  # type: ignore[method-assign]

    def flush(self) -> None:
        """Put marks into the table."""
        letters = [
            decode_dead_letter(one.key, one.value, one.headers)
            for one in self.log.records[self.marked :]
            if one.log_topic == DEAD_LETTERS
        ]
        self.marked = len(self.log.records)
        if letters:
            rows = ", ".join(
                f"('{one.stage}', {one.position.partition}, {one.position.offset}L)"
                for one in letters
            )
            self.spark.sql(
                f"INSERT INTO dead_letters SELECT current_timestamp(), '{TENANT}', '{self.rule}',"
                " 2, s, NULL, '', '', '', X'', 'mqlake.inbound', p, o, 0"
                f" FROM VALUES {rows} AS t(s, p, o)"
            )

    def outputs(self) -> list[tuple[str, Any]]:
        return [
            (str(output.position), json.loads(output.row))
            for one in self.log.records
            if one.log_topic == OUTPUTS
            for output in [decode_output(one.key, one.value, one.headers)]
        ]


@pytest.fixture
def reruns(spark: SparkSession, connect: SparkConnect, request: Any) -> Reruns:
    return Reruns(spark, connect, request.node.name[:60])


def test_letters_are_run_again_once(spark: SparkSession, reruns: Reruns, known: Schemas) -> None:
    payloads = [boiler(1.5), b"\x01", boiler(2.5)]
    insert(spark, payloads[:2], first=200)
    # The third message is no longer in the table, the first was evaluated twice.
    letters = [(200 + at, payload, "bad") for at, payload in enumerate(payloads)]
    add_letters(spark, reruns.rule, [*letters, (200, payloads[0], "twice")])
    found = reruns.run(known)
    assert [found[name] for name in ("letters", "passed", "failed", "outputs")] == [3, 2, 1, 2]
    assert "does not decode" in found["errors"][0]["error"]
    expected = [("r:3:200:0", {"t": 1.5, "s": "on"}), ("r:3:202:0", {"t": 2.5, "s": "on"})]
    assert reruns.outputs() == expected
    again = reruns.run(known)
    assert [again[name] for name in ("letters", "failed", "outputs")] == [1, 1, 0]
    assert reruns.outputs() == expected
    # With another schema the last one decodes too, though its place is between the others.
    byte = schemas(boiler=SchemaBody(type="avro", source='{"type": "int"}'))
    assert reruns.run(byte, "SELECT payload AS t FROM 'boiler/+' DECODE 'boiler'")["outputs"] == 1
    assert reruns.outputs()[2:] == [("r:3:201:0", {"t": -1})]


def test_a_run_that_was_killed_before_its_mark_doubles_nothing(
    spark: SparkSession, reruns: Reruns, known: Schemas
) -> None:
    insert(spark, [boiler(3.5)], first=300)
    add_letters(spark, reruns.rule, [(300, boiler(3.5), "bad")])
    with pytest.raises(Killed):
        reruns.run(known, killed=True)
    assert len(reruns.outputs()) == 1
    assert reruns.run(known)["letters"] == 0
    assert len(reruns.outputs()) == 1


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_only_some_letters_are_run_again(
    spark: SparkSession, reruns: Reruns, known: Schemas
) -> None:
    loop = "loop: the message has come through x"
    payload = boiler(1.0)
    add_letters(
        spark, reruns.rule, [(400, payload, "a"), (401, payload, "b"), (402, payload, loop)]
    )
    assert reruns.run(known, error="a")["letters"] == 1
    assert reruns.run(known, to_ms=1)["letters"] == 0
    assert reruns.run(known)["letters"] == 1


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_a_message_of_which_the_rule_makes_nothing_is_done_with(
    spark: SparkSession, reruns: Reruns, known: Schemas
) -> None:
    add_letters(spark, reruns.rule, [(500, boiler(1.0), "bad")])
    elsewhere = SQL.replace("boiler/+", "other")
    assert reruns.run(known, elsewhere)["not_matched"] == 1
    assert reruns.run(known, SQL + " WHERE payload.celsius > 50")["no_result"] == 1
    assert reruns.run(known)["letters"] == 0


def test_a_run_ends_when_the_rule_has_changed(
    spark: SparkSession, connect: SparkConnect, known: Schemas, tmp_path: Path
) -> None:
    log = MemoryAppender()
    order = RerunOrder(2, compiled(SQL, known), Wanted(TENANT, "gone", "evaluate"), 1)
    job = Job("j", "rerun", TENANT, "gone", 0)
    with pytest.raises(RerunError, match="no longer at version 2"):
        rerun(job, order, connect, log, MemoryRerunLog(log), None, lambda _: None, lambda: None)


@pytest.mark.campaign("the other tests of this file decode and run again the same way")
def test_letters_are_listed_the_newest_first_by_pages(
    spark: SparkSession, connect: SparkConnect, reruns: Reruns, known: Schemas
) -> None:
    payloads = (boiler(1.0), b"\xff", boiler(2.0))
    add_letters(spark, reruns.rule, [(600 + at, one, "bad") for at, one in enumerate(payloads)])
    reruns.run(known)
    wanted = Wanted(TENANT, reruns.rule)
    rows = connect.rows(list_query(wanted, None, 2))
    views = [dead_letters.view(row) for row in rows]
    assert [(one.log_offset, one.rerun) for one in views] == [(602, True), (601, False)]
    assert (views[1].payload, views[1].payload_base64) == (None, "/w==")
    (last,) = connect.rows(list_query(wanted, dead_letters.key_of(rows[-1]), 2))
    assert last["log_offset"] == 600
    open_ = Wanted(TENANT, reruns.rule, is_open=True)
    assert [row["log_offset"] for row in connect.rows(list_query(open_, None, 9))] == [601]
