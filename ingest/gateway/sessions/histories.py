"""History for subscribers that ask for it: stored messages, then live ones, each message once.

    SUBSCRIBE with `mqlake-from` ──► table ──► tail of the log ──► caught up ──► live

The subscription is routed like any other: from the offsets of its barriers on the router brings
its messages. It stays out of the tree of live subscriptions while earlier ones are read, from the
table by topic and from the log. When reading has overtaken the router, it goes live at exactly the
offsets where reading stopped: no gap, no overlap.

A message is read only when the client's window has room for it, and live messages of its other
subscriptions go before; so a page at a time is in memory, however slow the client is. How far a
history has come is part of its session's progress: it goes on where it was, at any gateway.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ingest.gateway.history.catching_up import CatchingUp, Pages, give, match
from ingest.protocol.reason_codes import SubackReasonCode
from ingest.session.client.catch_up import Missed
from ingest.session.subscriptions import Subscriptions
from mqlake.errors import LogError
from mqlake.records.progress import HistoryRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.history.catching_up import Take
    from ingest.gateway.sending.progress import SessionProgress
    from ingest.gateway.sending.sending import Sender
    from ingest.protocol.packets import Subscribe
    from ingest.session.subscriptions import ClientSubscription
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

FROM_PROPERTY: Final = "mqlake-from"
"""User property of SUBSCRIBE: from when on messages are wanted; RFC 3339, or milliseconds UTC."""

RETRY_SECONDS: Final = 0.5

PAGE_MESSAGES: Final = 2_000
PAGE_BYTES: Final = 1024 * 1024
"""Payloads of a page from the table, about: one history has so much in memory."""

WINDOW_OFFSETS: Final = 50_000
"""Offsets of each partition in which a page is looked for at first."""

LONG_GAP_OFFSETS: Final = 20_000
"""A history that has fallen so far behind reads the table again, by topic."""

_TURN: Final = 50
"""Messages after which others get their turn."""


class Wish(NamedTuple):
    """A SUBSCRIBE's request for history."""

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


class HistorySession(Protocol):
    """Implemented by `ingest.gateway.sessions.client_session.ClientSession`, which describes it."""

    tenant: str
    client_id: str
    sender: Sender
    subscriptions: dict[str, ClientSubscription[Sender]]
    progress: SessionProgress | None

    def begin_history(self, history: SubscribeHistory) -> None: ...


@dataclass(slots=True, eq=False)
class SubscribeHistory:
    """Stored messages that subscriptions of one SUBSCRIBE have not got yet.

    Implements `ingest.gateway.history.catching_up.Behind`.

    Attributes:
        topic_filters: That are still subscribed.
        from_ms: Messages accepted before are left out, UTC epoch.
        missed: How far it is; it ends where the router brings the messages.
        is_live: Its subscriptions are in force. It is still kept, until deliveries have reached the
            offsets where reading stopped: the next holder of the session must not read it again.
    """

    session: HistorySession
    topic_filters: dict[str, None]
    from_ms: int
    missed: Missed
    is_live: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def client_id(self) -> str:
        return self.session.client_id

    @property
    def pages(self) -> Pages:
        return Pages(PAGE_MESSAGES, PAGE_BYTES, self.from_ms)

    @property
    def is_over(self) -> bool:
        return not self.topic_filters

    def filters(self) -> list[str]:
        return list(self.topic_filters)

    def record(self) -> HistoryRecord:
        return HistoryRecord(list(self.topic_filters), self.from_ms, list(self.missed.cursor))

    def changed(self) -> None:
        """Note that a subscription has other options."""

    def leave(self, topic_filter: str) -> None:
        """Let go of a subscription; reading ends with the last."""
        self.topic_filters.pop(topic_filter, None)
        self.changed()
        if not self.topic_filters and self.task is not None:
            self.task.cancel()


