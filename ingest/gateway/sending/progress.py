"""How far each session has come, written to the log soon after it has come further.

Messages acknowledged without a record of it in the log are sent again after a crash. So while a
session is busy, a record of it follows the other, the steps since the last one share the next; and
several are on their way when it is urgent, each with all that was done before. A session does not
run far ahead of its records: at most the messages that may be repeated are sent, further ones wait
until the log knows of them. For most clients that is a few; it grows for one that waits for it, up
to the setting `max_repeated_messages`.

A step after some rest is written at once. Busy sessions wait for each other: their records travel
in one request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from ingest.gateway.sending.session_log import SessionLog
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.shards import Key

SAVE_SECONDS: Final = 0.001
"""How long the first step waits for others."""

RESTED_PER_SECOND: Final = 1_000
"""Records a second that the sessions of a gateway share, unless one is urgent. A record costs the
log a request and each gateway a wake-up: as many as there are messages would delay those."""

MIN_REST_SECONDS: Final = 1 / RESTED_PER_SECOND
MAX_REST_SECONDS: Final = 0.1
"""How long a session rests after a record before the next: alone, and however many share."""

WINDOW_STEP: Final = 16
"""Messages that may be repeated of a client that gets few at a time, and added each time a record
has come back while messages waited for it."""

MAX_SAVES_UNDER_WAY: Final = 4
"""Records of one session on their way at once when it is urgent: then a step need not wait for the
record before its own."""

MAX_SAVES_PER_SECOND: Final = 4_000
RETRY_SECONDS: Final = 0.2


class _Save:
    """A record on its way: waiting callers, and how many acknowledgements are new in it."""

    __slots__ = ("answers", "waiting")

    def __init__(self, waiting: list[Callable[[], None]], answers: int) -> None:
        self.waiting = waiting
        self.answers = answers


class SessionProgress:
    """The progress of one session: saved after it was touched.

    Args:
        saver: Saver of the gateway.
        key: Key of the session.
        epoch: Epoch under which it is held.
        snapshot: Returns the state as it is.
        on_room: Called when messages may be sent again after `has_room` was false.

    Attributes:
        is_begun: There is something to tell, since this connection began.
    """

    __slots__ = (
        "_answers",
        "_is_closed",
        "_is_dirty",
        "_on_room",
        "_repeatable",
        "_rests_until",
        "_saver",
        "_under_way",
        "_waiting",
        "_window",
        "epoch",
        "is_begun",
        "key",
        "snapshot",
    )

    def __init__(
        self,
        saver: ProgressSaver,
        key: Key,
        epoch: int,
        snapshot: Callable[[], ProgressRecord],
        on_room: Callable[[], None],
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.snapshot = snapshot
        self._saver = saver
        self._on_room = on_room
        self.is_begun = False
        self._is_dirty = False
        self._is_closed = False
        self._rests_until = 0.0
        # Oldest first, as the log takes them; few, and an empty list is small.
        self._under_way: list[_Save] = []
        self._waiting: list[Callable[[], None]] = []
        # QoS 1 messages that were sent and whose acknowledgement the log does not have, and how
        # many acknowledgements no record on its way tells of.
        self._repeatable = 0
        self._answers = 0
        self._window = min(WINDOW_STEP, saver.max_repeated_messages)

    @property
    def has_room(self) -> bool:
        """Tell whether one more message may be sent that a crash would repeat."""
        return self._repeatable < self._window

    def sent(self) -> None:
        """Note that a QoS 1 message is sent."""
        self.is_begun = True
        self._repeatable += 1

    def acknowledged(self) -> None:
        """Note that the client has acknowledged a QoS 1 message."""
        self._answers += 1
        self.touch()

    def touch(self) -> None:
        """Note that something has changed."""
        if not self._is_closed:
            self.is_begun = self._is_dirty = True
            self._saver.schedule(self, at_once=False)

    def after_saved(self, proceed: Callable[[], None]) -> None:
        """Call back when the log has the state as it is now."""
        if self._is_closed:
            return
        self._waiting.append(proceed)
        self.is_begun = self._is_dirty = True
        self._saver.schedule(self, at_once=True)

    @property
    def is_due(self) -> bool:
        """Tell whether there is something to save, and not too many records are on their way.

        One at a time, unless a caller waits for it or soon will: a record costs all gateways work.
        """
        if not self._is_dirty:
            return False
        return len(self._under_way) < (MAX_SAVES_UNDER_WAY if self._is_urgent else 1)

    def rests(self, now: float) -> bool:
        """Tell whether the last record is not long ago and the next has time."""
        return now < self._rests_until and not self._is_urgent

    @property
    def _is_urgent(self) -> bool:
        return (
            bool(self._waiting)
            or not self.has_room
            or 2 * self._repeatable >= self._saver.max_repeated_messages
        )

    def save(self) -> bool:
        """Write the state if it has changed; return whether the log takes it."""
        if not self._is_dirty or self._is_closed:
            return True
        self._is_dirty = False
        save = _Save(self._waiting, self._answers)
        self._waiting, self._answers = [], 0
        self._under_way.append(save)
        self._rests_until = self._saver.begin_rest()
        try:
            self._saver.log.save_progress(
                self.key, self.snapshot(), self.epoch, partial(self._saved, save)
            )
        except LogError as error:
            self._saved(save, error)
            return False
        return True

    def close(self) -> None:
        """Save nothing more: another part writes the last record."""
        self._is_closed = True
        self._waiting = []
        self._saver.forget(self)
        # They know the session, which knows this: a cycle would wait for the garbage collector.
        del self.snapshot, self._on_room

    def _saved(self, save: _Save, error: LogError | None) -> None:
        if self._is_closed or save not in self._under_way:  # a later one has reported it
            return
        if error is not None:
            self._failed(save)
            return
        had_room = self.has_room
        if not had_room:
            self._window = min(self._window + WINDOW_STEP, self._saver.max_repeated_messages)
        elif self._window > WINDOW_STEP and 4 * self._repeatable < self._window:
            self._window = WINDOW_STEP
        # A record has all that is in those before it, also of such as the log did not take.
        while self._under_way:
            done = self._under_way.pop(0)
            self._repeatable -= done.answers
            for proceed in done.waiting:
                proceed()
            if done is save:
                break
        if not had_room and self.has_room:
            self._on_room()
        if self.is_due:
            self._saver.schedule(self, at_once=bool(self._waiting))

    def _failed(self, save: _Save) -> None:
        """Leave the changes of a failed record to the next one, or to a new one."""
        at = self._under_way.index(save)
        del self._under_way[at]
        if at < len(self._under_way):
            heir = self._under_way[at]
            heir.waiting[:0] = save.waiting
            heir.answers += save.answers
            return
        self._waiting[:0] = save.waiting
        self._answers += save.answers
        self._is_dirty = True
        self._saver.schedule_again(self)


class ProgressSaver:
    """Saves changed progress, all sessions of a gateway together.

    Args:
        log: Takes the records.
        loop: Event loop of the gateway.
        max_repeated_messages: How far one session may run ahead of its records.
    """

    def __init__(
        self, log: SessionLog, loop: AbstractEventLoop, *, max_repeated_messages: int
    ) -> None:
        self.log = log
        self.max_repeated_messages = max_repeated_messages
        self._loop = loop
        # Changed and not written: due at the next turn, or later because too many records are on
        # their way or the log did not take the last one.
        self._due: dict[SessionProgress, None] = {}
        self._later: dict[SessionProgress, None] = {}
        # Changed soon after their last records: all of them are written together.
        self._resting: dict[SessionProgress, None] = {}
        self._is_scheduled = False
        self._is_urgent = False
        # Few busy sessions rest shortly, for a crash repeats their work meanwhile.
        self._rest_seconds = MIN_REST_SECONDS
        self._written = 0
        self._counted_from = loop.time()

    def schedule(self, progress: SessionProgress, *, at_once: bool) -> None:
        self._later.pop(progress, None)
        if not at_once and progress.rests(self.now()):
            if not self._resting:
                self._loop.call_later(self._rest_seconds, self._end_rest)
            self._resting[progress] = None
            return
        self._resting.pop(progress, None)
        self._due[progress] = None
        if at_once and not self._is_urgent:
            self._is_urgent = True
            self._loop.call_soon(self.save_due)
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(
                max(SAVE_SECONDS, len(self._due) / MAX_SAVES_PER_SECOND), self.save_due
            )

    def schedule_again(self, progress: SessionProgress) -> None:
        """Schedule a session whose record the log did not take."""
        self._later[progress] = None
        self._loop.call_later(RETRY_SECONDS, self._retry, progress)

    def save_due(self) -> None:
        """Write the state of the sessions that were touched."""
        self._is_scheduled = self._is_urgent = False
        due, self._due = self._due, {}
        for progress in due:
            if progress.is_due:
                progress.save()
            else:
                self._later[progress] = None

    def save_all(self) -> bool:
        """Write the state of every session that has changed; return whether the log takes it.

        Records in the same partition after that can rely on it.
        """
        changed = {**self._due, **self._later, **self._resting}
        self._due, self._later = {}, {}
        self._resting.clear()
        are_taken = [progress.save() for progress in changed]
        return all(are_taken)

    def forget(self, progress: SessionProgress) -> None:
        self._due.pop(progress, None)
        self._later.pop(progress, None)
        self._resting.pop(progress, None)

    def now(self) -> float:
        return self._loop.time()

    def begin_rest(self) -> float:
        """Count a record; return until when its session rests.

        Rests follow the number of records: when every session is busy, one look makes them right.
        """
        now = self.now()
        self._written += 1
        counted = now - self._counted_from
        if counted >= MAX_REST_SECONDS:
            rest = self._rest_seconds * self._written / (counted * RESTED_PER_SECOND)
            self._rest_seconds = min(max(rest, MIN_REST_SECONDS), MAX_REST_SECONDS)
            self._written, self._counted_from = 0, now
        return now + self._rest_seconds

    def _end_rest(self) -> None:
        """Write the rested ones. Called also when there are none any more."""
        resting, self._resting = self._resting, {}
        self._due.update(resting)
        if resting:
            self.save_due()

    def _retry(self, progress: SessionProgress) -> None:
        if progress in self._later:
            self.schedule(progress, at_once=False)
