"""Records of the sessions that this gateway holds, each in its shard.

A record says the epoch of its session: should others have settled that meanwhile, the record does
not count. So callbacks of a report of the log wait while this gateway does not know whether its
lease still held when the record came to stand in the log.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ingest.gateway.base.reports import Reports
from ingest.gateway.log.keyed_writer import RETRY_SECONDS, KeyedWriter
from mqlake.errors import LogError
from mqlake.log.contract import LogFull, LogWriter
from mqlake.records.messages import SESSIONS
from mqlake.records.progress import MarksRecord, ProgressRecord, encode_marks, encode_progress
from mqlake.records.sessions import (
    PROGRESS,
    SessionRecord,
    StoredSubscription,
    encode_session,
    encode_subscription_record,
    marks_key,
    progress_key,
    session_key,
    subscription_key,
)
from mqlake.records.shards import Key, Run, shard_of, stamp_headers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from ingest.gateway.base.ending import Ending
    from ingest.gateway.log.lease import Lease
    from mqlake.records.versions import Headers


class SessionLog:
    """Writes the sessions of this gateway.

    Args:
        writer: Appends to the log.
        me: This run of this gateway.
        lease: Lease of this gateway's name.
        ending: End of this run: says when nothing may be written any more.
        shards: How many there are.
        loop: Event loop of the gateway.
    """

    def __init__(
        self,
        writer: LogWriter,
        me: Run,
        lease: Lease,
        ending: Ending,
        shards: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._shards = shards
        self._ending = ending
        self._loop = loop
        self._writer = writer
        self._me = me
        self._reports = Reports(lease.holds)
        self._records = KeyedWriter(writer, SESSIONS, ending, self._reports.run, loop)
        self._headers = stamp_headers(me.incarnation)

    @property
    def is_saved(self) -> bool:
        """Tell whether the log has confirmed all that was written."""
        return self._records.is_saved

    def confirmed(self) -> None:
        """Run waiting reports: the sessions that are still held were held all the time."""
        self._reports.confirmed()

    def once_held(self, report: Callable[[], None]) -> None:
        """Run a report on a session that is not written, once the session is known to be held."""
        self._reports.run(report)

    def append_claim(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        """Append a record of a claim, or a question; one that ends a claim until the log has it."""
        if value is None:
            self._records.append_until_taken(key, value, headers, shard)
            return

        def report(_partition: int, offset: int, error: LogError | None) -> None:
            on_appended(offset, error)

        if not self._ending.is_trusted:
            return
        try:
            self._writer.append(SESSIONS, key, value, headers, report, partition=shard)
        except LogFull:  # publishers fill it; it is no failure
            self._loop.call_later(
                RETRY_SECONDS, self.append_claim, shard, key, value, headers, on_appended
            )
        except LogError as error:
            failure = error
            self._loop.call_soon(lambda: on_appended(-1, failure))

    def save_session(
        self,
        record: SessionRecord,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None = None,
    ) -> None:
        """Write a session; without a callback it is tried again until the log has it."""
        value = encode_session(record)
        key = (record.tenant, record.client_id)
        self._append(key, session_key(*key), value, epoch, on_saved)

    def save_subscription(
        self,
        key: Key,
        session_id: str,
        topic_filter: str,
        subscription: StoredSubscription | None,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None = None,
    ) -> None:
        """Write the record that a subscription has of its own; None: it has none any more."""
        value = None
        if subscription is not None:
            value = encode_subscription_record(session_id, subscription)
        self._append(key, subscription_key(*key, topic_filter), value, epoch, on_saved)

    def save_progress(
        self,
        key: Key,
        record: ProgressRecord,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None = None,
    ) -> None:
        """Write the progress of a session."""
        self._append(key, progress_key(*key), encode_progress(record), epoch, on_saved)

    def after_progress(self, proceed: Callable[[], None]) -> None:
        """Call back when the log has all progress that was written until now, or later records."""
        self._records.when_all_taken(f"{PROGRESS}/".encode(), proceed)

    def let_go(self, key: Key) -> None:
        """Note that others have a session: records of it from here do not count."""
        self._records.forget(progress_key(*key))

    def save_marks(self, shards: Iterable[int], marks: list[int], next_delivery: int) -> None:
        """Write into shards how far all settled sessions of this gateway have come."""
        value = encode_marks(MarksRecord(self._me.incarnation, marks, next_delivery))
        key = marks_key(self._me.gateway)
        for shard in shards:
            with contextlib.suppress(LogError):  # the next ones come soon
                self._records.append(key, value, self._headers, shard, None)

    def forget_progress(self, key: Key, epoch: int) -> None:
        """End the progress of a session."""
        self._append(key, progress_key(*key), None, epoch, None)

    def forget_session(self, key: Key, epoch: int) -> None:
        """End a session."""
        self._append(key, session_key(*key), None, epoch, None)

    def _append(
        self,
        key: Key,
        record_key: bytes,
        value: bytes | None,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None,
    ) -> None:
        shard = shard_of(*key, self._shards)
        headers = stamp_headers(self._me.incarnation, epoch)
        if on_saved is None:
            self._records.append_until_taken(record_key, value, headers, shard)
        else:
            self._records.append(record_key, value, headers, shard, on_saved)
