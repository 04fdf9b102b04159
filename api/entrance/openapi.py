"""The OpenAPI document, with the parts common to all operations: roles, errors, media type."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.entrance.authentication import (
    AUDITED_FIELD,
    ROLE_FIELD,
    TENANTS_FIELD,
    is_audited,
    is_for_tenants,
    role_for,
)
from api.web.problems import MEDIA_TYPE, ProblemDetails

DESCRIPTION: Final = """\
Errors have one format, `application/problem+json` with a stable `code`. Lists are paged:
`next_cursor` of a page requests the next one. Each answer has an `X-Request-ID`, which is that of
the request if it has one. `x-role` is the role that an operation requires: viewer, editor or admin.
The table `audit_log` records requests for operations with `x-audited`. Keys limited to topics may
use operations with `x-topics`, keys limited to tenants those with `x-tenants`.
"""
_COMMON: Final = {
    "401": "not authenticated",
    "403": "the caller lacks the rights",
    "429": "too many requests; see `Retry-After`",
}
"""Answers of every operation that is not for everybody."""
_WITH_BODY: Final = {"413": "the body is too large", "415": "unsupported media type"}
_ANY: Final = {"422": "parameters or body are not valid", "500": "internal error"}


def describe(app: FastAPI) -> None:
    """Add the parts common to all operations to the application's document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title,
                version=app.version,
                description=DESCRIPTION,
                routes=app.routes,
            )
            for path in found["paths"].values():
                for method, operation in path.items():
                    _complete(method, operation)
            schemas = found["components"]["schemas"]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas.setdefault(ProblemDetails.__name__, ProblemDetails.model_json_schema())
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(method: str, operation: dict[str, Any]) -> None:
    _summarise(operation)
    responses: dict[str, Any] = operation["responses"]
    if operation.get("security"):
        operation[ROLE_FIELD] = role_for(method, operation)
        operation[AUDITED_FIELD] = is_audited(method, operation)
        names_one = any(one["name"] == "tenant" for one in operation.get("parameters", ()))
        operation[TENANTS_FIELD] = is_for_tenants(operation, names_one=names_one)
        _add(responses, _COMMON)
    if "requestBody" in operation:
        _add(responses, _WITH_BODY)
    if _is_of_framework(responses.get("422")):
        del responses["422"]
    _add(responses, _ANY)
    for status, response in responses.items():
        content = response.get("content", {})
        if int(status) >= 400 and "application/json" in content:
            content[MEDIA_TYPE] = content.pop("application/json")


def _summarise(operation: dict[str, Any]) -> None:
    """Make the first line of a route's docstring its summary, the others its description."""
    first, _, others = operation.pop("description").partition("\n\n")
    operation["summary"] = first.removesuffix(".")
    if others:
        operation["description"] = others


def _add(responses: dict[str, Any], answers: dict[str, str]) -> None:
    schema = {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}
    for status, description in answers.items():
        responses.setdefault(
            status, {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}
        )


def _is_of_framework(response: dict[str, Any] | None) -> bool:
    return response is not None and "HTTPValidationError" in str(response)
