"""Traces of messages."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.entrance.authentication import CurrentCaller, for_topics
from api.tracing.views import Trace
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Tracing
from mqlake.records.tenants import DEFAULT_TENANT

router = APIRouter(tags=["history"])


@router.get(
    "/messages/{id:segment}/trace",
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
        Query(min_length=1, description="only for this client"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="maximum number of subscribers")] = 100,
) -> Trace:
    """Trace a message.

    The answer shows whether it was accepted, routed, delivered or dropped, and rows of rules.
    `basis` tells for each part whether it was recorded; `not_known` lists the missing records. A
    caller limited to topics sees no rules: their rows may be of other messages too.
    """
    found = traces.trace(message_id, client_id, limit, tenant, caller)
    if found is None:
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no message {message_id} of tenant {tenant!r}"
        )
    return found
