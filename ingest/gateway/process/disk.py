"""Refuses messages while the log is full: a full disk would stop the log itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.gateway.routing.publishing import Publisher
    from mqlake.processes.log_disk import LogDisk

logger = logging.getLogger(__name__)


class DiskWatch:
    """Looks at the disk of a log that is on this machine.

    Args:
        disk: Disk of the log.
        publisher: Refuses messages while there is too little room.
    """

    def __init__(self, disk: LogDisk, publisher: Publisher) -> None:
        self._disk = disk
        self._publisher = publisher

    def look(self) -> None:
        """Have messages refused from now on, or accepted again."""
        problem = self._disk.look()
        if problem != self._publisher.is_refusing:
            logger.warning(
                "publishers are %s",
                "refused" if problem else "accepted again",
                extra={"fields": {"reason": problem}},
            )
            self._publisher.is_refusing = problem
