"""Clients that take less than what comes: a stored session goes on from the log.

    live ──queue full──► behind: queue is sent ──► table, log ──overtaken the router──► live

Its subscriptions leave the tree, so messages for it cost the gateway nothing any more. What the
queue had no room for is read as history is (`ingest.gateway.sessions.histories`): a message when
the client has room for it, and its place is part of the session's progress. So nothing is lost,
nothing comes twice but what any crash repeats, and each topic is in its order, at whichever gateway
it goes on.

One that is slower for ever costs less than one that is away and comes back: a bounded number is
read for at a time, each has a turn, and one that takes nothing holds neither a place nor a page.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.gateway.base.drops import DropReason
from ingest.gateway.base.outbound import deliver_copies
from ingest.gateway.history.catching_up import Pages, match
from ingest.gateway.history.gaps import LONG_AWAY_SECONDS
from ingest.gateway.sessions.histories import (
    LONG_GAP_OFFSETS,
    PAGE_BYTES,
    PAGE_MESSAGES,
    RETRY_SECONDS,
    HistorySession,
    SubscribeHistory,
)
from ingest.session.client.catch_up import Missed
from ingest.session.client.fallen_behind import first_unread, recorded
from ingest.session.subscriptions import Subscriptions
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.offsets import have_reached, latest
from mqlake.records.progress import HistoryRecord
from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import is_system, split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.history.catching_up import CatchingUp, Take
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.sending.sending import Sender
    from ingest.session.subscriptions import ClientSubscription
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

MOST_READING: Final = 50
"""Clients that are read for at a time: each has a page of the table or batches of the log."""

TURN_SECONDS: Final = 10.0
"""How long one is read for while others wait. Most pages that are read twice, a client and turn."""

PATIENCE_SECONDS: Final = 60.0
"""How long one that takes nothing keeps its page."""

LEAST_SECONDS: Final = 1.0
"""Behind for so long at least: a client whose queue is always near its bound does not go to and
fro, which costs work for each of its subscriptions."""

ROUND_SECONDS: Final = 0.1
"""Between two looks at one that has caught up before that."""

DOUBT_SECONDS: Final = 0.1
"""Until it is looked again whether the session is this gateway's."""

_PORTION: Final = 50
"""Records after which others get their turn."""


class SlowSession(HistorySession, Protocol):
    """Implemented by `ingest.gateway.sessions.client_session.ClientSession`, which describes it."""

    floor: list[int] | None

    def histories(self) -> list[SubscribeHistory]: ...
    def is_catching_up(self, topic_filter: str) -> bool: ...


@dataclass(slots=True, eq=False)
class FallenBehind(SubscribeHistory):
    """Messages that a session had no room for.

    Attributes:
        not_before: By the loop's time: it stays behind until then.
        read_at: When it was last read for, by the monotonic clock; None: not known.
        tree: Its subscriptions; None: they have changed.
    """

    not_before: float = 0.0
    read_at: float | None = None
    tree: Subscriptions[Any] | None = None

    @property
    def pages(self) -> Pages:
        return Pages(PAGE_MESSAGES, PAGE_BYTES)

    def record(self) -> HistoryRecord:
        cursor = recorded(self.missed.cursor, self.session.sender.outbox.first_waiting())
        return HistoryRecord(list(self.topic_filters), 0, cursor, fell_behind=True)

    def changed(self) -> None:
        self.tree = None

    def subscriptions(self) -> Iterator[ClientSubscription[Sender]]:
        """Yield them; each counts from where it began."""
        for topic_filter in self.topic_filters:
            yield self.session.subscriptions[topic_filter]


