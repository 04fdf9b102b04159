"""Limits that the connections of a user or a tenant share at all gateways."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from ingest.gateway.lease import BEAT_SECONDS
from ingest.protocol.reason_codes import ConnackReasonCode
from ingest.session.shared_rates import SharedRate
from mqlake.tenants import NO_LIMITS, TenantLimits

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

LEAST_BYTES_PER_SECOND: Final = 1024
MAX_RECENT: Final = 10_000
"""Users remembered that have gone: who comes back at once owes what he owed."""
MAX_TOLD: Final = 256
"""Users and tenants in a word of a gateway: those that want most of their limits."""
LEAST_TOLD: Final = 0.01
"""Part of a limit from which others are told; with less a gateway is as one that wants nothing."""
FULL: Final = "its tenant has as many connections as it may"

Told = dict[str, list[float]]
"""User or tenant (`u/ann`, `t/acme`) -> wanted messages and bytes a second, and connections."""


class SharedRates:
    """What is left here to the connections of one user or tenant.

    Args:
        whose: For who is disconnected: `a user`.
        messages: A second at all gateways; 0: any number.
        bytes_: Likewise.
    """

    __slots__ = ("__weakref__", "bytes", "messages", "whose")

    def __init__(self, whose: str, messages: int, bytes_: int) -> None:
        self.whose = f"the connections of {whose}"
        self.messages = SharedRate(float(messages)) if messages else None
        self.bytes = SharedRate(float(max(bytes_, LEAST_BYTES_PER_SECOND))) if bytes_ else None

    @property
    def rates(self) -> tuple[SharedRate | None, SharedRate | None]:
        return self.messages, self.bytes

    def limit(self, messages: int, bytes_: int) -> None:
        """Have other limits; what was taken of those that stay counts."""
        new = SharedRates("", messages, bytes_)
        self.messages = _changed(self.messages, new.messages)
        self.bytes = _changed(self.bytes, new.bytes)


class SharedLimits:
    """The rates of users and tenants, and how many connections tenants have.

    Args:
        user_messages: That a user publishes a second at all gateways; 0: any number.
        user_bytes: That it sends.
        loop: Its clock counts.
        others: Returns what each other gateway that is there has told.
    """

    def __init__(
        self,
        user_messages: int,
        user_bytes: int,
        loop: asyncio.AbstractEventLoop,
        others: Callable[[], Iterable[Mapping[str, list[float]]]],
    ) -> None:
        self._of_users = user_messages, user_bytes
        self._loop = loop
        self._others = others
        self._users: WeakValueDictionary[str, SharedRates] = WeakValueDictionary()
        self._recent: dict[str, SharedRates] = {}
        self._tenants: dict[str, SharedRates] = {}
        self._limits: dict[str, TenantLimits] = {}
        self._connections: Counter[str] = Counter()
        self._told: Told = {}
        self._measured_at = loop.time()

    def of(self, tenant: str, user: str | None) -> tuple[SharedRates, ...]:
        """Return what a connection takes from; nothing: no limit is its.

        Args:
            tenant: Whose it is.
            user: As whom its client has logged in; None: as nobody.
        """
        found = [] if user is None or not any(self._of_users) else [self._of_user(user)]
        limits = self._limits.get(tenant, NO_LIMITS)
        if limits.has_rates:
            rates = self._tenants.get(tenant)
            if rates is None:
                asked = limits.messages_per_second, limits.bytes_per_second
                rates = self._tenants[tenant] = SharedRates("a tenant", *asked)
            found.append(rates)
        return tuple(found)

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """Have a tenant's limits; connections ask `of` anew."""
        self._limits[tenant] = limits
        if (rates := self._tenants.get(tenant)) is not None:
            rates.limit(limits.messages_per_second, limits.bytes_per_second)
        if limits == NO_LIMITS:
            del self._limits[tenant]
            self._tenants.pop(tenant, None)

    def refusal(self, tenant: str) -> tuple[ConnackReasonCode, str] | None:
        """Return why a tenant may have no further connection, or None."""
        most = self._limits.get(tenant, NO_LIMITS).connections
        if not most:
            return None
        name = _tenant(tenant)
        there = sum(told[name][2] for told in self._others() if name in told)
        if self._connections[tenant] + there < most:
            return None
        return ConnackReasonCode.QUOTA_EXCEEDED, FULL

    def connections_of(self, tenant: str) -> int:
        """Return how many clients of a tenant are connected here."""
        return self._connections[tenant]

    def entered(self, tenant: str) -> None:
        """Count a connection whose client was let in."""
        self._connections[tenant] += 1

    def left(self, tenant: str) -> None:
        """Count one that has ended."""
        self._connections[tenant] -= 1
        if not self._connections[tenant]:
            del self._connections[tenant]

    def word(self) -> Told:
        """Return what others are told; work out anew, twice a second, what is left here."""
        now = self._loop.time()
        seconds = now - self._measured_at
        if seconds >= BEAT_SECONDS:
            self._measured_at = now
            self._measure(seconds, now)
        return self._told

    def _measure(self, seconds: float, now: float) -> None:
        others = list(self._others())
        told: list[tuple[float, str, list[float]]] = []
        for name, rates in self._all():
            wants, most = [0.0, 0.0], 0.0
            for kind, rate in enumerate(rates.rates):
                if rate is not None:
                    rate.measure(seconds)
                    rate.share([one[name][kind] if name in one else 0.0 for one in others], now)
                    wants[kind] = round(rate.wanted, 1)
                    most = max(most, rate.wanted / rate.limit)
            if most >= LEAST_TOLD:
                told.append((most, name, wants))
        told.sort(reverse=True)
        self._told = {name: [*wants, 0] for _, name, wants in told[:MAX_TOLD]}
        for tenant, limits in self._limits.items():
            if limits.connections and (count := self._connections.get(tenant)):
                self._told.setdefault(_tenant(tenant), [0.0, 0.0, 0])[2] = count

    def _all(self) -> list[tuple[str, SharedRates]]:
        users = [(f"u/{name}", rates) for name, rates in self._users.items()]
        return [*users, *((_tenant(name), rates) for name, rates in self._tenants.items())]

    def _of_user(self, user: str) -> SharedRates:
        rates = self._users.get(user)
        if rates is None:
            rates = self._users[user] = SharedRates("a user", *self._of_users)
        self._recent.pop(user, None)
        if len(self._recent) >= MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[user] = rates
        return rates


def read_told(found: object) -> Told:
    """Return what a word says of shared limits; what is none of it is left out."""
    if not isinstance(found, dict):
        return {}
    return {
        str(name): [float(one) for one in values]
        for name, values in found.items()
        if isinstance(values, list)
        and len(values) == 3
        and all(type(one) in {int, float} and one >= 0 for one in values)
    }


def _tenant(name: str) -> str:
    return f"t/{name}"


def _changed(known: SharedRate | None, new: SharedRate | None) -> SharedRate | None:
    if known is None or new is None:
        return new
    known.limit = new.limit
    return known
