"""The way back of a gateway whose lease was over: it acts again when it knows what others did."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.gateway.delivery import Delivery
    from ingest.gateway.peers import Lease
    from ingest.gateway.session_log import SessionLog
    from ingest.gateway.sessions import Sessions
    from ingest.gateway.shards import Shards
    from ingest.gateway.share_groups import ShareGroups

logger = logging.getLogger(__name__)


class Renewal:
    """Asks the owners of shards what this gateway still holds.

    Args:
        lease: Of this gateway.
        shards: Are claimed anew.
        share_groups: Give nothing out until they know.
        sessions: Are asked for.
        session_log: Goes on when they are known.
        delivery: Likewise.
    """

    def __init__(
        self,
        lease: Lease,
        shards: Shards,
        share_groups: ShareGroups,
        sessions: Sessions,
        session_log: SessionLog,
        delivery: Delivery,
    ) -> None:
        self._lease = lease
        self._shards = shards
        self._share_groups = share_groups
        self._sessions = sessions
        self._session_log = session_log
        self._delivery = delivery
        self._is_asking = False

    def tick(self) -> None:
        """Begin as soon as others hear this gateway again."""
        if self._lease.holds() or not self._lease.is_in_time() or self._is_asking:
            return
        self._is_asking = True
        self._share_groups.suspend()
        self._shards.reclaim()
        self._sessions.confirm(self.confirmed)

    def confirmed(self) -> None:
        """Go on: the sessions that are left are this gateway's."""
        logger.info("this gateway is heard of again")
        self._is_asking = False
        self._lease.confirm()
        self._session_log.confirmed()
        self._delivery.confirmed()
