"""History for subscribers that ask for it: first what was, then what comes, each message once.

    SUBSCRIBE with `mqlake-from` ──► table ──► tail of the log ──► caught up ──► live

The subscription is routed like any other: from the offsets of its barriers on the router brings
what matches. It stays out of the tree of live subscriptions while its messages are read, from the
table by topic and from the log. When reading has overtaken what the router has brought, it goes
live at exactly the offsets where reading stopped: no gap, no overlap.

A message is read only when the client's window has room for it, and live messages of its other
subscriptions go before; so a page at a time is in memory, however slow the client is. How far a
history has come is part of its session's progress: it goes on where it was, at any gateway.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingest.gateway.delivery import deliver_copies
from ingest.gateway.drops import DropReason
from ingest.gateway.lake.exchange import TableError
from ingest.gateway.outbound import InboundMessage
from ingest.protocol.reason_codes import SubackReasonCode
from ingest.session.subscriptions import Subscriptions
from mqlake.errors import InvalidRecord, LogError
from mqlake.offsets import have_reached, latest
from mqlake.records import BARRIER_KEY_PREFIX, INBOUND
from mqlake.session_records import HistoryRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.client_session import ClientSession
    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.server import Gateway
    from ingest.protocol.packets import Subscribe
    from mqlake.log.contract import LogRangeReader, LogRecord

logger = logging.getLogger(__name__)

FROM_PROPERTY: Final = "mqlake-from"
"""User property of SUBSCRIBE: from when on messages are wanted; RFC 3339, or milliseconds UTC."""

RETRY_SECONDS: Final = 0.5

PAGE_MESSAGES: Final = 2_000
PAGE_BYTES: Final = 1024 * 1024
"""Payloads of a page from the table, about: what one history has in memory."""

WINDOW_OFFSETS: Final = 50_000
"""Of each partition that a page is looked for in at first; where little matches it grows. A table
that is asked for all of its rest, a page at a time, is read through for each."""

LONG_GAP_OFFSETS: Final = 20_000
"""A history that has fallen so far behind reads the table again, by topic."""

_TURN: Final = 50
"""Messages after which others get their turn."""

_NOT_A_MESSAGE: Final = BARRIER_KEY_PREFIX[:1]


class Wish(NamedTuple):
    """What a SUBSCRIBE says about history."""

    from_ms: int
    refusal: SubackReasonCode | None = None
    reason: str = ""


def read_time(text: str) -> int:
    """Return a time as milliseconds UTC.

    Raises:
        ValueError: Neither RFC 3339 with a time zone nor a whole number of milliseconds.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"{FROM_PROPERTY} is {text[:50]!r}, expected 2026-01-31T12:00:00Z or milliseconds"
        )
    return max(0, round(moment.timestamp() * 1000))


@dataclass(slots=True, eq=False)
class History:
    """What subscriptions of one SUBSCRIBE have not got yet.

    Attributes:
        topic_filters: That are still subscribed.
        from_ms: Messages accepted before are left out, UTC epoch.
        cursor: Per partition the next offset; everything before it was handed over.
        starts: Per partition from where on the router brings what matches.
        is_live: Its subscriptions are in force. It is still kept, until the gateway has come to
            where reading stopped: whoever brings the session back must not read that again.
    """

    session: ClientSession
    topic_filters: dict[str, None]
    from_ms: int
    cursor: list[int]
    starts: list[int]
    is_live: bool = False
    task: asyncio.Task[None] | None = None

    def record(self) -> HistoryRecord:
        return HistoryRecord(list(self.topic_filters), self.from_ms, list(self.cursor))

    def leave(self, topic_filter: str) -> None:
        """Let go of a subscription; reading ends with the last."""
        self.topic_filters.pop(topic_filter, None)
        if not self.topic_filters and self.task is not None:
            self.task.cancel()


