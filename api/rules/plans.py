"""The plan of a stateful rule over rows of messages, as Spark SQL.

The same plan runs live (`streaming/rules/plans.py`), so both give the same rows of the same
messages; but live a message too late for its window is left out, and here none comes late.
"""

from collections.abc import Mapping
from typing import Final

from api.rules import history
from mqlake.records.references import reference_table
from rules.detections import batch_query
from rules.language.plan import AT_COLUMN, DETECTED, EVENT_TIME, ROW_COLUMN, Plan, StatefulStream
from rules.sql.confined import Confined, GivenRows

FOUND: Final = "found"
_MICROS: Final = "event_micros"


def evaluated(stream: StatefulStream, source: str) -> str:
    """Return the query: for each message that a filter matches the stream's columns of it.

    Column `found`, BINARY: null when an expression fails, empty when the condition is not true,
    else the stream's columns as a JSON object. The other columns are those of a rule's row.

    Args:
        stream: Stream of the plan.
        source: Name of a relation with the columns of a rule's row.
    """
    # The only guard in SQL that takes any error for null (design: rules, 9) gives binary.
    found = f"try_to_binary({unguarded(stream)}, 'utf-8')"
    where = history.matches(stream.filters)
    return f"SELECT *, {found} AS {FOUND} FROM {source} WHERE {where}"  # noqa: S608


def unguarded(stream: StatefulStream) -> str:
    """Return the expression of `found` as text; it throws on a message that fails."""
    values = [f"'{_MICROS}', unix_micros({stream.event_time})"]
    values += [f"'{one.name}', CAST({one.expression} AS {one.type})" for one in stream.columns]
    row = f"to_json(named_struct({', '.join(values)}))"
    return f"CASE WHEN {stream.condition} THEN {row} ELSE '' END"


def relation(stream: StatefulStream, source: str) -> str:
    """Return the query of a stream's relation."""
    types = {_MICROS: "BIGINT"} | {one.name: one.type for one in stream.columns}
    ddl = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    names = "".join(f", read.{one.name}" for one in stream.columns)
    read = (
        f"SELECT from_json(CAST({FOUND} AS STRING), '{ddl}') AS read"  # noqa: S608
        f" FROM ({evaluated(stream, source)}) WHERE octet_length({FOUND}) > 0"
    )
    return f"SELECT timestamp_micros(read.{_MICROS}) AS {EVENT_TIME}{names} FROM ({read})"  # noqa: S608


def rows(
    plan: Plan, sources: Mapping[str, GivenRows], tenant: str, until: str = "NULL", mark: str = ""
) -> Confined:
    """Return the query of a plan's output rows: `at` TIMESTAMP, `row` STRING.

    Args:
        plan: Which.
        sources: By name of the stream rows with the columns of a rule's row.
        tenant: Whose references.
        until: TIMESTAMP expression: time has passed up to there. For detections.
        mark: Tells its sources from those of another plan in one statement.
    """
    given = {f"{name}_rows{mark}": rows for name, rows in sources.items()}
    relations = {one.name: relation(one, f"{one.name}_rows{mark}") for one in plan.streams}
    for one in plan.references:
        table = reference_table(tenant, one.table)
        given[table] = GivenRows(f"SELECT * FROM {table}", (table,))  # noqa: S608
        relations[one.name] = f"SELECT * FROM {table}"  # noqa: S608
    if plan.detection is not None:
        stream = next(one for one in plan.streams if one.name == plan.detection.stream)
        columns = [EVENT_TIME, *(one.name for one in stream.columns)]
        relations[DETECTED] = batch_query(plan.detection, columns, stream.name, until)
    views = ", ".join(f"{name} AS ({query})" for name, query in relations.items())
    query = f"WITH {views} SELECT {AT_COLUMN}, {ROW_COLUMN} FROM ({plan.query})"  # noqa: S608
    return Confined(query, given)
