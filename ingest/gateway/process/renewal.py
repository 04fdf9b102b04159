"""The way back of a gateway that was not heard: it acts again when it knows the acts of others.

After its lease others may have its sessions: it asks for them. After less than that they may have
its shards, and with them sessions that it has begun without a record: it reads their records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError

if TYPE_CHECKING:
    from ingest.gateway.base.reports import Reports
    from ingest.gateway.base.tasks import Tasks
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.process.delivery import Delivery
    from ingest.gateway.sending.session_log import SessionLog
    from ingest.gateway.sessions.sessions import Sessions
    from ingest.gateway.shards.shards import Shards
    from ingest.gateway.sharing.share_groups import ShareGroups

logger = logging.getLogger(__name__)

REACH_SECONDS: Final = 30.0
"""How long it may take to read the records of others; then it is tried again."""


class Renewal:
    """Asks the owners of shards which sessions this gateway still holds.

    Args:
        lease: Lease of this gateway's name.
        shards: Shards of this gateway, which it claims again.
        share_groups: Give no message out until the gateway knows which memberships are its own.
        sessions: Sessions of this gateway, which it asks the owners of shards about.
        session_log: Runs the log's reports on sessions when it is known which are still held.
        answers: Run the log's reports on messages, which answer publishers, at the same time.
        delivery: Goes on with deliveries at the same time.
        tasks: Owns the coroutine that reads the records of others.
    """

    def __init__(
        self,
        lease: Lease,
        shards: Shards,
        share_groups: ShareGroups,
        sessions: Sessions,
        session_log: SessionLog,
        answers: Reports,
        delivery: Delivery,
        tasks: Tasks,
    ) -> None:
        self._lease = lease
        self._shards = shards
        self._share_groups = share_groups
        self._sessions = sessions
        self._session_log = session_log
        self._answers = answers
        self._delivery = delivery
        self._tasks = tasks
        self._is_asking = False
        self._asked_after = 0  # number of silences
        self._is_reading = False
        self._doubts = 0  # number of those that are over, and what had waited was done

    def tick(self) -> None:
        """Begin as soon as others hear this gateway again."""
        self._ask()
        self._become_sure()
        self._end_doubt()

    def _end_doubt(self) -> None:
        """Do what has waited while it was not known for how long our clock had stood still."""
        if self._doubts != self._lease.doubts and self._lease.holds():
            self._go_on()

    def _go_on(self) -> None:
        self._doubts = self._lease.doubts
        self._session_log.confirmed()
        self._answers.confirmed()
        self._share_groups.confirmed()
        self._become_sure()
        self._delivery.confirmed()

    def _ask(self) -> None:
        if not self._lease.is_lost() or not self._lease.is_in_time() or self._is_asking:
            return
        self._is_asking = True
        self._asked_after = self._lease.silences
        self._share_groups.suspend()
        self._shards.reclaim()
        self._sessions.confirm(self.confirmed)

    def confirmed(self) -> None:
        """Go on: the sessions that are left are this gateway's."""
        self._is_asking = False
        if self._lease.silences != self._asked_after:
            return  # others may have settled it since they were asked: they are asked again
        logger.info("heartbeats of this gateway arrive again")
        self._lease.confirm()
        self._go_on()

    def _become_sure(self) -> None:
        """Find out whether others have taken shards over."""
        lease = self._lease
        if lease.is_sure() or not lease.is_heard() or not lease.holds() or self._is_reading:
            return
        if self._shards.has_taken:
            self._is_reading = True
            self._tasks.start(self._read())
        else:
            lease.assure()
            self._delivery.confirmed()

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(REACH_SECONDS):
                is_reached = await self._shards.reach()
            if is_reached and self._lease.is_heard():  # else others may have done more by now
                self._lease.assure()
                self._delivery.confirmed()
        except (TimeoutError, LogError) as exc:
            logger.warning("shards cannot be read", extra={"fields": {"reason": str(exc)}})
        finally:
            self._is_reading = False
