"""How much one client may do, and how many may come in a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.gateway.settings.limits import LEAST_BYTES_PER_SECOND
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from ingest.session.limits.rates import SlidingWindowCounter, TokenBucket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ingest.gateway.base.client import Client
    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.limits.shares import Shares
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.settings.limits import LimitSettings

PAUSED_BY_LIMIT: Final = "limit"


FILTERS_AT_ONCE: Final = 10
"""Seconds of `filters_per_second`: a client that connects names all of its filters."""


class ConnectLimit:
    """How many clients may come: to the gateway, and to each of its listeners.

    Args:
        settings: Settings of the gateway.
        loop: Its clock counts.
    """

    def __init__(self, settings: LimitSettings, loop: asyncio.AbstractEventLoop) -> None:
        most = settings.connects_per_second
        self._loop = loop
        self._counter = SlidingWindowCounter(most) if most else None
        self._of_listeners: dict[str, SlidingWindowCounter] = {}

    def refusal(self, listener: ListenerInfo) -> tuple[ConnackReasonCode, str] | None:
        """Count a CONNECT; return why it is one too many, else None."""
        counters = [one for one in (self._counter, self._of(listener)) if one is not None]
        now = self._loop.time()
        if any(one.wait(now) for one in counters):  # not counted, or a storm would keep all out
            return ConnackReasonCode.CONNECTION_RATE_EXCEEDED, "too many clients connect"
        for one in counters:
            one.count(now)
        return None

    def _of(self, listener: ListenerInfo) -> SlidingWindowCounter | None:
        if not listener.connects_per_second:
            return None
        counter = self._of_listeners.get(listener.address)
        if counter is None:
            counter = SlidingWindowCounter(listener.connects_per_second)
            self._of_listeners[listener.address] = counter
        return counter


def _bucket(per_second: int, least: int) -> TokenBucket | None:
    rate = float(max(per_second, least))
    return TokenBucket(rate, rate) if per_second else None


class ClientLimits:
    """The rates of one connection, and those that it shares with others.

    Args:
        settings: Those of one connection.
        connection: Is read no further, or closed.
        loop: Its clock counts.
        counters: Counters of the gateway.
        released: Called before the client is read again.

    Attributes:
        shared: Limits that it shares with other connections, once its client has logged in.
    """

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_connection",
        "_counters",
        "_deliveries",
        "_filters",
        "_loop",
        "_messages",
        "_released",
        "_timer",
        "_until",
        "_waits",
        "shared",
    )

    def __init__(
        self,
        settings: LimitSettings,
        connection: Client,
        loop: asyncio.AbstractEventLoop,
        counters: GatewayCounters,
        released: Callable[[], None],
    ) -> None:
        self._waits = settings.when_too_fast == "wait"
        self._connection = connection
        self._loop = loop
        self._counters = counters
        self._released = released
        most = settings.messages_per_second
        self._messages = SlidingWindowCounter(most) if most else None
        self._deliveries = _bucket(settings.deliveries_per_second, 0)
        self._bytes = _bucket(settings.bytes_per_second, LEAST_BYTES_PER_SECOND)
        rate = float(settings.filters_per_second)
        self._filters = TokenBucket(rate, FILTERS_AT_ONCE * rate) if rate else None
        self.shared: tuple[Shares, ...] = ()
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def received(self, count: int) -> None:
        """Count bytes from the socket."""
        if self._bytes is not None:
            wait = self._bytes.take(count, self._loop.time())
            if wait:
                self._slow_down(wait, DisconnectReasonCode.QUOTA_EXCEEDED, "bytes")
        for rates in self.shared:
            if rates.bytes is not None and (wait := rates.bytes.take(count, self._loop.time())):
                self._slow_down(wait, DisconnectReasonCode.QUOTA_EXCEEDED, "bytes", rates.whose)

    def published(self) -> None:
        """Count a PUBLISH; it may be taken unless the connection is closed then."""
        counter = self._messages
        if counter is not None:
            now = self._loop.time()
            if self._waits:  # then it is not heard before the next one has room
                wait = counter.count(now)
            else:  # this one may be one too many
                wait = counter.wait(now)
                counter.count(now)
            if wait:
                self._slow_down(wait, DisconnectReasonCode.MESSAGE_RATE_TOO_HIGH, "messages")
        for rates in self.shared:
            if rates.messages is not None and (wait := rates.messages.take(1, self._loop.time())):
                reason_code = DisconnectReasonCode.MESSAGE_RATE_TOO_HIGH
                self._slow_down(wait, reason_code, "messages", rates.whose)

    @property
    def counts_deliveries(self) -> bool:
        """Tell whether a PUBLISH is charged for the clients that it reaches."""
        return self._deliveries is not None or any(
            rates.deliveries is not None for rates in self.shared
        )

    def delivers(self, count: int) -> None:
        """Charge for a PUBLISH and the clients that it reaches, before or after it was taken."""
        now, code = self._loop.time(), DisconnectReasonCode.QUOTA_EXCEEDED
        if self._deliveries is not None and (wait := self._deliveries.take(count, now)):
            self._slow_down(wait, code, "deliveries")
        for rates in self.shared:
            if rates.deliveries is not None and (wait := rates.deliveries.take(count, now)):
                self._slow_down(wait, code, "deliveries", rates.whose)

    def is_sent(self, count: int) -> float:
        """Charge for retained messages that the client is sent: it is heard all the same.

        Returns:
            In how many seconds nothing is owed.
        """
        now, wait = self._loop.time(), 0.0
        if self._deliveries is not None:
            wait = self._deliveries.take(count, now)
        for rates in self.shared:
            if rates.deliveries is not None:
                wait = max(wait, rates.deliveries.take(count, now))
        return wait

    def named(self, filters: int) -> None:
        """Count the filters of a SUBSCRIBE or UNSUBSCRIBE, as `published`."""
        if self._filters is not None:
            wait = self._filters.take(filters, self._loop.time())
            if wait:
                self._slow_down(wait, DisconnectReasonCode.QUOTA_EXCEEDED, "topic filters")
        for rates in self.shared:
            if rates.filters is not None and (
                wait := rates.filters.take(filters, self._loop.time())
            ):
                reason_code = DisconnectReasonCode.QUOTA_EXCEEDED
                self._slow_down(wait, reason_code, "topic filters", rates.whose)

    def close(self) -> None:
        """Wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _slow_down(
        self, wait: float, reason_code: DisconnectReasonCode, of: str, whose: str = "a client"
    ) -> None:
        if self._connection.is_closing:
            return
        self._counters.clients_too_fast += 1
        if not self._waits:
            reason = f"more {of} a second than {whose} may send"
            self._connection.close(reason_code, log_reason=reason, lingers=True)
            return
        self._until = max(self._until, self._loop.time() + wait)
        if self._timer is None:
            self._connection.pause_reading(PAUSED_BY_LIMIT)
            self._timer = self._loop.call_at(self._until, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if self._loop.time() < self._until:  # meanwhile it was too fast by another rate
            self._timer = self._loop.call_at(self._until, self._go_on)
            return
        self._released()
        self._connection.resume_reading(PAUSED_BY_LIMIT)
