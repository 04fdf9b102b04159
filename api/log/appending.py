"""Appending to the log: the API waits until every in-sync replica has the record."""

import threading
from collections.abc import Sequence
from typing import Final

from mqlake.log.blocking import TIMEOUT_SECONDS, Append, BlockingWriter
from mqlake.log.contract import ANY_PARTITION
from mqlake.processes.log_disk import ELSEWHERE, LogDisk, LogDiskFull
from mqlake.records.messages import DEAD_LETTERS, INBOUND, OUTPUTS
from mqlake.records.versions import Headers

CLIENT_ID = "mqlake-api"
MASSES: Final = (INBOUND, OUTPUTS, DEAD_LETTERS)
"""Log topics to which jobs append what may be a lot: nothing while the log is full. A single record
is always appended, as it may be what frees the disk (a rule is stopped, a message deleted)."""


class LogAppender:
    """Appends records; safe to use from any thread.

    Args:
        servers: host:port[,host:port…].
        timeout_seconds: For the log to answer.
        disk: Disk of the log.
    """

    def __init__(
        self,
        servers: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        disk: LogDisk = ELSEWHERE,
    ) -> None:
        self.servers = servers
        self._disk = disk
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._writer: BlockingWriter | None = None

    def append(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        *,
        what: str,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        """Append a record, wait until the log has it and return its offset.

        Args:
            log_topic: It must exist.
            key: Chooses the partition as the gateways do.
            value: Payload; None for a tombstone.
            what: The record in words, for the error.
            headers: None for a record without.
            timestamp_ms: UTC epoch; 0 for now.

        Raises:
            LogError: It does not answer in time, or refuses.
        """
        record = Append(ANY_PARTITION, key, value, headers or [], timestamp_ms)
        return self._append(log_topic, [record], what)[0]

    def append_all(self, log_topic: str, records: Sequence[Append], *, what: str) -> list[int]:
        """Append records in their order, wait until the log has them, return their offsets.

        Raises:
            LogDiskFull: They go where masses go, and the log is full; none is in it.
            LogError: It does not answer in time, or refuses; some may be in the log.
        """
        if log_topic in MASSES:
            self.check_room()
        return self._append(log_topic, records, what)

    def check_room(self) -> None:
        """Refuse what takes much of the disk while the log is full.

        Raises:
            LogDiskFull: It is.
        """
        if problem := self._disk.why_full():
            raise LogDiskFull(problem)

    def _append(self, log_topic: str, records: Sequence[Append], what: str) -> list[int]:
        writer = self._opened_writer()
        if log_topic == OUTPUTS:
            # Outputs of a message go where the engine puts them.
            made_with = writer.made_with()
            records = [
                one
                if one.partition == ANY_PARTITION
                else one._replace(partition=one.partition % made_with)
                for one in records
            ]
        return writer.append_all(log_topic, records, what=what)

    def close(self) -> None:
        """Let go of the log; a later append opens it again."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _opened_writer(self) -> BlockingWriter:
        with self._lock:
            if self._writer is None:
                self._writer = BlockingWriter(self.servers, CLIENT_ID, self._timeout)
            return self._writer
