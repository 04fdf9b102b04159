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

import re
from typing import TYPE_CHECKING, Final

from ingest.federation.filters import meet
from mqlake.topics import SHARE_PREFIX, split_shared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.federation.prefixes import Prefixes
    from ingest.federation.sites.interest import Interest
    from ingest.federation.sites.subscriptions import Subscriptions

Way = tuple[int, str]
"""A neighbour, and a group of the federation that it leads to members of."""

PREFIX: Final = "federation-"
_WAY: Final = re.compile(rf"{PREFIX}\d+-\d+", re.ASCII)


def way_name(site: int, neighbour: int) -> str:
    """Return the name that stands for a neighbour where routes have that of a gateway."""
    return f"{PREFIX}{site}-{neighbour}"


def is_way(gateway: str) -> bool:
    """Tell whether a name is one of `way_name`, of any site."""
    return _WAY.fullmatch(gateway) is not None


def neighbour_of(site: int, gateway: str) -> int | None:
    """Undo `way_name`; None: it is a gateway."""
    before = f"{PREFIX}{site}-"
    number = gateway.removeprefix(before)
    return int(number) if gateway.startswith(before) and number.isdecimal() else None


def to_federated(group: str, prefixes: Prefixes) -> str:
    """Return what other sites call a group of this one."""
    found = split_shared(group)
    return f"{SHARE_PREFIX}{found.share_name}/{prefixes.to_federated(found.topic_filter)}"


def to_local(group: str, prefixes: Prefixes) -> str:
    """Undo `to_federated`."""
    found = split_shared(group)
    return f"{SHARE_PREFIX}{found.share_name}/{prefixes.to_local(found.topic_filter)}"


def may_come(group: str, allowed: Iterable[str]) -> bool:
    """Tell whether messages of a group may come from other sites at all."""
    topic_filter = split_shared(group).topic_filter
    return not topic_filter.startswith("$") and any(meet(one, topic_filter) for one in allowed)


class Groups:
    """What one site does with the groups of the federation; nothing here knows a log.

    Args:
        interest: Of all sites.
        subscriptions: Of this one.
    """

    def __init__(self, interest: Interest, subscriptions: Subscriptions) -> None:
        self._interest = interest
        self._subscriptions = subscriptions
        self._deaf: set[int] = set()
        """Neighbours that have said that they know nothing of groups."""

    def note(self, neighbour: int, *, takes: bool) -> None:
        """Hear whether a neighbour knows of groups."""
        (self._deaf.discard if takes else self._deaf.add)(neighbour)

    def ways(self) -> set[Way]:
        """Return the ways that the router is to have."""
        return {
            (neighbour, group)
            for group, ways in self._interest.ways().items()
            if not self._subscriptions.keeps(group)
            for neighbour in ways.nearest - self._deaf
        }

    def has_taker(self, group: str, sender: int | None = None) -> bool:
        """Tell whether a message can go anywhere, or anywhere but back to who hands it over."""
        if self._subscriptions.has_members(group):
            return True
        ways = self._interest.ways().get(group)
        return ways is not None and bool(ways.every - self._deaf - {sender})
