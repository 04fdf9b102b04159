"""Statements on behalf of rules in PostgreSQL, by asyncpg.

All values travel as text, and the server reads them as the type that the statement wants: `"21.5"`
or `21.5` for numeric, `"2026-01-01T00:00:00Z"` for timestamptz, any JSON value for jsonb: a text
that is a JSON document is this document, another one a JSON string.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from mqlake.clock import Clock
from mqlake.postgresql import PostgresPool
from rules.actions.contract import ActionError, Failure
from rules.actions.sql import PostgresConnection
from rules.templates import to_text

CONNECT_TIMEOUT_SECONDS: Final = 10.0

# fmt: off
_AS_TEXT: Final = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "money",
    "date", "time", "timetz", "timestamp", "timestamptz", "interval",
    "uuid", "bytea", "inet", "cidr", "macaddr",
    "text", "varchar", "bpchar", "name",
)
# fmt: on
_AS_JSON: Final = ("json", "jsonb")
_UNAVAILABLE: Final = frozenset({"08", "53", "57", "58", "25", "28", "3D"})
"""Classes of SQLSTATE that say nothing of the statement: connection, resources, intervention,
system, a server that only reads for the moment, a user or database that it does not know (yet)."""
_AGAIN: Final = frozenset({"40", "55"})
"""Classes after which the same may work: rolled back, object in use."""


def open_database(name: str, settings: PostgresConnection, _clock: Clock) -> "PostgresDatabase":
    return PostgresDatabase(name, settings)


class PostgresDatabase:
    """A pool of connections, opened when the first is wanted. Keeps the contract `Database`."""

    def __init__(self, name: str, settings: PostgresConnection) -> None:
        self._name = name
        self._pool = PostgresPool(settings, CONNECT_TIMEOUT_SECONDS, _set_up)

    async def execute(
        self,
        statement: str,
        rows: Sequence[Sequence[Any]],
        *,
        timeout_seconds: float,
        done_table: str | None = None,
        done_ids: Sequence[str] = (),
    ) -> None:
        """Run a statement for each row in one transaction; see the contract."""
        try:
            async with asyncio.timeout(timeout_seconds + CONNECT_TIMEOUT_SECONDS):
                pool = await self._pool.open()
                async with (
                    pool.acquire(timeout=CONNECT_TIMEOUT_SECONDS) as connection,
                    asyncio.timeout(timeout_seconds),
                    connection.transaction(),
                ):
                    await connection.execute(_settings(timeout_seconds))
                    await _execute(connection, statement, rows, done_table, done_ids)
        except asyncpg.PostgresError as exc:
            raise self._problem(exc) from exc
        except TimeoutError as exc:
            raise ActionError(
                f"database {self._name}: not done within {timeout_seconds:g} s", Failure.UNAVAILABLE
            ) from exc
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as exc:
            if isinstance(exc, asyncpg.DataError):
                raise ActionError(f"database {self._name}: {exc}") from exc
            raise ActionError(f"database {self._name}: {exc}", Failure.UNAVAILABLE) from exc

    async def close(self) -> None:
        await self._pool.close()

    def _problem(self, exc: asyncpg.PostgresError) -> ActionError:
        state: str = exc.sqlstate or "08000"
        if state[:2] in _UNAVAILABLE:
            failure = Failure.UNAVAILABLE
        else:
            failure = Failure.FAILED if state[:2] in _AGAIN else Failure.REFUSED
        return ActionError(f"database {self._name}: {exc} ({state})", failure)


def _settings(timeout_seconds: float) -> str:
    """Return the SQL that bounds the transaction under way on the server, too.

    So the server ends it when no process is left to cancel it, as after kill -9. Texts are read as
    the check of the statement reads them, whatever is set for the database or the role.
    """
    milliseconds = math.ceil(timeout_seconds * 1_000)  # 0 would be no limit
    return (
        f"SET LOCAL statement_timeout = {milliseconds};"
        f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds};"
        "SET LOCAL standard_conforming_strings = on"
    )


async def _set_up(connection: Any) -> None:
    encoders = {**dict.fromkeys(_AS_TEXT, _to_text), **dict.fromkeys(_AS_JSON, _to_json)}
    for name, encoder in encoders.items():
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=encoder, decoder=str, format="text"
        )


async def _execute(
    connection: Any,
    statement: str,
    rows: Sequence[Sequence[Any]],
    done_table: str | None,
    done_ids: Sequence[str],
) -> None:
    if done_table is not None:
        # Of the same identifier twice in a batch the first counts.
        new = await connection.fetch(
            # The name is checked when the rule is made: lower case letters, digits, _ and a dot.
            f"INSERT INTO {done_table} (output_id) SELECT DISTINCT unnest($1::text[]) "
            "ON CONFLICT DO NOTHING RETURNING output_id",
            list(done_ids),
        )
        wanted = {row[0] for row in new}
        chosen = {
            number: row for row, number in zip(rows, done_ids, strict=True) if number in wanted
        }
        rows = list(chosen.values())
    if rows:
        await connection.executemany(statement, rows)


def _to_text(value: Any) -> str:
    return to_text(value)


def _to_json(value: Any) -> str:
    return value if isinstance(value, str) and _is_json(value) else json.dumps(value)


def _is_json(text: str) -> bool:
    """Tell whether a text is a JSON document as PostgreSQL reads it."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except RecursionError:
        return True  # The server knows how deep it reads.
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
