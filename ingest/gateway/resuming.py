"""Sessions that come back: what was in flight goes out again, then what they have missed.

A session comes with a cursor, and with the offsets from which on the router brings what matches.
Everything between is read (`ingest.gateway.catching_up`), once for all sessions that come back
together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.gateway.catching_up import CatchingUp, Pages, give, match
from ingest.gateway.drops import DropReason
from ingest.gateway.lake.exchange import TableError
from ingest.gateway.lookup import Lookup, Position, rounds_of
from ingest.gateway.outbound import InboundMessage
from ingest.gateway.sending import Outgoing
from ingest.session.catch_up import Missed
from ingest.session.outgoing import Exchange
from ingest.session.subscriptions import ClientSubscription, Subscriptions
from mqlake.errors import InvalidRecord, LogError
from mqlake.matching import filter_matches
from mqlake.offsets import latest
from mqlake.topics import split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingest.gateway.catching_up import Take
    from ingest.gateway.client_session import ClientSession, StoredSession
    from ingest.gateway.context import Context
    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.outbound import OutboundMessage
    from mqlake.log.contract import LogRecord
    from mqlake.session_records import Outgoing as StoredOutgoing

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5

LONG_GAP_OFFSETS: Final = 100_000
"""A gap of more offsets is read from the table: by topic, not message by message."""

LONG_AWAY_SECONDS: Final = 3600.0
"""So is that of a session that was away for longer: the log may not hold it any more."""


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


@dataclass(slots=True, eq=False)
class _Gap:
    """What somebody has missed. Implements `ingest.gateway.catching_up.Behind`."""

    whom: Absent
    missed: Missed

    @property
    def tenant(self) -> str:
        return self.whom.tenant

    @property
    def client_id(self) -> str:
        return self.whom.client_id

    @property
    def pages(self) -> Pages:
        return Pages()

    @property
    def is_over(self) -> bool:
        return self.whom.is_ended

    def subscriptions(self) -> Iterator[ClientSubscription[Any]]:
        """Yield what counts, from the cursor on, or later where it began later.

        Not what it shares: others of its group have got that; nor what gets its history first.
        """
        for one in self.whom.subscriptions.values():
            topic_filter = one.topic_filter
            if not (
                split_shared(topic_filter).share_name or self.whom.is_catching_up(topic_filter)
            ):
                yield replace(one, starts=latest(self.missed.cursor, one.starts))

    def filters(self) -> list[str]:
        return [one.topic_filter for one in self.subscriptions()]


@dataclass(slots=True, eq=False)
class _Resume(_Gap):
    """A session on its way back."""

    session: ClientSession
    outgoing: list[StoredOutgoing]
    shared: dict[int, str]
    """Packet identifier -> the shared subscription that a message in flight came for."""
    on_caught_up: Callable[[list[int]], None]


class Resumer:
    """Brings sessions back.

    Args:
        context: Of the gateway.
        catching_up: Reads what they have missed.
        lookup: Finds what was in flight in the log.
        lake: Finds it in the tables; None where there are none.
    """

    def __init__(
        self, context: Context, catching_up: CatchingUp, lookup: Lookup, lake: LakeReader | None
    ) -> None:
        self._clock = context.clock
        self._drops = context.drops
        self._catching_up = catching_up
        self._lookup = lookup
        self._lake = lake
        self._ready: list[_Resume] = []
        self._wake = asyncio.Event()

    def resume(
        self,
        session: ClientSession,
        stored: StoredSession,
        cursor: Sequence[int],
        ends: Sequence[int],
        on_caught_up: Callable[[list[int]], None],
    ) -> None:
        """Give a session what it has missed.

        Args:
            session: Its filters are routed.
            stored: What the log had of it.
            cursor: Per partition the first offset that it has not been given.
            ends: From where on the router brings what matches, by partition.
            on_caught_up: Told from where on it gets what is brought. Never, when it has gone.
        """
        progress = stored.progress
        resume = _Resume(
            session,
            self._missed(cursor, ends, stored.session.disconnected_at_ms or 0),
            session,
            [] if progress is None else progress.outgoing,
            {} if progress is None else progress.shared,
            on_caught_up,
        )
        self._ready.append(resume)
        self._wake.set()

    async def run(self) -> None:
        """Read for all that wait, again and again, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = self._ready.copy()
            self._ready.clear()
            batch = [one for one in batch if not one.is_over]
            try:
                await self._restore_exchanges(batch)
                await self._catching_up.catch_up(batch, self._taker, self._go_live)
            except LogError as error:
                logger.warning(
                    "missed messages cannot be read", extra={"fields": {"reason": str(error)}}
                )
                await asyncio.sleep(RETRY_SECONDS)
                self._ready.extend(one for one in batch if one.session.is_coming_back)
                self._wake.set()

    def _go_live(self, resume: _Resume) -> None:
        resume.on_caught_up(resume.missed.cursor)

    async def read_gap(
        self, absent: Absent, start: list[int], end: list[int], since_ms: int
    ) -> None:
        """Deliver what a share group has missed, from and to these offsets by partition.

        Raises:
            LogError: The log cannot be read; some may have been delivered.
        """
        gap = _Gap(absent, self._missed(start, end, since_ms))
        await self._catching_up.read([gap], self._taker)

    def _missed(self, cursor: Sequence[int], ends: Sequence[int], since_ms: int) -> Missed:
        away_ms = self._clock.now_ms() - since_ms
        return Missed(
            list(cursor), list(ends), LONG_GAP_OFFSETS, is_old=away_ms > LONG_AWAY_SECONDS * 1000
        )

    def _taker(self, gaps: Sequence[_Gap]) -> Take:
        tree: Subscriptions[Any] = Subscriptions()
        for one in gaps:
            for subscription in one.subscriptions():
                tree.add(one.tenant, subscription)
        clock, drops = self._clock, self._drops

        async def take(records: list[LogRecord]) -> None:
            now_ms = clock.now_ms()
            for record in records:
                found = match(tree, record)
                if found is not None:
                    give(*found, drops, now_ms)
            await asyncio.sleep(0)

        return take

    async def _restore_exchanges(self, batch: list[_Resume]) -> None:
        """Read what was in flight; it goes out again under its packet identifiers."""
        wanted = {
            (one.partition, one.offset)
            for resume in batch
            for one in resume.outgoing
            if not one.released
        }
        messages = dict(await self._lookup.messages(wanted)) if wanted else {}
        for resume in batch:
            session = resume.session
            messages.update(await self._read_stored(resume, messages.keys()))
            for one in resume.outgoing:
                if one.released:
                    session.sender.restore(Exchange(one.packet_id, one.qos, None))
                    continue
                message = messages.get((one.partition, one.offset))
                if message is None:
                    self._drops.add(
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
        now_ms = self._clock.now_ms()
        for ranges in rounds_of(left):
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
