"""`sql`: run a statement in a PostgreSQL database.

`${x}` becomes a parameter of the statement and is never part of its text. At least once; exactly
once when the statement is an upsert whose key follows from the output (`${$output}` say), or with
`done_table`: a table with a unique text column `output_id`, in which the same transaction notes
the outputs that it has done.

PostgreSQL has functions that read files, run text as SQL or call other servers. So a statement
calls functions of a list, and those of schemas of one's own; it reads nothing of the system's.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import sqlglot
from pydantic import Field, field_validator
from sqlglot import exp
from sqlglot.errors import SqlglotError

from rules.actions.contract import (
    NO_PROBLEMS,
    ActionServices,
    Arguments,
    Problems,
    Retry,
    Work,
)
from rules.actions.fields import ArgumentError, ConnectionName, TemplateText
from rules.errors import RuleError
from rules.templates import Placeholder, Template

MAX_STATEMENT_CHARACTERS: Final = 16_384
MAX_PARAMETERS: Final = 1_000
_ALLOWED: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge)

_FUNCTIONS: Final = frozenset(
    (
        *("age", "bit_count", "btrim", "clock_timestamp", "convert_from", "convert_to"),
        *("currval", "date_bin", "decode", "encode", "gen_random_uuid", "get_byte"),
        *("hashtext", "initcap", "isfinite", "json_array_length", "json_build_array"),
        *("json_build_object", "json_extract_path", "json_extract_path_text", "json_object"),
        *("json_strip_nulls", "json_typeof", "jsonb_array_length", "jsonb_build_array"),
        *("jsonb_build_object", "jsonb_extract_path", "jsonb_extract_path_text"),
        *("jsonb_insert", "jsonb_object", "jsonb_set", "jsonb_set_lax", "jsonb_strip_nulls"),
        *("jsonb_typeof", "justify_days", "justify_hours", "justify_interval", "lastval"),
        *("make_date", "make_interval", "make_time", "make_timestamp", "make_timestamptz"),
        *("min_scale", "nextval", "num_nonnulls", "num_nulls", "octet_length", "parse_ident"),
        *("quote_ident", "quote_literal", "quote_nullable", "row_to_json", "scale"),
        *("set_bit", "set_byte", "setval", "sha224", "sha256", "sha384", "sha512"),
        *("statement_timestamp", "timeofday", "to_ascii", "to_date", "to_hex", "to_json"),
        *("to_jsonb", "to_number", "to_timestamp", "transaction_timestamp", "trim_array"),
        *("uuid_generate_v4", "uuid_generate_v5", "uuidv4", "uuidv7", "width_bucket"),
    )
)
"""Beside those that sqlglot knows by kind: `now`, `coalesce`, `lower`, …"""
_SYSTEM: Final = ("pg_", "information_schema")
"""Beginnings of schemas and relations that are the system's."""
_SYSTEM_FUNCTIONS: Final = ("pg_", "lo_", "dblink")
"""Beginnings of functions that are not called, in any schema."""

TableName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$")]


class SqlArgs(Arguments):
    """Arguments of `sql`."""

    connection: ConnectionName = Field(description="a database in the settings of the process")
    statement: TemplateText = Field(
        min_length=1,
        max_length=MAX_STATEMENT_CHARACTERS,
        description="one INSERT, UPDATE, DELETE or MERGE; ${…} stands for a value, without quotes",
    )
    done_table: TableName | None = Field(
        default=None,
        description="table with a unique text column output_id: each output is done once",
    )
    batch: int = Field(default=100, ge=1, le=1_000, description="rows in one transaction")
    timeout_seconds: float = Field(default=10.0, gt=0, le=300, description="for a transaction")
    retry: Retry = Retry()

    @field_validator("statement")
    @classmethod
    def _check_statement(cls, statement: str) -> str:
        compile_statement(statement)
        return statement


