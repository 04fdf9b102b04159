"""Interest at work: that of this site's subscribers goes to its neighbours, theirs comes here.

It reads the log topics that say who has subscribed, to their end before a neighbour is spoken to:
else a federator that starts would seem to want less. The interest of neighbours is kept in
`mqlake.federation`, for they may be away when the next run begins.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial as bind
from typing import TYPE_CHECKING, Any, Final

from ingest.federation.packets import CONTROL
from ingest.federation.sites.interest.groups import SiteGroups
from ingest.federation.sites.interest.interest import Interest, NeighbourInterest, News, common
from ingest.federation.sites.interest.reach import OURSELVES, SiteReach
from ingest.federation.sites.interest.subscriptions import LOG_TOPICS, SiteSubscriptions
from ingest.federation.sites.links.words import (
    Hello,
    Reached,
    encode_hello,
    encode_news,
    encode_reached,
)
from ingest.protocol.packets import Publish
from mqlake.errors import OffsetGone
from mqlake.records.federation import encode_reach
from mqlake.records.messages import GATEWAYS, HEADER_REACH, REACH_KEY, ROUTES
from mqlake.topics.names import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.federation.prefixes import Prefixes
    from ingest.federation.settings import FederationSettings
    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.links.link import SiteLink
    from ingest.federation.sites.streams.streams import StreamKey
    from mqlake.clock import Clock
    from mqlake.errors import LogError
    from mqlake.log.contract import LogAccess, LogReader
    from mqlake.records.messages import LogRecord

_logger = logging.getLogger(__name__)

SPREAD_SECONDS: Final = 0.02
"""How long news are collected: subscriptions often come together."""
NARROW_SECONDS: Final = 5.0
"""Pause before neighbours hear of filters wanted no longer; these cost little until then."""
NARROW_PAUSES: Final = 20
"""Pause between looks at all filters, in times of what the last look took."""


NO_ROUTE: Final = -1
_SHARED: Final = f"/{SHARE_PREFIX}".encode()


class Spreading:
    """The interest of one site and of those behind its neighbours.

    Args:
        settings: Settings of the process.
        prefixes: Names of topics in the federation.
        log: Log of the site.
        clock: Gives the number of the interest.
        links: Links of the site.
        on_change: Called when something was heard that a new run is to know.
        on_failure: Called when the log's subscriptions can be followed no longer.
        on_spread: Called when the interest here or elsewhere may be another than before.

    Attributes:
        sent: Packets sent to neighbours.
    """

    def __init__(
        self,
        settings: FederationSettings,
        prefixes: Prefixes,
        log: LogAccess,
        clock: Clock,
        links: dict[int, SiteLink],
        on_change: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        on_spread: Callable[[], None],
    ) -> None:
        self.sent = 0
        self.groups_end = NO_ROUTE
        """Offset of the last route of a share group that was read."""
        self.interest = Interest(settings.host.id, settings.hop_limit)
        self.wanted = NeighbourInterest()
        allowed = {*settings.filters_in}
        for one in settings.neighbors:
            allowed.update(one.filters_in or ())
        self.subscriptions = SiteSubscriptions(
            settings.tenant, prefixes, allowed, settings.interests, settings.max_meshes
        )
        self.groups = SiteGroups(self.interest, self.subscriptions)
        self._site = settings.host.id
        self._topic = f"{settings.control_prefix}/{CONTROL}/{self._site}"
        self._log = log
        self._clock = clock
        self._links = links
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_spread = on_spread
        self._loop = asyncio.get_running_loop()
        self._readers: list[LogReader] = []
        self._timer: asyncio.TimerHandle | None = None
        self._narrowing: asyncio.Task[None] | None = None
        self._narrowing_took = 0.0
        self._reach = SiteReach()
        self._asked = self._owed = NO_ROUTE
        """Offsets of the last route whose gateway asks whether others know, and of the last one
        that waits for their answers."""
        self._routes: dict[int, int] = {}
        """By number of the own interest, the offset that it answers."""

    async def start(self, known: Any) -> None:
        """Learn the interest of this site, and follow it.

        Args:
            known: State of the run before, `Interest.to_json`; empty for nothing.

        Raises:
            LogError: The log does not answer, or there is no such log topic.
            InvalidRecord: `known` is something else.
        """
        if known:
            self.interest.restore(known)
        for log_topic in LOG_TOPICS:
            reader = self._log.open_reader()
            self._readers.append(reader)
            ends = await reader.end_offsets(log_topic)

            async def take(records: list[LogRecord], log_topic: str = log_topic) -> None:
                self.subscriptions.take(log_topic, records)
                self._note_asked(log_topic, records)

            ranges = {partition: (0, end) for partition, end in ends.items()}
            await self._log.ranges.read_range(log_topic, ranges, take)
            await reader.start(log_topic, ends, bind(self._take, log_topic), self._lose)
        self.spread()

    async def stop(self) -> None:
        """Follow nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        for reader in self._readers:
            await reader.close()
        if self._narrowing is not None:
            self._narrowing.cancel()
            await asyncio.gather(self._narrowing, return_exceptions=True)

    def add(self, link: SiteLink) -> None:
        """Hear of a neighbour."""
        self.interest.link(link.site)
        self.wanted.permit(link.site, link.allowed)
        if self.interest.knows(link.site):
            self.wanted.want(link.site, self.interest.behind(link.site))

    def remove(self, site: int) -> None:
        """Hear that a site is no neighbour any more."""
        self.interest.forget(site)
        self.wanted.forget(site)
        self._change()

    def open(
        self, link: SiteLink, connection: SiteConnection, limits: dict[StreamKey, int]
    ) -> None:
        """Say all interest, and then the filters that the neighbour may bring, and limits."""
        self.interest.open(link.site)
        self._reach.open(link.site)
        self._tell(link.site, connection)
        hello = encode_hello(Hello(self._site, tuple(link.allows), shares=True, limits=limits))
        connection.publish([Publish(self._topic, hello)])
        self.sent += 1

    def close(self, link: SiteLink) -> None:
        """Hear that a neighbour is away."""
        self.interest.close(link.site)
        self._reach.close(link.site)
        self._schedule(SPREAD_SECONDS)

    def hear(self, link: SiteLink, news: News) -> None:
        """Hear news of the interest behind a neighbour."""
        known = self._reach.take(link.site, news, self.interest.version)
        if known:
            self._answer(link.site, known)
        if self._reach.is_owing:
            self._schedule(SPREAD_SECONDS)
        if self.interest.hear(link.site, news) and link.is_up:
            self.wanted.want(link.site, self.interest.behind(link.site))
            self._change()

    def hear_reached(self, link: SiteLink, reached: Reached) -> None:
        """Hear which sites know the interest."""
        self._reach.hear(link.site, reached.versions)
        self._settle()

    def complete(self, link: SiteLink, hello: Hello) -> None:
        """Hear that the neighbour has said all interest behind it, and filters that it takes."""
        self.interest.complete(link.site)
        self.groups.note(link.site, knows_groups=hello.shares)
        self.wanted.permit(link.site, common(link.allowed, hello.allows))
        self.wanted.want(link.site, self.interest.behind(link.site))
        self._change()

    def _change(self) -> None:
        self._on_change()
        self._schedule(SPREAD_SECONDS)

    def _take(self, log_topic: str, records: list[LogRecord]) -> None:
        if self._note_asked(log_topic, records) | self.subscriptions.take(log_topic, records):
            self._schedule(SPREAD_SECONDS)
        if self.subscriptions.has_less and self._narrowing is None:
            self._narrowing = asyncio.create_task(self._narrow())
            self._narrowing.add_done_callback(self._note_end)

    async def _narrow(self) -> None:
        """Look now and then for filters wanted no longer, while there are any."""
        while self.subscriptions.has_less:
            await asyncio.sleep(max(NARROW_SECONDS, NARROW_PAUSES * self._narrowing_took))
            summarise, began_at = self.subscriptions.begin_narrowing(), self._loop.time()
            self.subscriptions.end_narrowing(await asyncio.to_thread(summarise))
            self._narrowing_took = self._loop.time() - began_at
            self._schedule(SPREAD_SECONDS)

    def _note_end(self, narrowing: asyncio.Task[None]) -> None:
        self._narrowing = None
        error = None if narrowing.cancelled() else narrowing.exception()
        if error is not None:
            self._on_failure(error)

    def _lose(self, error: LogError) -> None:
        if isinstance(error, OffsetGone):
            self._on_failure(error)  # the next run reads all of it again
        else:
            fields = {"reason": str(error)}
            _logger.warning("subscriptions cannot be read", extra={"fields": fields})

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.spread)

    def spread(self) -> None:
        """Tell all neighbours the news now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wanted = self.subscriptions.summary() | self.subscriptions.groups()
        if self.interest.want(wanted, self._clock.now_ms()):
            self._on_change()
        if self._asked > self._owed:
            self._owed = self._routes[self.interest.own.version] = self._asked
            self._reach.owe(OURSELVES, self._site, self.interest.own.version)
        for site, link in self._links.items():
            if link.connection is not None and link.connection.is_open:
                self._tell(site, link.connection)
        self._reach.all_are_told()
        self._settle()
        self._on_spread()

    def _tell(self, site: int, connection: SiteConnection) -> None:
        news = self.interest.news_for(site)
        self._reach.tell(site, news)
        connection.publish(Publish(self._topic, one) for one in encode_news(news))
        self.sent += len(news)

    # Answers of the sites that know.

    def _note_asked(self, log_topic: str, records: list[LogRecord]) -> bool:
        """Note the last route whose gateway asks; return whether there is one."""
        if log_topic != ROUTES:
            return False
        for record in records:
            if _SHARED in (record.key or b""):
                self.groups_end = record.offset
        asking = [
            record.offset
            for record in records
            if any(name == HEADER_REACH for name, _ in record.headers)
        ]
        self._asked = max(self._asked, *asking) if asking else self._asked
        return bool(asking)

    def _settle(self) -> None:
        """Tell sites and gateways that wait for it that all reachable sites know."""
        told: dict[int, dict[int, int]] = {}
        for asker, site, version in self._reach.settled():
            known = told.setdefault(asker, {})
            known[site] = max(version, known.get(site, 0))
        ours = told.pop(OURSELVES, None)
        if ours is not None:
            reached = [one for one in self._routes if one <= ours[self._site]]
            end = max(self._routes.pop(one) for one in reached)
            self._log.writer.append(GATEWAYS, REACH_KEY, encode_reach(end), [], _appended)
        for neighbour, known in told.items():
            self._answer(neighbour, known)

    def _answer(self, neighbour: int, known: dict[int, int]) -> None:
        link = self._links.get(neighbour)
        if link is not None and link.connection is not None:
            link.connection.publish([Publish(self._topic, encode_reached(Reached(known)))])
            self.sent += 1


def _appended(_partition: int, _offset: int, error: LogError | None) -> None:
    if error is not None:  # gateways that wait do so for as long as they are set to
        fields = {"reason": str(error)}
        _logger.warning("gateways do not learn which sites know", extra={"fields": fields})
