"""Members of a gateway's routes: they are counted, and unused filters linger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqlake.records.messages import RETAINED_FILTER_PREFIX
from mqlake.topics.sharing import ShareStrategy, ShareWeight, encode_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.gateway.routing.route_rounds import Round
    from mqlake.clock import Clock
    from mqlake.records.messages import Route


@dataclass(slots=True)
class RoutedFilter:
    """One filter of this gateway.

    Invariant: `round` is the round that announces it, None once that round is over.
    """

    members: int = 0
    round: Round | None = None
    unused_since: float = 0.0
    since_ms: int = 0
    """When it was announced first."""
    is_withdrawn: bool = False
    """Another gateway has withdrawn it, its membership begins again: no count brings it back."""


class RouteMembers:
    """The filters of one gateway.

    Args:
        linger_seconds: A filter without subscribers stays routed so long.
        clock: For that.
        may_count: Tells whether no other gateway can have withdrawn routes of share groups
            meanwhile.
        share_strategy: How share groups want their messages spread.

    Attributes:
        entries: The filters that are announced, or about to be.
        changed: Filters whose record in the log is not current.
    """

    def __init__(
        self,
        linger_seconds: float,
        clock: Clock,
        may_count: Callable[[], bool],
        share_strategy: ShareStrategy,
    ) -> None:
        self._linger_seconds = linger_seconds
        self._clock = clock
        self._may_count = may_count
        self._share_strategy = share_strategy
        self.entries: dict[Route, RoutedFilter] = {}
        self.changed: dict[Route, None] = {}
        self._uncounted: dict[Route, None] = {}  # these wait until they may be counted
        self._unused: dict[Route, None] = {}  # in the order in which they became unused

    def note_withdrawn(self, route: Route) -> None:
        """Note that another gateway has withdrawn a route: members count when it is renewed."""
        entry = self.entries.get(route)
        if entry is not None:
            entry.is_withdrawn = True

    def renew(self, route: Route, round_: Round) -> bool:
        """Have a round announce a route again if another gateway has withdrawn it.

        Returns:
            Whether it has to.
        """
        entry = self.entries.get(route)
        if entry is None or not entry.is_withdrawn:
            return False
        entry.is_withdrawn = False
        entry.round = round_
        round_.routes.append(route)
        self.changed[route] = None
        return True

    def add(self, routes: Iterable[Route], round_: Round) -> None:
        """Count one more member for each filter; the round announces those that are new."""
        for route in routes:
            entry = self.entries.get(route)
            if entry is None:
                entry = self.entries[route] = RoutedFilter(
                    round=round_, since_ms=self._clock.now_ms()
                )
                round_.routes.append(route)
                self.changed[route] = None
            elif route.is_shared:
                self.changed[route] = None  # the router weighs gateways by their members
            entry.members += 1
            self._unused.pop(route, None)

    def remove(self, route: Route) -> bool:
        """Count one member less; the route goes when it has been unused for a while.

        A share group's goes at once: its messages would be given to us and to no other gateway. So
        does that of a shard of retained messages: it has no client that may be back soon.

        Returns:
            Whether the log must have its withdrawal now.
        """
        entry = self.entries[route]
        entry.members -= 1
        if route.is_shared or route.topic_filter.startswith(RETAINED_FILTER_PREFIX):
            self.changed[route] = None
            if entry.members == 0:
                del self.entries[route]
                return True
        elif entry.members == 0:
            entry.unused_since = self._clock.monotonic()
            self._unused[route] = None
        return False

    def count_again(self) -> None:
        """Write the counts that had to wait, if they may be written now."""
        if self._uncounted and self._may_count():
            self.changed.update(self._uncounted)
            self._uncounted.clear()

    def take_changed(self, round_: Round) -> list[Route]:
        """Return whose records a round writes.

        A count of members would bring back a route that another gateway has withdrawn, before its
        own is in the group again: the router would give it messages that belong to no membership.
        `renew` writes it then as it is; while it is unknown whether that has happened, it waits.
        """
        changed, self.changed = self.changed, {}
        for route in list(changed):
            entry = self.entries.get(route)
            if entry is None or entry.round is round_ or not route.is_shared:
                continue
            if entry.is_withdrawn:
                del changed[route]
            elif not self._may_count():
                self._uncounted[route] = None
                del changed[route]
        return list(changed)

    def value(self, route: Route) -> bytes | None:
        """Return the value of a route's record; only share groups are weighed by members."""
        entry = self.entries.get(route)
        if entry is None:
            return None
        if not route.is_shared:
            return b"1"
        return encode_weight(
            ShareWeight(max(1, entry.members), self._share_strategy, entry.since_ms)
        )

    def collect_unused(self) -> None:
        """Let go of filters that have been unused for a while."""
        now = self._clock.monotonic()
        if not self._has_lingered(now):
            return
        for route in list(self._unused):
            entry = self.entries[route]
            if now - entry.unused_since < self._linger_seconds:
                break
            if entry.round is not None:
                continue  # a round still announces it
            del self.entries[route], self._unused[route]
            self.changed[route] = None

    def _has_lingered(self, now: float) -> bool:
        """Tell whether the filter that is unused for longest is to go: rounds ask that often."""
        for route in self._unused:
            return now - self.entries[route].unused_since >= self._linger_seconds
        return False
