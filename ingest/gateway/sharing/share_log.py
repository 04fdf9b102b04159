"""Records of this gateway about share groups, each in the shard of its group.

A record of a membership that others have taken for dead does not count. So callbacks of a report of
the log wait while this gateway does not know whether its memberships are still its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.base.reports import Reports
from ingest.gateway.log.keyed_writer import KeyedWriter
from ingest.session.groups.share_records import (
    GroupKey,
    MembershipRecord,
    encode_member,
    encode_membership,
    group_shard,
    key_of_membership,
    member_key,
    membership_key,
)
from mqlake.records.messages import SESSIONS
from mqlake.records.shards import MEMBERSHIP, Key, Run, stamp_headers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from ingest.gateway.base.ending import Ending
    from ingest.gateway.log.lease import Lease
    from ingest.session.groups.share_records import MemberRecord
    from mqlake.errors import LogError
    from mqlake.log.contract import LogWriter


class ShareLog:
    """Writes memberships of share groups, and which sessions are members.

    Args:
        writer: Appends to the log.
        me: This run of this gateway.
        lease: Lease of this gateway's name.
        ending: End of this run: says when nothing may be written any more.
        shards: How many there are.
        loop: Event loop of the gateway.

    Attributes:
        is_asking: It is not known which memberships are this gateway's.
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
        self.shards = shards
        self.is_asking = False
        self._asked_after = 0  # number of silences
        self._writer = writer
        self._me = me
        self._lease = lease
        self._loop = loop
        self._headers = stamp_headers(me.incarnation)
        self._reports = Reports(self.counts)
        self._records = KeyedWriter(writer, SESSIONS, ending, self._reports.run, loop)
        # Messages in flight of sessions, by shared subscription, as the log has them.
        self._written: dict[Key, dict[str, MemberRecord]] = {}

    @property
    def is_saved(self) -> bool:
        """Tell whether the log has confirmed all that was written."""
        return self._records.is_saved

    def counts(self) -> bool:
        """Tell whether it is known that the memberships of this gateway are its own."""
        return self._lease.holds() and not self.is_asking

    def ask(self) -> None:
        """Note that it is asked which memberships are this gateway's."""
        self.is_asking = True
        self._asked_after = self._lease.silences

    def is_answer_good(self) -> bool:
        """Tell whether the answers count: a further silence may have cost kept memberships."""
        return self._lease.is_in_time() and self._lease.silences == self._asked_after

    def confirmed(self) -> None:
        """Run waiting reports, once both are known: memberships, and that the lease holds again.

        The memberships that are left were this gateway's all the time.
        """
        self._reports.confirmed()

    def save_membership(
        self, record: MembershipRecord, on_saved: Callable[[LogError | None], None] | None = None
    ) -> None:
        """Write a membership in a share group; without a callback until the log has it.

        Raises:
            LogError: The log takes no more; only with a callback.
        """
        key, value = membership_key(record), encode_membership(record)
        shard = group_shard(record.group, self.shards)
        if on_saved is None:
            self._records.append_until_taken(key, value, self._headers, shard)
        else:
            self._records.append(key, value, self._headers, shard, on_saved)

    def after_memberships(self, proceed: Callable[[], None]) -> None:
        """Call back when the log has all memberships that were written by now, or later records."""
        self._records.when_all_taken(f"{MEMBERSHIP}/".encode(), proceed)

    def lose_membership(self, membership_id: str, group: GroupKey) -> None:
        """Note that another gateway has settled a membership: records of it do not count."""
        self._records.forget(key_of_membership(membership_id, group))

    async def leave_behind(self, record: MembershipRecord) -> None:
        """Write a membership that has left, for the messages of an absent session.

        Raises:
            LogError: The log has not taken it.
        """
        await self._writer.append_durably(
            SESSIONS,
            key_of_membership(record.membership_id, record.group),
            encode_membership(record),
            self._headers,
            partition=group_shard(record.group, self.shards),
        )

    def save_member(
        self,
        key: Key,
        epoch: int,
        records: Mapping[str, MemberRecord],
        on_saved: Callable[[], None] | None = None,
    ) -> None:
        """Write of which groups a session is a member, and its messages in flight of each.

        Args:
            key: Key of the session.
            epoch: Epoch under which it is held.
            records: By shared subscription.
            on_saved: Called when the log has them, or later ones.
        """
        before, left = self._written.get(key, {}), len(records)
        written = {one: record for one, record in before.items() if one in records}

        def taken() -> None:
            nonlocal left
            left -= 1
            if not left and on_saved is not None:
                on_saved()

        on_taken = None if on_saved is None else taken
        for topic_filter, record in records.items():
            if before.get(topic_filter) != record:
                value = encode_member(record)
                if self._append_member(key, topic_filter, epoch, value, on_taken):
                    written[topic_filter] = record
            elif on_taken is not None:
                tenant, client_id = key
                group = GroupKey(tenant, topic_filter)
                self._records.when_taken(member_key(group, client_id), on_taken)
        self._forget(key, before.keys() - records.keys(), epoch)
        self._written[key] = written
        if not records and on_saved is not None:
            on_saved()

    def let_go(self, key: Key) -> None:
        """Note that another gateway may write of which groups a session is a member."""
        self._written.pop(key, None)

    def forget_member(self, key: Key, shared_filters: Iterable[str], epoch: int | None) -> None:
        """Write that a session has ended; without an epoch it was never written."""
        before = self._written.pop(key, {})
        if epoch is not None:
            self._forget(key, {*before, *shared_filters}, epoch)

    def _forget(self, key: Key, shared_filters: Iterable[str], epoch: int) -> None:
        for topic_filter in shared_filters:
            self._append_member(key, topic_filter, epoch, None)

    def _append_member(
        self,
        key: Key,
        topic_filter: str,
        epoch: int,
        value: bytes | None,
        on_taken: Callable[[], None] | None = None,
    ) -> bool:
        tenant, client_id = key
        group = GroupKey(tenant, topic_filter)
        headers = stamp_headers(self._me.incarnation, epoch)
        shard = group_shard(group, self.shards)
        return self._records.append_until_taken(
            member_key(group, client_id), value, headers, shard, on_taken
        )

    async def until_it_counts(self) -> None:
        """Wait until it is known that the memberships of this gateway are its own."""
        counts = self._loop.create_future()

        def proceed() -> None:
            if not counts.done():
                counts.set_result(None)

        self._reports.run(proceed)
        await counts
