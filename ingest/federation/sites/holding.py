"""Messages of neighbours that wait, unacknowledged, as their streams have too many gaps.

A message that would make one more is kept as it came; the neighbour's cursor stays before it, and
its window bounds what waits. Messages that fill gaps, and those of other streams, pass. Half of the
gaps are there for whoever comes; of the rest a little each second, so that neighbours have the time
to say that they fill none (`passing`): what they say comes behind what they have sent.

When the messages that wait take half of a neighbour's window, this site ends the connection, and
the next one has a limit for their streams: the neighbour brings no number above the mark, and
leaves those messages in its log. Then it brings what is behind them there, above all what fills
gaps: so no two links wait for each other. With few gaps there is no limit any more.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.federation.sites.links.events import LINK_HELD, LINK_RESUMED
from ingest.federation.sites.streams.streams import MOST_GAPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.links.events import LinkEvents
    from ingest.federation.sites.streams.log_messages import Carried
    from ingest.federation.sites.streams.streams import StreamKey, Streams
    from ingest.protocol.packets import Publish

_logger = logging.getLogger(__name__)

RAISE_SECONDS: Final = 10.0
"""How often a limit follows its stream's mark: each time this site ends the connection for it."""

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
        self._limits: dict[int, dict[StreamKey, int]] = {}
        """By neighbour, the last number of a stream that it may bring."""
        self._knows_limits: set[int] = set()
        self._begun_at: dict[int, float] = {}
        """When limits were set for a neighbour."""

    def held(self, site: int) -> int:
        """Return how many messages of a neighbour wait."""
        return sum(len(held) for (one, _), held in self._held.items() if one == site)

    def reason(self, site: int) -> str:
        """Return why a neighbour is held back; empty: it is not."""
        return self._told[site][1] if site in self._told else ""

    def limits(self, site: int) -> dict[StreamKey, int]:
        """Return the last numbers that a neighbour may bring of streams, for its connection."""
        return dict(self._limits.get(site, {}))

    def note(self, site: int, *, knows_limits: bool) -> None:
        """Hear whether a neighbour keeps to limits."""
        (self._knows_limits.add if knows_limits else self._knows_limits.discard)(site)

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

    def look(self, streams: Streams, now: float) -> tuple[set[StreamKey], set[int]]:
        """Hear that a second has passed: tell who is held back, and who is not any more.

        Args:
            streams: Streams of messages that the site has had, with their gaps.
            now: Present time in seconds, by a monotonic clock.

        Returns:
            Streams of which the site may take some messages now, and neighbours whose limits have
            changed: the caller ends their connections, and the next ones have the new limits.
        """
        few = self.most_gaps // 2
        self._seen = {key: len(one) for key, one in streams if len(one) > few}
        for site, (key, _) in list(self._told.items()):
            is_free = not (self.held(site) or self._limits.get(site))
            if is_free and self._seen.get(key, 0) <= few:
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
        return {key for _, key in self._held}, self._change_limits(streams, now)

    def _change_limits(self, streams: Streams, now: float) -> set[int]:
        changed: set[int] = set()
        few = self.most_gaps // 2
        for site, limits in list(self._limits.items()):
            marks = {key: _mark(streams, key) for key in limits if self._seen.get(key, 0) > few}
            may_rise = now - self._begun_at[site] >= RAISE_SECONDS
            if marks.keys() != limits.keys() or (may_rise and marks != limits):
                self._limits[site], self._begun_at[site] = marks, now
                changed.add(site)
            if not marks:
                del self._limits[site]
        for site in self._told:
            if self._may_limit(site):
                limits = self._limits.setdefault(site, {})
                limits.update({key: _mark(streams, key) for one, key in self._held if one == site})
                self._begun_at[site] = now
                changed.add(site)
        return changed

    def _may_limit(self, site: int) -> bool:
        """Tell whether messages that wait are what a neighbour's window is full of."""
        return site in self._knows_limits and 2 * self.held(site) >= self._most_held

    def close(self, site: int) -> None:
        """Hear that a connection has ended: its messages come again."""
        self._held = {one: held for one, held in self._held.items() if one[0] != site}
        if site not in self._limits:
            self._told.pop(site, None)


def _mark(streams: Streams, key: StreamKey) -> int:
    stream = streams.get(key)
    return 0 if stream is None else stream.mark


def _hops(held: deque[HeldMessage]) -> int:
    return held[0].carried.message.hops