class Histories:
    """Reads for all sessions of a gateway that have asked for history.

    Args:
        context: Shared by all parts of the gateway.
        subscriptions: Those in force.
        catching_up: Reads messages that they have missed.

    Attributes:
        on_live: Gets a session, one of whose histories is to be forgotten when deliveries have
            come past it.
    """

    def __init__(
        self, context: Context, subscriptions: Subscriptions[Any], catching_up: CatchingUp
    ) -> None:
        self.on_live: Callable[[Any], None] = lambda _session: None
        self._context = context
        self._subscriptions = subscriptions
        self._catching_up = catching_up
        self._tasks: asyncio.TaskGroup | None = None
        self._reading: set[SubscribeHistory] = set()

    def __len__(self) -> int:
        return len(self._reading)

    async def run(self) -> None:
        """Own the reading of all histories, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.get_running_loop().create_future()

    def wish(self, subscribe: Subscribe) -> Wish | None:
        """Return the wish of a SUBSCRIBE; None when it asks for no history."""
        given = dict(subscribe.properties.get("user_property", ())).get(FROM_PROPERTY)
        if given is None:
            return None
        most = self._context.settings.max_history_reads
        if len(self._reading) >= most:
            reason = f"history is read for {most} subscribers already"
            return Wish(0, SubackReasonCode.QUOTA_EXCEEDED, reason)
        try:
            return Wish(read_time(given))
        except ValueError as exc:
            return Wish(0, SubackReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(exc))

    def open(
        self, session: HistorySession, topic_filters: Iterable[str], from_ms: int, starts: list[int]
    ) -> SubscribeHistory:
        """Take subscriptions out of force until they have their history; `start` reads it."""
        missed = _missed([0] * len(starts), starts)
        history = SubscribeHistory(session, dict.fromkeys(topic_filters), from_ms, missed)
        session.begin_history(history)
        return history

    def restore(self, session: HistorySession, record: HistoryRecord) -> None:
        """Take a history up that was begun on an earlier connection."""
        filters = dict.fromkeys(one for one in record.topic_filters if one in session.subscriptions)
        cursor = list(record.cursor)
        missed = _missed(cursor, list(cursor))
        session.begin_history(SubscribeHistory(session, filters, record.from_ms, missed))

    def start(self, history: SubscribeHistory) -> None:
        """Read, unless it is not wanted any more."""
        if history.task is None and history.topic_filters and self._tasks is not None:
            self._reading.add(history)
            history.task = self._tasks.create_task(self._run(history))
            history.task.add_done_callback(lambda _: self._reading.discard(history))

    async def _run(self, history: SubscribeHistory) -> None:
        while True:
            try:
                await self._catching_up.catch_up(
                    [history], self._taker, self._go_live, to_end_of_log=True
                )
                return
            except LogError as error:
                logger.warning("history waits", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(RETRY_SECONDS)

    def _go_live(self, history: SubscribeHistory) -> None:
        session = history.session
        history.is_live = True
        for topic_filter in history.topic_filters:
            subscription = session.subscriptions[topic_filter]
            subscription.starts = list(history.missed.cursor)
            self._subscriptions.add(session.tenant, subscription)
        self.on_live(session)
        self._note(history)
        logger.info(
            "a subscription has its history",
            extra={"fields": {"client_id": session.client_id, "filters": [*history.topic_filters]}},
        )

    def _taker(self, histories: Sequence[SubscribeHistory]) -> Take:
        (history,) = histories  # each is read at the pace of its client
        return partial(self._hand_over, history)

    async def _hand_over(self, history: SubscribeHistory, records: list[LogRecord]) -> None:
        """Give matching messages to the client, each when its window has room."""
        sender = history.session.sender
        tree = self._tree(history)
        for number, record in enumerate(records):
            if number % _TURN == 0:
                self._note(history)
                await asyncio.sleep(0)
                tree = self._tree(history)  # others had their turn: it may have changed
            found = None if record.timestamp_ms < history.from_ms else match(tree, record)
            if found is not None and not sender.has_room:
                await sender.wait_for_room()
                tree = self._tree(history)
                found = match(tree, record)
            # From here on nothing else runs: a saved progress has the message and the cursor.
            history.missed.pass_by(record.partition, record.offset)
            if found is not None:
                give(*found, self._context.drops, self._context.clock.now_ms())
        self._note(history)

    def _note(self, history: SubscribeHistory) -> None:
        """Have saved how far a history is."""
        if history.session.progress is not None:
            history.session.progress.touch()

    def _tree(self, history: SubscribeHistory) -> Subscriptions[Any]:
        tree: Subscriptions[Any] = Subscriptions()
        session = history.session
        for topic_filter in history.topic_filters:
            subscription = session.subscriptions[topic_filter]
            tree.add(session.tenant, replace(subscription, starts=None))
        return tree


def _missed(cursor: list[int], ends: list[int]) -> Missed:
    """Return a history's way. The table first: the log does not know where a time begins."""
    return Missed(
        cursor,
        ends,
        LONG_GAP_OFFSETS,
        is_old=True,
        window=WINDOW_OFFSETS,
        begins_anywhere=True,
    )
