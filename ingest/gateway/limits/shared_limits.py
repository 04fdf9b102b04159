"""Limits that many connections share: those of a user or a tenant, a listener, or the gateway.

Those of users and tenants are limits of all gateways together
(`ingest.session.limits.shared_rates`, `ingest.session.limits.shared_counts`); the others are of
this gateway.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from ingest.gateway.limits.shares import Shares
from ingest.gateway.log.lease import HEARTBEAT_SECONDS
from ingest.gateway.peers.shared_words import to_members
from ingest.protocol.reason_codes import ConnackReasonCode
from ingest.session.limits.fan_out import FanOut, HeardFanOut
from mqlake.records.tenants import STOCKS, limits_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.peers.shared_words import Told
    from mqlake.records.gateway_heartbeat import GatewayHeartbeat
    from mqlake.records.tenants import TenantLimits
    from mqlake.settings import SettingsGroup

MAX_RECENT: Final = 10_000
"""Users remembered that have gone: one that comes back at once has its old debt."""
MAX_TOLD: Final = 256
"""Users and tenants in a heartbeat of a gateway: those that want, or have, most of their limits."""
LEAST_TOLD: Final = 0.01
"""Part of a limit from which a use is reported; with less a gateway is as one that has nothing."""
GATEWAY: Final = "gateway"
OF_GATEWAY: Final = "all clients of the gateway"


class Charged(Protocol):
    """Limits of a client that is here."""

    def delivers(self, count: int) -> None:
        """Charge for the clients that its messages have reached."""

    def is_sent(self, count: int) -> float:
        """Charge for messages that it has asked for; return in how many seconds nothing is owed."""


class SharedLimits:
    """Limits shared by clients, and how much of each is used.

    Args:
        settings: Limits of the gateway, and of each user.
        loop: Its clock counts.
        others: Returns the figures of each other living gateway.
        retained: Returns how many retained messages of a tenant are in the shards of this gateway,
            and their bytes; of None, those of all that it has copies of.
        reach: Returns how many clients of this gateway get a message of a topic of a tenant.
        gateway: Its name.
        counts_deliveries: Whether a listener limits the cost of deliveries.

    Attributes:
        absent_subscriptions: Returns how many subscriptions clients of a tenant have that are away,
            by the shards of this gateway; set before it begins.
        clients: Limits of the clients that are here, by tenant and client identifier.
        fan_out: Deliveries of this gateway of messages that came by others.
        counts_deliveries: Whether any client may be charged for deliveries, here or at others.
    """

    def __init__(
        self,
        settings: SettingsGroup,
        loop: asyncio.AbstractEventLoop,
        others: Callable[[], Iterable[Told]],
        retained: Callable[[str | None], tuple[int, int]],
        reach: Callable[[str, str], int],
        gateway: str,
        *,
        counts_deliveries: bool = False,
    ) -> None:
        self.reach = reach
        self.fan_out = FanOut()
        self.absent_subscriptions: Callable[[str], int] = lambda _tenant: 0
        self.clients: WeakValueDictionary[tuple[str, str], Charged] = WeakValueDictionary()
        self._heard = HeardFanOut(gateway)
        self._of_users = limits_in(settings, "user_")
        rates = limits_in(settings), self._of_users, limits_in(settings, "gateway_")
        self._always_counts = counts_deliveries or any("deliveries" in one for one in rates)
        self.counts_deliveries = self._always_counts
        self._loop = loop
        self._others = others
        self._retained = retained
        self._users: WeakValueDictionary[str, Shares] = WeakValueDictionary()
        self._recent: dict[str, Shares] = {}
        self._tenants: dict[str, Shares] = {}
        self._local: dict[str, Shares] = {}
        if of_gateway := limits_in(settings, "gateway_"):
            self._local[GATEWAY] = Shares(OF_GATEWAY, of_gateway)
        # By kind: how many there are here, by user, tenant, and of the gateway.
        self._here: dict[str, Counter[str]] = {kind: Counter() for kind in STOCKS}
        # Of clients that are away, by tenant: they count where their sessions are kept.
        self._absent: dict[str, int] = {}
        self._waiting: dict[str, WaitingForLimits] = {}
        self._told: Told = {}
        self._fan_out: dict[str, Any] | None = None
        self._measured_at = loop.time()

    def of(self, tenant: str, user: str | None, listener: ListenerInfo) -> tuple[Shares, ...]:
        """Return the limits that a connection takes from; empty: none.

        Args:
            tenant: Tenant of its client.
            user: User that its client has logged in as; None: none.
            listener: Listener that it came in by.
        """
        found = [] if user is None or not self._of_users else [self._of_user(user)]
        if (shares := self._tenants.get(_tenant(tenant))) is not None:
            found.append(shares)
        if listener.limits:
            found.append(self._of_listener(listener))
        if GATEWAY in self._local:
            found.append(self._local[GATEWAY])
        return tuple(found)

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """Have a tenant's limits; connections ask `of` again."""
        name, wanted = _tenant(tenant), limits_in(limits)
        if not wanted:
            self._tenants.pop(name, None)
            self._look_for_deliveries()
            return
        shares = self._tenants.get(name)
        if shares is None:
            shares = self._tenants[name] = Shares("all clients of a tenant", {})
        shares.limit(wanted)
        self._look_for_deliveries()
        self._count_anew(name, shares, list(self._others()), self._loop.time())

    def _look_for_deliveries(self) -> None:
        limited = any(shares.deliveries is not None for shares in self._tenants.values())
        self.counts_deliveries = self._always_counts or limited

    # Costs of messages

    def heard(self, gateway: str, incarnation: str, word: object) -> None:
        """Charge clients of this gateway for another's deliveries of their messages."""
        for (tenant, client_id), count in self._heard.take(gateway, incarnation, word).items():
            self.charge(tenant, client_id, count)

    def charge(self, tenant: str, client_id: str, count: int, user: str | None = None) -> None:
        """Charge for deliveries of a client's messages.

        For those of one that has gone, or that is not counted apart, its user and its tenant pay.
        """
        client = self.clients.get((tenant, client_id))
        if client is not None:
            client.delivers(count)
            return
        now = self._loop.time()
        for _, shares in self._sharing(tenant, user):
            if shares.deliveries is not None:
                shares.deliveries.take(count, now)

    def charge_retained(self, tenant: str, client_id: str, count: int) -> float:
        """Charge a client for retained messages that it is sent; it asks for them, and pays.

        Returns:
            In how many seconds it owes nothing; further ones wait for as long.
        """
        if not self.counts_deliveries:
            return 0.0
        client = self.clients.get((tenant, client_id))
        return 0.0 if client is None else client.is_sent(count)

    # Clients that come and go

    def refusal(
        self,
        tenant: str,
        user: str | None,
        listener: ListenerInfo,
        will_bytes: int,
        *,
        is_further: bool,
    ) -> tuple[ConnackReasonCode, str] | None:
        """Return why a client that has logged in is one too many, or None.

        Args:
            tenant: Whose it is.
            user: With which it has logged in.
            listener: Listener that it came in by.
            will_bytes: Size of its will.
            is_further: It replaces no other connection of its own.
        """
        now = self._loop.time()
        if is_further and (whose := self.full("connections", tenant, user, 1)):
            return ConnackReasonCode.QUOTA_EXCEEDED, f"{whose} have as many connections as they may"
        if will_bytes and (whose := self.full("session_bytes", tenant, user, will_bytes, listener)):
            return ConnackReasonCode.QUOTA_EXCEEDED, f"{whose} have no room for its will"
        for _, shares in self._sharing(tenant, user):
            if shares.connects is not None and not shares.connects.admit(now):
                reason = f"{shares.whose} connect too often"
                return ConnackReasonCode.CONNECTION_RATE_EXCEEDED, reason
        return None

    def entered(
        self, tenant: str, user: str | None, listener: ListenerInfo, will_bytes: int
    ) -> None:
        """Count a connection whose client was let in, and its will."""
        self._count("connections", tenant, user, 1)
        self._count("session_bytes", tenant, user, will_bytes, listener)

    def left(self, tenant: str, user: str | None, listener: ListenerInfo, will_bytes: int) -> None:
        """Count one that has ended."""
        self._count("connections", tenant, user, -1)
        self._count("session_bytes", tenant, user, -will_bytes, listener)

    def subscribed(
        self, tenant: str, user: str | None, listener: ListenerInfo, topic_filter: str
    ) -> None:
        """Count a subscription of a client that is here."""
        self._count("subscriptions", tenant, user, 1, listener)
        self._count("session_bytes", tenant, user, len(topic_filter.encode()), listener)

    def unsubscribed(
        self, tenant: str, user: str | None, listener: ListenerInfo, topic_filter: str
    ) -> None:
        """Count one that is gone."""
        self._count("subscriptions", tenant, user, -1, listener)
        self._count("session_bytes", tenant, user, -len(topic_filter.encode()), listener)

    def waiting(self, tenant: str, user: str | None) -> WaitingForLimits:
        """Return the counter of messages that wait for a client."""
        if user is not None:
            return WaitingForLimits(self, tenant, user)
        found = self._waiting.get(tenant)  # most clients have no user, and need no object each
        if found is None:
            found = self._waiting[tenant] = WaitingForLimits(self, tenant, None)
        return found

    def waits(self, tenant: str, user: str | None, change: int) -> None:
        """Count payload bytes that wait for a client, or do so no more."""
        self._count("queued_bytes", tenant, user, change)

    def connections_of(self, tenant: str) -> int:
        """Return how many clients of a tenant are connected here."""
        return self._here["connections"][_tenant(tenant)]

    # Stocks

    def is_limited(
        self, kind: str, tenant: str, user: str | None, listener: ListenerInfo | None = None
    ) -> bool:
        """Tell whether a tenant, user or listener limits the stock of a kind."""
        return any(kind in shares.stocks for _, shares in self._sharing(tenant, user, listener))

    def full(
        self,
        kind: str,
        tenant: str,
        user: str | None,
        amount: float,
        listener: ListenerInfo | None = None,
    ) -> str:
        """Return whose limit has no room for so much more; "": there is room."""
        now = self._loop.time()
        for name, shares in self._sharing(tenant, user, listener):
            count = shares.stocks.get(kind)
            if count is not None and not count.has_room(self._has(kind, name), amount, now):
                return shares.whose
        return ""

    def let_in_retained(self, tenant: str, messages: int, size: int) -> None:
        """Count a retained message that is on its way to the gateways that keep it."""
        now = self._loop.time()
        for _, shares in self._sharing(tenant, None):
            for kind, amount in (("retained_messages", messages), ("retained_bytes", size)):
                if amount > 0 and (count := shares.stocks.get(kind)) is not None:
                    count.let_in(amount, now)

    # Figures for others

    def add_to(self, heartbeat: GatewayHeartbeat) -> None:
        """Set what others need; work out again, twice a second, how much is left here."""
        now = self._loop.time()
        seconds = now - self._measured_at
        if seconds >= HEARTBEAT_SECONDS:
            self._measured_at = now
            self._measure(seconds, now)
        heartbeat.shared, heartbeat.shared_more = to_members(self._told)
        if self._fan_out is not None:
            heartbeat.fan_out = self._fan_out

    def _measure(self, seconds: float, now: float) -> None:
        others = list(self._others())
        wanted: list[tuple[float, str, dict[str, float]]] = []
        always: Told = {}
        users = [(f"u/{name}", shares) for name, shares in self._users.items()]
        for name, shares in [*users, *self._tenants.items()]:
            counted, most = self._count_anew(name, shares, others, now)
            wants = dict(counted)
            if counted and name.startswith(_tenant("")):
                always[name] = counted
            for kind, rate in shares.rates():
                rate.measure(seconds)
                rate.share([one.get(name, {}).get(kind, 0.0) for one in others], now)
                wants[kind] = round(rate.wanted, 1)
                most = max(most, rate.wanted / rate.limit)
            if most >= LEAST_TOLD:
                wanted.append((most, name, wants))
        if GATEWAY in self._local:
            self._count_anew(GATEWAY, self._local[GATEWAY], [], now)
        wanted.sort(key=lambda one: one[:2], reverse=True)
        self._told = always | {name: wants for _, name, wants in wanted[:MAX_TOLD]}
        self._fan_out = self.fan_out.word()

    def _count_anew(
        self, name: str, shares: Shares, others: Sequence[Told], now: float
    ) -> tuple[dict[str, float], float]:
        """Work out the rest of the limits of a user, tenant or listener.

        Returns:
            How much is here by kind, and the largest part of a limit that this is.
        """
        told, most = {}, 0.0
        stocks = shares.stocks
        if "retained_messages" in stocks or "retained_bytes" in stocks:
            tenant = None if name == GATEWAY else name.partition("/")[2]
            messages, size = self._retained(tenant)
            self._here["retained_messages"][name] = messages
            self._here["retained_bytes"][name] = size
        if "subscriptions" in stocks and name.startswith(_tenant("")):
            self._absent[name] = self.absent_subscriptions(name.partition("/")[2])
        else:
            self._absent.pop(name, None)
        for kind, count in stocks.items():
            here = self._has(kind, name)
            count.share(here, [one.get(name, {}).get(kind, 0.0) for one in others], now)
            if mine := here + count.on_the_way(now):
                told[kind] = mine
                most = max(most, mine / count.limit)
        return told, most

    def _has(self, kind: str, name: str) -> int:
        """Return how much of a kind counts for a user, tenant or listener at this gateway."""
        here = self._here[kind][name]
        return here + self._absent.get(name, 0) if kind == "subscriptions" else here

    def _sharing(
        self, tenant: str, user: str | None, listener: ListenerInfo | None = None
    ) -> list[tuple[str, Shares]]:
        """Return whose limits count for a client; without its listener all but those of that."""
        found = []
        if user is not None and self._of_users:
            found.append((f"u/{user}", self._of_user(user)))
        name = _tenant(tenant)
        if (shares := self._tenants.get(name)) is not None:
            found.append((name, shares))
        if listener is not None and listener.limits:
            found.append((listener.address, self._of_listener(listener)))
        if (shares := self._local.get(GATEWAY)) is not None:
            found.append((GATEWAY, shares))
        return found

    def _count(
        self,
        kind: str,
        tenant: str,
        user: str | None,
        change: int,
        listener: ListenerInfo | None = None,
    ) -> None:
        here = self._here[kind]
        names = [_tenant(tenant)]
        if user is not None and self._of_users:
            names.append(f"u/{user}")
        if GATEWAY in self._local:
            names.append(GATEWAY)
        if listener is not None and listener.limits:
            names.append(listener.address)
        for name in names:
            here[name] += change
            if not here[name]:
                del here[name]

    def _of_listener(self, listener: ListenerInfo) -> Shares:
        shares = self._local.get(listener.address)
        if shares is None:
            whose = f"all clients of the listener {listener.name}"
            shares = self._local[listener.address] = Shares(whose, dict(listener.limits))
        return shares

    def _of_user(self, user: str) -> Shares:
        shares = self._users.get(user)
        if shares is None:
            whose, limits = "the connections of a user", self._of_users
            shares = self._users[user] = Shares(whose, limits, is_whole=True)
            self._count_anew(f"u/{user}", shares, list(self._others()), self._loop.time())
        self._recent.pop(user, None)
        if len(self._recent) >= MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[user] = shares
        return shares


class WaitingForLimits:
    """Messages that wait for one client, among those for all that share its limits."""

    __slots__ = ("_limits", "_tenant", "_user")

    def __init__(self, limits: SharedLimits, tenant: str, user: str | None) -> None:
        self._limits = limits
        self._tenant = tenant
        self._user = user

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more may wait."""
        return bool(self._limits.full("queued_bytes", self._tenant, self._user, 1))

    def add(self, size: int) -> None:
        """Count bytes that wait from now on; fewer than none: they do so no more."""
        self._limits.waits(self._tenant, self._user, size)


def _tenant(name: str) -> str:
    return f"t/{name}"
