"""What sessions have missed, from the log: read once for all that come back together.

A session comes with a cursor and its filters. Its filters are routed first: from some offset on the
router brings what matches. Everything between the cursor and that offset is read from
`mqlake.inbound`, and reading goes on until it has overtaken what the router has brought; then the
session goes live at exactly the offset where reading stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.gateway.delivery import deliver_copies
from ingest.gateway.drops import DropReason
from ingest.gateway.lake.exchange import TableError
from ingest.gateway.outbound import InboundMessage
from ingest.gateway.sending import Outgoing
from ingest.session.effects import Search
from ingest.session.outgoing import Exchange
from ingest.session.subscriptions import ClientSubscription, Subscriptions
from mqlake.errors import InvalidRecord, LogError
from mqlake.matching import filter_matches
from mqlake.offsets import have_reached, latest
from mqlake.records import BARRIER_KEY_PREFIX, HEADER_EXCHANGE, INBOUND
from mqlake.topics import split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingest.gateway.client_session import ClientSession, StoredSession
    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.outbound import OutboundMessage
    from ingest.gateway.server import Gateway
    from mqlake.log.contract import LogRangeReader, LogRecord, Missing
    from mqlake.session_records import Outgoing as StoredOutgoing

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5

LONG_GAP_OFFSETS: Final = 100_000
"""A gap of more offsets is read from the table: by topic, not message by message."""

LONG_AWAY_SECONDS: Final = 3600.0
"""So is that of a session that was away for longer: the log may not hold it any more."""

NEAR_OFFSETS: Final = 200
"""Messages in flight whose places in the log are nearer than this are read together."""

_NOT_A_MESSAGE: Final = BARRIER_KEY_PREFIX[:1]

Position = tuple[int, int]
"""Partition and offset in `mqlake.inbound`."""


class Absent(Protocol):
    """Whoever has missed something: a session, or a share group that had no member."""

    @property
    def tenant(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def is_ended(self) -> bool: ...
    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription[Any]]:
        """Those of them count that are not shared."""
        ...

    def is_catching_up(self, topic_filter: str) -> bool:
        """Whether a subscription is given its messages otherwise."""
        ...


class _Missed(Protocol):
    """Something that was missed: `cursor` moves on to `starts`."""

    cursor: list[int]
    starts: list[int]
    disconnected_at_ms: int

    @property
    def session(self) -> Absent: ...


@dataclass(slots=True, eq=False)
class _GroupGap:
    """What a share group has missed."""

    session: Absent
    cursor: list[int]
    starts: list[int]
    disconnected_at_ms: int


@dataclass(slots=True, eq=False)
class _Resume:
    """A session on its way back."""

    session: ClientSession
    cursor: list[int]
    """Per partition the next offset to read."""
    outgoing: list[StoredOutgoing]
    disconnected_at_ms: int
    topic_filters: list[str]
    shared: dict[int, str]
    """Packet identifier -> the shared subscription that a message in flight came for."""
    starts: list[int] = field(default_factory=list)
    """From where on the router brings what matches."""


class Resumer:
    """Brings sessions back.

    Args:
        gateway: Whose sessions.
        reader: Reads ranges of `mqlake.inbound`.
        lake: Reads the tables; None where there are none.
    """

    def __init__(self, gateway: Gateway, reader: LogRangeReader, lake: LakeReader | None) -> None:
        self._gateway = gateway
        self._reader = reader
        self._lake = lake
        self._ready: list[_Resume] = []
        self._searches: list[tuple[Search, Callable[[bool], None]]] = []
        self._wake = asyncio.Event()

    def resume(self, session: ClientSession, stored: StoredSession) -> None:
        """Give a session what it has missed, then let it go live."""
        progress = stored.progress
        resume = _Resume(
            session,
            self._gateway.next_offsets() if progress is None else list(progress.cursor),
            [] if progress is None else progress.outgoing,
            stored.session.disconnected_at_ms or 0,
            list(session.subscriptions),
            {} if progress is None else progress.shared,
        )
        self._gateway.share_groups.announce(
            session.routes(resume.topic_filters),
            lambda request: request.counted.add_done_callback(
                lambda counted: self._counted(resume, counted)
            ),
        )

    def _counted(self, resume: _Resume, counted: asyncio.Future[list[int]]) -> None:
        """Take a session whose filters are routed, or let go of them when it has gone."""
        resume.starts = counted.result()
        session = resume.session
        if session.is_ended:
            for route in session.routes(resume.topic_filters):
                self._gateway.share_groups.unsubscribe(route)
            return
        session.is_routed = True
        self._ready.append(resume)
        self._wake.set()

    async def run(self) -> None:
        """Read for all that wait, again and again, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = self._ready.copy()
            self._ready.clear()
            batch = [one for one in batch if not one.session.is_ended]
            try:
                await self._search()
                await self._bring_back(batch)
            except LogError as error:
                logger.warning(
                    "missed messages cannot be read", extra={"fields": {"reason": str(error)}}
                )
                await asyncio.sleep(RETRY_SECONDS)
                self._ready.extend(one for one in batch if one.session.is_resuming)
                self._wake.set()

    async def read_gap(
        self, absent: Absent, start: list[int], end: list[int], since_ms: int
    ) -> None:
        """Deliver what a share group has missed, from and to these offsets by partition.

        Raises:
            LogError: The log cannot be read; some may have been delivered.
        """
        gap = _GroupGap(absent, list(start), end, since_ms)
        if self._lake is not None and self._is_long(gap):
            await self._read_lake(self._lake, gap)
        await self._read_gap([gap])

    def look_for(
        self, exchange: bytes, starts: list[int], on_found: Callable[[bool], None]
    ) -> None:
        """Say whether the log has the message of a QoS 2 exchange, as soon as it can be read.

        Args:
            exchange: As in its header.
            starts: Per partition the offset below which it is not.
            on_found: Told whether it is there.
        """
        self._searches.append((Search(exchange, starts), on_found))
        self._wake.set()

    async def _search(self) -> None:
        searches = self._searches.copy()
        found = await self.find(search for search, _ in searches)
        del self._searches[: len(searches)]
        for search, on_found in searches:
            on_found(search.exchange in found)

    async def find(self, searches: Iterable[Search]) -> set[bytes]:
        """Return the exchanges whose messages are in the log."""
        starts_of = {search.exchange: search.starts for search in searches}
        if not starts_of:
            return set()
        starts = [min(offsets) for offsets in zip(*starts_of.values(), strict=True)]
        ends = await self._gateway.inbound_ends()
        found: set[bytes] = set()

        async def look(records: list[LogRecord]) -> None:
            for record in records:
                for name, value in record.headers:
                    if name == HEADER_EXCHANGE and value in starts_of:
                        found.add(value)

        ranges = {partition: (start, ends[partition]) for partition, start in enumerate(starts)}
        await self._reader.read_range(INBOUND, ranges, look)
        return found

    async def _bring_back(self, batch: list[_Resume]) -> None:
        await self._restore_exchanges(batch)
        for one in batch:
            if self._lake is not None and self._is_long(one):
                await self._read_lake(self._lake, one)
        gaps = batch
        while gaps:
            gaps = [one for one in gaps if not one.session.is_ended]
            await self._read_gap(gaps)
            next_offsets = self._gateway.next_offsets()
            behind = []
            for one in gaps:
                if one.session.is_ended:
                    continue
                if have_reached(one.cursor, next_offsets):
                    self._gateway.sessions.joined(one.session, one.cursor)
                else:
                    one.starts = latest(one.cursor, next_offsets)
                    behind.append(one)
            gaps = behind

    def _is_long(self, resume: _Missed) -> bool:
        away_ms = self._gateway.clock.now_ms() - resume.disconnected_at_ms
        offsets = sum(
            max(0, start - at) for at, start in zip(resume.cursor, resume.starts, strict=True)
        )
        return offsets > LONG_GAP_OFFSETS or (offsets > 0 and away_ms > LONG_AWAY_SECONDS * 1000)

    async def _read_lake(self, lake: LakeReader, resume: _Missed) -> None:
        """Read as much of a gap from the table as it holds; the log has the rest."""
        tree: Subscriptions[Any] = Subscriptions()
        filters = self._count_missed(tree, resume)
        has_more = bool(filters)
        while has_more and not resume.session.is_ended:
            ranges = {
                partition: (at, start)
                for partition, (at, start) in enumerate(
                    zip(resume.cursor, resume.starts, strict=True)
                )
                if at < start
            }
            try:
                page = await lake.messages(resume.session.tenant, ranges, filters)
            except TableError as error:
                logger.warning(
                    "missed messages are read from the log",
                    extra={"fields": {"reason": str(error)}},
                )
                return
            now_ms = self._gateway.clock.now_ms()
            for record in page.records:
                self._deliver(tree, record, now_ms)
            for partition, offset in page.next_offsets.items():
                resume.cursor[partition] = max(resume.cursor[partition], offset)
            has_more = page.has_more

    def _count_missed(self, tree: Subscriptions[Any], resume: _Missed) -> list[str]:
        """Add what a session subscribes to a tree, from its cursor on; return the filters.

        Not what it shares: others of its group have got that; nor what gets its history first.
        """
        filters = []
        for subscription in resume.session.subscriptions.values():
            topic_filter = subscription.topic_filter
            if split_shared(topic_filter).share_name or resume.session.is_catching_up(topic_filter):
                continue
            tree.add(resume.session.tenant, _counting_from(subscription, resume.cursor))
            filters.append(topic_filter)
        return filters

    async def _read_gap(self, gaps: Sequence[_Missed]) -> None:
        """Read up to where the last of them goes live; afterwards that is the cursor of all."""
        if not gaps:
            return
        partitions = range(len(gaps[0].cursor))
        ends = [
            max(max(one.starts[partition], one.cursor[partition]) for one in gaps)
            for partition in partitions
        ]
        starts = [min(one.cursor[partition] for one in gaps) for partition in partitions]
        tree: Subscriptions[Any] = Subscriptions()
        for one in gaps:
            self._count_missed(tree, one)
        ranges = {
            partition: (starts[partition], ends[partition])
            for partition in partitions
            if starts[partition] < ends[partition]
        }

        reached = list(starts)

        async def deliver(records: list[LogRecord]) -> None:
            now_ms = self._gateway.clock.now_ms()
            for record in records:
                reached[record.partition] = record.offset + 1
                self._deliver(tree, record, now_ms)
            await asyncio.sleep(0)

        try:
            if ranges and len(tree):
                for missing in await self._reader.read_range(INBOUND, ranges, deliver):
                    self._note_missing(gaps, missing)
            reached = ends
        finally:  # after an error reading goes on where it stopped
            for one in gaps:
                one.cursor = latest(one.cursor, reached)

    def _deliver(self, tree: Subscriptions[Any], record: LogRecord, now_ms: int) -> None:
        if (record.key or b"")[:1] == _NOT_A_MESSAGE:
            return
        inbound = InboundMessage(record, dict(record.headers))
        copies = tree.copies(
            inbound.tenant, inbound.topic_name, record.partition, record.offset, inbound.publisher
        )
        if not copies:
            return
        try:
            message = inbound.read(now_ms)
        except InvalidRecord as exc:
            logger.warning("missed message cannot be read", extra={"fields": {"reason": str(exc)}})
            return
        deliver_copies(message, copies, inbound.tenant, self._gateway.drops, now_ms)

    async def _restore_exchanges(self, batch: list[_Resume]) -> None:
        """Read what was in flight; it goes out again under its packet identifiers."""
        wanted = {
            (one.partition, one.offset)
            for resume in batch
            for one in resume.outgoing
            if not one.released
        }
        messages = dict(await self.read_messages(wanted)) if wanted else {}
        for resume in batch:
            session = resume.session
            messages.update(await self._read_stored(resume, messages.keys()))
            for one in resume.outgoing:
                if one.released:
                    session.sender.restore(Exchange(one.packet_id, one.qos, None))
                    continue
                message = messages.get((one.partition, one.offset))
                if message is None:
                    self._gateway.drops.add(
                        DropReason.UNREADABLE, session.tenant, session.client_id, "", one.qos
                    )
                    continue
                shared_filter = resume.shared.get(one.packet_id, "")
                outgoing = _outgoing(session, message, one.qos, shared_filter)
                session.sender.restore(Exchange(one.packet_id, one.qos, outgoing))
            resume.outgoing = []

    async def _read_stored(
        self, resume: _Resume, found: AbstractSet[Position]
    ) -> Mapping[Position, OutboundMessage]:
        """Return what was in flight and is no longer in the log, of history say, from the table."""
        left = {(one.partition, one.offset) for one in resume.outgoing if not one.released} - found
        filters = [split_shared(one).topic_filter for one in resume.session.subscriptions]
        stored: dict[Position, OutboundMessage] = {}
        if self._lake is None or not left or not filters:
            return stored
        now_ms = self._gateway.clock.now_ms()
        for ranges in _rounds(_near(left)):
            try:
                page = await self._lake.messages(resume.session.tenant, ranges, filters)
            except TableError as error:
                reason = {"reason": str(error)}
                logger.warning("messages in flight cannot be read", extra={"fields": reason})
                break
            for record in page.records:
                position = (record.partition, record.offset)
                if position in left:
                    with contextlib.suppress(InvalidRecord):
                        inbound = InboundMessage(record, dict(record.headers))
                        stored[position] = inbound.read(now_ms)
        return stored

    async def read_messages(self, wanted: set[Position]) -> Mapping[Position, OutboundMessage]:
        """Return the messages at these places; those that the log does not hold are missing.

        Raises:
            LogError: The log cannot be read.
        """
        found: dict[Position, OutboundMessage] = {}

        async def take(records: list[LogRecord]) -> None:
            now_ms = self._gateway.clock.now_ms()
            for record in records:
                position = (record.partition, record.offset)
                if position not in wanted:
                    continue
                try:
                    found[position] = InboundMessage(record, dict(record.headers)).read(now_ms)
                except InvalidRecord as exc:
                    logger.warning(
                        "message in flight cannot be read", extra={"fields": {"reason": str(exc)}}
                    )

        for ranges in _rounds(_near(wanted)):
            await self._reader.read_range(INBOUND, ranges, take)
        return found

    def _note_missing(self, gaps: Sequence[_Missed], missing: Missing) -> None:
        logger.warning(
            "the log does not hold what sessions have missed",
            extra={
                "fields": {
                    "partition": missing.partition,
                    "from": missing.start,
                    "to": missing.end,
                    "sessions": len(gaps),
                }
            },
        )
        for one in gaps:
            if one.cursor[missing.partition] < missing.end:
                session = one.session
                self._gateway.drops.add(
                    DropReason.UNREADABLE, session.tenant, session.client_id, "", 1
                )


