"""Topics of a gateway below `$SYS/broker`, under the names that Mosquitto uses.

The values are the gateway's own: they go to its own clients, not through the log, and another
gateway has others. To a client they are retained messages of QoS 0. Clients of another tenant than
the gateway's see their own tenant alone.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sized
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ingest.gateway.base.outbound import LOCAL, OutboundMessage
from ingest.gateway.load.memory import resident_bytes
from ingest.gateway.store.scanning import FilterScan, just_after
from ingest.protocol.properties import NO_PROPERTIES
from mqlake import VERSION
from mqlake.topics.names import SYSTEM_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.base.context import Context
    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.limits.protection import Protection
    from ingest.session.subscriptions import Subscriptions

PREFIX: Final = f"{SYSTEM_LEVEL}/broker/"

_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024

_ANY_OFFSET: Final = sys.maxsize
"""Covered by every subscription, however late it begins to count."""


def _dropped(counters: GatewayCounters) -> int:
    return (
        counters.dropped_slow_client
        + counters.dropped_queue_full
        + counters.dropped_expired
        + counters.dropped_too_large
        + counters.dropped_no_member
        + counters.dropped_not_authorized
        + counters.dropped_retained_full
        + counters.dropped_too_fast
        + counters.dropped_unreadable
    )


COUNTS: Final[dict[str, Callable[[GatewayCounters], int]]] = {
    "bytes/received": lambda counters: counters.bytes_received,
    "bytes/sent": lambda counters: counters.bytes_sent,
    "clients/expired": lambda counters: counters.sessions_expired,
    "messages/received": lambda counters: counters.packets_received,
    "messages/sent": lambda counters: counters.packets_sent,
    "publish/bytes/received": lambda counters: counters.payload_bytes_received,
    "publish/bytes/sent": lambda counters: counters.payload_bytes_sent,
    "publish/messages/dropped": _dropped,
    "publish/messages/received": lambda counters: counters.messages_received,
    "publish/messages/sent": lambda counters: counters.messages_sent,
}
"""Since the gateway's start. Messages are control packets of all types, as Mosquitto has it."""


class CountedSessions(Sized, Protocol):
    """Implemented by `ingest.gateway.sessions.sessions.Sessions`, which describes it."""

    @property
    def connected_count(self) -> int: ...
    @property
    def offline_count(self) -> int: ...
    @property
    def waiting_count(self) -> int: ...


class CountedRetained(Sized, Protocol):
    """Implemented by `ingest.gateway.retained.retained.Retained`, which describes it."""

    incomplete: set[int]


class Counted(NamedTuple):
    """Parts of a gateway that know its present counts."""

    sessions: CountedSessions
    subscriptions: Subscriptions[Any]
    retained: CountedRetained


GAUGES: Final[dict[str, Callable[[Counted], int]]] = {
    "clients/active": lambda now: now.sessions.connected_count,
    "clients/connected": lambda now: now.sessions.connected_count,
    "clients/disconnected": lambda now: now.sessions.offline_count,
    "clients/inactive": lambda now: now.sessions.offline_count,
    "clients/total": lambda now: len(now.sessions),
    "heap/current": lambda _: resident_bytes(),
    "heap/maximum": lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
    "retained messages/count": lambda now: len(now.retained),
    "shared_subscriptions/count": lambda now: now.subscriptions.shared_count,
    "subscriptions/count": lambda now: now.subscriptions.plain_count,
}
"""Present values. `active` and `inactive` are older names; the heap is the process's resident
memory."""

RATES: Final[dict[str, Callable[[GatewayCounters], int]]] = {
    "load/bytes/received": COUNTS["bytes/received"],
    "load/bytes/sent": COUNTS["bytes/sent"],
    "load/connections": lambda counters: counters.connects_received,
    "load/messages/received": COUNTS["messages/received"],
    "load/messages/sent": COUNTS["messages/sent"],
    "load/publish/dropped": _dropped,
    "load/publish/received": COUNTS["publish/messages/received"],
    "load/publish/sent": COUNTS["publish/messages/sent"],
    "load/sockets": lambda counters: counters.connections_opened,
}
"""Per minute; each as an average over the last 1, 5 and 15 minutes."""

WINDOWS: Final = {"1min": 60.0, "5min": 300.0, "15min": 900.0}
"""Name -> seconds."""


@dataclass(slots=True)
class _Average:
    """A rate whose past counts the less the longer ago it is."""

    window_seconds: float
    per_minute: float = 0.0

    def add(self, count: int, seconds: float) -> None:
        """Take the count of the last seconds."""
        rate = count * 60.0 / seconds
        self.per_minute = rate + exp(-seconds / self.window_seconds) * (self.per_minute - rate)


