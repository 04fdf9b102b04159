"""Publish messages, one or many, with the checks that an MQTT PUBLISH gets."""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from api.access.callers import Caller
from api.entrance.authentication import CurrentCaller, audited, for_topics
from api.messages.messages import MadeMessage, MessageMaker
from api.routes.messages.filters import check_rights
from api.settings import ApiSettings
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Maker, Publishing, Settings
from mqlake.errors import InvalidTopic
from mqlake.records.members import MAX_UINT32
from mqlake.records.messages import Properties
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.topics.names import (
    MAX_TOPIC_BYTES,
    SYSTEM_LEVEL,
    is_system,
    validate_levels,
    validate_topic_name,
)

router = APIRouter(
    tags=["publish"],
    responses={code: {"model": ProblemDetails} for code in (413, 422, 503, 507)},
)

MAX_BULK: Final = 1_000
MAX_USER_PROPERTIES: Final = 1_000
_MAX_BINARY_CHARACTERS: Final = 87_384
"""Base64 of 65,535 bytes, the most that MQTT can carry."""


def _check_text(text: str) -> str:
    """Accept a text that an MQTT string can hold (5.0: 1.5.4)."""
    if "\0" in text:
        raise ValueError("holds U+0000")
    if len(text.encode()) > MAX_TOPIC_BYTES:
        raise ValueError(f"is longer than {MAX_TOPIC_BYTES} bytes")
    return text


def _check_topic_name(topic_name: str) -> str:
    try:
        validate_topic_name(topic_name)
    except InvalidTopic as exc:
        raise ValueError(str(exc)) from exc
    return topic_name


def _check_target(topic_name: str) -> str:
    if is_system(_check_topic_name(topic_name)):
        raise ValueError(f"topics below {SYSTEM_LEVEL} are the gateways' own")
    return topic_name


def _check_base64(text: str) -> str:
    try:
        b64decode(text, validate=True)
    except (Base64Error, ValueError) as exc:
        raise ValueError("is not base64") from exc
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Base64 = Annotated[str, AfterValidator(_check_base64)]


class PublishProperties(BaseModel):
    """Properties of MQTT 5.0 that belong to a message."""

    model_config = ConfigDict(extra="forbid")

    payload_format_indicator: Literal[0, 1] | None = Field(
        default=None, description="1: the payload is text in UTF-8"
    )
    message_expiry_interval: int | None = Field(
        default=None, ge=0, le=MAX_UINT32, description="seconds until it expires"
    )
    content_type: Text | None = None
    response_topic: Annotated[str, AfterValidator(_check_topic_name)] | None = Field(
        default=None, description="a topic name"
    )
    correlation_data: Base64 | None = Field(default=None, max_length=_MAX_BINARY_CHARACTERS)
    user_property: list[tuple[Text, Text]] | None = Field(
        default=None, max_length=MAX_USER_PROPERTIES, description="pairs; names may repeat"
    )

    def to_record(self) -> Properties | None:
        """Return them as a message has them."""
        found: Properties = self.model_dump(exclude_none=True)
        if self.correlation_data is not None:
            found["correlation_data"] = b64decode(self.correlation_data)
        return found or None


