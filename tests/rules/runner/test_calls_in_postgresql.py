"""A real PostgreSQL calls functions in more ways than one; the check of statements knows them."""

from collections.abc import Iterator

import pytest

from rules.actions.fields import ArgumentError
from rules.actions.statement import check_statement
from tests.cases import case
from tests.rules.runner.postgres import Postgres, running_postgres

pytestmark = pytest.mark.programs

CALLS = (
    "pg_read_file('{file}')",
    "\"pg_read_file\" ('{file}')",
    "pg_catalog.pg_read_file('{file}')",
    "('{file}'::text).pg_read_file",
    "(('{file}'::text)) . \"pg_read_file\"",
    "(ARRAY['{file}'::text])[1].pg_read_file",
    "(SELECT '{file}'::text).pg_read_file",
    "f.pg_read_file FROM btrim('{file}') AS f",
    "f.pg_read_file FROM unnest(ARRAY['{file}']) AS f",
    "f.pg_read_file FROM ROWS FROM (concat('{file}')) AS f",
    "f.pg_read_file FROM (VALUES (1)) AS v, LATERAL concat('{file}') AS f",
    "f.\"pg_read_file\" FROM CAST('{file}' AS text) AS f",
    "1 || /* '*/ pg_read_file('{file}') /*' */",
    "E'\\'' || pg_read_file('{file}') --'",
    "U&\"\\0070g_read_file\"('{file}')",
)
"""Of a function that the check must not let through; each reads a file of the server."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def is_taken(statement: str) -> bool:
    try:
        check_statement(statement)
    except ArgumentError:
        return False
    return True


def test_no_way_to_call_a_function_gets_through(postgres: Postgres) -> None:
    postgres.query("CREATE TABLE read (a text)")
    file = postgres.folder / "read"
    file.write_text("secret", encoding="utf-8")
    for call in CALLS:
        with case(call):
            statement = f"INSERT INTO read SELECT {call.format(file=file)}"
            assert not is_taken(statement)
            try:
                postgres.query(statement)
            except OSError as exc:
                raise AssertionError(f"PostgreSQL does not take it: {exc}") from exc
    assert postgres.query("SELECT count(*) FROM read WHERE a LIKE '%secret%'") == [str(len(CALLS))]


def test_an_attribute_of_a_row_is_a_column_or_a_listed_function(postgres: Postgres) -> None:
    """Whatever PostgreSQL can call on a row of a table, of all the functions that it has."""
    postgres.query("CREATE TABLE source (source_a int, source_b text); CREATE TABLE found (f text)")
    postgres.query(
        "DO $$ DECLARE f text; BEGIN FOR f IN SELECT DISTINCT proname FROM pg_proc LOOP BEGIN"
        "  EXECUTE format('PREPARE p AS SELECT t.%I FROM source t', f);"
        "  DEALLOCATE p; INSERT INTO found VALUES (f);"
        "EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$"
    )
    callable_ones = postgres.query("SELECT f FROM found")
    assert {"row_to_json", "record_out", "pg_typeof"} < set(callable_ones)
    for name in callable_ones:
        with case(name):
            if is_taken(f"INSERT INTO t SELECT u.{name} FROM u"):
                assert is_taken(f"INSERT INTO t SELECT {name}(a) FROM u")


def test_functions_of_the_system_are_called_only_if_they_are_listed(postgres: Postgres) -> None:
    names = postgres.query("SELECT DISTINCT proname FROM pg_proc")
    assert len(names) > 2_000
    taken = {name for name in names if is_taken(f'INSERT INTO t VALUES ("{name}"(1))')}
    assert {"lower", "now"} < taken
    assert not taken & {
        *("generate_series", "repeat", "lpad", "rpad", "format", "current_setting", "set_config"),
        *("query_to_xml", "ts_stat", "loread", "lowrite", "txid_current", "inet_server_addr"),
    }
    assert not [name for name in taken if name.startswith(("pg_", "lo_", "has_", "binary_"))]
