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
    """How much one client may do, and how many may come; 0: any number.

    A rate without user or gateway in its name is that of one connection.
    """

    subscriptions: int = Field(
        default=100_000,
        ge=0,
        description="Subscriptions of one session; further ones are refused with 0x97 (3.x: 0x80).",
    )
    session_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Bytes of the topic filters and the will of one session; further filters, "
        "or a CONNECT with such a will, are refused with 0x97 (3.x: 0x80 and 3).",
    )
    queued_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=0,
        description="Payload bytes that wait for one client. Beyond them messages are dropped "
        "as with max_queued_messages and max_offline_messages.",
    )
    retained_messages: int = Field(
        default=0,
        ge=0,
        description="Topics whose retained message one client has published; further ones "
        "follow when_retained_full.",
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
        description="Cost of the messages of one client: one for each, and one for each "
        "client that gets it; as many at once.",
    )
    bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes that one client sends, at least 1024; as many at once.",
    )
    filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters that one client names in SUBSCRIBE and UNSUBSCRIBE; ten "
        "times as many at once.",
    )
    user_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages that all connections of one user publish, at all gateways "
        "together (within 10 %); as many at once. Clients that have not logged in share "
        "nothing. All gateways of a site need the same. Limits of tenants: docs/tenants.md.",
    )
    user_deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost of these messages, as deliveries_per_second.",
    )
    user_bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes that all connections of one user send, at least 1024; as many at once.",
    )
    user_filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters that all connections of one user name; as many at once.",
    )
    user_connects_per_second: int = Field(
        default=0,
        ge=0,
        description="Clients of one user that all gateways let in; further ones are refused "
        "with 0x9F.",
    )
    user_connections: int = Field(
        default=0,
        ge=0,
        description="Connections of one user at all gateways together; further ones are "
        "refused with 0x97.",
    )
    user_subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of one user at all gateways together; further ones are "
        "refused with 0x97.",
    )
    user_session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of the topic filters and wills of one user; further filters, and a "
        "CONNECT with such a will, are refused with 0x97.",
    )
    user_queued_bytes: int = Field(
        default=0,
        ge=0,
        description="Payload bytes that wait for all connected clients of one user; once there "
        "are as many, messages that would have to wait are dropped.",
    )
    user_retained_messages: int = Field(
        default=0,
        ge=0,
        description="Topics whose retained message the clients of one user have published.",
    )
    user_retained_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of these messages.",
    )
    gateway_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages that all clients of this gateway publish; as many at once. A "
        "listener has limits of its own ([[listeners]]).",
    )
    gateway_deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost of these messages, as deliveries_per_second.",
    )
    gateway_bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes that all clients of this gateway send; as many at once.",
    )
    gateway_filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters that all clients of this gateway name; as many at once.",
    )
    gateway_subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of all clients of this gateway; further ones are refused "
        "with 0x97.",
    )
    gateway_session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of the topic filters and wills of all clients of this gateway.",
    )
    gateway_retained_messages: int = Field(
        default=0,
        ge=0,
        description="Retained messages of all tenants of which this gateway has copies (of one or "
        "two gateways each has all); those of further topics as when_retained_full says.",
    )
    gateway_retained_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of these messages.",
    )
    when_retained_full: Literal["refuse", "forward"] = Field(
        default="refuse",
        description="A message with RETAIN for which client, user, tenant or gateway has no more "
        'room: "refuse" it with 0x97, or "forward" it to subscribers without keeping it. It is a '
        "row of drops in both cases.",
    )
    when_too_fast: Literal["wait", "disconnect"] = Field(
        default="wait",
        description='A client beyond one of these rates: "wait" reads no further until it is '
        'within again (it loses nothing), "disconnect" ends its connection with 0x96 '
        "(messages) or 0x97.",
    )
    connects_per_second: int = Field(
        default=0,
        ge=0,
        description="CONNECT packets a second that this gateway looks at; further ones are "
        "refused with 0x9F (3.x: 3) before a password is checked.",
    )

    failed_logins_before_ban: int = Field(
        default=0,
        ge=0,
        description="Failed logins of one address (IPv6: of one /64 network) within a minute; "
        "with one more the address is banned for ban_seconds, at all gateways.",
    )
    connects_before_ban: int = Field(
        default=0,
        ge=0,
        description="Times within a minute that one client is let in as the same user; with "
        "one more it is banned for ban_seconds, at all gateways.",
    )
    ban_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Length of such a ban.",
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
