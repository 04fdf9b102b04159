"""How far each session has come, written to the log soon after it has come further.

What a client has acknowledged and the log does not know yet is sent again after a crash. So one
record of each session is on its way all the time while it is busy; the rest of its steps share the
next one. Many busy sessions at once wait a little longer for each other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from ingest.gateway.session_log import Key, SessionLog
    from mqlake.session_records import ProgressRecord

SAVE_SECONDS: Final = 0.001
"""How long the first step waits for others."""

MAX_SAVES_PER_SECOND: Final = 4_000
RETRY_SECONDS: Final = 0.2


class Progress:
    """The progress of one session: saved after it was touched.

    Args:
        saver: Of the gateway.
        key: Of the session.
        snapshot: Returns the state as it is.
    """

    __slots__ = ("_is_closed", "_is_dirty", "_saver", "_saving", "_waiting", "key", "snapshot")

    def __init__(
        self, saver: ProgressSaver, key: Key, snapshot: Callable[[], ProgressRecord]
    ) -> None:
        self.key = key
        self.snapshot = snapshot
        self._saver = saver
        self._is_dirty = False
        self._is_closed = False
        self._saving: list[Callable[[], None]] | None = None
        self._waiting: list[Callable[[], None]] = []

    def touch(self) -> None:
        """Note that something has changed."""
        if not self._is_dirty and not self._is_closed:
            self._is_dirty = True
            self._saver.schedule(self, at_once=False)

    def after_saved(self, proceed: Callable[[], None]) -> None:
        """Call back when the log has the state as it is now."""
        if self._is_closed:
            return
        self._waiting.append(proceed)
        self._is_dirty = True
        self._saver.schedule(self, at_once=True)

    def save(self) -> None:
        """Write the state unless a record is on its way; the saver calls it."""
        if self._saving is not None or not self._is_dirty or self._is_closed:
            return
        self._is_dirty = False
        self._saving, self._waiting = self._waiting, []
        try:
            self._saver.log.save_progress(self.key, self.snapshot(), self._saved)
        except LogError as error:
            self._saved(error)

    def close(self) -> None:
        """Save nothing more: the last record is somebody else's matter."""
        self._is_closed = True
        self._waiting = []

    def _saved(self, error: LogError | None) -> None:
        saving, self._saving = self._saving or [], None
        if self._is_closed:
            return
        if error is not None:
            self._waiting[:0] = saving
            self._is_dirty = True
            self._saver.schedule_again(self)
            return
        for proceed in saving:
            proceed()
        if self._is_dirty:
            self._saver.schedule(self, at_once=bool(self._waiting))


class ProgressSaver:
    """Saves what was touched, all sessions of a gateway together."""

    def __init__(self, log: SessionLog, loop: AbstractEventLoop) -> None:
        self.log = log
        self._loop = loop
        self._due: deque[Progress] = deque()
        self._is_scheduled = False
        self._is_urgent = False

    def schedule(self, progress: Progress, *, at_once: bool) -> None:
        self._due.append(progress)
        if at_once and not self._is_urgent:
            self._is_urgent = True
            self._loop.call_soon(self.save_all)
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(
                max(SAVE_SECONDS, len(self._due) / MAX_SAVES_PER_SECOND), self.save_all
            )

    def schedule_again(self, progress: Progress) -> None:
        """Schedule a session whose record the log did not take."""
        self._loop.call_later(RETRY_SECONDS, self._retry, progress)

    def save_all(self) -> None:
        """Write the state of every session that was touched."""
        self._is_scheduled = self._is_urgent = False
        due, self._due = self._due, deque()
        for progress in due:
            progress.save()

    def _retry(self, progress: Progress) -> None:
        self.schedule(progress, at_once=False)
