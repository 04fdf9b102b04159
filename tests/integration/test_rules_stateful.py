"""Stateful rules through the real engine and the log: a change, and a kill.

What their queries make of messages is the matter of tests/streaming/test_stateful_query.py.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from api.spark.connect import JOB_START_SECONDS, SparkConnect
from launcher.doctor.machine import is_open
from launcher.paths import RUNTIME
from launcher.ports import free_ports
from launcher.testing.systems import await_condition
from mqlake.processes.query_application import SOCKET_FILE
from mqlake.records.messages import INBOUND
from mqlake.records.rule_tables import rule_tables
from rules.model import ActionSpec, Rule
from tests.integration.engine import Engine

pytestmark = [pytest.mark.promise, pytest.mark.usefixtures("lake"), pytest.mark.system]


@pytest.fixture
def connect(engine: Engine) -> Iterator[SparkConnect]:
    """The query application, by itself on the tables of the engine."""
    (port,) = free_ports(1)
    (engine.folder / "connect-token").write_text("token")
    environment = os.environ | {
        "MQLAKE_QUERY_DATA_DIR": str(engine.folder),
        "MQLAKE_QUERY_JARS_DIR": str(RUNTIME / "jars"),
        "MQLAKE_QUERY_CONNECT_PORT": str(port),
        "MQLAKE_QUERY_CONNECT_TOKEN": "token",
    }
    with subprocess.Popen([sys.executable, "-m", "cli", "query"], env=environment) as process:
        socket = engine.folder / SOCKET_FILE
        await_condition(lambda: is_open(f"unix://{socket}"), "it takes uses")
        opened = SparkConnect(engine.folder)
        with opened.use(JOB_START_SECONDS):  # it may take longer than who waits for rows does
            yield opened
        opened.close()
        process.terminate()


def rule(name: str, sql: str, version: int = 1, **fields: Any) -> Rule:
    return Rule(id=name, version=version, created_at=1, updated_at=version, sql=sql, **fields)


def rows(engine: Engine, name: str) -> list[Any]:
    return [json.loads(output.row) for output in engine.outputs() if output.rule == name]


def await_rows(engine: Engine, name: str, count: int) -> None:
    what = f"{count} rows of {name}"
    await_condition(lambda: len(rows(engine, name)) >= count, what)


@pytest.mark.campaign("streaming/test_stateful_query.py counts by version, too")
def test_a_changed_rule_starts_empty_and_gives_what_was_complete(engine: Engine) -> None:
    def statement(version: int) -> str:
        return f"""SELECT {version} AS version, count(*) AS n, window_start, window_end
            FROM "change/#" GROUP BY tumble(timestamp, '3 seconds')"""

    engine.define(rule("change", statement(1)))
    first = engine.await_state("change", 1, "running")
    for number in range(40):
        engine.publish(f"change/{number}", b"{}", number)
        if number == 20:
            assert engine.producer.flush(30) == 0
            # So that some windows are complete, and one is open.
            await_rows(engine, "change", 1)
    assert engine.producer.flush(30) == 0
    engine.define(rule("change", statement(2), 2))
    activation = engine.await_state("change", 2, "running")
    ended = activation.spans[0]
    assert ended.change == first.change
    end = ended.ended_at_ms
    assert end is not None
    engine.publish("change/x", b"{}", 99)
    assert engine.producer.flush(30) == 0

    def is_there() -> bool:
        return any(row["version"] == 2 for row in rows(engine, "change"))

    await_condition(is_there, "a window of version 2")
    made = rows(engine, "change")
    times = sorted(
        record.timestamp()[1]
        for record in engine.read(INBOUND)
        if record.key().startswith(b"default/change/")
    )
    complete = [at for at in times[:40] if (at // 3000 + 1) * 3000 <= end]
    assert sum(row["n"] for row in made if row["version"] == 1) == len(complete)
    assert [row["n"] for row in made if row["version"] == 2] == [1]
    engine.delete("change")
    engine.await_state("change", 2, "stopped")


def test_each_row_is_in_its_table_once_though_spark_is_killed(
    engine: Engine, connect: SparkConnect
) -> None:
    action = ActionSpec(function="table", args={"name": "kills"})
    statement = """SELECT payload.k AS k, count(*) AS n, sum(payload.n) AS s, window_start
        FROM "kill/#" GROUP BY payload.k, tumble(timestamp, '1 second', lateness => '5 seconds')"""
    engine.define(rule("kills", statement, actions=(action,)))
    engine.await_state("kills", 1, "running")
    sent: Counter[int] = Counter()
    total = 0
    for is_last in (False, True):
        for number in range(400):
            payload = b'{"k": %d, "n": %d}' % (number % 7, number)
            engine.publish(f"kill/{number}", payload, number)
            assert engine.producer.flush(30) == 0
            sent[number % 7] += 1
            total += number
            time.sleep(0.005)  # several windows are to come of them
        if not is_last:
            # In the middle of its work: rows come, of windows that others follow.
            await_rows(engine, "kills", len(rows(engine, "kills")) + 1)
            engine.kill()
            engine.start()
    query = """SELECT count(*) AS rows, count(DISTINCT to_json(k), window_start) AS windows,
        sum(n) AS messages, sum(s::bigint) AS total FROM rule_kills"""
    found: list[Any] = []

    tables = engine.folder / "tables"

    def is_complete() -> bool:
        nonlocal found
        rows_written = sum(row["n"] for row in rows(engine, "kills"))
        if rows_written < sent.total() or "rule_kills" not in rule_tables(tables):
            return False
        found = connect.rows(query, 300)
        return (found[0]["messages"] or 0) >= sent.total()

    await_condition(is_complete, "all messages in windows in the table")
    (row,) = found
    assert (row["messages"], row["total"]) == (sent.total(), total)
    assert row["rows"] == row["windows"]
    engine.delete("kills")
