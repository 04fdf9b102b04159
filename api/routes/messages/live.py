"""Live streams: messages, outputs of rules, metrics; by Server-Sent Events and by WebSocket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketState

from api.access.callers import Caller
from api.entrance.authentication import (
    SUBPROTOCOL,
    CurrentCaller,
    authenticator_of,
    authorize_websocket,
    check_tenant,
    for_topics,
)
from api.live.feed import Feed
from api.live.messages import MessageFeed, message_event
from api.live.metrics import SystemMetrics, metrics_event
from api.live.outputs import OutputFeed, output_event
from api.live.reader import Reader, Told
from api.live.readers import TooManyOfOne, TooManyReaders
from api.live.stream import LiveStream
from api.messages.messages import MessageView
from api.routes.messages.filters import check_filter, check_rights
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Live
from api.wiring.parts import LiveParts
from mqlake.errors import OperationalError
from mqlake.records.tenants import DEFAULT_TENANT, TenantName

router = APIRouter(tags=["live"])
sockets = APIRouter()
"""WebSockets: they let their callers in themselves."""

MEDIA_TYPE: Final = "text/event-stream"
MAX_FILTERS: Final = 100
MAX_STREAMS: Final = 50
"""Most streams of one WebSocket."""
MAX_FRAME_CHARACTERS: Final = 65_536
MAX_RATE: Final = 1_000
DEFAULT_RATE: Final = 100
MAX_PAYLOAD_BYTES: Final = 65_536
DEFAULT_PAYLOAD_BYTES: Final = 4_096
_CLOSE_POLICY: Final = 1008
_CLOSE_LATER: Final = 1013

Rate = Annotated[
    int, Query(ge=1, le=MAX_RATE, description="maximum a second; others are counted and left out")
]


class OutputView(BaseModel):
    """Output of a rule for a message."""

    tenant: str
    rule_id: str
    version: int
    row: Any
    topic_name: str
    client_id: str
    message_id: str | None
    received_at: str
    output_id: str = Field(description="the same for a repeated output")


class LeftOutView(BaseModel):
    """Counts of events left out since the last such event."""

    rate: int = Field(description="because of max_rate")
    slow: int = Field(description="because the reader was too slow")
    total: int = Field(description="since the start of the stream")


class _Subscribe(BaseModel):
    model_config = ConfigDict(extra="forbid")

    subscribe: str = Field(max_length=100)
    tenant: TenantName = DEFAULT_TENANT
    max_rate: int = Field(default=DEFAULT_RATE, ge=1, le=MAX_RATE)


class SubscribeMessages(_Subscribe):
    stream: Literal["messages"]
    topic_filters: list[str] = Field(min_length=1, max_length=MAX_FILTERS)
    max_payload_bytes: int = Field(default=DEFAULT_PAYLOAD_BYTES, ge=0, le=MAX_PAYLOAD_BYTES)


class SubscribeOutputs(_Subscribe):
    stream: Literal["outputs"]
    rule_id: str | None = None


class SubscribeMetrics(_Subscribe):
    stream: Literal["metrics"]


class UnsubscribeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    unsubscribe: str


Asked = SubscribeMessages | SubscribeOutputs | SubscribeMetrics | UnsubscribeRequest
_asked: TypeAdapter[Asked] = TypeAdapter(Asked)


_EVENT: Final = {
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}


def _describe(**events: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    names = "; ".join(f"`{name}`: {model.__name__}" for name, model in events.items())
    return {
        200: {
            "description": f"events: {names}; `left_out`: LeftOutView; `end`: ProblemDetails",
            "content": {MEDIA_TYPE: {"schema": _EVENT}},
        },
        **{code: {"model": ProblemDetails} for code in (422, 503)},
    }


@router.get(
    "/live/messages",
    response_class=StreamingResponse,
    openapi_extra=for_topics(),
    responses=_describe(message=MessageView),
)
async def get_messages(
    request: Request,
    live: Live,
    caller: CurrentCaller,
    topic_filter: Annotated[
        list[str], Query(description="MQTT topic filters", min_length=1, max_length=MAX_FILTERS)
    ],
    tenant: Tenant = DEFAULT_TENANT,
    max_rate: Rate = DEFAULT_RATE,
    max_payload_bytes: Annotated[
        int, Query(ge=0, le=MAX_PAYLOAD_BYTES, description="larger payloads are null")
    ] = DEFAULT_PAYLOAD_BYTES,
) -> StreamingResponse:
    """Stream new messages.

    The stream starts with the answer.
    """
    asked = SubscribeMessages(
        subscribe="",
        stream="messages",
        topic_filters=topic_filter,
        tenant=tenant,
        max_rate=max_rate,
        max_payload_bytes=max_payload_bytes,
    )
    return await _sse(request, live, caller, asked)


@router.get(
    "/live/outputs", response_class=StreamingResponse, responses=_describe(output=OutputView)
)
async def get_outputs(
    request: Request,
    live: Live,
    caller: CurrentCaller,
    rule_id: Annotated[str | None, Query(description="only of this rule")] = None,
    tenant: Tenant = DEFAULT_TENANT,
    max_rate: Rate = DEFAULT_RATE,
) -> StreamingResponse:
    """Stream outputs of rules."""
    asked = SubscribeOutputs(
        subscribe="", stream="outputs", rule_id=rule_id, tenant=tenant, max_rate=max_rate
    )
    return await _sse(request, live, caller, asked)


@router.get(
    "/live/metrics", response_class=StreamingResponse, responses=_describe(metrics=SystemMetrics)
)
async def get_live_metrics(
    request: Request, live: Live, caller: CurrentCaller
) -> StreamingResponse:
    """Stream system metrics each second."""
    return await _sse(request, live, caller, SubscribeMetrics(subscribe="", stream="metrics"))


async def _sse(
    request: Request,
    live: LiveParts,
    caller: Caller,
    asked: SubscribeMessages | SubscribeOutputs | SubscribeMetrics,
) -> StreamingResponse:
    reader = _reader(request, live, caller)
    try:
        await _open(live, reader, caller, asked)
    except BaseException:
        _close(live, reader, caller)
        raise

    async def events() -> AsyncIterator[str]:
        try:
            # Something at once: a browser says that the stream is open with the first bytes.
            yield ": connected\n\n"
            async for batch in reader.batches():
                yield "".join(map(_sse_event, batch)) or ": \n\n"
        finally:
            _close(live, reader, caller)

    # Proxies that collect answers before they pass them on let these through.
    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})


@sockets.websocket("/live/ws")
async def serve_socket(socket: WebSocket, live: Live) -> None:
    """Serve any number of streams to one connection."""
    try:
        caller = authorize_websocket(socket)
        reader = _reader(socket, live, caller)
    except Problem as problem:
        # Before it is accepted: a browser sees the connection fail, others the status 403.
        code = _CLOSE_LATER if problem.code in ("rate_limited", "unavailable") else _CLOSE_POLICY
        await socket.close(code, problem.detail[:100])
        return
    offered = socket.scope.get("subprotocols", ())
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    sending = asyncio.create_task(_send(socket, reader))
    receiving = asyncio.create_task(_receive(socket, live, reader, caller))
    try:
        await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, receiving):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(sending, receiving, return_exceptions=True)
        _close(live, reader, caller)
        if socket.application_state == WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await socket.close()


async def _send(socket: WebSocket, reader: Reader) -> None:
    async for batch in reader.batches():
        await socket.send_text(
            _json([{"id": one.stream_id, "event": one.name, "data": one.data} for one in batch])
        )


async def _receive(socket: WebSocket, live: LiveParts, reader: Reader, caller: Caller) -> None:
    while True:
        await reader.wait_until_taken()
        try:
            text = await socket.receive_text()
        except (WebSocketDisconnect, KeyError):  # the other one: a binary frame
            return
        stream_id = ""
        try:
            asked = read_frame(text)
            if isinstance(asked, UnsubscribeRequest):
                if not reader.remove(asked.unsubscribe):
                    raise Problem(HTTPStatus.NOT_FOUND, f"there is no stream {asked.unsubscribe!r}")
                reader.say(Told(asked.unsubscribe, "unsubscribed", {}))
                continue
            stream_id = asked.subscribe
            if stream_id in reader:
                raise Problem(HTTPStatus.CONFLICT, f"there is a stream {stream_id!r} already")
            if len(reader) >= MAX_STREAMS:
                raise Problem(
                    HTTPStatus.CONFLICT, f"there are {MAX_STREAMS} streams, which is the limit"
                )
            await _open(live, reader, caller, asked)
            reader.say(Told(stream_id, "subscribed", {}))
        except Problem as problem:
            reader.say(Told(stream_id, "error", problem.body()))


def read_frame(text: str) -> Asked:
    """Return the request of a reader.

    Raises:
        Problem: It is not one of the objects above.
    """
    if len(text) > MAX_FRAME_CHARACTERS:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the frame is too large")
    try:
        return _asked.validate_json(text)
    except ValidationError as exc:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in exc.errors())
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, said[:1_000]) from exc


async def _open(
    live: LiveParts,
    reader: Reader,
    caller: Caller,
    asked: SubscribeMessages | SubscribeOutputs | SubscribeMetrics,
) -> None:
    """Begin a stream; events after this come through it.

    Raises:
        Problem: A filter is wrong or not the caller's, or the log does not answer.
    """
    if isinstance(asked, SubscribeMessages):
        await _open_messages(live.messages, reader, caller, asked)
        return
    check_rights(caller, None)
    if isinstance(asked, SubscribeOutputs):
        await _open_outputs(live.outputs, reader, caller, asked)
        return
    if caller.tenants is not None:
        raise Problem(HTTPStatus.FORBIDDEN, f"{caller.name} is for some tenants alone")
    stream = LiveStream(reader.wake, reader.room, metrics_event)
    live.ticker.add(stream)
    reader.add(asked.subscribe, stream, partial(live.ticker.remove, stream))


async def _open_messages(
    feed: MessageFeed, reader: Reader, caller: Caller, asked: SubscribeMessages
) -> None:
    check_tenant(caller, asked.tenant)
    for topic_filter in asked.topic_filters:
        check_filter(topic_filter)
        check_rights(caller, topic_filter)
    show = partial(message_event, max_payload_bytes=asked.max_payload_bytes)
    stream = LiveStream(reader.wake, reader.room, show, max_rate=asked.max_rate)
    feed.hold()
    feed.add(asked.tenant, asked.topic_filters, stream)
    remove = partial(feed.remove, asked.tenant, asked.topic_filters, stream)
    await _read(feed, reader, asked.subscribe, stream, remove)


async def _open_outputs(
    feed: OutputFeed, reader: Reader, caller: Caller, asked: SubscribeOutputs
) -> None:
    check_tenant(caller, asked.tenant)
    stream = LiveStream(reader.wake, reader.room, output_event, max_rate=asked.max_rate)
    feed.hold()
    feed.add(asked.tenant, asked.rule_id, stream)
    await _read(feed, reader, asked.subscribe, stream, partial(feed.remove, stream))


async def _read(
    feed: Feed, reader: Reader, stream_id: str, stream: LiveStream, remove: Callable[[], None]
) -> None:
    """Give the reader a stream of a feed that is held; `remove` takes it from the feed."""

    def close() -> None:
        remove()
        feed.release()

    reader.add(stream_id, stream, close)
    if not feed.is_ready and not await asyncio.to_thread(feed.wait):
        reader.remove(stream_id)
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "the log does not answer; see: bin/mqlake status"
        )


def _reader(connection: HTTPConnection, live: LiveParts, caller: Caller) -> Reader:
    """Return the reader that serves a new connection.

    Raises:
        Problem: There are too many.
    """
    try:
        live.readers.enter(caller)
    except TooManyReaders as exc:
        is_his = isinstance(exc, TooManyOfOne)
        status = HTTPStatus.TOO_MANY_REQUESTS if is_his else HTTPStatus.SERVICE_UNAVAILABLE
        raise Problem(status, str(exc)) from exc
    callers = authenticator_of(connection).callers

    def is_allowed() -> bool:
        try:
            return callers.is_current(caller)
        except OperationalError:
            return True  # the log is being read again: no reader is disconnected for that

    return Reader(is_allowed, live.readers.is_stopping, live.readers.max_seconds)


def _close(live: LiveParts, reader: Reader, caller: Caller) -> None:
    reader.close()
    live.readers.leave(caller)


def _sse_event(told: Told) -> str:
    place = told.data
    event_id = f"id: {place['partition']}:{place['offset']}\n" if told.name == "message" else ""
    return f"event: {told.name}\n{event_id}data: {_json(told.data)}\n\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
