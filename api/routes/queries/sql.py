"""Queries over the history, in SQL."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import iterate_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from api.entrance.authentication import CurrentCaller, for_tenants, for_topics, needs
from api.messages import completeness
from api.metrics.tenants import TenantFigures
from api.spark.connect import Cancelled
from api.sql.checking import check
from api.sql.confining import MOST_CHARACTERS
from api.sql.results import MEDIA_TYPES, Format, Result, write
from api.sql.running import QueryLimits
from api.sql.threads import QueryThreads
from api.sql.usage import usage_select
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import (
    Completed,
    Figures,
    ForQueries,
    Queries,
    Settings,
    Warming,
)
from mqlake.records.tenants import DEFAULT_TENANT

router = APIRouter(tags=["sql"])

DEFAULT_ROWS: Final = 1_000
DEFAULT_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 0.2
_CLIENT_CLOSED_REQUEST: Final = 499
"""Status for an answer that is not read."""


class SqlQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        min_length=1,
        max_length=MOST_CHARACTERS,
        description="one SELECT of Spark SQL over the relations of docs/tables.md",
        examples=["SELECT topic, payload:temp::double AS temp FROM messages ORDER BY ts LIMIT 10"],
    )
    format: Format = Field(
        default="json",
        description="json: one object; jsonl: an object a line; csv: with a header; or parquet",
    )
    limit: int | None = Field(
        default=DEFAULT_ROWS,
        ge=1,
        description="maximum rows; 422 above the setting sql_max_rows; null: that setting",
    )
    timeout_seconds: float = Field(
        default=DEFAULT_SECONDS,
        gt=0,
        le=3_600,
        description="ends the query after this time; limited by the setting sql_max_seconds",
    )


class SqlColumn(BaseModel):
    name: str
    type: str = Field(description="of Spark SQL")


class SqlResult(BaseModel):
    """The body with format `json`."""

    columns: list[SqlColumn]
    rows: list[list[Any]] = Field(
        description="bytes in base64, times in UTC, decimals as text, not-a-number as null"
    )
    row_count: int
    truncated: bool = Field(description="there are more rows than `limit`")
    complete_until: datetime | None = Field(description=completeness.DESCRIPTION)


class SqlProblemDetails(ProblemDetails):
    """The body of an error answer about a query; `code` says which kind.

    `invalid_query`: refused, or Spark could not run it; `query_timeout`, `result_too_large`,
    `query_out_of_memory`.
    """

    line: int | None = Field(default=None, description="1-based, in the query")
    column: int | None = Field(default=None, description="1-based")
    hint: str | None = Field(default=None, description="a correction")


Run = AbstractContextManager[Result]


@router.post(
    "/sql",
    response_class=Response,
    openapi_extra={**needs("viewer"), **for_topics()},
    responses={
        200: {
            "model": SqlResult,
            "content": {media: {} for media in MEDIA_TYPES.values()},
            "headers": {
                "mqlake-rows": {"schema": {"type": "integer"}, "description": "rows that follow"},
                "mqlake-truncated": {
                    "schema": {"type": "boolean"},
                    "description": "there are more than `limit`",
                },
                **completeness.OPENAPI,
            },
        },
        422: {"model": SqlProblemDetails},
        503: {"model": ProblemDetails},
    },
)
async def post_sql(
    request: Request,
    caller: CurrentCaller,
    asked: SqlQuery,
    runner: Queries,
    threads: ForQueries,
    figures: Figures,
    settings: Settings,
    completed: Completed,
    tenant: Tenant = DEFAULT_TENANT,
) -> Response:
    """Run a query.

    It is one SELECT over the tenant's history, as it is now or as it was. The answer starts when
    the query has ended, and is streamed. Close the connection to cancel: the query ends in Spark
    too.
    """
    rows = settings.sql_max_rows if asked.limit is None else asked.limit
    if rows > settings.sql_max_rows:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"limit is at most {settings.sql_max_rows} here"
        )
    seconds = min(asked.timeout_seconds, settings.sql_max_seconds)
    limits = QueryLimits(rows, seconds, settings.sql_max_bytes)
    try:
        query = await threads.run(
            partial(
                check,
                asked.query,
                tenant,
                is_administrator=caller.may("admin"),
                is_for_all=caller.tenants is None,
                topic_filters=caller.topic_filters,
                usage=partial(_usage, figures, tenant),
            )
        )
        # Before Spark chooses the versions of the tables: it is true of these, too.
        until = await asyncio.to_thread(completed.until, query.tables)
        run, result = await _run(
            request,
            threads,
            lambda stop: runner.run(query, asked.format, limits, stop, caller=caller.name),
        )
    except Cancelled:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    return _answer(run, result, asked.format, until)


def _answer(run: Run, result: Result, format_: Format, until: datetime | None) -> StreamingResponse:
    headers = {
        **completeness.headers(until),
        "mqlake-rows": str(result.rows),
        "mqlake-truncated": str(result.is_truncated).lower(),
    }
    if format_ == "parquet":
        headers["Content-Disposition"] = 'attachment; filename="result.parquet"'
    told = None if until is None else completeness.written(until)
    parts = _streamed(write(replace(result, complete_until=told), format_))
    return _Answer(run, parts, media_type=MEDIA_TYPES[format_], headers=headers)


def _usage(figures: TenantFigures, tenant: str) -> str:
    return usage_select(figures.rows(tenant))


@router.post(
    "/sql/start",
    status_code=HTTPStatus.ACCEPTED,
    response_class=Response,
    openapi_extra={**needs("viewer"), **for_topics(), **for_tenants()},
)
def post_sql_start(warm_up: Warming) -> Response:
    """Start Spark for queries.

    It starts in the background, and the first query or trial waits less: see `query` in `GET
    /processes`. Spark stops when it is no longer used.
    """
    warm_up.begin()
    return Response(status_code=HTTPStatus.ACCEPTED)


async def _run(
    request: Request, threads: QueryThreads, begin: Callable[[Callable[[], bool]], Run]
) -> tuple[Run, Result]:
    """Run the query in a thread; end it when the client hangs up."""
    unwanted = threading.Event()
    run = begin(unwanted.is_set)
    entering = asyncio.create_task(threads.run(run.__enter__))
    try:
        while True:
            done, _ = await asyncio.wait({entering}, timeout=_CHECK_SECONDS)
            if done:
                return run, entering.result()
            if await request.is_disconnected():
                unwanted.set()
    except asyncio.CancelledError:
        unwanted.set()
        with contextlib.suppress(Exception):
            await entering
            await asyncio.to_thread(run.__exit__, None, None, None)
        raise


async def _streamed(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    async for part in iterate_in_threadpool(parts):
        if part:
            yield part


class _Answer(StreamingResponse):
    """An answer whose result is deleted when it ends, also one that never began.

    One of which nothing is read ends with its connection (`api.entrance.limits.TimedProtocol`).
    """

    def __init__(self, run: Run, parts: AsyncIterator[bytes], **more: Any) -> None:
        super().__init__(parts, **more)
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(asyncio.to_thread(self._run.__exit__, None, None, None))
