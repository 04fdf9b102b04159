"""Messages of neighbours that wait, unacknowledged, while the log of this site is full.

The neighbour's cursor stays before them, and its window bounds what waits; that of this site bounds
what the neighbour gives back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from ingest.federation.sites.links.events import LINK_HELD, LINK_RESUMED
from mqlake.processes.log_disk import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.links.events import LinkEvents
    from mqlake.processes.log_disk import LogDisk

_logger = logging.getLogger(__name__)


class FullLog:
    """All messages that wait for room. Make it inside the event loop.

    Args:
        disk: Disk of the site's log.
        most_held: Messages of one neighbour.
        events: Takes the events of the site's links.
    """

    def __init__(
        self,
        disk: LogDisk,
        most_held: int,
        events: LinkEvents,
    ) -> None:
        self._disk = disk
        self._most_held = most_held
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._held: dict[int, deque[Callable[[], None]]] = {}
        """Functions that take them, by neighbour, in their order."""
        self._why = ""

    def held(self, site: int) -> int:
        """Return how many messages of a neighbour wait."""
        return len(self._held.get(site, ()))

    def reason(self, site: int) -> str:
        """Return why a neighbour is held back; empty: it is not."""
        return self._why if site in self._held else ""

    def hold(self, site: int, connection: SiteConnection, take: Callable[[], None]) -> bool:
        """Keep a message if it has to wait; return whether it does.

        A neighbour that does not keep to its window is cut off.

        Args:
            site: The neighbour.
            connection: That the message came on.
            take: Takes it, when there is room again.
        """
        if site not in self._held:
            why = self._disk.why_full()
            if not why:
                return False
            self._why = f"the log is full: {why}"
            self._held[site] = deque()
            self._tell(LINK_HELD, site, self._why)
        if self.held(site) >= self._most_held:
            connection.close(f"more than {self._most_held} messages that wait for room in the log")
        else:
            self._held[site].append(take)
            if self._timer is None:
                self._timer = self._loop.call_later(WAIT_SECONDS, self._look)
        return True

    def close(self, site: int) -> None:
        """Hear that a connection has ended: its messages come again."""
        self._held.pop(site, None)

    def stop(self) -> None:
        """Take nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._disk.why_full():
            self._timer = self._loop.call_later(WAIT_SECONDS, self._look)
            return
        held, self._held = self._held, {}
        for site, waiting in held.items():
            self._tell(LINK_RESUMED, site, "")
            for take in waiting:
                take()

    def _tell(self, event: str, site: int, reason: str) -> None:
        self._events.add(event, site, reason or None)
        words = "held back" if reason else "not held back any more"
        fields = {"site": site, "reason": reason}
        _logger.warning("a link is %s", words, extra={"fields": fields})
