"""Messages of this site's log that one neighbour gets, and how far it has them.

The log is read from the cursor on, each partition in its order. A message that the neighbour wants
becomes a PUBLISH, at most `window` of them unacknowledged; the cursor of a partition stands before
the first that is. So a link that breaks, or a process that dies, repeats unacknowledged messages
and leaves out none, however long it takes.

Messages that came from the neighbour, or began there, do not go back to it.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial as bind
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ingest.federation.envelope import InvalidEnvelope, SiteMessage
from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.interest.group_names import to_federated
from ingest.federation.sites.interest.interest import NeighbourInterest
from ingest.federation.sites.streams.inlet import Acknowledge, InletVerdict, stream_of
from ingest.federation.sites.streams.log_messages import (
    Carried,
    of_handed,
    of_record,
    to_offer,
    to_publish,
)
from ingest.federation.sites.streams.pace import SendingPace, size_of
from ingest.federation.sites.streams.passing import EVERYTHING
from ingest.federation.sites.streams.retained import Stamps
from ingest.federation.sites.streams.streams import StreamKey
from ingest.protocol.packets import Publish
from mqlake.errors import InvalidRecord
from mqlake.records.federation import LinkPosition
from mqlake.records.messages import HEADER_SOURCE, LogRecord, decode_source

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

MOST_PACKET_ID: Final = 65_535

RETAINED: Final = -1
"""In the place of a partition: retained before the link was new, no cursor waits for it."""
HANDED: Final = -2
"""Sequence of a message that the router has given to this neighbour for a share group."""
NO_LIMITS: Final[Mapping[StreamKey, int]] = {}
NOBODY: Final = -1
"""In the place of an origin: it is sent whole on any path."""


@dataclass(frozen=True, slots=True)
class SiteLog:
    """State that all links of a site share."""

    site: int
    epoch: int
    tenant: str
    """Tenant whose messages are federated."""
    prefix: str
    """First level of the topics by which federators speak."""
    hop_limit: int
    prefixes: Prefixes
    wanted: NeighbourInterest
    """Topics of each neighbour: other messages may come to it on another path."""
    hear: Callable[[tuple[StreamKey, int], Acknowledge], InletVerdict]
    """Tells whether this site has had a number; of one on its way it says when it is there."""


@dataclass(slots=True)
class OutletCounters:
    sent: int = 0
    offered: int = 0
    """Messages of which it was sent the envelope alone."""
    handed: int = 0
    """Messages for a share group that has members behind it."""
    returned: int = 0
    """Those among them that it had no member for any more."""
    expired: int = 0
    over_hop_limit: int = 0
    slowed: int = 0
    """Times that its rate was reached with something left to send."""
    too_large: int = 0
    """Larger than the neighbour takes; it never gets them."""
    malformed: int = 0
    """Records whose envelope or properties cannot be read."""


@dataclass(slots=True, eq=False)
class _Sent:
    end: int
    """The cursor when this and all before is acknowledged."""
    clock: int
    """Clock of the partition there."""
    is_settled: bool = False
    before: "_Sent | None" = None
    after: "_Sent | None" = None


class _Way:
    """Unacknowledged messages of a partition, in its order.

    An acknowledged one counts with the one before it: nothing is kept of it, however many come
    behind a message that is held.
    """

    def __init__(self) -> None:
        self._ring = _Sent(0, 0)
        self._ring.before = self._ring.after = self._ring

    def __bool__(self) -> bool:
        return self._ring.after is not self._ring

    @property
    def first(self) -> _Sent:
        """The first; without any the ring itself, which is never settled."""
        return cast("_Sent", self._ring.after)

    def append(self, sent: _Sent) -> None:
        last = cast("_Sent", self._ring.before)
        sent.before, sent.after = last, self._ring
        last.after = self._ring.before = sent

    def remove(self, sent: _Sent) -> None:
        before, after = cast("_Sent", sent.before), cast("_Sent", sent.after)
        before.after, after.before = after, before

    def settle(self, sent: _Sent, left_at: int) -> None:
        """Note that one is acknowledged.

        Args:
            sent: Message that is acknowledged.
            left_at: The cursor is to stop there: an end before it and one behind do not merge.
        """
        sent.is_settled = True
        before = cast("_Sent", sent.before)
        if before is self._ring or before.end <= left_at < sent.end:
            return
        before.end, before.clock = sent.end, sent.clock
        self.remove(sent)


class _Waiting(NamedTuple):
    publish: Publish
    sent: _Sent
    partition: int
    origin: int


class Outlet:
    """One neighbour's view of the log, for as long as a connection lasts.

    Args:
        log: Log of this site.
        neighbour: Its identifier.
        position: How far it is; moves as it acknowledges.
        window: Messages that may be unacknowledged.
        counters: Counted on over connections.
        limits: The last number of a stream that the neighbour takes on this connection: the cursor
            stays before higher ones, and what is behind them is sent.

    Attributes:
        ahead: Per partition the first offset that the neighbour may not have of those it takes.
    """

    def __init__(
        self,
        log: SiteLog,
        neighbour: int,
        position: LinkPosition,
        *,
        window: int,
        counters: OutletCounters,
        limits: Mapping[StreamKey, int] = NO_LIMITS,
    ) -> None:
        self.limits = limits
        self.ahead = dict(position.cursor)
        self._left_at: dict[int, int] = {}
        """Per partition the first offset of a message above a limit."""
        self._log = log
        self._neighbour = neighbour
        self._position = position
        self._window = window
        self._counters = counters
        self._stamps = Stamps(dict(position.clock))
        self._told: dict[int, int] = {}
        """Per partition the last of this site's own messages that it got, or may get elsewhere."""
        self._ways = {partition: _Way() for partition in (*position.cursor, HANDED)}
        self._reached: dict[int, int] = {}
        """Per partition the last offset that the router has given: it may repeat itself."""
        self._handed: dict[tuple[str, int], int] = {}
        """Per group and partition the sequence that was handed over last."""
        self._queue: deque[_Waiting] = deque()
        self._unacknowledged: dict[int, _Waiting] = {}
        self._spare: set[int] = set()
        self._offered: set[int] = set()
        """Packet identifiers of unacknowledged offers."""
        self._packet_id = 0
        self._left = 0
        """Retained messages for a new neighbour that it has not acknowledged."""

    @property
    def waiting(self) -> int:
        """Messages that were read and are not acknowledged."""
        return len(self._queue) + len(self._unacknowledged)

    @property
    def has_more(self) -> bool:
        """Tell whether something could be sent but for the link's rate."""
        return bool(self._queue) and len(self._unacknowledged) < self._window

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more should be read for now."""
        return len(self._queue) >= self._window

    def skip(self) -> None:
        """Hear that records were left out: they may come on another path."""
        self._told.clear()

    def take_retained(self, records: Iterable[LogRecord], now_ms: int) -> None:
        """Take all that was retained before the neighbour was new; it has envelopes."""
        log = self._log
        for record in records:
            try:
                carried = of_record(record, log.tenant, log.site, log.epoch)
            except (InvalidEnvelope, InvalidRecord):
                self._counters.malformed += 1
                continue
            if carried is None:
                continue
            message = carried.message
            topic = log.prefixes.to_federated(message.topic)
            message.key = message.key._replace(topic=topic)
            message.after = message.sequence - 1  # others may come before it
            if self._neighbour not in log.wanted.by(topic, retain=True):
                continue
            publish = self._publish(carried, record, now_ms)
            if publish is not None:
                waiting = _Waiting(publish, _Sent(0, 0), RETAINED, message.key.origin)
                self._queue.append(waiting)
                self._left += 1
        self._position.is_new = self._left > 0

    def take(self, records: Iterable[LogRecord], now_ms: int) -> None:
        """Take records in the order of the log."""
        for record in records:
            partition, end = record.partition, record.offset + 1
            found = self._publish_of(record, now_ms)
            clock = self._stamps.clock.get(partition, 0)
            if found is not None:
                sent = _Sent(end, clock)
                self._ways[partition].append(sent)
                self._queue.append(_Waiting(found[0], sent, partition, found[1]))
            else:
                self._pass_by(partition, end, clock)

    def take_handed(self, records: Iterable[LogRecord], now_ms: int) -> None:
        """Take messages that the router gives to this neighbour: records of its delivery topic."""
        way = self._ways[HANDED]
        for record in records:
            publishes = self._handed_of(record, now_ms)
            for number, (publish, position) in enumerate(publishes, 1):
                sent = _Sent(record.offset + (number == len(publishes)), 0)
                way.append(sent)
                verdict = self._log.hear(position, bind(self._settle_all, HANDED, sent))
                if verdict is InletVerdict.NEW:
                    self._queue.append(_Waiting(publish, sent, HANDED, NOBODY))
                elif verdict is InletVerdict.DUPLICATE:  # it was returned, and is chosen for again
                    self._settle_all(HANDED, sent)
            if not publishes:
                self._pass_by(HANDED, record.offset + 1, 0)

    def sent(self, packet_id: int) -> Publish | None:
        """Return a message that is not acknowledged."""
        found = self._unacknowledged.get(packet_id)
        return None if found is None else found.publish

    def ready(self, pace: SendingPace | None = None, now: float = 0.0) -> list[Publish]:
        """Return PUBLISHes that may be sent now, with packet identifiers.

        Args:
            pace: Rate limit of the link, if it has one. When it lets nothing more through, ask
                again at `pace.free_at`.
            now: Time of a clock in seconds.
        """
        found: list[Publish] = []
        while self._queue and len(self._unacknowledged) < self._window:
            if pace is not None and pace.free_at > now:
                self._counters.slowed += 1
                break
            waiting = self._queue.popleft()
            publish, packet_id = waiting.publish, self._next_packet_id()
            if waiting.partition == HANDED:
                self._counters.handed += 1
            elif waiting.origin in self._spare:
                publish = to_offer(publish, prefix=self._log.prefix)
                self._offered.add(packet_id)
                self._counters.offered += 1
            else:
                self._counters.sent += 1
            publish.packet_id = packet_id
            self._unacknowledged[packet_id] = waiting
            found.append(publish)
            if pace is not None:
                pace.note(size_of(publish), now)
        return found

    def direct(self, spare: Collection[int], whole: Collection[int]) -> None:
        """Hear of which origins messages are to be offered only, and of which not any more.

        Their messages that are offered and not acknowledged go whole, before all later ones.

        Args:
            spare: Origins.
            whole: Origins; with none in either all of them.
        """
        self._spare.update(spare)
        again = set(whole) if spare or whole else set(self._spare)
        self._spare -= again
        taken = [
            packet_id
            for packet_id, one in self._unacknowledged.items()
            if one.origin in again and packet_id in self._offered
        ]
        self._offered.difference_update(taken)
        self._queue.extendleft([self._unacknowledged.pop(one) for one in reversed(taken)])

    def acknowledge(self, packet_id: int) -> None:
        """Hear that the neighbour has a message in its log, or wants none of it."""
        found = self._unacknowledged.pop(packet_id, None)
        if found is None:
            return
        self._offered.discard(packet_id)
        if found.partition == RETAINED:
            self._left -= 1
            self._position.is_new = self._left > 0
            return
        self._settle_all(found.partition, found.sent)

    def _pass_by(self, partition: int, end: int, clock: int) -> None:
        """Pass a record of which the neighbour gets nothing: most, where it wants little."""
        way = self._ways[partition]
        if way:
            passed = _Sent(end, clock)
            way.append(passed)
            self._settle_all(partition, passed)
        else:
            self._settle(partition, end, clock)

    def _settle_all(self, partition: int, sent: _Sent) -> None:
        """Move the cursor of a partition when all before something is acknowledged."""
        if sent.is_settled:
            return
        way = self._ways[partition]
        way.settle(sent, self._left_at.get(partition, -1))
        while way.first.is_settled:
            first = way.first
            way.remove(first)
            self._settle(partition, first.end, first.clock)

    def _settle(self, partition: int, end: int, clock: int) -> None:
        if partition == HANDED:
            self._position.handed = end
            return
        self.ahead[partition] = end
        if end > self._left_at.get(partition, end):
            return
        self._position.cursor[partition] = end
        if clock:
            self._position.clock[partition] = clock

    def _publish_of(self, record: LogRecord, now_ms: int) -> tuple[Publish, int] | None:
        """Return the PUBLISH for a record and its origin, None if the neighbour does not get it."""
        log = self._log
        try:
            carried = of_record(record, log.tenant, log.site, log.epoch)
        except (InvalidEnvelope, InvalidRecord):
            self._counters.malformed += 1
            return None
        if carried is None or carried.is_again:
            return None
        self._stamps.note(carried, log.site, record.partition)
        message = carried.message
        topic = log.prefixes.to_federated(message.topic)
        message.key = message.key._replace(topic=topic)
        wanted_by = log.wanted.by(topic, retain=message.retain)
        # A message that has expired goes to no site, so no link needs to wait for it.
        if carried.sender == log.site and wanted_by and not _is_over(message, record, now_ms):
            message.after = self._told.get(record.partition, message.after)
            self._told[record.partition] = message.sequence
        if self._neighbour not in wanted_by:
            return None
        publish = self._publish(carried, record, now_ms)
        if publish is None:
            return None
        if self.limits and message.sequence > self.limits.get(stream_of(message), EVERYTHING):
            self._left_at.setdefault(record.partition, record.offset)
            return None
        return publish, message.key.origin

    def _handed_of(
        self, record: LogRecord, now_ms: int
    ) -> list[tuple[Publish, tuple[StreamKey, int]]]:
        """Return for each share group that a record is for a PUBLISH, and its number."""
        if (record.key or b"\0").startswith(b"\0"):
            return []
        log = self._log
        found: list[tuple[Publish, tuple[StreamKey, int]]] = []
        try:
            source = decode_source(dict(record.headers).get(HEADER_SOURCE, b""))
            if source.offset <= self._reached.get(source.partition, -1):
                return []
            self._reached[source.partition] = source.offset
            at = record._replace(
                partition=source.partition,
                offset=source.offset,
                timestamp_ms=source.received_at_ms,
            )
            for local in source.shared_filters:
                group = to_federated(local, log.prefixes)
                key = (group, source.partition)
                after = self._handed.get(key, 0)
                carried = of_handed(at, group, after, log.site, log.epoch)
                if carried is None or carried.handed is None:
                    continue
                message = carried.message
                topic = log.prefixes.to_federated(message.topic)
                message.key = message.key._replace(topic=topic)
                publish = None
                if log.wanted.may_get(self._neighbour, topic):
                    publish = self._publish(carried, at, now_ms)
                if publish is not None:
                    self._handed[key] = max(after, source.offset + 1)
                    named = carried.handed.named()
                    found.append((publish, (stream_of(named), named.sequence)))
        except (InvalidEnvelope, InvalidRecord):
            self._counters.malformed += 1
        return found

    def _publish(self, carried: Carried, record: LogRecord, now_ms: int) -> Publish | None:
        """Return the PUBLISH for a message that the neighbour wants; None if it does not get it."""
        message, counters = carried.message, self._counters
        if carried.handed is None and self._neighbour in (message.key.origin, carried.sender):
            return None
        if message.hops >= self._log.hop_limit:
            counters.over_hop_limit += 1
            return None
        if not self._age(carried, max(now_ms - record.timestamp_ms, 0)):
            counters.expired += 1
            return None
        return to_publish(carried, self._log.site, prefix=self._log.prefix)

    def _age(self, carried: Carried, held_ms: int) -> bool:
        """Let a message grow older; return False when it has expired."""
        # [MQTT5-3.3.2-6]
        message = carried.message
        message.age_ms += held_ms
        expiry = message.properties.get("message_expiry_interval")
        if expiry is None:
            return True
        left = expiry - held_ms // 1000
        if left <= 0:
            return False
        message.properties = cast(
            "Properties", {**message.properties, "message_expiry_interval": left}
        )
        return True

    def _next_packet_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % MOST_PACKET_ID + 1
            if self._packet_id not in self._unacknowledged:
                return self._packet_id


def _is_over(message: SiteMessage, record: LogRecord, now_ms: int) -> bool:
    """Tell whether a message of this site's log has expired."""
    # [MQTT5-3.3.2-5]
    expiry = message.properties.get("message_expiry_interval")
    return expiry is not None and now_ms - record.timestamp_ms >= 1000 * expiry