def _counting_from(
    subscription: ClientSubscription[Any], cursor: list[int]
) -> ClientSubscription[Any]:
    """Return a copy that counts from the cursor, or later where it began later."""
    return replace(subscription, starts=latest(cursor, subscription.starts))


def _outgoing(
    session: ClientSession, message: OutboundMessage, qos: int, shared_filter: str
) -> Outgoing:
    """Return a message in flight as it goes out again."""
    matching = [
        one
        for one in session.subscriptions.values()
        if filter_matches(split_shared(one.topic_filter).topic_filter, message.topic_name)
    ]
    identifiers = tuple(one.identifier for one in matching if one.identifier is not None)
    retain = message.retain and any(one.retain_as_published for one in matching)
    return Outgoing(message, qos, retain, identifiers, shared_filter)


def _near(wanted: Iterable[Position]) -> list[tuple[int, int, int]]:
    """Return (partition, start, end) that hold all positions, near ones together."""
    merged: list[tuple[int, int, int]] = []
    for partition, offset in sorted(wanted):
        if merged:
            last, start, end = merged[-1]
            if last == partition and offset - end < NEAR_OFFSETS:
                merged[-1] = (partition, start, offset + 1)
                continue
        merged.append((partition, offset, offset + 1))
    return merged


def _rounds(pieces: list[tuple[int, int, int]]) -> list[dict[int, tuple[int, int]]]:
    """Return reads with at most one range in each partition."""
    rounds: list[dict[int, tuple[int, int]]] = []
    for partition, start, end in pieces:
        for ranges in rounds:
            if partition not in ranges:
                ranges[partition] = (start, end)
                break
        else:
            rounds.append({partition: (start, end)})
    return rounds
