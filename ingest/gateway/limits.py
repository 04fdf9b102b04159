"""How much one client may do, and how many may come in a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from ingest.gateway.shares import LEAST_BYTES_PER_SECOND
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from ingest.session.rates import SlidingWindowCounter, TokenBucket
from mqlake.settings import SettingsGroup

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ingest.gateway.client import Client
    from ingest.gateway.counters import GatewayCounters
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.shares import Shares

PAUSED_BY_LIMIT: Final = "limit"


class LimitSettings(SettingsGroup):
    """Limits for clients; 0: no limit.

    A rate without user or gateway in its name applies to one connection.
    """

    subscriptions: int = Field(
        default=100_000,
        ge=0,
        description="Subscriptions of one session; more are refused with 0x97 (3.x: 0x80).",
    )
    session_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Bytes of topic filters and will, with its properties, of one session; beyond "
        "it filters, or a CONNECT with such a will, are refused with 0x97 (3.x: 0x80 and 3).",
    )
    queued_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=0,
        description="Payload bytes queued for one client. For more of a connected client see "
        "when_queue_full, of one that was away max_offline_messages.",
    )
    retained_messages: int = Field(
        default=0,
        ge=0,
        description="Topics with a retained message published by one client; for more, see "
        "when_retained_full.",
    )
    retained_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of these messages: payloads, topic names and properties.",
    )
    messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages that one client publishes, in a sliding window of a second.",
    )
    deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of the messages of one client: 1 for each, and 1 for each "
        "client that receives it; the burst is as large.",
    )
    bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that one client sends, at least 1024; the burst is as large.",
    )
    filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second that one client names in SUBSCRIBE and UNSUBSCRIBE; "
        "the burst is ten times as large.",
    )
    user_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages per second that all connections of one user publish, at all "
        "gateways together (within 10 %); the burst is as large. Clients that have not logged in "
        "are not counted together. Must be the same at all gateways of a site. Limits of tenants: "
        "docs/tenants.md.",
    )
    user_deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of these messages, as deliveries_per_second.",
    )
    user_bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that all connections of one user send, at least 1024; the "
        "burst is as large.",
    )
    user_filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second named by all connections of one user; the burst is "
        "as large.",
    )
    user_connects_per_second: int = Field(
        default=0,
        ge=0,
        description="Clients per second of one user that all gateways let in; more are refused "
        "with 0x9F.",
    )
    user_connections: int = Field(
        default=0,
        ge=0,
        description="Connections of one user at all gateways together; more are refused with 0x97.",
    )
    user_subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of one user at all gateways together; more are refused with "
        "0x97.",
    )
    user_session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of topic filters and wills of one user; beyond it filters, and a "
        "CONNECT with such a will, are refused with 0x97.",
    )
    user_queued_bytes: int = Field(
        default=0,
        ge=0,
        description="Payload bytes queued for all connected clients of one user; beyond it as with "
        "queued_bytes.",
    )
    user_retained_messages: int = Field(
        default=0,
        ge=0,
        description="Topics with a retained message published by the clients of one user.",
    )
    user_retained_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of these messages.",
    )
    gateway_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages per second that all clients of this gateway publish; the burst is "
        "as large. Listeners have their own limits ([[listeners]]).",
    )
    gateway_deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of these messages, as deliveries_per_second.",
    )
    gateway_bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that all clients of this gateway send; the burst is as "
        "large.",
    )
    gateway_filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second named by all clients of this gateway; the burst is "
        "as large.",
    )
    gateway_subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of all clients of this gateway; more are refused with 0x97.",
    )
    gateway_session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of topic filters and wills of all clients of this gateway.",
    )
    gateway_retained_messages: int = Field(
        default=0,
        ge=0,
        description="Retained messages, of all tenants, that this gateway has copies of (with one "
        "or two gateways, each has all); for more topics, see when_retained_full.",
    )
    gateway_retained_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of these messages.",
    )
    when_retained_full: Literal["refuse", "forward"] = Field(
        default="refuse",
        description="A message with RETAIN beyond a limit of the client, user, tenant or gateway: "
        '"refuse" it with 0x97, or "forward" it to subscribers without keeping it. Both are '
        "recorded in the table drops.",
    )
    when_too_fast: Literal["wait", "disconnect"] = Field(
        default="wait",
        description='When a client exceeds one of these rates: "wait" stops reading until it is '
        'within the rate again (nothing is lost), "disconnect" closes its connection with 0x96 '
        "(messages) or 0x97.",
    )
    connects_per_second: int = Field(
        default=0,
        ge=0,
        description="Maximum CONNECT packets per second that this gateway processes; more are "
        "refused with 0x9F (3.x: 3) before a password is checked.",
    )

    failed_logins_before_ban: int = Field(
        default=0,
        ge=0,
        description="Maximum failed logins of one address (IPv6: of one /64 network) within a "
        "minute; beyond it the address is banned for ban_seconds, at all gateways.",
    )
    connects_before_ban: int = Field(
        default=0,
        ge=0,
        description="Maximum times within a minute that one client is let in as the same user; "
        "beyond it the client is banned for ban_seconds, at all gateways.",
    )
    ban_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Duration of such a ban.",
    )

    @property
    def has_rates(self) -> bool:
        """Whether there is a rate for each client."""
        return bool(
            self.messages_per_second
            or self.deliveries_per_second
            or self.bytes_per_second
            or self.filters_per_second
        )


FILTERS_AT_ONCE: Final = 10
"""Seconds of `filters_per_second`: a client that connects names all of its filters."""


class ConnectLimit:
    """How many clients may come: to the gateway, and to each of its listeners.

    Args:
        settings: Of the gateway.
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
        counters: Of the gateway.
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
        """Whether a PUBLISH is charged for the clients that it reaches."""
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
