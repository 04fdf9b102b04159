"""Room on the log's disk that is reserved: a file that is deleted when the disk is full.

A broker whose disk is full ends, and only a broker that runs can delete old records. Whoever else
writes to the disk may take the last of it, however early messages are refused.
"""

import logging
import os
import shutil
from pathlib import Path

_logger = logging.getLogger(__name__)


class LogReserve:
    """The file.

    Args:
        path: The file, on the log's disk.
        min_free_bytes: With less on the disk, messages are refused. The file is half as large; it
            is made while more stays free, so the disk has room for messages first.
    """

    def __init__(self, path: Path, min_free_bytes: int) -> None:
        self._path = path
        self._min_free = min_free_bytes
        self._bytes = min_free_bytes // 2

    def look(self) -> None:
        """Delete the file when the disk is full; make it when there is room again."""
        try:
            free = shutil.disk_usage(self._path.parent).free
            held = self._path.stat().st_size if self._path.exists() else 0
            if held and (held != self._bytes or free < self._bytes // 4):
                self._path.unlink()
                if held == self._bytes:
                    fields = {"free_bytes": free, "reserve_bytes": held}
                    _logger.warning(
                        "the disk is full: the reserve is used", extra={"fields": fields}
                    )
            elif not held and self._bytes and free - self._bytes >= self._min_free:
                self._make()
        except OSError as exc:
            _logger.warning("the reserve cannot be kept", extra={"fields": {"reason": str(exc)}})

    def _make(self) -> None:
        with self._path.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, self._bytes)
            except OSError:
                self._path.unlink()
                raise
