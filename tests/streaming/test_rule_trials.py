"""What the API asks Spark about rules: one made-up message, and history."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.errors import NumberFormatException
from pyspark.sql import SparkSession

from api.jobs.jobs import Job, Jobs
from api.rules import trial
from api.rules.backfill import BackfillError, BackfillOrder, backfill, live_range, missed_since
from api.rules.checking import compiled, warnings
from api.rules.dry_run import Compared, DryRunError, dry_run
from api.rules.dry_run import DryRunRange as Messages
from api.rules.history import DROPS_STORED, EVENTS_STORED, MESSAGES_STORED, STORED, StoredHistory
from api.rules.materialised import Entry
from api.rules.plan_dry_run import plan_dry_run
from api.rules.samples import InvalidContext, make_sample
from api.rules.trial import Outcome, try_rule
from api.spark.connect import (
    MOST_ASKING_OF_ONE,
    Cancelled,
    EvaluationError,
    SparkAway,
    SparkConnect,
)
from launcher.testing.systems import await_condition
from mqlake.clock import SystemClock
from mqlake.records.messages import DEAD_LETTERS, INBOUND
from mqlake.records.outputs import decode_dead_letter, decode_output
from mqlake.records.rules import Activation, OffsetRange, Span
from rules.model import ActionSpec, Rule
from rules.sql.confined import FUNCTIONS_OPTION, Confined, listed
from rules.sql.functions import RULE_FUNCTIONS
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables
from tests.api.conftest import MemoryAppender
from tests.api.test_api import write_state

pytestmark = pytest.mark.spark

TENANT = "trial"
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MESSAGES = 400
"""One every 30 s, over 8 partitions."""
HISTORIES = (MESSAGES_STORED, EVENTS_STORED, DROPS_STORED)
HOT = "SELECT payload.t AS t, clientid FROM 'plant/+/temp' WHERE payload.t > 50 AND qos = 1"


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Wait for what a cold Spark has not compiled yet longer than a caller does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "TIMEOUT_SECONDS", 120.0)
        yield


@pytest.fixture(scope="module")
def connect(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    query_dir: Path,
) -> Iterator[SparkConnect]:
    create_tables(spark, streaming_settings)
    spark.sql(
        "INSERT INTO messages SELECT lower(lpad(hex(id), 32, '0')), "
        f"'{TENANT}', concat('plant/', id % 4, '/temp'),"
        """ encode(concat('{"t":', id % 100, ',"n":', id, '}'), 'utf-8'),"""
        " CAST(1 AS TINYINT), false, false, concat('c', id % 3), NULL, CAST(4 AS TINYINT), NULL,"
        f" 'local/gateway-1', timestamp_millis({START_MS} + id * 30000), CAST(id % 8 AS INT),"
        f" id div 8 FROM range({MESSAGES})"
    )
    asked = SparkConnect(query_dir)
    yield asked
    asked.close()


def try_out(connect: SparkConnect, sql: str, **context: Any) -> Outcome:
    rule = compiled(sql)
    return try_rule(rule, make_sample(rule, context, "default", 1_700_000_000_000), connect)


def run(connect: SparkConnect, sql: str, other: str | None = None, **range_: Any) -> dict[str, Any]:
    compared = None if other is None else Compared(compiled(other), 3)
    job = Job("1", "dry_run", TENANT, "r1", 0)
    return dry_run(job, connect, compiled(sql), Messages(TENANT, **range_), compared)


def test_a_message_gives_what_it_would_live(connect: SparkConnect) -> None:
    outcome = try_out(connect, HOT, topic="plant/1/temp", payload={"t": 60}, qos=1, clientid="it's")
    assert outcome == Outcome(({"t": 60, "clientid": "it's"},))
    each = "FOREACH payload.a AS x DO x.v AS v INCASE x.v > 1 FROM 'a'"
    several = try_out(connect, each, payload='{"a":[{"v":1},{"v":2},{"v":3}]}')
    assert several.outputs == ({"v": 2}, {"v": 3})
    columns = "SELECT gateway, user_properties.a AS a, retain FROM 'a'"
    made = try_out(connect, columns, node="g7", user_properties={"a": "b"}, retain=True)
    assert made.outputs == ({"gateway": "g7", "a": "b", "retain": True},)


def test_a_trial_and_a_dry_run_read_values_as_the_engine_does(connect: SparkConnect) -> None:
    elements = '[{"r":[1,2]},null,{"v":" 7"},{"v":"Infinity"}]'
    sql = (
        f"FOREACH json_decode('{elements}') AS e DO length(e.r) AS size, e.r[-1] AS last, "
        "float(e.v) AS v, e.v > 5 AS over, rfc3339_to_unix_ts(payload.at, 'nanosecond') AS at "
        "FROM 'plant/+/temp' WHERE payload.n IS NULL OR payload.n = 7"
    )
    wanted: list[dict[str, Any]] = [
        {"size": 2, "last": 2, "v": None, "over": False},
        {"size": None, "last": None, "v": None, "over": False},
        {"size": None, "last": None, "v": 7.0, "over": True},
        {"size": None, "last": None, "v": None, "over": False},
    ]
    tried = try_out(connect, sql, payload={"at": "2024-02-23T15:56:30.535904509Z"})
    assert list(tried.outputs) == [{**one, "at": 1708703790535904509} for one in wanted]
    (sample,) = run(connect, sql)["samples"]
    assert sample["outputs"] == [{**one, "at": None} for one in wanted]


@pytest.mark.parametrize(
    ("context", "condition", "said"),
    [
        ({"payload": '{"t":40}', "qos": 1}, "payload.t > 50", "payload.t is 40"),
        ({"payload": '{"x":40}', "qos": 1}, "payload.t > 50", "the message has no payload.t"),
        ({"payload": "text", "qos": 1}, "payload.t > 50", "its payload is not JSON"),
        ({"payload": '{"t":"hot"}', "qos": 1}, "payload.t > 50", 'payload.t is "hot"'),
        ({"payload": '{"t":60}'}, "qos = 1", "qos is 0"),
        ({"topic": "else", "payload": "1"}, None, "topic 'else' does not match 'plant/+/temp'"),
    ],
)
@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_no_match_says_why(
    connect: SparkConnect, context: dict[str, Any], condition: str | None, said: str
) -> None:
    outcome = try_out(connect, HOT, **context)
    assert (outcome.outputs, outcome.error) == ((), None)
    assert outcome.reason is not None
    assert outcome.reason.condition == condition
    assert said in outcome.reason.sentence


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_failure_is_told_in_sparks_words(connect: SparkConnect) -> None:
    outcome = try_out(connect, "SELECT 1 / payload.t AS x FROM 'a'", payload='{"t":0}')
    assert outcome.error is not None
    assert "zero" in outcome.error
    assert "SQLSTATE" not in outcome.error


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_an_event_is_made_up_too(connect: SparkConnect) -> None:
    sql = "SELECT clientid, keepalive, event FROM '$events/client_connected' WHERE keepalive > 10"
    assert try_out(connect, sql, clientid="c7", keepalive=60).outputs == (
        {"clientid": "c7", "keepalive": 60, "event": "client.connected"},
    )
    refused = try_out(connect, sql, clientid="c7", keepalive=5)
    assert refused.reason is not None
    assert "keepalive is 5" in refused.reason.sentence


@pytest.mark.parametrize(
    "context",
    [
        {"client": "x"},
        {"qos": "1"},
        {"qos": True},
        {"topic": "a/+"},
        {"payload_base64": "%"},
        {"properties": []},
        {"event_type": "client_connected", "qos": 1},
        {"event_type": "nothing"},
    ],
)
def test_a_context_that_cannot_be_is_refused(context: dict[str, Any]) -> None:
    with pytest.raises(InvalidContext):
        make_sample(compiled(HOT), context, "default", 0)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_what_is_never_true_is_warned_of(connect: SparkConnect) -> None:
    rule = compiled("SELECT * FROM 'a' WHERE 1 = 2 AND 1 = 1 AND qos > 0")
    (warning,) = warnings(rule, [ActionSpec(function="console")], connect)
    assert "'1 = 2' is never true" in warning


def test_history_is_counted_by_hour_with_examples(connect: SparkConnect) -> None:
    result = run(connect, HOT)
    assert {name: result[name] for name in ("matched", "passed", "no_result", "failed")} == {
        "matched": MESSAGES,
        "passed": 196,
        "no_result": 204,
        "failed": 0,
    }
    assert result["outputs"] == 196
    assert [hour["matched"] for hour in result["hours"]] == [120, 120, 120, 40]
    assert sum(hour["passed"] for hour in result["hours"]) == 196
    assert len(result["samples"]) == 10
    for sample in result["samples"]:
        said = json.loads(sample["payload"])
        assert sample["outputs"] == [{"t": said["t"], "clientid": sample["clientid"]}]
        assert sample["log_partition"] + 8 * sample["log_offset"] == said["n"]
    assert (result["errors"], result["difference"]) == ([], None)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_only_a_part_of_history_is_looked_at(connect: SparkConnect) -> None:
    hour = run(connect, HOT, from_ms=START_MS + HOUR_MS, to_ms=START_MS + 2 * HOUR_MS)
    assert hour["matched"] == 120
    assert run(connect, "SELECT * FROM 'plant/2/#'")["matched"] == 100
    newest = run(connect, "SELECT payload.n AS n FROM '#'", limit=10)
    found = {output["n"] for sample in newest["samples"] for output in sample["outputs"]}
    assert newest["matched"] == 10
    assert len(found) > 5
    assert found <= set(range(MESSAGES - 10, MESSAGES))
    assert run(connect, HOT, table_version=0)["matched"] == 0
    with pytest.raises(EvaluationError):
        run(connect, HOT, table_version=1_000)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_rows_that_fail_are_counted_and_explained(connect: SparkConnect) -> None:
    # What fails stands twice, so that computing it beforehand would show.
    failing = "1 / (payload.t - 7)"
    result = run(
        connect, f"SELECT {failing} AS a, {failing} AS b FROM 'plant/#' WHERE payload.t < 10"
    )
    assert (result["passed"], result["failed"], result["no_result"]) == (36, 4, 360)
    assert 0 < len(result["errors"]) <= 4
    for error in result["errors"]:
        assert json.loads(error["payload"])["t"] == 7
        assert "zero" in error["error"]


@pytest.fixture(scope="module")
def stored_events(spark: SparkSession, connect: SparkConnect) -> None:
    gone = "CASE WHEN id % 4 = 0 THEN 'normal' ELSE 'timeout' END"
    fields = f"to_json(named_struct('client_id', concat('c', id), 'ts', id, 'reason', {gone}))"
    spark.sql(
        f"INSERT INTO events SELECT timestamp_millis({START_MS} + id * 30000),"
        " CASE WHEN id % 2 = 0 THEN 'client.disconnected' ELSE 'client.connected' END,"
        f" '{TENANT}', concat('c', id), 'gateway-1', NULL, NULL, NULL, {fields}, 0, id"
        " FROM range(200)"
    )
    spark.sql(
        "INSERT INTO drops (ts, tenant, client_id, topic, qos, reason, count, gateway,"
        " log_partition, log_offset)"
        f" SELECT timestamp_millis({START_MS}), '{TENANT}', 'c1', 'a',"
        " CAST(1 AS TINYINT), 'queue_full', id, 'gateway-1', 0, id FROM range(10)"
    )


@pytest.mark.promise
@pytest.mark.usefixtures("stored_events")
@pytest.mark.parametrize("stored", HISTORIES, ids=lambda one: one.table)
def test_of_a_row_of_history_it_is_asked_first_whose_it_is(
    spark: SparkSession, stored: StoredHistory
) -> None:
    """Should a condition of a user ever come into one filter with the tenant."""
    mine, others = f"'{TENANT}', 'c1'", "'other', 'SECRET'"
    both = f"VALUES ({mine}), ({others}) AS rows (tenant, client_id)"
    at = f"timestamp_millis({START_MS}) AS ts, 9 AS log_partition, 9L AS log_offset"
    named = f"tenant, client_id, {at}"
    # A file with rows of two tenants, as each batch of the history writes one.
    spark.sql(
        f"INSERT INTO {stored.table} (tenant, client_id, ts, log_partition, log_offset)"
        f" SELECT /*+ COALESCE(1) */ {named} FROM {both}"
    )
    version = spark.sql(f"DESCRIBE HISTORY {stored.table} LIMIT 1").collect()[0]["version"]
    session = spark.newSession()
    session.conf.set(FUNCTIONS_OPTION, listed(RULE_FUNCTIONS))
    # What stands twice Spark computes once, in front of all.
    shown = "CAST(concat('P:', CASE WHEN client_id = 'SECRET' THEN client_id END) AS INT)"
    first = "size(filter(array(log_partition), x -> x >= 0)) > 0"
    query = f"SELECT count(*) FROM {STORED} WHERE ({shown} + {shown}) > 5 AND {first}"
    try:
        given = {STORED: stored.rows(version, TENANT, "log_partition = 9")}
        assert session.sql(Confined(query, given).text).collect() == [(0,)]
        given = {STORED: stored.rows(version, "other", "log_partition = 9")}
        with pytest.raises(NumberFormatException, match="P:SECRET"):
            session.sql(Confined(query, given).text).collect()
    finally:
        spark.sql(f"DELETE FROM {stored.table} WHERE log_partition = 9")


@pytest.mark.usefixtures("stored_events")
@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_rule_over_events_is_run_over_theirs(connect: SparkConnect) -> None:
    sql = "SELECT clientid, timestamp FROM '$events/client_disconnected' WHERE reason <> 'normal'"
    result = run(connect, sql)
    assert (result["matched"], result["passed"], result["failed"]) == (100, 50, 0)
    for sample in result["samples"]:
        said = json.loads(sample["payload"])
        assert sample["topic"] == "$events/client_disconnected"
        assert sample["outputs"] == [{"clientid": said["client_id"], "timestamp": said["ts"]}]
    both = f"{sql[: sql.index('WHERE')]}, '$events/client_connected' WHERE reason = 'normal'"
    difference = run(connect, both, sql)["difference"]
    assert (difference["added"], difference["removed"], difference["same"]) == (50, 50, 0)


@pytest.mark.usefixtures("stored_events")
@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_rule_over_dropped_messages_is_run_over_theirs(connect: SparkConnect) -> None:
    sql = "SELECT topic, count, reason FROM '$events/message_dropped' WHERE count > 7"
    result = run(connect, sql)
    assert (result["matched"], result["passed"]) == (10, 2)
    outputs = [sample["outputs"][0] for sample in result["samples"]]
    assert outputs[0] == {"topic": "a", "count": 8, "reason": "queue_full"}
    with pytest.raises(DryRunError, match="two rules"):
        run(connect, "SELECT 1 AS x FROM '$events/message_dropped', '$events/client_connected'")


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_the_difference_to_another_version_is_told(connect: SparkConnect) -> None:
    new = "SELECT payload.t AS t FROM 'plant/+/temp' WHERE payload.t >= 90"
    old = (
        "SELECT CASE WHEN payload.t = 95 THEN -1 ELSE payload.t END AS t"
        " FROM 'plant/0/temp', 'plant/1/temp', 'plant/2/temp' WHERE payload.t >= 80"
    )
    difference = run(connect, new, old)["difference"]
    # 90 and up: 40 messages, 10 in plant/3 (not 95); 80 to 89: 40, of them 10 in plant/3.
    counts = {name: difference[name] for name in ("same", "changed", "added", "removed")}
    plants = [number % 4 for number in range(MESSAGES)]
    values = [number % 100 for number in range(MESSAGES)]
    both = list(zip(plants, values, strict=True))
    assert counts == {
        "same": sum(p < 3 and v >= 90 and v != 95 for p, v in both),
        "changed": sum(p < 3 and v == 95 for p, v in both),
        "added": sum(p == 3 and v >= 90 for p, v in both),
        "removed": sum(p < 3 and 80 <= v < 90 for p, v in both),
    }
    assert difference["version"] == 3
    for sample in difference["samples"]:
        before, after = sample["outputs_before"], sample["outputs"]
        match sample["difference"]:
            case "added":
                assert (before, len(after)) == ([], 1)
            case "removed":
                assert (len(before), after) == (1, [])
            case _:
                assert before != after


WINDOW = """SELECT topic, count(*) AS n, max(payload.n) AS high, window_end
    FROM 'plant/+/temp' WHERE payload.t > {} GROUP BY topic, tumble(timestamp, '30 minutes')"""


def windows(limit: int) -> Counter[tuple[str, int, int, int]]:
    """Return what WINDOW gives: topic, n, high, window_end."""
    half = HOUR_MS // 2
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for n in range(MESSAGES):
        if n % 100 > limit:
            end = ((START_MS + n * 30_000) // half + 1) * half
            found[f"plant/{n % 4}/temp", end].append(n)
    return Counter((topic, len(ns), max(ns), end) for (topic, end), ns in found.items())


def run_plan(connect: SparkConnect, sql: str, other: str | None = None, **more: Any) -> Any:
    compared = None if other is None else Compared(compiled(other), 3)
    job = Job("1", "dry_run", TENANT, "r1", 0)
    return plan_dry_run(job, connect, compiled(sql), Messages(TENANT, **more), compared)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_rule_with_memory_is_run_over_history_by_its_plan(connect: SparkConnect) -> None:
    result = run_plan(connect, WINDOW.format(50), WINDOW.format(60))
    new, old = windows(50), windows(60)
    passed = sum(n % 100 > 50 for n in range(MESSAGES))
    names = ("matched", "passed", "no_result", "failed", "rows_failed")
    assert [result[name] for name in names] == [MESSAGES, passed, MESSAGES - passed, 0, 0]
    assert result["outputs"] == new.total()
    assert sum(hour["outputs"] for hour in result["hours"]) == new.total()
    assert sum(hour["matched"] for hour in result["hours"]) == MESSAGES
    assert len(result["samples"]) == 10
    for sample in result["samples"]:
        assert tuple(sample["output"].values()) in new
    assert result["difference"]["version"] == 3
    kinds = {"same": new & old, "added": new - old, "removed": old - new}
    assert {kind: result["difference"][kind] for kind in kinds} == {
        kind: rows.total() for kind, rows in kinds.items()
    }
    part = run_plan(connect, WINDOW.format(50), from_ms=START_MS, to_ms=START_MS + HOUR_MS)
    assert part["matched"] == 120
    silent = "SELECT topic, state FROM 'plant/+/temp' WHERE absent('1 minute')"
    # Each topic has a message every two minutes: silence and its end, and silence at the end.
    told = run_plan(connect, silent, to_ms=START_MS + 3 * HOUR_MS + 20 * 60_000 + 120_000)
    assert told["outputs"] == 4 * (99 + 100)


@pytest.mark.usefixtures("stored_events")
@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_rule_with_memory_over_events_is_run_over_theirs(connect: SparkConnect) -> None:
    sql = """SELECT reason, count(*) AS n FROM '$events/client_disconnected'
        WHERE reason <> 'normal' GROUP BY reason, tumble(timestamp, '1 hour')"""
    result = run_plan(connect, sql)
    assert (result["matched"], result["passed"], result["failed"]) == (100, 50, 0)
    assert sum(one["output"]["n"] for one in result["samples"]) == 50
    joined = """SELECT a.topic AS topic FROM 'plant/+/temp' AS a
        JOIN '$events/client_connected' AS b ON a.clientid = b.clientid WITHIN '1 minute'"""
    with pytest.raises(DryRunError, match="two rules"):
        run_plan(connect, joined)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_messages_that_a_plan_fails_on_are_counted_and_explained(connect: SparkConnect) -> None:
    sql = "SELECT count(*) AS n FROM 'plant/+/temp' GROUP BY tumble(payload.ts, '1 minute')"
    result = run_plan(connect, sql)
    assert (result["failed"], result["outputs"]) == (MESSAGES, 0)
    assert 0 < len(result["errors"]) <= 5
    assert result["errors"][0]["error"]
    assert result["errors"][0]["topic"].startswith("plant/")
    assert result["difference"] is None


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_rule_with_memory_is_tried_as_if_there_was_one_message(connect: SparkConnect) -> None:
    context: dict[str, Any] = {"topic": "plant/1/temp", "payload": {"t": 60, "n": 7}}
    outcome = try_out(connect, WINDOW.format(50), **context)
    (row,) = outcome.outputs
    assert (row["topic"], row["n"], row["high"]) == ("plant/1/temp", 1, 7)
    refused = try_out(connect, WINDOW.format(70), **context)
    assert refused.reason is not None
    assert "payload.t is 60" in refused.reason.sentence
    pairs = """SELECT a.payload.n AS n FROM 'plant/+/temp' AS a JOIN 'other' AS b
        ON a.payload.n = b.payload.n WITHIN '1 minute'"""
    alone = try_out(connect, pairs, **context)
    assert alone.reason is not None
    assert "before others come" in alone.reason.sentence
    late = "SELECT count(*) AS n FROM 'plant/+/temp' GROUP BY tumble(payload.ts, '1 minute')"
    assert try_out(connect, late, **context).error is not None


def entry(version: int = 2, missed: tuple[int, ...] | None = None) -> Entry:
    """Return a rule that runs, live from offset 25 of each partition on."""
    sql = "SELECT payload.n AS n FROM 'plant/+/temp' WHERE payload.t > 50"
    span = Span(version, (), "", (), None, {INBOUND: OffsetRange((25,) * 8)})
    if missed is not None:
        span = replace(span, missed={INBOUND: missed})
    rule = Rule(
        id="r1", tenant=TENANT, version=version, sql=sql, created_at=START_MS, updated_at=START_MS
    )
    return Entry(rule, Activation(TENANT, "r1", "running", version, 1, None, (span,)))


def fill(connect: SparkConnect, current: Entry | None, **more: Any) -> tuple[Any, MemoryAppender]:
    log = more.get("log") or MemoryAppender()
    given = entry()
    order = BackfillOrder(
        TENANT,
        "r1",
        2,
        compiled(more.get("sql", given.rule.sql)),
        live_range(given),
        more.get("from_ms"),
        50_000,
        more.get("since", ()),
    )
    job = more.get("job") or Job("77", "backfill", TENANT, "r1", 0)
    look = more.get("look") or (lambda: current)
    return backfill(job, order, connect, log, look), log


def test_a_backfill_gives_what_is_before_the_rule_in_order_and_once(
    connect: SparkConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.rules.backfill.WINDOW_ROWS", 8 * 7)  # several windows
    result, log = fill(connect, entry())
    outputs = [decode_output(one.key, one.value, one.headers) for one in log.records]
    wanted = [n for n in range(25 * 8) if n % 100 > 50]
    assert sorted(json.loads(one.row)["n"] for one in outputs) == wanted
    assert (result["matched"], result["passed"], result["outputs"]) == (200, 98, 98)
    assert (result["source"], result["before"]) == ("b77", [25] * 8)
    for partition in range(8):
        found = [one for one in outputs if one.position.partition == partition]
        marks = [one.mark for one in found]
        assert marks == sorted(set(marks))
        assert all(one.position.offset < 25 for one in found)
    for record, output in zip(log.records, outputs, strict=True):
        assert record.partition == output.position.partition
        number = json.loads(output.row)["n"]
        assert (output.position.source, output.version) == ("b77", 2)
        assert output.message_id == number.to_bytes(16, "big")
        assert output.received_at_ms == START_MS + number * 30_000


def test_a_backfill_that_was_interrupted_goes_on_with_the_same_outputs(
    connect: SparkConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.rules.backfill.WINDOW_ROWS", 8 * 7)
    whole, log = fill(connect, entry())
    wanted = [(one.key, one.value, one.headers) for one in log.records]
    job = Job("77", "backfill", TENANT, "r1", 0)
    looks = iter(range(100))

    def until_killed() -> Entry | None:
        return entry() if next(looks) < 5 else None  # in the third of four windows

    first = MemoryAppender()
    with pytest.raises(BackfillError):
        fill(connect, None, job=job, look=until_killed, log=first)
    assert 0 < len(first.records) < len(wanted)
    resumed = Job("77", "backfill", TENANT, "r1", 0, place=json.loads(json.dumps(job.place)))
    result, second = fill(connect, entry(), job=resumed)
    assert result == whole
    made = [(one.key, one.value, one.headers) for one in (*first.records, *second.records)]
    assert len(second.records) < len(wanted)
    assert sorted(set(map(repr, made))) == sorted(map(repr, wanted))


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_what_fails_in_a_backfill_is_a_dead_letter(
    connect: SparkConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.rules.backfill.MAX_EXPLAINED", 1)
    sql = "SELECT 1 / (payload.t - 60) AS x FROM 'plant/+/temp' WHERE payload.t > 50"
    result, log = fill(connect, entry(), sql=sql)
    assert (result["passed"], result["failed"], result["outputs"]) == (96, 2, 96)
    letters = [
        decode_dead_letter(record.key, record.value, record.headers)
        for record in log.records
        if record.log_topic == DEAD_LETTERS
    ]
    assert [json.loads(one.value)["n"] for one in letters] == [160, 60]
    assert {(one.rule, one.version, one.stage) for one in letters} == {("r1", 2, "evaluate")}
    assert [str(one.position) for one in letters] == ["b77:0:20:0", "b77:4:7:0"]
    assert "zero" in letters[0].error
    assert "only the first" in letters[1].error


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_backfill_begins_where_it_is_told(connect: SparkConnect) -> None:
    result, _ = fill(connect, entry(), from_ms=START_MS + HOUR_MS)
    assert (result["matched"], result["outputs"]) == (80, 49)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_backfill_of_what_was_missed_begins_where_the_rule_had_stopped(
    connect: SparkConnect,
) -> None:
    missed = (20, 25, 0, 25, 25, 25, 25, 24)
    given = entry(missed=missed)
    assert missed_since(given) == missed
    result, log = fill(connect, entry(), since=missed_since(given))
    assert result["matched"] == 5 + 25 + 1
    places = {
        (one.position.partition, one.position.offset)
        for one in (decode_output(one.key, one.value, one.headers) for one in log.records)
    }
    assert places
    assert all(missed[partition] <= offset < 25 for partition, offset in places)


def test_a_rule_that_had_not_stopped_has_missed_nothing() -> None:
    with pytest.raises(BackfillError, match="had not stopped"):
        missed_since(entry())


@pytest.mark.parametrize("current", [None, entry(version=3)])
def test_a_backfill_ends_when_its_rule_has_changed(
    connect: SparkConnect, current: Entry | None
) -> None:
    with pytest.raises(BackfillError, match="no longer at version 2"):
        fill(connect, current)


def test_only_a_rule_that_runs_is_given_history() -> None:
    running = entry()
    assert running.activation is not None
    for state in ("stopped", "failed", "paused"):
        with pytest.raises(BackfillError, match=state):
            live_range(Entry(running.rule, replace(running.activation, state=state)))
    with pytest.raises(BackfillError, match="starting"):
        live_range(Entry(running.rule, None))


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_dry_run_is_cancelled(connect: SparkConnect) -> None:
    jobs = Jobs(SystemClock())
    with connect.session({}) as spark:
        job = jobs.start(
            "dry_run",
            TENANT,
            "r1",
            lambda job: {
                "rows": spark.rows(
                    "SELECT count(*) AS n FROM range(1000000000000)",
                    is_cancelled=job.cancelling.is_set,
                )
            },
        )
        await_condition(lambda: job.state == "running", "it runs")
        jobs.cancel(job.id)
        await_condition(lambda: job.finished_at is not None, "it has ended")
    assert job.state == "cancelled"
    jobs.close()


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_query_that_takes_too_long_is_interrupted(connect: SparkConnect) -> None:
    with connect.session({}) as spark:
        with pytest.raises(SparkAway, match="within 1 s"):
            spark.rows("SELECT count(*) AS n FROM range(1000000000000)", 1.0)
        assert spark.rows("SELECT 1 AS n") == [{"n": 1}]
        with pytest.raises(Cancelled):
            spark.rows("SELECT count(*) FROM range(1000000000000)", is_cancelled=lambda: True)


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_the_session_that_is_kept_is_opened_again(connect: SparkConnect) -> None:
    assert connect.rows("SELECT 1 AS n") == [{"n": 1}]
    (kept,) = connect._kept.idle
    kept._session.client.release_session()  # as Spark does with what nobody asks any more
    assert connect.rows("SELECT 2 AS n") == [{"n": 2}]
    assert connect._kept.idle != [kept]


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_a_question_with_which_spark_went_away_is_not_asked_again(
    connect: SparkConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect.rows("SELECT 1 AS n") == [{"n": 1}]
    asked = []

    def goes_away(*what: object) -> NoReturn:
        asked.append(what)
        raise SparkAway("Spark did not answer in time")

    monkeypatch.setattr("api.spark.connect.Spark.rows", goes_away)
    with pytest.raises(SparkAway, match="not answer in time"):
        connect.rows("SELECT 2 AS n")
    assert len(asked) == 1
    assert connect._kept.idle == []


@pytest.mark.campaign("the other tests of this file run a rule over history the same way")
def test_threads_ask_one_after_the_other(connect: SparkConnect) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda at=number: found.append(connect.rows(f"SELECT {at} AS n")))
        for number in range(MOST_ASKING_OF_ONE)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(rows[0]["n"] for rows in found) == list(range(MOST_ASKING_OF_ONE))


def test_without_a_query_application_that_is_said(tmp_path: Path) -> None:
    write_state(tmp_path, healthy=True)
    with pytest.raises(SparkAway, match=r"no query application answers at .*query.sock"):
        SparkConnect(tmp_path).rows("SELECT 1")
