"""What the API asks Spark about rules: one made-up message, and history."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from api.jobs import Job, Jobs
from api.rules.backfill import BackfillError, Order, backfill, live_range
from api.rules.book import Entry
from api.rules.checking import compiled, warnings
from api.rules.dry_run import Compared, dry_run
from api.rules.dry_run import Range as Messages
from api.rules.samples import InvalidContext, make_sample
from api.rules.trial import Outcome, try_rule
from api.spark import Cancelled, EvaluationError, SparkAway, SparkConnect
from mqlake.clock import SystemClock
from mqlake.local.ports import free_ports
from mqlake.local.testing import await_condition
from mqlake.records import INBOUND
from mqlake.rule_records import Activation, Range, Span, decode_output
from mqlake.status import STATE_FILE, replace_file
from rules.model import ActionSpec, Rule
from streaming.settings import StreamingSettings
from streaming.tables import create_tables
from tests.api.conftest import MemoryAppender
from tests.api.test_api import write_state

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

TENANT = "trial"
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MESSAGES = 400
"""One every 30 s, over 8 partitions."""
HOT = "SELECT payload.t AS t, clientid FROM 'plant/+/temp' WHERE payload.t > 50 AND qos = 1"


@pytest.fixture(scope="module")
def connect(
    spark: SparkSession,
    streaming_settings: StreamingSettings,
    tmp_path_factory: pytest.TempPathFactory,
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
    folder = tmp_path_factory.mktemp("system")
    write_where(folder, streaming_settings.connect_port)
    asked = SparkConnect(folder)
    yield asked
    asked.close()


def write_where(folder: Path, port: int) -> None:
    state = replace(write_state(folder, healthy=True), connect_port=port)
    replace_file(folder / STATE_FILE, state.to_json())
    (folder / "connect-token").write_text("token")


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
def test_no_match_says_why(
    connect: SparkConnect, context: dict[str, Any], condition: str | None, said: str
) -> None:
    outcome = try_out(connect, HOT, **context)
    assert (outcome.outputs, outcome.error) == ((), None)
    assert outcome.reason is not None
    assert outcome.reason.condition == condition
    assert said in outcome.reason.sentence


def test_a_failure_is_told_in_sparks_words(connect: SparkConnect) -> None:
    outcome = try_out(connect, "SELECT 1 / payload.t AS x FROM 'a'", payload='{"t":0}')
    assert outcome.error is not None
    assert "zero" in outcome.error
    assert "SQLSTATE" not in outcome.error


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


def entry(version: int = 2) -> Entry:
    """Return a rule that runs, live from offset 25 of each partition on."""
    sql = "SELECT payload.n AS n FROM 'plant/+/temp' WHERE payload.t > 50"
    span = Span(version, (), "", (), None, {INBOUND: Range((25,) * 8)})
    rule = Rule(
        id="r1", tenant=TENANT, version=version, sql=sql, created_at=START_MS, updated_at=START_MS
    )
    return Entry(rule, Activation(TENANT, "r1", "running", version, 1, None, (span,)))


def fill(connect: SparkConnect, current: Entry | None, **more: Any) -> tuple[Any, MemoryAppender]:
    log = MemoryAppender()
    given = entry()
    order = Order(
        TENANT, "r1", 2, compiled(given.rule.sql), live_range(given), more.get("from_ms"), 50_000
    )
    job = Job("77", "backfill", TENANT, "r1", 0)
    return backfill(job, order, connect, log, "nowhere", lambda: current), log


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


def test_a_backfill_begins_where_it_is_told(connect: SparkConnect) -> None:
    result, _ = fill(connect, entry(), from_ms=START_MS + HOUR_MS)
    assert (result["matched"], result["outputs"]) == (80, 49)


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


def test_a_query_that_takes_too_long_is_interrupted(connect: SparkConnect) -> None:
    with connect.session({}) as spark:
        with pytest.raises(SparkAway, match="within 1 s"):
            spark.rows("SELECT count(*) AS n FROM range(1000000000000)", 1.0)
        assert spark.rows("SELECT 1 AS n") == [{"n": 1}]
        with pytest.raises(Cancelled):
            spark.rows("SELECT count(*) FROM range(1000000000000)", is_cancelled=lambda: True)


def test_the_session_that_is_kept_is_opened_again(connect: SparkConnect) -> None:
    assert connect.rows("SELECT 1 AS n") == [{"n": 1}]
    kept = connect._kept
    assert kept is not None
    kept._session.client.release_session()  # as Spark does with what nobody asks any more
    assert connect.rows("SELECT 2 AS n") == [{"n": 2}]
    assert connect._kept is not kept


def test_threads_ask_one_after_the_other(connect: SparkConnect) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda at=number: found.append(connect.rows(f"SELECT {at} AS n")))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(rows[0]["n"] for rows in found) == list(range(5))


def test_without_spark_that_is_said(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    write_where(tmp_path, port)
    with pytest.raises(SparkAway, match=f"port {port}"):
        SparkConnect(tmp_path).rows("SELECT 1")
