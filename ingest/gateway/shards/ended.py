"""Notes of sessions and share groups that this gateway has ended as owner of their shard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ingest.gateway.base.drops import DropReason

if TYPE_CHECKING:
    from ingest.gateway.base.context import Context
    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.session.groups.share_records import GroupKey
    from ingest.session.shard.effects import SessionEnded as EndedSession

logger = logging.getLogger(__name__)


class EndedSessions:
    """Counts them, and withdraws memberships.

    Args:
        context: Shared by all parts of the gateway.
        share_log: Takes the records of memberships in share groups.
    """

    def __init__(self, context: Context, share_log: ShareLog) -> None:
        self._counters = context.counters
        self._drops = context.drops
        self._share_log = share_log

    def session(self, ended: EndedSession) -> None:
        """Note the end of an absent client's session."""
        key = ended.key
        self._share_log.forget_member(key, ended.shared_filters, ended.epoch)
        if ended.is_expired:
            logger.info(
                "session expired", extra={"fields": {"tenant": key[0], "client_id": key[1]}}
            )
            self._counters.sessions_expired += 1

    def group(self, group: GroupKey, dropped: int) -> None:
        """Note the end of a share group, and how many messages no member gets."""
        if dropped:
            self._drops.add(DropReason.NO_MEMBER, group.tenant, "", "", 1, dropped)