def compile_statement(text: str) -> tuple[str, tuple[Placeholder, ...]]:
    """Return a statement with $1, $2, … and the placeholder of each.

    Raises:
        ArgumentError: It is not one statement of an allowed kind, or a placeholder is not where
            a value can be.
    """
    try:
        template = Template.parse(text)
    except RuleError as exc:
        raise ArgumentError(exc) from exc
    if any(isinstance(part, str) and "$" in part for part in template.parts):
        raise ArgumentError("statement holds a dollar sign", hint="values are ${field}, texts '…'")
    statement, placeholders = _numbered(template)
    if len(placeholders) > MAX_PARAMETERS:
        raise ArgumentError(f"statement has more than {MAX_PARAMETERS} placeholders")
    try:
        parsed = sqlglot.parse(statement, dialect="postgres")
    except (SqlglotError, RecursionError) as exc:
        raise ArgumentError(f"statement is not SQL: {str(exc).splitlines()[0]}") from exc
    if len(parsed) != 1 or not isinstance(parsed[0], _ALLOWED):
        raise ArgumentError("statement is not one INSERT, UPDATE, DELETE or MERGE")
    _check_names(parsed[0])
    _check_places(parsed[0], placeholders)
    return statement, tuple(placeholders)


def _numbered(template: Template) -> tuple[str, list[Placeholder]]:
    """Return the statement with a number in the place of each placeholder."""
    placeholders: list[Placeholder] = []
    written = []
    for part in template.parts:
        if isinstance(part, str):
            written.append(part)
            continue
        if part not in placeholders:
            placeholders.append(part)
        # A space: `= ${a}` and `=${a}` must both end up as an operator and a parameter.
        written.append(f" ${placeholders.index(part) + 1} ")
    return "".join(written).strip().removesuffix(";"), placeholders


def _check_places(statement: exp.Expr, placeholders: Sequence[Placeholder]) -> None:
    """Refuse a placeholder where no value can be."""
    found = {parameter.name for parameter in statement.find_all(exp.Parameter)}
    for number, placeholder in enumerate(placeholders, 1):
        if str(number) not in found:
            raise ArgumentError(
                "placeholder ${" + placeholder.name + "} is not where a value can be",
                hint="write it without quotes",
            )


def _check_names(statement: exp.Expr) -> None:
    """Refuse functions and relations that are the system's, or may be.

    Raises:
        ArgumentError: There is one; says which.
    """
    for table in statement.find_all(exp.Table):
        for name in (table.catalog, table.db, table.name):
            if name.lower().startswith(_SYSTEM):
                raise ArgumentError(f"statement reads {table.sql('postgres')}, the system's own")
    for function in statement.find_all(exp.Anonymous):
        name, schema = function.name.lower(), _schema_of(function)
        is_known = name in _FUNCTIONS if not schema else not schema.startswith(_SYSTEM)
        if not is_known or name.startswith(_SYSTEM_FUNCTIONS):
            raise ArgumentError(
                f"statement calls {name}, which is on no list",
                hint="a function of your own is called with its schema: app.f(…)",
            )


def _schema_of(function: exp.Expr) -> str:
    """Return the schema that a call names; empty: none."""
    parent = function.parent
    if isinstance(parent, exp.Table):
        return parent.db.lower()
    if isinstance(parent, exp.Dot) and parent.expression is function:
        return str(parent.this.name if isinstance(parent.this, exp.Expr) else "").lower()
    return ""


def make(args: SqlArgs, services: ActionServices) -> "Sql":
    return Sql(args, services)


class Sql:
    """Runs the statement for each output, many of them in one transaction."""

    concurrency = 1
    may_fall_behind = True
    runs_recovered = True

    def __init__(self, args: SqlArgs, services: ActionServices) -> None:
        self.max_batch = args.batch
        self.retry = args.retry
        self._database = services.database(args.connection)
        self._statement, self._placeholders = compile_statement(args.statement)
        self._done_table = args.done_table
        self._timeout_seconds = args.timeout_seconds

    async def run(self, batch: Sequence[Work]) -> Problems:
        await self._database.execute(
            self._statement,
            [[_value(placeholder, work) for placeholder in self._placeholders] for work in batch],
            timeout_seconds=self._timeout_seconds,
            done_table=self._done_table,
            done_ids=[work.action_id.decode() for work in batch] if self._done_table else (),
        )
        return NO_PROBLEMS

    async def close(self) -> None:
        pass


def _value(placeholder: Placeholder, work: Work) -> Any:
    return placeholder.value(work)
