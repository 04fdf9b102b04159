"""Messages as the API makes them and as it shows them."""

import threading
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field

from mqlake.clock import Clock
from mqlake.identifiers import MessageIdentifiers, machine_number
from mqlake.records.messages import Message, Properties, message_headers, message_key
from mqlake.records.versions import Headers

CLIENT_ID: Final = "mqlake-api"
"""The publisher of the API's messages."""
_PROTOCOL_LEVEL: Final = 5


class MadeMessage(NamedTuple):
    """A message as a record of `mqlake.inbound`."""

    key: bytes
    value: bytes
    headers: Headers
    timestamp_ms: int
    message_id: bytes


class MessageMaker:
    """Makes the messages that the API publishes; safe to use from any thread.

    Args:
        site: First half of their origin.
        datacenter: Part of their identifiers.
        clock: For their time.
    """

    def __init__(self, site: str, datacenter: int, clock: Clock) -> None:
        self._origin = f"{site}/api"
        self._clock = clock
        self._identifiers = MessageIdentifiers(
            clock, datacenter=datacenter, machine=machine_number()
        )
        self._lock = threading.Lock()

    def make(
        self,
        tenant: str,
        topic_name: str,
        payload: bytes,
        *,
        qos: int,
        retain: bool,
        username: str | None = None,
        properties: Properties | None = None,
    ) -> MadeMessage:
        """Return a message; everything in it is valid."""
        with self._lock:
            now_ms = self._clock.now_ms()
            message_id = self._identifiers.next(now_ms)
        message = Message(
            tenant=tenant,
            topic_name=topic_name,
            payload=payload,
            qos=qos,
            retain=retain,
            message_id=message_id,
            client_id=CLIENT_ID,
            received_at_ms=now_ms,
            origin=self._origin,
            protocol_level=_PROTOCOL_LEVEL,
            username=username,
            properties=properties,
        )
        key = message_key(tenant, topic_name)
        return MadeMessage(key, payload, message_headers(message), now_ms, message_id)


class MessageView(BaseModel):
    """A message in topics and live streams."""

    tenant: str
    topic_name: str
    payload: str | None = Field(description="as UTF-8 text; null if it is not, or too large")
    payload_base64: str | None = Field(description="if it is not text; else null")
    payload_bytes: int = Field(description="both are null if this is above the maximum asked for")
    qos: int
    retain: bool
    client_id: str = Field(description="of the publisher")
    username: str | None = Field(description="of the publisher")
    message_id: str = Field(description="128 bits, 32 hexadecimal digits, sortable by time")
    received_at: datetime
    properties: dict[str, Any] | None = Field(description="5.0 properties of the message")
    partition: int = Field(description="of the log topic `mqlake.inbound`")
    offset: int = Field(description="in that partition")


def show_payload(payload: bytes | None) -> dict[str, Any]:
    """Return the members that show a payload; None is one that is not shown."""
    if payload is None:
        return {"payload": None, "payload_base64": None}
    try:
        return {"payload": payload.decode(), "payload_base64": None}
    except UnicodeDecodeError:
        return {"payload": None, "payload_base64": b64encode(payload).decode()}


def show_message(
    message: Message, partition: int, offset: int, *, max_payload_bytes: int
) -> dict[str, Any]:
    """Return the fields of `MessageView`, ready for JSON."""
    payload = message.payload
    return {
        "tenant": message.tenant,
        "topic_name": message.topic_name,
        **show_payload(payload if len(payload) <= max_payload_bytes else None),
        "payload_bytes": len(payload),
        "qos": message.qos,
        "retain": message.retain,
        "client_id": message.client_id,
        "username": message.username,
        "message_id": message.message_id.hex(),
        "received_at": show_time(message.received_at_ms),
        "properties": _show_properties(message.properties),
        "partition": partition,
        "offset": offset,
    }


def show_time(ms: int) -> str:
    """Return a time as pydantic writes it."""
    moment = datetime.fromtimestamp(ms / 1000, tz=UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + "Z"


def _show_properties(properties: Properties | None) -> dict[str, Any] | None:
    """Return properties as the log has them: binary values as `{"base64": "…"}`."""
    if not properties:
        return None
    shown = dict(properties)
    for name, value in shown.items():
        if isinstance(value, bytes):
            shown[name] = {"base64": b64encode(value).decode()}
    return shown
