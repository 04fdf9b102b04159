"""Subscriptions with records of their own, as a shard reads them: which count, for which session.

A session's record holds a bounded number of subscriptions
(`ingest.session.shard.subscription_records`), each further one has a record that names its session.
A record counts as those of the session do, by its epoch. One of a session that has ended does not
count: it need not be removed before the next session of the client begins. The owner removes such
records some at a time, each under the epoch under which it was written; so records of a later
holder stay.

A record that does not count may be the last under its key: as for sessions the owner, or the
holder, writes the one that counts once more.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from ingest.session.shard import acts
from ingest.session.shard.effects import AppendRecords, ShardRecord
from mqlake.errors import InvalidRecord
from mqlake.records.sessions import decode_subscription_record, read_outline, subscription_key
from mqlake.records.shards import NO_EPOCH, stamp_headers
from mqlake.topics.names import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest.session.shard.effects import Work
    from ingest.session.shard.late_writers import LateWriters
    from mqlake.records.messages import LogRecord
    from mqlake.records.sessions import SessionOutline, SessionRecord
    from mqlake.records.shards import Key, Run, Stamp

ROWS_AT_ONCE: Final = 250
PAGE_BYTES: Final = 128 * 1024
"""Size of a control record that hands subscriptions over; the last one may go beyond."""


class SubscriptionRow(NamedTuple):
    """A record of a subscription that counts, if its session does."""

    session_id: str
    epoch: int
    value: bytes


class HeldEntry(Protocol):
    """Implemented by `ingest.session.shard.entries.ShardEntry`, which describes it."""

    @property
    def epoch(self) -> int: ...
    @property
    def holder(self) -> Run | None: ...
    @property
    def granted(self) -> object: ...
    @property
    def session(self) -> bytes | None: ...
    @property
    def session_epoch(self) -> int: ...


Entry = TypeVar("Entry", bound=HeldEntry)
Entry_co = TypeVar("Entry_co", bound=HeldEntry, covariant=True)


class SubscriptionStore(Protocol[Entry_co]):
    """The part of `ingest.session.shard.entries.ShardStore` that is about subscriptions."""

    def get(self, key: Key) -> Entry_co | None: ...
    def subscription(self, key: Key, topic_filter: str) -> SubscriptionRow | None: ...
    def put_subscription(
        self, key: Key, topic_filter: str, row: SubscriptionRow | None
    ) -> None: ...
    def has_subscriptions(self, key: Key) -> bool:
        """Tell whether there may be any; it costs nothing where there never was one."""
        ...

    def subscriptions(
        self,
        key: Key,
        after: str,
        limit: int,
        *,
        of: str | None = None,
        but_of: str | None = None,
    ) -> list[tuple[str, SubscriptionRow]]:
        """Return those behind a filter, in the order of filters.

        Args:
            key: Whose.
            after: The filter.
            limit: The most.
            of: Only those of this session.
            but_of: Only those of others.
        """
        ...


class ShardOfSubscriptions(Protocol[Entry]):
    """Implemented by `ingest.session.ownership.Shard`, which describes it."""

    me: Run
    owner_epoch: int
    is_active: bool

    @property
    def store(self) -> SubscriptionStore[Entry]: ...
    @property
    def late(self) -> LateWriters: ...
    def session(self, key: Key) -> SessionRecord | None: ...
    def counts(self, entry: Entry, stamp: Stamp) -> bool: ...
    def learn_epoch(self, key: Key, entry: Entry | None, epoch: int) -> None: ...
    def act(self, work: Work) -> None: ...


class SubscriptionsOfShard(Generic[Entry]):
    """The part of a shard that is about subscriptions with records of their own."""

    def __init__(self, shard: ShardOfSubscriptions[Entry]) -> None:
        self._shard = shard
        # Records under whose keys the last one does not count.
        self._shadowed: dict[tuple[Key, str], None] = {}
        # Clients that may have records of sessions that are over.
        self._unchecked: dict[Key, None] = {}
        self._is_sweeping = False

    # Records read

    def apply(self, key: Key, topic_filter: str, stamp: Stamp, record: LogRecord) -> None:
        """Take a record in the order of the shard.

        Raises:
            InvalidRecord: It is not that of the filter; the value before it stays.
        """
        store, value = self._shard.store, record.value
        known = store.subscription(key, topic_filter)
        if value is None and known is None:
            self._shadowed.pop((key, topic_filter), None)
            return
        entry = store.get(key)
        if not self._counts(entry, known, stamp, is_end=value is None):
            self._shadow(key, topic_filter)
            self._shard.late.wrote(key, stamp, record.timestamp_ms)
            return
        if value is None:
            store.put_subscription(key, topic_filter, None)
        else:
            found = decode_subscription_record(value)
            if found.subscription.topic_filter != topic_filter:
                raise InvalidRecord(f"subscription under key {record.key!r} is of another filter")
            if entry is None or entry.session is None or entry.session_epoch != stamp.epoch:
                self._unchecked[key] = None
            self._shard.learn_epoch(key, entry, stamp.epoch)
            row = SubscriptionRow(found.session_id, stamp.epoch, value)
            store.put_subscription(key, topic_filter, row)
        self._shadowed.pop((key, topic_filter), None)

    def _counts(
        self, entry: Entry | None, known: SubscriptionRow | None, stamp: Stamp, *, is_end: bool
    ) -> bool:
        if stamp.owner is not None:
            # An owner's record is too late behind that of a later holder.
            if known is not None and known.epoch > stamp.epoch:
                return False
            if is_end:
                return True
        return entry is None or self._shard.counts(entry, stamp)

    def session_written(
        self, key: Key, before: bytes | None, session: SessionOutline | None
    ) -> None:
        """Note that a record of a session counts: it may be another one, or its end."""
        if not self._shard.store.has_subscriptions(key):
            return
        if session is None or before is None or read_outline(before).id != session.id:
            self._unchecked[key] = None

    # Present state

    def pages(self, key: Key, session_id: str) -> Iterator[list[bytes]]:
        """Yield the records of a session, as many at a time as one record may list."""
        page: list[bytes] = []
        size = 0
        for _, row in self._rows(key, session_id):
            page.append(row.value)
            size += len(row.value)
            if len(page) == ROWS_AT_ONCE or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    def shared_filters(self, key: Key, session_id: str) -> list[str]:
        """Return the shared subscriptions of a session that have records of their own."""
        filters = (topic_filter for topic_filter, _ in self._rows(key, session_id, SHARE_PREFIX))
        return list(takewhile(lambda one: one.startswith(SHARE_PREFIX), filters))

    def _rows(
        self, key: Key, session_id: str, after: str = ""
    ) -> Iterator[tuple[str, SubscriptionRow]]:
        """Yield a session's subscriptions behind a filter, in the order of filters."""
        store = self._shard.store
        if not store.has_subscriptions(key):
            return
        while rows := store.subscriptions(key, after, ROWS_AT_ONCE, of=session_id):
            yield from rows
            after = rows[-1][0]

    # Acts of the owner

    def begin(self) -> None:
        """Write again records that do not count as they stand: this gateway acts from now on."""
        self._is_sweeping = False
        for key, topic_filter in list(self._shadowed):
            self._write_again(key, topic_filter)

    def tick(self) -> None:
        """Remove remaining records of sessions that are over."""
        if self._unchecked and not self._is_sweeping:
            self._is_sweeping = True
            self._shard.act(self._sweep(list(self._unchecked)[:ROWS_AT_ONCE]))

    async def _sweep(self, keys: Sequence[Key]) -> None:
        try:
            for key in keys:
                self._unchecked.pop(key, None)
                try:
                    await self._remove_others(key)
                except BaseException:
                    self._unchecked[key] = None  # for whenever this gateway owns the shard again
                    raise
        finally:
            self._is_sweeping = False

    async def _remove_others(self, key: Key) -> None:
        """Remove records that are not of the client's present session."""
        shard, after = self._shard, ""
        while True:
            session = shard.session(key)
            session_id = None if session is None else session.session_id
            rows = shard.store.subscriptions(key, after, ROWS_AT_ONCE, but_of=session_id)
            if not rows:
                return
            await AppendRecords(
                [
                    ShardRecord(
                        subscription_key(*key, topic_filter),
                        None,
                        stamp_headers(shard.me.incarnation, row.epoch, shard.owner_epoch),
                    )
                    for topic_filter, row in rows
                ]
            )
            after = rows[-1][0]

    def _shadow(self, key: Key, topic_filter: str) -> None:
        self._shadowed[key, topic_filter] = None
        if self._shard.is_active:
            self._write_again(key, topic_filter)

    def _write_again(self, key: Key, topic_filter: str) -> None:
        shard = self._shard
        entry = shard.store.get(key)
        if entry is not None and entry.holder is not None and entry.granted is None:
            # Only its holder knows the newest, as of a session.
            self._shadowed.pop((key, topic_filter), None)
            gateway = entry.holder.gateway
            shard.act(acts.ask(gateway, acts.REWRITE, key, entry.epoch, topic_filter))
            return
        row = shard.store.subscription(key, topic_filter)
        epoch = NO_EPOCH if entry is None else entry.session_epoch
        value = None
        if row is not None:
            epoch, value = max(epoch, row.epoch), row.value
        stamp = stamp_headers(shard.me.incarnation, epoch, shard.owner_epoch)
        shard.act(_append(ShardRecord(subscription_key(*key, topic_filter), value, stamp)))


async def _append(record: ShardRecord) -> None:
    await AppendRecords([record])
