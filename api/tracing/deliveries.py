"""Delivery of a message to one client, as far as it is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from api.clients.cache import CachedSession
from api.tracing.timeline import Held, Life
from api.tracing.views import SubscriberTrace
from mqlake.records.offsets import at
from mqlake.records.progress import ProgressRecord, decode_marks, decode_progress, resume_cursor
from mqlake.records.sessions import SessionRecord, StoredSubscription

NEAR_MS: Final = 5_000
"""A drop that was written so soon after the message may be its own, of a client that was there."""

_UNKNOWN: Final = (
    "it was not recorded: gateways record deliveries only while a running rule reads "
    "$events/message_delivered or $events/message_acked"
)


@dataclass(frozen=True, slots=True)
class Traced:
    """The message."""

    message_id: str
    topic_name: str
    qos: int
    publisher: str
    at_ms: int
    partition: int
    offset: int


@dataclass(slots=True)
class Recorded:
    """Deliveries and drops that are recorded, by client."""

    delivered: dict[str, int] = field(default_factory=dict)
    """Client identifier -> milliseconds UTC."""
    acked: dict[str, int] = field(default_factory=dict)
    drops: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Drops of the topic since the message; `reason`, `count` and `at_ms` of each."""

    def take(self, event: Mapping[str, Any], traced: Traced) -> None:
        """Take an event; most are about something else."""
        name, client_id = event.get("event"), str(event.get("client_id"))
        if name == "message.dropped":
            if event.get("topic") in (traced.topic_name, "") and event["ts"] >= traced.at_ms:
                dropped = {**event, "at_ms": event["ts"]}
                self.drops.setdefault(client_id, []).append(dropped)
        elif event.get("id") == traced.message_id:
            if name == "message.delivered":
                self.delivered.setdefault(client_id, int(event["ts"]))
            elif name == "message.acked":
                self.acked.setdefault(client_id, int(event["ts"]))


@dataclass(frozen=True, slots=True)
class Standing:
    """The session of a client as it is now."""

    session: SessionRecord
    progress: ProgressRecord | None
    cursor: list[int] | None

    @classmethod
    def read(cls, stored: CachedSession) -> "Standing":
        """Return the state of a session in the log.

        Raises:
            InvalidRecord: It is of another form.
        """
        session = stored.record()
        progress = None if stored.progress is None else decode_progress(stored.progress)
        if progress is None or progress.session_id != session.session_id:
            return cls(session, None, None)
        marks = None if stored.marks is None else decode_marks(stored.marks)
        return cls(session, progress, resume_cursor(session, progress, marks))

    def life(self, life: Life | None, topic_filter: str, traced: Traced) -> Life:
        """Return a client as events would tell of it, had they reported this subscription."""
        session = self.session
        if life is None:
            life = Life(connected_at=1, expiry=session.session_expiry_interval)
            life.session_present, life.gateway = True, session.gateway
            left_ms = session.disconnected_at_ms
            if session.connected_at_ms > traced.at_ms:
                left_ms = traced.at_ms
            if left_ms is not None and left_ms <= traced.at_ms:
                life.disconnected_at, life.disconnected_ms = 2, left_ms
        life.held[topic_filter] = Held(topic_filter, subscribed_at=0)
        return life

    def subscription(self, topic_filter: str) -> StoredSubscription | None:
        found = (one for one in self.session.subscriptions if one.topic_filter == topic_filter)
        return next(found, None)


def trace_subscriber(
    traced: Traced,
    client_id: str,
    life: Life,
    held: Held,
    standing: Standing | None,
    recorded: Recorded,
) -> SubscriberTrace | None:
    """Return the record of the message at a client, else that there is none.

    None: the client had no subscription for the message when it was accepted.
    """
    presence = life.presence(held, traced.at_ms) if held.is_held else None
    kept = None if standing is None else standing.subscription(held.topic_filter)
    found = SubscriberTrace(
        client_id=client_id,
        topic_filter=held.topic_filter,
        qos=held.qos if kept is None else kept.qos,
        gateway=life.gateway,
        presence=presence,
        outcome="unknown",
        reason=None,
        at=None,
        basis="unknown",
        detail=_UNKNOWN,
    )
    if _told(found, recorded):
        return found
    if presence not in ("connected", "away") or _is_not_for(traced, client_id, held, kept):
        return None
    if _standing(found, traced, standing, kept) or _dropped(found, traced, recorded):
        return found
    if kept is not None and held.later_ms is None:
        _past(found, traced, standing)
    return found


def _is_not_for(
    traced: Traced, client_id: str, held: Held, kept: StoredSubscription | None
) -> bool:
    """Tell whether a stored subscription counts from a later offset on, or is of its publisher."""
    if kept is None:
        return False
    starts_later = kept.starts is not None and traced.offset < at(kept.starts, traced.partition)
    return (held.later_ms is None and starts_later) or (
        kept.no_local and client_id == traced.publisher
    )


def _told(found: SubscriberTrace, recorded: Recorded) -> bool:
    """Take the outcome from an event about this very message."""
    acked = recorded.acked.get(found.client_id)
    delivered = recorded.delivered.get(found.client_id)
    if acked is None and delivered is None:
        return False
    found.outcome = "delivered" if acked is None else "acked"
    found.at = _time(delivered if acked is None else acked)
    found.basis = "recorded"
    found.detail = "sent to it" if acked is None else "it has acknowledged the message"
    return True


def _standing(
    found: SubscriberTrace,
    traced: Traced,
    standing: Standing | None,
    kept: StoredSubscription | None,
) -> bool:
    """Take the outcome from the session's progress."""
    if standing is None or standing.progress is None or standing.cursor is None or kept is None:
        return False
    progress, partition = standing.progress, traced.partition
    place = (partition, traced.offset)
    if any((one.partition, one.offset) == place for one in progress.outgoing if not one.released):
        found.outcome, found.basis = "in_flight", "recorded"
        found.detail = "sent, not acknowledged yet"
        return True
    catching_up = [one for one in progress.histories if found.topic_filter in one.topic_filters]
    cursor = catching_up[0].cursor if catching_up else standing.cursor
    if cursor[partition] <= traced.offset:
        found.outcome, found.basis = "waiting", "recorded"
        found.detail = "kept for it: it has not come to it yet"
        return True
    return False


def _dropped(found: SubscriberTrace, traced: Traced, recorded: Recorded) -> bool:
    """Take a drop that may be of this message: drops are added up by second and topic."""
    drops = recorded.drops.get(found.client_id, [])
    if found.presence == "connected":
        drops = [one for one in drops if one["at_ms"] <= traced.at_ms + NEAR_MS]
    if not drops:
        return False
    drop = drops[0]
    found.outcome, found.basis = "dropped", "recorded"
    found.reason, found.at = str(drop["reason"]), _time(int(drop["at_ms"]))
    found.detail = (
        f"{drop['count']} messages of this topic were dropped for it within a second: this one "
        "is probably among them (drops are added up by second, topic and reason)"
    )
    return True


def _past(found: SubscriberTrace, traced: Traced, standing: Standing | None) -> None:
    """Take that the session's progress is past a message of QoS 1 or 2."""
    if standing is None or standing.cursor is None or min(traced.qos, found.qos or 0) == 0:
        return
    found.outcome, found.basis = "handed_over", "recorded"
    found.detail = (
        "the progress of its session is past the message, which is neither in flight nor among the "
        "drops: it was sent and acknowledged"
    )


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC)
