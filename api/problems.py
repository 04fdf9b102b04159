"""The one shape of every error: application/problem+json (RFC 9457)."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rules.errors import RuleError

MEDIA_TYPE = "application/problem+json"


class ProblemDetails(BaseModel):
    """The body of an error answer, for the OpenAPI document."""

    title: str = Field(description="the status in words")
    status: int = Field(description="HTTP status code")
    detail: str = Field(description="what is wrong here and what to do")
    errors: list[dict[str, str]] | None = Field(
        default=None, description="one entry per field refused: `field` and `problem`"
    )


class RuleProblemDetails(ProblemDetails):
    """The body of an error answer that may be about a rule's SQL."""

    line: int | None = Field(default=None, description="1-based, in the SQL")
    column: int | None = Field(default=None, description="1-based")
    fragment: str | None = Field(default=None, description="the part of the SQL that is wrong")
    hint: str | None = Field(default=None, description="what to write instead")


class Problem(Exception):  # noqa: N818 - the name the standard gives it
    """An answer that is an error."""

    def __init__(
        self, status: HTTPStatus, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def problem_response(
    status: int, detail: str, headers: dict[str, str] | None = None, **members: Any
) -> JSONResponse:
    """Return the answer; further members stand beside title, status and detail."""
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def register(app: FastAPI) -> None:
    """Make the application answer all errors, also those of the framework, in this shape."""

    @app.exception_handler(Problem)
    async def answer_problem(_request: Request, problem: Problem) -> JSONResponse:
        return problem_response(problem.status, problem.detail, problem.headers)

    @app.exception_handler(RuleError)
    async def answer_rule(_request: Request, error: RuleError) -> JSONResponse:
        return problem_response(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            str(error),
            line=error.line,
            column=error.column,
            fragment=error.fragment,
            hint=error.hint,
        )

    @app.exception_handler(HTTPException)
    async def answer_http(_request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else None
        return problem_response(error.status_code, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def answer_validation(_request: Request, error: RequestValidationError) -> JSONResponse:
        errors = [
            {"field": ".".join(str(part) for part in found["loc"]), "problem": found["msg"]}
            for found in error.errors()
        ]
        return problem_response(
            HTTPStatus.UNPROCESSABLE_ENTITY, "the request is not valid", errors=errors
        )

    @app.exception_handler(Exception)
    async def answer_mistake(_request: Request, _error: Exception) -> JSONResponse:
        return problem_response(
            HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error; the API's log has the details"
        )
