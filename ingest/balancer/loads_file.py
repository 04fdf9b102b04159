"""The file of expected loads, read again whenever it is another one."""

from __future__ import annotations

import asyncio
import logging
from io import StringIO
from typing import TYPE_CHECKING

from ingest.balancer.loads import Expected, LoadsError, read_expected

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


class LoadsFile:
    """Reads it.

    Args:
        path: The file; it may be missing.
        buckets: Number of buckets that clients are put into.
        most_talkers: Clients that may have a place of their own.

    Attributes:
        made_at: When the file in force was written, in seconds since 1970; None: there is none.
        problem: Why the last file is not in force; empty: it is.
    """

    def __init__(self, path: Path, buckets: int, most_talkers: int) -> None:
        self._path = path
        self._buckets = buckets
        self._most_talkers = most_talkers
        self._stamp: tuple[int, int] | None = None
        self.made_at: float | None = None
        self.problem = ""

    async def changed(self) -> Expected | None:
        """Return the loads expected now; None: the same as before, or the file cannot be read."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            expected = await asyncio.to_thread(self._read)
        except FileNotFoundError:
            return None  # it is not written yet, or is being replaced
        except (OSError, UnicodeDecodeError, LoadsError) as exc:
            self.problem = f"{self._path}: {exc}"
            fields = {"file": str(self._path), "reason": str(exc)}
            logger.warning("expected loads not read", extra={"fields": fields})
            return None
        self.made_at, self.problem = found.st_mtime, ""
        return expected

    def _read(self) -> Expected:
        text = self._path.read_text(encoding="utf-8")
        return read_expected(lambda: StringIO(text, newline=""), self._buckets, self._most_talkers)
