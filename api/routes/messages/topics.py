"""Topics seen lately."""

import time
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from api.entrance.authentication import CurrentCaller, for_topics
from api.live.topics import MAX_KEPT_BYTES, SeenTopic
from api.messages.messages import MessageView, show_message
from api.routes.messages.filters import check_filter, check_rights
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Feed
from mqlake.errors import InvalidRecord
from mqlake.records.messages import decode_message
from mqlake.records.tenants import DEFAULT_TENANT

router = APIRouter(
    tags=["topics"], responses={code: {"model": ProblemDetails} for code in (422, 503)}
)


class Topic(BaseModel):
    topic_name: str
    messages: int = Field(description="since `since`")
    rate: float = Field(description="messages a second over the last ten seconds")
    last: MessageView


class TopicPage(Page[Topic]):
    since: datetime = Field(description="time from which messages were read")
    forgotten: int = Field(description="number of topics no longer remembered")


@router.get("/topics", openapi_extra=for_topics())
def get_topics(
    feed: Feed,
    caller: CurrentCaller,
    tenant: Tenant = DEFAULT_TENANT,
    topic_filter: Annotated[
        str | None, Query(description="MQTT topic filter; omitted: all topics")
    ] = None,
    max_payload_bytes: Annotated[
        int,
        Query(
            ge=0,
            le=MAX_KEPT_BYTES,
            description=f"larger payloads are null, and all over {MAX_KEPT_BYTES:,} bytes",
        ),
    ] = 1024,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> TopicPage:
    """List topics by name.

    Each has its last message. The first request makes the API read messages: those of the last
    minute, then new ones, until there is no request for a minute. It remembers 10,000 topics and
    forgets those silent for longest.
    """
    if topic_filter is not None:
        check_filter(topic_filter)
    check_rights(caller, topic_filter)
    (after,) = read_cursor(cursor, 1)
    feed.touch()
    if not feed.wait():
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "the log does not answer; see: bin/mqlake status"
        )
    now = time.time()
    seen = feed.topics.all(tenant, after, topic_filter)
    shown = (_topic(topic_name, one, now, max_payload_bytes) for topic_name, one in seen)
    found = list(islice((one for one in shown if one is not None), limit + 1))
    page = to_page(found, limit, lambda one: (one.topic_name,))
    return TopicPage(
        items=page.items,
        next_cursor=page.next_cursor,
        since=datetime.fromtimestamp(feed.topics.since_ms / 1000, tz=UTC),
        forgotten=feed.topics.forgotten,
    )


def _topic(topic_name: str, seen: SeenTopic, now: float, max_payload_bytes: int) -> Topic | None:
    last = seen.last
    try:
        message = decode_message(last.key, last.payload, last.headers or [], last.timestamp_ms)
    except InvalidRecord:
        return None  # something else that stands in the log
    shown = show_message(
        message,
        last.partition,
        last.offset,
        max_payload_bytes=-1 if last.payload is None else max_payload_bytes,
    )
    shown["payload_bytes"] = last.payload_bytes
    return Topic(
        topic_name=topic_name,
        messages=seen.messages,
        rate=round(seen.rate(now), 3),
        last=MessageView(**shown),
    )
