"""`sql`: run a statement in a PostgreSQL database.

`${x}` becomes a parameter of the statement and is never part of its text. At least once; exactly
once when the statement is an upsert whose key follows from the output (`${$output}` say), or with
`done_table`: a table with a unique text column `output_id`, in which the same transaction notes
the outputs that it has done.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol

from pydantic import AfterValidator, Field, field_validator

from mqlake.settings import PostgresSettings
from rules.actions.connections import ConnectionKind, ForTenants
from rules.actions.contract import (
    NO_PROBLEMS,
    ActionFunction,
    ActionServices,
    Arguments,
    Problems,
    Retry,
    Work,
)
from rules.actions.fields import ArgumentError, ConnectionName, TemplateText
from rules.actions.statement import MAX_STATEMENT_CHARACTERS, check_statement, is_of_the_system


def _own_table(name: str) -> str:
    if any(map(is_of_the_system, name.split("."))):
        raise ArgumentError(f"table {name} is the system's own")
    return name


TableName = Annotated[
    str,
    Field(pattern=r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$"),
    AfterValidator(_own_table),
]


class SqlArgs(Arguments):
    """Arguments of `sql`."""

    connection: ConnectionName = Field(description="a database in the settings of the process")
    statement: TemplateText = Field(
        min_length=1,
        max_length=MAX_STATEMENT_CHARACTERS,
        description="one INSERT, UPDATE, DELETE, MERGE or CALL; ${…} stands for a value, without "
        "quotes",
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
        check_statement(statement)
        return statement


class PostgresConnection(ForTenants, PostgresSettings):
    """A database for the action `sql`."""


class SqlDatabase(Protocol):
    """Runs statements in one SQL database."""

    async def execute(
        self,
        statement: str,
        rows: Sequence[Sequence[Any]],
        *,
        timeout_seconds: float,
        done_table: str | None = None,
        done_ids: Sequence[str] = (),
    ) -> None:
        """Run a statement for each row, all in one transaction.

        Args:
            statement: With $1, $2, … for the values of a row.
            rows: JSON values.
            timeout_seconds: For the whole of it.
            done_table: Table in which this transaction keeps the identifiers of done rows; rows
                whose identifier is there are left out.
            done_ids: Identifier of each row, for `done_table`.

        Raises:
            ActionError: Nothing was done.
        """
        ...


POSTGRES: Final = ConnectionKind[SqlDatabase](
    PostgresConnection, "rules.runner.database:open_database", example="warehouse"
)


class Sql:
    """Runs the statement for each output, many of them in one transaction."""

    concurrency = 1
    may_fall_behind = True
    runs_recovered = True

    def __init__(self, args: SqlArgs, services: ActionServices) -> None:
        self.max_batch = args.batch
        self.retry = args.retry
        self._database = services.connection(POSTGRES, args.connection)
        self._statement = check_statement(args.statement)
        self._done_table = args.done_table
        self._timeout_seconds = args.timeout_seconds

    async def run(self, batch: Sequence[Work]) -> Problems:
        await self._database.execute(
            self._statement.text,
            [[one.value(work) for one in self._statement.placeholders] for work in batch],
            timeout_seconds=self._timeout_seconds,
            done_table=self._done_table,
            done_ids=[work.action_id.decode() for work in batch] if self._done_table else (),
        )
        return NO_PROBLEMS

    async def close(self) -> None:
        pass


FUNCTION: Final = ActionFunction(
    "sql", SqlArgs, Sql, "runs a statement in PostgreSQL", connection=POSTGRES
)
