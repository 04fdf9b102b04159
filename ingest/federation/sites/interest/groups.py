"""Share groups over sites: which site a message of a group goes to when this one has no member.

A site tells the groups of its subscribers with its interest, as `$share/<name>/<filter>`. For each
group with members elsewhere the router of this site has *ways* to them, one for each neighbour on
a shortest path, as routes of last resort in `mqlake.routes`: so the router itself, that knows the
members here, chooses a member or a neighbour, one for each message. The neighbour's router does
the same with it. A group that has sessions here whose clients are away keeps its messages for
them, and has no ways.

    router ──► member here
       └─────► mqlake.delivery.federation-<site>-<neighbour> ──► neighbour's log ──► its router
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.federation.sites.interest.interest import Interest
    from ingest.federation.sites.interest.subscriptions import SiteSubscriptions

Way = tuple[int, str]
"""A neighbour, and a group of the federation that it leads to members of."""


class SiteGroups:
    """Share groups of the federation at one site; nothing here knows a log.

    Args:
        interest: Interest of all sites.
        subscriptions: Subscriptions of this site.
    """

    def __init__(self, interest: Interest, subscriptions: SiteSubscriptions) -> None:
        self._interest = interest
        self._subscriptions = subscriptions
        self._without_groups: set[int] = set()
        """Neighbours that have said that they know nothing of groups."""

    def note(self, neighbour: int, *, knows_groups: bool) -> None:
        """Hear whether a neighbour knows of groups."""
        (self._without_groups.discard if knows_groups else self._without_groups.add)(neighbour)

    def ways(self) -> set[Way]:
        """Return the ways that the router is to have."""
        return {
            (neighbour, group)
            for group, ways in self._interest.ways().items()
            if not self._subscriptions.keeps(group)
            for neighbour in ways.nearest - self._without_groups
        }

    def has_receiver(self, group: str, sender: int | None = None) -> bool:
        """Tell whether a message can go anywhere, or anywhere but back to its sender."""
        if self._subscriptions.has_members(group):
            return True
        ways = self._interest.ways().get(group)
        return ways is not None and bool(ways.every - self._without_groups - {sender})
