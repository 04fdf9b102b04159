"""Retained messages: list, read, delete."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from api.clients.control import clear_retained
from api.clients.sessions import PROTOCOL_VERSIONS
from api.entrance.authentication import CurrentCaller, for_topics
from api.messages import completeness
from api.messages.messages import show_payload
from api.routes.messages.filters import check_filter, check_rights
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Completed, Log, Maker, Retained
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import RETAINED
from mqlake.topics.names import SYSTEM_LEVEL, is_system, validate_topic_name

router = APIRouter(
    tags=["retained"],
    responses={code: {"model": ProblemDetails} for code in (422, 503)},
)


_COMPLETE: Final[dict[int | str, dict[str, Any]]] = {200: {"headers": completeness.OPENAPI}}
_AS_IN_TABLE = (
    "payload_bytes",
    "qos",
    "client_id",
    "username",
    "properties",
    "origin",
    "expires_at",
)


class RetainedMessageView(BaseModel):
    tenant: str
    topic_name: str
    payload: str | None = Field(description="as UTF-8 text; null if it is not, or too large")
    payload_base64: str | None = Field(description="if it is not text; else null")
    payload_bytes: int = Field(description="both are null if this is above the maximum asked for")
    qos: int
    message_id: str = Field(description="128 bits, 32 hexadecimal digits, sortable by time")
    client_id: str = Field(description="of the publisher")
    username: str | None = Field(description="of the publisher")
    protocol_version: str = Field(description="of the publisher: 3.1, 3.1.1 or 5.0")
    properties: dict[str, Any] | None = Field(description="5.0 properties of the message")
    retain: bool = True
    origin: str = Field(description="site/gateway that accepted it")
    received_at: datetime
    expires_at: datetime | None


class RetainedMessagePage(Page[RetainedMessageView]):
    complete_until: datetime | None = Field(description=completeness.DESCRIPTION)


class RetainedAsked(BaseModel):
    topic_name: str


@router.get("/retained", openapi_extra=for_topics(), responses=_COMPLETE)
def get_retained(
    response: Response,
    completed: Completed,
    table: Retained,
    caller: CurrentCaller,
    tenant: Tenant = DEFAULT_TENANT,
    topic_filter: Annotated[
        str | None, Query(description="MQTT topic filter; omitted: all topics")
    ] = None,
    max_payload_bytes: Annotated[
        int, Query(ge=0, le=65_536, description="larger payloads are null")
    ] = 1024,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> RetainedMessagePage:
    """List retained messages.

    They come from the table `retained`, by topic name, seconds behind the log: `complete_until`
    says how far it is.
    """
    if topic_filter is not None:
        check_filter(topic_filter)
    check_rights(caller, topic_filter)
    (after,) = read_cursor(cursor, 1)
    until = completed.until((RETAINED.name,))
    response.headers.update(completeness.headers(until))
    rows = table.page(tenant, topic_filter, after, limit + 1, max_payload_bytes=max_payload_bytes)
    found = [_message(tenant, row) for row in rows]
    page = to_page(found, limit, lambda one: (one.topic_name,))
    return RetainedMessagePage(items=page.items, next_cursor=page.next_cursor, complete_until=until)


@router.get(
    "/retained/{topic:segments}",
    openapi_extra=for_topics(),
    responses={**_COMPLETE, 404: {"model": ProblemDetails, "headers": completeness.OPENAPI}},
)
def get_retained_message(
    response: Response,
    completed: Completed,
    table: Retained,
    caller: CurrentCaller,
    topic: str,
    tenant: Tenant = DEFAULT_TENANT,
) -> RetainedMessageView:
    """Show a retained message.

    The answer has the whole payload. It is seconds behind the log; the header
    `mqlake-complete-until` says how far, also when there is no message.
    """
    check_rights(caller, topic)
    headers = completeness.headers(completed.until((RETAINED.name,)))
    row = table.get(tenant, topic)
    if row is None:
        problem = f"topic {topic!r} has no retained message"
        raise Problem(HTTPStatus.NOT_FOUND, problem, headers)
    response.headers.update(headers)
    return _message(tenant, row)


@router.delete(
    "/retained/{topic:segments}", status_code=HTTPStatus.ACCEPTED, openapi_extra=for_topics()
)
def delete_retained_message(
    log: Log, maker: Maker, caller: CurrentCaller, topic: str, tenant: Tenant = DEFAULT_TENANT
) -> RetainedAsked:
    """Delete a retained message.

    An empty message is published, as any client may do, and subscribers of the topic get it. It is
    in the log when this answers; gateways follow at once, the table, and with it GET, within
    seconds.
    """
    validate_topic_name(topic)
    if is_system(topic):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"topics below {SYSTEM_LEVEL} are the gateways' own"
        )
    check_rights(caller, topic)
    clear_retained(log, maker, tenant, topic, username=caller.name)
    return RetainedAsked(topic_name=topic)


def _message(tenant: str, row: dict[str, Any]) -> RetainedMessageView:
    return RetainedMessageView(
        **show_payload(row["payload"]),
        **{name: row[name] for name in _AS_IN_TABLE},
        tenant=tenant,
        topic_name=row["topic"],
        message_id=row["id"],
        protocol_version=PROTOCOL_VERSIONS[row["protocol_level"]],
        received_at=row["ts"],
    )
