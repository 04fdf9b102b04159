"""`table`: append the row to a Delta table of the rule's own.

The lake carries it out, from `mqlake.outputs`. As a fallback it is the runner that
knows which outputs are concerned: it hands them over in `mqlake.dead_letters`, and the application
adds each once, by its identifier.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from mqlake.records.messages import DEAD_LETTERS
from mqlake.records.outputs import rule_record_key, table_row_headers
from rules.actions.contract import (
    NO_PROBLEMS,
    ActionFunction,
    ActionServices,
    Arguments,
    NewRecord,
    Problems,
    Retry,
    Work,
    refusal,
)

TableName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]


class TableArgs(Arguments):
    """Arguments of `table`."""

    name: TableName = Field(description="the table is called rule_<name>")


class TableFallback:
    """Hands outputs to the lake."""

    max_batch = 100
    concurrency = 1
    may_fall_behind = True
    runs_recovered = True
    retry = Retry()

    def __init__(self, args: TableArgs, services: ActionServices) -> None:
        self._table = args.name
        self._log = services.log

    async def run(self, batch: Sequence[Work]) -> Problems:
        records = [self._record(work) for work in batch]
        failed = await self._log.append(records)
        problems = {index: refusal(error) for index, error in failed.items()}
        return problems or NO_PROBLEMS

    async def close(self) -> None:
        pass

    def _record(self, work: Work) -> NewRecord:
        output = work.output
        headers = table_row_headers(output, work.action, self._table)
        return NewRecord(
            DEAD_LETTERS, rule_record_key(output.tenant, output.rule), output.row, headers
        )


FUNCTION: Final = ActionFunction(
    "table", TableArgs, None, "appends a row to a Delta table", TableFallback
)
