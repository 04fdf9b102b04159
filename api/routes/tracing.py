"""Where did my message go."""

from contextlib import closing
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from api.authentication import CurrentCaller, for_topics
from api.dependencies import Connect, Heard, State, unavailable
from api.pages import DEFAULT_TENANT, Tenant
from api.problems import Problem, ProblemDetails
from api.tracing.tables import TraceTables
from api.tracing.tracer import Tracer
from api.tracing.views import Trace

router = APIRouter(tags=["history"])


@router.get(
    "/messages/{id}/trace",
    responses={code: {"model": ProblemDetails} for code in (404, 503)},
    openapi_extra=for_topics(),
)
def get_trace(
    request: Request,
    caller: CurrentCaller,
    state: State,
    connect: Connect,
    gateways: Heard,
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
    """Show what became of a message: accepted, routed, delivered or dropped, rows of rules.

    `basis` says of each part whether it was recorded; `not_known` says which records are missing. A
    caller for some topics alone is shown no rules: their rows may be of other messages too.
    """
    scan = request.app.state.open_scan(state.bootstrap_servers)
    tracer = Tracer(
        scan=scan,
        tables=TraceTables(connect, tenant),
        cache=request.app.state.cache,
        book=request.app.state.rules,
        gateways=[one.name for one in gateways.all()],
        tenant=tenant,
        caller=caller,
    )
    with closing(scan), unavailable():
        found = tracer.trace(message_id, client_id, limit)
    if found is None:
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no message {message_id} of tenant {tenant!r}"
        )
    return found
