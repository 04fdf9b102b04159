"""Follows the rights that were applied for all gateways: a record of `mqlake.gateways`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mqlake.errors import InvalidRecord
from mqlake.records.messages import RIGHTS_KEY
from mqlake.rights.applied import AppliedRights, decode_rights
from mqlake.rights.compiled import Rights

if TYPE_CHECKING:
    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.tasks import Tasks
    from ingest.gateway.peers.peers import Peers
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)


class AppliedRightsFollower:
    """Has every client go by the rights that were applied last.

    Args:
        authorizer: Goes by them.
        connections: Connections of clients that have rights already.
        peers: Know whether this gateway has read the records from before its first heartbeat.
        tasks: Owns the reading of many rules, which takes a second for 8,000.
    """

    def __init__(
        self, authorizer: Authorizer, connections: Connections, peers: Peers, tasks: Tasks
    ) -> None:
        self._authorizer = authorizer
        self._connections = connections
        self._peers = peers
        self._tasks = tasks
        self._turn = asyncio.Lock()

    def receive(self, record: LogRecord) -> None:
        """Take a record of `mqlake.gateways`.

        Raises:
            InvalidRecord: Rights that cannot be read are there when this gateway starts: it must
                not let clients in by older ones. Later on the old ones stay.
        """
        if record.key != RIGHTS_KEY or record.value is None:
            return
        if self._peers.is_read:
            self._tasks.start(self._follow(record.value))
        else:
            self._use(*_read(record.value))

    async def _follow(self, value: bytes) -> None:
        async with self._turn:  # in the order of the log
            try:
                found = await asyncio.to_thread(_read, value)
            except InvalidRecord as exc:
                logger.error(
                    "rights not applied, the old ones stay", extra={"fields": {"reason": str(exc)}}
                )
            else:
                self._use(*found)

    def _use(self, applied: AppliedRights, rights: Rights) -> None:
        self._authorizer.apply(rights, applied.version)
        for connection in list(self._connections):
            connection.admission.renew_rights()
        fields = {"version": applied.version, "by": applied.by, "rules": rights.rules}
        logger.info("rights applied", extra={"fields": fields})


def _read(value: bytes) -> tuple[AppliedRights, Rights]:
    applied = decode_rights(value)
    return applied, Rights(applied)