class SystemPage(NamedTuple):
    """A part of the current values that match a filter, in the order of their topic names."""

    messages: list[OutboundMessage]
    position: str | None
    """Beginning of the next page; None after the last."""


class SystemTopics:
    """The current values, for new subscribers, and changes for earlier ones.

    Args:
        context: Shared by all parts of the gateway.
        counted: Its present counts.
        overload: Its level and steps.
        clients: Returns how many clients of a tenant are connected.
    """

    def __init__(
        self,
        context: Context,
        counted: Counted,
        overload: Protection,
        clients: Callable[[str], int],
    ) -> None:
        self._context = context
        self._overload = overload
        self._has = counted
        self._clients = clients
        self._own = context.settings.tenant
        # By tenant and name; of other tenants those that have asked.
        self._messages: dict[str, dict[str, OutboundMessage]] = {self._own: {}}
        self._started = context.clock.monotonic()
        self._updated = self._started
        self._due = self._started
        self._most_connected = 0
        self._counted = dict.fromkeys(RATES, 0)
        self._averages = {
            name: {window: _Average(seconds) for window, seconds in WINDOWS.items()}
            for name in RATES
        }

    def process_due(self) -> None:
        """Publish changed values, once in `sys_interval_seconds`."""
        interval = self._context.settings.sys_interval_seconds
        now = self._context.clock.monotonic()
        if not interval or now < self._due:
            return
        self._due = now + interval
        self._publish("version", f"mqlake version {VERSION}")
        self._publish("uptime", f"{now - self._started:.0f} seconds")
        self._publish("overload/level", str(self._overload.level))
        self._publish("overload/step", str(self._overload.step))
        self._publish_gauges()
        for name, count in COUNTS.items():
            self._publish(name, str(count(self._context.counters)))
        self._publish_rates(now - self._updated)
        self._updated = now
        for tenant in [one for one in self._messages if one != self._own]:
            if not self._clients(tenant):
                del self._messages[tenant]
                continue
            for name, text in self._of_tenant(tenant).items():
                self._publish(name, text, tenant)

    def page(self, tenant: str, topic_filter: str, position: str | None, limit: int) -> SystemPage:
        """Return the next matching messages that are a tenant's."""
        if tenant not in self._messages and self._context.settings.sys_interval_seconds:
            for name, text in self._of_tenant(tenant).items():
                self._keep(tenant, PREFIX + name, text.encode())
        messages = self._messages.get(tenant, {})
        scan = FilterScan(topic_filter)
        found = [
            messages[name]
            for name in sorted(messages)
            if (position is None or name >= position) and scan.seek(name) == name
        ]
        if len(found) <= limit:
            return SystemPage(found, None)
        return SystemPage(found[:limit], just_after(found[limit - 1].topic_name))

    def _publish_gauges(self) -> None:
        now = self._has
        for name, value in GAUGES.items():
            self._publish(name, str(value(now)))
        self._most_connected = max(self._most_connected, now.sessions.connected_count)
        self._publish("clients/maximum", str(self._most_connected))
        stored = str(len(now.retained) + now.sessions.waiting_count)
        self._publish("messages/stored", stored)
        self._publish("store/messages/count", stored)

    def _publish_rates(self, seconds: float) -> None:
        for name, count in RATES.items():
            total = count(self._context.counters)
            for window, average in self._averages[name].items():
                if seconds > 0:
                    average.add(total - self._counted[name], seconds)
                self._publish(f"{name}/{window}", f"{average.per_minute:.2f}")
            self._counted[name] = total

    def _of_tenant(self, tenant: str) -> dict[str, str]:
        """Return the values for another tenant."""
        return {
            "version": f"mqlake version {VERSION}",
            "clients/connected": str(self._clients(tenant)),
        }

    def _publish(self, name: str, text: str, tenant: str = "") -> None:
        """Keep a value and send it to its subscribers, unless it is unchanged.

        Args:
            name: Topic name behind the prefix.
            text: The value.
            tenant: Whose it is; empty: the gateway's own.
        """
        message = self._keep(tenant or self._own, PREFIX + name, text.encode())
        if message is None:
            return
        copies = self._has.subscriptions.copies(
            tenant or self._own, message.topic_name, LOCAL, _ANY_OFFSET, ""
        )
        for copy in copies:
            copy.client.deliver(message, copy, message.received_at_ms)

    def _keep(self, tenant: str, topic_name: str, payload: bytes) -> OutboundMessage | None:
        """Keep a value; return its message, None: it is unchanged."""
        messages = self._messages.setdefault(tenant, {})
        known = messages.get(topic_name)
        if known is not None and known.payload == payload:
            return None
        now_ms = self._context.clock.now_ms()
        message = OutboundMessage(topic_name, payload, 0, True, NO_PROPERTIES, now_ms, LOCAL, 0)
        messages[topic_name] = message
        return message
