"""Statements in a real PostgreSQL."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from mqlake.records.outputs import Position
from rules.actions.contract import ActionError, Failure
from rules.actions.sql import PostgresConnection, Sql, SqlArgs
from rules.runner import database as database_module
from rules.runner.database import PostgresDatabase
from tests.rules.runner.postgres import PASSWORD, USER, Postgres, running_postgres
from tests.rules.test_templates import work_for

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def database(postgres: Postgres, **more: Any) -> PostgresDatabase:
    fields: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": postgres.port,
        "database": "postgres",
        "user": USER,
        "password": SecretStr(PASSWORD),
        **more,
    }
    return PostgresDatabase("warehouse", PostgresConnection(**fields))


class Services:
    """Gives the one database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def connection(self, _kind: object, _name: str) -> PostgresDatabase:
        return self._database


async def run(postgres: Postgres, statement: str, *rows: Any, **more: Any) -> None:
    """Carry out `sql` for some rows, as outputs 0, 1, 2, …"""
    opened = database(postgres)
    try:
        args = SqlArgs.model_validate({"connection": "warehouse", "statement": statement, **more})
        action = Sql(args, Services(opened))  # type: ignore[arg-type]
        works = [
            work_for(row, position=Position("i", 0, number, 0)) for number, row in enumerate(rows)
        ]
        await action.run(works)
    finally:
        await opened.close()


async def test_json_values_become_what_the_column_wants(postgres: Postgres) -> None:
    postgres.query(
        "CREATE TABLE kinds (a text, b int, c float8, d numeric, e bool, f timestamptz, g jsonb,"
        " h uuid, i text, j date, k varchar(9))"
    )
    row = {
        "a": "o'; DROP TABLE kinds; --",
        "b": 7,
        "c": 0.1,
        "d": 12345678901234567890123,
        "e": True,
        "f": "2026-01-02T03:04:05Z",
        "g": {"x": [1, None]},
        "h": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "i": {"nested": 1},
        "j": "2026-01-02",
        "k": None,
    }
    values = ", ".join(f"${{{name}}}" for name in row)
    await run(postgres, f"INSERT INTO kinds VALUES ({values})", row)
    columns = "a, b, c, d, e, extract(epoch FROM f)::int, g->'x', h, i, j, k IS NULL"
    (line,) = postgres.query(f"SELECT {columns} FROM kinds")
    assert line.split("|") == [
        "o'; DROP TABLE kinds; --",
        "7",
        "0.1",
        "12345678901234567890123",
        "t",
        "1767323045",
        "[1, null]",
        "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        '{"nested":1}',
        "2026-01-02",
        "t",
    ]


