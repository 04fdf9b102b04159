"""The audit log: records of `mqlake.events`, of which the table `audit_log` is made."""

import logging
from typing import Final

from api.log.appending import LogAppender
from mqlake.clock import Clock
from mqlake.errors import LogError, OperationalError
from mqlake.records.audit import AuditRecord, encode_audit
from mqlake.records.messages import EVENTS
from mqlake.records.tenants import DEFAULT_TENANT

_logger = logging.getLogger(__name__)

_KEY: Final = f"{DEFAULT_TENANT}/".encode()


class AuditLog:
    """Writes the records; safe to use from any thread.

    Args:
        log: Log that takes the records.
        clock: Gives the times of records.
    """

    def __init__(self, log: LogAppender, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def write(self, record: AuditRecord) -> None:
        """Append a record; one that the log refuses becomes a line of the process's own log.

        The change itself is there then, or the log has not taken that either.
        """
        value = encode_audit(record)
        try:
            self._log.append(EVENTS, _KEY, value, what="audit record")
        except (OperationalError, LogError) as exc:
            fields = {"reason": str(exc), "record": value.decode()}
            _logger.error("not in the audit log", extra={"fields": fields})
