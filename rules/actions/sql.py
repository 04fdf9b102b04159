"""`sql`: run a statement in a PostgreSQL database.

`${x}` becomes a parameter of the statement and is never part of its text. At least once; exactly
once when the statement is an upsert whose key follows from the output (`${$output}` say), or with
`done_table`: a table with a unique text column `output_id`, in which the same transaction notes
what it has done.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import sqlglot
from pydantic import Field, field_validator
from sqlglot import exp
from sqlglot.errors import SqlglotError

from rules.actions.contract import (
    NO_PROBLEMS,
    Arguments,
    Problems,
    Retry,
    Services,
    Work,
)
from rules.actions.fields import ArgumentError, ConnectionName, TemplateText
from rules.errors import RuleError
from rules.templates import Placeholder, Template

MAX_STATEMENT_CHARACTERS: Final = 16_384
MAX_PARAMETERS: Final = 1_000
_ALLOWED: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge)

TableName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$")]


class Args(Arguments):
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
    """Return a statement with $1, $2, … and what stands for each.

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
    statement = "".join(written).strip().removesuffix(";")
    if len(placeholders) > MAX_PARAMETERS:
        raise ArgumentError(f"statement has more than {MAX_PARAMETERS} placeholders")
    try:
        parsed = sqlglot.parse(statement, dialect="postgres")
    except (SqlglotError, RecursionError) as exc:
        raise ArgumentError(f"statement is not SQL: {str(exc).splitlines()[0]}") from exc
    if len(parsed) != 1 or not isinstance(parsed[0], _ALLOWED):
        raise ArgumentError("statement is not one INSERT, UPDATE, DELETE or MERGE")
    found = {parameter.name for parameter in parsed[0].find_all(exp.Parameter)}
    for number, placeholder in enumerate(placeholders, 1):
        if str(number) not in found:
            raise ArgumentError(
                "placeholder ${" + placeholder.name + "} is not where a value can be",
                hint="write it without quotes",
            )
    return statement, tuple(placeholders)


def make(args: Args, services: Services) -> "Sql":
    return Sql(args, services)


class Sql:
    """Runs the statement for each output, many of them in one transaction."""

    concurrency = 1
    may_fall_behind = True
    runs_recovered = True

    def __init__(self, args: Args, services: Services) -> None:
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
