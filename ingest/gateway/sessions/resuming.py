"""Sessions that come back: messages in flight go out again, then those that they have missed.

A session comes with a cursor, and with the offsets from which on the router brings its messages.
Everything between is read (`ingest.gateway.history.catching_up`), once for all sessions that come
back together. Those with long gaps, for which a table is asked, wait for each other and not with
the rest; of them a number is brought back at a time that the first ones of thousands are soon
served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.gateway.base.drops import DropReason
from ingest.gateway.base.outbound import InboundMessage
from ingest.gateway.history.gaps import Gap, Gaps
from ingest.gateway.history.lookup import Lookup, Position, rounds_of
from ingest.gateway.lake.exchange import TableError
from ingest.gateway.log.places import Places
from ingest.gateway.sending.sender_context import OutgoingMessage
from ingest.session.client.fallen_behind import first_unread
from ingest.session.client.outgoing import Exchange
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.offsets import advance, latest
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingest.gateway.base.context import Context
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.history.catching_up import CatchingUp
    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.gateway.sessions.session_context import StoredSession
    from ingest.gateway.sessions.slow_clients import SlowClients
    from mqlake.records.messages import LogRecord
    from mqlake.records.progress import Outgoing as StoredOutgoing

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5

MOST_AT_ONCE: Final = 500
"""Sessions with long gaps: the table is asked once for them, and none is served before all are."""


@dataclass(slots=True, eq=False)
class _Resume(Gap):
    """A session on its way back.

    Implements `ingest.gateway.sending.outbox.LaterReading`.
    """

    session: ClientSession
    slow_clients: SlowClients
    log_ends: Sequence[int]
    outgoing: list[StoredOutgoing]
    shared: dict[int, str]
    """Packet identifier -> the shared subscription that a message in flight came for."""
    on_caught_up: Callable[[list[int]], None]
    is_left: bool = False

    def leave(self, partition: int, offset: int) -> bool:
        """Leave all from this message on in the log: it is read as the client takes messages."""
        if not self.is_left:
            missed = self.missed
            given: list[int] = []
            for other, last in self.given.items():
                advance(given, other, last + 1)
            cursor = first_unread(given, missed.cursor, partition, offset)
            self.is_left = self.slow_clients.leave(self.session, cursor)
            if self.is_left:
                missed.cursor = latest(missed.cursor, missed.ends)
        return self.is_left


class _Wave(NamedTuple):
    """Since when sessions have waited without a pause, and how many had gone live before."""

    began_at: float
    done_before: int


class Resumer:
    """Brings sessions back.

    Args:
        context: Shared by all parts of the gateway.
        catching_up: Reads missed messages.
        gaps: Hands them over.
        lookup: Finds messages in flight in the log.
        lake: Finds them in the tables; None where there are none.
        slow_clients: Read for those that have missed more than can wait.
    """

    def __init__(
        self,
        context: Context,
        catching_up: CatchingUp,
        gaps: Gaps,
        lookup: Lookup,
        lake: LakeReader | None,
        slow_clients: SlowClients,
    ) -> None:
        self._clock = context.clock
        self._counters = context.counters
        self._drops = context.drops
        self._catching_up = catching_up
        self._gaps = gaps
        self._lookup = lookup
        self._lake = lake
        self._slow_clients = slow_clients
        self._near = Places[_Resume](context.clock, sys.maxsize)
        self._far = Places[_Resume](context.clock, MOST_AT_ONCE)
        self._reading: set[_Resume] = set()
        self._wave = _Wave(0.0, 0)

    @property
    def waiting_count(self) -> int:
        """How many sessions are back and not live yet, with those whose clients have just gone."""
        return len(self._near) + len(self._far) + len(self._reading)

    @property
    def live_per_second(self) -> float:
        """How many have gone live a second since the first of those that wait came."""
        passed = self._clock.monotonic() - self._wave.began_at
        done = self._counters.sessions_caught_up - self._wave.done_before
        return done / passed if passed > 0 else 0.0

    def resume(
        self,
        session: ClientSession,
        stored: StoredSession,
        cursor: Sequence[int],
        ends: Sequence[int],
        on_caught_up: Callable[[list[int]], None],
    ) -> None:
        """Give a session its missed messages.

        Args:
            session: Its filters are routed.
            stored: The session in the log.
            cursor: Per partition the first offset that it has not been given.
            ends: Offsets from which on the router brings its messages, by partition.
            on_caught_up: Gets the offsets from which on it has these. Not called when it has gone.
        """
        if not self.waiting_count:
            self._wave = _Wave(self._clock.monotonic(), self._counters.sessions_caught_up)
        progress = stored.progress
        resume = _Resume(
            session,
            self._gaps.missed(cursor, ends, stored.session.disconnected_at_ms or 0),
            session,
            self._slow_clients,
            ends,
            [] if progress is None else progress.outgoing,
            {} if progress is None else progress.shared,
            on_caught_up,
        )
        session.sender.rest = resume
        is_far = self._catching_up.needs_table(resume)
        (self._far if is_far else self._near).add(resume)

    async def run(self) -> None:
        """Read for all that wait, again and again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for waiting in (self._near, self._far):
                tasks.create_task(self._bring_back(waiting))

    async def _bring_back(self, waiting: Places[_Resume]) -> None:
        while True:
            batch = await waiting.take()
            self._reading.update(batch)
            try:
                await self._restore_exchanges(batch)
                await self._catching_up.catch_up(batch, self._gaps.taker, self._go_live)
            except LogError as error:
                logger.warning(
                    "missed messages cannot be read", extra={"fields": {"reason": str(error)}}
                )
                await asyncio.sleep(RETRY_SECONDS)
                for one in batch:
                    if one.session.is_coming_back and not one.is_over:
                        waiting.add(one)
            finally:
                self._reading.difference_update(batch)

    def _go_live(self, resume: _Resume) -> None:
        self._reading.discard(resume)
        self._counters.sessions_caught_up += 1
        resume.on_caught_up(resume.missed.cursor)

    async def _restore_exchanges(self, batch: list[_Resume]) -> None:
        """Read messages in flight; they go out again under their packet identifiers."""
        wanted = {
            (one.partition, one.offset)
            for resume in batch
            for one in resume.outgoing
            if not one.released and _is_in_log(one, resume.log_ends)
        }
        messages = dict(await self._lookup.messages(wanted)) if wanted else {}
        for resume in batch:
            session = resume.session
            messages.update(await self._read_stored(resume, messages.keys()))
            for one in resume.outgoing:
                if one.released:
                    session.sender.outbox.restore(Exchange(one.packet_id, one.qos, None))
                    continue
                message = messages.get((one.partition, one.offset))
                if message is None:
                    self._drops.add(
                        DropReason.UNREADABLE, session.tenant, session.client_id, "", one.qos
                    )
                    if one.qos == 2:
                        # A client that has it would take the next message under its packet
                        # identifier for a repetition: it gets PUBREL, and answers in any case.
                        # [MQTT5-4.3.3-11]
                        session.sender.outbox.restore(Exchange(one.packet_id, one.qos, None))
                    continue
                shared_filter = resume.shared.get(one.packet_id, "")
                outgoing = _outgoing(session, message, one.qos, shared_filter)
                session.sender.outbox.restore(Exchange(one.packet_id, one.qos, outgoing))
            resume.outgoing = []
            if session.known_packet_id is not None:
                session.sender.outbox.go_on_behind(session.known_packet_id)

    async def _read_stored(
        self, resume: _Resume, found: AbstractSet[Position]
    ) -> Mapping[Position, OutboundMessage]:
        """Return messages in flight that have left the log, of history say, from the table.

        They need not match a present subscription: the client may have unsubscribed, and their
        delivery is completed all the same. [MQTT5-3.10.4-3] [MQTT311-3.10.4-3]
        """
        left = {(one.partition, one.offset) for one in resume.outgoing if not one.released} - found
        stored: dict[Position, OutboundMessage] = {}
        if self._lake is None or not left:
            return stored
        now_ms = self._clock.now_ms()
        for ranges in rounds_of(left):
            try:
                records = await self._stored_at(resume.session.tenant, ranges, left)
            except TableError as error:
                reason = {"reason": str(error)}
                logger.warning("messages in flight cannot be read", extra={"fields": reason})
                break
            for record in records:
                position = (record.partition, record.offset)
                if position in left:
                    with contextlib.suppress(InvalidRecord):
                        inbound = InboundMessage(record, dict(record.headers))
                        stored[position] = inbound.read(now_ms)
        return stored

    async def _stored_at(
        self, tenant: str, ranges: Mapping[int, tuple[int, int]], wanted: AbstractSet[Position]
    ) -> list[LogRecord]:
        assert self._lake is not None
        offsets = sorted({offset for _, offset in wanted})
        records: list[LogRecord] = []
        has_more = True
        while has_more:
            page = await self._lake.messages(tenant, ranges, None, offsets=offsets)
            records += page.records
            ends = page.next_offsets
            ranges = {partition: (ends[partition], end) for partition, (_, end) in ranges.items()}
            has_more = page.has_more
        return records


def _is_in_log(one: StoredOutgoing, log_ends: Sequence[int]) -> bool:
    """Tell whether the log may have a message: not if it has lost its end."""
    return one.partition >= len(log_ends) or one.offset < log_ends[one.partition]


def _outgoing(
    session: ClientSession, message: OutboundMessage, qos: int, shared_filter: str
) -> OutgoingMessage:
    """Return a message in flight as it goes out again."""
    matching = [
        one
        for one in session.subscriptions.values()
        if filter_matches(split_shared(one.topic_filter).topic_filter, message.topic_name)
    ]
    identifiers = tuple(one.identifier for one in matching if one.identifier is not None)
    retain = message.retain and any(one.retain_as_published for one in matching)
    return OutgoingMessage(message, qos, retain, identifiers, shared_filter)
