"""Traces of messages."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.authentication import CurrentCaller, for_topics
from api.dependencies import Tracing
from api.pages import Tenant
from api.problems import Problem, ProblemDetails
from api.tracing.views import Trace
from mqlake.tenants import DEFAULT_TENANT

router = APIRouter(tags=["history"])


@router.get(
    "/messages/{id}/trace",
    responses={code: {"model": ProblemDetails} for code in (404, 503)},
    openapi_extra=for_topics(),
)
def get_trace(
    traces: Tracing,
    caller: CurrentCaller,
    message_id: Annotated[
        str,
        Path(
            alias="id", pattern=r"^[0-9a-f]{32}$", description="32 hexadecimal digits, lower case"
        ),
    ],
    tenant: Tenant = DEFAULT_TENANT,
    client_id: Annotated[
        str | None,
        Query(min_length=1, description="only at this client"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="subscribers, at most")] = 100,
) -> Trace:
    """Show the course of a message: accepted, routed, delivered or dropped, rows of rules.

    `basis` says of each part whether it was recorded; `not_known` says which records are missing. A
    caller for some topics alone is shown no rules: their rows may be of other messages too.
    """
    found = traces.trace(message_id, client_id, limit, tenant, caller)
    if found is None:
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no message {message_id} of tenant {tenant!r}"
        )
    return found
