"""Limits that many connections share: those of a user or a tenant, a listener, or the gateway.

Those of users and tenants are limits of all gateways together (`ingest.session.shared_rates`,
`ingest.session.shared_counts`); the others are of this gateway.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from weakref import WeakValueDictionary

from ingest.gateway.lease import BEAT_SECONDS
from ingest.protocol.reason_codes import ConnackReasonCode
from ingest.session.fan_out import FanOut, HeardFanOut
from ingest.session.shared_counts import SharedCount
from ingest.session.shared_rates import SharedRate
from mqlake.tenants import RATES, RETAINED, STOCKS, limits_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ingest.gateway.listeners.info import ListenerInfo
    from mqlake.settings import SettingsGroup
    from mqlake.tenants import TenantLimits

LEAST_BYTES_PER_SECOND: Final = 1024
MAX_RECENT: Final = 10_000
"""Users remembered that have gone: who comes back at once owes what he owed."""
MAX_TOLD: Final = 256
"""Users and tenants in a word of a gateway: those that want, or have, most of their limits."""
LEAST_TOLD: Final = 0.01
"""Part of a limit from which others are told; with less a gateway is as one that has nothing."""
GATEWAY: Final = "gateway"

Told: TypeAlias = dict[str, dict[str, float]]
"""User or tenant (`u/ann`, `t/acme`) -> kind of limit -> what is wanted a second, or counted."""


class Charged(Protocol):
    """Limits of a client that is here."""

    def delivers(self, count: int) -> None:
        """Charge for those whom its messages have reached."""

    def is_sent(self, count: int) -> float:
        """Charge for what it has asked for; return in how many seconds nothing is owed."""


_FIRST_TOLD: Final = ("messages", "bytes", "connections")
"""Kinds in the member `shared` of a word, as every release reads them."""


class Shares:
    """What is left here to the connections that share some limits.

    Args:
        whose: For who is disconnected or refused: `a user`.
        limits: By kind; a kind that is not there has none.
        is_whole: What is left of a stock is not divided, as of `SharedCount`.

    Attributes:
        messages, deliveries, bytes, filters, connects: The rates; None: no limit.
        stocks: What there may be of other kinds.
    """

    __slots__ = ("__weakref__", *RATES, "_is_whole", "stocks", "whose")

    def __init__(self, whose: str, limits: Mapping[str, int], *, is_whole: bool = False) -> None:
        self.whose = whose
        self._is_whole = is_whole
        self.messages: SharedRate | None = None
        self.deliveries: SharedRate | None = None
        self.bytes: SharedRate | None = None
        self.filters: SharedRate | None = None
        self.connects: SharedRate | None = None
        self.stocks: dict[str, SharedCount] = {}
        self.limit(limits)

    def limit(self, limits: Mapping[str, int]) -> None:
        """Have other limits; what was taken of those that stay counts."""
        for kind in RATES:
            most, known = limits.get(kind, 0), getattr(self, kind)
            if kind == "bytes" and most:
                most = max(most, LEAST_BYTES_PER_SECOND)
            if known is not None and most:
                known.limit = float(most)
            else:
                setattr(self, kind, SharedRate(float(most)) if most else None)
        stocks = self.stocks
        self.stocks = {
            kind: SharedCount(limits[kind], is_whole=self._is_whole)
            for kind in STOCKS
            if kind in limits
        }
        for kind, known in stocks.items():
            if kind in self.stocks:
                known.limit = limits[kind]
                self.stocks[kind] = known

    def rates(self) -> list[tuple[str, SharedRate]]:
        """Return those that are limited, by kind."""
        return [(kind, rate) for kind in RATES if (rate := getattr(self, kind)) is not None]


class SharedLimits:
    """Who shares which limits, and how much of each is used.

    Args:
        settings: Limits of the gateway, and of each user.
        loop: Its clock counts.
        others: Returns what each other gateway that is there has told.
        retained: Returns how many retained messages of a tenant are in the shards of this gateway,
            and their bytes.
        reach: Returns how many clients of this gateway get a message of a topic of a tenant.
        gateway: Its name.
        counts_deliveries: Whether a listener limits what deliveries cost.

    Attributes:
        absent_subscriptions: Returns how many subscriptions clients of a tenant have that are away,
            by the shards of this gateway; set before it begins.
        clients: Limits of the clients that are here, by tenant and client identifier.
        fan_out: What this gateway delivers of messages that came by others.
        counts_deliveries: Whether anybody may be charged for deliveries, here or at others.
    """

    def __init__(
        self,
        settings: SettingsGroup,
        loop: asyncio.AbstractEventLoop,
        others: Callable[[], Iterable[Told]],
        retained: Callable[[str], tuple[int, int]],
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
        of_users = limits_in(settings, "user_")
        # What users have retained is counted by `ingest.gateway.retained_publishers`.
        self._of_users = {kind: most for kind, most in of_users.items() if kind not in RETAINED}
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
            self._local[GATEWAY] = Shares("all clients of the gateway", of_gateway)
        # By kind: how many there are here, by user, tenant, and of the gateway.
        self._here: dict[str, Counter[str]] = {kind: Counter() for kind in STOCKS}
        # Of clients that are away, by tenant: they count where their sessions are kept.
        self._absent: dict[str, int] = {}
        self._word: dict[str, Any] = {"shared": {}, "shared_more": {}}
        self._measured_at = loop.time()

    def of(self, tenant: str, user: str | None, listener: ListenerInfo) -> tuple[Shares, ...]:
        """Return what a connection takes from; nothing: no limit is its.

        Args:
            tenant: Whose it is.
            user: As whom its client has logged in; None: as nobody.
            listener: By which it came.
        """
        found = [] if user is None or not self._of_users else [self._of_user(user)]
        if (shares := self._tenants.get(_tenant(tenant))) is not None:
            found.append(shares)
        if listener.limits:
            key = listener.address
            if key not in self._local:
                whose = f"all clients of the listener {listener.name}"
                self._local[key] = Shares(whose, dict(listener.limits))
            found.append(self._local[key])
        if GATEWAY in self._local:
            found.append(self._local[GATEWAY])
        return tuple(found)

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """Have a tenant's limits; connections ask `of` anew."""
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

    # What messages cost

    def heard(self, gateway: str, incarnation: str, word: object) -> None:
        """Charge clients of this gateway for what another has delivered of their messages."""
        for (tenant, client_id), count in self._heard.take(gateway, incarnation, word).items():
            self.charge(tenant, client_id, count)

    def charge(self, tenant: str, client_id: str, count: int, user: str | None = None) -> None:
        """Charge for deliveries of what a client has published.

        For those of one that has gone, or that is not told apart, its user and its tenant pay.
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

    # Who comes and goes

    def refusal(
        self, tenant: str, user: str | None, *, is_further: bool
    ) -> tuple[ConnackReasonCode, str] | None:
        """Return why a client that has logged in is one too many, or None.

        Args:
            tenant: Whose it is.
            user: As whom it has logged in.
            is_further: It takes the place of no other connection of its own.
        """
        now = self._loop.time()
        if is_further and (whose := self.full("connections", tenant, user, 1)):
            return ConnackReasonCode.QUOTA_EXCEEDED, f"{whose} have as many connections as they may"
        for _, shares in self._sharing(tenant, user):
            if shares.connects is not None and not shares.connects.admit(now):
                reason = f"{shares.whose} connect too often"
                return ConnackReasonCode.CONNECTION_RATE_EXCEEDED, reason
        return None

    def entered(self, tenant: str, user: str | None) -> None:
        """Count a connection whose client was let in."""
        self._count("connections", tenant, user, 1)

    def left(self, tenant: str, user: str | None) -> None:
        """Count one that has ended."""
        self._count("connections", tenant, user, -1)

    def subscribed(self, tenant: str, user: str | None, count: int) -> None:
        """Count subscriptions of a client that is here; fewer than none: they are gone."""
        self._count("subscriptions", tenant, user, count)

    def connections_of(self, tenant: str) -> int:
        """Return how many clients of a tenant are connected here."""
        return self._here["connections"][_tenant(tenant)]

    # What there may be

    def is_limited(self, kind: str, tenant: str, user: str | None) -> bool:
        """Tell whether somebody limits how much there is of a kind."""
        return any(kind in shares.stocks for _, shares in self._sharing(tenant, user))

    def full(self, kind: str, tenant: str, user: str | None, amount: float) -> str:
        """Return whose limit has no room for so much more; "": there is room."""
        now = self._loop.time()
        for name, shares in self._sharing(tenant, user):
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

    # What others are told

    def word(self) -> dict[str, Any]:
        """Return what others are told; work out anew, twice a second, what is left here."""
        now = self._loop.time()
        seconds = now - self._measured_at
        if seconds >= BEAT_SECONDS:
            self._measured_at = now
            self._measure(seconds, now)
        return self._word

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
        wanted.sort(key=lambda one: one[:2], reverse=True)
        told = always | {name: wants for _, name, wants in wanted[:MAX_TOLD]}
        self._word = _to_word(told) | {"fan_out": self.fan_out.word()}

    def _count_anew(
        self, name: str, shares: Shares, others: Sequence[Told], now: float
    ) -> tuple[dict[str, float], float]:
        """Work out what is left of what somebody may have.

        Returns:
            How much is here by kind, and the largest part of a limit that this is.
        """
        told, most = {}, 0.0
        stocks = shares.stocks
        if "retained_messages" in stocks or "retained_bytes" in stocks:
            messages, size = self._retained(name.partition("/")[2])
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
        """Return how much of a kind counts for somebody at this gateway."""
        here = self._here[kind][name]
        return here + self._absent.get(name, 0) if kind == "subscriptions" else here

    def _sharing(self, tenant: str, user: str | None) -> list[tuple[str, Shares]]:
        """Return whose limits count for a client, but for those of its listener."""
        found = []
        if user is not None and self._of_users:
            found.append((f"u/{user}", self._of_user(user)))
        name = _tenant(tenant)
        if (shares := self._tenants.get(name)) is not None:
            found.append((name, shares))
        if (shares := self._local.get(GATEWAY)) is not None:
            found.append((GATEWAY, shares))
        return found

    def _count(self, kind: str, tenant: str, user: str | None, change: int) -> None:
        here = self._here[kind]
        names = [_tenant(tenant)]
        if user is not None and self._of_users:
            names.append(f"u/{user}")
        if GATEWAY in self._local:
            names.append(GATEWAY)
        for name in names:
            here[name] += change
            if not here[name]:
                del here[name]

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


def _to_word(told: Told) -> dict[str, Any]:
    """Return the members of a word: what every release reads, and what was added later."""
    first, more = {}, {}
    for name, amounts in told.items():
        if any(kind in amounts for kind in _FIRST_TOLD):
            first[name] = [amounts.get(kind, 0.0) for kind in _FIRST_TOLD]
        if rest := {kind: one for kind, one in amounts.items() if kind not in _FIRST_TOLD}:
            more[name] = rest
    return {"shared": first, "shared_more": more}


def read_told(first: object, more: object) -> Told:
    """Return what a word says of shared limits; what is none of it is left out."""
    told: Told = {}
    if isinstance(first, dict):
        for name, values in first.items():
            if isinstance(values, list) and len(values) == len(_FIRST_TOLD):
                told[str(name)] = _amounts(zip(_FIRST_TOLD, values, strict=True))
    if isinstance(more, dict):
        for name, values in more.items():
            if isinstance(values, dict):
                told[str(name)] = told.get(str(name), {}) | _amounts(values.items())
    return told


def _amounts(found: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    return {str(kind): float(one) for kind, one in found if type(one) in {int, float} and one >= 0}


def _tenant(name: str) -> str:
    return f"t/{name}"
