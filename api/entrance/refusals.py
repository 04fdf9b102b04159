"""Answers to errors of services: services know no HTTP, and routes catch few."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from api.access.changes import ForAllTopics, NotYours
from api.access.logins import WrongCredentials
from api.jobs.jobs import JobElsewhere, NotResumable, TooManyJobs
from api.log.repository import InTheWay, NotThere
from api.references.reading import UploadError
from api.references.tables import UnknownVersion
from api.replay.targets import ReplayError
from api.rules.backfill import BackfillError
from api.rules.changes import VersionConflict
from api.rules.dry_run import DryRunError
from api.rules.rerun import RerunError
from api.rules.rights import NotWithin
from api.rules.samples import InvalidContext
from api.spark.connect import SparkStarting
from api.sql.brake import EndsSparkError
from api.sql.errors import QueryError
from api.sql.room import NoRoomError
from api.sql.running import TooManyQueriesError
from api.tenants.rights import RightsChanged, RightsTooLarge
from api.web.problems import problem_response
from mqlake.errors import InvalidTopic, LogError, MqlakeError, OperationalError
from mqlake.processes.log_disk import LogDiskFull
from mqlake.security.saslprep import UnpreparableText
from rules.errors import RuleError
from rules.schemas.errors import SchemaError

STATUS: Final[Mapping[type[MqlakeError], HTTPStatus]] = {
    WrongCredentials: HTTPStatus.UNAUTHORIZED,
    **dict.fromkeys((NotYours, NotWithin), HTTPStatus.FORBIDDEN),
    **dict.fromkeys((NotThere, UnknownVersion), HTTPStatus.NOT_FOUND),
    **dict.fromkeys(
        (
            InTheWay,
            RightsChanged,
            BackfillError,
            RerunError,
            ReplayError,
            NotResumable,
            JobElsewhere,
        ),
        HTTPStatus.CONFLICT,
    ),
    **dict.fromkeys(
        (
            InvalidTopic,
            ForAllTopics,
            UnpreparableText,
            RightsTooLarge,
            SchemaError,
            InvalidContext,
            DryRunError,
        ),
        HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    **dict.fromkeys((TooManyJobs, EndsSparkError, NoRoomError), HTTPStatus.TOO_MANY_REQUESTS),
    LogDiskFull: HTTPStatus.INSUFFICIENT_STORAGE,
    **dict.fromkeys((LogError, OperationalError), HTTPStatus.SERVICE_UNAVAILABLE),
}
"""Also of those that derive from it."""
RETRY_SECONDS: Final[Mapping[type[MqlakeError], int]] = {
    SparkStarting: 1,
    TooManyQueriesError: 5,
    TooManyJobs: 10,
    LogDiskFull: 10,
    NoRoomError: 10,
}
"""Time after which the same may be asked again."""


def register(app: FastAPI) -> None:
    """Make the application answer errors that services raise."""
    for kind in STATUS:
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(VersionConflict, _answer_conflict)
    app.add_exception_handler(QueryError, _answer_query)
    app.add_exception_handler(RuleError, _answer_rule)
    app.add_exception_handler(UploadError, _answer_upload)


async def _answer(_request: Request, error: Exception) -> JSONResponse:
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    seconds = next((RETRY_SECONDS[one] for one in type(error).__mro__ if one in RETRY_SECONDS), 0)
    if isinstance(error, EndsSparkError):
        seconds = error.retry_seconds
    code = None
    if isinstance(error, LogError) and not error.definite:
        code = "outcome_unknown"
    elif isinstance(error, RightsChanged):
        code = "version_conflict"
    elif isinstance(error, WrongCredentials):
        code = "wrong_credentials"
    headers = {"Retry-After": str(seconds)} if seconds else None
    return problem_response(status, str(error), headers, code)


async def _answer_conflict(request: Request, error: Exception) -> JSONResponse:
    """Answer in the way the version was given: in If-Match, or in the body."""
    by_etag = request.headers.get("If-Match", "*").strip() != "*"
    status = HTTPStatus.PRECONDITION_FAILED if by_etag else HTTPStatus.CONFLICT
    return problem_response(status, str(error))


async def _answer_query(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, QueryError)
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        error.problem,
        code=error.code,
        line=error.line,
        column=error.column,
        hint=error.hint or None,
    )


async def _answer_rule(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RuleError)
    members: dict[str, Any] = {
        name: getattr(error, name) for name in ("line", "column", "fragment", "hint")
    }
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return problem_response(status, str(error), code="invalid_rule", **members)


async def _answer_upload(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, UploadError)
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return problem_response(status, str(error), line=error.line, column=error.column)
