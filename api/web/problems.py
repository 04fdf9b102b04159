"""The one shape of every error: application/problem+json (RFC 9457), with a code for programs."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"

CODES: Final[dict[str, str]] = {
    "bad_request": "the request cannot be read",
    "unauthenticated": "no token or session, or one that does not count (any more)",
    "wrong_credentials": "the login failed: wrong user name, password or token",
    "forbidden": "the caller's role does not allow it",
    "csrf": "a session's request that changes something lacks its `X-CSRF-Token`",
    "not_found": "there is no such thing, or no such path",
    "method_not_allowed": "the path is there, but not with this method",
    "conflict": "it conflicts with the present state",
    "version_conflict": "another caller has changed it meanwhile",
    "gone": "it was there and is no more",
    "body_too_large": "the body of the request is larger than the API takes",
    "unsupported_media_type": "the body is not of a type that is taken here",
    "invalid_request": "parameters or body are not as described; `errors` says where",
    "invalid_query": "the SQL of a query is refused or fails; `line` and `column` say where",
    "query_timeout": "the query took longer than it may",
    "result_too_large": "the result of the query has more bytes than it may",
    "query_out_of_memory": "the query needs more memory than the query application has",
    "invalid_rule": "the SQL or an action of a rule is wrong; `line` and `column` say where",
    "rate_limited": "too many requests or failed logins; `Retry-After` says how long to wait",
    "internal_error": "a mistake of ours; the API's log has the details",
    "log_full": "the log takes no messages until it, or its disk, has room again; none was taken",
    "unavailable": "a part of the system that is needed does not answer; try again later",
    "outcome_unknown": "the log has not answered in time: the change may still happen",
}
"""Code -> its meaning. Codes stay, words may change."""

_CODE_OF_STATUS: Final[dict[int, str]] = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    410: "gone",
    412: "version_conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "rate_limited",
    500: "internal_error",
    503: "unavailable",
    507: "log_full",
}
"""The code where nothing more exact is said."""


_NO_CHARACTER: Final = "surrogates not allowed"
"""In the words of Python, and of libraries."""


class FieldProblem(BaseModel):
    """A field that was refused."""

    field: str
    problem: str


class ProblemDetails(BaseModel):
    """The body of an error answer."""

    title: str = Field(description="name of the status")
    status: int = Field(description="HTTP status code")
    detail: str = Field(description="what is wrong and how to correct it")
    code: str = Field(description="stable code of the kind of error, for programs")
    errors: list[FieldProblem] | None = Field(
        default=None, description="one entry for each refused field"
    )


class RuleProblemDetails(ProblemDetails):
    """The body of an error answer that may be about a rule's SQL."""

    line: int | None = Field(default=None, description="1-based, in the SQL")
    column: int | None = Field(default=None, description="1-based")
    fragment: str | None = Field(default=None, description="the wrong part of the SQL")
    hint: str | None = Field(default=None, description="a correction")


class Problem(Exception):  # noqa: N818 - the name the standard gives it
    """An answer that is an error.

    Args:
        status: HTTP status of the answer.
        detail: The problem here and the remedy.
        headers: Beside the usual ones.
        code: One of `CODES`; the status says it where None.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        headers: dict[str, str] | None = None,
        *,
        code: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.code = _code(status) if code is None else code
        assert self.code in CODES

    def body(self) -> dict[str, Any]:
        return problem_body(self.status, self.detail, self.code)


def problem_body(
    status: int, detail: str, code: str | None = None, **members: Any
) -> dict[str, Any]:
    """Return an error's object; further members stand beside those that all have."""
    return {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": _code(status) if code is None else code,
        **members,
    }


def problem_response(
    status: int,
    detail: str,
    headers: dict[str, str] | None = None,
    code: str | None = None,
    **members: Any,
) -> JSONResponse:
    """Return the answer; further members stand beside those that all have."""
    body = problem_body(status, detail, code, **members)
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def _problem_of(found: Mapping[str, Any]) -> str:
    """Return the problem of a field, without the words of pydantic's own."""
    if found["type"] == "extra_forbidden":
        return "there is no such field"
    return str(found["msg"]).removeprefix("Value error, ")


def register(app: FastAPI) -> None:
    """Make the application answer all errors, also those of the framework, in this shape."""
    app.exception_handler(Problem)(_answer_problem)
    app.exception_handler(HTTPException)(_answer_http)
    app.exception_handler(RequestValidationError)(_answer_validation)
    app.exception_handler(UnicodeEncodeError)(_answer_text)
    app.exception_handler(PydanticSerializationError)(_answer_text)
    app.exception_handler(Exception)(_answer_mistake)


async def _answer_problem(_request: Request, problem: Problem) -> JSONResponse:
    return problem_response(problem.status, problem.detail, problem.headers, problem.code)


async def _answer_http(_request: Request, error: HTTPException) -> JSONResponse:
    headers = dict(error.headers) if error.headers else None
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = "there is no such path: /api/v1/openapi.json lists all"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"this path takes {(headers or {}).get('Allow', 'another method')}"
    return problem_response(error.status_code, detail, headers)


async def _answer_validation(_request: Request, error: RequestValidationError) -> JSONResponse:
    errors = [
        {"field": ".".join(str(part) for part in found["loc"]), "problem": _problem_of(found)}
        for found in error.errors()
    ]
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY, "the request is not valid", errors=errors
    )


async def _answer_text(_request: Request, error: Exception) -> JSONResponse:
    # JSON can name half a surrogate pair; texts of our own hold none.
    if _NO_CHARACTER not in str(error):
        raise error
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "a text of the request has half a surrogate pair (\\ud800 to \\udfff), which is no "
        "character",
    )


async def _answer_mistake(_request: Request, _error: Exception) -> JSONResponse:
    return problem_response(
        HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error; the API's log has the details"
    )


def _code(status: int) -> str:
    fallback = "bad_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal_error"
    return _CODE_OF_STATUS.get(status, fallback)