class NewMessage(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"topic_name": "plant/1/temperature", "payload": {"celsius": 21.5}, "qos": 1}
            ]
        },
    )

    topic_name: Annotated[str, AfterValidator(_check_target)] = Field(
        min_length=1, max_length=MAX_TOPIC_BYTES
    )
    payload: JsonValue = Field(
        default=None, description="text, or a JSON value, which is published as JSON; null: empty"
    )
    payload_base64: Base64 | None = Field(default=None, description="any bytes, instead of payload")
    qos: Literal[0, 1, 2] = Field(
        default=0,
        description="of the message; subscribers get it with the lower of theirs and this",
    )
    retain: bool = Field(default=False, description="keep it for later subscribers")
    properties: PublishProperties | None = None

    @model_validator(mode="after")
    def _check_payload(self) -> "NewMessage":
        if self.payload is not None and self.payload_base64 is not None:
            raise ValueError("expected payload or payload_base64, not both")
        is_text = self.properties is not None and self.properties.payload_format_indicator == 1
        try:
            data = self.data()
            if is_text:
                data.decode()
        except UnicodeDecodeError as exc:
            raise ValueError("payload_format_indicator says UTF-8, the payload is not") from exc
        except (UnicodeEncodeError, RecursionError) as exc:
            raise ValueError("payload holds what has no form in UTF-8") from exc
        return self

    def data(self) -> bytes:
        """Return the payload as bytes."""
        if self.payload_base64 is not None:
            return b64decode(self.payload_base64)
        if self.payload is None:
            return b""
        if isinstance(self.payload, str):
            return self.payload.encode()
        text = json.dumps(self.payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()


class NewMessages(BaseModel):
    model_config = ConfigDict(extra="forbid")

    messages: list[NewMessage] = Field(min_length=1, max_length=MAX_BULK)


class PublishedMessage(BaseModel):
    topic_name: str
    message_id: str = Field(description="128 bits, 32 hexadecimal digits, sortable by time")
    partition: int = Field(description="of the log topic `mqlake.inbound`")
    offset: int = Field(description="in that partition")


class BulkItem(BaseModel):
    topic_name: str
    message_id: str
    partition: int | None = Field(description="null if it failed")
    offset: int | None = Field(description="null if it failed")
    error: str | None = Field(description="why the log has not taken it; null if it has")


class BulkResult(BaseModel):
    items: list[BulkItem] = Field(description="in the order of the messages")
    failed: int = Field(description="number not taken by the log")


_IN_MESSAGES: Final = {**audited(is_audited=False), **for_topics()}
"""Each is a row of the table `messages`, which names its publisher."""


@router.post("/publish", openapi_extra=_IN_MESSAGES)
async def post_publish(
    maker: Maker,
    publisher: Publishing,
    settings: Settings,
    caller: CurrentCaller,
    new: NewMessage,
    tenant: Tenant = DEFAULT_TENANT,
) -> PublishedMessage:
    """Publish a message.

    It is in the log, on every in-sync replica, when this answers. `outcome_unknown` means that it
    may be: publishing it again may duplicate it. 507: the log is full, and takes it later.
    """
    made = _make(maker, settings, caller, tenant, [new])
    (placed,) = await publisher.publish(made)
    if placed.error is not None:
        raise placed.error
    return PublishedMessage(
        topic_name=new.topic_name,
        message_id=made[0].message_id.hex(),
        partition=placed.partition,
        offset=placed.offset,
    )


@router.post(
    "/publish/bulk",
    openapi_extra=_IN_MESSAGES,
    responses={207: {"model": BulkResult, "description": "the log has not taken all"}},
)
async def post_publish_bulk(
    response: Response,
    maker: Maker,
    publisher: Publishing,
    settings: Settings,
    caller: CurrentCaller,
    new: NewMessages,
    tenant: Tenant = DEFAULT_TENANT,
) -> BulkResult:
    """Publish several messages.

    If one is not valid, none is published. Messages of one topic stay in order. 207 if the log has
    not taken all: each item has its outcome. 507: the log is full, and has taken none.
    """
    made = _make(maker, settings, caller, tenant, new.messages)
    placed = await publisher.publish(made)
    failed = sum(one.error is not None for one in placed)
    if failed:
        response.status_code = HTTPStatus.MULTI_STATUS
    items = [
        BulkItem(
            topic_name=asked.topic_name,
            message_id=message.message_id.hex(),
            partition=None if one.error else one.partition,
            offset=None if one.error else one.offset,
            error=None if one.error is None else str(one.error),
        )
        for asked, message, one in zip(new.messages, made, placed, strict=True)
    ]
    return BulkResult(items=items, failed=failed)


def _make(
    maker: MessageMaker,
    settings: ApiSettings,
    caller: Caller,
    tenant: str,
    messages: list[NewMessage],
) -> list[MadeMessage]:
    most, most_levels = settings.max_payload_bytes, settings.max_topic_levels
    made = []
    for new in messages:
        check_rights(caller, new.topic_name)
        try:
            validate_levels(new.topic_name, most_levels)
        except InvalidTopic as exc:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"{exc}: {new.topic_name[:100]!r}"
            ) from exc
        payload = new.data()
        if len(payload) > most:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the payload for {new.topic_name!r} has {len(payload)} bytes, {most} at most",
            )
        made.append(
            maker.make(
                tenant,
                new.topic_name,
                payload,
                qos=new.qos,
                retain=new.retain,
                username=caller.name,
                properties=None if new.properties is None else new.properties.to_record(),
            )
        )
    return made