async def test_missing_fields_are_null_and_names_of_the_output_values(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE names (id text PRIMARY KEY, a int, at bigint)")
    await run(postgres, "INSERT INTO names VALUES (${$output}, ${missing}, ${$timestamp})", {})
    assert postgres.query("SELECT id, a IS NULL, at FROM names") == ["r1/3/i:0:0:0|t|1700000000000"]


async def test_what_the_column_does_not_take_is_refused_and_nothing_of_the_batch_done(
    postgres: Postgres,
) -> None:
    postgres.query("CREATE TABLE strict (a int NOT NULL CHECK (a < 10))")
    for bad in ("text", 1.5, None, 11, 1 << 40, {"x": 1}):
        with pytest.raises(ActionError) as caught:
            await run(postgres, "INSERT INTO strict VALUES (${a})", {"a": 1}, {"a": bad})
        assert caught.value.failure is Failure.REFUSED, bad
    assert postgres.query("SELECT count(*) FROM strict") == ["0"]


async def test_upsert_by_output_is_done_once(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE upserts (id text PRIMARY KEY, a int)")
    statement = "INSERT INTO upserts VALUES (${$output}, ${a}) ON CONFLICT (id) DO NOTHING"
    for _ in range(2):
        await run(postgres, statement, {"a": 1}, {"a": 2})
    assert postgres.query("SELECT sum(a), count(*) FROM upserts") == ["3|2"]


async def test_done_table_makes_any_statement_happen_once(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE sums (a int); INSERT INTO sums VALUES (0)")
    postgres.query("CREATE TABLE done (output_id text PRIMARY KEY)")
    statement = "UPDATE sums SET a = a + ${a}"
    await run(postgres, statement, {"a": 1}, {"a": 2}, done_table="done")
    await run(postgres, statement, {"a": 1}, {"a": 2}, {"a": 4}, done_table="done")
    assert postgres.query("SELECT a FROM sums") == ["7"]
    with pytest.raises(ActionError):
        await run(postgres, statement, *[{"a": 0}] * 3, {"a": "x"}, done_table="done")
    assert postgres.query("SELECT count(*) FROM done") == ["3"]


async def test_wrong_statement_password_or_table_is_told(postgres: Postgres) -> None:
    with pytest.raises(ActionError, match="does not exist") as caught:
        await run(postgres, "INSERT INTO nowhere VALUES (${a})", {"a": 1})
    assert caught.value.failure is Failure.REFUSED
    wrong = database(postgres, password=SecretStr("wrong"))
    with pytest.raises(ActionError, match="password") as caught:
        await wrong.execute("DELETE FROM nowhere", [[]], timeout_seconds=60)
    assert caught.value.failure is Failure.UNAVAILABLE
    await wrong.close()


async def test_a_placeholder_is_a_value_wherever_it_stands(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE places (a text, b jsonb, c json, d int, e text, f jsonb)")
    statement = (
        "INSERT INTO places VALUES (${a}, ${a}, ${a},"
        " CASE WHEN ${n} IS NOT NULL THEN ${n}::int END, concat('<', ${n}, '>'),"
        " jsonb_build_object(${a}, ${n}, 'all', ${l}))"
    )
    row = {"a": "seven", "n": 7, "l": [1, "x", None]}
    await run(postgres, statement, row, {**row, "n": None})
    seven = """seven|"seven"|"seven"|"""
    assert postgres.query("SELECT * FROM places ORDER BY d") == [
        f'{seven}7|<7>|{{"all": [1, "x", null], "seven": 7}}',
        f'{seven}|<>|{{"all": [1, "x", null], "seven": null}}',
    ]


async def test_any_value_is_one_for_jsonb(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE anything (n serial, j jsonb, kind text, as_text text)")
    documents = {
        **{text: text for text in ('{"a": 1}', "[1, 2]", "12", "1.50", "true", '"quoted"')},
        **{f" {text}\n": text for text in ("{}", "null")},
        "1" * 5_000: "1" * 5_000,
    }
    texts = (
        *(
            "",
            " ",
            "on",
            "seven",
            "7,5",
            "NaN",
            "-Infinity",
            "{a: 1}",
            "[1",
            "'x'",
            "01",
            "1e",
            "\t",
        ),
        *('say "hi" \\ there', "°C 😀", "True", "nul", "\ufeff1", '{"a": 1} x', '"line\nfeed"'),
    )
    values = [21.5, -7, True, False, {"x": [None, "°"]}, []]
    rows = [{"j": value} for value in (*documents, *texts, *values, None)]
    await run(postgres, "INSERT INTO anything (j, as_text) VALUES (${j}, ${j})", *rows)
    found = postgres.query("SELECT coalesce(j::text, 'NULL') FROM anything ORDER BY n")
    assert found[: len(documents)] == list(documents.values())
    read = [json.loads(line) for line in found[len(documents) : -1]]
    assert read == [*texts, *values]
    assert found[-1] == "NULL"


async def test_postgresql_ends_by_itself_what_takes_too_long(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.query("CREATE TABLE settings (n serial, value text)")
    opened = database(postgres, max_connections=1)
    statement = "INSERT INTO settings (value) SELECT current_setting($1)"
    names = [["statement_timeout"], ["idle_in_transaction_session_timeout"]]
    await opened.execute(statement, names, timeout_seconds=60)
    assert postgres.query("SELECT value FROM settings ORDER BY n") == ["1min", "1min"]
    # Without our own bounds, as when nobody is left to keep them.
    unbounded = SimpleNamespace(timeout=lambda _seconds: nullcontext())
    monkeypatch.setattr(database_module, "asyncio", unbounded)
    slow = "INSERT INTO settings (value) SELECT 'late' FROM pg_sleep(60)"
    try:
        with pytest.raises(ActionError, match="statement timeout") as caught:
            await opened.execute(slow, [[]], timeout_seconds=1)
    finally:
        await opened.close()
    assert caught.value.failure is Failure.UNAVAILABLE


async def test_texts_are_read_as_the_check_reads_them(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE slashes (a text, b int)")
    postgres.query("ALTER ROLE mqlake SET standard_conforming_strings = off")
    try:
        await run(postgres, r"INSERT INTO slashes VALUES ('\', 1), (', 2), (', 3)", {})
    finally:
        postgres.query("ALTER ROLE mqlake RESET standard_conforming_strings")
    assert postgres.query("SELECT a, b FROM slashes") == ["\\|1", ", 2), (|3"]


async def test_slow_statement_is_given_up(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE slow (a text)")
    opened = database(postgres)
    with pytest.raises(ActionError, match=r"not done within 0.3 s") as caught:
        await opened.execute("INSERT INTO slow SELECT pg_sleep(30)", [[]], timeout_seconds=0.3)
    assert caught.value.failure is Failure.UNAVAILABLE
    await opened.close()
    assert postgres.query("SELECT count(*) FROM slow") == ["0"]


async def test_a_restart_is_a_target_that_is_away_and_comes_back(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE restarts (a int)")
    opened = database(postgres)

    async def insert(number: int) -> None:
        statement = "INSERT INTO restarts VALUES ($1)"
        await opened.execute(statement, [[number]], timeout_seconds=60)

    await insert(1)
    await asyncio.to_thread(postgres.stop)
    for _ in range(2):
        with pytest.raises(ActionError) as caught:
            await insert(2)
        assert caught.value.failure is Failure.UNAVAILABLE
    await asyncio.to_thread(postgres.start)
    await insert(3)
    await opened.close()
    assert postgres.query("SELECT a FROM restarts ORDER BY a") == ["1", "3"]


async def test_socket_and_password_file_serve_too(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE sockets (a int)")
    file = postgres.folder / "password"
    opened = database(postgres, host=str(postgres.folder), password=None, password_file=file)
    await opened.execute("INSERT INTO sockets VALUES ($1)", [[1], [2]], timeout_seconds=60)
    await opened.close()
    assert postgres.query("SELECT count(*) FROM sockets") == ["2"]
