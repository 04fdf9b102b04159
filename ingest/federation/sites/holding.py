"""Messages of neighbours that wait, unacknowledged, as their streams have too many gaps.

A message that would make one more is kept as it came; the neighbour's cursor stays before it, and
its window bounds what waits. Messages that fill gaps, and those of other streams, pass. Half of the
gaps are there for whoever comes; of the rest a little each second, so that neighbours have the time
to say that they fill none (`passing`): what they say comes behind what they have sent.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.federation.sites.events import LINK_HELD, LINK_RESUMED
from ingest.federation.sites.streams import MOST_GAPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.federation.sites.connection import SiteConnection
    from ingest.federation.sites.events import LinkEvents
    from ingest.federation.sites.log_messages import Carried
    from ingest.federation.sites.streams import StreamKey, Streams
    from ingest.protocol.packets import Publish

_logger = logging.getLogger(__name__)

PARTS: Final = 20
"""Parts of the most gaps of a stream: one a second, beyond the first half."""


class HeldMessage(NamedTuple):
    """A message that waits, as it came."""

    site: int
    connection: SiteConnection
    publish: Publish
    carried: Carried


class Holding:
    """All messages that wait at one site.

    Args:
        most_held: Messages of one neighbour: its window.
        events: Takes the events of the site's links.

    Attributes:
        most_gaps: Most gaps of a stream, for each site that a message has passed.
    """

    def __init__(self, most_held: int, events: LinkEvents) -> None:
        self.most_gaps = MOST_GAPS
        self._most_held = most_held
        self._events = events
        self._held: dict[tuple[int, StreamKey], deque[HeldMessage]] = {}
        """By neighbour and stream, in their order."""
        self._seen: dict[StreamKey, int] = {}
        """Gaps of streams at the last look, if they were many."""
        self._told: dict[int, tuple[StreamKey, str]] = {}
        """Neighbours that are held back, by which stream, and in words."""

    def held(self, site: int) -> int:
        """Return how many messages of a neighbour wait."""
        return sum(len(held) for (one, _), held in self._held.items() if one == site)

    def reason(self, site: int) -> str:
        """Return why a neighbour is held back; empty: it is not."""
        return self._told[site][1] if site in self._told else ""

    def most(self, key: StreamKey, hops: int) -> int:
        """Return how many gaps a stream may have for now, with that of a message.

        Args:
            key: The stream.
            hops: Sites that the message has passed.
        """
        most = self.most_gaps * (1 + hops)
        return min(most, max(most // 2, self._seen.get(key, 0)) + most // PARTS)

    def hold(self, key: StreamKey, one: HeldMessage) -> None:
        """Keep a message; a neighbour that does not keep to its window is cut off."""
        if self.held(one.site) >= self._most_held:
            one.connection.close(f"more than {self._most_held} unacknowledged messages")
        else:
            self._held.setdefault((one.site, key), deque()).append(one)

    def resume(self, key: StreamKey, take: Callable[[HeldMessage], bool]) -> None:
        """Take messages of a stream as long as there is room; `take` tells whether there was."""
        for waiting in [one for one in self._held if one[1] == key]:
            held = self._held.get(waiting)
            while held:
                one = held.popleft()
                if not take(one):
                    held.appendleft(one)
                    break
            if not held:
                self._held.pop(waiting, None)

    def look(self, streams: Streams) -> Iterable[StreamKey]:
        """Hear that a second has passed: tell who is held back, and who is not any more.

        Returns:
            Streams of which some may be taken now.
        """
        few = self.most_gaps // 2
        self._seen = {key: len(one) for key, one in streams if len(one) > few}
        for site, (key, _) in list(self._told.items()):
            if not self.held(site) and self._seen.get(key, 0) <= few:
                del self._told[site]
                self._events.add(LINK_RESUMED, site)
        for (site, key), held in self._held.items():
            gaps = self._seen.get(key, 0)
            if site not in self._told and gaps >= self.most_gaps * (1 + _hops(held)):
                reason = (
                    f"{gaps} ranges are missing of partition {key.partition} of site {key.origin}:"
                    " other paths have not brought them yet"
                )
                self._told[site] = key, reason
                self._events.add(LINK_HELD, site, reason)
                fields = {"site": site, "reason": reason}
                _logger.warning("a link is held back", extra={"fields": fields})
        return {key for _, key in self._held}

    def close(self, site: int) -> None:
        """Hear that a connection has ended: its messages come again."""
        self._held = {one: held for one, held in self._held.items() if one[0] != site}
        self._told.pop(site, None)


def _hops(held: deque[HeldMessage]) -> int:
    return held[0].carried.message.hops
