"""Sessions as the API shows them, from the values of `mqlake.sessions` (`docs/records.md`)."""

from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, Field

from api.clients.cache import CachedSession, ListedSession
from mqlake.records.progress import decode_marks, decode_progress, resume_cursor
from mqlake.records.sessions import (
    SessionRecord,
    StoredSubscription,
    decode_session,
    decode_subscription,
)

PROTOCOL_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class SubscriptionView(BaseModel):
    topic_filter: str = Field(description="as subscribed, including `$share/<name>/`")
    qos: int = Field(description="maximum QoS of deliveries: 0, 1 or 2")
    no_local: bool = Field(description="5.0: exclude the client's own messages")
    retain_as_published: bool = Field(description="5.0: keep the RETAIN flag")
    retain_handling: int = Field(
        description="5.0: 0 send retained messages, 1 only if the subscription is new, 2 do not"
    )
    identifier: int | None = Field(description="5.0: subscription identifier")


class ClientSubscriptionView(SubscriptionView):
    tenant: str
    client_id: str


class SentMessage(BaseModel):
    """A message on its way to the client."""

    packet_id: int
    qos: int
    released: bool = Field(description="QoS 2: the client has it; PUBREL and PUBCOMP remain")
    partition: int = Field(description="of `mqlake.inbound`; 0 for a released one")
    offset: int = Field(description="in that partition; 0 for a released one")


class WillView(BaseModel):
    topic_name: str
    qos: int
    retain: bool
    will_delay_interval: int = Field(description="seconds")
    due_at: datetime | None = Field(description="time of publication; null while connected")


class ClientSummary(BaseModel):
    session_id: str = Field(description="64 bits, 16 hexadecimal digits")
    tenant: str
    client_id: str
    username: str | None
    protocol_version: str = Field(description="3.1, 3.1.1 or 5.0")
    keep_alive: int = Field(description="seconds; 0: off")
    connected: bool
    connected_at: datetime = Field(description="its last connection")
    disconnected_at: datetime | None = Field(description="null while connected")
    disconnect_reason: str | None = Field(description="null while connected")
    clean_start: bool = Field(description="of the last CONNECT; clean session before 5.0")
    session_expiry_interval: int = Field(
        description="seconds the session outlives its connection; 4294967295: forever"
    )
    gateway: str = Field(description="of the current or last connection")
    subscription_count: int


class ClientSessionView(ClientSummary):
    expires_at: datetime | None = Field(
        description="end of the session; null while connected or if it never ends"
    )
    will: WillView | None
    subscriptions: list[SubscriptionView]
    in_flight_out: list[SentMessage] = Field(
        description="unacknowledged QoS 1 and 2 messages to the client, in the order of sending"
    )
    in_flight_in: list[int] = Field(
        description="packet identifiers of unreleased QoS 2 messages from the client"
    )
    qos2_unacknowledged: int = Field(description="unfinished QoS 2 exchanges, both directions")
    cursor: list[int] | None = Field(
        description="next offset per partition of `mqlake.inbound`; everything before it was "
        "handed over or is in flight; null before the first message"
    )
    catching_up: bool = Field(
        description="the client was too slow for its queue: it gets messages from the log, as fast "
        "as it takes them, and live ones when it has caught up"
    )


def read_summary(listed: ListedSession) -> ClientSummary:
    session = decode_session(listed.session)
    return ClientSummary(**_summary(session, len(session.subscriptions) + listed.more))


def read_client(stored: CachedSession) -> ClientSessionView:
    session = stored.record()
    progress = None if stored.progress is None else decode_progress(stored.progress)
    if progress is not None and progress.session_id != session.session_id:
        progress = None  # that of an earlier session of the client
    will = session.will
    sent = [] if progress is None else [SentMessage(**one._asdict()) for one in progress.outgoing]
    received = [] if progress is None else sorted({*progress.incoming, *progress.storing})
    marks = None if stored.marks is None else decode_marks(stored.marks)
    return ClientSessionView(
        **_summary(session, len(session.subscriptions)),
        expires_at=_time(session.expires_at_ms()),
        will=None
        if will is None
        else WillView(
            topic_name=will.topic_name,
            qos=will.qos,
            retain=will.retain,
            will_delay_interval=will.will_delay_interval,
            due_at=_time(session.will_at_ms),
        ),
        subscriptions=[SubscriptionView(**_subscription(one)) for one in session.subscriptions],
        in_flight_out=sent,
        in_flight_in=received,
        qos2_unacknowledged=sum(one.qos == 2 for one in sent) + len(received),
        cursor=None if progress is None else resume_cursor(session, progress, marks),
        catching_up=progress is not None and any(one.fell_behind for one in progress.histories),
    )


def read_client_subscription(tenant: str, client_id: str, value: str) -> ClientSubscriptionView:
    return ClientSubscriptionView(
        tenant=tenant, client_id=client_id, **_subscription(decode_subscription(value))
    )


def _subscription(stored: StoredSubscription) -> dict[str, Any]:
    return {name: getattr(stored, name) for name in SubscriptionView.model_fields}


def _summary(session: SessionRecord, subscription_count: int) -> dict[str, Any]:
    same = (
        "session_id",
        "tenant",
        "client_id",
        "username",
        "keep_alive",
        "connected",
        "clean_start",
        "gateway",
        "session_expiry_interval",
    )
    return {
        **{name: getattr(session, name) for name in same},
        "protocol_version": PROTOCOL_VERSIONS[session.protocol_level],
        "connected_at": _time(session.connected_at_ms),
        "disconnected_at": _time(session.disconnected_at_ms),
        "disconnect_reason": session.reason,
        "subscription_count": subscription_count,
    }


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC)