class Histories:
    """Reads for all sessions of a gateway that have asked for history.

    Args:
        gateway: Whose sessions.
        reader: Reads ranges of `mqlake.inbound`.
        lake: Reads the tables; None where there are none: the log has all there is.
    """

    def __init__(self, gateway: Gateway, reader: LogRangeReader, lake: LakeReader | None) -> None:
        self._gateway = gateway
        self._reader = reader
        self._lake = lake
        self._tasks: asyncio.TaskGroup | None = None
        self._reading: set[History] = set()

    def __len__(self) -> int:
        return len(self._reading)

    async def run(self) -> None:
        """Own the reading of all histories, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.get_running_loop().create_future()

    def wish(self, subscribe: Subscribe) -> Wish | None:
        """Return what a SUBSCRIBE asks for; None when it asks for no history."""
        given = dict(subscribe.properties.get("user_property", ())).get(FROM_PROPERTY)
        if given is None:
            return None
        most = self._gateway.settings.max_history_reads
        if len(self._reading) >= most:
            reason = f"history is read for {most} subscribers already"
            return Wish(0, SubackReasonCode.QUOTA_EXCEEDED, reason)
        try:
            return Wish(read_time(given))
        except ValueError as exc:
            return Wish(0, SubackReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(exc))

    def open(
        self, session: ClientSession, topic_filters: Iterable[str], from_ms: int, starts: list[int]
    ) -> History:
        """Take subscriptions out of force until they have their history; `start` reads it."""
        history = History(session, dict.fromkeys(topic_filters), from_ms, [0] * len(starts), starts)
        session.begin_history(history)
        return history

    def restore(self, session: ClientSession, record: HistoryRecord) -> None:
        """Take a history up that was begun on an earlier connection."""
        filters = dict.fromkeys(one for one in record.topic_filters if one in session.subscriptions)
        cursor = list(record.cursor)
        session.begin_history(History(session, filters, record.from_ms, cursor, list(cursor)))

    def start(self, history: History) -> None:
        """Read, unless nobody wants it any more."""
        if history.task is None and history.topic_filters and self._tasks is not None:
            self._reading.add(history)
            history.task = self._tasks.create_task(self._run(history))
            history.task.add_done_callback(lambda _: self._reading.discard(history))

    async def _run(self, history: History) -> None:
        # The table first: the log alone does not know where a time begins.
        is_long = True
        while True:
            try:
                ends = latest(await self._ends(), history.starts)
                is_partial = False
                if self._lake is not None and is_long:
                    is_partial = not await self._read_table(self._lake, history, ends)
                await self._read_log(history, ends, is_partial=is_partial)
            except LogError as error:
                logger.warning("history waits", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(RETRY_SECONDS)
                continue
            next_offsets = self._gateway.next_offsets()
            if have_reached(history.cursor, next_offsets):
                self._go_live(history)
                return
            behind = zip(next_offsets, history.cursor, strict=True)
            is_long = sum(max(0, end - at) for end, at in behind) > LONG_GAP_OFFSETS

    async def _ends(self) -> list[int]:
        ends = await self._gateway.inbound_ends()
        return [ends[partition] for partition in range(len(ends))]

    def _go_live(self, history: History) -> None:
        session = history.session
        history.is_live = True
        for topic_filter in history.topic_filters:
            subscription = session.subscriptions[topic_filter]
            subscription.starts = list(history.cursor)
            self._gateway.subscriptions.add(session.tenant, subscription)
        self._note(history)
        logger.info(
            "a subscription has its history",
            extra={"fields": {"client_id": session.client_id, "filters": [*history.topic_filters]}},
        )

    async def _read_table(self, lake: LakeReader, history: History, ends: list[int]) -> bool:
        """Read as much as the table has; the log has the rest. False: it cannot be read."""
        window = WINDOW_OFFSETS
        unread = set(range(len(ends)))
        while unread:
            ranges = {
                partition: (at, min(ends[partition], at + window))
                for partition, at in enumerate(history.cursor)
                if partition in unread and at < ends[partition]
            }
            if not ranges:
                break
            try:
                page = await lake.messages(
                    history.session.tenant,
                    ranges,
                    list(history.topic_filters),
                    limit=PAGE_MESSAGES,
                    not_before_ms=history.from_ms,
                    max_bytes=PAGE_BYTES,
                )
            except TableError as error:
                logger.warning(
                    "history is read from the log", extra={"fields": {"reason": str(error)}}
                )
                return False
            await self._hand_over(history, page.records)
            for partition, offset in page.next_offsets.items():
                history.cursor[partition] = max(history.cursor[partition], offset)
                if not page.has_more and offset < ranges[partition][1]:
                    unread.discard(partition)  # the table ends there
            if len(page.records) < PAGE_MESSAGES // 2:
                window *= 2
        return True

    async def _read_log(self, history: History, ends: list[int], *, is_partial: bool) -> None:
        ranges = {
            partition: (at, end)
            for partition, (at, end) in enumerate(zip(history.cursor, ends, strict=True))
            if at < end
        }
        if not ranges:
            return

        async def take(records: list[LogRecord]) -> None:
            await self._hand_over(history, records)

        for missing in await self._reader.read_range(INBOUND, ranges, take):
            if missing.start or is_partial:  # else there is no history before it
                session = history.session
                logger.warning(
                    "the log does not hold all of a history",
                    extra={
                        "fields": {
                            "client_id": session.client_id,
                            "partition": missing.partition,
                            "from": missing.start,
                            "to": missing.end,
                        }
                    },
                )
                self._gateway.drops.add(
                    DropReason.UNREADABLE, session.tenant, session.client_id, "", 1
                )
        for partition, (_, end) in ranges.items():
            history.cursor[partition] = max(history.cursor[partition], end)

    async def _hand_over(self, history: History, records: list[LogRecord]) -> None:
        """Give what matches to the client, each message when its window has room."""
        sender = history.session.sender
        tree = self._tree(history)
        for number, record in enumerate(records):
            if number % _TURN == 0:
                self._note(history)
                await asyncio.sleep(0)
                tree = self._tree(history)  # others had their turn: it may have changed
            found = self._matching(tree, record, history.from_ms)
            if found is not None and not sender.has_room:
                await sender.wait_for_room()
                tree = self._tree(history)
                found = self._matching(tree, record, history.from_ms)
            # From here on nothing else runs: a saved progress has the message and the cursor.
            history.cursor[record.partition] = max(
                history.cursor[record.partition], record.offset + 1
            )
            if found is not None:
                self._deliver(tree, found)
        self._note(history)

    def _note(self, history: History) -> None:
        """Have saved how far a history is."""
        if history.session.progress is not None:
            history.session.progress.touch()

    def _tree(self, history: History) -> Subscriptions[Any]:
        tree: Subscriptions[Any] = Subscriptions()
        session = history.session
        for topic_filter in history.topic_filters:
            subscription = session.subscriptions[topic_filter]
            tree.add(session.tenant, replace(subscription, starts=None))
        return tree

    def _matching(
        self, tree: Subscriptions[Any], record: LogRecord, from_ms: int
    ) -> InboundMessage | None:
        if record.timestamp_ms < from_ms or (record.key or b"")[:1] == _NOT_A_MESSAGE:
            return None
        inbound = InboundMessage(record, dict(record.headers))
        return inbound if _copies(tree, inbound) else None

    def _deliver(self, tree: Subscriptions[Any], inbound: InboundMessage) -> None:
        now_ms = self._gateway.clock.now_ms()
        try:
            message = inbound.read(now_ms)
        except InvalidRecord as exc:
            logger.warning("history cannot be read", extra={"fields": {"reason": str(exc)}})
            return
        copies = _copies(tree, inbound)
        deliver_copies(message, copies, inbound.tenant, self._gateway.drops, now_ms)


def _copies(tree: Subscriptions[Any], inbound: InboundMessage) -> list[Any]:
    return tree.copies(inbound.tenant, inbound.topic_name, 0, 0, inbound.publisher)
