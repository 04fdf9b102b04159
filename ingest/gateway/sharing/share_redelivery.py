"""Gives messages that members of a share group leave unacknowledged to others (5.0: 4.8.2)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ingest.gateway.base.outbound import LOCAL
from ingest.gateway.sharing.share_membership import ShareMembership
from ingest.session.groups.open_work import OpenWork
from ingest.session.groups.share_records import GroupKey, MembershipRecord, MembershipState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ingest.gateway.base.context import Context
    from ingest.gateway.sending.sender_context import OutgoingMessage
    from ingest.gateway.sharing.share_log import ShareLog
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.shards import Key


class ShareRedelivery:
    """Gives it to the membership of this gateway, or leaves it in the group's shard.

    Args:
        context: Shared by all parts of the gateway.
        log: Takes the records of memberships.
        memberships: Memberships of this gateway.
    """

    def __init__(
        self, context: Context, log: ShareLog, memberships: Mapping[GroupKey, ShareMembership]
    ) -> None:
        self._context = context
        self._log = log
        self._memberships = memberships

    def pass_on(self, tenant: str, left: Iterable[OutgoingMessage]) -> None:
        """Give others of the group messages that a member has left (5.0: 4.8.2)."""
        by_group: dict[GroupKey, list[OutgoingMessage]] = {}
        for outgoing in left:
            by_group.setdefault(GroupKey(tenant, outgoing.shared_filter), []).append(outgoing)
        for group, messages in by_group.items():
            membership = self._memberships.get(group)
            if membership is not None and membership.keeps_messages:
                membership.take_back(one.message for one in messages)
                membership.hand_out()
                continue
            positions = [(one.message.partition, one.message.offset) for one in messages]
            work = OpenWork(one for one in positions if one[0] != LOCAL)
            if work:
                self._log.save_membership(self._left(ShareMembership.new_id(), group, work))

    async def pass_on_stored(self, key: Key, progress: ProgressRecord) -> None:
        """Give others of the groups messages that the session of an absent client leaves.

        QoS 2 is not given to anybody else. [MQTT5-4.8.2-5] The rest has one name for every writer:
        it counts once.

        Raises:
            LogError: The log has not taken it.
        """
        by_group: dict[GroupKey, OpenWork] = {}
        for one in progress.outgoing:
            shared_filter = progress.shared.get(one.packet_id)
            if shared_filter and one.qos == 1:
                group = GroupKey(key[0], shared_filter)
                by_group.setdefault(group, OpenWork()).add(one.partition, one.offset)
        for group, work in by_group.items():
            name = f"{progress.session_id}/{group.topic_filter}"
            membership_id = blake2b(name.encode(), digest_size=8).hexdigest()
            await self._log.leave_behind(self._left(membership_id, group, work))

    def _left(self, membership_id: str, group: GroupKey, work: OpenWork) -> MembershipRecord:
        """Return the record of a membership that was never anything but left."""
        name, incarnation = self._context.me
        record = MembershipRecord(
            membership_id, group, name, incarnation, MembershipState.LEFT, open=work
        )
        record.at_ms = self._context.clock.now_ms()
        return record