class SlowClients:
    """Reads for all sessions of a gateway that have fallen behind.

    Args:
        context: Shared by all parts of the gateway.
        subscriptions: Those in force.
        catching_up: Reads the table and the log.
        delivered: How far the gateway has come.
        lease: While it does not hold, or is not sure, sessions may be another gateway's.

    Attributes:
        on_live: As of `Histories`.
    """

    def __init__(
        self,
        context: Context,
        subscriptions: Subscriptions[Any],
        catching_up: CatchingUp,
        delivered: Delivered,
        lease: Lease,
    ) -> None:
        self.on_live: Callable[[Any], None] = lambda _session: None
        self._context = context
        self._subscriptions = subscriptions
        self._catching_up = catching_up
        self._delivered = delivered
        self._lease = lease
        self._tasks: asyncio.TaskGroup | None = None
        self._reading: set[FallenBehind] = set()
        self._places = asyncio.Semaphore(MOST_READING)

    def __len__(self) -> int:
        """Return how many clients are behind."""
        return len({id(one.session) for one in self._reading})

    def __iter__(self) -> Iterator[FallenBehind]:
        return iter(self._reading)

    async def run(self) -> None:
        """Own the reading, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.get_running_loop().create_future()

    def fall_behind(self, session: SlowSession, partition: int, offset: int) -> bool:
        """Have a session go on from the log, from a message on that its queue has no room for.

        Returns:
            Whether it does: not by setting, nor when none of its subscriptions can.
        """
        filters = self._filters(session)
        if not filters:
            return False
        next_offsets = self._delivered.next_offsets()

        def cursor(floor: list[int]) -> list[int]:
            return first_unread(next_offsets, floor, partition, offset)

        self._begin(session, filters, cursor, LEAST_SECONDS)
        return True

    def leave(self, session: SlowSession, cursor: list[int]) -> bool:
        """Have a session that comes back go on from the log, once it is live.

        Args:
            session: Which.
            cursor: Per partition the first offset that it was not given.

        Returns:
            As of `fall_behind`.
        """
        filters = self._filters(session)
        if filters:
            session.begin_history(_behind(session, filters, cursor))
            self._tell(session)
        return bool(filters)

    def miss(self, session: SlowSession, begins: Sequence[int]) -> None:
        """Have a session go on from the log, from where deliveries have come to.

        A subscription with QoS 0 that is not read for has a row in `drops`.

        Args:
            session: Which.
            begins: Per partition the first offset that the log has; before that the table has it.
        """
        filters = _to_be_read(session)
        next_offsets = self._delivered.next_offsets()
        if filters:
            self._begin(session, filters, lambda floor: latest(next_offsets, floor), 0.0, begins)
        left = session.subscriptions.keys() - set(filters)
        if any(_has_deliveries(name) and not session.is_catching_up(name) for name in left):
            self._context.drops.add(DropReason.UNREADABLE, session.tenant, session.client_id, "", 0)
        if session.progress is not None:
            session.progress.touch()

    def _begin(
        self,
        session: SlowSession,
        filters: Sequence[str],
        begin: Callable[[list[int]], list[int]],
        least_seconds: float,
        log_begins: Sequence[int] = (),
    ) -> None:
        context = self._context
        not_before = context.loop.time() + least_seconds
        # Histories that are ahead of the gateway: what they have given is not read again.
        ahead = [one for one in session.histories() if one.is_live]
        floors = [(list(one.topic_filters), one.missed.cursor) for one in ahead]
        told = {name for names, _ in floors for name in names}
        floors.append(([name for name in filters if name not in told], []))
        for names, given in floors:
            if not names:
                continue
            cursor = begin(latest(given, session.floor))
            behind = _behind(session, names, cursor)
            behind.not_before = not_before
            if have_reached(cursor, log_begins):
                behind.read_at = context.clock.monotonic()
            session.begin_history(behind)
            self.start(behind)
        self._tell(session)

    def _filters(self, session: SlowSession) -> list[str]:
        """Return the filters whose messages are read when the queue is full."""
        catches_up = self._context.settings.when_queue_full == "catch_up"
        return _to_be_read(session) if catches_up else []

    def _tell(self, session: SlowSession) -> None:
        self._context.counters.clients_fell_behind += 1
        self._context.events.add("client.fell_behind", session.tenant, session.client_id)

    def restore(self, session: HistorySession, record: HistoryRecord) -> None:
        """Take a session up that was behind on an earlier connection."""
        filters = (one for one in record.topic_filters if one in session.subscriptions)
        session.begin_history(_behind(session, filters, list(record.cursor)))

    def start(self, behind: FallenBehind) -> None:
        """Read, unless it is not wanted any more."""
        if behind.task is None and behind.topic_filters and self._tasks is not None:
            self._reading.add(behind)
            behind.task = self._tasks.create_task(self._run(behind))
            behind.task.add_done_callback(lambda _: self._reading.discard(behind))

    async def _run(self, behind: FallenBehind) -> None:
        clock = self._context.clock
        while not (behind.is_over or behind.is_live):
            if not self._lease.may_deliver():
                await asyncio.sleep(DOUBT_SECONDS)
                continue
            await behind.session.sender.wait_for_room()  # its queue goes first
            async with self._places:
                was_at, now = behind.read_at, clock.monotonic()
                # The log may not hold it any more.
                behind.missed.is_old = was_at is None or now - was_at > LONG_AWAY_SECONDS
                rest = await self._read(behind)
                behind.read_at = clock.monotonic()
            await asyncio.sleep(rest)

    async def _read(self, behind: FallenBehind) -> float:
        """Read until it is live, or its turn is over; return how long to rest then."""
        try:
            await self._catching_up.catch_up(
                [behind], self._taker, self._go_live, to_end_of_log=True
            )
        except _TurnOver:
            return 0.0
        except LogError as error:
            logger.warning("a slow client waits", extra={"fields": {"reason": str(error)}})
            return RETRY_SECONDS
        return ROUND_SECONDS

    def _go_live(self, behind: FallenBehind) -> None:
        session, loop = behind.session, self._context.loop
        if loop.time() < behind.not_before:
            return
        if not all(one.is_counted for one in behind.subscriptions()):
            return  # its barriers are on their way
        behind.is_live = True
        for subscription in behind.subscriptions():
            subscription.starts = latest(behind.missed.cursor, subscription.starts)
            self._subscriptions.add(session.tenant, subscription)
        self.on_live(session)
        self._note(behind)
        self._context.events.add("client.caught_up", session.tenant, session.client_id)

    def _taker(self, behind: Sequence[FallenBehind]) -> Take:
        (one,) = behind  # each is read for at the pace of its client
        ends_at = self._context.loop.time() + TURN_SECONDS
        return partial(self._hand_over, one, ends_at)

    async def _hand_over(
        self, behind: FallenBehind, ends_at: float, records: list[LogRecord]
    ) -> None:
        """Give matching messages to the client, each when its window has room.

        Raises:
            _TurnOver: Others are to be read for, it takes nothing, or its session may be another
                gateway's.
        """
        for first in range(0, len(records), _PORTION):
            loop = self._context.loop
            began, given = loop.time(), 0
            portion = records[first : first + _PORTION]
            for record in portion:
                given += await self._give(behind, record)
            self._note(behind)
            if self._places.locked() and loop.time() > ends_at:
                raise _TurnOver
            # Others pay for what is read and not wanted: half of the time at most, for all of them.
            unwanted = 0.0 if given else loop.time() - began
            await asyncio.sleep(2 * len(self._reading) * unwanted)

    async def _give(self, behind: FallenBehind, record: LogRecord) -> bool:
        """Give one message to the client, if it is to have it; return whether it is."""
        sender, clock = behind.session.sender, self._context.clock
        found = match(self._tree(behind), record)
        message = None
        if found is not None:
            try:
                message = found[0].read(clock.now_ms())
            except InvalidRecord as exc:
                fields = {"reason": str(exc)}
                logger.warning("missed message cannot be read", extra={"fields": fields})
        if message is not None and message.qos and not sender.has_room:
            await _room(sender)
            found = match(self._tree(behind), record)  # it may have changed
        if found is not None and not self._lease.may_deliver():
            raise _TurnOver
        # From here on nothing else runs: a saved progress has the message and the cursor.
        behind.missed.pass_by(record.partition, record.offset)
        if message is None or found is None:
            return False
        inbound, copies = found
        deliver_copies(message, copies, inbound.tenant, self._context.drops, clock.now_ms())
        return True

    def _note(self, behind: FallenBehind) -> None:
        """Have saved how far it is."""
        if behind.session.progress is not None:
            behind.session.progress.touch()

    def _tree(self, behind: FallenBehind) -> Subscriptions[Any]:
        if behind.tree is None:
            behind.tree = Subscriptions()
            for subscription in behind.subscriptions():
                behind.tree.add(behind.session.tenant, subscription)
        return behind.tree


class _TurnOver(Exception):  # noqa: N818 - no error: it goes on later
    """Reading for a client stops here."""


async def _room(sender: Sender) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sender.wait_for_room()
    except TimeoutError:
        raise _TurnOver from None


def _behind(session: HistorySession, filters: Iterable[str], cursor: list[int]) -> FallenBehind:
    missed = Missed(cursor, list(cursor), LONG_GAP_OFFSETS)
    return FallenBehind(session, dict.fromkeys(filters), 0, missed)


def _to_be_read(session: SlowSession) -> list[str]:
    """Return the filters whose messages are read from the log.

    Not those of share groups, whose messages wait for others, too; nor the gateway's own topics.
    One with QoS 0 has no queue: it stays in force, unless a message may match another one as well.
    """
    wanted: list[str] = []
    with_qos_0: list[str] = []
    met: TopicFilterTrie[str] = TopicFilterTrie()
    for topic_filter, one in session.subscriptions.items():
        if not _has_deliveries(topic_filter) or session.is_catching_up(topic_filter):
            continue
        if one.qos:
            wanted.append(topic_filter)
            met.insert(topic_filter, topic_filter)
        else:
            with_qos_0.append(topic_filter)
    return wanted + [name for name in with_qos_0 if met.overlapping(name)]


def _has_deliveries(topic_filter: str) -> bool:
    """Tell whether a filter's messages come from the log, for its client alone."""
    return not (is_system(topic_filter) or split_shared(topic_filter).share_name)
