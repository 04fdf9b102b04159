"""The link to one neighbour: its state over connections, and a reader of the log for each.

Of two connections between the same sites one stays: the one that the site with the lower
identifier has made, unless only the other is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingest.federation.sites.interest.group_names import way_name
from ingest.federation.sites.links.events import LINK_DOWN, LINK_UP, RECORDS_GONE
from ingest.federation.sites.streams.outlet import Outlet, OutletCounters, SiteLog
from ingest.federation.sites.streams.pace import SendingPace, size_of
from ingest.federation.sites.streams.passing import EVERYTHING
from mqlake.errors import LogError, OffsetGone
from mqlake.records.messages import INBOUND, delivery_topic
from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import has_more_levels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ingest.federation.settings import FederationSettings, NeighborSettings
    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.links.events import LinkEvents
    from ingest.federation.sites.links.words import DeliveryWays
    from ingest.federation.sites.streams.streams import StreamKey
    from ingest.protocol.packets import Publish
    from mqlake.clock import Clock
    from mqlake.log.contract import LogReader
    from mqlake.log.growth import Growth
    from mqlake.records.federation import LinkPosition
    from mqlake.records.messages import LogRecord

_logger = logging.getLogger(__name__)

NOT_YET: Final = "not connected yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContext:
    """Parts of a site that all its links use.

    Attributes:
        settings: Settings of this site's federator.
        log: State that all links share: names of topics, and the topics that neighbours want.
        open_reader: Opens a reader of the site's log, which the link closes.
        clock: Clock that tells the age of messages.
        retained: Returns the latest retained messages of the site, for one that is new.
        events: Takes the events of the site's links.
        make_topic: Makes a log topic unless it is there.
    """

    settings: FederationSettings
    log: SiteLog
    open_reader: Callable[[], LogReader]
    clock: Clock
    retained: Callable[[], Awaitable[list[LogRecord]]]
    events: LinkEvents
    make_topic: Callable[[str], Awaitable[None]]


class SiteLink:
    """One neighbour.

    Args:
        context: Parts of the site that all its links use.
        neighbour: Settings of the neighbour, with its address, filters and rates.
        position: How far the neighbour has this site's log; the link moves it on.

    Attributes:
        connection: The present connection to the neighbour; None without one.
        reason: Reason why there is none.
        ends: Per partition the end of the log at the last look.
        gone: Times that the log no longer had the records that this neighbour was to get next.
    """

    def __init__(
        self,
        context: LinkContext,
        neighbour: NeighborSettings,
        position: LinkPosition,
    ) -> None:
        settings = context.settings
        self.neighbour = neighbour
        self.site = neighbour.id
        self.position = position
        self.counters = OutletCounters()
        self.connection: SiteConnection | None = None
        self.reason = NOT_YET
        self.ends: Mapping[int, int] = {}
        self.gone = 0
        self.detached = asyncio.Event()
        self.detached.set()
        self.allows = _or(neighbour.filters_in, settings.filters_in)
        """Filters of messages that it may bring here."""
        self._may_bring: TopicFilterTrie[None] = TopicFilterTrie()
        for one in self.allows:
            self._may_bring.insert(one, None)
        self.allowed = _or(neighbour.filters_out, settings.filters_out)
        """Filters of messages that it may get."""
        self._most_levels = settings.max_topic_levels
        self._log = context.log
        self._open_reader = context.open_reader
        self._clock = context.clock
        self._retained = context.retained
        self._events = context.events
        self._make_topic = context.make_topic
        self._outlet: Outlet | None = None
        self._log_readers: tuple[LogReader, ...] = ()
        self._readings: set[asyncio.Task[None]] = set()
        self._is_paused = False
        self._sent_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._out, self._in = _paces(neighbour)
        self._durable: deque[tuple[int, int]] = deque()
        """Packet identifiers and sizes whose acknowledgement waits for the rate of the link."""
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the neighbour, of all packets."""
        return self._sent_bytes + (0 if self.connection is None else self.connection.sent_bytes)

    @property
    def is_up(self) -> bool:
        """Tell whether the neighbour has said hello and gets messages."""
        return self._outlet is not None

    @property
    def waiting(self) -> int:
        """Messages that were read for it and are not acknowledged."""
        return 0 if self._outlet is None else self._outlet.waiting

    @property
    def behind(self) -> int:
        """Records of the log that it may not have, as of the last look."""
        cursor = self.position.cursor
        return sum(max(end - cursor.get(p, end), 0) for p, end in self.ends.items())

    def has_all(self, ends: Mapping[int, int]) -> bool:
        """Tell whether it has all that it takes for now of the log, up to these offsets."""
        cursor = self.position.cursor if self._outlet is None else self._outlet.ahead
        return (
            self.is_up
            and not self.position.is_new
            and all(cursor.get(partition, -1) >= end for partition, end in ends.items())
        )

    def limit(self, key: StreamKey) -> int:
        """Return the last number of a stream that it takes of this site for now."""
        return EVERYTHING if self._outlet is None else self._outlet.limits.get(key, EVERYTHING)

    def take_rates(self, neighbour: NeighborSettings) -> bool:
        """Go by new settings if nothing but rates is new in them; else return False."""
        if neighbour == self.neighbour:
            return True
        if neighbour.model_copy(update=self.neighbour.rates) != self.neighbour:
            return False
        self.neighbour = neighbour
        self._out, self._in = _paces(neighbour)
        self._stop_waiting()
        self._acknowledge()
        self._send()
        return True

    def may_bring(self, topic: str) -> bool:
        """Tell whether messages of a topic of the federation may come over this link."""
        local = self._log.prefixes.to_local(topic)
        return not has_more_levels(local, self._most_levels) and bool(self._may_bring.match(topic))

    def attach(self, connection: SiteConnection, lower: int) -> bool:
        """Take a connection; return False when the one that is there is to stay.

        Args:
            connection: It is open.
            lower: The lower identifier of both sites: whose connections are preferred.
        """
        if self.connection is not None:
            ours_is_preferred = lower != self.site
            if connection.is_client != ours_is_preferred and (
                self.connection.is_client == ours_is_preferred
            ):
                return False
            old = self.connection
            self.detach(old)
            old.close("another connection has taken its place")
        self.connection = connection
        self.reason = "no hello yet"
        self.detached.clear()
        return True

    def begin(self, connection: SiteConnection, limits: Mapping[StreamKey, int]) -> None:
        """Give the neighbour messages that are wanted behind it, from its position on.

        Args:
            connection: It has said hello on that.
            limits: The last numbers that it takes of streams.
        """
        if self._outlet is not None:
            return
        outlet = self._outlet = Outlet(
            self._log,
            self.site,
            self.position,
            window=connection.window,
            counters=self.counters,
            limits=limits,
        )
        self.reason = ""
        self._is_paused = False
        first, second = self._open_reader(), self._open_reader()
        self._log_readers = (first, second)
        connection.on_writable = self._send
        reading = asyncio.create_task(self._read(connection, outlet, first, second))
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)
        _logger.info("a link is up", extra={"fields": {"site": self.site}})
        self._events.add(LINK_UP, self.site)

    def acknowledge(self, connection: SiteConnection, publish: Publish) -> None:
        """Tell the neighbour that its message is durable here, when its rate allows another."""
        if connection is self.connection:
            self._durable.append((publish.packet_id, size_of(publish)))
            self._acknowledge()

    def acknowledged(self, packet_id: int) -> None:
        """Hear that the neighbour has a message."""
        if self._outlet is not None:
            self._outlet.acknowledge(packet_id)
            self._send()

    def returned(
        self, packet_id: int, take_back: Callable[[Publish, Callable[[], None]], None]
    ) -> None:
        """Hear that the neighbour gives a message back; it is acknowledged when that is taken."""
        outlet = self._outlet
        publish = None if outlet is None else outlet.sent(packet_id)
        if outlet is None or publish is None:
            return
        self.counters.returned += 1

        def acknowledge() -> None:
            outlet.acknowledge(packet_id)
            if outlet is self._outlet:
                self._send()

        take_back(publish, acknowledge)

    def direct(self, ways: DeliveryWays) -> None:
        """Hear which messages the neighbour wants whole."""
        if self._outlet is not None:
            self._outlet.direct(*ways)
            self._send()

    def detach(self, connection: SiteConnection) -> None:
        """Do without a connection; unacknowledged messages go over the next one."""
        if connection is not self.connection:
            return
        if self._outlet is not None:
            fields = {"site": self.site, "reason": connection.reason}
            _logger.warning("a link is down", extra={"fields": fields})
            self._events.add(LINK_DOWN, self.site, connection.reason)
        self._sent_bytes += connection.sent_bytes
        self.connection, self._outlet = None, None
        self.reason = connection.reason
        connection.on_writable = None
        self._durable.clear()
        self._stop_waiting()
        self.detached.set()

    async def close(self) -> None:
        """Read the log no more."""
        readings = list(self._readings)
        for one in readings:
            one.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    async def _read(
        self, connection: SiteConnection, outlet: Outlet, reader: LogReader, handed: LogReader
    ) -> None:
        """Follow the log until cancelled; a log that does not answer ends the connection."""
        taken = _Taken(self, outlet)
        try:
            way = delivery_topic(way_name(self._log.site, self.site))
            await self._make_topic(way)
            await handed.start(way, {0: self.position.handed}, taken.handed, taken.error)
            await reader.start(INBOUND, self.position.cursor, taken.records, taken.error)
            if self.position.is_new:
                retained = await self._retained()
                if outlet is self._outlet:
                    outlet.take_retained(retained, self._clock.now_ms())
                    self._send()
            await connection.ended.wait()
        except LogError as exc:
            connection.close(f"the log cannot be read: {exc}")
        finally:
            await reader.close()
            await handed.close()

    def see(self, ends: Mapping[int, int], growth: Growth | None) -> None:
        """Hear where the log ends; a partition that is new is read from its start.

        When the log grows, not before records of its topics in an older one. The connection ends
        for it: the next one goes on everywhere.
        """
        if growth is not None:
            count = growth.readable(self.position.cursor)
            ends = {partition: end for partition, end in ends.items() if partition < count}
        self.ends = ends
        added = ends.keys() - self.position.cursor.keys()
        if not added:
            return
        self.position.cursor.update(dict.fromkeys(added, 0))
        fields = {"site": self.site, "partitions": sorted(added)}
        _logger.warning("the log has more partitions than before", extra={"fields": fields})
        if self.connection is not None:
            self.connection.close("the log has more partitions than before")

    def take(self, outlet: Outlet, records: list[LogRecord]) -> None:
        """Take records for a connection."""
        if outlet is self._outlet:
            outlet.take(records, self._clock.now_ms())
            self._send()

    def take_handed(self, outlet: Outlet, records: list[LogRecord]) -> None:
        """Take records that the router gives to this neighbour."""
        if outlet is self._outlet:
            outlet.take_handed(records, self._clock.now_ms())
            self._send()

    def lose(self, outlet: Outlet, error: LogError) -> None:
        """Hear that the log cannot be read, or has less than it had."""
        fields = {"site": self.site, "reason": str(error)}
        if isinstance(error, OffsetGone):
            self.gone += 1
            outlet.skip()
            _logger.error("the log no longer has records for a neighbour", extra={"fields": fields})
            self._events.add(RECORDS_GONE, self.site, str(error))
        elif outlet is self._outlet:
            _logger.warning("the log does not answer", extra={"fields": fields})

    def _send(self) -> None:
        outlet, connection = self._outlet, self.connection
        if outlet is None or connection is None:
            return
        if not connection.is_paused:
            for packet_id in connection.publish(outlet.ready(self._out, self._loop.time())):
                self.counters.too_large += 1
                outlet.acknowledge(packet_id)
            if outlet.has_more:
                self._wait_for(self._out, self._send)
        if outlet.is_full != self._is_paused:
            self._is_paused = outlet.is_full
            for reader in self._log_readers:
                if self._is_paused:
                    reader.pause()
                else:
                    reader.resume()

    def _acknowledge(self) -> None:
        now = self._loop.time()
        while self._durable and self.connection is not None:
            if self._in.free_at > now:
                self._wait_for(self._in, self._acknowledge)
                return
            packet_id, size = self._durable.popleft()
            self.connection.acknowledge(packet_id)
            self._in.note(size, now)

    def _stop_waiting(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _wait_for(self, pace: SendingPace, action: Callable[[], None]) -> None:
        """Go on when a rate allows it again, once; at once if it does so by now."""
        if action in self._timers:
            return

        def go_on() -> None:
            del self._timers[action]
            action()

        self._timers[action] = self._loop.call_at(pace.free_at, go_on)


class _Taken:
    """Consumer of the reader of one connection; after the connection nothing is taken."""

    def __init__(self, link: SiteLink, outlet: Outlet) -> None:
        self._link = link
        self._outlet = outlet

    def records(self, records: list[LogRecord]) -> None:
        self._link.take(self._outlet, records)

    def handed(self, records: list[LogRecord]) -> None:
        self._link.take_handed(self._outlet, records)

    def error(self, error: LogError) -> None:
        self._link.lose(self._outlet, error)


def _paces(neighbour: NeighborSettings) -> tuple[SendingPace, SendingPace]:
    """Return how fast messages may go out, and come in."""
    return (
        SendingPace(neighbour.messages_out_per_second, neighbour.bytes_out_per_second),
        SendingPace(neighbour.messages_in_per_second, neighbour.bytes_in_per_second),
    )


def _or(own: tuple[str, ...] | None, common: tuple[str, ...]) -> tuple[str, ...]:
    return common if own is None else own
