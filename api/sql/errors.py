"""What may be wrong with a query, and where."""

from typing import ClassVar

from mqlake.errors import MqlakeError


class QueryError(MqlakeError):
    """A query that is refused, does not parse or fails.

    Attributes:
        detail: What is wrong.
        line: 1-based, None when it has no place; as `column`.
        hint: What to write instead.
        code: For programs.
    """

    code: ClassVar[str] = "invalid_query"

    def __init__(
        self, detail: str, line: int | None = None, column: int | None = None, hint: str = ""
    ) -> None:
        place = "" if line is None else f" (line {line}, column {column})"
        super().__init__(f"{detail}{place}{f': {hint}' if hint else ''}")
        self.detail = detail
        self.line = line
        self.column = column
        self.hint = hint


class QueryTimeoutError(QueryError):
    """It took longer than it may."""

    code = "query_timeout"


class QueryTooLargeError(QueryError):
    """Its result is larger than it may be."""

    code = "result_too_large"


class QueryMemoryError(QueryError):
    """It needs more memory than Spark has, and has ended it."""

    code = "query_out_of_memory"


def error_at(sql: str, offset: int | None, detail: str, hint: str = "") -> QueryError:
    """Say what is wrong at an offset of the user's text."""
    if offset is None:
        return QueryError(detail, hint=hint)
    before = sql[:offset]
    return QueryError(detail, before.count("\n") + 1, offset - before.rfind("\n"), hint)
