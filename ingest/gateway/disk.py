"""Refuses messages before the log's disk is full: a full disk would stop the log itself."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from mqlake.log.files import taken_bytes

if TYPE_CHECKING:
    from ingest.gateway.publishing import Publisher
    from ingest.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)


class DiskWatch:
    """Looks at the disk of a log that is on this machine.

    Args:
        settings: Of the gateway.
        publisher: Refuses messages while there is too little room.
    """

    def __init__(self, settings: GatewaySettings, publisher: Publisher) -> None:
        self._settings = settings
        self._publisher = publisher

    def look(self) -> None:
        """Have messages refused from now on, or accepted again."""
        log_dir = self._settings.log_dir
        if log_dir is None:
            return
        try:
            free = shutil.disk_usage(log_dir).free
        except OSError as exc:
            problem = f"the log's disk cannot be looked at: {exc.strerror}"
        else:
            least, most = self._settings.min_free_disk_bytes, self._settings.max_log_bytes
            problem = ""
            if free < least:
                problem = f"{free >> 20} MiB free on the log's disk, {least >> 20} MiB needed"
            elif most is not None and (taken := taken_bytes(log_dir)) > most:
                problem = f"{taken >> 20} MiB in the log, {most >> 20} MiB allowed"
        if problem != self._publisher.is_refusing:
            logger.warning(
                "publishers are %s",
                "refused" if problem else "accepted again",
                extra={"fields": {"reason": problem}},
            )
            self._publisher.is_refusing = problem
