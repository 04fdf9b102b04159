"""Queries of users through Spark Connect: what they give, where they fail, what they reach."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from psutil import Process
from pyspark.sql import SparkSession

from api.relations.views import CATALOG_SCHEMA
from api.spark.connect import Cancelled, EvaluationError, SparkAway, SparkConnect, SparkStarting
from api.sql import running
from api.sql.checking import CheckedQuery, check
from api.sql.errors import QueryError, QueryTimeoutError, QueryTooLargeError
from api.sql.results import Format, write
from api.sql.running import QueryLimits, QueryRunner
from api.sql.usage import usage_select
from ingest.balancer.history import CLIENTS, PROBES, SUBSCRIPTIONS, TOPICS
from ingest.balancer.probe import PROBE_PREFIX
from launcher.testing.systems import await_condition
from mqlake.records.rule_tables import rule_table
from mqlake.tables.catalogue import TABLES
from rules.sql.confined import FUNCTIONS_OPTION, Confined, GivenRows, listed
from streaming.engine.spark_conf import spark_conf
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables
from tests.api.sql.for_spark import NoFiles

pytestmark = [pytest.mark.promise, pytest.mark.spark]

TENANT = "sql-tenant"
START_MS = 1_700_000_000_000
LIMITS = QueryLimits(rows=1_000, seconds=60, bytes=1 << 28)
BYTES = "X'31'"
COLUMNS = (
    "id, tenant, topic, payload, qos, retain, dup, client_id, username, protocol_level, "
    "properties, origin, ts, log_partition, log_offset"
)


@pytest.fixture(scope="module")
def runner(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    query_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[QueryRunner]:
    for table in TABLES:  # the catalog may know them in the folder of another test
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    create_tables(spark, streaming_settings)
    row = (
        "SELECT lower(lpad(hex(id), 32, '0')), tenant, topic, {payload}, CAST(1 AS TINYINT), false,"
        " false, 'c', NULL, CAST(4 AS TINYINT), NULL, 'local/gateway-1',"
        f" timestamp_millis({START_MS} + id * 1000), 0, id FROM "
    )
    plants = "concat('plant/', id % 4, '/temp')"
    payload = """encode(concat('{"temp":', id, ',"a b":[{"c":', id * 2, '}]}'), 'utf-8')"""
    spark.sql(
        f"INSERT INTO messages ({COLUMNS}) {row.format(payload=payload)}"
        f"(SELECT id, '{TENANT}' AS tenant, {plants} AS topic FROM range(20))"
    )
    others = [("text/a", "encode('on', 'utf-8')"), ("binary/a", "X'ff00'"), ("$x/a", "X''")]
    for number, (topic, payload) in enumerate(others):
        spark.sql(
            f"INSERT INTO messages ({COLUMNS}) {row.format(payload=payload)}"
            f"(SELECT {100 + number}L AS id, '{TENANT}' AS tenant, '{topic}' AS topic)"
        )
    spark.sql(
        f"INSERT INTO messages ({COLUMNS}) {row.format(payload=BYTES)}"
        "(SELECT id, 'other' AS tenant, 'secret' AS topic FROM range(5))"
    )
    connect = SparkConnect(query_dir)
    queries = QueryRunner(connect, NoFiles(), tmp_path_factory.mktemp("results"), at_once=2)
    yield queries
    queries.close()
    connect.close()


def ask(runner: QueryRunner, sql: str, form: Format = "json", **limits: Any) -> Any:
    """Return rows, or what is written in another form."""
    values = {"rows": LIMITS.rows, "seconds": LIMITS.seconds, "bytes": LIMITS.bytes} | limits
    with runner.run(check(sql, TENANT), form, QueryLimits(**values)) as result:
        data = b"".join(write(result, form))
    return json.loads(data) if form == "json" else data


def rows(runner: QueryRunner, sql: str) -> list[list[Any]]:
    found: list[list[Any]] = ask(runner, sql)["rows"]
    return found


def test_windows_escapes_and_doubles_are_as_sparks_documents_have_them(runner: QueryRunner) -> None:
    found = ask(
        runner,
        "SELECT window.start, window.end, count(*) FROM messages "
        "WHERE topic LIKE 'plant/_/t%' ESCAPE '!' AND topic NOT LIKE '%!_%' ESCAPE '!' "
        "GROUP BY window(ts, '10 seconds') ORDER BY window.start",
    )
    first, middle, last = (f"2023-11-14T22:13:{second}.000Z" for second in (20, 30, 40))
    assert found["rows"] == [[first, middle, 10], [middle, last, 10]]
    assert [column["name"] for column in found["columns"][:2]] == ["start", "end"]
    sessions = "SELECT session_window.start FROM messages GROUP BY session_window(ts, '2 seconds')"
    assert [first] in ask(runner, sessions)["rows"]
    doubles = "SELECT double('NaN'), double('-Infinity'), array(double('Infinity')), 1e3"
    assert ask(runner, doubles)["rows"] == [["NaN", "-Infinity", ["Infinity"], 1000.0]]


def test_the_payload_is_json_text_and_bytes(runner: QueryRunner) -> None:
    assert rows(
        runner,
        "SELECT payload:temp::double, payload:['a b'][0].c::int FROM messages "
        "WHERE topic LIKE 'plant/%' AND ts > '2023-01-01' ORDER BY ts LIMIT 2",
    ) == [[0.0, 0], [1.0, 2]]
    found = rows(
        runner,
        "SELECT payload, payload_text, payload_bytes FROM messages "
        "WHERE topic_matches(topic, '+/a') OR topic = '$x/a' ORDER BY topic",
    )
    assert found == [["", "", ""], [None, None, "/wA="], ["on", "on", "b24="]]


def test_what_a_statement_names_is_made_known(
    runner: QueryRunner, spark: SparkSession, query_dir: Path
) -> None:
    for known in ("TABLE messages", "FUNCTION IF EXISTS topic_matches"):
        spark.sql(f"DROP {known}")
    spark.sql("DROP SCHEMA IF EXISTS mqlake CASCADE")
    fresh = QueryRunner(
        SparkConnect(query_dir), NoFiles(), runner._folder.with_name("fresh"), at_once=1
    )
    matched = "SELECT count(*) FROM messages WHERE topic_matches(topic, 'plant/#')"
    assert rows(fresh, matched) == [[20]]
    spark.sql("DROP TABLE messages")
    of_all = "SELECT count(DISTINCT tenant) AS n FROM mqlake.messages WHERE topic = 'secret'"
    assert fresh._connect.rows(of_all) == [{"n": 1}], "a view, and the table in it"
    spark.sql("DROP TABLE messages")
    assert fresh._connect.rows("DESCRIBE HISTORY messages LIMIT 1")[0]["version"] > 0
    with pytest.raises(EvaluationError, match="nothing"):
        fresh._connect.rows("SELECT * FROM spark_catalog.default.nothing")
    # A table that each system has, before the lake has made it.
    spark.sql("DROP TABLE IF EXISTS late")
    log = query_dir / "tables" / "late" / "_delta_log"
    log.rename(log.with_name("away"))
    try:
        with pytest.raises(SparkStarting, match="being made"):
            fresh._connect.rows("SELECT * FROM spark_catalog.default.late")
    finally:
        log.with_name("away").rename(log)
    fresh.close()
    fresh._connect.close()


def test_nobody_comes_to_the_ports_of_the_driver_without_a_secret(
    spark: SparkSession, streaming_settings: LakeSettings
) -> None:
    """For a local master Spark makes it up; of others the operator gives one to all machines."""
    security = spark.sparkContext._jsc.sc().env().securityManager()
    assert security.isAuthenticationEnabled()
    assert len(security.getSecretKey()) >= 32
    cluster = streaming_settings.model_copy(update={"master": "spark://elsewhere:7077"})
    assert "spark.authenticate" not in spark_conf(cluster, [])


def test_sessions_of_a_spark_that_was_killed_are_replaced(runner: QueryRunner) -> None:
    assert rows(runner, "SELECT 1") == [[1]]
    for kept in runner._sessions.idle:
        kept._session.client._server_session_id = "of another"
    assert rows(runner, "SELECT 2") == [[2]]


def test_a_query_with_which_spark_went_away_is_not_asked_again(
    runner: QueryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows(runner, "SELECT 1") == [[1]]
    asked = []

    def goes_away(work: object, session: object) -> NoReturn:
        asked.append(session)
        raise SparkAway("Spark has ended")

    monkeypatch.setattr("api.sql.running._Work.run", goes_away)
    with pytest.raises(SparkAway, match="Spark has ended"):
        rows(runner, "SELECT 2")
    assert len(asked) == 1


def test_a_field_of_the_payload_has_its_own_name(runner: QueryRunner) -> None:
    fields = "payload:temp::double, payload:['a b'][0].c::int, count(*)"
    query = f"SELECT {fields} FROM messages GROUP BY ALL"
    found = ask(runner, query, rows=1)["columns"]
    assert [column["name"] for column in found] == ["temp", "c", "count(1)"]


def test_usage_is_a_relation_like_others(runner: QueryRunner) -> None:
    told = [("rule_evaluations", "a'b`${env:HOME}\n", 2**40), ("sessions", "", 3)]
    text = "SELECT kind, name, value FROM usage WHERE value > 2 ORDER BY value DESC"
    query = check(text, TENANT, usage=lambda: usage_select(iter(told)))
    with runner.run(query, "json", LIMITS) as result:
        assert json.loads(b"".join(write(result, "json")))["rows"] == [list(one) for one in told]


def test_every_relation_answers_and_shows_the_tenants_rows_only(runner: QueryRunner) -> None:
    for name in (
        "retained",
        "sessions",
        "subscriptions",
        "events",
        "drops",
        "dead_letters",
        "rules",
    ):
        assert rows(runner, f"SELECT count(*) FROM {name}") == [[0]]
    assert rows(runner, "SELECT DISTINCT tenant FROM messages") == [[TENANT]]
    inner = "(SELECT min(tenant) FROM default.messages)"
    assert rows(runner, f"SELECT regexp_replace({inner}, 'x', 'x')") == [[TENANT]]
    assert rows(runner, "SELECT count(*) FROM messages") == [[23]]


@pytest.fixture
def audited(spark: SparkSession) -> Iterator[None]:
    """Rows of the audit log, with the tenant that was asked for and those that it is about."""
    for caller, tenant, noted in (
        ("seen:one", "acme", """'["acme"]'"""),
        ("seen:both", "default", """'["acme","beta"]'"""),
        ("seen:all", "default", "'[]'"),
        ("seen:old", "acme", "NULL"),
        ("seen:old-default", "default", "NULL"),
    ):
        values = f"'{caller}', '{tenant}', {noted}"
        spark.sql(f"INSERT INTO audit_log (caller, tenant, tenants) VALUES ({values})")
    yield
    spark.sql("DELETE FROM audit_log WHERE caller LIKE 'seen:%'")


@pytest.mark.promise
@pytest.mark.usefixtures("audited")
def test_rows_of_the_audit_log_are_seen_by_whom_they_concern(runner: QueryRunner) -> None:
    def seen(tenant: str, *, is_for_all: bool) -> list[str]:
        text = "SELECT caller FROM audit_log WHERE caller LIKE 'seen:%' OR caller = '' ORDER BY 1"
        query = check(text, tenant, is_administrator=True, is_for_all=is_for_all)
        with runner.run(query, "json", LIMITS) as result:
            found = json.loads(b"".join(write(result, "json")))["rows"]
        return [one[0].removeprefix("seen:") for one in found]

    assert seen("acme", is_for_all=False) == ["both", "old", "one"]
    assert seen("beta", is_for_all=False) == ["both"]
    assert seen("default", is_for_all=False) == []
    assert seen("acme", is_for_all=True) == ["all", "both", "old", "one"]
    assert seen("default", is_for_all=True) == ["all", "both", "old-default"]


@pytest.mark.parametrize(
    ("topic", "topic_filter", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/+", True),
        ("a", "a/#", True),
        ("a/b/c", "a/#", True),
        ("ab", "a/#", False),
        ("a/b/c", "a/+", False),
        ("/b", "+/b", True),
        ("a//b", "a/+/b", True),
        ("a.b", "a+b", False),
        ("axb/c", "a.b/+", False),
        ("a\\Eb/c", "a\\Eb/+", True),
        ("$SYS/x", "#", False),
        ("$SYS/x", "+/x", False),
        ("$SYS/x", "$SYS/#", True),
        ("a\nb/c", "+/c", True),
        ("a/b", "a/#/b", False),
        ("a/b", "", False),
        ("(a)[b]/c", "(a)[b]/#", True),
        ("a/b", "a/b+", False),
        ("a/b", "a/+b", False),
        ("a/b", "a/b#", False),
        ("a/b/c", "a/++/c", False),
        ("a/b/#", "a/b/#/#", False),
        ("a" + "/a" * 15_000, "a" + "/a" * 15_000, True),
        ("a" + "/a" * 15_000, "a/#", True),
        ("a", "a" + "/a" * 15_000, False),
        ("a" + "/a" * 15_000, "+" + "/a" * 14_999 + "/#", True),
        ("a" + "/a" * 999, "+" + "/+" * 999, True),
        ("a" + "/a" * 15_000, "+" + "/+" * 15_000, False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_topic_matches_as_mqtt_says(
    spark: SparkSession, runner: QueryRunner, topic: str, topic_filter: str, matches: bool
) -> None:
    query = "SELECT topic_matches(t, f), topic_matches(t, 'x/#') FROM v"
    spark.createDataFrame([(topic, topic_filter)], "t string, f string").createOrReplaceTempView(
        "v"
    )
    found = spark.sql(query).collect()
    assert (found[0][0], found[0][1]) == (matches, False)


def test_topic_level_counts_from_either_end(runner: QueryRunner) -> None:
    query = (
        "SELECT topic_level('a//c', 1), topic_level('a//c', 2), topic_level('a//c', -1), "
        "topic_level('a//c', 4), topic_level('a', 0)"
    )
    assert rows(runner, query) == [["a", "", "c", None, None]]


def test_a_filters_beginning_leaves_out_files(spark: SparkSession, runner: QueryRunner) -> None:
    query = check("SELECT ts FROM messages WHERE topic_matches(topic, 'plant/+/temp')", TENANT)
    view = f"WITH messages AS ({query.given['messages'].rows}) {query.sql}"
    plan = spark.sql(f"EXPLAIN FORMATTED {view}").collect()[0][0]
    (pushed,) = [line for line in plan.splitlines() if line.startswith("PushedFilters")]
    assert "GreaterThanOrEqual(topic,plant)" in pushed
    assert "LessThan(topic,plant0)" in pushed


def test_time_travel_shows_what_was_there(spark: SparkSession, runner: QueryRunner) -> None:
    history = spark.sql("DESCRIBE HISTORY messages").collect()
    newest = max(row["version"] for row in history)
    count = f"SELECT count(*) FROM messages VERSION AS OF {newest - 2}"
    assert rows(runner, count) == [[22]]
    assert rows(runner, f"{count} m JOIN messages n ON m.id = n.id") == [[22]]
    before = "TIMESTAMP AS OF timestamp_millis({})"
    made = int(history[1]["timestamp"].timestamp() * 1000)
    assert rows(runner, f"SELECT count(*) FROM messages {before.format(made)}") == [[23]]
    with pytest.raises(QueryError, match="leave TIMESTAMP AS OF out"):
        ask(runner, "SELECT 1 FROM messages TIMESTAMP AS OF now()")
    with pytest.raises(QueryError) as caught:
        ask(runner, "SELECT count(*) FROM messages VERSION AS OF 12345")
    assert "12345" in caught.value.problem


@pytest.mark.parametrize(
    ("sql", "line", "column", "said"),
    [
        ("SELECT topic,\n       nope FROM messages", 2, 8, "`nope`"),
        ("SELECT m.topic FROM messages m\nWHERE n.qos = 1", 2, 7, "`n`.`qos`"),
        ("SELECT upper(topic, 1)\nFROM messages", 1, 8, "upper"),
        ("SELECT\n CAST(topic AS int) FROM messages", 2, 7, "cannot be cast"),
        ("SELECT topic\nFROM messages GROUP BY qos", 1, 8, "topic"),
        ("SELECT\n 1 / (qos - 1) FROM messages", 2, 7, "zero"),
        ("SELECT\n count(DISTINCT payload) FROM messages", 2, 17, "VARIANT"),
    ],
)
def test_an_error_of_sparks_has_its_place_in_the_users_text(
    runner: QueryRunner, sql: str, line: int, column: int, said: str
) -> None:
    with pytest.raises(QueryError) as caught:
        ask(runner, sql)
    assert said in caught.value.problem
    assert "@" not in caught.value.problem
    assert (caught.value.line, caught.value.column) == (line, column)


def test_the_value_on_which_a_query_fails_is_told_and_not_logged(
    runner: QueryRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QueryError, match="'kept secret'"):
        ask(runner, "SELECT CAST(text AS INT) FROM (SELECT concat('kept ', 'secret') AS text)")
    assert "kept secret" not in "".join(capfd.readouterr())


FORMS: dict[Format, str] = {
    "jsonl": '{"a": 1, "a_2": "x,\\"y", "v": {"k":[1,null]}, "t": "2024-01-01T00:00:00.000Z", '
    '"d": "1.50", "b": "/wA=", "n": null, "f": "NaN", "m": {"a":1}}\n',
    "csv": 'a,a,v,t,d,b,n,f,m\r\n1,"x,""y","{""k"":[1,null]}",2024-01-01T00:00:00.000Z,1.50,/wA=,'
    ',NaN,"{""a"":1}"\r\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_holds_all_types(runner: QueryRunner, form: Format) -> None:
    query = (
        "SELECT 1 AS a, 'x,\"y' AS a, parse_json('{\"k\":[1,null]}') AS v, "
        "TIMESTAMP '2024-01-01 00:00:00' AS t, CAST(1.5 AS decimal(9, 2)) AS d, X'ff00' AS b, "
        "NULL AS n, double('NaN') AS f, map('a', 1) AS m"
    )
    assert ask(runner, query, form).decode() == FORMS[form]


def test_parquet_keeps_types(runner: QueryRunner, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    query = "SELECT id, ts, map(topic, qos) AS m, payload FROM messages ORDER BY ts"
    path.write_bytes(ask(runner, query, "parquet"))
    table = pq.read_table(path)
    assert [str(field.type) for field in table.schema][0:2] == ["string", "timestamp[us, tz=UTC]"]
    assert table.num_rows == 23
    assert table.to_pylist()[1]["m"] == [("plant/1/temp", 1)]
    path.write_bytes(ask(runner, "SELECT topic FROM drops", "parquet"))
    assert pq.read_table(path).column_names == ["topic"]


def test_rows_above_the_limit_are_left_out_and_told(runner: QueryRunner) -> None:
    found = ask(runner, "SELECT log_offset FROM messages ORDER BY ts", rows=2)
    assert found == {
        "columns": [{"name": "log_offset", "type": "bigint"}],
        "rows": [[0], [1]],
        "row_count": 2,
        "truncated": True,
        "complete_until": None,
    }
    assert ask(runner, "SELECT id FROM range(2)", rows=2)["truncated"] is False


SLOW = "SELECT count(*) FROM range(100000000000) WHERE pmod(hash(id), 7) = 8"


def test_a_query_ends_when_its_time_is_up(spark: SparkSession, runner: QueryRunner) -> None:
    with pytest.raises(QueryTimeoutError):
        ask(runner, SLOW, seconds=2)
    await_idle(spark)
    assert rows(runner, "SELECT 1") == [[1]]


def test_a_query_that_nobody_waits_for_ends_in_spark(
    spark: SparkSession, runner: QueryRunner
) -> None:
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    with (
        pytest.raises(Cancelled),
        runner.run(check(SLOW, TENANT), "json", LIMITS, stop.is_set),
    ):
        pass
    await_idle(spark)


def await_idle(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    await_condition(lambda: not tracker.getActiveStageIds(), "no stage that runs")


def test_a_result_has_a_largest_size(runner: QueryRunner) -> None:
    query = "SELECT id, uuid(), uuid(), uuid() FROM range(100000000)"
    with pytest.raises(QueryTooLargeError):
        ask(runner, query, rows=100_000_000, bytes=1 << 20)


def test_a_million_rows_do_not_grow_the_servers_memory(runner: QueryRunner) -> None:
    query = check("SELECT id, concat('plant/', id) AS topic, md5('x') FROM range(1000000)", TENANT)
    limits = QueryLimits(rows=1_000_000, seconds=120, bytes=1 << 30)

    def read(rows: int, form: Format) -> int:
        size = 0
        with runner.run(query, form, replace(limits, rows=rows)) as result:
            for part in write(result, form):
                size += len(part)
                assert len(part) < 4 << 20
        return size

    forms: tuple[Format, ...] = ("json", "parquet")
    for form in forms:
        read(20_000, form)
    before = Process().memory_info().rss
    for form in forms:
        assert read(1_000_000, form) > 4 << 20
    grown = Process().memory_info().rss - before
    assert grown < 32 << 20, f"{grown >> 20} MiB"


# What the checker may overlook: each would read a table, call a function or do something else.
OVERLOOKED = [
    "SELECT * FROM messages",
    "SELECT * FROM default.messages",
    "SELECT * FROM spark_catalog.default.messages",
    "WITH `select` AS (SELECT 1 AS z) SELECT b.* FROM SELECT a, default.messages AS b",
    "WITH `given` AS (SELECT 1 AS z) SELECT b.* FROM given a, default.messages AS b",
    "WITH messages AS (SELECT * FROM messages) SELECT * FROM messages",
    "WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x",
    "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT * FROM x",
    "SELECT (SELECT max(payload) FROM default.messages)",
    "SELECT 1 WHERE 1 IN (SELECT qos FROM default.messages)",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM default.messages)",
    "SELECT * FROM given g, LATERAL (SELECT * FROM default.messages)",
    "SELECT transform(array(1), x -> (SELECT max(qos) FROM default.messages))",
    "SELECT max(1) OVER (ORDER BY (SELECT max(qos) FROM default.messages))",
    "SELECT 1 ORDER BY (SELECT max(qos) FROM default.messages)",
    "SELECT 1 GROUP BY (SELECT max(qos) FROM default.messages)",
    "SELECT 1 LIMIT (SELECT count(*) FROM default.messages)",
    "SELECT * FROM explode(array((SELECT max(qos) FROM default.messages)))",
    "SELECT * FROM VALUES ((SELECT max(qos) FROM default.messages))",
    "SELECT 1 UNION ALL SELECT qos FROM default.messages",
    "TABLE default.messages",
    "FROM default.messages SELECT qos",
    "FROM default.messages |> SELECT qos",
    "SELECT * FROM given |> UNION ALL TABLE default.messages",
    "SELECT * FROM IDENTIFIER('default.messages')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'lineSeparator')",
    "SELECT * FROM delta.`/tmp`",
    "SELECT * FROM parquet.`/tmp`",
    "SELECT * FROM default.messages VERSION AS OF 1",
    "SELECT * FROM given WITH (path = '/tmp')",
    "SELECT * FROM STREAM given",
    "SELECT * FROM given TABLESAMPLE (1 PERCENT)",
    "SELECT * FROM given PIVOT (count(*) FOR one IN (1))",
    "SELECT /*+ REPARTITION(1000) */ * FROM given",
    "SELECT reflect('java.lang.System', 'lineSeparator')",
    "SELECT java_method('java.lang.System', 'lineSeparator')",
    "SELECT system.builtin.reflect('java.lang.System', 'lineSeparator')",
    "SELECT `system.builtin.reflect`('java.lang.System', 'lineSeparator')",
    "SELECT raise_error('x')",
    "SELECT * FROM given LATERAL VIEW reflect('a', 'b') t AS x",
    "SELECT * FROM read_files('/tmp')",
    "SELECT default.topic_level('a', 1)",
    "SELECT user",
    "SELECT `u\u017fer`",
    "SELECT current_user()",
    "SELECT current_catalog",
    "SELECT current_database()",
    "SELECT _metadata FROM given",
    "SELECT g._METADATA.file_path FROM given g",
    "SELECT g._metadata.* FROM given g",
    "WITH `` AS (SELECT 1) SELECT * FROM text.`/etc/hosts.d`",
    "SELECT :parameter",
    "SELECT ?",
    "SELECT 'a' COLLATE UNICODE",
    "INSERT INTO default.messages SELECT * FROM given",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "SET spark.mqlake.functions",
    "RESET",
    "USE default",
    "SHOW TABLES",
    "DESCRIBE default.messages",
    "EXPLAIN SELECT 1",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "BEGIN SELECT * FROM default.messages; END",
    "SELECT 1; SELECT 2",
]


@pytest.mark.parametrize("sql", OVERLOOKED)
def test_spark_itself_refuses_what_the_checker_lets_through(runner: QueryRunner, sql: str) -> None:
    query = CheckedQuery(sql, sql, {"given": GivenRows("SELECT 1 AS one")}, TENANT)
    refused = r"not given to it|PARSE_SYNTAX_ERROR"
    with pytest.raises(QueryError, match=refused), runner.run(query, "json", LIMITS):
        pass


def test_what_is_given_reads_its_table_and_no_other(runner: QueryRunner) -> None:
    table = f"{CATALOG_SCHEMA}.messages"
    own = f"SELECT topic FROM {table} WHERE tenant = 'other'"

    def found(rows: str, *reads: str) -> Any:
        query = CheckedQuery(
            "", "SELECT DISTINCT * FROM given", {"given": GivenRows(rows, reads)}, ""
        )
        with runner.run(query, "json", LIMITS) as result:
            return json.loads(b"".join(write(result, "json")))["rows"]

    assert found(own, table) == [["secret"]]
    for rows in (
        "SELECT topic FROM default.messages",
        f"SELECT topic FROM {table}, {CATALOG_SCHEMA}.drops",
        f"SELECT topic FROM {table} VERSION AS OF (SELECT 1 FROM {CATALOG_SCHEMA}.drops)",
        f"SELECT reflect('java.lang.System', 'lineSeparator') FROM {table}",
        f"SELECT topic FROM {table} TIMESTAMP AS OF (SELECT max(ts) FROM {table})",
    ):
        with pytest.raises(QueryError):
            found(rows, table)


def test_what_the_analyzer_finds_is_held_to_what_was_given(runner: QueryRunner) -> None:
    """Should a name ever come past the first wall: it has found a table that nobody gave."""
    given: Any = {"messages": None}
    query = CheckedQuery("", "SELECT * FROM messages", given, TENANT)
    refused = r"reads LogicalRelation, which was not given to it"
    with pytest.raises(QueryError, match=refused), runner.run(query, "json", LIMITS):
        pass


def test_a_statement_of_a_session_of_queries_says_what_it_may_read(query_dir: Path) -> None:
    with closing(SparkConnect(query_dir)) as connect, connect.session({}) as session:
        for text in ("SELECT 1", "/*mqlake:confined {*/SELECT 1", "/*mqlake:confined {}SELECT 1"):
            with pytest.raises(EvaluationError, match="statement"):
                session.perform(lambda one, text=text: one.sql(text).collect())  # type: ignore[misc]
        assert session.rows("SELECT 1 AS a") == [{"a": 1}]
        given = {"x": GivenRows("SELECT '*/ /* ' AS a")}
        assert session.rows(Confined("SELECT a FROM x", given)) == [{"a": "*/ /* "}]


SHOWN = "CAST(concat('P:', CASE WHEN client_id = 'victim' THEN payload_text END) AS INT)"
LAMBDA = "size(filter(array(qos), x -> x >= 0)) > 0"
# Each fails on rows of others with their value, if Spark asks for it before whose row it is.
EARLY = {
    # What is true of one side of an equation is inferred of the other.
    "inferred": "CAST(payload_bytes AS STRING) = topic AND "
    "CAST(CASE WHEN topic LIKE '%SECRET%' THEN concat('P:', topic) END AS INT) > 5",
    "inferred, without a text": "CAST(payload_bytes AS STRING) = topic AND "
    "1 / CASE WHEN topic LIKE 'OF%' THEN 0 ELSE 1 END > 0",
    "inferred of columns": "client_id = topic AND "
    "CAST(CASE WHEN client_id LIKE 's%' THEN client_id END AS INT) > 5",
    "inferred in a query": "topic IN (SELECT topic FROM messages WHERE client_id = topic "
    "AND CAST(CASE WHEN client_id LIKE 's%' THEN client_id END AS INT) > 5)",
    # What stands twice is computed once, in front.
    "twice": f"{LAMBDA} AND {SHOWN} > 5 AND {SHOWN} < 9",
    "between": f"{LAMBDA} AND {SHOWN} BETWEEN 5 AND 9",
    "twice, first": f"({SHOWN} + {SHOWN}) > 5 AND {LAMBDA}",
    "twice, or": f"({SHOWN} + {SHOWN}) > 5 OR {LAMBDA}",
    "twice, in queries that become one": (
        f"(SELECT max(qos) FROM messages WHERE ({SHOWN} + {SHOWN}) > 5 AND {LAMBDA}) > "
        f"(SELECT min(qos) FROM messages WHERE ({SHOWN} + {SHOWN}) < 5 AND {LAMBDA})"
    ),
    "twice, in EXISTS": "EXISTS (SELECT 1 FROM messages n WHERE n.topic = m.topic "
    f"AND n.client_id = n.topic AND {LAMBDA} AND {SHOWN} BETWEEN 5 AND 9)",
}


@pytest.fixture
def mixed_file(spark: SparkSession, runner: QueryRunner) -> Iterator[None]:
    """A file with rows of two tenants, as each batch of the history writes one."""
    values = (
        f"VALUES ('other', 'secret', 'OF OTHERS: SECRET', 'victim', '{TENANT}'),"
        f" ('{TENANT}', 'mixed/mine', 'mine', 'c', 'u'),"
        f" ('{TENANT}', 'private', 'PRIVATE', 'c', 'u')"
    )
    spark.sql(
        f"INSERT INTO messages ({COLUMNS}) SELECT /*+ COALESCE(1) */ '00', tenant, topic,"
        " encode(text, 'utf-8'), CAST(1 AS TINYINT), false, false, client_id, username,"
        f" CAST(4 AS TINYINT), NULL, 'local/gateway-1', timestamp_millis({START_MS}), 1, 0"
        f" FROM {values} AS rows (tenant, topic, text, client_id, username)"
    )
    yield
    spark.sql("DELETE FROM messages WHERE log_partition = 1")


@pytest.mark.parametrize("early", EARLY)
def test_nothing_is_asked_of_a_row_before_whose_it_is(
    runner: QueryRunner, mixed_file: None, early: str
) -> None:
    rows(runner, f"SELECT count(*) FROM messages m WHERE {EARLY[early]}")


TOLD = f"CAST({SHOWN} AS STRING)"
# Spark may take the tenant of one relation for equal to what is selected of another.
EQUAL = {
    "join": f"(SELECT tenant AS x FROM messages) a JOIN (SELECT {TOLD} AS y FROM messages) b "
    "ON a.x = b.y",
    "left join": f"(SELECT tenant AS x FROM messages) a LEFT JOIN "
    f"(SELECT {TOLD} AS y FROM messages) b ON a.x = b.y",
    "using": f"(SELECT tenant FROM messages) a JOIN (SELECT {TOLD} AS tenant FROM messages) b "
    "USING (tenant)",
    "of groups": f"(SELECT tenant AS x FROM messages) a JOIN "
    f"(SELECT {TOLD} AS y, count(*) FROM messages GROUP BY ALL) b ON a.x = b.y",
    "a column": f"(SELECT tenant AS x FROM messages) a JOIN (SELECT username, client_id, qos, "
    f"payload_text FROM messages) b ON a.x = b.username AND {LAMBDA} AND {SHOWN} BETWEEN 5 AND 9",
    "a constant": f"(SELECT tenant AS x FROM messages) a JOIN (SELECT CASE WHEN qos >= 0 THEN "
    f"'{TENANT}' END AS y, client_id, qos, payload_text FROM messages) b ON a.x = b.y AND "
    f"{LAMBDA} AND {SHOWN} BETWEEN 5 AND 9",
    "lateral": f"messages m, LATERAL (SELECT {TOLD} AS y FROM messages n WHERE n.topic = m.topic) l"
    " WHERE l.y = m.tenant",
    "except": "(SELECT topic FROM messages EXCEPT SELECT topic FROM messages "
    f"WHERE {LAMBDA} AND {SHOWN} BETWEEN 5 AND 9)",
}


@pytest.mark.parametrize("equal", EQUAL)
@pytest.mark.parametrize("infers", [False, True], ids=["as it is", "though Spark infers"])
def test_nor_is_what_spark_takes_for_a_tenant(
    runner: QueryRunner, mixed_file: None, equal: str, infers: bool
) -> None:
    query = check(f"SELECT count(*) FROM {EQUAL[equal]}", TENANT)
    with runner._connect.use() as use, runner._sessions.lend(use) as session:
        key = "spark.sql.constraintPropagation.enabled"
        session.configure({key: str(infers).lower()})
        try:
            session.perform(lambda one: one.sql(query.confined(query.sql).text).collect())
        finally:
            session.configure({key: "false"})


def test_files_of_rules_are_read_without_a_cast(runner: QueryRunner, spark: SparkSession) -> None:
    table = rule_table(TENANT, "rule_cast")
    spark.sql(f"CREATE TABLE {table} (tenant STRING, w VARIANT) USING delta")
    spark.sql(
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ tenant, parse_json(w) FROM VALUES"
        f" ('{TENANT}', '7'), ('other', '\"secret\"') AS rows (tenant, w)"
    )
    assert rows(runner, "SELECT CAST(w AS INT) FROM rule_cast") == [[7]]
    assert rows(runner, "SELECT count(*) FROM rule_cast WHERE CAST(w AS TINYINT) > 0") == [[1]]


def test_nor_before_a_topic_is_the_callers(runner: QueryRunner, mixed_file: None) -> None:
    shown = "CAST(concat('P:', CASE WHEN topic = 'private' THEN payload_text END) AS INT)"
    text = f"SELECT count(*) FROM messages WHERE ({shown} + {shown}) > 5 AND {LAMBDA}"
    with pytest.raises(QueryError, match="'P:PRIVATE'"):
        ask(runner, text)
    told = f"CAST({shown} AS STRING)"
    joined = (
        "SELECT count(*) FROM (SELECT tenant t, topic x FROM messages) a "
        f"JOIN (SELECT tenant t, {told} AS y FROM messages) b ON a.t = b.t "
        "JOIN (SELECT tenant t, topic k FROM messages) d ON a.x = d.k AND b.y = d.k AND d.t = b.t"
    )
    for one in (text, joined):
        mine = check(one, TENANT, topic_filters=["mixed/#"])
        with runner.run(mine, "json", LIMITS) as result:
            assert json.loads(b"".join(write(result, "json")))["rows"] == [[0]]


def test_conditions_reach_the_scan_past_that_wall(
    runner: QueryRunner, spark: SparkSession, query_dir: Path
) -> None:
    query = check("SELECT ts FROM messages WHERE topic = 'text/a' AND qos = 1", TENANT)
    with closing(SparkConnect(query_dir)) as connect, connect.session({}) as session:
        session.perform(lambda one: one.conf.set(FUNCTIONS_OPTION, listed(running.FUNCTIONS)))
        text = query.confined(query.sql).text
        made: Any = session.perform(lambda one: one.sql(text))
        explained = made._explain_string(mode="formatted")
    (pushed,) = [line for line in explained.splitlines() if line.startswith("PushedFilters")]
    for name in ("tenant", "topic", "qos"):
        assert f"EqualTo({name}," in pushed
    first, second = re.findall(r"^Condition : (.*)$", explained, re.MULTILINE)
    assert "isOwn" in first
    assert not re.search(r"isOwn|tenant#\d+ =", second), "once is enough"


def test_variables_of_the_machine_stay_in_a_text(runner: QueryRunner) -> None:
    query = CheckedQuery("", "SELECT '${env:HOME}'", {}, TENANT)
    with runner.run(query, "json", LIMITS) as result:
        assert b"${env:HOME}" in b"".join(write(result, "json"))


def test_what_the_balancer_expects_of_clients_knows_no_probes(
    runner: QueryRunner, spark: SparkSession
) -> None:
    columns = COLUMNS.replace("client_id", f"'{PROBE_PREFIX}1'").replace("topic", "'probe'")
    spark.sql(
        f"INSERT INTO messages ({COLUMNS}) SELECT {columns} FROM messages "
        f"WHERE tenant = '{TENANT}' AND topic = 'text/a'"
    )
    spark.sql(
        "INSERT INTO events (ts, event, tenant, client_id, filter) VALUES "
        f"(now(), 'session.subscribed', '{TENANT}', '{PROBE_PREFIX}1', 'probe'), "
        f"(now(), 'session.subscribed', '{TENANT}', 'panel', '+/a')"
    )
    limits = {"days": 36_500, "rows": 10, "probes": PROBES}
    assert rows(runner, CLIENTS.format(**limits)) == [["c", 23]]
    topics = [topic for topic, _ in rows(runner, TOPICS.format(**limits))]
    assert "text/a" in topics
    assert "probe" not in topics
    assert rows(runner, SUBSCRIPTIONS.format(**limits)) == [["panel", "+/a"]]
    spark.sql("DELETE FROM messages WHERE topic = 'probe'")
    spark.sql(f"DELETE FROM events WHERE tenant = '{TENANT}'")
