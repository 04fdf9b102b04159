"""Messages that a client was owed and does not get: counted, and recorded with the reason.

Dropping must stay cheap when there is most of it, so equal drops are added up and become one record
of `mqlake.events` a second.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from ingest.gateway.base.counters import GatewayCounters
from ingest.gateway.base.events import Events
from ingest.gateway.base.tenant_counters import CountersOfTenants
from mqlake.records import messages as records

MAX_KINDS: Final = 10_000
"""Different drops kept apart within a second; further ones are added up without their topic."""


class DropReason(StrEnum):
    SLOW_CLIENT = "slow_client"
    """QoS 0, and the client's socket took no more."""
    QUEUE_FULL = "queue_full"
    """QoS 1 or 2 beyond the messages that may wait for the client."""
    EXPIRED = "expired"
    """Its message expiry interval passed while it waited. [MQTT5-3.3.2-5]"""
    TOO_LARGE = records.TOO_LARGE
    """Larger than the client's Maximum Packet Size. [MQTT5-3.1.2-25]"""
    NO_MEMBER = "no_member"
    """For a share group that has no member left at this gateway."""
    NOT_AUTHORIZED = "not_authorized"
    """The client may not be sent messages of its topic; a will: its client may not publish it."""
    RETAINED_FULL = "retained_full"
    """Not retained, for client, user, tenant or gateway has as many such messages as it may."""
    TOO_FAST = "too_fast"
    """Its client was disconnected for it: it was one too many, and not taken."""
    UNREADABLE = "unreadable"
    """The log does not hold it any more."""


class _Kind(NamedTuple):
    tenant: str
    client_id: str
    topic_name: str
    qos: int
    reason: DropReason


class Drops:
    """Counts drops and tells them to the log."""

    def __init__(
        self, counters: GatewayCounters, of_tenants: CountersOfTenants, events: Events
    ) -> None:
        self._counters = counters
        self._of_tenants = of_tenants
        self._events = events
        self._counts: dict[_Kind, int] = {}

    def add(
        self,
        reason: DropReason,
        tenant: str,
        client_id: str,
        topic_name: str,
        qos: int,
        count: int = 1,
    ) -> None:
        """Count messages that were dropped for one client."""
        name = f"dropped_{reason.value}"
        setattr(self._counters, name, getattr(self._counters, name) + count)
        self._of_tenants.of(tenant).messages_dropped += count
        kind = _Kind(tenant, client_id, topic_name, qos, reason)
        counts = self._counts
        if kind not in counts and len(counts) >= MAX_KINDS:
            kind = _Kind(tenant, client_id, "", qos, reason)
            if kind not in counts and len(counts) >= 2 * MAX_KINDS:
                kind = _Kind(tenant, "", "", qos, reason)
        counts[kind] = counts.get(kind, 0) + count

    def record(self) -> None:
        """Write drops since the last call to the log."""
        if not self._counts:
            return
        counts, self._counts = self._counts, {}
        for kind, count in counts.items():
            self._events.add(
                records.MESSAGE_DROPPED,
                kind.tenant,
                kind.client_id,
                reason=kind.reason.value,
                topic=kind.topic_name,
                qos=kind.qos,
                count=count,
            )
