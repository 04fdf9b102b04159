"""Errors of queries, and their places."""

from typing import ClassVar

from rules.sql.errors import SqlError


class QueryError(SqlError):
    """A query that is refused, does not parse or fails; `code` is for programs."""

    code: ClassVar[str] = "invalid_query"


class QueryTimeoutError(QueryError):
    """It took longer than it may."""

    code = "query_timeout"


class QueryTooLargeError(QueryError):
    """Its result is larger than it may be."""

    code = "result_too_large"


class QueryMemoryError(QueryError):
    """It needs more memory than Spark has, and has ended it."""

    code = "query_out_of_memory"
